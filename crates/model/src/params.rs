//! A decoder's weights in the layout the kernels use, and where each named tensor of a file lies in them.

use std::ops::Range;

use tensor::{Buffer, Cpu, HalfPanels, Panels, Part, Weights};

use crate::adapter::Site;

use crate::Config;

/// One layer's weights.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Norm before attention, `[D]`.
    pub attn_norm: Buffer,
    /// Queries, keys and values as one product.
    pub qkv: Panels,
    /// Their biases, where the family has them.
    pub qkv_bias: Option<Buffer>,
    /// Norm of each query head, `[head_dim]`.
    pub q_norm: Option<Buffer>,
    /// Norm of each key head, `[head_dim]`.
    pub k_norm: Option<Buffer>,
    /// Attention's output product.
    pub o: Panels,
    /// Norm after attention.
    pub post_attn_norm: Option<Buffer>,
    /// Norm before the feed-forward block, `[D]`.
    pub mlp_norm: Buffer,
    /// Gate and up as one product.
    pub gate_up: Panels,
    /// The feed-forward block's output product.
    pub down: Panels,
    /// Norm after the feed-forward block.
    pub post_mlp_norm: Option<Buffer>,
}

/// All weights; also the shape of their gradients and of the optimiser's moments.
#[derive(Debug, Clone)]
pub struct Params {
    /// `[V, D]`.
    pub embedding: Panels,
    /// `[V, D]`; absent when the head is the embedding.
    pub head: Option<Panels>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Norm before the head, `[D]`.
    pub final_norm: Buffer,
}

/// The products' weights rounded to bf16, for a policy whose products are bf16 × bf16; embeddings, norms and biases stay
/// f32.
#[derive(Debug, Clone)]
pub struct HalfParams {
    layers: Vec<[HalfPanels; 4]>,
    head: HalfPanels,
}

impl HalfParams {
    /// Rounds all products.
    pub fn of(cpu: &Cpu, params: &Params) -> HalfParams {
        let layer = |l: &Layer| Site::ALL.map(|site| HalfPanels::of(cpu, l.product(site)));
        HalfParams { layers: params.layers.iter().map(layer).collect(), head: HalfPanels::of(cpu, params.head()) }
    }

    /// Rounds anew after the weights moved.
    pub fn refresh(&mut self, cpu: &Cpu, params: &Params) {
        for (half, layer) in self.layers.iter_mut().zip(&params.layers) {
            for (half, site) in half.iter_mut().zip(Site::ALL) {
                half.refresh(cpu, layer.product(site));
            }
        }
        self.head.refresh(cpu, params.head());
    }
}

impl Layer {
    /// The weights of one of the four products.
    pub fn product(&self, site: Site) -> &Panels {
        match site {
            Site::Qkv => &self.qkv,
            Site::O => &self.o,
            Site::GateUp => &self.gate_up,
            Site::Down => &self.down,
        }
    }
}

/// A product's weights as they are used: rounded where there is a rounded copy.
pub(crate) fn product<'a>(params: &'a Params, half: Option<&'a HalfParams>, layer: usize, site: Site) -> Weights<'a> {
    match half {
        Some(half) => (&half.layers[layer][site as usize]).into(),
        None => params.layers[layer].product(site).into(),
    }
}

/// As [`product`], of the head.
pub(crate) fn head<'a>(params: &'a Params, half: Option<&'a HalfParams>) -> Weights<'a> {
    half.map_or_else(|| params.head().into(), |half| (&half.head).into())
}

/// Parts of the fused query/key/value product.
pub(crate) fn qkv_parts(c: &Config) -> Vec<Range<usize>> {
    let (q, kv) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    vec![0..q, q..q + kv, q + kv..q + 2 * kv]
}

/// Parts of the fused gate/up product.
pub(crate) fn gate_up_parts(c: &Config) -> Vec<Range<usize>> {
    vec![0..c.ffn, c.ffn..2 * c.ffn]
}

fn fused(parts: Vec<Range<usize>>, k: usize) -> Panels {
    Panels::with_parts(parts.into_iter().map(|outputs| Part { outputs, inputs: 0..k }).collect())
}

impl Params {
    /// Zeros of a configuration's shape.
    ///
    /// - Shapes: `separate_head` keeps a head even where it is tied: a gradient has two accumulators.
    pub fn zeroed(c: &Config, separate_head: bool) -> Params {
        let layer = || Layer {
            attn_norm: Buffer::zeroed(c.width),
            qkv: fused(qkv_parts(c), c.width),
            qkv_bias: c.qkv_bias.then(|| Buffer::zeroed(c.qkv_width())),
            q_norm: c.qk_norm.then(|| Buffer::zeroed(c.head_dim)),
            k_norm: c.qk_norm.then(|| Buffer::zeroed(c.head_dim)),
            o: Panels::zeroed(c.width, c.attention_width()),
            post_attn_norm: c.post_norms.then(|| Buffer::zeroed(c.width)),
            mlp_norm: Buffer::zeroed(c.width),
            gate_up: fused(gate_up_parts(c), c.width),
            down: Panels::zeroed(c.width, c.ffn),
            post_mlp_norm: c.post_norms.then(|| Buffer::zeroed(c.width)),
        };
        let table = || Panels::zeroed(c.vocabulary, c.width);
        Params {
            embedding: table(),
            head: (separate_head || !c.tied).then(table),
            layers: (0..c.n_layers).map(|_| layer()).collect(),
            final_norm: Buffer::zeroed(c.width),
        }
    }

    /// The head, which may be the embedding.
    pub fn head(&self) -> &Panels {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Every tensor's storage, in a fixed order, the head last.
    pub fn storage(&self) -> Vec<Storage<&[f32]>> {
        let (matrix, vector) = (Storage::Matrix, Storage::Vector);
        let mut all: Vec<Storage<&[f32]>> = vec![matrix(self.embedding.data()), vector(&self.final_norm)];
        for l in &self.layers {
            all.extend([&l.qkv, &l.o, &l.gate_up, &l.down].map(|p| matrix(p.data())));
            all.extend([vector(&l.attn_norm), vector(&l.mlp_norm)]);
            let optional = [&l.qkv_bias, &l.q_norm, &l.k_norm, &l.post_attn_norm, &l.post_mlp_norm];
            all.extend(optional.into_iter().flatten().map(|b| vector(b)));
        }
        all.extend(self.head.as_ref().map(|h| matrix(h.data())));
        all
    }

    /// As [`Params::storage`], to write.
    pub fn storage_mut(&mut self) -> Vec<Storage<&mut [f32]>> {
        let (matrix, vector) = (Storage::Matrix, Storage::Vector);
        let mut all: Vec<Storage<&mut [f32]>> = vec![matrix(self.embedding.data_mut()), vector(&mut self.final_norm)];
        for l in &mut self.layers {
            all.extend([&mut l.qkv, &mut l.o, &mut l.gate_up, &mut l.down].map(|p| matrix(p.data_mut())));
            all.extend([vector(&mut l.attn_norm), vector(&mut l.mlp_norm)]);
            let optional = [&mut l.qkv_bias, &mut l.q_norm, &mut l.k_norm, &mut l.post_attn_norm, &mut l.post_mlp_norm];
            all.extend(optional.into_iter().flatten().map(|b| vector(b)));
        }
        all.extend(self.head.as_mut().map(|h| matrix(h.data_mut())));
        all
    }

    /// Copies one tensor out, row by row.
    ///
    /// - Shapes: [`Slot::shape`].
    pub fn read(&self, c: &Config, slot: Slot) -> Vec<f32> {
        let shape = slot.shape(c);
        if shape.len() == 1 {
            let minus = if c.norm_plus_one && slot.is_norm() { 1.0 } else { 0.0 };
            return self.vector(slot, c).iter().map(|v| v - minus).collect();
        }
        let (panels, first) = self.matrix(slot, c);
        let mut out = vec![0.0; shape[0] * shape[1]];
        for (i, row) in out.chunks_mut(shape[1]).enumerate() {
            panels.row(first + i, row);
        }
        out
    }

    fn vector(&self, slot: Slot, c: &Config) -> &[f32] {
        let whole = match slot {
            Slot::FinalNorm => &self.final_norm,
            Slot::Layer(l, part) => {
                let l = &self.layers[l];
                match part {
                    In::AttnNorm => &l.attn_norm,
                    In::MlpNorm => &l.mlp_norm,
                    In::QNorm => l.q_norm.as_ref().expect("slots follow the configuration"),
                    In::KNorm => l.k_norm.as_ref().expect("slots follow the configuration"),
                    In::PostAttnNorm => l.post_attn_norm.as_ref().expect("slots follow the configuration"),
                    In::PostMlpNorm => l.post_mlp_norm.as_ref().expect("slots follow the configuration"),
                    _ => l.qkv_bias.as_ref().expect("slots follow the configuration"),
                }
            }
            Slot::Embedding | Slot::Head => unreachable!("tables are matrices"),
        };
        &whole[slot.outputs(c)]
    }

    /// Sets one tensor, row by row; the inverse of [`Params::read`].
    pub fn write(&mut self, c: &Config, slot: Slot, values: &[f32]) {
        let shape = slot.shape(c);
        if shape.len() == 1 {
            let plus = if c.norm_plus_one && slot.is_norm() { 1.0 } else { 0.0 };
            for (w, v) in self.vector_mut(slot, c).iter_mut().zip(values) {
                *w = v + plus;
            }
            return;
        }
        let (panels, first) = self.matrix_mut(slot, c);
        for (i, row) in values.chunks(shape[1]).enumerate() {
            panels.set_row(first + i, row);
        }
    }

    pub(crate) fn vector_mut(&mut self, slot: Slot, c: &Config) -> &mut [f32] {
        let whole = match slot {
            Slot::FinalNorm => &mut self.final_norm,
            Slot::Layer(l, part) => {
                let l = &mut self.layers[l];
                match part {
                    In::AttnNorm => &mut l.attn_norm,
                    In::MlpNorm => &mut l.mlp_norm,
                    In::QNorm => l.q_norm.as_mut().expect("slots follow the configuration"),
                    In::KNorm => l.k_norm.as_mut().expect("slots follow the configuration"),
                    In::PostAttnNorm => l.post_attn_norm.as_mut().expect("slots follow the configuration"),
                    In::PostMlpNorm => l.post_mlp_norm.as_mut().expect("slots follow the configuration"),
                    _ => l.qkv_bias.as_mut().expect("slots follow the configuration"),
                }
            }
            Slot::Embedding | Slot::Head => unreachable!("tables are matrices"),
        };
        &mut whole[slot.outputs(c)]
    }

    fn matrix(&self, slot: Slot, c: &Config) -> (&Panels, usize) {
        let first = slot.outputs(c).start;
        let panels = match slot {
            Slot::Embedding => &self.embedding,
            Slot::Head => self.head(),
            Slot::Layer(l, part) => match part {
                In::O => &self.layers[l].o,
                In::Gate | In::Up => &self.layers[l].gate_up,
                In::Down => &self.layers[l].down,
                _ => &self.layers[l].qkv,
            },
            Slot::FinalNorm => unreachable!("a norm is a vector"),
        };
        (panels, first)
    }

    pub(crate) fn matrix_mut(&mut self, slot: Slot, c: &Config) -> (&mut Panels, usize) {
        let first = slot.outputs(c).start;
        let panels = match slot {
            Slot::Embedding => &mut self.embedding,
            Slot::Head => self.head.as_mut().expect("a tied head is never written by itself"),
            Slot::Layer(l, part) => match part {
                In::O => &mut self.layers[l].o,
                In::Gate | In::Up => &mut self.layers[l].gate_up,
                In::Down => &mut self.layers[l].down,
                _ => &mut self.layers[l].qkv,
            },
            Slot::FinalNorm => unreachable!("a norm is a vector"),
        };
        (panels, first)
    }
}

/// A tensor's storage, told apart by whether weight decay applies to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Storage<T> {
    /// A product's or table's weights.
    Matrix(T),
    /// A norm's weights or biases.
    Vector(T),
}

impl<T> Storage<T> {
    /// The storage itself.
    pub fn into_inner(self) -> T {
        match self {
            Storage::Matrix(t) | Storage::Vector(t) => t,
        }
    }
}

/// A tensor as files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// The embedding table.
    Embedding,
    /// The head, where it is its own.
    Head,
    /// Norm before the head.
    FinalNorm,
    /// Something in a layer.
    Layer(usize, In),
}

/// A tensor in a layer.
#[allow(missing_docs, reason = "the names are the documentation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum In {
    AttnNorm,
    Q,
    K,
    V,
    QBias,
    KBias,
    VBias,
    QNorm,
    KNorm,
    O,
    PostAttnNorm,
    MlpNorm,
    Gate,
    Up,
    Down,
    PostMlpNorm,
}

impl Slot {
    /// Every tensor of a configuration.
    pub fn all(c: &Config) -> Vec<Slot> {
        let mut all = vec![Slot::Embedding];
        for l in 0..c.n_layers {
            let mut add = |parts: &[In]| all.extend(parts.iter().map(|p| Slot::Layer(l, *p)));
            add(&[In::AttnNorm, In::Q, In::K, In::V, In::O, In::MlpNorm, In::Gate, In::Up, In::Down]);
            if c.qkv_bias {
                add(&[In::QBias, In::KBias, In::VBias]);
            }
            if c.qk_norm {
                add(&[In::QNorm, In::KNorm]);
            }
            if c.post_norms {
                add(&[In::PostAttnNorm, In::PostMlpNorm]);
            }
        }
        all.push(Slot::FinalNorm);
        if !c.tied {
            all.push(Slot::Head);
        }
        all
    }

    /// Whether it is a norm's weight.
    pub fn is_norm(self) -> bool {
        use In::*;
        match self {
            Slot::FinalNorm => true,
            Slot::Layer(_, p) => matches!(p, AttnNorm | MlpNorm | QNorm | KNorm | PostAttnNorm | PostMlpNorm),
            Slot::Embedding | Slot::Head => false,
        }
    }

    /// Its place among the outputs of the product or vector it is part of.
    pub fn outputs(self, c: &Config) -> Range<usize> {
        let [q, k, v] = qkv_parts(c).try_into().expect("three parts");
        let [gate, up] = gate_up_parts(c).try_into().expect("two parts");
        match self {
            Slot::Embedding | Slot::Head => 0..c.vocabulary,
            Slot::FinalNorm => 0..c.width,
            Slot::Layer(_, part) => match part {
                In::Q | In::QBias => q,
                In::K | In::KBias => k,
                In::V | In::VBias => v,
                In::Gate => gate,
                In::Up => up,
                In::QNorm | In::KNorm => 0..c.head_dim,
                In::O | In::Down | In::AttnNorm | In::MlpNorm | In::PostAttnNorm | In::PostMlpNorm => 0..c.width,
            },
        }
    }

    /// Its shape, outermost dimension first.
    pub fn shape(self, c: &Config) -> Vec<usize> {
        let n = self.outputs(c).len();
        match self {
            Slot::Embedding | Slot::Head => vec![n, c.width],
            Slot::Layer(_, In::Q | In::K | In::V | In::Gate | In::Up) => vec![n, c.width],
            Slot::Layer(_, In::O) => vec![n, c.attention_width()],
            Slot::Layer(_, In::Down) => vec![n, c.ffn],
            _ => vec![n],
        }
    }

    /// Its name in a Hugging Face folder.
    pub fn hf_name(self, c: &Config) -> String {
        let (l, part) = match self {
            Slot::Embedding => return "model.embed_tokens.weight".to_owned(),
            Slot::Head => return "lm_head.weight".to_owned(),
            Slot::FinalNorm => return "model.norm.weight".to_owned(),
            Slot::Layer(l, part) => (l, part),
        };
        let name = match part {
            In::AttnNorm => "input_layernorm.weight",
            In::Q => "self_attn.q_proj.weight",
            In::K => "self_attn.k_proj.weight",
            In::V => "self_attn.v_proj.weight",
            In::QBias => "self_attn.q_proj.bias",
            In::KBias => "self_attn.k_proj.bias",
            In::VBias => "self_attn.v_proj.bias",
            In::QNorm => "self_attn.q_norm.weight",
            In::KNorm => "self_attn.k_norm.weight",
            In::O => "self_attn.o_proj.weight",
            // Families without norms after each half name the one before the feed-forward block after its place.
            In::PostAttnNorm => "post_attention_layernorm.weight",
            In::MlpNorm if c.post_norms => "pre_feedforward_layernorm.weight",
            In::MlpNorm => "post_attention_layernorm.weight",
            In::Gate => "mlp.gate_proj.weight",
            In::Up => "mlp.up_proj.weight",
            In::Down => "mlp.down_proj.weight",
            In::PostMlpNorm => "post_feedforward_layernorm.weight",
        };
        format!("model.layers.{l}.{name}")
    }

    /// Its name in a GGUF file.
    pub fn gguf_name(self) -> String {
        let (l, part) = match self {
            Slot::Embedding => return "token_embd.weight".to_owned(),
            Slot::Head => return "output.weight".to_owned(),
            Slot::FinalNorm => return "output_norm.weight".to_owned(),
            Slot::Layer(l, part) => (l, part),
        };
        let name = match part {
            In::AttnNorm => "attn_norm.weight",
            In::Q => "attn_q.weight",
            In::K => "attn_k.weight",
            In::V => "attn_v.weight",
            In::QBias => "attn_q.bias",
            In::KBias => "attn_k.bias",
            In::VBias => "attn_v.bias",
            In::QNorm => "attn_q_norm.weight",
            In::KNorm => "attn_k_norm.weight",
            In::O => "attn_output.weight",
            In::PostAttnNorm => "post_attention_norm.weight",
            In::MlpNorm => "ffn_norm.weight",
            In::Gate => "ffn_gate.weight",
            In::Up => "ffn_up.weight",
            In::Down => "ffn_down.weight",
            In::PostMlpNorm => "post_ffw_norm.weight",
        };
        format!("blk.{l}.{name}")
    }
}
