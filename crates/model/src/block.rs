//! One decoder block, forward and backward, for every family: the one place where its arithmetic is written down.

use tensor::attention::Heads;
use tensor::gemm::{linear, linear_back, weight_grad};
use tensor::rows::{
    add, column_sums, gelu_gate, gelu_gate_back, norm_weight_grad, rms_norm, rms_norm_back, rms_norm_back_into, rotate,
    scale, silu_gate, silu_gate_back,
};
use tensor::{Buffer, Cpu, Panels, Term, Weights};

use crate::adapter::{Adapter, Lora, Site};
use crate::config::Gate;
use crate::params::{self, HalfParams, Layer};
use crate::rope::RopeTable;
use crate::{Config, Params, ValueHead};

/// Rows a unit of element-wise work takes at least.
const GRAIN: usize = 4;

/// What every block of a pass is given.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The processor.
    pub cpu: &'a Cpu,
    /// The model.
    pub config: &'a Config,
    /// Its weights.
    pub params: &'a Params,
    /// Its products' weights rounded to bf16, where products are.
    pub half: Option<&'a HalfParams>,
    /// The adapter beside them, if any.
    pub adapter: Option<&'a Adapter>,
    /// Rotations of global and of local layers.
    pub ropes: (&'a RopeTable, &'a RopeTable),
    /// Position of each row, `[R]`.
    pub positions: &'a [usize],
}

impl Pass<'_> {
    fn rows(&self) -> usize {
        self.positions.len()
    }

    fn rope(&self, layer: usize) -> &RopeTable {
        if self.config.local[layer] { self.ropes.1 } else { self.ropes.0 }
    }

    fn product(&self, layer: usize, site: Site) -> Weights<'_> {
        params::product(self.params, self.half, layer, site)
    }

    fn lora(&self, layer: usize, site: Site) -> Option<&Lora> {
        self.adapter.and_then(|a| a.at(layer, site))
    }

    fn lora_scale(&self) -> f32 {
        self.adapter.map_or(1.0, Adapter::scale)
    }
}

/// What the backward pass of a block needs of its forward pass.
///
/// - Shapes: rows `[R]` of the widths named.
#[derive(Debug, Default)]
pub struct Kept {
    /// Input of the block, `D`.
    x1: Buffer,
    inverse1: Buffer,
    /// Queries, keys and values before their norms; only where the family has them.
    raw: Buffer,
    /// 1/rms of each query and key head.
    head_inverse: Buffer,
    /// Rotated queries and keys, and values.
    qkv: Buffer,
    /// Attention's result.
    attn: Buffer,
    /// Attention's output product before its norm; only where the family has it.
    o: Buffer,
    o_inverse: Buffer,
    /// Between the halves, `D`.
    x2: Buffer,
    inverse2: Buffer,
    /// Gate and up.
    gate_up: Buffer,
    /// The feed-forward output product before its norm; only where the family has it.
    down: Buffer,
    down_inverse: Buffer,
    /// Adapters' inner results, scaled, by site.
    inner: [Buffer; 4],
}

/// Buffers a pass reuses from block to block.
#[derive(Debug, Default)]
pub struct Work {
    h: Buffer,
    act: Buffer,
    out: Buffer,
    d_out: Buffer,
    d_act: Buffer,
    d_gate_up: Buffer,
    d_h: Buffer,
    d_attn: Buffer,
    d_qkv: Buffer,
    d_inner: Buffer,
}

/// How a block's attention finds its keys: (layer, heads, rotated rows, result).
pub type Attend<'a> = &'a mut dyn FnMut(usize, &Heads, &[f32], &mut [f32]);

/// Runs one block over rows, in place.
///
/// - Shapes: `x [R, D]`.
/// - Holds: a row's result depends on the row and on what `attend` gives it.
pub fn forward(pass: &Pass<'_>, layer: usize, x: &mut [f32], kept: &mut Kept, work: &mut Work, attend: Attend<'_>) {
    let (cpu, c, rows) = (pass.cpu, pass.config, pass.rows());
    let (p, d, f) = (&pass.params.layers[layer], c.width, c.ffn);
    let heads = c.heads(layer);

    let h = work.h.reserve(rows * d);
    norm_rows(pass, None, &p.attn_norm, x, kept.x1.reserve(rows * d), h, kept.inverse1.reserve(rows));
    let qkv = kept.qkv.reserve(rows * heads.width());
    product(pass, layer, Site::Qkv, p.qkv_bias.as_deref(), h, qkv, &mut kept.inner[Site::Qkv as usize]);
    if c.qk_norm {
        kept.raw.reserve(qkv.len()).copy_from_slice(qkv);
        norm_heads(pass, &heads, p, qkv, kept.head_inverse.reserve(rows * (heads.n_q + heads.n_kv)));
    }
    rotate_heads(pass, layer, &heads, qkv, 1.0);
    let attn = kept.attn.reserve(rows * c.attention_width());
    attend(layer, &heads, qkv, attn);

    let out = work.out.reserve(rows * d);
    product(pass, layer, Site::O, None, attn, out, &mut kept.inner[Site::O as usize]);
    let o = after(pass, p.post_attn_norm.as_deref(), out, &mut kept.o, &mut kept.o_inverse);
    norm_rows(pass, Some(o), &p.mlp_norm, x, kept.x2.reserve(rows * d), h, kept.inverse2.reserve(rows));
    let gate_up = kept.gate_up.reserve(rows * 2 * f);
    product(pass, layer, Site::GateUp, None, h, gate_up, &mut kept.inner[Site::GateUp as usize]);
    let act = work.act.reserve(rows * f);
    gate_rows(cpu, c, rows, gate_up, act);
    product(pass, layer, Site::Down, None, act, out, &mut kept.inner[Site::Down as usize]);
    let down = after(pass, p.post_mlp_norm.as_deref(), out, &mut kept.down, &mut kept.down_inverse);
    cpu.each_row(rows, GRAIN, (x, d), |r, x| add(cpu.isa(), &down[r * d..(r + 1) * d], x));
}

/// Gradients being accumulated, each of what is trained.
#[derive(Debug, Default)]
pub struct Grads {
    /// Of every weight; the head has its own even where it is tied.
    pub params: Option<Params>,
    /// Of the adapter.
    pub adapter: Option<Adapter>,
    /// Of the value head.
    pub value: Option<ValueHead>,
}

/// Where attention's derivative comes from: (layer, heads, rotated rows, result, ∂result, ∂rows).
pub type AttendBack<'a> = &'a mut dyn FnMut(usize, &Heads, &[f32], &[f32], &[f32], &mut [f32]);

/// Derivative of [`forward`]: turns ∂loss/∂output into ∂loss/∂input in place and adds the weights' gradients.
///
/// - Shapes: `dx [R, D]`.
/// - Holds: gradients sum over the rows in order and continue what is accumulated. Without `needs_dx` the derivative by
///   the block's input is left unfinished, which the lowest block under an adapter may.
pub fn backward(
    pass: &Pass<'_>,
    layer: usize,
    needs_dx: bool,
    kept: &Kept,
    dx: &mut [f32],
    grads: &mut Grads,
    work: &mut Work,
    attend_back: AttendBack<'_>,
) {
    let (cpu, c, rows) = (pass.cpu, pass.config, pass.rows());
    let (p, d, f) = (&pass.params.layers[layer], c.width, c.ffn);
    let heads = c.heads(layer);
    let mut g = grads.params.as_mut().map(|g| &mut g.layers[layer]);
    let Work { h, act, d_out, d_act, d_gate_up, d_h, d_attn, d_qkv, d_inner, .. } = work;

    let d_down = leave(
        cpu,
        rows,
        d,
        g.as_mut().and_then(|g| g.post_mlp_norm.as_deref_mut()),
        p.post_mlp_norm.as_deref(),
        (&kept.down, &kept.down_inverse),
        dx,
        d_out,
    );
    let (act, d_act) = (act.reserve(rows * f), d_act.reserve(rows * f));
    let d_gate_up = d_gate_up.reserve(rows * 2 * f);
    let mut site = SiteBack { pass, layer, d_inner };
    site.inputs(Site::Down, d_down, Some(&mut *d_act));
    gate_rows_back(cpu, c, rows, &kept.gate_up, d_act, act, d_gate_up);
    let g_down = g.as_mut().map(|g| &mut g.down);
    site.weights(Site::Down, act, &kept.inner, d_down, g_down, &mut grads.adapter);
    let (h, d_h) = (h.reserve(rows * d), d_h.reserve(rows * d));
    renorm_rows(cpu, rows, &kept.x2, &p.mlp_norm, &kept.inverse2, h);
    let g_gate_up = g.as_mut().map(|g| &mut g.gate_up);
    site.inputs(Site::GateUp, d_gate_up, Some(&mut *d_h));
    site.weights(Site::GateUp, h, &kept.inner, d_gate_up, g_gate_up, &mut grads.adapter);
    if let Some(g) = &mut g {
        norm_weight_grad(cpu, (&kept.x2, d), &kept.inverse2[..rows], (d_h, d), &mut g.mlp_norm);
    }
    norm_rows_back(cpu, rows, &kept.x2, &p.mlp_norm, &kept.inverse2, d_h, dx);

    let d_o = leave(
        cpu,
        rows,
        d,
        g.as_mut().and_then(|g| g.post_attn_norm.as_deref_mut()),
        p.post_attn_norm.as_deref(),
        (&kept.o, &kept.o_inverse),
        dx,
        d_out,
    );
    let d_attn = d_attn.reserve(rows * c.attention_width());
    let attn = &kept.attn[..rows * c.attention_width()];
    site.inputs(Site::O, d_o, Some(&mut *d_attn));
    site.weights(Site::O, attn, &kept.inner, d_o, g.as_mut().map(|g| &mut g.o), &mut grads.adapter);
    let d_qkv = d_qkv.reserve(rows * heads.width());
    attend_back(layer, &heads, &kept.qkv, &kept.attn, d_attn, d_qkv);
    rotate_heads(pass, layer, &heads, d_qkv, -1.0);
    if c.qk_norm {
        norm_heads_back(pass, &heads, p, kept, d_qkv, g.as_deref_mut());
    }
    if let Some(bias) = g.as_mut().and_then(|g| g.qkv_bias.as_mut()) {
        column_sums(cpu, rows, (d_qkv, heads.width()), bias);
    }
    renorm_rows(cpu, rows, &kept.x1, &p.attn_norm, &kept.inverse1, h);
    let full = g.is_some();
    let wanted = (needs_dx || full).then_some(&mut *d_h);
    site.inputs(Site::Qkv, d_qkv, wanted);
    site.weights(Site::Qkv, h, &kept.inner, d_qkv, g.as_mut().map(|g| &mut g.qkv), &mut grads.adapter);
    if let Some(g) = &mut g {
        norm_weight_grad(cpu, (&kept.x1, d), &kept.inverse1[..rows], (d_h, d), &mut g.attn_norm);
    }
    if needs_dx || full {
        norm_rows_back(cpu, rows, &kept.x1, &p.attn_norm, &kept.inverse1, d_h, dx);
    }
}

/// y = x Wᵀ + bias + adapters.
fn product(
    pass: &Pass<'_>,
    layer: usize,
    site: Site,
    bias: Option<&[f32]>,
    x: &[f32],
    y: &mut [f32],
    inner: &mut Buffer,
) {
    let (cpu, rows) = (pass.cpu, pass.rows());
    let w = pass.product(layer, site);
    let (k, n) = (w.n_inputs(), w.n_outputs());
    if let Some(bias) = bias {
        for row in y.chunks_mut(n).take(rows) {
            row.copy_from_slice(bias);
        }
    }
    let base = Term { x, ld: k, w };
    match pass.lora(layer, site) {
        None => linear(cpu, rows, &[base], y, n, bias.is_some()),
        Some(lora) => {
            let width = lora.a.n_outputs();
            let t = inner.reserve(rows * width);
            linear(cpu, rows, &[Term { x, ld: k, w: (&lora.a).into() }], t, width, false);
            scale(cpu.isa(), pass.lora_scale(), t);
            linear(cpu, rows, &[base, Term { x: t, ld: width, w: (&lora.b).into() }], y, n, bias.is_some());
        }
    }
}

/// The derivative of [`product`], and what it reuses between sites.
struct SiteBack<'a> {
    pass: &'a Pass<'a>,
    layer: usize,
    d_inner: &'a mut Buffer,
}

impl SiteBack<'_> {
    /// ∂/∂x, where wanted, and ∂/∂ the adapter's inner result, which [`SiteBack::weights`] needs.
    fn inputs(&mut self, site: Site, dy: &[f32], dx: Option<&mut [f32]>) {
        let (cpu, rows) = (self.pass.cpu, self.pass.rows());
        let w = self.pass.product(self.layer, site);
        let (k, n) = (w.n_inputs(), w.n_outputs());
        let base = Term { x: dy, ld: n, w };
        match self.pass.lora(self.layer, site) {
            None => {
                if let Some(dx) = dx {
                    linear_back(cpu, rows, &[base], dx, k, false);
                }
            }
            Some(lora) => {
                let width = lora.a.n_outputs();
                let dt = self.d_inner.reserve(rows * width);
                linear_back(cpu, rows, &[Term { x: dy, ld: n, w: (&lora.b).into() }], dt, width, false);
                scale(cpu.isa(), self.pass.lora_scale(), dt);
                if let Some(dx) = dx {
                    linear_back(cpu, rows, &[base, Term { x: dt, ld: width, w: (&lora.a).into() }], dx, k, false);
                }
            }
        }
    }

    /// Adds the gradients of the weights or of the adapter; called right after [`SiteBack::inputs`].
    fn weights(
        &mut self,
        site: Site,
        x: &[f32],
        inner: &[Buffer; 4],
        dy: &[f32],
        dw: Option<&mut Panels>,
        adapter: &mut Option<Adapter>,
    ) {
        let (cpu, rows) = (self.pass.cpu, self.pass.rows());
        let w = self.pass.product(self.layer, site);
        let (k, n) = (w.n_inputs(), w.n_outputs());
        if let Some(dw) = dw {
            weight_grad(cpu, rows, (x, k), (dy, n), dw);
        }
        if let Some(g) = adapter.as_mut().and_then(|a| a.at_mut(self.layer, site)) {
            let width = g.a.n_outputs();
            weight_grad(cpu, rows, (&inner[site as usize], width), (dy, n), &mut g.b);
            weight_grad(cpu, rows, (x, k), (self.d_inner, width), &mut g.a);
        }
    }
}

/// A half's output as it joins the stream: through its norm, in place, where the family has one.
fn after<'a>(
    pass: &Pass<'_>,
    norm: Option<&[f32]>,
    out: &'a mut [f32],
    raw: &mut Buffer,
    inverse: &mut Buffer,
) -> &'a [f32] {
    let Some(w) = norm else { return out };
    let (cpu, rows, d) = (pass.cpu, pass.rows(), w.len());
    let blocks = [(&mut *out, d), (raw.reserve(rows * d), d), (inverse.reserve(rows), 1)];
    cpu.each_rows(rows, GRAIN, blocks, |_, [out, raw, inverse]| {
        raw.copy_from_slice(out);
        inverse[0] = rms_norm(cpu.isa(), raw, w, pass.config.norm_epsilon, out);
    });
    out
}

/// The derivative of [`after`] by the half's output: `dx` itself, or through the norm.
fn leave<'a>(
    cpu: &Cpu,
    rows: usize,
    d: usize,
    grad: Option<&mut [f32]>,
    norm: Option<&[f32]>,
    (raw, inverse): (&Buffer, &Buffer),
    dx: &'a [f32],
    d_out: &'a mut Buffer,
) -> &'a [f32] {
    let Some(w) = norm else { return dx };
    if let Some(grad) = grad {
        norm_weight_grad(cpu, (raw, d), &inverse[..rows], (dx, d), grad);
    }
    let out = d_out.reserve(rows * d);
    cpu.each_row(rows, GRAIN, (&mut *out, d), |r, to| {
        let at = r * d..(r + 1) * d;
        rms_norm_back_into(cpu.isa(), &raw[at.clone()], w, inverse[r], &dx[at], to);
    });
    out
}

/// Adds a half's output, if any, to the stream, keeps the stream's rows, and norms them: one pass over memory.
fn norm_rows(
    pass: &Pass<'_>,
    out: Option<&[f32]>,
    w: &[f32],
    x: &mut [f32],
    kept: &mut [f32],
    h: &mut [f32],
    inverse: &mut [f32],
) {
    let (cpu, d) = (pass.cpu, w.len());
    let blocks = [(x, d), (kept, d), (h, d), (inverse, 1)];
    cpu.each_rows(pass.rows(), GRAIN, blocks, |r, [x, kept, h, inverse]| {
        if let Some(out) = out {
            add(cpu.isa(), &out[r * d..(r + 1) * d], x);
        }
        kept.copy_from_slice(x);
        inverse[0] = rms_norm(cpu.isa(), x, w, pass.config.norm_epsilon, h);
    });
}

/// The same bits as [`norm_rows`] once more, from the stored 1/rms.
fn renorm_rows(cpu: &Cpu, rows: usize, x: &[f32], w: &[f32], inverse: &[f32], out: &mut [f32]) {
    let d = w.len();
    cpu.each_row(rows, GRAIN, (out, d), |r, out| {
        for ((o, x), w) in out.iter_mut().zip(&x[r * d..]).zip(w) {
            *o = x * inverse[r] * w;
        }
    });
}

fn norm_rows_back(cpu: &Cpu, rows: usize, x: &[f32], w: &[f32], inverse: &[f32], dy: &[f32], dx: &mut [f32]) {
    let d = w.len();
    cpu.each_row(rows, GRAIN, (dx, d), |r, dx| {
        let at = r * d..(r + 1) * d;
        rms_norm_back(cpu.isa(), &x[at.clone()], w, inverse[r], &dy[at], dx);
    });
}

fn gate_rows(cpu: &Cpu, c: &Config, rows: usize, gate_up: &[f32], act: &mut [f32]) {
    let f = c.ffn;
    cpu.each_row(rows, GRAIN, (act, f), |r, act| {
        let (gate, up) = gate_up[r * 2 * f..(r + 1) * 2 * f].split_at(f);
        match c.gate {
            Gate::Silu => silu_gate(cpu.isa(), gate, up, act),
            Gate::Gelu => gelu_gate(cpu.isa(), gate, up, act),
        }
    });
}

/// The gate's result once more, and its derivative: one pass over what was kept.
fn gate_rows_back(
    cpu: &Cpu,
    c: &Config,
    rows: usize,
    gate_up: &[f32],
    d_act: &[f32],
    act: &mut [f32],
    d_gate_up: &mut [f32],
) {
    let f = c.ffn;
    cpu.each_rows(rows, GRAIN, [(act, f), (d_gate_up, 2 * f)], |r, [act, out]| {
        let (gate, up) = gate_up[r * 2 * f..(r + 1) * 2 * f].split_at(f);
        let dy = &d_act[r * f..(r + 1) * f];
        let (d_gate, d_up) = out.split_at_mut(f);
        match c.gate {
            Gate::Silu => silu_gate_back(cpu.isa(), gate, up, dy, act, d_gate, d_up),
            Gate::Gelu => gelu_gate_back(cpu.isa(), gate, up, dy, act, d_gate, d_up),
        }
    });
}

/// Turns every query and key head by its row's position; with `sign` −1 back again.
fn rotate_heads(pass: &Pass<'_>, layer: usize, heads: &Heads, qkv: &mut [f32], sign: f32) {
    let (cpu, table) = (pass.cpu, pass.rope(layer));
    let turned = (heads.n_q + heads.n_kv) * heads.dim;
    cpu.each_row(pass.rows(), GRAIN, (qkv, heads.width()), |r, row| {
        let (cos, sin) = table.at(pass.positions[r]);
        for head in row[..turned].chunks_mut(heads.dim) {
            rotate(cpu.isa(), head, cos, sin, sign);
        }
    });
}

/// The norm weight of a query or key head.
fn head_norm<'a>(p: &'a Layer, heads: &Heads, head: usize) -> &'a [f32] {
    let norm = if head < heads.n_q { &p.q_norm } else { &p.k_norm };
    norm.as_deref().expect("a family with head norms has their weights")
}

fn norm_heads(pass: &Pass<'_>, heads: &Heads, p: &Layer, qkv: &mut [f32], inverse: &mut [f32]) {
    let (cpu, n) = (pass.cpu, heads.n_q + heads.n_kv);
    cpu.each_rows(pass.rows(), GRAIN, [(qkv, heads.width()), (inverse, n)], |_, [row, inverse]| {
        let mut normed = vec![0.0; heads.dim];
        for (h, head) in row.chunks_mut(heads.dim).enumerate().take(n) {
            inverse[h] = rms_norm(cpu.isa(), head, head_norm(p, heads, h), pass.config.norm_epsilon, &mut normed);
            head.copy_from_slice(&normed);
        }
    });
}

fn norm_heads_back(
    pass: &Pass<'_>,
    heads: &Heads,
    p: &Layer,
    kept: &Kept,
    d_qkv: &mut [f32],
    grads: Option<&mut Layer>,
) {
    let (cpu, width, n) = (pass.cpu, heads.width(), heads.n_q + heads.n_kv);
    if let Some(g) = grads {
        // Few weights: one thread, rows in order, then heads.
        for r in 0..pass.rows() {
            for h in 0..n {
                let at = r * width + h * heads.dim;
                let (x, dy) = (&kept.raw[at..at + heads.dim], &d_qkv[at..at + heads.dim]);
                let dw = if h < heads.n_q { &mut g.q_norm } else { &mut g.k_norm };
                let dw = dw.as_deref_mut().expect("gradients have the weights' shape");
                tensor::rows::rms_norm_weight(cpu.isa(), x, kept.head_inverse[r * n + h], dy, dw);
            }
        }
    }
    cpu.each_row(pass.rows(), GRAIN, (d_qkv, width), |r, row| {
        let mut dx = vec![0.0; heads.dim];
        for (h, dy) in row.chunks_mut(heads.dim).enumerate().take(n) {
            let at = r * width + h * heads.dim;
            let x = &kept.raw[at..at + heads.dim];
            rms_norm_back_into(cpu.isa(), x, head_norm(p, heads, h), kept.head_inverse[r * n + h], dy, &mut dx);
            dy.copy_from_slice(&dx);
        }
    });
}
