//! How GGUF stores numbers, one line per encoding, and turning them into f32.
//!
//! The products are exact in f32 (a half has 11 bits, the whole numbers beside it 13 at most), so a value is rounded at most
//! once, when its minimum is added: the bits are a fact of the file, in whatever order or fused a program computes them.
//!
//! Source: block layouts and formulas of ggml's `ggml-quants.c` (`dequantize_row_*`, `quantize_row_q8_0_ref`).

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::quant_k;

/// One way to store numbers.
#[derive(Debug, Clone, Copy)]
pub struct Encoding {
    /// The format's number for it.
    pub id: u32,
    /// The format's name for it.
    pub name: &'static str,
    /// How many values make a block.
    pub block: usize,
    /// How many bytes a block takes.
    pub bytes: usize,
    decode: Option<Decode>,
}

/// Decodes whole blocks; the lengths of both sides agree.
type Decode = fn(&[u8], &mut [f32]);

/// Values in the largest block.
pub(super) const MAX_BLOCK: usize = 256;

/// Every encoding with a known block size; those without a decoder are listed so that they can be named and skipped over.
pub(super) const ENCODINGS: &[Encoding] = &[
    read(0, "F32", 1, 4, f32s),
    read(1, "F16", 1, 2, f16s),
    read(30, "BF16", 1, 2, bf16s),
    read(2, "Q4_0", 32, 18, q4_0),
    read(3, "Q4_1", 32, 20, q4_1),
    read(6, "Q5_0", 32, 22, q5_0),
    read(7, "Q5_1", 32, 24, q5_1),
    read(8, "Q8_0", 32, 34, q8_0),
    read(12, "Q4_K", 256, 144, quant_k::q4_k),
    read(13, "Q5_K", 256, 176, quant_k::q5_k),
    read(14, "Q6_K", 256, 210, quant_k::q6_k),
    skip(9, "Q8_1", 32, 36),
    skip(10, "Q2_K", 256, 84),
    skip(11, "Q3_K", 256, 110),
    skip(15, "Q8_K", 256, 292),
    skip(16, "IQ2_XXS", 256, 66),
    skip(17, "IQ2_XS", 256, 74),
    skip(18, "IQ3_XXS", 256, 98),
    skip(19, "IQ1_S", 256, 50),
    skip(20, "IQ4_NL", 32, 18),
    skip(21, "IQ3_S", 256, 110),
    skip(22, "IQ2_S", 256, 82),
    skip(23, "IQ4_XS", 256, 136),
    skip(24, "I8", 1, 1),
    skip(25, "I16", 1, 2),
    skip(26, "I32", 1, 4),
    skip(27, "I64", 1, 8),
    skip(28, "F64", 1, 8),
    skip(29, "IQ1_M", 256, 56),
    skip(34, "TQ1_0", 256, 54),
    skip(35, "TQ2_0", 256, 66),
    skip(39, "MXFP4", 32, 17),
    skip(40, "NVFP4", 64, 36),
    skip(41, "Q1_0", 128, 18),
];

const fn read(id: u32, name: &'static str, block: usize, bytes: usize, decode: Decode) -> Encoding {
    Encoding { id, name, block, bytes, decode: Some(decode) }
}

const fn skip(id: u32, name: &'static str, block: usize, bytes: usize) -> Encoding {
    Encoding { id, name, block, bytes, decode: None }
}

impl Encoding {
    /// The encoding with the format's number, if known.
    pub fn by_id(id: u32) -> Option<&'static Encoding> {
        ENCODINGS.iter().find(|e| e.id == id)
    }

    /// The encoding with the format's name, if known.
    pub fn by_name(name: &str) -> Option<&'static Encoding> {
        ENCODINGS.iter().find(|e| e.name == name)
    }

    /// Whether its values can be read, rather than only skipped over.
    pub fn is_readable(&self) -> bool {
        self.decode.is_some()
    }

    /// Decodes `out.len()` values from value `first` on; false when this encoding cannot be read.
    ///
    /// - Holds: `bytes` holds whole blocks that cover `first..first + out.len()`, which the callers check.
    pub(super) fn decode(&self, bytes: &[u8], first: usize, out: &mut [f32]) -> bool {
        let Some(decode) = self.decode else { return false };
        let mut done = 0;
        while done < out.len() {
            let (block, within) = ((first + done) / self.block, (first + done) % self.block);
            let rest = &bytes[block * self.bytes..];
            let whole = (out.len() - done) / self.block;
            if within == 0 && whole > 0 {
                decode(&rest[..whole * self.bytes], &mut out[done..done + whole * self.block]);
                done += whole * self.block;
            } else {
                // A range may begin or end inside a block: rows of a vector are single values.
                let mut scratch = [0.0; MAX_BLOCK];
                decode(&rest[..self.bytes], &mut scratch[..self.block]);
                let n = (self.block - within).min(out.len() - done);
                out[done..done + n].copy_from_slice(&scratch[within..within + n]);
                done += n;
            }
        }
        true
    }
}

/// A half at a byte position, as f32 (exact).
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

pub(super) fn f32s(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(4).zip(out) {
        *y = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    }
}

pub(super) fn f16s(bytes: &[u8], out: &mut [f32]) {
    // Runs of halves are converted several at a time where the processor can; files do not align them.
    const RUN: usize = 64;
    for (b, y) in bytes.chunks(2 * RUN).zip(out.chunks_mut(RUN)) {
        let mut run = [f16::ZERO; RUN];
        for (b, x) in b.chunks_exact(2).zip(&mut run) {
            *x = f16::from_le_bytes([b[0], b[1]]);
        }
        run[..y.len()].convert_to_f32_slice(y);
    }
}

pub(super) fn bf16s(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(2).zip(out) {
        *y = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    }
}

/// Half scale; 16 bytes of nibbles: the low ones are values 0–15, the high ones 16–31.
fn q4_0(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
        let d = half_at(b, 0);
        let (low, high) = y.split_at_mut(16);
        for ((q, low), high) in b[2..].iter().zip(low).zip(high) {
            *low = (f32::from(q & 15) - 8.0) * d;
            *high = (f32::from(q >> 4) - 8.0) * d;
        }
    }
}

/// Half scale, half minimum; nibbles as in `Q4_0`.
fn q4_1(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(20).zip(out.chunks_exact_mut(32)) {
        let (d, m) = (half_at(b, 0), half_at(b, 2));
        let (low, high) = y.split_at_mut(16);
        for ((q, low), high) in b[4..].iter().zip(low).zip(high) {
            *low = f32::from(q & 15) * d + m;
            *high = f32::from(q >> 4) * d + m;
        }
    }
}

/// The `j`th pair of five-bit numbers: nibbles from `q`, fifth bits from bits `j` and `j + 16` of `high`.
fn five_bits(q: u8, high: u32, j: usize) -> (f32, f32) {
    let fifth = |bit: usize| ((high >> bit & 1) << 4) as u8;
    (f32::from(q & 15 | fifth(j)), f32::from(q >> 4 | fifth(j + 16)))
}

/// Half scale; 32 fifth bits; nibbles as in `Q4_0`.
fn q5_0(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(22).zip(out.chunks_exact_mut(32)) {
        let d = half_at(b, 0);
        let fifths = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
        let (low, high) = y.split_at_mut(16);
        for (j, ((q, low), high)) in b[6..].iter().zip(low).zip(high).enumerate() {
            let (q0, q1) = five_bits(*q, fifths, j);
            *low = (q0 - 16.0) * d;
            *high = (q1 - 16.0) * d;
        }
    }
}

/// Half scale, half minimum; 32 fifth bits; nibbles as in `Q4_0`.
fn q5_1(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(24).zip(out.chunks_exact_mut(32)) {
        let (d, m) = (half_at(b, 0), half_at(b, 2));
        let fifths = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        let (low, high) = y.split_at_mut(16);
        for (j, ((q, low), high)) in b[8..].iter().zip(low).zip(high).enumerate() {
            let (q0, q1) = five_bits(*q, fifths, j);
            *low = q0 * d + m;
            *high = q1 * d + m;
        }
    }
}

/// Half scale; 32 signed bytes.
fn q8_0(bytes: &[u8], out: &mut [f32]) {
    for (b, y) in bytes.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = half_at(b, 0);
        for (q, y) in b[2..].iter().zip(y) {
            *y = f32::from(*q as i8) * d;
        }
    }
}

/// Appends one `Q8_0` block of 32 finite values; false, with nothing appended, when its scale is too large for a half.
pub(super) fn encode_q8_0(x: &[f32], out: &mut Vec<u8>) -> bool {
    let largest = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let d = largest / 127.0;
    let scale = f16::from_f32(d);
    if scale.is_infinite() {
        return false;
    }
    // The inverse is that of the scale before rounding, as in the reference.
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out.extend_from_slice(&scale.to_le_bytes());
    out.extend(x.iter().map(|v| (v * inverse).round() as i8 as u8));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    fn fixture() -> serde_json::Value {
        serde_json::from_str(include_str!("../../tests/fixtures/quant.json")).unwrap()
    }

    /// Random blocks decoded by the format's Python package (`tests/fixtures/quant.py`).
    #[test]
    fn every_encoding_decodes_to_the_bits_of_the_reference() {
        let fixture = fixture();
        let cases = fixture["decode"].as_object().unwrap();
        let readable: Vec<_> = ENCODINGS.iter().filter(|e| e.is_readable()).collect();
        assert_eq!(cases.len(), readable.len());
        for encoding in readable {
            let case = &cases[encoding.name];
            let (raw, want) = (unhex(case["raw"].as_str().unwrap()), unhex(case["want"].as_str().unwrap()));
            let mut expected = vec![0.0; want.len() / 4];
            f32s(&want, &mut expected);
            assert_eq!(raw.len() / encoding.bytes * encoding.block, expected.len(), "{}", encoding.name);
            let mut got = vec![0.0; expected.len()];
            assert!(encoding.decode(&raw, 0, &mut got));
            assert_eq!(bits(&got), bits(&expected), "{}", encoding.name);
            for (first, n) in [(1, 1), (31, 2), (5, expected.len() - 9), (expected.len() - 1, 1), (7, 0)] {
                let mut part = vec![0.0; n];
                assert!(encoding.decode(&raw, first, &mut part));
                assert_eq!(bits(&part), bits(&expected[first..first + n]), "{} {first}+{n}", encoding.name);
            }
        }
    }

    #[test]
    fn q8_0_encodes_to_the_bytes_of_the_reference() {
        let fixture = fixture();
        let (x, want) = (&fixture["encode_q8_0"]["x"], &fixture["encode_q8_0"]["want"]);
        let raw = unhex(x.as_str().unwrap());
        let mut x = vec![0.0; raw.len() / 4];
        f32s(&raw, &mut x);
        let mut got = Vec::new();
        for block in x.chunks_exact(32) {
            assert!(encode_q8_0(block, &mut got));
        }
        assert_eq!(got, unhex(want.as_str().unwrap()));
        assert!(!encode_q8_0(&[1e9; 32], &mut got));
    }

    #[test]
    fn numbers_and_names_of_encodings_are_unique() {
        for (i, a) in ENCODINGS.iter().enumerate() {
            assert!(a.block <= MAX_BLOCK && a.block > 0 && a.bytes > 0);
            assert!(ENCODINGS[..i].iter().all(|b| a.id != b.id && a.name != b.name), "{}", a.name);
        }
    }
}
