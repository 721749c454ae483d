//! Opening a model: weights, configuration and tokenizer from one path.

use std::path::Path;
use std::sync::Arc;

use model::{Config, ModelError, Params};
use tensor::weights::{Gguf, Metadata, Weights, WeightsError};
use text::{GgufVocabulary, TextError, Tokenizer};

/// Why a model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The weights or their configuration.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl From<WeightsError> for OpenError {
    fn from(error: WeightsError) -> Self {
        OpenError::Model(error.into())
    }
}

/// A model that was read.
pub struct Opened {
    /// What it computes.
    pub config: Config,
    /// With what.
    pub params: Params,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
}

/// Reads weights and tokenizer of a Hugging Face folder or a GGUF file.
pub fn open(path: &Path) -> Result<Opened, OpenError> {
    // The tokenizer first: it is small, and a bad one is known before the weights are read.
    let tokenizer = Arc::new(tokenizer(path)?);
    let (config, params) = model::load(path)?;
    Ok(Opened { config, params, tokenizer })
}

/// Reads the tokenizer alone.
pub fn tokenizer(path: &Path) -> Result<Tokenizer, OpenError> {
    if path.is_dir() {
        return Ok(Tokenizer::from_folder(path)?);
    }
    match Weights::open(path)? {
        Weights::Gguf(gguf) => Ok(Tokenizer::from_gguf(vocabulary(&gguf)?)?),
        Weights::Safetensors(_) => Ok(Tokenizer::from_folder(path.parent().unwrap_or(Path::new(".")))?),
    }
}

fn vocabulary(gguf: &Gguf) -> Result<GgufVocabulary, WeightsError> {
    let m: &Metadata = gguf.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| m.find(&key(name)).map(|e| e.u32()).transpose();
    let flag = |name: &str| m.find(&key(name)).map(|e| e.bool()).transpose();
    let text = |name: &str| m.find(name).map(|e| e.str().map(str::to_owned)).transpose();
    Ok(GgufVocabulary {
        model: m.str(&key("model"))?.to_owned(),
        pre: text(&key("pre"))?,
        tokens: m.strings(&key("tokens"))?.to_vec(),
        token_types: m.find(&key("token_type")).map(|e| e.i32s()).transpose()?.unwrap_or_default(),
        scores: m.find(&key("scores")).map(|e| e.f32s().map(<[f32]>::to_vec)).transpose()?.unwrap_or_default(),
        merges: m.find(&key("merges")).map(|e| e.strings().map(<[String]>::to_vec)).transpose()?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    })
}
