//! How far a share may be from the truth.

use serde::{Deserialize, Serialize};

/// The two-sided 95 % point of the normal distribution.
const Z95: f64 = 1.959_963_984_540_054;

/// A 95 % interval of a share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// Wilson's 95 % interval of a share of `n` independent trials.
///
/// - Holds: inside [0, 1]; with no trials it is all of [0, 1]. More successes than trials count as all of them.
/// - Source: Wilson, JASA 22 (1927) 209–212; recommended by Brown, Cai & DasGupta, Stat. Sci. 16 (2001) 101–133.
pub fn wilson(solved: u64, n: u64) -> Interval {
    if n == 0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let solved = solved.min(n);
    let interval = wilson_share(solved as f64 / n as f64, n as f64);
    // The formula's ends are exactly 0 and 1 here; rounding must not hide it.
    Interval { low: if solved == 0 { 0.0 } else { interval.low }, high: if solved == n { 1.0 } else { interval.high } }
}

/// Wilson's 95 % interval of a share over tasks with several attempts each, given as (attempts, solved).
///
/// Attempts at one task resemble each other, so they are worth fewer independent trials than their number: the variance
/// of the share is estimated between tasks, and the number of trials that would give it is put into Wilson's formula.
///
/// - Holds: equal to [`wilson`] when every task has one attempt; never narrower than all attempts independent, never
///   wider than one trial a task.
/// - Source: clustered standard errors of evaluations, Miller, arXiv:2411.00640; effective sample size in Wilson's
///   interval, Franco et al., J. Surv. Stat. Methodol. 7 (2019) 334–364.
pub fn wilson_clustered(tasks: &[(u64, u64)]) -> Interval {
    let n: u64 = tasks.iter().map(|t| t.0).sum();
    let solved: u64 = tasks.iter().map(|t| t.1.min(t.0)).sum();
    let n_tasks = tasks.iter().filter(|t| t.0 > 0).count() as f64;
    if tasks.iter().all(|t| t.0 <= 1) {
        return wilson(solved, n);
    }
    let share = solved as f64 / n as f64;
    let between: f64 = tasks.iter().map(|t| (t.1.min(t.0) as f64 - t.0 as f64 * share).powi(2)).sum();
    let variance = between / (n as f64).powi(2) * n_tasks / (n_tasks - 1.0).max(1.0);
    let spread = share * (1.0 - share);
    // With one task, or all or none solved, nothing can be seen of the resemblance: assume the most.
    let blind = spread == 0.0 || n_tasks == 1.0;
    let effective = if blind { n_tasks } else { (spread / variance).clamp(n_tasks, n as f64) };
    let interval = wilson_share(share, effective);
    Interval { low: if solved == 0 { 0.0 } else { interval.low }, high: if solved == n { 1.0 } else { interval.high } }
}

fn wilson_share(share: f64, n: f64) -> Interval {
    let z2 = Z95 * Z95;
    let centre = share + z2 / (2.0 * n);
    let half = Z95 * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    Interval { low: ((centre - half) / scale).max(0.0), high: ((centre + half) / scale).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(solved: u64, n: u64, want: (f64, f64)) {
        let got = wilson(solved, n);
        assert!((got.low - want.0).abs() < 1e-6 && (got.high - want.1).abs() < 1e-6, "{solved}/{n}: {got:?}");
    }

    /// Computed independently from the formula in Python.
    #[test]
    fn wilson_gives_known_intervals() {
        check(0, 10, (0.0, 0.277_532_799));
        check(10, 10, (0.722_467_201, 1.0));
        check(5, 10, (0.236_593_091, 0.763_406_909));
        check(57, 300, (0.149_634_850, 0.238_203_792));
        check(0, 0, (0.0, 1.0));
    }

    #[test]
    fn all_or_none_solved_reach_the_very_end() {
        assert_eq!(wilson(0, 7).low, 0.0);
        assert_eq!(wilson(7, 7).high, 1.0);
        assert_eq!(wilson_clustered(&[(8, 8), (8, 8)]).high, 1.0);
    }

    #[test]
    fn attempts_that_agree_within_a_task_count_once() {
        // Four tasks, all eight attempts alike: no more is known than from one attempt each.
        let got = wilson_clustered(&[(8, 8), (8, 0), (8, 8), (8, 0)]);
        let want = wilson(2, 4);
        assert!((got.low - want.low).abs() < 1e-12 && (got.high - want.high).abs() < 1e-12, "{got:?} {want:?}");
    }

    #[test]
    fn attempts_without_resemblance_count_in_full() {
        assert_eq!(wilson_clustered(&[(8, 4), (8, 4), (8, 4)]), wilson(12, 24));
    }

    #[test]
    fn one_task_with_many_attempts_is_one_trial() {
        assert!((wilson_clustered(&[(8, 0)]).high - wilson(0, 1).high).abs() < 1e-12);
        assert_eq!(wilson_clustered(&[(8, 4)]), wilson_share(0.5, 1.0));
    }

    proptest! {
        #[test]
        fn the_interval_holds_its_share_and_shrinks_with_n(n in 1u64..5000, c in 0u64..5000) {
            prop_assume!(c <= n);
            let got = wilson(c, n);
            let share = c as f64 / n as f64;
            prop_assert!(got.low <= share + 1e-12 && share <= got.high + 1e-12);
            prop_assert!(got.low >= 0.0 && got.high <= 1.0);
            let more = wilson(c * 4, n * 4);
            prop_assert!(more.high - more.low < got.high - got.low);
        }

        #[test]
        fn one_attempt_a_task_is_plain_wilson(c in 0u64..50, rest in 0u64..50) {
            let tasks: Vec<(u64, u64)> = (0..c).map(|_| (1, 1)).chain((0..rest).map(|_| (1, 0))).collect();
            prop_assert_eq!(wilson_clustered(&tasks), wilson(c, c + rest));
        }

        #[test]
        fn clustering_lies_between_the_two_extremes(tasks in prop::collection::vec((1u64..9, 0u64..9), 1..20)) {
            let n: u64 = tasks.iter().map(|t| t.0).sum();
            let solved: u64 = tasks.iter().map(|t| t.1.min(t.0)).sum();
            let width = |i: Interval| i.high - i.low;
            let got = width(wilson_clustered(&tasks));
            prop_assert!(got >= width(wilson(solved, n)) - 1e-9);
            prop_assert!(got <= width(wilson_share(solved as f64 / n as f64, tasks.len() as f64)) + 1e-9);
        }
    }
}
