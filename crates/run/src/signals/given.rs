//! A line's episode, checked, with what the line says about each of its tokens.
//!
//! T tokens of the line · k other tokens in the place of each

use std::ops::Range;

use episode::{Episode, EpisodeKey, Message, Outcome, Role, Sequence, SequenceError, StopReason, Task};

use super::line::{Line, Side, TaskField};
use super::shape::{AT_LEAST_0, FINITE, LOG_PROBABILITY, Shape, Tops, finite};

/// What a line says beside its episode. Lists have one entry a token of the episode's sequences, one after the other, and
/// 0 where a token was not sampled, whatever the line had there.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Where it stands, from 1.
    pub(super) line: usize,
    /// Whether anything in the line says what the episode was worth.
    pub(super) is_rewarded: bool,
    /// Tokens put before the line's own, since nothing can be drawn from no context: 0 or 1.
    pub(super) offset: usize,
    /// Whether it is told which version sampled each token.
    pub(super) has_version: bool,
    /// The version that the step it was collected for began with, where a run recorded it.
    pub(super) begun_with: Option<u32>,
    /// Its side of a preference.
    pub(super) side: Option<Side>,
    pub(super) logp_sampler: Option<Vec<f32>>,
    pub(super) logp_old: Option<Vec<f32>>,
    pub(super) logp: Option<Vec<f32>>,
    pub(super) logp_ref: Option<Vec<f32>>,
    pub(super) logp_teacher: Option<Vec<f32>>,
    pub(super) value: Option<Vec<f32>>,
    pub(super) value_new: Option<Vec<f32>>,
    pub(super) entropy: Option<Vec<f32>>,
    pub(super) top: Option<Tops>,
}

impl Given {
    /// π_old: where the line does not give it, what was recorded, and where nothing was, π.
    pub(super) fn old(&self) -> Option<&[f32]> {
        self.logp_old.as_deref().or(self.logp_sampler.as_deref()).or(self.logp.as_deref())
    }

    /// π as it is now: where the line does not give it, it has not moved.
    pub(super) fn now(&self) -> Option<&[f32]> {
        self.logp.as_deref().or(self.old())
    }
}

/// What a line makes.
#[derive(Debug)]
pub(super) struct Checked {
    /// Which group it belongs to.
    pub(super) key: Key,
    /// The task, where the line is a run's record.
    pub(super) task: Option<Task>,
    /// The task's name, where the line has one.
    pub(super) name: Option<String>,
    pub(super) episode: Episode,
    pub(super) given: Given,
}

/// What lines of one group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A run's own group: run, step, and which of the step's groups.
    Recorded(String, u64, String),
    /// A group's name.
    Group(String),
    /// A task's name.
    Task(String),
    /// Lines that name neither.
    Unnamed,
}

impl Line {
    /// Checks a line and makes its episode; the reason is for a person.
    pub(super) fn check(mut self, line: usize) -> Result<Checked, String> {
        let recorded = self.episode.take();
        let sampled = match &recorded {
            Some(episode) => episode.sequences.iter().flat_map(Sequence::sampled).copied().collect(),
            None => self.sampled()?,
        };
        let offset = usize::from(recorded.is_none() && sampled.first() == Some(&true));
        let shape = Shape { sampled: &sampled, offset };
        shape.length("anchor", self.anchor.as_deref())?;
        let log = |name, list: &mut _| shape.numbers(name, std::mem::take(list), LOG_PROBABILITY);
        let given = Given {
            line,
            is_rewarded: false,
            has_version: recorded.is_some() || self.version.is_some(),
            offset,
            begun_with: None,
            side: self.pair,
            logp_sampler: log("logp_sampler", &mut self.logp_sampler)?,
            logp_old: log("logp_old", &mut self.logp_old)?,
            logp: log("logp", &mut self.logp)?,
            logp_ref: log("logp_ref", &mut self.logp_ref)?,
            logp_teacher: log("logp_teacher", &mut self.logp_teacher)?,
            value: shape.numbers("value", self.value.take(), FINITE)?,
            value_new: shape.numbers("value_new", self.value_new.take(), FINITE)?,
            entropy: shape.numbers("entropy", self.entropy.take(), AT_LEAST_0)?,
            top: self.topk.take().map(|top| shape.tops(top)).transpose()?,
        };
        match recorded {
            Some(episode) => self.recorded(*episode, given),
            None => self.typed(&shape, given),
        }
    }

    /// A run's own record; what it holds cannot be said twice.
    fn recorded(self, episode: Episode, mut given: Given) -> Result<Checked, String> {
        let twice = [
            ("reward", self.reward.is_some()),
            ("outcome", self.outcome.is_some()),
            ("stop", self.stop.is_some()),
            ("turn_rewards", self.turn_rewards.is_some()),
            ("sampled", self.sampled.is_some()),
            ("logp_sampler", given.logp_sampler.is_some()),
            ("version", self.version.is_some()),
            ("turn", self.turn.is_some()),
        ];
        if let Some((field, _)) = twice.iter().find(|(_, is_there)| *is_there) {
            return Err(format!("`{field}` stands beside `episode`, which has its own"));
        }
        let (Some(run), Some(step), Some(group), Some(TaskField::Whole(task))) =
            (self.run, self.step, self.group, self.task)
        else {
            return Err("a line with `episode` needs `run`, `step`, `group` and the whole `task`".to_owned());
        };
        if episode.sequences.iter().any(|s| s.sampled().first() == Some(&true)) {
            return Err("a recorded sequence begins with a sampled token, needed one before it".to_owned());
        }
        given.logp_sampler = Some(episode.sequences.iter().flat_map(Sequence::logp).copied().collect());
        given.is_rewarded = true;
        // A step publishes one version; the first begins with version 0.
        given.begun_with = u32::try_from(step.saturating_sub(1)).ok();
        let (key, name) = (Key::Recorded(run, step, group.0), Some(task.id.to_string()));
        Ok(Checked { key, task: Some(*task), name, episode, given })
    }

    /// An episode by its lists.
    fn typed(mut self, shape: &Shape<'_>, mut given: Given) -> Result<Checked, String> {
        for (field, is_there) in [("run", self.run.is_some()), ("step", self.step.is_some())] {
            if is_there {
                return Err(format!("`{field}` belongs to a run's own record, which has `episode`"));
            }
        }
        let version = shape.entries("version", self.version.take())?.unwrap_or_else(|| vec![0; shape.sampled.len()]);
        let turn = shape.entries("turn", self.turn.take())?;
        let spans = spans(shape.sampled, turn.as_deref())?;
        let turn_rewards = self.turn_rewards(&spans)?;
        let outcome;
        (outcome, given.is_rewarded) = self.outcome(&turn_rewards)?;
        let name = match self.task {
            Some(TaskField::Name(name)) => Some(name),
            Some(TaskField::Whole(_)) => {
                return Err("a whole `task` belongs to a run's own record, which has `episode`".to_owned());
            }
            None => None,
        };
        let key = match (self.group, &name) {
            (Some(group), _) => Key::Group(group.0),
            (None, Some(task)) => Key::Task(task.clone()),
            (None, None) => Key::Unnamed,
        };
        let recorded = given.logp_sampler.as_deref().or(given.old()).unwrap_or_default();
        let sequence = sequence(&spans, &version, given.offset, recorded).map_err(|e| e.to_string())?;
        let episode = Episode {
            // The group it joins says which.
            key: EpisodeKey { step: 0, task: super::input::task_id(""), sample: 0 },
            sequences: vec![sequence],
            // What an attempt said is not in the line, but that it said something decides whether it can be shown.
            messages: vec![Message::new(Role::Assistant, format!("the attempt of line {}", given.line))],
            outcome,
            stop: self.stop.unwrap_or(StopReason::Eos),
            turn_rewards,
            conduct: episode::Conduct::default(),
        };
        Ok(Checked { key, task: None, name, episode, given })
    }

    /// Which tokens were sampled; where the line does not say, those with a recorded log-probability.
    fn sampled(&self) -> Result<Vec<bool>, String> {
        match (&self.sampled, &self.logp_sampler) {
            (Some(sampled), _) => match sampled.iter().position(|s| *s > 1) {
                Some(t) => Err(format!("`sampled` is {} at token {t}, needed 0 or 1", sampled[t])),
                None => Ok(sampled.iter().map(|s| *s == 1).collect()),
            },
            (None, Some(recorded)) => Ok(recorded.iter().map(Option::is_some).collect()),
            (None, None) => Err("needed `sampled` or `logp_sampler`, got neither".to_owned()),
        }
    }

    /// What each span of sampled tokens was rewarded with; a turn with other tokens inside gets its reward with its last
    /// span.
    fn turn_rewards(&mut self, spans: &[Span]) -> Result<Vec<f64>, String> {
        let Some(rewards) = self.turn_rewards.take() else { return Ok(Vec::new()) };
        rewards.iter().try_for_each(|r| finite("turn_rewards", *r))?;
        let sampled: Vec<&Span> = spans.iter().filter(|s| s.sampled).collect();
        let is_last = |i: usize| sampled.get(i + 1).is_none_or(|next| next.turn != sampled[i].turn);
        let needed = (0..sampled.len()).filter(|i| is_last(*i)).count();
        if rewards.len() != needed {
            return Err(format!("`turn_rewards` has {} entries, needed {needed}, one a sampled turn", rewards.len()));
        }
        let mut rewards = rewards.into_iter();
        let each = |i: usize| if is_last(i) { rewards.next().unwrap_or_default() } else { 0.0 };
        Ok((0..sampled.len()).map(each).collect())
    }

    /// How the episode ended, and whether the line says so.
    fn outcome(&mut self, turn_rewards: &[f64]) -> Result<(Outcome, bool), String> {
        let graded = |reward: f64| Outcome::Graded { reward, parts: Vec::new() };
        let (outcome, is_said) = match (self.reward, self.outcome.take(), self.pair) {
            (Some(_), Some(_), _) => return Err("needed either `reward` or `outcome`, got both".to_owned()),
            (Some(reward), None, _) => (graded(reward), true),
            (None, Some(outcome), _) => (outcome.into(), true),
            (None, None, _) if !turn_rewards.is_empty() => (graded(turn_rewards.iter().sum()), true),
            (None, None, Some(side)) => (graded(if side == Side::Chosen { 1.0 } else { 0.0 }), true),
            (None, None, None) => (graded(0.0), false),
        };
        outcome.reward().map_or(Ok(()), |reward| finite("reward", reward))?;
        Ok((outcome, is_said))
    }
}

/// A stretch of tokens alike in being sampled and in their turn.
struct Span {
    tokens: Range<usize>,
    sampled: bool,
    turn: u32,
}

/// Cuts a line's tokens into spans. Where the line does not say which turn a token belongs to, a turn is sampled without
/// a break.
fn spans(sampled: &[bool], turn: Option<&[u32]>) -> Result<Vec<Span>, String> {
    let mut spans: Vec<Span> = Vec::new();
    let mut newest = 0;
    for (t, sampled) in sampled.iter().copied().enumerate() {
        let goes_on = spans.last().is_some_and(|span| span.sampled == sampled);
        let own = match turn {
            _ if !sampled => 0,
            Some(turn) if turn[t] < newest => {
                return Err(format!("`turn` is {} at token {t} after {newest}, needed turns in order", turn[t]));
            }
            Some(turn) => turn[t],
            None => newest + u32::from(!goes_on),
        };
        newest = newest.max(own);
        match spans.last_mut().filter(|span| (span.sampled, span.turn) == (sampled, own)) {
            Some(span) => span.tokens.end = t + 1,
            None => spans.push(Span { tokens: t..t + 1, sampled, turn: own }),
        }
    }
    Ok(spans)
}

/// The engine's form of an episode; which tokens they are matters to no formula.
fn sequence(spans: &[Span], version: &[u32], offset: usize, recorded: &[f32]) -> Result<Sequence, SequenceError> {
    let mut sequence = Sequence::new();
    if offset > 0 {
        sequence.append_context(Role::User, &vec![0; offset]);
    }
    for span in spans {
        if !span.sampled {
            sequence.append_context(Role::User, &vec![0; span.tokens.len()]);
            continue;
        }
        let mut at = span.tokens.start;
        for part in version[span.tokens.clone()].chunk_by(|a, b| a == b) {
            let tokens = vec![0; part.len()];
            // Nothing is known of log-probabilities where only values are compared.
            let unknown = vec![0.0; if recorded.is_empty() { part.len() } else { 0 }];
            let logp = recorded.get(offset + at..offset + at + part.len()).unwrap_or(&unknown);
            match at == span.tokens.start {
                true => sequence.append_sampled(&tokens, logp, logp, part[0])?,
                false => sequence.extend_sampled(&tokens, logp, logp, part[0])?,
            }
            at += part.len();
        }
    }
    Ok(sequence)
}
