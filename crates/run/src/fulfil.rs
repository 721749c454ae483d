//! Answers what an algorithm wants to know about a step's groups.

use std::sync::Arc;

use agent::Codec;
use algo::{Algorithm, Answers, Asked, Further, Now, Request, TeacherRule};
use episode::{Episode, Group, Message, Task, Token};
use loss::Teacher;
use policy::{Ask, Contexts, Learner, Policy, PolicyError, Slot, TokenValues, Under, ValueAt, Want, values};
use train::Engine;

use crate::{Chat, RunError};

/// What a run's requests are answered with, beside the policy itself.
pub struct Advice {
    /// The chat format, for contexts.
    pub chat: Arc<Chat>,
    /// The model that teaches, where the algorithm names one.
    pub teacher: Option<Engine>,
}

impl Advice {
    /// Asks the algorithm for requests, and answers them, until there are none; further attempts are put behind the groups.
    ///
    /// - Holds: only groups that the algorithm asks about are computed; the others' answers stay empty. A context that does
    ///   not fit the context window with what was said is not read, and the teacher's answer stays absent.
    pub(crate) fn fulfil(
        &mut self,
        policy: &mut dyn Policy,
        how: How<'_>,
        groups: &mut Vec<Group>,
        again: &mut Again<'_>,
    ) -> Result<Answers, RunError> {
        let version = Some(policy.version());
        let mut answers = Answers { version, ..Answers::new() };
        for round in 1.. {
            let further = self.answer(policy, &how, groups, &mut answers).map_err(|source| how.failed(source))?;
            if further.is_empty() {
                break;
            }
            let mut tasks = Vec::with_capacity(further.len());
            for Further { of, messages, n } in &further {
                let first = groups.get(*of).filter(|_| *n > 0);
                let first = first.ok_or_else(|| how.failed(odd("further attempts of no group, or none of them")))?;
                let Task { env, gold, meta, .. } = &first.task;
                tasks.push((Task::new(env.clone(), messages.clone(), gold.clone(), meta.clone()), *n));
            }
            groups.extend(again(policy, round, &tasks)?);
            let further = answers.further.into_iter().chain(further.into_iter().map(|f| f.of)).collect();
            answers = Answers { version, further, ..Answers::new() };
        }
        Ok(answers)
    }

    /// Answers requests until there are none, or further attempts are asked for.
    fn answer(
        &mut self,
        policy: &mut dyn Policy,
        how: &How<'_>,
        groups: &[Group],
        answers: &mut Answers,
    ) -> Result<Vec<Further>, PolicyError> {
        let algorithm = how.algorithm;
        let about: Vec<bool> = groups.iter().map(|g| algorithm.asks_about(g)).collect();
        let step = Step { groups, about: &about, temperature: how.temperature, banned: how.banned };
        loop {
            let requests = algorithm.requests(groups, answers);
            if requests.is_empty() {
                return Ok(Vec::new());
            }
            for request in requests {
                match request {
                    Request::Reference => {
                        let ask = Ask { about: Some(&about), ..Ask::plain(Under::Kept(Slot::Reference)) };
                        let found = step.ask(policy.learner(), &ask)?;
                        let logp = |episode: Vec<TokenValues>| episode.into_iter().map(|v| v.logp).collect();
                        let found = found.into_iter().map(|g| g.into_iter().map(logp).collect());
                        answers.reference = Some(found.collect());
                    }
                    Request::Now(Now { value, top_k }) => {
                        let value = if value { ValueAt::Before } else { ValueAt::Nowhere };
                        let want = Want { value, top_k };
                        let ask = Ask { about: Some(&about), want, ..Ask::plain(Under::Now) };
                        answers.now = Some(step.ask(policy.learner(), &ask)?);
                    }
                    Request::Teacher(asked) => {
                        let rule = algorithm.teacher();
                        answers.teacher = Some(self.teach(policy, &step, rule, &asked, answers.now.as_deref())?);
                    }
                    Request::Attempts(further) if further.is_empty() => {
                        return Err(odd("further attempts, but none"));
                    }
                    Request::Attempts(further) => return Ok(further),
                }
            }
        }
    }

    fn teach(
        &mut self,
        policy: &mut dyn Policy,
        step: &Step<'_>,
        rule: Option<TeacherRule>,
        asked: &Asked,
        now: Option<&[Vec<Vec<TokenValues>>]>,
    ) -> Result<Vec<Vec<Vec<Option<Teacher>>>>, PolicyError> {
        let none = || PolicyError::Unsupported("a teacher is asked, but the run has none".to_owned());
        let contexts = match &asked.contexts {
            Some(asked) => Some(self.contexts(step.groups, asked, policy.sampler().context())?),
            None => None,
        };
        let named = if asked.top { Some(now.ok_or_else(none)?) } else { None };
        let (learner, under): (&mut dyn Learner, Under) = match rule {
            Some(TeacherRule::Current) => (policy.learner(), Under::Now),
            Some(TeacherRule::Frozen | TeacherRule::Ema(_)) => (policy.learner(), Under::Kept(Slot::Teacher)),
            Some(TeacherRule::Model(_)) => (self.teacher.as_mut().ok_or_else(none)?, Under::Now),
            None => return Err(none()),
        };
        let ask = Ask { about: Some(step.about), named, contexts: contexts.as_ref(), ..Ask::plain(under) };
        let found = step.ask(learner, &ask)?;
        let mut all = Vec::with_capacity(found.len());
        for (g, (group, found)) in step.groups.iter().zip(found).enumerate() {
            let one = |(e, (episode, found)): (usize, (&Episode, Vec<TokenValues>))| {
                let is_asked = |s: usize| {
                    let has_context = contexts.as_ref().is_none_or(|all| all[g][e][s].is_some());
                    has_context && episode.outcome.reward().is_some()
                };
                let teacher =
                    |(s, v): (usize, TokenValues)| is_asked(s).then_some(Teacher { logp: v.logp, top: v.top });
                found.into_iter().enumerate().map(teacher).collect()
            };
            all.push(group.episodes.iter().zip(found).enumerate().map(one).collect());
        }
        Ok(all)
    }

    /// The tokens of what the teacher reads before each episode's first sequence. A later sequence continues from what the
    /// policy itself had before it, for which no other beginning can be given.
    fn contexts(
        &self,
        groups: &[Group],
        asked: &[Vec<Option<Vec<Message>>>],
        window: usize,
    ) -> Result<Contexts, PolicyError> {
        let mut all = Vec::with_capacity(groups.len());
        for (g, group) in groups.iter().enumerate() {
            let mut episodes = Vec::with_capacity(group.episodes.len());
            for (e, episode) in group.episodes.iter().enumerate() {
                let mut sequences: Vec<Option<Vec<Token>>> = vec![None; episode.sequences.len()];
                let messages = asked.get(g).and_then(|g| g.get(e)).and_then(Option::as_ref);
                if let (Some(messages), Some(first)) = (messages, episode.sequences.first()) {
                    let tokens = self.chat.open(messages, &[]).map_err(PolicyError::Unsupported)?;
                    let prompt = first.sampled().iter().position(|s| *s).unwrap_or(first.len());
                    let fits = tokens.len() + (first.len() - prompt) <= window;
                    sequences[0] = fits.then_some(tokens);
                }
                episodes.push(sequences);
            }
            all.push(episodes);
        }
        Ok(all)
    }
}

fn odd(what: &str) -> PolicyError {
    PolicyError::Unsupported(format!("the algorithm asks for {what}"))
}

/// Makes further attempts at tasks, by the number of the round.
pub(crate) type Again<'a> = dyn FnMut(&mut dyn Policy, u64, &[(Task, usize)]) -> Result<Vec<Group>, RunError> + 'a;

/// Whose requests are answered, and about what.
pub(crate) struct How<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) temperature: f32,
    pub(crate) banned: &'a [Token],
    pub(crate) step: u64,
}

impl How<'_> {
    fn failed(&self, source: PolicyError) -> RunError {
        RunError::Policy { step: self.step, source }
    }
}

/// What is asked about.
struct Step<'a> {
    groups: &'a [Group],
    about: &'a [bool],
    temperature: f32,
    banned: &'a [Token],
}

impl Step<'_> {
    fn ask(&self, learner: &mut dyn Learner, ask: &Ask<'_>) -> Result<Vec<Vec<Vec<TokenValues>>>, PolicyError> {
        values(learner, ask, self.groups, self.temperature, self.banned)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]
mod tests;
