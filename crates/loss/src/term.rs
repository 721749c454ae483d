//! Terms: what is descended at each trained token. One file each.
//!
//! A term sees all rows of a group at once, so that one may look at a token, a sequence, a pair or a group.

use crate::{LossError, Row};

table! {
    /// What is descended.
    Term, rule TermRule, tag "kind", in "term", {
        "policy_gradient" => policy_gradient::PolicyGradient,
        "reinforce" => reinforce::Reinforce,
        "nll" => nll::Nll,
    }
}

/// What a term is.
pub(crate) trait TermRule {
    /// Checks every range.
    fn check(&self) -> Result<(), LossError> {
        Ok(())
    }

    /// Whether it reads the ratio π/π_old.
    fn needs_old(&self) -> bool {
        false
    }

    /// Whether it is exactly 0, with a derivative of exactly 0, at an advantage of 0.
    fn uses_advantage(&self) -> bool {
        true
    }

    /// Fills in, for each trained token, its loss, and the derivative of Σ `scale` · loss by its log-probability.
    ///
    /// - Shapes: `scale` and both lists of `out` are `[row][T]`; `scale` is 0 at tokens that weigh nothing or are not
    ///   trained, `out` starts at 0.
    /// - Holds: a token whose scale is 0 adds nothing to any derivative.
    fn group(&self, rows: &[Row<'_>], scale: &[Vec<f64>], out: &mut [TermRow]);
}

/// What a term makes of one row, `[T]`.
#[derive(Debug, Clone)]
pub(crate) struct TermRow {
    /// Each token's loss, before weight, correction and reduction.
    pub(crate) loss: Vec<f64>,
    /// Derivative of the reduced term by each token's log-probability.
    pub(crate) dlogp: Vec<f64>,
    /// Where a bound decided the loss.
    pub(crate) clip: Vec<Clip>,
}

impl TermRow {
    pub(crate) fn zeros(n: usize) -> Self {
        TermRow { loss: vec![0.0; n], dlogp: vec![0.0; n], clip: vec![Clip::No; n] }
    }
}

/// Which bound decided a token's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clip {
    No,
    Low,
    High,
    Dual,
}

/// One token's loss and its derivative by the token's own log-probability.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenTerm {
    pub(crate) loss: f64,
    pub(crate) slope: f64,
    pub(crate) clip: Clip,
}

/// Runs a term that looks at one token at a time.
pub(crate) fn each_token(
    rows: &[Row<'_>],
    scale: &[Vec<f64>],
    out: &mut [TermRow],
    token: impl Fn(&Row<'_>, usize) -> TokenTerm,
) {
    for ((row, scale), out) in rows.iter().zip(scale).zip(out) {
        for t in row.trained_positions().filter(|t| scale[*t] != 0.0) {
            let value = token(row, t);
            out.loss[t] = value.loss;
            out.dlogp[t] = scale[t] * value.slope;
            out.clip[t] = value.clip;
        }
    }
}
