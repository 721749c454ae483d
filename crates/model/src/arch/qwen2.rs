//! Qwen2 and Qwen2.5: biases on queries, keys and values.

use serde_json::json;

use super::{Arch, Fields, Gguf};
use crate::{Config, ModelError};
use tensor::weights::Metadata;

pub(super) static ARCH: Arch = Arch { name: "qwen2", model_types: &["qwen2"], gguf_pairs: false, from_hf, from_gguf };

pub(super) fn checked(f: &mut Fields<'_>, default_dim: Option<usize>) -> Result<Config, ModelError> {
    f.must_be("hidden_act", json!("silu"))?;
    f.must_be("use_sliding_window", json!(false))?;
    f.must_be("use_mrope", json!(false))?;
    // Has no effect while `use_sliding_window` is false.
    f.get("sliding_window");
    f.plain(10_000.0, default_dim)
}

fn from_hf(f: &mut Fields<'_>) -> Result<Config, ModelError> {
    // Qwen2 has these biases whatever the file says; some files write the word all the same.
    f.get("attention_bias");
    Ok(Config { qkv_bias: true, ..checked(f, None)? })
}

fn from_gguf(_: &Metadata, g: &Gguf<'_>) -> Result<Config, ModelError> {
    Ok(Config { qkv_bias: true, ..g.plain("qwen2")? })
}
