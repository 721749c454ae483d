//! One run of a study: ended at a budget, tried on every held-out task, and left as an ordinary run directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use algo::Why;
use episode::{Episode, Group};
use eval::study::{Ended, TaskResult};
use eval::{Criteria, EvalLine, Score};
use loss::LossError;
use policy::PolicyError;
use serde::{Deserialize, Serialize};
use store::{RunDir, StoreError, Summary, hash_bytes};
use tensor::Cpu;

use super::gather;
use crate::record::HELD_OUT;
use crate::{Begin, Manifest, Phase, Progress, RunError, Session, Settings, StepSummary, Trial};

const CELL: &str = "cell.json";
const EVALS: &str = "evals.jsonl";
const MANIFEST: &str = "manifest.json";
const NOTHING_HELD_OUT: &str = "a study compares scores on held-out tasks, needed at least 1, got none";

/// How a run of a study came out: `cell.json` of its directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Steps done.
    pub(super) step: u64,
    /// How it ended.
    pub(super) ended: Ended,
    /// The final policy's score.
    pub(super) score: Score,
    /// The final policy on each held-out task, by task.
    pub(super) held_out: Vec<TaskResult>,
}

/// What to run.
pub(super) struct Job<'a> {
    pub(super) folder: &'a Path,
    pub(super) settings: Settings,
    pub(super) base: &'a Path,
    pub(super) model: &'a Path,
    /// Sampled tokens after which it ends; none for all steps.
    pub(super) budget: Option<u64>,
    /// The study's first run, which every other must be made like.
    pub(super) first: &'a Path,
}

/// How a run came out, if it is done.
pub(super) fn outcome(folder: &Path) -> Result<Option<Outcome>, StoreError> {
    match RunDir::read(folder) {
        Ok(run) => run.read_json(CELL),
        Err(StoreError::NotARun { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Whether nothing is left to do for a run.
pub(super) fn is_done(folder: &Path) -> Result<bool, StoreError> {
    let Some(outcome) = outcome(folder)? else { return Ok(false) };
    let status = RunDir::read(folder)?.summary()?.unwrap_or_default().status;
    Ok(outcome.ended != Ended::Budget || status == status_of(&outcome.ended))
}

fn status_of(ended: &Ended) -> &'static str {
    match ended {
        Ended::Budget => "finished",
        Ended::GaveUp { .. } => "failed",
    }
}

/// Makes the run, or goes on where it stopped.
pub(super) fn run(job: &Job<'_>, cpu: Cpu, progress: &mut dyn Progress, cancel: &AtomicBool) -> Result<(), RunError> {
    if let Some(outcome) = outcome(job.folder)? {
        return seal(job, &outcome);
    }
    let mut session = open(job, cpu, progress, cancel)?;
    let ended = train(&mut session, job, progress, cancel)?;
    let trial =
        session.try_held_out(progress, cancel)?.ok_or_else(|| RunError::Settings(NOTHING_HELD_OUT.to_owned()))?;
    let held_out = session.criteria().map(|criteria| results(&trial, &criteria)).unwrap_or_default();
    let outcome = Outcome { step: session.state.step, ended, held_out, score: trial.score };
    // From here on the run needs no policy any more, so this comes before what is put in order.
    session.folder().write_json(CELL, &outcome)?;
    drop(session);
    seal(job, &outcome)
}

/// Starts the run, or takes it up; what a process killed while starting left behind is no run and is cleared away.
fn open(job: &Job<'_>, cpu: Cpu, progress: &mut dyn Progress, cancel: &AtomicBool) -> Result<Session, RunError> {
    if is_run(job.folder)? {
        return Session::resume(job.folder, job.model, cpu, progress, cancel);
    }
    if job.folder.exists() {
        std::fs::remove_dir_all(job.folder).map_err(|source| RunError::Io { path: job.folder.to_owned(), source })?;
    }
    let begin = Begin { model: job.model, base: job.base, folder: job.folder, from: None, teacher: None, cpu };
    let session = Session::start(job.settings.clone(), begin, progress, cancel)?;
    if let Err(reason) = made_alike(job, session.folder())? {
        drop(session);
        // It has made no step, and no later try could go on with it.
        std::fs::remove_dir_all(job.folder).map_err(|source| RunError::Io { path: job.folder.to_owned(), source })?;
        return Err(RunError::Resume { path: job.folder.to_owned(), reason });
    }
    Ok(session)
}

/// Whether a new run begins with what the study's first one began with; if not, what differs.
fn made_alike(job: &Job<'_>, run: &RunDir) -> Result<Result<(), String>, StoreError> {
    if job.first == job.folder {
        return Ok(Ok(()));
    }
    let first: Option<Manifest> = RunDir::read(job.first)?.read_json(MANIFEST)?;
    let (Some(a), Some(b)) = (first, run.read_json::<Manifest>(MANIFEST)?) else { return Ok(Ok(())) };
    for (what, was, is) in [
        ("program version", &a.version, &b.version),
        ("weights", &a.weights, &b.weights),
        ("tokenizer", &a.tokenizer, &b.tokenizer),
        ("data", &a.data, &b.data),
    ] {
        if was != is {
            return Ok(Err(format!("its {what} is not that of the study's first run: needed `{was}`, got `{is}`")));
        }
    }
    Ok(Ok(()))
}

fn is_run(folder: &Path) -> Result<bool, StoreError> {
    let run = match RunDir::read(folder) {
        Ok(run) => run,
        Err(StoreError::NotARun { .. }) => return Ok(false),
        Err(other) => return Err(other),
    };
    let manifest: Option<serde_json::Value> = run.read_json(MANIFEST)?;
    Ok(manifest.is_some() && run.settings()?.is_some() && run.summary()?.is_some())
}

/// Trains until the budget is reached.
fn train(
    session: &mut Session,
    job: &Job<'_>,
    progress: &mut dyn Progress,
    cancel: &AtomicBool,
) -> Result<Ended, RunError> {
    let run = RunDir::read(job.folder)?;
    let stop = AtomicBool::new(false);
    let every = session.settings.eval.every;
    let mut within =
        Within { progress, cancel, stop: &stop, run: &run, budget: job.budget, every, standing: Standing::Before };
    if job.budget.is_some_and(|b| gather::tokens(&run).is_ok_and(|n| n >= b)) {
        return Ok(Ended::Budget);
    }
    let result = session.run(&mut within, &stop);
    let standing = within.standing;
    match (result, standing) {
        (_, Standing::Failed(error)) => Err(error.into()),
        (Err(RunError::Interrupted), Standing::Reached) => Ok(Ended::Budget),
        (Ok(_), Standing::Reached) => Ok(Ended::Budget),
        (Ok(_), Standing::Before) if job.budget.is_none() => Ok(Ended::Budget),
        (Ok(_), Standing::Before) => {
            let why = format!("{} steps did not reach the budget", session.state.step);
            Ok(Ended::GaveUp { why })
        }
        (Err(error), _) if speaks_of_training(&error) => Ok(Ended::GaveUp { why: error.to_string() }),
        (Err(error), _) => Err(error),
    }
}

/// Whether an error is what became of the way of training, and not of the machine or the input.
fn speaks_of_training(error: &RunError) -> bool {
    let RunError::Policy { source, .. } = error else { return matches!(error, RunError::Idle { .. }) };
    matches!(source, PolicyError::NotFinite { .. } | PolicyError::Loss { source: LossError::NotFinite { .. }, .. })
}

/// The results by task, in the order of their ids.
fn results(trial: &Trial, criteria: &Criteria<'_>) -> Vec<TaskResult> {
    let mut by_task: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for group in &trial.groups {
        let entry = by_task.entry(group.task.id.clone()).or_default();
        entry.0 += group.episodes.len() as u64;
        entry.1 += group.episodes.iter().filter(|e| criteria.is_solved(e)).count() as u64;
    }
    by_task.into_iter().map(|(task, (attempts, solved))| TaskResult { task, attempts, solved }).collect()
}

/// Makes the directory that of a run with exactly this many steps: the final score among its evaluations, the number of
/// steps in its settings, its status. Doing it again changes nothing.
fn seal(job: &Job<'_>, outcome: &Outcome) -> Result<(), RunError> {
    if outcome.ended != Ended::Budget {
        return Ok(());
    }
    let mut run = RunDir::open(job.folder)?;
    let lines: Vec<EvalLine> = run.read_lines(EVALS)?;
    if !lines.iter().any(|l| l.step == outcome.step && l.score.name == HELD_OUT) {
        run.append_line(EVALS, outcome.step, &outcome.score)?;
    }
    let settings = Settings { steps: outcome.step, ..job.settings.clone() };
    let toml = settings.to_toml()?;
    run.write_settings(&toml)?;
    if let Some(manifest) = run.read_json::<Manifest>(MANIFEST)? {
        run.write_json(MANIFEST, &Manifest { settings: hash_bytes(toml.as_bytes()), ..manifest })?;
    }
    run.export(&settings)?;
    let summary = run.summary()?.unwrap_or_default();
    let best = summary.best_score.into_iter().chain(outcome.score.accuracy).reduce(f64::max);
    let status = status_of(&outcome.ended).to_owned();
    run.write_summary(&Summary { status, last_step: outcome.step, best_score: best, ..summary })?;
    Ok(())
}

/// Where a run stands with its budget.
enum Standing {
    Before,
    Reached,
    Failed(StoreError),
}

/// Passes everything on, and stops the run at the first step that reaches the budget, once that step is written and, where
/// one is due, evaluated.
struct Within<'a> {
    progress: &'a mut dyn Progress,
    /// The user's wish to stop.
    cancel: &'a AtomicBool,
    /// What the run is stopped with.
    stop: &'a AtomicBool,
    run: &'a RunDir,
    budget: Option<u64>,
    /// Steps between evaluations.
    every: u64,
    standing: Standing,
}

impl Within<'_> {
    fn listen(&self) {
        if self.cancel.load(Ordering::Relaxed) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Progress for Within<'_> {
    fn phase(&mut self, phase: Phase, total: usize) {
        if matches!(self.standing, Standing::Reached) && phase == Phase::Collecting {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.listen();
        self.progress.phase(phase, total);
    }

    fn tokens(&mut self, n_tokens: usize) {
        self.listen();
        self.progress.tokens(n_tokens);
    }

    fn finished(&mut self, episode: &Episode) {
        self.listen();
        self.progress.finished(episode);
    }

    fn left_out(&mut self, group: &Group, why: &Why) {
        self.progress.left_out(group, why);
    }

    fn step(&mut self, summary: &StepSummary) {
        let mut shown = summary.clone();
        if let Some(budget) = self.budget {
            // The step's line is written by now, and what it says is what counts, here as after a resume.
            match gather::tokens(self.run) {
                Ok(tokens) => {
                    // Steps there will be at this pace.
                    shown.of = budget.saturating_mul(summary.step).div_ceil(tokens.max(1)).max(summary.step);
                    if tokens >= budget {
                        self.standing = Standing::Reached;
                        // An evaluation that is due now comes before the end.
                        if self.every == 0 || !summary.step.is_multiple_of(self.every) {
                            self.stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
                Err(error) => {
                    self.standing = Standing::Failed(error);
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
        self.progress.step(&shown);
        self.listen();
    }

    fn score(&mut self, step: u64, score: &Score) {
        if matches!(self.standing, Standing::Reached) {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.listen();
        self.progress.score(step, score);
    }

    fn note(&mut self, text: &str) {
        self.progress.note(text);
    }
}
