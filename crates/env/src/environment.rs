//! The trait, what is handed to it, and what comes back.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agent::{Silent, World};
use episode::{Cause, Outcome, Part, Stage as Where, Task, ToolCall, ToolSpec};
use serde_json::Value;

use crate::grader::Weighted;
use crate::stage::Stage;
use crate::tasks::GoldReply;
use crate::{EnvError, Settings};

/// The two sides of an environment's tasks; a task is on one of them for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What a policy may be trained on.
    Train,
    /// What it is measured on.
    HeldOut,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Split::Train => "train",
            Split::HeldOut => "held-out",
        })
    }
}

/// An answer to be judged.
#[derive(Clone, Copy)]
pub struct Submission<'a> {
    /// What was asked, with its gold answer.
    pub task: &'a Task,
    /// What the policy said last.
    pub reply: &'a str,
    /// How its world stood at the end; see [`World::state`].
    pub state: &'a Value,
    /// Once true, a grader that takes long gives up.
    pub cancel: &'a AtomicBool,
}

/// What an answer is worth.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The weighted sum of the parts, reward points; finite.
    pub reward: f64,
    /// Each grader's own verdict and weight; what a grader reports besides has weight 0.
    pub parts: Vec<Part>,
}

/// Why there is no verdict. Never the same as a verdict of zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ungraded {
    /// The grader failed.
    Failed(Cause),
    /// The run is stopping.
    Cancelled,
}

/// The outcome of an episode that was sent to be graded.
pub fn outcome(judged: Result<Verdict, Ungraded>) -> Outcome {
    match judged {
        Ok(Verdict { reward, parts }) => Outcome::Graded { reward, parts },
        Err(Ungraded::Failed(cause)) => Outcome::Failed { stage: Where::Grader, cause },
        Err(Ungraded::Cancelled) => Outcome::Cancelled,
    }
}

/// Tasks and what answers to them are worth.
pub trait Environment: Send + Sync {
    /// The name its tasks carry; unique in a run.
    fn name(&self) -> &str;

    /// The tasks of one side, always the same and in the same order.
    fn tasks(&self, split: Split) -> &[Task];

    /// A reply that deserves full marks, if one is known; for the audit.
    fn gold_reply(&self, task: &Task) -> Option<String>;

    /// Calls that deserve full marks, where tools are what it takes and the calls are known; for the audit.
    fn gold_calls(&self, task: &Task) -> Option<Vec<ToolCall>> {
        let _ = task;
        None
    }

    /// Judges an answer; may wait for a program, at most for [`Environment::deadline`].
    fn grade(&self, submission: &Submission<'_>) -> Result<Verdict, Ungraded>;

    /// The longest that judging one answer may take.
    fn deadline(&self) -> Duration;

    /// The highest reward there is without opinions: every other part at 1.
    fn full_marks(&self) -> f64;

    /// The tools that the policy may call in an attempt; none unless the environment says so.
    fn tools(&self, task: &Task) -> Arc<[ToolSpec]> {
        let _ = task;
        [].into()
    }

    /// What surrounds the policy during an attempt.
    fn world(&self, task: &Task) -> Box<dyn World> {
        let _ = task;
        Box::new(Silent)
    }
}

/// Questions with graders, and where there are tools the world that they work in.
pub struct TaskSet {
    pub(crate) name: String,
    pub(crate) train: Vec<Task>,
    pub(crate) held_out: Vec<Task>,
    pub(crate) gold_reply: GoldReply,
    pub(crate) graders: Vec<Weighted>,
    pub(crate) stage: Option<Box<dyn Stage>>,
}

impl Environment for TaskSet {
    fn name(&self) -> &str {
        &self.name
    }

    fn tasks(&self, split: Split) -> &[Task] {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
    }

    fn gold_reply(&self, task: &Task) -> Option<String> {
        (self.gold_reply)(task)
    }

    fn gold_calls(&self, task: &Task) -> Option<Vec<ToolCall>> {
        self.stage.as_ref()?.gold_calls(task)
    }

    fn tools(&self, task: &Task) -> Arc<[ToolSpec]> {
        self.stage.as_ref().map_or_else(|| [].into(), |stage| stage.tools(task))
    }

    fn world(&self, task: &Task) -> Box<dyn World> {
        self.stage.as_ref().map_or_else(|| Box::new(Silent) as Box<dyn World>, |stage| stage.world(task))
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Verdict, Ungraded> {
        let mut reward = 0.0;
        let mut parts = Vec::with_capacity(self.graders.len());
        for Weighted { name, weight, opinion, grader } in &self.graders {
            let marks = grader.grade(submission)?;
            reward += weight * marks.value;
            let part = Part::new(name.clone(), marks.value, *weight);
            parts.push(Part { feedback: marks.feedback, opinion: *opinion, ..part });
            let extra = marks.parts.into_iter();
            parts.extend(extra.map(|(part, value)| Part::new(format!("{name}/{part}"), value, 0.0)));
        }
        if parts.iter().all(|p| p.value.is_finite()) && f64::is_finite(reward) {
            return Ok(Verdict { reward, parts });
        }
        Err(Ungraded::Failed(Cause::new("not_finite", format!("the reward is {reward}, needed a finite number"))))
    }

    fn deadline(&self) -> Duration {
        self.graders.iter().map(|g| g.grader.deadline()).sum()
    }

    fn full_marks(&self) -> f64 {
        self.graders.iter().filter(|g| !g.opinion).map(|g| g.weight).sum()
    }
}

/// All environments of a run, with the shares in which their tasks are drawn.
#[derive(Clone)]
pub struct Environments {
    list: Vec<(Arc<dyn Environment>, f64)>,
}

impl Environments {
    /// Loads every `[[env]]` of a run file; `base` is the folder that relative paths start from.
    pub fn load(settings: &[Settings], base: &Path) -> Result<Self, EnvError> {
        let mut list: Vec<(Arc<dyn Environment>, f64)> = Vec::with_capacity(settings.len());
        for one in settings {
            list.push((Arc::new(one.load(base)?), one.weight));
        }
        Self::new(list)
    }

    /// Environments made elsewhere, each with its weight.
    pub fn new(list: Vec<(Arc<dyn Environment>, f64)>) -> Result<Self, EnvError> {
        let mut names = BTreeSet::new();
        for (env, weight) in &list {
            if !names.insert(env.name().to_owned()) {
                return Err(EnvError::Name { what: "environments".to_owned(), name: env.name().to_owned() });
            }
            if !(weight.is_finite() && *weight > 0.0) {
                let reason = format!("is {weight}, needed a number above 0");
                return Err(EnvError::Setting { env: env.name().to_owned(), key: "weight".to_owned(), reason });
            }
        }
        if list.is_empty() { Err(EnvError::None) } else { Ok(Environments { list }) }
    }

    /// The environment that made a task.
    pub fn of(&self, task: &Task) -> Option<&Arc<dyn Environment>> {
        self.list.iter().map(|(env, _)| env).find(|env| env.name() == task.env)
    }

    /// Each environment with its weight, in the order of the run file.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<dyn Environment>, f64)> {
        self.list.iter().map(|(env, weight)| (env, *weight))
    }

    /// The tasks of one side, environment after environment; at most `limit` of each.
    pub fn tasks(&self, split: Split, limit: usize) -> Vec<Task> {
        self.iter().flat_map(|(env, _)| env.tasks(split).iter().take(limit).cloned()).collect()
    }
}
