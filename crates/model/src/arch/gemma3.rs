//! Gemma 3 (text): local and global layers, norms before and after each half, scaled embeddings.

use serde_json::{Value, json};

use super::fields::{bad, rope_from};
use super::{Arch, Fields, Gguf, attention_scale};
use crate::config::Gate;
use crate::rope::{Rope, Scaling};
use crate::{Config, ModelError};
use tensor::weights::Metadata;

pub(super) static ARCH: Arch =
    Arch { name: "gemma3", model_types: &["gemma3_text"], gguf_pairs: false, from_hf, from_gguf };

/// Every how manieth layer is global when the file does not say.
const PATTERN: usize = 6;
/// A head's width when the file does not say.
const HEAD_DIM: Option<usize> = Some(256);
const LOCAL_THETA: f64 = 10_000.0;
const GLOBAL_THETA: f64 = 1_000_000.0;

fn from_hf(f: &mut Fields<'_>) -> Result<Config, ModelError> {
    f.must_be("hidden_activation", json!("gelu_pytorch_tanh"))?;
    f.must_be("hidden_act", json!("gelu_pytorch_tanh"))?;
    f.must_be("attention_bias", json!(false))?;
    f.must_be("attn_logit_softcapping", Value::Null)?;
    f.must_be("final_logit_softcapping", Value::Null)?;
    f.must_be("use_bidirectional_attention", json!(false))?;
    let local_theta = f.f64_or("rope_local_base_freq", LOCAL_THETA)?;
    let by_kind = f.get("rope_parameters").filter(|v| v.get("full_attention").is_some());
    let query_scalar = f.f64_or("query_pre_attn_scalar", 256.0)?;
    let window = f.usize("sliding_window")?;
    let pattern = f.optional_usize("sliding_window_pattern")?.unwrap_or(PATTERN);
    let kinds = f.get("layer_types");
    // Gemma ties its head unless the file says otherwise.
    let tied = f.bool_or("tie_word_embeddings", true)?;
    let mut config = if let Some(kinds) = by_kind {
        let mut config = f.without_rope(HEAD_DIM)?;
        let one = |kind: &str, theta| rope_from(kinds.get(kind).unwrap_or(&Value::Null), theta, config.context);
        let (global, local) = (one("full_attention", GLOBAL_THETA)?, one("sliding_attention", local_theta)?);
        (config.rope, config.local_rope) = (global, Some(local));
        config
    } else {
        let mut config = f.plain(GLOBAL_THETA, HEAD_DIM)?;
        config.local_rope = Some(Rope::plain(local_theta));
        config
    };
    config.local = match kinds {
        None => local_by_pattern(config.n_layers, pattern)?,
        Some(kinds) => local_by_name(kinds, config.n_layers)?,
    };
    config.tied = tied;
    config.window = Some(window);
    config.attention_scale = attention_scale(query_scalar);
    Ok(finished(config))
}

fn from_gguf(_: &Metadata, g: &Gguf<'_>) -> Result<Config, ModelError> {
    let mut config = g.plain("gemma3")?;
    config.rope = g.rope(GLOBAL_THETA)?;
    config.local_rope = Some(Rope { theta: LOCAL_THETA, scaling: Scaling::None, factors: None });
    config.local = local_by_pattern(config.n_layers, PATTERN)?;
    config.window = Some(g.usize("attention.sliding_window")?);
    let mut config = finished(config);
    // The converter has added the 1 already.
    config.norm_plus_one = false;
    Ok(config)
}

fn finished(config: Config) -> Config {
    Config {
        embedding_scale: (config.width as f64).sqrt() as f32,
        gate: Gate::Gelu,
        qk_norm: true,
        post_norms: true,
        norm_plus_one: true,
        ..config
    }
}

fn local_by_pattern(n_layers: usize, pattern: usize) -> Result<Vec<bool>, ModelError> {
    if pattern == 0 {
        return Err(bad("sliding_window_pattern", "at least 1", pattern));
    }
    Ok((0..n_layers.min(1 << 10)).map(|i| !(i + 1).is_multiple_of(pattern)).collect())
}

fn local_by_name(kinds: &Value, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let needed = format!("`sliding_attention` or `full_attention` for each of {n_layers} layers");
    let list = kinds.as_array().filter(|k| k.len() == n_layers).ok_or_else(|| bad("layer_types", &needed, kinds))?;
    list.iter()
        .map(|k| match k.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(bad("layer_types", &needed, k)),
        })
        .collect()
}
