//! The optimiser's settings, and its learning rate by update.

use policy::AdamStep;
use serde::{Deserialize, Serialize};

use crate::RunError;

/// How the weights move: AdamW, with a warm-up and a schedule counted in updates, not in steps or tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimiser {
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled decay of matrices, times the learning rate.
    pub weight_decay: f64,
    /// The gradient's global norm is scaled down to this.
    pub clip_norm: f64,
    /// Updates over which the learning rate rises to its highest.
    pub warmup_updates: u64,
    /// What it does then.
    pub schedule: Schedule,
    /// Updates over which it falls, the warm-up included; the whole run when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_updates: Option<u64>,
    /// Where a falling rate ends, as a share of the highest.
    pub final_share: f64,
}

/// What the learning rate does after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// It stays.
    Constant,
    /// It falls in a straight line.
    Linear,
    /// It falls along half a cosine.
    Cosine,
}

impl Default for Optimiser {
    fn default() -> Self {
        Optimiser {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
            warmup_updates: 0,
            schedule: Schedule::Constant,
            decay_updates: None,
            final_share: 0.0,
        }
    }
}

impl Optimiser {
    pub(crate) fn check(&self) -> Result<(), RunError> {
        let range = |key: &str, got: f64, ok: bool, needed: &str| {
            let text = format!("`optimiser.{key}` is {got}, needed {needed}");
            if ok { Ok(()) } else { Err(RunError::Settings(text)) }
        };
        let share = |v: f64| (0.0..1.0).contains(&v);
        range(
            "learning_rate",
            self.learning_rate,
            self.learning_rate > 0.0 && self.learning_rate <= 1.0,
            "above 0, at most 1",
        )?;
        range("beta1", self.beta1, share(self.beta1), "at least 0 and below 1")?;
        range("beta2", self.beta2, share(self.beta2), "at least 0 and below 1")?;
        range("epsilon", self.epsilon, self.epsilon > 0.0 && self.epsilon < 1.0, "above 0 and below 1")?;
        range("weight_decay", self.weight_decay, (0.0..=10.0).contains(&self.weight_decay), "0 to 10")?;
        range("clip_norm", self.clip_norm, self.clip_norm > 0.0, "above 0")?;
        range("final_share", self.final_share, (0.0..=1.0).contains(&self.final_share), "0 to 1")?;
        if self.schedule == Schedule::Constant && (self.decay_updates.is_some() || self.final_share != 0.0) {
            let text = "`optimiser.decay_updates` and `final_share` would be ignored with a constant schedule";
            return Err(RunError::Settings(text.to_owned()));
        }
        Ok(())
    }

    /// The move of update `index`, from 0, in a run of `planned` updates.
    ///
    /// - Holds: in a warm-up of n the first update has 1/n of the highest rate and the n-th all of it.
    pub fn step(&self, index: u64, planned: u64) -> AdamStep {
        let total = self.decay_updates.unwrap_or(planned).max(1);
        let warm = self.warmup_updates;
        let share = if index < warm {
            (index + 1) as f64 / warm as f64
        } else {
            let span = total.saturating_sub(warm).max(1) as f64;
            let done = ((index - warm) as f64 / span).min(1.0);
            let left = match self.schedule {
                Schedule::Constant => 1.0,
                Schedule::Linear => 1.0 - done,
                Schedule::Cosine => 0.5 * (1.0 + tensor::math::sin_cos(std::f64::consts::PI * done).1),
            };
            if self.schedule == Schedule::Constant { 1.0 } else { self.final_share + (1.0 - self.final_share) * left }
        };
        AdamStep {
            learning_rate: self.learning_rate * share,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            clip_norm: self.clip_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(o: &Optimiser, n: u64) -> Vec<f64> {
        (0..n).map(|i| o.step(i, n).learning_rate).collect()
    }

    #[test]
    fn a_warm_up_rises_in_equal_steps_and_a_constant_rate_stays() {
        let o = Optimiser { learning_rate: 4.0, warmup_updates: 4, ..Optimiser::default() };
        assert_eq!(rates(&o, 6), [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn a_falling_rate_ends_at_its_share() {
        let o = Optimiser { learning_rate: 1.0, schedule: Schedule::Linear, final_share: 0.5, ..Optimiser::default() };
        assert_eq!(rates(&o, 4), [1.0, 0.875, 0.75, 0.625]);
        let o = Optimiser { schedule: Schedule::Cosine, final_share: 0.0, ..o };
        let got = rates(&o, 4);
        // Half a cosine: 1, (1 + √½)/2, ½, (1 − √½)/2.
        for (got, want) in got.iter().zip([1.0, 0.853_553_390_593, 0.5, 0.146_446_609_407]) {
            assert!((got - want).abs() < 1e-12, "{got}");
        }
    }
}
