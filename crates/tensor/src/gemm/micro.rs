//! The inner kernels: a tile of up to `MAX_ROWS` rows by up to 64 outputs, one chain of fused multiply-adds an element.
//!
//! Every kernel computes c[i][j] = fma(a[i][k], b[k][j], c[i][j]) for k ascending; they differ only in how many elements
//! are in flight.

use crate::Isa;
use crate::lanes::LANES;

/// Rows a tile may have when its panel is `lanes` wide: as many as the registers hold.
pub(crate) fn max_rows(lanes: usize) -> usize {
    match lanes {
        16 => 12,
        32 => 10,
        48 => 8,
        _ => 6,
    }
}

/// One tile's operands.
#[derive(Clone, Copy)]
pub(crate) struct Tile<T = f32> {
    /// Row-major rows, `[rows, k]`, `lda` apart.
    pub(crate) a: *const T,
    pub(crate) lda: usize,
    /// A panel, `[k, lanes]`, aligned to 64 bytes.
    pub(crate) b: *const T,
    pub(crate) lanes: usize,
    /// Result rows, `[rows, lanes]`, `ldc` apart.
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) rows: usize,
    pub(crate) k: usize,
    /// Continue the chains in `c` instead of starting from +0.
    pub(crate) accumulate: bool,
}

/// Runs one tile.
///
/// # Safety
/// The operands must cover `rows`, `k` and `lanes` as described in [`Tile`]; `lanes` is 16, 32, 48 or 64 and `rows` at
/// most [`max_rows`]; the vector set must exist on this processor.
#[inline]
pub(crate) unsafe fn run(isa: Isa, tile: Tile) {
    // SAFETY: passed on from the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2(tile),
            _ => portable(tile),
        }
    }
}

/// The portable twin: sixteen outputs at a time.
///
/// # Safety
/// As for [`run`].
unsafe fn portable(t: Tile) {
    // SAFETY: the caller covers these ranges.
    unsafe {
        for i in 0..t.rows {
            for j in (0..t.lanes).step_by(LANES) {
                let c = t.c.add(i * t.ldc + j).cast::<[f32; LANES]>();
                let mut acc = if t.accumulate { c.read_unaligned() } else { [0.0; LANES] };
                for k in 0..t.k {
                    // Only in the builds of `cargo xtask faults`, whose tests must fail.
                    #[cfg(surefoot_fault = "reversed_reduction")]
                    let k = t.k - 1 - k;
                    let a = *t.a.add(i * t.lda + k);
                    let b = t.b.add(k * t.lanes + j).cast::<[f32; LANES]>().read();
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = a.mul_add(b, *acc);
                    }
                }
                c.write_unaligned(acc);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Tile;

    /// Picks the kernel of a row count; `$most` is the largest.
    macro_rules! by_rows {
        ($kernel:ident, $nv:literal, $tile:expr, [$($rows:literal)*]) => {
            match $tile.rows {
                $( $rows => $kernel::<$rows, $nv>($tile), )*
                _ => unreachable!("a tile has at most `max_rows` rows"),
            }
        };
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(t: Tile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match t.lanes {
                16 => by_rows!(k512, 1, t, [1 2 3 4 5 6 7 8 9 10 11 12]),
                32 => by_rows!(k512, 2, t, [1 2 3 4 5 6 7 8 9 10]),
                48 => by_rows!(k512, 3, t, [1 2 3 4 5 6 7 8]),
                _ => by_rows!(k512, 4, t, [1 2 3 4 5 6]),
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn k512<const ROWS: usize, const NV: usize>(t: Tile) {
        // SAFETY: the caller covers `rows`, `k` and `lanes`; panels are aligned to 64 bytes.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); NV]; ROWS];
            if t.accumulate {
                for (i, row) in acc.iter_mut().enumerate() {
                    for (j, v) in row.iter_mut().enumerate() {
                        *v = _mm512_loadu_ps(t.c.add(i * t.ldc + j * 16));
                    }
                }
            }
            let mut b = t.b;
            for k in 0..t.k {
                let mut w = [_mm512_setzero_ps(); NV];
                for (j, w) in w.iter_mut().enumerate() {
                    *w = _mm512_load_ps(b.add(j * 16));
                }
                for (i, row) in acc.iter_mut().enumerate() {
                    let a = _mm512_set1_ps(*t.a.add(i * t.lda + k));
                    for (v, w) in row.iter_mut().zip(w) {
                        *v = _mm512_fmadd_ps(a, w, *v);
                    }
                }
                b = b.add(t.lanes);
            }
            for (i, row) in acc.iter().enumerate() {
                for (j, v) in row.iter().enumerate() {
                    _mm512_storeu_ps(t.c.add(i * t.ldc + j * 16), *v);
                }
            }
        }
    }

    /// Strips of sixteen outputs, rows in groups of six: twelve accumulators of sixteen registers.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(t: Tile) {
        for j in (0..t.lanes).step_by(16) {
            let mut i = 0;
            while i < t.rows {
                let rows = (t.rows - i).min(6);
                // SAFETY: a sub-tile of the caller's.
                unsafe {
                    let strip = Strip { a: t.a.add(i * t.lda), b: t.b.add(j), c: t.c.add(i * t.ldc + j), t };
                    match rows {
                        6 => k256::<6>(strip),
                        5 => k256::<5>(strip),
                        4 => k256::<4>(strip),
                        3 => k256::<3>(strip),
                        2 => k256::<2>(strip),
                        _ => k256::<1>(strip),
                    }
                }
                i += rows;
            }
        }
    }

    struct Strip {
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        t: Tile,
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn k256<const ROWS: usize>(s: Strip) {
        // SAFETY: the caller covers `ROWS` rows of sixteen outputs.
        unsafe {
            let t = s.t;
            let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
            if t.accumulate {
                for (i, row) in acc.iter_mut().enumerate() {
                    for (j, v) in row.iter_mut().enumerate() {
                        *v = _mm256_loadu_ps(s.c.add(i * t.ldc + j * 8));
                    }
                }
            }
            for k in 0..t.k {
                let w = [_mm256_load_ps(s.b.add(k * t.lanes)), _mm256_load_ps(s.b.add(k * t.lanes + 8))];
                for (i, row) in acc.iter_mut().enumerate() {
                    let a = _mm256_broadcast_ss(&*s.a.add(i * t.lda + k));
                    for (v, w) in row.iter_mut().zip(w) {
                        *v = _mm256_fmadd_ps(a, w, *v);
                    }
                }
            }
            for (i, row) in acc.iter().enumerate() {
                for (j, v) in row.iter().enumerate() {
                    _mm256_storeu_ps(s.c.add(i * t.ldc + j * 8), *v);
                }
            }
        }
    }
}
