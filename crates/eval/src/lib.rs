//! Scores of a policy on tasks: exact statistics, nothing dropped.
//!
//! A [`Score`] is made from groups of episodes by [`score`]; failures stay in its denominator. The statistics beneath are
//! exact or closed-form, so that the same counts always give the same numbers: [`pass_at_k`], [`wilson`],
//! [`mcnemar_exact`], [`fisher_exact`], [`difference`].

mod answers;
mod compare;
mod interval;
mod pass;
mod score;

pub use answers::{Answer, Answers, Question};
pub use compare::{CompareError, Paired, difference, fisher_exact, mcnemar_exact, paired};
pub use interval::{Interval, wilson, wilson_clustered};
pub use pass::{PassAtK, mean_pass_at_k, pass_at_k};
pub use score::{Criteria, EvalLine, Score, ScoreError, score};
