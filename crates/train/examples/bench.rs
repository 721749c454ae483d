//! How fast the engine works and how much memory it takes, one kind of work a call, as one JSON line.
//!
//! ```text
//! cargo run --release -p surefoot-train --example bench -- WORK [--threads N] [--model PATH] …
//!
//! train-full, train-lora   a training step: forward, backward, AdamW        --rows 8 --length 256
//! sample-64, sample-1      sampling after a prompt that all rows share      --rows 64|1 --prompt 32 --new 128|64
//! group                    a step on one group with a common prompt         --rows 8 --prompt 256 --new 64
//! scale-batch              sampling by rows, 1 4 16 64 256                  --prompt 32 --new 64 --limit 256
//! scale-context            decoding by context, 64 … 4096                   --rows 8 --limit 4096
//! scale-group              a step by group size, 1 2 4 8 16 32              --prompt 256 --new 64 --limit 32
//!
//! every work       --threads N, --model PATH or --layers N (random weights in the shape of SmolLM2-135M), --repeats 1,
//!                  --precision f32|bf16
//! training         --recompute yes|no, --micro-batch-rows N
//! group            --share both|yes|no (one of them alone has its own peak memory), --train lora|full
//! scale-group      --train lora|full
//! ```
//!
//! Each measurement is warmed up once; `seconds` is the median of the repeats. `SUREFOOT_ISA` chooses the vector set. A flag
//! that a work does not read is refused.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a line of numbers is this program's purpose")]

#[path = "support/smollm2.rs"]
mod smollm2;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use episode::random::Stream;
use policy::{AdamStep, Batch, Job, Jobs, Learner, PolicyError, Sampled, Sampler, Sampling, TokenGrads, TrainSequence};
use serde_json::{Map, Value, json};
use smollm2::{random, shape};
use surefoot_train as train;
use tensor::{Cpu, Isa};
use train::{Engine, EngineSettings, Precision, Trainable};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<Value> {
    let mut args = std::env::args().skip(1);
    let work = args.next().ok_or("needed a work, which the head of examples/bench.rs lists")?;
    let mut flags = Flags::parse(args)?;
    let machine = Machine::new(&mut flags)?;
    let measured = match work.as_str() {
        "train-full" => machine.train_plain(flags, Trainable::Full {})?,
        "train-lora" => machine.train_plain(flags, lora())?,
        "sample-64" => machine.sample_plain(flags, 64, 128)?,
        "sample-1" => machine.sample_plain(flags, 1, 64)?,
        "group" => machine.group(flags)?,
        "scale-batch" => machine.scale_batch(flags)?,
        "scale-context" => machine.scale_context(flags)?,
        "scale-group" => machine.scale_group(flags)?,
        _ => return Err(format!("unknown work `{work}`, the head of examples/bench.rs lists them").into()),
    };
    let mut line = Map::from_iter([("work".to_owned(), work.into())]);
    line.extend(measured);
    line.insert("peak_memory_mib".to_owned(), peak_memory_mib());
    line.insert("threads".to_owned(), machine.threads.into());
    line.insert("vector_set".to_owned(), machine.isa.to_string().into());
    line.insert("weights".to_owned(), machine.model.map_or("random".into(), |m| m.display().to_string().into()));
    line.insert("layers".to_owned(), machine.layers.into());
    Ok(line.into())
}

/// What was typed behind the work; each flag is taken once, and one that nobody took is refused.
struct Flags(BTreeMap<String, String>);

impl Flags {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Flags> {
        let mut all = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("`{word}` is not a flag"))?;
            let value = words.next().ok_or_else(|| format!("`{word}` needs a value"))?;
            if all.insert(name.to_owned(), value).is_some() {
                return Err(format!("`{word}` is given twice").into());
            }
        }
        Ok(Flags(all))
    }

    fn maybe<T: FromStr>(&mut self, name: &str, needed: &str) -> Result<Option<T>> {
        let Some(text) = self.0.remove(name) else { return Ok(None) };
        let value = text.parse().map_err(|_| format!("`--{name}` is `{text}`, needed {needed}"))?;
        Ok(Some(value))
    }

    fn size(&mut self, name: &str, default: usize) -> Result<usize> {
        match self.maybe(name, "a number")?.unwrap_or(default) {
            0 => Err(format!("`--{name}` is 0, needed at least 1").into()),
            n => Ok(n),
        }
    }

    fn choice<'a>(&mut self, name: &str, words: &[&'a str]) -> Result<&'a str> {
        let Some(text) = self.0.remove(name) else { return Ok(words[0]) };
        let found = words.iter().find(|w| **w == text).copied();
        found.ok_or_else(|| format!("`--{name}` is `{text}`, needed one of `{}`", words.join("`, `")).into())
    }

    fn end(self) -> Result<()> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("`--{name}` would be ignored by this work").into()),
        }
    }
}

/// Where and how often things are measured, and over which weights.
struct Machine {
    isa: Isa,
    precision: Precision,
    threads: usize,
    model: Option<PathBuf>,
    layers: usize,
    /// Bytes of a position's keys and values.
    position_bytes: usize,
    repeats: usize,
}

impl Machine {
    fn new(flags: &mut Flags) -> Result<Machine> {
        let isa = match std::env::var("SUREFOOT_ISA") {
            Ok(name) => name.parse()?,
            Err(_) => Isa::best(),
        };
        let threads = flags.size("threads", std::thread::available_parallelism()?.get())?;
        let model: Option<PathBuf> = flags.maybe("model", "a path")?;
        let config = match &model {
            Some(path) => model::load::load_config(path)?,
            None => shape(flags.size("layers", 30)?),
        };
        let layers = config.n_layers;
        let position_bytes = layers * 2 * config.n_kv_heads * config.head_dim * size_of::<f32>();
        let precision =
            if flags.choice("precision", &["f32", "bf16"])? == "bf16" { Precision::Bf16 } else { Precision::F32 };
        Ok(Machine { isa, precision, threads, model, layers, position_bytes, repeats: flags.size("repeats", 1)? })
    }

    fn engine(&self, trainable: Trainable, settings: EngineSettings) -> Result<Engine> {
        let weights = match &self.model {
            Some(path) => model::load(path)?,
            None => random(shape(self.layers)),
        };
        let engine = Engine::new(Cpu::new(self.isa, self.threads)?, weights, None, trainable, settings, 0)?;
        Ok(engine.with_precision(self.precision))
    }

    /// Runs once to warm up, then as often as asked; gives the tokens of a run and the times.
    fn time(&self, mut work: impl FnMut() -> Result<(usize, f64)>) -> Result<Map<String, Value>> {
        work()?;
        let all: Vec<(usize, f64)> = (0..self.repeats).map(|_| work()).collect::<Result<_>>()?;
        let mut seconds: Vec<f64> = all.iter().map(|(_, s)| *s).collect();
        seconds.sort_by(f64::total_cmp);
        let middle = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
        let tokens = all[0].0;
        let mut found = Map::new();
        found.insert("tokens".to_owned(), tokens.into());
        found.insert("seconds".to_owned(), middle.into());
        found.insert("tokens_per_s".to_owned(), (tokens as f64 / middle).into());
        found.insert("all_seconds".to_owned(), all.iter().map(|(_, s)| *s).collect());
        Ok(found)
    }

    fn train_plain(&self, mut flags: Flags, trainable: Trainable) -> Result<Map<String, Value>> {
        let (rows, length) = (flags.size("rows", 8)?, flags.size("length", 256)?);
        let settings = training(&mut flags)?;
        flags.end()?;
        if length < 2 {
            return Err("`--length` is 1, needed at least 2: the first token is never trained".into());
        }
        let mut engine = self.engine(trainable, settings)?;
        let data: Vec<_> = (0..rows).map(|r| vec![example(&engine, r as u64, &[], length)]).collect();
        self.time(|| train_step(&mut engine, &data))
    }

    fn group(&self, mut flags: Flags) -> Result<Map<String, Value>> {
        let (rows, prompt, new) = (flags.size("rows", 8)?, flags.size("prompt", 256)?, flags.size("new", 64)?);
        let share = flags.choice("share", &["both", "yes", "no"])?;
        let trainable = trainable(&mut flags)?;
        let settings = training(&mut flags)?;
        flags.end()?;
        let one = |share| self.group_step(&trainable, &settings, (rows, prompt, new), share);
        if share != "both" {
            return one(share == "yes");
        }
        let (shared, private) = (one(true)?, one(false)?);
        let speed = |point: &Map<String, Value>| point["tokens_per_s"].as_f64().unwrap_or(f64::NAN);
        let speedup = speed(&shared) / speed(&private);
        Ok(Map::from_iter([
            ("points".to_owned(), json!([shared, private])),
            ("speedup_by_sharing".to_owned(), speedup.into()),
        ]))
    }

    /// A step on one group whose sequences begin alike; the tokens are counted as if nothing was shared.
    fn group_step(
        &self,
        trainable: &Trainable,
        settings: &EngineSettings,
        (rows, prompt, new): (usize, usize, usize),
        share_prompts: bool,
    ) -> Result<Map<String, Value>> {
        let mut engine = self.engine(trainable.clone(), EngineSettings { share_prompts, ..settings.clone() })?;
        let start = tokens(&engine, u64::MAX, prompt);
        let data = [(0..rows).map(|r| example(&engine, r as u64, &start, new)).collect()];
        let mut found = self.time(|| train_step(&mut engine, &data))?;
        found.insert("rows".to_owned(), rows.into());
        found.insert("shared".to_owned(), share_prompts.into());
        Ok(found)
    }

    fn scale_group(&self, mut flags: Flags) -> Result<Map<String, Value>> {
        let (prompt, new) = (flags.size("prompt", 256)?, flags.size("new", 64)?);
        let limit = flags.size("limit", 32)?;
        let trainable = trainable(&mut flags)?;
        let settings = training(&mut flags)?;
        flags.end()?;
        let mut points = Vec::new();
        for rows in sizes(&[1, 2, 4, 8, 16, 32], limit) {
            for share in [true, false] {
                points.push(self.group_step(&trainable, &settings, (rows, prompt, new), share)?);
            }
        }
        Ok(Map::from_iter([("points".to_owned(), json!(points))]))
    }

    /// Room for every row at its longest, twice: while prompts are read, the sampler counts them beside their rows.
    fn sampling(&self, rows: usize, longest: usize) -> EngineSettings {
        let bytes = 2 * (rows + 1) * longest.next_multiple_of(64) * self.position_bytes;
        let default = EngineSettings::default();
        EngineSettings { batch: rows, cache_mb: default.cache_mb.max(bytes >> 20), ..default }
    }

    fn sample_plain(&self, mut flags: Flags, rows: usize, new: usize) -> Result<Map<String, Value>> {
        let (rows, prompt, new) = (flags.size("rows", rows)?, flags.size("prompt", 32)?, flags.size("new", new)?);
        flags.end()?;
        let mut engine = self.engine(Trainable::Frozen {}, self.sampling(rows, prompt + new))?;
        let prompts = vec![tokens(&engine, 0, prompt).into(); rows];
        self.time(|| whole(&sample(&mut engine, &prompts, new)?))
    }

    fn scale_batch(&self, mut flags: Flags) -> Result<Map<String, Value>> {
        let (prompt, new) = (flags.size("prompt", 32)?, flags.size("new", 64)?);
        let limit = flags.size("limit", 256)?;
        flags.end()?;
        let mut points = Vec::new();
        for rows in sizes(&[1, 4, 16, 64, 256], limit) {
            let mut engine = self.engine(Trainable::Frozen {}, self.sampling(rows, prompt + new))?;
            let prompts = vec![tokens(&engine, 0, prompt).into(); rows];
            let mut point = self.time(|| whole(&sample(&mut engine, &prompts, new)?))?;
            point.insert("rows".to_owned(), rows.into());
            points.push(point);
        }
        Ok(Map::from_iter([("points".to_owned(), json!(points))]))
    }

    /// Prompts differ, so that every row reads its own keys; only steps in which all rows decode are counted.
    fn scale_context(&self, mut flags: Flags) -> Result<Map<String, Value>> {
        let (rows, limit) = (flags.size("rows", 8)?, flags.size("limit", 4096)?);
        flags.end()?;
        let mut points = Vec::new();
        for context in sizes(&[64, 128, 256, 512, 1024, 2048, 4096], limit) {
            let settings = EngineSettings::default();
            // The first rows decode while the last prompts are still being read.
            let new = (rows * context).div_ceil(settings.prompt_rows) + 32;
            let mut engine = self.engine(Trainable::Frozen {}, self.sampling(rows, context + new))?;
            let prompts: Vec<_> = (0..rows).map(|r| tokens(&engine, r as u64, context).into()).collect();
            let mut point = self.time(|| decoding(&sample(&mut engine, &prompts, new)?, rows))?;
            point.insert("context".to_owned(), context.into());
            points.push(point);
        }
        Ok(Map::from_iter([("rows".to_owned(), rows.into()), ("points".to_owned(), json!(points))]))
    }
}

fn sizes(all: &[usize], limit: usize) -> impl Iterator<Item = usize> {
    all.iter().copied().filter(move |n| *n <= limit)
}

fn lora() -> Trainable {
    Trainable::Lora { rank: 16, alpha: 32.0, targets: vec!["all".to_owned()] }
}

fn trainable(flags: &mut Flags) -> Result<Trainable> {
    Ok(if flags.choice("train", &["lora", "full"])? == "full" { Trainable::Full {} } else { lora() })
}

fn training(flags: &mut Flags) -> Result<EngineSettings> {
    let default = EngineSettings::default();
    let recompute = flags.choice("recompute", &["no", "yes"])? == "yes";
    let micro_batch_rows = flags.size("micro-batch-rows", default.micro_batch_rows)?;
    Ok(EngineSettings { recompute, micro_batch_rows, ..default })
}

fn tokens(engine: &Engine, row: u64, n: usize) -> Vec<u32> {
    let stream = Stream::new("bench tokens", &[row]);
    (0..n as u64).map(|i| stream.below(i, engine.config().vocabulary as u64) as u32).collect()
}

/// Tokens, and which of them are trained.
type Example = (Vec<u32>, Vec<bool>);

/// A start that is not trained and `n` tokens that are; without a start the first of them is not.
fn example(engine: &Engine, row: u64, start: &[u32], n: usize) -> Example {
    let all = [start, &tokens(engine, row, n)].concat();
    let trained = (0..all.len()).map(|i| i >= start.len().max(1)).collect();
    (all, trained)
}

/// Forward, backward and AdamW on the mean cross-entropy; gives the tokens and the seconds.
fn train_step(engine: &mut Engine, data: &[Vec<Example>]) -> Result<(usize, f64)> {
    let began = Instant::now();
    let n_tokens = data.iter().flatten().map(|(tokens, _)| tokens.len()).sum();
    let n_trained = data.iter().flatten().flat_map(|(_, trained)| trained).filter(|t| **t).count();
    let groups = data
        .iter()
        .map(|group| group.iter().map(|(tokens, trained)| TrainSequence::new(tokens, trained)).collect::<Vec<_>>());
    let batch = Batch::new(groups.collect(), 1.0, &[]);
    let weight = -1.0 / n_trained as f32;
    engine.forward_backward(&batch, &mut |_, values| {
        let grads = |n: usize| TokenGrads::of(vec![weight; n]);
        Ok(values.iter().map(|v| grads(v.logp.len())).collect())
    })?;
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    engine.update(&AdamStep { learning_rate: 1e-4, beta1, beta2, epsilon, weight_decay: 0.01, clip_norm: 1.0 })?;
    Ok((n_tokens, began.elapsed().as_secs_f64()))
}

/// Hands out jobs and notes when how many tokens were drawn.
struct Desk {
    jobs: VecDeque<Job>,
    drawn: Vec<(Instant, usize)>,
    failure: Option<PolicyError>,
}

impl Jobs for Desk {
    fn next(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    fn done(&mut self, _: Sampled) {}

    fn failed(&mut self, _: u64, error: PolicyError) {
        self.failure = Some(error);
    }

    fn progress(&mut self, n_tokens: usize) {
        self.drawn.push((Instant::now(), n_tokens));
    }
}

/// Samples at temperature 1 with nothing that ends a row early; gives when it began and when how many tokens were drawn.
fn sample(engine: &mut Engine, prompts: &[Arc<[u32]>], new: usize) -> Result<Vec<(Instant, usize)>> {
    let sampling = Arc::new(Sampling::plain(1.0, new, Vec::new()));
    let job = |(row, prompt): (usize, &Arc<[u32]>)| Job {
        id: row as u64,
        prompt: Arc::clone(prompt),
        begun: 0,
        sampling: Arc::clone(&sampling),
        stream: Stream::new("bench sampling", &[row as u64]),
    };
    let mut desk =
        Desk { jobs: prompts.iter().enumerate().map(job).collect(), drawn: vec![(Instant::now(), 0)], failure: None };
    engine.sample(&mut desk)?;
    if let Some(failure) = desk.failure {
        return Err(failure.into());
    }
    let drawn: usize = desk.drawn.iter().map(|(_, n)| n).sum();
    let needed = prompts.len() * new;
    if drawn != needed {
        return Err(format!("{drawn} tokens were drawn, needed {needed}").into());
    }
    Ok(desk.drawn)
}

/// All tokens over all the time, the reading of prompts included.
fn whole(drawn: &[(Instant, usize)]) -> Result<(usize, f64)> {
    let (first, last) = (drawn[0].0, drawn[drawn.len() - 1].0);
    Ok((drawn.iter().map(|(_, n)| n).sum(), (last - first).as_secs_f64()))
}

/// The steps after one in which every row drew, in which every row drew: nothing but decoding.
fn decoding(drawn: &[(Instant, usize)], rows: usize) -> Result<(usize, f64)> {
    let full = drawn.windows(2).filter(|w| w[0].1 == rows && w[1].1 == rows);
    let (n, seconds) = full.fold((0, 0.0), |(n, s), w| (n + rows, s + (w[1].0 - w[0].0).as_secs_f64()));
    if n == 0 { Err("no step had every row decoding".into()) } else { Ok((n, seconds)) }
}

/// The most memory this process has held, where the system says so.
fn peak_memory_mib() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok())
        .map_or(Value::Null, |k| (k / 1024.0).into())
}
