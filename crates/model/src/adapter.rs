//! Low-rank adapters, run beside the frozen weights and never merged while they train.
//!
//! Source: LoRA, arXiv:2106.09685; start values and scale as PEFT's `LoraConfig` has them.

use std::ops::Range;

use episode::random::Stream;
use tensor::{Panels, Part};

use crate::params::{Storage, gate_up_parts, qkv_parts};
use crate::{Config, ModelError};

/// A linear layer an adapter can sit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Attention's output.
    O,
    /// The feed-forward gate.
    Gate,
    /// The feed-forward input.
    Up,
    /// The feed-forward output.
    Down,
}

impl Target {
    /// Every target, in the order of a layer.
    pub const ALL: [Target; 7] = [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// Its name in settings and in PEFT's files.
    pub fn name(self) -> &'static str {
        match self {
            Target::Q => "q_proj",
            Target::K => "k_proj",
            Target::V => "v_proj",
            Target::O => "o_proj",
            Target::Gate => "gate_proj",
            Target::Up => "up_proj",
            Target::Down => "down_proj",
        }
    }

    /// The target of a name.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The block it lies in, as PEFT's files name it.
    pub fn block(self) -> &'static str {
        match self {
            Target::Q | Target::K | Target::V | Target::O => "self_attn",
            Target::Gate | Target::Up | Target::Down => "mlp",
        }
    }

    fn site(self) -> (Site, usize) {
        match self {
            Target::Q => (Site::Qkv, 0),
            Target::K => (Site::Qkv, 1),
            Target::V => (Site::Qkv, 2),
            Target::O => (Site::O, 0),
            Target::Gate => (Site::GateUp, 0),
            Target::Up => (Site::GateUp, 1),
            Target::Down => (Site::Down, 0),
        }
    }
}

/// One of a layer's four products.
#[allow(missing_docs, reason = "the names are the documentation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    Qkv,
    O,
    GateUp,
    Down,
}

impl Site {
    /// The four, in the order of a layer.
    pub const ALL: [Site; 4] = [Site::Qkv, Site::O, Site::GateUp, Site::Down];

    fn inputs(self, c: &Config) -> usize {
        match self {
            Site::Qkv | Site::GateUp => c.width,
            Site::O => c.attention_width(),
            Site::Down => c.ffn,
        }
    }

    fn parts(self, c: &Config) -> Vec<Range<usize>> {
        match self {
            Site::Qkv => qkv_parts(c),
            Site::GateUp => gate_up_parts(c),
            Site::O | Site::Down => std::iter::once(0..c.width).collect(),
        }
    }
}

/// The adapters of one product.
///
/// - Shapes: `a [parts · r, K]`, one stretch of r outputs a part; `b` has the product's parts, part `i` reading columns
///   `i · r..(i + 1) · r` of `a`'s result.
#[derive(Debug, Clone)]
pub struct Lora {
    /// Down-projection.
    pub a: Panels,
    /// Up-projection.
    pub b: Panels,
}

/// Adapters on some of the linear layers of every layer.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// Rank r.
    pub rank: usize,
    /// The adapters' output is multiplied with `alpha / rank`.
    pub alpha: f32,
    /// Which linear layers, in the order of [`Target::ALL`].
    pub targets: Vec<Target>,
    /// By layer and site.
    pub layers: Vec<[Option<Lora>; 4]>,
}

impl Adapter {
    /// Zeros of a shape.
    ///
    /// - Errors: no target, or a rank or alpha out of range.
    pub fn zeroed(c: &Config, rank: usize, alpha: f32, targets: &[Target]) -> Result<Adapter, ModelError> {
        let mut targets = targets.to_vec();
        targets.sort();
        targets.dedup();
        if targets.is_empty() {
            return Err(ModelError::Adapter("it has no target, needed at least 1".to_owned()));
        }
        if rank == 0 || rank > 1024 {
            return Err(ModelError::Adapter(format!("rank {rank}, needed 1 to 1024")));
        }
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(ModelError::Adapter(format!("alpha {alpha}, needed a number above 0")));
        }
        let lora = |site: Site| {
            let all = site.parts(c);
            let chosen: Vec<_> = targets.iter().map(|t| t.site()).filter(|(s, _)| *s == site).map(|(_, p)| p).collect();
            let part = |(i, p): (usize, &usize)| Part { outputs: all[*p].clone(), inputs: i * rank..(i + 1) * rank };
            (!chosen.is_empty()).then(|| Lora {
                a: Panels::zeroed(chosen.len() * rank, site.inputs(c)),
                b: Panels::with_parts(chosen.iter().enumerate().map(part).collect()),
            })
        };
        let layers = (0..c.n_layers).map(|_| Site::ALL.map(lora)).collect();
        Ok(Adapter { rank, alpha, targets, layers })
    }

    /// Start values: A uniform within ±1/√K, B zero, so that the adapter changes nothing yet and both can learn.
    pub fn fresh(c: &Config, rank: usize, alpha: f32, targets: &[Target], seed: u64) -> Result<Adapter, ModelError> {
        let mut adapter = Adapter::zeroed(c, rank, alpha, targets)?;
        for layer in 0..c.n_layers {
            for target in adapter.targets.clone() {
                let shape = adapter.a_shape(c, target);
                let stream = Stream::new("adapter", &[seed, layer as u64, target as u64]);
                let bound = 1.0 / (shape[1] as f64).sqrt();
                let draw = |i: usize| ((stream.uniform(i as u64) * 2.0 - 1.0) * bound) as f32;
                let values: Vec<f32> = (0..shape[0] * shape[1]).map(draw).collect();
                adapter.write_a(layer, target, &values);
            }
        }
        Ok(adapter)
    }

    /// What adapter outputs are multiplied with.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// The adapters of a product, if any.
    pub fn at(&self, layer: usize, site: Site) -> Option<&Lora> {
        self.layers[layer][site as usize].as_ref()
    }

    /// As [`Adapter::at`], to write.
    pub fn at_mut(&mut self, layer: usize, site: Site) -> Option<&mut Lora> {
        self.layers[layer][site as usize].as_mut()
    }

    /// Number of weights.
    pub fn n_weights(&self, c: &Config) -> usize {
        let one = |t: &Target| {
            let (a, b) = (self.a_shape(c, *t), self.b_shape(c, *t));
            a[0] * a[1] + b[0] * b[1]
        };
        c.n_layers * self.targets.iter().map(one).sum::<usize>()
    }

    /// Shape of a target's A, `[r, K]`.
    pub fn a_shape(&self, c: &Config, target: Target) -> [usize; 2] {
        [self.rank, target.site().0.inputs(c)]
    }

    /// Shape of a target's B, `[N, r]`.
    pub fn b_shape(&self, c: &Config, target: Target) -> [usize; 2] {
        let (site, part) = target.site();
        [site.parts(c)[part].len(), self.rank]
    }

    /// Copies a target's A out, row by row.
    pub fn read_a(&self, layer: usize, target: Target) -> Vec<f32> {
        let (lora, rows, _) = self.place(layer, target);
        rows.flat_map(|r| read_row(&lora.a, r, lora.a.n_inputs())).collect()
    }

    /// Copies a target's B out, row by row.
    pub fn read_b(&self, layer: usize, target: Target) -> Vec<f32> {
        let (lora, _, outputs) = self.place(layer, target);
        outputs.flat_map(|r| read_row(&lora.b, r, self.rank)).collect()
    }

    /// Sets a target's A, row by row.
    pub fn write_a(&mut self, layer: usize, target: Target, values: &[f32]) {
        let (_, rows, _) = self.place(layer, target);
        let lora = self.at_mut(layer, target.site().0).expect("a target has its adapter");
        let k = lora.a.n_inputs();
        for (row, values) in rows.zip(values.chunks(k)) {
            lora.a.set_row(row, values);
        }
    }

    /// Sets a target's B, row by row.
    pub fn write_b(&mut self, layer: usize, target: Target, values: &[f32]) {
        let (_, _, outputs) = self.place(layer, target);
        let rank = self.rank;
        let lora = self.at_mut(layer, target.site().0).expect("a target has its adapter");
        for (row, values) in outputs.zip(values.chunks(rank)) {
            lora.b.set_row(row, values);
        }
    }

    /// A target's adapters, its rows of A and its outputs of B.
    fn place(&self, layer: usize, target: Target) -> (&Lora, Range<usize>, Range<usize>) {
        let (site, _) = target.site();
        let lora = self.at(layer, site).expect("a target has its adapter");
        let index = self.targets.iter().filter(|t| t.site().0 == site).position(|t| *t == target);
        let index = index.expect("only the adapter's own targets are asked for");
        let part = &lora.b.parts()[index];
        (lora, part.inputs.clone(), part.outputs.clone())
    }

    /// Every tensor's storage, in a fixed order.
    pub fn storage(&self) -> Vec<Storage<&[f32]>> {
        let all = self.layers.iter().flatten().flatten();
        all.flat_map(|l| [l.a.data(), l.b.data()]).map(Storage::Matrix).collect()
    }

    /// As [`Adapter::storage`], to write.
    pub fn storage_mut(&mut self) -> Vec<Storage<&mut [f32]>> {
        let all = self.layers.iter_mut().flatten().flatten();
        all.flat_map(|l| [l.a.data_mut(), l.b.data_mut()]).map(Storage::Matrix).collect()
    }
}

fn read_row(panels: &Panels, row: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0; k];
    panels.row(row, &mut out);
    out
}
