//! Baselines and spreads over the rewards of episodes.
//!
//! G graded episodes

use crate::Spread;

/// Whether there is nothing to compare: an equality test on the rewards, since the computed spread of equal numbers is
/// not always exactly 0.
pub(crate) fn all_equal(rewards: &[f64]) -> bool {
    rewards.windows(2).all(|w| w[0] == w[1])
}

/// The mean, summed in order; 0 of nothing.
pub(crate) fn mean(rewards: &[f64]) -> f64 {
    if rewards.is_empty() { 0.0 } else { rewards.iter().sum::<f64>() / rewards.len() as f64 }
}

/// The spread around the mean; 0 where fewer than two rewards have none, 1 for [`Spread::None`].
pub(crate) fn spread(rewards: &[f64], kind: Spread) -> f64 {
    let n = rewards.len() as f64;
    let count = match kind {
        Spread::None => return 1.0,
        Spread::Population => n,
        Spread::Sample => n - 1.0,
    };
    let mean = mean(rewards);
    let squares: f64 = rewards.iter().map(|r| (r - mean) * (r - mean)).sum();
    if count > 0.0 { (squares / count).sqrt() } else { 0.0 }
}

/// Centres each reward on the mean, and divides by the spread plus `epsilon` unless there is none to divide by.
///
/// - Shapes: `rewards` → advantages `[G]`.
/// - Units: spreads, or reward points with [`Spread::None`].
/// - Holds: the result sums to zero up to rounding; equal rewards, and a single one, give exact zeros.
/// - Source: arXiv:2402.03300; without the spread arXiv:2503.20783.
pub(crate) fn centred(rewards: &[f64], kind: Spread, epsilon: f64) -> Vec<f64> {
    if all_equal(rewards) {
        return vec![0.0; rewards.len()];
    }
    let mean = mean(rewards);
    let divisor = match kind {
        Spread::None => 1.0,
        _ => spread(rewards, kind) + epsilon,
    };
    // An infinite spread would turn every advantage into a silent 0; not a number is refused with its place.
    let divisor = if divisor.is_finite() { divisor } else { f64::NAN };
    rewards.iter().map(|r| (r - mean) / divisor).collect()
}

/// What each reward has more than the mean of the others.
///
/// - Shapes: `rewards` → advantages `[G]`.
/// - Holds: equal rewards, and a single one, give exact zeros.
/// - Source: arXiv:2402.14740.
pub(crate) fn over_others(rewards: &[f64]) -> Vec<f64> {
    if all_equal(rewards) {
        return vec![0.0; rewards.len()];
    }
    let (sum, others) = (rewards.iter().sum::<f64>(), rewards.len() as f64 - 1.0);
    rewards.iter().map(|r| r - (sum - r) / others).collect()
}

/// Centres each reward on the mean and divides by it; zeros where the mean is 0.
///
/// - Shapes: `rewards` → advantages `[G]`; none of them negative.
/// - Source: arXiv:2602.02710.
pub(crate) fn over_mean(rewards: &[f64]) -> Vec<f64> {
    let mean = mean(rewards);
    if all_equal(rewards) || mean == 0.0 {
        return vec![0.0; rewards.len()];
    }
    rewards.iter().map(|r| (r - mean) / mean).collect()
}

/// What each reward has more than the soft maximum of all, β · log mean exp(r/β).
///
/// - Shapes: `rewards` → advantages `[G]`.
/// - Holds: no overflow, whatever the rewards; equal ones give exact zeros.
/// - Source: arXiv:2602.19362.
pub(crate) fn over_soft_value(rewards: &[f64], beta: f64) -> Vec<f64> {
    if all_equal(rewards) {
        return vec![0.0; rewards.len()];
    }
    let best = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Relative to the best and to 1, so that it is exact however large the rewards or β are.
    let mass: f64 = rewards.iter().map(|r| libm::expm1((r - best) / beta)).sum();
    let value = beta * libm::log1p(mass / rewards.len() as f64);
    rewards.iter().map(|r| (r - best) - value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Spread, epsilon: f64, want: [f64; 2]) {
        let got = centred(&[1.0, 0.0, 0.0, 0.0], kind, epsilon);
        for (got, want) in got.iter().zip([want[0], want[1], want[1], want[1]]) {
            assert!((got - want).abs() < 5e-8, "{kind:?} ε {epsilon}: {got}, {want}");
        }
    }

    #[test]
    fn b1_the_reference_vector() {
        check(Spread::Sample, 1e-6, [1.499_997, -0.499_999]);
        check(Spread::Population, 1e-6, [1.732_046_8, -0.577_348_9]);
        check(Spread::Population, 0.0, [1.732_050_8, -0.577_350_3]);
        check(Spread::Sample, 1e-4, [1.499_700_1, -0.499_900_0]);
        check(Spread::None, 1e-6, [0.75, -0.25]);
    }

    #[test]
    fn b6_equal_rewards_give_exact_zeros() {
        for kind in [Spread::Sample, Spread::Population, Spread::None] {
            assert_eq!(centred(&[0.1; 8], kind, 0.0), [0.0; 8]);
            assert_eq!(centred(&[0.7], kind, 0.0), [0.0]);
            assert!(centred(&[], kind, 0.0).is_empty());
        }
        // What the equality test is for: computed, the mean of these is not any of them.
        assert_ne!(mean(&[0.1; 3]), 0.1);
    }

    fn near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12), "{got:?}, {want:?}");
    }

    #[test]
    fn b1_the_same_vector_against_the_others_over_the_mean_and_over_the_soft_value() {
        let rewards = [1.0, 0.0, 0.0, 0.0];
        near(&over_others(&rewards), &[1.0, -1.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0]);
        near(&over_mean(&rewards), &[3.0, -1.0, -1.0, -1.0]);
        let value = ((std::f64::consts::E + 3.0) / 4.0).ln();
        near(&over_soft_value(&rewards, 1.0), &[1.0 - value, -value, -value, -value]);
        let value = 0.5 * (((2.0f64).exp() + 3.0) / 4.0).ln();
        near(&over_soft_value(&rewards, 0.5), &[1.0 - value, -value, -value, -value]);
    }

    #[test]
    fn nothing_to_compare_is_exactly_nothing() {
        for equal in [&[0.1; 8][..], &[0.7], &[0.0; 3], &[]] {
            for got in [over_others(equal), over_mean(equal), over_soft_value(equal, 1.0)] {
                assert_eq!(got, vec![0.0; equal.len()]);
            }
        }
    }

    #[test]
    fn a_soft_value_neither_overflows_nor_loses_small_differences() {
        near(&over_soft_value(&[1e6, 1e6 - 1.0], 1e-3), &[1e-3 * 2.0f64.ln(), -1.0 + 1e-3 * 2.0f64.ln()]);
        near(&over_soft_value(&[-1e6, 0.0], 1.0), &[-1e6 + 2.0f64.ln(), 2.0f64.ln()]);
        // A large β takes the mean.
        near(&over_soft_value(&[1.0, 0.0], 1e13), &[0.5, -0.5]);
    }
}
