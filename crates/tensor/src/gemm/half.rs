//! Products of bf16 weights and bf16 inputs, summed in f32 in the same ascending order.
//!
//! The processor's two-products-a-lane instruction adds the product of the upper halves first, then that of the lower
//! halves, each a fused multiply-add. With the even inner index in the upper half that is the ascending chain itself.
//! It takes denormal inputs for zero and flushes denormal sums, so the twins do too.
//!
//! Source: Intel's manual on `VDPBF16PS`; the order was found by measurement and is probed in tests where it exists.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::micro::Tile;
use super::panels::{Panel, Panels};
use crate::Isa;
use crate::lanes::LANES;

/// Rounds to bf16, ties to even; denormals become zero.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let kept = if x.is_nan() { bits | 0x0040_0000 } else { rounded };
    let half = (kept >> 16) as u16;
    if half & 0x7f80 == 0 { half & 0x8000 } else { half }
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

/// A matrix rounded to bf16, in the panels of its f32 form, pairs of inputs side by side.
///
/// - Shapes: panel data `[⌈K/2⌉, lanes]` pairs; an odd K is filled with a zero.
#[derive(Debug)]
pub struct HalfPanels {
    n_outputs: usize,
    n_inputs: usize,
    panels: Vec<Panel>,
    data: Words,
}

impl HalfPanels {
    /// Rounds a matrix.
    pub fn of(w: &Panels) -> HalfPanels {
        let mut panels = w.panels().to_vec();
        let mut start = 0;
        for panel in &mut panels {
            panel.start = start;
            start += panel.lanes * panel.k.div_ceil(2);
        }
        let mut half =
            HalfPanels { n_outputs: w.n_outputs(), n_inputs: w.n_inputs(), panels, data: Words::zeroed(start) };
        half.refresh(w);
        half
    }

    /// Rounds the matrix anew after it moved.
    pub fn refresh(&mut self, w: &Panels) {
        let data = self.data.as_mut_slice();
        for (from, to) in w.panels().iter().zip(&self.panels) {
            let source = w.panel_data(from);
            let target = &mut data[to.start..to.start + to.lanes * to.k.div_ceil(2)];
            for (row, pairs) in target.chunks_mut(to.lanes).enumerate() {
                let even = &source[2 * row * to.lanes..];
                let odd = source.get((2 * row + 1) * to.lanes..).filter(|o| !o.is_empty());
                for (i, p) in pairs.iter_mut().enumerate() {
                    *p = pair(even[i], odd.map_or(0.0, |o| o[i]));
                }
            }
        }
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
        &self.data.as_slice()[panel.start..panel.start + panel.lanes * panel.k.div_ceil(2)]
    }

    /// Inputs `first..first + width` of a panel as f32, turned so that each output is a row; as `transpose_block`.
    pub(super) fn transpose(&self, panel: &Panel, first: usize, width: usize, out: &mut [f32]) {
        let lanes = width.next_multiple_of(LANES);
        let data = self.panel_data(panel);
        out[..panel.width * lanes].fill(0.0);
        for i in 0..width {
            let input = first + i;
            let row = &data[input / 2 * panel.lanes..];
            let shift = if input.is_multiple_of(2) { 16 } else { 0 };
            for (o, p) in row.iter().enumerate().take(panel.width) {
                out[o * lanes + i] = from_bf16((p >> shift) as u16);
            }
        }
    }
}

/// A zeroed block of words, aligned to 64 bytes.
#[derive(Debug)]
pub(super) struct Words {
    start: NonNull<u32>,
    len: usize,
    layout: Layout,
}

// SAFETY: it owns its memory and has no interior mutability.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn zeroed(len: usize) -> Words {
        let layout = Layout::from_size_align(len.max(16) * size_of::<u32>(), 64).expect("a length that fits memory");
        // SAFETY: the size is never zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(memory.cast()) else { handle_alloc_error(layout) };
        Words { start, len, layout }
    }

    fn as_slice(&self) -> &[u32] {
        // SAFETY: `len` initialised words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u32] {
        // SAFETY: as above, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}

versioned! {
    /// Rounds a row to pairs.
    ///
    /// - Shapes: `x [K]` → `out [⌈K/2⌉]`.
    pub(super) fn round_row(x: &[f32], out: &mut [u32]) {
        let (pairs, rest) = x.as_chunks::<2>();
        for (o, p) in out.iter_mut().zip(pairs) {
            *o = pair(p[0], p[1]);
        }
        if let Some(last) = rest.first() {
            out[pairs.len()] = pair(*last, 0.0);
        }
    }
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

/// A fused multiply-add that flushes as the instruction does.
#[inline(always)]
fn step(a: f32, b: f32, c: f32) -> f32 {
    let sum = a.mul_add(b, c);
    if sum.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(sum) } else { sum }
}

#[inline(always)]
unsafe fn portable(t: PairTile) {
    // SAFETY: the caller covers these ranges.
    unsafe {
        for i in 0..t.rows {
            for j in (0..t.lanes).step_by(LANES) {
                let c = t.c.add(i * t.ldc + j).cast::<[f32; LANES]>();
                let mut acc = if t.accumulate { c.read_unaligned() } else { [0.0; LANES] };
                for v in &mut acc {
                    *v = if v.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(*v) } else { *v };
                }
                for k in 0..t.k {
                    let a = *t.a.add(i * t.lda + k);
                    let (even, odd) = (f32::from_bits(a & 0xffff_0000), f32::from_bits(a << 16));
                    let b = t.b.add(k * t.lanes + j).cast::<[u32; LANES]>().read();
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = step(even, f32::from_bits(b & 0xffff_0000), *acc);
                        *acc = step(odd, f32::from_bits(b << 16), *acc);
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

    use super::{PairTile, portable};

    macro_rules! by_rows {
        ($nv:literal, $tile:expr, [$($rows:literal)*]) => {
            match $tile.rows {
                $( $rows => dot::<$rows, $nv>($tile), )*
                _ => unreachable!("a tile has at most `max_rows` rows"),
            }
        };
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn avx512(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe {
            match t.lanes {
                16 => by_rows!(1, t, [1 2 3 4 5 6 7 8 9 10 11 12]),
                32 => by_rows!(2, t, [1 2 3 4 5 6 7 8 9 10]),
                48 => by_rows!(3, t, [1 2 3 4 5 6 7 8]),
                _ => by_rows!(4, t, [1 2 3 4 5 6]),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    pub(super) unsafe fn avx512_twin(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe { portable(t) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2_twin(t: PairTile) {
        // SAFETY: passed on from the caller.
        unsafe { portable(t) }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn dot<const ROWS: usize, const NV: usize>(t: PairTile) {
        // SAFETY: the caller covers `rows`, `k` and `lanes`; panels are aligned to 64 bytes; the vector types differ in name
        // only.
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
                let mut w = [_mm512_setzero_si512(); NV];
                for (j, w) in w.iter_mut().enumerate() {
                    *w = _mm512_load_si512(b.add(j * 16).cast());
                }
                for (i, row) in acc.iter_mut().enumerate() {
                    let a: __m512bh = std::mem::transmute(_mm512_set1_epi32(*t.a.add(i * t.lda + k) as i32));
                    for (v, w) in row.iter_mut().zip(w) {
                        *v = _mm512_dpbf16_ps(*v, a, std::mem::transmute::<__m512i, __m512bh>(w));
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
}

thread_local! {
    /// Inputs rounded to pairs, for the calling thread.
    static PAIRS: std::cell::RefCell<Vec<u32>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Rounds rows to pairs and hands them to `f`.
pub(super) fn with_pairs<R>(
    cpu: &crate::Cpu,
    rows: usize,
    k: usize,
    (x, ld): (&[f32], usize),
    f: impl FnOnce(&[u32]) -> R,
) -> R {
    let width = k.div_ceil(2);
    let mut pairs = PAIRS.with_borrow_mut(std::mem::take);
    pairs.resize((rows * width).max(pairs.len()), 0);
    {
        let out: Vec<std::sync::Mutex<&mut [u32]>> =
            pairs[..rows * width].chunks_mut(width.max(1)).map(std::sync::Mutex::new).collect();
        cpu.each(rows, 8, |r| {
            let mut out = out[r].lock().expect("no unit panics while it holds the lock");
            round_row(cpu.isa(), &x[r * ld..r * ld + k], &mut out);
        });
    }
    let result = f(&pairs[..rows * width]);
    PAIRS.with_borrow_mut(|p| *p = pairs);
    result
}
