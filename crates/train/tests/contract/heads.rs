//! The value head and the named tokens: the same bits however they are computed, and derivatives of what they say.

use episode::random::Stream;
use loss::Top;
use policy::{Checkpoint, Learner, PolicyError, TokenGrads, TokenValues, ValueAt};
use surefoot_train::{Engine, Precision, Trainable};

use crate::support::*;

/// What is asked of a pass: each place of the value head, the most likely tokens, and named ones.
fn questions() -> [(Vec<Vec<Line>>, ValueAt, usize); 3] {
    [(groups(), ValueAt::Before, 4), (groups(), ValueAt::After, 1), (named(groups(), 3), ValueAt::After, 0)]
}

fn forward(engine: &mut Engine, groups: &[Vec<Line>], value: ValueAt, top_k: usize) -> Vec<Vec<Found>> {
    let values = engine.forward(&asking(groups, value, top_k)).unwrap();
    values.iter().map(|group| group.iter().map(found).collect()).collect()
}

fn answers(engine: &mut Engine) -> Vec<Vec<Vec<Found>>> {
    questions().iter().map(|(groups, value, top_k)| forward(engine, groups, *value, *top_k)).collect()
}

#[test]
fn values_and_named_tokens_have_one_set_of_bits_over_threads_vector_sets_and_cuts() {
    in_both_precisions(|tiny, adapted, what| {
        let want = answers(&mut tiny.valued(adapted, &Machine::plain()));
        for machine in machines(tiny.precision) {
            let got = answers(&mut tiny.valued(adapted, &machine));
            assert!(got == want, "{what}, {} with {} threads", machine.isa, machine.n_threads);
        }
        for (share, rows) in [(true, 1), (true, 100), (false, 1 << 20), (false, 1)] {
            let machine = Machine::new(|s| (s.share_prompts, s.micro_batch_rows) = (share, rows));
            let got = answers(&mut tiny.valued(adapted, &machine));
            assert!(got == want, "{what}, shared {share}, micro-batches of {rows}");
        }
        let mut engine = tiny.valued(adapted, &Machine::plain());
        for ((groups, value, top_k), want) in questions().iter().zip(&want) {
            for (line, want) in groups.iter().flatten().zip(want.iter().flatten()) {
                let got = forward(&mut engine, &[vec![line.clone()]], *value, *top_k);
                assert_eq!(&got[0][0], want, "{what}: a sequence alone");
            }
        }
    });
}

#[test]
fn a_loss_is_handed_the_same_values_and_named_tokens() {
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.valued(adapted, &Machine::plain());
        for (groups, value, top_k) in questions() {
            let want = forward(&mut engine, &groups, value, top_k);
            let mut got = Vec::new();
            let mut loss = |_: usize, values: &[TokenValues]| {
                got.push(values.iter().map(found).collect::<Vec<_>>());
                Ok(values.iter().map(|v| TokenGrads::of(vec![0.5; v.logp.len()])).collect())
            };
            engine.forward_backward(&asking(&groups, value, top_k), &mut loss).unwrap();
            assert_eq!(got, want, "{what}");
        }
    });
}

#[test]
fn asking_for_more_changes_nothing_else() {
    in_both_precisions(|tiny, adapted, what| {
        let mut bare = tiny.engine(adapted, &Machine::plain());
        let want = forward(&mut bare, &groups(), ValueAt::Nowhere, 0);
        let mut engine = tiny.valued(adapted, &Machine::plain());
        for (groups, value, top_k) in questions() {
            let got = forward(&mut engine, &groups, value, top_k);
            for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                assert_eq!((&got.logp, &got.entropy), (&want.logp, &want.entropy), "{what}");
            }
        }
        // A derivative of exactly 0 by values and named tokens leaves the weights where they would have been.
        let moved = |engine: &mut Engine, groups: &[Vec<Line>], value: ValueAt, more: bool| {
            let mut loss = |_: usize, values: &[TokenValues]| {
                let zeros = |list: usize| vec![0.0; if more { list } else { 0 }];
                let one = |v: &TokenValues| TokenGrads {
                    dvalue: zeros(v.value.len()),
                    dtop: zeros(v.top.as_ref().map_or(0, |top| top.ids.len())),
                    ..TokenGrads::of(vec![-0.02; v.logp.len()])
                };
                Ok(values.iter().map(one).collect())
            };
            engine.forward_backward(&asking(groups, value, 0), &mut loss).unwrap();
            engine.update(&step()).unwrap();
            saved(engine)["weights.safetensors"].clone()
        };
        let want = moved(&mut bare, &groups(), ValueAt::Nowhere, false);
        for more in [false, true] {
            let mut engine = tiny.valued(adapted, &Machine::plain());
            let got = moved(&mut engine, &named(groups(), 2), ValueAt::Before, more);
            assert!(got == want, "{what}, derivatives of 0 given: {more}");
        }
    });
}

/// Every token's log-probability in the place of each trained one.
fn whole_vocabulary(
    engine: &mut Engine,
    groups: &[Vec<Line>],
    temperature: f32,
    banned: &[u32],
) -> Vec<Vec<TokenValues>> {
    let tokens: Vec<u32> = (0..engine.config().vocabulary as u32).filter(|t| !banned.contains(t)).collect();
    let all = |line: &Line| {
        let ids = tokens.repeat(line.tokens.len());
        Line { top: Some(Top { k: tokens.len(), logp: Vec::new(), ids }), ..line.clone() }
    };
    let groups: Vec<Vec<Line>> = groups.iter().map(|group| group.iter().map(all).collect()).collect();
    engine.forward(&batch(&groups, temperature, banned)).unwrap()
}

#[test]
fn the_most_likely_tokens_are_the_head_of_the_sorted_distribution() {
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.engine(adapted, &Machine::plain());
        // None of them is trained anywhere.
        let banned: Vec<u32> = (VOCABULARY as u32..VOCABULARY as u32 + 40).collect();
        let groups = groups();
        let all = whole_vocabulary(&mut engine, &groups, 0.7, &banned);
        let k = 7;
        let mut batch = batch(&groups, 0.7, &banned);
        batch.want.top_k = k;
        let likely = engine.forward(&batch).unwrap();
        let lines = groups.iter().flatten().zip(all.iter().flatten()).zip(likely.iter().flatten());
        let mut n = 0;
        for ((line, all), likely) in lines {
            let (all, top) = (all.top.as_ref().unwrap(), likely.top.as_ref().unwrap());
            for t in (0..line.tokens.len()).filter(|t| line.trained[*t]) {
                let place = t * all.k..(t + 1) * all.k;
                let mut sorted: Vec<(u32, f32)> =
                    all.ids[place.clone()].iter().copied().zip(all.logp[place].iter().copied()).collect();
                let total: f64 = sorted.iter().map(|(_, logp)| f64::from(*logp).exp()).sum();
                // Half an ulp of a log-probability of a few nats, times the probability, over the vocabulary.
                assert!((total - 1.0).abs() < 2e-6, "{what}: probabilities sum to {total}");
                let own = sorted.iter().find(|(token, _)| *token == line.tokens[t]).unwrap().1;
                assert_eq!(own.to_bits(), likely.logp[t].to_bits(), "{what}: the trained token itself");
                sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                let got: Vec<(u32, f32)> = (t * k..(t + 1) * k).map(|i| (top.ids[i], top.logp[i])).collect();
                assert_eq!(got, sorted[..k], "{what}");
                n += 1;
            }
        }
        assert!(n > 100, "{what}: {n} places were compared");
    });
}

#[test]
fn a_fresh_value_head_says_nothing_and_an_older_state_says_what_a_newer_one_said() {
    in_both_precisions(|tiny, adapted, what| {
        let mut fresh = tiny.engine(adapted, &Machine::plain()).with_value_head();
        for found in forward(&mut fresh, &groups(), ValueAt::After, 0).iter().flatten() {
            assert!(found.value.iter().all(|v| *v == 0), "{what}");
        }
        // The state after a token is the state before the next.
        let mut engine = tiny.valued(adapted, &Machine::plain());
        let line = Line::new(&tokens(1, 30), &tokens(2, 12));
        let (before, after) = (
            forward(&mut engine, &[vec![line.clone()]], ValueAt::Before, 0),
            forward(&mut engine, &[vec![line.clone()]], ValueAt::After, 0),
        );
        let (before, after) = (&before[0][0].value, &after[0][0].value);
        assert_eq!(before[31..42], after[30..41], "{what}");
        let longer = Line::new(&tokens(1, 30), &[&line.tokens[30..], &[5]].concat());
        let longer = forward(&mut engine, &[vec![longer]], ValueAt::Before, 0);
        assert_eq!(longer[0][0].value[42], after[41], "{what}: the last token has been read");
        assert!(before[..30].iter().chain(&after[..30]).all(|v| *v == 0), "{what}: nothing at what is not trained");
        let distinct: std::collections::BTreeSet<_> = after[30..].iter().collect();
        assert!(distinct.len() > 6, "{what}: values differ from place to place");
    });
}

/// Derivatives that differ from token to token.
fn derivatives(line: &Line) -> TokenGrads {
    let stream = Stream::new("derivatives", &[u64::from(line.tokens[0]), line.tokens.len() as u64]);
    let draw = |from: u64, n: usize| (0..n as u64).map(|i| stream.uniform(from + i) as f32 - 0.5).collect();
    let n = line.tokens.len();
    let dtop = draw(3000, line.top.as_ref().map_or(0, |top| top.ids.len()));
    TokenGrads { dvalue: draw(2000, n), dtop, ..TokenGrads::of(vec![0.0; n]) }
}

/// Which lists of derivatives take part.
#[derive(Clone, Copy, Debug)]
enum By {
    Values,
    Tops,
}

fn part(line: &Line, by: By) -> TokenGrads {
    let all = derivatives(line);
    match by {
        By::Values => TokenGrads { dtop: Vec::new(), ..all },
        By::Tops => TokenGrads { dvalue: Vec::new(), ..all },
    }
}

/// Σ derivative · value over everything, in double precision.
fn loss(engine: &mut Engine, groups: &[Vec<Line>], by: By) -> f64 {
    let values = engine.forward(&asking(groups, ValueAt::After, 0)).unwrap();
    let along = |d: &[f32], v: &[f32]| -> f64 { d.iter().zip(v).map(|(d, v)| f64::from(*d) * f64::from(*v)).sum() };
    let mut sum = 0.0;
    for (line, v) in groups.iter().flatten().zip(values.iter().flatten()) {
        let d = part(line, by);
        sum += along(&d.dvalue, &v.value) + along(&d.dtop, &v.top.as_ref().unwrap().logp);
    }
    sum
}

/// What an update would move along, by file and tensor.
fn read_out(engine: &mut Engine) -> Vec<Tensors> {
    engine.update(&READ_OUT).unwrap();
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let files = ["moment1.safetensors", "value_moment1.safetensors"].map(|file| folder.path().join(file));
    files.iter().filter(|file| file.exists()).map(|file| read_tensors(file)).collect()
}

/// The slope of the loss in a direction that steps of this size show, and what the gradient says it is.
///
/// The direction moves the tensors that are chosen, each by as much as it is large, times what is drawn.
fn slopes(tiny: &Tiny, adapted: bool, by: By, size: f64, seed: u64, chosen: fn(&str) -> bool) -> (f64, f64) {
    let groups = named(groups(), 3);
    let mut engine = tiny.valued(adapted, &Machine::plain());
    let mut part = |index: usize, _: &[TokenValues]| Ok(groups[index].iter().map(|line| part(line, by)).collect());
    engine.forward_backward(&asking(&groups, ValueAt::After, 0), &mut part).unwrap();
    let grads = read_out(&mut engine);
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let files = ["weights.safetensors", "value.safetensors"].map(|file| folder.path().join(file));
    let weights = files.each_ref().map(|file| read_tensors(file));
    // Where the step to one side ends, and what the gradient says of the steps that were made, which are rounded.
    let mut end = |step: f64| {
        let mut said = 0.0;
        for ((file, weights), grads) in files.iter().zip(&weights).zip(&grads) {
            let mut moved = weights.clone();
            for (index, (name, (_, values))) in moved.iter_mut().enumerate().filter(|(_, (name, _))| chosen(name)) {
                let stream = Stream::new("direction", &[seed, index as u64]);
                let rms = (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt();
                for (i, (value, grad)) in values.iter_mut().zip(&grads[name].1).enumerate() {
                    let before = f64::from(*value);
                    *value = (before + step * rms * (stream.uniform(i as u64) * 2.0 - 1.0)) as f32;
                    said += f64::from(*grad) * (f64::from(*value) - before);
                }
            }
            write_tensors(file, &moved);
        }
        engine.load_weights(folder.path()).unwrap();
        (loss(&mut engine, &groups, by), said)
    };
    let mut slope = |step: f64| {
        let (up, down) = (end(step), end(-step));
        ((up.0 - down.0) / (2.0 * step), (up.1 - down.1) / (2.0 * step))
    };
    // Two steps together leave out what a third derivative adds.
    let (wide, narrow) = (slope(size), slope(size / 2.0));
    ((4.0 * narrow.0 - wide.0) / 3.0, narrow.1)
}

/// How far slopes of order 10 may be off: some thousand values and log-probabilities, each rounded by about 3e-7, over
/// steps of 2e-3 leave some thousandths, and the fifth derivative as much again.
const OFF: f64 = 2e-3;

#[test]
fn derivatives_by_values_and_named_tokens_match_finite_differences() {
    let mut worst = 0.0_f64;
    let mut check = |tiny: &Tiny, adapted: bool, by: By, size: f64, chosen: fn(&str) -> bool| {
        for seed in 0..2 {
            let (slope, said) = slopes(tiny, adapted, by, size, seed, chosen);
            let off = (slope - said).abs() / (10.0 + said.abs());
            let what = format!("{} in {:?}, adapted {adapted}, by {by:?}", tiny.config.family, tiny.precision);
            assert!(off < OFF, "{what}: {slope} is not {said}");
            assert!(said.abs() > 1e-2, "{what}: the direction says something");
            worst = worst.max(off);
        }
    };
    for family in ["llama", "qwen2", "qwen3", "gemma3"] {
        for adapted in [false, true] {
            let tiny = Tiny::load(family);
            check(&tiny, adapted, By::Values, 4e-3, |_| true);
            check(&tiny, adapted, By::Tops, 4e-3, |_| true);
            // In bf16 the blocks' products go in stairs; past them, the final norm and the value head are f32.
            let tiny = Tiny::in_precision(family, Precision::Bf16);
            let past = |name: &str| name.starts_with("value_head") || name == "model.norm.weight";
            check(&tiny, adapted, By::Values, 4e-3, past);
        }
    }
    println!("slopes differ by at most {worst:.1e}");
}

/// A derivative by a named token is that by a trained one, whose gradients the reference has confirmed.
#[test]
fn a_named_token_pulls_as_a_trained_one_does() {
    in_both_precisions(|tiny, adapted, what| {
        let pull = |groups: &[Vec<Line>], grads: &dyn Fn(&Line) -> TokenGrads| {
            let mut engine = tiny.engine(adapted, &Machine::plain());
            let mut loss = |index: usize, _: &[TokenValues]| Ok(groups[index].iter().map(grads).collect());
            engine.forward_backward(&asking(groups, ValueAt::Nowhere, 0), &mut loss).unwrap();
            read_out(&mut engine)
        };
        let worth = |line: &Line| -> Vec<f32> {
            let stream = Stream::new("worth", &[u64::from(line.tokens[0]), line.tokens.len() as u64]);
            (0..line.tokens.len() as u64).map(|i| stream.uniform(i) as f32 - 0.5).collect()
        };
        // Every trained token, named as itself.
        let itself = named(groups(), 1);
        let want = pull(&groups(), &|line| TokenGrads::of(worth(line)));
        let zeros = |line: &Line| vec![0.0; line.tokens.len()];
        let got = pull(&itself, &|line| TokenGrads { dtop: worth(line), ..TokenGrads::of(zeros(line)) });
        assert!(got == want, "{what}");
        // Another token than the one that is there, at the end, where nothing comes after it.
        let ends =
            |said: u32| (0..5).map(|i| vec![Line::new(&tokens(i, 8 + 9 * i as usize), &[said])]).collect::<Vec<_>>();
        let other = |mut line: Line| {
            line.top = Some(Top { k: 2, ids: [3, 29].repeat(line.tokens.len()), logp: Vec::new() });
            line
        };
        let others: Vec<Vec<Line>> = ends(7).into_iter().map(|group| group.into_iter().map(other).collect()).collect();
        let by_second = |line: &Line| worth(line).iter().flat_map(|w| [0.0, *w]).collect();
        let got = pull(&others, &|line| TokenGrads { dtop: by_second(line), ..TokenGrads::of(zeros(line)) });
        assert!(got == pull(&ends(29), &|line| TokenGrads::of(worth(line))), "{what}");
    });
}

#[test]
fn a_value_head_learns_beside_adapters_and_beside_full_weights() {
    in_both_precisions(|tiny, adapted, what| {
        let bare = tiny.engine(adapted, &Machine::plain());
        let mut engine = tiny.engine(adapted, &Machine::plain()).with_value_head();
        let head = engine.value_head().unwrap();
        assert!(head.weight().iter().all(|w| *w == 0.0) && head.bias() == 0.0, "{what}: it starts at exactly 0");
        assert_eq!(engine.n_trainable(), bare.n_trainable() + tiny.config.width + 1, "{what}");
        let error = |engine: &mut Engine| -> f64 {
            let groups = groups();
            let values = engine.forward(&asking(&groups, ValueAt::Before, 0)).unwrap();
            let lines = groups.iter().flatten().zip(values.iter().flatten());
            let trained = lines.flat_map(|(l, v)| l.trained.iter().zip(&v.value)).filter(|(trained, _)| **trained);
            trained.map(|(_, v)| f64::from((v - 0.3) * (v - 0.3))).sum()
        };
        let before = error(&mut engine);
        for _ in 0..12 {
            let mut loss = |_: usize, values: &[TokenValues]| {
                let pull = |v: &TokenValues| v.value.iter().map(|v| 0.1 * (v - 0.3)).collect();
                let one = |v: &TokenValues| TokenGrads { dvalue: pull(v), ..TokenGrads::of(vec![0.0; v.logp.len()]) };
                Ok(values.iter().map(one).collect())
            };
            engine.forward_backward(&asking(&groups(), ValueAt::Before, 0), &mut loss).unwrap();
            engine.update(&step()).unwrap();
        }
        let after = error(&mut engine);
        assert!(after < 0.8 * before, "{what}: {before} to {after}");
        let head = engine.value_head().unwrap();
        assert!(head.weight().iter().any(|w| *w != 0.0) && head.bias() != 0.0, "{what}");
    });
}

#[test]
fn weight_decay_pulls_the_value_vector_and_not_its_bias() {
    let tiny = Tiny::load("llama");
    let mut engine = tiny.valued(true, &Machine::plain());
    let before = engine.value_head().unwrap().clone();
    let mut loss =
        |_: usize, values: &[TokenValues]| Ok(values.iter().map(|v| TokenGrads::of(vec![0.0; v.logp.len()])).collect());
    engine.forward_backward(&asking(&groups(), ValueAt::Nowhere, 0), &mut loss).unwrap();
    engine.update(&step()).unwrap();
    let after = engine.value_head().unwrap();
    assert_eq!(after.bias(), before.bias());
    for (after, before) in after.weight().iter().zip(before.weight()) {
        assert_eq!(*after, before * (1.0 - 1e-2 * 0.1) as f32);
    }
}

#[test]
fn what_cannot_be_asked_is_refused_by_name() {
    let tiny = Tiny::load("llama");
    let mut engine = tiny.engine(true, &Machine::plain());
    let line = || Line::new(&[1, 2], &[3]);
    let refused = |engine: &mut Engine, line: Line, value: ValueAt, top_k: usize, banned: &[u32]| {
        let groups = [vec![line]];
        let mut batch = batch(&groups, 1.0, banned);
        (batch.want.value, batch.want.top_k) = (value, top_k);
        let mut loss = |_: usize, _: &[TokenValues]| -> Result<Vec<TokenGrads>, PolicyError> { unreachable!() };
        let errors = [engine.forward(&batch).unwrap_err(), engine.forward_backward(&batch, &mut loss).unwrap_err()];
        let [first, second] = errors.map(|error| error.to_string());
        assert_eq!(first, second);
        first
    };
    let named = |k: usize, ids: &[u32]| Line { top: Some(Top { k, ids: ids.to_vec(), logp: Vec::new() }), ..line() };
    let nowhere = ValueAt::Nowhere;
    for (got, want) in [
        (refused(&mut engine, line(), ValueAt::Before, 0, &[]), "values are asked of a policy without a value head"),
        (
            refused(&mut engine, line(), nowhere, 97, &[5, 5, 200]),
            "the 97 most likely tokens are asked of a policy that has 96",
        ),
        (
            refused(&mut engine, named(1, &[1; 3]), nowhere, 2, &[]),
            "tokens are named for a sequence in a batch that asks for the most likely ones",
        ),
        (refused(&mut engine, named(2, &[1; 5]), nowhere, 0, &[]), "`top` has 5 tokens, needed 2 for each of 3"),
        (refused(&mut engine, named(0, &[]), nowhere, 0, &[]), "`top` has 0 tokens, needed 1 for each of 3"),
        (refused(&mut engine, named(1, &[0, 0, 97]), nowhere, 0, &[]), "token 97 is outside the vocabulary of 97"),
        (refused(&mut engine, named(1, &[0, 0, 9]), nowhere, 0, &[9]), "token 9 is named but banned from the policy"),
    ] {
        assert_eq!(got, want);
    }
    let mut engine = engine.with_value_head();
    let mut answered = |grads: TokenGrads, top_k: usize, want: &str| {
        let groups = if top_k == 0 { [vec![named(2, &[5; 6])]] } else { [vec![line()]] };
        let mut loss = |_: usize, _: &[TokenValues]| Ok(vec![grads.clone()]);
        let error = engine.forward_backward(&asking(&groups, ValueAt::After, top_k), &mut loss).unwrap_err();
        assert_eq!(error.to_string(), want);
    };
    let zeros = |n: usize| vec![0.0; n];
    let full = || TokenGrads::of(zeros(3));
    let at = "of group 0, sequence 0 has";
    answered(TokenGrads::of(zeros(2)), 0, &format!("`dlogp` {at} 2 entries, needed 3"));
    answered(TokenGrads { dentropy: zeros(4), ..full() }, 0, &format!("`dentropy` {at} 4 entries, needed 3"));
    answered(TokenGrads { dvalue: zeros(1), ..full() }, 0, &format!("`dvalue` {at} 1 entries, needed 3"));
    answered(TokenGrads { dtop: zeros(5), ..full() }, 0, &format!("`dtop` {at} 5 entries, needed 6"));
    answered(TokenGrads { dtop: zeros(6), ..full() }, 2, &format!("`dtop` {at} 6 entries, needed 0"));
    let groups = [vec![line(), line()]];
    let mut one = |_: usize, _: &[TokenValues]| Ok(vec![full()]);
    let error = engine.forward_backward(&asking(&groups, ValueAt::After, 0), &mut one).unwrap_err();
    assert_eq!(error.to_string(), "group 0 has 1 derivatives for 2 sequences");
}

#[test]
fn a_value_that_is_not_a_number_says_where() {
    let tiny = Tiny::load("llama");
    let weights = (tiny.config.clone(), tiny.params.clone());
    let machine = Machine::plain();
    let frozen = Engine::new(machine.cpu(), weights, None, Trainable::Frozen {}, machine.settings.clone(), 1).unwrap();
    let mut engine = frozen.with_value_head();
    assert_eq!(engine.n_trainable(), 0, "a frozen policy may have a value head that scores");
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let file = folder.path().join("value.safetensors");
    let mut head = read_tensors(&file);
    // Two finite weights whose products overflow.
    head.get_mut("value_head.weight").unwrap().1.fill(f32::MAX);
    write_tensors(&file, &head);
    engine.load_value_head(folder.path()).unwrap();
    let groups = [vec![Line::new(&[1, 2], &[3])]];
    let error = engine.forward(&asking(&groups, ValueAt::Before, 0)).unwrap_err().to_string();
    assert_eq!(error, "a value is not finite at group 0, sequence 0, token 2");
}
