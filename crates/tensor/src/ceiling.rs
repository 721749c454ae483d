//! What the processor can do at best, measured: the ceilings that kernels are compared with.
//!
//! Units throughout: floating-point operations (a fused multiply-add is two) or bytes, per second. Nothing here takes
//! part in a result.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::cpu::{Cpu, Isa};

/// How long one piece of a measurement takes about: far longer than waking a thread, shorter than a time slice.
const UNIT: Duration = Duration::from_millis(1);
/// Pieces a thread gets, so that one that was held up does not hold up the measurement.
const UNITS_PER_THREAD: usize = 4;
/// The best of so many measurements counts: whatever else runs can only slow one down. Many short ones find a moment
/// when nothing does.
const REPEATS: usize = 20;
/// Neither 0 nor infinite after any number of steps: a multiply-add with these tends to 1.
const FACTOR: f32 = 0.999;
const SUMMAND: f32 = 0.001;

/// Fused multiply-adds in f32 with the processor's vector set, on all its threads.
pub fn fma_flops(cpu: &Cpu) -> f64 {
    let isa = cpu.isa();
    // SAFETY: an `Isa` above `Scalar` exists only where the processor has its features.
    rate(cpu, &move |n| unsafe { fma(isa, n) })
}

/// Products and sums of the two-products-a-lane bf16 dot instruction, on all threads; none where it is missing.
pub fn bf16_dot_flops(cpu: &Cpu) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if has_bf16_dot() && cpu.isa() == Isa::Avx512 {
        // SAFETY: the processor has the instruction.
        return Some(rate(cpu, &|n| unsafe { x86::bf16_dot(n) }));
    }
    let _ = cpu;
    None
}

/// Whether the processor has the bf16 dot instruction on 512-bit vectors.
pub fn has_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Bytes read from memory, on all threads, streaming through a block of `size_bytes`, which should be far larger than
/// the caches.
pub fn read_bandwidth(cpu: &Cpu, size_bytes: usize) -> f64 {
    /// Floats read in one go: a quarter of a megabyte.
    const CHUNK: usize = 1 << 16;
    let n_chunks = (size_bytes / (CHUNK * size_of::<f32>())).max(1);
    let mut block = Buffer::zeroed(n_chunks * CHUNK);
    // A block that was never written may be one page of zeros seen many times.
    block.fill(1.0);
    let isa = cpu.isa();
    let seconds = best_of(REPEATS / 2, || {
        cpu.pool().run(n_chunks, &|i| {
            black_box(total(isa, &block[i * CHUNK..(i + 1) * CHUNK]));
        });
    });
    (n_chunks * CHUNK * size_of::<f32>()) as f64 / seconds
}

versioned! {
    /// The sum of the bits, which may be taken in any order and so runs as fast as they can be loaded.
    fn total(x: &[f32]) -> u32 {
        x.iter().fold(0u32, |sum, v| sum.wrapping_add(v.to_bits()))
    }
}

/// Work a second of `work`, which does as many rounds as it is told and says how much that was.
fn rate(cpu: &Cpu, work: &(dyn Fn(u64) -> f64 + Sync)) -> f64 {
    let mut rounds = 64;
    let start = |rounds| {
        let start = Instant::now();
        work(rounds);
        start.elapsed()
    };
    while start(rounds) < UNIT {
        rounds *= 2;
    }
    let n_units = cpu.pool().n_threads() * UNITS_PER_THREAD;
    let seconds = best_of(REPEATS, || {
        cpu.pool().run(n_units, &|_| {
            black_box(work(rounds));
        });
    });
    work(rounds) * n_units as f64 / seconds
}

fn best_of(repeats: usize, mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best.max(1e-9)
}

/// Chains of fused multiply-adds; says how many floating-point operations that were.
///
/// # Safety
/// The processor has the vector set.
unsafe fn fma(isa: Isa, rounds: u64) -> f64 {
    match isa {
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::fma_avx512(rounds) },
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::fma_avx2(rounds) },
        _ => fma_portable(rounds),
    }
}

fn fma_portable(rounds: u64) -> f64 {
    let mut chains = [[0.5_f32; 4]; 16];
    let (factor, summand) = (black_box(FACTOR), black_box(SUMMAND));
    for _ in 0..rounds {
        for lane in chains.iter_mut().flatten() {
            *lane = lane.mul_add(factor, summand);
        }
    }
    black_box(chains);
    (rounds * 16 * 4 * 2) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{FACTOR, SUMMAND};

    /// Sixteen independent chains hide the latency of four or five cycles at two a cycle.
    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_avx512(rounds: u64) -> f64 {
        let (factor, summand) = (_mm512_set1_ps(black_box(FACTOR)), _mm512_set1_ps(black_box(SUMMAND)));
        let mut chains = [_mm512_set1_ps(0.5); 16];
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = _mm512_fmadd_ps(*chain, factor, summand);
            }
        }
        black_box(chains);
        (rounds * 16 * 16 * 2) as f64
    }

    /// Twelve chains: with the two constants they fit sixteen registers, and ten would be enough.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_avx2(rounds: u64) -> f64 {
        let (factor, summand) = (_mm256_set1_ps(black_box(FACTOR)), _mm256_set1_ps(black_box(SUMMAND)));
        let mut chains = [_mm256_set1_ps(0.5); 12];
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = _mm256_fmadd_ps(*chain, factor, summand);
            }
        }
        black_box(chains);
        (rounds * 12 * 8 * 2) as f64
    }

    /// Two products and two sums in each of sixteen lanes.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn bf16_dot(rounds: u64) -> f64 {
        let factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(FACTOR)), _mm512_set1_ps(black_box(FACTOR)));
        let small = _mm512_cvtne2ps_pbh(_mm512_set1_ps(black_box(SUMMAND)), _mm512_set1_ps(black_box(SUMMAND)));
        let mut chains = [_mm512_set1_ps(0.5); 16];
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = _mm512_dpbf16_ps(*chain, factor, small);
            }
        }
        black_box(chains);
        (rounds * 16 * 16 * 4) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_what_a_processor_can_have() {
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, 1).unwrap();
            let flops = fma_flops(&cpu);
            // A library call for each operation at worst; 64 lanes at 8 GHz at best.
            assert!((1e6..2e12).contains(&flops), "{isa}: {flops:e}");
            let bandwidth = read_bandwidth(&cpu, 8 << 20);
            assert!((1e7..1e13).contains(&bandwidth), "{isa}: {bandwidth:e}");
        }
    }

    #[test]
    fn the_widest_vectors_do_at_least_as_much_as_the_portable_loop() {
        let [scalar, best] = [Isa::Scalar, Isa::best()].map(|isa| fma_flops(&Cpu::new(isa, 1).unwrap()));
        // Half of that, since tests share the machine.
        assert!(best > scalar * 0.5, "{best:e} {scalar:e}");
    }

    #[test]
    fn the_dot_instruction_is_measured_where_there_is_one() {
        let cpu = Cpu::new(Isa::best(), 1).unwrap();
        let measured = bf16_dot_flops(&cpu);
        assert_eq!(measured.is_some(), has_bf16_dot() && Isa::best() == Isa::Avx512);
        assert!(measured.is_none_or(|f| (1e8..5e12).contains(&f)), "{measured:?}");
    }
}
