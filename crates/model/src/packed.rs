//! Training's forward and backward pass over packed sequences: a group's common start is there once.

use episode::Token;
use tensor::attention::Heads;
use tensor::attention::packed::{self as attention, Segment};
use tensor::rows::{norm_weight_grad, rms_norm, rms_norm_back_into};
use tensor::vocab::{Normaliser, Target};
use tensor::{Buffer, Cpu};

use crate::block::{self, Grads, Kept, Pass, Work};
use crate::head::{Tempering, VocabularyLoss};
use crate::infer::{Ropes, embed};
use crate::params::{self, HalfParams};
use crate::{Adapter, Config, Params};

/// One sequence to train on.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Token ids, `[T]`.
    pub tokens: &'a [Token],
    /// Which tokens are trained, `[T]`; never the first.
    pub trained: &'a [bool],
}

/// A token's values: log-probability and entropy.
pub type Values = (Vec<f32>, Vec<f32>);

/// One group's place in the pack.
#[derive(Debug)]
struct Group {
    /// The rows whose next token is trained, and which (sequence, position) each predicts, ascending.
    rows: Vec<(usize, Vec<(usize, usize)>)>,
    /// Tokens of each sequence.
    lengths: Vec<usize>,
}

/// Groups of sequences laid out as rows: each group's common start, then each sequence's rest.
#[derive(Debug, Default)]
pub struct Pack {
    tokens: Vec<Token>,
    positions: Vec<usize>,
    groups: Vec<Group>,
    segments: Vec<Vec<Segment>>,
    targets: Vec<Vec<Vec<Token>>>,
}

impl Pack {
    /// Rows a group takes.
    pub fn rows_of(group: &[Sequence<'_>], share: bool) -> usize {
        let common = common_start(group, share);
        common + group.iter().map(|s| last_row(s).saturating_sub(common)).sum::<usize>()
    }

    /// Adds a group; with `share` its common start is laid out once.
    pub fn push(&mut self, group: &[Sequence<'_>], share: bool) {
        let common = common_start(group, share);
        let mut segments = Vec::new();
        let mut rows: Vec<(usize, Vec<(usize, usize)>)> = Vec::new();
        let start = self.tokens.len();
        if common > 0 {
            segments.push(Segment { first: start, len: common, parent: None });
            self.lay(&group[0].tokens[..common], 0);
        }
        for (index, sequence) in group.iter().enumerate() {
            let end = last_row(sequence);
            let first = self.tokens.len();
            if end > common {
                segments.push(Segment { first, len: end - common, parent: (common > 0).then_some(0) });
                self.lay(&sequence.tokens[common..end], common);
            }
            for position in (1..sequence.tokens.len()).filter(|p| sequence.trained[*p]) {
                let at = position - 1;
                let row = if at < common { start + at } else { first + at - common };
                match rows.iter_mut().find(|(r, _)| *r == row) {
                    Some((_, targets)) => targets.push((index, position)),
                    None => rows.push((row, vec![(index, position)])),
                }
            }
        }
        rows.sort_by_key(|(row, _)| *row);
        let token = |(s, p): &(usize, usize)| group[*s].tokens[*p];
        self.targets.push(rows.iter().map(|(_, t)| t.iter().map(token).collect()).collect());
        self.segments.push(segments);
        self.groups.push(Group { rows, lengths: group.iter().map(|s| s.tokens.len()).collect() });
    }

    fn lay(&mut self, tokens: &[Token], position: usize) {
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }
}

/// Rows a sequence needs: up to the one that predicts its last trained token.
fn last_row(s: &Sequence<'_>) -> usize {
    s.trained.iter().rposition(|t| *t).unwrap_or(0)
}

/// Tokens that all sequences of a group begin with and that none of them trains, all of them laid out as rows.
fn common_start(group: &[Sequence<'_>], share: bool) -> usize {
    if !share || group.len() < 2 {
        return 0;
    }
    let first = &group[0];
    let mut common = group.iter().map(last_row).min().unwrap_or(0);
    for s in group {
        let same = s.tokens.iter().zip(first.tokens).take_while(|(a, b)| a == b).count();
        let untrained = s.trained.iter().position(|t| *t).unwrap_or(s.tokens.len());
        common = common.min(same).min(untrained);
    }
    common
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
    /// What turns logits into π.
    pub tempering: Tempering<'a>,
}

/// A group's derivatives: by sequence, ∂loss/∂logp and ∂loss/∂H by token (the latter may be empty).
pub type Derivatives = Vec<(Vec<f32>, Vec<f32>)>;

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
            head: VocabularyLoss::default(),
        }
    }

    /// Log-probabilities and entropies of every trained token, by group and sequence.
    pub fn forward(&mut self, given: &Given<'_>, pack: &Pack) -> Vec<Vec<Values>> {
        self.layers(given, pack, false);
        (0..pack.groups.len()).map(|g| self.group_values(given, pack, g).1).collect()
    }

    /// Forward, the loss group by group, backward; gradients are added to `grads`.
    ///
    /// - Holds: groups in order, and within a group rows in order, so that cutting between groups changes no bit.
    pub fn forward_backward(
        &mut self,
        given: &Given<'_>,
        pack: &Pack,
        grads: &mut Grads,
        loss: &mut dyn FnMut(usize, &[Values]) -> Derivatives,
    ) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let rows = pack.n_rows();
        self.layers(given, pack, true);
        self.dx.reserve(rows * d).fill(0.0);
        for (index, group) in pack.groups.iter().enumerate() {
            let (normalisers, values) = self.group_values(given, pack, index);
            let derivatives = loss(index, &values);
            let targets: Vec<Vec<Target>> = group
                .rows
                .iter()
                .zip(&pack.targets[index])
                .map(|((_, places), tokens)| {
                    let target = |((s, p), token): (&(usize, usize), &Token)| Target {
                        token: *token,
                        dlogp: derivatives[*s].0[*p],
                        dentropy: derivatives[*s].1.get(*p).copied().unwrap_or(0.0),
                    };
                    places.iter().zip(tokens).map(target).collect()
                })
                .collect();
            let n = group.rows.len();
            let dh = self.dh.reserve(n * d);
            let head_grad = grads.params.as_mut().map(|g| g.head.as_mut().expect("a gradient has its own head"));
            let h = &self.h[..n * d];
            self.head.backward(
                cpu,
                params::head(given.params, given.half),
                h,
                &normalisers,
                &targets,
                &given.tempering,
                dh,
                head_grad,
            );
            self.final_norm_back(given, group, grads);
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

    /// Final norm and head of one group: normalisers of its rows, values of its tokens.
    fn group_values(&mut self, given: &Given<'_>, pack: &Pack, index: usize) -> (Vec<Normaliser>, Vec<Values>) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let group = &pack.groups[index];
        let h = self.h.reserve(group.rows.len() * d);
        for (to, (row, _)) in h.chunks_mut(d).zip(&group.rows) {
            rms_norm(cpu.isa(), &self.x[row * d..(row + 1) * d], &given.params.final_norm, c.norm_epsilon, to);
        }
        let rows =
            self.head.values(cpu, params::head(given.params, given.half), h, &pack.targets[index], &given.tempering);
        let mut values: Vec<Values> = group.lengths.iter().map(|n| (vec![0.0; *n], vec![0.0; *n])).collect();
        for ((_, places), (normaliser, logps)) in group.rows.iter().zip(&rows) {
            for ((s, p), logp) in places.iter().zip(logps) {
                values[*s].0[*p] = *logp;
                values[*s].1[*p] = normaliser.entropy as f32;
            }
        }
        (rows.into_iter().map(|(n, _)| n).collect(), values)
    }

    fn final_norm_back(&mut self, given: &Given<'_>, group: &Group, grads: &mut Grads) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let w = &given.params.final_norm;
        let mut gathered = vec![0.0; group.rows.len() * d];
        let mut inverse = vec![0.0; group.rows.len()];
        let mut unused = vec![0.0; d];
        for (i, (row, _)) in group.rows.iter().enumerate() {
            let x = &self.x[row * d..(row + 1) * d];
            gathered[i * d..(i + 1) * d].copy_from_slice(x);
            inverse[i] = rms_norm(cpu.isa(), x, w, c.norm_epsilon, &mut unused);
        }
        let mut spread = vec![0.0; gathered.len()];
        cpu.each_row(group.rows.len(), 4, (&mut spread, d), |i, dx| {
            let at = i * d..(i + 1) * d;
            rms_norm_back_into(cpu.isa(), &gathered[at.clone()], w, inverse[i], &self.dh[at], dx);
        });
        for (dx, (row, _)) in spread.chunks(d).zip(&group.rows) {
            self.dx[row * d..(row + 1) * d].copy_from_slice(dx);
        }
        if let Some(g) = &mut grads.params {
            norm_weight_grad(cpu, (&gathered, d), &inverse, (&self.dh, d), &mut g.final_norm);
        }
    }
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
