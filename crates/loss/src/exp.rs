//! The exponential, written out: additions, multiplications and a scale by a power of two, all of which IEEE 754 fixes
//! to the bit, where a platform's maths library differs in the last one.
//!
//! Source: argument reduction by a two-part ln 2 (Cody & Waite, "Software Manual for the Elementary Functions", 1980);
//! the polynomial is Taylor's to degree 13, whose next term is below 5e-18 on |r| ≤ ½ ln 2.

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
}
