//! The engine's state: weights, what of them is trained, and the buffers that passes reuse.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use model::block::Grads;
use model::cache::Cache;
use model::packed::Trainer;
use model::{Adapter, Config, HalfParams, Infer, ModelError, Params, Target, ValueHead};
use policy::{Learner, Policy, PolicyError, Sampler, Slot};
use serde::{Deserialize, Serialize};
use tensor::Cpu;
use text::Tokenizer;

use crate::kept::Kept;
use crate::optimiser::{Moments, Weights};

/// Which weights learn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Trainable {
    /// None: the engine only samples and scores.
    Frozen {},
    /// All of them.
    Full {},
    /// Low-rank adapters beside frozen weights.
    Lora {
        /// Rank r.
        rank: usize,
        /// Adapter outputs are multiplied with `alpha / rank`.
        alpha: f32,
        /// Which linear layers: `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`.
        targets: Vec<String>,
    },
}

/// How products are computed; part of what a policy is, unlike [`EngineSettings`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 × f32 into f32.
    #[default]
    F32,
    /// Inputs and weights of every product of a block and of the head rounded to bf16, summed in f32 in the same order; about
    /// twice as fast where the processor has the instruction, with the same bits where it has not. Backward products use
    /// the rounded weights and f32 derivatives. The weights that learn, norms, attention and adapters stay f32.
    Bf16,
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(format!("unknown precision `{text}`, needed `f32` or `bf16`")),
        }
    }
}

/// How the engine uses the machine; none of it changes a bit, but for `share_prompts`. Where sampling runs ahead of training,
/// `batch`, `prompt_rows` and `cache_mb` decide which version samples what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Sequences sampled at once.
    pub batch: usize,
    /// Rows read at once when prompts are long.
    pub prompt_rows: usize,
    /// Rows of a training micro-batch; a larger group goes alone.
    pub micro_batch_rows: usize,
    /// Memory for keys and values, in megabytes.
    pub cache_mb: usize,
    /// Run each block's forward pass again in the backward pass instead of keeping what it needs: a third more work for a
    /// fraction of the memory.
    pub recompute: bool,
    /// Lay out the common start of a group once. Off, gradients sum in another association: equal up to rounding.
    pub share_prompts: bool,
}

impl Default for EngineSettings {
    fn default() -> Self {
        EngineSettings {
            batch: 96,
            prompt_rows: 256,
            micro_batch_rows: 768,
            cache_mb: 1024,
            recompute: false,
            share_prompts: true,
        }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model is at fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A setting is out of range.
    #[error("`{key}` is {got}, needed {needed}")]
    Setting {
        /// Which.
        key: &'static str,
        /// What was given.
        got: String,
        /// What is possible.
        needed: String,
    },
    /// Tokenizer and model do not belong together.
    #[error("the tokenizer has {tokenizer} tokens, more than the model's vocabulary of {model}")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Size of the model's vocabulary.
        model: usize,
    },
}

/// The embedded engine.
pub struct Engine {
    pub(crate) cpu: Cpu,
    pub(crate) config: Config,
    pub(crate) params: Params,
    /// The products' weights rounded to bf16, where that is the precision.
    pub(crate) half: Option<HalfParams>,
    pub(crate) adapter: Option<Adapter>,
    pub(crate) value: Option<ValueHead>,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) settings: EngineSettings,
    pub(crate) trainable: Trainable,
    pub(crate) grads: Grads,
    pub(crate) moments: Option<Moments>,
    /// Weights kept beside those that learn.
    pub(crate) kept: BTreeMap<Slot, Kept>,
    pub(crate) trainer: Option<Trainer>,
    pub(crate) infer: Infer,
    pub(crate) cache: Cache,
    pub(crate) n_updates: u64,
    version: u32,
}

impl Engine {
    /// An engine over loaded weights. Adapters start as [`Adapter::fresh`] from `seed`.
    ///
    /// - Errors: a setting out of range, an unknown adapter target, a tokenizer larger than the vocabulary.
    pub fn new(
        cpu: Cpu,
        (config, params): (Config, Params),
        tokenizer: Option<Arc<Tokenizer>>,
        trainable: Trainable,
        settings: EngineSettings,
        seed: u64,
    ) -> Result<Engine, EngineError> {
        check(&settings)?;
        if let Some(t) = tokenizer.as_ref().filter(|t| t.vocab_size() > config.vocabulary) {
            return Err(EngineError::Vocabulary { tokenizer: t.vocab_size(), model: config.vocabulary });
        }
        let adapter = match &trainable {
            Trainable::Frozen {} | Trainable::Full {} => None,
            Trainable::Lora { rank, alpha, targets } => {
                Some(Adapter::fresh(&config, *rank, *alpha, &parse_targets(targets)?, seed)?)
            }
        };
        let pages = Cache::new(&config, 1).page_bytes();
        let cache = Cache::new(&config, ((settings.cache_mb << 20) / pages).max(1));
        Ok(Engine {
            infer: Infer::new(&config),
            cache,
            grads: Grads::default(),
            moments: None,
            kept: BTreeMap::new(),
            trainer: None,
            n_updates: 0,
            version: 0,
            cpu,
            config,
            params,
            half: None,
            adapter,
            value: None,
            tokenizer,
            settings,
            trainable,
        })
    }

    /// The same engine with products in another precision.
    pub fn with_precision(mut self, precision: Precision) -> Engine {
        let rounded = |params: &Params| (precision == Precision::Bf16).then(|| HalfParams::of(&self.cpu, params));
        self.half = rounded(&self.params);
        for kept in self.kept.values_mut() {
            if let Weights::Full(full) = &mut kept.weights {
                full.1 = rounded(&full.0);
            }
        }
        self
    }

    /// The same engine with a value head that says 0 of every state; one that has a head is as it was.
    ///
    /// The head is trained with the rest, and fully where the rest is trained by adapters. A value is an f32 product in
    /// either precision. An export has no place for it.
    pub fn with_value_head(mut self) -> Engine {
        if self.value.is_none() {
            let zeros = || ValueHead::zeroed(&self.config);
            if let Some(moments) = &mut self.moments {
                (self.grads.value, moments.value) = (Some(zeros()), Some(Box::new((zeros(), zeros()))));
            }
            for kept in self.kept.values_mut() {
                kept.value = Some(zeros());
            }
            self.value = Some(zeros());
        }
        self
    }

    /// How products are computed.
    pub fn precision(&self) -> Precision {
        if self.half.is_some() { Precision::Bf16 } else { Precision::F32 }
    }

    /// Rounds the products' weights anew after they changed.
    pub(crate) fn refresh(&mut self) {
        if let Some(half) = &mut self.half {
            half.refresh(&self.cpu, &self.params);
        }
    }

    /// The model's description.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weights.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The adapter, if any.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// The value head, if any.
    pub fn value_head(&self) -> Option<&ValueHead> {
        self.value.as_ref()
    }

    /// Puts an adapter on, in place of the one there.
    ///
    /// - Errors: an adapter of another rank, alpha or targets than the one being trained, or any where the weights
    ///   themselves are: a checkpoint holds one or the other, and a resumed run would make something else of it.
    pub fn set_adapter(&mut self, adapter: Adapter) -> Result<(), EngineError> {
        let show = |a: &Adapter| {
            let targets: Vec<&str> = a.targets.iter().map(|t| t.name()).collect();
            format!("rank {}, alpha {} on {}", a.rank, a.alpha, targets.join(", "))
        };
        let needed = match (&self.trainable, &self.adapter) {
            (Trainable::Full {}, _) => Some("none, since all weights are trained".to_owned()),
            (Trainable::Lora { .. }, Some(own)) => Some(show(own)).filter(|own| *own != show(&adapter)),
            _ => None,
        };
        if let Some(needed) = needed {
            return Err(EngineError::Setting { key: "adapter", got: show(&adapter), needed });
        }
        self.adapter = Some(adapter);
        Ok(())
    }

    /// Number of weights that learn.
    pub fn n_trainable(&self) -> usize {
        let value = self.value.as_ref().map_or(0, ValueHead::n_weights);
        match (&self.trainable, &self.adapter) {
            (Trainable::Full {}, _) => self.config.n_weights() + value,
            (Trainable::Lora { .. }, Some(a)) => a.n_weights(&self.config) + value,
            _ => 0,
        }
    }

    /// The processor it runs on.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }
}

/// Adapter targets by name; `all` stands for every one.
fn parse_targets(names: &[String]) -> Result<Vec<Target>, EngineError> {
    let known = || {
        let names = Target::ALL.map(|t| format!("`{}`", t.name()));
        format!("`all`, or some of {}", names.join(", "))
    };
    let mut targets = Vec::new();
    for name in names {
        match Target::from_name(name) {
            Some(target) => targets.push(target),
            None if name == "all" => targets.extend(Target::ALL),
            None => {
                return Err(EngineError::Setting { key: "targets", got: format!("`{name}`"), needed: known() });
            }
        }
    }
    Ok(targets)
}

fn check(s: &EngineSettings) -> Result<(), EngineError> {
    let range = |key, got: usize, least: usize, most: usize| {
        let ok = (least..=most).contains(&got);
        let needed = format!("{least} to {most}");
        if ok { Ok(()) } else { Err(EngineError::Setting { key, got: got.to_string(), needed }) }
    };
    range("batch", s.batch, 1, 65_536)?;
    range("prompt_rows", s.prompt_rows, 1, 1 << 20)?;
    range("micro_batch_rows", s.micro_batch_rows, 1, 1 << 24)?;
    range("cache_mb", s.cache_mb, 1, 1 << 24)
}

impl Policy for Engine {
    fn sampler(&mut self) -> &mut dyn Sampler {
        self
    }

    fn learner(&mut self) -> &mut dyn Learner {
        self
    }

    fn version(&self) -> u32 {
        self.version
    }

    /// The sampler reads the very weights that the learner moves, so publishing is counting; nothing of an older version
    /// is left, because a sampling call keeps no keys and values after it ends.
    fn publish(&mut self) -> Result<u32, PolicyError> {
        self.version += 1;
        Ok(self.version)
    }

    fn set_version(&mut self, version: u32) {
        self.version = version;
    }
}

/// An engine's error on the path of the traits.
pub(crate) fn as_policy(path: &Path) -> impl Fn(ModelError) -> PolicyError + '_ {
    move |error| PolicyError::Checkpoint { path: path.to_owned(), reason: error.to_string() }
}
