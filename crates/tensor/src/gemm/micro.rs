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
    /// Distance between inner indices of a row: 1, or with `lda` 1 a row is a column.
    pub(crate) step: usize,
    /// A panel, `[k, lanes]`.
    pub(crate) b: *const T,
    /// Distance between the panel's rows.
    pub(crate) ldb: usize,
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
                    let a = *t.a.add(i * t.lda + k * t.step);
                    let b = t.b.add(k * t.ldb + j).cast::<[f32; LANES]>().read_unaligned();
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = a.mul_add(b, *acc);
                    }
                }
                c.write_unaligned(acc);
            }
        }
    }
}

/// Picks the kernel of a tile's row count among those listed.
macro_rules! by_rows {
    ($kernel:ident, $nv:literal, $tile:expr, [$($rows:literal)*]) => {
        match $tile.rows {
            $( $rows => $kernel::<$rows, $nv>($tile), )*
            _ => unreachable!("a tile has at most `max_rows` rows"),
        }
    };
}

/// Runs a 512-bit kernel, the whole width of the panel at once.
macro_rules! by_width {
    ($kernel:ident, $tile:expr) => {
        match $tile.lanes {
            16 => by_rows!($kernel, 1, $tile, [1 2 3 4 5 6 7 8 9 10 11 12]),
            32 => by_rows!($kernel, 2, $tile, [1 2 3 4 5 6 7 8 9 10]),
            48 => by_rows!($kernel, 3, $tile, [1 2 3 4 5 6 7 8]),
            _ => by_rows!($kernel, 4, $tile, [1 2 3 4 5 6]),
        }
    };
}

/// Runs a 256-bit kernel in strips of sixteen outputs, rows in groups of six: twelve sums of sixteen registers.
macro_rules! by_strips {
    ($kernel:ident, $tile:expr) => {
        for j in (0..$tile.lanes).step_by(16) {
            for i in (0..$tile.rows).step_by(6) {
                let (a, b, c) = ($tile.a.add(i * $tile.lda), $tile.b.add(j), $tile.c.add(i * $tile.ldc + j));
                let strip = $crate::gemm::micro::Tile { a, b, c, rows: ($tile.rows - i).min(6), ..$tile };
                by_rows!($kernel, 2, strip, [1 2 3 4 5 6]);
            }
        }
    };
}

/// Defines kernels whose sums, `ROWS` rows of `NV` vectors, stay in registers over the inner index.
///
/// For each `k` every step in turn takes its weights once, its input once a row, and continues all chains.
macro_rules! kernel {
    (
        $name:ident($features:literal, $tile:ty, $width:literal, $zero:ident, $load:ident, $store:ident)
        $( weights |$w:ident| $weights:expr, input |$x:ident| $input:expr, step |$a:ident, $b:ident, $c:ident| $step:expr; )+
    ) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const ROWS: usize, const NV: usize>(t: $tile) {
            // SAFETY: the caller covers `ROWS` rows, `k` and `NV` vectors.
            unsafe {
                let mut acc = [[$zero(); NV]; ROWS];
                if t.accumulate {
                    for (i, row) in acc.iter_mut().enumerate() {
                        for (j, v) in row.iter_mut().enumerate() {
                            *v = $load(t.c.add(i * t.ldc + j * $width));
                        }
                    }
                }
                let (mut panel, mut column) = (t.b, t.a);
                for _ in 0..t.k {
                    $(
                        let $w = panel;
                        let mut weights = [$weights; NV];
                        for (j, weights) in weights.iter_mut().enumerate().skip(1) {
                            let $w = panel.add(j * $width);
                            *weights = $weights;
                        }
                        for (i, row) in acc.iter_mut().enumerate() {
                            let $x = column.add(i * t.lda);
                            let $a = $input;
                            for (v, $b) in row.iter_mut().zip(weights) {
                                let $c = *v;
                                *v = $step;
                            }
                        }
                    )+
                    panel = panel.add(t.ldb);
                    column = column.add(t.step);
                }
                for (i, row) in acc.iter().enumerate() {
                    for (j, v) in row.iter().enumerate() {
                        $store(t.c.add(i * t.ldc + j * $width), *v);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use {by_rows, by_strips, by_width, kernel};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Tile;

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(t: Tile) {
        // SAFETY: passed on from the caller.
        unsafe { by_width!(k512, t) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(t: Tile) {
        // SAFETY: sub-tiles of the caller's.
        unsafe { by_strips!(k256, t) }
    }

    kernel! {
        k512("avx512f", Tile, 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps)
        weights |w| _mm512_loadu_ps(w),
        input |x| _mm512_set1_ps(*x),
        step |a, b, c| _mm512_fmadd_ps(a, b, c);
    }

    kernel! {
        k256("avx2,fma", Tile, 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps)
        weights |w| _mm256_loadu_ps(w),
        input |x| _mm256_broadcast_ss(&*x),
        step |a, b, c| _mm256_fmadd_ps(a, b, c);
    }
}
