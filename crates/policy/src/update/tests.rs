//! Updates with the scripted policy; the names carry the number of the fault they rule out.

use episode::Role;
use loss::{
    BradleyTerry, Correction, Divergence, Nll, Old, Pair, PolicyGradient, Reduction, Reinforce, Teacher, Term,
    TokenTis, Top, ValueLoss, ValueTarget,
};

use super::*;
use crate::fake::Scripted;
use crate::values::tests::{episode, graded, task};
use crate::{Ask, Under, values};

const STEP: AdamStep =
    AdamStep { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };

fn policy() -> Scripted {
    Scripted::new(Box::new(|_, _| vec![1]))
}

/// A prompt of two tokens and `n` sampled ones, recorded as the scripted policy says them.
fn sequence(n: usize, version: u32) -> Sequence {
    let mut s = Sequence::new();
    s.append_context(Role::User, &[7, 8]);
    let logp = vec![Scripted::LOGP; n];
    s.append_sampled(&vec![3; n], &logp, &logp, version).unwrap();
    s
}

fn signal(sequence: &Sequence, advantage: f32) -> Signal {
    let n = sequence.len();
    Signal { advantage: vec![advantage; n], weight: vec![1.0; n], ..Signal::default() }
}

/// Owns what a batch borrows: by group, (sampled tokens, advantage).
struct Data(Vec<Vec<(Sequence, Signal)>>);

impl Data {
    fn new(groups: &[&[(usize, f32)]]) -> Self {
        let one = |(n, advantage): &(usize, f32)| {
            let s = sequence(*n, 0);
            let signal = signal(&s, *advantage);
            (s, signal)
        };
        Data(groups.iter().map(|g| g.iter().map(one).collect()).collect())
    }

    fn batch(&self) -> UpdateBatch<'_> {
        let groups = self.0.iter().map(|g| g.iter().map(|(s, v)| (s, v)).collect()).collect();
        UpdateBatch { groups, temperature: 1.0, banned: &[], keep_tokens: true }
    }
}

fn grpo(reduction: Reduction) -> Loss {
    Loss::new(Term::PolicyGradient(PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None }), reduction)
}

fn run(policy: &mut Scripted, data: &Data, loss: &Loss) -> UpdateOutcome {
    update_batch(policy, &data.batch(), loss, Some(&STEP)).unwrap()
}

#[test]
fn a1_the_denominator_is_the_whole_batch_and_not_the_group() {
    let mut policy = policy();
    let data = Data::new(&[&[(1, 1.0), (3, -1.0)], &[(6, 2.0)]]);
    let got = update_batch(&mut policy, &data.batch(), &grpo(Reduction::TokenMean), None).unwrap();
    assert_eq!(got.totals, Totals { n_tokens: 10, n_sequences: 3, n_pairs: 0 });
    assert!((got.metrics.loss - (-1.0 + 3.0 - 12.0) / 10.0).abs() < 1e-15);
    let received: Vec<&Vec<f32>> = policy.received.iter().flatten().map(|g| &g.dlogp).collect();
    assert_eq!(received[0], &[0.0, 0.0, -0.1]);
    assert_eq!(received[1], &[0.0, 0.0, 0.1, 0.1, 0.1]);
    assert_eq!(received[2][2..], [-0.2; 6]);
    assert!(got.report.is_none() && policy.updates.is_empty());
}

#[test]
fn b6_a_batch_without_signal_moves_nothing_and_is_counted() {
    let mut policy = policy();
    let data = Data::new(&[&[(2, 0.0), (3, 0.0)], &[(1, 0.0)]]);
    let got = run(&mut policy, &data, &grpo(Reduction::TokenMean));
    assert!(got.skipped());
    assert_eq!((got.n_groups_computed, got.report), (0, None));
    assert!(policy.received.is_empty() && policy.updates.is_empty(), "neither forward nor optimiser ran");
    assert_eq!(got.metrics.abs_advantage, None);
    let empty = UpdateBatch { groups: vec![], temperature: 1.0, banned: &[], keep_tokens: false };
    assert!(update_batch(&mut policy, &empty, &grpo(Reduction::TokenMean), Some(&STEP)).unwrap().skipped());
}

#[test]
fn b6_a_group_without_signal_is_not_computed_but_stays_in_the_denominator() {
    let mut policy = policy();
    let data = Data::new(&[&[(2, 1.0), (3, 0.0)], &[(5, 0.0)]]);
    let got = run(&mut policy, &data, &grpo(Reduction::TokenMean));
    assert_eq!((got.n_groups_computed, got.totals.n_tokens, got.metrics.n_tokens), (1, 10, 5));
    assert!((got.metrics.loss + 0.2).abs() < 1e-15);
    assert!(got.tokens[0].iter().all(Option::is_some), "a sequence worth nothing in a group that is computed is too");
    assert_eq!(got.tokens[1], [None]);
    // With an entropy bonus the group does teach something.
    let mut loss = grpo(Reduction::TokenMean);
    loss.entropy_coefficient = 0.01;
    assert_eq!(run(&mut policy, &data, &loss).n_groups_computed, 2);
}

#[test]
fn c13_the_first_on_policy_update_has_a_ratio_of_exactly_one() {
    let data = Data::new(&[&[(4, 1.0), (3, -1.0)]]);
    let got = run(&mut policy(), &data, &grpo(Reduction::SequenceMean)).metrics;
    assert_eq!(
        (got.ratio, got.mismatch_kl, got.mismatch_max, got.clip_share),
        (Some(1.0), Some(0.0), Some(0.0), Some(0.0))
    );
}

#[test]
fn a_second_update_of_a_step_sees_how_far_the_policy_moved() {
    let data = Data::new(&[&[(4, 1.0), (3, -1.0)]]);
    let mut policy = policy();
    policy.drift = 0.25;
    let got = run(&mut policy, &data, &grpo(Reduction::TokenMean)).metrics;
    assert!((got.ratio.unwrap() - 0.25f64.exp()).abs() < 1e-15);
    assert_eq!(
        got.clip_high_share,
        Some(4.0 / 7.0),
        "good tokens beyond the bound are left alone, bad ones pushed back"
    );
}

#[test]
fn c17_a_corrupted_record_moves_ratio_and_mismatch() {
    let mut data = Data::new(&[&[(4, 1.0)]]);
    let mut s = Sequence::new();
    s.append_context(Role::User, &[7, 8]);
    let logp = [Scripted::LOGP, Scripted::LOGP - 0.5, Scripted::LOGP, Scripted::LOGP];
    s.append_sampled(&[3; 4], &logp, &logp, 0).unwrap();
    data.0[0][0].0 = s;
    let got = run(&mut policy(), &data, &grpo(Reduction::TokenMean)).metrics;
    assert_eq!(got.mismatch_max, Some(0.5));
    assert!(got.ratio.unwrap() > 1.1 && got.mismatch_kl.unwrap() > 0.01);
}

#[test]
fn c12_a_correction_weighs_by_the_policy_at_the_start_of_the_step() {
    let mut policy = policy();
    policy.drift = 0.25;
    let mut data = Data::new(&[&[(2, 1.0)]]);
    let group = episode::Group { task: task(), episodes: vec![episode(vec![data.0[0][0].0.clone()], graded())] };
    let now = values(&mut policy, &Ask::plain(Under::Now), &[group], 1.0, &[]).unwrap();
    data.0[0][0].1.old = Old::Forward(now[0][0][0].logp.clone());
    for (cap, want) in [(2.0, 0.25f64.exp()), (1.125, 1.125)] {
        let mut loss = grpo(Reduction::TokenMean);
        loss.correction = Correction::TokenTis(TokenTis { cap });
        let got = run(&mut policy, &data, &loss).metrics;
        assert_eq!(got.ratio, Some(1.0), "the ratio is to the start of the step");
        assert!((got.correction.unwrap() - want).abs() < 1e-15 && (got.loss + want).abs() < 1e-15);
    }
}

#[test]
fn d1_derivatives_land_on_the_sampled_tokens() {
    let mut policy = policy();
    let data = Data::new(&[&[(2, 1.0)]]);
    let got = update_batch(&mut policy, &data.batch(), &Loss::new(Term::Nll(Nll {}), Reduction::Sum), None).unwrap();
    assert_eq!(policy.received[0][0].dlogp, [0.0, 0.0, -1.0, -1.0]);
    assert_eq!(got.tokens[0][0].as_ref().unwrap().loss, [0.0, 0.0, 0.5, 0.5]);
    assert_eq!(got.tokens[0][0].as_ref().unwrap().logp[2..], [Scripted::LOGP; 2]);
}

#[test]
fn a_sequence_that_begins_with_a_sampled_token_is_refused() {
    let mut s = Sequence::new();
    s.append_sampled(&[3], &[-0.5], &[-0.5], 0).unwrap();
    let v = signal(&s, 1.0);
    let batch = UpdateBatch { groups: vec![vec![(&s, &v)]], temperature: 1.0, banned: &[], keep_tokens: false };
    let got = update_batch(&mut policy(), &batch, &grpo(Reduction::Sum), None);
    assert!(matches!(got, Err(PolicyError::NoPrompt)));
}

#[test]
fn an_episode_without_sampled_tokens_is_nowhere() {
    let mut policy = policy();
    let data = Data::new(&[&[(0, 1.0), (2, 1.0)]]);
    let got = run(&mut policy, &data, &grpo(Reduction::SequenceMean));
    assert_eq!(got.totals, Totals { n_tokens: 2, n_sequences: 1, n_pairs: 0 });
    assert_eq!(got.metrics.loss, -1.0);
    assert!(got.tokens[0][0].is_none() && got.tokens[0][1].is_some());
}

#[test]
fn a_broken_log_probability_stops_the_update_and_says_where() {
    let mut policy = policy();
    policy.broken = Some((0, 1, 3));
    // Group 0 carries no signal, so the learner's group 0 is the batch's group 1.
    let data = Data::new(&[&[(1, 0.0)], &[(2, 1.0), (2, -1.0)]]);
    let got = update_batch(&mut policy, &data.batch(), &grpo(Reduction::TokenMean), Some(&STEP)).unwrap_err();
    let want = "group 1 of the update batch: logp is NaN at token 3 of sequence 1, needed a finite number";
    assert_eq!(got.to_string(), want);
    assert!(policy.updates.is_empty(), "the policy has not moved");
}

#[test]
fn an_update_reports_the_optimisers_move() {
    let mut policy = policy();
    let data = Data::new(&[&[(1, 1.0)]]);
    let loss = Loss::new(Term::Reinforce(Reinforce {}), Reduction::Sum);
    let got = run(&mut policy, &data, &loss);
    assert_eq!(got.report, Some(UpdateReport { grad_norm: 1.0, clip_scale: 1.0, n_updates: 1 }));
    assert_eq!(policy.updates, [STEP]);
    assert_eq!(got.metrics.dlogp_norm, 1.0);
}

#[test]
fn per_token_data_come_only_when_asked_for() {
    let data = Data::new(&[&[(1, 1.0)]]);
    let mut batch = data.batch();
    batch.keep_tokens = false;
    let got = update_batch(&mut policy(), &batch, &grpo(Reduction::Sum), None).unwrap();
    assert!(got.tokens.is_empty());
}

#[test]
fn lag_counts_sampled_tokens_by_versions_behind() {
    let all = [sequence(2, 5), sequence(3, 4), sequence(1, 1)];
    assert_eq!(lag(&all, 5), BTreeMap::from([(0, 2), (1, 3), (4, 1)]));
    assert_eq!(lag(&[sequence(1, 7)], 5), BTreeMap::from([(-2, 1)]));
}

#[test]
fn a_value_loss_is_of_the_state_before_each_token_and_its_derivatives_reach_the_learner() {
    let mut policy = policy();
    let mut data = Data::new(&[&[(2, 1.0)]]);
    let target = ValueTarget { old: vec![0.0; 4], returns: vec![f32::NAN, f32::NAN, 1.0, -1.0] };
    data.0[0][0].1.value = Some(target);
    let mut loss = Loss::new(Term::Reinforce(Reinforce {}), Reduction::Sum);
    loss.value = Some(ValueLoss { clip: None, coefficient: 0.5 });
    let got = run(&mut policy, &data, &loss);
    assert_eq!(policy.wants, [Want { value: ValueAt::Before, top_k: 0 }]);
    // The values after two and three tokens are 1/8 and 3/16.
    let want = [0.0, 0.0, 0.5 * (0.125 - 1.0), 0.5 * (0.1875 + 1.0)];
    let record = got.tokens[0][0].as_ref().unwrap();
    assert_eq!((record.value.as_slice(), record.dvalue.as_slice()), (&[0.0, 0.0, 0.125, 0.1875][..], &want[..]));
    let size = 2.0 + want.iter().map(|d: &f32| f64::from(d * d)).sum::<f64>();
    assert!((got.report.unwrap().grad_norm - size.sqrt()).abs() < 1e-7, "the optimiser saw both");
}

#[test]
fn a_score_is_of_the_state_that_has_read_the_last_token() {
    let mut policy = policy();
    let mut data = Data::new(&[&[(3, 1.0), (1, 1.0)]]);
    for (place, chosen) in [(0, true), (1, false)] {
        data.0[0][place].1.pair = Some(Pair { index: 0, chosen });
    }
    let loss = Loss::new(Term::BradleyTerry(BradleyTerry {}), Reduction::PairMean);
    let got = update_batch(&mut policy, &data.batch(), &loss, None).unwrap();
    assert_eq!(policy.wants, [Want { value: ValueAt::After, top_k: 0 }]);
    // Sequences of five and of three tokens: 5/16 against 3/16.
    let margin = 0.125_f64;
    assert!((got.metrics.loss - (1.0 + (-margin).exp()).ln()).abs() < 1e-12);
    let push = (1.0 / (1.0 + margin.exp())) as f32;
    assert_eq!(policy.received[0][0].dvalue, [0.0, 0.0, 0.0, 0.0, -push]);
    assert_eq!(policy.received[0][1].dvalue, [0.0, 0.0, push]);
    assert_eq!(got.totals.n_pairs, 1);
}

#[test]
fn tokens_that_a_teacher_was_asked_about_are_asked_of_the_learner_where_the_loss_reads_them() {
    let mut data = Data::new(&[&[(2, 1.0)]]);
    let ids = vec![0, 0, 0, 0, 5, 2, 1, 9];
    let logp = vec![f32::NAN, f32::NAN, f32::NAN, f32::NAN, -1.0, -2.0, -1.5, -2.5];
    let top = Top { k: 2, ids: ids.clone(), logp };
    data.0[0][0].1.teacher = Some(Teacher { logp: vec![-1.0; 4], top: Some(top) });
    let mut policy = policy();
    let forward_kl = Loss::new(Term::Divergence(Divergence { alpha: 0.0, cap: None }), Reduction::Sum);
    let got = run(&mut policy, &data, &forward_kl);
    let dtop = &policy_dtop(&mut policy, &data, &forward_kl);
    assert_eq!((dtop.len(), &dtop[..4]), (8, &[0.0; 4][..]));
    assert!(dtop[4..].iter().all(|d| *d != 0.0) && &got.tokens[0][0].as_ref().unwrap().dtop == dtop, "{dtop:?}");
    // Σ over both places of Σ T ln(T/S), with S as the learner names them and the rest in one bucket.
    let divergence = |t: [f64; 2], s: [f64; 2]| {
        let (t, s) = (t.map(f64::exp), s.map(f64::exp));
        let all = |p: [f64; 2]| [p[0], p[1], 1.0 - p[0] - p[1]];
        all(t).iter().zip(all(s)).map(|(t, s)| t * (t / s).ln()).sum::<f64>()
    };
    let s = |a, b| [f64::from(Scripted::logp_of(a)), f64::from(Scripted::logp_of(b))];
    let want = divergence([-1.0, -2.0], s(5, 2)) + divergence([-1.5, -2.5], s(1, 9));
    assert!((got.metrics.loss - want).abs() < 1e-6, "{} {want}", got.metrics.loss);
    // A loss that does not read them does not ask.
    assert_eq!(policy_dtop(&mut policy, &data, &grpo(Reduction::Sum)), [0.0; 0]);
}

fn policy_dtop(policy: &mut Scripted, data: &Data, loss: &Loss) -> Vec<f32> {
    policy.received.clear();
    update_batch(policy, &data.batch(), loss, None).unwrap();
    policy.received[0][0].dtop.clone()
}
