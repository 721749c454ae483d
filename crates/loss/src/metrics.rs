//! Metrics as sums that can be merged, so that a mean never depends on how a batch was cut.

use serde::{Deserialize, Serialize};

/// Sums over trained tokens, from which [`Metrics`] are made once everything is merged.
///
/// A mean has its own counter wherever a row may lack what it is taken over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// Trained tokens.
    pub n_tokens: u64,
    /// Sequences with at least one trained token.
    pub n_sequences: u64,
    /// The term's share of the loss, after reduction.
    pub loss_term: f64,
    /// The KL's share of the loss, after reduction, the pull towards π_old of a selection included.
    pub loss_kl: f64,
    /// The entropy bonus's share of the loss, after reduction; at most 0.
    pub loss_entropy: f64,
    /// The value loss's share of the loss, after reduction.
    pub loss_value: f64,
    /// Tokens left out, by a weight or a correction of 0.
    pub n_silent: u64,
    /// Σ log π.
    pub logp: f64,
    /// Σ |A|.
    pub abs_advantage: f64,
    /// Σ (∂ term / ∂ log π)², after reduction.
    pub dlogp_squares: f64,
    /// Tokens with π_old.
    pub n_ratio: u64,
    /// Σ π/π_old.
    pub ratio: f64,
    /// The largest |log π − log π_old|.
    pub log_ratio_max: f64,
    /// Tokens whose loss the lower bound decided.
    pub n_clipped_low: u64,
    /// Tokens whose loss the upper bound decided.
    pub n_clipped_high: u64,
    /// Tokens whose loss the dual clip decided.
    pub n_clipped_dual: u64,
    /// Tokens with a recorded log-probability.
    pub n_sampler: u64,
    /// Σ |log π − log μ|.
    pub mismatch: f64,
    /// The largest |log π − log μ|.
    pub mismatch_max: f64,
    /// Σ of the k3 estimate of KL(μ‖π).
    pub mismatch_kl: f64,
    /// Σ (log π − log μ)².
    pub mismatch_squares: f64,
    /// Σ w, the correction's weights.
    pub correction: f64,
    /// Σ w².
    pub correction_squares: f64,
    /// Tokens with a reference.
    pub n_ref: u64,
    /// Σ k1 to the reference.
    pub ref_k1: f64,
    /// Σ k3 to the reference.
    pub ref_k3: f64,
    /// Tokens with an entropy.
    pub n_entropy: u64,
    /// Σ H.
    pub entropy: f64,
    /// Tokens with an estimate of the value head and what it should have been.
    pub n_value: u64,
    /// Tokens whose value loss the bound decided.
    pub n_value_clipped: u64,
    /// Σ (V − R).
    pub value_error: f64,
    /// Σ (V − R)².
    pub value_error_squares: f64,
    /// Σ R.
    pub returns: f64,
    /// Σ R².
    pub returns_squares: f64,
    /// Pairs with a token that counts on both sides.
    pub n_pairs: u64,
    /// Pairs in which the chosen side is ahead.
    pub n_pairs_right: u64,
    /// Σ of by how much.
    pub pair_margin: f64,
}

impl Sums {
    /// Adds what another part of the batch summed up.
    ///
    /// - Holds: counters add exactly; sums add in the order of the calls, which is the canonical order of groups.
    pub fn merge(&mut self, other: &Sums) {
        self.n_tokens += other.n_tokens;
        self.n_sequences += other.n_sequences;
        self.loss_term += other.loss_term;
        self.loss_kl += other.loss_kl;
        self.loss_entropy += other.loss_entropy;
        self.loss_value += other.loss_value;
        self.n_silent += other.n_silent;
        self.logp += other.logp;
        self.abs_advantage += other.abs_advantage;
        self.dlogp_squares += other.dlogp_squares;
        self.n_ratio += other.n_ratio;
        self.ratio += other.ratio;
        self.log_ratio_max = self.log_ratio_max.max(other.log_ratio_max);
        self.n_clipped_low += other.n_clipped_low;
        self.n_clipped_high += other.n_clipped_high;
        self.n_clipped_dual += other.n_clipped_dual;
        self.n_sampler += other.n_sampler;
        self.mismatch += other.mismatch;
        self.mismatch_max = self.mismatch_max.max(other.mismatch_max);
        self.mismatch_kl += other.mismatch_kl;
        self.mismatch_squares += other.mismatch_squares;
        self.correction += other.correction;
        self.correction_squares += other.correction_squares;
        self.n_ref += other.n_ref;
        self.ref_k1 += other.ref_k1;
        self.ref_k3 += other.ref_k3;
        self.n_entropy += other.n_entropy;
        self.entropy += other.entropy;
        self.n_value += other.n_value;
        self.n_value_clipped += other.n_value_clipped;
        self.value_error += other.value_error;
        self.value_error_squares += other.value_error_squares;
        self.returns += other.returns;
        self.returns_squares += other.returns_squares;
        self.n_pairs += other.n_pairs;
        self.n_pairs_right += other.n_pairs_right;
        self.pair_margin += other.pair_margin;
    }

    /// The loss: term, KL, entropy bonus and value loss together.
    pub fn loss(&self) -> f64 {
        self.loss_term + self.loss_kl + self.loss_entropy + self.loss_value
    }

    /// 1 − Var(R − V) / Var(R), absent where no value was computed or the returns are all equal.
    fn explained_variance(&self) -> Option<f64> {
        let n = self.n_value as f64;
        let spread = |sum: f64, squares: f64| (squares - sum * sum / n).max(0.0);
        let returns = spread(self.returns, self.returns_squares);
        // What is left of equal returns is rounding, and a share of it would mean nothing.
        let noise = 1e-12 * self.returns_squares;
        let some = self.n_value > 0 && returns > noise;
        some.then(|| 1.0 - spread(self.value_error, self.value_error_squares) / returns)
    }

    /// The means.
    pub fn metrics(&self) -> Metrics {
        let mean = |sum: f64, n: u64| (n > 0).then(|| sum / n as f64);
        let share = |n: u64| mean(n as f64, self.n_tokens);
        let squares = self.n_tokens as f64 * self.correction_squares;
        Metrics {
            n_tokens: self.n_tokens,
            n_sequences: self.n_sequences,
            loss: self.loss(),
            loss_term: self.loss_term,
            loss_kl: self.loss_kl,
            loss_entropy: self.loss_entropy,
            loss_value: self.loss_value,
            dlogp_norm: self.dlogp_squares.sqrt(),
            abs_advantage: mean(self.abs_advantage, self.n_tokens),
            logp: mean(self.logp, self.n_tokens),
            entropy: mean(self.entropy, self.n_entropy),
            ratio: mean(self.ratio, self.n_ratio),
            log_ratio_max: (self.n_ratio > 0).then_some(self.log_ratio_max),
            clip_share: share(self.n_clipped_low + self.n_clipped_high + self.n_clipped_dual),
            clip_low_share: share(self.n_clipped_low),
            clip_high_share: share(self.n_clipped_high),
            clip_dual_share: share(self.n_clipped_dual),
            mismatch: mean(self.mismatch, self.n_sampler),
            mismatch_max: (self.n_sampler > 0).then_some(self.mismatch_max),
            mismatch_kl: mean(self.mismatch_kl, self.n_sampler),
            mismatch_m2: mean(self.mismatch_squares, self.n_sampler),
            correction: mean(self.correction, self.n_tokens),
            silent_share: share(self.n_silent),
            ess: (squares > 0.0).then(|| self.correction * self.correction / squares),
            ref_kl: mean(self.ref_k3, self.n_ref),
            ref_k1: mean(self.ref_k1, self.n_ref),
            explained_variance: self.explained_variance(),
            value_clip_share: mean(self.n_value_clipped as f64, self.n_value),
            pair_accuracy: mean(self.n_pairs_right as f64, self.n_pairs),
            pair_margin: mean(self.pair_margin, self.n_pairs),
        }
    }
}

/// What an update looked like, as means over trained tokens; absent where there was nothing to take a mean over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Trained tokens that were computed.
    pub n_tokens: u64,
    /// Sequences that were computed.
    pub n_sequences: u64,
    /// The loss. Near 0 for centred advantages at a ratio of 1, however much is learned: watch `dlogp_norm`.
    pub loss: f64,
    /// The term's share of it.
    pub loss_term: f64,
    /// The KL's share of it, the pull towards π_old of a selection included.
    pub loss_kl: f64,
    /// The entropy bonus's share of it, at most 0.
    pub loss_entropy: f64,
    /// The value loss's share of it.
    pub loss_value: f64,
    /// Norm over tokens of ∂ term / ∂ log π: how hard the term pushes; 0 only when it teaches nothing.
    pub dlogp_norm: f64,
    /// Mean |A|: how much the tokens are worth; 0 when no group has a spread.
    #[serde(rename = "advantage_abs_mean")]
    pub abs_advantage: Option<f64>,
    /// Mean log π of the trained tokens.
    #[serde(rename = "logp_mean")]
    pub logp: Option<f64>,
    /// Mean entropy of π; falling fast means collapsing.
    pub entropy: Option<f64>,
    /// Mean π/π_old; exactly 1 on the first on-policy update.
    #[serde(rename = "ratio_mean")]
    pub ratio: Option<f64>,
    /// The largest |log π − log π_old|.
    pub log_ratio_max: Option<f64>,
    /// Share of tokens that a bound left alone.
    pub clip_share: Option<f64>,
    /// The lower bound's part of it.
    pub clip_low_share: Option<f64>,
    /// The upper bound's part of it.
    pub clip_high_share: Option<f64>,
    /// The dual clip's part of it.
    pub clip_dual_share: Option<f64>,
    /// Mean |log π − log μ| between trainer and sampler; exactly 0 for equal weights.
    #[serde(rename = "logp_gap_mean")]
    pub mismatch: Option<f64>,
    /// The largest of them.
    #[serde(rename = "logp_gap_max")]
    pub mismatch_max: Option<f64>,
    /// KL(μ‖π) between sampler and trainer, by k3; exactly 0 for equal weights.
    #[serde(rename = "kl_mismatch")]
    pub mismatch_kl: Option<f64>,
    /// Mean (log π − log μ)², the second moment that `m2po` bounds; half of it is the k2 estimate of KL(μ‖π).
    pub mismatch_m2: Option<f64>,
    /// Mean weight of the correction.
    #[serde(rename = "correction_mean")]
    pub correction: Option<f64>,
    /// Share of tokens left out, by the correction, a selection or a weight of 0; they stay in the denominator.
    pub silent_share: Option<f64>,
    /// Effective sample size of the correction, (Σw)² / (n Σw²), from 0 to 1.
    pub ess: Option<f64>,
    /// KL(π‖ref) by k3.
    #[serde(rename = "kl_ref")]
    pub ref_kl: Option<f64>,
    /// KL(π‖ref) by k1.
    #[serde(rename = "kl_ref_k1")]
    pub ref_k1: Option<f64>,
    /// How much of the returns' variance the value head explains: 1 for all, 0 for no more than their mean would.
    pub explained_variance: Option<f64>,
    /// Share of tokens whose value moved past its bound.
    pub value_clip_share: Option<f64>,
    /// Share of pairs in which the chosen side is ahead.
    pub pair_accuracy: Option<f64>,
    /// Mean of by how much: of implied rewards for a preference, of scores for a reward model.
    pub pair_margin: Option<f64>,
}
