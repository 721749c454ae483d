//! From the sampler's record through the loss to moved weights: what an update of a run does.

use episode::{Role, Sequence};
use loss::{Loss, PolicyGradient, Reduction, Signal, Term};
use policy::{Job, Sampler, Sampling, UpdateBatch, UpdateOutcome, update_batch};
use surefoot_train::Engine;

use crate::support::*;

/// Three groups of four as the sampler recorded them, with advantages that are centred in each group.
fn recorded(engine: &mut Engine, sampling: &Sampling) -> Vec<Vec<(Sequence, Signal)>> {
    let jobs: Vec<Job> = (0..12).map(|i| job(i, &tokens(1 + i / 4, 20 + 10 * (i as usize / 4)), sampling)).collect();
    let mut keep = Keep { jobs: jobs.clone(), got: vec![None; jobs.len()] };
    engine.sample(&mut keep).unwrap();
    let one = |(job, got): (&Job, Option<policy::Sampled>)| {
        let got = got.unwrap();
        let mut sequence = Sequence::new();
        sequence.append_context(Role::User, &job.prompt);
        sequence.append_sampled(&got.tokens, &got.logp, &got.logp_t1, got.version).unwrap();
        let n = sequence.len();
        let advantage = [1.5, -0.5, -0.5, -0.5][job.id as usize % 4];
        (sequence, Signal { advantage: vec![advantage; n], weight: vec![1.0; n], ..Signal::default() })
    };
    let all: Vec<(Sequence, Signal)> = jobs.iter().zip(keep.got).map(one).collect();
    all.chunks(4).map(<[_]>::to_vec).collect()
}

/// Keeps results as they come, floats and all.
struct Keep {
    jobs: Vec<Job>,
    got: Vec<Option<policy::Sampled>>,
}

impl policy::Jobs for Keep {
    fn next(&mut self) -> Option<Job> {
        self.jobs.pop()
    }

    fn done(&mut self, got: policy::Sampled) {
        let place = got.id as usize;
        self.got[place] = Some(got);
    }

    fn failed(&mut self, id: u64, error: policy::PolicyError) {
        panic!("job {id}: {error}");
    }
}

fn sampling() -> Sampling {
    Sampling { banned: vec![3, 17], stop_tokens: vec![1, 2, 5], ..Sampling::plain(0.8, 14, Vec::new()) }
}

fn update(engine: &mut Engine, data: &[Vec<(Sequence, Signal)>], reduction: Reduction) -> UpdateOutcome {
    let groups = data.iter().map(|g| g.iter().map(|(s, v)| (s, v)).collect()).collect();
    let batch = UpdateBatch { groups, temperature: 0.8, banned: &[3, 17], keep_tokens: true };
    let term = PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None };
    let mut loss = Loss::new(Term::PolicyGradient(term), reduction);
    loss.entropy_coefficient = 0.01;
    update_batch(engine, &batch, &loss, Some(&step())).unwrap()
}

#[test]
fn c13_the_first_update_has_ratio_one_and_mismatch_zero_exactly_and_the_second_does_not() {
    in_both_precisions(|tiny, adapted, what| {
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let data = recorded(&mut engine, &sampling());
        let first = update(&mut engine, &data, Reduction::TokenMean).metrics;
        assert_eq!((first.ratio, first.log_ratio_max), (Some(1.0), Some(0.0)), "{what}");
        let mismatch = (first.mismatch, first.mismatch_max, first.mismatch_kl);
        assert_eq!(mismatch, (Some(0.0), Some(0.0), Some(0.0)), "{what}");
        assert!(first.dlogp_norm > 0.0, "{what}");
        let second = update(&mut engine, &data, Reduction::TokenMean).metrics;
        assert!(second.log_ratio_max > Some(1e-4), "{what}: the weights moved");
    });
}

#[test]
fn a1_how_a_batch_is_cut_into_micro_batches_changes_no_bit_of_an_update() {
    everywhere(|tiny, adapted, what| {
        for reduction in [Reduction::TokenMean, Reduction::SequenceMean, Reduction::Sum] {
            let run = |rows: usize| {
                let mut engine = tiny.engine(adapted, &Machine::new(|s| s.micro_batch_rows = rows));
                let data = recorded(&mut engine, &sampling());
                let outcomes: Vec<_> = (0..2).map(|_| update(&mut engine, &data, reduction)).collect();
                (outcomes, saved(&engine))
            };
            let want = run(1 << 20);
            for rows in [1, 120] {
                let got = run(rows);
                assert_eq!(got.0, want.0, "{what}: what was measured, micro-batches of {rows}");
                assert_eq!(got.1, want.1, "{what}: the weights, micro-batches of {rows}");
            }
        }
    });
}

#[test]
fn c17_a_corrupted_record_moves_ratio_and_mismatch_and_not_what_the_trainer_computes() {
    everywhere(|tiny, adapted, what| {
        let clean = recorded(&mut tiny.engine(adapted, &Machine::plain()), &sampling());
        let want = update(&mut tiny.engine(adapted, &Machine::plain()), &clean, Reduction::TokenMean);
        for (group, sample) in [(0, 0), (1, 3), (2, 1)] {
            let mut data = clean.clone();
            let old = &clean[group][sample].0;
            let at = old.sampled().iter().position(|s| *s).unwrap();
            let mut logp = old.logp()[at..].to_vec();
            // The smallest change there is.
            logp[0] = f32::from_bits(logp[0].to_bits() ^ 1);
            let mut corrupt = Sequence::new();
            corrupt.append_context(Role::User, &old.tokens()[..at]);
            corrupt.append_sampled(&old.tokens()[at..], &logp, &old.logp_t1()[at..], 0).unwrap();
            data[group][sample].0 = corrupt;
            let got = update(&mut tiny.engine(adapted, &Machine::plain()), &data, Reduction::TokenMean);
            let m = &got.metrics;
            assert!(m.ratio != Some(1.0) && m.mismatch_max > Some(0.0) && m.mismatch_kl > Some(0.0), "{what}: {m:?}");
            let logp = |o: &UpdateOutcome| -> Vec<Vec<u32>> {
                o.tokens.iter().flatten().map(|t| bits(&t.as_ref().unwrap().logp)).collect()
            };
            assert_eq!(logp(&got), logp(&want), "{what}: the trainer never reads a recorded value");
        }
    });
}
