//! That algorithms learn: from one start each gains at least a margin on held-out tasks, and with coin flips for rewards none
//! does. The whole comparison, of every algorithm over several seeds, is `examples/curves`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

#[path = "../examples/curves/model.rs"]
mod model;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use episode::random::Stream;
use eval::EvalLine;
use store::RunDir;
use surefoot_run::{Begin, Ended, Quiet, RunFile, Session};
use tensor::{Cpu, Isa};

/// What every run here gains on held-out tasks at least, and what none gains with coin flips for rewards: a share of them.
const MARGIN: f64 = 0.2;
const SLACK: f64 = 0.05;

/// A word of three letters is answered with the letter that follows its first one; the letters behind it say nothing.
const LETTERS: &[u8] = b"abcdefghijklmnop";
const SHAPE: model::Shape = model::Shape { width: 32, ffn: 64, layers: 2, heads: 2, context: 64 };

const RUN: &str = r#"
model = "tiny"
seed = 1
steps = 40

[train]
kind = "full"

[optimiser]
learning_rate = 4e-3

[batch]
tasks = 8
group_size = 16

[sampling]
max_tokens = 2

[eval]
tasks = 200
temperature = 1.0
samples = 0

[checkpoint]
every = 1000
kl_every = 0

[[env]]
kind = "jsonl"
tasks = "train.jsonl"
held_out = "held-out.jsonl"
grader = [{ kind = "text" }]
"#;

/// A folder with the model, the tasks, and a policy that a little supervised learning has brought half of the way.
struct Start {
    folder: tempfile::TempDir,
    from: PathBuf,
    accuracy: f64,
}

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        model::write(&folder.path().join("model"), &SHAPE, 1).unwrap();
        let put = |name: &str, lines: Vec<String>| std::fs::write(folder.path().join(name), lines.join("\n")).unwrap();
        let words = words();
        let (held_out, train) = words.split_at(200);
        let task = |(word, gold): &(String, String)| format!(r#"{{"prompt": "{word}", "gold": "{gold}"}}"#);
        put("train.jsonl", train.iter().take(1000).map(task).collect());
        put("held-out.jsonl", held_out.iter().map(task).collect());
        let answer = |(word, gold): &(String, String)| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": "{word}"}}, {{"role": "assistant", "content": "{gold}"}}]}}"#
            )
        };
        put("answers.jsonl", train.iter().take(1000).map(answer).collect());
        let warm = [
            "steps=60",
            "optimiser.learning_rate=2e-3",
            "algorithm.kind=sft",
            "data.file=answers.jsonl",
            "batch={ tasks = 32, group_size = 1 }",
            "checkpoint.every=60",
        ];
        let run = train_in(folder.path(), None, "warm-up", &warm);
        let from = run.checkpoints().latest().unwrap().unwrap().path;
        let accuracy = scores(&run)[1];
        Start { folder, from, accuracy }
    })
}

/// Every word in a fixed random order, with its answer.
fn words() -> Vec<(String, String)> {
    let n = LETTERS.len();
    let letter = |i: usize| char::from(LETTERS[i % n]);
    let order = Stream::new("learning words", &[]).permutation(n * n * n);
    order
        .iter()
        .map(|i| ([i / n / n, i / n, *i].map(letter).iter().collect(), letter(i / n / n + 1).to_string()))
        .collect()
}

fn train_in(folder: &Path, from: Option<&Path>, name: &str, changes: &[&str]) -> RunDir {
    let mut file = RunFile::parse(RUN).unwrap();
    changes.iter().for_each(|change| file.set(change).unwrap());
    let (model, run) = (folder.join("model"), folder.join(name));
    let cancel = AtomicBool::new(false);
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let begin = Begin { model: &model, base: folder, folder: &run, from, teacher: None, cpu };
    let mut session = Session::start(file.resolve().unwrap(), begin, &mut Quiet, &cancel).unwrap();
    assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
    drop(session);
    RunDir::read(&run).unwrap()
}

/// Held-out accuracy before and after.
fn scores(run: &RunDir) -> Vec<f64> {
    let lines: Vec<EvalLine> = run.read_lines("evals.jsonl").unwrap();
    lines.iter().map(|line| line.score.accuracy.unwrap()).collect()
}

fn gain(name: &str, changes: &[&str]) -> f64 {
    let start = start();
    assert!((0.1..0.6).contains(&start.accuracy), "the start is right in {}", start.accuracy);
    let scores = scores(&train_in(start.folder.path(), Some(&start.from), name, changes));
    println!("{name}: {scores:?}");
    scores[1] - scores[0]
}

fn check_learns(algorithm: &str, changes: &[&str]) {
    let kind = format!("algorithm.kind={algorithm}");
    let learned = gain(algorithm, &[&[kind.as_str()], changes].concat());
    assert!(learned >= MARGIN, "{algorithm} gained {learned}, needed {MARGIN}");
    let flips = [&[kind.as_str(), "control.coin_flips=true"], changes].concat();
    let control = gain(&format!("{algorithm}-control"), &flips);
    assert!(control <= SLACK, "{algorithm} gained {control} from coin flips, at most {SLACK} are chance");
}

#[test]
fn grpo_learns_and_from_coin_flips_it_does_not() {
    check_learns("grpo", &[]);
}

#[test]
fn ppo_with_its_value_head_learns_and_from_coin_flips_it_does_not() {
    check_learns("ppo", &[]);
}

#[test]
fn oapl_learns_and_from_coin_flips_it_does_not() {
    check_learns("oapl", &[]);
}
