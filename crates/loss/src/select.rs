//! Selections: which tokens of a step learn, chosen once as the step begins. One file each.
//!
//! Pure functions over all rows of a step. What a selection leaves out weighs 0 and stays in the denominators.

use crate::LossError;
use crate::row::{Check, positions};

table! {
    /// Which tokens of a step learn.
    Select, rule SelectRule, tag "rule", in "select", {
        "none" => none::Unselected,
        "top_entropy" => top_entropy::TopEntropy,
        "clip_cov" => clip_cov::ClipCov,
        "kl_cov" => kl_cov::KlCov,
    }
}

impl Default for Select {
    fn default() -> Self {
        Select::Unselected(Unselected {})
    }
}

/// One sequence of a step, as the policy saw it when the step began; only its trained positions are read.
///
/// - Shapes: every list `[T]`.
/// - Units: log-probabilities and entropy in nats.
#[derive(Debug, Clone, Copy)]
pub struct StepRow<'a> {
    /// Which tokens are trained.
    pub trained: &'a [bool],
    /// Under π_old.
    pub logp: &'a [f32],
    /// Under μ, as the sampler recorded it; absent when the tokens were given.
    pub logp_sampler: Option<&'a [f32]>,
    /// Entropy of π_old where each token was drawn.
    pub entropy: Option<&'a [f32]>,
    /// What each token is worth.
    pub advantage: &'a [f32],
}

impl<'a> StepRow<'a> {
    /// A row with nothing but what every selection may read.
    pub fn bare(trained: &'a [bool], logp: &'a [f32], advantage: &'a [f32]) -> Self {
        StepRow { trained, logp, logp_sampler: None, entropy: None, advantage }
    }
}

/// What was chosen, `[row][T]`; what it holds at tokens that are not trained means nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chosen {
    /// Which tokens learn; absent for all.
    pub keep: Option<Vec<Vec<bool>>>,
    /// How much |log π − log π_old| adds to each token's loss; absent for nothing.
    pub pull: Option<Vec<Vec<f32>>>,
}

/// What a selection is.
pub(crate) trait SelectRule {
    /// Checks every range.
    fn check(&self) -> Result<(), LossError> {
        Ok(())
    }

    /// Whether it reads the entropy of π_old.
    fn needs_entropy(&self) -> bool {
        false
    }

    /// Chooses among the trained tokens of a step.
    fn choose(&self, rows: &[StepRow<'_>], seed: u64) -> Result<Chosen, LossError>;
}

impl Select {
    /// Checks every range.
    ///
    /// - Errors: [`LossError::Setting`] naming the setting, what is needed and what was given.
    pub fn check(&self) -> Result<(), LossError> {
        self.rule().check()
    }

    /// Whether anything is chosen at all.
    pub fn is_active(&self) -> bool {
        !matches!(self, Select::Unselected(_))
    }

    /// Whether the rows must bring the entropy of π_old.
    pub fn needs_entropy(&self) -> bool {
        self.rule().needs_entropy()
    }

    /// Chooses among the trained tokens of a step, with what chance there is taken from `seed` alone.
    ///
    /// - Errors: [`LossError`] when a list is missing, has another length, or is not finite at a trained token.
    pub fn choose(&self, rows: &[StepRow<'_>], seed: u64) -> Result<Chosen, LossError> {
        self.rule().choose(rows, seed)
    }
}

/// A trained token: its row and its position there.
type Place = (usize, usize);
/// A list of a row, with its name.
type List = (&'static str, for<'a> fn(&StepRow<'a>) -> Option<&'a [f32]>);

/// The trained tokens of a step, after checking that some lists are there, have one length, and are finite at them.
fn checked_positions(rows: &[StepRow<'_>], lists: &[List]) -> Result<Vec<Place>, LossError> {
    let mut places = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let check = Check { trained: row.trained, sequence: place, any: row.trained.contains(&true) };
        for (name, list) in lists {
            check.list(name, list(row), true)?;
        }
        places.extend(positions(row.trained).map(|t| (place, t)));
    }
    Ok(places)
}

/// (A − Ā)(log π_old − mean) of each trained token, means over all of them.
fn covariances(rows: &[StepRow<'_>]) -> Result<Vec<(f64, Place)>, LossError> {
    let lists: [List; 2] = [("advantage", |row| Some(row.advantage)), ("logp_old", |row| Some(row.logp))];
    let places = checked_positions(rows, &lists)?;
    let n = places.len() as f64;
    let advantage = |(row, t): Place| f64::from(rows[row].advantage[t]);
    let logp = |(row, t): Place| f64::from(rows[row].logp[t]);
    let mean = |of: &dyn Fn(Place) -> f64| places.iter().map(|place| of(*place)).sum::<f64>() / n;
    let (mean_advantage, mean_logp) = (mean(&advantage), mean(&logp));
    let cov = |place: &Place| ((advantage(*place) - mean_advantage) * (logp(*place) - mean_logp), *place);
    Ok(places.iter().map(cov).collect())
}

/// How many of n tokens a share is, at least one, as the published selections by covariance have it.
fn share_of(share: f64, n: usize) -> usize {
    ((share * n as f64) as usize).max(1)
}

/// Marks some places of all.
fn mark(rows: &[StepRow<'_>], places: impl Iterator<Item = Place>, kept: bool) -> Vec<Vec<bool>> {
    let mut marks: Vec<Vec<bool>> = rows.iter().map(|row| vec![!kept; row.trained.len()]).collect();
    places.for_each(|(row, t)| marks[row][t] = kept);
    marks
}

/// A number that depends on nothing but seed and counter.
///
/// Source: the finaliser of SplitMix64, G. L. Steele et al., "Fast splittable pseudorandom number generators", 2014.
fn chance(seed: u64, counter: u64) -> u64 {
    let step = |x: u64| {
        let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    step(step(seed) ^ counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selection_parses_with_the_published_settings() {
        for name in Select::NAMES {
            let select: Select = serde_json::from_str(&format!("{{\"rule\":\"{name}\"}}")).unwrap();
            select.check().unwrap();
            assert_eq!(select.is_active(), *name != "none");
            assert_eq!(select.needs_entropy(), *name == "top_entropy");
        }
        assert_eq!(Select::default().choose(&[], 0), Ok(Chosen::default()));
    }

    #[test]
    fn settings_outside_their_range_are_named() {
        let message = |text: &str| serde_json::from_str::<Select>(text).unwrap().check().unwrap_err().to_string();
        let share = message("{\"rule\":\"top_entropy\",\"share\":0}");
        assert_eq!(share, "`share` is 0, needed a number above 0, at most 1");
        let band = message("{\"rule\":\"clip_cov\",\"low\":5}");
        assert_eq!(band, "`high` is 5, needed a finite number above `low`");
        let pull = message("{\"rule\":\"kl_cov\",\"coefficient\":-1}");
        assert_eq!(pull, "`coefficient` is -1, needed a finite number above 0");
    }

    #[test]
    fn what_is_not_finite_at_a_trained_token_is_refused() {
        let row = StepRow::bare(&[false, true], &[f32::NAN, -1.0], &[f32::NAN, f32::INFINITY]);
        let got = Select::KlCov(KlCov { share: 0.5, coefficient: 1.0 }).choose(&[row], 0).unwrap_err().to_string();
        assert_eq!(got, "advantage is inf at token 1 of sequence 0, needed a finite number");
    }
}
