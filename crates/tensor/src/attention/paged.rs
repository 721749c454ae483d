//! Attention over keys and values in pages, for sampling: sequences share the pages of what they have in common.

use super::Heads;
use crate::gemm::tile;
use crate::rows::softmax_numerators;
use crate::{Buffer, Isa};

/// Keys in a page.
pub const PAGE: usize = 32;

/// Floats of one page's keys, or of its values, for one layer.
///
/// - Shapes: keys `[n_kv, dim, PAGE]`; values, for each key/value head and block of columns, `[PAGE, columns stored]`.
pub fn page_len(heads: &Heads) -> usize {
    heads.n_kv * heads.stored() * PAGE
}

/// Writes a row's keys and values into a slot of a page.
///
/// - Shapes: `row` as in [`Heads`], already rotated; `k_page`, `v_page` `[page_len]`; `slot` below [`PAGE`].
pub fn store(heads: &Heads, row: &[f32], k_page: &mut [f32], v_page: &mut [f32], slot: usize) {
    let per_head = heads.stored() * PAGE;
    for kv in 0..heads.n_kv {
        let k = &row[heads.k_at(kv)..][..heads.dim];
        for (i, x) in k.iter().enumerate() {
            k_page[kv * per_head + i * PAGE + slot] = *x;
        }
        let v = &row[heads.v_at(kv)..][..heads.dim];
        for (start, width, lanes) in heads.blocks() {
            let at = kv * per_head + start * PAGE + slot * lanes;
            v_page[at..at + width].copy_from_slice(&v[start..start + width]);
        }
    }
}

/// Room for one row's scores.
#[derive(Debug, Default)]
pub struct Scratch {
    scores: Buffer,
    out: Buffer,
}

/// One row's attention over `n_keys` keys.
///
/// - Shapes: `row` as in [`Heads`]; `pages` gives, page by page, keys and values `[page_len]`; `out [n_q · dim]`.
pub fn attend<'a>(
    isa: Isa,
    heads: &Heads,
    row: &[f32],
    n_keys: usize,
    pages: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let per_kv = heads.per_kv();
    let per_head = heads.stored() * PAGE;
    let ld = n_keys.next_multiple_of(PAGE);
    let scores = scratch.scores.reserve(per_kv * ld);
    let first = heads.first_key(n_keys - 1);
    // Pages that lie before the window whole: their weights would be exact zeros.
    let hidden = first / PAGE;
    for kv in 0..heads.n_kv {
        let q = &row[heads.q_at(kv * per_kv)..];
        for (page, (k, _)) in pages.clone().enumerate().skip(hidden) {
            let k = &k[kv * per_head..];
            tile(isa, per_kv, heads.dim, (q, heads.dim), (k, PAGE), (&mut scores[page * PAGE..], ld), false);
        }
        let mut inverse = [0.0_f32; 64];
        for (h, inverse) in inverse.iter_mut().enumerate().take(per_kv) {
            let s = &mut scores[h * ld..h * ld + n_keys];
            s[..first].fill(f32::NEG_INFINITY);
            *inverse = 1.0 / softmax_numerators(isa, s, heads.scale);
        }
        for (start, width, lanes) in heads.blocks() {
            let sum = scratch.out.reserve(per_kv * lanes);
            for (page, (_, v)) in pages.clone().enumerate().skip(hidden) {
                let k = PAGE.min(n_keys - page * PAGE);
                let v = &v[kv * per_head + start * PAGE..];
                tile(isa, per_kv, k, (&scores[page * PAGE..], ld), (v, lanes), (sum, lanes), page > hidden);
            }
            for h in 0..per_kv {
                let at = heads.q_at(kv * per_kv + h) + start;
                for (o, s) in out[at..at + width].iter_mut().zip(&sum[h * lanes..]) {
                    *o = s * inverse[h];
                }
            }
        }
    }
}
