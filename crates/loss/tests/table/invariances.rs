//! What must not matter, for every loss: padding, what untrained tokens hold, the order of episodes, and where a batch is
//! cut. And what must: a number that is not finite where it is read, an advantage, a weight.

use surefoot_loss::{Loss, LossError, Old, Row, RowLoss, Signal, Sums, evaluate};

use super::rows::{Lists, groups, run, some_of_each, spans_sequences, totals};

/// What stands where nothing is trained.
#[derive(Clone, Copy)]
struct Rubbish {
    float: f32,
    whole: u32,
}

const RUBBISH: [Rubbish; 3] = [
    Rubbish { float: f32::NAN, whole: u32::MAX },
    Rubbish { float: f32::NEG_INFINITY, whole: 0 },
    Rubbish { float: 1e30, whole: 12_345 },
];

fn spoil(lists: &Lists, with: Rubbish) -> Lists {
    let mut out = lists.clone();
    let trained = lists.trained.clone();
    for (_, k, list) in out.floats() {
        list.iter_mut().enumerate().filter(|(at, _)| !trained[at / k]).for_each(|(_, v)| *v = with.float);
    }
    for (k, list) in out.wholes() {
        list.iter_mut().enumerate().filter(|(at, _)| !trained[at / k]).for_each(|(_, v)| *v = with.whole);
    }
    out
}

/// Puts an untrained token before every second one and two at the end.
fn pad(lists: &Lists, with: Rubbish) -> (Lists, Vec<bool>) {
    let n = lists.trained.len();
    let mut is_pad = Vec::new();
    for t in 0..n {
        is_pad.extend(if t % 2 == 1 { &[true, false][..] } else { &[false] });
    }
    is_pad.extend([true, true]);
    let mut out = lists.clone();
    fn padded<T: Copy>(list: &[T], k: usize, is_pad: &[bool], with: T) -> Vec<T> {
        let mut own = list.chunks(k);
        let mut all = Vec::new();
        for pad in is_pad {
            match if *pad { None } else { own.next() } {
                Some(own) => all.extend_from_slice(own),
                None => all.extend(std::iter::repeat_n(with, k)),
            }
        }
        all
    }
    out.trained = padded(&lists.trained, 1, &is_pad, false);
    out.floats().into_iter().for_each(|(_, k, list)| *list = padded(list, k, &is_pad, with.float));
    out.wholes().into_iter().for_each(|(k, list)| *list = padded(list, k, &is_pad, with.whole));
    (out, is_pad)
}

/// A row without its padding, which must hold exact zeros.
fn unpad(row: &RowLoss, is_pad: &[bool]) -> RowLoss {
    fn kept<T: Copy + PartialEq + Default + std::fmt::Debug>(list: &[T], is_pad: &[bool]) -> Vec<T> {
        let k = list.len() / is_pad.len();
        let mut all = Vec::new();
        for (at, value) in list.iter().enumerate() {
            match is_pad[at / k] {
                true => assert_eq!(*value, T::default(), "a place that is not trained has a derivative"),
                false => all.push(*value),
            }
        }
        all
    }
    RowLoss {
        dlogp: kept(&row.dlogp, is_pad),
        dentropy: kept(&row.dentropy, is_pad),
        dvalue: kept(&row.dvalue, is_pad),
        dtop: kept(&row.dtop, is_pad),
        per_token: kept(&row.per_token, is_pad),
        correction: kept(&row.correction, is_pad),
    }
}

#[test]
fn c8_what_untrained_tokens_hold_changes_no_bit() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        let clean = run(&loss, &totals, &all[0]);
        for with in RUBBISH {
            let dirty: Vec<Lists> = all[0].iter().map(|l| spoil(l, with)).collect();
            assert_eq!(run(&loss, &totals, &dirty), clean, "{loss:?}");
        }
        for (row, lists) in clean.rows.iter().zip(&all[0]) {
            let untrained: Vec<bool> = lists.trained.iter().map(|t| !t).collect();
            unpad(row, &untrained);
        }
    }
}

#[test]
fn padding_changes_no_bit() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        let plain = run(&loss, &totals, &all[0]);
        let padded: Vec<(Lists, Vec<bool>)> = all[0].iter().map(|l| pad(l, RUBBISH[0])).collect();
        let lists: Vec<Lists> = padded.iter().map(|(l, _)| l.clone()).collect();
        let got = run(&loss, &totals, &lists);
        assert_eq!((got.loss, got.sums), (plain.loss, plain.sums), "{loss:?}");
        for ((got, plain), (_, is_pad)) in got.rows.iter().zip(&plain.rows).zip(&padded) {
            assert_eq!(&unpad(got, is_pad), plain, "{loss:?}");
        }
    }
}

#[test]
fn the_order_of_episodes_changes_no_derivative() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        let plain = run(&loss, &totals, &all[0]);
        // Episodes turned round; the two sequences of the first one stay in their order.
        let order = [8, 7, 6, 5, 4, 3, 2, 0, 1];
        let turned: Vec<Lists> = order.iter().map(|r| all[0][*r].clone()).collect();
        let got = run(&loss, &totals, &turned);
        assert!((got.loss - plain.loss).abs() <= 1e-14 * (1.0 + plain.loss.abs()), "{loss:?}");
        for (got, from) in got.rows.iter().zip(order) {
            let want = &plain.rows[from];
            if spans_sequences(&loss.term) {
                // A sum over several sequences rounds otherwise in another order.
                let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * (1.0 + b.abs()));
                assert!(near(&got.dlogp, &want.dlogp) && near(&got.dvalue, &want.dvalue), "{loss:?}");
            } else {
                assert_eq!(got, want, "{loss:?}");
            }
        }
    }
}

#[test]
fn a1_where_a_batch_is_cut_changes_no_bit() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        // Two groups in one evaluation, the second with numbers of its own, or in two.
        let mut joined = all.concat();
        for lists in &mut joined[all[0].len()..] {
            lists.episode += 100;
            lists.pair.iter_mut().for_each(|p| p.index += 100);
        }
        let whole = run(&loss, &totals, &joined);
        let parts: Vec<_> = all.iter().map(|group| run(&loss, &totals, group)).collect();
        let rows: Vec<RowLoss> = parts.iter().flat_map(|p| p.rows.clone()).collect();
        assert_eq!(rows, whole.rows, "{loss:?}");
        let sums = parts.iter().fold(Sums::default(), |mut sums, part| {
            sums.merge(&part.sums);
            sums
        });
        assert!((sums.loss() - whole.loss).abs() <= 1e-14 * (1.0 + whole.loss.abs()), "{loss:?}");
        assert_eq!((sums.n_pairs, sums.n_silent), (whole.sums.n_pairs, whole.sums.n_silent), "{loss:?}");
        // A term over one sequence can be cut anywhere.
        if !spans_sequences(&loss.term) {
            let rows: Vec<RowLoss> = joined.chunks(1).flat_map(|one| run(&loss, &totals, one).rows).collect();
            assert_eq!(rows, whole.rows, "{loss:?}");
        }
    }
}

/// CASES L6: a teacher's −∞, like anything else that is not finite, is refused where it is read and nowhere else.
#[test]
fn l6_what_is_not_finite_at_a_trained_token_is_refused_by_name() {
    let all = groups();
    let totals = totals(&all);
    let (r, t) = (2, 3);
    assert!(all[0][r].trained[t] && all[0][r].weight[t] != 0.0);
    for loss in some_of_each() {
        for index in 0..14 {
            let mut spoilt = all[0].clone();
            let (name, k, list) = spoilt[r].floats().into_iter().nth(index).unwrap();
            list[t * k + k - 1] = f32::NEG_INFINITY;
            if name.starts_with("top") && !loss.needs_top() {
                run(&loss, &totals, &spoilt);
                continue;
            }
            let rows: Vec<Row<'_>> = spoilt.iter().map(Lists::row).collect();
            let want = LossError::NotFinite { what: name, sequence: r, token: t, value: f64::NEG_INFINITY };
            assert_eq!(evaluate(&loss, &totals, &rows).unwrap_err(), want, "{loss:?}");
        }
    }
}

/// Takes a list away.
type Remove = fn(&mut Row<'_>);

#[test]
fn a_list_that_is_missing_is_named_and_one_that_is_not_read_is_not_missed() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        let with_value = loss.value.is_some();
        let teacher = loss.needs_teacher();
        let cases: [(&str, bool, Remove); 9] = [
            ("logp_old", true, |row| row.logp_old = None),
            ("logp_sampler", loss.needs_sampler(), |row| row.logp_sampler = None),
            ("logp_ref", loss.needs_ref(), |row| row.logp_ref = None),
            ("entropy", loss.needs_entropy(), |row| row.entropy = None),
            ("value", loss.needs_value(), |row| row.value = None),
            ("value_old", with_value, |row| row.value_target = None),
            ("logp_teacher", teacher, |row| row.teacher = None),
            ("top", loss.needs_top(), |row| row.top = None),
            ("", false, |row| row.lag = None),
        ];
        for (list, read, remove) in cases {
            let mut rows: Vec<Row<'_>> = all[0].iter().map(Lists::row).collect();
            remove(&mut rows[2]);
            let got = evaluate(&loss, &totals, &rows);
            match read {
                true => assert_eq!(got, Err(LossError::Missing { list, sequence: 2 }), "{loss:?}"),
                false => assert!(got.is_ok(), "{loss:?} misses {list}"),
            }
        }
        // Where nothing weighs anything, no teacher and no value is missed.
        let mut rows: Vec<Row<'_>> = all[0].iter().map(Lists::row).collect();
        let idle = rows.iter().position(|row| row.weight.iter().all(|w| *w == 0.0)).unwrap();
        assert!(rows[idle].n_trained() > 0);
        (rows[idle].teacher, rows[idle].top, rows[idle].value, rows[idle].value_target) = (None, None, None, None);
        assert!(evaluate(&loss, &totals, &rows).is_ok(), "{loss:?}");
    }
}

fn signal(lists: &Lists) -> Signal {
    Signal {
        advantage: lists.advantage.clone(),
        weight: lists.weight.clone(),
        old: Old::Forward(lists.old.clone()),
        logp_ref: Some(lists.reference.clone()),
        episode: lists.episode,
        lag: Some(lists.lag.clone()),
        value: Some(lists.target.clone()),
        teacher: Some(lists.teacher.clone()),
        pair: lists.pair,
        pull: Some(lists.pull.clone()),
    }
}

/// Whether every derivative of the group is exactly 0.
fn taught_nothing(loss: &Loss, all: &[Vec<Lists>], group: &[Lists]) -> bool {
    let got = run(loss, &totals(all), group);
    let none = |list: &[f32]| list.iter().all(|d| *d == 0.0);
    got.rows.iter().all(|r| none(&r.dlogp) && none(&r.dentropy) && none(&r.dvalue) && none(&r.dtop))
}

#[test]
fn a_group_is_inert_exactly_when_it_teaches_nothing() {
    let all = groups();
    // A whole pair whose tokens all weigh something, under corrections that let it through.
    let changes: [fn(&mut Lists); 5] = [
        |_| (),
        |l| l.advantage.iter_mut().for_each(|a| *a = 0.0),
        |l| l.weight.iter_mut().for_each(|w| *w = 0.0),
        |l| l.pair = None,
        |l| {
            l.advantage.iter_mut().for_each(|a| *a = 0.0);
            l.pair = None;
        },
    ];
    for mut loss in some_of_each().into_iter().filter(|l| l.correction.name() == "none") {
        for with_pull in [false, true] {
            for (which, change) in changes.iter().enumerate() {
                let mut group = all[1].clone();
                group.iter_mut().for_each(|l| {
                    change(l);
                    if !with_pull {
                        l.pull.iter_mut().for_each(|p| *p = 0.0);
                    }
                });
                let inert = group.iter().all(|l| loss.is_inert(&l.trained, &signal(l)));
                let nothing = taught_nothing(&loss, &all, &group);
                assert_eq!(inert, nothing, "{loss:?}, change {which}, pull {with_pull}");
            }
        }
        // A coefficient of 0 is the same as none.
        if let Some(value) = &mut loss.value {
            value.coefficient = 0.0;
            let mut group = all[1].clone();
            group.iter_mut().for_each(|l| l.advantage.iter_mut().for_each(|a| *a = 0.0));
            let inert = group.iter().all(|l| loss.is_inert(&l.trained, &signal(l)));
            assert_eq!(inert, taught_nothing(&loss, &all, &group));
        }
        assert_eq!(loss.scores(), loss.term.name() == "bradley_terry");
    }
}

/// The reported per-token losses, reduced by hand, are the reported loss.
#[test]
fn the_reduced_per_token_losses_are_the_loss() {
    let all = groups();
    let totals = totals(&all);
    for loss in some_of_each() {
        let got = run(&loss, &totals, &all[0]);
        let by_hand = got.rows.iter().zip(&all[0]).map(|(row, lists)| {
            let n = lists.trained.iter().filter(|t| **t).count() as u64;
            row.per_token.iter().sum::<f64>() * loss.reduction.coefficient(&totals, n.max(1))
        });
        let want: f64 = by_hand.sum();
        assert!((got.loss - want).abs() <= 1e-13 * (1.0 + want.abs()), "{loss:?}: {} {want}", got.loss);
        let sums = got.sums;
        assert_eq!(sums.loss(), sums.loss_term + sums.loss_kl + sums.loss_entropy + sums.loss_value);
    }
}
