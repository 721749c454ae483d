//! Causal attention with grouped key/value heads, one definition in two storage forms.
//!
//! A row's output depends on that row and the keys before it alone: scores are chains over the head's width ascending,
//! numerators come from [`rows::softmax_numerators`](crate::rows::softmax_numerators) over the keys in order, the output
//! is a chain over the keys ascending times the inverse of their sum. [`packed`] serves training, where rows of a group
//! share their prompt; [`paged`] serves sampling, where keys lie in pages that sequences share.

pub mod packed;
pub mod paged;

use crate::lanes::LANES;

/// Columns a block of a head's width holds at most.
const BLOCK: usize = 64;

/// The shape of attention.
///
/// - Shapes: a row is `[n_q · dim | n_kv · dim | n_kv · dim]`: queries, keys, values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub n_q: usize,
    /// Key/value heads; divides `n_q`.
    pub n_kv: usize,
    /// Width of a head.
    pub dim: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// How many keys back a row sees, itself included; all when absent.
    pub window: Option<usize>,
}

impl Heads {
    /// Width of a row of queries, keys and values.
    pub fn width(&self) -> usize {
        (self.n_q + 2 * self.n_kv) * self.dim
    }

    /// Query heads that share a key/value head.
    pub fn per_kv(&self) -> usize {
        self.n_q / self.n_kv
    }

    /// Column of a query head.
    pub fn q_at(&self, head: usize) -> usize {
        head * self.dim
    }

    /// Column of a key head.
    pub fn k_at(&self, kv: usize) -> usize {
        (self.n_q + kv) * self.dim
    }

    /// Column of a value head.
    pub fn v_at(&self, kv: usize) -> usize {
        (self.n_q + self.n_kv + kv) * self.dim
    }

    /// First key a row at this position sees.
    fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// Blocks of a head's width: (first column, columns, columns stored).
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let dim = self.dim;
        (0..dim).step_by(BLOCK).map(move |start| {
            let width = BLOCK.min(dim - start);
            (start, width, width.next_multiple_of(LANES))
        })
    }

    /// Columns stored for a head, padding included.
    fn stored(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }
}

#[cfg(test)]
mod tests;
