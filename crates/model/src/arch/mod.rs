//! Model families: one file each, and one line in the table below.

mod fields;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;

use serde_json::{Map, Value};
use tensor::weights::Metadata;

use crate::{Config, ModelError};
use fields::Fields;

/// A family: what it is called in each kind of file, and how its settings are read.
pub struct Arch {
    /// Our name for it, which is also GGUF's `general.architecture`.
    pub name: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// GGUF files of it hold queries and keys with neighbouring pairs rotated instead of halves.
    pub gguf_pairs: bool,
    from_hf: fn(&mut Fields<'_>) -> Result<Config, ModelError>,
    from_gguf: fn(&Metadata, &Gguf<'_>) -> Result<Config, ModelError>,
}

/// The families.
static TABLE: [&Arch; 4] = [&llama::ARCH, &qwen2::ARCH, &qwen3::ARCH, &gemma3::ARCH];

/// The families' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|a| a.name)
}

/// The family of a configuration.
pub fn of(config: &Config) -> &'static Arch {
    TABLE.iter().find(|a| a.name == config.family).expect("a configuration is made by a family of the table")
}

/// Reads a Hugging Face `config.json`.
///
/// - Errors: an unknown family, a missing or impossible field, and any field that is not known to leave the maths alone.
pub fn from_hf(json: &Value) -> Result<Config, ModelError> {
    let empty = Map::new();
    let map = json.as_object().unwrap_or(&empty);
    let kind = map.get("model_type").and_then(Value::as_str).unwrap_or("");
    let arch = TABLE.iter().find(|a| a.model_types.contains(&kind)).ok_or_else(|| unknown(kind))?;
    let mut fields = Fields::new(arch.name, map);
    let config = (arch.from_hf)(&mut fields)?;
    fields.finish()?;
    check(config)
}

/// Reads a GGUF file's metadata; `tied` says that the file has no tensor of the head's own.
pub fn from_gguf(metadata: &Metadata, tied: bool, vocabulary: usize) -> Result<Config, ModelError> {
    let kind = metadata.str("general.architecture")?;
    let arch = TABLE.iter().find(|a| a.name == kind).ok_or_else(|| unknown(kind))?;
    let config = (arch.from_gguf)(metadata, &Gguf { metadata, prefix: arch.name, tied, vocabulary })?;
    check(config)
}

fn unknown(got: &str) -> ModelError {
    let known = names().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    ModelError::Family { got: got.to_owned(), known }
}

/// GGUF metadata under a family's prefix.
pub(crate) struct Gguf<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
    tied: bool,
    vocabulary: usize,
}

impl Gguf<'_> {
    fn usize(&self, key: &str) -> Result<usize, ModelError> {
        Ok(self.metadata.u32(&format!("{}.{key}", self.prefix))? as usize)
    }

    fn usize_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let entry = self.metadata.find(&format!("{}.{key}", self.prefix));
        Ok(entry.map(|e| e.u32()).transpose()?.map_or(default, |v| v as usize))
    }

    fn f64_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        let entry = self.metadata.find(&format!("{}.{key}", self.prefix));
        Ok(entry.map(|e| e.f32()).transpose()?.map_or(default, f64::from))
    }

    fn rope(&self, default_theta: f64) -> Result<crate::rope::Rope, ModelError> {
        use crate::rope::{Rope, Scaling};
        let key = format!("{}.rope.scaling.type", self.prefix);
        let kind = self.metadata.find(&key).map(|e| e.str()).transpose()?.unwrap_or("none");
        let scaling = match kind {
            "none" => Scaling::None,
            "linear" => Scaling::Linear { factor: self.f64_or("rope.scaling.factor", 1.0)? },
            "yarn" => Scaling::Yarn {
                factor: self.f64_or("rope.scaling.factor", 1.0)?,
                fast: self.f64_or("rope.scaling.yarn_beta_fast", 32.0)?,
                slow: self.f64_or("rope.scaling.yarn_beta_slow", 1.0)?,
                original: self.usize("rope.scaling.original_context_length")? as f64,
                attention: None,
            },
            other => return Err(fields::bad(&key, "`none`, `linear` or `yarn`", other)),
        };
        Ok(Rope { theta: self.f64_or("rope.freq_base", default_theta)?, scaling, factors: None })
    }

    /// The settings every family has, as a plain decoder.
    fn plain(&self, family: &'static str) -> Result<Config, ModelError> {
        let (width, n_heads) = (self.usize("embedding_length")?, self.usize("attention.head_count")?);
        let n_layers = self.usize("block_count")?;
        let head_dim = self.usize_or("attention.key_length", width / n_heads.max(1))?;
        let value_dim = self.usize_or("attention.value_length", head_dim)?;
        let rotated = self.usize_or("rope.dimension_count", head_dim)?;
        for (key, got) in [("attention.value_length", value_dim), ("rope.dimension_count", rotated)] {
            if got != head_dim {
                return Err(fields::bad(key, &format!("{head_dim}, the width of a head"), got));
            }
        }
        Ok(Config {
            family,
            vocabulary: self.vocabulary,
            width,
            n_layers,
            n_heads,
            n_kv_heads: self.usize_or("attention.head_count_kv", n_heads)?,
            head_dim,
            ffn: self.usize("feed_forward_length")?,
            norm_epsilon: self.f64_or("attention.layer_norm_rms_epsilon", 1e-5)? as f32,
            context: self.usize("context_length")?,
            tied: self.tied,
            rope: self.rope(10_000.0)?,
            local_rope: None,
            window: None,
            local: vec![false; n_layers],
            qkv_bias: false,
            qk_norm: false,
            post_norms: false,
            norm_plus_one: false,
            gate: crate::config::Gate::Silu,
            embedding_scale: 1.0,
            attention_scale: attention_scale(head_dim as f64),
        })
    }
}

/// 1 / √x in double precision, rounded once.
fn attention_scale(x: f64) -> f32 {
    (1.0 / x.sqrt()) as f32
}

/// Refuses sizes that cannot be computed or that a hostile file would use to ask for all memory.
fn check(config: Config) -> Result<Config, ModelError> {
    let limit = |field: &str, value: usize, most: usize| {
        let ok = value >= 1 && value <= most;
        if ok { Ok(()) } else { Err(fields::bad(field, &format!("1 to {most}"), value)) }
    };
    limit("vocabulary", config.vocabulary, 1 << 22)?;
    limit("width", config.width, 1 << 16)?;
    limit("n_layers", config.n_layers, 1 << 10)?;
    limit("n_heads", config.n_heads, 1 << 10)?;
    limit("n_kv_heads", config.n_kv_heads, config.n_heads)?;
    limit("head_dim", config.head_dim, 1 << 10)?;
    limit("ffn", config.ffn, 1 << 20)?;
    limit("context", config.context, 1 << 24)?;
    limit("query heads a key/value head", config.n_heads / config.n_kv_heads, 64)?;
    if !config.n_heads.is_multiple_of(config.n_kv_heads) {
        let needed = format!("a divisor of the {} query heads", config.n_heads);
        return Err(fields::bad("n_kv_heads", &needed, config.n_kv_heads));
    }
    if !config.head_dim.is_multiple_of(2) {
        return Err(fields::bad("head_dim", "an even number, for rotation", config.head_dim));
    }
    if !(config.norm_epsilon > 0.0 && config.norm_epsilon < 1.0) {
        return Err(fields::bad("norm_epsilon", "between 0 and 1", config.norm_epsilon));
    }
    let theta = config.rope.theta;
    if !(theta > 1.0 && theta < 1e12) {
        return Err(fields::bad("rope_theta", "above 1 and below 1e12", theta));
    }
    Ok(config)
}
