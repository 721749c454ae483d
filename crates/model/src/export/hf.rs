//! Hugging Face's folder layout: `config.json` from our own description, and `model.safetensors`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use tensor::weights::{OutTensor, write_safetensors};

use super::{Merged, must_agree};
use crate::params::Slot;
use crate::rope::{Rope, Scaling};
use crate::{Config, ModelError, arch};

/// How `config.json` names a family, and what it says beyond what all families say.
struct Family {
    name: &'static str,
    class: &'static str,
    model_type: &'static str,
    extra: fn(&Config) -> Value,
}

/// The families, as in [`arch`].
static FAMILIES: [Family; 4] = [
    Family {
        name: "llama",
        class: "LlamaForCausalLM",
        model_type: "llama",
        extra: |_| json!({ "hidden_act": "silu", "attention_bias": false, "mlp_bias": false }),
    },
    Family {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        extra: |_| json!({ "hidden_act": "silu", "use_sliding_window": false }),
    },
    Family {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        extra: |_| json!({ "hidden_act": "silu", "attention_bias": false, "use_sliding_window": false }),
    },
    Family { name: "gemma3", class: "Gemma3ForCausalLM", model_type: "gemma3_text", extra: gemma3 },
];

fn gemma3(c: &Config) -> Value {
    let kind = |local: &bool| if *local { "sliding_attention" } else { "full_attention" };
    let local = c.local_rope.as_ref().unwrap_or(&c.rope);
    // The scale is 1/√scalar rounded to f32, and published scalars are whole numbers.
    let scalar = (1.0 / f64::from(c.attention_scale).powi(2)).round();
    json!({
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "query_pre_attn_scalar": number(scalar),
        "sliding_window": c.window,
        "layer_types": c.local.iter().map(kind).collect::<Vec<_>>(),
        "rope_local_base_freq": local.theta,
        "attn_logit_softcapping": null,
        "final_logit_softcapping": null,
    })
}

/// The `config.json` of a configuration, as our reader and `transformers` understand it; ids of special tokens are the
/// caller's to add.
///
/// - Holds: read back it gives the same maths: every field but rotations exactly, those to the rounding of f32.
/// - Errors: `Field` names the first setting that `config.json` cannot say.
pub fn hf_config(c: &Config) -> Result<Value, ModelError> {
    let family = FAMILIES.iter().find(|f| f.name == c.family);
    let family = family.expect("a test compares the table with the families");
    let Value::Object(mut map) = json!({
        "architectures": [family.class],
        "model_type": family.model_type,
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.context,
        "rms_norm_eps": shortest(c.norm_epsilon),
        "rope_theta": c.rope.theta,
        "rope_scaling": scaling(&c.rope, c.head_dim)?,
        "tie_word_embeddings": c.tied,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": true,
    }) else {
        unreachable!("braces make an object")
    };
    if let Value::Object(extra) = (family.extra)(c) {
        map.extend(extra);
    }
    let json = Value::Object(map);
    must_agree(c, &arch::from_hf(&json)?, "`config.json`")?;
    Ok(json)
}

/// The f64 with the fewest digits that is still this f32: `1e-5` rather than `9.99999974737875e-6`.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().expect("what f32 prints, f64 reads")
}

/// A whole number without a point.
fn number(x: f64) -> Value {
    if x.fract() == 0.0 && (0.0..9e15).contains(&x) { json!(x as u64) } else { json!(x) }
}

fn scaling(rope: &Rope, head_dim: usize) -> Result<Value, ModelError> {
    let scaling = match (&rope.factors, rope.scaling) {
        (None, scaling) => scaling,
        (Some(factors), Scaling::None) => llama3_from(rope, factors, head_dim)?,
        (Some(_), _) => return Err(unknown_factors()),
    };
    Ok(match scaling {
        Scaling::None => Value::Null,
        Scaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": number(original),
        }),
        Scaling::Yarn { factor, fast, slow, original, attention } => {
            let Value::Object(mut map) = json!({
                "rope_type": "yarn",
                "factor": factor,
                "beta_fast": fast,
                "beta_slow": slow,
                "original_max_position_embeddings": number(original),
            }) else {
                unreachable!("braces make an object")
            };
            map.extend(attention.map(|a| ("attention_factor".to_owned(), json!(a))));
            Value::Object(map)
        }
    })
}

/// The `llama3` scaling behind a GGUF file's list of divisors.
///
/// The largest divisor is the factor. All published models blend between 1 and 4 turns within an original context that is
/// a power of two, so that one number is left to find.
fn llama3_from(rope: &Rope, factors: &[f32], head_dim: usize) -> Result<Scaling, ModelError> {
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let candidates = (4..24).map(|bits| f64::from(1_u32 << bits));
    let mut all = candidates.map(|original| Scaling::Llama3 { factor, low: 1.0, high: 4.0, original });
    let fits = |s: &Scaling| super::same_rope(rope, &Rope { theta: rope.theta, scaling: *s, factors: None }, head_dim);
    all.find(fits).ok_or_else(unknown_factors)
}

fn unknown_factors() -> ModelError {
    ModelError::Field {
        field: "rope_freqs.weight".to_owned(),
        needed: "divisors of a `llama3` scaling, the only ones `config.json` can say".to_owned(),
        got: "other divisors".to_owned(),
    }
}

/// Writes `model.safetensors`; `stored` is what [`arch::from_hf`] reads from the folder's `config.json`.
///
/// - Holds: what is read back has the bits of [`Merged::read`]. Where norms are stored as offsets from 1, a norm that is no
///   multiple of 2⁻²⁴ is rounded to one.
/// - Errors: `Field` when `stored` is another model; a weight that is not finite; `out`'s own.
pub fn write_hf(path: &Path, out: &mut dyn Write, merged: &Merged<'_>, stored: &Config) -> Result<(), ModelError> {
    must_agree(merged.config(), stored, "this `config.json`")?;
    let tensor = |slot: Slot| {
        OutTensor::made(slot.hf_name(stored), slot.shape(stored), move || Cow::Owned(merged.read(stored, slot)))
    };
    let tensors: Vec<OutTensor<'_>> = Slot::all(stored).into_iter().map(tensor).collect();
    let metadata: BTreeMap<String, String> = [("format", "pt")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    Ok(write_safetensors(path, out, tensors, &metadata)?)
}

/// The names of the table, for the test that compares it with the families.
#[cfg(test)]
pub(super) fn families() -> Vec<&'static str> {
    FAMILIES.iter().map(|f| f.name).collect()
}
