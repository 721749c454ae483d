//! Commands over stored runs: a checkpoint speaks, a run is listed, shown, reported and removed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod program;

use std::path::Path;

use model::peft;
use policy::Checkpoint;
use program::{Desk, golden, speaking};
use serde_json::Value;
use store::{Index, Keep, RunDir, RunId, Summary};
use tensor::{Cpu, Isa};
use train::{Engine, EngineSettings, Trainable};

/// A run that trained an adapter on the speaking model and saved two checkpoints: a fresh one, and the golden adapter.
fn make_run(desk: &Desk) -> String {
    let base = speaking(desk);
    let folder = desk.path("my-run");
    let writer = RunDir::create(&folder, RunId::new("abc1").unwrap()).unwrap();
    let settings = format!(
        "model = \"{base}\"\nsteps = 2\n[train]\nkind = \"lora\"\nrank = 4\nalpha = 8.0\ntargets = [\"all\"]\n\
         [algorithm]\nkind = \"grpo\"\n"
    );
    writer.write_settings(&settings).unwrap();
    let summary = Summary { status: "finished".into(), last_step: 2, model: base.clone(), ..Summary::default() };
    writer.write_summary(&summary).unwrap();
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let trainable = Trainable::Lora { rank: 4, alpha: 8.0, targets: vec!["all".into()] };
    let weights = model::load(Path::new(&base)).unwrap();
    let adapter = peft::load(Path::new(&format!("{}/adapter", golden("llama"))), &weights.0).unwrap();
    let mut engine = Engine::new(cpu, weights, None, trainable, EngineSettings::default(), 1).unwrap();
    let checkpoints = writer.checkpoints_to_write(Keep { last: 2, best: false }).unwrap();
    checkpoints.save(1, None, &1, |path| engine.save(path)).unwrap();
    engine.set_adapter(adapter).unwrap();
    checkpoints.save(2, None, &2, |path| engine.save(path)).unwrap();
    Index::open(&desk.home()).unwrap().record(&writer).unwrap();
    base
}

#[test]
fn a_checkpoint_speaks_as_its_adapter_does_whatever_its_run_is_called() {
    let desk = Desk::new();
    let base = make_run(&desk);
    let file = desk.file("t.jsonl", "{\"tokens\":[1,5,9,40,41]}\n");
    let score = |model: &str, more: &[&str]| {
        desk.ok(&[&["logprobs", "--json", "--tokens", &file, "--model", model], more].concat())
    };
    let plain = score(&base, &[]);
    let adapted = score(&base, &["--adapter", &format!("{}/adapter", golden("llama"))]);
    assert_ne!(plain, adapted);
    let path = desk.path("my-run").display().to_string();
    for name in ["abc1", "my-run", "abc1@2", "my-run@2", &path, &format!("{path}@2"), "./my-run@2"] {
        assert_eq!(score(name, &[]), adapted, "{name}");
    }
    // A fresh adapter adds nothing.
    assert_eq!(score("abc1@1", &[]), plain);
}

#[test]
fn runs_are_listed_shown_reported_and_removed() {
    let desk = Desk::new();
    make_run(&desk);
    let row: Value = serde_json::from_str(&desk.ok(&["runs", "list", "--json"])).unwrap();
    assert_eq!(
        (row["run"].as_str(), row["status"].as_str(), row["last_step"].as_u64()),
        (Some("abc1"), Some("finished"), Some(2))
    );
    let listed = desk.ok(&["runs", "list"]);
    assert!(listed.lines().nth(1).unwrap().starts_with("abc1  finished  2"), "{listed}");
    assert_eq!(desk.ok(&["runs", "list", "--rebuild"]), listed);

    let shown = desk.ok(&["show", "abc1"]);
    assert!(shown.contains("\nstatus     finished\n"), "{shown}");
    let view: Value = serde_json::from_str(&desk.ok(&["show", "abc1", "--json"])).unwrap();
    assert_eq!(view["run"], "abc1");

    let printed = desk.ok(&["report", "my-run"]);
    assert_eq!(printed, "my-run/report.html\n", "as the run was called: from the working directory");
    let page = std::fs::read_to_string(desk.path(printed.trim_end())).unwrap();
    assert!(page.contains("abc1"));
    let elsewhere = desk.path("page.html").display().to_string();
    let value: Value = serde_json::from_str(&desk.ok(&["report", "abc1", "--out", &elsewhere, "--json"])).unwrap();
    assert_eq!(value["report"].as_str(), Some(&*elsewhere));
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), page);

    desk.ok(&["runs", "rm", "abc1", "--json"]);
    assert!(!desk.path("my-run").exists());
    assert_eq!(desk.ok(&["runs", "list", "--json"]), "");
}

#[test]
fn what_cannot_be_meant_by_a_checkpoint_is_refused() {
    let desk = Desk::new();
    make_run(&desk);
    let check = |model: &str, want: &str| {
        let ran = desk.run_with(&["logprobs", "--model", model, "--tokens", "-"], b"{\"tokens\":[1]}", &[]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains(want), "{}", ran.err);
    };
    check("abc1@7", "error: no checkpoint of step 7 in `");
    check("abc1@7", "got 1, 2\n");
    check("abc1@last", "error: `abc1@last`: needed a step after `@`, got `last`\n");
    check("abc2@1", "error: no model `abc2@1`: needed a file or folder, ");
    let weights = desk.path("my-run/checkpoints/step-000001/weights.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    check("abc1@1", "is damaged: ");
}
