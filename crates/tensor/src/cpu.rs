//! The processor as kernels see it: which vector set to use, and the threads.

use std::fmt;
use std::str::FromStr;

use crate::buffer::Shared;
use crate::pool::Pool;

/// A vector set. All three give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable fixed-width loops; the only one outside x86-64.
    Scalar,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Isa {
    /// The vector sets this processor has, narrowest first.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "only x86-64 adds to it")]
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa::Avx2);
                if ["avx512f", "avx512vl", "avx512dq", "avx512bw"].into_iter().all(has) {
                    all.push(Isa::Avx512);
                }
            }
        }
        all
    }

    /// The widest vector set this processor has.
    pub fn best() -> Isa {
        *Isa::available().last().expect("the portable set is always there")
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        _ => false,
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// Why a processor could not be set up as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// No such vector set.
    #[error("unknown vector set `{0}`, needed `scalar`, `avx2` or `avx512`")]
    UnknownIsa(String),
    /// The processor lacks it.
    #[error("vector set `{asked}` is not on this processor, which has {has}")]
    Unavailable {
        /// What was asked for.
        asked: Isa,
        /// What there is.
        has: String,
    },
    /// A thread count out of range.
    #[error("cannot use {0} threads, needed 1 to 1024")]
    Threads(usize),
    /// The system would not start a thread.
    #[error("cannot start a thread: {0}")]
    Spawn(String),
}

impl FromStr for Isa {
    type Err = CpuError;

    fn from_str(text: &str) -> Result<Isa, CpuError> {
        let isa = match text {
            "scalar" => Isa::Scalar,
            "avx2" => Isa::Avx2,
            "avx512" => Isa::Avx512,
            _ => return Err(CpuError::UnknownIsa(text.to_owned())),
        };
        let available = Isa::available();
        if available.contains(&isa) {
            return Ok(isa);
        }
        let has = available.iter().map(|i| format!("`{i}`")).collect::<Vec<_>>().join(", ");
        Err(CpuError::Unavailable { asked: isa, has })
    }
}

/// A vector set and a pool of threads: what every kernel is given.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// A processor with this vector set and this many threads, the caller's included.
    pub fn new(isa: Isa, n_threads: usize) -> Result<Cpu, CpuError> {
        if !Isa::available().contains(&isa) {
            let has = Isa::best().to_string();
            return Err(CpuError::Unavailable { asked: isa, has });
        }
        Ok(Cpu { isa, pool: Pool::new(n_threads)? })
    }

    /// The vector set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Calls `f` for every index below `n`, spread over the threads in chunks of at least `grain`.
    pub fn each(&self, n: usize, grain: usize, f: impl Fn(usize) + Sync) {
        let chunk = n.div_ceil(self.pool.n_threads() * 4).max(grain.max(1));
        self.pool.run(n.div_ceil(chunk), &|unit| {
            for i in unit * chunk..((unit + 1) * chunk).min(n) {
                f(i);
            }
        });
    }

    /// Calls `f` with each of the first `n` rows of `x`, spread over the threads.
    ///
    /// - Shapes: `x` holds rows of `width`, one after the other.
    pub fn each_row(
        &self,
        n: usize,
        grain: usize,
        (x, width): (&mut [f32], usize),
        f: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let x = Shared::new(x);
        // SAFETY: each call takes its own row.
        self.each(n, grain, |r| f(r, unsafe { x.slice(r * width, width) }));
    }

    /// As [`Cpu::each_row`], over the rows of several blocks at once, each with its own width.
    pub fn each_rows<const N: usize>(
        &self,
        n: usize,
        grain: usize,
        blocks: [(&mut [f32], usize); N],
        f: impl Fn(usize, [&mut [f32]; N]) + Sync,
    ) {
        let blocks = blocks.map(|(x, width)| (Shared::new(x), width));
        // SAFETY: each call takes its own row of each block.
        self.each(n, grain, |r| f(r, blocks.map(|(x, width)| unsafe { x.slice(r * width, width) })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_vector_set_is_named_with_the_right_ones() {
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert_eq!(error, "unknown vector set `sse9`, needed `scalar`, `avx2` or `avx512`");
    }

    #[test]
    fn each_reaches_every_index_once() {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        for n in [0, 1, 7, 1000] {
            let cpu = Cpu::new(Isa::Scalar, 3).unwrap();
            let hits: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
            cpu.each(n, 1, |i| {
                hits[i].fetch_add(1, Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
        }
    }
}
