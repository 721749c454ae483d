//! The contract of the engine, proved by comparing bits on a tiny model of every family, with an adapter and without:
//! what is recorded while sampling is what training computes, and nothing that only says how the work is done, such as
//! threads, vector sets, batches, chunks and neighbours, changes anything.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

mod support;

mod bits;
mod checkpoint;
mod gradients;
mod heads;
mod kept;
mod limits;
mod random;
mod record;
mod set_aside;
mod smollm2;
mod stops;
