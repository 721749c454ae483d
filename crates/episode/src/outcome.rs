//! How an episode ended. What the policy caused is graded; what the system caused is a failure; they never mix.

use serde::{Deserialize, Serialize};

/// How an episode ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The grader gave a verdict.
    Graded {
        /// The weighted sum of the parts, in reward points; finite.
        reward: f64,
        /// Each grader's own verdict.
        parts: Vec<Part>,
    },
    /// The system failed: left out of group statistics, counted and shown, never a zero reward.
    Failed {
        /// Where it failed.
        stage: Stage,
        /// What happened.
        cause: Cause,
    },
    /// Stopped before it ended, by the user or because the run is stopping.
    Cancelled,
}

impl Outcome {
    /// The reward, if there is one.
    pub fn reward(&self) -> Option<f64> {
        match self {
            Outcome::Graded { reward, .. } => Some(*reward),
            Outcome::Failed { .. } | Outcome::Cancelled => None,
        }
    }

    /// The part of the reward that is no opinion: what decides whether a task was solved.
    pub fn verified(&self) -> Option<f64> {
        let Outcome::Graded { reward, parts } = self else { return None };
        match parts.iter().any(|p| p.opinion) {
            true => Some(parts.iter().filter(|p| !p.opinion).map(|p| p.value * p.weight).sum()),
            false => Some(*reward),
        }
    }
}

/// One grader's contribution to a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The grader's name.
    pub name: String,
    /// Its verdict, in reward points before weighting.
    pub value: f64,
    /// Its weight in the sum.
    pub weight: f64,
    /// What it said about the attempt, for people and for a policy that learns from being told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Whether it is an opinion, such as a learned model's: part of the reward, but no proof that a task was solved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub opinion: bool,
}

impl Part {
    /// A verdict without words.
    pub fn new(name: impl Into<String>, value: f64, weight: f64) -> Self {
        Part { name: name.into(), value, weight, feedback: None, opinion: false }
    }
}

/// Where a failure happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// While sampling from the policy.
    Sampler,
    /// In the environment.
    Environment,
    /// In a tool.
    Tool,
    /// In a grader.
    Grader,
}

impl Stage {
    /// The word it is stored as.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Sampler => "sampler",
            Stage::Environment => "environment",
            Stage::Tool => "tool",
            Stage::Grader => "grader",
        }
    }
}

/// Why something failed, in a class that can be counted and a text that can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// A short class such as `deadline`, `crashed`, `bad_answer`; counted in reports.
    pub class: String,
    /// What exactly happened, for a person.
    pub detail: String,
}

impl Cause {
    /// A cause from its class and detail.
    pub fn new(class: impl Into<String>, detail: impl Into<String>) -> Self {
        Cause { class: class.into(), detail: detail.into() }
    }
}

/// Why the policy stopped speaking; kept beside the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It sampled an end-of-sequence token.
    Eos,
    /// It sampled a stop string.
    Stop,
    /// It reached the limit on sampled tokens.
    Length,
    /// It reached the end of the context window.
    Context,
    /// It reached the limit on turns.
    Turns,
    /// It ran past a deadline.
    Deadline,
    /// It reached the limit on tool calls.
    Calls,
    /// It reached the limit on calls the gate did not let through.
    Guard,
    /// The run or the user stopped it.
    Cancelled,
}

impl StopReason {
    /// The word it is stored as.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Eos => "eos",
            StopReason::Stop => "stop",
            StopReason::Length => "length",
            StopReason::Context => "context",
            StopReason::Turns => "turns",
            StopReason::Deadline => "deadline",
            StopReason::Calls => "calls",
            StopReason::Guard => "guard",
            StopReason::Cancelled => "cancelled",
        }
    }

    /// Whether the policy was cut off rather than finishing by itself.
    pub fn is_truncation(self) -> bool {
        !matches!(self, StopReason::Eos | StopReason::Stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_graded_outcome_has_a_reward() {
        let failed = Outcome::Failed { stage: Stage::Grader, cause: Cause::new("deadline", "took 30 s") };
        assert_eq!(failed.reward(), None);
        assert_eq!(Outcome::Cancelled.reward(), None);
        assert_eq!(Outcome::Graded { reward: 0.0, parts: vec![] }.reward(), Some(0.0));
    }

    #[test]
    fn a_word_is_the_one_that_is_stored() {
        for stage in [Stage::Sampler, Stage::Environment, Stage::Tool, Stage::Grader] {
            assert_eq!(serde_json::json!(stage), stage.as_str());
        }
        use StopReason::{Calls, Cancelled, Context, Deadline, Eos, Guard, Length, Stop, Turns};
        for stop in [Eos, Stop, Length, Context, Turns, Deadline, Calls, Guard, Cancelled] {
            assert_eq!(serde_json::json!(stop), stop.as_str());
        }
    }

    #[test]
    fn outcomes_survive_json() {
        for outcome in [
            Outcome::Graded { reward: 0.1, parts: vec![Part::new("exact", 0.1, 1.0)] },
            Outcome::Failed { stage: Stage::Tool, cause: Cause::new("crashed", "exit 3") },
            Outcome::Cancelled,
        ] {
            let text = serde_json::to_string(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        }
    }
}
