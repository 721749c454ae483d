//! Jobs that are set aside and taken up again say what they would have said.

use std::collections::BTreeMap;
use std::sync::Arc;

use episode::StopReason;
use policy::{Job, Jobs, PolicyError, Sampled, Sampler, Sampling};
use surefoot_train::Engine;

use crate::stops;
use crate::support::*;

/// Sets everything aside after every few positions, and goes on with it.
struct Rounds {
    desk: Desk,
    pause_every: usize,
    n_positions: usize,
    /// What every job has said so far.
    said: BTreeMap<u64, Sampled>,
    aside: Vec<u64>,
}

impl Jobs for Rounds {
    fn next(&mut self) -> Option<Job> {
        self.desk.next()
    }

    fn done(&mut self, got: Sampled) {
        self.take(got);
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        self.desk.failed(id, error);
    }

    fn progress(&mut self, _: usize) {
        self.n_positions += 1;
    }

    fn paused(&mut self) -> bool {
        self.n_positions >= self.pause_every
    }

    fn set_aside(&mut self, part: Sampled) {
        self.aside.push(part.id);
        self.take(part);
    }
}

impl Rounds {
    fn take(&mut self, got: Sampled) {
        let Sampled { id, tokens, logp, logp_t1, stop, version } = got;
        let none = Sampled { id, tokens: vec![], logp: vec![], logp_t1: vec![], stop, version };
        let all = self.said.entry(id).or_insert(none);
        all.tokens.extend(tokens);
        all.logp.extend(logp);
        all.logp_t1.extend(logp_t1);
        all.stop = stop;
    }
}

/// Samples with pauses; gives the results in the order of the jobs, and how often one was set aside in the middle.
fn in_rounds(engine: &mut Engine, jobs: &[Job], pause_every: usize) -> (Vec<Said>, usize) {
    let (desk, said, aside) = (Desk::of(jobs), BTreeMap::new(), Vec::new());
    let mut rounds = Rounds { desk, pause_every, n_positions: 0, said, aside };
    let by_id: BTreeMap<u64, &Job> = jobs.iter().map(|j| (j.id, j)).collect();
    let mut n_split = 0;
    loop {
        engine.sample(&mut rounds).unwrap();
        if rounds.aside.is_empty() && rounds.desk.waiting.is_empty() {
            break;
        }
        rounds.n_positions = 0;
        for id in std::mem::take(&mut rounds.aside).into_iter().rev() {
            let said = &rounds.said[&id].tokens;
            n_split += usize::from(!said.is_empty());
            let prompt = [&by_id[&id].prompt[..], said].concat().into();
            let again = Job { prompt, begun: said.len(), ..by_id[&id].clone() };
            rounds.desk.waiting.push_front(again);
        }
    }
    assert_eq!(rounds.desk.failed, BTreeMap::new());
    let said = |j: &Job| {
        let Sampled { tokens, logp, logp_t1, stop, .. } = rounds.said[&j.id].clone();
        Said { tokens, logp: bits(&logp), logp_t1: bits(&logp_t1), stop }
    };
    (jobs.iter().map(said).collect(), n_split)
}

#[test]
fn jobs_set_aside_at_any_position_have_the_bits_of_jobs_that_were_not() {
    everywhere(|tiny, adapted, what| {
        let jobs = crowd();
        let want = sample(&mut tiny.engine(adapted, &Machine::plain()), &jobs);
        for (pause_every, batch) in [(1, 64), (2, 5), (5, 7)] {
            // Room for all prompts at once: a prompt that is not read before it is set aside is begun anew.
            let machine = Machine::new(|s| (s.batch, s.prompt_rows) = (batch, 8192));
            let (got, n_split) = in_rounds(&mut tiny.engine(adapted, &machine), &jobs, pause_every);
            same(&got, &want, &format!("{what}, set aside every {pause_every} positions of {batch} rows"));
            assert!(n_split > 20, "{what}: {n_split} jobs were set aside in the middle");
        }
    });
}

#[test]
fn a_stop_string_that_begins_before_a_job_is_set_aside_still_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = stops::engine(Arc::new(stops::tokenizer(folder.path())));
    let stop_strings = vec!["cab".to_owned(), "dbfe".to_owned(), "ac".to_owned()];
    let sampling = Sampling { stop_strings, ..Sampling::plain(1.0, 40, Vec::new()) };
    let jobs: Vec<Job> = (0..60).map(|i| job(i, &tokens(1 + i % 3, 6), &sampling)).collect();
    let want = sample(&mut engine, &jobs);
    assert!(want.iter().filter(|s| s.stop == StopReason::Stop).count() > 10);
    let (got, _) = in_rounds(&mut engine, &jobs, 1);
    same(&got, &want, "set aside after every token");
}

#[test]
fn nothing_is_left_in_the_cache_when_jobs_are_set_aside() {
    let tiny = Tiny::load("llama_linear");
    // A cache for one job at a time: a page that was kept back would let none in.
    let machine = Machine::new(|s| (s.batch, s.cache_mb, s.prompt_rows) = (9, 1, 512));
    let mut engine = tiny.engine(false, &machine);
    let plain = Sampling::plain(1.0, 60, Vec::new());
    let jobs: Vec<Job> = (0..9).map(|i| job(i, &tokens(i, 60), &plain)).collect();
    let want = sample(&mut tiny.engine(false, &Machine::plain()), &jobs);
    let (got, n_split) = in_rounds(&mut engine, &jobs, 3);
    same(&got, &want, "with a cache of one megabyte");
    assert!(n_split > 100, "{n_split}");
}
