//! The loss of one group, its exact derivatives and its metrics.
//!
//! T tokens · k tokens a place

use std::collections::BTreeSet;

use crate::exp::{exp, exp_m1_minus};
use crate::kl::Estimator;
use crate::term::{Clip, TermGroup, TermRow, View};
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
    /// Each token's whole loss before reduction: weight, correction, KL, entropy bonus and value loss included.
    pub per_token: Vec<f64>,
    /// Each token's correction.
    pub correction: Vec<f64>,
}

/// Evaluates a loss on the sequences of one group.
///
/// - Shapes: `rows` in canonical order; every list of a row `[T]`.
/// - Holds: no row outside this group is needed but through `totals`, which count the whole update batch once; a sum runs
///   over rows, then tokens, in order; derivatives do not depend on the order, up to the rounding of a sum over an episode
///   or a pair.
/// - Errors: [`LossError`] when a list is missing, has another length, or is not finite at a trained token, or when the
///   loss or a derivative is not finite.
pub fn evaluate(loss: &Loss, totals: &Totals, rows: &[Row<'_>]) -> Result<GroupLoss, LossError> {
    for (sequence, row) in rows.iter().enumerate() {
        row.check(sequence, loss)?;
    }
    check_totals(loss, totals, rows)?;
    let rule = loss.correction.rule();
    let correction = rule.weights(rows);
    let views = rows.iter().zip(&correction).map(|(row, correction)| View {
        row: *row,
        scale: scale(loss, totals, row, correction),
        anchor: rule.anchor(row),
    });
    let views: Vec<View<'_>> = views.collect();
    let needs = loss.term.rule().needs();
    let zeros = rows.iter().map(|row| TermRow::zeros(row, needs)).collect();
    let mut terms = TermGroup { rows: zeros, ..TermGroup::default() };
    loss.term.rule().group(&views, &mut terms);

    let mut sums = Sums { n_pairs: terms.pairs.n, n_pairs_right: terms.pairs.n_right, ..Sums::default() };
    sums.pair_margin = terms.pairs.margin;
    let mut out = Vec::with_capacity(rows.len());
    for (sequence, ((row, correction), term)) in rows.iter().zip(correction).zip(terms.rows).enumerate() {
        let mut own = Sums::default();
        let coefficient = loss.reduction.coefficient(totals, row.n_trained());
        out.push(Part { loss, row, coefficient, sequence }.finish(term, correction, &mut own)?);
        sums.merge(&own);
    }
    Ok(GroupLoss { rows: out, loss: sums.loss(), sums })
}

/// Refuses totals that were not counted over these rows: something would be divided by too little.
fn check_totals(loss: &Loss, totals: &Totals, rows: &[Row<'_>]) -> Result<(), LossError> {
    let needed = rows.iter().map(Row::n_trained).sum();
    if totals.n_tokens < needed || (needed > 0 && totals.n_sequences == 0) {
        return Err(LossError::Totals { got: totals.n_tokens, needed });
    }
    if loss.reduction.counts_pairs() {
        let paired = rows.iter().filter(|row| row.n_trained() > 0).filter_map(|row| row.pair);
        let needed = paired.map(|pair| pair.index).collect::<BTreeSet<_>>().len() as u64;
        if totals.n_pairs < needed {
            return Err(LossError::TotalPairs { got: totals.n_pairs, needed });
        }
    }
    Ok(())
}

/// What each token's term is multiplied with: coefficient · weight · correction, 0 where not trained.
fn scale(loss: &Loss, totals: &Totals, row: &Row<'_>, correction: &[f64]) -> Vec<f64> {
    let coefficient = loss.reduction.coefficient(totals, row.n_trained());
    let mut scale = vec![0.0; row.trained.len()];
    for t in row.trained_positions() {
        scale[t] = coefficient * multiplier(row.weight[t], correction[t]);
    }
    scale
}

/// Weight · correction. Selected rather than multiplied: a weight of 0 must silence a ratio that overflowed as well.
fn multiplier(weight: f32, correction: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { f64::from(weight) * correction }
}

/// One row, with what its tokens' losses are multiplied with.
struct Part<'a> {
    loss: &'a Loss,
    row: &'a Row<'a>,
    coefficient: f64,
    sequence: usize,
}

/// One token's whole loss and its derivatives, before they are rounded.
#[derive(Default)]
struct Token {
    loss: f64,
    dlogp: f64,
    dentropy: f64,
    dvalue: f64,
}

impl Part<'_> {
    fn finish(&self, mut term: TermRow, mut correction: Vec<f64>, sums: &mut Sums) -> Result<RowLoss, LossError> {
        let n = self.row.trained.len();
        let with_entropy = self.loss.needs_entropy();
        let with_value = self.loss.needs_value();
        let mut out = RowLoss {
            dlogp: vec![0.0; n],
            dentropy: vec![0.0; if with_entropy { n } else { 0 }],
            dvalue: vec![0.0; if with_value { n } else { 0 }],
            dtop: std::mem::take(&mut term.dtop),
            per_token: vec![0.0; n],
            correction: Vec::new(),
        };
        sums.n_sequences += u64::from(self.row.n_trained() > 0);
        for t in self.row.trained_positions() {
            self.watch(t, &term, correction[t], sums);
            let multiplier = multiplier(self.row.weight[t], correction[t]);
            let dvalue = term.dvalue.get(t).copied().unwrap_or(0.0);
            let mut token = Token { dlogp: term.dlogp[t], dvalue, ..Token::default() };
            // Selected again, so that it silences an infinite loss too.
            if multiplier != 0.0 {
                token.loss = multiplier * term.loss[t];
                sums.loss_term += self.coefficient * token.loss;
            } else {
                sums.n_silent += 1;
            }
            self.add_what_is_beside_the_term(t, multiplier, &mut token, sums);
            out.per_token[t] = token.loss;
            out.dlogp[t] = token.dlogp as f32;
            if with_entropy {
                out.dentropy[t] = token.dentropy as f32;
            }
            if with_value {
                out.dvalue[t] = token.dvalue as f32;
            }
            self.check(t, &out)?;
        }
        if self.row.n_trained() < n as u64 {
            for (weight, trained) in correction.iter_mut().zip(self.row.trained) {
                if !trained {
                    *weight = 0.0;
                }
            }
        }
        out.correction = correction;
        Ok(out)
    }

    /// Adds the pulls, the entropy bonus and the value loss of one token.
    fn add_what_is_beside_the_term(&self, t: usize, multiplier: f64, token: &mut Token, sums: &mut Sums) {
        let logp = f64::from(self.row.logp[t]);
        let weight = f64::from(self.row.weight[t]);
        if multiplier != 0.0 {
            let mut pull = |coefficient: f64, value: f64, slope: f64| {
                let value = multiplier * coefficient * value;
                token.loss += value;
                sums.loss_kl += self.coefficient * value;
                token.dlogp += self.coefficient * (multiplier * coefficient * slope);
            };
            if let (Some(kl), Some(reference)) = (self.loss.active_kl(), self.row.logp_ref) {
                let (value, slope) = kl.estimator.value_and_slope(logp, f64::from(reference[t]));
                pull(kl.coefficient, value, slope);
            }
            if let (Some(coefficients), Some(old)) = (self.row.pull, self.row.logp_old) {
                let (coefficient, moved) = (f64::from(coefficients[t]), logp - f64::from(old[t]));
                let side = if moved == 0.0 { 0.0 } else { moved.signum() };
                pull(coefficient, moved.abs(), side);
            }
        }
        if weight == 0.0 {
            return;
        }
        if let (true, Some(entropy)) = (self.loss.needs_entropy(), self.row.entropy) {
            let worth = weight * self.loss.entropy_coefficient;
            let bonus = -worth * f64::from(entropy[t]);
            token.loss += bonus;
            sums.loss_entropy += self.coefficient * bonus;
            token.dentropy = -self.coefficient * worth;
        }
        if let (Some(rule), Some(value), Some(target)) = (&self.loss.value, self.row.value, self.row.value_target) {
            let found = rule.at(f64::from(value[t]), f64::from(target.old[t]), f64::from(target.returns[t]));
            let loss = weight * found.loss;
            token.loss += loss;
            sums.loss_value += self.coefficient * loss;
            sums.n_value_clipped += u64::from(found.clipped);
            token.dvalue += self.coefficient * (weight * found.slope);
        }
    }

    /// Refuses what is not finite, naming the token.
    fn check(&self, t: usize, out: &RowLoss) -> Result<(), LossError> {
        let at = |list: &[f32]| list.get(t).map_or(0.0, |d| f64::from(*d));
        let k = out.dtop.len() / self.row.trained.len();
        let top = out.dtop[t * k..(t + 1) * k].iter().find(|d| !d.is_finite());
        for (what, value) in [
            ("loss", out.per_token[t]),
            ("derivative by log-probability", at(&out.dlogp)),
            ("derivative by entropy", at(&out.dentropy)),
            ("derivative by value", at(&out.dvalue)),
            ("derivative by a top log-probability", top.map_or(0.0, |d| f64::from(*d))),
        ] {
            if !value.is_finite() {
                return Err(LossError::NotFinite { what, sequence: self.sequence, token: t, value });
            }
        }
        Ok(())
    }

    /// Adds a token to the metrics, whatever it weighs.
    fn watch(&self, t: usize, term: &TermRow, correction: f64, sums: &mut Sums) {
        let logp = f64::from(self.row.logp[t]);
        sums.n_tokens += 1;
        sums.logp += logp;
        sums.abs_advantage += f64::from(self.row.advantage[t]).abs();
        sums.dlogp_squares += term.dlogp[t] * term.dlogp[t];
        sums.correction += correction;
        sums.correction_squares += correction * correction;
        match term.clip[t] {
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
            sums.mismatch_squares += gap * gap;
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
        if let (Some(value), Some(target)) = (self.row.value, self.row.value_target) {
            let returns = f64::from(target.returns[t]);
            let error = f64::from(value[t]) - returns;
            sums.n_value += 1;
            sums.value_error += error;
            sums.value_error_squares += error * error;
            sums.returns += returns;
            sums.returns_squares += returns * returns;
        }
    }
}
