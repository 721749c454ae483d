//! A whole run directory: locks, stamps, going back, episodes in both forms.

use std::collections::BTreeMap;
use std::fs;

use episode::{Cause, Episode, EpisodeKey, Group, Message, Outcome, Part, Role, Sequence, Stage, StopReason, Task};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::json;

use super::*;
use crate::{Keep, TokenValues, numbers};

fn id() -> RunId {
    RunId::new("run-1").unwrap()
}

fn fields(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn groups(step: u64) -> Vec<Group> {
    let outcomes = [
        Outcome::Graded { reward: 1.0 / 3.0, parts: vec![Part::new("exact", 0.1, 1.0)] },
        Outcome::Failed { stage: Stage::Grader, cause: Cause::new("deadline", "took \"30\" s\nand more") },
        Outcome::Cancelled,
    ];
    let mut out = Vec::new();
    for (g, question) in ["1 + 1?", "<script>é\u{1b}[0m"].iter().enumerate() {
        let task = Task::new("sums", vec![Message::new(Role::User, *question)], json!(2), json!({"level": g}));
        let episodes = (0..outcomes.len()).map(|sample| episode(&task, step, sample, &outcomes[sample])).collect();
        out.push(Group { task, episodes });
    }
    out
}

fn episode(task: &Task, step: u64, sample: usize, outcome: &Outcome) -> Episode {
    let mut first = Sequence::new();
    first.append_context(Role::User, &[1, u32::MAX]);
    // Values without a short decimal form, the smallest there is, and minus zero.
    let logp = [-0.1, -1.0 / 3.0, -1e-45, -0.0, f32::MIN];
    first.append_sampled(&[5, 6, 7, 8, 9], &logp, &logp.map(|l| l * 0.5), step as u32).unwrap();
    let mut second = Sequence::new();
    second.append_context(Role::User, &[3]);
    // The last attempt said nothing: an empty list is not a missing one.
    let sequences = if sample == 2 { vec![] } else { vec![first, second] };
    Episode {
        key: EpisodeKey { step, task: task.id.clone(), sample: sample as u32 },
        sequences,
        messages: vec![Message::new(Role::Assistant, "it is 2")],
        outcome: outcome.clone(),
        stop: StopReason::Length,
        turn_rewards: Vec::new(),
        conduct: episode::Conduct::default(),
    }
}

/// Does the steps of a small run.
fn go(writer: &mut RunWriter, steps: std::ops::RangeInclusive<u64>) {
    let checkpoints = writer.checkpoints_to_write(Keep { last: 9, best: true }).unwrap();
    for step in steps {
        let groups = groups(step);
        writer.write_episodes(step, &groups).unwrap();
        let values = BTreeMap::from([("advantage".to_string(), vec![vec![None, Some(0.5)]])]);
        let task = groups[0].task.id.clone();
        writer.write_token_values(step, &[TokenValues { group: 0, task, sample: 0, values }]).unwrap();
        let metrics = fields(json!({"reward_mean": 1.0 / step as f64, "failures": {"grader/deadline": 2}}));
        writer.write_metrics(step, &metrics, &fields(json!({"tokens_per_s": 100.0})), 1e9 + step as f64).unwrap();
        if step % 2 == 0 {
            writer.append_line("evals.jsonl", step, &json!({"solved": step})).unwrap();
            checkpoints.save(step, Some(step as f64), &json!({"step": step}), |_| Ok::<(), StoreError>(())).unwrap();
        }
    }
    writer.export(&json!({"grpo": {"group_size": 8}, "seed": 1})).unwrap();
}

fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let below = disk::files_below(folder).unwrap();
    let read = |f: String| (f.clone(), fs::read(folder.join(f)).unwrap());
    below.files.into_iter().filter(|f| f != "lock").map(read).collect()
}

/// CASES H7.
#[test]
fn a_resumed_run_has_the_files_of_an_uninterrupted_one_byte_for_byte() {
    let root = tempfile::tempdir().unwrap();
    let (whole, resumed) = (root.path().join("whole"), root.path().join("resumed"));
    go(&mut RunDir::create(&whole, id()).unwrap(), 1..=6);
    go(&mut RunDir::create(&resumed, id()).unwrap(), 1..=5);
    // Killed in step 6: half a line, half an event, unfinished files.
    let append = |name: &str, bytes: &[u8]| {
        let path = resumed.join(name);
        fs::write(&path, [fs::read(&path).unwrap(), bytes.to_vec()].concat()).unwrap();
    };
    append("metrics.jsonl", br#"{"run":"run-1","step":6,"rew"#);
    append("events/events.out.tfevents.0.run-1", &[24, 0, 0]);
    for name in [".tmp-a", "episodes/.tmp-b", "checkpoints/.tmp-c"] {
        fs::write(resumed.join(name), "half").unwrap();
    }
    let mut writer = RunDir::open(&resumed).unwrap();
    let done = writer.checkpoints().latest().unwrap().unwrap().step;
    assert_eq!(done, 4);
    writer.rewind(done).unwrap();
    assert_eq!(writer.episode_steps().unwrap(), [1, 2, 3, 4]);
    go(&mut writer, 5..=6);
    let (want, got) = (tree(&whole), tree(&resumed));
    assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
    for (name, bytes) in &want {
        assert!(got[name] == *bytes, "`{name}` differs");
    }
}

#[test]
fn going_back_to_the_start_leaves_nothing_of_later_steps() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    writer.append_line("evals.jsonl", 0, &json!({"solved": 0})).unwrap();
    go(&mut writer, 1..=3);
    writer.rewind(0).unwrap();
    assert_eq!(writer.read_lines::<Value>("metrics.jsonl").unwrap(), Vec::<Value>::new());
    assert_eq!(writer.read_lines::<Value>("evals.jsonl").unwrap(), [json!({"step": 0, "solved": 0})]);
    assert!(writer.episode_steps().unwrap().is_empty() && writer.checkpoints().steps().unwrap().is_empty());
}

#[test]
fn a_second_writer_is_refused_and_told_who_is_there() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run");
    let writer = RunDir::create(&path, id()).unwrap();
    let error = RunDir::open(&path).unwrap_err().to_string();
    let pid = std::process::id();
    assert_eq!(error, format!("run directory `{}` is in use by process {pid}, needed alone", path.display()));
    let reader = RunDir::read(&path).unwrap();
    assert!(reader.in_use());
    drop(writer);
    assert!(!reader.in_use());
    RunDir::open(&path).unwrap();
}

#[test]
fn a_new_run_needs_a_folder_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run");
    drop(RunDir::create(&path, id()).unwrap());
    let error = RunDir::create(&path, RunId::new("run-2").unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("needed a new or empty folder, got one with run `run-1` in it"), "{error}");
    let other = root.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.tex"), "").unwrap();
    let error = RunDir::create(&other, id()).unwrap_err().to_string();
    assert!(error.ends_with("got one with `thesis.tex` in it"), "{error}");
    assert_eq!(disk::names(&other).unwrap(), ["thesis.tex"]);
    // A process killed before the marker was written left only this.
    fs::remove_file(other.join("thesis.tex")).unwrap();
    fs::write(other.join(LOCK), "1").unwrap();
    RunDir::create(&other, id()).unwrap();
    let error = RunDir::read(root.path()).unwrap_err().to_string();
    assert!(error.ends_with("is not a run directory: it has no `run.json`"), "{error}");
    let error = RunDir::create(Path::new("/proc/no/run"), id()).unwrap_err().to_string();
    assert!(error.starts_with("cannot create `/proc/no/run`: "), "{error}");
}

/// CASES I18: every artefact bears the run's id; one of another run is refused.
#[test]
fn artefacts_of_another_run_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (root.path().join("old"), root.path().join("new"));
    let mut writer = RunDir::create(&old, id()).unwrap();
    writer.write_settings("seed = 1\n").unwrap();
    writer.write_json("manifest.json", &json!({"weights": "abc"})).unwrap();
    go(&mut writer, 1..=2);
    drop(writer);
    assert_eq!(RunDir::read(&old).unwrap().settings().unwrap().as_deref(), Some("seed = 1\n"));
    let fresh = RunDir::create(&new, RunId::new("run-2").unwrap()).unwrap();
    for file in disk::files_below(&old).unwrap().files {
        if file != MARKER && file != LOCK {
            let to = new.join(&file);
            fs::create_dir_all(disk::parent(&to)).unwrap();
            fs::copy(old.join(&file), to).unwrap();
        }
    }
    let refusals = [
        fresh.settings().map(drop),
        fresh.read_json::<Value>("manifest.json").map(drop),
        fresh.read_lines::<Value>("metrics.jsonl").map(drop),
        fresh.read_lines::<Value>("evals.jsonl").map(drop),
        fresh.episodes(1).map(drop),
        fresh.token_values(1).map(drop),
        fresh.checkpoints().latest().map(drop),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err().to_string();
        assert!(error.ends_with("belongs to run `run-1`, needed run `run-2`"), "{error}");
    }
}

#[test]
fn episodes_come_back_from_json_lines_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    let writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    writer.write_episodes(12, &groups(12)).unwrap();
    let back = writer.episodes(12).unwrap();
    assert_eq!(back, groups(12));
    let bits = |g: &[Group]| -> Vec<u32> {
        let sequences = g.iter().flat_map(|g| &g.episodes).flat_map(|e| &e.sequences);
        sequences.flat_map(|s| s.logp().iter().chain(s.logp_t1())).map(|l| l.to_bits()).collect()
    };
    assert_eq!(bits(&back), bits(&groups(12)));
    assert_eq!(writer.episodes(13).unwrap(), Vec::<Group>::new());
    let path = root.path().join("run/episodes/step-000012.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(r#"{"run":"run-1","step":12,"group":0,"task":{"#), "{text}");
    assert!(text.contains("-0.1,-0.33333334,-1e-45,-0.0,"), "an f32 is written in its own shortest form: {text}");
    fs::write(&path, &text[..text.len() - 9]).unwrap();
    assert!(writer.episodes(12).unwrap_err().to_string().ends_with("is damaged: its last line is cut off"));
}

#[test]
fn parquet_holds_every_column_of_every_episode() {
    let root = tempfile::tempdir().unwrap();
    let writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    writer.write_episodes(12, &groups(12)).unwrap();
    let file = File::open(root.path().join("run/episodes/step-000012.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let meta = reader.metadata().file_metadata().key_value_metadata().unwrap();
    assert_eq!((meta[0].key.as_str(), meta[0].value.as_deref()), ("surefoot.run", Some("run-1")));
    let rows: Vec<Row> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 6);
    let get = |row: usize, name: &str| rows[row].get_column_iter().find(|(n, _)| *n == name).unwrap().1.clone();
    let text = |s: &str| Field::Str(s.to_string());
    let floats = |row: usize, name: &str| match get(row, name) {
        Field::ListInternal(list) => list.elements().to_vec(),
        other => vec![other],
    };
    assert_eq!((get(0, "step"), get(3, "group"), get(4, "sample")), (Field::Long(12), Field::Long(1), Field::Long(1)));
    assert_eq!(
        (get(0, "reward"), get(1, "reward"), get(2, "reward")),
        (Field::Double(1.0 / 3.0), Field::Null, Field::Null)
    );
    assert_eq!(
        (get(0, "outcome"), get(1, "outcome"), get(2, "outcome")),
        (text("graded"), text("failed"), text("cancelled"))
    );
    assert_eq!((get(0, "failure_stage"), get(1, "failure_stage")), (Field::Null, text("grader")));
    assert_eq!(
        (get(1, "failure_class"), get(1, "failure_detail")),
        (text("deadline"), text("took \"30\" s\nand more"))
    );
    assert_eq!((get(0, "env"), get(0, "stop"), get(0, "reply")), (text("sums"), text("length"), text("it is 2")));
    assert_eq!((get(0, "n_sampled"), get(2, "n_sampled")), (Field::Long(5), Field::Long(0)));
    let tokens: Vec<Field> = [1, u32::MAX, 5, 6, 7, 8, 9, 3].map(Field::UInt).into();
    assert_eq!((floats(0, "tokens"), floats(2, "tokens")), (tokens, vec![]));
    assert_eq!(floats(0, "sequence_lengths"), [Field::UInt(7), Field::UInt(1)]);
    assert_eq!(floats(1, "logp")[..4], [Field::Null, Field::Null, Field::Float(-0.1), Field::Float(-1.0 / 3.0)]);
    assert_eq!(floats(1, "version")[1..3], [Field::Null, Field::UInt(12)]);
    assert_eq!(floats(0, "sampled")[1..3], [Field::Bool(false), Field::Bool(true)]);
    assert_eq!(get(0, "task"), text(groups(12)[0].task.id.as_str()));
}

#[test]
fn values_of_tokens_come_back() {
    let root = tempfile::tempdir().unwrap();
    let writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    let values = BTreeMap::from([("advantage".to_string(), vec![vec![None, Some(-0.1f32)], vec![]])]);
    let values = vec![TokenValues { group: 3, task: groups(1)[0].task.id.clone(), sample: 2, values }];
    writer.write_token_values(5, &values).unwrap();
    assert_eq!(writer.token_values(5).unwrap(), values);
    assert_eq!(writer.token_values(6).unwrap(), vec![]);
}

#[test]
fn a_reader_sees_whole_lines_while_another_process_writes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run");
    let mut writer = RunDir::create(&path, id()).unwrap();
    go(&mut writer, 1..=2);
    let metrics = path.join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, &text[..text.len() - 3]).unwrap();
    let lines = RunDir::read(&path).unwrap().read_lines::<Map<String, Value>>("metrics.jsonl").unwrap();
    assert_eq!(lines.len(), 1);
    let want = [("step", 1.0), ("reward_mean", 1.0), ("failures.grader/deadline", 2.0)];
    assert_eq!(numbers(&lines[0]), want.map(|(k, v)| (k.to_string(), v)));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    for name in ["../x.json", "a/b.json", "run.json", ".json", ".tmp-x.json", "x.toml"] {
        assert!(matches!(writer.write_json(name, &json!({})), Err(StoreError::FileName { .. })), "{name}");
    }
    assert!(writer.append_line("x.json", 1, &json!({})).is_err());
    assert!(writer.write_json("x.json", &json!({"run": "other"})).is_err());
    for text in ["", "-rf", "a b", "../x", "é", &"x".repeat(65)] {
        assert!(RunId::new(text).is_err(), "{text}");
    }
    assert_eq!(RunId::from_content(&[b"a", b"b"]).as_str().len(), 16);
    assert_ne!(RunId::from_content(&[b"a", b"b"]), RunId::from_content(&[b"ab"]));
}

#[test]
fn a_summary_comes_back_and_a_step_has_one_line_of_metrics() {
    let root = tempfile::tempdir().unwrap();
    let mut writer = RunDir::create(&root.path().join("run"), id()).unwrap();
    assert_eq!(writer.summary().unwrap(), None);
    let summary = Summary { status: "running".into(), last_step: 3, best_score: Some(0.1), ..Summary::default() };
    writer.write_summary(&summary).unwrap();
    assert_eq!(writer.summary().unwrap(), Some(summary));
    let none = Map::new();
    writer.write_metrics(1, &none, &none, 0.0).unwrap();
    assert!(matches!(writer.write_metrics(1, &none, &none, 0.0), Err(StoreError::StepOrder { needed: 2, got: 1, .. })));
}
