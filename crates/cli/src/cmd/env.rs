//! `surefoot env`: whether an environment can be trusted.

use std::path::{Path, PathBuf};

use env::{Audit, Kind, Probe, Settings, audit};
use serde::Deserialize;
use serde_json::json;

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;

/// Look at environments and their graders
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Ask graders about gold answers and about answers that deserve nothing
    ///
    /// The same audit runs at the start of training. Every grader must give full marks to each gold answer; saying
    /// nothing, repeating the question, junk and any constant answer must earn next to nothing; loading twice must give
    /// the same tasks, none on both sides of the split; judging twice must agree. Exits with 1 where it does not hold.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// A run file; every `[[env]]` of it is looked at
    #[arg(value_name = "RUN.toml", required_unless_present = "kind")]
    file: Option<PathBuf>,
    /// Look at one environment of this kind instead
    #[arg(long, value_name = "KIND", conflicts_with = "file")]
    kind: Option<String>,
    /// A setting of it, as in a run file: `tasks="FILE.jsonl"`; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "kind")]
    set: Vec<String>,
    /// Tasks to ask about, of each side of the split
    #[arg(long, value_name = "N", default_value_t = Probe::default().n_tasks)]
    n_tasks: usize,
}

/// The part of a run file that is looked at here.
#[derive(Deserialize)]
struct RunFile {
    #[serde(default)]
    env: Vec<Settings>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let Action::Check(args) = args.action;
    if args.n_tasks == 0 {
        return Err(Failure::bad("`--n-tasks` is 0, needed at least 1"));
    }
    let (settings, base) = match (&args.file, &args.kind) {
        (Some(file), _) => (read(file)?, file.parent().unwrap_or(Path::new("")).to_owned()),
        (None, kind) => (vec![typed(kind.as_deref().unwrap_or_default(), &args.set)?], PathBuf::new()),
    };
    let probe = Probe { n_tasks: args.n_tasks, ..Probe::default() };
    let mut failed = Vec::new();
    for one in &settings {
        context.check_stop()?;
        let found = audit(one, &base, &probe, &context.stop)?.ok_or_else(Failure::interrupted)?;
        print(context, &found)?;
        if !found.passed() {
            failed.push(format!("`{}`", found.env));
        }
    }
    match failed.len() {
        0 => Ok(()),
        n => {
            let message = format!("{n} of {} environments cannot be trusted: {}", settings.len(), failed.join(", "));
            Err(Failure::failed(message).hint("each line marked FAIL above says what is wrong"))
        }
    }
}

fn read(file: &Path) -> Result<Vec<Settings>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| Failure::io("read", file, &e))?;
    let RunFile { env } = toml::from_str(&text).map_err(|e| bad_toml(&e, &text, &show(file)))?;
    if env.is_empty() {
        return Err(Failure::bad("needed at least 1 `[[env]]`, got 0").at(format!("`{}`", show(file))));
    }
    Ok(env)
}

/// What is wrong with TOML text, with the line where that is known.
pub(crate) fn bad_toml(error: &toml::de::Error, text: &str, name: &str) -> Failure {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    let place = line.map_or_else(|| format!("`{name}`"), |line| format!("{name}:{line}"));
    Failure::bad("the settings cannot be read").at(place).why(error.message().trim())
}

/// Settings put together on the command line.
fn typed(kind: &str, set: &[String]) -> Result<Settings, Failure> {
    if Kind::TABLE.iter().all(|(tag, _)| *tag != kind) {
        let known: Vec<String> = Kind::TABLE.iter().map(|(tag, about)| format!("`{tag}` ({about})")).collect();
        return Err(Failure::bad(format!("unknown kind `{kind}`, needed one of {}", known.join(", "))));
    }
    let text = format!("kind = \"{kind}\"\n{}\n", set.join("\n"));
    toml::from_str(&text).map_err(|e| {
        let place = if set.is_empty() { "`--kind`" } else { "`--kind` and `--set`" };
        Failure::bad("the settings cannot be read").at(place).why(e.message().trim())
    })
}

fn print(context: &Context, found: &Audit) -> Done {
    if !context.json() {
        return context.out.line(view::visible(&found.to_string()));
    }
    let check = |c: &env::Check| json!({"name": c.name, "passed": c.passed, "detail": c.detail});
    let checks: Vec<_> = found.checks.iter().map(check).collect();
    context.out.json(&json!({"env": found.env, "passed": found.passed(), "checks": checks}))
}
