//! What single algorithms promise of their own.

use crate::shared::{advantages, answer, answered, episode, failed, graded, group, settings, signals, values};
use episode::{Group, Message, Outcome, Part, Role, StopReason};
use loss::{Old, Pair, Select};
use surefoot_algo::{Admission, AlgoError, Answers, Dropped, Reference, Request, Settings, TeacherRule, Why};

fn weights(text: &str, groups: &[Group]) -> Vec<Vec<Option<f32>>> {
    let got = answered(text, groups);
    let first = |e: &Option<Vec<loss::Signal>>| e.as_ref().map(|s| s[0].weight[2]);
    got.groups.iter().map(|g| g.episodes.iter().map(first).collect()).collect()
}

#[test]
fn dapo_draws_more_until_a_group_has_something_to_compare() {
    let dapo = settings("kind = 'dapo'");
    let dapo = dapo.algorithm();
    assert_eq!(dapo.max_draws(), 10);
    assert_eq!(dapo.admit(&group("a", &[1.0, 0.0, 1.0])), Admission::Keep);
    for rewards in [&[1.0, 1.0][..], &[0.0, 0.0, 0.0]] {
        assert_eq!(dapo.admit(&group("a", rewards)), Admission::DrawMore(Why::NoSpread));
    }
    // The over-long penalty makes no task worth comparing that is solved by all.
    let mut long = group("a", &[1.0, 1.0]);
    long.episodes[1] = episode(&long.task, 1, 9, graded(1.0));
    let short = settings("kind = 'dapo'\noverlong = { limit = 8, buffer = 4 }");
    assert_eq!(short.algorithm().admit(&long), Admission::DrawMore(Why::NoSpread));
    let mut one = group("a", &[1.0, 0.0]);
    one.episodes[1].outcome = failed();
    assert!(matches!(dapo.admit(&one), Admission::DrawMore(Why::TooFewGraded { needed: 2, got: 1, of: 2 })));
    assert_eq!(settings("kind = 'grpo'").algorithm().max_draws(), 4);
}

#[test]
fn d8_an_over_long_response_pays_by_its_own_length() {
    let mut one = group("a", &[1.0; 5]);
    // Limit 10, buffer 4: nothing up to 6, then a quarter a token, all of it from 10 on.
    for (e, n) in [3, 6, 7, 10, 30].into_iter().enumerate() {
        one.episodes[e] = episode(&one.task, e as u32, n, graded(1.0));
    }
    let got = signals("kind = 'reinforce'\noverlong = { limit = 10, buffer = 4, factor = 2 }", &[one]).unwrap();
    assert_eq!(advantages(&got, 0), [1.0, 1.0, 0.5, -1.0, -1.0].map(Some));
    assert_eq!(got.groups[0].stats.reward_mean, Some(1.0), "statistics show what was graded");
}

#[test]
fn max_rl_refuses_negative_rewards_and_knows_a_task_that_is_never_solved() {
    let got = signals("kind = 'max_rl'", &[group("a", &[0.0; 3])]).unwrap();
    assert_eq!(advantages(&got, 0), [Some(0.0); 3]);
    let groups = [group("a", &[1.0, 0.0]), group("b", &[0.0, -0.5])];
    let got = signals("kind = 'max_rl'", &groups).unwrap_err();
    let want = format!("reward of episode 1 of task `{}` is -0.5, needed at least 0 with `max_rl`", groups[1].task.id);
    assert_eq!(got.to_string(), want);
}

#[test]
fn raft_learns_what_earned_its_reward_and_counts_nothing_else() {
    let groups = [group("a", &[1.0, 0.0, 0.75]), group("b", &[0.5])];
    assert_eq!(weights("kind = 'raft'", &groups), [vec![Some(1.0), None, None], vec![None]]);
    let low = "kind = 'raft'\nraft.threshold = 0.75";
    assert_eq!(weights(low, &groups), [vec![Some(1.0), None, Some(1.0)], vec![None]]);
    let got = signals("kind = 'raft'", &groups).unwrap();
    let below = |group, episode| Dropped { group, episode: Some(episode), why: Why::BelowThreshold };
    assert_eq!(got.dropped, [below(0, 1), below(0, 2), below(1, 0)]);
    assert_eq!((got.groups[0].has_signal, got.groups[1].has_signal), (true, false));
    assert_eq!(got.batch(&groups, 0..2)[0].len(), 1);
    // Its own attempts keep what was recorded of them, given answers have nothing.
    assert_eq!(got.groups[0].episodes[0].as_ref().unwrap()[0].old, Old::Recorded);
    let mut given = groups.clone();
    let mut sequence = episode::Sequence::new();
    sequence.append_context(Role::User, &[7]);
    sequence.append_sampled(&[3, 4], &[0.0; 2], &[0.0; 2], 0).unwrap();
    given[0].episodes[0].sequences = vec![sequence];
    let got = signals("kind = 'raft'", &given).unwrap();
    assert_eq!(got.groups[0].episodes[0].as_ref().unwrap()[0].old, Old::Given);
}

#[test]
fn pairs_are_made_of_the_best_and_the_worst_and_the_others_are_nowhere() {
    for kind in ["dpo", "reward_model"] {
        let groups = [group("a", &[0.5, 1.0, 0.0]), group("b", &[1.0, 1.0]), group("c", &[1.0, 0.0])];
        let text = format!("kind = '{kind}'");
        let got = answered(&text, &groups);
        let pair = |g: usize| -> Vec<Option<Pair>> {
            got.groups[g].episodes.iter().map(|e| e.as_ref().and_then(|s| s[0].pair)).collect()
        };
        let side = |chosen| Some(Pair { index: 0, chosen });
        assert_eq!(pair(0), [None, side(true), side(false)]);
        assert_eq!((pair(1), pair(2)), (vec![None, None], vec![side(true), side(false)]));
        let unpaired = Dropped { group: 0, episode: Some(0), why: Why::Unpaired };
        assert_eq!(got.dropped, [unpaired, Dropped { group: 1, episode: None, why: Why::NoSpread }]);
        let algorithm = settings(&text);
        assert_eq!(groups.each_ref().map(|g| algorithm.algorithm().asks_about(g)), [true, false, true]);
    }
    let dpo = settings("kind = 'dpo'");
    assert_eq!(dpo.algorithm().reference(), Some(Reference::Frozen));
    // A group that was not asked about has no answer, and needs none.
    let groups = [group("a", &[1.0, 1.0]), group("b", &[1.0, 0.0])];
    let (_, mut answers) = answer(dpo.algorithm(), &groups);
    answers.reference.as_mut().unwrap()[0].clear();
    let got = dpo.algorithm().signals(&groups, &answers).unwrap();
    assert_eq!(got.groups.iter().map(|g| g.has_signal).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn distillation_is_worth_what_the_teacher_thinks_more_of() {
    let groups = [group("a", &[0.0, 5.0])];
    // The teacher finds the first token a quarter less likely, in nats.
    let got = answered("kind = 'distill'\ncoefficient = 2", &groups);
    assert_eq!(advantages(&got, 0), [Some(-0.5); 2]);
    // π_old comes from the pass when there was one.
    let with = "kind = 'distill'\ncorrection.rule = 'token_tis'";
    let (_, answers) = answer(settings(with).algorithm(), &groups);
    let old = answers.now_of((0, 0, 0)).unwrap().logp[2];
    let got = answered(with, &groups);
    assert!((advantages(&got, 0)[0].unwrap() - (-0.5 - old)).abs() < 1e-6 && old != -0.25);
    let teacher = settings("kind = 'distill'\nteacher = 'larger'").algorithm().teacher();
    assert_eq!(teacher, Some(TeacherRule::Model("larger".to_owned())));
    let got = signals("kind = 'distill'", &groups).unwrap_err();
    assert!(matches!(got, AlgoError::Answer { request: "teacher", .. }), "{got}");
}

/// What the teacher is to read, as text, by episode.
fn contexts(text: &str, groups: &[Group]) -> Vec<Vec<Option<String>>> {
    let settings = settings(text);
    let (requests, _) = answer(settings.algorithm(), groups);
    let asked = requests.into_iter().find_map(|r| match r {
        Request::Teacher(asked) => asked.contexts,
        _ => None,
    });
    let said = |m: Vec<Message>| m.into_iter().map(|m| m.content).collect::<Vec<_>>().join("|");
    let group = |g: Vec<Option<Vec<Message>>>| g.into_iter().map(|c| c.map(said)).collect();
    asked.into_iter().flatten().map(group).collect()
}

#[test]
fn sdpo_shows_another_success_or_else_feedback_and_never_the_attempt_itself() {
    let mut groups =
        [group("ask", &[0.0, 1.0, 1.0, 0.0]), group("other", &[0.0, 1.0, 0.0]), group("none", &[0.0, 0.0])];
    let said = |text: &str| Part { feedback: Some(text.to_owned()), ..Part::new("unit", 0.0, 1.0) };
    groups[0].episodes[0].outcome = Outcome::Graded { reward: 0.0, parts: vec![said("not needed")] };
    groups[1].episodes[1].outcome = Outcome::Graded { reward: 1.0, parts: vec![said(" well done "), said("but slow")] };
    groups[1].episodes[2].outcome = failed();
    let got = contexts("kind = 'sdpo'", &groups);
    let shown = |n: usize| {
        format!("ask\n\nHere is a correct solution:\n\nreply {n}\n\nNow solve the original problem correctly.")
    };
    assert_eq!(got[0], [1, 2, 1, 1].map(|n| Some(shown(n))));
    let told = "other\n\nAn earlier attempt was answered with:\n\nwell done\n\nbut slow\n\nNow solve the original problem correctly.";
    assert_eq!(got[1][1].as_deref(), Some(told), "its own success is not shown to it");
    assert!(got[1][0].as_deref().is_some_and(|c| c.contains("reply 1")));
    assert_eq!((got[1][2].clone(), got[2].clone()), (None, vec![None, None]));

    let signals = answered("kind = 'sdpo'", &groups);
    let weight = |g: usize, e: usize| signals.groups[g].episodes[e].as_ref().map(|s| s[0].weight[2]);
    assert_eq!([weight(0, 0), weight(1, 0), weight(1, 2), weight(2, 0)], [Some(1.0), Some(1.0), None, Some(0.0)]);
    let none = |episode| Dropped { group: 2, episode: Some(episode), why: Why::NoContext };
    assert!(signals.dropped.contains(&none(0)) && signals.dropped.contains(&none(1)));
    assert_eq!(signals.groups.iter().map(|g| g.has_signal).collect::<Vec<_>>(), [true, true, false]);
    let sdpo = settings("kind = 'sdpo'");
    assert_eq!(groups.each_ref().map(|g| sdpo.algorithm().asks_about(g)), [true, true, false]);
}

#[test]
fn sdpo_reads_no_worked_example_as_the_policys_own_words() {
    let mut one = group("ask", &[0.0, 1.0]);
    let example = [Message::new(Role::User, "1 + 1"), Message::new(Role::Assistant, "2")];
    one.task.messages.splice(0..0, example.clone());
    one.episodes.iter_mut().for_each(|e| drop(e.messages.splice(0..0, example.clone())));
    let got = contexts("kind = 'sdpo'", &[one]);
    assert!(
        got[0][0].as_deref().is_some_and(|c| c.starts_with("1 + 1|2|ask\n\n") && c.contains("solution:\n\nreply 1"))
    );
}

#[test]
fn sdpo_asks_the_student_which_tokens_to_compare_before_it_asks_the_teacher() {
    let groups = [group("a", &[1.0, 0.0])];
    let kinds = |text: &str| {
        let settings = settings(text);
        let (requests, _) = answer(settings.algorithm(), &groups);
        requests
            .into_iter()
            .map(|r| match r {
                Request::Reference => "reference".to_owned(),
                Request::Now(now) => format!("now {}", now.top_k),
                Request::Teacher(asked) => format!("teacher {}", asked.top),
                Request::Attempts(further) => format!("{} further", further.len()),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds("kind = 'sdpo'\ntop_k = 7"), ["now 7", "teacher true"]);
    assert_eq!(kinds("kind = 'sdpo'\ntop_k = 0"), ["teacher false"]);
    let sdpo = settings("kind = 'sdpo'");
    let (_, mut answers) = answer(sdpo.algorithm(), &groups);
    let teacher = answers.teacher.as_mut().unwrap();
    teacher[0][1][0].as_mut().unwrap().top.as_mut().unwrap().logp.pop();
    let got = sdpo.algorithm().signals(&groups, &answers).unwrap_err().to_string();
    assert!(got.starts_with("the answer to `teacher.top` has 11 for sequence 0 of episode 1"), "{got}");
    for (text, want) in [
        ("kind = 'sdpo'", TeacherRule::Ema(0.05)),
        ("kind = 'sdpo'\nteacher = 'current'", TeacherRule::Current),
        ("kind = 'sdpo'\nteacher = 'frozen'", TeacherRule::Frozen),
    ] {
        assert_eq!(settings(text).algorithm().teacher(), Some(want));
    }
}

#[test]
fn references_are_those_that_the_settings_name() {
    for (line, want) in [
        ("", None),
        ("kl.coefficient = 0.1", Some(Reference::Frozen)),
        ("kl.coefficient = 0.1\nkl.reference = 'base'", Some(Reference::Base)),
        ("kl.coefficient = 0.1\nkl.reference = 'ema'\nkl.ema_rate = 0.25", Some(Reference::Ema(0.25))),
        ("kl.coefficient = 0.1\nkl.reference = 'every_n'\nkl.every = 7", Some(Reference::EveryN(7))),
    ] {
        assert_eq!(settings(&format!("kind = 'grpo'\n{line}")).algorithm().reference(), want);
    }
}

#[test]
fn what_a_selection_leaves_out_weighs_nothing_and_stays_in_the_denominator() {
    let groups = [group("a", &[1.0, 0.0, 0.5]), group("b", &[0.0, 1.0])];
    let all = answered("kind = 'grpo'", &groups);
    for text in ["select.rule = 'top_entropy'", "correction.rule = 'm2po'"] {
        let got = answered(&format!("kind = 'grpo'\n{text}"), &groups);
        let sum = |s: &surefoot_algo::Signals| -> f32 {
            let signals = s.groups.iter().flat_map(|g| g.episodes.iter().flatten().flatten());
            signals.flat_map(|s| &s.weight).sum()
        };
        assert!(sum(&got) > 0.0 || text.contains("m2po"), "{text}");
        assert!(sum(&got) < sum(&all), "{text}");
        let batch = |s: &surefoot_algo::Signals| s.batch(&groups, 0..2).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(batch(&got), batch(&all), "{text}");
    }
    let pulled = answered("kind = 'grpo'\nselect.rule = 'kl_cov'\nselect.share = 0.3", &groups);
    let signals = pulled.groups.iter().flat_map(|g| g.episodes.iter().flatten().flatten());
    let pulls: Vec<f32> = signals.flat_map(|s| s.pull.iter().flatten()).copied().filter(|p| *p != 0.0).collect();
    assert!(!pulls.is_empty() && pulls.len() < 9, "{pulls:?}");
}

#[test]
fn a_selection_is_made_over_the_whole_step_and_not_over_what_is_masked() {
    // The entropies of the masked attempt are the highest by far: they neither learn nor take another token's place.
    let mut groups = [group("a", &[1.0, 0.0]), group("b", &[0.0, 1.0])];
    groups[0].episodes[0].stop = StopReason::Length;
    let grpo = settings("kind = 'grpo'\nselect.rule = 'top_entropy'\nselect.share = 0.5\ntruncated = 'mask'");
    let mut now = values(crate::shared::by_token(&groups, |s, t| s.logp()[t]));
    for (g, group) in now.iter_mut().enumerate() {
        for (e, episode) in group.iter_mut().enumerate() {
            let n = episode[0].entropy.len();
            episode[0].entropy = (0..n).map(|t| if (g, e) == (0, 0) { 9.0 } else { (g + t) as f32 * 0.125 }).collect();
        }
    }
    let answers = Answers { now: Some(now), ..Answers::new() };
    let got = grpo.algorithm().signals(&groups, &answers).unwrap();
    let kept = |g: usize, e: usize| -> f32 { got.groups[g].episodes[e].as_ref().unwrap()[0].weight.iter().sum() };
    assert_eq!(kept(0, 0), 0.0);
    // Five tokens take part, and half of them, rounded, learn.
    let n = kept(0, 1) + kept(1, 0) + kept(1, 1);
    assert!((2.0..=3.0).contains(&n) && kept(1, 1) >= kept(0, 1), "{n}");
    let Settings::Grpo(own) = grpo else { panic!("grpo") };
    assert!(matches!(own.select, Select::TopEntropy(_)));
}
