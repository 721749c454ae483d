//! A training step over the groups of the input, with recorded numbers where a policy would be.

use std::borrow::Cow;
use std::collections::BTreeMap;

use algo::{Admission, AlgoError, Algorithm, Dropped, Settings, Signals, Why};
use episode::{Group, Outcome, TaskId};
use loss::{Loss, LossError, Old, Signal, Sums};
use policy::{PolicyError, UpdateBatch, update_batch};

use super::answers::{Lacking, answers};
use super::found::{Computed, DroppedLines, EpisodeSignals, Summary};
use super::given::Given;
use super::recorded::{Place, Recorded};
use super::{Found, Input, SignalsError};

/// An algorithm, asked about the input.
pub(super) struct Asking<'a> {
    pub(super) input: &'a Input,
    pub(super) settings: &'a Settings,
    pub(super) algorithm: &'a dyn Algorithm,
}

/// What the algorithm made of the groups.
pub(super) struct Taught<'a> {
    /// The groups that are trained on.
    groups: Cow<'a, [Group]>,
    /// Which of the input's groups they are.
    kept: Vec<usize>,
    left_out: Vec<(usize, Why)>,
    signals: Signals,
}

impl Asking<'_> {
    /// What a step does with groups that were just collected.
    pub(super) fn teach<'g>(&self, groups: &'g [Group]) -> Result<Taught<'g>, SignalsError> {
        let (mut kept, mut left_out) = (Vec::new(), Vec::new());
        for (g, group) in groups.iter().enumerate() {
            match self.algorithm.admit(group) {
                Admission::Keep => kept.push(g),
                Admission::Drop(why) | Admission::DrawMore(why) => left_out.push((g, why)),
            }
        }
        let groups = match left_out.is_empty() {
            true => Cow::Borrowed(groups),
            false => Cow::Owned(kept.iter().map(|g| groups[*g].clone()).collect()),
        };
        let answers = answers(self.algorithm, &groups, &self.given(&kept), self.input.version());
        let answers = answers.map_err(|lacking| self.missing(lacking))?;
        let signals = self.algorithm.signals(&groups, &answers).map_err(|error| self.of_algorithm(error))?;
        Ok(Taught { groups, kept, left_out, signals })
    }

    /// Refuses a line without a reward where the algorithm reads one: with another reward it would answer otherwise.
    pub(super) fn check_rewards(&self, taught: &Taught<'_>) -> Result<(), SignalsError> {
        let given = || self.input.given.iter().flatten();
        let Some(line) = given().filter(|given| !given.is_rewarded).map(|given| given.line).min() else {
            return Ok(());
        };
        let mut groups = self.input.groups.clone();
        let episodes = groups.iter_mut().flat_map(|g| &mut g.episodes).zip(given());
        for (n, (episode, _)) in episodes.filter(|(_, given)| !given.is_rewarded).enumerate() {
            episode.outcome = Outcome::Graded { reward: 1.0 + n as f64, parts: Vec::new() };
        }
        let is_same = |other: &Taught<'_>| {
            let pairs = other.signals.groups.iter().zip(&taught.signals.groups);
            other.kept == taught.kept && pairs.into_iter().all(|(a, b)| a.episodes == b.episodes)
        };
        match self.teach(&groups) {
            Ok(other) if is_same(&other) => Ok(()),
            _ => Err(self.missing(Lacking { field: "reward", line })),
        }
    }

    /// The updates of one pass, and what they saw of each token.
    pub(super) fn answer(&self, taught: Taught<'_>, micro_batches: usize) -> Result<Found, SignalsError> {
        let Taught { groups, kept, left_out, mut signals } = taught;
        let places = Place::all(&groups, &self.given(&kept));
        take_old(&places, &mut signals);
        self.check_recorded(&places, &signals)?;
        let mut learner = Recorded::new(&places, micro_batches);
        let (mut sums, mut totals) = (Sums::default(), Vec::new());
        let mut records = Vec::new();
        let batches = signals.plan.batches(groups.len());
        let one_pass = batches.len() / signals.plan.epochs.max(1) as usize;
        for range in batches.into_iter().take(one_pass) {
            let groups = signals.batch(&groups, range);
            let batch = UpdateBatch { groups, temperature: 1.0, banned: &[], keep_tokens: true };
            let outcome = update_batch(&mut learner, &batch, &signals.loss, None);
            let outcome = outcome.map_err(|error| self.of_policy(error, &places, &batch))?;
            sums.merge(&outcome.sums);
            totals.push(outcome.totals);
            records.extend(outcome.tokens.into_iter().flatten());
        }
        let dropped = self.dropped(&kept, &left_out, &signals);
        let mut computed: BTreeMap<usize, Vec<Computed<'_>>> = BTreeMap::new();
        let mut records = records.into_iter();
        for (place, grads) in places.iter().zip(learner.grads) {
            let signal = signal_of(&signals, place.at);
            // What has no signal is in no batch.
            let record = signal.and_then(|_| records.next().flatten());
            computed.entry(place.given.line).or_default().push(Computed { signal, record, grads });
        }
        let mut episodes = self.episodes(computed, &signals.loss);
        // One's own reason stands behind that of the whole group, and is the nearer one.
        let why: BTreeMap<usize, &str> =
            dropped.iter().flat_map(|d| d.lines.iter().map(|line| (*line, d.text.as_str()))).collect();
        for episode in &mut episodes {
            episode.dropped = why.get(&episode.line).map(|why| (*why).to_owned());
        }
        let given = self.input.given.iter().flatten();
        let summary = Summary {
            algorithm: self.settings.clone(),
            n_episodes: given.count(),
            n_groups: self.input.groups.len(),
            loss: sums.loss(),
            reduction: signals.loss.reduction,
            totals,
            metrics: sums.metrics(),
            dropped,
        };
        Ok(Found { episodes, summary })
    }

    fn given(&self, kept: &[usize]) -> Vec<&[Given]> {
        kept.iter().map(|g| self.input.given[*g].as_slice()).collect()
    }

    /// One a line, in their order.
    fn episodes(&self, mut computed: BTreeMap<usize, Vec<Computed<'_>>>, loss: &Loss) -> Vec<EpisodeSignals> {
        let mut all = Vec::new();
        for (group, given) in self.input.groups.iter().zip(&self.input.given) {
            for (episode, given) in group.episodes.iter().zip(given) {
                let blank = || episode.sequences.iter().map(|_| Computed::default()).collect();
                let computed = computed.remove(&given.line).unwrap_or_else(blank);
                all.push(EpisodeSignals::new(group, episode, given, loss, &computed));
            }
        }
        all.sort_by_key(|episode| episode.line);
        all
    }

    /// What teaches nothing: whole groups first.
    fn dropped(&self, kept: &[usize], left_out: &[(usize, Why)], signals: &Signals) -> Vec<DroppedLines> {
        let of = |g: usize, episode: Option<usize>, why: &Why, left_out: bool| {
            let lines = self.input.given[g].iter().map(|given| given.line);
            DroppedLines {
                task: self.input.groups[g].task.id.to_string(),
                lines: match episode {
                    Some(e) => lines.skip(e).take(1).collect(),
                    None => lines.collect(),
                },
                why: why.clone(),
                text: why.to_string(),
                left_out,
            }
        };
        let mut all: Vec<DroppedLines> = left_out.iter().map(|(g, why)| of(*g, None, why, true)).collect();
        for Dropped { group, episode, why } in &signals.dropped {
            let is_out = |e: usize| signals.groups[*group].episodes[e].is_none();
            let out = match episode {
                Some(e) => is_out(*e),
                None => (0..signals.groups[*group].episodes.len()).all(is_out),
            };
            all.push(of(kept[*group], *episode, why, out));
        }
        all.sort_by_key(|dropped| std::cmp::Reverse(dropped.lines.len()));
        all
    }

    /// Refuses a line without the log-probabilities that the loss compares.
    fn check_recorded(&self, places: &[Place<'_>], signals: &Signals) -> Result<(), SignalsError> {
        let loss = &signals.loss;
        for place in places.iter().filter(|place| place.sequence.n_sampled() > 0) {
            let Some(signal) = signal_of(signals, place.at) else { continue };
            let given = place.given;
            let lacks_old = given.logp_old.is_none() && given.logp_sampler.is_none();
            let reads_old = loss.needs_old() && signal.old != Old::Given;
            let lacks_any = given.now().is_none() && !loss.scores();
            if lacks_any || reads_old && lacks_old || loss.needs_sampler() && given.logp_sampler.is_none() {
                return Err(self.missing(Lacking { field: "logp_sampler", line: given.line }));
            }
            if loss.correction.reads_lag() && !given.has_version {
                return Err(self.missing(Lacking { field: "version", line: given.line }));
            }
        }
        Ok(())
    }

    fn missing(&self, lacking: Lacking) -> SignalsError {
        let Lacking { field, line } = lacking;
        SignalsError::Missing { algorithm: self.settings.name(), field, line }
    }

    /// An algorithm's error, as one about a line where a list is missing.
    fn of_algorithm(&self, error: AlgoError) -> SignalsError {
        match &error {
            AlgoError::Loss(LossError::Missing { list, .. } | LossError::Length { list, .. }) => {
                self.lacking(list).map_or(SignalsError::Algo(error), |lacking| self.missing(lacking))
            }
            _ => match error.place().and_then(|(task, episode)| self.line_of(task, episode)) {
                Some(line) => SignalsError::Line { line, reason: error.to_string() },
                None => SignalsError::Algo(error),
            },
        }
    }

    /// The line of an episode of a task; none where several groups go by that task.
    fn line_of(&self, task: &TaskId, episode: usize) -> Option<usize> {
        let mut found = self.input.groups.iter().zip(&self.input.given).filter(|(group, _)| group.task.id == *task);
        let (_, given) = found.next().filter(|_| found.next().is_none())?;
        given.get(episode).map(|given| given.line)
    }

    /// A loss's error, as one about a line.
    fn of_policy(&self, error: PolicyError, places: &[Place<'_>], batch: &UpdateBatch<'_>) -> SignalsError {
        let PolicyError::Loss { group, source } = &error else { return SignalsError::Policy(error) };
        match source {
            LossError::Missing { list, .. } | LossError::Length { list, .. } => {
                self.lacking(list).map_or(SignalsError::Policy(error), |lacking| self.missing(lacking))
            }
            LossError::NotFinite { what, sequence, token, value } => {
                let trained = batch.groups[*group].iter().map(|(s, _)| *s).filter(|s| s.n_sampled() > 0);
                let place = trained.skip(*sequence).take(1);
                let place = place.filter_map(|s| places.iter().find(|place| std::ptr::eq(place.sequence, s))).next();
                let Some(place) = place else { return SignalsError::Policy(error) };
                let reason = format!("{what} is {value} at token {}, needed a finite number", place.token(*token));
                SignalsError::Line { line: place.given.line, reason }
            }
            _ => SignalsError::Policy(error),
        }
    }

    /// The first line with a graded episode that has no such list.
    fn lacking(&self, list: &str) -> Option<Lacking> {
        type Has = fn(&Given) -> bool;
        let (field, has): (&'static str, Has) = match list {
            "entropy" => ("entropy", |given| given.entropy.is_some()),
            "value" => ("value", |given| given.value.is_some() || given.value_new.is_some()),
            "top" => ("topk.logp", |given| given.top.as_ref().is_some_and(|t| t.now().is_some())),
            "top_teacher" => ("topk.logp_teacher", |given| given.top.as_ref().is_some_and(|t| t.teacher().is_some())),
            "logp_ref" => ("logp_ref", |given| given.logp_ref.is_some()),
            "logp_teacher" => ("logp_teacher", |given| given.logp_teacher.is_some()),
            "logp_sampler" => ("logp_sampler", |given| given.logp_sampler.is_some()),
            _ => return None,
        };
        let episodes = self.input.groups.iter().flat_map(|g| &g.episodes).zip(self.input.given.iter().flatten());
        let lacks = episodes.filter(|(e, given)| e.outcome.reward().is_some() && e.n_sampled() > 0 && !has(given));
        lacks.map(|(_, given)| given.line).min().map(|line| Lacking { field, line })
    }
}

fn signal_of(signals: &Signals, (g, e, s): (usize, usize, usize)) -> Option<&Signal> {
    signals.groups[g].episodes[e].as_ref()?.get(s)
}

/// Where a line tells π_old apart from what was recorded, ratios are to it.
fn take_old(places: &[Place<'_>], signals: &mut Signals) {
    for place in places {
        let (g, e, s) = place.at;
        let signal = signals.groups[g].episodes[e].as_mut().and_then(|all| all.get_mut(s));
        if let (Some(signal), Some(old)) = (signal, &place.given.logp_old)
            && signal.old == Old::Recorded
        {
            signal.old = Old::Forward(place.part(old).to_vec());
        }
    }
}
