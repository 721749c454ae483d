//! GGUF: the description of a model as metadata, and its tensors.
//!
//! Source: the key names of the format's description and of llama.cpp's converter.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use tensor::weights::{self, OutTensor, Store, Value};

use super::{Merged, must_agree};
use crate::load::{ROPE_FACTORS, unpaired};
use crate::params::Slot;
use crate::rope::{Rope, Scaling};
use crate::{Config, ModelError, arch};

/// The metadata that describes a configuration, without the tokenizer's.
///
/// - Errors: `Field` names a size beyond the format's 32 bits.
pub fn gguf_metadata(c: &Config) -> Result<Vec<(String, Value)>, ModelError> {
    let prefix = arch::of(c).name;
    let mut all = vec![("general.architecture".to_owned(), Value::Text(prefix.to_owned()))];
    let mut add = |key: &str, value: Value| all.push((format!("{prefix}.{key}"), value));
    let whole = |field: &str, n: usize| match u32::try_from(n) {
        Ok(n) => Ok(Value::U32(n)),
        Err(_) => {
            let needed = "a number below 2³²".to_owned();
            Err(ModelError::Field { field: field.to_owned(), needed, got: n.to_string() })
        }
    };
    for (key, n) in [
        ("block_count", c.n_layers),
        ("context_length", c.context),
        ("embedding_length", c.width),
        ("feed_forward_length", c.ffn),
        ("attention.head_count", c.n_heads),
        ("attention.head_count_kv", c.n_kv_heads),
        ("attention.key_length", c.head_dim),
        ("attention.value_length", c.head_dim),
        ("rope.dimension_count", c.head_dim),
        ("vocab_size", c.vocabulary),
    ] {
        add(key, whole(key, n)?);
    }
    add("attention.layer_norm_rms_epsilon", Value::F32(c.norm_epsilon));
    add("rope.freq_base", Value::F32(c.rope.theta as f32));
    if let Some(window) = c.window {
        add("attention.sliding_window", whole("window", window)?);
    }
    match c.rope.scaling {
        // Listed as divisors in a tensor.
        Scaling::None | Scaling::Llama3 { .. } => {}
        Scaling::Linear { factor } => {
            add("rope.scaling.type", Value::Text("linear".to_owned()));
            add("rope.scaling.factor", Value::F32(factor as f32));
        }
        Scaling::Yarn { factor, fast, slow, original, .. } => {
            add("rope.scaling.type", Value::Text("yarn".to_owned()));
            add("rope.scaling.factor", Value::F32(factor as f32));
            add("rope.scaling.original_context_length", whole("rope.original", original as usize)?);
            add("rope.scaling.yarn_beta_fast", Value::F32(fast as f32));
            add("rope.scaling.yarn_beta_slow", Value::F32(slow as f32));
        }
    }
    Ok(all)
}

/// Divisors of the frequencies, `[head_dim / 2]`: those of the file a model came from, or those of its `llama3` scaling.
fn factors(c: &Config) -> Option<Vec<f32>> {
    if let (None, Scaling::Llama3 { .. }) = (&c.rope.factors, c.rope.scaling) {
        let (scaled, _) = c.rope.frequencies(c.head_dim);
        let (plain, _) = Rope::plain(c.rope.theta).frequencies(c.head_dim);
        return Some(plain.iter().zip(scaled).map(|(p, s)| (p / s) as f32).collect());
    }
    c.rope.factors.clone()
}

/// Writes a GGUF file: matrices as `store`, norms, biases and frequency divisors as f32.
///
/// - Holds: stored as f32, what is read back has the bits of [`Merged::read`] with norms ready for use; rotations agree to the
///   rounding of f32.
/// - Errors: `Field` names the first setting that `metadata`, read back, says otherwise than the configuration; rows that the
///   encoding cannot hold; a weight that is not finite or beyond the encoding; `out`'s own.
pub fn write_gguf(
    path: &Path,
    out: &mut dyn Write,
    merged: &Merged<'_>,
    metadata: &[(String, Value)],
    store: Store,
) -> Result<(), ModelError> {
    let c = merged.config();
    let factors = factors(c);
    let stored = read_back(path, c, metadata, factors.clone())?;
    must_agree(c, &stored, "GGUF")?;
    let pairs = arch::of(c).gguf_pairs;
    let (stored, factors) = (&stored, factors.as_deref());
    let mut tensors = Vec::new();
    for slot in Slot::all(c) {
        let shape = slot.shape(c);
        let store = if shape.len() == 1 { Store::F32 } else { store };
        let values = move || Cow::Owned(paired(merged.read(stored, slot), slot, c, pairs));
        tensors.push((OutTensor::made(slot.gguf_name(), shape, values), store));
    }
    if let Some(factors) = factors {
        tensors.push((OutTensor::new(ROPE_FACTORS, [factors.len()], factors), Store::F32));
    }
    Ok(weights::write_gguf(path, out, metadata, &tensors)?)
}

/// The configuration a reader of the file will see.
fn read_back(
    path: &Path,
    c: &Config,
    metadata: &[(String, Value)],
    factors: Option<Vec<f32>>,
) -> Result<Config, ModelError> {
    let own: Vec<_> = metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer.")).cloned().collect();
    let mut head = Vec::new();
    weights::write_gguf(path, &mut head, &own, &[])?;
    let head = weights::Gguf::from_bytes(path, head)?;
    let mut stored = arch::from_gguf(head.metadata(), c.tied, c.vocabulary)?;
    stored.rope.factors = factors;
    Ok(stored)
}

/// Rows in the file's order: each goes where the reader will take it from.
fn paired(values: Vec<f32>, slot: Slot, c: &Config, pairs: bool) -> Vec<f32> {
    let shape = slot.shape(c);
    if !pairs || shape.len() == 1 {
        return values;
    }
    let (n, k) = (shape[0], shape[1]);
    (0..n).flat_map(|row| &values[unpaired(slot, c, pairs, row) * k..][..k]).copied().collect()
}
