//! What a run will cost on this machine, before it starts.

use std::time::Instant;

use model::Config;
use serde::Serialize;
use tensor::gemm::linear;
use tensor::{Cpu, Panels, Term};
use train::Trainable;

use crate::Settings;

/// Share of the measured product speed that a whole pass reaches; the rest goes into attention, norms and drawing.
const EFFICIENCY: f64 = 0.75;

/// What a run will cost, at most: every attempt is counted as long as it may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Seconds a step.
    pub step_s: f64,
    /// Seconds an evaluation.
    pub eval_s: f64,
    /// Seconds altogether.
    pub total_s: f64,
    /// Memory, in mebibytes.
    pub memory_mib: f64,
    /// Sampled tokens altogether.
    pub n_tokens: u64,
    /// What this machine's products reached, in GFLOP/s.
    pub gflops: f64,
}

/// Measures this machine's product speed for a fraction of a second.
pub fn measure(cpu: &Cpu) -> f64 {
    const ROWS: usize = 96;
    let (n, k) = (1536, 576);
    let w = Panels::zeroed(n, k);
    let (x, mut y) = (vec![0.5; ROWS * k], vec![0.0; ROWS * n]);
    let mut best = 0.0_f64;
    for _ in 0..12 {
        let start = Instant::now();
        linear(cpu, ROWS, &[Term { x: &x, ld: k, w: (&w).into() }], &mut y, n, false);
        best = best.max(2.0 * (ROWS * n * k) as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// Estimates a run from its settings, the model and the length of a prompt.
pub fn estimate(settings: &Settings, config: &Config, n_prompt: usize, n_held_out: usize, gflops: f64) -> Estimate {
    let (b, s) = (&settings.batch, &settings.sampling);
    let head = (config.vocabulary * config.width) as f64;
    let layers = (config.n_weights() - config.vocabulary * config.width * if config.tied { 1 } else { 2 }) as f64;
    let attempts = (b.tasks * b.group_size) as f64;
    let sampled = attempts * s.max_tokens as f64;
    let rows = (b.tasks * n_prompt) as f64 + sampled;
    // A multiply and an add a weight and row.
    let pass = 2.0 * (rows * layers + sampled * head);
    let passes = match settings.train {
        Trainable::Full {} => 4.0,
        Trainable::Lora { .. } | Trainable::Frozen {} => 3.0,
    };
    let rate = gflops * 1e9 * EFFICIENCY;
    let step_s = pass * passes / rate;
    let tried = (n_held_out * settings.eval.attempts) as f64 * s.max_tokens as f64;
    let read = (n_held_out * n_prompt) as f64;
    let eval_s = 2.0 * ((tried + read) * layers + tried * head) / rate;
    let n_evals = if settings.eval.tasks == 0 {
        0
    } else {
        2 + settings.eval.baseline.len() as u64 + settings.steps.checked_div(settings.eval.every).unwrap_or(0)
    };
    Estimate {
        step_s,
        eval_s,
        total_s: step_s * settings.steps as f64 + eval_s * n_evals as f64,
        memory_mib: memory(settings, config, n_prompt) / (1 << 20) as f64,
        n_tokens: settings.steps * sampled as u64,
        gflops,
    }
}

/// Bytes: weights, what learns with its gradient and moments, activations of a micro-batch, logits, keys and values.
fn memory(settings: &Settings, config: &Config, n_prompt: usize) -> f64 {
    let float = size_of::<f32>() as f64;
    let weights = config.n_weights() as f64;
    let head = (config.vocabulary * config.width) as f64;
    let learning = match &settings.train {
        Trainable::Frozen {} => 0.0,
        // Gradient, two moments, and the head's own accumulator where it is tied.
        Trainable::Full {} => 3.0 * weights + if config.tied { head } else { 0.0 },
        Trainable::Lora { rank, .. } => {
            // Every linear layer's inputs and outputs: q, k, v, o, gate, up, down.
            let sides = config.qkv_width() + 7 * config.width + config.attention_width() + 3 * config.ffn;
            4.0 * (config.n_layers * rank * sides) as f64
        }
    };
    let a_row = 4 * config.width + config.qkv_width() + config.attention_width() + 2 * config.ffn;
    let a_group = n_prompt + settings.batch.group_size * settings.sampling.max_tokens;
    let rows = settings.engine.micro_batch_rows.max(a_group) as f64;
    let activations = rows * (config.n_layers * a_row) as f64;
    let logits = (config.vocabulary
        * settings.engine.batch.max(settings.batch.group_size * settings.sampling.max_tokens).min(512))
        as f64;
    let position = (config.n_layers * 2 * config.n_kv_heads * config.head_dim) as f64;
    let open = settings.engine.batch.min(settings.batch.tasks * settings.batch.group_size);
    let cache = position * (open * (n_prompt + settings.sampling.max_tokens).next_multiple_of(32)) as f64;
    float * (weights + learning + activations + logits + cache)
}
