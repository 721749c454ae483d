//! Counter-based random numbers: a value is a pure function of (key, counter), so it cannot depend on scheduling.
//!
//! Source: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

use sha2::{Digest, Sha256};

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// A stream of random numbers addressed by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of one purpose, named by words and numbers; any difference in either gives an unrelated stream.
    pub fn new(purpose: &str, numbers: &[u64]) -> Self {
        let mut hash = Sha256::new();
        hash.update((purpose.len() as u64).to_le_bytes());
        hash.update(purpose.as_bytes());
        for n in numbers {
            hash.update(n.to_le_bytes());
        }
        let digest = hash.finalize();
        Stream { key: u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 digest has 32 bytes")) }
    }

    /// The stream with this 64-bit key.
    pub fn from_key(key: u64) -> Self {
        Stream { key }
    }

    /// The 64-bit key, enough to rebuild the stream.
    pub fn key(self) -> u64 {
        self.key
    }

    /// Sixty-four uniform bits at a position.
    pub fn bits(self, position: u64) -> u64 {
        let [a, b, _, _] = philox([position as u32, (position >> 32) as u32, 0, 0], self.key);
        u64::from(a) | u64::from(b) << 32
    }

    /// A uniform number in [0, 1) with 53 bits, at a position.
    pub fn uniform(self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A uniform integer in `0..n`, at a position; `n` at least 1.
    ///
    /// - Holds: the bias is below n / 2⁶⁴ (multiply-and-shift without rejection, so one position is one number).
    pub fn below(self, position: u64, n: u64) -> u64 {
        ((u128::from(self.bits(position)) * u128::from(n)) >> 64) as u64
    }

    /// A permutation of `0..n`, the same for the same stream.
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

fn philox(mut counter: [u32; 4], key: u64) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the Random123 library.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn uniform_stays_in_its_range_and_has_the_right_mean() {
        let stream = Stream::new("test", &[1]);
        let values: Vec<f64> = (0..10_000).map(|i| stream.uniform(i)).collect();
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = values.iter().sum::<f64>() / 10_000.0;
        // Standard error of the mean is 0.0029; five of them.
        assert!((mean - 0.5).abs() < 0.0145, "{mean}");
    }

    #[test]
    fn streams_of_other_numbers_or_purposes_differ() {
        let a = Stream::new("sample", &[1, 2]);
        for b in [Stream::new("sample", &[2, 1]), Stream::new("init", &[1, 2]), Stream::new("sample", &[1, 2, 0])] {
            assert_ne!(a.bits(0), b.bits(0));
        }
    }

    #[test]
    fn a_permutation_holds_each_index_once() {
        let mut order = Stream::new("order", &[7]).permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
