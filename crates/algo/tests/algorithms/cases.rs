//! Faults met in this field, each as a test of the algorithms; the names carry the case's number.

use crate::shared::{advantages, episode, failed, graded, group, settings, signals, task, values};
use std::ops::Range;

use episode::{Group, Outcome, Role, StopReason};
use loss::{Old, Totals};
use surefoot_algo::{
    Admission, AlgoError, Answers, Asked, Dropped, Now, PerSequence, Plan, Request, Settings, Why, group_by_task,
};

fn check_advantages(text: &str, rewards: &[f64], want: &[f64]) {
    let got = signals(text, &[group("a", rewards)]).expect(text);
    for (got, want) in advantages(&got, 0).iter().zip(want) {
        let got = f64::from(got.expect(text));
        assert!((got - want).abs() < 2e-7, "{text}: {got}, {want}");
    }
}

#[test]
fn b1_the_reference_vector_through_the_settings() {
    let rewards = [1.0, 0.0, 0.0, 0.0];
    let three = |first: f64, other: f64| [first, other, other, other];
    check_advantages("kind = 'grpo'", &rewards, &three(1.499_997, -0.499_999));
    let population = "kind = 'grpo'\nadvantage_std = 'population'";
    check_advantages(population, &rewards, &three(1.732_046_8, -0.577_348_9));
    check_advantages(&format!("{population}\nstd_eps = 0"), &rewards, &three(1.732_050_8, -0.577_350_3));
    check_advantages("kind = 'grpo'\nstd_eps = 1e-4", &rewards, &three(1.499_700_1, -0.499_900_0));
    let dr_grpo = "kind = 'grpo'\nadvantage_std = 'none'\nreduction = 'fixed_horizon'\nhorizon = 8";
    check_advantages(dr_grpo, &rewards, &three(0.75, -0.25));
    check_advantages("kind = 'dr_grpo'", &rewards, &three(0.75, -0.25));
    check_advantages("kind = 'dro'", &rewards, &three(0.75, -0.25));
    check_advantages("kind = 'rloo'", &rewards, &three(1.0, -1.0 / 3.0));
    check_advantages("kind = 'max_rl'", &rewards, &three(3.0, -1.0));
    let value = ((std::f64::consts::E + 3.0) / 4.0).ln();
    check_advantages("kind = 'oapl'", &rewards, &three(1.0 - value, -value));
    for kind in ["dapo", "gspo", "cispo", "sapo"] {
        check_advantages(&format!("kind = '{kind}'"), &rewards, &three(1.499_997, -0.499_999));
        let population = format!("kind = '{kind}'\nadvantage_std = 'population'\nstd_eps = 0");
        check_advantages(&population, &rewards, &three(1.732_050_8, -0.577_350_3));
    }
    // Every token is worth its episode's reward, 1 + 2 + 3 + 4 of them, one of which is in the first.
    let (mean, spread) = (0.1, (0.1f64 * 0.9).sqrt());
    check_advantages("kind = 'reinforce_pp'", &rewards, &three((1.0 - mean) / spread, -mean / spread));
    check_advantages("kind = 'reinforce_pp'\nwhiten = false", &rewards, &rewards);
    check_advantages("kind = 'reinforce'", &rewards, &rewards);
    check_advantages("kind = 'reinforce'\nbaseline = 'batch_mean'", &rewards, &three(0.75, -0.25));
}

#[test]
fn b2_groups_are_made_by_task_and_not_by_neighbourhood() {
    let tasks = [task("p1"), task("p2"), task("p1"), task("p2")];
    let episodes = tasks.into_iter().zip([1.0, 0.0, 0.0, 0.0]).enumerate();
    let episodes = episodes.map(|(i, (task, r))| (task.clone(), episode(&task, i as u32, 1, graded(r))));
    let groups = group_by_task(episodes.collect::<Vec<_>>());
    assert_eq!(groups.iter().map(|g| g.episodes.len()).collect::<Vec<_>>(), [2, 2]);
    let got = signals("kind = 'grpo'\nadvantage_std = 'none'", &groups).unwrap();
    assert_eq!(advantages(&got, 0), [Some(0.5), Some(-0.5)]);
    assert_eq!(advantages(&got, 1), [Some(0.0), Some(0.0)]);
    assert_eq!((got.groups[0].has_signal, got.groups[1].has_signal), (true, false));
}

#[test]
fn b4_a_group_of_one_is_refused_by_what_compares_and_by_nothing_else() {
    let message = |text: &str, n| settings(text).algorithm().check(n).err().map(|e| e.to_string());
    let want = "`grpo` needs a group size of at least 2, got 1, since it compares the attempts at one task; \
                `reinforce` works with 1";
    assert_eq!(message("kind = 'grpo'", 1).as_deref(), Some(want));
    assert_eq!(message("kind = 'grpo'\nadvantage_std = 'none'", 1).as_deref(), Some(want));
    assert_eq!(message("kind = 'grpo'", 2), None);
    for kind in ["dr_grpo", "rloo", "max_rl", "dapo", "gspo", "cispo", "sapo", "oapl", "dro", "dpo", "reward_model"] {
        assert_eq!(message(&format!("kind = '{kind}'"), 1), Some(want.replace("grpo", kind)));
        assert_eq!(message(&format!("kind = '{kind}'"), 2), None);
    }
    for kind in ["reinforce", "reinforce_pp", "ppo", "raft", "sft", "sdpo"] {
        assert_eq!(message(&format!("kind = '{kind}'"), 1), None);
        assert_eq!(message(&format!("kind = '{kind}'"), 0).unwrap().split(',').next_back(), Some(" got 0"));
    }
}

#[test]
fn b6_equal_rewards_are_exact_zeros_whatever_their_computed_spread() {
    for kind in ["kind = 'grpo'", "kind = 'reinforce'\nbaseline = 'batch_mean'"] {
        let got = signals(kind, &[group("a", &[0.1; 8]), group("b", &[0.1; 3])]).unwrap();
        assert_eq!(advantages(&got, 0), [Some(0.0); 8]);
        assert!(!got.has_signal());
        assert_eq!(got.groups[1].stats.reward_std, Some(0.0));
    }
    let got = signals("kind = 'grpo'", &[group("a", &[0.1; 8])]).unwrap();
    assert_eq!(got.dropped, [Dropped { group: 0, episode: None, why: Why::NoSpread }]);
    // A pull towards a reference teaches all the same, but not before there is one.
    let with_kl = "kind = 'grpo'\nkl.coefficient = 0.1";
    let groups = [group("a", &[0.1; 2])];
    let got = settings(with_kl).algorithm().signals(&groups, &answers(&groups, -1.0)).unwrap();
    assert!(got.has_signal());
    // Unless such groups are left out: then nothing is asked about them either.
    let dropping = settings("kind = 'grpo'\nkl.coefficient = 0.1\nflat = 'drop'");
    let groups = [group("a", &[0.1; 2]), group("b", &[0.0, 1.0])];
    assert_eq!(groups.each_ref().map(|g| dropping.algorithm().asks_about(g)), [false, true]);
    // One graded attempt is too few, which is not the same as equal rewards.
    assert!(dropping.algorithm().asks_about(&group("c", &[1.0])));
    let mut partial = answers(&groups, -1.0);
    partial.reference.as_mut().unwrap()[0].clear();
    let got = dropping.algorithm().signals(&groups, &partial).unwrap();
    assert_eq!(got.groups.iter().map(|g| g.has_signal).collect::<Vec<_>>(), [false, true]);
    assert_eq!(got.dropped, [Dropped { group: 0, episode: None, why: Why::NoSpread }]);
}

#[test]
fn a_step_without_groups_or_without_graded_episodes_is_no_error() {
    let mut all_failed = group("a", &[1.0, 0.0]);
    all_failed.episodes.iter_mut().for_each(|e| e.outcome = failed());
    for kind in Settings::NAMES {
        let text = format!("kind = '{kind}'");
        assert!(!signals(&text, &[]).unwrap().has_signal(), "{kind}");
        let got = signals(&text, std::slice::from_ref(&all_failed)).unwrap();
        assert!(!got.has_signal());
        assert_eq!(got.groups[0].stats.reward_mean, None);
        assert!(got.batch(std::slice::from_ref(&all_failed), 0..1)[0].is_empty());
        let wanted = settings(&text).algorithm().requests(std::slice::from_ref(&all_failed), &Answers::new());
        assert!(wanted.is_empty());
    }
}

#[test]
fn b10_updates_count_groups_whatever_their_episodes_and_turns() {
    // 4 tasks with 1, 3, 2 and 5 episodes, mini-batch 2: exactly 2 updates.
    let plan = Plan { epochs: 1, minibatch_groups: Some(2) };
    assert_eq!(plan.batches(4), [0..2, 2..4]);
    assert_eq!(Plan { epochs: 3, ..plan }.batches(4).len(), 6);
    assert_eq!(plan.batches(5), [0..2, 2..4, 4..5], "the ragged last one is not lost");
    assert_eq!(Plan::ONE.batches(7), vec![Range { start: 0, end: 7 }]);
    assert!(Plan::ONE.batches(0).is_empty());
    let groups = [group("a", &[0.0, 1.0]), group("b", &[1.0, 0.0, 1.0]), group("c", &[1.0, 0.0])];
    let got = signals("kind = 'grpo'\nminibatch_groups = 2\nepochs = 2", &groups).unwrap();
    let sizes: Vec<Vec<usize>> = got
        .plan
        .batches(groups.len())
        .into_iter()
        .map(|range| got.batch(&groups, range).iter().map(Vec::len).collect())
        .collect();
    assert_eq!(sizes, [vec![2, 3], vec![2], vec![2, 3], vec![2]]);
}

#[test]
fn failures_are_in_no_statistic_and_no_denominator() {
    let mut with = group("a", &[1.0, 9.0, 0.0, 0.0, 0.0, 9.0]);
    with.episodes[1].outcome = failed();
    with.episodes[5].outcome = Outcome::Cancelled;
    let got = signals("kind = 'grpo'\nadvantage_std = 'none'", std::slice::from_ref(&with)).unwrap();
    let want = [Some(0.75), None, Some(-0.25), Some(-0.25), Some(-0.25), None];
    assert_eq!(advantages(&got, 0), want);
    assert_eq!((got.groups[0].stats.n_graded, got.groups[0].stats.n_episodes), (4, 6));
    let why = |episode, why| Dropped { group: 0, episode: Some(episode), why };
    assert_eq!(got.dropped, [why(1, Why::Failed { class: "deadline".into() }), why(5, Why::Cancelled)]);
    // Sampled tokens of the graded four: 1 + 3 + 4 + 5.
    let batch = got.batch(std::slice::from_ref(&with), 0..1);
    let totals = Totals::count(batch.iter().map(|g| g.iter().map(|(s, signal)| (s.sampled(), signal.pair))));
    assert_eq!(totals, Totals { n_tokens: 13, n_sequences: 4, n_pairs: 0 });
}

#[test]
fn a_group_with_one_graded_episode_left_is_dropped_and_says_so() {
    let mut group = group("a", &[1.0, 0.0, 0.0]);
    group.episodes[1].outcome = failed();
    group.episodes[2].outcome = failed();
    let why = Why::TooFewGraded { needed: 2, got: 1, of: 3 };
    assert_eq!(settings("kind = 'grpo'").algorithm().admit(&group), Admission::Drop(why.clone()));
    assert_eq!(why.to_string(), "needed at least 2 graded episodes, got 1 of 3");
    assert_eq!(settings("kind = 'reinforce'").algorithm().admit(&group), Admission::Keep);
    let got = signals("kind = 'grpo'", std::slice::from_ref(&group)).unwrap();
    assert_eq!(advantages(&got, 0)[0], Some(0.0));
    assert!(got.dropped.contains(&Dropped { group: 0, episode: None, why }));
    group.episodes[0].outcome = failed();
    for kind in Settings::NAMES {
        let admission = settings(&format!("kind = '{kind}'")).algorithm().admit(&group);
        let out = matches!(&admission, Admission::Drop(_)) || (*kind == "dapo" && admission != Admission::Keep);
        assert!(out, "{kind}");
    }
}

#[test]
fn a_group_without_spread_is_kept_and_stays_in_the_denominator() {
    assert_eq!(settings("kind = 'grpo'").algorithm().admit(&group("a", &[1.0, 1.0])), Admission::Keep);
}

#[test]
fn a_reward_that_is_not_finite_is_refused_with_its_place() {
    for bad in [f64::NAN, f64::INFINITY] {
        for kind in Settings::NAMES {
            let groups = [group("a", &[1.0, 0.0]), group("b", &[0.0, bad])];
            let got = signals(&format!("kind = '{kind}'"), &groups).unwrap_err();
            let AlgoError::NotFinite { what: "reward", task, episode: 1, .. } = &got else { panic!("{kind}: {got}") };
            assert_eq!(task, &groups[1].task.id);
        }
    }
    let got = signals("kind = 'grpo'", &[group("a", &[1e308, -1e308])]).unwrap_err();
    assert!(matches!(got, AlgoError::NotFinite { what: "advantage", .. }), "{got}");
}

#[test]
fn an_episode_without_sampled_tokens_counts_in_the_group_and_trains_nothing() {
    let mut one = group("a", &[1.0, 0.0]);
    one.episodes[0] = episode(&one.task, 0, 0, graded(1.0));
    let got = signals("kind = 'grpo'\nadvantage_std = 'none'", std::slice::from_ref(&one)).unwrap();
    assert_eq!(advantages(&got, 0), [None, Some(-0.5)]);
    assert_eq!(got.groups[0].episodes[0].as_ref().unwrap()[0].advantage, [0.0, 0.0]);
    assert_eq!(got.dropped, [Dropped { group: 0, episode: Some(0), why: Why::NothingSampled }]);
    assert!(got.groups[0].has_signal);
}

#[test]
fn every_sequence_and_turn_of_an_episode_shares_its_reward_and_prompts_are_worth_nothing() {
    let mut one = group("a", &[1.0, 0.0]);
    let mut two_turns = crate::shared::sequence(2);
    two_turns.append_context(Role::Tool, &[9]);
    two_turns.append_sampled(&[4], &[-0.5], &[-0.5], 1).unwrap();
    one.episodes[0].sequences = vec![two_turns, crate::shared::sequence(1)];
    let got = signals("kind = 'grpo'\nadvantage_std = 'none'", &[one]).unwrap();
    let first = got.groups[0].episodes[0].as_ref().unwrap();
    assert_eq!(first[0].advantage, [0.0, 0.0, 0.5, 0.5, 0.0, 0.5]);
    assert_eq!(first[0].weight, [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(first[1].advantage, [0.0, 0.0, 0.5]);
    assert_eq!(got.groups[0].stats.reward_mean, Some(0.5), "statistics count episodes and not sequences");
}

#[test]
fn truncated_attempts_are_kept_masked_or_penalised() {
    let mut one = group("a", &[1.0, 0.0]);
    one.episodes[0].stop = StopReason::Length;
    let groups = [one];
    let run = |extra: &str| signals(&format!("kind = 'grpo'\nadvantage_std = 'none'\n{extra}"), &groups).unwrap();
    assert_eq!(advantages(&run(""), 0), [Some(0.5), Some(-0.5)]);
    let masked = run("truncated = 'mask'");
    assert_eq!(advantages(&masked, 0), [Some(0.5), Some(-0.5)]);
    let weights = masked.groups[0].episodes.iter().map(|e| e.as_ref().unwrap()[0].weight[2]);
    assert_eq!(weights.collect::<Vec<_>>(), [0.0, 1.0]);
    assert_eq!(masked.dropped, [Dropped { group: 0, episode: Some(0), why: Why::Truncated }]);
    assert!(!run("truncated = 'penalise'").has_signal(), "one point off makes the rewards equal");
    let penalised = run("truncated = 'penalise'\ntruncated_penalty = 3");
    assert_eq!(advantages(&penalised, 0), [Some(-1.0), Some(1.0)]);
    assert_eq!(penalised.groups[0].stats.reward_mean, Some(0.5), "statistics show what was graded");
    let weights = |text: &str| {
        let got = signals(text, &groups).unwrap();
        got.groups[0].episodes.iter().map(|e| e.as_ref().unwrap()[0].weight[2]).collect::<Vec<_>>()
    };
    assert_eq!(weights("kind = 'reinforce'"), [1.0, 1.0]);
    assert_eq!(weights("kind = 'reinforce'\ntruncated = 'mask'"), [0.0, 1.0]);
    // What a guard rule ended is the policy's own doing.
    let mut guarded = groups.clone();
    guarded[0].episodes[0].stop = StopReason::Guard;
    assert!(signals("kind = 'grpo'\ntruncated = 'mask'", &guarded).unwrap().dropped.is_empty());
}

#[test]
fn requests_end_once_they_are_answered() {
    let groups = [group("a", &[1.0, 0.0])];
    let wants = settings("kind = 'grpo'\nkl.coefficient = 0.1\ncorrection.rule = 'token_tis'");
    let wants = wants.algorithm();
    let mut answers = Answers::new();
    assert_eq!(wants.requests(&groups, &answers), [Request::Reference, Request::Now(Now::default())]);
    let got = wants.signals(&groups, &answers).unwrap_err().to_string();
    let want = format!(
        "the answer to `now` has nothing for sequence 0 of episode 0 of task `{}`, needed 3 numbers",
        groups[0].task.id
    );
    assert_eq!(got, want);
    answers.reference = Some(per_token(&groups, -2.0));
    assert_eq!(wants.requests(&groups, &answers), [Request::Now(Now::default())]);
    answers.now = Some(values(per_token(&groups, -1.0)));
    assert!(wants.requests(&groups, &answers).is_empty());
    let got = wants.signals(&groups, &answers).unwrap();
    let first = &got.groups[0].episodes[1].as_ref().unwrap()[0];
    assert_eq!((first.old.clone(), first.logp_ref.clone()), (Old::Forward(vec![-1.0; 4]), Some(vec![-2.0; 4])));
    for kind in Settings::NAMES {
        let bare = settings(&format!("kind = '{kind}'"));
        let want = match *kind {
            "ppo" => vec![Request::Now(Now { value: true, top_k: 0 })],
            "dpo" => vec![Request::Reference],
            "distill" => vec![Request::Teacher(Asked { contexts: None, top: false })],
            "sdpo" => vec![Request::Now(Now { value: false, top_k: 100 })],
            _ => vec![],
        };
        assert_eq!(bare.algorithm().requests(&groups, &Answers::new()), want, "{kind}");
    }
}

#[test]
fn an_answer_of_another_shape_is_refused() {
    let groups = [group("a", &[1.0, 0.0])];
    let mut answers = answers(&groups, -1.0);
    let mut short = per_token(&groups, -1.0);
    short[0][1][0].pop();
    answers.reference = Some(short);
    let got = settings("kind = 'grpo'\nkl.coefficient = 0.1").algorithm().signals(&groups, &answers);
    let got = got.unwrap_err().to_string();
    assert!(got.starts_with("the answer to `reference` has 3 for sequence 0 of episode 1"), "{got}");
}

#[test]
fn a_kl_in_the_reward_comes_off_before_the_statistics() {
    let groups = [group("a", &[1.0, 1.0])];
    let text = "kind = 'grpo'\nadvantage_std = 'none'\nkl.coefficient = 0.5\nkl.place = 'reward'\nkl.estimator = 'k1'";
    let got = settings(text).algorithm().signals(&groups, &answers(&groups, -1.0)).unwrap();
    // Recorded −.25, and −.25 and −.375: k1 sums are .75 and 1.375.
    let rewards = [1.0 - 0.5 * 0.75, 1.0 - 0.5 * 1.375];
    let centre = (rewards[0] + rewards[1]) / 2.0;
    assert_eq!(advantages(&got, 0), rewards.map(|r| Some((r - centre) as f32)));
    assert!(got.loss.kl.is_none() && !got.loss.needs_ref());
    assert_eq!(got.groups[0].stats.reward_mean, Some(1.0));
    let kept = &got.groups[0].episodes[0].as_ref().unwrap()[0].logp_ref;
    assert_eq!(kept.as_deref(), Some([-1.0; 3].as_slice()), "the reference is kept for the metrics");
    // With a pass through the policy as the step begins, that is π_old: −.5, so k1 sums are .5 and 1.
    let mut both = answers(&groups, -1.0);
    both.now = Some(values(per_token(&groups, -0.5)));
    let text = format!("{text}\ncorrection.rule = 'token_tis'");
    let got = settings(&text).algorithm().signals(&groups, &both).unwrap();
    assert_eq!(advantages(&got, 0), [Some(0.125), Some(-0.125)]);
}

#[test]
fn sft_trains_every_given_token_the_same_and_reads_no_record() {
    let got = signals("kind = 'sft'", &[group("a", &[0.0]), group("b", &[5.0, 1.0])]).unwrap();
    assert_eq!((advantages(&got, 0), advantages(&got, 1)), (vec![Some(1.0)], vec![Some(1.0); 2]));
    assert_eq!(got.groups[0].episodes[0].as_ref().unwrap()[0].old, Old::Given);
    assert!(got.groups.iter().all(|g| g.has_signal) && !got.loss.needs_old());
}

fn per_token(groups: &[Group], value: f32) -> PerSequence<Vec<f32>> {
    let tokens = |e: &episode::Episode| e.sequences.iter().map(|s| vec![value; s.len()]).collect();
    groups.iter().map(|g| g.episodes.iter().map(tokens).collect()).collect()
}

fn answers(groups: &[Group], reference: f32) -> Answers {
    Answers { reference: Some(per_token(groups, reference)), ..Answers::new() }
}
