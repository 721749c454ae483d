//! A reward model's loss: −log σ(s⁺ − s⁻) of each pair, s the value head's estimate at the last live token of a side.
//!
//! The estimate is that of the state that has read the token, so the score has seen the whole episode. A pair's loss is
//! spread evenly over its live tokens, so their sum is the loss and `pair_mean` the mean over pairs. A pair with a side
//! that has no live token teaches nothing and stays in the denominator. Neither log-probabilities nor advantages are read.
//!
//! Source: R. A. Bradley and M. E. Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952; as a reward
//! model's loss, arXiv:2203.02155.

use serde::{Deserialize, Serialize};

use crate::share::{logistic, pairs, spread};
use super::{Acts, Needs, TermGroup, TermRule, View};

/// The preference loss −log σ(s⁺ − s⁻) of each pair.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BradleyTerry {}

impl TermRule for BradleyTerry {
    fn needs(&self) -> Needs {
        Needs { value: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::OnPair
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        for sides in pairs(rows) {
            let last = |side: &Vec<usize>| {
                let place = *side.last().expect("only pairs with rows on both sides are listed");
                let t = rows[place].live().next_back().expect("only rows with a live token are listed");
                let value = rows[place].row.value.expect("a term declares which lists it reads, and they were checked");
                (place, t, f64::from(value[t]))
            };
            let [chosen, rejected] = sides.each_ref().map(last);
            let margin = chosen.2 - rejected.2;
            let (loss, slope) = logistic(margin);
            let slope = spread(rows, &sides.concat(), loss, out) * slope;
            out.rows[chosen.0].dvalue[chosen.1] = slope;
            out.rows[rejected.0].dvalue[rejected.1] = -slope;
            out.pairs.add(margin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::tests::{Given, given, near, run_all};

    fn side(value: &[f32], index: u32, chosen: bool) -> Given {
        let logp = vec![-1.0; value.len()];
        Given { value: value.to_vec(), ..given(&logp, &logp, 1.0).of_pair(index, chosen) }
    }

    #[test]
    fn only_the_last_token_of_a_side_is_scored() {
        // 1.5 − .5 = 1 for the first pair, .25 − .75 for the second.
        let all = [
            side(&[9.0, 1.5], 0, true),
            side(&[9.0, 9.0, 0.5], 0, false),
            side(&[0.75], 7, false),
            side(&[0.25], 7, true),
        ];
        let got = run_all(&BradleyTerry {}, &all);
        let ahead = (1.0 + (-1f64).exp()).ln();
        let behind = (1.0 + 0.5f64.exp()).ln();
        near(got.rows[0].loss.iter().chain(&got.rows[1].loss).sum(), ahead);
        near(got.rows[2].loss[0] + got.rows[3].loss[0], behind);
        let push = 1.0 / (1.0 + 1f64.exp());
        assert_eq!((got.rows[0].dvalue[0], got.rows[1].dvalue[1]), (0.0, 0.0));
        near(got.rows[0].dvalue[1], -push);
        near(got.rows[1].dvalue[2], push);
        near(got.rows[3].dvalue[0], -1.0 / (1.0 + (-0.5f64).exp()));
        assert!(got.rows.iter().all(|r| r.dlogp.iter().all(|d| *d == 0.0)));
        assert_eq!((got.pairs.n, got.pairs.n_right), (2, 1));
        near(got.pairs.margin, 0.5);
    }

    #[test]
    fn an_answer_of_several_sequences_is_scored_at_its_end() {
        let all = [side(&[9.0], 0, true), side(&[2.0], 0, true), side(&[2.0], 0, false)];
        let got = run_all(&BradleyTerry {}, &all);
        assert_eq!(got.rows[0].dvalue, [0.0]);
        near(got.rows[1].dvalue[0], -0.5);
    }

    #[test]
    fn half_a_pair_teaches_nothing() {
        let got = run_all(&BradleyTerry {}, &[side(&[1.0], 0, true), side(&[1.0], 1, false)]);
        assert!(got.rows.iter().all(|r| r.loss == [0.0] && r.dvalue == [0.0]));
        assert_eq!(got.pairs.n, 0);
    }
}
