//! A policy's weights as the files of other programs hold them: adapter merged, tensors named and laid out their way.
//!
//! What a format cannot say is refused: every description is read back with our own reader before a weight is written, and
//! must give the configuration it was made from.

mod gguf;
mod hf;
mod merge;
#[cfg(test)]
mod tests;

pub use gguf::{gguf_metadata, write_gguf};
pub use hf::{hf_config, write_hf};
pub use merge::Merged;

use crate::rope::{Rope, Scaling};
use crate::{Config, ModelError};

/// How far a frequency may move, relatively: the formats keep settings and divisors as f32.
const FREQUENCY: f64 = 2.5e-7;

/// Refuses a format whose description, read back as `read`, is not the configuration.
///
/// Whether norms are stored as offsets from 1 is the format's own affair, and so not compared.
fn must_agree(c: &Config, read: &Config, format: &str) -> Result<(), ModelError> {
    let heads = |c: &Config| format!("{} and {}", c.n_heads, c.n_kv_heads);
    let flag = |on: bool| if on { "on" } else { "off" }.to_owned();
    let layers = |c: &Config| c.local.iter().map(|l| if *l { 'l' } else { 'g' }).collect::<String>();
    type Show<'a> = &'a dyn Fn(&Config) -> String;
    let all: [(&str, Show<'_>); 17] = [
        ("family", &|c| c.family.to_owned()),
        ("vocabulary", &|c| c.vocabulary.to_string()),
        ("width", &|c| c.width.to_string()),
        ("n_layers", &|c| c.n_layers.to_string()),
        ("n_heads and n_kv_heads", &heads),
        ("head_dim", &|c| c.head_dim.to_string()),
        ("ffn", &|c| c.ffn.to_string()),
        ("norm_epsilon", &|c| c.norm_epsilon.to_string()),
        ("context", &|c| c.context.to_string()),
        ("tied", &|c| flag(c.tied)),
        ("window", &|c| c.window.map_or_else(|| "none".to_owned(), |w| w.to_string())),
        ("local", &layers),
        ("qkv_bias", &|c| flag(c.qkv_bias)),
        ("qk_norm", &|c| flag(c.qk_norm)),
        ("post_norms", &|c| flag(c.post_norms)),
        ("embedding_scale", &|c| c.embedding_scale.to_string()),
        ("attention_scale", &|c| c.attention_scale.to_string()),
    ];
    let differs = |field: &str, got: String, read: String| {
        let needed = format!("what {format} can say, where it would be read back as `{read}`");
        ModelError::Field { field: field.to_owned(), needed, got }
    };
    for (field, value) in all {
        let (got, read) = (value(c), value(read));
        if got != read {
            return Err(differs(field, got, read));
        }
    }
    if c.gate != read.gate {
        return Err(differs("gate", gate(c), gate(read)));
    }
    fn local(c: &Config) -> &Rope {
        c.local_rope.as_ref().unwrap_or(&c.rope)
    }
    for (field, a, b) in [("rope", &c.rope, &read.rope), ("local_rope", local(c), local(read))] {
        if !same_rope(a, b, c.head_dim) {
            let show = |r: &Rope| format!("{} over base {}", scaling_name(&r.scaling), r.theta);
            return Err(differs(field, show(a), show(b)));
        }
    }
    Ok(())
}

fn gate(c: &Config) -> String {
    match c.gate {
        crate::config::Gate::Silu => "silu",
        crate::config::Gate::Gelu => "gelu",
    }
    .to_owned()
}

fn same_rope(a: &Rope, b: &Rope, head_dim: usize) -> bool {
    let ((a, a_size), (b, b_size)) = (a.frequencies(head_dim), b.frequencies(head_dim));
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= FREQUENCY * a.abs();
    a.iter().zip(&b).all(near) && near((&a_size, &b_size))
}

fn scaling_name(scaling: &Scaling) -> &'static str {
    match scaling {
        Scaling::None => "no scaling",
        Scaling::Linear { .. } => "linear scaling",
        Scaling::Llama3 { .. } => "llama3 scaling",
        Scaling::Yarn { .. } => "yarn scaling",
    }
}
