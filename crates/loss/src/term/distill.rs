//! On-policy distillation from a teacher's log-probabilities: sg(log π − log π_T) · log π at each token, times
//! sg(min(ρ, cap)) with ρ = π/π_old where a cap is set.
//!
//! On tokens that the student sampled its expected gradient is that of the *reverse* divergence KL(π‖π_T): the student
//! learns to do what the teacher would not mind, rather than to cover all the teacher would do. It is the score function
//! with −(log π − log π_T) as each token's advantage. The loss itself is a surrogate: watch the mean of log π − log π_T.
//! The advantage is not read.
//!
//! Source: arXiv:2306.13649 and arXiv:2306.08543 (reverse divergence on the student's own samples); cap, arXiv:2601.20802.

use serde::{Deserialize, Serialize};

use super::{Acts, Clip, Needs, TermGroup, TermRule, TokenTerm, View, check_positive, each_token};
use crate::LossError;
use crate::exp::exp;

/// The distillation surrogate sg(log π − log π_T) · log π.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distill {
    /// The most that the ratio π/π_old may weigh; absent, no ratio is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
}

/// The fixed weight min(ρ, cap), log ρ kept within ±20 so that no outlier overflows.
pub(super) fn capped(row: &View<'_>, t: usize, cap: Option<f64>) -> (f64, Clip) {
    const WIDEST: f64 = 20.0;
    match cap {
        None => (1.0, Clip::No),
        Some(cap) => match exp(row.log_ratio(t).clamp(-WIDEST, WIDEST)) {
            ratio if ratio > cap => (cap, Clip::High),
            ratio => (ratio, Clip::No),
        },
    }
}

impl TermRule for Distill {
    fn check(&self) -> Result<(), LossError> {
        self.cap.map_or(Ok(()), |cap| check_positive("cap", cap))
    }

    fn needs(&self) -> Needs {
        Needs { old: self.cap.is_some(), teacher: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::Everywhere
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        each_token(rows, out, |row, t| {
            let teacher = row.row.teacher.expect("a term declares which lists it reads, and they were checked");
            let (weight, clip) = capped(row, t, self.cap);
            let slope = weight * (row.logp(t) - f64::from(teacher.logp[t]));
            TokenTerm { loss: slope * row.logp(t), slope, clip }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Teacher;
    use crate::term::tests::{Given, given, near, run};

    fn one(logp: f32, old: f32, teacher: f32) -> Given {
        Given { teacher: Teacher { logp: vec![teacher], top: None }, ..given(&[logp], &[old], 0.0) }
    }

    /// CASES L8: with π = Bernoulli(σ(0)) and the teacher at .3, d/dθ KL(π‖π_T) = .2118245; the forward one's is .2.
    #[test]
    fn l8_the_expected_gradient_is_the_reverse_divergences() {
        // (π, teacher, d log π / dθ) of both outcomes.
        let slope = |p: f32, q: f32| run(&Distill { cap: None }, &one(p.ln(), 0.0, q.ln())).dlogp[0];
        let expected = 0.5 * slope(0.5, 0.3) * 0.5 + 0.5 * slope(0.5, 0.7) * -0.5;
        assert!((expected - 0.211_824_5).abs() < 1e-7, "{expected}");
    }

    #[test]
    fn the_cap_bounds_the_ratio() {
        let check = |cap, old: f32, want: f64| {
            let got = run(&Distill { cap }, &one(-1.0, old, -1.5));
            near(got.dlogp[0], want * 0.5);
            near(got.loss[0], -want * 0.5);
        };
        check(None, -4.0, 1.0);
        check(Some(2.0), -1.0, 1.0);
        check(Some(2.0), -4.0, 2.0);
        check(Some(2.0), -0.5, (-0.5f64).exp());
        // Log-ratios are kept within ±20.
        check(Some(1e30), -50.0, 20f64.exp());
        assert_eq!(run(&Distill { cap: Some(2.0) }, &one(-1.0, -4.0, -1.5)).clip, [Clip::High]);
    }

    #[test]
    fn a_student_that_agrees_is_left_alone() {
        let got = run(&Distill { cap: Some(2.0) }, &one(-1.0, -1.5, -1.0));
        assert_eq!((got.loss[0].abs(), got.dlogp[0]), (0.0, 0.0));
    }
}
