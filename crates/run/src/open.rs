//! Opening a model: weights, configuration and tokenizer from one path.

use std::path::Path;
use std::sync::Arc;

use model::{Config, ModelError, Params};
use tensor::weights::{Weights, WeightsError};
use text::{TextError, Tokenizer};

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
        Weights::Gguf(gguf) => Ok(Tokenizer::from_gguf(train::export::vocabulary(gguf.metadata())?)?),
        Weights::Safetensors(_) => Ok(Tokenizer::from_folder(path.parent().unwrap_or(Path::new(".")))?),
    }
}
