//! Credit token by token: PPO and REINFORCE++ over turns, observations and values.

use crate::shared::{answer, failed, graded, group, settings, signals, task, values};
use episode::{Episode, EpisodeKey, Group, Role, Sequence, StopReason};
use loss::ValueLoss;
use surefoot_algo::{AlgoError, Answers, PerSequence, Signals};

/// One episode of two turns: a prompt, a sampled token, an observation, `n` sampled tokens.
fn two_turns(n: usize, reward: f64) -> Group {
    let mut sequence = Sequence::new();
    sequence.append_context(Role::User, &[7]);
    sequence.append_sampled(&[3], &[-0.5], &[-0.5], 0).expect("lists have one length");
    sequence.append_context(Role::Tool, &[9]);
    sequence.append_sampled(&vec![4; n], &vec![-0.25; n], &vec![-0.25; n], 0).expect("lists have one length");
    let task = task("a");
    let key = EpisodeKey { step: 0, task: task.id.clone(), sample: 0 };
    let episode = Episode {
        key,
        sequences: vec![sequence],
        messages: vec![],
        outcome: graded(reward),
        stop: StopReason::Eos,
        turn_rewards: vec![],
        conduct: episode::Conduct::default(),
    };
    Group { task, episodes: vec![episode] }
}

fn now(list: &[f32]) -> Answers {
    let mut now = values(vec![vec![vec![vec![-0.25; list.len()]]]]);
    now[0][0][0].value = list.to_vec();
    Answers { now: Some(now), ..Answers::new() }
}

fn first(signals: &Signals) -> &loss::Signal {
    &signals.groups[0].episodes[0].as_ref().expect("it was graded")[0]
}

fn check(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-6), "{got:?}, {want:?}");
}

#[test]
fn b8_advantages_step_over_observations_whatever_is_valued_there() {
    let groups = [two_turns(1, 1.0)];
    let ppo = settings("kind = 'ppo'\ngamma = 0.9\nlambda = 0.8\nwhiten = false");
    for observed in [9.0, -3.0, f32::NAN, f32::INFINITY] {
        let got = ppo.algorithm().signals(&groups, &now(&[observed, 0.5, observed, 0.25])).unwrap();
        let signal = first(&got);
        check(&signal.advantage, &[0.0, 0.265, 0.0, 0.75]);
        let target = signal.value.as_ref().unwrap();
        check(&target.old, &[0.0, 0.5, 0.0, 0.25]);
        check(&target.returns, &[0.0, 0.765, 0.0, 1.0]);
        assert_eq!(got.loss.value, Some(ValueLoss { clip: Some(0.2), coefficient: 1.0 }));
        assert!(got.has_signal());
    }
}

#[test]
fn a_turn_is_rewarded_at_its_last_token_and_the_rest_at_the_very_last() {
    let mut groups = [two_turns(2, 1.0)];
    let returns = |groups: &[Group]| signals("kind = 'reinforce_pp'\ngamma = 0.5\nwhiten = false", groups);
    check(&first(&returns(&groups).unwrap()).advantage, &[0.0, 0.25, 0.0, 0.5, 1.0]);
    // The second turn's own 0.75 and what is left of 1, −0.25, fall on the same token.
    groups[0].episodes[0].turn_rewards = vec![0.5, 0.75];
    check(&first(&returns(&groups).unwrap()).advantage, &[0.0, 0.5 + 0.125, 0.0, 0.25, 0.5]);
    // A second sequence goes on where the first one ended.
    let again = groups[0].episodes[0].sequences[0].clone();
    groups[0].episodes[0].sequences.push(again);
    let got = returns(&groups).unwrap_err().to_string();
    let want = format!("episode 0 of task `{}` has 2 turn rewards, needed 4, one a sampled turn", groups[0].task.id);
    assert_eq!(got, want);
    groups[0].episodes[0].turn_rewards = vec![0.0, 0.0, 1.0, 0.0];
    let got = returns(&groups).unwrap();
    let both = got.groups[0].episodes[0].as_ref().unwrap();
    check(&both[0].advantage, &[0.0, 0.125, 0.0, 0.25, 0.5]);
    check(&both[1].advantage, &[0.0, 1.0, 0.0, 0.0, 0.0]);
    groups[0].episodes[0].turn_rewards = vec![0.0, f64::NAN, 1.0, 0.0];
    let got = returns(&groups).unwrap_err();
    assert!(matches!(got, AlgoError::NotFinite { what: "turn reward", episode: 0, .. }), "{got}");
}

#[test]
fn a_kl_in_the_reward_stays_with_its_token() {
    let groups = [two_turns(1, 1.0)];
    let reference: PerSequence<Vec<f32>> = vec![vec![vec![vec![f32::NAN, -1.0, f32::NAN, -0.5]]]];
    let answers = Answers { reference: Some(reference), ..Answers::new() };
    let text = "kind = 'reinforce_pp'\nwhiten = false\nkl.coefficient = 0.5\nkl.place = 'reward'\nkl.estimator = 'k1'";
    let got = settings(text).algorithm().signals(&groups, &answers).unwrap();
    // log π_old − log ref is .5 and .25.
    check(&first(&got).advantage, &[0.0, 1.0 - 0.125 - 0.25, 0.0, 1.0 - 0.125]);
    assert!(got.loss.kl.is_none());
}

#[test]
fn b11_b14_whitening_is_over_all_sampled_tokens_of_the_step_but_those_that_weigh_nothing() {
    let mut groups = vec![group("a", &[1.0, 0.0]), group("b", &[0.5])];
    let all = |groups: &[Group]| {
        let got = signals("kind = 'reinforce_pp'\ntruncated = 'mask'", groups).unwrap();
        let signals = got.groups.iter().flat_map(|g| g.episodes.iter().flatten().flatten());
        signals.map(|s| f64::from(s.advantage[2])).collect::<Vec<_>>()
    };
    // 1, 0, 0 and ½ of four tokens.
    let near = |got: Vec<f64>, want: [f64; 3]| {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}, {want:?}");
    };
    let spread = (0.6875f64 / 4.0).sqrt();
    near(all(&groups), [0.625 / spread, -0.375 / spread, 0.125 / spread]);
    groups[0].episodes[1].stop = StopReason::Length;
    // 1 and ½ of two tokens; the masked one is moved along, but decides nothing.
    near(all(&groups), [1.0, -3.0, -1.0]);
    // B6: equal rewards are exact zeros.
    let equal = signals("kind = 'reinforce_pp'", &[group("a", &[0.1; 5])]).unwrap();
    assert!(!equal.has_signal());
    // B14: a single token has nothing to be compared with, and is not skipped.
    assert_eq!(first(&signals("kind = 'reinforce_pp'", &[group("a", &[0.7])]).unwrap()).advantage, [0.0; 3]);
    // A failure is in no statistic.
    groups[1].episodes[0].outcome = failed();
    groups[0].episodes[1].stop = StopReason::Eos;
    near(all(&groups), [2.0f64.sqrt(), -0.5f64.sqrt(), 0.0]);
}

#[test]
fn values_that_were_not_answered_are_named() {
    let groups = [group("a", &[1.0])];
    let ppo = settings("kind = 'ppo'");
    let got = ppo.algorithm().signals(&groups, &Answers::new()).unwrap_err().to_string();
    assert!(got.starts_with("the answer to `now.value` has nothing for sequence 0 of episode 0"), "{got}");
    let (_, mut answers) = answer(ppo.algorithm(), &groups);
    answers.now.as_mut().unwrap()[0][0][0].value.pop();
    let got = ppo.algorithm().signals(&groups, &answers).unwrap_err().to_string();
    assert!(got.starts_with("the answer to `now.value` has 2 for sequence 0"), "{got}");
    assert!(ppo.algorithm().value_head() && settings("kind = 'reward_model'").algorithm().value_head());
    assert!(!settings("kind = 'grpo'").algorithm().value_head());
}
