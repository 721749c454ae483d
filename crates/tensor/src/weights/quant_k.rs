//! The encodings in blocks of 256 with scales of their own inside.

use super::quant::half_at;

/// Scale and minimum number `j` of 8, six bits each, packed in 12 bytes: the first four of each lie in the low six bits of
/// bytes 0–7; the others have their low four bits in bytes 8–11 and their high two on top of those bytes.
fn scale_and_min(j: usize, packed: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// Half scale, half minimum, 12 bytes of scales and minima, 128 bytes of nibbles: 32 low, then the same bytes' 32 high.
pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(144).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half_at(b, 0), half_at(b, 2));
        for (g, (q, y)) in b[16..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
            let (low, high) = y.split_at_mut(32);
            for (half, y) in [low, high].into_iter().enumerate() {
                let (scale, min) = scale_and_min(2 * g + half, &b[4..16]);
                let (d, m) = (d * scale, dmin * min);
                for (q, y) in q.iter().zip(y) {
                    *y = d * f32::from(q >> (4 * half) & 15) - m;
                }
            }
        }
    }
}

/// As `Q4_K`, with 32 bytes of fifth bits before the nibbles: bit `j` belongs to the `j`th run of 32 values.
pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(176).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half_at(b, 0), half_at(b, 2));
        let fifths = &b[16..48];
        for (g, (q, y)) in b[48..].chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
            let (low, high) = y.split_at_mut(32);
            for (half, y) in [low, high].into_iter().enumerate() {
                let j = 2 * g + half;
                let (scale, min) = scale_and_min(j, &b[4..16]);
                let (d, m) = (d * scale, dmin * min);
                for ((q, fifth), y) in q.iter().zip(fifths).zip(y) {
                    *y = d * f32::from(q >> (4 * half) & 15 | (fifth >> j & 1) << 4) - m;
                }
            }
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high pairs of bits, 16 signed scales, half scale; each half of the block takes 64
/// and 32 bytes of those: nibbles low, low, high, high over two runs of 32, bit pairs from the lowest up.
pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(210).zip(out.chunks_exact_mut(256)) {
        let d = half_at(b, 208);
        for (h, y) in y.chunks_exact_mut(128).enumerate() {
            let low = &b[64 * h..64 * h + 64];
            let high = &b[128 + 32 * h..128 + 32 * h + 32];
            let scales = &b[192 + 8 * h..192 + 8 * h + 8];
            for (run, y) in y.chunks_exact_mut(32).enumerate() {
                let (low, shift) = (&low[32 * (run % 2)..], 4 * (run / 2));
                for (l, y) in y.iter_mut().enumerate() {
                    let q = low[l] >> shift & 15 | (high[l] >> (2 * run) & 3) << 4;
                    let scale = f32::from(scales[2 * run + l / 16] as i8);
                    *y = d * scale * (f32::from(q) - 32.0);
                }
            }
        }
    }
}
