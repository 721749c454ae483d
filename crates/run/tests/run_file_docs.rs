//! The pages on the run file and on metrics against the program: what there is, is explained with its default, and what is
//! explained is there.
//!
//! What keys a table has is asked of the program itself: the refusal of an unknown key lists the known ones, those that
//! are absent until they are set included.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

mod tiny;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value as Json};
use store::RunDir;
use surefoot_run::{Begin, Ended, Quiet, RunFile, Session};
use tensor::{Cpu, Isa};
use toml::{Table, Value};

const RUN_FILE: &str = include_str!("../../../docs/run-file.md");
const METRICS: &str = include_str!("../../../docs/metrics.md");

/// The least a run file says.
const LEAST: &str = "model = 'm'\nsteps = 1\n[algorithm]\nkind = 'grpo'\n[[env]]\nkind = 'sums'\n";
const LEAST_SFT: &str = "model = 'm'\nsteps = 1\n[algorithm]\nkind = 'sft'\n[batch]\ngroup_size = 1\n[eval]\ntasks = 0\n\
                         [data]\nfile = 'f'\n";

/// Tables of the run file that have a section of their own.
const TABLES: [&str; 15] = [
    "train",
    "algorithm",
    "optimiser",
    "batch",
    "sampling",
    "rollout",
    "gate",
    "tools",
    "eval",
    "checkpoint",
    "engine",
    "control",
    "data",
    "replay",
    "env",
];
/// Tables whose keys are the user's own words.
const FREE: [&str; 1] = ["variables"];
/// Stands for a key that no table has.
const NO_KEY: &str = "no_such_key";

/// One key as the program has it.
#[derive(Debug)]
struct Key {
    /// Where it is, list elements by number.
    path: Vec<String>,
    /// What it is when it is not set.
    default: Option<Value>,
}

/// The keys under one heading of the page: by the name that the page gives them.
type Keys = BTreeMap<String, Key>;

/// A run file: as typed, and as it would run.
struct Sample {
    typed: Value,
    resolved: Value,
}

impl Sample {
    fn new(text: &str) -> Sample {
        let resolved = RunFile::parse(text).unwrap().resolve().unwrap().to_toml().unwrap();
        let parse = |text: &str| Value::Table(text.parse::<Table>().unwrap());
        Sample { typed: parse(text), resolved: parse(&resolved) }
    }

    /// The keys that the table at a path may have, by the refusal of one it cannot have.
    fn known(&self, path: &[String]) -> BTreeSet<String> {
        let mut asked = self.resolved.clone();
        let table = find_mut(&mut asked, path).unwrap().as_table_mut().unwrap();
        table.insert(NO_KEY.to_owned(), Value::Integer(1));
        let refusal = refusal(&asked).unwrap();
        assert!(refusal.contains(NO_KEY), "{path:?}: {refusal}");
        let names = refusal.split_once("expected ").map_or("", |(_, names)| names);
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// The keys that the table at a path may have, and those of the tables in it.
    fn keys(&self, path: &[String], names: BTreeSet<String>) -> Keys {
        let mut keys = Keys::new();
        for name in names {
            let path = [path, std::slice::from_ref(&name)].concat();
            let default = find(&self.resolved, &path).cloned();
            if let (Some(Value::Table(table)), false) = (&default, FREE.contains(&name.as_str())) {
                let own = table.keys().cloned().chain(self.known(&path)).collect();
                keys.extend(self.keys(&path, own));
                continue;
            }
            let words: Vec<&str> = path.iter().map(String::as_str).filter(|p| p.parse::<usize>().is_err()).collect();
            keys.insert(words.join("."), Key { path, default });
        }
        keys
    }

    /// Whether the run file is refused without a key that it has.
    fn needs(&self, path: &[String]) -> bool {
        let mut without = self.typed.clone();
        let (last, table) = path.split_last().unwrap();
        find_mut(&mut without, table).unwrap().as_table_mut().unwrap().remove(last);
        refusal(&without).is_some()
    }

    /// Compares what the page says a key is when it is not set.
    fn check_default(&self, heading: &str, name: &str, key: &Key, cell: &str) {
        let place = format!("`{name}` under `{heading}`");
        if find(&self.typed, &key.path).is_some() {
            assert_eq!(cell == "required", self.needs(&key.path), "{place} says `{cell}`");
            return;
        }
        let said = cell.strip_prefix('`').and_then(|c| c.strip_suffix('`')).map(|c| {
            let table = format!("v = {c}").parse::<Table>();
            table.unwrap_or_else(|e| panic!("{place} says `{c}`, which is no TOML: {e}"))["v"].clone()
        });
        match (&key.default, &said) {
            (Some(is), Some(said)) => assert!(same(is, said), "{place} says `{said}`, it is `{is}`"),
            // A name that is not set is the kind's.
            (Some(_), None) => assert_eq!((name.ends_with(".name"), cell), (true, "the kind"), "{place}"),
            (None, said) => assert_eq!((said, cell != "required"), (&None, true), "{place}: it is absent when not set"),
        }
    }
}

fn refusal(file: &Value) -> Option<String> {
    let text = toml::to_string(file).unwrap();
    RunFile::parse(&text).unwrap().resolve().err().map(|e| e.to_string())
}

fn find<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, part| match part.parse::<usize>() {
        Ok(index) => value.get(index),
        Err(_) => value.get(part.as_str()),
    })
}

fn find_mut<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_mut(index),
        Err(_) => value.get_mut(part.as_str()),
    })
}

fn same(a: &Value, b: &Value) -> bool {
    let number = |v: &Value| v.as_float().or_else(|| v.as_integer().map(|i| i as f64));
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn path(dotted: &str) -> Vec<String> {
    dotted.split('.').filter(|p| !p.is_empty()).map(str::to_owned).collect()
}

/// The keys of the table at a path, the tag of a tagged one included.
fn table_keys(sample: &Sample, dotted: &str) -> Keys {
    let path = path(dotted);
    let own = find(&sample.resolved, &path).and_then(Value::as_table).unwrap().keys().cloned();
    sample.keys(&path, own.chain(sample.known(&path)).collect())
}

/// Everything that can be set, by the heading of its section.
fn program() -> BTreeMap<String, (Sample, Keys)> {
    let mut all = BTreeMap::new();
    let mut add = |heading: String, sample: Sample, keys: Keys| {
        if !keys.is_empty() {
            assert!(all.insert(heading, (sample, keys)).is_none());
        }
    };
    let least = Sample::new(LEAST);
    let top = least.known(&[]);
    assert!(TABLES.iter().all(|t| top.contains(*t)), "{top:?}");
    let plain = top.into_iter().filter(|name| !TABLES.contains(&name.as_str())).collect();
    let keys = least.keys(&[], plain);
    add("Top level".to_owned(), least, keys);

    for name in TABLES.iter().filter(|t| !["algorithm", "control", "data", "replay", "env"].contains(t)) {
        let sample = Sample::new(LEAST);
        let keys = table_keys(&sample, name);
        add(format!("`[{name}]`"), sample, keys);
    }
    for (name, text) in [
        ("control", format!("{LEAST}[control]\ncoin_flips = true\n")),
        ("data", LEAST_SFT.to_owned()),
        ("replay", format!("{LEAST}[replay]\nfrom = ['r']\nown_steps = 2\n")),
    ] {
        let sample = Sample::new(&text);
        let keys = table_keys(&sample, name);
        add(format!("`[{name}]`"), sample, keys);
    }

    for name in algo::Settings::NAMES {
        let text = match *name {
            "sft" => LEAST_SFT.to_owned(),
            "distill" => LEAST.replace("kind = 'grpo'\n", "kind = 'distill'\nteacher = 't'\n"),
            _ => LEAST.replace("grpo", name),
        };
        let sample = Sample::new(&text);
        let keys = table_keys(&sample, "algorithm");
        add(format!("`[algorithm]`, `{name}`"), sample, keys);
    }
    for (table, names) in [("correction", loss::Correction::NAMES), ("select", loss::Select::NAMES)] {
        for name in names {
            let sample = Sample::new(&format!("{LEAST}[algorithm.{table}]\nrule = '{name}'\n"));
            let path = path(&format!("algorithm.{table}"));
            let keys = sample.keys(&path, sample.known(&path));
            add(format!("`[algorithm.{table}]`, `{name}`"), sample, keys);
        }
    }

    for (kind, _) in env::Kind::TABLE {
        let needed = match *kind {
            "gsm8k" | "jsonl" => "tasks = 't'\n",
            "command" => "tasks = 't'\ncommand = ['c']\n",
            _ => "",
        };
        let sample = Sample::new(&LEAST.replace("kind = 'sums'\n", &format!("kind = '{kind}'\n{needed}")));
        let path = path("env.0");
        let keys = sample.keys(&path, sample.known(&path));
        add(format!("`[[env]]`, `{kind}`"), sample, keys);
    }
    // Keys that all kinds share are those it has beside its kind's own.
    let shared = |text: &str, dotted: &str| {
        let (sample, path) = (Sample::new(text), path(dotted));
        let own: BTreeSet<String> =
            find(&sample.resolved, &path).and_then(Value::as_table).unwrap().keys().cloned().collect();
        let names = own.difference(&sample.known(&path)).cloned().collect();
        let keys = sample.keys(&path, names);
        (sample, keys)
    };
    let graded = format!("{LEAST}[[env.grader]]\nkind = 'last_number'\n");
    let (sample, keys) = shared(&graded, "env.0");
    add("`[[env]]`, every kind".to_owned(), sample, keys);
    let (sample, keys) = shared(&graded, "env.0.grader.0");
    add("`[[env.grader]]`, every kind".to_owned(), sample, keys);
    for (kind, _) in env::grader::Kind::TABLE {
        let needed = if *kind == "command" { "command = ['c']\n" } else { "" };
        let sample = Sample::new(&format!("{LEAST}[[env.grader]]\nkind = '{kind}'\n{needed}"));
        let path = path("env.0.grader.0");
        let keys = sample.keys(&path, sample.known(&path));
        add(format!("`[[env.grader]]`, `{kind}`"), sample, keys);
    }
    all
}

/// The page's tables: by heading and key, what it says of the default.
fn page() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut heading = "";
    for line in RUN_FILE.lines() {
        if let Some(text) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            heading = text;
        } else if line.starts_with("| `") {
            let cells: Vec<&str> = line.trim_start_matches("| ").trim_end_matches(" |").split(" | ").collect();
            assert_eq!(cells.len(), 4, "key, type, default, meaning: {line}");
            let twice = all
                .entry(heading.to_owned())
                .or_default()
                .insert(cells[0].trim_matches('`').to_owned(), cells[2].to_owned());
            assert!(twice.is_none(), "two lines on {} under `{heading}`", cells[0]);
        }
    }
    all
}

#[test]
fn the_page_lists_every_key_with_its_default_and_no_other() {
    let (program, page) = (program(), page());
    let headings = |names: Vec<&String>| names.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(headings(page.keys().collect()), headings(program.keys().collect()), "sections with a table");
    for (heading, (sample, keys)) in &program {
        let said = &page[heading];
        assert_eq!(headings(said.keys().collect()), headings(keys.keys().collect()), "keys under `{heading}`");
        for (name, key) in keys {
            sample.check_default(heading, name, key, &said[name]);
        }
    }
}

#[test]
fn the_example_on_the_page_runs() {
    let (_, rest) = RUN_FILE.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    RunFile::parse(example).unwrap().resolve().unwrap();
}

/// A step of a tiny model, whose lines hold every number that any step's lines hold.
#[test]
fn the_page_on_metrics_explains_every_number_a_run_writes_and_no_other() {
    let place = tiny::Place::new();
    let pair = r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#;
    std::fs::write(place.path("pairs.jsonl"), pair).unwrap();
    let critic = "algorithm={ kind = 'ppo', kl = { coefficient = 0.1, place = 'loss', estimator = 'k3' }, \
                  value_clip = 0.2, correction = { rule = 'token_mask', low = 0.999, high = 1.001 } }";
    let preference = ["algorithm.kind=dpo", "control.coin_flips=false", "max_lag=0", "data={ file = 'pairs.jsonl' }"];
    let mut written = BTreeSet::new();
    for (name, changes) in
        [("plain", &["rollout.turns=2"][..]), ("critic", &[critic, "steps=3"]), ("preference", &preference)]
    {
        written.extend(keys_written(&place, name, changes));
    }
    let rows = METRICS.lines().filter_map(|line| line.strip_prefix("| `"));
    let explained: BTreeSet<String> = rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect();
    let none: [&String; 0] = [];
    assert_eq!(written.difference(&explained).collect::<Vec<_>>(), none, "written but not explained");
    assert_eq!(explained.difference(&written).collect::<Vec<_>>(), none, "explained but not written");
}

/// The keys of all lines that a short run writes.
fn keys_written(place: &tiny::Place, name: &str, changes: &[&str]) -> BTreeSet<String> {
    let (model, run) = (place.model(), place.path(name));
    let mut file = RunFile::parse(LEAST).unwrap();
    for change in [
        "batch={ tasks = 2, group_size = 2 }",
        "sampling.max_tokens=4",
        "eval.tasks=2",
        "checkpoint.kl_every=1",
        "control.coin_flips=true",
        "max_idle_steps=9",
        "max_lag=1",
    ]
    .iter()
    .chain(changes)
    {
        file.set(change).unwrap();
    }
    let cancel = AtomicBool::new(false);
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let begin = Begin { model: &model, base: place.folder(), folder: &run, from: None, teacher: None, cpu };
    let mut session = Session::start(file.resolve().unwrap(), begin, &mut Quiet, &cancel).unwrap();
    assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
    drop(session);
    let run = RunDir::read(&run).unwrap();
    let mut written = BTreeSet::new();
    for name in ["metrics.jsonl", "timings.jsonl", "evals.jsonl"] {
        let lines: Vec<Map<String, Json>> = run.read_lines(name).unwrap();
        assert!(!lines.is_empty(), "{name}");
        written.extend(lines.iter().flat_map(Map::keys).cloned());
    }
    written
}
