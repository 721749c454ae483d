//! The loss of one group, its exact derivatives and its metrics.
//!
//! T tokens

use crate::exp::{exp, exp_m1_minus};
use crate::kl::Estimator;
use crate::term::{Clip, TermRow};
use crate::{Loss, LossError, Row, Sums, Totals};

/// What one group adds to the loss of an update batch.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupLoss {
    /// One entry a row.
    pub rows: Vec<RowLoss>,
    /// The group's share of the loss, after reduction.
    pub loss: f64,
    /// What its metrics are made of.
    pub sums: Sums,
}

/// What one row adds, `[T]`, 0 at tokens that are not trained.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowLoss {
    /// ∂loss/∂logp.
    pub dlogp: Vec<f32>,
    /// ∂loss/∂entropy, or empty when the loss has no entropy bonus.
    pub dentropy: Vec<f32>,
    /// ∂loss/∂value, or empty when the loss reads no value.
    pub dvalue: Vec<f32>,
    /// ∂loss/∂logp of the teacher's `top` tokens, `[T · k]`, or empty when the loss reads none.
    pub dtop: Vec<f32>,
    /// Each token's whole loss before reduction: weight, correction, KL and entropy bonus included.
    pub per_token: Vec<f64>,
    /// Each token's correction.
    pub correction: Vec<f64>,
}

/// Evaluates a loss on the sequences of one group.
///
/// - Shapes: `rows` in canonical order; every list of a row `[T]`.
/// - Holds: no row outside this group is needed but through `totals`, which count the whole update batch once; a sum runs
///   over rows, then tokens, in order; derivatives do not depend on the order.
/// - Errors: [`LossError`] when a list is missing, has another length, or is not finite at a trained token, or when the
///   loss or a derivative is not finite.
pub fn evaluate(loss: &Loss, totals: &Totals, rows: &[Row<'_>]) -> Result<GroupLoss, LossError> {
    for (sequence, row) in rows.iter().enumerate() {
        row.check(sequence, loss)?;
    }
    let needed = rows.iter().map(Row::n_trained).sum();
    if totals.n_tokens < needed || (needed > 0 && totals.n_sequences == 0) {
        return Err(LossError::Totals { got: totals.n_tokens, needed });
    }
    let correction = loss.correction.rule().weights(rows);
    let scale: Vec<Vec<f64>> =
        rows.iter().zip(&correction).map(|(row, correction)| scale(loss, totals, row, correction)).collect();
    let mut terms: Vec<TermRow> = rows.iter().map(|row| TermRow::zeros(row.trained.len())).collect();
    loss.term.rule().group(rows, &scale, &mut terms);

    let mut sums = Sums::default();
    let mut out = Vec::with_capacity(rows.len());
    for (sequence, row) in rows.iter().enumerate() {
        let mut own = Sums::default();
        let coefficient = loss.reduction.coefficient(totals, row.n_trained());
        let part = Part { loss, row, coefficient, term: &terms[sequence], correction: &correction[sequence] };
        out.push(part.finish(sequence, &mut own)?);
        sums.merge(&own);
    }
    Ok(GroupLoss { rows: out, loss: sums.loss(), sums })
}

/// What each token's term is multiplied with: coefficient · weight · correction, 0 where not trained.
fn scale(loss: &Loss, totals: &Totals, row: &Row<'_>, correction: &[f64]) -> Vec<f64> {
    let coefficient = loss.reduction.coefficient(totals, row.n_trained());
    let mut scale = vec![0.0; row.trained.len()];
    for t in row.trained_positions() {
        scale[t] = coefficient * (f64::from(row.weight[t]) * correction[t]);
    }
    scale
}

/// One row, with everything its tokens are multiplied with.
struct Part<'a> {
    loss: &'a Loss,
    row: &'a Row<'a>,
    coefficient: f64,
    term: &'a TermRow,
    correction: &'a [f64],
}

impl Part<'_> {
    fn finish(&self, sequence: usize, sums: &mut Sums) -> Result<RowLoss, LossError> {
        let n = self.row.trained.len();
        let with_entropy = self.loss.needs_entropy();
        let mut out = RowLoss {
            dlogp: vec![0.0; n],
            dentropy: vec![0.0; if with_entropy { n } else { 0 }],
            dvalue: Vec::new(),
            dtop: Vec::new(),
            per_token: vec![0.0; n],
            correction: vec![0.0; n],
        };
        sums.n_sequences += u64::from(self.row.n_trained() > 0);
        for t in self.row.trained_positions() {
            self.watch(t, sums);
            let weight = f64::from(self.row.weight[t]);
            let multiplier = weight * self.correction[t];
            let mut per_token = 0.0;
            let mut dlogp = self.term.dlogp[t];
            // Selected rather than multiplied: a weight of 0 must silence an infinite loss as well.
            if multiplier != 0.0 {
                per_token = multiplier * self.term.loss[t];
                sums.loss_term += self.coefficient * per_token;
                if let (Some(kl), Some(reference)) = (self.loss.active_kl(), self.row.logp_ref) {
                    let logp = f64::from(self.row.logp[t]);
                    let (value, slope) = kl.estimator.value_and_slope(logp, f64::from(reference[t]));
                    let value = multiplier * kl.coefficient * value;
                    per_token += value;
                    sums.loss_kl += self.coefficient * value;
                    dlogp += self.coefficient * (multiplier * kl.coefficient * slope);
                }
            }
            if let (true, Some(entropy)) = (with_entropy && weight != 0.0, self.row.entropy) {
                let worth = weight * self.loss.entropy_coefficient;
                let bonus = -worth * f64::from(entropy[t]);
                per_token += bonus;
                sums.loss_entropy += self.coefficient * bonus;
                out.dentropy[t] = (-self.coefficient * worth) as f32;
            }
            out.dlogp[t] = dlogp as f32;
            out.per_token[t] = per_token;
            out.correction[t] = self.correction[t];
            for (what, value) in [
                ("loss", per_token),
                ("derivative by log-probability", f64::from(out.dlogp[t])),
                ("derivative by entropy", out.dentropy.get(t).map_or(0.0, |d| f64::from(*d))),
            ] {
                if !value.is_finite() {
                    return Err(LossError::NotFinite { what, sequence, token: t, value });
                }
            }
        }
        Ok(out)
    }

    /// Adds a token to the metrics, whatever it weighs.
    fn watch(&self, t: usize, sums: &mut Sums) {
        let logp = f64::from(self.row.logp[t]);
        sums.n_tokens += 1;
        sums.logp += logp;
        sums.abs_advantage += f64::from(self.row.advantage[t]).abs();
        sums.dlogp_squares += self.term.dlogp[t] * self.term.dlogp[t];
        sums.correction += self.correction[t];
        sums.correction_squares += self.correction[t] * self.correction[t];
        match self.term.clip[t] {
            Clip::No => (),
            Clip::Low => sums.n_clipped_low += 1,
            Clip::High => sums.n_clipped_high += 1,
            Clip::Dual => sums.n_clipped_dual += 1,
        }
        if let Some(old) = self.row.logp_old {
            let log_ratio = logp - f64::from(old[t]);
            sums.n_ratio += 1;
            sums.ratio += exp(log_ratio);
            sums.log_ratio_max = sums.log_ratio_max.max(log_ratio.abs());
        }
        if let Some(sampler) = self.row.logp_sampler {
            let gap = logp - f64::from(sampler[t]);
            sums.n_sampler += 1;
            sums.mismatch += gap.abs();
            sums.mismatch_max = sums.mismatch_max.max(gap.abs());
            sums.mismatch_kl += exp_m1_minus(gap);
        }
        if let Some(reference) = self.row.logp_ref {
            let reference = f64::from(reference[t]);
            sums.n_ref += 1;
            sums.ref_k1 += Estimator::K1.value_and_slope(logp, reference).0;
            sums.ref_k3 += Estimator::K3.value_and_slope(logp, reference).0;
        }
        if let Some(entropy) = self.row.entropy {
            sums.n_entropy += 1;
            sums.entropy += f64::from(entropy[t]);
        }
    }
}
