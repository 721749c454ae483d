//! `surefoot verify`: whether a log of receipts is the one that was written.

use std::path::{Path, PathBuf};

use gate::receipt::{self, Checker};
use ledger::{Verifier, Witness};
use serde_json::json;

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;

/// Check a log of receipts, without the program that wrote it
///
/// Two things are checked: that no entry was changed, dropped, added or moved under the checkpoint that the log's key signed;
/// and that what the receipts say adds up: each call that was let through has one end, no approval was used twice, the rules
/// and the principal of a session stayed what they were.
///
/// A signature shows only that whoever has the key made the log. Give the public key you were told with --key, and keep the
/// last checkpoint you saw with --known: then not even the owner of the key can take anything back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder of receipts, or a run's directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// A file with the log's public key [default: `key.pub` in the folder, which proves nothing about whose log it is]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// A file that remembers the last checkpoint seen; made when it is not there
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
}

/// The folder of receipts that a path means.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, Failure> {
    let found = [path.to_owned(), path.join(run::RECEIPTS)].into_iter().find(|p| p.join(run::LOG).is_dir());
    found.ok_or_else(|| {
        let text = format!("there are no receipts in `{}`", show(path));
        Failure::bad(text).hint("give the directory of a run with tools, or the folder that `surefoot agent` names")
    })
}

/// The public key in a file.
pub(crate) fn key(path: &Path) -> Result<Verifier, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    text.trim().parse().map_err(|e: ledger::LedgerError| Failure::bad(e.to_string()).at(format!("`{}`", show(path))))
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let folder = folder(&args.log)?;
    let verifier = key(&args.key.clone().unwrap_or_else(|| folder.join(run::PUBLIC_KEY)))?;
    let mut checker = Checker::default();
    let mut see = |index: u64, entry: &[u8]| receipt::parse(index, entry).map(|logged| checker.take(&logged));
    let log = folder.join(run::LOG);
    let verified = match &args.known {
        Some(path) => {
            let mut witness = Witness::open(path, verifier).map_err(|e| Failure::bad(e.to_string()))?;
            witness.visit_with(&log, &mut see)
        }
        None => ledger::verify_with(&log, &verifier, None, &mut see),
    };
    let checked = checker.finish();
    let faults: Vec<String> = match &verified {
        Ok(_) => Vec::new(),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    };
    let findings: Vec<String> = checked.findings.iter().map(ToString::to_string).collect();
    let is_good = faults.is_empty() && findings.is_empty();
    let root = verified.as_ref().ok().map(|v| v.root.to_string());
    if context.json() {
        context.out.json(&json!({
            "ok": is_good, "receipts": checked.n_receipts, "sessions": checked.n_sessions, "root": root,
            "faults": faults, "findings": findings,
        }))?;
    } else {
        for line in faults.iter().chain(&findings) {
            context.out.line(view::visible(line))?;
        }
        if is_good {
            let (n, sessions) = (checked.n_receipts, checked.n_sessions);
            context.out.line(format!("{n} receipts of {sessions} sessions, none changed; root {}", root.unwrap_or_default()))?;
        }
        if args.key.is_none() {
            context.note("the key was found beside the log: give the one you were told with `--key`");
        }
    }
    match is_good {
        true => Ok(()),
        false => Err(Failure::failed(format!("the log has {} faults", faults.len() + findings.len()))),
    }
}
