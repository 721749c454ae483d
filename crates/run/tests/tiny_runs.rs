//! Whole runs of a tiny model: golden bits, resume, controls, and faults put in on purpose.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

#[path = "tiny/runs.rs"]
mod runs;
mod tiny;

use std::sync::atomic::{AtomicBool, Ordering};

use runs::{StopAt, column, cpu, fingerprint};
use serde_json::Value;
use store::RunDir;
use surefoot_run::{self as run, Ended, Phase, Quiet, RunError};
use tensor::Isa;
use tiny::Place;

/// The golden hashes of ten GRPO steps, the same on every machine. A change that alters them is a change of the arithmetic
/// and says *new numbers*.
#[test]
fn ten_steps_of_grpo_have_the_golden_hashes_on_every_vector_set_and_thread_count() {
    let golden = include_str!("golden_steps.txt");
    let place = Place::new();
    for isa in Isa::available() {
        for n_threads in [1, 2] {
            let name = format!("{isa}-{n_threads}");
            let got = fingerprint(&place.run(&name, cpu(isa, n_threads), &[])).join("\n");
            assert_eq!(got, golden.trim(), "{name}");
        }
    }
}

#[test]
fn bf16_runs_have_one_set_of_bits_and_the_first_ratio_is_one() {
    for train in
        [&["precision='bf16'"][..], &["precision='bf16'", "train={ kind = 'full' }", "optimiser.learning_rate=2e-3"]]
    {
        let place = Place::new();
        let want = fingerprint(&place.run("first", cpu(Isa::Scalar, 1), train));
        for isa in Isa::available() {
            let run = place.run(&format!("{isa}"), cpu(isa, 2), train);
            assert_eq!(fingerprint(&run), want, "{isa}");
            assert_eq!(column(&run, "kl_mismatch"), [0.0; 10]);
            assert_eq!(column(&run, "ratio_max"), [1.0; 10]);
        }
        let small = [train, &["engine.batch=3", "engine.prompt_rows=7", "engine.micro_batch_rows=1"]].concat();
        assert_eq!(fingerprint(&place.run("small", cpu(Isa::best(), 2), &small)), want);
        let cancel = AtomicBool::new(false);
        let mut session = place.start("stopped", cpu(Isa::best(), 2), train, &cancel).unwrap();
        let mut stop = StopAt { cancel: &cancel, phase: Phase::Collecting, after: 4 };
        session.run(&mut stop, &cancel).unwrap_err();
        drop(session);
        cancel.store(false, Ordering::Relaxed);
        place.resume("stopped", cpu(Isa::best(), 1), &cancel).unwrap().run(&mut Quiet, &cancel).unwrap();
        let stopped = RunDir::read(&place.path("stopped")).unwrap();
        let first = RunDir::read(&place.path("first")).unwrap();
        let lines = |run: &RunDir| run.read_lines::<Value>("metrics.jsonl").unwrap();
        for (a, b) in lines(&stopped).iter().zip(lines(&first)) {
            assert_eq!(a.to_string(), b.to_string());
        }
        assert_eq!(fingerprint(&stopped)[1..], want[1..]);
    }
}

#[test]
fn a12_a14_nothing_that_only_uses_the_machine_changes_a_bit() {
    let place = Place::new();
    let want = fingerprint(&place.run("plain", cpu(Isa::best(), 2), &[]));
    for (name, changes) in [
        ("one row", &["engine.batch=1", "engine.prompt_rows=1"][..]),
        ("small chunks", &["engine.batch=3", "engine.prompt_rows=7"][..]),
        ("micro", &["engine.micro_batch_rows=1"][..]),
        ("recompute", &["engine.recompute=true"][..]),
        ("little cache", &["engine.cache_mb=1"][..]),
        ("one grader", &["rollout.graders=1"][..]),
    ] {
        let got = fingerprint(&place.run(name, cpu(Isa::best(), 2), changes));
        assert_eq!(got[1..], want[1..], "{name}");
        // The checkpoint holds no engine settings, so it is the same too.
        assert_eq!(got[0], want[0], "{name}");
    }
}

#[test]
fn c13_c15_c17_the_first_update_of_a_step_has_ratio_one_and_mismatch_zero_exactly() {
    let place = Place::new();
    let run = place.run("run", cpu(Isa::best(), 2), &["sampling.temperature=0.7"]);
    assert_eq!(column(&run, "kl_mismatch"), [0.0; 10]);
    assert_eq!(column(&run, "logp_gap_max"), [0.0; 10]);
    assert_eq!(column(&run, "ratio_max"), [1.0; 10]);
    assert_eq!(column(&run, "n_updates"), [2.0; 10]);
    assert!(column(&run, "grad_norm").iter().all(|g| *g > 0.0));
    assert!(column(&run, "kl_start")[9] > 0.0, "ten steps moved the policy");
}

#[test]
fn d8_h10_lengths_and_truncations_are_those_of_the_recorded_tokens() {
    let place = Place::new();
    let run = place.run("run", cpu(Isa::best(), 2), &["steps=3"]);
    for step in 1..=3 {
        let groups = run.episodes(step).unwrap();
        let episodes: Vec<_> = groups.iter().flat_map(|g| &g.episodes).collect();
        assert_eq!(episodes.len(), 16, "4 tasks of 4 attempts, neither more nor fewer");
        let longest = episodes.iter().map(|e| e.n_sampled()).max().unwrap();
        assert!(longest <= 8, "{longest} tokens where 8 are the limit");
        assert_eq!(column(&run, "length_max")[step as usize - 1], longest as f64);
        let cut = episodes.iter().filter(|e| e.stop.is_truncation()).count();
        assert_eq!(column(&run, "truncated_share")[step as usize - 1], cut as f64 / 16.0);
        for e in &episodes {
            let s = &e.sequences[0];
            let trained: usize = s.sampled().iter().filter(|t| **t).count();
            // D2, D5: what was sampled is trained to its last token, the stop token included, and nothing else is.
            assert!(s.sampled()[s.len() - trained..].iter().all(|t| *t), "the sampled tokens come last");
            let ends = s.tokens()[s.len() - 1];
            assert_eq!([256, 258].contains(&ends), !e.stop.is_truncation(), "{ends} {:?}", e.stop);
        }
    }
}

#[test]
fn j1_a_run_stopped_anywhere_and_resumed_ends_in_the_same_bits() {
    for kind in ["lora", "full"] {
        let train: &[&str] = match kind {
            "full" => &["train={ kind = 'full' }", "optimiser.learning_rate=2e-3"],
            _ => &[],
        };
        let place = Place::new();
        let whole = place.run("whole", cpu(Isa::best(), 1), train);
        for (phase, after) in
            [(Phase::Evaluating, 0), (Phase::Evaluating, 1), (Phase::Collecting, 0), (Phase::Collecting, 4)]
        {
            let name = format!("{kind} {phase:?} {after}");
            let cancel = AtomicBool::new(false);
            let mut session = place.start(&name, cpu(Isa::best(), 2), train, &cancel).unwrap();
            let mut stop = StopAt { cancel: &cancel, phase, after };
            let error = session.run(&mut stop, &cancel).unwrap_err();
            assert!(matches!(error, RunError::Interrupted), "{error}");
            drop(session);
            cancel.store(false, Ordering::Relaxed);
            let mut session = place.resume(&name, cpu(Isa::best(), 2), &cancel).unwrap();
            assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
            drop(session);
            let run = RunDir::read(&place.path(&name)).unwrap();
            assert_eq!(fingerprint(&run)[1..], fingerprint(&whole)[1..], "{name}");
            let weights = |run: &RunDir| {
                let latest = run.checkpoints().latest().unwrap().unwrap();
                store::hash_file(&latest.path.join("weights.safetensors")).unwrap()
            };
            assert_eq!(weights(&run), weights(&whole), "{name}");
        }
    }
}

#[test]
fn a_finished_run_resumes_to_its_end_at_once_and_another_seed_is_another_run() {
    let place = Place::new();
    let run = place.run("run", cpu(Isa::best(), 1), &[]);
    let before = fingerprint(&run);
    let cancel = AtomicBool::new(false);
    let mut session = place.resume("run", cpu(Isa::best(), 1), &cancel).unwrap();
    assert_eq!(session.run(&mut Quiet, &cancel).unwrap(), Ended::Finished);
    drop(session);
    assert_eq!(fingerprint(&run), before);
    let other = place.run("other", cpu(Isa::best(), 1), &["seed=8"]);
    assert_ne!(fingerprint(&other)[0], before[0]);
}

#[test]
fn a_second_process_on_the_same_run_is_refused() {
    let place = Place::new();
    let cancel = AtomicBool::new(false);
    let session = place.start("run", cpu(Isa::best(), 1), &[], &cancel).unwrap();
    let error = place.resume("run", cpu(Isa::best(), 1), &cancel).err().unwrap();
    assert!(error.to_string().contains("is in use by process"), "{error}");
    drop(session);
}

#[test]
fn a_run_is_only_resumed_with_what_it_began_with() {
    let place = Place::new();
    place.run("run", cpu(Isa::best(), 1), &["steps=1"]);
    tiny::write(&place.model(), 2);
    let cancel = AtomicBool::new(false);
    let error = place.resume("run", cpu(Isa::best(), 1), &cancel).err().unwrap().to_string();
    assert!(error.contains("its weights is not what it began with"), "{error}");
}

#[test]
fn what_cannot_start_makes_no_folder() {
    let place = Place::new();
    let cancel = AtomicBool::new(false);
    for (changes, want) in [
        (&["train.targets=['lm_head']"][..], "`targets` is `lm_head`"),
        (&["env.0.n_held_out=100000"][..], "held-out"),
        (&["env.0.prompt='no place for it'"][..], "{question}"),
        (&["engine.batch=0"][..], "`batch` is 0, needed 1 to 65536"),
    ] {
        let error = place.start("run", cpu(Isa::best(), 1), changes, &cancel).err().unwrap().to_string();
        assert!(error.contains(want), "{error}");
        assert!(!place.path("run").exists(), "{changes:?}");
    }
    std::fs::remove_file(place.model().join("tokenizer.json")).unwrap();
    assert!(place.start("run", cpu(Isa::best(), 1), &[], &cancel).is_err());
    assert!(!place.path("run").exists());
}

#[test]
fn h12_machine_settings_aside_every_setting_changes_the_run() {
    let place = Place::new();
    let want = fingerprint(&place.run("plain", cpu(Isa::best(), 2), &["steps=4"]));
    for change in [
        "seed=8",
        "precision='bf16'",
        "train.rank=2",
        "train.alpha=4",
        "train.targets=['q_proj']",
        "algorithm.advantage_std='none'",
        "optimiser.learning_rate=1e-2",
        "optimiser.beta1=0.5",
        "optimiser.beta2=0.9",
        "optimiser.epsilon=1e-2",
        "optimiser.weight_decay=0.5",
        "optimiser.clip_norm=1e-3",
        "optimiser.warmup_updates=0",
        "optimiser.schedule='linear'",
        "batch.tasks=3",
        "batch.group_size=3",
        "sampling.temperature=0.8",
        "sampling.max_tokens=7",
        "sampling.stop=['e']",
        "sampling.ban_structural=false",
        "eval.every=2",
        "eval.tasks=5",
        "checkpoint.kl_every=1",
        "control.coin_flips=false",
        "env.0.seed=3",
    ] {
        let got = fingerprint(&place.run(
            &change.replace(['=', '\'', '[', ']'], "_"),
            cpu(Isa::best(), 2),
            &["steps=4", change, "max_idle_steps=9"],
        ));
        assert_ne!(got, want, "`{change}` changed nothing");
    }
}

#[test]
fn b6_steps_without_a_spread_move_nothing_are_counted_and_end_the_run() {
    let place = Place::new();
    let cancel = AtomicBool::new(false);
    // Without the coin a tiny random model never adds right: every reward is 0.
    let changes = ["control.coin_flips=false", "max_idle_steps=3", "checkpoint.every=1"];
    let mut session = place.start("run", cpu(Isa::best(), 2), &changes, &cancel).unwrap();
    let error = session.run(&mut Quiet, &cancel).unwrap_err().to_string();
    assert_eq!(error, "3 steps in a row taught nothing, last step 3: all graded episodes have the same reward");
    drop(session);
    let run = RunDir::read(&place.path("run")).unwrap();
    assert_eq!(column(&run, "skipped"), [1.0; 3]);
    assert_eq!(column(&run, "n_updates"), [0.0; 3]);
    let weights =
        |step| store::hash_file(&run.checkpoints().at(step).unwrap().path.join("weights.safetensors")).unwrap();
    assert_eq!(weights(1), weights(2), "no weight moved");
}

#[test]
fn supervised_runs_learn_their_file_and_resume() {
    let place = Place::new();
    let lines: String = (0..6)
        .map(|i| match i % 2 {
            0 => format!("{{\"prompt\": \"say {i}: \", \"completion\": \"yes\"}}\n"),
            _ => format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"say {i}\"}}, {{\"role\": \"assistant\", \"content\": \"yes\"}}]}}\n"
            ),
        })
        .collect();
    std::fs::write(place.path("data.jsonl"), lines).unwrap();
    let sft = [
        "algorithm={ kind = 'sft' }",
        "data={ file = 'data.jsonl' }",
        "batch={ tasks = 3, group_size = 1 }",
        "control={}",
        "steps=20",
        "optimiser.learning_rate=1e-2",
    ];
    let run = place.run("run", cpu(Isa::best(), 2), &sft);
    let loss = column(&run, "loss");
    assert!(loss[19] < 0.2 * loss[0], "{loss:?}");
    let cancel = AtomicBool::new(false);
    let mut session = place.start("stopped", cpu(Isa::best(), 2), &sft, &cancel).unwrap();
    let mut stop = StopAt { cancel: &cancel, phase: Phase::Collecting, after: 11 };
    session.run(&mut stop, &cancel).unwrap_err();
    drop(session);
    cancel.store(false, Ordering::Relaxed);
    place.resume("stopped", cpu(Isa::best(), 1), &cancel).unwrap().run(&mut Quiet, &cancel).unwrap();
    let stopped = RunDir::read(&place.path("stopped")).unwrap();
    assert_eq!(fingerprint(&stopped)[1..], fingerprint(&run)[1..]);
}

#[test]
fn d4_d5_only_what_the_policy_would_say_is_trained_with_one_end_token() {
    let place = Place::new();
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
        {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]}"#;
    std::fs::write(place.path("data.jsonl"), line.replace('\n', " ")).unwrap();
    let sft = [
        "algorithm={ kind = 'sft' }",
        "data={ file = 'data.jsonl' }",
        "batch={ tasks = 1, group_size = 1 }",
        "control={}",
        "steps=1",
    ];
    let run = place.run("run", cpu(Isa::best(), 1), &sft);
    let groups = run.episodes(1).unwrap();
    let sequence = &groups[0].episodes[0].sequences[0];
    let tokenizer = run::open::tokenizer(&place.model()).unwrap();
    let sampled: Vec<u32> =
        sequence.tokens().iter().zip(sequence.sampled()).filter(|(_, s)| **s).map(|(t, _)| *t).collect();
    assert_eq!(tokenizer.decode(&sampled, false), "bc<|im_end|>e<|im_end|>");
    // E3: the separator after an end token is there, and not trained.
    assert_eq!(
        tokenizer.decode(sequence.tokens(), false),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nbc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n\
         <|im_start|>assistant\ne<|im_end|>"
    );
}

#[test]
fn a_data_file_with_a_bad_line_names_it() {
    let place = Place::new();
    std::fs::write(place.path("data.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": 3}\n").unwrap();
    let cancel = AtomicBool::new(false);
    let sft = [
        "algorithm={ kind = 'sft' }",
        "data={ file = 'data.jsonl' }",
        "batch={ tasks = 1, group_size = 1 }",
        "control={}",
    ];
    let error = place.start("run", cpu(Isa::best(), 1), &sft, &cancel).err().unwrap().to_string();
    let path = place.path("data.jsonl");
    let want = format!(
        "`{}` line 2: needed `{{\"messages\": […]}}` or `{{\"prompt\": …, \"completion\": …}}`",
        path.display()
    );
    assert_eq!(error, want);
}
