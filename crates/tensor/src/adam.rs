//! The optimiser's element-wise move and the gradient's norm.

use crate::buffer::Shared;
use crate::{Cpu, lanes};

/// Elements a work unit takes; also the piece over which the norm is summed before the pieces are added in order.
const PIECE: usize = 16_384;

/// The factors of one AdamW move, as the kernel uses them.
///
/// Source: decoupled weight decay, arXiv:1711.05101; bias correction folded into the two last factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamFactors {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the corrected second moment.
    pub epsilon: f32,
    /// Learning rate over the first moment's bias correction.
    pub step: f32,
    /// One over the second moment's bias correction.
    pub correct2: f32,
    /// 1 − learning rate · weight decay.
    pub keep: f32,
    /// What the gradient is multiplied with first.
    pub clip: f32,
}

versioned! {
    /// Moves weights along one gradient.
    ///
    /// - Shapes: all of one length.
    pub fn adam(f: AdamFactors, g: &[f32], w: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let n = w.len();
        let (g, m, v) = (&g[..n], &mut m[..n], &mut v[..n]);
        for i in 0..n {
            let g = g[i] * f.clip;
            m[i] = f.beta1.mul_add(m[i], (1.0 - f.beta1) * g);
            v[i] = f.beta2.mul_add(v[i], (1.0 - f.beta2) * g * g);
            let root = (v[i] * f.correct2).sqrt() + f.epsilon;
            w[i] = (w[i] * f.keep) - f.step * m[i] / root;
        }
    }

    fn squares(x: &[f32]) -> f32 {
        lanes::dot(x, x)
    }
}

/// Moves a whole tensor's weights, spread over the threads.
pub fn adam_all(cpu: &Cpu, f: AdamFactors, g: &[f32], w: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    let n = w.len();
    let (w, m, v) = (Shared::new(w), Shared::new(m), Shared::new(v));
    cpu.pool().run(n.div_ceil(PIECE), &|unit| {
        let start = unit * PIECE;
        let len = PIECE.min(n - start);
        // SAFETY: units own disjoint pieces.
        let (w, m, v) = unsafe { (w.slice(start, len), m.slice(start, len), v.slice(start, len)) };
        adam(cpu.isa(), f, &g[start..start + len], w, m, v);
    });
}

/// Σ gᵢ² of a tensor: pieces in single precision, their sum in double, in order.
pub fn square_sum(cpu: &Cpu, g: &[f32]) -> f64 {
    let mut sums = vec![0.0_f32; g.len().div_ceil(PIECE)];
    let out = Shared::new(&mut sums);
    cpu.pool().run(g.len().div_ceil(PIECE), &|unit| {
        let start = unit * PIECE;
        let piece = &g[start..(start + PIECE).min(g.len())];
        // SAFETY: each unit writes its own sum.
        let slot = unsafe { out.slice(unit, 1) };
        slot[0] = squares(cpu.isa(), piece);
    });
    sums.iter().map(|s| f64::from(*s)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn the_first_step_moves_each_weight_by_the_learning_rate() {
        // With bias correction the first move is lr · g/|g|, whatever the size of g.
        let f = AdamFactors {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 0.0,
            step: 0.01 / 0.1,
            correct2: 1.0 / (1.0 - 0.999_f32),
            keep: 1.0,
            clip: 1.0,
        };
        let (mut w, mut m, mut v) = (vec![1.0; 3], vec![0.0; 3], vec![0.0; 3]);
        adam(Isa::best(), f, &[5.0, -0.02, 3e-4], &mut w, &mut m, &mut v);
        for (w, want) in w.iter().zip([0.99, 1.01, 0.99]) {
            assert!((w - want).abs() < 1e-5, "{w}");
        }
    }

    #[test]
    fn moves_and_norms_have_one_set_of_bits() {
        let g: Vec<f32> = (0..40_000).map(|i| ((i % 977) as f32 - 488.0) * 1e-3).collect();
        let f =
            AdamFactors { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, step: 1e-3, correct2: 20.0, keep: 0.999, clip: 0.5 };
        let run = |isa, threads| {
            let cpu = Cpu::new(isa, threads).unwrap();
            let (mut w, mut m, mut v) = (g.clone(), vec![0.1; g.len()], vec![0.2; g.len()]);
            adam_all(&cpu, f, &g, &mut w, &mut m, &mut v);
            let norm = square_sum(&cpu, &w);
            ([w, m, v].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), norm.to_bits())
        };
        let want = run(Isa::Scalar, 1);
        for isa in Isa::available() {
            assert!(run(isa, 3) == want, "{isa}");
        }
    }
}
