//! The workspace's own checks: `cargo xtask tidy`, `cargo xtask floors`, `cargo xtask faults`, `cargo xtask ci`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

mod ci;
mod faults;
mod floors;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

  tidy        compare the tree with the rules of the house
  floors      print the table of crates for ARCHITECTURE.md
  faults      build with faults put in on purpose; the tests named for them must fail
  ci [STEP…]  run everything that CI runs, in its order, or only the named steps";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["tidy"] => tidy::run(&root()),
        ["floors"] => tidy::Tree::read(&root()).map(|tree| print!("{}", floors::table(&tree.crate_names()))),
        ["faults"] => faults::run(&root()),
        ["ci", steps @ ..] => ci::run(&root(), steps),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
