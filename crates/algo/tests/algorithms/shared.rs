//! Episodes to test with.

use episode::{Cause, Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, Stage, StopReason, Task};
use loss::TokenValues;
use serde_json::Value;
use surefoot_algo::{AlgoError, Answers, PerSequence, Settings, Signals};

pub(crate) fn task(name: &str) -> Task {
    Task::new("sums", vec![Message::new(Role::User, name)], Value::Null, Value::Null)
}

pub(crate) fn sequence(n: usize) -> Sequence {
    let mut s = Sequence::new();
    s.append_context(Role::User, &[7, 8]);
    let logp: Vec<f32> = (0..n).map(|t| -0.25 - 0.125 * (t % 4) as f32).collect();
    s.append_sampled(&vec![3; n], &logp, &logp, 0).expect("lists have one length");
    s
}

pub(crate) fn episode(task: &Task, sample: u32, n: usize, outcome: Outcome) -> Episode {
    let key = EpisodeKey { step: 0, task: task.id.clone(), sample };
    Episode {
        key,
        sequences: vec![sequence(n)],
        messages: vec![],
        outcome,
        stop: StopReason::Eos,
        turn_rewards: Vec::new(),
    }
}

pub(crate) fn graded(reward: f64) -> Outcome {
    Outcome::Graded { reward, parts: vec![] }
}

pub(crate) fn failed() -> Outcome {
    Outcome::Failed { stage: Stage::Grader, cause: Cause::new("deadline", "took 30 s") }
}

/// A group whose episodes have these rewards, and as many sampled tokens as their place plus one.
pub(crate) fn group(name: &str, rewards: &[f64]) -> Group {
    let task = task(name);
    let episodes = rewards.iter().enumerate();
    let episodes = episodes.map(|(i, r)| episode(&task, i as u32, i + 1, graded(*r))).collect();
    Group { task, episodes }
}

pub(crate) fn settings(text: &str) -> Settings {
    toml::from_str(text).expect(text)
}

pub(crate) fn signals(text: &str, groups: &[Group]) -> Result<Signals, AlgoError> {
    settings(text).algorithm().signals(groups, &Answers::new())
}

/// The advantage of each episode's first sampled token.
pub(crate) fn advantages(signals: &Signals, group: usize) -> Vec<Option<f32>> {
    let episodes = signals.groups[group].episodes.iter();
    episodes.map(|e| e.as_ref().and_then(|s| s[0].advantage.get(2).copied())).collect()
}

/// Log-probabilities as a pass gives them.
pub(crate) fn values(logp: PerSequence<Vec<f32>>) -> PerSequence<TokenValues> {
    let of = |logp: Vec<f32>| TokenValues::of(logp.clone(), vec![0.5; logp.len()]);
    let episode = |e: Vec<Vec<f32>>| e.into_iter().map(of).collect();
    logp.into_iter().map(|g| g.into_iter().map(episode).collect()).collect()
}
