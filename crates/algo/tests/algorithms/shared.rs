//! Episodes to test with.

use episode::{Cause, Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, Stage, StopReason, Task};
use loss::{Pair, Row, RowLoss, Signal, Teacher, TokenValues, Top, Totals, evaluate};
use serde_json::Value;
use surefoot_algo::{AlgoError, Algorithm, Answers, Now, PerSequence, Request, Settings, Signals};

pub(crate) fn task(name: &str) -> Task {
    Task::new("sums", vec![Message::new(Role::User, name)], Value::Null, Value::Null)
}

pub(crate) fn sequence(n: usize) -> Sequence {
    let mut s = Sequence::new();
    s.append_context(Role::User, &[7, 8]);
    let logp: Vec<f32> = (0..n).map(|t| -0.25 - 0.125 * (t % 4) as f32).collect();
    s.append_sampled(&vec![3; n], &logp, &logp, 0).expect("lists have one length");
    s
}

pub(crate) fn episode(task: &Task, sample: u32, n: usize, outcome: Outcome) -> Episode {
    let key = EpisodeKey { step: 0, task: task.id.clone(), sample };
    Episode {
        key,
        sequences: vec![sequence(n)],
        messages: [task.messages.clone(), vec![Message::new(Role::Assistant, format!("reply {sample}"))]].concat(),
        outcome,
        stop: StopReason::Eos,
        turn_rewards: Vec::new(),
        conduct: episode::Conduct::default(),
    }
}

pub(crate) fn graded(reward: f64) -> Outcome {
    Outcome::Graded { reward, parts: vec![] }
}

pub(crate) fn failed() -> Outcome {
    Outcome::Failed { stage: Stage::Grader, cause: Cause::new("deadline", "took 30 s") }
}

/// A group whose episodes have these rewards, and as many sampled tokens as their place plus one.
pub(crate) fn group(name: &str, rewards: &[f64]) -> Group {
    let task = task(name);
    let episodes = rewards.iter().enumerate();
    let episodes = episodes.map(|(i, r)| episode(&task, i as u32, i + 1, graded(*r))).collect();
    Group { task, episodes }
}

pub(crate) fn settings(text: &str) -> Settings {
    toml::from_str(text).expect(text)
}

pub(crate) fn signals(text: &str, groups: &[Group]) -> Result<Signals, AlgoError> {
    settings(text).algorithm().signals(groups, &Answers::new())
}

/// The advantage of each episode's first sampled token.
pub(crate) fn advantages(signals: &Signals, group: usize) -> Vec<Option<f32>> {
    let episodes = signals.groups[group].episodes.iter();
    episodes.map(|e| e.as_ref().and_then(|s| s[0].advantage.get(2).copied())).collect()
}

/// Something for each token of every sequence, sampled or not.
pub(crate) fn by_token<T>(groups: &[Group], of: impl Fn(&Sequence, usize) -> T) -> PerSequence<Vec<T>> {
    let sequence = |s: &Sequence| (0..s.len()).map(|t| of(s, t)).collect();
    let episode = |e: &Episode| e.sequences.iter().map(sequence).collect();
    groups.iter().map(|g| g.episodes.iter().map(episode).collect()).collect()
}

/// Log-probabilities of the three most likely tokens, `[T · 3]`, that leave something for all others.
pub(crate) fn top(n: usize, shift: f32) -> Top {
    let each = [-0.75 + shift, -1.5 - shift, -3.0];
    Top {
        k: 3,
        ids: (0..n as u32 * 3).map(|i| i % 3).collect(),
        logp: each.iter().copied().cycle().take(n * 3).collect(),
    }
}

/// Answers everything an algorithm asks, by other log-probabilities, entropies and values in every place.
pub(crate) fn answer(algorithm: &dyn Algorithm, groups: &[Group]) -> (Vec<Request>, Answers) {
    let mut answers = Answers { version: Some(3), ..Answers::new() };
    let mut all = Vec::new();
    let moved = |shifts: [f32; 2]| by_token(groups, |s, t| s.logp()[t] + shifts[t % 2]);
    loop {
        let requests = algorithm.requests(groups, &answers);
        if requests.is_empty() {
            return (all, answers);
        }
        for request in &requests {
            match request {
                Request::Attempts(_) => unreachable!("no algorithm of the table makes further attempts"),
                Request::Reference => answers.reference = Some(moved([-0.5, -0.125])),
                Request::Now(Now { value, top_k }) => {
                    let mut now = values(moved([0.75, -0.25]));
                    for (group, now) in groups.iter().zip(&mut now) {
                        for (e, values) in
                            now.iter_mut().enumerate().flat_map(|(e, s)| s.iter_mut().map(move |v| (e, v)))
                        {
                            let n = values.logp.len();
                            // A little different in every place, so that no choice hangs on an order.
                            let own = |t: usize| (group.task.id.bits() % 97) as f32 * 1e-3 + (e * 7 + t) as f32 * 1e-4;
                            values.logp.iter_mut().enumerate().for_each(|(t, logp)| *logp -= own(t));
                            values.entropy = (0..n).map(|t| 0.25 + 0.5 * (t * 7 % 5) as f32 + own(t)).collect();
                            values.value = (0..if *value { n } else { 0 }).map(|t| 0.2 + 0.1 * t as f32).collect();
                            values.top = (*top_k > 0).then(|| top(n, 0.0));
                        }
                    }
                    answers.now = Some(now);
                }
                Request::Teacher(asked) => {
                    let mut teacher: PerSequence<Option<Teacher>> = Vec::new();
                    for (g, group) in moved([-0.25, 0.5]).into_iter().enumerate() {
                        let mut episodes = Vec::new();
                        for (e, episode) in group.into_iter().enumerate() {
                            let judged = asked.contexts.as_ref().is_none_or(|c| c[g][e].is_some());
                            let of = |logp: Vec<f32>| {
                                let top = asked.top.then(|| top(logp.len(), 0.25));
                                judged.then_some(Teacher { logp, top })
                            };
                            episodes.push(episode.into_iter().map(of).collect());
                        }
                        teacher.push(episodes);
                    }
                    answers.teacher = Some(teacher);
                }
            }
        }
        all.extend(requests);
    }
}

/// Signals with every request answered.
pub(crate) fn answered(text: &str, groups: &[Group]) -> Signals {
    let settings = settings(text);
    let (_, answers) = answer(settings.algorithm(), groups);
    settings.algorithm().signals(groups, &answers).expect(text)
}

/// What the policy thinks after it has moved far enough, in both directions, for every bound to bite.
pub(crate) fn moved_policy(place: usize, sequence: &Sequence) -> TokenValues {
    let shift = [1.5, -1.5, 1.25, -0.75][place % 4];
    let n = sequence.len();
    TokenValues {
        logp: sequence.logp().iter().map(|l| l + shift).collect(),
        entropy: vec![0.5; n],
        value: (0..n).map(|t| 0.9 - 0.3 * t as f32).collect(),
        top: Some(top(n, 0.125)),
    }
}

/// The loss of a whole step under a moved policy: its value, and each row's derivatives by group and sequence.
pub(crate) fn evaluate_step(
    signals: &Signals,
    groups: &[Group],
    policy: &dyn Fn(usize, usize, &Sequence) -> TokenValues,
) -> (f64, Vec<Vec<RowLoss>>) {
    let batch = signals.batch(groups, 0..groups.len());
    let sides = |group: &Vec<(&Sequence, &Signal)>| -> Vec<_> {
        group.iter().map(|(s, n)| (s.sampled().to_vec(), n.pair)).collect()
    };
    let counted: Vec<Vec<(Vec<bool>, Option<Pair>)>> = batch.iter().map(sides).collect();
    let totals = Totals::count(counted.iter().map(|g| g.iter().map(|(trained, pair)| (trained.as_slice(), *pair))));
    let (mut loss, mut all) = (0.0, Vec::new());
    for (g, sequences) in batch.iter().enumerate() {
        let now: Vec<TokenValues> = sequences.iter().enumerate().map(|(i, (s, _))| policy(g, i, s)).collect();
        let rows = sequences.iter().zip(&now).map(|((s, signal), now)| Row::new(s.sampled(), now, s.logp(), signal));
        let rows: Vec<Row<'_>> = rows.collect();
        let got = evaluate(&signals.loss, &totals, &rows).expect("the rows hold what the loss reads");
        loss += got.loss;
        all.push(got.rows);
    }
    (loss, all)
}

/// Log-probabilities as a pass gives them.
pub(crate) fn values(logp: PerSequence<Vec<f32>>) -> PerSequence<TokenValues> {
    let of = |logp: Vec<f32>| TokenValues::of(logp.clone(), vec![0.5; logp.len()]);
    let episode = |e: Vec<Vec<f32>>| e.into_iter().map(of).collect();
    logp.into_iter().map(|g| g.into_iter().map(episode).collect()).collect()
}
