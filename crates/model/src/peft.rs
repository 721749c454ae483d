//! Adapters in PEFT's folder layout: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use tensor::weights::{OutTensor, Safetensors, TensorSource, write_safetensors};

use crate::adapter::{Adapter, Target};
use crate::{Config, ModelError};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Settings of PEFT that change what an adapter computes, each with the one value this engine computes.
const NEUTRAL: [(&str, &[Value]); 9] = [
    ("use_rslora", &[Value::Bool(false)]),
    ("use_dora", &[Value::Bool(false)]),
    ("use_qalora", &[Value::Bool(false)]),
    ("fan_in_fan_out", &[Value::Bool(false)]),
    ("lora_bias", &[Value::Bool(false)]),
    ("modules_to_save", &[]),
    ("layers_to_transform", &[]),
    ("trainable_token_indices", &[]),
    ("target_parameters", &[]),
];

fn tensor_name(layer: usize, target: Target, half: char) -> String {
    format!("base_model.model.model.layers.{layer}.{}.{}.lora_{half}.weight", target.block(), target.name())
}

/// Reads an adapter.
///
/// - Errors: a setting this engine does not compute, a tensor that matches no linear layer or is missing for some layers, a
///   wrong shape; an adapter that matches nothing.
pub fn load(folder: &Path, c: &Config) -> Result<Adapter, ModelError> {
    let file = folder.join(CONFIG);
    let bytes = std::fs::read(&file).map_err(|source| ModelError::Io { path: file.clone(), source })?;
    let json: Value =
        serde_json::from_slice(&bytes).map_err(|e| ModelError::Json { path: file.clone(), reason: e.to_string() })?;
    let (rank, alpha) = check(&json)?;
    let source = Safetensors::open(&folder.join(WEIGHTS))?;
    let names = source.names();
    let targets: Vec<Target> = Target::ALL
        .into_iter()
        .filter(|t| (0..c.n_layers).any(|l| names.contains(&&*tensor_name(l, *t, 'A'))))
        .collect();
    if targets.is_empty() {
        let known = Target::ALL.map(Target::name).join("`, `");
        let reason = format!("none of its {} tensors belongs to one of `{known}` of this model", names.len());
        return Err(ModelError::Adapter(reason));
    }
    let mut adapter = Adapter::zeroed(c, rank, alpha, &targets)?;
    let mut read = Vec::new();
    for layer in 0..c.n_layers {
        for target in &targets {
            for (half, needed) in [('A', adapter.a_shape(c, *target)), ('B', adapter.b_shape(c, *target))] {
                let name = tensor_name(layer, *target, half);
                let got = source.shape(&name)?;
                if got != needed {
                    let (needed, got) = (format!("shape {needed:?}"), format!("shape {got:?}"));
                    return Err(ModelError::Tensor { tensor: name, needed, got });
                }
                let mut values = vec![0.0; needed[0] * needed[1]];
                source.read_f32(&name, &mut values)?;
                if half == 'A' {
                    adapter.write_a(layer, *target, &values);
                } else {
                    adapter.write_b(layer, *target, &values);
                }
                read.push(name);
            }
        }
    }
    match names.iter().find(|n| !read.iter().any(|r| r == *n)) {
        None => Ok(adapter),
        Some(extra) => Err(ModelError::Adapter(format!("tensor `{extra}` matches no linear layer of this model"))),
    }
}

fn check(json: &Value) -> Result<(usize, f32), ModelError> {
    let bad = |key: &str, needed: &str, got: &Value| ModelError::Field {
        field: key.to_owned(),
        needed: needed.to_owned(),
        got: got.to_string(),
    };
    let kind = &json["peft_type"];
    if kind != "LORA" {
        return Err(bad("peft_type", "`LORA`", kind));
    }
    if !matches!(json.get("bias"), None | Some(Value::Null)) && json["bias"] != "none" {
        return Err(bad("bias", "`none`", &json["bias"]));
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        let empty = json.get(key).and_then(Value::as_object).is_none_or(|m| m.is_empty());
        if !empty {
            return Err(bad(key, "an empty object", &json[key]));
        }
    }
    for (key, neutral) in NEUTRAL {
        match json.get(key) {
            None | Some(Value::Null) => {}
            Some(value) if neutral.contains(value) => {}
            Some(value) => {
                let needed = neutral.first().map_or_else(|| "nothing".to_owned(), Value::to_string);
                return Err(bad(key, &needed, value));
            }
        }
    }
    let rank = json["r"].as_u64().and_then(|r| usize::try_from(r).ok());
    let alpha = json["lora_alpha"].as_f64();
    let rank = rank.ok_or_else(|| bad("r", "a whole number", &json["r"]))?;
    let alpha = alpha.ok_or_else(|| bad("lora_alpha", "a number", &json["lora_alpha"]))?;
    Ok((rank, alpha as f32))
}

/// Writes an adapter into an existing folder.
///
/// - Holds: the bytes depend on the adapter and `base` alone.
pub fn save(folder: &Path, c: &Config, adapter: &Adapter, base: &str) -> Result<(), ModelError> {
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "use_rslora": false,
        "use_dora": false,
        "target_modules": adapter.targets.iter().map(|t| t.name()).collect::<Vec<_>>(),
    });
    let path = folder.join(CONFIG);
    let text = serde_json::to_vec_pretty(&config).expect("a JSON value always serialises");
    std::fs::write(&path, text).map_err(|source| ModelError::Io { path, source })?;
    let path = folder.join(WEIGHTS);
    let failed = |source| ModelError::Io { path: path.clone(), source };
    let mut out = BufWriter::new(File::create(&path).map_err(failed)?);
    let mut tensors = Vec::new();
    for layer in 0..c.n_layers {
        for target in adapter.targets.iter().copied() {
            let (a, b) = (adapter.a_shape(c, target), adapter.b_shape(c, target));
            tensors.push(OutTensor::made(tensor_name(layer, target, 'A'), a.to_vec(), move || {
                adapter.read_a(layer, target).into()
            }));
            tensors.push(OutTensor::made(tensor_name(layer, target, 'B'), b.to_vec(), move || {
                adapter.read_b(layer, target).into()
            }));
        }
    }
    write_safetensors(&path, &mut out, tensors, &BTreeMap::from([("format".to_owned(), "pt".to_owned())]))?;
    out.flush().map_err(failed)
}
