//! Named faults, and a search through every state that a small stream can reach.

use std::collections::{BTreeMap, HashMap};

use super::*;

fn bounds(batch: u64, max_lag: u64) -> Bounds {
    Bounds { batch, max_lag, max_running: u64::MAX, max_draws: 4, steps: u64::MAX, holds_lag: false }
}

fn member(began: u64, stage: Stage) -> Member {
    Member { began, stage }
}

#[test]
fn i1_capacity_counts_the_places_that_earlier_steps_took() {
    let b = bounds(16, 2);
    assert_eq!(capacity(&b, 10, 160, 0), 48);
    assert_eq!(capacity(&b, 10, 0, 0), 208, "what a resumed run would have that forgot what it accepted");
    for running in 0..=48 {
        assert_eq!(capacity(&b, 10, 160, running), 48 - running);
    }
    assert_eq!(capacity(&b, 10, 160, 60), 0);
    assert_eq!(capacity(&Bounds { max_running: 20, ..b }, 10, 160, 13), 7);
    // Restored from what is left: 16 finished groups wait, 3 run.
    let left = (0..19).map(|i| (i, member(9, if i < 16 { Stage::Finished } else { Stage::Sampling })));
    let protocol = Protocol::new(b, 10, left);
    assert!(protocol.may_begin());
    assert_eq!(protocol.free(16, 3), 48 - 16 - 3);
}

#[test]
fn i2_without_lag_a_whole_step_may_begin_under_every_version() {
    for version in 0..20 {
        assert_eq!(capacity(&bounds(3, 0), version, 3 * version, 0), 3);
        assert_eq!(capacity(&bounds(3, 0), version, 3 * version + 1, 2), 0);
    }
}

#[test]
fn i3_nothing_begins_for_a_step_behind_the_last() {
    let b = Bounds { steps: 10, ..bounds(4, 5) };
    assert_eq!(capacity(&b, 9, 36, 0), 4);
    assert_eq!(capacity(&b, 9, 36, 4), 0);
    assert_eq!(capacity(&b, 7, 28, 0), 12);
    assert_eq!(capacity(&b, 10, 40, 0), 0);
}

#[test]
fn i4_a_full_queue_after_a_resume_is_taken_without_anything_running() {
    let left = (0..12).map(|i| (i, member(1 + i / 4, Stage::Finished)));
    let mut protocol = Protocol::new(bounds(4, 2), 3, left);
    assert!(!protocol.may_begin());
    for taken in [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] {
        assert_eq!(protocol.next(), Next::Take);
        assert_eq!(protocol.take(), taken);
    }
    assert!(protocol.may_begin());
}

#[test]
fn i9_when_there_is_nothing_left_to_begin_the_step_takes_what_there_is() {
    let mut protocol = Protocol::new(bounds(3, 1), 0, []);
    protocol.begin(0);
    protocol.begin(1);
    protocol.ran_dry();
    assert_eq!(protocol.next(), Next::Sample);
    protocol.sampled(0, true);
    protocol.sampled(1, true);
    assert_eq!(protocol.next(), Next::Judge);
    protocol.judged(0, Verdict::Keep);
    protocol.judged(1, Verdict::DrawMore);
    assert_eq!(protocol.next(), Next::Take);
    assert_eq!(protocol.take(), [0]);
    assert_eq!((protocol.next(), protocol.take().len()), (Next::Take, 0));
}

#[test]
fn i10_i12_groups_without_a_place_are_replaced_until_the_limit_and_then_block_nothing() {
    let mut protocol = Protocol::new(Bounds { max_draws: 3, ..bounds(2, 0) }, 0, []);
    let mut begun = 0;
    while protocol.may_begin() {
        protocol.begin(begun);
        protocol.sampled(begun, true);
        protocol.judged(begun, Verdict::DrawMore);
        begun += 1;
    }
    assert_eq!((begun, protocol.next()), (6, Next::Take));
    assert!(protocol.take().is_empty());
    assert!(protocol.may_begin(), "the next step draws anew");
}

#[test]
fn a_step_takes_finished_groups_in_order_and_waits_only_for_what_no_later_step_may_take() {
    let finished = [1, 3, 4].map(|place| (place, member(4, Stage::Finished)));
    let young = (0, member(4, Stage::Sampling));
    let mut protocol = Protocol::new(bounds(2, 2), 5, finished.into_iter().chain([young]));
    assert_eq!(protocol.next(), Next::Take);
    assert_eq!(protocol.clone().take(), [1, 3]);
    // One version later the unfinished one is due.
    protocol.version = 6;
    assert_eq!(protocol.next(), Next::Sample);
    protocol.sampled(0, true);
    assert_eq!(protocol.next(), Next::Judge);
    protocol.judged(0, Verdict::Keep);
    assert_eq!(protocol.take(), [0, 1, 3, 4], "all that are due, were they more than a batch");
}

#[test]
fn lag_that_is_held_is_the_same_at_every_step_once_it_is_there() {
    let b = Bounds { batch: 2, max_lag: 3, max_running: u64::MAX, max_draws: 1, steps: 8, holds_lag: true };
    let mut protocol = Protocol::new(b, 0, []);
    let mut begun = 0;
    for step in 1..=b.steps {
        while protocol.next() != Next::Take {
            protocol.begin(begun);
            protocol.sampled(begun, true);
            protocol.judged(begun, Verdict::Keep);
            begun += 1;
        }
        let began: Vec<u64> = protocol.members().values().take(2).map(|m| m.began).collect();
        assert_eq!(began, [(step - 1).saturating_sub(3); 2], "step {step}");
        protocol.take();
    }
    assert_eq!(begun, 16);
}

/// A small stream with everything that can happen to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    protocol: Protocol,
    /// Tokens left of each group that is being sampled.
    left: BTreeMap<u64, u8>,
    /// Groups that may still be drawn before there are no more.
    supply: u64,
    n_begun: u64,
    /// Times the run may still be stopped.
    stops: u8,
    /// What the last checkpoint holds.
    saved: Option<Box<World>>,
}

impl World {
    fn new(bounds: Bounds, supply: u64, stops: u8) -> World {
        let protocol = Protocol::new(bounds, 0, []);
        let mut world = World { protocol, left: BTreeMap::new(), supply, n_begun: 0, stops, saved: None };
        world.save();
        world
    }

    fn save(&mut self) {
        self.saved = None;
        if self.stops > 0 {
            self.saved = Some(Box::new(self.clone()));
        }
    }

    fn is_over(&self) -> bool {
        self.protocol.version() == self.protocol.bounds.steps
    }

    fn with(&self, change: impl FnOnce(&mut World)) -> World {
        let mut next = self.clone();
        change(&mut next);
        next.check();
        next
    }

    /// Everything that may happen next, in whatever order threads and graders have it.
    fn successors(&self) -> Vec<World> {
        let mut all = Vec::new();
        if self.stops > 0 && self.saved.is_some() {
            let mut back = *self.saved.clone().unwrap();
            back.stops = self.stops - 1;
            back.save();
            all.push(back);
        }
        if self.protocol.next() == Next::Take {
            all.push(self.with(World::take));
        }
        if self.protocol.may_begin() {
            if self.supply == 0 {
                all.push(self.with(|w| w.protocol.ran_dry()));
            } else {
                for tokens in [1, 2] {
                    all.push(self.with(|w| w.begin(tokens)));
                }
            }
        }
        for (place, member) in self.protocol.members() {
            match member.stage {
                Stage::Sampling => {
                    // A token; and a failure, which ends it at once.
                    all.push(self.with(|w| w.sample(*place, 1)));
                    if self.left[place] > 1 {
                        all.push(self.with(|w| w.sample(*place, u8::MAX)));
                    }
                }
                Stage::Judging => {
                    for verdict in [Verdict::Keep, Verdict::Drop, Verdict::DrawMore] {
                        all.push(self.with(|w| w.protocol.judged(*place, verdict)));
                    }
                }
                Stage::Finished => {}
            }
        }
        all
    }

    fn begin(&mut self, tokens: u8) {
        self.protocol.begin(self.n_begun);
        self.left.insert(self.n_begun, tokens);
        self.n_begun += 1;
        self.supply -= 1;
    }

    fn sample(&mut self, place: u64, tokens: u8) {
        let left = self.left[&place].saturating_sub(tokens);
        self.left.insert(place, left);
        if left == 0 {
            self.left.remove(&place);
            self.protocol.sampled(place, true);
        }
    }

    /// What is being sampled is set aside, the step is trained on, and the state is saved.
    fn take(&mut self) {
        let (bounds, version) = (self.protocol.bounds, self.protocol.version());
        let before = self.protocol.members().clone();
        let goes_on = self.protocol.may_begin() || before.values().any(|m| m.stage == Stage::Sampling);
        let taken = self.protocol.take();
        for place in &taken {
            let lag = version - before[place].began;
            assert!(lag <= bounds.max_lag, "a token is {lag} versions old: {self:?}");
        }
        let n_finished = before.values().filter(|m| m.stage == Stage::Finished).count();
        let n_left = self.protocol.count(Stage::Finished) as usize;
        assert_eq!(taken.len() + n_left, n_finished, "a finished group is lost: {self:?}");
        assert!(taken.len() as u64 <= bounds.batch, "{taken:?}: {self:?}");
        assert!(taken.len() as u64 == bounds.batch || !goes_on, "a step went short without need: {self:?}");
        assert!(taken.is_sorted());
        if self.is_over() {
            assert!(self.protocol.members().is_empty(), "no step takes what is left: {self:?}");
        }
        self.save();
    }

    fn check(&self) {
        let Protocol { bounds, members, version, .. } = &self.protocol;
        let running = members.values().filter(|m| m.stage != Stage::Finished).count() as u64;
        assert!(running <= bounds.max_running, "{self:?}");
        let places = (version + bounds.max_lag + 1).min(bounds.steps) * bounds.batch;
        assert!(version * bounds.batch + members.len() as u64 <= places, "{self:?}");
        let late = members.values().any(|m| m.began + bounds.max_lag < *version);
        assert!(!late || self.is_over(), "a group was left that no step may take any more: {self:?}");
    }
}

/// Whether a state is on the path that is being followed, or done with: every path from it ends.
#[derive(PartialEq, Eq)]
enum Seen {
    Open,
    Ends,
}

/// Follows every path; a state that comes back to itself, or goes nowhere before the run is over, never ends.
fn explore(start: World) -> usize {
    let mut seen: HashMap<World, Seen> = HashMap::new();
    let mut path: Vec<(World, Vec<World>)> = Vec::new();
    let mut next = Some(start);
    while let Some(world) = next.take() {
        let successors = if world.is_over() { Vec::new() } else { world.successors() };
        assert!(world.is_over() || !successors.is_empty(), "nothing can happen any more: {world:?}");
        seen.insert(world.clone(), Seen::Open);
        path.push((world, successors));
        while let Some((world, rest)) = path.last_mut() {
            match rest.pop() {
                None => {
                    seen.insert(world.clone(), Seen::Ends);
                    path.pop();
                }
                Some(successor) => match seen.get(&successor) {
                    Some(Seen::Ends) => {}
                    Some(Seen::Open) => panic!("the run can go round for ever: {successor:?}"),
                    None => {
                        next = Some(successor);
                        break;
                    }
                },
            }
        }
    }
    seen.len()
}

/// From every state that can be reached the run ends, and on the way no token is older than `max_lag`, nothing finished is
/// lost and no bound is passed: with groups of different lengths, failures, verdicts of every kind in every order, data
/// that runs out, and stops at any point.
#[test]
fn i5_i13_from_every_reachable_state_the_run_ends_within_its_bounds() {
    let mut n_states = 0;
    for (batch, max_lag, steps) in [(1, 0, 3), (1, 1, 3), (1, 2, 3), (2, 0, 2), (2, 1, 2), (1, 3, 2)] {
        for max_running in [1, 2, 4] {
            for max_draws in [1, 2] {
                for supply in [1, 3, 20] {
                    for holds_lag in [false, true] {
                        let bounds = Bounds { batch, max_lag, max_running, max_draws, steps, holds_lag };
                        n_states += explore(World::new(bounds, supply, u8::from(!holds_lag)));
                    }
                }
            }
        }
    }
    println!("{n_states} states");
    assert!(n_states > 10_000, "{n_states} states are too few to mean anything");
}
