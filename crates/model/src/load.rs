//! Reading a model: a Hugging Face folder or a GGUF file becomes a configuration and weights.

use std::path::Path;

use serde_json::Value;
use tensor::weights::{Gguf, TensorSource, Weights};

use crate::arch;
use crate::params::{In, Slot};
use crate::{Config, ModelError, Params};

/// Rows read at once: enough to amortise the call, little enough to stay in cache.
const ROWS: usize = 64;

/// Reads a model's configuration and weights.
///
/// - Holds: the same weights give the same bits from either kind of file.
/// - Errors: a file that is missing, damaged, of an unknown family, with a tensor missing, of another shape or not
///   expected, or with a weight that is not finite.
pub fn load(path: &Path) -> Result<(Config, Params), ModelError> {
    let weights = Weights::open(path)?;
    let config = config_of(path, &weights)?;
    let source = weights.tensors();
    let gguf = matches!(weights, Weights::Gguf(_));
    let name = |slot: Slot| if gguf { slot.gguf_name() } else { slot.hf_name(&config) };
    check_names(&config, source, gguf, &name)?;
    let pairs = gguf && arch::of(&config).gguf_pairs;
    let mut params = Params::zeroed(&config, false);
    for slot in Slot::all(&config) {
        read_slot(&config, source, &name(slot), slot, pairs, &mut params)?;
    }
    Ok((config, params))
}

/// Reads a model's configuration alone.
pub fn load_config(path: &Path) -> Result<Config, ModelError> {
    config_of(path, &Weights::open(path)?)
}

fn config_of(path: &Path, weights: &Weights) -> Result<Config, ModelError> {
    match weights {
        Weights::Gguf(gguf) => gguf_config(gguf),
        Weights::Safetensors(_) => {
            let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
            let file = folder.join("config.json");
            let bytes = std::fs::read(&file).map_err(|source| ModelError::Io { path: file.clone(), source })?;
            let json: Value = serde_json::from_slice(&bytes)
                .map_err(|e| ModelError::Json { path: file.clone(), reason: e.to_string() })?;
            arch::from_hf(&json)
        }
    }
}

fn gguf_config(gguf: &Gguf) -> Result<Config, ModelError> {
    let vocabulary = gguf.shape(&Slot::Embedding.gguf_name())?.first().copied().unwrap_or(0);
    let tied = !gguf.has(&Slot::Head.gguf_name());
    let mut config = arch::from_gguf(gguf.metadata(), tied, vocabulary)?;
    if gguf.has(ROPE_FACTORS) {
        let mut factors = vec![0.0; gguf.shape(ROPE_FACTORS)?.iter().product()];
        if factors.len() != config.head_dim / 2 {
            let (needed, got) = (format!("[{}]", config.head_dim / 2), format!("[{}]", factors.len()));
            return Err(ModelError::Tensor { tensor: ROPE_FACTORS.to_owned(), needed, got });
        }
        gguf.read_f32(ROPE_FACTORS, &mut factors)?;
        config.rope.factors = Some(factors);
    }
    Ok(config)
}

pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

fn check_names(
    config: &Config,
    source: &dyn TensorSource,
    gguf: bool,
    name: &dyn Fn(Slot) -> String,
) -> Result<(), ModelError> {
    let mut expected = Vec::new();
    for slot in Slot::all(config) {
        let name = name(slot);
        let needed = slot.shape(config);
        let got = source.shape(&name)?;
        if got != needed {
            let (needed, got) = (format!("shape {needed:?}"), format!("shape {got:?}"));
            return Err(ModelError::Tensor { tensor: name, needed, got });
        }
        expected.push(name);
    }
    // A tied head may be stored once more; tables of frequencies are derived from the configuration.
    let spare = |n: &str| {
        (gguf && n == ROPE_FACTORS) || (config.tied && n == "lm_head.weight") || n.ends_with("rotary_emb.inv_freq")
    };
    match source.names().into_iter().find(|n| !expected.iter().any(|e| e == n) && !spare(n)) {
        None => Ok(()),
        Some(extra) => Err(ModelError::Tensor {
            tensor: extra.to_owned(),
            needed: format!("nothing of that name in family `{}`", config.family),
            got: format!("shape {:?}", source.shape(extra)?),
        }),
    }
}

fn read_slot(
    c: &Config,
    source: &dyn TensorSource,
    name: &str,
    slot: Slot,
    pairs: bool,
    params: &mut Params,
) -> Result<(), ModelError> {
    let shape = slot.shape(c);
    if shape.len() == 1 {
        let out = params.vector_mut(slot, c);
        source.read_f32(name, out)?;
        if c.norm_plus_one && slot.is_norm() {
            out.iter_mut().for_each(|w| *w += 1.0);
        }
        return Ok(());
    }
    let (n, k) = (shape[0], shape[1]);
    let (panels, first) = params.matrix_mut(slot, c);
    let mut rows = vec![0.0; ROWS * k];
    for start in (0..n).step_by(ROWS) {
        let len = ROWS.min(n - start);
        source.read_rows_f32(name, start..start + len, &mut rows[..len * k])?;
        for (i, row) in rows[..len * k].chunks(k).enumerate() {
            panels.set_row(first + unpaired(slot, c, pairs, start + i), row);
        }
    }
    Ok(())
}

/// Where a stored query or key row belongs: files with neighbouring pairs hold a head's rows as 0, n/2, 1, n/2 + 1, …
pub(crate) fn unpaired(slot: Slot, c: &Config, pairs: bool, row: usize) -> usize {
    if !pairs || !matches!(slot, Slot::Layer(_, In::Q | In::K)) {
        return row;
    }
    let (head, within) = (row / c.head_dim, row % c.head_dim);
    head * c.head_dim + (within % 2) * (c.head_dim / 2) + within / 2
}
