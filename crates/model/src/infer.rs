//! Rows of many sequences through the model at once: prompts being read and tokens being sampled are the same work.

use tensor::attention::paged;
use tensor::rows::{rms_norm, scale};
use tensor::{Buffer, Cpu};

use crate::block::{self, Kept, Pass, Work};
use crate::cache::{Cache, Sequence};
use crate::head;
use crate::params::{self, HalfParams};
use crate::rope::RopeTable;
use crate::{Adapter, Config, ModelError, Params};

/// One row: a token at the next position of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The token.
    pub token: u32,
    /// Which of the sequences passed along.
    pub sequence: usize,
    /// Whether its logits are wanted.
    pub wanted: bool,
}

/// The rotations of a model, as tables.
pub struct Ropes {
    global: RopeTable,
    local: RopeTable,
}

impl Ropes {
    /// The tables of a configuration, empty.
    pub fn new(config: &Config) -> Ropes {
        let local = config.local_rope.as_ref().unwrap_or(&config.rope);
        Ropes { global: RopeTable::new(&config.rope, config.head_dim), local: RopeTable::new(local, config.head_dim) }
    }

    /// Makes both reach `n` positions, and lends them.
    pub fn reach(&mut self, n: usize) -> (&RopeTable, &RopeTable) {
        self.global.reach(n);
        self.local.reach(n);
        (&self.global, &self.local)
    }
}

/// Copies tokens' embeddings into rows.
///
/// - Shapes: `x [R, D]`; every token is below V.
pub(crate) fn embed(cpu: &Cpu, config: &Config, params: &Params, tokens: impl Iterator<Item = u32>, x: &mut [f32]) {
    for (row, token) in x.chunks_mut(config.width).zip(tokens) {
        params.embedding.row(token as usize, row);
        if config.embedding_scale != 1.0 {
            scale(cpu.isa(), config.embedding_scale, row);
        }
    }
}

/// Buffers for reading rows, reused from step to step.
pub struct Infer {
    ropes: Ropes,
    kept: Kept,
    work: Work,
    x: Buffer,
    h: Buffer,
    logits: Buffer,
}

impl Infer {
    /// Buffers for a model.
    pub fn new(config: &Config) -> Infer {
        Infer {
            ropes: Ropes::new(config),
            kept: Kept::default(),
            work: Work::default(),
            x: Buffer::default(),
            h: Buffer::default(),
            logits: Buffer::default(),
        }
    }

    /// Runs rows through the model, each extending its sequence by one position; gives the wanted rows' raw logits.
    ///
    /// - Shapes: result `[wanted, V]`, in the order of the rows. Rows of one sequence follow each other in order.
    /// - Holds: a row's logits depend on its sequence alone, and so does whether they are finite.
    /// - Errors: no room in the cache (the caller keeps to [`Cache::n_pages`]).
    pub fn step(
        &mut self,
        cpu: &Cpu,
        config: &Config,
        (params, half): (&Params, Option<&HalfParams>),
        adapter: Option<&Adapter>,
        cache: &mut Cache,
        sequences: &mut [&mut Sequence],
        rows: &[Row],
    ) -> Result<&mut [f32], ModelError> {
        let (d, v) = (config.width, config.vocabulary);
        let mut positions = Vec::with_capacity(rows.len());
        for row in rows {
            positions.push(cache.grow(sequences[row.sequence])?);
        }
        let longest = positions.iter().max().map_or(0, |p| p + 1);
        let x = self.x.reserve(rows.len() * d);
        embed(cpu, config, params, rows.iter().map(|r| r.token), x);
        let pass = Pass { cpu, config, params, half, adapter, ropes: self.ropes.reach(longest), positions: &positions };
        let sequences: Vec<&Sequence> = sequences.iter().map(|s| &**s).collect();
        let mut attend = |layer: usize, heads: &tensor::attention::Heads, qkv: &[f32], out: &mut [f32]| {
            let width = heads.width();
            for (r, row) in rows.iter().enumerate() {
                let (k, v) = cache.slot_mut(sequences[row.sequence], layer, positions[r]);
                paged::store(heads, &qkv[r * width..(r + 1) * width], k, v, positions[r] % paged::PAGE);
            }
            let cache = &*cache;
            let n = heads.n_q * heads.dim;
            cpu.each_row(rows.len(), 1, (out, n), |r, out| {
                let n_keys = positions[r] + 1;
                let pages = cache.layer(sequences[rows[r].sequence], layer, n_keys);
                let row = &qkv[r * width..(r + 1) * width];
                SCRATCH.with_borrow_mut(|s| paged::attend(cpu.isa(), heads, row, n_keys, pages, out, s));
            });
        };
        for layer in 0..config.n_layers {
            block::forward(&pass, layer, x, &mut self.kept, &mut self.work, &mut attend);
        }
        let wanted: Vec<usize> = (0..rows.len()).filter(|r| rows[*r].wanted).collect();
        let h = self.h.reserve(wanted.len() * d);
        for (to, r) in h.chunks_mut(d).zip(&wanted) {
            rms_norm(cpu.isa(), &x[r * d..(r + 1) * d], &params.final_norm, config.norm_epsilon, to);
        }
        let logits = self.logits.reserve(wanted.len() * v);
        head::logits(cpu, params::head(params, half), wanted.len(), h, logits);
        Ok(logits)
    }
}

thread_local! {
    static SCRATCH: std::cell::RefCell<paged::Scratch> = std::cell::RefCell::default();
}
