//! Preference without a reward: −log σ(β(Δ⁺ − Δ⁻)) of each pair, Δ = Σ over an episode's live tokens of log π − log ref.
//!
//! The sums are over tokens, never means: a pair of answers of other lengths is compared as whole answers. A pair's loss is
//! spread evenly over its live tokens, so their sum is the loss and `pair_mean` the mean over pairs. A pair with a side
//! that has no live token teaches nothing and stays in the denominator. The advantage is not read.
//!
//! Source: arXiv:2305.18290.

use serde::{Deserialize, Serialize};

use crate::share::{logistic, pairs, spread, sum};
use super::{Acts, Needs, TermGroup, TermRule, View, check_positive};
use crate::LossError;

/// Direct preference: −log σ(β(Δ⁺ − Δ⁻)) of each pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dpo {
    /// How strongly the reference holds: the implied reward of an answer is β·Δ.
    pub beta: f64,
}

impl TermRule for Dpo {
    fn check(&self) -> Result<(), LossError> {
        check_positive("beta", self.beta)
    }

    fn needs(&self) -> Needs {
        Needs { reference: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::OnPair
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        for sides in pairs(rows) {
            let [chosen, rejected] = sides.each_ref().map(|side| sum(rows, side, View::since_reference));
            let margin = self.beta * (chosen - rejected);
            let (loss, slope) = logistic(margin);
            let slope = spread(rows, &sides.concat(), loss, out) * self.beta * slope;
            for (side, slope) in sides.iter().zip([slope, -slope]) {
                for place in side {
                    rows[*place].live().for_each(|t| out.rows[*place].dlogp[t] = slope);
                }
            }
            out.pairs.add(margin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::tests::{given, near, run_all};

    /// CASES L5: a preference compares sums over tokens, where cross-entropy takes means.
    #[test]
    fn l5_answers_are_compared_by_their_sums() {
        // Δ⁺ = .5 over two tokens, Δ⁻ = −.75 over four: β(Δ⁺ − Δ⁻) = .625.
        let better = given(&[-1.0, -1.0], &[-1.25, -1.25], 9.0).of_pair(0, true);
        let worse = given(&[-2.0; 4], &[-1.8125; 4], 9.0).of_pair(0, false);
        let got = run_all(&Dpo { beta: 0.5 }, &[worse, better]);
        let loss = (1.0 + (-0.625f64).exp()).ln();
        near(got.rows.iter().flat_map(|r| &r.loss).sum(), loss);
        near(got.rows[0].loss[3], loss / 6.0);
        // β·σ(−.625), down for each token of the chosen one and up for the other's.
        let push = 0.5 / (1.0 + 0.625f64.exp());
        got.rows[1].dlogp.iter().for_each(|d| near(*d, -push));
        got.rows[0].dlogp.iter().for_each(|d| near(*d, push));
        assert_eq!((got.pairs.n, got.pairs.n_right), (1, 1));
        near(got.pairs.margin, 0.625);
    }

    #[test]
    fn an_answer_of_several_sequences_is_one_sum() {
        let part = |chosen| given(&[-1.0], &[-1.5], 0.0).of_pair(3, chosen);
        let got = run_all(&Dpo { beta: 1.0 }, &[part(true), part(false), part(true)]);
        near(got.rows.iter().flat_map(|r| &r.loss).sum(), (1.0 + (-0.5f64).exp()).ln());
    }

    #[test]
    fn where_nothing_moved_the_loss_is_ln_2_and_no_answer_is_ahead() {
        let same = |chosen| given(&[-1.0], &[-1.0], 0.0).of_pair(0, chosen);
        let got = run_all(&Dpo { beta: 0.1 }, &[same(true), same(false)]);
        near(got.rows[0].loss[0] + got.rows[1].loss[0], std::f64::consts::LN_2);
        near(got.rows[0].dlogp[0], -0.05);
        assert_eq!((got.pairs.n, got.pairs.n_right, got.pairs.margin), (1, 0, 0.0));
    }

    #[test]
    fn half_a_pair_and_none_teach_nothing() {
        let half = given(&[-1.0], &[-2.0], 1.0).of_pair(0, true);
        let got = run_all(&Dpo { beta: 0.1 }, &[half, given(&[-1.0], &[-2.0], 1.0)]);
        assert!(got.rows.iter().all(|r| r.loss == [0.0] && r.dlogp == [0.0]));
        assert_eq!(got.pairs.n, 0);
    }
}
