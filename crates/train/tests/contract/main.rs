//! The contract of the engine, proved by comparing bits on a tiny model of every family, with an adapter and without:
//! what is recorded while sampling is what training computes, and nothing that only says how the work is done, such as
//! threads, vector sets, batches, chunks and neighbours, changes anything.

mod support;

mod bits;
mod checkpoint;
mod gradients;
mod limits;
mod random;
mod record;
mod stops;
