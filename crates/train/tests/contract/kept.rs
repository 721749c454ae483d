//! Slots: what is kept stays as it is, moves only when it is told to, and outlives a stop.

use std::path::Path;

use policy::{Checkpoint, Keep, Learner, Slot, TokenGrads, TokenValues, ValueAt};
use surefoot_train::{Engine, Precision, has_value_head};

use crate::support::*;

/// One update by log-probabilities and values, whose pull depends on which it is.
fn train(engine: &mut Engine, index: usize) {
    let groups = groups();
    let groups = &groups[index % 3..];
    let mut loss = |_: usize, values: &[TokenValues]| {
        let pull = 0.01 * (index as f32 - 1.5);
        let one = |v: &TokenValues| TokenGrads {
            dvalue: v.value.iter().map(|v| 0.02 * (v + pull)).collect(),
            ..TokenGrads::of(vec![pull; v.logp.len()])
        };
        Ok(values.iter().map(one).collect())
    };
    engine.forward_backward(&asking(groups, ValueAt::Before, 0), &mut loss).unwrap();
    engine.update(&step()).unwrap();
}

fn all(values: Vec<Vec<TokenValues>>) -> Vec<Found> {
    values.iter().flatten().map(found).collect()
}

fn now(engine: &mut Engine) -> Vec<Found> {
    all(engine.forward(&asking(&groups(), ValueAt::After, 2)).unwrap())
}

fn kept(engine: &mut Engine, slot: Slot) -> Vec<Found> {
    all(engine.forward_kept(slot, &asking(&groups(), ValueAt::After, 2)).unwrap())
}

/// An engine over the weights, and the value head, of a slot that is stored in a checkpoint.
fn over_stored(tiny: &Tiny, adapted: bool, folder: &Path, slot: &str) -> Engine {
    let other = tempfile::tempdir().unwrap();
    for (from, to) in [("", "weights"), ("_value", "value")] {
        let from = folder.join(format!("kept_{slot}{from}.safetensors"));
        std::fs::copy(from, other.path().join(format!("{to}.safetensors"))).unwrap();
    }
    let mut engine = tiny.valued(adapted, &Machine::plain());
    engine.load_weights(other.path()).unwrap();
    engine
}

#[test]
fn a_slot_is_unaffected_by_training_and_answers_as_the_policy_did() {
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.valued(adapted, &Machine::plain());
        train(&mut engine, 0);
        let before = now(&mut engine);
        for slot in [Slot::Start, Slot::Reference] {
            engine.keep(slot, Keep::Now).unwrap();
        }
        (1..3).for_each(|i| train(&mut engine, i));
        assert_eq!(kept(&mut engine, Slot::Reference), before, "{what}");
        let after = now(&mut engine);
        assert_ne!(after, before, "{what}: the policy moved");
        engine.keep(Slot::Reference, Keep::Now).unwrap();
        assert_eq!(kept(&mut engine, Slot::Reference), after, "{what}");
        assert_eq!(kept(&mut engine, Slot::Start), before, "{what}: one slot is not the other");
        // Asking a slot leaves the policy and its gradient alone.
        let mut undisturbed = tiny.valued(adapted, &Machine::plain());
        (0..3).for_each(|i| train(&mut undisturbed, i));
        train(&mut undisturbed, 4);
        train(&mut engine, 4);
        assert_eq!(now(&mut engine), now(&mut undisturbed), "{what}");
    });
}

#[test]
fn a_blend_is_the_moving_average_of_the_weights() {
    let (rate, n) = (0.3, 5);
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.valued(adapted, &Machine::plain());
        engine.keep(Slot::Teacher, Keep::Now).unwrap();
        let weights = |engine: &Engine| -> Vec<Tensors> {
            let folder = tempfile::tempdir().unwrap();
            engine.save(folder.path()).unwrap();
            ["weights", "value"].map(|f| read_tensors(&folder.path().join(format!("{f}.safetensors")))).into()
        };
        // (1 − r)ⁿ θ₀ + Σ r (1 − r)ⁿ⁻ⁱ θᵢ.
        let mut want: Vec<(f64, Vec<Tensors>)> = vec![((1.0_f64 - rate).powi(n), weights(&engine))];
        for i in 1..=n {
            train(&mut engine, i as usize);
            engine.keep(Slot::Teacher, Keep::Blend(rate)).unwrap();
            want.push((rate * (1.0 - rate).powi(n - i), weights(&engine)));
        }
        let folder = tempfile::tempdir().unwrap();
        engine.save(folder.path()).unwrap();
        for (index, file) in ["kept_teacher.safetensors", "kept_teacher_value.safetensors"].iter().enumerate() {
            for (name, (_, got)) in read_tensors(&folder.path().join(file)) {
                for (i, got) in got.iter().enumerate() {
                    let sum: f64 = want.iter().map(|(share, w)| share * f64::from(w[index][&name].1[i])).sum();
                    // Two roundings a blend, of the weight and of a step smaller than it.
                    let size = want.iter().fold(1e-3_f64, |m, (_, w)| m.max(f64::from(w[index][&name].1[i]).abs()));
                    let off = (f64::from(*got) - sum).abs() / size;
                    assert!(off < 6e-7, "{what}: `{name}` {i} is {got}, needed {sum}");
                }
            }
        }
        // What answers is what is stored, its rounded twin included.
        let mut stored = over_stored(tiny, adapted, folder.path(), "teacher");
        let got = kept(&mut engine, Slot::Teacher);
        assert_eq!(got, now(&mut stored), "{what}");
        assert_ne!(got, now(&mut engine), "{what}");
        engine.keep(Slot::Teacher, Keep::Blend(0.0)).unwrap();
        assert_eq!(kept(&mut engine, Slot::Teacher), got, "{what}: a share of nothing");
        engine.keep(Slot::Teacher, Keep::Blend(1.0)).unwrap();
        assert_eq!(kept(&mut engine, Slot::Teacher), now(&mut engine), "{what}: the whole way is exactly there");
    });
}

#[test]
fn threads_and_vector_sets_blend_alike() {
    in_both_precisions(|tiny, adapted, what| {
        let run = |machine: &Machine| {
            let mut engine = tiny.valued(adapted, machine);
            engine.keep(Slot::Reference, Keep::Now).unwrap();
            train(&mut engine, 0);
            engine.keep(Slot::Reference, Keep::Blend(0.05)).unwrap();
            saved(&engine)
        };
        let want = run(&Machine::plain());
        for machine in machines(tiny.precision) {
            assert!(run(&machine) == want, "{what}, {} with {} threads", machine.isa, machine.n_threads);
        }
    });
}

/// What a run does before its first update.
fn begin(tiny: &Tiny, adapted: bool, machine: &Machine) -> Engine {
    let mut engine = tiny.valued(adapted, machine);
    for slot in [Slot::Start, Slot::Reference, Slot::Teacher] {
        engine.keep(slot, Keep::Now).unwrap();
    }
    engine
}

/// One step of a run whose teacher is a moving average and whose reference is taken anew every second step.
fn one_step(engine: &mut Engine, index: usize) {
    train(engine, index);
    engine.keep(Slot::Teacher, Keep::Blend(0.25)).unwrap();
    if index % 2 == 1 {
        engine.keep(Slot::Reference, Keep::Now).unwrap();
    }
}

fn everything(engine: &mut Engine) -> Vec<Vec<Found>> {
    let mut all: Vec<_> = [Slot::Start, Slot::Reference, Slot::Teacher].map(|slot| kept(engine, slot)).into();
    all.push(now(engine));
    all
}

#[test]
fn j1_slots_and_value_head_go_on_after_a_stop_as_if_there_had_been_none() {
    in_both_precisions(|tiny, adapted, what| {
        let mut whole = begin(tiny, adapted, &Machine::plain());
        (0..4).for_each(|i| one_step(&mut whole, i));
        let want = (saved(&whole), everything(&mut whole));
        for stop_after in if tiny.precision == Precision::F32 { 0..4 } else { 2..3 } {
            let folder = tempfile::tempdir().unwrap();
            let mut first = begin(tiny, adapted, &Machine::plain());
            (0..stop_after).for_each(|i| one_step(&mut first, i));
            first.save(folder.path()).unwrap();
            let files = read_folder(folder.path());
            assert!(has_value_head(folder.path()));
            assert!(!files.contains_key("kept_start.safetensors"), "{what}: what never moved is not stored");
            assert_eq!(files.contains_key("kept_teacher.safetensors"), stop_after > 0, "{what}");
            assert_eq!(files.contains_key("kept_reference_value.safetensors"), stop_after > 1, "{what}");
            let mut second = begin(tiny, adapted, &Machine::new(|s| s.micro_batch_rows = 1));
            second.load(folder.path()).unwrap();
            assert!(saved(&second) == files, "{what}, loaded after {stop_after}");
            (stop_after..4).for_each(|i| one_step(&mut second, i));
            assert!(saved(&second) == want.0, "{what}, continued after {stop_after}");
            assert!(everything(&mut second) == want.1, "{what}, asked after {stop_after}");
        }
    });
}

#[test]
fn a_slot_that_moved_is_not_taken_for_that_of_another_checkpoint() {
    let tiny = Tiny::load("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut first = begin(&tiny, true, &Machine::plain());
    train(&mut first, 0);
    first.save(folder.path()).unwrap();
    let mut second = begin(&tiny, true, &Machine::plain());
    train(&mut second, 1);
    second.keep(Slot::Teacher, Keep::Now).unwrap();
    second.load(folder.path()).unwrap();
    assert_eq!(kept(&mut second, Slot::Start), kept(&mut first, Slot::Start));
    let gone = second.forward_kept(Slot::Teacher, &asking(&groups(), ValueAt::Nowhere, 0)).unwrap_err();
    assert_eq!(gone.to_string(), "no weights were kept as `teacher`");
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let tiny = Tiny::load("llama");
    let mut engine = tiny.engine(false, &Machine::plain());
    let mut refused = |how: Keep| engine.keep(Slot::Reference, how).unwrap_err().to_string();
    assert_eq!(refused(Keep::Blend(0.5)), "no weights were kept as `reference`");
    for (rate, shown) in [(-0.1, "-0.1"), (1.5, "1.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let want = format!("`reference` cannot be blended at a rate of {shown}, needed 0 to 1");
        assert_eq!(refused(Keep::Blend(rate)), want);
    }
    let groups = groups();
    let error = engine.forward_kept(Slot::Start, &asking(&groups, ValueAt::Nowhere, 0)).unwrap_err();
    assert_eq!(error.to_string(), "no weights were kept as `start`");
    engine.keep(Slot::Start, Keep::Now).unwrap();
    let error = engine.forward_kept(Slot::Start, &asking(&groups, ValueAt::Before, 0)).unwrap_err();
    assert_eq!(error.to_string(), "values are asked of a policy without a value head");
}

#[test]
fn weights_of_another_precision_are_kept_in_it_too() {
    let tiny = Tiny::load("qwen2");
    let mut engine = tiny.engine(false, &Machine::plain());
    engine.keep(Slot::Start, Keep::Now).unwrap();
    let mut engine = engine.with_precision(Precision::Bf16).with_value_head();
    assert_eq!(kept(&mut engine, Slot::Start), now(&mut engine));
}

#[test]
fn a_value_head_comes_and_goes_with_its_own_file() {
    for adapted in [false, true] {
        let tiny = Tiny::load("llama");
        let mut valued = tiny.valued(adapted, &Machine::plain());
        train(&mut valued, 0);
        let folder = tempfile::tempdir().unwrap();
        valued.save(folder.path()).unwrap();
        // A policy without a head reads the weights and leaves the head.
        let mut bare = tiny.engine(adapted, &Machine::plain());
        bare.load_weights(folder.path()).unwrap();
        let logp = |engine: &mut Engine| {
            let values = engine.forward(&asking(&groups(), ValueAt::Nowhere, 0)).unwrap();
            values.iter().flatten().map(|v| bits(&v.logp)).collect::<Vec<_>>()
        };
        assert_eq!(logp(&mut bare), logp(&mut valued));
        let error = bare.load(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("does not fit: needed no value head, got a value head"), "{error}");
        let error = bare.load_value_head(folder.path()).unwrap_err().to_string();
        assert_eq!(error, "a value head is read into a policy without one");
        // A policy with a head reads both, and goes on from weights that were saved without one.
        let mut other = tiny.engine(adapted, &Machine::plain()).with_value_head();
        other.load_weights(folder.path()).unwrap();
        assert_eq!(now(&mut other), now(&mut valued));
        let without = tempfile::tempdir().unwrap();
        bare.save(without.path()).unwrap();
        assert!(!has_value_head(without.path()));
        other.load_weights(without.path()).unwrap();
        assert_eq!(now(&mut other), now(&mut valued), "the head stays as it was");
        let error = other.load_value_head(without.path()).unwrap_err().to_string();
        assert!(error.contains("value.safetensors"), "{error}");
        let error = other.load(without.path()).unwrap_err().to_string();
        assert!(error.ends_with("does not fit: needed a value head, got no value head"), "{error}");
    }
}
