//! Sequences with everything that any loss reads, and every loss there is.

use surefoot_loss::{
    BradleyTerry, Cispo, Correction, Decoupled, Distill, Divergence, Dpo, Dro, Estimator, Geometric, GroupLoss, Gspo,
    K2, K3, Kl, Loss, M2po, Nll, Oapl, Pair, PolicyGradient, Reduction, Reinforce, Row, Sapo, SequenceMask,
    SequenceTis, Teacher, Term, TokenMask, TokenTis, Top, Totals, Uncorrected, ValueLoss, ValueTarget, Vespo, evaluate,
};

/// Log-probabilities are multiples of this, so that their differences are exact.
const STEP: f32 = 1.0 / 4096.0;
/// Tokens a place.
pub(crate) const K: usize = 3;

/// A sequence that owns its lists.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lists {
    pub(crate) trained: Vec<bool>,
    pub(crate) logp: Vec<f32>,
    pub(crate) old: Vec<f32>,
    pub(crate) sampler: Vec<f32>,
    pub(crate) reference: Vec<f32>,
    pub(crate) entropy: Vec<f32>,
    pub(crate) advantage: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) lag: Vec<u32>,
    pub(crate) value: Vec<f32>,
    pub(crate) target: ValueTarget,
    pub(crate) teacher: Teacher,
    pub(crate) top: Top,
    pub(crate) pull: Vec<f32>,
    pub(crate) episode: u32,
    pub(crate) pair: Option<Pair>,
}

impl Lists {
    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            logp_old: Some(&self.old),
            logp_sampler: Some(&self.sampler),
            logp_ref: Some(&self.reference),
            entropy: Some(&self.entropy),
            lag: Some(&self.lag),
            value: Some(&self.value),
            value_target: Some(&self.target),
            top: Some(&self.top),
            teacher: Some(&self.teacher),
            episode: self.episode,
            pair: self.pair,
            pull: Some(&self.pull),
            ..Row::bare(&self.trained, &self.logp, &self.advantage, &self.weight)
        }
    }

    pub(crate) fn teacher_top(&self) -> &Top {
        self.teacher.top.as_ref().expect("every sequence of these tests has a teacher")
    }

    /// Every list of numbers, with its name in messages and how many entries it has a token.
    pub(crate) fn floats(&mut self) -> [(&'static str, usize, &mut Vec<f32>); 14] {
        let teacher_top = self.teacher.top.as_mut().expect("every sequence of these tests has a teacher");
        [
            ("logp", 1, &mut self.logp),
            ("logp_old", 1, &mut self.old),
            ("logp_sampler", 1, &mut self.sampler),
            ("logp_ref", 1, &mut self.reference),
            ("entropy", 1, &mut self.entropy),
            ("advantage", 1, &mut self.advantage),
            ("weight", 1, &mut self.weight),
            ("value", 1, &mut self.value),
            ("value_old", 1, &mut self.target.old),
            ("returns", 1, &mut self.target.returns),
            ("logp_teacher", 1, &mut self.teacher.logp),
            ("pull", 1, &mut self.pull),
            ("top", K, &mut self.top.logp),
            ("top_teacher", K, &mut teacher_top.logp),
        ]
    }

    /// Every list of whole numbers, with how many entries it has a token.
    pub(crate) fn wholes(&mut self) -> [(usize, &mut Vec<u32>); 3] {
        let teacher_top = self.teacher.top.as_mut().expect("every sequence of these tests has a teacher");
        [(1, &mut self.lag), (K, &mut self.top.ids), (K, &mut teacher_top.ids)]
    }
}

/// Two groups: episodes of one and of two sequences, pairs, half a pair, sequences that nothing trains or that weigh
/// nothing, tokens that weigh nothing, and ratios on both sides of every bound.
pub(crate) fn groups() -> Vec<Vec<Lists>> {
    let pair = |index, chosen| Some(Pair { index, chosen });
    let first = [
        (0, pair(0, true), 5),
        (0, pair(0, true), 3),
        (1, pair(0, false), 7),
        (2, None, 3),
        (3, pair(1, false), 2),
        (4, pair(1, true), 4),
        (5, pair(2, true), 2),
        (6, None, 1),
        (7, None, 2),
    ];
    let second = [(0, pair(0, false), 4), (1, pair(0, true), 6)];
    let mut state = 12345u64;
    let mut next = move |low: i64, high: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (low + ((state >> 33) as i64) % (high - low)) as f32 * STEP
    };
    let mut sequence = |(episode, pair, n): (u32, Option<Pair>, usize)| {
        let mut list = |n: usize, low: i64, high: i64| (0..n).map(|_| next(low, high)).collect::<Vec<f32>>();
        let logp = list(n, -8000, -2000);
        let mut near = || list(n, -1500, 1500).iter().zip(&logp).map(|(step, logp)| logp + step).collect::<Vec<f32>>();
        let (old, sampler, reference, teacher) = (near(), near(), near(), near());
        let value = list(n, -3000, 3000);
        let ids: Vec<u32> = (0..n * K).map(|i| (i * 7 % 31) as u32).collect();
        // Three likely tokens that leave something for the bucket.
        let mut top = || Top { k: K, ids: ids.clone(), logp: list(n * K, -12_000, -5_400) };
        let (top, teacher_top) = (top(), top());
        let weight = |t: usize| if t == 2 && n > 4 || episode == 7 { 0.0 } else { 1.0 + t as f32 / 8.0 };
        Lists {
            trained: (0..n).map(|t| t > 0 && t % 5 != 4).collect(),
            entropy: list(n, 100, 4000),
            advantage: list(n, -8000, 8000),
            weight: (0..n).map(weight).collect(),
            lag: (0..n as u32).map(|t| (t * 3 + episode) % 5).collect(),
            target: ValueTarget {
                old: list(n, -1200, 1200).iter().zip(&value).map(|(step, value)| value + step).collect(),
                returns: list(n, -3000, 3000),
            },
            pull: (0..n).map(|t| if t % 3 == 1 { 0.25 } else { 0.0 }).collect(),
            teacher: Teacher { logp: teacher, top: Some(teacher_top) },
            logp,
            old,
            sampler,
            reference,
            value,
            top,
            episode,
            pair,
        }
    };
    vec![first.map(&mut sequence).to_vec(), second.map(&mut sequence).to_vec()]
}

pub(crate) fn totals(groups: &[Vec<Lists>]) -> Totals {
    Totals::count(groups.iter().map(|group| group.iter().map(|l| (l.trained.as_slice(), l.pair))))
}

pub(crate) fn run(loss: &Loss, totals: &Totals, group: &[Lists]) -> GroupLoss {
    let rows: Vec<Row<'_>> = group.iter().map(Lists::row).collect();
    evaluate(loss, totals, &rows).expect("the rows are whole")
}

pub(crate) fn terms() -> Vec<Term> {
    let surrogate = |dual_clip| Term::PolicyGradient(PolicyGradient { ratio_min: 0.875, ratio_max: 1.125, dual_clip });
    let divergence = |alpha, cap| Term::Divergence(Divergence { alpha, cap });
    vec![
        surrogate(None),
        surrogate(Some(1.2)),
        Term::Reinforce(Reinforce {}),
        Term::Nll(Nll {}),
        Term::Gspo(Gspo { ratio_min: 0.95, ratio_max: 1.05 }),
        Term::Cispo(Cispo { ratio_min: 0.875, ratio_max: 1.125 }),
        Term::Sapo(Sapo { tau_positive: 1.0, tau_negative: 1.75 }),
        Term::Dro(Dro { beta: 0.5 }),
        Term::Dpo(Dpo { beta: 0.5 }),
        Term::Oapl(Oapl { beta2: 0.5 }),
        Term::BradleyTerry(BradleyTerry {}),
        Term::Distill(Distill { cap: None }),
        Term::Distill(Distill { cap: Some(1.125) }),
        divergence(0.0, Some(1.125)),
        divergence(0.25, None),
        divergence(1.0, None),
    ]
}

/// With bounds that some tokens and sequences of [`groups`] meet and others do not.
pub(crate) fn corrections() -> Vec<Correction> {
    vec![
        Correction::Uncorrected(Uncorrected {}),
        Correction::TokenTis(TokenTis { cap: 1.125 }),
        Correction::SequenceTis(SequenceTis { cap: 1.125 }),
        Correction::TokenMask(TokenMask { low: 0.8, high: 1.25 }),
        Correction::SequenceMask(SequenceMask { low: 0.75, high: 1.5 }),
        Correction::Geometric(Geometric { low: 0.9, high: 1.125 }),
        Correction::K2(K2 { tau: 0.03125 }),
        Correction::K3(K3 { tau: 0.03125 }),
        Correction::Decoupled(Decoupled {}),
        Correction::M2po(M2po { tau: 0.04 }),
        Correction::Vespo(Vespo {}),
    ]
}

pub(crate) fn reductions(term: &Term) -> Vec<Reduction> {
    let mut all = vec![
        Reduction::TokenMean,
        Reduction::SequenceMean,
        Reduction::SequenceSum,
        Reduction::FixedHorizon { horizon: 16 },
        Reduction::Sum,
    ];
    if pairs(term) {
        all.push(Reduction::PairMean);
    }
    all
}

/// Whether the term is over pairs.
pub(crate) fn pairs(term: &Term) -> bool {
    matches!(term, Term::Dpo(_) | Term::BradleyTerry(_))
}

/// Whether the term sums over several sequences.
pub(crate) fn spans_sequences(term: &Term) -> bool {
    pairs(term) || matches!(term, Term::Oapl(_))
}

/// A term with a KL, and with the entropy bonus and the value loss beside it in turn.
pub(crate) fn losses(term: &Term, reduction: Reduction, correction: &Correction) -> [Loss; 4] {
    // No multiple of the step: at a bound there is no derivative to compare.
    let clip = Some(0.1234);
    let beside = [
        (None, 0.0, None),
        (Some(Estimator::K1), 0.0, Some(ValueLoss { clip, coefficient: 0.5 })),
        (Some(Estimator::K2), 0.125, None),
        (Some(Estimator::K3), 0.0625, Some(ValueLoss { clip: None, coefficient: 0.25 })),
    ];
    beside.map(|(estimator, entropy_coefficient, value)| Loss {
        term: term.clone(),
        reduction,
        kl: estimator.map(|estimator| Kl { estimator, coefficient: 0.25 }),
        entropy_coefficient,
        correction: correction.clone(),
        // One head does not score and estimate at once.
        value: value.filter(|_| term.name() != "bradley_terry"),
    })
}

/// Each term under its first reduction and each correction, and under each reduction and the first correction, with each
/// KL.
pub(crate) fn some_of_each() -> Vec<Loss> {
    let mut all = Vec::new();
    for term in terms() {
        let reductions = reductions(&term);
        for correction in corrections() {
            all.extend(losses(&term, reductions[0], &correction));
        }
        for reduction in &reductions[1..] {
            all.extend(losses(&term, *reduction, &corrections()[1]));
        }
    }
    all
}
