//! A row of logits as a distribution: log-probability, entropy, their derivatives, and the draw.
//!
//! V vocabulary

use crate::lanes;
use crate::math::{self, exp};

/// What a banned token's logit becomes: low enough that its probability is exactly 0, and finite.
pub const BANNED: f32 = -1e30;

/// Elements whose numerators are summed before the sums are walked in order by [`draw`].
const BLOCK: usize = 256;

/// A row's normaliser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normaliser {
    /// The largest scaled logit.
    pub max: f32,
    /// Σ exp(z − max).
    pub sum: f32,
    /// ln Σ exp z, in nats.
    pub log_sum: f64,
    /// Entropy of the distribution, in nats.
    pub entropy: f64,
}

impl Normaliser {
    /// Log-probability of a token with this scaled logit.
    ///
    /// - Holds: finite and at most 0 for a token that is not banned; of a row that holds a NaN or an infinity it is not
    ///   finite, so that nothing is learned from it.
    pub fn log_probability(&self, z: f32) -> f32 {
        let value = (f64::from(z) - self.log_sum) as f32;
        // Not `min`, which turns a NaN into 0: the log-probability of a certain token.
        if value > 0.0 { 0.0 } else { value }
    }
}

versioned! {
    /// Scales a row of logits in place: z · (1 / temperature).
    pub fn temper(z: &mut [f32], inverse_temperature: f32) {
        for z in z.iter_mut() {
            *z *= inverse_temperature;
        }
    }

    fn sums(z: &[f32]) -> (f32, f32, f32) {
        let max = lanes::max(z);
        let mut total = [0.0_f32; lanes::LANES];
        let mut moment = [0.0_f32; lanes::LANES];
        let (chunks, rest) = z.as_chunks::<{ lanes::LANES }>();
        for chunk in chunks {
            for i in 0..lanes::LANES {
                let d = chunk[i] - max;
                let e = exp(d);
                total[i] += e;
                moment[i] = e.mul_add(d, moment[i]);
            }
        }
        for (i, z) in rest.iter().enumerate() {
            let d = z - max;
            let e = exp(d);
            total[i] += e;
            moment[i] = e.mul_add(d, moment[i]);
        }
        (max, lanes::tree(total), lanes::tree(moment))
    }

    /// Overwrites scaled logits with the loss's derivative by the raw logits, targets left out:
    /// −p (c + h (ln p + H)) / temperature.
    ///
    /// - Shapes: `z [V]`; `c` is Σ ∂loss/∂logp and `h` is Σ ∂loss/∂H over the row's targets.
    fn spread(z: &mut [f32], max: f32, inverse_sum: f32, c: f32, h: f32, log_p_shift: f32, inverse_temperature: f32) {
        for z in z.iter_mut() {
            let d = *z - max;
            let p = exp(d) * inverse_sum;
            let pull = h.mul_add(d + log_p_shift, c);
            *z = -(p * pull) * inverse_temperature;
        }
    }

    fn numerators(z: &mut [f32], max: f32) {
        for z in z.iter_mut() {
            *z = exp(*z - max);
        }
    }

    fn block_sum(e: &[f32]) -> f32 {
        lanes::sum(e)
    }
}

/// The normaliser and entropy of a row of scaled logits.
///
/// - Shapes: `z [V]`, banned tokens already at [`BANNED`].
pub fn normalise(isa: crate::Isa, z: &[f32]) -> Normaliser {
    let (max, sum, moment) = sums(isa, z);
    let log = math::ln(f64::from(sum));
    let entropy = log - f64::from(moment) / f64::from(sum);
    // −0.0 and rounding below 0 both mean a distribution on one token. Not `max`, which turns a NaN into 0.
    let entropy = if entropy <= 0.0 { 0.0 } else { entropy };
    Normaliser { max, sum, log_sum: f64::from(max) + log, entropy }
}

/// One target of a row: a token and the loss's derivatives by its log-probability and by the row's entropy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Which token.
    pub token: u32,
    /// ∂loss/∂logp.
    pub dlogp: f32,
    /// ∂loss/∂H.
    pub dentropy: f32,
}

/// Overwrites a row of scaled logits with the loss's derivative by the raw logits.
///
/// - Shapes: `z [V]`; several targets when several sequences share the row.
/// - Holds: a banned token's derivative is exactly 0; the targets count in their order.
pub fn logits_back(isa: crate::Isa, z: &mut [f32], n: &Normaliser, targets: &[Target], inverse_temperature: f32) {
    let c: f32 = targets.iter().map(|t| t.dlogp).sum();
    let h: f32 = targets.iter().map(|t| t.dentropy).sum();
    let shift = (n.entropy - (n.log_sum - f64::from(n.max))) as f32;
    spread(isa, z, n.max, 1.0 / n.sum, c, h, shift, inverse_temperature);
    for t in targets {
        z[t.token as usize] += t.dlogp * inverse_temperature;
    }
}

/// Draws a token by inverting the cumulative distribution; overwrites the scaled logits with their numerators.
///
/// - Shapes: `z [V]`; `uniform` in [0, 1).
/// - Holds: a token of probability 0 is never drawn; the walk's order is fixed.
pub fn draw(isa: crate::Isa, z: &mut [f32], n: &Normaliser, uniform: f64) -> u32 {
    numerators(isa, z, n.max);
    let blocks: Vec<f64> = z.chunks(BLOCK).map(|b| f64::from(block_sum(isa, b))).collect();
    let goal = uniform * blocks.iter().sum::<f64>();
    let mut before = 0.0;
    let mut last = 0;
    for (b, sum) in blocks.iter().enumerate() {
        if *sum == 0.0 {
            continue;
        }
        let mut at = before;
        for (i, e) in z[b * BLOCK..].iter().take(BLOCK).enumerate().filter(|(_, e)| **e > 0.0) {
            last = b * BLOCK + i;
            at += f64::from(*e);
            if before + sum > goal && at > goal {
                return last as u32;
            }
        }
        before += sum;
    }
    // Rounding left the goal past the end: the last possible token.
    last as u32
}

/// The most likely token, the lowest id on a tie.
pub fn most_likely(z: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, v) in z.iter().enumerate() {
        if *v > best.1 {
            best = (i, *v);
        }
    }
    best.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn logits(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 31) % 1009) as f32 / 100.0 - 5.0).collect()
    }

    #[test]
    fn log_probability_and_entropy_match_double_precision() {
        for n in [2, 17, 1000, 49_152] {
            let z = logits(n, 1);
            let got = normalise(Isa::best(), &z);
            let max = z.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = z.iter().map(|v| f64::from(v - max).exp()).sum();
            let lse = f64::from(max) + sum.ln();
            let entropy: f64 = z.iter().map(|v| f64::from(*v) - lse).map(|l| -l.exp() * l).sum();
            // Single-precision sums of n terms in 16 lanes: relative error below n/16 · 6e-8, in practice far less.
            assert!((got.log_sum - lse).abs() < 2e-6 * (1.0 + n as f64 / 1e4), "{n}: {} {lse}", got.log_sum);
            assert!((got.entropy - entropy).abs() < 2e-5, "{n}: {} {entropy}", got.entropy);
        }
    }

    #[test]
    fn a_row_that_is_not_finite_has_no_finite_log_probability() {
        for bad in [f32::NAN, f32::INFINITY] {
            for n in [3, 40] {
                let mut z = logits(n, 2);
                z[1] = bad;
                let row = normalise(Isa::best(), &z);
                assert!(z.iter().all(|z| !row.log_probability(*z).is_finite()), "{bad} among {n}");
                assert!(row.entropy.is_nan(), "{bad} among {n}");
            }
        }
        let mut z = logits(40, 2);
        z[1] = f32::NEG_INFINITY;
        assert!(normalise(Isa::best(), &z).entropy.is_nan(), "0 times infinity");
    }

    #[test]
    fn the_derivative_matches_finite_differences() {
        let (n, t) = (40, 0.8_f32);
        let raw = logits(n, 3);
        let targets =
            [Target { token: 4, dlogp: 0.7, dentropy: 0.2 }, Target { token: 30, dlogp: -1.1, dentropy: 0.5 }];
        let scaled = |raw: &[f32]| {
            let mut z = raw.to_vec();
            temper(Isa::best(), &mut z, 1.0 / t);
            z[7] = BANNED;
            z
        };
        let loss = |raw: &[f32]| {
            let z = scaled(raw);
            let lse = z.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
            let logs: Vec<f64> = z.iter().map(|v| f64::from(*v) - lse).collect();
            let entropy: f64 = logs.iter().map(|l| if *l < -1e9 { 0.0 } else { -l.exp() * l }).sum();
            let one = |t: &Target| f64::from(t.dlogp) * logs[t.token as usize] + f64::from(t.dentropy) * entropy;
            targets.iter().map(one).sum::<f64>()
        };
        let mut got = scaled(&raw);
        let normaliser = normalise(Isa::best(), &got);
        logits_back(Isa::best(), &mut got, &normaliser, &targets, 1.0 / t);
        for i in 0..n {
            let (mut up, mut down) = (raw.clone(), raw.clone());
            up[i] += 1e-2;
            down[i] -= 1e-2;
            let want = (loss(&up) - loss(&down)) / f64::from(up[i] - down[i]);
            assert!((want - f64::from(got[i])).abs() < 3e-5, "{i}: {want} {}", got[i]);
        }
        assert_eq!(got[7], 0.0);
    }

    #[test]
    fn draws_follow_the_distribution_and_never_a_banned_token() {
        let mut z = vec![BANNED; 600];
        for (i, p) in [(3, 0.5_f32), (299, 0.2), (599, 0.3)] {
            z[i] = p.ln();
        }
        let n = normalise(Isa::best(), &z);
        let mut counts = [0; 600];
        for i in 0..10_000 {
            counts[draw(Isa::best(), &mut z.clone(), &n, f64::from(i) / 10_000.0) as usize] += 1;
        }
        assert_eq!(counts.iter().filter(|c| **c > 0).count(), 3);
        for (i, want) in [(3, 5000_i32), (299, 2000), (599, 3000)] {
            assert!((counts[i] - want).abs() <= 1, "{i}: {}", counts[i]);
        }
    }

    #[test]
    fn rows_have_one_set_of_bits_on_every_vector_set() {
        for n in [3, 16, 100, 5000] {
            let z = logits(n, 5);
            let targets = [Target { token: 1, dlogp: 0.5, dentropy: -0.25 }];
            let run = |isa| {
                let normaliser = normalise(isa, &z);
                let mut grad = z.clone();
                logits_back(isa, &mut grad, &normaliser, &targets, 1.25);
                let token = draw(isa, &mut z.clone(), &normaliser, 0.37);
                let bits: Vec<u32> = grad.iter().map(|v| v.to_bits()).collect();
                (normaliser.log_sum.to_bits(), normaliser.entropy.to_bits(), bits, token)
            };
            let want = run(Isa::Scalar);
            for isa in Isa::available() {
                assert_eq!(run(isa), want, "{isa} at {n}");
            }
        }
    }
}
