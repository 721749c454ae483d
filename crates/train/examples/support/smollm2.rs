//! The shape of SmolLM2-135M with random weights, for measuring without the model.

use episode::random::Stream;
use model::config::Gate;
use model::params::Slot;
use model::rope::Rope;
use model::{Config, Params};

/// SmolLM2-135M with that many layers.
pub(crate) fn shape(n_layers: usize) -> Config {
    Config {
        family: "llama",
        vocabulary: 49_152,
        width: 576,
        n_layers,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        norm_epsilon: 1e-5,
        context: 8192,
        tied: true,
        rope: Rope::plain(100_000.0),
        local_rope: None,
        window: None,
        local: vec![false; n_layers],
        qkv_bias: false,
        qk_norm: false,
        post_norms: false,
        norm_plus_one: false,
        gate: Gate::Silu,
        embedding_scale: 1.0,
        attention_scale: 0.125,
    }
}

/// Random weights, the same every time.
pub(crate) fn random(config: Config) -> (Config, Params) {
    let mut params = Params::zeroed(&config, false);
    for (index, slot) in Slot::all(&config).into_iter().enumerate() {
        let stream = Stream::new("bench", &[index as u64]);
        let draw = |i: usize| ((stream.uniform(i as u64) - 0.5) * 0.07) as f32;
        match slot {
            // Row by row: a second copy of the table would count into the peak memory.
            Slot::Embedding => {
                for row in 0..config.vocabulary {
                    let values: Vec<f32> = (0..config.width).map(|i| draw(row * config.width + i)).collect();
                    params.embedding.set_row(row, &values);
                }
            }
            _ => {
                let n = slot.shape(&config).iter().product();
                let values: Vec<f32> = (0..n).map(|i| if slot.is_norm() { 1.0 } else { draw(i) }).collect();
                params.write(&config, slot, &values);
            }
        }
    }
    (config, params)
}
