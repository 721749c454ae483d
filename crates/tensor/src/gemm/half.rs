//! Products of bf16 weights and bf16 inputs, summed in f32 in the same ascending order.
//!
//! The processor's two-products-a-lane instruction adds the product of the upper halves first, then that of the lower
//! halves, each a fused multiply-add. With the even inner index in the upper half that is the ascending chain itself.
//! It takes denormals for zero, and what it does at the edge of them is not what plain arithmetic does. So nothing gets
//! there: with values below [`LEAST`] rounded to zero, every product and sum is a multiple of 2⁻¹²⁶, hence zero or
//! normal, and plain fused multiply-adds are the same chain.
//!
//! Source: Intel's manual on `VDPBF16PS`; the order was found by measurement and is probed in tests where it exists.

use std::cell::RefCell;

use super::micro::Tile;
use super::panels::{PANEL, Panel, Panels};
use crate::buffer::{Buffer, Shared};
use crate::lanes::LANES;
use crate::turn::turn;
use crate::{Cpu, Isa};

/// The least bf16 that is not taken for zero, as bits: 2⁻⁵⁶. With eight bits of fraction a value is a multiple of 2⁻⁶³,
/// a product one of 2⁻¹²⁶, the smallest normal f32.
const LEAST: u16 = (127 - 56) << 7;

/// A chain may start from any f32. Below this, 2⁻¹⁰³, one may fall between the multiples of 2⁻¹²⁶.
const FINE: f32 = f32::from_bits((127 - 103) << 23);

/// Rounds to bf16, ties to even; what is below 2⁻⁵⁶ becomes zero and keeps its sign.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let kept = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
    let half = (kept >> 16) as u16;
    if half & 0x7fff < LEAST { half & 0x8000 } else { half }
}

/// The exact value of a bf16.
#[inline(always)]
pub fn from_bf16(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// Two neighbours of the inner index: the even one in the upper half.
#[inline(always)]
fn pair(even: f32, odd: f32) -> u32 {
    u32::from(to_bf16(even)) << 16 | u32::from(to_bf16(odd))
}

/// The even neighbour.
#[inline(always)]
fn even(pair: u32) -> f32 {
    f32::from_bits(pair & 0xffff_0000)
}

/// The odd neighbour.
#[inline(always)]
fn odd(pair: u32) -> f32 {
    f32::from_bits(pair << 16)
}

/// A matrix rounded to bf16, in the panels of its f32 form, pairs of inputs side by side.
///
/// - Shapes: panel data `[⌈K/2⌉, lanes]` pairs; an odd K is filled with a zero.
/// - Holds: the inputs of every part start at an even column.
#[derive(Debug, Clone)]
pub struct HalfPanels {
    n_outputs: usize,
    n_inputs: usize,
    panels: Vec<Panel>,
    /// The pairs; every bit pattern is a float too.
    data: Buffer,
}

impl HalfPanels {
    /// Rounds a matrix.
    pub fn of(cpu: &Cpu, w: &Panels) -> HalfPanels {
        let mut panels = w.panels().to_vec();
        let mut start = 0;
        for panel in &mut panels {
            assert!(panel.input.is_multiple_of(2), "a part's inputs start at {}, between two of a pair", panel.input);
            panel.start = start;
            start += panel.lanes * panel.k.div_ceil(2);
        }
        let data = Buffer::zeroed(start);
        let mut half = HalfPanels { n_outputs: w.n_outputs(), n_inputs: w.n_inputs(), panels, data };
        half.refresh(cpu, w);
        half
    }

    /// Rounds the matrix anew after it moved.
    pub fn refresh(&mut self, cpu: &Cpu, w: &Panels) {
        let data = Shared::new(words_mut(&mut self.data));
        let (from, to) = (w.panels(), &self.panels);
        cpu.each(to.len(), 1, |i| {
            // SAFETY: panels lie apart.
            let pairs = unsafe { data.slice(to[i].start, to[i].lanes * to[i].k.div_ceil(2)) };
            round_panel(cpu.isa(), w.panel_data(&from[i]), to[i].lanes, pairs);
        });
    }

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }

    /// Number of input columns.
    pub fn n_inputs(&self) -> usize {
        self.n_inputs
    }

    pub(super) fn panels(&self) -> &[Panel] {
        &self.panels
    }

    pub(super) fn panel_data(&self, panel: &Panel) -> &[u32] {
        &words(&self.data)[panel.start..panel.start + panel.lanes * panel.k.div_ceil(2)]
    }

    /// Inputs `first..first + width` of a panel as f32, turned so that each output is a row; as `transpose_block`.
    pub(super) fn transpose(&self, isa: Isa, panel: &Panel, first: usize, width: usize, out: &mut [f32]) {
        let lanes = width.next_multiple_of(LANES);
        if width < lanes {
            out[..panel.width * lanes].fill(0.0);
        }
        let mut strip = [0.0; LANES * PANEL];
        for i in (0..width).step_by(LANES) {
            let height = LANES.min(width - i);
            widen(isa, self.panel_data(panel), panel.lanes, first + i, &mut strip[..height * panel.lanes]);
            turn(isa, height, panel.width, (&strip, panel.lanes), (&mut out[i..], lanes));
        }
    }
}

fn words(data: &Buffer) -> &[u32] {
    // SAFETY: floats and words have one size and alignment, and every bit pattern is both.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) }
}

fn words_mut(data: &mut Buffer) -> &mut [u32] {
    // SAFETY: as above, borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), data.len()) }
}

versioned! {
    /// Rounds a row to pairs.
    ///
    /// - Shapes: `x [K]` → `out [⌈K/2⌉]`.
    fn round_row(x: &[f32], out: &mut [u32]) {
        let (pairs, rest) = x.as_chunks::<2>();
        for (o, p) in out.iter_mut().zip(pairs) {
            *o = pair(p[0], p[1]);
        }
        if let Some(last) = rest.first() {
            out[pairs.len()] = pair(*last, 0.0);
        }
    }

    /// Some inputs of a panel of pairs as f32, from `first` on.
    ///
    /// - Shapes: `pairs [⌈K/2⌉, lanes]` → `out [n, lanes]`.
    fn widen(pairs: &[u32], lanes: usize, first: usize, out: &mut [f32]) {
        for (i, out) in out.chunks_mut(lanes).enumerate() {
            let input = first + i;
            let pairs = out.iter_mut().zip(&pairs[input / 2 * lanes..]);
            if input.is_multiple_of(2) {
                pairs.for_each(|(o, p)| *o = even(*p));
            } else {
                pairs.for_each(|(o, p)| *o = odd(*p));
            }
        }
    }

    /// Rounds a panel to pairs.
    ///
    /// - Shapes: `w [K, lanes]` → `out [⌈K/2⌉, lanes]`.
    fn round_panel(w: &[f32], lanes: usize, out: &mut [u32]) {
        for (inputs, out) in w.chunks(2 * lanes).zip(out.chunks_mut(lanes)) {
            let (evens, odds) = inputs.split_at(lanes);
            if odds.is_empty() {
                out.iter_mut().zip(evens).for_each(|(o, e)| *o = pair(*e, 0.0));
            } else {
                out.iter_mut().zip(evens.iter().zip(odds)).for_each(|(o, (e, d))| *o = pair(*e, *d));
            }
        }
    }
}

thread_local! {
    /// Inputs rounded to pairs, for the calling thread.
    static PAIRS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Rounds rows to pairs and hands them to `f`.
pub(super) fn with_pairs<R>(
    cpu: &Cpu,
    rows: usize,
    k: usize,
    (x, ld): (&[f32], usize),
    f: impl FnOnce(&[u32]) -> R,
) -> R {
    let width = k.div_ceil(2);
    PAIRS.with_borrow_mut(|pairs| {
        if pairs.len() < rows * width {
            pairs.resize(rows * width, 0);
        }
        let pairs = &mut pairs[..rows * width];
        let out = Shared::new(pairs);
        cpu.each(rows, 8, |r| {
            // SAFETY: rows lie apart.
            round_row(cpu.isa(), &x[r * ld..r * ld + k], unsafe { out.slice(r * width, width) });
        });
        f(pairs)
    })
}

/// One tile of pairs: `k` counts pairs.
type PairTile = Tile<u32>;

/// Runs one tile of pairs.
///
/// # Safety
/// As for [`super::micro::run`].
pub(super) unsafe fn run(isa: Isa, tile: PairTile) {
    // SAFETY: passed on from the caller; an `Isa` exists only where the processor has it, and the instruction is asked for.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512bf16") => x86::avx512(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512_twin(tile),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2_twin(tile),
            _ => portable(tile),
        }
    }
}

/// Moves what chains start from to multiples of 2⁻¹²⁶; a chain that is only continued is there already.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn settle(t: PairTile) {
    if !t.accumulate {
        return;
    }
    for i in 0..t.rows {
        // SAFETY: the caller covers these ranges.
        let row = unsafe { std::slice::from_raw_parts_mut(t.c.add(i * t.ldc), t.lanes) };
        for v in row {
            // A sum from FINE to twice that has a last bit of 2⁻¹²⁶.
            let side = FINE.copysign(*v);
            *v = if v.abs() < FINE { (*v + side) - side } else { *v };
        }
    }
}

/// The portable twin: sixteen outputs at a time.
///
/// # Safety
/// As for [`run`].
unsafe fn portable(t: PairTile) {
    // SAFETY: the caller covers these ranges.
    unsafe {
        settle(t);
        for i in 0..t.rows {
            for j in (0..t.lanes).step_by(LANES) {
                let c = t.c.add(i * t.ldc + j).cast::<[f32; LANES]>();
                let mut acc = if t.accumulate { c.read_unaligned() } else { [0.0; LANES] };
                for k in 0..t.k {
                    let a = *t.a.add(i * t.lda + k * t.step);
                    let b = t.b.add(k * t.ldb + j).cast::<[u32; LANES]>().read_unaligned();
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = even(a).mul_add(even(b), *acc);
                        *acc = odd(a).mul_add(odd(b), *acc);
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
    use std::mem::transmute;

    use super::super::micro::{by_rows, by_strips, by_width, kernel};
    use super::{PairTile, settle};

    const UPPER: i32 = 0xffff_0000_u32 as i32;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn avx512(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            settle(t);
            by_width!(dot, t);
        }
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512_twin(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            settle(t);
            by_width!(k512, t);
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2_twin(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            settle(t);
            by_strips!(k256, t);
        }
    }

    // The vector types of an input differ in name only.
    kernel! {
        dot("avx512f,avx512bf16", PairTile, 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps)
        weights |w| transmute::<__m512i, __m512bh>(_mm512_loadu_si512(w.cast())),
        input |x| transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*x as i32)),
        step |a, b, c| _mm512_dpbf16_ps(c, a, b);
    }

    kernel! {
        k512("avx512f", PairTile, 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps)
        weights |w| _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(w.cast()), _mm512_set1_epi32(UPPER))),
        input |x| _mm512_castsi512_ps(_mm512_and_si512(_mm512_set1_epi32(*x as i32), _mm512_set1_epi32(UPPER))),
        step |a, b, c| _mm512_fmadd_ps(a, b, c);
        weights |w| _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(w.cast()), 16)),
        input |x| _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32(*x as i32), 16)),
        step |a, b, c| _mm512_fmadd_ps(a, b, c);
    }

    kernel! {
        k256("avx2,fma", PairTile, 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps)
        weights |w| _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(w.cast()), _mm256_set1_epi32(UPPER))),
        input |x| _mm256_castsi256_ps(_mm256_and_si256(_mm256_set1_epi32(*x as i32), _mm256_set1_epi32(UPPER))),
        step |a, b, c| _mm256_fmadd_ps(a, b, c);
        weights |w| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(w.cast()), 16)),
        input |x| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi32(*x as i32), 16)),
        step |a, b, c| _mm256_fmadd_ps(a, b, c);
    }
}

#[cfg(test)]
mod tests;
