//! Log-probabilities: one value a token, whoever computes it and however.

use episode::random::Stream;
use policy::{Job, Learner, Policy, Sampling, TokenGrads};
use surefoot_train::{Engine, Precision};

use crate::support::*;

/// The log-probabilities a training pass gives to what was said, in bits, each job a group of its own.
fn forward(engine: &mut Engine, jobs: &[Job], said: &[Said], temperature: f32, banned: &[u32]) -> Vec<Vec<u32>> {
    let groups: Vec<Vec<Line>> = jobs.iter().zip(said).map(|(j, s)| vec![Line::new(&j.prompt, &s.tokens)]).collect();
    let values = engine.forward(&batch(&groups, temperature, banned)).unwrap();
    values.iter().zip(jobs).map(|(v, j)| bits(&v[0].logp[j.prompt.len()..])).collect()
}

/// What is recorded equals what training computes, at the job's own temperature and at 1.
fn check_forward(engine: &mut Engine, jobs: &[Job], said: &[Said], what: &str) {
    for sampling in samplings() {
        let like =
            |(j, _): &(&Job, &Said)| Sampling { max_tokens: sampling.max_tokens, ..(*j.sampling).clone() } == sampling;
        let (jobs, said): (Vec<Job>, Vec<Said>) =
            jobs.iter().zip(said).filter(like).map(|(j, s)| (j.clone(), s.clone())).unzip();
        assert!(!jobs.is_empty(), "every way to draw is there");
        let temperature = if sampling.temperature == 0.0 { 1.0 } else { sampling.temperature };
        let got = forward(engine, &jobs, &said, temperature, &sampling.banned);
        let plain = forward(engine, &jobs, &said, 1.0, &[]);
        for (((got, plain), said), job) in got.iter().zip(&plain).zip(&said).zip(&jobs) {
            assert_eq!(got, &said.logp, "job {}, {what}", job.id);
            assert_eq!(plain, &said.logp_t1, "job {} at temperature 1, {what}", job.id);
        }
    }
}

#[test]
fn what_is_recorded_while_sampling_is_what_training_computes() {
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let jobs = crowd();
        let said = sample(&mut engine, &jobs);
        check_forward(&mut engine, &jobs, &said, what);
    });
}

#[test]
fn a_loss_is_handed_the_values_of_a_plain_forward_pass() {
    in_both_precisions(|tiny, adapted, what| {
        let groups = groups();
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let batch = batch(&groups, 0.8, &[]);
        let want = engine.forward(&batch).unwrap();
        let mut n_seen = 0;
        let mut loss = |index: usize, values: &[policy::TokenValues]| {
            assert_eq!(index, n_seen, "groups come in order");
            n_seen += 1;
            for (got, want) in values.iter().zip(&want[index]) {
                assert_eq!(bits(&got.logp), bits(&want.logp), "{what}");
                assert_eq!(bits(&got.entropy), bits(&want.entropy), "{what}");
            }
            Ok(values.iter().map(|v| TokenGrads::of(vec![0.5; v.logp.len()])).collect())
        };
        engine.forward_backward(&batch, &mut loss).unwrap();
        assert_eq!(n_seen, groups.len());
    });
}

#[test]
fn a_job_is_what_it_is_alone_whatever_runs_beside_it_and_in_whatever_chunks() {
    in_both_precisions(|tiny, adapted, what| {
        let jobs = crowd();
        let alone = sample_alone(&mut tiny.engine(adapted, &Machine::new(|s| s.batch = 1)), &jobs);
        for (batch, prompt_rows) in [(64, 256), (64, 1), (64, 7), (1, 256), (3, 7), (1, 1)] {
            let machine = Machine::new(|s| (s.batch, s.prompt_rows) = (batch, prompt_rows));
            let got = sample(&mut tiny.engine(adapted, &machine), &jobs);
            same(&got, &alone, &format!("{what}, batch {batch}, {prompt_rows} prompt rows"));
        }
        // Any order of arrival, in an engine that has already sampled others.
        let mut engine = tiny.engine(adapted, &Machine::new(|s| s.batch = 5));
        for seed in 0..3 {
            let order = Stream::new("order", &[seed]).permutation(jobs.len());
            let shuffled: Vec<Job> = order.iter().map(|i| jobs[*i].clone()).collect();
            let want: Vec<Said> = order.iter().map(|i| alone[*i].clone()).collect();
            same(&sample(&mut engine, &shuffled), &want, &format!("{what}, order {seed}"));
        }
    });
}

#[test]
fn a_shared_prompt_gives_what_a_private_one_gives() {
    in_both_precisions(|tiny, adapted, what| {
        let sampling = Sampling::plain(1.0, 40, Vec::new());
        let lengths = [1, 31, 32, 33, 63, 64, 65, 100];
        for n in lengths.into_iter().skip(if tiny.precision == Precision::F32 { 0 } else { 5 }) {
            let jobs: Vec<Job> = (0..5).map(|i| job(i, &tokens(1, n), &sampling)).collect();
            let alone = sample_alone(&mut tiny.engine(adapted, &Machine::plain()), &jobs);
            let mut engine = tiny.engine(adapted, &Machine::plain());
            same(&sample(&mut engine, &jobs), &alone, &format!("{what}, prompt of {n}"));
            // A prompt that another begins with, read before it, after it and beside it.
            let long: Vec<Job> = (5..8).map(|i| job(i, &tokens(1, n + 9), &sampling)).collect();
            let long_alone = sample_alone(&mut tiny.engine(adapted, &Machine::plain()), &long);
            for long_first in [true, false] {
                let ordered = |a: &[Job], b: &[Job]| if long_first { [b, a].concat() } else { [a, b].concat() };
                for batch in [2, 64] {
                    let mut engine = tiny.engine(adapted, &Machine::new(|s| s.batch = batch));
                    let got = sample(&mut engine, &ordered(&jobs, &long));
                    let want = if long_first {
                        [&long_alone[..], &alone].concat()
                    } else {
                        [&alone[..], &long_alone].concat()
                    };
                    same(&got, &want, &format!("{what}, prompts of {n} and {}, long first {long_first}", n + 9));
                }
            }
        }
    });
}

#[test]
fn threads_and_vector_sets_change_no_bit() {
    in_both_precisions(|tiny, adapted, what| {
        let jobs: Vec<Job> = crowd().into_iter().step_by(2).collect();
        let groups = groups();
        let run = |machine: &Machine| {
            let mut engine = tiny.engine(adapted, machine);
            let values = engine.forward(&batch(&groups, 0.8, &[])).unwrap();
            let values: Vec<_> = values.iter().flatten().map(|v| (bits(&v.logp), bits(&v.entropy))).collect();
            (sample(&mut engine, &jobs), values)
        };
        let want = run(&Machine::plain());
        for machine in machines(tiny.precision) {
            let got = run(&machine);
            let what = format!("{what}, {} with {} threads", machine.isa, machine.n_threads);
            same(&got.0, &want.0, &what);
            assert_eq!(got.1, want.1, "{what}");
        }
    });
}

#[test]
fn d9_packed_sequences_have_the_values_they_have_alone() {
    in_both_precisions(|tiny, adapted, what| {
        let groups = groups();
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let mut alone = |line: &Line| {
            let group = [vec![line.clone()]];
            let values = engine.forward(&batch(&group, 0.8, &[])).unwrap().remove(0).remove(0);
            (bits(&values.logp), bits(&values.entropy))
        };
        let want: Vec<Vec<_>> = groups.iter().map(|g| g.iter().map(&mut alone).collect()).collect();
        for (share, rows) in [(true, 1 << 20), (false, 1 << 20), (true, 100), (false, 1)] {
            let machine = Machine::new(|s| (s.share_prompts, s.micro_batch_rows) = (share, rows));
            let mut engine = tiny.engine(adapted, &machine);
            for backwards in [false, true] {
                let mut order: Vec<usize> = (0..groups.len()).collect();
                if backwards {
                    order.reverse();
                }
                let ordered: Vec<Vec<Line>> = order.iter().map(|i| groups[*i].clone()).collect();
                let got = engine.forward(&batch(&ordered, 0.8, &[])).unwrap();
                for (got, index) in got.iter().zip(&order) {
                    let got: Vec<_> = got.iter().map(|v| (bits(&v.logp), bits(&v.entropy))).collect();
                    assert_eq!(got, want[*index], "{what}: group {index}, shared {share}, {rows} rows");
                }
            }
        }
    });
}

#[test]
fn j16_samples_of_one_seed_differ_from_each_other_and_repeat() {
    let tiny = Tiny::load("smollm2");
    let sampling = Sampling::plain(1.0, 12, Vec::new());
    let jobs: Vec<Job> = (0..16).map(|i| job(i, &tokens(1, 20), &sampling)).collect();
    let mut engine = tiny.engine(true, &Machine::plain());
    let said = sample(&mut engine, &jobs);
    let distinct: std::collections::BTreeSet<_> = said.iter().map(|s| &s.tokens).collect();
    assert_eq!(distinct.len(), jobs.len(), "each sample has a stream of its own");
    same(&sample(&mut engine, &jobs), &said, "once more");
    let greedy = Sampling { temperature: 0.0, ..sampling };
    let jobs: Vec<Job> = (0..4).map(|i| job(i, &tokens(1, 20), &greedy)).collect();
    let said = sample(&mut engine, &jobs);
    assert!(said.iter().all(|s| s == &said[0]), "the most likely token needs no stream");
}

#[test]
fn k13_three_prompts_four_times_each_are_twelve_generations() {
    let tiny = Tiny::load("llama");
    let sampling = Sampling::plain(1.0, 4, Vec::new());
    let jobs: Vec<Job> = (0..12).map(|i| job(i, &tokens(1 + i / 4, 10), &sampling)).collect();
    let mut desk = Desk::of(&jobs);
    policy::Sampler::sample(&mut tiny.engine(false, &Machine::plain()), &mut desk).unwrap();
    assert_eq!(desk.done.keys().copied().collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
    assert_eq!((desk.done.values().map(|s| s.tokens.len()).sum::<usize>(), desk.failed.len()), (48, 0));
}

#[test]
fn k12_two_passes_over_the_same_tokens_are_equal() {
    everywhere(|tiny, adapted, what| {
        let groups = groups();
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let mut pass = || {
            let values = engine.forward(&batch(&groups, 1.0, &[])).unwrap();
            values.iter().flatten().map(|v| (bits(&v.logp), bits(&v.entropy))).collect::<Vec<_>>()
        };
        let first = pass();
        assert_eq!(pass(), first, "{what}");
    });
}

#[test]
fn c16_nothing_of_older_weights_is_reused_after_an_update() {
    in_both_precisions(|tiny, adapted, what| {
        let greedy = Sampling::plain(0.0, 6, Vec::new());
        let jobs: Vec<Job> = (0..3).map(|i| job(i, &tokens(1, 40), &greedy)).collect();
        let groups = groups();
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let before = sample(&mut engine, &jobs);
        train(&mut engine, &groups);
        engine.publish().unwrap();
        let mut desk = Desk::of(&jobs);
        policy::Sampler::sample(&mut engine, &mut desk).unwrap();
        assert_eq!(desk.versions, [1; 3], "{what}");
        let after: Vec<Said> = desk.done.into_values().collect();
        assert_ne!(after[0].logp[0], before[0].logp[0], "{what}: the weights moved");
        // An engine that never sampled before the update says the same as this one.
        let mut fresh = tiny.engine(adapted, &Machine::plain());
        train(&mut fresh, &groups);
        same(&sample(&mut fresh, &jobs), &after, what);
        let values = forward(&mut engine, &jobs, &after, 1.0, &[]);
        assert!(values.iter().zip(&after).all(|(v, s)| v == &s.logp), "{what}: sampler and trainer moved together");
    });
}

#[test]
fn c15_an_update_of_learning_rate_zero_leaves_every_bit() {
    everywhere(|tiny, adapted, what| {
        let jobs: Vec<Job> = crowd().into_iter().step_by(5).collect();
        let groups = groups();
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let before = sample(&mut engine, &jobs);
        for _ in 0..3 {
            accumulate(&mut engine, &groups);
            engine.update(&policy::AdamStep { learning_rate: 0.0, ..step() }).unwrap();
            same(&sample(&mut engine, &jobs), &before, what);
        }
    });
}

/// Adds a gradient that pulls every token up.
fn accumulate(engine: &mut Engine, groups: &[Vec<Line>]) {
    let mut loss = |_: usize, values: &[policy::TokenValues]| {
        Ok(values.iter().map(|v| TokenGrads::of(vec![-0.01; v.logp.len()])).collect())
    };
    engine.forward_backward(&batch(groups, 1.0, &[]), &mut loss).unwrap();
}

fn train(engine: &mut Engine, groups: &[Vec<Line>]) {
    accumulate(engine, groups);
    engine.update(&step()).unwrap();
}
