//! A policy as files of other programs: PEFT's adapter folder, a Hugging Face folder, a GGUF file.
//!
//! Each is written under another name beside its place, synced and renamed, so that it is there whole or not at all.

mod gguf;
mod hf;
mod place;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use model::ModelError;
use model::export::Merged;
use tensor::weights::{Gguf, Store, Weights, WeightsError};
use text::TextError;

use crate::Engine;

pub use gguf::vocabulary;

/// A kind of export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The adapter alone, in PEFT's folder layout, naming the model it belongs to.
    Peft,
    /// A Hugging Face folder with the adapter merged, in f32.
    Hf,
    /// A GGUF file with the adapter merged, matrices in this encoding.
    Gguf(Store),
}

impl Format {
    /// Every format and its name. Plain `gguf` is F16: every GGUF program reads it, and of the two encodings of 16 bits it
    /// keeps more digits; a weight beyond its range is refused, not cut.
    const NAMES: [(&'static str, Format); 7] = [
        ("peft", Format::Peft),
        ("hf", Format::Hf),
        ("gguf", Format::Gguf(Store::F16)),
        ("gguf-f32", Format::Gguf(Store::F32)),
        ("gguf-f16", Format::Gguf(Store::F16)),
        ("gguf-bf16", Format::Gguf(Store::Bf16)),
        ("gguf-q8_0", Format::Gguf(Store::Q8_0)),
    ];
}

/// The names of all formats.
pub fn formats() -> impl Iterator<Item = &'static str> {
    Format::NAMES.iter().map(|(name, _)| *name)
}

impl FromStr for Format {
    type Err = ExportError;

    fn from_str(text: &str) -> Result<Format, ExportError> {
        let found = Format::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, format)| *format).ok_or_else(|| ExportError::UnknownFormat { got: text.to_owned() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The most exact of its names is the last.
        let name = Format::NAMES.iter().rev().find(|(_, format)| format == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Every file and its size in bytes, sorted by path.
    pub files: Vec<(PathBuf, u64)>,
    /// How many weight tensors differ from the base model's by the adapter; none are merged into a PEFT folder.
    pub n_merged: usize,
}

/// Why a policy was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No such format.
    #[error("unknown format `{got}`, needed one of {}", formats().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "))]
    UnknownFormat {
        /// What was asked for.
        got: String,
    },
    /// There is something where the export would go.
    #[error("`{}` exists already, needed a new name", path.display())]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// An adapter was asked for, and there is none.
    #[error("the policy has no adapter, its own weights were trained: needed the format `hf` or `gguf`, got `peft`")]
    NoAdapter,
    /// The base model is another than the one the policy was made from.
    #[error("`{}` is not the model of this policy: needed a `{needed}`, got a `{got}`", path.display())]
    Source {
        /// Where the base model was looked for.
        path: PathBuf,
        /// The policy's model, in short.
        needed: String,
        /// The model there, in short.
        got: String,
    },
    /// The tokenizer that was written is not the one of the base model.
    #[error("the tokenizer of `{}` cannot be written as a folder without changing it", path.display())]
    Tokenizer {
        /// The base model.
        path: PathBuf,
    },
    /// The model, its adapter or its weights are at fault, or beyond the format.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer is at fault, or beyond the format.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl From<WeightsError> for ExportError {
    fn from(error: WeightsError) -> Self {
        ExportError::Model(error.into())
    }
}

impl ExportError {
    fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> ExportError {
        move |source| ExportError::Io { path: path.to_owned(), action, source }
    }
}

/// The base model, for what is not weights: settings, tokenizer, chat template.
enum Source {
    Folder(PathBuf),
    Gguf(Box<Gguf>),
}

impl Source {
    fn open(path: &Path) -> Result<Source, ExportError> {
        match Weights::open(path)? {
            Weights::Gguf(gguf) => Ok(Source::Gguf(Box::new(gguf))),
            Weights::Safetensors(_) if path.is_dir() => Ok(Source::Folder(path.to_owned())),
            Weights::Safetensors(_) => Ok(Source::Folder(place::parent(path))),
        }
    }
}

/// Writes a policy to `target`, which must not exist: a folder, or for GGUF a file.
///
/// `source` is the base model's folder or file; `base_name` is what a PEFT folder and a GGUF file call it. A value head is
/// left out: none of the formats has a place for one; [`crate::has_value_head`] tells whether a checkpoint has one.
///
/// - Holds: the bytes depend on the policy, the source and `base_name` alone. On an error nothing is at `target`. A merged
///   weight is `W + (alpha / r) · B·A` rounded once to f32 ([`Merged`]): merged logits agree with unmerged ones to a few
///   millionths of the largest. GGUF in F32 keeps those bits; so does a Hugging Face folder, norms stored as offsets from 1
///   (Gemma) to a multiple of 2⁻²⁴.
/// - Errors: a source that is not the policy's model; what the format cannot say, by name; the system's.
pub fn export(
    engine: &Engine,
    source: &Path,
    base_name: &str,
    target: &Path,
    format: Format,
) -> Result<Exported, ExportError> {
    place::free(target)?;
    let (config, adapter) = (engine.config(), engine.adapter());
    let merged = Merged::new(engine.cpu(), config, engine.params(), adapter)?;
    let n_merged = if format == Format::Peft { 0 } else { merged.n_changed() };
    match format {
        Format::Peft => {
            let adapter = adapter.ok_or(ExportError::NoAdapter)?;
            check_source(engine, source)?;
            place::folder(target, |folder| Ok(model::peft::save(folder, config, adapter, base_name)?))?;
        }
        Format::Hf => {
            check_source(engine, source)?;
            let source = (source, Source::open(source)?);
            place::folder(target, |folder| hf::write(folder, target, &source, &merged))?;
        }
        Format::Gguf(store) => {
            check_source(engine, source)?;
            let metadata = gguf::metadata(config, &Source::open(source)?, base_name, store)?;
            let fill =
                |out: &mut dyn std::io::Write| Ok(model::export::write_gguf(target, out, &merged, &metadata, store)?);
            place::file(target, fill)?;
        }
    }
    Ok(Exported { files: place::sizes(target)?, n_merged })
}

/// Refuses a source that is another model: its tokenizer and settings would be given to the wrong weights.
fn check_source(engine: &Engine, source: &Path) -> Result<(), ExportError> {
    let got = model::load::load_config(source)?;
    if got == *engine.config() {
        return Ok(());
    }
    let short = |c: &model::Config| {
        format!(
            "{} of {} layers, width {}, vocabulary {}, context {}",
            c.family, c.n_layers, c.width, c.vocabulary, c.context
        )
    };
    let (needed, got) = (short(engine.config()), short(&got));
    Err(ExportError::Source { path: source.to_owned(), needed, got })
}
