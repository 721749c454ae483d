//! Whether two policies differ by more than chance.

use std::collections::BTreeMap;

use episode::TaskId;
use serde::{Deserialize, Serialize};
use statrs::function::factorial::ln_binomial;

use crate::{Interval, wilson};

/// Two policies on the same tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Tasks both solved.
    pub both: u64,
    /// Tasks only the first solved.
    pub only_before: u64,
    /// Tasks only the second solved.
    pub only_after: u64,
    /// Tasks neither solved.
    pub neither: u64,
    /// Two-sided p-value of McNemar's exact test.
    pub p_value: f64,
}

/// Why two policies cannot be compared task by task.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CompareError {
    /// A task has a result on one side only.
    #[error("task `{task}` has a result on one side only, needed on both")]
    Unmatched {
        /// The task.
        task: TaskId,
    },
}

/// Compares two policies task by task.
///
/// - Errors: [`CompareError::Unmatched`] when the tasks differ; leaving some out would be a choice of tasks after the fact.
pub fn paired(before: &BTreeMap<TaskId, bool>, after: &BTreeMap<TaskId, bool>) -> Result<Paired, CompareError> {
    let lonely =
        before.keys().find(|t| !after.contains_key(*t)).or_else(|| after.keys().find(|t| !before.contains_key(*t)));
    if let Some(task) = lonely {
        return Err(CompareError::Unmatched { task: task.clone() });
    }
    let mut counts = [[0u64; 2]; 2];
    for (task, first) in before {
        counts[usize::from(*first)][usize::from(after.get(task) == Some(&true))] += 1;
    }
    let [[neither, only_after], [only_before, both]] = counts;
    Ok(Paired { both, only_before, only_after, neither, p_value: mcnemar_exact(only_before, only_after) })
}

/// Two-sided p-value of McNemar's exact test, from the two counts of tasks on which the policies disagree.
///
/// - Holds: symmetric; 1 when they never disagree.
/// - Source: McNemar, Psychometrika 12 (1947) 153–157; exact form: binomial test of a fair coin.
pub fn mcnemar_exact(only_before: u64, only_after: u64) -> f64 {
    let n = only_before + only_after;
    let smaller = only_before.min(only_after);
    let tail: f64 = (0..=smaller).map(|i| (ln_binomial(n, i) - n as f64 * std::f64::consts::LN_2).exp()).sum();
    (2.0 * tail).min(1.0)
}

/// Two-sided p-value of Fisher's exact test that two independent samples have one success rate, each as (solved, n).
///
/// - Holds: symmetric; 1 when a sample is empty. More successes than trials count as all of them.
/// - Source: Fisher (1922); two-sided by summing every table at most as likely as the one seen.
pub fn fisher_exact(first: (u64, u64), second: (u64, u64)) -> f64 {
    let (a, n) = (first.0.min(first.1), first.1);
    let (b, m) = (second.0.min(second.1), second.1);
    let solved = a + b;
    let ln_all = ln_binomial(n + m, solved);
    let probability = |x: u64| (ln_binomial(n, x) + ln_binomial(m, solved - x) - ln_all).exp();
    let seen = probability(a);
    // Equal tables must count as equal although their logarithms were rounded apart.
    let limit = seen * (1.0 + 1e-7);
    (solved.saturating_sub(m)..=solved.min(n)).map(probability).filter(|p| *p <= limit).sum::<f64>().min(1.0)
}

/// The difference of two independent shares, second minus first, with its 95 % interval; each as (solved, n).
///
/// - Errors: `None` when a sample is empty.
/// - Source: Newcombe, Stat. Med. 17 (1998) 873–890, method 10 (hybrid of two Wilson intervals).
pub fn difference(first: (u64, u64), second: (u64, u64)) -> Option<(f64, Interval)> {
    if first.1 == 0 || second.1 == 0 {
        return None;
    }
    let share = |(solved, n): (u64, u64)| solved.min(n) as f64 / n as f64;
    let (p, q) = (share(first), share(second));
    let (of_p, of_q) = (wilson(first.0, first.1), wilson(second.0, second.1));
    let low = q - p - ((q - of_q.low).powi(2) + (of_p.high - p).powi(2)).sqrt();
    let high = q - p + ((of_q.high - q).powi(2) + (p - of_p.low).powi(2)).sqrt();
    Some((q - p, Interval { low, high }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use episode::{Message, Role, Task};
    use serde_json::{Value, json};

    fn id(n: u64) -> TaskId {
        Task::new("t", vec![Message::new(Role::User, "q")], json!(n), Value::Null).id
    }

    #[test]
    fn mcnemar_is_the_coin_test_of_the_disagreements() {
        let check = |b, c, want: f64| {
            let got = mcnemar_exact(b, c);
            assert!((got - want).abs() < 1e-12, "{b} {c}: {got}");
        };
        check(0, 0, 1.0);
        check(0, 5, 2.0 / 32.0);
        check(5, 0, 2.0 / 32.0);
        check(1, 5, 2.0 * 7.0 / 64.0);
        check(3, 3, 1.0);
        check(0, 1000, 0.0);
    }

    /// Fisher's tea tasting: 3 of 4 and 1 of 4 give 34/70; all 4 and none of 4 give 2/70.
    #[test]
    fn fisher_gives_the_tea_tasting_values() {
        assert!((fisher_exact((3, 4), (1, 4)) - 34.0 / 70.0).abs() < 1e-12);
        assert!((fisher_exact((4, 4), (0, 4)) - 2.0 / 70.0).abs() < 1e-12);
        assert_eq!(fisher_exact((0, 0), (3, 4)), 1.0);
        assert!((fisher_exact((150, 300), (150, 300)) - 1.0).abs() < 1e-9);
    }

    /// Newcombe's own table: 56/70 against 48/80 is 0.2 with [0.0524, 0.3339].
    #[test]
    fn newcombe_gives_his_published_example() {
        let (d, i) = difference((48, 80), (56, 70)).unwrap();
        assert!((d - 0.2).abs() < 1e-12);
        assert!((i.low - 0.0524).abs() < 5e-5 && (i.high - 0.3339).abs() < 5e-5, "{i:?}");
        assert_eq!(difference((0, 0), (1, 2)), None);
    }

    #[test]
    fn a_pairing_counts_each_kind_and_refuses_other_tasks() {
        let before = BTreeMap::from([(id(1), true), (id(2), false), (id(3), false), (id(4), true)]);
        let after = BTreeMap::from([(id(1), true), (id(2), true), (id(3), false), (id(4), false)]);
        let got = paired(&before, &after).unwrap();
        assert_eq!((got.both, got.only_before, got.only_after, got.neither, got.p_value), (1, 1, 1, 1, 1.0));
        let fewer = BTreeMap::from([(id(1), true)]);
        assert!(paired(&before, &fewer).is_err());
        assert!(paired(&fewer, &before).is_err());
    }
}
