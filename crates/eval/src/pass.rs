//! The chance that at least one of k attempts solves a task, estimated without bias from n ≥ k attempts.

use serde::{Deserialize, Serialize};

/// The unbiased estimate of pass@k from `n` attempts of which `solved` succeeded: 1 − C(n−c, k) / C(n, k).
///
/// - Holds: computed as a product of factors in [0, 1], so no binomial overflows; `k = 1` gives c / n.
/// - Errors: `None` when it is not defined: `k` is 0 or above `n`, or `solved` is above `n`.
/// - Source: Chen et al., arXiv:2107.03374, equation 1.
pub fn pass_at_k(n: u64, solved: u64, k: u64) -> Option<f64> {
    if k == 0 || k > n || solved > n {
        return None;
    }
    if n - solved < k {
        return Some(1.0);
    }
    if k == 1 {
        return Some(solved as f64 / n as f64);
    }
    // C(n−c, k) / C(n, k) has two equal product forms; the shorter one costs less and rounds less.
    let none = if solved <= k {
        (0..solved).map(|i| 1.0 - k as f64 / (n - i) as f64).product::<f64>()
    } else {
        (0..k).map(|i| 1.0 - solved as f64 / (n - i) as f64).product::<f64>()
    };
    Some(1.0 - none)
}

/// The mean of pass@k over tasks, with the tasks for which it is not defined counted rather than skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassAtK {
    /// Attempts allowed.
    pub k: u64,
    /// The mean over all tasks; none when a single task has fewer than k attempts, or there are no tasks.
    pub value: Option<f64>,
    /// Tasks with fewer than k attempts.
    pub n_undefined: u64,
}

/// The mean of pass@k over tasks given as (attempts, solved).
pub fn mean_pass_at_k(tasks: &[(u64, u64)], k: u64) -> PassAtK {
    let values: Vec<f64> = tasks.iter().filter_map(|(n, solved)| pass_at_k(*n, *solved, k)).collect();
    let n_undefined = (tasks.len() - values.len()) as u64;
    let defined = n_undefined == 0 && !values.is_empty();
    let value = defined.then(|| values.iter().sum::<f64>() / values.len() as f64);
    PassAtK { k, value, n_undefined }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check((n, solved, k): (u64, u64, u64), want: Option<f64>) {
        let got = pass_at_k(n, solved, k);
        let close = match (got, want) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-12,
            (a, b) => a == b,
        };
        assert!(close, "pass@{k} of {solved}/{n}: {got:?}, needed {want:?}");
    }

    /// CASES H1; a bootstrap with replacement gives 0.6836 for the third.
    #[test]
    fn pass_at_k_is_the_unbiased_estimate_not_a_bootstrap() {
        check((4, 1, 1), Some(0.25));
        check((4, 1, 2), Some(0.5));
        check((4, 1, 4), Some(1.0));
        check((4, 2, 2), Some(5.0 / 6.0));
        check((10, 3, 5), Some(11.0 / 12.0));
        check((4, 0, 4), Some(0.0));
        check((4, 4, 1), Some(1.0));
    }

    #[test]
    fn pass_at_k_is_undefined_rather_than_wrong_outside_its_range() {
        check((4, 1, 5), None);
        check((4, 1, 0), None);
        check((0, 0, 1), None);
        check((4, 5, 1), None);
    }

    #[test]
    fn a_task_with_too_few_attempts_makes_the_mean_undefined_and_is_counted() {
        let mean = mean_pass_at_k(&[(4, 1), (1, 1)], 2);
        assert_eq!(mean, PassAtK { k: 2, value: None, n_undefined: 1 });
        assert_eq!(mean_pass_at_k(&[(4, 1), (4, 2)], 1).value, Some(0.375));
        assert_eq!(mean_pass_at_k(&[], 1).value, None);
    }

    /// C(n, k) by Pascal's rule, exact below 2⁵³.
    fn choose(n: u64, k: u64) -> f64 {
        (0..k).fold(1.0, |c, i| c * (n - i) as f64 / (i + 1) as f64)
    }

    proptest! {
        #[test]
        fn pass_at_k_equals_its_definition_by_binomials(n in 1u64..40, c in 0u64..40, k in 1u64..40) {
            prop_assume!(c <= n && k <= n);
            let want = if n - c < k { 1.0 } else { 1.0 - choose(n - c, k) / choose(n, k) };
            prop_assert!((pass_at_k(n, c, k).unwrap() - want).abs() < 1e-9);
        }

        #[test]
        fn pass_at_k_stays_in_range_for_large_counts(n in 1u64..1_000_000, c in 0u64..1_000_000, k in 1u64..1000) {
            prop_assume!(c <= n && k <= n);
            let p = pass_at_k(n, c, k).unwrap();
            prop_assert!((0.0..=1.0).contains(&p));
            prop_assert!(p >= pass_at_k(n, c, 1).unwrap() - 1e-12);
        }
    }
}
