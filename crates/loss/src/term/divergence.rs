//! Distillation over the student's `k` most likely tokens and one bucket for all others, S the student and T the teacher:
//!
//! ```text
//! alpha = 0: KL(T‖S)      alpha = 1: KL(S‖T)
//! else, m = (1−alpha)·S + alpha·T: (1−alpha)·KL(S‖m) + alpha·KL(T‖m)
//! ```
//!
//! times sg(min(exp(log π − log π_old), cap)), the log-ratio kept within ±20, where a cap is set. The bucket of a
//! distribution has what its `k` tokens leave, at least 1e-7. The derivative is by the student's log-probabilities of the
//! `k` tokens, which decide the bucket too; the token that was sampled gets none of its own. The advantage is not read.
//!
//! Source: arXiv:2601.20802.
//!
//! k tokens a place

use serde::{Deserialize, Serialize};

use super::distill::capped;
use super::{Acts, Needs, TermGroup, TermRule, View, check_positive};
use crate::LossError;
use crate::error::setting;
use crate::exp::{exp, ln};

/// The least a bucket holds: rounding of `k` log-probabilities must not leave it nothing, or less.
const LEAST: f64 = 1e-7;

/// A divergence between teacher and student over the student's most likely tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// Which divergence: 0 the forward KL(T‖S), 1 the reverse KL(S‖T), between them the mixture.
    pub alpha: f64,
    /// The most that the ratio π/π_old may weigh; absent, no ratio is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<f64>,
}

/// One bucket of both distributions.
#[derive(Clone, Copy)]
struct Bucket {
    s: f64,
    log_s: f64,
    t: f64,
    log_t: f64,
}

impl Bucket {
    fn of(log_s: f64, log_t: f64) -> Self {
        Bucket { s: exp(log_s), log_s, t: exp(log_t), log_t }
    }

    /// What is left beside Σs and Σt.
    fn rest(s: f64, t: f64) -> Self {
        let (s, t) = ((1.0 - s).max(LEAST), (1.0 - t).max(LEAST));
        Bucket { s, log_s: ln(s), t, log_t: ln(t) }
    }
}

impl Divergence {
    /// A bucket's part of the divergence, and s · its derivative by s.
    fn bucket(&self, b: Bucket) -> (f64, f64) {
        let apart = b.log_s - b.log_t;
        if self.alpha == 0.0 {
            return (-b.t * apart, -b.t);
        }
        if self.alpha == 1.0 {
            return (b.s * apart, b.s * (apart + 1.0));
        }
        let (student, teacher) = (1.0 - self.alpha, self.alpha);
        let m = student * b.s + teacher * b.t;
        if m == 0.0 {
            return (0.0, 0.0);
        }
        let log_m = ln(m);
        let above = student * b.s * (b.log_s - log_m);
        // The derivatives of m inside both logarithms cancel against each other, s by s.
        (above + teacher * b.t * (b.log_t - log_m), above)
    }

    /// The divergence at one place and, through `slope`, its derivative by each of the student's log-probabilities.
    fn place(&self, buckets: &[Bucket], mut slope: impl FnMut(usize, f64)) -> f64 {
        let (s, t) = buckets.iter().fold((0.0, 0.0), |(s, t), b| (s + b.s, t + b.t));
        let rest = Bucket::rest(s, t);
        let (mut loss, rest_slope) = self.bucket(rest);
        // d rest / d log s = −s while it is above its least, and 0 there.
        let per_s = if 1.0 - s > LEAST { rest_slope / rest.s } else { 0.0 };
        for (i, b) in buckets.iter().enumerate() {
            let (part, own) = self.bucket(*b);
            loss += part;
            slope(i, own - b.s * per_s);
        }
        loss
    }
}

impl TermRule for Divergence {
    fn check(&self) -> Result<(), LossError> {
        setting("alpha", self.alpha, (0.0..=1.0).contains(&self.alpha), "a number from 0 to 1")?;
        self.cap.map_or(Ok(()), |cap| check_positive("cap", cap))
    }

    fn needs(&self) -> Needs {
        Needs { old: self.cap.is_some(), teacher: true, top: true, ..Needs::default() }
    }

    fn acts(&self) -> Acts {
        Acts::Everywhere
    }

    fn group(&self, rows: &[View<'_>], out: &mut TermGroup) {
        let mut buckets = Vec::new();
        for (row, out) in rows.iter().zip(&mut out.rows) {
            let (Some(student), Some(teacher)) = (row.row.top, row.row.teacher.and_then(|t| t.top.as_ref())) else {
                continue;
            };
            for t in row.live() {
                let at = t * student.k..(t + 1) * student.k;
                let (weight, clip) = capped(row, t, self.cap);
                buckets.clear();
                let pairs = student.logp[at.clone()].iter().zip(&teacher.logp[at.clone()]);
                buckets.extend(pairs.map(|(s, t)| Bucket::of(f64::from(*s), f64::from(*t))));
                let slopes = &mut out.dtop[at];
                let slope = |i: usize, slope: f64| slopes[i] = (row.scale[t] * weight * slope) as f32;
                out.loss[t] = weight * self.place(&buckets, slope);
                out.clip[t] = clip;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::tests::{Given, given, near, run};
    use crate::{Teacher, Top};

    /// One place with some most likely tokens.
    fn one(student: &[f64], teacher: &[f64], old: f32) -> Given {
        let top = |p: &[f64]| {
            let logp = p.iter().map(|p| p.ln() as f32).collect();
            Some(Top { k: p.len(), ids: vec![0; p.len()], logp })
        };
        let teacher = Teacher { logp: vec![0.0], top: top(teacher) };
        Given { teacher, top: top(student), ..given(&[-1.0], &[old], 0.0) }
    }

    fn kl(p: &[f64], q: &[f64]) -> f64 {
        p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum()
    }

    /// CASES L8: which divergence each alpha stands for, on two tokens and a bucket.
    #[test]
    fn l8_alpha_0_is_forward_and_alpha_1_reverse() {
        let (s, t) = ([0.5, 0.3, 0.2], [0.25, 0.25, 0.5]);
        let loss = |alpha| run(&Divergence { alpha, cap: None }, &one(&s[..2], &t[..2], -1.0)).loss[0];
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-7, "{got} {want}");
        close(loss(0.0), kl(&t, &s));
        close(loss(1.0), kl(&s, &t));
        for alpha in [0.1, 0.5, 0.75] {
            let m: Vec<f64> = s.iter().zip(&t).map(|(s, t)| (1.0 - alpha) * s + alpha * t).collect();
            close(loss(alpha), (1.0 - alpha) * kl(&s, &m) + alpha * kl(&t, &m));
        }
    }

    /// With π = Bernoulli(σ(θ)) at θ = 0 and the teacher at .3: the bucket is the other outcome.
    #[test]
    fn l8_the_gradient_is_the_closed_form_of_two_outcomes() {
        let slope = |alpha| 0.5 * f64::from(run(&Divergence { alpha, cap: None }, &one(&[0.5], &[0.3], -1.0)).dtop[0]);
        assert!((slope(1.0) - 0.211_824_5).abs() < 1e-7, "{}", slope(1.0));
        assert!((slope(0.0) - 0.2).abs() < 1e-7, "{}", slope(0.0));
    }

    #[test]
    fn equal_distributions_are_left_alone_whatever_alpha() {
        for alpha in [0.0, 0.5, 1.0] {
            let got = run(&Divergence { alpha, cap: None }, &one(&[0.5, 0.25], &[0.5, 0.25], -1.0));
            assert!(got.loss[0].abs() < 1e-15, "{alpha}: {}", got.loss[0]);
            assert!(got.dtop.iter().all(|d| d.abs() < 1e-15), "{alpha}: {:?}", got.dtop);
        }
    }

    #[test]
    fn the_ratio_weighs_and_its_cap_bounds() {
        let loss = |old| run(&Divergence { alpha: 1.0, cap: Some(2.0) }, &one(&[0.5], &[0.3], old)).loss[0];
        let plain = loss(-1.0);
        near(loss(-0.5), plain * (-0.5f64).exp());
        near(loss(-3.0), plain * 2.0);
    }

    #[test]
    fn probabilities_that_leave_nothing_keep_the_bucket_above_zero() {
        for alpha in [0.0, 0.5, 1.0] {
            let got = run(&Divergence { alpha, cap: None }, &one(&[0.75, 0.25], &[0.5, 0.4], -1.0));
            assert!(got.loss[0].is_finite() && got.dtop.iter().all(|d| d.is_finite()), "{alpha}");
            let over = run(&Divergence { alpha, cap: None }, &one(&[0.75, 0.250_1], &[1e-320, 0.4], -1.0));
            assert!(over.loss[0].is_finite() && over.dtop.iter().all(|d| d.is_finite()), "{alpha}");
        }
    }
}
