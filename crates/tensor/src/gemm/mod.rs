//! Matrix products whose every element is one ascending chain of fused multiply-adds.
//!
//! Three products, one inner kernel (`micro`): [`linear`] (y = x Wᵀ), [`linear_back`] (dx = dy W) and [`weight_grad`]
//! (dW += dyᵀ x). All three work on the one copy of the weights in [`Panels`]. Row blocks, panels, inner blocks and
//! threads only decide when an element's chain is continued, never in which order.
//!
//! R rows · N outputs · K inputs

mod half;
mod micro;
mod panels;

use std::cell::RefCell;

pub use half::{HalfPanels, from_bf16, to_bf16};
pub use panels::{Panels, Part};

use crate::buffer::{Buffer, Shared};
use crate::lanes::LANES;
use crate::turn::turn;
use crate::{Cpu, Isa};
use micro::{Tile, max_rows};
use panels::{PANEL, Panel};

/// Inner indices a tile takes at once: a panel's block then stays in the second-level cache over all row tiles.
const INNER: usize = 384;
/// Rows of a work unit: their inputs stay in cache over the panels of the unit.
const ROW_BLOCK: usize = 240;
/// Rows of a unit that must transpose weights first, which more rows amortise.
const BACK_ROW_BLOCK: usize = 768;
/// Fewer rows are not worth a unit that must transpose weights first.
const LEAST_ROWS: usize = 48;

thread_local! {
    /// A transposed or gathered block of the right-hand side.
    static BLOCK: RefCell<Buffer> = RefCell::new(Buffer::default());
}

/// One summand of a product: rows and the weights they meet.
#[derive(Debug, Clone, Copy)]
pub struct Term<'a> {
    /// Row-major rows, `ld` apart.
    pub x: &'a [f32],
    /// Distance between rows.
    pub ld: usize,
    /// The weights.
    pub w: Weights<'a>,
}

/// Weights in one of the two precisions.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    /// f32 weights, f32 inputs.
    Single(&'a Panels),
    /// bf16 weights; a forward product rounds its inputs to bf16, a backward product does not.
    Half(&'a HalfPanels),
}

impl<'a> From<&'a Panels> for Weights<'a> {
    fn from(w: &'a Panels) -> Self {
        Weights::Single(w)
    }
}

impl<'a> From<&'a HalfPanels> for Weights<'a> {
    fn from(w: &'a HalfPanels) -> Self {
        Weights::Half(w)
    }
}

impl<'a> Weights<'a> {
    /// Number of outputs.
    pub fn n_outputs(self) -> usize {
        match self {
            Weights::Single(w) => w.n_outputs(),
            Weights::Half(w) => w.n_outputs(),
        }
    }

    /// Number of input columns.
    pub fn n_inputs(self) -> usize {
        match self {
            Weights::Single(w) => w.n_inputs(),
            Weights::Half(w) => w.n_inputs(),
        }
    }

    fn panels(self) -> &'a [Panel] {
        match self {
            Weights::Single(w) => w.panels(),
            Weights::Half(w) => w.panels(),
        }
    }
}

/// y = Σ terms x Wᵀ, each element one chain through the terms in order.
///
/// - Shapes: term `x [R, K]`, `y [R, N]` with rows `ldy` apart; every panel of a later term must be one of the first
///   term's (an adapter of the same parts).
/// - Holds: with `accumulate` the chains start from what `y` holds, else from +0.
pub fn linear(cpu: &Cpu, rows: usize, terms: &[Term<'_>], y: &mut [f32], ldy: usize, accumulate: bool) {
    let Some(first) = terms.first() else { return };
    for term in terms {
        check_rows("x", term.x, rows, term.ld, term.w.n_inputs());
    }
    check_rows("y", y, rows, ldy, first.w.n_outputs());
    // At most the first term, the base weights, is in bf16: adapters are f32.
    match first.w {
        Weights::Single(_) => forward(cpu, rows, terms, None, y, ldy, accumulate),
        Weights::Half(w) => half::with_pairs(cpu, rows, w.n_inputs(), (first.x, first.ld), |pairs| {
            forward(cpu, rows, terms, Some(pairs), y, ldy, accumulate);
        }),
    }
}

/// The units of [`linear`]; `pairs` are the first term's rows where its weights are bf16.
fn forward(
    cpu: &Cpu,
    rows: usize,
    terms: &[Term<'_>],
    pairs: Option<&[u32]>,
    y: &mut [f32],
    ldy: usize,
    accumulate: bool,
) {
    let (blocks, per_block) = split(rows, ROW_BLOCK);
    let panels = terms[0].w.panels();
    let out = Shared::new(y);
    cpu.pool().run(blocks * panels.len(), &|unit| {
        let (block, panel) = (unit / panels.len(), &panels[unit % panels.len()]);
        let start = block * per_block;
        let n_rows = per_block.min(rows - start);
        let mut accumulate = accumulate;
        for term in terms {
            let Some(own) = find_panel(term.w.panels(), panel) else { continue };
            let c = Rect { out, at: start * ldy + own.col, ld: ldy, width: own.width };
            // SAFETY: units own disjoint rows or columns of `y`; sizes were checked by the caller.
            unsafe {
                match (term.w, pairs) {
                    (Weights::Half(w), Some(pairs)) => {
                        let ld = w.n_inputs().div_ceil(2);
                        let a = Rows { x: &pairs[start * ld + own.input / 2..], ld, step: 1, n: n_rows };
                        let b = Block { data: w.panel_data(own), ld: own.lanes, lanes: own.lanes };
                        product(half::run, cpu.isa(), a, b, own.k.div_ceil(2), c, accumulate);
                    }
                    (Weights::Single(w), _) => {
                        let a = Rows { x: &term.x[start * term.ld + own.input..], ld: term.ld, step: 1, n: n_rows };
                        let b = Block { data: w.panel_data(own), ld: own.lanes, lanes: own.lanes };
                        product(micro::run, cpu.isa(), a, b, own.k, c, accumulate);
                    }
                    (Weights::Half(_), None) => unreachable!("only the first term may be bf16, and it has its pairs"),
                }
            }
            accumulate = true;
        }
    });
}

/// dx = Σ terms dy W, each element one chain through the terms in order, outputs ascending.
///
/// - Shapes: term `x` is `dy [R, N]`; `dx [R, K]` with rows `lddx` apart. The inputs of the first term's parts are
///   either all the same columns or apart from each other; later terms' cover them.
/// - Holds: as for [`linear`].
pub fn linear_back(cpu: &Cpu, rows: usize, terms: &[Term<'_>], dx: &mut [f32], lddx: usize, accumulate: bool) {
    let Some(first) = terms.first() else { return };
    for term in terms {
        check_rows("dy", term.x, rows, term.ld, term.w.n_outputs());
    }
    check_rows("dx", dx, rows, lddx, first.w.n_inputs());
    let mut columns: Vec<(usize, usize)> = Vec::new();
    for panel in first.w.panels() {
        for start in (panel.input..panel.input + panel.k).step_by(PANEL) {
            let block = (start, (panel.input + panel.k - start).min(PANEL));
            if !columns.contains(&block) {
                columns.push(block);
            }
        }
    }
    // Columns that do not deal evenly to the threads are cut by rows, at the price of turning their weights again.
    let n_threads = cpu.pool().n_threads();
    let mut units: Vec<((usize, usize), usize, usize)> = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        let odd = index < columns.len() % n_threads;
        let most = if odd { rows.div_ceil(n_threads).clamp(LEAST_ROWS, BACK_ROW_BLOCK) } else { BACK_ROW_BLOCK };
        let (blocks, per_block) = split(rows, most);
        units.extend((0..blocks).map(|b| (*column, b * per_block, per_block.min(rows - b * per_block))));
    }
    let out = Shared::new(dx);
    cpu.pool().run(units.len(), &|unit| {
        let ((start, width), first_row, n_rows) = units[unit];
        let lanes = width.next_multiple_of(LANES);
        let c = Rect { out, at: first_row * lddx + start, ld: lddx, width };
        BLOCK.with_borrow_mut(|buffer| {
            let mut accumulate = accumulate;
            for term in terms {
                let mut panels =
                    term.w.panels().iter().filter(|p| p.input <= start && start < p.input + p.k).peekable();
                while let Some(head) = panels.next() {
                    // Consecutive panels join into one stretch of the inner index.
                    let mut stretch = vec![head];
                    let mut n = head.width;
                    while let Some(next) = panels.next_if(|p| p.col == head.col + n && n + p.width <= INNER) {
                        stretch.push(next);
                        n += next.width;
                    }
                    let b = buffer.reserve(n * lanes);
                    let mut at = 0;
                    for panel in stretch {
                        let first = start - panel.input;
                        let out = &mut b[at..];
                        match term.w {
                            Weights::Single(w) => {
                                transpose_block(cpu.isa(), w.panel_data(panel), panel, first, width, out);
                            }
                            Weights::Half(w) => w.transpose(cpu.isa(), panel, first, width, out),
                        }
                        at += panel.width * lanes;
                    }
                    let x = &term.x[first_row * term.ld + head.col..];
                    let a = Rows { x, ld: term.ld, step: 1, n: n_rows };
                    let b = Block { data: b, ld: lanes, lanes };
                    // SAFETY: units own disjoint rows or columns of `dx`; sizes were checked above.
                    unsafe { product(micro::run, cpu.isa(), a, b, n, c, accumulate) };
                    accumulate = true;
                }
            }
        });
    });
}

/// dW += dyᵀ x, each element's chain continued over the rows in order.
///
/// - Shapes: `x [R, K]`, `dy [R, N]`, `grad` of the weights' shape.
/// - Holds: rows cut into several calls in order give the same bits as one call.
pub fn weight_grad(cpu: &Cpu, rows: usize, (x, ldx): (&[f32], usize), (dy, lddy): (&[f32], usize), grad: &mut Panels) {
    /// Inputs of a unit.
    const INPUT_BLOCK: usize = 192;
    if rows == 0 {
        return;
    }
    check_rows("x", x, rows, ldx, grad.n_inputs());
    check_rows("dy", dy, rows, lddy, grad.n_outputs());
    let panels = grad.panels().to_vec();
    let units: Vec<(&Panel, usize)> =
        panels.iter().flat_map(|p| (0..p.k).step_by(INPUT_BLOCK).map(move |i| (p, i))).collect();
    let out = Shared::new(grad.data_mut());
    cpu.pool().run(units.len(), &|unit| {
        let (panel, first) = units[unit];
        let n = INPUT_BLOCK.min(panel.k - first);
        let c = Rect { out, at: panel.start + first * panel.lanes, ld: panel.lanes, width: panel.lanes };
        BLOCK.with_borrow_mut(|buffer| {
            for start in (0..rows).step_by(INNER) {
                let len = INNER.min(rows - start);
                let from = &dy[start * lddy + panel.col..];
                // Where many tiles read the outputs' derivatives, or a whole vector would reach past them, from a copy.
                let b = if n > 64 || panel.width < panel.lanes {
                    let copy = buffer.reserve(len * panel.lanes);
                    for (to, from) in copy.chunks_mut(panel.lanes).zip(from.chunks(lddy)) {
                        to[..panel.width].copy_from_slice(&from[..panel.width]);
                        to[panel.width..].fill(0.0);
                    }
                    Block { data: copy, ld: panel.lanes, lanes: panel.lanes }
                } else {
                    Block { data: from, ld: lddy, lanes: panel.lanes }
                };
                // Columns of `x` are the rows of this product.
                let a = Rows { x: &x[start * ldx + panel.input + first..], ld: 1, step: ldx, n };
                // SAFETY: units own disjoint parts of the gradient.
                unsafe { product(micro::run, cpu.isa(), a, b, len, c, true) };
            }
        });
    });
}

/// One product of row-major rows and a contiguous panel, on the calling thread: what attention is made of.
///
/// - Shapes: `a [rows, k]` rows `lda` apart; `b [k, lanes]`, `lanes` a multiple of 16 up to 64;
///   `c [rows, lanes]` rows `ldc` apart.
pub fn tile(
    isa: Isa,
    rows: usize,
    k: usize,
    (a, lda): (&[f32], usize),
    (b, lanes): (&[f32], usize),
    (c, ldc): (&mut [f32], usize),
    accumulate: bool,
) {
    assert!(lanes.is_multiple_of(LANES) && lanes <= PANEL && lanes > 0, "lanes {lanes}");
    assert!(b.len() >= k * lanes, "panel of {} for {k} x {lanes}", b.len());
    check_rows("a", a, rows, lda, k);
    check_rows("c", c, rows, ldc, lanes);
    let most = max_rows(lanes);
    for i in (0..rows).step_by(most) {
        let tile = Tile {
            a: a[i * lda..].as_ptr(),
            lda,
            step: 1,
            b: b.as_ptr(),
            ldb: lanes,
            lanes,
            c: c[i * ldc..].as_mut_ptr(),
            ldc,
            rows: most.min(rows - i),
            k,
            accumulate,
        };
        // SAFETY: checked above.
        unsafe { micro::run(isa, tile) };
    }
}

/// `n` rows, `ld` apart, with inner indices `step` apart.
#[derive(Clone, Copy)]
struct Rows<'a, T = f32> {
    x: &'a [T],
    ld: usize,
    step: usize,
    n: usize,
}

/// A panel or a part of one: rows of `lanes`, `ld` apart.
#[derive(Clone, Copy)]
struct Block<'a, T = f32> {
    data: &'a [T],
    ld: usize,
    lanes: usize,
}

/// A rectangle of the result: `width` columns from `at`, rows `ld` apart.
#[derive(Clone, Copy)]
struct Rect<'a> {
    out: Shared<'a>,
    at: usize,
    ld: usize,
    width: usize,
}

/// Rows times one panel, `k` blocked so that the panel's block stays in cache; `run` is the inner kernel of the elements' kind.
///
/// # Safety
/// No other thread may touch the rectangle; `a` and `b` must cover `n` rows of `k` and `k` rows of `lanes`.
unsafe fn product<T>(
    run: unsafe fn(Isa, Tile<T>),
    isa: Isa,
    a: Rows<'_, T>,
    b: Block<'_, T>,
    k: usize,
    c: Rect<'_>,
    accumulate: bool,
) {
    let lanes = b.lanes;
    let most = max_rows(lanes);
    // Rows are dealt evenly: 13 rows of at most 6 become 5 + 4 + 4, so that no tile is nearly empty.
    let tiles = a.n.div_ceil(most);
    let whole = c.width == lanes;
    for start in (0..k).step_by(INNER) {
        let len = INNER.min(k - start);
        let accumulate = accumulate || start > 0;
        let block = &b.data[start * b.ld..(start + len - 1) * b.ld + lanes];
        let mut row = 0;
        for index in 0..tiles {
            let rows = (a.n - row).div_ceil(tiles - index);
            let x = &a.x[row * a.ld + start * a.step..];
            debug_assert!(x.len() > (rows - 1) * a.ld + (len - 1) * a.step);
            let mut edge = Edge([0.0; 12 * PANEL]);
            // SAFETY: the caller owns the rectangle.
            let (c_start, ldc) = unsafe {
                if whole {
                    (c.out.slice(c.at + row * c.ld, (rows - 1) * c.ld + lanes).as_mut_ptr(), c.ld)
                } else {
                    if accumulate {
                        for i in 0..rows {
                            let from = c.out.slice(c.at + (row + i) * c.ld, c.width);
                            edge.0[i * lanes..i * lanes + c.width].copy_from_slice(from);
                        }
                    }
                    (edge.0.as_mut_ptr(), lanes)
                }
            };
            let tile = Tile {
                a: x.as_ptr(),
                lda: a.ld,
                step: a.step,
                b: block.as_ptr(),
                ldb: b.ld,
                lanes,
                c: c_start,
                ldc,
                rows,
                k: len,
                accumulate,
            };
            // SAFETY: the operands cover the tile.
            unsafe {
                run(isa, tile);
                if !whole {
                    for i in 0..rows {
                        let to = c.out.slice(c.at + (row + i) * c.ld, c.width);
                        to.copy_from_slice(&edge.0[i * lanes..i * lanes + c.width]);
                    }
                }
            }
            row += rows;
        }
    }
}

/// A tile's result when the panel is wider than the matrix.
#[repr(align(64))]
struct Edge([f32; 12 * PANEL]);

fn find_panel<'a>(panels: &'a [Panel], like: &Panel) -> Option<&'a Panel> {
    let index = panels.partition_point(|p| p.col < like.col);
    panels.get(index).filter(|p| p.col == like.col && p.width == like.width)
}

/// Even blocks of at most `most` rows: how many, and how many rows each.
fn split(rows: usize, most: usize) -> (usize, usize) {
    let blocks = rows.div_ceil(most);
    (blocks, if blocks == 0 { 0 } else { rows.div_ceil(blocks) })
}

fn check_rows(name: &str, x: &[f32], rows: usize, ld: usize, width: usize) {
    let needed = if rows == 0 { 0 } else { (rows - 1) * ld + width };
    assert!(ld >= width && x.len() >= needed, "{name} has {} floats for {rows} rows of {width}, {ld} apart", x.len());
}

/// Inputs `first..first + width` of a panel, turned so that each output is a row.
///
/// - Shapes: panel `[k, lanes]` → `out [panel width, lanes of the block]`, columns past `width` zero.
pub(crate) fn transpose_block(isa: Isa, data: &[f32], panel: &Panel, first: usize, width: usize, out: &mut [f32]) {
    let lanes = width.next_multiple_of(LANES);
    if width < lanes {
        out[..panel.width * lanes].fill(0.0);
    }
    turn(isa, width, panel.width, (&data[first * panel.lanes..], panel.lanes), (out, lanes));
}

#[cfg(test)]
mod tests;
