//! `surefoot signals`: what each token of given episodes is worth, and why.

use std::io::Read;

use run::signals::{EpisodeSignals, Found, Input, SignalsError, Summary, settings, signals};
use serde_json::{Map, Value};

use crate::Done;
use crate::context::Context;
use crate::error::{Code, Failure, Judged};
use crate::out::table;

/// Rows of one episode's table at most; longer ones are cut in the middle.
const MOST_ROWS: usize = 40;

/// Ask what each token of given episodes is worth to an algorithm, and why; no model is needed
///
/// Reads JSON lines from standard input, an episode each: {"group": …, "reward": …, "sampled": [0, 1, …],
/// "logp_sampler": [null, -0.5, …], …}, or lines of a run's `episodes/step-….jsonl` as they are. Prints for every episode
/// what its tokens are worth, weigh and lose, with the exact derivative of the loss, and then the loss with every metric
/// and what taught nothing. The numbers come from the functions that training calls. Unless they are set there is no KL
/// and no correction. `docs/signals.md` has all fields.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The algorithm, such as `grpo`
    #[arg(long, value_name = "NAME")]
    algorithm: String,
    /// Change one of its settings, as in a run file: `kl.coefficient=0.1`; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Parts to cut the batch into; no result depends on it
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    micro_batches: u32,
}

impl Judged for SignalsError {
    fn code(&self) -> Code {
        Code::BadInput
    }

    fn place(&self) -> Option<String> {
        self.line().map(|line| format!("standard input:{line}"))
    }

    fn hint(&self) -> Option<String> {
        match self {
            SignalsError::Algo(_) | SignalsError::Policy(_) => None,
            SignalsError::Settings(_) => Some("`docs/algorithms` has a page for each algorithm".to_owned()),
            _ => Some("`docs/signals.md` explains every field".to_owned()),
        }
    }
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    // What was typed is looked at before what may take long to come.
    let settings = settings(&args.algorithm, &args.set)?;
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|e| Failure::failed("cannot read standard input").why(e.to_string()))?;
    let input = Input::read(&bytes)?;
    let Found { episodes, summary } = signals(&input, &settings, args.micro_batches as usize)?;
    for episode in &episodes {
        context.check_stop()?;
        match context.json() {
            true => context.out.json(episode)?,
            false => context.out.line(view::visible(&episode_text(episode)))?,
        }
    }
    match context.json() {
        true => context.out.json(&summary),
        false => context.out.text(&view::visible(&summary_text(&summary)?)),
    }
}

/// An episode for a person: a table with a row for each stretch of tokens that are worth the same.
fn episode_text(episode: &EpisodeSignals) -> String {
    let mut head = format!("line {}", episode.line);
    if !episode.task.is_empty() {
        head.push_str(&format!(", task {}", episode.task));
    }
    head.push_str(&episode.reward.map_or(", not graded".to_owned(), |reward| format!(", reward {}", number(reward))));
    if let Some(loss) = episode.loss_sequence {
        head.push_str(&format!(", loss {}", number(loss)));
    }
    if let Some(why) = &episode.dropped {
        head.push_str(&format!(": {why}"));
    }
    let mut names = vec!["tokens", "advantage", "weight", "correction", "loss", "∂loss/∂logp"];
    names.extend(episode.dloss_dvalue.as_ref().map(|_| "∂loss/∂value"));
    names.extend(episode.returns.as_ref().map(|_| "return"));
    names.extend(episode.dloss_dentropy.as_ref().map(|_| "∂loss/∂entropy"));
    let mut stretches: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for t in 0..episode.advantage.len() {
        let Some(cells) = cells(episode, t) else { continue };
        match stretches.last_mut().filter(|(_, end, same)| *end == t && *same == cells) {
            Some((_, end, _)) => *end = t + 1,
            None => stretches.push((t, t + 1, cells)),
        }
    }
    let mut rows = vec![names.into_iter().map(str::to_owned).collect()];
    let n = stretches.len();
    for (i, (start, end, cells)) in stretches.into_iter().enumerate() {
        if n > MOST_ROWS && i == MOST_ROWS / 2 {
            rows.push(vec![format!("… {} more rows; --json has all", n - MOST_ROWS)]);
        }
        if n <= MOST_ROWS || !(MOST_ROWS / 2..n - MOST_ROWS / 2).contains(&i) {
            let tokens = if end == start + 1 { start.to_string() } else { format!("{start}–{}", end - 1) };
            rows.push([vec![tokens], cells].concat());
        }
    }
    let rows = if rows.len() == 1 { "no sampled token\n".to_owned() } else { table(&rows) };
    format!("{head}\n{rows}")
}

/// What is shown of a token; absent where it was not sampled.
fn cells(episode: &EpisodeSignals, t: usize) -> Option<Vec<String>> {
    let derivative = episode.dloss_dlogp[t]?;
    let single = |list: &[Option<f32>]| list[t].map_or("–".to_owned(), |v| number(f64::from(v)));
    let double = |list: &[Option<f64>]| list[t].map_or("–".to_owned(), number);
    let mut cells = vec![
        single(&episode.advantage),
        single(&episode.weight),
        double(&episode.correction),
        double(&episode.loss),
        number(f64::from(derivative)),
    ];
    for list in [&episode.dloss_dvalue, &episode.returns, &episode.dloss_dentropy].into_iter().flatten() {
        cells.push(single(list));
    }
    Some(cells)
}

/// All episodes together for a person.
fn summary_text(summary: &Summary) -> Result<String, Failure> {
    let unwritable = |e: serde_json::Error| Failure::failed("cannot write a result").why(e.to_string());
    let mut text = format!(
        "{} of {} in {}: loss {}, reduced by {}\n",
        summary.algorithm.name(),
        count(summary.n_episodes, "episode"),
        count(summary.n_groups, "group"),
        number(summary.loss),
        words(&serde_json::to_value(summary.reduction).map_err(unwritable)?),
    );
    let metrics: Map<String, Value> =
        serde_json::to_value(summary.metrics).and_then(serde_json::from_value).map_err(unwritable)?;
    let row = |(name, value): (String, f64)| vec![name, number(value)];
    let rows: Vec<Vec<String>> = store::numbers(&metrics).into_iter().map(row).collect();
    text.push_str(&table(&rows));
    for dropped in &summary.dropped {
        let lines: Vec<String> = dropped.lines.iter().map(usize::to_string).collect();
        let (left_out, lines) = (if dropped.left_out { "left out" } else { "teaches nothing" }, lines.join(", "));
        text.push_str(&format!("{left_out}: line {lines}: {}\n", dropped.text));
    }
    Ok(text)
}

/// A value's plain words, without the punctuation of JSON.
fn words(value: &Value) -> String {
    match value {
        Value::Object(fields) => fields.values().map(words).collect::<Vec<_>>().join(" "),
        Value::String(text) => format!("`{text}`"),
        other => other.to_string(),
    }
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Six digits that count, for reading; `--json` has all of them.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !(-5.0..9.0).contains(&magnitude) {
        return format!("{value:.5e}");
    }
    let digits = (5.0 - magnitude).max(0.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_six_digits_that_count() {
        for (value, want) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-0.25, "-0.25"),
            (0.1 + 0.2, "0.3"),
            (1.499_997_25, "1.5"),
            (-1_234.567_89, "-1234.57"),
            (123_456_789.4, "123456789"),
            (0.000_012_345_678, "0.0000123457"),
            (1.234_567_8e-9, "1.23457e-9"),
            (5e12, "5.00000e12"),
        ] {
            assert_eq!(number(value), want);
        }
    }
}
