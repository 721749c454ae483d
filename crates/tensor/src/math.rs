//! Elementary functions as fixed polynomials: the same bits on every machine, and loops of them vectorise.
//!
//! The `f64` functions used for tables and single values come from `libm`, a pure Rust port of musl's maths library, so
//! they too are code of this binary and not of the platform.

/// 1.5 · 2²³: adding it rounds a small float to the nearest integer (ties to even) in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the high part has few enough bits that `n` times it is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below this `exp` is 0: the result would be denormal, which hardware paths may flush.
const LOWEST: f32 = -87.0;
const HIGHEST: f32 = 88.0;

/// eˣ, at most 2 ulp from the true value on [−87, 88]; 0 below, e⁸⁸ above.
///
/// - Holds: `exp(0) = 1` exactly; a NaN gives a NaN.
/// - Source: range reduction and degree-6 polynomial after Cephes `expf` (Moshier).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let bounded = if x > HIGHEST { HIGHEST } else { x };
    let shifted = bounded.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, bounded);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 0.166_666_65);
    p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < LOWEST { 0.0 } else { p * scale }
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// tanh x, through one exponential; within 3e-7 of the true value.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let e = exp(x * 2.0);
    1.0 - 2.0 / (e + 1.0)
}

/// ln x of a positive double.
pub fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// eˣ of a double.
pub fn exp_f64(x: f64) -> f64 {
    libm::exp(x)
}

/// xʸ of doubles.
pub fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// (sin x, cos x) of a double.
pub fn sin_cos(x: f64) -> (f64, f64) {
    libm::sincos(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_the_true_value() {
        let mut worst = 0.0_f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            let ulp = f64::from(f32::EPSILON) * want;
            worst = worst.max((f64::from(exp(x)) - want).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_at_its_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-100.0), 0.0);
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_sigmoid_follow_the_true_value() {
        for i in -2000..2000 {
            let x = i as f32 * 0.01;
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 3e-7, "{x}");
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - want).abs() < 2e-7, "{x}");
        }
        assert_eq!(tanh(100.0), 1.0);
        assert_eq!(tanh(-100.0), -1.0);
    }
}
