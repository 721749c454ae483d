//! Which groups may begin, what a step waits for, and what it takes: pure, without threads, clocks or episodes.
//!
//! **Places.** Every group that begins is meant for a place in some step; a step has `batch` of them. A group that another
//! is drawn for gives its place back. A group may begin under version v when fewer than (v + 1 + `max_lag`) · `batch`
//! places are given out, so whatever began under version v or before has at most that many. Step s = v + 1 + `max_lag`
//! must take all of it that is left; the steps before it have taken (s − 1) · `batch` places, so at most `batch` groups
//! are left: they fit, and no token ever waits longer than `max_lag` versions.
//!
//! **Who is taken.** A step takes finished groups in the order in which they began, and waits for an unfinished one only if
//! no later step may take it. A step that can get no more groups takes what there is.
//!
//! Source: admission control, arXiv:2505.24298 (AReaL), there for episodes; here a place is a group's.

use std::collections::BTreeMap;

/// What bounds a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Groups a step; at least 1.
    pub batch: u64,
    /// Published versions that a token may be behind when it is trained on.
    pub max_lag: u64,
    /// Groups that may be under way at a time.
    pub max_running: u64,
    /// Groups that may begin for one step, as a multiple of `batch`, while others are asked for in their place.
    pub max_draws: u64,
    /// Steps of the run: for those behind the last one nothing begins.
    pub steps: u64,
    /// Whether a step waits until everything that may begin has finished, so that after the first `max_lag` steps every
    /// token is as old as it may be.
    pub holds_lag: bool,
}

/// How many groups may begin now. `version` counts the steps done, `accepted` the places that these took and that finished
/// groups hold, `running` the groups under way.
pub fn capacity(bounds: &Bounds, version: u64, accepted: u64, running: u64) -> u64 {
    let steps = bounds.steps.min(version.saturating_add(bounds.max_lag).saturating_add(1));
    let places = steps.saturating_mul(bounds.batch).saturating_sub(accepted.saturating_add(running));
    places.min(bounds.max_running.saturating_sub(running))
}

/// What becomes of a finished group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// A step trains on it.
    Keep,
    /// It holds its place in a step, which goes on without it.
    Drop,
    /// It gives its place back, and another group is drawn.
    DrawMore,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Some of its tokens are still to be sampled.
    Sampling,
    /// It waits for its verdict.
    Judging,
    /// It waits for its step, which trains on it or, if it was dropped, goes on without it.
    Finished,
}

/// A group that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// Version under which it began, and so no younger than its oldest token.
    pub began: u64,
    /// How far it is.
    pub stage: Stage,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Sample on.
    Sample,
    /// Wait for the verdicts that are out: they may complete the step.
    Judge,
    /// The step is complete.
    Take,
}

/// The groups that began and that no step has taken, under one version of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Protocol {
    bounds: Bounds,
    version: u64,
    /// Places given back since the last step.
    rejected: u64,
    /// Nothing is left to begin with.
    is_dry: bool,
    members: BTreeMap<u64, Member>,
    /// Members by stage.
    counts: [u64; 3],
}

impl Protocol {
    /// The protocol under a version, with what is left of the versions before.
    pub fn new(bounds: Bounds, version: u64, left: impl IntoIterator<Item = (u64, Member)>) -> Self {
        let members: BTreeMap<u64, Member> = left.into_iter().collect();
        let mut counts = [0; 3];
        members.values().for_each(|m| counts[m.stage as usize] += 1);
        Protocol { bounds, version, rejected: 0, is_dry: false, members, counts }
    }

    /// The groups, by the order in which they began.
    pub fn members(&self) -> &BTreeMap<u64, Member> {
        &self.members
    }

    /// The version under which groups begin now.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn count(&self, stage: Stage) -> u64 {
        self.counts[stage as usize]
    }

    fn move_to(&mut self, place: u64, stage: Stage) {
        if let Some(member) = self.members.get_mut(&place) {
            self.counts[member.stage as usize] -= 1;
            self.counts[stage as usize] += 1;
            member.stage = stage;
        }
    }

    fn remove(&mut self, place: u64) {
        if let Some(member) = self.members.remove(&place) {
            self.counts[member.stage as usize] -= 1;
        }
    }

    /// Groups that may begin if of those out for a verdict this many give their place back.
    fn free(&self, n_finished: u64, n_running: u64) -> u64 {
        if self.is_dry {
            return 0;
        }
        let drawn = self.rejected + self.members.len() as u64;
        let most = self.bounds.max_draws.saturating_add(self.bounds.max_lag).saturating_mul(self.bounds.batch);
        let accepted = self.version.saturating_mul(self.bounds.batch).saturating_add(n_finished);
        capacity(&self.bounds, self.version, accepted, n_running).min(most.saturating_sub(drawn))
    }

    /// Whether a group may begin.
    pub fn may_begin(&self) -> bool {
        self.free(self.count(Stage::Finished), self.count(Stage::Sampling) + self.count(Stage::Judging)) > 0
    }

    /// Whether one might, depending on the verdicts that are out.
    pub fn may_come_to_begin(&self) -> bool {
        self.free(self.count(Stage::Finished), self.count(Stage::Sampling)) > 0
    }

    /// A group begins; `place` is higher than that of every other.
    pub fn begin(&mut self, place: u64) {
        let member = Member { began: self.version, stage: Stage::Sampling };
        self.counts[Stage::Sampling as usize] += 1;
        self.members.insert(place, member);
    }

    /// There is nothing more to begin with.
    pub fn ran_dry(&mut self) {
        self.is_dry = true;
    }

    /// All of a group is sampled, or, with `false`, more of it is to be sampled after all.
    pub fn sampled(&mut self, place: u64, all: bool) {
        self.move_to(place, if all { Stage::Judging } else { Stage::Sampling });
    }

    /// A group has its verdict.
    pub fn judged(&mut self, place: u64, verdict: Verdict) {
        match verdict {
            Verdict::Keep | Verdict::Drop => self.move_to(place, Stage::Finished),
            Verdict::DrawMore => {
                self.remove(place);
                self.rejected += 1;
            }
        }
    }

    /// Whether no later step may take a group.
    fn is_due(&self, member: &Member) -> bool {
        member.began + self.bounds.max_lag <= self.version
    }

    /// What is to be done next.
    pub fn next(&self) -> Next {
        // Without lag everything is due; with it there are few members to look through.
        let any_due = |stage| self.members.values().any(|m| m.stage == stage && self.is_due(m));
        let due = |stage| self.count(stage) > 0 && (self.bounds.max_lag == 0 || any_due(stage));
        let (finished, judging) = (self.count(Stage::Finished), self.count(Stage::Judging));
        let goes_on = self.count(Stage::Sampling) > 0 || self.may_begin();
        let enough = finished + judging >= self.bounds.batch && !(self.bounds.holds_lag && goes_on);
        if due(Stage::Sampling) || (goes_on && !enough) {
            return Next::Sample;
        }
        let matters = due(Stage::Judging) || finished < self.bounds.batch || self.bounds.holds_lag;
        if judging > 0 && matters { Next::Judge } else { Next::Take }
    }

    /// The groups that the step takes, in the order in which they began; the version after it begins.
    ///
    /// - Holds: takes every group that is due, and `batch` groups unless fewer are finished.
    pub fn take(&mut self) -> Vec<u64> {
        let finished: Vec<(u64, bool)> = self
            .members
            .iter()
            .filter(|(_, m)| m.stage == Stage::Finished)
            .map(|(place, m)| (*place, self.is_due(m)))
            .collect();
        let mut others = (self.bounds.batch as usize).saturating_sub(finished.iter().filter(|(_, due)| *due).count());
        let mut taken = Vec::new();
        for (place, due) in finished {
            if due || others > 0 {
                others -= usize::from(!due);
                taken.push(place);
                self.remove(place);
            }
        }
        self.rejected = 0;
        self.version += 1;
        taken
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
