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
}
