//! Speed of each product as a share of what plain fused multiply-adds reach on the same threads.
//!
//! `cargo run --release -p surefoot-tensor --example kernels [THREADS]`

use std::time::Instant;

use surefoot_tensor as tensor;
use tensor::gemm::{linear, linear_back, weight_grad};
use tensor::{Buffer, Cpu, Isa, Panels, Term};

fn best(mut f: impl FnMut()) -> f64 {
    (0..7).map(|_| { let t = Instant::now(); f(); t.elapsed().as_secs_f64() }).fold(f64::MAX, f64::min)
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let cpu = Cpu::new(Isa::best(), threads).expect("a processor");
    for (n, k) in [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)] {
        for rows in [1, 8, 64, 96, 512] {
            if n == 49152 && rows > 96 { continue; }
            let w = Panels::zeroed(n, k);
            let x = vec![0.5; rows * k];
            let dy = vec![0.5; rows * n];
            let mut y = vec![0.0; rows * n];
            let mut dx = vec![0.0; rows * k];
            let mut g = w.zeros_like();
            let mut s = Buffer::default();
            let flop = 2.0 * (n * k * rows) as f64 / 1e9;
            let f = best(|| linear(&cpu, rows, &[Term { x: &x, ld: k, w: &w }], &mut y, n, false));
            let b = best(|| linear_back(&cpu, rows, &[Term { x: &dy, ld: n, w: &w }], &mut dx, k, false));
            let d = best(|| weight_grad(&cpu, rows, (&x, k), (&dy, n), &mut g, &mut s));
            println!("n {n:5} k {k:4} rows {rows:3}: forward {:6.1}  back {:6.1}  weights {:6.1} GFLOP/s", flop / f, flop / b, flop / d);
        }
    }
}
