//! What running ahead brings where replies have a long tail: sampled tokens a second by `max_lag`, one JSON line each.
//!
//! ```text
//! cargo run --release -p surefoot-run --example ahead -- [LAYERS 30] [STEPS 6] [ROWS 32] [THREADS]
//! ```
//!
//! Random weights in the shape of SmolLM2-135M; a step is 4 groups of 8 attempts, of which one in eight says 256 tokens and
//! the others 16. Only collecting is timed: learning takes the same time for the same tokens. What is read again after each
//! step is in it.

#![allow(clippy::print_stdout, reason = "a line of numbers is this program's purpose")]

#[path = "../../train/examples/support/smollm2.rs"]
mod smollm2;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agent::{Codec, Next};
use env::{Environment, Environments, Split, Submission, Ungraded, Verdict as Marks};
use episode::{Group, Message, Role, Task, Token, ToolSpec};
use policy::{Job, Jobs, Policy, PolicyError, Sampled, Sampler, Sampling};
use rollout::stream::protocol::{Bounds, Verdict};
use rollout::stream::{Flight, Stream, Terms};
use rollout::{Gates, Quiet, Rollout, Settings};
use serde_json::json;
use smollm2::{random, shape};
use tensor::{Cpu, Isa};
use text::dialect::Reading;
use train::{Engine, EngineSettings, Trainable};

const BATCH: u64 = 4;
const GROUP_SIZE: usize = 8;
const SHORT: usize = 16;
const LONG: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let arg = |at: usize, default: usize| args.get(at).copied().unwrap_or(default);
    let (n_layers, steps, rows) = (arg(0, 30), arg(1, 6) as u64, arg(2, 32));
    let n_threads = arg(3, std::thread::available_parallelism()?.get());
    let weights = random(shape(n_layers));
    let mut alone = None;
    for max_lag in [0, 1, 2, 4] {
        let settings = EngineSettings { batch: rows, ..EngineSettings::default() };
        let cpu = Cpu::new(Isa::best(), n_threads)?;
        let mut engine = Engine::new(cpu, weights.clone(), None, Trainable::Frozen {}, settings, 0)?;
        let terms = Terms {
            bounds: Bounds { batch: BATCH, max_lag, max_running: rows as u64, max_draws: 1, steps, holds_lag: false },
            group_size: GROUP_SIZE,
            run_seed: 1,
            sampling: Arc::new(Sampling::plain(1.0, LONG, Vec::new())),
        };
        let environments = Environments::new(vec![(Arc::new(Any), 1.0)])?;
        let rollout =
            Rollout { codec: Arc::new(Bytes), environments, gates: Gates::none(), settings: Settings::default() };
        let mut stream = Stream::new(Arc::new(rollout), terms);
        let (mut cursor, mut flight) = (0, Flight::default());
        let (mut n_tokens, mut n_positions, mut n_held_up) = (0, 0, 0);
        let (began, cpu_began) = (Instant::now(), cpu_s());
        for step in 1..=steps {
            let mut tailed = Tailed(&mut engine);
            let mut keep = |_: &mut Group| Verdict::Keep;
            let go_on = AtomicBool::new(false);
            let taken = stream.step(&mut tailed, step, cursor, &flight, &mut task, &mut keep, &mut Quiet, &go_on)?;
            let episodes = taken.groups.iter().flat_map(|g| &g.episodes);
            n_tokens += episodes.map(|e| e.n_sampled()).sum::<usize>();
            n_positions += taken.n_positions;
            n_held_up += taken.n_held_up;
            (cursor, flight) = (taken.cursor, taken.flight);
            engine.publish()?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let speed = n_tokens as f64 / seconds;
        let times = speed / *alone.get_or_insert(speed);
        let line = json!({
            "max_lag": max_lag, "tokens_per_s": speed, "times": times, "seconds": seconds, "n_tokens": n_tokens,
            "tokens_per_cpu_s": n_tokens as f64 / (cpu_s() - cpu_began), "n_positions": n_positions,
            "rows_full": n_tokens as f64 / n_positions as f64 / rows as f64, "n_held_up": n_held_up, "rows": rows, "layers": n_layers, "threads": n_threads,
        });
        println!("{line}");
    }
    Ok(())
}

/// Seconds that all threads had a processor, where the system says: what other programs leave alone of the measurement.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

fn task(place: u64) -> Task {
    Task::new("any", vec![Message::new(Role::User, format!("question number {place:06}"))], 0.into(), 0.into())
}

/// The engine, with replies of two lengths: which one follows from an attempt's random stream.
struct Tailed<'a>(&'a mut Engine);

impl Sampler for Tailed<'_> {
    fn sample(&mut self, jobs: &mut dyn Jobs) -> Result<(), PolicyError> {
        self.0.sample(&mut Cut(jobs))
    }

    fn context(&self) -> usize {
        self.0.context()
    }
}

struct Cut<'a>(&'a mut dyn Jobs);

impl Jobs for Cut<'_> {
    fn next(&mut self) -> Option<Job> {
        let mut job = self.0.next()?;
        let max_tokens = if job.stream.below(u64::MAX, 8) == 0 { LONG } else { SHORT };
        job.sampling = Arc::new(Sampling { max_tokens, ..(*job.sampling).clone() });
        Some(job)
    }

    fn done(&mut self, result: Sampled) {
        self.0.done(result);
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        self.0.failed(id, error);
    }

    fn progress(&mut self, n_tokens: usize) {
        self.0.progress(n_tokens);
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }

    fn paused(&mut self) -> bool {
        self.0.paused()
    }

    fn set_aside(&mut self, part: Sampled) {
        self.0.set_aside(part);
    }
}

/// A token a byte.
struct Bytes;

impl Codec for Bytes {
    fn open(&self, messages: &[Message], _: &[ToolSpec]) -> Result<Vec<Token>, String> {
        Ok(messages.iter().flat_map(|m| m.content.bytes()).map(u32::from).collect())
    }

    fn go_on(&self, _: &[Message], tools: &[ToolSpec], _: bool, new: &[Message]) -> Result<Next, String> {
        self.open(new, tools).map(Next::Append)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        format!("{} tokens", tokens.len())
    }

    fn read(&self, text: &str, _: &[ToolSpec]) -> Reading {
        Reading::plain(text)
    }
}

/// Whatever is said is right.
struct Any;

impl Environment for Any {
    fn name(&self) -> &str {
        "any"
    }

    fn tasks(&self, _: Split) -> &[Task] {
        &[]
    }

    fn gold_reply(&self, _: &Task) -> Option<String> {
        None
    }

    fn grade(&self, _: &Submission<'_>) -> Result<Marks, Ungraded> {
        Ok(Marks { reward: 1.0, parts: Vec::new() })
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn full_marks(&self) -> f64 {
        1.0
    }
}
