//! A Hugging Face folder: what a folder came with is copied as it stands, what a GGUF file came with is translated.
//!
//! A copied `config.json` keeps its word on precision (`torch_dtype`): programs that follow it, as `transformers` does unless
//! told a type, round the f32 weights of the file to the base model's own type when they load them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use model::arch;
use model::export::{Merged, hf_config, write_hf};
use serde_json::{Value, json};
use text::Tokenizer;

use super::{ExportError, Source, gguf};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// Files of a folder that belong to any weights of its model. The model card is not among them, since it speaks of other
/// weights; the licence is, since it binds whoever passes these on.
const COPIED: [&str; 14] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
];

/// Fills `folder`, which messages call by the name it will have.
pub(super) fn write(
    folder: &Path,
    name: &Path,
    source: &(&Path, Source),
    merged: &Merged<'_>,
) -> Result<(), ExportError> {
    let json = match source {
        (_, Source::Folder(from)) => copied(from, folder)?,
        (path, Source::Gguf(file)) => translated(path, file, folder, merged)?,
    };
    let stored = arch::from_hf(&json)?;
    let path = name.join(WEIGHTS);
    let failed = ExportError::io("write", &path);
    let file = File::create_new(folder.join(WEIGHTS)).map_err(&failed)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    write_hf(&path, &mut out, merged, &stored)?;
    out.flush().map_err(failed)
}

/// Copies a folder's files byte by byte, and gives its `config.json`.
fn copied(from: &Path, to: &Path) -> Result<Value, ExportError> {
    for name in COPIED {
        let path = from.join(name);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(ExportError::io("read", &path)(e)),
        };
        let new = to.join(name);
        let mut out = File::create_new(&new).map_err(ExportError::io("write", &new))?;
        io::copy(&mut file, &mut out).map_err(ExportError::io("copy", &path))?;
    }
    let path = to.join(CONFIG);
    let bytes = fs::read(&path).map_err(ExportError::io("read", &path))?;
    Ok(serde_json::from_slice(&bytes).map_err(|e| model::ModelError::Json { path, reason: e.to_string() })?)
}

/// Writes `config.json` and the tokenizer's files from a GGUF file, and checks that it is the same tokenizer.
fn translated(
    path: &Path,
    file: &tensor::weights::Gguf,
    folder: &Path,
    merged: &Merged<'_>,
) -> Result<Value, ExportError> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(ExportError::io("write", &path))
    };
    let vocabulary = gguf::vocabulary(file.metadata())?;
    let mut config = hf_config(merged.config())?;
    let eos: Vec<u32> = vocabulary.eos.into_iter().chain(vocabulary.eot).collect();
    let eos = if eos.len() == 1 { json!(eos[0]) } else { json!(eos) };
    for (key, id) in [
        ("bos_token_id", vocabulary.bos.map(Value::from)),
        ("eos_token_id", (!eos.as_array().is_some_and(Vec::is_empty)).then_some(eos)),
        ("pad_token_id", vocabulary.pad.map(Value::from)),
    ] {
        // Null rather than left out: some families have other numbers for what is not said.
        config[key] = id.unwrap_or(Value::Null);
    }
    write(CONFIG, &serde_json::to_vec_pretty(&config).expect("a JSON value always serialises"))?;
    for (name, bytes) in vocabulary.folder_files()? {
        write(name, &bytes)?;
    }
    if Tokenizer::from_folder(folder)?.fingerprint() != Tokenizer::from_gguf(vocabulary)?.fingerprint() {
        return Err(ExportError::Tokenizer { path: path.to_owned() });
    }
    Ok(config)
}
