//! What is written of a run, and when: metrics, episodes, evaluations, checkpoints.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use algo::Signals;
use episode::{Conduct, Group, Outcome, Sequence, Token};
use eval::{Answer, Answers, EvalLine, Question, Score};
use loss::Sums;
use policy::{Ask, Policy, Slot, Under, UpdateOutcome, lag, values};
use serde_json::{Map, Value, json};
use store::{Checkpoints, RunWriter, Summary, TokenValues};

use crate::evaluate::{Evaluator, Trial};
use crate::lag::{SCHEDULE, uncorrected};
use crate::source::Collected;
use crate::{Phase, Progress, RunError, Settings, State, StepSummary};

/// The name of the held-out evaluation in `evals.jsonl`.
pub const HELD_OUT: &str = "held_out";
const EVALS: &str = "evals.jsonl";
const SAMPLES: &str = "samples.json";

/// Writes a run.
pub struct Recorder {
    /// The run directory.
    pub writer: RunWriter,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// Tries held-out tasks; absent when none are to be tried.
    pub evaluator: Option<Evaluator>,
    /// Tried once before training, by name.
    pub baselines: Vec<(String, Evaluator)>,
    /// What a list of runs shows.
    pub summary: Summary,
    /// Which version is where: (step, accuracy) of the newest evaluation.
    newest: Option<(u64, f64)>,
    n_samples: usize,
    saved: Option<u64>,
    /// Whether it was said that nothing corrects for lag.
    warned: bool,
}

/// When the parts of a step began and ended.
pub struct Timer {
    start: Instant,
    collected: Option<Instant>,
}

impl Timer {
    /// The episodes are there.
    pub(crate) fn collected(self) -> Timer {
        Timer { collected: Some(Instant::now()), ..self }
    }
}

/// What a step was.
pub struct StepRecord<'a> {
    /// Which.
    pub step: u64,
    /// What it learned from.
    pub collected: &'a Collected,
    /// What they teach.
    pub signals: &'a Signals,
    /// What the updates did.
    pub outcomes: &'a [UpdateOutcome],
    /// Learning rate of the last update.
    pub learning_rate: f64,
    /// Tokens removed from π.
    pub banned: &'a [Token],
    /// How long it took.
    pub timer: Timer,
}

impl Recorder {
    /// A recorder of an open run directory. `n_samples` questions are kept with their answers; `saved` is the step of the checkpoint it goes on from.
    pub fn new(
        writer: RunWriter,
        checkpoints: Checkpoints,
        evaluator: Option<Evaluator>,
        baselines: Vec<(String, Evaluator)>,
        summary: Summary,
        n_samples: usize,
        saved: Option<u64>,
    ) -> Recorder {
        Recorder { writer, checkpoints, evaluator, baselines, summary, newest: None, n_samples, saved, warned: false }
    }

    pub(crate) fn timer(&self) -> Timer {
        Timer { start: Instant::now(), collected: None }
    }

    /// Before the first step after a start or a resume: evaluations that are due and not there yet.
    pub(crate) fn before(
        &mut self,
        policy: &mut dyn Policy,
        state: &mut State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<(), RunError> {
        if state.step == 0 {
            for index in 0..self.baselines.len() {
                let name = self.baselines[index].0.clone();
                if self.line(0, &name)?.is_some() {
                    continue;
                }
                let trial = self.baselines[index].1.run(&name, policy, progress, cancel)?;
                self.write_score(0, &trial, progress)?;
            }
            self.evaluate(policy, state, progress, cancel)?;
        }
        Ok(())
    }

    fn line(&self, step: u64, name: &str) -> Result<Option<Score>, RunError> {
        let lines: Vec<EvalLine> = self.writer.read_lines(EVALS)?;
        Ok(lines.into_iter().find(|l| l.step == step && l.score.name == name).map(|l| l.score))
    }

    fn write_score(&mut self, step: u64, trial: &Trial, progress: &mut dyn Progress) -> Result<(), RunError> {
        self.writer.append_line(EVALS, step, &trial.score)?;
        progress.score(step, &trial.score);
        Ok(())
    }

    /// Tries held-out tasks, unless this step's are there already.
    fn evaluate(
        &mut self,
        policy: &mut dyn Policy,
        state: &mut State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<(), RunError> {
        let Some(evaluator) = &self.evaluator else { return Ok(()) };
        // It is there already when a run was stopped between its first evaluation and its first checkpoint.
        let score = match self.line(state.step, HELD_OUT)? {
            Some(score) => score,
            None => {
                let trial = evaluator.run(HELD_OUT, policy, progress, cancel)?;
                self.keep_answers(state.step, &trial)?;
                self.write_score(state.step, &trial, progress)?;
                trial.score
            }
        };
        if let Some(accuracy) = score.accuracy {
            state.note(accuracy);
            self.newest = Some((state.step, accuracy));
            self.summary.best_score = state.best;
        }
        Ok(())
    }

    /// Keeps the first questions' answers: before training as they are, later beside those from before.
    pub(crate) fn keep_answers(&self, step: u64, trial: &Trial) -> Result<(), RunError> {
        let Some(evaluator) = &self.evaluator else { return Ok(()) };
        let criteria = evaluator.criteria();
        let stored: Option<Answers> = self.writer.read_json(SAMPLES)?;
        let mut questions = stored.map_or_else(Vec::new, |a| a.questions);
        if step == 0 || questions.is_empty() {
            questions = trial.groups.iter().take(self.n_samples).map(|g| Question::new(&g.task)).collect();
        }
        for question in &mut questions {
            let group = trial.groups.iter().find(|g| g.task.id == question.task);
            let answer = group.and_then(|g| g.episodes.first()).map(|e| Answer::new(e, &criteria));
            if step == 0 {
                question.before = answer;
            } else {
                question.after = answer;
            }
        }
        Ok(self.writer.write_json(SAMPLES, &Answers { questions })?)
    }

    /// Writes a step's numbers and episodes.
    pub(crate) fn step(
        &mut self,
        policy: &mut dyn Policy,
        settings: &Settings,
        record: StepRecord<'_>,
        progress: &mut dyn Progress,
    ) -> Result<(), RunError> {
        let StepRecord { step, collected, signals, outcomes, learning_rate, banned, timer } = record;
        if let Some(note) = uncorrected(signals, collected, policy.version()).filter(|_| !self.warned) {
            progress.note(&note);
            self.warned = true;
        }
        let groups = &collected.groups;
        let fresh = &groups[..collected.n_fresh];
        let mut metrics = metrics(groups, fresh, signals, outcomes, policy.version());
        if settings.rollout.turns > 1 {
            conduct(fresh, &mut metrics);
        }
        if let Some(schedule) = &collected.schedule {
            schedule.measure(collected, policy.version(), &mut metrics);
        }
        metrics.insert("learning_rate".to_owned(), learning_rate.into());
        let every = settings.checkpoint.kl_every;
        if every > 0 && step.is_multiple_of(every) && settings.data.is_none() {
            metrics.insert("kl_start".to_owned(), kl_to_start(policy, settings, banned, fresh, step)?.into());
        }
        let end = Instant::now();
        let seconds = (end - timer.start).as_secs_f64();
        let collecting = timer.collected.map_or(seconds, |c| (c - timer.start).as_secs_f64());
        let n_tokens: usize = fresh.iter().flat_map(|g| &g.episodes).map(|e| e.n_sampled()).sum();
        let tokens_per_s = n_tokens as f64 / collecting.max(1e-9);
        let mut timings = Map::new();
        timings.insert("step_s".to_owned(), seconds.into());
        timings.insert("collect_s".to_owned(), collecting.into());
        timings.insert("tokens_per_s".to_owned(), tokens_per_s.into());
        timings.insert("memory_mib".to_owned(), memory_mib().into());
        self.writer.write_metrics(step, &metrics, &timings, now())?;
        self.writer.write_episodes(step, groups)?;
        if let Some(schedule) = &collected.schedule {
            self.writer.append_line(SCHEDULE, step, &schedule.line(collected, policy.version()))?;
        }
        self.writer.write_token_values(step, &token_values(groups, signals))?;
        progress.step(&StepSummary {
            step,
            of: settings.steps,
            reward: metrics.get("reward_mean").and_then(Value::as_f64),
            entropy: metrics.get("entropy").and_then(Value::as_f64),
            tokens_per_s,
            seconds,
        });
        Ok(())
    }

    /// After a step: an evaluation and a checkpoint where they are due. True when the run should stop early.
    pub(crate) fn after(
        &mut self,
        policy: &mut dyn Policy,
        settings: &Settings,
        state: &mut State,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<bool, RunError> {
        let last = state.step == settings.steps;
        let due = settings.eval.every > 0 && state.step.is_multiple_of(settings.eval.every);
        if due || last {
            self.evaluate(policy, state, progress, cancel)?;
        }
        let patience = settings.eval.patience;
        let early = patience > 0 && state.worse >= patience;
        if last || early || state.step.is_multiple_of(settings.checkpoint.every) {
            progress.phase(Phase::Saving, 0);
            self.checkpoint(policy, state)?;
        }
        self.summary.last_step = state.step;
        self.writer.write_summary(&self.summary)?;
        Ok(early && !last)
    }

    /// Saves the state after the last finished step, unless that is done or there is none.
    pub(crate) fn checkpoint(&mut self, policy: &mut dyn Policy, state: &State) -> Result<(), RunError> {
        if state.step == 0 || self.saved == Some(state.step) {
            return Ok(());
        }
        let metric = self.newest.filter(|(step, _)| *step == state.step).map(|(_, accuracy)| accuracy);
        let learner = policy.learner();
        self.checkpoints.save(state.step, metric, state, |folder| -> Result<(), Box<dyn Error + Send + Sync>> {
            learner.save(folder)?;
            Ok(state.save_flight(folder)?)
        })?;
        self.saved = Some(state.step);
        Ok(())
    }
}

/// A step's numbers, all of which follow from settings and seed. Of several updates the first says how sampler and trainer
/// agree; the others are over all. What the episodes are like is said of the fresh ones.
/// What a step's episodes did with tools.
fn conduct(fresh: &[Group], metrics: &mut Map<String, Value>) {
    let episodes = fresh.iter().flat_map(|g| &g.episodes);
    let n = episodes.clone().count() as f64;
    let conduct: Conduct = episodes.map(|e| e.conduct).sum();
    let (calls, malformed) = (f64::from(conduct.calls), f64::from(conduct.malformed));
    let share = |count: f64, of: f64| (of > 0.0).then(|| count / of);
    for (key, value) in [
        ("violations_per_100_calls", conduct.violations_per_100_calls()),
        ("calls_mean", share(calls, n)),
        ("malformed_share", share(malformed, calls + malformed)),
        ("call_failed_share", share(f64::from(conduct.failed), calls)),
        ("n_restarts", Some(f64::from(conduct.restarts))),
    ] {
        metrics.insert(key.to_owned(), value.map_or(Value::Null, Value::from));
    }
}

fn metrics(
    groups: &[Group],
    fresh: &[Group],
    signals: &Signals,
    outcomes: &[UpdateOutcome],
    version: u32,
) -> Map<String, Value> {
    let mut all = Map::new();
    let mut put = |key: &str, value: Option<f64>| {
        all.insert(key.to_owned(), value.filter(|v| v.is_finite()).map_or(Value::Null, Value::from));
    };
    let episodes: Vec<_> = fresh.iter().flat_map(|g| &g.episodes).collect();
    let n = episodes.len() as f64;
    let share = |count: usize| (n > 0.0).then(|| count as f64 / n);
    let rewards: Vec<f64> = episodes.iter().filter_map(|e| e.outcome.reward()).collect();
    let mean = |v: &[f64]| (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64);
    let reward = mean(&rewards);
    put("reward_mean", reward);
    put(
        "reward_std",
        reward.and_then(|m| mean(&rewards.iter().map(|r| (r - m) * (r - m)).collect::<Vec<_>>())).map(f64::sqrt),
    );
    let flat = fresh.iter().filter(|g| !g.has_spread()).count();
    put("flat_group_share", (!fresh.is_empty()).then(|| flat as f64 / fresh.len() as f64));
    let mut sums = Sums::default();
    outcomes.iter().for_each(|o| sums.merge(&o.sums));
    let over_all = sums.metrics();
    let first = outcomes.iter().find(|o| !o.skipped()).map(|o| o.metrics).unwrap_or_default();
    put("entropy", over_all.entropy);
    put("kl_mismatch", first.mismatch_kl);
    put("logp_gap_max", first.mismatch_max);
    put("ratio_max", first.log_ratio_max.map(tensor::math::exp_f64));
    put("clip_share", over_all.clip_share);
    put("loss", Some(over_all.loss));
    put("dlogp_norm", Some(over_all.dlogp_norm));
    put("advantage_abs_mean", over_all.abs_advantage);
    let reports: Vec<_> = outcomes.iter().filter_map(|o| o.report).collect();
    put("grad_norm", mean(&reports.iter().map(|r| r.grad_norm).collect::<Vec<_>>()));
    put("grad_clip_share", mean(&reports.iter().map(|r| f64::from(r.clip_scale < 1.0)).collect::<Vec<_>>()));
    put("n_updates", Some(reports.len() as f64));
    let lengths: Vec<f64> = episodes.iter().map(|e| e.n_sampled() as f64).collect();
    put("length_mean", mean(&lengths));
    put("length_max", lengths.iter().copied().reduce(f64::max));
    put("truncated_share", share(episodes.iter().filter(|e| e.stop.is_truncation()).count()));
    put("failed_share", share(episodes.iter().filter(|e| matches!(e.outcome, Outcome::Failed { .. })).count()));
    let all_episodes = groups.iter().flat_map(|g| &g.episodes);
    let lags = lag(all_episodes.flat_map(|e| &e.sequences), version);
    let sampled: u64 = lags.values().sum();
    put(
        "lag_mean",
        (sampled > 0).then(|| lags.iter().map(|(l, c)| *l as f64 * *c as f64).sum::<f64>() / sampled as f64),
    );
    put("lag_max", lags.keys().next_back().map(|l| *l as f64));
    put("n_episodes", Some(n));
    put("n_tokens", Some(lengths.iter().sum()));
    put("skipped", Some(f64::from(reports.is_empty())));
    let corrects = signals.loss.correction.name() != "none";
    // Of what only some runs have, the others' lines say nothing.
    for (key, value) in [
        ("ess", over_all.ess.filter(|_| corrects)),
        ("correction_mean", over_all.correction.filter(|_| corrects)),
        ("silent_share", over_all.silent_share.filter(|share| *share > 0.0)),
        ("kl_ref", over_all.ref_kl),
        ("loss_value", over_all.explained_variance.map(|_| over_all.loss_value)),
        ("explained_variance", over_all.explained_variance),
        ("value_clip_share", over_all.value_clip_share),
        ("pair_accuracy", over_all.pair_accuracy),
        ("pair_margin", over_all.pair_margin),
    ] {
        if let Some(value) = value.filter(|v| v.is_finite()) {
            all.insert(key.to_owned(), value.into());
        }
    }
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for episode in &episodes {
        if let Outcome::Failed { stage, cause } = &episode.outcome {
            *failures.entry(format!("{}/{}", stage.as_str(), cause.class)).or_default() += 1;
        }
    }
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for episode in &episodes {
        if let Outcome::Graded { parts: own, .. } = &episode.outcome {
            own.iter().for_each(|p| parts.entry(&p.name).or_default().push(p.value));
        }
    }
    let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
    for d in &signals.dropped {
        let kind = json!(d.why)["kind"].as_str().unwrap_or("").to_owned();
        *dropped.entry(kind).or_default() += 1;
    }
    all.insert("failures".to_owned(), json!(failures));
    all.insert("dropped".to_owned(), json!(dropped));
    let means: BTreeMap<&str, Option<f64>> = parts.iter().map(|(name, v)| (*name, mean(v))).collect();
    all.insert("parts".to_owned(), json!(means));
    all
}

/// KL(π‖start) over a step's tokens, by k3 from the recorded log-probabilities.
fn kl_to_start(
    policy: &mut dyn Policy,
    settings: &Settings,
    banned: &[Token],
    groups: &[Group],
    step: u64,
) -> Result<f64, RunError> {
    let failed = |source| RunError::Policy { step, source };
    let asked = Ask::plain(Under::Kept(Slot::Start));
    let start = values(policy.learner(), &asked, groups, settings.sampling.temperature, banned);
    let start = start.map_err(failed)?;
    let (mut sum, mut n) = (0.0, 0_u64);
    for (group, start) in groups.iter().zip(&start) {
        for (episode, start) in group.episodes.iter().zip(start).filter(|(e, _)| e.outcome.reward().is_some()) {
            for (sequence, start) in episode.sequences.iter().zip(start) {
                for t in (0..sequence.len()).filter(|t| sequence.sampled()[*t]) {
                    let back = f64::from(start.logp[t]) - f64::from(sequence.logp()[t]);
                    sum += tensor::math::exp_f64(back) - 1.0 - back;
                    n += 1;
                }
            }
        }
    }
    Ok(if n == 0 { 0.0 } else { sum / n as f64 })
}

fn token_values(groups: &[Group], signals: &Signals) -> Vec<TokenValues> {
    let mut all = Vec::new();
    for (index, (group, signals)) in groups.iter().zip(&signals.groups).enumerate() {
        for (episode, signals) in group.episodes.iter().zip(&signals.episodes) {
            let Some(signals) = signals else { continue };
            let one = |(sequence, signal): (&Sequence, &loss::Signal)| {
                let value = |(sampled, v): (&bool, &f32)| sampled.then_some(*v);
                sequence.sampled().iter().zip(&signal.advantage).map(value).collect()
            };
            let lists = episode.sequences.iter().zip(signals).map(one).collect();
            all.push(TokenValues {
                group: index as u64,
                task: group.task.id.clone(),
                sample: episode.key.sample,
                values: BTreeMap::from([("advantage".to_owned(), lists)]),
            });
        }
    }
    all
}

pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The most memory the process had resident so far, in mebibytes; 0 where the system does not say.
fn memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.map_or(0.0, |k| k / 1024.0)
}
