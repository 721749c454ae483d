//! Learning curves of every algorithm on one small task, from one start, over several seeds, beside a control that must not
//! learn; self-distillation where graders say what was wrong; and what lag does to the corrections.
//!
//! ```console
//! cargo run --release -p surefoot-run --example curves -- --out target/curves
//! ```
//!
//! It makes a model of fixed random weights, warms it up with `sft` until it answers some sums right, and trains from there
//! by run files like anyone's. Runs that are in the folder already are read, not run again, where their settings are the
//! same. `docs/algorithms-compared.md` says what is measured and what came of it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints what it finds")]

mod cases;
mod ground;
mod model;
mod pairs;
mod report;
mod trial;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cases::{Case, Part};
use ground::Ground;
use report::Row;

const USAGE: &str = "\
usage: curves [--out DIR] [--part algorithms|feedback|lag|all] [--algorithms NAME,…] [--seeds N] [--controls N]
              [--steps N] [--tasks N] [--threads N] [--set KEY=VALUE]…

  --out         where runs and tables go; target/curves unless given
  --part        every algorithm (`algorithms`), self-distillation beside GRPO (`feedback`), lag (`lag`); all unless given
  --algorithms  only the rows of these names
  --seeds       seeds of each row; 3 unless given
  --controls    seeds of each control; as many as --seeds unless given
  --steps       steps of each run; 100 unless given
  --tasks       held-out tasks; 400 unless given
  --threads     threads of the engine; 1 unless given
  --set         a setting of every run after the warm-up";

/// What was asked for.
pub(crate) struct Options {
    pub(crate) out: PathBuf,
    parts: Vec<Part>,
    only: Option<Vec<String>>,
    pub(crate) seeds: u64,
    pub(crate) controls: u64,
    pub(crate) steps: u64,
    pub(crate) tasks: usize,
    pub(crate) threads: usize,
    pub(crate) changes: Vec<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            out: PathBuf::from("target/curves"),
            parts: Part::ALL.to_vec(),
            only: None,
            seeds: 3,
            controls: u64::MAX,
            steps: 100,
            tasks: 400,
            threads: 1,
            changes: Vec::new(),
        };
        while let Some(key) = args.next() {
            let value = args.next().ok_or_else(|| format!("`{key}` needs a value\n\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{key}` is `{value}`, needed a whole number"));
            match key.as_str() {
                "--out" => options.out = PathBuf::from(&value),
                "--part" if value == "all" => options.parts = Part::ALL.to_vec(),
                "--part" => {
                    let part = Part::ALL.iter().find(|p| p.name() == value);
                    options.parts = vec![*part.ok_or_else(|| format!("no part `{value}`\n\n{USAGE}"))?];
                }
                "--algorithms" => options.only = Some(value.split(',').map(str::to_owned).collect()),
                "--seeds" => options.seeds = number()?.max(1),
                "--controls" => options.controls = number()?,
                "--steps" => options.steps = number()?.max(1),
                "--tasks" => options.tasks = number()? as usize,
                "--threads" => options.threads = number()? as usize,
                "--set" => options.changes.push(value),
                _ => return Err(format!("unknown option `{key}`\n\n{USAGE}")),
            }
        }
        options.controls = options.controls.min(options.seeds);
        Ok(options)
    }

    fn wants(&self, case: &Case) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| *name == case.name || *name == case.algorithm))
    }
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).map_err(Into::into).and_then(|options| everything(&options));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn everything(options: &Options) -> Result<(), Box<dyn Error>> {
    let missing = algo::Settings::NAMES.iter().find(|name| !cases::algorithms().iter().any(|c| c.algorithm == **name));
    if let Some(name) = missing {
        return Err(format!("no row for the algorithm `{name}`, needed one for each").into());
    }
    std::fs::create_dir_all(&options.out)?;
    let ground = Ground::make(options)?;
    for part in &options.parts {
        let mut rows = Vec::new();
        for case in cases::of(*part).iter().filter(|case| options.wants(case)) {
            println!("{}", case.name);
            let row = row(options, &ground, case)?;
            println!("  {}", row.line());
            rows.push(row);
        }
        write(&options.out, *part, &rows)?;
    }
    Ok(())
}

/// Every run of one row.
fn row(options: &Options, ground: &Ground, case: &Case) -> Result<Row, Box<dyn Error>> {
    let mut row = Row { case: case.clone(), runs: Vec::new(), controls: Vec::new() };
    for seed in 1..=options.seeds {
        row.runs.push((seed, ground.trial(options, case, seed, false)?));
    }
    if case.control.is_some() {
        for seed in 1..=options.controls {
            row.controls.push((seed, ground.trial(options, case, seed, true)?));
        }
    }
    Ok(row)
}

fn write(out: &Path, part: Part, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let name = part.name();
    std::fs::write(out.join(format!("{name}-curves.csv")), report::curves(rows))?;
    std::fs::write(out.join(format!("{name}-summary.csv")), report::summary(rows))?;
    let table = report::table(part, rows);
    std::fs::write(out.join(format!("{name}.md")), &table)?;
    println!("\n{table}");
    Ok(())
}
