//! A hundred thousand random histories under random rules, each call judged by the engine and by going through the whole
//! history; ends with an error at the first difference.
//!
//!     cargo run --release -p surefoot-guard --example temporal_histories

#![allow(clippy::print_stdout, reason = "an example prints what it found")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "an example that fails says where")]

#[path = "../tests/temporal_naive/mod.rs"]
mod temporal_naive;

use temporal_naive::{Seen, compare};

const HISTORIES: u64 = 100_000;

fn main() {
    let mut seen = Seen::default();
    for seed in 0..HISTORIES {
        compare(seed.wrapping_mul(0x2545_f491_4f6c_dd1d), &mut seen);
    }
    println!(
        "{HISTORIES} random histories: {} judgements of rules over calls equal, of them {} hits and {} that could not tell",
        seen.questions, seen.hits, seen.faults
    );
}
