//! Terms: what is descended at each trained token. One file each.
//!
//! A term sees all rows of a group at once, so that one may look at a token, a sequence, an episode, a pair or a group.

use crate::error::setting;
use crate::exp::exp;
use crate::{LossError, Row};

table! {
    /// What is descended.
    Term, rule TermRule, tag "kind", in "term", {
        "policy_gradient" => policy_gradient::PolicyGradient,
        "reinforce" => reinforce::Reinforce,
        "nll" => nll::Nll,
        "gspo" => gspo::Gspo,
        "cispo" => cispo::Cispo,
        "sapo" => sapo::Sapo,
        "dro" => dro::Dro,
        "dpo" => dpo::Dpo,
        "oapl" => oapl::Oapl,
        "bradley_terry" => bradley_terry::BradleyTerry,
        "distill" => distill::Distill,
        "divergence" => divergence::Divergence,
    }
}

/// What a term is.
pub(crate) trait TermRule {
    /// Checks every range.
    fn check(&self) -> Result<(), LossError> {
        Ok(())
    }

    /// What it reads beside log-probabilities, advantages and weights.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Where it has a derivative.
    fn acts(&self) -> Acts {
        Acts::OnAdvantage
    }

    /// Fills in, for each live token, its loss, and the derivatives of Σ `scale` · loss.
    ///
    /// - Shapes: one entry a row in `out`, which starts at 0.
    /// - Holds: only live tokens are read, and only they get a loss or a derivative.
    fn group(&self, rows: &[View<'_>], out: &mut TermGroup);
}

/// Which lists a term reads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Log-probabilities under π_old.
    pub(crate) old: bool,
    /// Log-probabilities under μ.
    pub(crate) sampler: bool,
    /// Log-probabilities under the reference.
    pub(crate) reference: bool,
    /// The value head's estimates, of the state that has read a token.
    pub(crate) value: bool,
    /// The teacher's log-probabilities.
    pub(crate) teacher: bool,
    /// Log-probabilities of the student's most likely tokens, its own and the teacher's.
    pub(crate) top: bool,
}

/// Where a term has a derivative other than exactly 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acts {
    /// Where some advantage of the sequence is not 0.
    OnAdvantage,
    /// In sequences that belong to a pair.
    OnPair,
    /// Everywhere.
    Everywhere,
}

/// A row with what its tokens' terms are multiplied with.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) row: Row<'a>,
    /// Coefficient · weight · correction, 0 where not trained. A token is live where it is not 0.
    pub(crate) scale: Vec<f64>,
    /// Log-probabilities that the correction puts in π_old's place.
    pub(crate) anchor: Option<Vec<f64>>,
}

impl<'a> View<'a> {
    /// Positions of the live tokens, in order.
    pub(crate) fn live(&self) -> impl DoubleEndedIterator<Item = usize> + use<'_, 'a> {
        self.scale.iter().enumerate().filter(|(_, scale)| **scale != 0.0).map(|(t, _)| t)
    }

    pub(crate) fn logp(&self, t: usize) -> f64 {
        f64::from(self.row.logp[t])
    }

    pub(crate) fn advantage(&self, t: usize) -> f64 {
        f64::from(self.row.advantage[t])
    }

    /// log π − log π_old, or what the correction puts in its place.
    pub(crate) fn log_ratio(&self, t: usize) -> f64 {
        match &self.anchor {
            Some(anchor) => self.logp(t) - anchor[t],
            None => self.logp(t) - given(self.row.logp_old, t),
        }
    }

    /// π/π_old, exactly 1 when the two log-probabilities are equal.
    pub(crate) fn ratio(&self, t: usize) -> f64 {
        exp(self.log_ratio(t))
    }

    /// log π − log μ.
    pub(crate) fn since_sampled(&self, t: usize) -> f64 {
        self.logp(t) - given(self.row.logp_sampler, t)
    }

    /// log π − log ref.
    pub(crate) fn since_reference(&self, t: usize) -> f64 {
        self.logp(t) - given(self.row.logp_ref, t)
    }
}

fn given(list: Option<&[f32]>, t: usize) -> f64 {
    f64::from(list.expect("a term declares which lists it reads, and they were checked")[t])
}

/// What a term makes of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct TermGroup {
    /// One entry a row.
    pub(crate) rows: Vec<TermRow>,
    /// What became of the pairs, for the metrics.
    pub(crate) pairs: Pairs,
}

/// What a term makes of one row, `[T]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TermRow {
    /// Each token's loss, before weight, correction and reduction.
    pub(crate) loss: Vec<f64>,
    /// Derivative of the reduced term by each token's log-probability.
    pub(crate) dlogp: Vec<f64>,
    /// The same by the value head's estimates; empty unless the term reads them.
    pub(crate) dvalue: Vec<f64>,
    /// The same by the log-probabilities of the teacher's `top` tokens, `[T · k]`, rounded; empty unless the term reads
    /// them.
    pub(crate) dtop: Vec<f32>,
    /// Where a bound decided the loss.
    pub(crate) clip: Vec<Clip>,
}

impl TermRow {
    pub(crate) fn zeros(row: &Row<'_>, needs: Needs) -> Self {
        let n = row.trained.len();
        let k = if needs.top { row.top.map_or(0, |top| top.k) } else { 0 };
        TermRow {
            loss: vec![0.0; n],
            dlogp: vec![0.0; n],
            dvalue: vec![0.0; if needs.value { n } else { 0 }],
            dtop: vec![0.0; n * k],
            clip: vec![Clip::No; n],
        }
    }
}

/// How well pairs are told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pairs {
    /// Pairs with a live token on both sides.
    pub(crate) n: u64,
    /// Those in which the chosen side is ahead.
    pub(crate) n_right: u64,
    /// Σ of by how much.
    pub(crate) margin: f64,
}

impl Pairs {
    pub(crate) fn add(&mut self, margin: f64) {
        self.n += 1;
        self.n_right += u64::from(margin > 0.0);
        self.margin += margin;
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

impl TokenTerm {
    pub(crate) fn unclipped(loss: f64, slope: f64) -> Self {
        TokenTerm { loss, slope, clip: Clip::No }
    }

    /// Exactly nothing, which keeps 0 · ∞ out where an advantage of 0 meets a ratio that overflowed.
    pub(crate) const NOTHING: TokenTerm = TokenTerm { loss: 0.0, slope: 0.0, clip: Clip::No };
}

/// Runs a term that looks at one token at a time.
pub(crate) fn each_token(rows: &[View<'_>], out: &mut TermGroup, token: impl Fn(&View<'_>, usize) -> TokenTerm) {
    for (row, out) in rows.iter().zip(&mut out.rows) {
        for t in row.live() {
            let value = token(row, t);
            out.loss[t] = value.loss;
            out.dlogp[t] = row.scale[t] * value.slope;
            out.clip[t] = value.clip;
        }
    }
}

/// Checks bounds on a ratio.
pub(crate) fn check_bounds(ratio_min: f64, ratio_max: f64) -> Result<(), LossError> {
    setting("ratio_min", ratio_min, (0.0..=1.0).contains(&ratio_min), "a number from 0 to 1")?;
    setting("ratio_max", ratio_max, ratio_max >= 1.0 && ratio_max.is_finite(), "a finite number at least 1")
}

/// Checks something that must be finite and above 0.
pub(crate) fn check_positive(key: &'static str, value: f64) -> Result<(), LossError> {
    setting(key, value, value > 0.0 && value.is_finite(), "a finite number above 0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pair, Teacher, Top};

    /// One sequence; `other` stands for π_old, μ and the reference alike, every token is worth `advantage` and counts 1.
    #[derive(Clone, Default)]
    pub(super) struct Given {
        pub(super) logp: Vec<f32>,
        pub(super) other: Vec<f32>,
        pub(super) advantage: f32,
        pub(super) value: Vec<f32>,
        pub(super) episode: u32,
        pub(super) pair: Option<Pair>,
        pub(super) teacher: Teacher,
        pub(super) top: Option<Top>,
    }

    pub(super) fn given(logp: &[f32], other: &[f32], advantage: f32) -> Given {
        Given { logp: logp.to_vec(), other: other.to_vec(), advantage, ..Given::default() }
    }

    impl Given {
        pub(super) fn of_pair(self, index: u32, chosen: bool) -> Self {
            Given { pair: Some(Pair { index, chosen }), ..self }
        }
    }

    /// What a term makes of some sequences.
    pub(super) fn run_all(rule: &dyn TermRule, all: &[Given]) -> TermGroup {
        rule.check().unwrap();
        let longest = all.iter().map(|g| g.logp.len()).max().unwrap_or(0);
        let (trained, weight) = (vec![true; longest], vec![1.0; longest]);
        let advantages: Vec<Vec<f32>> = all.iter().map(|g| vec![g.advantage; g.logp.len()]).collect();
        let mut rows = Vec::new();
        for (g, advantage) in all.iter().zip(&advantages) {
            let n = advantage.len();
            let row = Row {
                logp_old: Some(&g.other),
                logp_sampler: Some(&g.other),
                logp_ref: Some(&g.other),
                value: Some(&g.value),
                episode: g.episode,
                pair: g.pair,
                teacher: Some(&g.teacher),
                top: g.top.as_ref(),
                ..Row::bare(&trained[..n], &g.logp, advantage, &weight[..n])
            };
            rows.push(View { row, scale: vec![1.0; n], anchor: None });
        }
        let zeros = rows.iter().map(|view| TermRow::zeros(&view.row, rule.needs())).collect();
        let mut out = TermGroup { rows: zeros, ..TermGroup::default() };
        rule.group(&rows, &mut out);
        out
    }

    /// What a term makes of one sequence.
    pub(super) fn run(rule: &dyn TermRule, one: &Given) -> TermRow {
        run_all(rule, std::slice::from_ref(one)).rows.remove(0)
    }

    pub(super) fn near(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-12 * (1.0 + want.abs()), "{got}, wanted {want}");
    }
}
