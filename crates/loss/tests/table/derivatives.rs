//! Every derivative against a finite difference of the oracle, in which stop-gradient factors stay where they are.

use surefoot_loss::{Correction, Loss, Select, Term};

use super::oracle::{Fixed, Now, reduced};
use super::rows::{K, Lists, corrections, groups, losses, reductions, run, terms, totals};

const STEP: f64 = 1e-5;

/// Which of the policy's numbers is moved.
type Part = fn(&mut Now) -> &mut Vec<Vec<f64>>;

fn check(loss: &Loss, rows: &[Lists], all: &[Vec<Lists>]) {
    loss.check().expect("the settings are in range");
    let totals = totals(all);
    let exact = run(loss, &totals, rows);
    let mut now = Now::of(rows);
    let fixed = Fixed::of(loss, rows, &now);
    let want = reduced(loss, &totals, rows, &now, &fixed);
    assert!((exact.loss - want).abs() <= 1e-12 * (1.0 + want.abs()), "{loss:?}: loss {}, {want}", exact.loss);
    let mut difference = |part: Part, r: usize, at: usize| {
        let here = part(&mut now)[r][at];
        let mut side = |step: f64| {
            part(&mut now)[r][at] = here + step;
            let value = reduced(loss, &totals, rows, &now, &fixed);
            part(&mut now)[r][at] = here;
            value
        };
        (side(STEP) - side(-STEP)) / (2.0 * STEP)
    };
    for (r, (row, exact)) in rows.iter().zip(&exact.rows).enumerate() {
        let n = row.trained.len();
        let parts: [(&str, Part, &[f32], usize, bool); 4] = [
            ("logp", |now| &mut now.logp, &exact.dlogp, 1, true),
            ("entropy", |now| &mut now.entropy, &exact.dentropy, 1, loss.needs_entropy()),
            ("value", |now| &mut now.value, &exact.dvalue, 1, loss.needs_value()),
            ("top", |now| &mut now.top, &exact.dtop, K, loss.needs_top()),
        ];
        for (name, part, got, k, read) in parts {
            assert_eq!(got.len(), if read { n * k } else { 0 }, "{loss:?}: {name} of row {r}");
            for (at, got) in got.iter().enumerate() {
                let got = f64::from(*got);
                if !row.trained[at / k] || row.weight[at / k] == 0.0 {
                    assert_eq!(got, 0.0, "{loss:?}: {name} at {at} of row {r}");
                    continue;
                }
                let want = difference(part, r, at);
                assert!(
                    (got - want).abs() <= 2e-7 * (1.0 + want.abs()),
                    "{loss:?}: {name} at {at} of {r}: {got}, {want}"
                );
            }
        }
    }
}

#[test]
fn every_derivative_is_the_finite_difference() {
    let all = groups();
    for term in terms() {
        for reduction in reductions(&term) {
            for correction in corrections() {
                for loss in losses(&term, reduction, &correction) {
                    check(&loss, &all[0], &all);
                }
            }
        }
    }
}

#[test]
fn every_entry_of_the_tables_is_tested_here() {
    let names = |mut all: Vec<&'static str>| {
        all.dedup();
        all
    };
    assert_eq!(names(terms().iter().map(Term::name).collect()), Term::NAMES);
    assert_eq!(names(corrections().iter().map(Correction::name).collect()), Correction::NAMES);
    assert_eq!(Select::NAMES, ["none", "top_entropy", "clip_cov", "kl_cov"], "tested where they are");
}

/// The bounds of these tests are worth something only where some tokens meet them and others do not.
#[test]
fn every_bound_is_met_by_some_and_not_by_others() {
    let all = groups();
    let totals = totals(&all);
    for correction in &corrections()[1..] {
        let loss = losses(&terms()[0], reductions(&terms()[0])[0], correction)[0].clone();
        let got = run(&loss, &totals, &all[0]);
        let weights: Vec<f64> = got
            .rows
            .iter()
            .zip(&all[0])
            .flat_map(|(row, l)| {
                row.correction.iter().zip(&l.trained).filter(|(_, t)| **t).map(|(w, _)| *w).collect::<Vec<_>>()
            })
            .collect();
        let bound = match correction {
            Correction::TokenTis(_) | Correction::SequenceTis(_) => 1.125,
            Correction::Decoupled(_) => 1.0,
            Correction::M2po(_) | Correction::Vespo(_) => continue,
            _ => 0.0,
        };
        let met = weights.iter().filter(|w| **w == bound).count();
        assert!(met > 0 && met < weights.len(), "{correction:?}: {met} of {}", weights.len());
    }
    let metrics = run(&losses(&terms()[1], reductions(&terms()[1])[0], &corrections()[0])[1], &totals, &all[0]);
    let metrics = metrics.sums.metrics();
    for share in [metrics.clip_low_share, metrics.clip_high_share, metrics.clip_dual_share, metrics.value_clip_share] {
        assert!(share.is_some_and(|s| s > 0.0 && s < 0.5), "{share:?}");
    }
}
