//! Training's forward and backward pass over packed sequences: a group's common start is there once.

mod layout;

pub use layout::{Layout, Pack, Sequence, ValueAt};

use std::ops::Range;

use episode::Token;
use tensor::attention::Heads;
use tensor::attention::packed as attention;
use tensor::rows::{rms_norm, rms_norm_back_into, rms_norm_weight};
use tensor::vocab::{Normaliser, Target};
use tensor::{Buffer, Cpu};

use crate::block::{self, Grads, Kept, Pass, Work};
use crate::head::{RowValues, Tempering, VocabularyLoss};
use crate::infer::{Ropes, embed};
use crate::params::{self, HalfParams};
use crate::{Adapter, Config, Params, ValueHead};
use layout::{Asked, Group, Room};

/// What a pass finds about the tokens of a sequence.
///
/// - Shapes: every list `[T]`, 0 at tokens that are not trained.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    /// Log-probability of each trained token.
    pub logp: Vec<f32>,
    /// Entropy where each was drawn.
    pub entropy: Vec<f32>,
    /// The value head's estimates; empty unless asked for.
    pub value: Vec<f32>,
    /// Other tokens in the place of each trained one, where asked for.
    pub top: Option<Top>,
}

/// Log-probabilities of `k` tokens in the place of each trained one.
///
/// - Shapes: both lists `[T · k]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Top {
    /// How many a token.
    pub k: usize,
    /// Which tokens; what stands at tokens that are not trained means nothing.
    pub ids: Vec<Token>,
    /// Their log-probabilities, 0 at tokens that are not trained.
    pub logp: Vec<f32>,
}

/// Derivatives of the loss by what [`Values`] holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Derivatives {
    /// ∂loss/∂logp, `[T]`.
    pub logp: Vec<f32>,
    /// ∂loss/∂H, `[T]`, or empty.
    pub entropy: Vec<f32>,
    /// ∂loss/∂value, `[T]`, or empty.
    pub value: Vec<f32>,
    /// ∂loss/∂logp of the tokens in [`Sequence::top`], `[T · k]`, or empty.
    pub top: Vec<f32>,
}

/// Buffers for training passes, reused from one to the next.
pub struct Trainer {
    ropes: Ropes,
    kept: Vec<Kept>,
    /// With recomputation, each block's input in place of everything its backward pass needs.
    inputs: Vec<Buffer>,
    recompute: bool,
    work: Work,
    x: Buffer,
    h: Buffer,
    dh: Buffer,
    dx: Buffer,
    /// 1/rms of the asked rows at hand.
    inverse: Buffer,
    /// What the value head says of them.
    value: Buffer,
    head: VocabularyLoss,
}

/// What a pass works with.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The processor.
    pub cpu: &'a Cpu,
    /// The model.
    pub config: &'a Config,
    /// Its weights.
    pub params: &'a Params,
    /// Its products' weights rounded to bf16, where products are.
    pub half: Option<&'a HalfParams>,
    /// The adapter beside them.
    pub adapter: Option<&'a Adapter>,
    /// The value head, where there is one; nothing may ask for values where there is none.
    pub value: Option<&'a ValueHead>,
    /// What turns logits into π.
    pub tempering: Tempering<'a>,
}

impl Trainer {
    /// Buffers for a model. With `recompute` a block's forward pass is run again in the backward pass: a third more work, a
    /// fraction of the memory, the same bits.
    pub fn new(config: &Config, recompute: bool) -> Trainer {
        let n_kept = if recompute { 1 } else { config.n_layers };
        Trainer {
            ropes: Ropes::new(config),
            kept: (0..n_kept).map(|_| Kept::default()).collect(),
            inputs: if recompute { (0..config.n_layers).map(|_| Buffer::default()).collect() } else { Vec::new() },
            recompute,
            work: Work::default(),
            x: Buffer::default(),
            h: Buffer::default(),
            dh: Buffer::default(),
            dx: Buffer::default(),
            inverse: Buffer::default(),
            value: Buffer::default(),
            head: VocabularyLoss::default(),
        }
    }

    /// The values of every trained token, by group and sequence.
    pub fn forward(&mut self, given: &Given<'_>, pack: &Pack) -> Vec<Vec<Values>> {
        self.layers(given, pack, false);
        let runs = pack.runs(VocabularyLoss::rows_at_once(given.config.vocabulary));
        runs.into_iter().flat_map(|run| self.values(given, pack, run).1).collect()
    }

    /// Forward, the loss group by group, backward; gradients are added to `grads`.
    ///
    /// - Shapes: the loss answers with the derivatives of each sequence of its group.
    /// - Holds: groups in order, and within a group rows in order, so that cutting between groups changes no bit. The vocabulary's part is
    ///   done for several groups at once where their logits fit.
    pub fn forward_backward(
        &mut self,
        given: &Given<'_>,
        pack: &Pack,
        grads: &mut Grads,
        loss: &mut dyn FnMut(usize, &[Values]) -> Vec<Derivatives>,
    ) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let rows = pack.n_rows();
        self.layers(given, pack, true);
        self.dx.reserve(rows * d).fill(0.0);
        for run in pack.runs(VocabularyLoss::rows_at_once(c.vocabulary)) {
            let (normalisers, values) = self.values(given, pack, run.clone());
            let mut targets: Vec<Vec<Target>> = Vec::with_capacity(normalisers.len());
            // By asked row, once a loss has a derivative by the value.
            let mut dvalue: Vec<f32> = Vec::new();
            for (index, values) in run.clone().zip(&values) {
                let derivatives = loss(index, values);
                let asked = &pack.asked[pack.groups[index].asked.clone()];
                if derivatives.iter().any(|d| !d.value.is_empty()) {
                    dvalue.resize(targets.len(), 0.0);
                    dvalue.extend(asked.iter().map(|row| value_derivative(row, &derivatives)));
                }
                targets.extend(asked.iter().map(|row| with_derivatives(row, &pack.groups[index], &derivatives)));
            }
            let n = targets.len();
            let (h, dh) = (&self.h[..n * d], self.dh.reserve(n * d));
            let head_grad = grads.params.as_mut().map(|g| g.head.as_mut().expect("a gradient has its own head"));
            let head = params::head(given.params, given.half);
            self.head.backward(cpu, head, h, &normalisers, &targets, &given.tempering, dh, head_grad);
            if let Some(value) = given.value.filter(|_| !dvalue.is_empty()) {
                dvalue.resize(n, 0.0);
                value.backward(cpu, h, &dvalue, dh, grads.value.as_mut());
            }
            self.final_norm_back(given, &pack.asked[pack.rows_asked(&run)], grads);
        }
        let positions = &pack.positions;
        let pass = Pass {
            cpu,
            config: c,
            params: given.params,
            half: given.half,
            adapter: given.adapter,
            ropes: self.ropes.reach(reach(pack)),
            positions,
        };
        let dx = &mut self.dx[..rows * d];
        for layer in (0..c.n_layers).rev() {
            if self.recompute {
                let x = self.x.reserve(rows * d);
                x.copy_from_slice(&self.inputs[layer][..rows * d]);
                let mut attend = attend_packed(cpu, pack);
                block::forward(&pass, layer, x, &mut self.kept[0], &mut self.work, &mut attend);
            }
            let kept = &self.kept[if self.recompute { 0 } else { layer }];
            let mut back = |_, heads: &Heads, qkv: &[f32], out: &[f32], dout: &[f32], dqkv: &mut [f32]| {
                let (width, n) = (heads.width(), heads.n_q * heads.dim);
                attention::backward(cpu, heads, &pack.segments, (qkv, width), (out, dout, n), (dqkv, width));
            };
            let needs_dx = layer > 0 || grads.params.is_some();
            block::backward(&pass, layer, needs_dx, kept, dx, grads, &mut self.work, &mut back);
        }
        if let Some(g) = &mut grads.params {
            for (row, token) in dx.chunks_mut(d).zip(&pack.tokens) {
                if c.embedding_scale != 1.0 {
                    tensor::rows::scale(cpu.isa(), c.embedding_scale, row);
                }
                g.embedding.add_to_row(*token as usize, row);
            }
        }
    }

    /// The layers' forward pass over a pack; `x` then holds the last block's result.
    fn layers(&mut self, given: &Given<'_>, pack: &Pack, keep: bool) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let rows = pack.n_rows();
        let x = self.x.reserve(rows * d);
        embed(cpu, c, given.params, pack.tokens.iter().copied(), x);
        let pass = Pass {
            cpu,
            config: c,
            params: given.params,
            half: given.half,
            adapter: given.adapter,
            ropes: self.ropes.reach(reach(pack)),
            positions: &pack.positions,
        };
        for layer in 0..c.n_layers {
            if keep && self.recompute {
                self.inputs[layer].reserve(rows * d).copy_from_slice(x);
            }
            // Without a backward pass one set of kept rows serves every layer.
            let kept = &mut self.kept[if keep && !self.recompute { layer } else { 0 }];
            block::forward(&pass, layer, x, kept, &mut self.work, &mut attend_packed(cpu, pack));
        }
    }

    /// Final norm and heads of a run of groups: normalisers of its rows, and by group the values of its tokens.
    fn values(&mut self, given: &Given<'_>, pack: &Pack, run: Range<usize>) -> (Vec<Normaliser>, Vec<Vec<Values>>) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let at = pack.rows_asked(&run);
        let rows = &pack.asked[at.clone()];
        let (h, inverse) = (self.h.reserve(rows.len() * d), self.inverse.reserve(rows.len()));
        cpu.each_rows(rows.len(), 4, [(&mut *h, d), (inverse, 1)], |i, [h, inverse]| {
            let x = &self.x[rows[i].row * d..][..d];
            inverse[0] = rms_norm(cpu.isa(), x, &given.params.final_norm, c.norm_epsilon, h);
        });
        let head = params::head(given.params, given.half);
        let targets: Vec<&[Token]> = rows.iter().map(|r| r.targets.as_slice()).collect();
        let found = self.head.values(cpu, head, h, &targets, pack.layout.top_k, &given.tempering);
        let mut value: &[f32] = &[];
        if pack.layout.value != ValueAt::Nowhere {
            let head = given.value.expect("values are asked only of a policy with a value head");
            let out = self.value.reserve(rows.len());
            head.forward(cpu, h, out);
            value = out;
        }
        let mut all = Vec::with_capacity(run.len());
        for group in &pack.groups[run] {
            let mut values: Vec<Values> = group.sequences.iter().map(|room| blank(room, &pack.layout)).collect();
            for row in group.asked.clone() {
                let i = row - at.start;
                spread(&pack.asked[row], &found[i], value.get(i), &mut values);
            }
            all.push(values);
        }
        (found.into_iter().map(|row| row.normaliser).collect(), all)
    }

    /// The final norm's derivative for rows that [`Trainer::values`] has just normed.
    fn final_norm_back(&mut self, given: &Given<'_>, rows: &[Asked], grads: &mut Grads) {
        let (cpu, d) = (given.cpu, given.config.width);
        let w = &given.params.final_norm;
        let (x, inverse, dh) = (&self.x, &self.inverse, &self.dh);
        // The normed rows are not needed any more and make room.
        let spread = &mut self.h[..rows.len() * d];
        cpu.each_row(rows.len(), 4, (&mut *spread, d), |i, dx| {
            let x = &x[rows[i].row * d..][..d];
            rms_norm_back_into(cpu.isa(), x, w, inverse[i], &dh[i * d..(i + 1) * d], dx);
        });
        for (dx, p) in spread.chunks(d).zip(rows) {
            self.dx[p.row * d..(p.row + 1) * d].copy_from_slice(dx);
        }
        if let Some(g) = &mut grads.params {
            for (i, p) in rows.iter().enumerate() {
                let x = &x[p.row * d..][..d];
                rms_norm_weight(cpu.isa(), x, inverse[i], &dh[i * d..(i + 1) * d], &mut g.final_norm);
            }
        }
    }
}

/// Room for a sequence's values.
fn blank(room: &Room, layout: &Layout) -> Values {
    let zeros = |n: usize| vec![0.0; n];
    let top = match (&room.top, layout.top_k) {
        (Some((k, ids)), _) => Some(Top { k: *k, ids: ids.clone(), logp: zeros(ids.len()) }),
        (None, 0) => None,
        (None, k) => Some(Top { k, ids: vec![0; room.len * k], logp: zeros(room.len * k) }),
    };
    let value = if layout.value == ValueAt::Nowhere { Vec::new() } else { zeros(room.len) };
    Values { logp: zeros(room.len), entropy: zeros(room.len), value, top }
}

/// Writes what was found of a row to the tokens it is about.
fn spread(asked: &Asked, found: &RowValues, value: Option<&f32>, values: &mut [Values]) {
    // Past the tokens at the row's places lie those named for each of them.
    let mut named = asked.places.len();
    for ((s, p), logp) in asked.places.iter().zip(&found.logp) {
        let own = &mut values[*s];
        own.logp[*p] = *logp;
        own.entropy[*p] = found.normaliser.entropy as f32;
        let Some(top) = &mut own.top else { continue };
        let at = p * top.k..(p + 1) * top.k;
        if found.top.is_empty() {
            top.logp[at].copy_from_slice(&found.logp[named..named + top.k]);
            named += top.k;
        } else {
            for (i, (token, logp)) in at.zip(&found.top) {
                (top.ids[i], top.logp[i]) = (*token, *logp);
            }
        }
    }
    if let Some(value) = value {
        for (s, p) in &asked.values {
            values[*s].value[*p] = *value;
        }
    }
}

/// A row's targets with their derivatives, in the order of [`Asked::targets`].
fn with_derivatives(asked: &Asked, group: &Group, derivatives: &[Derivatives]) -> Vec<Target> {
    let own = asked.places.iter().map(|(s, p)| {
        let d = &derivatives[*s];
        (d.logp[*p], d.entropy.get(*p).copied().unwrap_or(0.0))
    });
    let named = asked.places.iter().flat_map(|(s, p)| {
        let k = group.sequences[*s].top.as_ref().map_or(0, |(k, _)| *k);
        (p * k..(p + 1) * k).map(|i| (derivatives[*s].top.get(i).copied().unwrap_or(0.0), 0.0))
    });
    let target = |(token, (dlogp, dentropy)): (&Token, (f32, f32))| Target { token: *token, dlogp, dentropy };
    asked.targets.iter().zip(own.chain(named)).map(target).collect()
}

/// The loss's derivative by the value of a row, summed over the tokens whose value it is.
fn value_derivative(asked: &Asked, derivatives: &[Derivatives]) -> f32 {
    asked.values.iter().map(|(s, p)| derivatives[*s].value.get(*p).copied().unwrap_or(0.0)).sum()
}

/// Attention over a pack, as blocks ask for it.
fn attend_packed<'a>(cpu: &'a Cpu, pack: &'a Pack) -> impl FnMut(usize, &Heads, &[f32], &mut [f32]) + 'a {
    |_, heads, qkv, out| {
        let (width, n) = (heads.width(), heads.n_q * heads.dim);
        attention::forward(cpu, heads, &pack.segments, (qkv, width), (out, n));
    }
}

fn reach(pack: &Pack) -> usize {
    pack.positions.iter().max().map_or(0, |p| p + 1)
}
