//! Regression of the policy's move on the advantage: (β₂(Σ log π − Σ log μ) − A)², sums over an episode's live tokens.
//!
//! The optimum of reinforcement learning with a KL to μ satisfies β₂·log(π/μ) = r − V, so a square of the difference can be
//! descended on episodes of any policy that sampled them, without a ratio and without clipping. A = r − V̂ arrives as the
//! advantage, the same at each token of an episode; where tokens differ, their mean is taken. The loss of an episode is
//! spread evenly over its live tokens, so their sum is the loss, and `sequence_sum` the mean over episodes of one sequence.
//!
//! Source: arXiv:2602.19362.

use serde::{Deserialize, Serialize};

use crate::share::{episodes, spread, sum};
use super::{Acts, Needs, TermGroup, TermRule, View, check_positive};
use crate::LossError;

/// The squared error (β₂(Σ log π − Σ log μ) − A)² of each episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Oapl {
    /// What a nat of the policy's move is worth in reward points.
    pub beta2: f64,
}

impl TermRule for Oapl {
    fn check(&self) -> Result<(), LossError> {
        check_positive("beta2", self.beta2)
    }

    fn needs(&self) -> Needs {
        Needs { sampler: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::Everywhere
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        for places in episodes(rows) {
            let n = sum(rows, &places, |_, _| 1.0);
            let advantage = sum(rows, &places, View::advantage) / n;
            let error = self.beta2 * sum(rows, &places, View::since_sampled) - advantage;
            let slope = spread(rows, &places, error * error, out) * 2.0 * error * self.beta2;
            for place in &places {
                rows[*place].live().for_each(|t| out.rows[*place].dlogp[t] = slope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::tests::{Given, given, near, run_all};

    #[test]
    fn the_loss_of_an_episode_is_the_squared_error_of_its_sum() {
        // Two sequences of one episode moved by .5 + .25 + .25, another by −1: β₂ = .5.
        let one = given(&[-1.0, -1.0], &[-1.5, -1.25], 0.25);
        let more = given(&[-2.0], &[-2.25], 0.25);
        let other = Given { episode: 1, ..given(&[-3.0], &[-2.0], -0.25) };
        let got = run_all(&Oapl { beta2: 0.5 }, &[one, other, more]);
        let (first, second) = (0.5 - 0.25, -0.5 + 0.25);
        near(got.rows[0].loss[0] + got.rows[0].loss[1] + got.rows[2].loss[0], first * first);
        near(got.rows[1].loss[0], second * second);
        for d in got.rows[0].dlogp.iter().chain(&got.rows[2].dlogp) {
            near(*d, 2.0 * first * 0.5);
        }
        near(got.rows[1].dlogp[0], 2.0 * second * 0.5);
    }

    #[test]
    fn a_policy_that_moved_by_advantage_over_beta_is_at_the_optimum() {
        let got = run_all(&Oapl { beta2: 0.5 }, &[given(&[-1.0, -1.0], &[-1.5, -1.5], 0.5)]);
        assert_eq!((got.rows[0].loss.clone(), got.rows[0].dlogp.clone()), (vec![0.0; 2], vec![0.0; 2]));
    }
}
