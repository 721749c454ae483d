//! Metrics: sums that merge, and means that say what they should.

use surefoot_loss::{
    BradleyTerry, Dpo, Estimator, Kl, Loss, Metrics, PolicyGradient, Reduction, Sums, Term, TokenMask, Uncorrected,
    ValueLoss,
};

use super::rows::{Lists, groups, losses, run, terms, totals};

fn metrics(loss: &Loss, group: &[Lists]) -> Metrics {
    run(loss, &totals(&groups()), group).sums.metrics()
}

fn near(got: Option<f64>, want: f64) {
    assert!(got.is_some_and(|got| (got - want).abs() < 1e-12 * (1.0 + want.abs())), "{got:?}, wanted {want}");
}

/// The trained tokens of a group.
fn trained(group: &[Lists]) -> impl Iterator<Item = (&Lists, usize)> {
    group.iter().flat_map(|l| (0..l.trained.len()).filter(|t| l.trained[*t]).map(move |t| (l, t)))
}

#[test]
fn a8_merging_adds_every_sum_and_keeps_every_largest() {
    let all = groups();
    let totals = totals(&all);
    let mut loss = losses(&terms()[1], Reduction::TokenMean, &uncorrected())[3].clone();
    loss.value = Some(ValueLoss { clip: Some(0.125), coefficient: 0.5 });
    let mut one = run(&loss, &totals, &all[0]).sums;
    loss.term = Term::Dpo(Dpo { beta: 0.5 });
    // Turned round, so that some pair is told apart rightly.
    let mut turned = all[0].clone();
    turned.iter_mut().for_each(|l| l.pair.iter_mut().for_each(|p| p.chosen = !p.chosen));
    one.merge(&run(&loss, &totals, &turned).sums);
    let mut two = one;
    two.merge(&one);
    let fields = |sums: &Sums| serde_json::to_value(sums).unwrap().as_object().unwrap().clone();
    let (one, two) = (fields(&one), fields(&two));
    for (name, value) in &one {
        let (value, merged) = (value.as_f64().unwrap(), two[name].as_f64().unwrap());
        assert_ne!(value, 0.0, "`{name}` is not tested here");
        let want = if name.ends_with("_max") { value } else { 2.0 * value };
        assert_eq!(merged, want, "`{name}`");
    }
}

fn uncorrected() -> surefoot_loss::Correction {
    surefoot_loss::Correction::Uncorrected(Uncorrected {})
}

#[test]
fn explained_variance_is_one_minus_the_share_of_the_errors() {
    let group = &groups()[0];
    let loss = losses(&terms()[0], Reduction::TokenMean, &uncorrected())[1].clone();
    let all: Vec<(f64, f64)> =
        trained(group).map(|(l, t)| (f64::from(l.value[t]), f64::from(l.target.returns[t]))).collect();
    let n = all.len() as f64;
    let variance = |values: Vec<f64>| {
        let mean = values.iter().sum::<f64>() / n;
        values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n
    };
    let errors = variance(all.iter().map(|(v, r)| r - v).collect());
    let returns = variance(all.iter().map(|(_, r)| *r).collect());
    near(metrics(&loss, group).explained_variance, 1.0 - errors / returns);

    let mut right = group.clone();
    right.iter_mut().for_each(|l| l.value.clone_from(&l.target.returns));
    near(metrics(&loss, &right).explained_variance, 1.0);
    // A head that says the same everywhere explains nothing, whatever it says.
    right.iter_mut().for_each(|l| l.value.iter_mut().for_each(|v| *v = 3.0));
    near(metrics(&loss, &right).explained_variance, 0.0);
    // Returns that are all equal leave nothing to explain.
    right.iter_mut().for_each(|l| l.target.returns.iter_mut().for_each(|r| *r = 0.1));
    assert_eq!(metrics(&loss, &right).explained_variance, None);
}

#[test]
fn without_values_or_pairs_their_metrics_are_absent() {
    let rows = groups();
    let row = rows[0][0].row();
    let bare = surefoot_loss::Row { value: None, value_target: None, ..row };
    let loss = Loss::new(terms()[0].clone(), Reduction::TokenMean);
    let got = surefoot_loss::evaluate(&loss, &totals(&rows), &[bare]).unwrap().sums.metrics();
    assert_eq!((got.explained_variance, got.value_clip_share, got.loss_value), (None, None, 0.0));
    assert_eq!((got.pair_accuracy, got.pair_margin), (None, None));
}

#[test]
fn tokens_left_out_are_those_that_a_weight_or_the_correction_silences() {
    let group = &groups()[0];
    let mut loss = Loss::new(terms()[0].clone(), Reduction::TokenMean);
    let n = trained(group).count() as f64;
    let silent = |band: (f64, f64)| {
        let outside = |(l, t): &(&Lists, usize)| {
            let ratio = (f64::from(l.old[*t]) - f64::from(l.sampler[*t])).exp();
            l.weight[*t] == 0.0 || ratio < band.0 || ratio > band.1
        };
        trained(group).filter(outside).count() as f64 / n
    };
    near(metrics(&loss, group).silent_share, silent((0.0, f64::INFINITY)));
    loss.correction = surefoot_loss::Correction::TokenMask(TokenMask { low: 0.8, high: 1.25 });
    near(metrics(&loss, group).silent_share, silent((0.8, 1.25)));
    assert!(silent((0.8, 1.25)) > silent((0.0, f64::INFINITY)));
}

#[test]
fn the_second_moment_is_of_the_gap_to_the_sampler() {
    let group = &groups()[0];
    let squares: Vec<f64> =
        trained(group).map(|(l, t)| (f64::from(l.logp[t]) - f64::from(l.sampler[t])).powi(2)).collect();
    let got = metrics(&Loss::new(terms()[0].clone(), Reduction::TokenMean), group);
    near(got.mismatch_m2, squares.iter().sum::<f64>() / squares.len() as f64);
}

#[test]
fn pairs_are_told_apart_by_their_margin() {
    let group = &groups()[1];
    let score = |l: &Lists| {
        let last = (0..l.trained.len()).rev().find(|t| l.trained[*t] && l.weight[*t] != 0.0).unwrap();
        f64::from(l.value[last])
    };
    // The second group is one pair, the rejected side first.
    let margin = score(&group[1]) - score(&group[0]);
    let loss = Loss::new(Term::BradleyTerry(BradleyTerry {}), Reduction::PairMean);
    let got = metrics(&loss, group);
    near(got.pair_margin, margin);
    assert_eq!(got.pair_accuracy, Some(if margin > 0.0 { 1.0 } else { 0.0 }));
    let mut turned = group.clone();
    turned.iter_mut().for_each(|l| l.pair.iter_mut().for_each(|p| p.chosen = !p.chosen));
    let got = metrics(&loss, &turned);
    near(got.pair_margin, -margin);
    assert_eq!(got.pair_accuracy, Some(if margin < 0.0 { 1.0 } else { 0.0 }));
}

/// The pull towards π_old of a selection counts with the KL.
#[test]
fn a_pull_is_part_of_the_kls_share() {
    let group = &groups()[0];
    let totals = totals(&groups());
    let mut loss = Loss::new(
        Term::PolicyGradient(PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None }),
        Reduction::Sum,
    );
    let pull: f64 = trained(group)
        .map(|(l, t)| f64::from(l.weight[t] * l.pull[t]) * (f64::from(l.logp[t]) - f64::from(l.old[t])).abs())
        .sum();
    assert!(pull > 0.1);
    near(Some(run(&loss, &totals, group).sums.loss_kl), pull);
    loss.kl = Some(Kl { estimator: Estimator::K2, coefficient: 0.5 });
    let kl: f64 = trained(group)
        .map(|(l, t)| 0.25 * f64::from(l.weight[t]) * (f64::from(l.logp[t]) - f64::from(l.reference[t])).powi(2))
        .sum();
    near(Some(run(&loss, &totals, group).sums.loss_kl), pull + kl);
}
