//! Training's forward and backward pass over packed sequences: a group's common start is there once.

use std::ops::Range;

use episode::Token;
use tensor::attention::Heads;
use tensor::attention::packed::{self as attention, Segment};
use tensor::rows::{rms_norm, rms_norm_back_into, rms_norm_weight};
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
    /// Its rows among the pack's predicting ones.
    predicting: Range<usize>,
    /// Tokens of each sequence.
    lengths: Vec<usize>,
}

/// A row whose next token is trained.
#[derive(Debug)]
struct Predicting {
    /// Which row of the pack.
    row: usize,
    /// The (sequence, position) it predicts; several where sequences share it.
    places: Vec<(usize, usize)>,
}

/// Groups of sequences laid out as rows: each group's common start, then each sequence's rest.
#[derive(Debug, Default)]
pub struct Pack {
    tokens: Vec<Token>,
    positions: Vec<usize>,
    groups: Vec<Group>,
    segments: Vec<Vec<Segment>>,
    /// Group by group, within a group by row.
    predicting: Vec<Predicting>,
    /// The tokens at their places.
    targets: Vec<Vec<Token>>,
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
        let mut rows: Vec<Predicting> = Vec::new();
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
                match rows.iter_mut().find(|p| p.row == row) {
                    Some(p) => p.places.push((index, position)),
                    None => rows.push(Predicting { row, places: vec![(index, position)] }),
                }
            }
        }
        rows.sort_by_key(|p| p.row);
        let token = |(s, p): &(usize, usize)| group[*s].tokens[*p];
        self.targets.extend(rows.iter().map(|p| p.places.iter().map(token).collect()));
        self.segments.push(segments);
        let predicting = self.predicting.len()..self.predicting.len() + rows.len();
        self.predicting.extend(rows);
        self.groups.push(Group { predicting, lengths: group.iter().map(|s| s.tokens.len()).collect() });
    }

    /// Runs of whole groups whose predicting rows are at most `most` together, or one group.
    fn runs(&self, most: usize) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let start = |run: &Range<usize>| self.groups[run.start].predicting.start;
            match runs.last_mut().filter(|run| group.predicting.end - start(run) <= most) {
                Some(run) => run.end = index + 1,
                None => runs.push(index..index + 1),
            }
        }
        runs
    }

    fn lay(&mut self, tokens: &[Token], position: usize) {
        self.tokens.extend_from_slice(tokens);
        self.positions.extend(position..position + tokens.len());
    }

    /// The predicting rows of a run of groups.
    fn rows_predicting(&self, run: &Range<usize>) -> Range<usize> {
        self.groups[run.start].predicting.start..self.groups[run.end - 1].predicting.end
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
    /// 1/rms of the predicting rows at hand.
    inverse: Buffer,
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
            inverse: Buffer::default(),
            head: VocabularyLoss::default(),
        }
    }

    /// Log-probabilities and entropies of every trained token, by group and sequence.
    pub fn forward(&mut self, given: &Given<'_>, pack: &Pack) -> Vec<Vec<Values>> {
        self.layers(given, pack, false);
        let runs = pack.runs(VocabularyLoss::rows_at_once(given.config.vocabulary));
        runs.into_iter().flat_map(|run| self.values(given, pack, run).1).collect()
    }

    /// Forward, the loss group by group, backward; gradients are added to `grads`.
    ///
    /// - Holds: groups in order, and within a group rows in order, so that cutting between groups changes no bit. The vocabulary's part is
    ///   done for several groups at once where their logits fit.
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
        for run in pack.runs(VocabularyLoss::rows_at_once(c.vocabulary)) {
            let (normalisers, values) = self.values(given, pack, run.clone());
            let mut targets: Vec<Vec<Target>> = Vec::with_capacity(normalisers.len());
            for (index, values) in run.clone().zip(&values) {
                let derivatives = loss(index, values);
                let target = |((s, p), token): (&(usize, usize), &Token)| Target {
                    token: *token,
                    dlogp: derivatives[*s].0[*p],
                    dentropy: derivatives[*s].1.get(*p).copied().unwrap_or(0.0),
                };
                let at = pack.groups[index].predicting.clone();
                let rows = pack.predicting[at.clone()].iter().zip(&pack.targets[at]);
                targets.extend(rows.map(|(p, tokens)| p.places.iter().zip(tokens).map(target).collect()));
            }
            let n = targets.len();
            let dh = self.dh.reserve(n * d);
            let head_grad = grads.params.as_mut().map(|g| g.head.as_mut().expect("a gradient has its own head"));
            let head = params::head(given.params, given.half);
            self.head.backward(cpu, head, &self.h[..n * d], &normalisers, &targets, &given.tempering, dh, head_grad);
            self.final_norm_back(given, &pack.predicting[pack.rows_predicting(&run)], grads);
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

    /// Final norm and head of a run of groups: normalisers of its rows, and by group the values of its tokens.
    fn values(&mut self, given: &Given<'_>, pack: &Pack, run: Range<usize>) -> (Vec<Normaliser>, Vec<Vec<Values>>) {
        let (cpu, c, d) = (given.cpu, given.config, given.config.width);
        let at = pack.rows_predicting(&run);
        let rows = &pack.predicting[at.clone()];
        let (h, inverse) = (self.h.reserve(rows.len() * d), self.inverse.reserve(rows.len()));
        cpu.each_rows(rows.len(), 4, [(&mut *h, d), (inverse, 1)], |i, [h, inverse]| {
            let x = &self.x[rows[i].row * d..][..d];
            inverse[0] = rms_norm(cpu.isa(), x, &given.params.final_norm, c.norm_epsilon, h);
        });
        let head = params::head(given.params, given.half);
        let found = self.head.values(cpu, head, h, &pack.targets[at.clone()], &given.tempering);
        let mut all = Vec::with_capacity(run.len());
        for group in &pack.groups[run] {
            let mut values: Vec<Values> = group.lengths.iter().map(|n| (vec![0.0; *n], vec![0.0; *n])).collect();
            for row in group.predicting.clone() {
                let (normaliser, logps) = &found[row - at.start];
                for ((s, p), logp) in pack.predicting[row].places.iter().zip(logps) {
                    values[*s].0[*p] = *logp;
                    values[*s].1[*p] = normaliser.entropy as f32;
                }
            }
            all.push(values);
        }
        (found.into_iter().map(|(n, _)| n).collect(), all)
    }

    /// The final norm's derivative for rows that [`Trainer::values`] has just normed.
    fn final_norm_back(&mut self, given: &Given<'_>, rows: &[Predicting], grads: &mut Grads) {
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
