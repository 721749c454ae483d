//! Reading `config.json` field by field, so that whatever was not read is known and can be refused.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::{Map, Value};

use super::attention_scale;
use crate::config::Gate;
use crate::rope::{Rope, Scaling};
use crate::{Config, ModelError};

/// Fields that never change what a decoder computes from token ids.
const HARMLESS: &[&str] = &[
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "max_window_layers",
    "model_type",
    "pad_token_id",
    "rope_interleaved",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
    "_sliding_window_pattern",
];

pub(super) fn bad(field: &str, needed: &str, got: impl Display) -> ModelError {
    ModelError::Field { field: field.to_owned(), needed: needed.to_owned(), got: got.to_string() }
}

/// The fields of a configuration, with a note of which were read.
pub(crate) struct Fields<'a> {
    family: &'static str,
    map: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(family: &'static str, map: &'a Map<String, Value>) -> Self {
        Fields { family, map, read: BTreeSet::new() }
    }

    /// The value of a field; null counts as absent.
    pub(super) fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.read.insert(key);
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn usize(&mut self, key: &'static str) -> Result<usize, ModelError> {
        self.optional_usize(key)?.ok_or_else(|| bad(key, "a whole number", "absent"))
    }

    pub(super) fn optional_usize(&mut self, key: &'static str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|v| usize::try_from(v).ok());
        number.map(Some).ok_or_else(|| bad(key, "a whole number", value))
    }

    pub(super) fn f64_or(&mut self, key: &'static str, default: f64) -> Result<f64, ModelError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_f64().ok_or_else(|| bad(key, "a number", value))
    }

    pub(super) fn bool_or(&mut self, key: &'static str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| bad(key, "true or false", value))
    }

    /// Refuses any value of a field but the one that changes nothing.
    pub(super) fn must_be(&mut self, key: &'static str, neutral: Value) -> Result<(), ModelError> {
        match self.get(key) {
            Some(value) if *value != neutral => Err(bad(key, &format!("`{neutral}` or nothing"), value)),
            _ => Ok(()),
        }
    }

    /// Refuses what nobody has read.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        for (field, value) in self.map {
            if !value.is_null() && !self.read.contains(field.as_str()) && !HARMLESS.contains(&field.as_str()) {
                let (field, got, family) = (field.clone(), value.to_string(), self.family.to_owned());
                return Err(ModelError::UnknownField { field, got, family });
            }
        }
        Ok(())
    }

    /// The rotation, from `rope_theta` and `rope_scaling`, or from the newer `rope_parameters`.
    pub(super) fn rope(&mut self, default_theta: f64, context: usize) -> Result<Rope, ModelError> {
        let theta = self.f64_or("rope_theta", default_theta)?;
        let newer = self.get("rope_parameters");
        match self.get("rope_scaling").or(newer) {
            None => Ok(Rope::plain(theta)),
            Some(value) => rope_from(value, theta, context),
        }
    }

    /// The settings every family has, as a plain decoder.
    pub(super) fn plain(&mut self, default_theta: f64, default_dim: Option<usize>) -> Result<Config, ModelError> {
        let mut config = self.without_rope(default_dim)?;
        config.rope = self.rope(default_theta, config.context)?;
        Ok(config)
    }

    /// As [`Fields::plain`], for a family that reads its rotations itself.
    ///
    /// `default_dim` is the head's width where the file is silent; a family without one divides its width by its heads.
    pub(super) fn without_rope(&mut self, default_dim: Option<usize>) -> Result<Config, ModelError> {
        let (width, n_heads) = (self.usize("hidden_size")?, self.usize("num_attention_heads")?);
        let (n_layers, context) = (self.usize("num_hidden_layers")?, self.usize("max_position_embeddings")?);
        let head_dim = match self.optional_usize("head_dim")?.or(default_dim) {
            Some(dim) => dim,
            None if n_heads > 0 && width.is_multiple_of(n_heads) => width / n_heads,
            None => return Err(bad("num_attention_heads", &format!("a divisor of the width {width}"), n_heads)),
        };
        if let Some(kinds) = self.get("layer_types").filter(|_| self.family != "gemma3") {
            let full = |k: &Value| k.as_str() == Some("full_attention");
            if !kinds.as_array().is_some_and(|k| k.iter().all(full)) {
                return Err(bad("layer_types", "`full_attention` in every layer", kinds));
            }
        }
        Ok(Config {
            family: self.family,
            vocabulary: self.usize("vocab_size")?,
            width,
            n_layers,
            n_heads,
            n_kv_heads: self.optional_usize("num_key_value_heads")?.unwrap_or(n_heads),
            head_dim,
            ffn: self.usize("intermediate_size")?,
            norm_epsilon: self.f64_or("rms_norm_eps", 1e-6)? as f32,
            context,
            tied: self.bool_or("tie_word_embeddings", false)?,
            rope: Rope::plain(10_000.0),
            local_rope: None,
            window: None,
            local: vec![false; n_layers.min(1 << 10)],
            qkv_bias: false,
            qk_norm: false,
            post_norms: false,
            norm_plus_one: false,
            gate: Gate::Silu,
            embedding_scale: 1.0,
            attention_scale: attention_scale(head_dim as f64),
        })
    }
}

/// One rotation from its JSON object.
pub(super) fn rope_from(value: &Value, theta: f64, context: usize) -> Result<Rope, ModelError> {
    const KNOWN: &[&str] = &[
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "high_freq_factor",
        "low_freq_factor",
        "original_max_position_embeddings",
        "rope_theta",
        "rope_type",
        "type",
    ];
    let map = value.as_object().ok_or_else(|| bad("rope_scaling", "an object", value))?;
    if let Some((key, got)) = map.iter().find(|(k, v)| !v.is_null() && !KNOWN.contains(&k.as_str())) {
        return Err(bad(&format!("rope_scaling.{key}"), "nothing, it is not known", got));
    }
    let number = |key: &str| map.get(key).filter(|v| !v.is_null()).map(|v| number_of(key, v)).transpose();
    let need = |key: &str| number(key)?.ok_or_else(|| bad(&format!("rope_scaling.{key}"), "a number", "absent"));
    let theta = number("rope_theta")?.unwrap_or(theta);
    let kind = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str).unwrap_or("default");
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: need("factor")? },
        "llama3" => Scaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original: need("original_max_position_embeddings")?,
        },
        "yarn" => {
            let original = number("original_max_position_embeddings")?.unwrap_or(context as f64);
            Scaling::Yarn {
                factor: need("factor")?,
                fast: number("beta_fast")?.unwrap_or(32.0),
                slow: number("beta_slow")?.unwrap_or(1.0),
                original,
                attention: number("attention_factor")?,
            }
        }
        other => return Err(bad("rope_scaling.rope_type", "`default`, `linear`, `llama3` or `yarn`", other)),
    };
    Ok(Rope { theta, scaling, factors: None })
}

fn number_of(key: &str, value: &Value) -> Result<f64, ModelError> {
    let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| bad(&format!("rope_scaling.{key}"), "a number above 0", value))
}
