//! Questions to the scripted policy.

use episode::{Cause, EpisodeKey, Message, Outcome, Role, Stage, StopReason, Task};
use serde_json::Value;

use super::*;
use crate::fake::Scripted;
use crate::{Keep, Policy};

fn policy() -> Scripted {
    Scripted::new(Box::new(|_, _| vec![1]))
}

pub(crate) fn task() -> Task {
    Task::new("sums", vec![Message::new(Role::User, "1+1")], Value::from(2), Value::Null)
}

pub(crate) fn graded() -> Outcome {
    Outcome::Graded { reward: 1.0, parts: vec![] }
}

pub(crate) fn episode(sequences: Vec<Sequence>, outcome: Outcome) -> Episode {
    let key = EpisodeKey { step: 0, task: task().id, sample: 0 };
    Episode {
        key,
        sequences,
        messages: vec![],
        outcome,
        stop: StopReason::Eos,
        turn_rewards: Vec::new(),
        conduct: episode::Conduct::default(),
    }
}

fn failed() -> Outcome {
    Outcome::Failed { stage: Stage::Grader, cause: Cause::new("deadline", "30 s") }
}

/// A context of `n` tokens, then `said` sampled ones, an observation of one, and one more sampled token.
fn sequence(n: usize, said: usize) -> Sequence {
    let mut s = Sequence::new();
    s.append_context(Role::User, &vec![7; n]);
    let logp = vec![Scripted::LOGP; said];
    s.append_sampled(&vec![3; said], &logp, &logp, 0).unwrap();
    s.append_context(Role::Tool, &[8]);
    s.append_sampled(&[4], &[Scripted::LOGP], &[Scripted::LOGP], 0).unwrap();
    s
}

fn context_alone() -> Sequence {
    let mut s = Sequence::new();
    s.append_context(Role::User, &[1, 2, 3]);
    s
}

fn group(episodes: Vec<Episode>) -> Group {
    Group { task: task(), episodes }
}

fn ask(policy: &mut Scripted, ask: &Ask<'_>, groups: &[Group]) -> Vec<Vec<Vec<TokenValues>>> {
    values(policy, ask, groups, 1.0, &[1]).unwrap()
}

/// One group of one episode of one sequence.
fn one() -> [Group; 1] {
    [group(vec![episode(vec![sequence(2, 1)], graded())])]
}

#[test]
fn values_keep_the_place_of_what_is_not_computed() {
    let groups = [
        group(vec![episode(vec![sequence(2, 1)], failed())]),
        group(vec![episode(vec![context_alone(), sequence(2, 1)], graded())]),
    ];
    let want = Want { value: ValueAt::Before, top_k: 1 };
    let got = ask(&mut policy(), &Ask { want, ..Ask::plain(Under::Now) }, &groups);
    let nothing = |n: usize| TokenValues {
        value: vec![0.0; n],
        top: Some(Top { k: 1, ids: vec![0; n], logp: vec![0.0; n] }),
        ..TokenValues::zeros(n)
    };
    assert_eq!(got[0][0], [nothing(5)]);
    assert_eq!(got[1][0][0], nothing(3));
    let found = &got[1][0][1];
    assert_eq!(found.logp, [0.0, 0.0, Scripted::LOGP, 0.0, Scripted::LOGP]);
    assert_eq!(found.entropy, [0.0, 0.0, Scripted::ENTROPY, 0.0, Scripted::ENTROPY]);
    assert_eq!(found.value, [0.0, 0.0, Scripted::value_after(2), 0.0, Scripted::value_after(4)]);
    let top = found.top.as_ref().unwrap();
    let (ids, logp) = (&top.ids, &top.logp);
    assert_eq!((ids[2], ids[4], logp[2]), (0, 0, Scripted::logp_of(0)));
}

#[test]
fn groups_that_are_not_asked_about_have_no_answer_and_cost_nothing() {
    let groups = [one(), one(), one()].concat();
    let mut policy = policy();
    let about = [false, true, false];
    let got = ask(&mut policy, &Ask { about: Some(&about), ..Ask::plain(Under::Now) }, &groups);
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(got[1][0][0].logp[2], Scripted::LOGP);
}

#[test]
fn the_most_likely_tokens_leave_out_what_is_banned() {
    let want = Want { value: ValueAt::After, top_k: 3 };
    let got = ask(&mut policy(), &Ask { want, ..Ask::plain(Under::Now) }, &one()).remove(0).remove(0).remove(0);
    let top = got.top.unwrap();
    assert_eq!((top.k, &top.ids[6..9]), (3, &[0, 2, 3][..]));
    assert_eq!(top.logp[6..9], [0, 2, 3].map(Scripted::logp_of));
    assert_eq!(got.value, [0.0, 0.0, Scripted::value_after(3), 0.0, Scripted::value_after(5)]);
}

#[test]
fn named_tokens_are_those_of_the_values_at_hand() {
    let mut policy = policy();
    let want = Want { value: ValueAt::Nowhere, top_k: 2 };
    let now = ask(&mut policy, &Ask { want, ..Ask::plain(Under::Now) }, &one());
    policy.drift = -0.5;
    let got = ask(&mut policy, &Ask { named: Some(&now), ..Ask::plain(Under::Now) }, &one()).remove(0).remove(0);
    let (before, after) = (now[0][0][0].top.as_ref().unwrap(), got[0].top.as_ref().unwrap());
    assert_eq!(before.ids, after.ids);
    assert_eq!(after.logp[4..6], [before.logp[4] - 0.5, before.logp[5] - 0.5]);
    assert_eq!(policy.wants[1], Want::default());
}

#[test]
fn l7_a_teacher_reads_the_sampled_tokens_themselves_behind_another_context() {
    let groups =
        [group(vec![episode(vec![sequence(2, 2)], graded()), episode(vec![sequence(2, 1), sequence(3, 1)], graded())])];
    let mut policy = policy();
    let want = Want { value: ValueAt::Before, top_k: 0 };
    let now = Want { top_k: 2, ..Want::default() };
    let now = ask(&mut policy, &Ask { want: now, ..Ask::plain(Under::Now) }, &groups);
    for length in [1, 2, 9] {
        // Only the first and the last sequence are asked about.
        let context = Some(vec![6; length]);
        let contexts = vec![vec![vec![context.clone()], vec![None, context]]];
        let asked = Ask { want, contexts: Some(&contexts), named: Some(&now), ..Ask::plain(Under::Now) };
        let got = ask(&mut policy, &asked, &groups).remove(0);
        let value = Scripted::value_after;
        assert_eq!(got[0][0].logp, [0.0, 0.0, Scripted::LOGP, Scripted::LOGP, 0.0, Scripted::LOGP]);
        assert_eq!(got[0][0].value, [0.0, 0.0, value(length), value(length + 1), 0.0, value(length + 3)]);
        assert_eq!(got[1][0], TokenValues { value: vec![0.0; 5], ..TokenValues::zeros(5) });
        assert_eq!(got[1][1].value, [0.0, 0.0, 0.0, value(length), 0.0, value(length + 2)]);
        let (top, named) = (got[1][1].top.as_ref().unwrap(), now[0][1][1].top.as_ref().unwrap());
        for t in [3, 5] {
            assert_eq!(top.ids[2 * t..2 * t + 2], named.ids[2 * t..2 * t + 2]);
            assert_eq!(top.logp[2 * t..2 * t + 2], named.logp[2 * t..2 * t + 2]);
        }
        assert_eq!(top.ids.len(), 12);
    }
}

#[test]
fn a_slot_answers_for_the_weights_it_kept() {
    let mut policy = policy();
    let kept = |policy: &mut Scripted| {
        ask(policy, &Ask::plain(Under::Kept(Slot::Teacher)), &one())[0][0][0].logp[2] - Scripted::LOGP
    };
    let empty = values(&mut policy, &Ask::plain(Under::Kept(Slot::Teacher)), &one(), 1.0, &[]).unwrap_err();
    assert_eq!(empty.to_string(), "nothing was kept as `teacher`");
    assert!(policy.keep(Slot::Teacher, Keep::Blend(0.5)).is_err(), "there is nothing to blend into");
    policy.keep(Slot::Teacher, Keep::Now).unwrap();
    policy.drift = 1.0;
    assert_eq!(kept(&mut policy), 0.0);
    policy.keep(Slot::Teacher, Keep::Blend(0.25)).unwrap();
    policy.keep(Slot::Teacher, Keep::Blend(0.5)).unwrap();
    assert_eq!(kept(&mut policy), 0.625);
    policy.learner().keep(Slot::Teacher, Keep::Now).unwrap();
    assert_eq!(kept(&mut policy), 1.0);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let refused = |asked: &Ask<'_>, groups: &[Group], want: &str| {
        assert_eq!(values(&mut policy(), asked, groups, 1.0, &[]).unwrap_err().to_string(), want);
    };
    let contexts = vec![vec![vec![Some(Vec::new())]]];
    let no_prompt = "a sequence needs at least 1 token before the first one sampled, got 0";
    refused(&Ask { contexts: Some(&contexts), ..Ask::plain(Under::Now) }, &one(), no_prompt);
    let named = [vec![vec![TokenValues::zeros(5)]]];
    let missing = "no tokens are named for sequence 0 of episode 0 of group 0";
    refused(&Ask { named: Some(&named), ..Ask::plain(Under::Now) }, &one(), missing);
    let short = Top { k: 2, ids: vec![0; 8], logp: vec![0.0; 8] };
    let named = [vec![vec![TokenValues { top: Some(short), ..TokenValues::zeros(5) }]]];
    let length = "8 tokens are named for sequence 0 of episode 0 of group 0, needed 2 for each of 5";
    refused(&Ask { named: Some(&named), ..Ask::plain(Under::Now) }, &one(), length);
}
