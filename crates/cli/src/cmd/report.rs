//! `surefoot report`: a run as a page.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use store::RunDir;
use view::{Excerpt, RunView};

use crate::Done;
use crate::cmd::runs::needed;
use crate::context::{Context, show};
use crate::error::Failure;

/// Write a run's report: one HTML page that works without a network; its path is printed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its directory, its id or its directory's name
    run: String,
    /// Where to write the page [default: report.html in the run's directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let run = needed(context, &args.run)?;
    let path = write(context, &run, args.out)?;
    if context.json() {
        return context.out.json(&json!({"run": run.run_id().as_str(), "report": show(&path)}));
    }
    context.out.line(view::visible(&show(&path)))
}

/// Writes a run's report, by default into its directory, and says where; a page is there whole or not at all.
pub(crate) fn write(context: &Context, run: &RunDir, out: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let path = out.unwrap_or_else(|| run.path().join("report.html"));
    let page = view::html(&load(context, run, Excerpt::default())?);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let refused = |e: &std::io::Error| Failure::io("write", &path, e);
    let mut file = tempfile::Builder::new().prefix(".report-").tempfile_in(folder).map_err(|e| refused(&e))?;
    file.write_all(page.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(|e| refused(&e))?;
    // A temporary file is for its owner only; a report is an ordinary file.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(readable).map_err(|e| refused(&e))?;
    file.persist(&path).map_err(|e| refused(&e.error))?;
    Ok(path)
}

/// Reads what is shown of a run. Where its model's tokenizer is gone, tokens are shown as numbers, and that is said.
pub(crate) fn load(context: &Context, run: &RunDir, excerpt: Excerpt) -> Result<RunView, Failure> {
    let tokenizer = crate::open::tokenizer_of(context, run);
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(failure) => {
            context
                .note(&format!("tokens are shown as numbers, since the tokenizer cannot be read: {}", failure.message));
            None
        }
    };
    let decode = |token| match &tokenizer {
        Some(tokenizer) => tokenizer.decode(&[token], false),
        None => format!("⟨{token}⟩"),
    };
    Ok(view::load(run, excerpt, &decode)?)
}
