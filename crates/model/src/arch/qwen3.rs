//! Qwen3: queries and keys normalised by head, no biases, a head's width of its own.

use serde_json::json;

use super::{Arch, Fields, Gguf, qwen2};
use crate::{Config, ModelError};
use tensor::weights::Metadata;

pub(super) static ARCH: Arch = Arch { name: "qwen3", model_types: &["qwen3"], gguf_pairs: false, from_hf, from_gguf };

fn from_hf(f: &mut Fields<'_>) -> Result<Config, ModelError> {
    f.must_be("attention_bias", json!(false))?;
    Ok(Config { qk_norm: true, ..qwen2::checked(f, Some(128))? })
}

fn from_gguf(_: &Metadata, g: &Gguf<'_>) -> Result<Config, ModelError> {
    Ok(Config { qk_norm: true, ..g.plain("qwen3")? })
}
