//! What happens inside a row, or element by element: norms, gates, rotations, softmax, and their derivatives.
//!
//! D width · F width of the feed-forward gate

use crate::Cpu;
use crate::buffer::Shared;
use crate::lanes;
use crate::math::{exp, sigmoid, tanh};

/// √(2/π), for the tanh form of GELU.
const GELU_SLOPE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

versioned! {
    /// x / rms(x) · w; returns 1 / rms(x), which the backward pass needs.
    ///
    /// - Shapes: `x`, `w`, `out` `[D]`.
    pub fn rms_norm(x: &[f32], w: &[f32], epsilon: f32, out: &mut [f32]) -> f32 {
        let inverse = 1.0 / (lanes::dot(x, x) / x.len() as f32 + epsilon).sqrt();
        for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
            *o = x * inverse * w;
        }
        inverse
    }

    /// Adds the derivative of [`rms_norm`] by its input to `dx`.
    ///
    /// - Shapes: all `[D]`; `inverse` is what the forward pass returned.
    pub fn rms_norm_back(x: &[f32], w: &[f32], inverse: f32, dy: &[f32], dx: &mut [f32]) {
        let (x, w, dy) = (&x[..dx.len()], &w[..dx.len()], &dy[..dx.len()]);
        let along = lanes::fold(x.len(), |i, acc| (dy[i] * w[i]).mul_add(x[i], acc));
        let pull = -(along * inverse * inverse * inverse / x.len() as f32);
        for (((d, x), w), dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
            *d += (dy * w).mul_add(inverse, x * pull);
        }
    }

    /// As [`rms_norm_back`] but writing instead of adding.
    pub fn rms_norm_back_into(x: &[f32], w: &[f32], inverse: f32, dy: &[f32], dx: &mut [f32]) {
        let (x, w, dy) = (&x[..dx.len()], &w[..dx.len()], &dy[..dx.len()]);
        let along = lanes::fold(x.len(), |i, acc| (dy[i] * w[i]).mul_add(x[i], acc));
        let pull = -(along * inverse * inverse * inverse / x.len() as f32);
        for (((d, x), w), dy) in dx.iter_mut().zip(x).zip(w).zip(dy) {
            *d = (dy * w).mul_add(inverse, x * pull);
        }
    }

    /// Adds one row's share of a norm's weight gradient: dw += dy · x / rms(x).
    pub fn rms_norm_weight(x: &[f32], inverse: f32, dy: &[f32], dw: &mut [f32]) {
        for ((d, x), dy) in dw.iter_mut().zip(x).zip(dy) {
            *d = (x * inverse).mul_add(*dy, *d);
        }
    }

    /// y += x.
    pub fn add(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }

    /// y *= a.
    pub fn scale(a: f32, y: &mut [f32]) {
        for y in y.iter_mut() {
            *y *= a;
        }
    }

    /// silu(gate) · up.
    ///
    /// - Shapes: all `[F]`.
    pub fn silu_gate(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = g * sigmoid(*g) * u;
        }
    }

    /// Derivative of [`silu_gate`]; also writes its result again, the same bits.
    pub fn silu_gate_back(
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        out: &mut [f32],
        dgate: &mut [f32],
        dup: &mut [f32],
    ) {
        let n = dgate.len();
        let (gate, up, dy, out, dup) = (&gate[..n], &up[..n], &dy[..n], &mut out[..n], &mut dup[..n]);
        for i in 0..n {
            let s = sigmoid(gate[i]);
            let silu = gate[i] * s;
            out[i] = silu * up[i];
            dup[i] = dy[i] * silu;
            dgate[i] = dy[i] * up[i] * (silu.mul_add(1.0 - s, s));
        }
    }

    /// gelu(gate) · up, in GELU's tanh form.
    pub fn gelu_gate(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            let t = tanh(GELU_SLOPE * (GELU_CUBE * g * g).mul_add(*g, *g));
            *o = 0.5 * g * (1.0 + t) * u;
        }
    }

    /// Derivative of [`gelu_gate`]; also writes its result again, the same bits.
    pub fn gelu_gate_back(
        gate: &[f32],
        up: &[f32],
        dy: &[f32],
        out: &mut [f32],
        dgate: &mut [f32],
        dup: &mut [f32],
    ) {
        let n = dgate.len();
        let (gate, up, dy, out, dup) = (&gate[..n], &up[..n], &dy[..n], &mut out[..n], &mut dup[..n]);
        for i in 0..n {
            let g = gate[i];
            let t = tanh(GELU_SLOPE * (GELU_CUBE * g * g).mul_add(g, g));
            let inner = GELU_SLOPE * (3.0 * GELU_CUBE * g).mul_add(g, 1.0);
            out[i] = 0.5 * g * (1.0 + t) * up[i];
            dup[i] = dy[i] * (0.5 * g * (1.0 + t));
            dgate[i] = dy[i] * up[i] * (0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * inner);
        }
    }

    /// Rotates the two halves of a head by its position's angles.
    ///
    /// - Shapes: `head [2 n]`, `cos`, `sin` `[n]`; with `sin` negated it is the inverse, hence also the derivative.
    pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        let (low, high) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let s = s * sign;
            let (x, y) = (*a, *b);
            *a = x.mul_add(*c, -(y * s));
            *b = y.mul_add(*c, x * s);
        }
    }

    /// Scores to softmax numerators in place: s → exp(s·scale − max); returns their sum.
    ///
    /// - Holds: scores of −∞ give exactly 0; the sum's lanes go by the absolute position in `s`.
    pub fn softmax_numerators(s: &mut [f32], scale: f32) -> f32 {
        for v in s.iter_mut() {
            *v *= scale;
        }
        let max = lanes::max(s);
        for v in s.iter_mut() {
            *v = exp(*v - max);
        }
        lanes::sum(s)
    }

    /// Derivative of a softmax row by its scores: p ← e·inverse, ds = p (dp − along) scale.
    ///
    /// - Shapes: `e` holds the numerators and becomes p; `dp` holds ∂/∂p and becomes ∂/∂score.
    pub fn softmax_back(e: &mut [f32], inverse: f32, dp: &mut [f32], along: f32, scale: f32) {
        for (e, d) in e.iter_mut().zip(dp) {
            let p = *e * inverse;
            *e = p;
            *d = p * (*d - along) * scale;
        }
    }

    /// Σ xᵢ yᵢ in the fixed order.
    pub fn dot(x: &[f32], y: &[f32]) -> f32 {
        lanes::dot(x, y)
    }

    /// Σ xᵢ² of up to a few thousand elements, in the fixed order.
    pub fn square_sum(x: &[f32]) -> f32 {
        lanes::dot(x, x)
    }

    /// Position of the first element that is NaN or infinite.
    pub fn first_not_finite(x: &[f32]) -> Option<usize> {
        let bad = lanes::fold(x.len(), |i, acc| acc + x[i] * 0.0);
        if bad == 0.0 { None } else { x.iter().position(|v| !v.is_finite()) }
    }
}

/// Adds a norm's weight gradient over many rows: each weight's sum goes over the rows in order.
///
/// - Shapes: `x`, `dy` rows of `D`, `ld` apart; `inverse [R]`; `dw [D]`.
pub fn norm_weight_grad(
    cpu: &Cpu,
    (x, ldx): (&[f32], usize),
    inverse: &[f32],
    (dy, lddy): (&[f32], usize),
    dw: &mut [f32],
) {
    const COLUMNS: usize = 64;
    let width = dw.len();
    let out = Shared::new(dw);
    cpu.pool().run(width.div_ceil(COLUMNS), &|unit| {
        let start = unit * COLUMNS;
        let n = COLUMNS.min(width - start);
        // SAFETY: units own disjoint columns.
        let dw = unsafe { out.slice(start, n) };
        for (r, inverse) in inverse.iter().enumerate() {
            let (x, dy) = (&x[r * ldx + start..], &dy[r * lddy + start..]);
            rms_norm_weight(cpu.isa(), &x[..n], *inverse, &dy[..n], dw);
        }
    });
}

/// Adds to each output the sum of its column over many rows, rows in order: a bias's gradient.
pub fn column_sums(cpu: &Cpu, rows: usize, (dy, ld): (&[f32], usize), out: &mut [f32]) {
    const COLUMNS: usize = 64;
    let width = out.len();
    let shared = Shared::new(out);
    cpu.pool().run(width.div_ceil(COLUMNS), &|unit| {
        let start = unit * COLUMNS;
        let n = COLUMNS.min(width - start);
        // SAFETY: units own disjoint columns.
        let out = unsafe { shared.slice(start, n) };
        for r in 0..rows {
            add(cpu.isa(), &dy[r * ld + start..r * ld + start + n], out);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    type GateBack = fn(Isa, &[f32], &[f32], &[f32], &mut [f32], &mut [f32], &mut [f32]);

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 252.25 - 2.0).collect()
    }

    /// Checks that a function's bits are equal on every vector set, for lengths round every edge.
    fn same_everywhere(f: impl Fn(Isa, usize) -> Vec<f32>) {
        for n in [1, 2, 15, 16, 17, 48, 63, 64, 65, 576] {
            let want: Vec<u32> = f(Isa::Scalar, n).iter().map(|v| v.to_bits()).collect();
            for isa in Isa::available() {
                let got: Vec<u32> = f(isa, n).iter().map(|v| v.to_bits()).collect();
                assert_eq!(got, want, "{isa} at {n}");
            }
        }
    }

    #[test]
    fn every_row_kernel_gives_one_set_of_bits() {
        let out = |n| vec![0.0; n];
        same_everywhere(|isa, n| {
            let (x, w) = (numbers(n, 1), numbers(n, 2));
            let mut y = out(n);
            let inverse = rms_norm(isa, &x, &w, 1e-5, &mut y);
            rms_norm_back(isa, &x, &w, inverse, &numbers(n, 3), &mut y);
            rms_norm_weight(isa, &x, inverse, &w, &mut y);
            y
        });
        for (gate, back) in [
            (silu_gate as fn(Isa, &[f32], &[f32], &mut [f32]), silu_gate_back as GateBack),
            (gelu_gate, gelu_gate_back),
        ] {
            same_everywhere(|isa, n| {
                let (g, u, dy) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
                let (mut y, mut again, mut dg, mut du) = (out(n), out(n), out(n), out(n));
                gate(isa, &g, &u, &mut y);
                back(isa, &g, &u, &dy, &mut again, &mut dg, &mut du);
                assert_eq!(y, again, "{isa} at {n}");
                [y, dg, du].concat()
            });
        }
        same_everywhere(|isa, n| {
            let mut s = numbers(n, 5);
            s[0] = f32::NEG_INFINITY;
            s.push(1.0);
            let sum = softmax_numerators(isa, &mut s, 0.125);
            let mut dp = numbers(n + 1, 6);
            softmax_back(isa, &mut s, 1.0 / sum, &mut dp, 0.3, 0.125);
            [s, dp].concat()
        });
        same_everywhere(|isa, n| {
            let (mut head, angle) = (numbers(2 * n, 7), numbers(n, 8));
            rotate(isa, &mut head, &angle, &numbers(n, 9), 1.0);
            head
        });
    }

    /// Central differences in f64 of the same formulas; the step of 1e-3 leaves an error near 1e-6 of the value, and f32
    /// forward rounding 1e-4: 2e-3 covers both.
    fn check_derivative(f: impl Fn(&[f32]) -> f64, x: &[f32], got: &[f32]) {
        for i in 0..x.len() {
            let (mut up, mut down) = (x.to_vec(), x.to_vec());
            up[i] += 1e-2;
            down[i] -= 1e-2;
            let want = (f(&up) - f(&down)) / f64::from(up[i] - down[i]);
            assert!((want - f64::from(got[i])).abs() < 2e-3 * (1.0 + want.abs()), "{i}: {want} {}", got[i]);
        }
    }

    #[test]
    fn derivatives_match_finite_differences() {
        let n = 20;
        let (x, w, dy) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
        let inner = |y: &[f32]| y.iter().zip(&dy).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let isa = Isa::best();
        let norm = |x: &[f32]| {
            let mut y = vec![0.0; n];
            rms_norm(isa, x, &w, 1e-5, &mut y);
            inner(&y)
        };
        let mut y = vec![0.0; n];
        let inverse = rms_norm(isa, &x, &w, 1e-5, &mut y);
        let mut dx = vec![0.0; n];
        rms_norm_back(isa, &x, &w, inverse, &dy, &mut dx);
        check_derivative(norm, &x, &dx);

        for (gate, back) in [
            (silu_gate as fn(Isa, &[f32], &[f32], &mut [f32]), silu_gate_back as GateBack),
            (gelu_gate, gelu_gate_back),
        ] {
            let run = |g: &[f32], u: &[f32]| {
                let mut y = vec![0.0; n];
                gate(isa, g, u, &mut y);
                inner(&y)
            };
            let (mut dg, mut du) = (vec![0.0; n], vec![0.0; n]);
            back(isa, &x, &w, &dy, &mut vec![0.0; n], &mut dg, &mut du);
            check_derivative(|g| run(g, &w), &x, &dg);
            check_derivative(|u| run(&x, u), &w, &du);
        }
    }

    #[test]
    fn a_rotation_turned_back_is_where_it_was() {
        let angle: Vec<f64> = (0..8).map(|i| f64::from(i) * 0.7).collect();
        let cos: Vec<f32> = angle.iter().map(|a| a.cos() as f32).collect();
        let sin: Vec<f32> = angle.iter().map(|a| a.sin() as f32).collect();
        let start = numbers(16, 4);
        let mut head = start.clone();
        rotate(Isa::best(), &mut head, &cos, &sin, 1.0);
        assert_ne!(head, start);
        rotate(Isa::best(), &mut head, &cos, &sin, -1.0);
        for (a, b) in head.iter().zip(&start) {
            assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_found() {
        let mut x = numbers(100, 1);
        assert_eq!(first_not_finite(Isa::best(), &x), None);
        x[70] = f32::INFINITY;
        x[90] = f32::NAN;
        assert_eq!(first_not_finite(Isa::best(), &x), Some(70));
    }
}
