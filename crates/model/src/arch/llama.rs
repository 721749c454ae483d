//! Llama 2 and 3, SmolLM and SmolLM2: the plain decoder.

use serde_json::json;

use super::{Arch, Fields, Gguf};
use crate::{Config, ModelError};
use tensor::weights::Metadata;

pub(super) static ARCH: Arch = Arch { name: "llama", model_types: &["llama"], gguf_pairs: true, from_hf, from_gguf };

fn from_hf(f: &mut Fields<'_>) -> Result<Config, ModelError> {
    f.must_be("hidden_act", json!("silu"))?;
    f.must_be("attention_bias", json!(false))?;
    f.must_be("mlp_bias", json!(false))?;
    f.must_be("pretraining_tp", json!(1))?;
    f.plain(10_000.0, None)
}

fn from_gguf(_: &Metadata, g: &Gguf<'_>) -> Result<Config, ModelError> {
    g.plain("llama")
}
