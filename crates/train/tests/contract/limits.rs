//! The sampler at its limits: cancelled, out of context, out of cache, and handed what it cannot sample.

use std::collections::BTreeMap;

use episode::StopReason;
use episode::random::Stream;
use model::params::Slot;
use model::{Config, Params, arch};
use policy::{Job, Learner, Sampler, Sampling};
use serde_json::json;
use surefoot_train::{Engine, EngineSettings, Trainable};

use crate::support::*;

/// A small model with many wide heads: a page of its keys and values takes half a megabyte, so that a cache of a few
/// pages can be asked for.
fn wide() -> (Config, Params) {
    let config = arch::from_hf(&json!({
        "model_type": "llama", "vocab_size": 48, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64, "max_position_embeddings": 128,
        "tie_word_embeddings": true,
    }))
    .unwrap();
    let mut params = Params::zeroed(&config, false);
    for (index, slot) in Slot::all(&config).into_iter().enumerate() {
        let stream = Stream::new("wide", &[index as u64]);
        let n = slot.shape(&config).iter().product::<usize>() as u64;
        let draw = |i| if slot.is_norm() { 1.0 } else { stream.uniform(i) as f32 - 0.5 };
        params.write(&config, slot, &(0..n).map(draw).collect::<Vec<f32>>());
    }
    (config, params)
}

fn wide_engine(cache_mb: usize, batch: usize) -> Engine {
    let settings = EngineSettings { cache_mb, batch, ..EngineSettings::default() };
    Engine::new(Machine::plain().cpu(), wide(), None, Trainable::Frozen {}, settings, 1).unwrap()
}

/// Jobs of 1 to 3 pages: equal prompts, nested ones, ones that end on a page.
fn pages() -> Vec<Job> {
    let lengths =
        [(5, 20), (5, 20), (5, 50), (32, 10), (32, 32), (33, 40), (60, 4), (64, 30), (64, 1), (70, 26), (10, 86)];
    let one = |i: usize| {
        let (prompt, said) = lengths[i % lengths.len()];
        job(i as u64, &tokens(1 + (i % 4 / 3) as u64, prompt), &Sampling::plain(1.0, said, Vec::new()))
    };
    (0..33).map(one).collect()
}

#[test]
fn a_cache_of_few_pages_finishes_every_job_with_the_same_bits() {
    let jobs = pages();
    let want = sample(&mut wide_engine(64, 64), &jobs);
    // A megabyte is two pages; the longest job takes three.
    for cache_mb in [2, 3, 4, 6, 10] {
        for batch in [1, 2, 64] {
            let mut engine = wide_engine(cache_mb, batch);
            for round in 0..2 {
                same(&sample(&mut engine, &jobs), &want, &format!("{cache_mb} MB, batch {batch}, round {round}"));
            }
        }
    }
}

#[test]
fn a_job_that_needs_the_whole_cache_gets_it() {
    // Two pages: 64 positions.
    for (prompt, said) in [(1, 63), (5, 59), (31, 33), (32, 32), (33, 31), (40, 24), (63, 1), (64, 1)] {
        let jobs: Vec<Job> =
            (0..3).map(|i| job(i, &tokens(1, prompt), &Sampling::plain(1.0, said, Vec::new()))).collect();
        let fits = prompt + said <= 64;
        let mut desk = Desk::of(&jobs);
        wide_engine(1, 64).sample(&mut desk).unwrap();
        if fits {
            assert_eq!(desk.failed, BTreeMap::new(), "{prompt} + {said}");
            same(&desk.done.into_values().collect::<Vec<_>>(), &sample(&mut wide_engine(64, 64), &jobs), "whole cache");
        } else {
            let want = "the key/value cache holds 64 positions, 96 are needed for one sequence: raise `cache_mb` or \
                        lower `max_tokens`";
            assert_eq!(desk.failed.values().collect::<Vec<_>>(), [want; 3], "{prompt} + {said}");
        }
    }
}

#[test]
fn cancelling_gives_every_job_and_every_page_back() {
    let jobs = pages();
    let want = sample(&mut wide_engine(64, 64), &jobs);
    // So few pages that one which is not given back would soon be missed.
    let mut engine = wide_engine(3, 64);
    for after in 0..40 {
        let mut desk = Desk { cancel_after: Some(after), ..Desk::of(&jobs) };
        engine.sample(&mut desk).unwrap();
        assert_eq!(desk.failed, BTreeMap::new());
        assert_eq!(desk.done.len() + desk.waiting.len(), jobs.len(), "a job is given back or was never taken");
        assert!(desk.waiting.iter().all(|j| !desk.done.contains_key(&j.id)));
        for (id, said) in &desk.done {
            let want = &want[*id as usize];
            let n = said.tokens.len();
            assert!(n <= want.tokens.len());
            assert_eq!((said.logp.len(), said.logp_t1.len()), (n, n));
            assert_eq!((&said.tokens[..], &said.logp[..]), (&want.tokens[..n], &want.logp[..n]), "job {id} so far");
            if said.stop != StopReason::Cancelled {
                assert_eq!(said, want, "job {id} had finished");
            }
        }
    }
    same(&sample(&mut engine, &jobs), &want, "after forty cancellations");
}

#[test]
fn sampling_ends_at_the_end_of_the_context() {
    everywhere(|tiny, adapted, what| {
        let context = tiny.config.context;
        let sampling = Sampling::plain(1.0, 5, Vec::new());
        let room = [1, 2, 4, 5, 6];
        let jobs: Vec<Job> = room.iter().map(|n| job(*n as u64, &tokens(1, context - n), &sampling)).collect();
        let mut engine = tiny.engine(adapted, &Machine::new(|s| s.prompt_rows = 100));
        for ((said, room), job) in sample(&mut engine, &jobs).iter().zip(room).zip(&jobs) {
            let want = if room < 5 { StopReason::Context } else { StopReason::Length };
            assert_eq!((said.tokens.len(), said.stop), (room.min(5), want), "{what}, room for {room}");
            let groups = [vec![Line::new(&job.prompt, &said.tokens)]];
            let values = engine.forward(&batch(&groups, 1.0, &[])).unwrap().remove(0).remove(0);
            assert_eq!(
                bits(&values.logp[job.prompt.len()..]),
                said.logp,
                "{what}: the last positions are trained alike"
            );
        }
    });
}

#[test]
fn a_job_that_cannot_be_sampled_fails_by_itself_and_the_others_go_on() {
    let tiny = Tiny::load("llama");
    let mut engine = tiny.engine(false, &Machine::plain());
    let good: Vec<Job> = crowd().into_iter().take(6).collect();
    let want = sample(&mut engine, &good);
    let plain = Sampling::plain(1.0, 4, Vec::new());
    let bad = [
        (job(100, &[], &plain), "a sequence needs at least 1 token before the first one sampled, got 0"),
        (job(101, &[1, 97], &plain), "token 97 is outside the vocabulary of 97"),
        (job(102, &tokens(1, 1024), &plain), "1025 tokens do not fit the context window of 1024"),
        (
            job(103, &[1], &Sampling { temperature: f32::NAN, ..plain.clone() }),
            "`temperature` is NaN, needed 0, or a number from 0.001 to 100",
        ),
        (
            job(104, &[1], &Sampling { banned: (0..97).collect(), ..plain.clone() }),
            "all 97 tokens of the vocabulary are banned",
        ),
        (
            job(105, &[1], &Sampling { stop_strings: vec!["a".to_owned()], ..plain.clone() }),
            "stop strings need a tokenizer, and there is none",
        ),
        (job(106, &[1], &Sampling { max_tokens: 0, ..plain.clone() }), "`max_tokens` is 0, needed at least 1"),
    ];
    let mut jobs = good.clone();
    for (place, (bad, _)) in bad.iter().enumerate() {
        jobs.insert(place * 2 % jobs.len(), bad.clone());
    }
    let mut desk = Desk::of(&jobs);
    engine.sample(&mut desk).unwrap();
    let failed: BTreeMap<u64, String> = bad.iter().map(|(j, want)| (j.id, (*want).to_owned())).collect();
    assert_eq!(desk.failed, failed);
    same(&desk.done.into_values().collect::<Vec<_>>(), &want, "beside jobs that fail");
}

#[test]
fn all_but_one_token_banned_leaves_that_one_with_certainty() {
    let tiny = Tiny::load("qwen2");
    let mut engine = tiny.engine(false, &Machine::plain());
    let sampling = Sampling { banned: (0..101).filter(|t| *t != 40).collect(), ..Sampling::plain(1.0, 3, Vec::new()) };
    let said = sample(&mut engine, &[job(0, &tokens(1, 5), &sampling)]).remove(0);
    assert_eq!(said.tokens, [40; 3]);
    assert!(said.logp.iter().all(|l| f32::from_bits(*l) == 0.0));
    assert!(said.logp_t1.iter().all(|l| f32::from_bits(*l) < -0.5), "at temperature 1 nothing is banned");
}

#[test]
fn weights_that_are_not_numbers_fail_the_jobs_that_meet_them_and_only_those() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut tiny = Tiny::load("llama");
        let plain = Sampling { banned: vec![7], ..Sampling::plain(1.0, 6, Vec::new()) };
        let clean: Vec<Job> = (0..4).map(|i| job(i, &[1, 2, 3 + i as u32], &plain)).collect();
        let want = sample(&mut tiny.engine(false, &Machine::plain()), &clean);
        let width = tiny.config.width;
        tiny.params.embedding.set_row(7, &vec![bad; width]);
        let poisoned: Vec<Job> = (4..7).map(|i| job(i, &[1, 7, i as u32], &plain)).collect();
        let mut engine = tiny.engine(false, &Machine::plain());
        let jobs = [&poisoned[..1], &clean, &poisoned[1..]].concat();
        let mut desk = Desk::of(&jobs);
        engine.sample(&mut desk).unwrap();
        same(&desk.done.into_values().collect::<Vec<_>>(), &want, "beside poisoned neighbours");
        let message = "a logit is not finite at position 3 of its sequence";
        assert_eq!(desk.failed.into_values().collect::<Vec<_>>(), [message; 3]);
        let groups = [vec![Line::new(&[1, 2], &[3])], vec![Line::new(&[1, 7], &[3, 4])]];
        let error = engine.forward(&batch(&groups, 1.0, &[])).unwrap_err().to_string();
        assert_eq!(error, "a log-probability is not finite at group 1, sequence 0, token 2");
        // A weight that everything passes fails everything, and says so once a job.
        tiny.params.final_norm[3] = bad;
        let mut desk = Desk::of(&jobs);
        tiny.engine(false, &Machine::plain()).sample(&mut desk).unwrap();
        assert_eq!((desk.done.len(), desk.failed.len()), (0, 7));
    }
}
