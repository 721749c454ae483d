//! One update: sequences and what they are worth in, a moved policy and metrics out.
//!
//! **π_old.** Each signal says where it comes from. `Recorded`, the sampler's log-probabilities, serves every update of a
//! step: π, from a forward pass that never reads a recorded value, is compared with them, so on the first on-policy update
//! the ratio is exactly 1, on later ones it measures how far this step has moved, and a corrupted record moves ratio and
//! mismatch alike. `Forward`, from [`crate::values`] when the step begins, serves corrections by π_old/μ, for tokens that
//! an older policy sampled.
//!
//! **Denominators.** They count every trained token, and every sequence that has one, of the whole batch, once, before
//! anything is computed. A group in which no token can teach anything (see `loss::Loss::is_inert`) stays in them but is
//! not computed, so metrics over tokens describe the groups that were. Inside a group that is computed every sequence with
//! a trained token is, whatever it is worth, since the group's metrics and shared prompt want it whole. Sequences without
//! a trained token are nowhere.

use std::collections::BTreeMap;

use episode::{Sequence, Token};
use loss::{GroupLoss, Loss, LossError, Metrics, Row, Signal, Sums, Totals};

use crate::{
    AdamStep, Batch, Learner, PolicyError, TokenGrads, TokenValues, TrainSequence, UpdateReport, ValueAt, Want,
};

/// What one optimiser move learns from.
#[derive(Debug, Clone)]
pub struct UpdateBatch<'a> {
    /// Sequences with what their tokens are worth, by group, in canonical order.
    pub groups: Vec<Vec<(&'a Sequence, &'a Signal)>>,
    /// The temperature of π; above 0.
    pub temperature: f32,
    /// Tokens removed from π.
    pub banned: &'a [Token],
    /// Whether to return what was computed for each token.
    pub keep_tokens: bool,
}

/// What an update did and saw.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateOutcome {
    /// Sums over the tokens that were computed, for merging over several updates.
    pub sums: Sums,
    /// Their means.
    pub metrics: Metrics,
    /// What the denominators counted.
    pub totals: Totals,
    /// Groups that were computed; with 0 of them the optimiser is not called and no weight changes.
    pub n_groups_computed: usize,
    /// The optimiser's report; absent when no move was asked for or nothing carried a signal.
    pub report: Option<UpdateReport>,
    /// By group and sequence as in the batch, absent where nothing was computed; empty unless asked for.
    pub tokens: Vec<Vec<Option<TokenRecord>>>,
}

impl UpdateOutcome {
    /// Whether no group carried a signal, so that nothing was done.
    pub fn skipped(&self) -> bool {
        self.n_groups_computed == 0
    }
}

/// What was computed for the tokens of one sequence, `[T]`, 0 at tokens that are not trained.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenRecord {
    /// log π before the move.
    pub logp: Vec<f32>,
    /// Entropy of π before the move.
    pub entropy: Vec<f32>,
    /// The value head's estimates before the move; empty when the loss reads none.
    pub value: Vec<f32>,
    /// Loss before reduction.
    pub loss: Vec<f64>,
    /// The correction's weight.
    pub correction: Vec<f64>,
    /// ∂loss/∂logp.
    pub dlogp: Vec<f32>,
    /// ∂loss/∂value; empty when the loss reads none.
    pub dvalue: Vec<f32>,
    /// ∂loss/∂logp of the tokens that the teacher was asked about, `[T · k]`; empty when the loss reads none.
    pub dtop: Vec<f32>,
}

/// Computes the loss of a whole update batch, accumulates its gradient and, given a step, moves the policy.
///
/// - Holds: how the learner spreads groups over micro-batches changes no bit; groups are merged in the order of the batch.
/// - Errors: [`PolicyError::Loss`] names group, sequence and token when something is not finite or missing; then the policy
///   has not moved and nothing stays accumulated.
pub fn update_batch(
    learner: &mut dyn Learner,
    batch: &UpdateBatch<'_>,
    loss: &Loss,
    step: Option<&AdamStep>,
) -> Result<UpdateOutcome, PolicyError> {
    let groups = batch.groups.iter();
    let totals = Totals::count(groups.map(|group| group.iter().map(|(s, signal)| (s.sampled(), signal.pair))));
    let chosen = choose(batch, loss)?;
    let mut seen: Vec<Option<Seen>> = chosen.iter().map(|_| None).collect();
    if !chosen.is_empty() {
        let packed = pack(&chosen, batch, loss);
        learner.forward_backward(&packed, &mut |index, values| {
            let ChosenGroup { group, sequences, .. } = &chosen[index];
            // Only in the builds of `cargo xtask faults`, whose tests must fail: the smallest micro-batch is a group.
            #[cfg(surefoot_fault = "divides_per_micro_batch")]
            let totals =
                Totals::count([sequences.iter().map(|(sequence, signal, _)| (sequence.sampled(), signal.pair))]);
            let failed = |source| PolicyError::Loss { group: *group, source };
            let found = evaluate(loss, &totals, sequences, values).map_err(failed)?;
            let grads = found.rows.iter().map(|row| TokenGrads {
                dlogp: row.dlogp.clone(),
                dentropy: row.dentropy.clone(),
                dvalue: row.dvalue.clone(),
                dtop: row.dtop.clone(),
            });
            let grads = grads.collect();
            let values = if batch.keep_tokens { values.to_vec() } else { Vec::new() };
            seen[index] = Some(Seen { found, values });
            Ok(grads)
        })?;
    }
    let mut sums = Sums::default();
    let mut tokens = if batch.keep_tokens { blank(batch) } else { Vec::new() };
    for (chosen, seen) in chosen.iter().zip(seen) {
        let Some(seen) = seen else { return Err(unanswered(chosen.group)) };
        sums.merge(&seen.found.sums);
        if batch.keep_tokens {
            keep(&mut tokens[chosen.group], chosen, seen);
        }
    }
    let report = match step {
        Some(step) if !chosen.is_empty() => Some(learner.update(step)?),
        _ => None,
    };
    Ok(UpdateOutcome { metrics: sums.metrics(), sums, totals, n_groups_computed: chosen.len(), report, tokens })
}

/// How many sampled tokens lie how many published versions behind; a negative lag means a record from another run.
pub fn lag<'a>(sequences: impl IntoIterator<Item = &'a Sequence>, version: u32) -> BTreeMap<i64, u64> {
    let mut counts = BTreeMap::new();
    for sequence in sequences {
        for (sampled, own) in sequence.sampled().iter().zip(sequence.version()) {
            if *sampled {
                *counts.entry(i64::from(version) - i64::from(*own)).or_default() += 1;
            }
        }
    }
    counts
}

type Chosen<'a> = (&'a Sequence, &'a Signal, usize);

/// A group that is computed: its place in the batch, and its sequences with theirs.
struct ChosenGroup<'a> {
    group: usize,
    sequences: Vec<Chosen<'a>>,
    packed: Vec<TrainSequence<'a>>,
}

/// What the loss made of a group.
struct Seen {
    found: GroupLoss,
    values: Vec<TokenValues>,
}

fn choose<'a>(batch: &UpdateBatch<'a>, loss: &Loss) -> Result<Vec<ChosenGroup<'a>>, PolicyError> {
    let mut chosen = Vec::new();
    for (group, sequences) in batch.groups.iter().enumerate() {
        if sequences.iter().all(|(sequence, signal)| loss.is_inert(sequence.sampled(), signal)) {
            continue;
        }
        let trained = sequences.iter().enumerate().filter(|(_, (sequence, _))| sequence.n_sampled() > 0);
        let sequences: Vec<Chosen<'a>> =
            trained.map(|(place, (sequence, signal))| (*sequence, *signal, place)).collect();
        let packed = sequences.iter().map(|(sequence, signal, _)| train_sequence(sequence, signal, loss));
        let packed = packed.collect::<Result<_, _>>()?;
        chosen.push(ChosenGroup { group, sequences, packed });
    }
    Ok(chosen)
}

fn pack<'a>(chosen: &[ChosenGroup<'a>], batch: &UpdateBatch<'a>, loss: &Loss) -> Batch<'a> {
    let value = match (loss.needs_value(), loss.scores()) {
        (false, _) => ValueAt::Nowhere,
        (true, false) => ValueAt::Before,
        (true, true) => ValueAt::After,
    };
    let groups = chosen.iter().map(|c| c.packed.clone()).collect();
    Batch { want: Want { value, top_k: 0 }, ..Batch::new(groups, batch.temperature, batch.banned) }
}

fn train_sequence<'a>(
    sequence: &'a Sequence,
    signal: &'a Signal,
    loss: &Loss,
) -> Result<TrainSequence<'a>, PolicyError> {
    let top = signal.teacher.as_ref().and_then(|teacher| teacher.top.as_ref()).filter(|_| loss.needs_top());
    match sequence.sampled().first() {
        Some(true) => Err(PolicyError::NoPrompt),
        _ => Ok(TrainSequence { top, ..TrainSequence::new(sequence.tokens(), sequence.sampled()) }),
    }
}

fn evaluate(
    loss: &Loss,
    totals: &Totals,
    sequences: &[Chosen<'_>],
    values: &[TokenValues],
) -> Result<GroupLoss, LossError> {
    if let Some(sequence) = (values.len()..sequences.len()).next() {
        return Err(LossError::Missing { list: "logp", sequence });
    }
    let row = |((sequence, signal, _), values)| -> Row<'_> {
        let (sequence, signal, values): (&Sequence, &Signal, &TokenValues) = (sequence, signal, values);
        Row::new(sequence.sampled(), values, sequence.logp(), signal)
    };
    let rows: Vec<Row<'_>> = sequences.iter().copied().zip(values).map(row).collect();
    loss::evaluate(loss, totals, &rows)
}

fn blank(batch: &UpdateBatch<'_>) -> Vec<Vec<Option<TokenRecord>>> {
    batch.groups.iter().map(|group| vec![None; group.len()]).collect()
}

fn keep(records: &mut [Option<TokenRecord>], chosen: &ChosenGroup<'_>, seen: Seen) {
    for (((_, _, place), row), values) in chosen.sequences.iter().zip(seen.found.rows).zip(seen.values) {
        records[*place] = Some(TokenRecord {
            logp: values.logp,
            entropy: values.entropy,
            value: values.value,
            loss: row.per_token,
            correction: row.correction,
            dlogp: row.dlogp,
            dvalue: row.dvalue,
            dtop: row.dtop,
        });
    }
}

fn unanswered(group: usize) -> PolicyError {
    PolicyError::Loss { group, source: LossError::Missing { list: "logp", sequence: 0 } }
}

#[cfg(test)]
mod tests;
