//! Faults met in this field, each as a test of the loss; the names carry the case's number.

use surefoot_loss::{
    BradleyTerry, Correction, Decoupled, Distill, Dpo, Estimator, GroupLoss, Kl, Loss, LossError, Nll, Old, Pair,
    PolicyGradient, Reduction, Reinforce, Row, Signal, Sums, Teacher, Term, TokenTis, TokenValues, Totals, ValueLoss,
    ValueTarget, evaluate,
};

/// One sequence: trained mask, log π, log μ, advantage; every token weighs 1.
#[derive(Clone)]
struct Given {
    trained: Vec<bool>,
    logp: Vec<f32>,
    recorded: Vec<f32>,
    signal: Signal,
}

fn given(trained: &[u8], logp: &[f32], recorded: &[f32], advantage: f32) -> Given {
    let n = trained.len();
    Given {
        trained: trained.iter().map(|t| *t == 1).collect(),
        logp: logp.to_vec(),
        recorded: recorded.to_vec(),
        signal: Signal { advantage: vec![advantage; n], weight: vec![1.0; n], ..Signal::default() },
    }
}

/// A sequence of `n` trained tokens on which the policy has not moved.
fn on_policy(n: usize, advantage: f32) -> Given {
    let logp: Vec<f32> = (0..n).map(|t| -0.25 - 0.125 * t as f32).collect();
    given(&vec![1; n], &logp, &logp, advantage)
}

fn totals(all: &[Given]) -> Totals {
    Totals::count([all.iter().map(|g| (g.trained.as_slice(), g.signal.pair))])
}

fn run(loss: &Loss, totals: &Totals, all: &[Given]) -> Result<GroupLoss, LossError> {
    let values: Vec<TokenValues> = all.iter().map(|g| TokenValues::of(g.logp.clone(), Vec::new())).collect();
    let row = |(g, values): (_, _)| -> Row<'_> {
        let (g, values): (&Given, &TokenValues) = (g, values);
        Row::new(&g.trained, values, &g.recorded, &g.signal)
    };
    let rows: Vec<Row<'_>> = all.iter().zip(&values).map(row).collect();
    evaluate(loss, totals, &rows)
}

fn grpo(reduction: Reduction) -> Loss {
    Loss::new(Term::PolicyGradient(PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None }), reduction)
}

fn nll(reduction: Reduction) -> Loss {
    Loss::new(Term::Nll(Nll {}), reduction)
}

const REDUCTIONS: [Reduction; 5] = [
    Reduction::TokenMean,
    Reduction::SequenceMean,
    Reduction::SequenceSum,
    Reduction::FixedHorizon { horizon: 8 },
    Reduction::Sum,
];

/// Eight sequences of other lengths whose ratios are not 1.
fn eight() -> Vec<Given> {
    (0..8)
        .map(|i| {
            let mut g = on_policy(1 + (i * 5) % 7, i as f32 / 4.0 - 0.8);
            g.recorded.iter_mut().for_each(|l| *l -= 0.05 * (i as f32 - 3.0));
            g
        })
        .collect()
}

#[test]
fn a1_a2_a3_a10_the_loss_and_its_metrics_do_not_depend_on_the_micro_batch() {
    let all = eight();
    let totals = totals(&all);
    for reduction in REDUCTIONS {
        let mut loss = grpo(reduction);
        loss.correction = Correction::TokenTis(TokenTis { cap: 2.0 });
        let whole = run(&loss, &totals, &all).unwrap();
        for size in [1, 2, 4, 8] {
            let mut sums = Sums::default();
            let mut rows = Vec::new();
            for part in all.chunks(size) {
                let got = run(&loss, &totals, part).unwrap();
                sums.merge(&got.sums);
                rows.extend(got.rows);
            }
            // Derivatives to the bit; sums to the rounding of another association.
            assert_eq!(rows, whole.rows, "{reduction:?} in parts of {size}");
            assert!((sums.loss() - whole.loss).abs() <= 1e-15 * (1.0 + whole.loss.abs()));
            let (a, b) = (sums.metrics(), whole.sums.metrics());
            assert_eq!((a.n_tokens, a.n_sequences, a.clip_share), (b.n_tokens, b.n_sequences, b.clip_share));
            for (a, b) in [(a.ratio, b.ratio), (a.mismatch_kl, b.mismatch_kl), (a.ess, b.ess), (a.logp, b.logp)] {
                assert!((a.unwrap() - b.unwrap()).abs() < 1e-14);
            }
            assert_eq!(a.mismatch_max, b.mismatch_max);
        }
    }
}

#[test]
fn merging_groups_in_order_is_the_same_to_the_bit_however_they_are_spread() {
    let groups: Vec<Vec<Given>> = eight().chunks(2).map(<[Given]>::to_vec).collect();
    let totals = totals(&eight());
    let one_by_one = groups.iter().fold(Sums::default(), |mut sums, group| {
        sums.merge(&run(&grpo(Reduction::TokenMean), &totals, group).unwrap().sums);
        sums
    });
    // Micro-batches of three groups, then one: the groups still merge one by one.
    let mut cut = Sums::default();
    for micro_batch in groups.chunks(3) {
        for group in micro_batch {
            cut.merge(&run(&grpo(Reduction::TokenMean), &totals, group).unwrap().sums);
        }
    }
    assert_eq!(one_by_one, cut);
}

/// CASES A2: a value loss whose mean over eight tokens is .515 is .515 in one, two and four micro-batches.
#[test]
fn a2_the_value_loss_has_the_policys_denominator() {
    let mut loss = grpo(Reduction::TokenMean);
    loss.value = Some(ValueLoss { clip: None, coefficient: 1.0 });
    // ½(V − 0)² of these has a mean of .515.
    let values = [1.0f32, 0.5, 1.5, 0.25, 1.25, 0.75, 1.0, 1.245_993_6];
    let target = |n| Some(ValueTarget { old: vec![0.0; n], returns: vec![0.0; n] });
    let mut all: Vec<Given> = [1, 3, 2, 2].map(|n| on_policy(n, 0.0)).to_vec();
    all.iter_mut().for_each(|g| g.signal.value = target(g.logp.len()));
    let totals = totals(&all);
    let mut from = values.iter().copied();
    let values: Vec<TokenValues> = all
        .iter()
        .map(|g| TokenValues {
            value: from.by_ref().take(g.logp.len()).collect(),
            ..TokenValues::of(g.logp.clone(), Vec::new())
        })
        .collect();
    for size in [4, 2, 1] {
        let mut sums = Sums::default();
        for (all, values) in all.chunks(size).zip(values.chunks(size)) {
            let rows: Vec<Row<'_>> =
                all.iter().zip(values).map(|(g, v)| Row::new(&g.trained, v, &g.recorded, &g.signal)).collect();
            sums.merge(&evaluate(&loss, &totals, &rows).unwrap().sums);
        }
        assert!((sums.loss() - 0.515).abs() < 1e-7, "{size}: {}", sums.loss());
        assert_eq!(sums.loss(), sums.loss_value);
    }
}

/// CASES A3: eight equal samples lose the same in one micro-batch as in eight.
#[test]
fn a3_a_distillation_loss_does_not_grow_with_the_number_of_micro_batches() {
    let mut one = on_policy(3, 0.0);
    one.signal.teacher = Some(Teacher { logp: vec![-1.5; 3], top: None });
    let all = vec![one; 8];
    let totals = totals(&all);
    for term in [Term::Distill(Distill { cap: None }), Term::Distill(Distill { cap: Some(2.0) })] {
        let loss = Loss::new(term, Reduction::TokenMean);
        let whole = run(&loss, &totals, &all).unwrap().loss;
        let parts: f64 = all.chunks(1).map(|part| run(&loss, &totals, part).unwrap().loss).sum();
        let alone = run(&loss, &self::totals(&all[..1]), &all[..1]).unwrap().loss;
        assert!((whole - parts).abs() < 1e-15 && (whole - alone).abs() < 1e-15, "{whole} {parts} {alone}");
        assert!(whole.abs() > 0.1);
    }
}

#[test]
fn a_micro_batch_that_counted_its_own_tokens_would_be_seen() {
    let all = eight();
    let wrong: f64 =
        all.chunks(2).map(|part| run(&grpo(Reduction::TokenMean), &totals(part), part).unwrap().loss).sum::<f64>()
            / 4.0;
    let right = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap().loss;
    assert!((wrong - right).abs() > 1e-3, "{wrong} {right}");
}

#[test]
fn the_order_of_sequences_changes_no_derivative() {
    let all = eight();
    let mut turned = all.clone();
    turned.reverse();
    for reduction in REDUCTIONS {
        let a = run(&grpo(reduction), &totals(&all), &all).unwrap();
        let mut b = run(&grpo(reduction), &totals(&turned), &turned).unwrap();
        b.rows.reverse();
        assert_eq!(a.rows, b.rows);
        assert!((a.loss - b.loss).abs() <= 1e-15 * (1.0 + a.loss.abs()));
    }
}

#[test]
fn a4_a8_unequal_parts_count_by_tokens() {
    // 2 tokens with a mean of 1 and 8 with a mean of 2: 18 / 10, not 1.5.
    let all = [given(&[1; 2], &[-1.0; 2], &[-1.0; 2], 1.0), given(&[1; 8], &[-2.0; 8], &[-2.0; 8], 1.0)];
    let totals = totals(&all);
    let mut sums = Sums::default();
    for part in all.chunks(1) {
        sums.merge(&run(&nll(Reduction::TokenMean), &totals, part).unwrap().sums);
    }
    assert!((sums.loss() - 1.8).abs() < 1e-15);
    assert_eq!(sums.metrics().logp, Some(-1.8));
}

#[test]
fn a7_the_denominator_counts_generated_tokens() {
    // Seven generated tokens with a loss of 1 after a prompt that has none.
    let mut trained = vec![0; 5];
    trained.extend([1; 7]);
    let all = [given(&trained, &[-1.0; 12], &[-1.0; 12], 1.0)];
    assert_eq!(totals(&all), Totals { n_tokens: 7, n_sequences: 1, n_pairs: 0 });
    let got = run(&nll(Reduction::TokenMean), &totals(&all), &all).unwrap();
    assert!((got.loss - 1.0).abs() < 1e-15);
}

#[test]
fn a15_a_loss_of_zero_still_pushes_and_the_metrics_say_so() {
    let all = [on_policy(1, 0.5), on_policy(3, -0.5)];
    for (reduction, want) in [(Reduction::SequenceMean, 0.0), (Reduction::TokenMean, 0.25)] {
        let got = run(&grpo(reduction), &totals(&all), &all).unwrap();
        assert_eq!(got.loss, want, "{reduction:?}");
        assert!(got.rows.iter().all(|row| row.dlogp.iter().all(|d| *d != 0.0)));
        let metrics = got.sums.metrics();
        assert_eq!(metrics.abs_advantage, Some(0.5));
        assert!(metrics.dlogp_norm > 0.2);
    }
}

#[test]
fn c5_a_kl_in_the_loss_changes_the_gradient() {
    let mut all = [on_policy(3, 0.5)];
    all[0].signal.logp_ref = Some(vec![-1.0; 3]);
    let bare = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap();
    for estimator in [Estimator::K1, Estimator::K2, Estimator::K3] {
        let mut loss = grpo(Reduction::TokenMean);
        loss.kl = Some(Kl { estimator, coefficient: 0.1 });
        let got = run(&loss, &totals(&all), &all).unwrap();
        assert!(got.rows[0].dlogp.iter().zip(&bare.rows[0].dlogp).all(|(a, b)| a != b), "{estimator:?}");
        assert!(got.sums.loss_kl != 0.0);
        loss.kl = Some(Kl { estimator, coefficient: 0.0 });
        assert_eq!(run(&loss, &totals(&all), &all).unwrap(), bare);
    }
}

#[test]
fn c8_nan_at_masked_places_never_leaks() {
    let nan = f32::NAN;
    let clean = [given(&[0, 1, 0, 1], &[0.0, -0.5, 0.0, -0.25], &[0.0, -0.5, 0.0, -0.5], 1.0)];
    let mut dirty = clean.clone();
    for list in [&mut dirty[0].logp, &mut dirty[0].recorded] {
        list[0] = nan;
        list[2] = f32::NEG_INFINITY;
    }
    for at in [0, 2] {
        dirty[0].signal.advantage[at] = nan;
        dirty[0].signal.weight[at] = nan;
    }
    let with_ref = |mut all: [Given; 1], hole: f32| {
        all[0].signal.logp_ref = Some(vec![hole, -1.0, hole, -1.0]);
        all
    };
    let (clean, dirty) = (with_ref(clean, 0.0), with_ref(dirty, nan));
    let mut loss = grpo(Reduction::TokenMean);
    loss.kl = Some(Kl { estimator: Estimator::K3, coefficient: 0.1 });
    loss.correction = Correction::TokenTis(TokenTis { cap: 2.0 });
    let got = run(&loss, &totals(&dirty), &dirty).unwrap();
    assert_eq!(got, run(&loss, &totals(&clean), &clean).unwrap());
    assert_eq!((got.rows[0].dlogp[0], got.rows[0].per_token[2]), (0.0, 0.0));
    // A masked mean of [.5, NaN] is .5.
    let half = [given(&[1, 0], &[-0.5, nan], &[-0.5, nan], 1.0)];
    assert_eq!(run(&nll(Reduction::TokenMean), &totals(&half), &half).unwrap().loss, 0.5);
}

#[test]
fn nan_at_a_trained_place_is_refused_with_its_position() {
    let mut all = [on_policy(2, 1.0), on_policy(3, 1.0)];
    all[1].logp[2] = f32::NAN;
    let got = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap_err().to_string();
    assert_eq!(got, "logp is NaN at token 2 of sequence 1, needed a finite number");
}

#[test]
fn an_exploded_ratio_is_refused_where_it_trains_and_silent_where_it_does_not() {
    let mut all = [on_policy(1, -1.0)];
    all[0].recorded[0] = -1000.0;
    let got = run(&grpo(Reduction::TokenMean), &totals(&all), &all);
    assert!(matches!(got, Err(LossError::NotFinite { sequence: 0, token: 0, .. })), "{got:?}");
    // So is a divergence that exploded.
    all[0].signal.weight[0] = 0.0;
    all[0].signal.logp_ref = Some(vec![1000.0]);
    let mut loss = grpo(Reduction::TokenMean);
    loss.kl = Some(Kl { estimator: Estimator::K3, coefficient: 0.1 });
    let got = run(&loss, &totals(&all), &all).unwrap();
    assert_eq!((got.loss, got.rows[0].dlogp[0], got.rows[0].per_token[0]), (0.0, 0.0, 0.0));
}

#[test]
fn a_correction_that_overflowed_is_refused_where_it_trains_and_silent_where_it_does_not() {
    let mut all = [on_policy(2, 1.0)];
    all[0].recorded[1] = -2000.0;
    all[0].signal.lag = Some(vec![1; 2]);
    let mut loss = Loss::new(Term::Reinforce(Reinforce {}), Reduction::Sum);
    loss.correction = Correction::Decoupled(Decoupled {});
    let got = run(&loss, &totals(&all), &all);
    assert!(matches!(got, Err(LossError::NotFinite { sequence: 0, token: 1, .. })), "{got:?}");
    all[0].signal.weight[1] = 0.0;
    let got = run(&loss, &totals(&all), &all).unwrap();
    assert_eq!((got.loss, got.rows[0].dlogp.clone()), (0.25, vec![-1.0, 0.0]));
}

#[test]
fn c13_equal_log_probabilities_give_a_ratio_of_exactly_one() {
    let all = eight().into_iter().map(|mut g| {
        g.recorded = g.logp.clone();
        g
    });
    let all: Vec<Given> = all.collect();
    let metrics = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap().sums.metrics();
    assert_eq!((metrics.ratio, metrics.log_ratio_max), (Some(1.0), Some(0.0)));
    assert_eq!((metrics.mismatch, metrics.mismatch_max, metrics.mismatch_kl), (Some(0.0), Some(0.0), Some(0.0)));
    assert_eq!((metrics.clip_share, metrics.ess), (Some(0.0), Some(1.0)));
}

#[test]
fn c17_a_corrupted_recorded_value_moves_ratio_and_mismatch() {
    let mut all = [on_policy(4, 1.0)];
    all[0].recorded[2] -= 0.5;
    let metrics = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap().sums.metrics();
    assert!((metrics.ratio.unwrap() - (3.0 + 0.5f64.exp()) / 4.0).abs() < 1e-15);
    assert_eq!((metrics.mismatch, metrics.mismatch_max), (Some(0.125), Some(0.5)));
    assert!((metrics.mismatch_kl.unwrap() - (0.5f64.exp() - 1.5) / 4.0).abs() < 1e-15);
    assert_eq!(metrics.clip_high_share, Some(0.25));
}

#[test]
fn d6_only_the_trained_positions_are_read() {
    // mask [0,0,1,1,1], log-probabilities [p,p,r0,r1,r2]: r0, r1, r2 and never p, p, r0.
    let all = [given(&[0, 0, 1, 1, 1], &[-9.0, -9.0, -1.0, -2.0, -3.0], &[0.0; 5], 1.0)];
    let got = run(&nll(Reduction::Sum), &totals(&all), &all).unwrap();
    assert_eq!(got.rows[0].per_token, [0.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(got.rows[0].dlogp, [0.0, 0.0, -1.0, -1.0, -1.0]);
}

#[test]
fn h11_nothing_trained_gives_no_mean_and_a_count_of_zero() {
    let all = [given(&[0, 0], &[0.0; 2], &[0.0; 2], 1.0)];
    for reduction in REDUCTIONS {
        let got = run(&grpo(reduction), &totals(&all), &all).unwrap();
        assert_eq!((got.loss, got.rows[0].dlogp.clone()), (0.0, vec![0.0; 2]));
        let metrics = got.sums.metrics();
        assert_eq!((metrics.n_tokens, metrics.n_sequences), (0, 0));
        assert_eq!((metrics.ratio, metrics.entropy, metrics.clip_share, metrics.ess), (None, None, None, None));
    }
    assert_eq!(run(&grpo(Reduction::TokenMean), &Totals::default(), &[]).unwrap().loss, 0.0);
    // A part without tokens does not overwrite what came before it.
    let one = [on_policy(3, 1.0)];
    let mut sums = run(&grpo(Reduction::TokenMean), &totals(&one), &one).unwrap().sums;
    let before = sums.metrics();
    sums.merge(&run(&grpo(Reduction::TokenMean), &totals(&one), &all).unwrap().sums);
    assert_eq!(sums.metrics(), before);
}

#[test]
fn a_token_that_weighs_nothing_stays_in_the_denominator() {
    let mut all = [on_policy(4, 1.0)];
    all[0].signal.weight[3] = 0.0;
    let got = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap();
    assert_eq!(got.loss, -0.75);
    assert_eq!(got.rows[0].dlogp, [-0.25, -0.25, -0.25, 0.0]);
}

#[test]
fn given_tokens_have_no_ratio_and_a_term_that_needs_one_says_so() {
    let mut all = [on_policy(2, 1.0)];
    all[0].signal.old = Old::Given;
    let metrics = run(&nll(Reduction::TokenMean), &totals(&all), &all).unwrap().sums.metrics();
    assert_eq!((metrics.ratio, metrics.mismatch_kl), (None, None));
    let got = run(&grpo(Reduction::TokenMean), &totals(&all), &all).unwrap_err().to_string();
    assert_eq!(got, "sequence 0 has no `logp_old`, which this loss needs");
}

#[test]
fn lists_of_another_length_and_totals_of_another_batch_are_refused() {
    let mut all = [on_policy(3, 1.0)];
    let good = totals(&all);
    all[0].signal.advantage.pop();
    let got = run(&grpo(Reduction::Sum), &good, &all).unwrap_err().to_string();
    assert_eq!(got, "`advantage` of sequence 0 has 2 entries, needed 3, one a token");
    let got = run(&grpo(Reduction::Sum), &Totals { n_tokens: 2, n_sequences: 1, n_pairs: 0 }, &[on_policy(3, 1.0)]);
    let got = got.unwrap_err().to_string();
    assert_eq!(got, "totals count 2 trained tokens, needed at least the 3 of this group");
}

#[test]
fn pairs_are_counted_by_group_whatever_the_number_of_their_sequences() {
    let pair = |index, chosen| Some(Pair { index, chosen });
    let (one, none): (&[bool], &[bool]) = (&[false, true], &[false]);
    let group =
        vec![(one, pair(0, true)), (one, pair(0, true)), (one, pair(0, false)), (one, pair(1, true)), (one, None)];
    let other = vec![(one, pair(0, true)), (none, pair(5, true))];
    assert_eq!(Totals::count([group, other]), Totals { n_tokens: 6, n_sequences: 6, n_pairs: 3 });
    let mut all = [on_policy(2, 1.0)];
    all[0].signal.pair = pair(0, true);
    all[0].signal.logp_ref = Some(vec![-1.0; 2]);
    let dpo = Loss::new(Term::Dpo(Dpo { beta: 0.1 }), Reduction::PairMean);
    let got = run(&dpo, &Totals { n_tokens: 2, n_sequences: 1, n_pairs: 0 }, &all).unwrap_err().to_string();
    assert_eq!(got, "totals count 0 pairs, needed at least the 1 of this group");
    // Without any pair there is no loss, and nothing is divided by 0.
    all[0].signal.pair = None;
    assert_eq!(run(&dpo, &totals(&all), &all).unwrap().loss, 0.0);
}

#[test]
fn a_sequence_is_inert_exactly_when_every_derivative_is_zero() {
    let signal = |advantage: f32, weight: f32| Signal {
        advantage: vec![advantage; 2],
        weight: vec![weight; 2],
        logp_ref: Some(vec![-1.0; 2]),
        ..Signal::default()
    };
    let mut with_kl = grpo(Reduction::TokenMean);
    with_kl.kl = Some(Kl { estimator: Estimator::K2, coefficient: 0.1 });
    let mut with_entropy = grpo(Reduction::TokenMean);
    with_entropy.entropy_coefficient = 0.1;
    let cases = [
        (grpo(Reduction::TokenMean), 0.0, 1.0, true),
        (grpo(Reduction::TokenMean), 0.5, 1.0, false),
        (grpo(Reduction::TokenMean), 0.5, 0.0, true),
        (nll(Reduction::TokenMean), 0.0, 1.0, false),
        (with_kl.clone(), 0.0, 1.0, false),
        (with_kl, 0.5, 0.0, true),
        (with_entropy, 0.0, 1.0, false),
    ];
    for (loss, advantage, weight, want) in cases {
        assert_eq!(loss.is_inert(&[false, true], &signal(advantage, weight)), want, "{loss:?} {advantage} {weight}");
    }
    let mut spot = signal(0.0, 1.0);
    spot.advantage[0] = 1.0;
    assert!(grpo(Reduction::TokenMean).is_inert(&[false, true], &spot), "an untrained token is worth nothing");
}

#[test]
fn settings_outside_their_range_are_named() {
    let message = |change: &dyn Fn(&mut Loss)| {
        let mut loss = grpo(Reduction::TokenMean);
        change(&mut loss);
        loss.check().err().map(|e| e.to_string()).unwrap_or_default()
    };
    let bounds = |ratio_min, ratio_max, dual_clip| {
        move |l: &mut Loss| l.term = Term::PolicyGradient(PolicyGradient { ratio_min, ratio_max, dual_clip })
    };
    assert_eq!(message(&|_| ()), "");
    assert_eq!(message(&bounds(1.2, 1.2, None)), "`ratio_min` is 1.2, needed a number from 0 to 1");
    assert_eq!(message(&bounds(0.8, 0.2, None)), "`ratio_max` is 0.2, needed a finite number at least 1");
    assert_eq!(message(&bounds(0.8, 1.2, Some(1.0))), "`dual_clip` is 1, needed a finite number above 1");
    let cap = |l: &mut Loss| l.correction = Correction::TokenTis(TokenTis { cap: f64::NAN });
    assert_eq!(message(&cap), "`correction.cap` is NaN, needed a finite number at least 1");
    let kl = |l: &mut Loss| l.kl = Some(Kl { estimator: Estimator::K2, coefficient: -0.1 });
    assert_eq!(message(&kl), "`kl.coefficient` is -0.1, needed a finite number at least 0");
    let entropy = |l: &mut Loss| l.entropy_coefficient = f64::INFINITY;
    assert_eq!(message(&entropy), "`entropy.coefficient` is inf, needed a finite number at least 0");
    let value = |l: &mut Loss| l.value = Some(ValueLoss { clip: None, coefficient: -0.5 });
    assert_eq!(message(&value), "`value.coefficient` is -0.5, needed a finite number at least 0");
    let clip = |l: &mut Loss| l.value = Some(ValueLoss { clip: Some(0.0), coefficient: 0.5 });
    assert_eq!(message(&clip), "`value.clip` is 0, needed a finite number above 0");
    let pairs = |l: &mut Loss| l.reduction = Reduction::PairMean;
    assert_eq!(
        message(&pairs),
        "reduction `pair_mean` divides by pairs, needed a term that makes some, got `policy_gradient`"
    );
    let both = |l: &mut Loss| {
        l.term = Term::BradleyTerry(BradleyTerry {});
        l.value = Some(ValueLoss { clip: None, coefficient: 1.0 });
    };
    let want = "a value loss does not go with `bradley_terry`, which has the value head score whole sequences";
    assert_eq!(message(&both), want);
    let horizon = |l: &mut Loss| l.reduction = Reduction::FixedHorizon { horizon: 0 };
    assert_eq!(message(&horizon), "`horizon` is 0, needed a whole number at least 1");
}
