//! Random rules over random histories: what is kept up event by event says what going through the whole history says. The
//! example `temporal_histories` does the same for a hundred thousand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

mod temporal_naive;

use temporal_naive::{Seen, compare};

#[test]
fn random_histories_are_judged_as_if_each_question_went_through_all_of_them() {
    let mut seen = Seen::default();
    for seed in 0..10_000 {
        compare(seed, &mut seen);
    }
    // Of the questions asked, enough were hits, enough faults, and most neither.
    assert!(seen.questions > 250_000, "{seen:?}");
    assert!(seen.hits * 20 > seen.questions && seen.hits * 2 < seen.questions, "{seen:?}");
    assert!(seen.faults > 1_000, "{seen:?}");
}
