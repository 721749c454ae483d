//! Corrections: what a token weighs when an older policy, or another engine, sampled it. One file each.
//!
//! A correction sees all rows of a group at once, so that one may look at a token, a sequence or a group. One that looks
//! at a whole step is chosen once, when the step begins, and arrives as weights in the signal. A sequence is a row, and
//! only its trained tokens are read.

use crate::error::setting;
use crate::{LossError, Row, StepRow};

table! {
    /// What a token sampled by an older policy weighs.
    Correction, rule CorrectionRule, tag "rule", in "correction", {
        "none" => none::Uncorrected,
        "token_tis" => token_tis::TokenTis,
        "sequence_tis" => sequence_tis::SequenceTis,
        "token_mask" => token_mask::TokenMask,
        "sequence_mask" => sequence_mask::SequenceMask,
        "geometric" => geometric::Geometric,
        "k2" => k2::K2,
        "k3" => k3::K3,
        "decoupled" => decoupled::Decoupled,
        "m2po" => m2po::M2po,
        "vespo" => vespo::Vespo,
    }
}

impl Default for Correction {
    fn default() -> Self {
        Correction::Uncorrected(Uncorrected {})
    }
}

/// What a correction is.
pub(crate) trait CorrectionRule {
    /// Checks every range.
    fn check(&self) -> Result<(), LossError> {
        Ok(())
    }

    /// Whether it reads log-probabilities under π_old and as recorded, which must then be two passes.
    fn needs_old(&self) -> bool {
        true
    }

    /// Whether it reads what the sampler recorded.
    fn needs_sampler(&self) -> bool {
        self.needs_old()
    }

    /// Whether it reads how many versions ago a token was sampled.
    fn reads_lag(&self) -> bool {
        false
    }

    /// The weight of each trained token, `[row][T]`; what it holds elsewhere is not read.
    fn weights(&self, rows: &[Row<'_>]) -> Vec<Vec<f64>>;

    /// What stands in π_old's place in the term, `[T]`; absent for π_old itself.
    fn anchor(&self, _row: &Row<'_>) -> Option<Vec<f64>> {
        None
    }

    /// Which tokens of a whole step are kept; absent where none is left out.
    fn select(&self, _rows: &[StepRow<'_>]) -> Option<Vec<Vec<bool>>> {
        None
    }
}

impl Correction {
    /// Whether π_old must come from a forward pass at the start of the step, since the rule compares it with what was
    /// recorded.
    pub fn needs_forward(&self) -> bool {
        self.rule().needs_old()
    }

    /// Whether it reads how many versions ago a token was sampled, and so does nothing where that is not known.
    pub fn reads_lag(&self) -> bool {
        self.rule().reads_lag()
    }

    /// Which tokens a rule that looks at a whole step keeps, `[row][T]`, chosen once as the step begins; absent for rules
    /// that choose none. The others are to weigh 0, and stay in the denominators.
    pub fn select(&self, rows: &[StepRow<'_>]) -> Option<Vec<Vec<bool>>> {
        self.rule().select(rows)
    }
}

/// Weighs each trained token by its own log(π_old/μ).
fn by_token(rows: &[Row<'_>], weight: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
    let weights = |row: &Row<'_>| {
        let mut weights = vec![0.0; row.trained.len()];
        if let (Some(old), Some(sampler)) = (row.logp_old, row.logp_sampler) {
            for t in row.trained_positions() {
                weights[t] = weight(f64::from(old[t]) - f64::from(sampler[t]));
            }
        }
        weights
    };
    rows.iter().map(weights).collect()
}

/// Σ over a sequence's trained tokens of something of log(π_old/μ), and how many there are; 0 of them where a list is
/// missing, which only a row without trained tokens may lack.
fn over_sequence(row: &Row<'_>, each: impl Fn(f64) -> f64) -> (f64, f64) {
    let (Some(old), Some(sampler)) = (row.logp_old, row.logp_sampler) else { return (0.0, 0.0) };
    let add = |(sum, n): (f64, f64), t: usize| (sum + each(f64::from(old[t]) - f64::from(sampler[t])), n + 1.0);
    row.trained_positions().fold((0.0, 0.0), add)
}

/// Gives all trained tokens of a sequence one weight, made of a sum over them and their number.
fn by_sequence(rows: &[Row<'_>], each: impl Fn(f64) -> f64, weight: impl Fn(f64, f64) -> f64) -> Vec<Vec<f64>> {
    let weights = |row: &Row<'_>| match over_sequence(row, &each) {
        (_, 0.0) => vec![0.0; row.trained.len()],
        (sum, n) => vec![weight(sum, n); row.trained.len()],
    };
    rows.iter().map(weights).collect()
}

/// A ratio inside its band, 0 outside.
fn within(ratio: f64, low: f64, high: f64) -> f64 {
    if (low..=high).contains(&ratio) { ratio } else { 0.0 }
}

fn check_cap(cap: f64) -> Result<(), LossError> {
    setting("correction.cap", cap, cap >= 1.0 && cap.is_finite(), "a finite number at least 1")
}

fn check_band(low: f64, high: f64) -> Result<(), LossError> {
    setting("correction.low", low, (0.0..=1.0).contains(&low), "a number from 0 to 1")?;
    setting("correction.high", high, high >= 1.0 && high.is_finite(), "a finite number at least 1")
}

fn check_tau(tau: f64) -> Result<(), LossError> {
    setting("correction.tau", tau, tau > 0.0 && tau.is_finite(), "a finite number above 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CASES C12: log-probabilities under π_old and μ, with ratios 1.64872, 1 and .22313.
    pub(super) const C12: ([f32; 3], [f32; 3]) = ([-1.0, -0.5, -2.0], [-1.5, -0.5, -0.5]);

    /// The weights of three trained tokens, with one between them that is not trained and holds NaN.
    pub(super) fn check(rule: &dyn CorrectionRule, (old, sampler): ([f32; 3], [f32; 3]), want: [f64; 3]) {
        let spread = |list: [f32; 3]| [list[0], f32::NAN, list[1], list[2]];
        let (old, sampler) = (spread(old), spread(sampler));
        let row = Row {
            logp_old: Some(&old),
            logp_sampler: Some(&sampler),
            ..Row::bare(&[true, false, true, true], &old, &[0.0; 4], &[1.0; 4])
        };
        let got = rule.weights(&[row]);
        for (got, want) in [got[0][0], got[0][2], got[0][3]].iter().zip(want) {
            assert!((got - want).abs() < 1e-7, "{got} {want}");
        }
    }

    #[test]
    fn only_rules_that_compare_two_passes_ask_for_one() {
        for name in Correction::NAMES {
            let correction: Correction = serde_json::from_str(&format!("{{\"rule\":\"{name}\"}}")).unwrap();
            assert_eq!(correction.needs_forward(), !["none", "decoupled"].contains(name), "{name}");
            assert_eq!(correction.rule().needs_sampler(), *name != "none", "{name}");
            assert_eq!(correction.select(&[]).is_some(), *name == "m2po", "{name}");
            correction.rule().check().unwrap();
        }
    }
}
