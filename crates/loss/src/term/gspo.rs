//! The clipped surrogate with one ratio a sequence: −min(ρA, clip(ρ, ratio_min, ratio_max)·A), where
//! ρ = exp(mean over the sequence's live tokens of log π − log π_old).
//!
//! Every live token of the sequence carries the term, with its own advantage, which is the same for all of them under most
//! algorithms; its derivative reaches all of them alike. The mean of log-ratios moves far less than any one of them, so the
//! bounds lie much closer to 1 than a token's would.
//!
//! Source: arXiv:2507.18071.

use serde::{Deserialize, Serialize};

use super::{Needs, PolicyGradient, TermGroup, TermRule, View, check_bounds};
use crate::LossError;
use crate::exp::exp;

/// The clipped surrogate with the geometric mean of a sequence's ratios.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gspo {
    /// Below this ratio of the sequence a token with A < 0 is left alone.
    pub ratio_min: f64,
    /// Above this ratio of the sequence a token with A > 0 is left alone.
    pub ratio_max: f64,
}

impl TermRule for Gspo {
    fn check(&self) -> Result<(), LossError> {
        check_bounds(self.ratio_min, self.ratio_max)
    }

    fn needs(&self) -> Needs {
        Needs { old: true, ..Needs::default() }
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        let surrogate = PolicyGradient { ratio_min: self.ratio_min, ratio_max: self.ratio_max, dual_clip: None };
        for (row, out) in rows.iter().zip(&mut out.rows) {
            let (n, sum) = row.live().fold((0.0, 0.0), |(n, sum), t| (n + 1.0, sum + row.log_ratio(t)));
            if n == 0.0 {
                continue;
            }
            let ratio = exp(sum / n);
            let mut slope = 0.0;
            for t in row.live() {
                let value = surrogate.token(ratio, row.advantage(t));
                out.loss[t] = value.loss;
                out.clip[t] = value.clip;
                slope += row.scale[t] * value.slope;
            }
            row.live().for_each(|t| out.dlogp[t] = slope / n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::tests::{given, run};

    /// CASES C12: log-probabilities −1, −.5, −2 against −1.5, −.5, −.5 have a geometric mean ratio of .71653.
    #[test]
    fn c12_the_ratio_is_the_geometric_mean_of_the_sequence() {
        let gspo = |ratio_min| Gspo { ratio_min, ratio_max: 1.2 };
        let row = given(&[-1.0, -0.5, -2.0], &[-1.5, -0.5, -0.5], 2.0);
        let got = run(&gspo(0.8), &row);
        assert!(got.loss.iter().all(|l| (l + 2.0 * 0.716_531_3).abs() < 1e-6), "{:?}", got.loss);
        // Three tokens, each with a slope of −ρA shared by three.
        assert!(got.dlogp.iter().all(|d| (d + 2.0 * 0.716_531_3).abs() < 1e-6), "{:?}", got.dlogp);
        let bad = given(&[-1.0, -0.5, -2.0], &[-1.5, -0.5, -0.5], -2.0);
        let got = run(&gspo(0.8), &bad);
        assert_eq!((got.loss, got.dlogp), (vec![1.6; 3], vec![0.0; 3]));
        assert_eq!(run(&gspo(0.7), &bad).clip, [crate::term::Clip::No; 3]);
    }

    #[test]
    fn one_token_is_the_clipped_surrogate() {
        let row = given(&[-0.75], &[-1.0], 0.5);
        let token = run(&PolicyGradient { ratio_min: 0.8, ratio_max: 1.5, dual_clip: None }, &row);
        let sequence = run(&Gspo { ratio_min: 0.8, ratio_max: 1.5 }, &row);
        assert_eq!((token.loss, token.dlogp), (sequence.loss, sequence.dlogp));
    }
}
