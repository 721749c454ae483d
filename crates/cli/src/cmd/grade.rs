//! `surefoot grade`: a reward model as a grading program.

use std::io::BufRead;
use std::path::PathBuf;

use episode::Message;
use run::{Judge, Judgement};
use serde::Deserialize;
use serde_json::json;
use train::{EngineSettings, Precision};

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;

/// Judge replies with a reward model, one line in, one line out
///
/// MODEL is a run of the algorithm `reward_model`. Each line of standard input is what a grading program gets, {"task",
/// "messages", "reply", "gold", "meta"}, of which `messages` and `reply` are read; the line it answers with is {"reward": r,
/// "parts": {"score": s}}, s being the score of the reply with the token that ends a turn, and r = 1 / (1 + exp(-s)), from 0 to
/// 1. Only differences of scores mean something. In a run file it stands beside a verifier, as an opinion:
///
///   [[env.grader]]
///   kind = "command"
///   command = ["surefoot", "--threads", "1", "grade", "--model", "RUN"]
///   stay_alive = true
///   opinion = true
///   weight = 0.2
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run of `reward_model`, as RUN or RUN@STEP
    #[arg(long, value_name = "RUN")]
    model: String,
    /// How products are computed: `f32` or `bf16` [default: as the run did]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// Read lines from a file instead
    #[arg(long, value_name = "FILE")]
    replies: Option<PathBuf>,
}

/// What is to be judged. Further keys are for graders that need them.
#[derive(Debug, Deserialize)]
struct Asked {
    messages: Vec<Message>,
    reply: String,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let located = context.locate(&args.model)?;
    let folder = located.learned.as_ref().map(|l| l.weights.clone());
    let Some(folder) = folder.filter(|f| train::has_value_head(f)) else {
        let text = format!("`{}` has no head that scores", args.model);
        return Err(Failure::bad(text).hint("needed a run of the algorithm `reward_model`, as RUN or RUN@STEP"));
    };
    let tokenizer = located.tokenizer()?.ok_or_else(|| located.no_tokenizer("judging text"))?;
    let chat = located.chat(&tokenizer)?;
    let settings = EngineSettings { batch: 1, cache_mb: 1, ..EngineSettings::default() };
    let engine = located.engine(context.cpu()?, Some(tokenizer), args.precision, settings, 0)?;
    let mut engine = engine.with_value_head();
    engine.load_value_head(&folder).map_err(|e| located.about(e))?;
    let mut judge = Judge::new(engine, chat);
    match &args.replies {
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|e| Failure::io("read", path, &e))?;
            answer(&mut judge, &mut std::io::BufReader::new(file), &show(path), context)
        }
        None => answer(&mut judge, &mut std::io::stdin().lock(), "standard input", context),
    }
}

/// Answers each line before the next one is read: who asks may be waiting.
fn answer(judge: &mut Judge, lines: &mut dyn BufRead, name: &str, context: &Context) -> Done {
    for (index, line) in lines.lines().enumerate() {
        context.check_stop()?;
        let at = |failure: Failure| failure.at(format!("{name}:{}", index + 1));
        let line = line.map_err(|e| at(Failure::failed("cannot read").why(e.to_string())))?;
        if line.trim().is_empty() {
            continue;
        }
        let asked: Asked = serde_json::from_str(&line)
            .map_err(|e| at(Failure::bad("needed {\"messages\": […], \"reply\": text}").why(e.to_string())))?;
        let Judgement { score, reward } = judge.judge(&asked.messages, &asked.reply).map_err(|e| at(e.into()))?;
        context.out.json(&json!({ "reward": reward, "parts": { "score": score } }))?;
        if context.out.is_closed() {
            break;
        }
    }
    Ok(())
}
