//! Turning blocks of rows into columns. Nothing is computed, so every path gives the same bits.

use crate::Isa;

/// Side of the squares a block is cut into.
const SIDE: usize = 16;

/// out = xᵀ, on the calling thread.
///
/// - Shapes: `x [rows, cols]` rows `ldx` apart; `out [cols, rows]` rows `ldo` apart.
pub(crate) fn turn(isa: Isa, rows: usize, cols: usize, (x, ldx): (&[f32], usize), (out, ldo): (&mut [f32], usize)) {
    if rows == 0 || cols == 0 {
        return;
    }
    let (x_len, out_len) = ((rows - 1) * ldx + cols, (cols - 1) * ldo + rows);
    assert!(ldx >= cols && x.len() >= x_len, "{} floats for {rows} rows of {cols}, {ldx} apart", x.len());
    assert!(ldo >= rows && out.len() >= out_len, "{} floats for {cols} rows of {rows}, {ldo} apart", out.len());
    for c in (0..cols).step_by(SIDE) {
        for r in (0..rows).step_by(SIDE) {
            let (height, width) = (SIDE.min(rows - r), SIDE.min(cols - c));
            let (x, out) = (&x[r * ldx + c..], &mut out[c * ldo + r..]);
            #[cfg(target_arch = "x86_64")]
            if isa == Isa::Avx512 && height == SIDE && width == SIDE {
                // SAFETY: a whole square of both, by the checks above; an `Isa` exists only where the processor has it.
                unsafe { x86::square(x.as_ptr(), ldx, out.as_mut_ptr(), ldo) };
                continue;
            }
            for i in 0..width {
                for j in 0..height {
                    out[i * ldo + j] = x[j * ldx + i];
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::SIDE;

    /// One square in registers: pairs of rows, then fours, then the quarters of each vector.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn square(x: *const f32, ldx: usize, out: *mut f32, ldo: usize) {
        let pd = |v| _mm512_castps_pd(v);
        let ps = |v| _mm512_castpd_ps(v);
        let mut a = [_mm512_setzero_ps(); SIDE];
        let mut b = a;
        for (i, a) in a.iter_mut().enumerate() {
            // SAFETY: the caller covers sixteen rows of sixteen.
            *a = unsafe { _mm512_loadu_ps(x.add(i * ldx)) };
        }
        for i in (0..SIDE).step_by(2) {
            b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
        }
        for i in (0..SIDE).step_by(4) {
            a[i] = ps(_mm512_unpacklo_pd(pd(b[i]), pd(b[i + 2])));
            a[i + 1] = ps(_mm512_unpackhi_pd(pd(b[i]), pd(b[i + 2])));
            a[i + 2] = ps(_mm512_unpacklo_pd(pd(b[i + 1]), pd(b[i + 3])));
            a[i + 3] = ps(_mm512_unpackhi_pd(pd(b[i + 1]), pd(b[i + 3])));
        }
        // a[4 i + j] holds, in quarter q, column 4 q + j of rows 4 i to 4 i + 3.
        for j in 0..4 {
            let even = (_mm512_shuffle_f32x4(a[j], a[4 + j], 0x88), _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88));
            let odd = (_mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd), _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd));
            b[j] = _mm512_shuffle_f32x4(even.0, even.1, 0x88);
            b[4 + j] = _mm512_shuffle_f32x4(odd.0, odd.1, 0x88);
            b[8 + j] = _mm512_shuffle_f32x4(even.0, even.1, 0xdd);
            b[12 + j] = _mm512_shuffle_f32x4(odd.0, odd.1, 0xdd);
        }
        for (i, b) in b.iter().enumerate() {
            // SAFETY: as above, of the result.
            unsafe { _mm512_storeu_ps(out.add(i * ldo), *b) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_finds_its_place_on_every_vector_set() {
        for (rows, cols, ldx, ldo) in
            [(1, 1, 1, 1), (16, 16, 16, 16), (33, 50, 53, 40), (48, 64, 64, 48), (5, 100, 101, 9)]
        {
            let x: Vec<f32> = (0..rows * ldx).map(|i| i as f32).collect();
            for isa in Isa::available() {
                let mut out = vec![-1.0; cols * ldo];
                turn(isa, rows, cols, (&x, ldx), (&mut out, ldo));
                for c in 0..cols {
                    for r in 0..ldo {
                        let want = if r < rows { x[r * ldx + c] } else { -1.0 };
                        assert_eq!(out[c * ldo + r], want, "{isa}: {rows} x {cols}, row {r}, column {c}");
                    }
                }
            }
        }
    }
}
