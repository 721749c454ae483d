//! The training side: sequences in, log-probabilities out; derivatives in, better weights out.

use std::path::Path;

use episode::Token;
use loss::{TokenValues, Top};
use serde::{Deserialize, Serialize};

use crate::PolicyError;

/// One sequence to train on.
#[derive(Debug, Clone, Copy)]
pub struct TrainSequence<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [Token],
    /// Which tokens get a log-probability and may get a gradient, `[T]`; the first one never.
    pub trained: &'a [bool],
    /// Tokens whose log-probabilities are wanted in the place of each trained one; the log-probabilities in it are not read.
    /// Not in a batch that asks for the most likely ones.
    pub top: Option<&'a Top>,
}

impl<'a> TrainSequence<'a> {
    /// A sequence of which nothing but its own tokens is asked.
    pub fn new(tokens: &'a [Token], trained: &'a [bool]) -> Self {
        TrainSequence { tokens, trained, top: None }
    }
}

/// What a pass gives beside log-probabilities and entropies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Want {
    /// Whether and where the value head is asked.
    pub value: ValueAt,
    /// How many of the most likely tokens are named in the place of each trained one, the most likely first; 0 for none.
    /// Of equal logits the lower id comes first.
    pub top_k: usize,
}

/// Where the value head is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ValueAt {
    /// Nowhere.
    #[default]
    Nowhere,
    /// At the state that predicts a trained token: what can be expected before it is drawn.
    Before,
    /// At the state that has read a trained token: what a sequence that ends with it is worth.
    After,
}

/// Sequences by group; those of a group may share the computation of their common start.
#[derive(Debug, Clone)]
pub struct Batch<'a> {
    /// The groups in canonical order; gradients sum in this order.
    pub groups: Vec<Vec<TrainSequence<'a>>>,
    /// The temperature of π; above 0.
    pub temperature: f32,
    /// Tokens removed from π.
    pub banned: &'a [Token],
    /// What is wanted beside log-probabilities and entropies.
    pub want: Want,
}

impl<'a> Batch<'a> {
    /// A batch of which log-probabilities and entropies are asked.
    pub fn new(groups: Vec<Vec<TrainSequence<'a>>>, temperature: f32, banned: &'a [Token]) -> Self {
        Batch { groups, temperature, banned, want: Want::default() }
    }
}

/// Weights kept beside those that learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Those the run began with; what `kl_start` is measured from.
    Start,
    /// The reference of a KL or a preference loss.
    Reference,
    /// The teacher of a distillation.
    Teacher,
}

/// How a slot is filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// With the weights as they are now.
    Now,
    /// What is there moves this share of the way to the weights as they are now: an exponential moving average. With
    /// adapters their factors are averaged, not their product.
    Blend(f64),
}

/// Derivatives of the loss by what [`TokenValues`] holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenGrads {
    /// ∂loss/∂logp, `[T]`; ignored at tokens that are not trained.
    pub dlogp: Vec<f32>,
    /// ∂loss/∂entropy, `[T]`, or empty when the loss has no entropy term.
    pub dentropy: Vec<f32>,
    /// ∂loss/∂value, `[T]`, or empty when the loss reads no value.
    pub dvalue: Vec<f32>,
    /// ∂loss/∂logp of the tokens in [`TrainSequence::top`], `[T · k]`, or empty when the loss reads none.
    pub dtop: Vec<f32>,
}

impl TokenGrads {
    /// Derivatives by log-probabilities alone.
    pub fn of(dlogp: Vec<f32>) -> Self {
        TokenGrads { dlogp, ..TokenGrads::default() }
    }
}

/// One move of AdamW with decoupled weight decay and bias correction.
///
/// Source: Loshchilov & Hutter, arXiv:1711.05101.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamStep {
    /// Step size, after the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f64,
    /// The gradient's global norm is scaled down to this; infinite to leave it.
    pub clip_norm: f64,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// What the gradient was multiplied with, 1 when not clipped.
    pub clip_scale: f64,
    /// Updates made so far, this one included.
    pub n_updates: u64,
}

/// Something that can be written to a folder and read back with the same bits.
pub trait Checkpoint {
    /// Writes weights and optimiser state into an existing, empty folder.
    fn save(&self, folder: &Path) -> Result<(), PolicyError>;

    /// Reads what [`Checkpoint::save`] wrote.
    ///
    /// - Errors: [`PolicyError::Checkpoint`] when a tensor is missing, of another shape, or not expected.
    fn load(&mut self, folder: &Path) -> Result<(), PolicyError>;
}

/// A loss, asked group by group: its index and the values of its sequences in, their derivatives out.
pub type GroupLossFn<'a> = dyn FnMut(usize, &[TokenValues]) -> Result<Vec<TokenGrads>, PolicyError> + 'a;

/// Something that learns.
pub trait Learner: Checkpoint {
    /// Log-probability and entropy of every trained token, by group and sequence.
    ///
    /// - Holds: equal bits to what [`Learner::forward_backward`] hands its loss, and to what the sampler records.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError>;

    /// Adds the gradient of a loss to what is accumulated.
    ///
    /// `loss` is called once a group, in order, with the index of the group and the values of its sequences, and answers
    /// with their derivatives. A loss that looks across groups calls [`Learner::forward`] first and answers from what it
    /// kept.
    ///
    /// - Holds: how the groups are spread over micro-batches changes no bit.
    /// - Errors: the learner's own, the loss's, or derivatives of another shape than what they are by; then everything
    ///   accumulated since the last update is cleared.
    fn forward_backward(&mut self, batch: &Batch<'_>, loss: &mut GroupLossFn<'_>) -> Result<(), PolicyError>;

    /// Fills a slot.
    ///
    /// - Holds: what a slot holds is part of a checkpoint once the weights have moved.
    /// - Errors: [`PolicyError::Unsupported`] when an empty slot is to be blended.
    fn keep(&mut self, slot: Slot, how: Keep) -> Result<(), PolicyError>;

    /// As [`Learner::forward`], under the weights of a slot.
    ///
    /// - Errors: [`PolicyError::Unsupported`] when the slot is empty.
    fn forward_kept(&mut self, slot: Slot, batch: &Batch<'_>) -> Result<Vec<Vec<TokenValues>>, PolicyError>;

    /// Moves the weights along the accumulated gradient and clears it.
    fn update(&mut self, step: &AdamStep) -> Result<UpdateReport, PolicyError>;
}
