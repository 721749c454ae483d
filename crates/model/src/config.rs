//! What a decoder computes, whatever file it came from.

use tensor::attention::Heads;

use crate::rope::Rope;

/// The gate of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// silu(gate) · up
    Silu,
    /// gelu(gate) · up, in the tanh form.
    Gelu,
}

/// A decoder's description.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family's name, as in [`crate::arch::names`].
    pub family: &'static str,
    /// Vocabulary size V.
    pub vocabulary: usize,
    /// Width D.
    pub width: usize,
    /// Number of layers L.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Feed-forward width F.
    pub ffn: usize,
    /// Added to the mean square in norms.
    pub norm_epsilon: f32,
    /// The longest sequence.
    pub context: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Position rotation of global layers.
    pub rope: Rope,
    /// Position rotation of local layers, where they differ.
    pub local_rope: Option<Rope>,
    /// Keys a local layer sees.
    pub window: Option<usize>,
    /// Which layers are local, `[L]`.
    pub local: Vec<bool>,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Queries and keys are normalised by head.
    pub qk_norm: bool,
    /// Norms after attention and after the feed-forward block.
    pub post_norms: bool,
    /// Stored norm weights are offsets from 1.
    pub norm_plus_one: bool,
    /// The feed-forward gate.
    pub gate: Gate,
    /// What embeddings are multiplied with.
    pub embedding_scale: f32,
    /// What attention scores are multiplied with.
    pub attention_scale: f32,
}

impl Config {
    /// The shape of a layer's attention.
    pub fn heads(&self, layer: usize) -> Heads {
        Heads {
            n_q: self.n_heads,
            n_kv: self.n_kv_heads,
            dim: self.head_dim,
            scale: self.attention_scale,
            window: if self.local[layer] { self.window } else { None },
        }
    }

    /// Width of a row of attention outputs.
    pub fn attention_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of a row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Number of weights, a tied table counted once.
    pub fn n_weights(&self) -> usize {
        let norms = 2 * self.width
            + if self.qk_norm { 2 * self.head_dim } else { 0 }
            + if self.post_norms { 2 * self.width } else { 0 };
        let bias = if self.qkv_bias { self.qkv_width() } else { 0 };
        let layer = self.qkv_width() * self.width
            + bias
            + self.width * self.attention_width()
            + 3 * self.ffn * self.width
            + norms;
        let tables = if self.tied { 1 } else { 2 };
        self.n_layers * layer + tables * self.vocabulary * self.width + self.width
    }
}
