//! What a policy achieved on a set of tasks, failures in the denominator.

use std::collections::{BTreeMap, BTreeSet};

use episode::{Conduct, Episode, EpisodeKey, Group, Outcome, StopReason, TaskId};
use serde::{Deserialize, Serialize};

use crate::{PassAtK, mean_pass_at_k, wilson_clustered};

/// What counts.
pub struct Criteria<'a> {
    /// A graded episode is solved when its reward, opinions left out, is at least this.
    pub solved_at: f64,
    /// The k of each pass@k to report.
    pub ks: &'a [u64],
    /// Whether an episode's answer has the form that was asked for, right or wrong.
    pub well_formed: Option<&'a dyn Fn(&Episode) -> bool>,
}

impl Default for Criteria<'_> {
    fn default() -> Self {
        Criteria { solved_at: 1.0, ks: &[1], well_formed: None }
    }
}

impl Criteria<'_> {
    /// Whether an episode is solved; one that failed or was cancelled never is.
    pub fn is_solved(&self, episode: &Episode) -> bool {
        episode.outcome.verified().is_some_and(|r| r >= self.solved_at)
    }
}

/// What a policy achieved on a set of tasks.
///
/// - Holds: a function of the set of episodes, whatever their order; nothing is dropped: `n` counts graded, failed and
///   cancelled attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// What was measured, such as the name of the held-out set.
    pub name: String,
    /// Attempts, all of them.
    pub n: u64,
    /// Tasks, told apart by their id alone.
    pub n_tasks: u64,
    /// Attempts solved.
    pub solved: u64,
    /// Attempts that the system failed.
    pub errors: u64,
    /// Attempts that were cancelled.
    pub cancelled: u64,
    /// Attempts in which the policy was cut off.
    pub truncated: u64,
    /// solved / n; none without attempts.
    pub accuracy: Option<f64>,
    /// Lower end of the accuracy's 95 % interval.
    pub low: f64,
    /// Upper end of the accuracy's 95 % interval.
    pub high: f64,
    /// Mean reward of the graded attempts; none without any.
    pub mean_reward: Option<f64>,
    /// Mean number of sampled tokens an attempt; none without attempts.
    pub mean_length: Option<f64>,
    /// Attempts whose answer had the form asked for; none when no form was named.
    pub well_formed: Option<u64>,
    /// pass@k over tasks.
    pub pass_at: Vec<PassAtK>,
    /// Failed attempts by `stage/class`.
    pub failures: BTreeMap<String, u64>,
    /// What all attempts together did with tools.
    #[serde(default, skip_serializing_if = "Conduct::is_empty")]
    pub conduct: Conduct,
}

/// One line of a run's `evals.jsonl`: a score at a step, 0 being before training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalLine {
    /// Steps done before it was measured.
    pub step: u64,
    /// What was measured.
    #[serde(flatten)]
    pub score: Score,
}

/// Why no score can be given.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScoreError {
    /// An attempt is there twice: it would count double.
    #[error("attempt {sample} at task `{task}` of step {step} is there twice, needed once")]
    Duplicate {
        /// The task.
        task: TaskId,
        /// The step.
        step: u64,
        /// The attempt.
        sample: u32,
    },
}

/// Scores groups of episodes.
///
/// - Holds: groups of one task are merged, whatever their prompt's text; tasks of two environments never are.
/// - Errors: [`ScoreError::Duplicate`] when one attempt is there twice.
pub fn score(name: impl Into<String>, groups: &[Group], criteria: &Criteria<'_>) -> Result<Score, ScoreError> {
    let mut by_key: Vec<(&TaskId, &Episode)> =
        groups.iter().flat_map(|g| g.episodes.iter().map(|e| (&g.task.id, e))).collect();
    // One order for every sum, so that a score does not depend on the order of arrival.
    by_key.sort_by(|(_, a), (_, b)| a.key.cmp(&b.key));
    let mut seen: BTreeSet<&EpisodeKey> = BTreeSet::new();
    if let Some((_, twice)) = by_key.iter().find(|(_, e)| !seen.insert(&e.key)) {
        let EpisodeKey { step, task, sample } = twice.key.clone();
        return Err(ScoreError::Duplicate { task, step, sample });
    }
    let count = |f: &dyn Fn(&Episode) -> bool| by_key.iter().filter(|(_, e)| f(e)).count() as u64;
    let n = by_key.len() as u64;
    let solved = count(&|e| criteria.is_solved(e));
    let mut tasks: BTreeMap<&TaskId, (u64, u64)> = BTreeMap::new();
    let mut failures: BTreeMap<String, u64> = BTreeMap::new();
    for (task, episode) in &by_key {
        let entry = tasks.entry(task).or_default();
        entry.0 += 1;
        entry.1 += u64::from(criteria.is_solved(episode));
        if let Outcome::Failed { stage, cause } = &episode.outcome {
            *failures.entry(format!("{}/{}", stage.as_str(), cause.class)).or_default() += 1;
        }
    }
    let tasks: Vec<(u64, u64)> = tasks.into_values().collect();
    let interval = wilson_clustered(&tasks);
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    Ok(Score {
        name: name.into(),
        n,
        n_tasks: tasks.len() as u64,
        solved,
        errors: failures.values().sum(),
        cancelled: count(&|e| e.outcome == Outcome::Cancelled),
        truncated: count(&|e| e.stop.is_truncation() && e.stop != StopReason::Cancelled),
        accuracy: (n > 0).then(|| solved as f64 / n as f64),
        low: interval.low,
        high: interval.high,
        mean_reward: mean(&by_key.iter().filter_map(|(_, e)| e.outcome.reward()).collect::<Vec<_>>()),
        mean_length: mean(&by_key.iter().map(|(_, e)| e.n_sampled() as f64).collect::<Vec<_>>()),
        well_formed: criteria.well_formed.map(|f| count(&|e| f(e))),
        pass_at: criteria.ks.iter().map(|k| mean_pass_at_k(&tasks, *k)).collect(),
        failures,
        conduct: by_key.iter().map(|(_, e)| e.conduct).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use episode::{Cause, Message, Role, Sequence, Stage, Task};
    use serde_json::{Value, json};

    fn task(env: &str, text: &str) -> Task {
        Task::new(env, vec![Message::new(Role::User, text)], json!(1), Value::Null)
    }

    fn episode(task: &Task, sample: u32, outcome: Outcome, stop: StopReason, n_tokens: usize) -> Episode {
        let mut sequence = Sequence::new();
        sequence.append_context(Role::User, &[1, 2, 3]);
        let logp = vec![-1.0; n_tokens];
        sequence.append_sampled(&vec![7; n_tokens], &logp, &logp, 0).unwrap();
        let key = EpisodeKey { step: 0, task: task.id.clone(), sample };
        let messages = vec![Message::new(Role::Assistant, "42")];
        Episode {
            key,
            sequences: vec![sequence],
            messages,
            outcome,
            stop,
            turn_rewards: Vec::new(),
            conduct: episode::Conduct::default(),
        }
    }

    fn graded(reward: f64) -> Outcome {
        Outcome::Graded { reward, parts: vec![] }
    }

    fn failed(class: &str) -> Outcome {
        Outcome::Failed { stage: Stage::Grader, cause: Cause::new(class, "detail") }
    }

    fn mixed() -> Vec<Group> {
        let (a, b) = (task("sums", "a"), task("sums", "b"));
        let of_a = vec![
            episode(&a, 0, graded(1.0), StopReason::Eos, 2),
            episode(&a, 1, failed("deadline"), StopReason::Eos, 4),
        ];
        let of_b = vec![
            episode(&b, 0, graded(0.5), StopReason::Length, 6),
            episode(&b, 1, Outcome::Cancelled, StopReason::Cancelled, 0),
        ];
        vec![Group { task: a, episodes: of_a }, Group { task: b, episodes: of_b }]
    }

    #[test]
    fn failures_and_cancellations_stay_in_the_denominator() {
        let got = score("held-out", &mixed(), &Criteria { ks: &[1, 2], ..Criteria::default() }).unwrap();
        assert_eq!((got.n, got.n_tasks, got.solved, got.errors, got.cancelled, got.truncated), (4, 2, 1, 1, 1, 1));
        assert_eq!((got.accuracy, got.mean_reward), (Some(0.25), Some(0.75)));
        assert_eq!(got.failures, BTreeMap::from([("grader/deadline".to_string(), 1)]));
        assert_eq!(got.pass_at[0].value, Some(0.25));
        assert_eq!(got.pass_at[1].value, Some(0.5));
        assert_eq!(got.well_formed, None);
    }

    /// CASES H10: the length of completions was always 0.
    #[test]
    fn the_mean_length_counts_sampled_tokens_only() {
        assert_eq!(score("x", &mixed(), &Criteria::default()).unwrap().mean_length, Some(3.0));
    }

    /// CASES H4: ids of two environments collided.
    #[test]
    fn equal_questions_of_two_environments_are_two_tasks() {
        let groups: Vec<Group> = [("a", 1.0), ("b", 0.0)]
            .map(|(env, reward)| {
                let task = task(env, "0");
                Group { episodes: vec![episode(&task, 0, graded(reward), StopReason::Eos, 1)], task }
            })
            .into();
        let got = score("x", &groups, &Criteria::default()).unwrap();
        assert_eq!((got.n_tasks, got.solved), (2, 1));
    }

    /// CASES H5: items with one prompt text and different gold were merged; groups of one task must be.
    #[test]
    fn tasks_are_told_apart_by_id_not_by_prompt_text() {
        let with_gold = |gold: i64| Task::new("a", vec![Message::new(Role::User, "same")], json!(gold), Value::Null);
        let groups: Vec<Group> = [(1, 0), (2, 0), (1, 1)]
            .map(|(gold, sample)| {
                let task = with_gold(gold);
                Group { episodes: vec![episode(&task, sample, graded(1.0), StopReason::Eos, 1)], task }
            })
            .into();
        assert_eq!(score("x", &groups, &Criteria::default()).unwrap().n_tasks, 2);
    }

    /// CASES H8: each example exactly once.
    #[test]
    fn an_attempt_that_is_there_twice_is_refused() {
        let mut groups = mixed();
        groups.push(groups[0].clone());
        let error = score("x", &groups, &Criteria::default()).unwrap_err();
        assert!(error.to_string().starts_with("attempt 0 at task `sums/"), "{error}");
        assert!(error.to_string().ends_with("of step 0 is there twice, needed once"), "{error}");
    }

    /// CASES H7: a resumed report equals the uninterrupted one, byte for byte.
    #[test]
    fn the_order_of_arrival_changes_no_byte() {
        let groups = mixed();
        let mut other = groups.clone();
        other.reverse();
        for group in &mut other {
            group.episodes.reverse();
        }
        let text = |g: &[Group]| serde_json::to_string(&score("x", g, &Criteria::default()).unwrap()).unwrap();
        assert_eq!(text(&groups), text(&other));
    }

    /// CASES H11: an empty set crashed; it has no accuracy, a count of 0, and says nothing about the truth.
    #[test]
    fn no_attempts_give_no_accuracy_and_the_widest_interval() {
        let got = score("x", &[], &Criteria::default()).unwrap();
        assert_eq!((got.n, got.accuracy, got.low, got.high, got.mean_length), (0, None, 0.0, 1.0, None));
    }

    #[test]
    fn learning_the_form_is_told_from_learning_the_answer() {
        let form = |e: &Episode| e.reply().parse::<i64>().is_ok();
        let got = score("x", &mixed(), &Criteria { well_formed: Some(&form), ..Criteria::default() }).unwrap();
        assert_eq!((got.well_formed, got.solved), (Some(4), 1));
    }

    #[test]
    fn a_line_of_evals_survives_json() {
        let line = EvalLine { step: 3, score: score("x", &mixed(), &Criteria::default()).unwrap() };
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.starts_with(r#"{"step":3,"name":"x","n":4,"n_tasks":2,"solved":1,"errors":1,"#), "{text}");
        assert_eq!(serde_json::from_str::<EvalLine>(&text).unwrap(), line);
    }
}
