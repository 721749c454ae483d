//! An algorithm that asks for further attempts, as methods with a review or a second try do.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use algo::{Admission, AlgoError, Algorithm, Answers, Further, Reference, Request, Signals};
use env::{Environments, Mixture, Settings as EnvSettings};
use episode::{Group, Message, Role};
use policy::fake::Scripted;
use policy::{Policy, Sampling};
use rollout::stream::protocol::Bounds;
use rollout::stream::{Stream, Terms};
use rollout::{Gates, Rollout};

use super::{Advice, How};
use crate::source::{Attempts, Source};
use crate::{Chat, Quiet, RunError, State, open};

#[path = "../../tests/tiny/mod.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
mod tiny;

/// RLOO that tells the policy to look again wherever no first attempt was right, twice, and compares with the start.
struct LooksAgain(algo::Settings, u64);

impl Algorithm for LooksAgain {
    fn resolve(&mut self) -> Result<(), AlgoError> {
        Ok(())
    }

    fn check(&self, _: usize) -> Result<(), AlgoError> {
        Ok(())
    }

    fn admit(&self, _: &Group) -> Admission {
        Admission::Keep
    }

    fn requests(&self, groups: &[Group], answers: &Answers) -> Vec<Request> {
        let n_first = groups.len() - answers.further.len();
        if (answers.further.len() as u64) < self.1 * n_first as u64 {
            let further = groups[..n_first].iter().enumerate().map(|(of, group)| {
                let mut messages = group.task.messages.clone();
                if self.1 > 1 {
                    messages.push(Message::new(Role::Assistant, group.episodes[0].reply()));
                    messages.push(Message::new(Role::User, format!("look again, {}", answers.further.len())));
                }
                Further { of, messages, n: 3 }
            });
            return vec![Request::Attempts(further.collect())];
        }
        if answers.reference.is_none() { vec![Request::Reference] } else { Vec::new() }
    }

    fn reference(&self) -> Option<Reference> {
        Some(Reference::Frozen)
    }

    fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
        self.0.algorithm().signals(groups, answers)
    }
}

/// A source of sums, two tasks of four attempts a step.
fn source(chat: &Arc<Chat>) -> Attempts {
    let settings: EnvSettings = serde_json::from_str(r#"{"kind": "sums", "n_train": 40, "n_held_out": 4}"#).unwrap();
    let environments = Environments::load(&[settings], std::path::Path::new(".")).unwrap();
    let mixture = Mixture::new(&environments, 7).unwrap();
    let bounds = Bounds { batch: 2, max_lag: 0, max_running: 9, max_draws: 1, steps: 1, holds_lag: false };
    let sampling = Arc::new(Sampling::plain(1.0, 8, vec![chat.end().unwrap()]));
    let terms = Terms { bounds, group_size: 4, run_seed: 7, sampling };
    let rollout =
        Rollout { codec: chat.clone(), environments, gates: Gates::none(), settings: rollout::Settings::default() };
    Attempts::new(Stream::new(Arc::new(rollout), terms), mixture, 7, false)
}

/// Says one token that its random stream chooses.
fn policy(end: episode::Token) -> Scripted {
    let mut policy = Scripted::new(Box::new(move |_, key| vec![(key % 200) as episode::Token, end]));
    policy.kept.insert(policy::Slot::Reference, 0.25);
    policy
}

fn fulfilled(rounds: u64) -> (Vec<Group>, Answers) {
    let place = tiny::Place::new();
    let chat = Arc::new(Chat::new(open(&place.model()).unwrap().tokenizer).unwrap());
    let (mut source, mut policy) = (source(&chat), policy(chat.end().unwrap()));
    let file =
        crate::RunFile::parse("model = 'tiny'\nsteps = 1\nalgorithm = { kind = 'rloo' }\nenv = [{ kind = 'sums' }]");
    let settings = file.unwrap().resolve().unwrap();
    let cancel = AtomicBool::new(false);
    let collected = source.collect(&mut policy, &settings, &State::default(), &mut Quiet, &cancel).unwrap();
    let mut groups = collected.groups;
    let algorithm = LooksAgain(algo::Settings::of("rloo").unwrap(), rounds);
    let how = How { algorithm: &algorithm, temperature: 1.0, banned: &[], step: 1 };
    let mut again =
        |policy: &mut dyn Policy, round, tasks: &[_]| source.attempt(policy, (1, round), tasks, &mut Quiet, &cancel);
    let answers = Advice { chat, teacher: None }.fulfil(&mut policy, how, &mut groups, &mut again).unwrap();
    let signals = algorithm.signals(&groups, &answers).unwrap();
    assert_eq!(signals.groups.len(), groups.len(), "further attempts are trained on");
    (groups, answers)
}

#[test]
fn further_attempts_are_graded_groups_behind_the_first_and_every_answer_covers_them() {
    let (groups, answers) = fulfilled(2);
    assert_eq!((groups.len(), &answers.further[..]), (6, &[0, 1, 0, 1][..]));
    assert_eq!(groups.iter().map(|g| g.episodes.len()).collect::<Vec<_>>(), [4, 4, 3, 3, 3, 3]);
    for (group, of) in groups[2..].iter().zip(&answers.further) {
        let first = &groups[*of].task;
        assert_eq!((&group.task.gold, &group.task.env), (&first.gold, &first.env));
        assert!(group.task.messages.len() > first.messages.len() && group.task.id != first.id);
        assert!(group.episodes.iter().all(|e| e.outcome.reward().is_some() && e.key.step == 1));
    }
    let reference = answers.reference.unwrap();
    let of_episodes: Vec<usize> = reference.iter().map(Vec::len).collect();
    assert_eq!(of_episodes, [4, 4, 3, 3, 3, 3], "what was asked before they came does not cover them");
}

#[test]
fn the_same_question_again_is_answered_by_other_random_numbers_and_always_the_same() {
    let (groups, _) = fulfilled(1);
    assert_eq!(groups[2].task.id, groups[0].task.id, "asked again in the same words");
    let said = |g: usize| groups[g].episodes.iter().map(|e| e.sequences[0].tokens().to_vec()).collect::<Vec<_>>();
    assert!(said(2).iter().all(|s| !said(0).contains(s)), "its answers are new ones");
    assert_eq!(fulfilled(1).0, groups);
}

#[test]
fn attempts_of_no_group_are_the_algorithms_fault() {
    struct Odd(algo::Settings);
    impl Algorithm for Odd {
        fn resolve(&mut self) -> Result<(), AlgoError> {
            Ok(())
        }
        fn check(&self, _: usize) -> Result<(), AlgoError> {
            Ok(())
        }
        fn admit(&self, _: &Group) -> Admission {
            Admission::Keep
        }
        fn requests(&self, _: &[Group], _: &Answers) -> Vec<Request> {
            vec![Request::Attempts(vec![Further { of: 5, messages: Vec::new(), n: 1 }])]
        }
        fn signals(&self, groups: &[Group], answers: &Answers) -> Result<Signals, AlgoError> {
            self.0.algorithm().signals(groups, answers)
        }
    }
    let place = tiny::Place::new();
    let chat = Arc::new(Chat::new(open(&place.model()).unwrap().tokenizer).unwrap());
    let mut policy = policy(chat.end().unwrap());
    let algorithm = Odd(algo::Settings::of("rloo").unwrap());
    let how = How { algorithm: &algorithm, temperature: 1.0, banned: &[], step: 1 };
    let mut again = |_: &mut dyn Policy, _, _: &[_]| panic!("asked of no group");
    let failed = Advice { chat, teacher: None }.fulfil(&mut policy, how, &mut Vec::new(), &mut again);
    assert!(matches!(failed, Err(RunError::Policy { step: 1, .. })));
}
