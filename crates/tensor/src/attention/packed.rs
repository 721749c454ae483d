//! Attention over packed rows, forward and backward, for training: the rows of a group's common prompt are there once and
//! every sample's rows attend to them and to their own.
//!
//! R rows of a tile · T keys

use std::cell::RefCell;

use super::{BLOCK, Heads};
use crate::buffer::Shared;
use crate::gemm::tile;
use crate::rows::{dot, softmax_back, softmax_numerators};
use crate::turn::turn;
use crate::{Buffer, Cpu, Isa};

/// Query rows taken together in the forward pass: what a tile of the inner kernel holds.
const TILE: usize = 6;
/// Query rows taken together in the backward pass.
const BACK_TILE: usize = 48;

/// A stretch of rows that follow each other in one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub first: usize,
    /// Number of rows.
    pub len: usize,
    /// The segment of the same group that comes before it, itself without a parent.
    pub parent: Option<usize>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    scores: Buffer,
    dscores: Buffer,
    turned: Buffer,
    turned_d: Buffer,
    gathered: Buffer,
    gathered_d: Buffer,
    out: Buffer,
}

/// One segment's keys or values, as panels over the keys and as blocks over the columns.
struct Side {
    len: usize,
    /// `[⌈len/64⌉, dim, 64]`.
    by_key: Buffer,
    /// For each block of columns `[len, columns stored]`.
    by_column: Buffer,
}

impl Side {
    fn gather(heads: &Heads, x: &[f32], ld: usize, at: usize, segment: &Segment, keys: bool, columns: bool) -> Side {
        let n_panels = if keys { segment.len.div_ceil(BLOCK) } else { 0 };
        let mut by_key = Buffer::zeroed(n_panels * heads.dim * BLOCK);
        let mut by_column = Buffer::zeroed(if columns { segment.len * heads.stored() } else { 0 });
        for i in 0..segment.len {
            let row = &x[(segment.first + i) * ld + at..][..heads.dim];
            if keys {
                let panel = &mut by_key[i / BLOCK * heads.dim * BLOCK..];
                for (d, v) in row.iter().enumerate() {
                    panel[d * BLOCK + i % BLOCK] = *v;
                }
            }
            if columns {
                for (start, width, lanes) in heads.blocks() {
                    let to = start * segment.len + i * lanes;
                    by_column[to..to + width].copy_from_slice(&row[start..start + width]);
                }
            }
        }
        Side { len: segment.len, by_key, by_column }
    }
}

/// The context of a segment: its parent, if any, and itself, each with its index and the position of its first key.
fn context(segments: &[Segment], index: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let parent = segments[index].parent;
    let before = parent.map_or(0, |p| segments[p].len);
    parent.map(|p| (p, 0)).into_iter().chain([(index, before)])
}

/// Scores of query rows against every key up to the last row's own position.
///
/// - Shapes: `q` rows `ldq` apart; `s [rows, ld]`, `ld` at least the keys + 64.
fn scores(
    isa: Isa,
    heads: &Heads,
    sides: &[Side],
    context: impl Iterator<Item = (usize, usize)>,
    (q, ldq): (&[f32], usize),
    rows: usize,
    n_keys: usize,
    (s, ld): (&mut [f32], usize),
) {
    for (index, before) in context {
        for (panel, k) in sides[index].by_key.chunks(heads.dim * BLOCK).enumerate() {
            let start = before + panel * BLOCK;
            if start < n_keys {
                tile(isa, rows, heads.dim, (q, ldq), (k, BLOCK), (&mut s[start..], ld), false);
            }
        }
    }
}

/// Attention of every row of every group.
///
/// - Shapes: `qkv` rows as in [`Heads`], rotated, `ld` apart; `out` rows of `n_q · dim`, `ldo` apart.
/// - Holds: a row's bits equal those of [`super::paged::attend`] over the same keys.
pub fn forward(
    cpu: &Cpu,
    heads: &Heads,
    groups: &[Vec<Segment>],
    (qkv, ld): (&[f32], usize),
    (out, ldo): (&mut [f32], usize),
) {
    let out = Shared::new(out);
    cpu.pool().run(groups.len() * heads.n_kv, &|unit| {
        let (segments, kv) = (&groups[unit / heads.n_kv], unit % heads.n_kv);
        let gather = |at, keys, columns| -> Vec<Side> {
            segments.iter().map(|s| Side::gather(heads, qkv, ld, at, s, keys, columns)).collect()
        };
        let (keys, values) = (gather(heads.k_at(kv), true, false), gather(heads.v_at(kv), false, true));
        SCRATCH.with_borrow_mut(|scratch| {
            for (index, segment) in segments.iter().enumerate() {
                for head in kv * heads.per_kv()..(kv + 1) * heads.per_kv() {
                    for start in (0..segment.len).step_by(TILE) {
                        let rows = TILE.min(segment.len - start);
                        let place = Place { segments, index, head, start, rows };
                        // SAFETY: a unit writes the columns of its own heads in its own group's rows.
                        unsafe {
                            forward_tile(cpu.isa(), heads, place, &keys, &values, (qkv, ld), (out, ldo), scratch)
                        };
                    }
                }
            }
        });
    });
}

#[derive(Clone, Copy)]
struct Place<'a> {
    segments: &'a [Segment],
    index: usize,
    head: usize,
    start: usize,
    rows: usize,
}

impl Place<'_> {
    fn segment(&self) -> &Segment {
        &self.segments[self.index]
    }

    fn before(&self) -> usize {
        self.segment().parent.map_or(0, |p| self.segments[p].len)
    }

    fn row(&self) -> usize {
        self.segment().first + self.start
    }

    /// Keys the last row sees.
    fn n_keys(&self) -> usize {
        self.before() + self.start + self.rows
    }
}

/// # Safety
/// No other thread may write these rows' columns of this head.
unsafe fn forward_tile(
    isa: Isa,
    heads: &Heads,
    place: Place<'_>,
    keys: &[Side],
    values: &[Side],
    (qkv, ld): (&[f32], usize),
    (out, ldo): (Shared<'_>, usize),
    scratch: &mut Scratch,
) {
    let Place { rows, head, .. } = place;
    let (before, n_keys) = (place.before(), place.n_keys());
    let lds = n_keys.next_multiple_of(16) + BLOCK;
    let s = scratch.scores.reserve(TILE * lds);
    let q = &qkv[place.row() * ld + heads.q_at(head)..];
    let context = context(place.segments, place.index);
    scores(isa, heads, keys, context.clone(), (q, ld), rows, n_keys, (s, lds));
    let mut inverse = [0.0; TILE];
    for (r, inverse) in inverse.iter_mut().enumerate().take(rows) {
        let position = before + place.start + r;
        let s = &mut s[r * lds..r * lds + position + 1];
        s[..heads.first_key(position)].fill(f32::NEG_INFINITY);
        *inverse = 1.0 / softmax_numerators(isa, s, heads.scale);
    }
    // The keys that all rows see in one tile; then each row's few further keys, so that no row's chain has a term of a key
    // it does not see.
    let common = before + place.start + 1;
    for (start, width, lanes) in heads.blocks() {
        let sum = scratch.out.reserve(TILE * lanes);
        for (index, first) in context.clone() {
            let side = &values[index];
            let n = side.len.min(common - first);
            let v = &side.by_column[start * side.len..];
            tile(isa, rows, n, (&s[first..], lds), (v, lanes), (sum, lanes), first > 0);
        }
        let own = &values[place.index];
        for r in 1..rows {
            let v = &own.by_column[start * own.len + (common - before) * lanes..];
            tile(isa, 1, r, (&s[r * lds + common..], lds), (v, lanes), (&mut sum[r * lanes..], lanes), true);
        }
        for (r, inverse) in inverse.iter().enumerate().take(rows) {
            // SAFETY: by the caller's promise.
            let out = unsafe { out.slice((place.row() + r) * ldo + heads.q_at(head) + start, width) };
            for (o, s) in out.iter_mut().zip(&sum[r * lanes..]) {
                *o = s * inverse;
            }
        }
    }
}

/// Derivative of [`forward`] by queries, keys and values.
///
/// - Shapes: `out`, `dout` rows of `n_q · dim`, `ldo` apart; `dqkv` rows as in [`Heads`], `ldd` apart, overwritten.
/// - Holds: a key's gradient sums over segments, heads and rows in that order, so neighbours in the batch change nothing.
pub fn backward(
    cpu: &Cpu,
    heads: &Heads,
    groups: &[Vec<Segment>],
    (qkv, ld): (&[f32], usize),
    (out, dout, ldo): (&[f32], &[f32], usize),
    (dqkv, ldd): (&mut [f32], usize),
) {
    let dqkv = Shared::new(dqkv);
    cpu.pool().run(groups.len() * heads.n_kv, &|unit| {
        let (segments, kv) = (&groups[unit / heads.n_kv], unit % heads.n_kv);
        let gather = |at, columns| -> Vec<Side> {
            segments.iter().map(|s| Side::gather(heads, qkv, ld, at, s, true, columns)).collect()
        };
        let (keys, values) = (gather(heads.k_at(kv), true), gather(heads.v_at(kv), false));
        let zeros = || -> Vec<Buffer> { segments.iter().map(|s| Buffer::zeroed(s.len * heads.stored())).collect() };
        let (mut dk, mut dv) = (zeros(), zeros());
        SCRATCH.with_borrow_mut(|scratch| {
            for (index, segment) in segments.iter().enumerate() {
                for head in kv * heads.per_kv()..(kv + 1) * heads.per_kv() {
                    for start in (0..segment.len).step_by(BACK_TILE) {
                        let rows = BACK_TILE.min(segment.len - start);
                        let place = Place { segments, index, head, start, rows };
                        let given = Given { qkv, ld, out, dout, ldo };
                        // SAFETY: a unit writes the columns of its own heads in its own group's rows.
                        unsafe {
                            backward_tile(
                                cpu.isa(),
                                heads,
                                place,
                                (&keys, &values),
                                given,
                                (dqkv, ldd),
                                (&mut dk, &mut dv),
                                scratch,
                            );
                        }
                    }
                }
            }
        });
        for (grads, at) in [(&dk, heads.k_at(kv)), (&dv, heads.v_at(kv))] {
            for (grad, segment) in grads.iter().zip(segments) {
                for i in 0..segment.len {
                    for (start, width, lanes) in heads.blocks() {
                        // SAFETY: as above, the columns of this unit's key/value head.
                        let to = unsafe { dqkv.slice((segment.first + i) * ldd + at + start, width) };
                        to.copy_from_slice(&grad[start * segment.len + i * lanes..][..width]);
                    }
                }
            }
        }
    });
}

#[derive(Clone, Copy)]
struct Given<'a> {
    qkv: &'a [f32],
    ld: usize,
    out: &'a [f32],
    dout: &'a [f32],
    ldo: usize,
}

/// # Safety
/// No other thread may write these rows' columns of this head.
unsafe fn backward_tile(
    isa: Isa,
    heads: &Heads,
    place: Place<'_>,
    (keys, values): (&[Side], &[Side]),
    given: Given<'_>,
    (dqkv, ldd): (Shared<'_>, usize),
    (dk, dv): (&mut [Buffer], &mut [Buffer]),
    scratch: &mut Scratch,
) {
    let Given { qkv, ld, out, dout, ldo } = given;
    let Place { rows, head, .. } = place;
    let (before, n_keys) = (place.before(), place.n_keys());
    let lds = n_keys.next_multiple_of(16) + BLOCK;
    let p = scratch.scores.reserve(BACK_TILE * lds);
    let ds = scratch.dscores.reserve(BACK_TILE * lds);
    let q = &qkv[place.row() * ld + heads.q_at(head)..];
    let (o, d) = (&out[place.row() * ldo + heads.q_at(head)..], &dout[place.row() * ldo + heads.q_at(head)..]);
    let context = context(place.segments, place.index);
    scores(isa, heads, keys, context.clone(), (q, ld), rows, n_keys, (p, lds));
    scores(isa, heads, values, context.clone(), (d, ldo), rows, n_keys, (ds, lds));
    for r in 0..rows {
        let position = before + place.start + r;
        let (p, ds) = (&mut p[r * lds..r * lds + n_keys], &mut ds[r * lds..r * lds + n_keys]);
        let (seen, hidden) = p.split_at_mut(position + 1);
        seen[..heads.first_key(position)].fill(f32::NEG_INFINITY);
        let inverse = 1.0 / softmax_numerators(isa, seen, heads.scale);
        let along = dot(isa, &o[r * ldo..r * ldo + heads.dim], &d[r * ldo..r * ldo + heads.dim]);
        softmax_back(isa, seen, inverse, &mut ds[..position + 1], along, heads.scale);
        hidden.fill(0.0);
        ds[position + 1..].fill(0.0);
    }
    for (start, width, lanes) in heads.blocks() {
        let sum = scratch.out.reserve(BACK_TILE * lanes);
        for (index, first) in context.clone() {
            let side = &keys[index];
            let n = side.len.min(n_keys - first);
            let k = &side.by_column[start * side.len..];
            tile(isa, rows, n, (&ds[first..], lds), (k, lanes), (sum, lanes), first > 0);
        }
        for r in 0..rows {
            // SAFETY: by the caller's promise.
            let to = unsafe { dqkv.slice((place.row() + r) * ldd + heads.q_at(head) + start, width) };
            to.copy_from_slice(&sum[r * lanes..][..width]);
        }
    }
    let (pt, dst) = (scratch.turned.reserve(n_keys * rows), scratch.turned_d.reserve(n_keys * rows));
    turn(isa, rows, n_keys, (p, lds), (pt, rows));
    turn(isa, rows, n_keys, (ds, lds), (dst, rows));
    for (start, width, lanes) in heads.blocks() {
        let (qs, dos) = (scratch.gathered.reserve(rows * lanes), scratch.gathered_d.reserve(rows * lanes));
        for r in 0..rows {
            for (to, from) in [(&mut *qs, &q[r * ld + start..]), (&mut *dos, &d[r * ldo + start..])] {
                to[r * lanes..r * lanes + width].copy_from_slice(&from[..width]);
                to[r * lanes + width..(r + 1) * lanes].fill(0.0);
            }
        }
        for (index, first) in context.clone() {
            let len = keys[index].len;
            let n = len.min(n_keys - first);
            let (dk, dv) = (&mut dk[index][start * len..], &mut dv[index][start * len..]);
            tile(isa, n, rows, (&dst[first * rows..], rows), (qs, lanes), (dk, lanes), true);
            tile(isa, n, rows, (&pt[first * rows..], rows), (dos, lanes), (dv, lanes), true);
        }
    }
}
