//! `surefoot eval`: how well a policy does on held-out tasks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use env::Environments;
use policy::Sampling;
use rollout::{Gates, Rollout};
use run::{Evaluator, GateSettings, RunFile};
use serde_json::json;
use train::{EngineSettings, Precision};

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::live::{Live, sentence};

/// Try a model, or a run's checkpoint, on held-out tasks
///
/// Failures of the system count as unsolved and are shown apart. Seeds are fixed, so the same weights give the same
/// score.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A known or installed name, a GGUF file, a Hugging Face folder, or RUN[@STEP]
    #[arg(value_name = "MODEL")]
    model: String,
    /// Where tasks come from: a run file, or the name of an environment that needs no settings, such as `sums`
    #[arg(long, value_name = "FILE|KIND")]
    env: String,
    /// Held-out tasks of each environment at most
    #[arg(long, value_name = "N", default_value_t = 300)]
    tasks: usize,
    /// Attempts at each task
    #[arg(long, value_name = "N", default_value_t = 1)]
    attempts: usize,
    /// 0 takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Tokens of an answer at most
    #[arg(long, value_name = "K", default_value_t = 256)]
    max_tokens: usize,
    /// Turns of an episode at most, where there are tools
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..))]
    turns: u16,
    /// Report pass@k for each of these
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1")]
    pass_at: Vec<u64>,
    /// How products are computed: `f32` or `bf16` [default: as the run did, else `f32`]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// A folder with an adapter in PEFT's layout to put on the model
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    if args.tasks == 0 || args.attempts == 0 {
        return Err(Failure::bad("`--tasks` and `--attempts` need at least 1"));
    }
    if args.temperature == 0.0 && args.attempts > 1 {
        let message = format!("`--attempts` is {} at temperature 0, needed 1: all would be equal", args.attempts);
        return Err(Failure::bad(message).hint("give `--temperature 1`"));
    }
    if let Some(k) = args.pass_at.iter().find(|k| **k == 0 || **k > args.attempts as u64) {
        return Err(Failure::bad(format!("`--pass-at` has {k}, needed 1 to the {} attempts", args.attempts)));
    }
    let (settings, base) = environments(&args.env)?;
    let environments = Environments::load(&settings, &base)?;
    let located = context.locate(&args.model)?;
    let tokenizer = located.tokenizer()?.ok_or_else(|| located.no_tokenizer("an evaluation"))?;
    let chat = Arc::new(located.chat(&tokenizer)?);
    let settings = EngineSettings::default();
    let mut engine = located.engine(context.cpu()?, Some(tokenizer.clone()), args.precision, settings, 0)?;
    if let Some(folder) = &args.adapter {
        located.wear(&mut engine, folder)?;
    }
    let mut banned = chat.banned();
    banned.extend(tokenizer.vocab_size() as u32..engine.config().vocabulary as u32);
    let plain = Sampling::plain(args.temperature, args.max_tokens, tokenizer.eos().to_vec());
    let sampling = Arc::new(Sampling { banned, ..plain });
    let gates = rollout_gates(&environments)?;
    let turns = if gates.gate().is_some() { usize::from(args.turns) } else { 1 };
    let settings = rollout::Settings { turns, ..rollout::Settings::default() };
    let rollout = Arc::new(Rollout { codec: chat, environments, gates, settings });
    let evaluator = Evaluator::new(rollout, args.tasks, args.attempts, sampling, args.pass_at);
    if evaluator.n_tasks() == 0 {
        return Err(Failure::bad("there are no held-out tasks").at(format!("`{}`", args.env)));
    }
    let mut live = Live::new(context, 1);
    let trial = evaluator.run("held_out", &mut engine, &mut live, &context.stop)?;
    drop(live);
    if context.json() {
        return context.out.json(&json!({ "model": args.model, "env": args.env, "score": trial.score }));
    }
    context.out.line(sentence(&trial.score))?;
    for at in &trial.score.pass_at {
        let value = at.value.map_or("undefined".to_owned(), |v| format!("{:.1} %", 100.0 * v));
        context.out.line(format!("pass@{}: {value}", at.k))?;
    }
    for (cause, n) in &trial.score.failures {
        context.out.line(format!("{n} failed: {cause}"))?;
    }
    Ok(())
}

/// A gate with the default rules where an environment has tools; what it does leaves no receipts.
fn rollout_gates(environments: &Environments) -> Result<Gates, Failure> {
    let settings = GateSettings::default();
    Ok(settings.gates_for(environments, Path::new("."))?)
}

/// The environments of a run file, or one by its kind.
fn environments(what: &str) -> Result<(Vec<env::Settings>, PathBuf), Failure> {
    let path = Path::new(what);
    if !path.exists() {
        let text = format!("[[env]]\nkind = {}\n", toml::Value::String(what.to_owned()));
        return parse(&text).map(|list| (list, PathBuf::from("."))).map_err(|f| {
            f.at(format!("`--env {what}`, which is no file, so taken as a kind")).hint("give a run file with `[[env]]`")
        });
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    // A run file is checked as one; what is wrong elsewhere in it is none of this command's business.
    RunFile::parse(&text).map_err(|e| Failure::from(e).at(format!("`{}`", show(path))))?;
    let list = parse(&text).map_err(|f| f.at(format!("`{}`", show(path))))?;
    let base = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((list, base.to_owned()))
}

fn parse(text: &str) -> Result<Vec<env::Settings>, Failure> {
    #[derive(serde::Deserialize)]
    struct Envs {
        #[serde(default)]
        env: Vec<env::Settings>,
    }
    let envs: Envs = toml::from_str(text).map_err(|e| Failure::bad(e.message().to_owned()))?;
    Ok(envs.env)
}
