//! Checkpoints: what is saved and read back goes on with the same bits, and what does not fit changes nothing.

use std::fs;
use std::path::Path;

use policy::{Checkpoint, Keep, Learner, Slot, TokenGrads, TokenValues};
use surefoot_train::{Engine, Precision, Trainable};

use crate::support::*;

/// One update whose pull depends on which it is.
fn train(engine: &mut Engine, index: usize) {
    let groups = groups();
    let groups = &groups[index % 3..];
    let mut loss = |_: usize, values: &[TokenValues]| {
        let pull = |v: &TokenValues| vec![0.01 * (index as f32 - 1.5); v.logp.len()];
        Ok(values
            .iter()
            .map(|v| TokenGrads { dentropy: vec![0.001; v.logp.len()], ..TokenGrads::of(pull(v)) })
            .collect())
    };
    engine.forward_backward(&batch(groups, 1.0, &[]), &mut loss).unwrap();
    engine.update(&step()).unwrap();
}

#[test]
fn j1_saved_loaded_and_continued_is_never_having_stopped() {
    in_both_precisions(|tiny, adapted, what| {
        let mut whole = tiny.engine(adapted, &Machine::plain());
        (0..4).for_each(|i| train(&mut whole, i));
        for stop_after in if tiny.precision == Precision::F32 { 0..4 } else { 2..3 } {
            let folder = tempfile::tempdir().unwrap();
            let mut first = tiny.engine(adapted, &Machine::plain());
            (0..stop_after).for_each(|i| train(&mut first, i));
            first.save(folder.path()).unwrap();
            // The second engine has trained on something else before it loads.
            let mut second = tiny.engine(adapted, &Machine::new(|s| s.micro_batch_rows = 1));
            train(&mut second, 9);
            second.load(folder.path()).unwrap();
            assert_eq!(saved(&second), saved(&first), "{what}, loaded after {stop_after}");
            (stop_after..4).for_each(|i| train(&mut second, i));
            assert_eq!(saved(&second), saved(&whole), "{what}, continued after {stop_after}");
        }
    });
}

#[test]
fn weights_alone_sample_as_the_engine_that_saved_them() {
    in_both_precisions(|tiny, adapted, what| {
        let jobs: Vec<_> = crowd().into_iter().step_by(7).collect();
        let mut trained = tiny.engine(adapted, &Machine::plain());
        (0..2).for_each(|i| train(&mut trained, i));
        let folder = tempfile::tempdir().unwrap();
        trained.save(folder.path()).unwrap();
        let mut other = tiny.engine(adapted, &Machine::plain());
        other.load_weights(folder.path()).unwrap();
        same(&sample(&mut other, &jobs), &sample(&mut trained, &jobs), what);
    });
}

/// Ways to spoil a file of tensors, and what the message must name; the last tensor is spoiled, so that a reader that
/// sets as it goes has set the others.
fn spoil(path: &Path, how: &str) -> String {
    let mut tensors = read_tensors(path);
    let name = tensors.keys().next_back().unwrap().clone();
    let file = path.file_name().unwrap().to_string_lossy().into_owned();
    match how {
        "missing" => drop(tensors.remove(&name)),
        "extra" => drop(tensors.insert("zzz.spare".to_owned(), (vec![2], vec![0.5; 2]))),
        "shape" => tensors.get_mut(&name).unwrap().0.push(1),
        "cut" => {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
            return file;
        }
        "not a number" => {
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
            fs::write(path, bytes).unwrap();
            return "finite".to_owned();
        }
        "gone" => {
            fs::remove_file(path).unwrap();
            return file;
        }
        _ => unreachable!("a way to spoil a file"),
    }
    write_tensors(path, &tensors);
    if how == "extra" { "zzz.spare".to_owned() } else { name }
}

#[test]
fn a_checkpoint_that_does_not_fit_is_named_and_changes_nothing() {
    for (family, adapted) in [("llama", false), ("gemma3", false), ("qwen2", true)] {
        let tiny = Tiny::load(family);
        let mut trained = tiny.valued(adapted, &Machine::plain());
        (0..2).for_each(|i| train(&mut trained, i));
        trained.keep(Slot::Reference, Keep::Now).unwrap();
        let mut engine = tiny.valued(adapted, &Machine::plain());
        train(&mut engine, 7);
        engine.keep(Slot::Teacher, Keep::Now).unwrap();
        let before = saved(&engine);
        for file in [
            "weights.safetensors",
            "moment1.safetensors",
            "moment2.safetensors",
            "value.safetensors",
            "value_moment1.safetensors",
            "value_moment2.safetensors",
            "kept_reference.safetensors",
            "kept_reference_value.safetensors",
        ] {
            for how in ["missing", "extra", "shape", "cut", "not a number", "gone"] {
                let folder = tempfile::tempdir().unwrap();
                trained.save(folder.path()).unwrap();
                let want = spoil(&folder.path().join(file), how);
                let error = engine.load(folder.path()).unwrap_err().to_string();
                assert!(error.contains(&want), "{family}, `{file}` {how}: needed `{want}` in `{error}`");
                assert_eq!(saved(&engine), before, "{family}, `{file}` {how}: the engine is as it was");
                // Weights alone need only their own files, and without a value head only the first.
                match file {
                    "weights.safetensors" => (),
                    "value.safetensors" => {
                        tiny.engine(adapted, &Machine::plain()).load_weights(folder.path()).unwrap();
                        let read = engine.load_weights(folder.path());
                        assert_eq!(read.is_ok(), how == "gone", "{family}, `{file}` {how}");
                        assert!(how == "gone" || saved(&engine) == before, "{family}, `{file}` {how}");
                        engine.load(write_folder(&before).path()).unwrap();
                    }
                    _ => tiny.valued(adapted, &Machine::plain()).load_weights(folder.path()).unwrap(),
                }
            }
        }
        for (text, want) in [
            ("{", "EOF"),
            ("{\"n_updates\": 2}", "trainable"),
            ("{\"n_updates\": -1, \"trainable\": {\"kind\": \"full\"}}", "u64"),
            ("{\"n_updates\": 2, \"trainable\": {\"kind\": \"frozen\"}}", "needed"),
            ("{\"n_updates\": 2, \"trainable\": {\"kind\": \"full\"}, \"more\": 1}", "more"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            trained.save(folder.path()).unwrap();
            fs::write(folder.path().join("engine.json"), text).unwrap();
            let error = engine.load(folder.path()).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("engine.json"), "{text}: {error}");
            assert_eq!(saved(&engine), before, "{text}");
        }
        // What failed is no obstacle: the next checkpoint loads.
        let folder = tempfile::tempdir().unwrap();
        trained.save(folder.path()).unwrap();
        engine.load(folder.path()).unwrap();
        assert_eq!(saved(&engine), saved(&trained));
    }
}

#[test]
fn j7_moments_that_are_not_there_are_missed_when_updates_were_made() {
    let tiny = Tiny::load("llama");
    let mut trained = tiny.engine(true, &Machine::plain());
    train(&mut trained, 0);
    let folder = tempfile::tempdir().unwrap();
    trained.save(folder.path()).unwrap();
    fs::remove_file(folder.path().join("moment1.safetensors")).unwrap();
    fs::remove_file(folder.path().join("moment2.safetensors")).unwrap();
    let mut engine = tiny.engine(true, &Machine::plain());
    let error = engine.load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("moment1.safetensors"), "{error}");
}

#[test]
fn a_checkpoint_of_another_policy_is_refused() {
    let (llama, other) = (Tiny::load("llama"), Tiny::load("smollm2"));
    let folder = tempfile::tempdir().unwrap();
    llama.engine(false, &Machine::plain()).save(folder.path()).unwrap();
    let error = other.engine(false, &Machine::plain()).load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("needed shape [128, 36], got [97, 48]"), "{error}");
    let error = llama.engine(true, &Machine::plain()).load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("needed") && error.contains("got"), "{error}");
    let error = llama.engine(false, &Machine::plain()).load(Path::new("/nowhere")).unwrap_err().to_string();
    assert!(error.starts_with("cannot use `/nowhere/engine.json`"), "{error}");
    let locked = llama.engine(false, &Machine::plain()).save(Path::new("/nowhere")).unwrap_err().to_string();
    assert!(locked.starts_with("cannot use `/nowhere/weights.safetensors`"), "{locked}");
}

#[test]
fn an_adapter_goes_only_where_it_is_saved_with_the_rest() {
    let tiny = Tiny::load("llama");
    let mut full = tiny.engine(false, &Machine::plain());
    let error = full.set_adapter(tiny.adapter.clone()).unwrap_err().to_string();
    assert!(
        error.contains("adapter"),
        "full weights are trained bare, since a checkpoint holds one or the other: {error}"
    );
    let machine = Machine::plain();
    let weights = (tiny.config.clone(), tiny.params.clone());
    let other = Trainable::Lora { rank: tiny.adapter.rank, alpha: 3.0, targets: vec!["all".to_owned()] };
    let mut lora = Engine::new(machine.cpu(), weights, None, other, machine.settings.clone(), 1).unwrap();
    let error = lora.set_adapter(tiny.adapter.clone()).unwrap_err().to_string();
    assert!(error.contains("alpha"), "a resumed run would scale it by its own alpha: {error}");
}
