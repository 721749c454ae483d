//! Exponential and logarithm, written out: additions, multiplications, divisions and a scale by a power of two, all of
//! which IEEE 754 fixes to the bit, where a platform's maths library differs in the last one.
//!
//! Source: argument reduction by a two-part ln 2 (Cody & Waite, "Software Manual for the Elementary Functions", 1980);
//! the polynomial of the exponential is Taylor's to degree 13, whose next term is below 5e-18 on |r| ≤ ½ ln 2; that of the
//! logarithm is the series of 2·artanh(s) to s²³, whose next term is below 5e-18 relative to the first on |s| ≤ 0.172,
//! put together as in fdlibm's `e_log`, which keeps the last digit.

/// The first 33 bits of ln 2, so that a product with any exponent is exact.
const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
/// ln 2 without its first 33 bits.
const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// Above it the result is infinite.
const OVERFLOW: f64 = 709.782_712_893_384;
/// Below it the result is 0.
const UNDERFLOW: f64 = -745.133_219_101_941_2;
/// Within it no reduction is needed.
const HALF_LN2: f64 = 0.346_573_590_279_972_64;

/// 2⁵⁴, which lifts the smallest numbers to where they have all their digits.
const TWO_54: f64 = 18_014_398_509_481_984.0;
/// The bits after the exponent.
const MANTISSA: u64 = (1 << 52) - 1;

/// 2/3, 2/5, … 2/23.
const ARTANH_TAIL: [f64; 11] = [
    2.0 / 3.0,
    2.0 / 5.0,
    2.0 / 7.0,
    2.0 / 9.0,
    2.0 / 11.0,
    2.0 / 13.0,
    2.0 / 15.0,
    2.0 / 17.0,
    2.0 / 19.0,
    2.0 / 21.0,
    2.0 / 23.0,
];

/// 1/2!, 1/3!, … 1/13!.
const INVERSE_FACTORIALS: [f64; 12] = [
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
];

/// eˣ.
///
/// - Holds: exactly 1 at 0; within one unit in the last place elsewhere; the same bits on every machine.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > OVERFLOW {
        return f64::INFINITY;
    }
    if x < UNDERFLOW {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round();
    let high = x - k * LN2_HIGH;
    let low = k * LN2_LOW;
    let r = high - low;
    let lost = (high - r) - low;
    scale(1.0 + (r + (lost + quadratic_tail(r))), k as i32)
}

/// eˣ − 1 − x, without the cancellation that computing it so would bring.
///
/// - Holds: never negative, exactly 0 at 0.
pub fn exp_m1_minus(x: f64) -> f64 {
    if x.abs() <= HALF_LN2 { quadratic_tail(x) } else { exp(x) - 1.0 - x }
}

/// ln x.
///
/// - Holds: exactly 0 at 1; within one unit in the last place elsewhere; the same bits on every machine. −∞ at 0, NaN below.
pub fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() {
        return x;
    }
    // x = 2ᵏ · m with m from √½ to √2, so that m − 1 is exact and small.
    let (x, lifted) = if x < f64::MIN_POSITIVE { (x * TWO_54, 54) } else { (x, 0) };
    let exponent = (x.to_bits() >> 52) as i32 - 1023;
    let m = f64::from_bits((x.to_bits() & MANTISSA) | (1023 << 52));
    let (m, k) = if m > std::f64::consts::SQRT_2 { (0.5 * m, exponent + 1) } else { (m, exponent) };
    let k = f64::from(k - lifted);
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let tail = s * s * ARTANH_TAIL.iter().rev().fold(0.0, |sum, c| sum * (s * s) + c);
    let half = 0.5 * f * f;
    k * LN2_HIGH - ((half - (s * (half + tail) + k * LN2_LOW)) - f)
}

/// 1 / (1 + e⁻ˣ).
pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        return 1.0 / (1.0 + exp(-x));
    }
    let e = exp(x);
    e / (1.0 + e)
}

/// ln σ(x) = −ln(1 + e⁻ˣ), without the loss of digits that computing it so would bring on either side.
pub fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - ln_1p_small(exp(-x.abs()))
}

/// ln(1 + u) for u from 0 to 1: what rounding 1 + u loses is given back as a factor.
fn ln_1p_small(u: f64) -> f64 {
    let w = 1.0 + u;
    if w == 1.0 { u } else { ln(w) * (u / (w - 1.0)) }
}

/// eʳ − 1 − r for |r| ≤ ½ ln 2.
fn quadratic_tail(r: f64) -> f64 {
    let polynomial = INVERSE_FACTORIALS.iter().rev().fold(0.0, |sum, c| sum * r + c);
    r * r * polynomial
}

/// y · 2ᵏ, rounded once, for y near 1 and k from −1075 to 1024.
fn scale(y: f64, k: i32) -> f64 {
    let power = |k: i32| f64::from_bits(((1023 + k) as u64) << 52);
    match k {
        1024.. => y * 2.0 * power(k - 1),
        -1022..=1023 => y * power(k),
        _ => y * power(k + 200) * power(-200),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(a: f64, b: f64) -> u64 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn agrees_with_the_platform_to_one_unit_in_the_last_place() {
        let mut worst = 0;
        for i in -200_000i32..=200_000 {
            for x in [f64::from(i) * 1e-7, f64::from(i) * 1.37e-5, f64::from(i) * 3.5e-3] {
                worst = worst.max(ulps(exp(x), x.exp()));
            }
        }
        assert!(worst <= 1, "{worst} units in the last place");
    }

    #[test]
    fn is_exact_at_the_ends() {
        assert_eq!(exp(0.0).to_bits(), 1f64.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1f64.to_bits());
        assert_eq!(exp(1e9), f64::INFINITY);
        assert_eq!(exp(f64::INFINITY), f64::INFINITY);
        assert_eq!(exp(-1e9), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert!(exp(f64::NAN).is_nan());
        assert!(ulps(exp(709.78), 709.78f64.exp()) <= 1);
        assert!(ulps(exp(-745.0), (-745.0f64).exp()) <= 1);
        assert!(ulps(exp(-720.25), (-720.25f64).exp()) <= 1);
    }

    /// Bits pinned here fail on a machine whose arithmetic differs.
    #[test]
    fn the_bits_are_the_same_on_every_machine() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for i in -5_000i32..5_000 {
            for byte in exp(f64::from(i) * 0.0173).to_bits().to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(hash, 0x2516_adbe_c05a_92d6, "{hash:#x}");
    }

    #[test]
    fn the_tail_is_never_negative_and_keeps_its_digits() {
        assert_eq!(exp_m1_minus(0.0), 0.0);
        for i in -3_000i32..3_000 {
            let x = f64::from(i) * 1e-3;
            assert!(exp_m1_minus(x) >= 0.0);
            assert!((exp_m1_minus(x) - (x.exp_m1() - x)).abs() <= 4e-15 * (1.0 + x.abs().exp()), "{x}");
        }
        let tiny = exp_m1_minus(1e-9);
        assert!((tiny / 5e-19 - 1.0).abs() < 1e-8, "{tiny}");
    }

    #[test]
    fn the_logarithm_agrees_with_the_platform_to_one_unit_in_the_last_place() {
        let mut worst = 0;
        for i in 1i32..=200_000 {
            let i = f64::from(i);
            for x in [i * 1e-5, 1.0 + i * 1e-9, 1.0 - i * 4e-6, i * 1.7e3, exp(i * 3.5e-3 - 350.0)] {
                worst = worst.max(ulps(ln(x), x.ln()));
            }
        }
        assert!(worst <= 1, "{worst} units in the last place");
    }

    #[test]
    fn the_logarithm_is_exact_at_the_ends() {
        assert_eq!(ln(1.0).to_bits(), 0f64.to_bits());
        assert_eq!((ln(0.0), ln(-0.0)), (f64::NEG_INFINITY, f64::NEG_INFINITY));
        assert_eq!(ln(f64::INFINITY), f64::INFINITY);
        assert!(ln(-1e-300).is_nan() && ln(f64::NAN).is_nan() && ln(f64::NEG_INFINITY).is_nan());
        for x in [f64::MAX, f64::MIN_POSITIVE, 5e-324, 1.3e-310, f64::EPSILON] {
            assert!(ulps(ln(x), x.ln()) <= 1, "{x}");
        }
    }

    #[test]
    fn the_logarithms_bits_are_the_same_on_every_machine() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for i in 1i32..10_000 {
            for byte in ln(f64::from(i) * 0.000_917).to_bits().to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(hash, 0x5058_3310_e42e_1d7e, "{hash:#x}");
    }

    #[test]
    fn the_logistic_function_and_its_logarithm_keep_their_digits_on_both_sides() {
        assert_eq!((sigmoid(0.0), sigmoid(800.0), sigmoid(-800.0)), (0.5, 1.0, 0.0));
        assert_eq!((log_sigmoid(-800.0), log_sigmoid(800.0)), (-800.0, 0.0));
        for i in -4_000i32..=4_000 {
            let x = f64::from(i) * 0.01;
            assert!((sigmoid(x) / (1.0 / (1.0 + (-x).exp())) - 1.0).abs() < 5e-16, "{x}");
            let want = x.min(0.0) - (-x.abs()).exp().ln_1p();
            assert!((log_sigmoid(x) / want - 1.0).abs() < 1e-15, "{x}: {} {want}", log_sigmoid(x));
        }
    }
}
