//! What is printed of each episode, and of all of them.

use algo::{Settings, Why};
use episode::{Episode, Group, Sequence};
use loss::{Loss, Metrics, Reduction, Signal, Totals};
use policy::{TokenGrads, TokenRecord};
use serde::Serialize;

use super::given::Given;

/// What each token of an episode is worth, one entry a token, absent where it was not sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EpisodeSignals {
    /// The line it stands in, from 1.
    pub line: usize,
    /// Its task.
    pub task: String,
    /// What it was rewarded with; absent when it was not graded.
    pub reward: Option<f64>,
    /// Why it teaches nothing, if it does not.
    pub dropped: Option<String>,
    /// Tokens of each of its sequences, where it has several; lists have one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_lengths: Option<Vec<usize>>,
    /// What the algorithm says each token is worth; absent where the episode is left out.
    pub advantage: Vec<Option<f32>>,
    /// What it weighs in the loss; absent where the episode is left out.
    pub weight: Vec<Option<f32>>,
    /// What the correction makes of it; absent where nothing was computed.
    pub correction: Vec<Option<f64>>,
    /// Its loss before reduction, weight and correction included; absent where the episode is left out.
    pub loss: Vec<Option<f64>>,
    /// The sum of these.
    pub loss_sequence: Option<f64>,
    /// The exact derivative of the summary's loss by its log-probability.
    pub dloss_dlogp: Vec<Option<f32>>,
    /// The same by the value head's estimate, where the loss reads it.
    pub dloss_dvalue: Option<Vec<Option<f32>>>,
    /// The same by the entropy, where the loss reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dloss_dentropy: Option<Vec<Option<f32>>>,
    /// The same by the log-probabilities of the other tokens in its place, where the loss reads them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dloss_dtop: Option<Vec<Option<Vec<f32>>>>,
    /// What the value head is to say, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<Vec<Option<f32>>>,
}

/// All episodes together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The algorithm as it was set, every default written out.
    pub algorithm: Settings,
    /// Episodes of the input.
    pub n_episodes: usize,
    /// Their groups.
    pub n_groups: usize,
    /// The loss; with several updates their sum.
    pub loss: f64,
    /// How tokens became one number.
    pub reduction: Reduction,
    /// What the denominators counted, one entry an update of a pass over the groups.
    pub totals: Vec<Totals>,
    /// As in a run.
    pub metrics: Metrics,
    /// What teaches nothing, and why.
    pub dropped: Vec<DroppedLines>,
}

/// Something that teaches nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DroppedLines {
    /// The task.
    pub task: String,
    /// The lines of its episodes.
    pub lines: Vec<usize>,
    /// Why.
    pub why: Why,
    /// The same for a person.
    pub text: String,
    /// Whether it is in no statistic and no denominator.
    pub left_out: bool,
}

/// What was computed for one sequence.
#[derive(Debug, Default)]
pub(super) struct Computed<'a> {
    pub(super) signal: Option<&'a Signal>,
    pub(super) record: Option<TokenRecord>,
    pub(super) grads: Option<TokenGrads>,
}

impl EpisodeSignals {
    /// Puts an episode together from what was computed for its sequences.
    pub(super) fn new(group: &Group, episode: &Episode, given: &Given, loss: &Loss, computed: &[Computed<'_>]) -> Self {
        let mut all = EpisodeSignals {
            line: given.line,
            task: group.task.id.to_string(),
            reward: episode.outcome.reward(),
            ..EpisodeSignals::default()
        };
        let lengths: Vec<usize> = episode.sequences.iter().map(Sequence::len).collect();
        all.sequence_lengths = (lengths.len() > 1).then_some(lengths);
        all.dloss_dvalue = loss.needs_value().then(Vec::new);
        all.dloss_dentropy = loss.needs_entropy().then(Vec::new);
        let has_top = computed.iter().any(|c| c.grads.as_ref().is_some_and(|g| !g.dtop.is_empty()));
        all.dloss_dtop = has_top.then(Vec::new);
        let has_value = computed.iter().any(|c| c.signal.is_some_and(|s| s.value.is_some()));
        all.returns = has_value.then(Vec::new);
        for (i, (sequence, computed)) in episode.sequences.iter().zip(computed).enumerate() {
            all.add(sequence, if i == 0 { given.offset } else { 0 }, computed);
        }
        let losses = || all.loss.iter().flatten();
        all.loss_sequence = losses().next().map(|_| losses().sum());
        all
    }

    fn add(&mut self, sequence: &Sequence, skip: usize, computed: &Computed<'_>) {
        let Computed { signal, record, grads } = computed;
        let (record, grads) = (record.as_ref(), grads.as_ref());
        let n = sequence.len() - skip;
        self.advantage.reserve(n);
        self.weight.reserve(n);
        self.correction.reserve(n);
        self.loss.reserve(n);
        self.dloss_dlogp.reserve(n);
        // What was not computed moves nothing, to the last bit.
        let derivative = |list: Option<&Vec<f32>>, t: usize| Some(list.and_then(|l| l.get(t)).copied().unwrap_or(0.0));
        let token = |t: usize| {
            if !sequence.sampled()[t] {
                return Token::default();
            }
            Token {
                advantage: signal.map(|s| s.advantage[t]),
                weight: signal.map(|s| s.weight[t]),
                correction: record.map(|r| r.correction[t]),
                loss: signal.map(|_| record.map_or(0.0, |r| r.loss[t])),
                dlogp: derivative(grads.map(|g| &g.dlogp), t),
                dvalue: derivative(grads.map(|g| &g.dvalue), t),
                dentropy: derivative(grads.map(|g| &g.dentropy), t),
                dtop: grads.and_then(|g| chunk(&g.dtop, t, sequence.len())),
                returns: signal.and_then(|s| s.value.as_ref()?.returns.get(t).copied()),
            }
        };
        for token in (skip..sequence.len()).map(token) {
            self.advantage.push(token.advantage);
            self.weight.push(token.weight);
            self.correction.push(token.correction);
            self.loss.push(token.loss);
            self.dloss_dlogp.push(token.dlogp);
            self.dloss_dvalue.iter_mut().for_each(|list| list.push(token.dvalue));
            self.dloss_dentropy.iter_mut().for_each(|list| list.push(token.dentropy));
            self.dloss_dtop.iter_mut().for_each(|list| list.push(token.dtop.clone()));
            self.returns.iter_mut().for_each(|list| list.push(token.returns));
        }
    }
}

/// What is printed of one token; all absent where it was not sampled.
#[derive(Default)]
struct Token {
    advantage: Option<f32>,
    weight: Option<f32>,
    correction: Option<f64>,
    loss: Option<f64>,
    dlogp: Option<f32>,
    dvalue: Option<f32>,
    dentropy: Option<f32>,
    dtop: Option<Vec<f32>>,
    returns: Option<f32>,
}

/// The part of a list of k entries a token that belongs to one of them.
fn chunk(list: &[f32], t: usize, n_tokens: usize) -> Option<Vec<f32>> {
    let k = list.len().checked_div(n_tokens)?;
    list.get(t * k..(t + 1) * k).filter(|chunk| !chunk.is_empty()).map(<[f32]>::to_vec)
}
