//! Every derivative against a finite difference: each term × reduction × KL estimate × correction, with entropy.

use surefoot_loss::{
    Correction, Estimator, Kl, Loss, Nll, PolicyGradient, Reduction, Reinforce, Row, Term, TokenTis, Totals, evaluate,
};

/// Log-probabilities are multiples of this, so that one up or down is exact in f32.
const STEP: f32 = 1.0 / 4096.0;

struct Lists {
    trained: Vec<bool>,
    logp: Vec<f32>,
    old: Vec<f32>,
    sampler: Vec<f32>,
    reference: Vec<f32>,
    entropy: Vec<f32>,
    advantage: Vec<f32>,
    weight: Vec<f32>,
}

impl Lists {
    fn row(&self) -> Row<'_> {
        Row {
            logp_old: Some(&self.old),
            logp_sampler: Some(&self.sampler),
            logp_ref: Some(&self.reference),
            entropy: Some(&self.entropy),
            ..Row::bare(&self.trained, &self.logp, &self.advantage, &self.weight)
        }
    }
}

/// Three sequences of other lengths, with prompts, tokens that weigh nothing, and ratios on both sides of every bound.
fn group() -> Vec<Lists> {
    let mut state = 12345u64;
    let mut next = move |low: i64, high: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (low + ((state >> 33) as i64) % (high - low)) as f32
    };
    let mut lists = Vec::new();
    for n in [3usize, 7, 12] {
        let logp: Vec<f32> = (0..n).map(|_| next(-8000, -2000) * STEP).collect();
        let near = |next: &mut dyn FnMut(i64, i64) -> f32| {
            logp.iter().map(|l| l + next(-3000, 3000) * STEP).collect::<Vec<f32>>()
        };
        lists.push(Lists {
            trained: (0..n).map(|t| t > 0 && t % 5 != 4).collect(),
            old: near(&mut next),
            sampler: near(&mut next),
            reference: near(&mut next),
            entropy: (0..n).map(|_| next(100, 4000) * STEP).collect(),
            advantage: (0..n).map(|_| next(-2000, 2000) / 1000.0).collect(),
            weight: (0..n).map(|t| if t == 2 { 0.0 } else { 1.0 + t as f32 / 8.0 }).collect(),
            logp,
        });
    }
    lists
}

fn check(loss: &Loss) {
    loss.check().expect("the settings are in range");
    let mut lists = group();
    let totals = Totals::count(lists.iter().map(|l| l.trained.as_slice()));
    let value = |lists: &[Lists]| {
        let rows: Vec<Row<'_>> = lists.iter().map(Lists::row).collect();
        evaluate(loss, &totals, &rows).expect("the rows are whole")
    };
    let exact = value(&lists);
    for i in 0..lists.len() {
        for t in 0..lists[i].trained.len() {
            let at = lists[i].logp[t];
            let mut sides = [0.0; 2];
            for (side, step) in sides.iter_mut().zip([STEP, -STEP]) {
                lists[i].logp[t] = at + step;
                *side = value(&lists).loss;
            }
            lists[i].logp[t] = at;
            let want = (sides[0] - sides[1]) / (2.0 * f64::from(STEP));
            let got = f64::from(exact.rows[i].dlogp[t]);
            assert!((got - want).abs() <= 2e-6 * (1.0 + want.abs()), "{loss:?}: row {i} token {t}: {got}, {want}");
            if !lists[i].trained[t] || lists[i].weight[t] == 0.0 {
                assert_eq!(got, 0.0);
            }
            if loss.entropy_coefficient != 0.0 {
                let at = lists[i].entropy[t];
                lists[i].entropy[t] = at + 1.0;
                let want = value(&lists).loss - exact.loss;
                lists[i].entropy[t] = at;
                let got = f64::from(exact.rows[i].dentropy[t]);
                assert!((got - want).abs() <= 1e-6 * (1.0 + want.abs()), "{loss:?}: row {i} token {t}: entropy");
            }
        }
    }
}

fn terms() -> [Term; 4] {
    [
        Term::PolicyGradient(PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: None }),
        Term::PolicyGradient(PolicyGradient { ratio_min: 0.8, ratio_max: 1.2, dual_clip: Some(1.3) }),
        Term::Reinforce(Reinforce {}),
        Term::Nll(Nll {}),
    ]
}

const REDUCTIONS: [Reduction; 5] = [
    Reduction::TokenMean,
    Reduction::SequenceMean,
    Reduction::SequenceSum,
    Reduction::FixedHorizon { horizon: 16 },
    Reduction::Sum,
];

#[test]
fn every_derivative_is_the_finite_difference() {
    for term in terms() {
        for reduction in REDUCTIONS {
            let estimators = [None, Some(Estimator::K1), Some(Estimator::K2), Some(Estimator::K3)];
            for estimator in estimators {
                for correction in [Correction::default(), Correction::TokenTis(TokenTis { cap: 1.25 })] {
                    check(&Loss {
                        term: term.clone(),
                        reduction,
                        kl: estimator.map(|estimator| Kl { estimator, coefficient: 0.25 }),
                        entropy_coefficient: if estimator == Some(Estimator::K2) { 0.125 } else { 0.0 },
                        correction,
                        value: None,
                    });
                }
            }
        }
    }
    assert!(terms().iter().all(|t| Term::NAMES.contains(&t.name())));
    assert_eq!(Term::NAMES.len(), 3, "a new term belongs into this test");
    assert_eq!(Correction::NAMES, ["none", "token_tis"], "a new correction belongs into this test");
}

/// The reported per-token losses, reduced by hand, are the reported loss.
#[test]
fn the_reduced_per_token_losses_are_the_loss() {
    let lists = group();
    let totals = Totals::count(lists.iter().map(|l| l.trained.as_slice()));
    for reduction in REDUCTIONS {
        let mut loss = Loss::new(terms()[0].clone(), reduction);
        loss.kl = Some(Kl { estimator: Estimator::K3, coefficient: 0.5 });
        loss.entropy_coefficient = 0.01;
        loss.correction = Correction::TokenTis(TokenTis { cap: 2.0 });
        let rows: Vec<Row<'_>> = lists.iter().map(Lists::row).collect();
        let got = evaluate(&loss, &totals, &rows).unwrap();
        let sums: Vec<f64> = got.rows.iter().map(|r| r.per_token.iter().sum()).collect();
        let counts: Vec<f64> = rows.iter().map(|r| r.n_trained() as f64).collect();
        let (all, tokens) = (sums.iter().sum::<f64>(), counts.iter().sum::<f64>());
        let want = match reduction {
            Reduction::TokenMean => all / tokens,
            Reduction::SequenceMean => sums.iter().zip(&counts).map(|(s, n)| s / n).sum::<f64>() / 3.0,
            Reduction::SequenceSum => all / 3.0,
            Reduction::FixedHorizon { horizon } => all / (3.0 * f64::from(horizon)),
            Reduction::Sum => all,
        };
        assert!((got.loss - want).abs() < 1e-13, "{reduction:?}: {} {want}", got.loss);
    }
}
