//! The command line of Surefoot.
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 bad input, 130
//! interrupted.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, in which brackets mark what may be left out"
)]

mod args;
mod cmd;
mod context;
mod error;
mod jsonl;
mod live;
mod open;
mod out;
mod progress;

use std::process::ExitCode;

use args::Parsed;
use context::Context;
use error::Failure;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let json = args::wants_json(&words);
    let done = match args::parse(words) {
        Ok(Parsed::Run(args)) => Context::new(&args.global).and_then(|context| args.command.run(&context)),
        Ok(Parsed::Text(text)) => out::Out::new(json).text(&text),
        Err(failure) => Err(failure),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(json);
            failure.code.into()
        }
    }
}

/// A command's result.
pub(crate) type Done = Result<(), Failure>;
