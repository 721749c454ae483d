//! Deterministic kernels, the arithmetic contract, one thread pool, and the weight-file readers.
//!
//! # The arithmetic contract
//! Every result is a function of its inputs alone: not of the number of threads, the vector width, the batch, or how a
//! batch is cut.
//! - A matrix product's element is one chain of fused multiply-adds over the inner index in ascending order, starting
//!   from +0 or from what is already there ([`gemm`]).
//! - A reduction inside a row uses sixteen interleaved partial results (element `i` goes to lane `i mod 16`) and one
//!   fixed tree ([`lanes`]).
//! - `exp` and its kin are our own polynomials ([`math`]); the platform's maths library is never called.
//! - Threads split outputs, never a sum ([`pool`]).
//!
//! Each kernel is written once as a portable fixed-width loop and compiled for each vector set, or written by hand for a
//! vector set and compared with the portable one bit by bit in tests. The portable twin is what 64-bit Arm runs.

#[macro_use]
mod versions;

pub mod adam;
pub mod attention;
pub mod buffer;
pub mod ceiling;
pub mod cpu;
pub mod gemm;
pub mod lanes;
pub mod math;
pub mod pool;
pub mod rows;
mod turn;
pub mod vocab;
pub mod weights;

pub use buffer::Buffer;
pub use cpu::{Cpu, CpuError, Isa};
pub use gemm::{HalfPanels, Panels, Part, Term, Weights};
