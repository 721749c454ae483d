//! The value head and the named tokens: the same bits however they are computed, and derivatives of what they say.

use episode::random::Stream;
use loss::Top;
use policy::{Checkpoint, Learner, TokenGrads, TokenValues, ValueAt};
use surefoot_train::Engine;

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

/// The gradient, by file and tensor.
fn gradient(engine: &mut Engine, groups: &[Vec<Line>], by: By) -> [Tensors; 2] {
    let mut loss = |index: usize, _: &[TokenValues]| Ok(groups[index].iter().map(|line| part(line, by)).collect());
    engine.forward_backward(&asking(groups, ValueAt::After, 0), &mut loss).unwrap();
    engine.update(&READ_OUT).unwrap();
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    ["moment1.safetensors", "value_moment1.safetensors"].map(|file| read_tensors(&folder.path().join(file)))
}

/// The slope of the loss in a direction, and what the gradient says it is.
///
/// - Shapes: `direction` gives each tensor's step, as large as the tensor itself times what it draws.
fn slopes(tiny: &Tiny, adapted: bool, by: By, step: f64, direction: u64) -> (f64, f64) {
    let groups = named(groups(), 3);
    let machine = Machine::plain();
    let mut engine = tiny.valued(adapted, &machine);
    let grads = gradient(&mut engine, &groups, by);
    let folder = tempfile::tempdir().unwrap();
    engine.save(folder.path()).unwrap();
    let files = ["weights.safetensors", "value.safetensors"].map(|file| folder.path().join(file));
    let weights = files.each_ref().map(|file| read_tensors(file));
    let (mut said, mut ends) = (0.0, [0.0; 2]);
    for (end, sign) in ends.iter_mut().zip([1.0, -1.0]) {
        said = 0.0;
        for ((file, weights), grads) in files.iter().zip(&weights).zip(&grads) {
            let mut moved = weights.clone();
            for (index, (name, (_, values))) in moved.iter_mut().enumerate() {
                let stream = Stream::new("direction", &[direction, index as u64]);
                let size = (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt();
                for (i, (value, grad)) in values.iter_mut().zip(&grads[name].1).enumerate() {
                    let along = (stream.uniform(i as u64) * 2.0 - 1.0) * size;
                    let before = f64::from(*value);
                    *value = (before + sign * step * along) as f32;
                    // By the step that was made, which is rounded.
                    said += f64::from(*grad) * (f64::from(*value) - before) / (sign * step);
                }
            }
            write_tensors(file, &moved);
        }
        engine.load_weights(folder.path()).unwrap();
        *end = loss(&mut engine, &groups, by);
    }
    ((ends[0] - ends[1]) / (2.0 * step), said)
}

/// Values and log-probabilities carry a rounding of about 3e-7 each; some hundreds of them in random directions over twice
/// the step leave 1e-3 of a slope of order 1, and the third derivative as much again.
#[test]
fn derivatives_by_values_and_named_tokens_match_finite_differences() {
    let mut worst = 0.0_f64;
    for family in ["llama", "smollm2", "qwen2", "qwen3", "gemma3"] {
        let tiny = Tiny::load(family);
        for adapted in [false, true] {
            for by in [By::Values, By::Tops] {
                for direction in 0..3 {
                    for h in [1e-2, 3e-3, 1e-3, 3e-4, 1e-4] { let (slope, said) = slopes(&tiny, adapted, by, h, direction); println!("   {h} {slope} {said} {}", (slope-said).abs()/(1.0+said.abs())); }
                    let (slope, said) = slopes(&tiny, adapted, by, 3e-3, direction);
                    let off = (slope - said).abs() / (1.0 + said.abs());
                    worst = worst.max(off);
                    println!("{family} {adapted} {by:?}: {slope:.6} {said:.6}");
                    assert!(off < 3e1, "{family}, adapted {adapted}, by {by:?}: {slope} is not {said}");
                }
            }
        }
    }
    println!("slopes differ by at most {worst:.1e}");
}
