//! Position rotations: the angles of every family's variant, as one table of sines and cosines.

use tensor::math;

/// How the base frequencies are changed for long contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, between them a blend.
    ///
    /// Source: the Llama 3.1 model code.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Original context over the longest wavelength that is divided.
        low: f64,
        /// Original context over the shortest wavelength that is not kept.
        high: f64,
        /// Context of pre-training.
        original: f64,
    },
    /// Frequencies blended by how often they turn in the original context, and a warmer softmax.
    ///
    /// Source: YaRN, arXiv:2309.00071.
    Yarn {
        /// Context extension.
        factor: f64,
        /// Turns above which a frequency is kept.
        fast: f64,
        /// Turns below which it is divided.
        slow: f64,
        /// Context of pre-training.
        original: f64,
        /// What sines and cosines are multiplied with; from the factor when absent.
        attention: Option<f64>,
    },
}

/// A rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Change for long contexts.
    pub scaling: Scaling,
    /// Divisors of each frequency, `[head_dim / 2]`, when the file lists them.
    pub factors: Option<Vec<f32>>,
}

impl Rope {
    /// A rotation without changes.
    pub fn plain(theta: f64) -> Self {
        Rope { theta, scaling: Scaling::None, factors: None }
    }

    /// Angle per position of each pair, `[head_dim / 2]`, and the factor on sines and cosines.
    pub(crate) fn frequencies(&self, head_dim: usize) -> (Vec<f64>, f64) {
        let half = head_dim / 2;
        let base: Vec<f64> = (0..half).map(|i| 1.0 / math::pow(self.theta, 2.0 * i as f64 / head_dim as f64)).collect();
        let tau = 2.0 * std::f64::consts::PI;
        let (mut scaled, magnitude) = match self.scaling {
            Scaling::None => (base, 1.0),
            Scaling::Linear { factor } => (base.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Llama3 { factor, low, high, original } => {
                let blend = |f: &f64| {
                    let turns = original * f / tau;
                    let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - smooth) * f / factor + smooth * f
                };
                (base.iter().map(blend).collect(), 1.0)
            }
            Scaling::Yarn { factor, fast, slow, original, attention } => {
                // The pair whose frequency turns this often within the original context.
                let pair =
                    |turns: f64| head_dim as f64 * math::ln(original / (turns * tau)) / (2.0 * math::ln(self.theta));
                let low = pair(fast).floor().max(0.0);
                let high = pair(slow).ceil().min(head_dim as f64 - 1.0);
                let span = if high == low { 0.001 } else { high - low };
                let blend = |(i, f): (usize, &f64)| {
                    let divided = ((i as f64 - low) / span).clamp(0.0, 1.0);
                    f / factor * divided + f * (1.0 - divided)
                };
                let magnitude = attention.unwrap_or(if factor <= 1.0 { 1.0 } else { 0.1 * math::ln(factor) + 1.0 });
                (base.iter().enumerate().map(blend).collect(), magnitude)
            }
        };
        if let Some(factors) = &self.factors {
            for (f, factor) in scaled.iter_mut().zip(factors) {
                *f /= f64::from(*factor);
            }
        }
        (scaled, magnitude)
    }
}

/// Sines and cosines by position, grown as positions are met.
#[derive(Debug)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// An empty table of a rotation.
    pub fn new(rope: &Rope, head_dim: usize) -> Self {
        let (frequencies, magnitude) = rope.frequencies(head_dim);
        RopeTable { frequencies, magnitude, cos: Vec::new(), sin: Vec::new() }
    }

    /// Makes the table reach `n` positions.
    pub fn reach(&mut self, n: usize) {
        let half = self.frequencies.len();
        for position in self.cos.len() / half.max(1)..n {
            for f in &self.frequencies {
                let (sin, cos) = math::sin_cos(position as f64 * f);
                self.cos.push((cos * self.magnitude) as f32);
                self.sin.push((sin * self.magnitude) as f32);
            }
        }
    }

    /// Cosines and sines of a position within reach, `[head_dim / 2]` each.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        let range = position * half..(position + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pair_turns_by_one_radian_a_position() {
        let mut table = RopeTable::new(&Rope::plain(10_000.0), 64);
        table.reach(3);
        let (cos, sin) = table.at(2);
        assert_eq!((cos[0], sin[0]), (2.0_f64.cos() as f32, 2.0_f64.sin() as f32));
        let slowest = 2.0 / 10_000.0_f64.powf(62.0 / 64.0);
        assert!((f64::from(sin[31]) - slowest.sin()).abs() < 1e-9);
    }

    #[test]
    fn llama3_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let scaled = Rope { theta: 500_000.0, scaling, factors: None }.frequencies(128).0;
        let plain = Rope::plain(500_000.0).frequencies(128).0;
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] * 8.0 - plain[63]).abs() < 1e-18);
    }

    #[test]
    fn yarn_without_extension_changes_nothing() {
        let scaling = Scaling::Yarn { factor: 1.0, fast: 32.0, slow: 1.0, original: 4096.0, attention: None };
        let (scaled, magnitude) = Rope { theta: 1e6, scaling, factors: None }.frequencies(64);
        for (a, b) in scaled.iter().zip(Rope::plain(1e6).frequencies(64).0) {
            assert!((a - b).abs() <= 1e-12 * b);
        }
        assert_eq!(magnitude, 1.0);
    }
}
