//! Random work, cut and mixed at random: what must not matter does not.

use policy::{Job, Learner, Sampling, TokenGrads, TokenValues, ValueAt};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use surefoot_train::{Engine, Precision};

use crate::support::*;

/// Some families that differ in attention and tying, in both precisions, by number.
fn some() -> Vec<Tiny> {
    let both = |name| [Precision::F32, Precision::Bf16].map(|precision| Tiny::in_precision(name, precision));
    ["llama_linear", "gemma3", "qwen3", "smollm2"].into_iter().flat_map(both).collect()
}

/// The same cases on every run, so that a failure is there again.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// A group: a common start, then what each sequence says, with turns it did not say in between.
fn group() -> impl Strategy<Value = Vec<Line>> {
    let tail = prop::collection::vec(any::<bool>(), 1..12);
    (1_usize..70, 0_u64..50, prop::collection::vec(tail, 1..5)).prop_map(|(n, seed, tails)| {
        let line = |(i, tail): (usize, &Vec<bool>)| {
            let mut line = Line::new(&tokens(seed, n), &tokens(1000 + seed * 8 + i as u64, tail.len()));
            line.trained[n..].copy_from_slice(tail);
            line
        };
        tails.iter().enumerate().map(line).collect()
    })
}

/// Values before and after each token, the most likely ones, and those that are named.
fn values(engine: &mut Engine, groups: &[Vec<Line>]) -> Vec<Vec<[Found; 2]>> {
    let likely = engine.forward(&asking(groups, ValueAt::Before, 2)).unwrap();
    let named = engine.forward(&asking(&named(groups.to_vec(), 2), ValueAt::After, 0)).unwrap();
    let each = likely.iter().zip(&named);
    each.map(|(a, b)| a.iter().zip(b).map(|(a, b)| [found(a), found(b)]).collect()).collect()
}

fn trained(engine: &mut Engine, groups: &[Vec<Line>]) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut loss = |_: usize, values: &[TokenValues]| {
        let pull = |list: &[f32]| list.iter().map(|l| 0.1 * l - 0.3).collect();
        let one = |v: &TokenValues| TokenGrads {
            dlogp: pull(&v.logp),
            dentropy: vec![0.02; v.logp.len()],
            dvalue: pull(&v.value),
            dtop: pull(&v.top.as_ref().unwrap().logp),
        };
        Ok(values.iter().map(one).collect())
    };
    engine.forward_backward(&asking(&named(groups.to_vec(), 2), ValueAt::After, 0), &mut loss).unwrap();
    engine.update(&step()).unwrap();
    saved(engine)
}

#[test]
fn random_groups_have_the_values_and_gradients_of_any_packing() {
    let models = some();
    let work = (prop::collection::vec(group(), 1..6), 0..models.len(), any::<bool>(), 1_usize..300);
    let result = runner(24).run(&work, |(groups, family, adapted, rows)| {
        let tiny = &models[family];
        let cut = Machine::new(|s| s.micro_batch_rows = rows);
        let whole = Machine::new(|s| s.micro_batch_rows = 1 << 20);
        let apart = Machine::new(|s| s.share_prompts = false);
        let want = values(&mut tiny.valued(adapted, &whole), &groups);
        let mut engine = tiny.valued(adapted, &cut);
        prop_assert_eq!(&values(&mut engine, &groups), &want);
        prop_assert_eq!(&values(&mut tiny.valued(adapted, &apart), &groups), &want);
        for (group, want) in groups.iter().zip(&want) {
            for (line, want) in group.iter().zip(want) {
                prop_assert_eq!(&values(&mut engine, &[vec![line.clone()]])[0][0], want);
            }
        }
        let want = trained(&mut tiny.valued(adapted, &whole), &groups);
        prop_assert!(trained(&mut engine, &groups) == want, "the weights after an update differ");
        Ok(())
    });
    result.unwrap();
}

#[test]
fn random_jobs_have_the_samples_of_any_batch_chunk_and_order() {
    let models = some();
    let one = (0_u64..3, 1_usize..80, 1_usize..12, 0..samplings().len());
    let jobs = prop::collection::vec(one, 1..20);
    let work = (jobs, 0..models.len(), any::<bool>(), 1_usize..24, 1_usize..90, any::<u64>());
    let result = runner(24).run(&work, |(shapes, family, adapted, n, prompt_rows, order)| {
        let tiny = &models[family];
        let make = |(id, (seed, n, max_tokens, how)): (usize, &(u64, usize, usize, usize))| {
            let sampling = Sampling { max_tokens: *max_tokens, ..samplings()[*how].clone() };
            job(id as u64, &tokens(*seed, *n), &sampling)
        };
        let jobs: Vec<Job> = shapes.iter().enumerate().map(make).collect();
        let want = sample_alone(&mut tiny.engine(adapted, &Machine::plain()), &jobs);
        let machine = Machine::new(|s| (s.batch, s.prompt_rows) = (n, prompt_rows));
        let order = episode::random::Stream::from_key(order).permutation(jobs.len());
        let shuffled: Vec<Job> = order.iter().map(|i| jobs[*i].clone()).collect();
        let got = sample(&mut tiny.engine(adapted, &machine), &shuffled);
        for (got, i) in got.iter().zip(&order) {
            prop_assert_eq!(got, &want[*i]);
        }
        Ok(())
    });
    result.unwrap();
}
