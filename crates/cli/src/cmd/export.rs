//! `surefoot export`: a policy in a format that other programs read.

use std::path::PathBuf;

use serde_json::json;
use train::export::{Format, export};
use train::EngineSettings;

use crate::Done;
use crate::context::{Context, show};
use crate::error::{Code, Failure, Judged};
use crate::out::bytes;

/// Write a policy as a PEFT adapter, a Hugging Face folder or a GGUF file
///
/// `peft` writes the adapter alone; the others merge it into the weights, element by element in double precision, rounded
/// once. Everything is written beside the target and renamed when it is whole.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run's checkpoint RUN[@STEP], or a model to convert
    #[arg(value_name = "RUN[@STEP]")]
    model: String,
    /// `peft`, `hf`, `gguf` (half precision), `gguf-f32`, `gguf-bf16` or `gguf-q8_0`
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// The folder or file to make
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// A folder with an adapter in PEFT's layout to put on the model first
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

impl Judged for train::export::ExportError {
    fn code(&self) -> Code {
        Code::BadInput
    }
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let located = context.locate(&args.model)?;
    let mut engine = located.engine(context.cpu()?, None, None, EngineSettings::default(), 0)?;
    if let Some(folder) = &args.adapter {
        located.wear(&mut engine, folder)?;
    }
    if located.learned.as_ref().is_some_and(|l| train::has_value_head(&l.weights)) {
        context.note("its value head is left out: no format here has a place for one");
    }
    let done = export(&engine, &located.path, &located.base_name(), &args.out, args.to)
        .map_err(|e| Failure::from(e).at(format!("`{}`", show(&args.out))))?;
    if context.json() {
        let files: Vec<_> =
            done.files.iter().map(|(path, size)| json!({ "path": show(path), "size_bytes": size })).collect();
        return context.out.json(&json!({ "out": show(&args.out), "merged": done.n_merged, "files": files }));
    }
    let size: u64 = done.files.iter().map(|(_, size)| size).sum();
    context.out.line(format!("{} ({}, {} adapted tensors merged)", show(&args.out), bytes(size), done.n_merged))
}
