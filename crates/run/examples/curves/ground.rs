//! What all runs share: the model, the data files, and the weights they start from.

use std::error::Error;
use std::path::{Path, PathBuf};

use env::{Environments, Split};
use episode::Task;
use episode::random::Stream;
use run::RunFile;
use serde_json::json;
use store::RunDir;
use surefoot_run as run;

use crate::cases::Case;
use crate::pairs::{self, Pair};
use crate::trial::{self, Outcome, Start};
use crate::{Options, model};

/// The model of the curves: about a tenth of a million weights.
const SHAPE: model::Shape = model::Shape { width: 64, ffn: 160, layers: 3, heads: 4, context: 256 };

/// What every run says unless its row says otherwise. Held-out tasks are tried as the policy speaks in training, so that a
/// score is its expected reward.
const BASE: &str = r#"
model = "tiny"
max_idle_steps = 1000000

[train]
kind = "full"

[optimiser]
learning_rate = 3e-4

[batch]
tasks = 64
group_size = 8

[sampling]
max_tokens = 6

[eval]
every = 20
temperature = 1.0
attempts = 2
samples = 0

[checkpoint]
every = 1000000
keep_last = 1
keep_best = false
kl_every = 0

[[env]]
kind = "sums"
prompt = "{question}"
levels = { two_digit = 1 }
n_train = 5500
"#;

/// Episodes of a step, and the tokens that an answer has at most when it is of the right form.
const EPISODES: u64 = 64 * 8;
const TOKENS: u64 = 4;

/// Where in the warm-up runs start: the evaluation nearest to this share of right answers, which must lie in the bounds.
const WANTED: f64 = 0.3;
/// And where rows with an early start do.
const EARLY: f64 = 0.09;
const BOUNDS: (f64, f64) = (0.15, 0.35);

pub(crate) struct Ground {
    folder: PathBuf,
    /// Held-out questions with two answers.
    pairs: Vec<Pair>,
    /// The checkpoint that runs start from.
    start: PathBuf,
    /// That of the rows with an early start.
    early: PathBuf,
}

impl Ground {
    /// Makes the model and the data files, and warms the model up.
    pub(crate) fn make(options: &Options) -> Result<Ground, Box<dyn Error>> {
        let folder = std::path::absolute(&options.out)?;
        std::fs::create_dir_all(folder.join("runs"))?;
        let mut ground = Ground { start: PathBuf::new(), early: PathBuf::new(), pairs: Vec::new(), folder };
        model::write(&ground.model(), &SHAPE, 1)?;
        ground.data(options)?;
        let warm = ground.warm_up(options)?;
        let nearest = |wanted: f64| {
            let by = |p: &&trial::Point| (p.accuracy - wanted).abs();
            let all = warm.points.iter().filter(|p| p.step > 0);
            all.min_by(|a, b| by(a).total_cmp(&by(b))).ok_or("the warm-up was never evaluated")
        };
        let (start, early) = (nearest(WANTED)?, nearest(EARLY)?);
        let last = warm.points.last().ok_or("the warm-up was never evaluated")?;
        println!(
            "start: step {} of the warm-up, {:.3} right; its end, which teaches `distill`: {:.3}",
            start.step, start.accuracy, last.accuracy
        );
        if !(BOUNDS.0..=BOUNDS.1).contains(&start.accuracy) {
            return Err(
                format!("the start is right in {:.3}, needed {} to {}", start.accuracy, BOUNDS.0, BOUNDS.1).into()
            );
        }
        ground.start = ground.checkpoint("warm-up", start.step)?;
        ground.early = ground.checkpoint("warm-up", early.step)?;
        ground.teachers(last.step)?;
        Ok(ground)
    }

    fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    fn checkpoint(&self, run: &str, step: u64) -> Result<PathBuf, Box<dyn Error>> {
        Ok(RunDir::read(&self.folder.join("runs").join(run))?.checkpoints().at(step)?.path)
    }

    /// A run file with everything that is the same for all.
    fn file(&self, options: &Options) -> Result<RunFile, Box<dyn Error>> {
        let mut file = RunFile::parse(BASE)?;
        for change in [
            format!("steps={}", options.steps),
            format!("eval.tasks={}", options.tasks),
            format!("env.0.n_held_out={}", options.tasks),
        ] {
            file.set(&change)?;
        }
        Ok(file)
    }

    /// One run of a row, or of its control.
    pub(crate) fn trial(
        &self,
        options: &Options,
        case: &Case,
        seed: u64,
        control: bool,
    ) -> Result<Outcome, Box<dyn Error>> {
        let mut file = self.file(options)?;
        let control_changes = case.control.as_deref().filter(|_| control).unwrap_or_default();
        let own = [format!("seed={seed}"), format!("algorithm.kind={}", case.algorithm)];
        for change in own.iter().chain(&options.changes).chain(&case.changes).chain(control_changes) {
            file.set(change)?;
        }
        let name = format!("{}-{seed}{}", case.name, if control { "-control" } else { "" });
        let start = Start {
            model: &self.model(),
            base: &self.folder,
            folder: &self.folder.join("runs").join(&name),
            from: Some(if case.early { &self.early } else { &self.start }),
            teacher: case.teacher(control).map(|name| self.folder.join(name)),
            threads: options.threads,
            budget: options.steps * EPISODES * TOKENS,
        };
        let failed = |error| format!("{name}: {error}");
        let mut outcome = trial::run(file.resolve()?, &start).map_err(failed)?;
        if case.algorithm == "reward_model" {
            self.judge(&name, &mut outcome)?;
        }
        let last = outcome.points.last().map_or(f64::NAN, |p| p.accuracy);
        println!("  {name}: {last:.3} ({:.1} s)", outcome.seconds);
        Ok(outcome)
    }

    /// Puts the scores of a reward model in the place of the policy's, which it does not change.
    fn judge(&self, name: &str, outcome: &mut Outcome) -> Result<(), Box<dyn Error>> {
        for (index, point) in outcome.points.iter_mut().enumerate() {
            let checkpoint = if point.step == 0 { self.start.clone() } else { self.checkpoint(name, point.step)? };
            let tried = pairs::tried(&self.model(), &checkpoint, &self.pairs)?;
            pairs::score(point, &tried);
            if index == 0 {
                outcome.before = tried.clone();
            }
            outcome.after = tried;
        }
        Ok(())
    }

    /// Given answers to the training tasks in random order; the first part of them is the warm-up's only data too.
    fn data(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        let mut file = self.file(options)?;
        file.set("algorithm.kind=grpo")?;
        let environments = Environments::load(&file.resolve()?.env, &self.folder)?;
        let tasks = environments.tasks(Split::Train, usize::MAX);
        let put = |name: &str, lines: Vec<serde_json::Value>| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            std::fs::write(self.folder.join(name), text)
        };
        let gold = |task: &Task| task.gold.as_i64().unwrap_or_default();
        let said = |task: &Task, more: &str, answer: i64| {
            let asked = task.messages.last().map_or("", |m| m.content.as_str());
            json!({"messages": [
                {"role": "user", "content": format!("{asked}{more}")},
                {"role": "assistant", "content": answer.to_string()},
            ]})
        };
        put("answers.jsonl", tasks.iter().map(|t| said(t, "", gold(t))).collect())?;
        // The control of `sft`: each question with another one's answer.
        let order = Stream::new("curves shuffled", &[]).permutation(tasks.len());
        put("shuffled.jsonl", tasks.iter().zip(&order).map(|(t, o)| said(t, "", gold(&tasks[*o]))).collect())?;
        // A large model knows how to use an answer that it is shown; this one has to be taught to read, in the words with
        // which `sdpo` shows one.
        let mut warm: Vec<_> = tasks.iter().map(|t| said(t, "", gold(t))).collect();
        for (t, task) in tasks.iter().enumerate().filter(|(t, _)| t % 2 == 0) {
            let shown = match t % 4 {
                0 => format!("Here is a correct solution:\n\n{}", gold(task)),
                _ => format!("An earlier attempt was answered with:\n\nThe right answer is {}.", gold(task)),
            };
            let more = format!("\n\n{shown}\n\nNow solve the original problem correctly.");
            warm.push(said(task, &more, gold(task)));
        }
        put("warm-up.jsonl", warm)?;
        for (name, flipped) in [("pairs.jsonl", false), ("flipped.jsonl", true)] {
            let pair = |(t, task): (usize, &Task)| {
                let Pair { messages, right, wrong, .. } = pair(task, t as u64);
                let flip = flipped && Stream::new("curves flips", &[]).below(t as u64, 2) == 0;
                let (chosen, rejected) = if flip { (wrong, right) } else { (right, wrong) };
                json!({"prompt": messages, "chosen": chosen, "rejected": rejected})
            };
            put(name, tasks.iter().enumerate().map(pair).collect())?;
        }
        let held_out = environments.tasks(Split::HeldOut, usize::MAX);
        self.pairs = held_out.iter().zip(tasks.len() as u64..).map(|(task, n)| pair(task, n)).collect();
        Ok(())
    }

    /// Supervised learning from random weights, evaluated and kept every few steps.
    fn warm_up(&self, options: &Options) -> Result<Outcome, Box<dyn Error>> {
        let mut file = self.file(options)?;
        for change in [
            "seed=1",
            "steps=1000",
            "algorithm.kind=sft",
            "data.file=warm-up.jsonl",
            "optimiser.learning_rate=2e-3",
            "optimiser.warmup_updates=20",
            "batch={ tasks = 96, group_size = 1 }",
            "eval.every=20",
            "checkpoint.every=20",
            "checkpoint.keep_last=1000",
        ] {
            file.set(change)?;
        }
        let start = Start {
            model: &self.model(),
            base: &self.folder,
            folder: &self.folder.join("runs/warm-up"),
            from: None,
            teacher: None,
            threads: options.threads,
            budget: u64::MAX,
        };
        let outcome = trial::run(file.resolve()?, &start)?;
        let learned: Vec<String> = outcome.points.iter().map(|p| format!("{}:{:.2}", p.step, p.accuracy)).collect();
        println!("warm-up: {}", learned.join(" "));
        Ok(outcome)
    }

    /// Teachers for `distill`, as folders like any model's: the end of the warm-up, and for the control random weights.
    fn teachers(&self, step: u64) -> Result<(), Box<dyn Error>> {
        model::write(&self.folder.join("nobody"), &SHAPE, 2)?;
        let out = self.folder.join("teacher");
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        export(&self.model(), &self.checkpoint("warm-up", step)?, &out)
    }
}

/// A question with its right answer, and one that is wrong by 1 to 10 either way, as slips are.
fn pair(task: &Task, n: u64) -> Pair {
    let stream = Stream::new("curves pairs", &[]);
    let right = task.gold.as_i64().unwrap_or_default();
    let off = 1 + stream.below(2 * n, 10) as i64;
    let wrong = if stream.below(2 * n + 1, 2) == 0 { right + off } else { right - off };
    let (task, messages) = (task.id.as_str().to_owned(), task.messages.clone());
    Pair { task, messages, right: right.to_string(), wrong: wrong.to_string() }
}

fn export(model: &Path, checkpoint: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let run::Opened { config, params, tokenizer } = run::open(model)?;
    let cpu = tensor::Cpu::new(tensor::Isa::best(), 1)?;
    let settings = train::EngineSettings::default();
    let trainable = train::Trainable::Full {};
    let mut engine = train::Engine::new(cpu, (config, params), Some(tokenizer), trainable, settings, 0)?;
    engine.load_weights(checkpoint)?;
    train::export::export(&engine, model, "tiny", out, train::export::Format::Hf)?;
    Ok(())
}
