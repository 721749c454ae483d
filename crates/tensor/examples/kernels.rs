//! Speed of each product as a share of the multiply-add ceiling measured in the same minute, on the shapes of a
//! 135-million-weight model.
//!
//! `cargo run --release -p surefoot-tensor --example kernels [--threads N] [--check]`
//!
//! With `--check` it fails when a product of 96 rows or more falls below [`FLOOR`] of the ceiling: a gross regression, such
//! as a kernel that no longer vectorises. Shares, never seconds, so that it holds on any machine.

#![allow(clippy::print_stdout, reason = "a table is this program's purpose")]

use std::process::ExitCode;
use std::time::Instant;

use surefoot_tensor as tensor;
use tensor::ceiling::fma_flops;
use tensor::gemm::{linear, linear_back, weight_grad};
use tensor::{Cpu, Isa, Panels, Term};

const FLOOR: f64 = 0.3;
const SHAPES: [(usize, usize); 5] = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49_152, 576)];
const ROWS: [usize; 6] = [1, 8, 64, 96, 512, 768];

fn best(mut f: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..7).map(time).fold(f64::MAX, f64::min)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let threads = args.iter().position(|a| a == "--threads").and_then(|i| args.get(i + 1)?.parse().ok()).unwrap_or(1);
    let cpu = Cpu::new(Isa::best(), threads).expect("the best vector set is there");
    let ceiling = fma_flops(&cpu) / 1e9;
    println!("{}, {threads} threads, ceiling {ceiling:.0} GFLOP/s; shares of it:", cpu.isa());
    println!("    n     k  rows  forward  back  weights");
    let mut lowest = f64::MAX;
    for (n, k) in SHAPES {
        for rows in ROWS {
            if n * rows > 5_000_000 {
                continue;
            }
            let w = Panels::zeroed(n, k);
            let (x, dy) = (vec![0.5; rows * k], vec![0.5; rows * n]);
            let (mut y, mut dx) = (vec![0.0; rows * n], vec![0.0; rows * k]);
            let mut grad = w.zeros_like();
            let share = |seconds: f64| 2.0 * (n * k * rows) as f64 / 1e9 / seconds / ceiling;
            let forward =
                share(best(|| linear(&cpu, rows, &[Term { x: &x, ld: k, w: (&w).into() }], &mut y, n, false)));
            let back =
                share(best(|| linear_back(&cpu, rows, &[Term { x: &dy, ld: n, w: (&w).into() }], &mut dx, k, false)));
            let weights = share(best(|| weight_grad(&cpu, rows, (&x, k), (&dy, n), &mut grad)));
            println!("{n:5} {k:5} {rows:5}  {forward:7.2}  {back:4.2}  {weights:7.2}");
            if rows >= 96 {
                lowest = lowest.min(forward).min(back).min(weights);
            }
        }
    }
    if args.iter().any(|a| a == "--check") && lowest < FLOOR {
        println!("a product reached only {lowest:.2} of the ceiling, needed {FLOOR}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
