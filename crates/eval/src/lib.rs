//! Scores of a policy on tasks: exact statistics, nothing dropped.
//!
//! A [`Score`] is made from groups of episodes by [`score`]; failures stay in its denominator. The statistics beneath are
//! exact or closed-form, so that the same counts always give the same numbers: [`pass_at_k`], [`wilson`],
//! [`mcnemar_exact`], [`fisher_exact`], [`difference`], [`sign_flip`], [`holm`]; the one that draws, [`crossed_bootstrap`],
//! draws from a named stream. [`study`] compares several ways of training by them.

mod answers;
mod bootstrap;
mod compare;
mod interval;
mod pass;
mod permutation;
mod score;
pub mod study;

pub use answers::{Answer, Answers, Question};
pub use bootstrap::{crossed_bootstrap, mean_with_interval};
pub use compare::{CompareError, Paired, difference, fisher_exact, mcnemar_exact, paired};
pub use interval::{Interval, wilson, wilson_clustered};
pub use pass::{PassAtK, mean_pass_at_k, pass_at_k};
pub use permutation::{holm, sign_flip, smallest_sign_flip};
pub use score::{Criteria, EvalLine, Score, ScoreError, score};
