use std::sync::Barrier;
use std::thread;

use serde_json::json;

use super::*;

fn calls(n: u64) -> Limits {
    Limits { calls: Some(n), ..Limits::default() }
}

fn over(budget: &str, needed: u64, left: u64) -> BudgetError {
    BudgetError::Over { budget: budget.to_owned(), what: Resource::Calls, needed, left }
}

#[test]
fn a_child_draws_from_every_budget_above_it() {
    let run = Budget::new("run", calls(3));
    let episode = run.child("episode", calls(2)).unwrap();
    let agent = episode.child("agent", Limits::default()).unwrap();
    agent.spend(Amount::CALL).unwrap();
    assert_eq!([&run, &episode, &agent].map(|b| b.spent().calls), [1, 1, 1]);
    agent.spend(Amount::CALL).unwrap();
    assert_eq!(agent.spend(Amount::CALL), Err(over("episode", 1, 0)));
    let other = run.child("other", calls(2)).unwrap();
    other.spend(Amount::CALL).unwrap();
    assert_eq!(other.spend(Amount::CALL), Err(over("run", 1, 0)));
    assert_eq!(other.left().calls, Some(0));
}

/// The breakage: a stopped child begins again with a whole budget.
#[test]
fn a_child_made_again_finds_what_is_left_and_no_more() {
    let run = Budget::new("run", calls(5));
    for _ in 0..5 {
        run.child("agent", calls(5)).unwrap().spend(Amount::CALL).unwrap();
    }
    assert_eq!(run.child("agent", calls(5)).unwrap().spend(Amount::CALL), Err(over("run", 1, 0)));
}

#[test]
fn a_child_cannot_be_given_more_than_any_budget_above() {
    let run = Budget::new("run", calls(3));
    let middle = run.child("middle", Limits::default()).unwrap();
    let got = middle.child("low", calls(4)).unwrap_err();
    let want = BudgetError::AboveParent {
        budget: "low".to_owned(),
        parent: "run".to_owned(),
        what: Resource::Calls,
        got: 4,
        most: 3,
    };
    assert_eq!(got, want);
}

#[test]
fn what_is_held_back_counts_and_comes_back_unless_settled() {
    let run = Budget::new("run", Limits { money: Some(5_000), ..Limits::default() });
    let two = Amount { money: 2_000, ..Amount::CALL };
    let (a, b) = (run.hold(two).unwrap(), run.hold(two).unwrap());
    let refused = run.hold(two).unwrap_err();
    assert_eq!(refused.to_string(), "budget `run` has 1000 millionths of money left, needed 2000");
    drop(a);
    assert_eq!((run.left().money, run.spent()), (Some(3_000), Amount::default()));
    b.settle(Amount { money: 500, ..Amount::CALL });
    assert_eq!((run.left().money, run.spent().money, run.spent().calls), (Some(4_500), 500, 1));
}

#[test]
fn a_refused_hold_takes_nothing_from_any_budget() {
    let run = Budget::new("run", Limits::default());
    let child = run.child("child", calls(1)).unwrap();
    let before = (run.left(), run.spent());
    assert!(child.hold(Amount { calls: 2, ..Amount::default() }).is_err());
    assert_eq!((run.left(), run.spent()), before);
    assert_eq!(child.left().calls, Some(1));
}

#[test]
fn more_used_than_held_is_counted_in_full_and_closes_the_budget() {
    let run = Budget::new("run", Limits { tokens: Some(100), ..Limits::default() });
    let child = run.child("child", Limits::default()).unwrap();
    child.hold(Amount { tokens: 50, ..Amount::default() }).unwrap().settle(Amount { tokens: 130, ..Amount::default() });
    assert_eq!((run.spent().tokens, child.spent().tokens, child.left().tokens), (130, 130, Some(0)));
    assert!(run.hold(Amount { tokens: 1, ..Amount::default() }).is_err());
}

#[test]
fn an_amount_too_large_to_count_is_refused_and_not_wrapped_around() {
    let run = Budget::new("run", calls(10));
    run.spend(Amount::CALL).unwrap();
    assert!(run.hold(Amount { calls: u64::MAX, ..Amount::default() }).is_err());
    assert_eq!(run.left().calls, Some(9));
}

/// Sixty-four threads in eight children under one parent: the parent's limit is reached exactly and never passed.
#[test]
fn no_race_passes_a_parent() {
    const THREADS: usize = 64;
    let run = Budget::new("run", Limits { money: Some(10_000), calls: Some(1_500), ..Limits::default() });
    let children: Vec<Budget> = (0..8).map(|i| run.child(format!("child {i}"), calls(400)).unwrap()).collect();
    let barrier = Barrier::new(THREADS);
    let won: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let (child, barrier, run) = (&children[i % 8], &barrier, &run);
                scope.spawn(move || {
                    barrier.wait();
                    let mut won = 0;
                    for n in 0..100u64 {
                        let Ok(hold) = child.hold(Amount { money: 7, ..Amount::CALL }) else { continue };
                        assert!(run.left().money.is_some_and(|m| m <= 10_000 - 7));
                        // Every third gives everything back.
                        if n % 3 == 0 {
                            drop(hold);
                        } else {
                            let amount = hold.amount();
                            hold.settle(amount);
                            won += 1;
                        }
                    }
                    won
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!((run.spent().calls, run.spent().money), (won, won * 7));
    // Whatever the threads left must still be there, to the last unit.
    let seven = Amount { money: 7, ..Amount::CALL };
    let rest = children.iter().map(|c| std::iter::from_fn(|| c.spend(seven).ok()).count() as u64).sum::<u64>();
    assert_eq!(won + rest, 10_000 / 7);
    assert_eq!(children.iter().map(|c| c.spent().money).sum::<u64>(), run.spent().money);
    assert!(children.iter().all(|c| c.spent().calls <= 400));
}

#[test]
fn money_is_read_from_arguments_exactly_or_not_at_all() {
    let check = |value: Value, want: Option<u64>| assert_eq!(millionths(&value), want, "{value}");
    check(json!(12.50), Some(12_500_000));
    check(json!(0.1), Some(100_000));
    check(json!(7), Some(7_000_000));
    check(json!("0.000001"), Some(1));
    check(json!("12.5000000"), Some(12_500_000));
    for bad in ["0.0000001", "-1", "1e3", "", ".5", "5.", "1.2.3", "+1", " 1", "18446744073710", "NaN"] {
        check(json!(bad), None);
    }
    for bad in [json!(-1), json!(1e30), json!(null), json!([1]), json!(1e-9)] {
        check(bad, None);
    }
    let price = Price { money_argument: Some("amount".to_owned()), ..Price::default() };
    let arguments = |v: Value| v.as_object().unwrap().clone();
    assert_eq!(price.of(&arguments(json!({"amount": "2.5"}))).unwrap().money, 2_500_000);
    let missing = price.of(&arguments(json!({}))).unwrap_err();
    let want = "argument `amount` gives no cost: needed an amount of money with at most 6 decimals, got `null`";
    assert_eq!(missing.to_string(), want);
}
