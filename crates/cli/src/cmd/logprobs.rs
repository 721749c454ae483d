//! `surefoot logprobs`: what a policy thinks of given tokens.

use std::path::PathBuf;

use episode::Token;
use policy::{Batch, Learner, TokenValues, TrainSequence};
use serde::{Deserialize, Serialize};
use train::{EngineSettings, Precision};

use crate::Done;
use crate::cmd::sample::check_tokens;
use crate::context::Context;
use crate::jsonl::{JsonLines, Placed};
use crate::progress;

/// Tokens computed before their results are printed; bounds memory, changes no bit.
const CHUNK_TOKENS: usize = 2048;

/// Compute the log-probability and entropy of every token of given sequences
///
/// Each line of FILE is {"tokens": [ID, …]}. For each, in order, a line {"logprobs": [null, …], "entropy": [null, …]} is
/// printed with --json, a table without: one number a token, at temperature 1, in nats. The first token has none, since
/// nothing precedes it. The numbers are to the bit those that sampling at temperature 1 records and training computes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A known or installed name, a GGUF file, a Hugging Face folder, or RUN[@STEP]
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Sequences as JSON lines; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    tokens: String,
    /// How products are computed: `f32` or `bf16` [default: as the run did, else `f32`]
    #[arg(long, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// A folder with an adapter in PEFT's layout to put on the model
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    tokens: Vec<Token>,
}

/// A line of the output.
#[derive(Debug, Serialize)]
struct Line {
    logprobs: Vec<Option<f32>>,
    entropy: Vec<Option<f32>>,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let lines: Vec<Placed<Given>> = JsonLines::read(&args.tokens)?.parse()?;
    let located = context.locate(&args.model)?;
    let config = located.config()?;
    for line in &lines {
        check_tokens(&line.value.tokens, &config, config.context).map_err(|f| f.at(line.place.clone()))?;
    }
    // Tokens are numbers here: a tokenizer is not needed.
    let mut engine = located.engine(context.cpu()?, None, args.precision, EngineSettings::default(), 0)?;
    if let Some(folder) = &args.adapter {
        located.wear(&mut engine, folder)?;
    }
    let sequences: Vec<&[Token]> = lines.iter().map(|l| &*l.value.tokens).collect();
    let bar = progress::bar(context.json(), Some(sequences.len() as u64), "sequences");
    let mut index = 0;
    for chunk in chunks(&sequences) {
        context.check_stop()?;
        let trained: Vec<Vec<bool>> = chunk.iter().map(|s| (0..s.len()).map(|i| i > 0).collect()).collect();
        // A group each: nothing is shared, and nothing depends on the neighbours.
        let groups =
            chunk.iter().zip(&trained).map(|(tokens, trained)| vec![TrainSequence::new(tokens, trained)]).collect();
        let values = engine.forward(&Batch::new(groups, 1.0, &[])).map_err(|e| located.about(e))?;
        for (values, tokens) in values.into_iter().flatten().zip(chunk) {
            bar.suspend(|| print(context, index, tokens, values))?;
            index += 1;
            bar.inc(1);
        }
        if context.out.is_closed() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Cuts the list so that each part but a long sequence alone has at most [`CHUNK_TOKENS`] tokens.
fn chunks<'a, 'b>(sequences: &'a [&'b [Token]]) -> Vec<&'a [&'b [Token]]> {
    let mut all = Vec::new();
    let (mut start, mut n_tokens) = (0, 0);
    for (i, s) in sequences.iter().enumerate() {
        if i > start && n_tokens + s.len() > CHUNK_TOKENS {
            all.push(&sequences[start..i]);
            (start, n_tokens) = (i, 0);
        }
        n_tokens += s.len();
    }
    all.push(&sequences[start..]);
    all
}

fn print(context: &Context, index: usize, tokens: &[Token], values: TokenValues) -> Done {
    // The first token's numbers mean nothing.
    let shown = |v: Vec<f32>| v.into_iter().enumerate().map(|(i, x)| (i > 0).then_some(x)).collect();
    let line = Line { logprobs: shown(values.logp), entropy: shown(values.entropy) };
    if context.json() {
        return context.out.json(&line);
    }
    let mut text = format!("— sequence {index}\nposition\ttoken\tlogprob\tentropy\n");
    for (i, (token, (logp, entropy))) in tokens.iter().zip(line.logprobs.iter().zip(&line.entropy)).enumerate() {
        let number = |v: &Option<f32>| v.map_or_else(|| "-".to_owned(), |v| v.to_string());
        text.push_str(&format!("{i}\t{token}\t{}\t{}\n", number(logp), number(entropy)));
    }
    context.out.text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_all_sequences_in_order_and_stay_small() {
        let lengths = [10, 2000, 39, 5000, 1, 2048];
        let owned: Vec<Vec<Token>> = lengths.iter().map(|n| vec![7; *n]).collect();
        let sequences: Vec<&[Token]> = owned.iter().map(|s| &**s).collect();
        let parts: Vec<Vec<usize>> = chunks(&sequences).iter().map(|p| p.iter().map(|s| s.len()).collect()).collect();
        assert_eq!(parts, [vec![10, 2000], vec![39], vec![5000], vec![1], vec![2048]]);
    }
}
