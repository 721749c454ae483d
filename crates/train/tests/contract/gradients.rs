//! Gradients: one sum, in one order, however the work is cut.

use std::collections::BTreeMap;

use episode::random::Stream;
use policy::{Checkpoint, Learner, PolicyError, TokenGrads, TokenValues, ValueAt};
use surefoot_train::{Engine, Precision};

use crate::support::*;

/// How far a gradient's entry may move when its terms are summed in another association, relative to the largest entry of
/// its tensor: a few dozen f32 roundings of 6e-8 each.
const ANOTHER_ASSOCIATION: f64 = 4e-6;

/// Derivatives by everything there is, which differ from token to token, the same for a line wherever it stands.
fn derivatives(line: &Line) -> TokenGrads {
    let stream = Stream::new("derivatives", &[u64::from(line.tokens[0]), line.tokens.len() as u64]);
    let draw = |from: u64, n: usize| (0..n as u64).map(|i| stream.uniform(from + i) as f32 - 0.5).collect();
    let (n, n_named) = (line.tokens.len(), line.top.as_ref().map_or(0, |top| top.ids.len()));
    TokenGrads { dlogp: draw(0, n), dentropy: draw(1000, n), dvalue: draw(2000, n), dtop: draw(3000, n_named) }
}

/// Groups with three tokens named in every place.
fn groups() -> Vec<Vec<Line>> {
    named(crate::support::groups(), 3)
}

/// Values are asked after each token where an adapter is trained, and before it where all weights are.
fn value_at(engine: &Engine) -> ValueAt {
    if engine.adapter().is_some() { ValueAt::After } else { ValueAt::Before }
}

fn accumulate(engine: &mut Engine, groups: &[Vec<Line>]) {
    let mut loss = |index: usize, _: &[TokenValues]| Ok(groups[index].iter().map(derivatives).collect());
    let at = value_at(engine);
    engine.forward_backward(&asking(groups, at, 0), &mut loss).unwrap();
}

/// The accumulated gradient, tensor by tensor.
fn read_out(engine: &mut Engine) -> BTreeMap<String, Vec<f32>> {
    engine.update(&READ_OUT).unwrap();
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let files = ["moment1.safetensors", "value_moment1.safetensors"];
    let read = files.into_iter().flat_map(|file| read_tensors(&folder.path().join(file)));
    read.map(|(name, (_, values))| (name, values)).collect()
}

fn gradient(tiny: &Tiny, adapted: bool, machine: &Machine, groups: &[Vec<Line>]) -> BTreeMap<String, Vec<f32>> {
    let mut engine = tiny.valued(adapted, machine);
    accumulate(&mut engine, groups);
    read_out(&mut engine)
}

fn same(got: &BTreeMap<String, Vec<f32>>, want: &BTreeMap<String, Vec<f32>>, what: &str) {
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}");
    for (name, want) in want {
        let differ = got[name].iter().zip(want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differ, 0, "{what}: entries of `{name}` that differ");
        assert!(want.iter().any(|g| *g != 0.0), "{what}: `{name}` has no gradient");
    }
}

/// The largest difference, relative to the largest entry of its tensor.
fn distance(got: &BTreeMap<String, Vec<f32>>, want: &BTreeMap<String, Vec<f32>>) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for (name, want) in want {
        let size = want.iter().fold(0.0_f64, |m, v| m.max(f64::from(v.abs())));
        let off = got[name].iter().zip(want).fold(0.0_f64, |m, (a, b)| m.max(f64::from((a - b).abs())));
        if off / size > worst.0 {
            worst = (off / size, name.clone());
        }
    }
    worst
}

#[test]
fn gradients_are_equal_to_the_bit_over_threads_and_vector_sets() {
    in_both_precisions(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        for machine in machines(tiny.precision) {
            let what = format!("{what}, {} with {} threads", machine.isa, machine.n_threads);
            same(&gradient(tiny, adapted, &machine, &groups), &want, &what);
        }
    });
}

#[test]
fn d9_gradients_are_equal_to_the_bit_however_groups_are_packed() {
    in_both_precisions(|tiny, adapted, what| {
        let groups = groups();
        for share in [true, false] {
            let machine = |rows| Machine::new(|s| (s.share_prompts, s.micro_batch_rows) = (share, rows));
            let want = gradient(tiny, adapted, &machine(1 << 20), &groups);
            let cuts: &[usize] = if tiny.precision == Precision::F32 { &[1, 40, 100, 150, 200] } else { &[1, 100] };
            for rows in cuts.iter().copied() {
                let got = gradient(tiny, adapted, &machine(rows), &groups);
                same(&got, &want, &format!("{what}, shared {share}, micro-batches of {rows}"));
            }
        }
    });
}

#[test]
fn recomputing_blocks_changes_no_bit() {
    in_both_precisions(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        for rows in [1, 1 << 20] {
            let machine = Machine::new(|s| (s.recompute, s.micro_batch_rows) = (true, rows));
            same(&gradient(tiny, adapted, &machine, &groups), &want, &format!("{what}, micro-batches of {rows}"));
        }
    });
}

#[test]
fn i16_gradients_of_several_calls_add_up_as_one_call_does() {
    everywhere(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        for cut in [1, 4, groups.len() - 1] {
            let mut engine = tiny.valued(adapted, &Machine::plain());
            accumulate(&mut engine, &groups[..cut]);
            accumulate(&mut engine, &groups[cut..]);
            same(&read_out(&mut engine), &want, &format!("{what}, cut at {cut}"));
            // An update clears what it used.
            accumulate(&mut engine, &groups);
            same(&read_out(&mut engine), &want, &format!("{what}, after an update"));
        }
    });
}

#[test]
fn an_unshared_prompt_or_a_cut_inside_a_group_changes_gradients_by_rounding_only() {
    let mut worst = (0.0_f64, String::new());
    everywhere(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        let unshared = gradient(tiny, adapted, &Machine::new(|s| s.share_prompts = false), &groups);
        let singles: Vec<Vec<Line>> = groups.iter().flatten().map(|l| vec![l.clone()]).collect();
        let cut = gradient(tiny, adapted, &Machine::plain(), &singles);
        for (kind, got) in [("unshared", &unshared), ("cut", &cut)] {
            let (off, name) = distance(got, &want);
            assert!(off < ANOTHER_ASSOCIATION, "{what}, {kind}: `{name}` is off by {off:.2e}");
            if off > worst.0 {
                worst = (off, format!("{what}, {kind}, `{name}`"));
            }
        }
    });
    println!(
        "another association moves a gradient by at most {:.2e} of its tensor's largest entry ({})",
        worst.0, worst.1
    );
    assert!(worst.0 > 0.0, "the two sum in other orders, or the comparison is empty");
}

#[test]
fn a_loss_that_fails_leaves_nothing_accumulated_and_moves_nothing() {
    everywhere(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        let mut engine = tiny.valued(adapted, &Machine::new(|s| s.micro_batch_rows = 100));
        accumulate(&mut engine, &groups[..2]);
        let before = saved(&engine);
        let mut loss = |index: usize, _: &[TokenValues]| match index {
            5 => Err(PolicyError::Cancelled),
            _ => Ok(groups[index].iter().map(derivatives).collect()),
        };
        let at = value_at(&engine);
        let error = engine.forward_backward(&asking(&groups, at, 0), &mut loss).unwrap_err();
        assert!(matches!(error, PolicyError::Cancelled));
        assert_eq!(saved(&engine), before, "{what}");
        accumulate(&mut engine, &groups);
        same(&read_out(&mut engine), &want, what);
    });
}

#[test]
fn a_gradient_that_is_not_finite_moves_nothing_and_is_gone() {
    everywhere(|tiny, adapted, what| {
        let groups = groups();
        let want = gradient(tiny, adapted, &Machine::plain(), &groups);
        let mut engine = tiny.valued(adapted, &Machine::plain());
        accumulate(&mut engine, &groups[..1]);
        engine.update(&READ_OUT).unwrap();
        let before = saved(&engine);
        let mut loss = |index: usize, _: &[TokenValues]| {
            let mut all: Vec<TokenGrads> = groups[index].iter().map(derivatives).collect();
            all[0].dlogp.fill(f32::INFINITY);
            Ok(all)
        };
        let at = value_at(&engine);
        engine.forward_backward(&asking(&groups, at, 0), &mut loss).unwrap();
        let error = engine.update(&step()).unwrap_err().to_string();
        assert_eq!(error, "the gradient's norm is not finite at update 2", "{what}");
        assert_eq!(saved(&engine), before, "{what}");
        accumulate(&mut engine, &groups);
        same(&read_out(&mut engine), &want, what);
    });
}

#[test]
fn what_cannot_be_trained_on_is_refused_by_name() {
    let tiny = Tiny::load("llama");
    let mut engine = tiny.engine(true, &Machine::plain());
    let mut check = |line: Line, temperature: f32, banned: &[u32], want: &str| {
        let groups = [vec![line]];
        let batch = batch(&groups, temperature, banned);
        let mut loss = |_: usize, _: &[TokenValues]| -> Result<Vec<TokenGrads>, PolicyError> { unreachable!() };
        for error in [engine.forward(&batch).unwrap_err(), engine.forward_backward(&batch, &mut loss).unwrap_err()] {
            assert_eq!(error.to_string(), want);
        }
    };
    let line = || Line::new(&[1, 2], &[3]);
    let cold = "`temperature` is 0, needed a number from 0.001 to 100, since a greedy policy has no gradient";
    check(line(), 0.0, &[], cold);
    check(Line::new(&[1, 97], &[3]), 1.0, &[], "token 97 is outside the vocabulary of 97");
    check(Line::new(&[], &[3]), 1.0, &[], "a sequence needs at least 1 token before the first one sampled, got 0");
    check(Line::new(&tokens(1, 1024), &[3]), 1.0, &[], "1025 tokens do not fit the context window of 1024");
    check(line(), 1.0, &[3], "token 3 is trained but banned from the policy");
    check(Line { trained: vec![false; 2], ..line() }, 1.0, &[], "`trained` has 2 entries for 3 tokens");
}

#[test]
fn a_frozen_policy_is_never_moved() {
    let tiny = Tiny::load("llama");
    let weights = (tiny.config.clone(), tiny.params.clone());
    let machine = Machine::plain();
    let frozen = surefoot_train::Trainable::Frozen {};
    let mut engine = Engine::new(machine.cpu(), weights, None, frozen, machine.settings.clone(), 1).unwrap();
    let groups = groups();
    let mut loss = |index: usize, _: &[TokenValues]| Ok(groups[index].iter().map(derivatives).collect());
    let error = engine.forward_backward(&batch(&groups, 1.0, &[]), &mut loss).unwrap_err().to_string();
    assert_eq!(error, "this policy is frozen and cannot be trained");
    assert_eq!(engine.update(&step()).unwrap_err().to_string(), "there is no gradient to move along");
    assert_eq!(engine.n_trainable(), 0);
}
