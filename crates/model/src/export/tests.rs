//! Tests of merging and of both formats; the tiny models are those of the golden tests.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use tensor::weights::{Safetensors, Store, TensorSource};
use tensor::{Cpu, Isa};

use super::*;
use crate::cache::{Cache, Sequence};
use crate::infer::{Infer, Row};
use crate::params::{In, Slot};
use crate::rope::Scaling;
use crate::{Adapter, Params, Target, arch, peft};

const FAMILIES: [&str; 8] =
    ["llama", "llama_linear", "smollm2", "qwen2", "qwen2_yarn", "qwen3", "gemma3", "gemma3_linear"];

/// How far logits of merged and unmerged weights may lie apart, relative to the largest: the rounding of f32 sums.
const LOGITS: f32 = 4e-6;

fn golden(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(family)
}

fn cpu() -> Cpu {
    Cpu::new(Isa::best(), 2).unwrap()
}

fn open(family: &str) -> (Config, Params, Adapter) {
    let (config, params) = crate::load(&golden(family)).unwrap();
    let adapter = peft::load(&golden(family).join("adapter"), &config).unwrap();
    (config, params, adapter)
}

/// Gemma with what GGUF takes for granted: every sixth layer global, scores scaled by the head's width.
fn plain_gemma(family: &str) -> (Config, Params, Adapter) {
    let (mut config, params, adapter) = open(family);
    config.local.fill(true);
    config.attention_scale = (1.0 / (config.head_dim as f64).sqrt()) as f32;
    (config, params, adapter)
}

fn logits(config: &Config, params: &Params, adapter: Option<&Adapter>) -> Vec<f32> {
    let tokens = [5, 9, 11, 2, 7, 30, 22, 41, 1, 8, 13, 4];
    let rows: Vec<Row> = tokens.iter().map(|t| Row { token: *t, sequence: 0, wanted: true }).collect();
    let (mut cache, mut sequence) = (Cache::new(config, 4), Sequence::default());
    let mut infer = Infer::new(config);
    infer.step(&cpu(), config, (params, None), adapter, &mut cache, &mut [&mut sequence], &rows).unwrap().to_vec()
}

fn far(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0_f32, |m, (a, b)| m.max((a - b).abs())) / size
}

fn write(path: &Path, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), ModelError>) -> Result<(), ModelError> {
    let mut bytes = Vec::new();
    fill(&mut bytes)?;
    std::fs::write(path, bytes).unwrap();
    Ok(())
}

fn to_hf(folder: &Path, config: &Config, params: &Params, adapter: Option<&Adapter>) -> Result<(), ModelError> {
    let cpu = cpu();
    let merged = Merged::new(&cpu, config, params, adapter)?;
    let json = hf_config(config)?;
    std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let path = folder.join("model.safetensors");
    write(&path, |out| write_hf(&path, out, &merged, &arch::from_hf(&json)?))
}

fn to_gguf(
    path: &Path,
    config: &Config,
    params: &Params,
    adapter: Option<&Adapter>,
    store: Store,
) -> Result<(), ModelError> {
    let cpu = cpu();
    let merged = Merged::new(&cpu, config, params, adapter)?;
    write(path, |out| write_gguf(path, out, &merged, &gguf_metadata(config)?, store))
}

fn assert_same_bits(a: &Params, b: &Params, what: &str) {
    let (a, b) = (a.storage(), b.storage());
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.into_iter().zip(b).enumerate() {
        let bits = |s: crate::params::Storage<&[f32]>| s.into_inner().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(a), bits(b), "{what}: storage {i}");
    }
}

/// The weights with the adapter merged, as this crate would hold them.
fn merged_params(config: &Config, params: &Params, adapter: &Adapter) -> Params {
    let cpu = cpu();
    let merged = Merged::new(&cpu, config, params, Some(adapter)).unwrap();
    let mut out = params.clone();
    let plain = Config { norm_plus_one: false, ..config.clone() };
    for slot in Slot::all(config) {
        out.write(&plain, slot, &merged.read(&plain, slot));
    }
    out
}

/// CASES K1: a merged adapter whose alpha was lost changed nothing.
#[test]
fn a_merged_weight_is_w_plus_alpha_over_r_times_b_times_a() {
    for family in FAMILIES {
        let (config, params, adapter) = open(family);
        let cpu = cpu();
        let merged = Merged::new(&cpu, &config, &params, Some(&adapter)).unwrap();
        assert_eq!(merged.n_changed(), 7 * config.n_layers);
        for (part, target) in [In::Q, In::K, In::V, In::O, In::Gate, In::Up, In::Down].into_iter().zip(Target::ALL) {
            let slot = Slot::Layer(1, part);
            let (w, got) = (params.read(&config, slot), merged.read(&config, slot));
            let (a, b) = (adapter.read_a(1, target), adapter.read_b(1, target));
            let k = slot.shape(&config)[1];
            let mut moved = 0;
            for (i, (w, got)) in w.iter().zip(&got).enumerate() {
                let (row, column) = (i / k, i % k);
                // alpha is 8 and r is 4 in the file.
                let product: f64 = (0..4).map(|j| f64::from(b[row * 4 + j]) * f64::from(a[j * k + column])).sum();
                let want = f64::from(*w) + 8.0 / 4.0 * product;
                assert!(
                    (f64::from(*got) - want).abs() <= 6e-8 * want.abs().max(1e-3),
                    "{family} {} {i}",
                    target.name()
                );
                moved += usize::from(w != got);
            }
            assert!(moved * 10 > 9 * w.len(), "{family} {}: {moved} of {} moved", target.name(), w.len());
        }
    }
}

#[test]
fn merged_and_unmerged_logits_agree_to_f32_rounding() {
    for family in FAMILIES {
        let (config, params, adapter) = open(family);
        let want = logits(&config, &params, Some(&adapter));
        let got = logits(&config, &merged_params(&config, &params, &adapter), None);
        let by = far(&got, &want);
        println!("{family}: merged logits differ by at most {by:.1e} of the largest");
        assert!(by < LOGITS, "{family}: {by}");
        assert!(far(&logits(&config, &params, None), &want) > 1e-2, "{family}: the adapter does something");
    }
}

#[test]
fn without_an_adapter_nothing_is_rounded() {
    for family in FAMILIES {
        let (config, params, _) = open(family);
        let folder = tempfile::tempdir().unwrap();
        to_hf(folder.path(), &config, &params, None).unwrap();
        let (_, again) = crate::load(folder.path()).unwrap();
        assert_same_bits(&again, &params, family);
    }
}

#[test]
fn a_folder_reads_back_as_what_was_written() {
    for family in FAMILIES {
        let (config, params, adapter) = open(family);
        let folder = tempfile::tempdir().unwrap();
        to_hf(folder.path(), &config, &params, Some(&adapter)).unwrap();
        let (again, weights) = crate::load(folder.path()).unwrap();
        assert_eq!(again, config, "{family}");
        assert_same_bits(&weights, &merged_params(&config, &params, &adapter), family);
    }
}

/// CASES K3: a tied table appears once, under the embedding's name, and nothing of it is merged twice.
#[test]
fn a_tied_head_is_written_once() {
    for (family, tied) in [("smollm2", true), ("gemma3", true), ("llama", false)] {
        let (config, params, adapter) = open(family);
        let folder = tempfile::tempdir().unwrap();
        to_hf(folder.path(), &config, &params, Some(&adapter)).unwrap();
        let file = Safetensors::open(&folder.path().join("model.safetensors")).unwrap();
        assert_eq!(file.has("lm_head.weight"), !tied, "{family}");
        let json: Json = serde_json::from_slice(&std::fs::read(folder.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(json["tie_word_embeddings"], tied, "{family}");
        let mut table = vec![0.0; config.vocabulary * config.width];
        file.read_f32("model.embed_tokens.weight", &mut table).unwrap();
        assert_eq!(table, params.read(&config, Slot::Embedding), "{family}");
    }
}

/// CASES K4: an adapter whose names lack a prefix was silently not applied.
#[test]
fn an_adapter_that_matches_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (config, params, adapter) = open("smollm2");
    peft::save(folder.path(), &config, &adapter, "base").unwrap();
    let file = folder.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    // Every name loses its prefix, by a letter so that the header keeps its length.
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text =
        String::from_utf8(bytes[8..8 + header].to_vec()).unwrap().replace("base_model.model.", "base_model_model.");
    std::fs::write(&file, [&bytes[..8], text.as_bytes(), &bytes[8 + header..]].concat()).unwrap();
    let error = peft::load(folder.path(), &config).unwrap_err().to_string();
    assert!(error.starts_with("adapter does not fit: none of its 42 tensors belongs to"), "{error}");

    let cpu = cpu();
    let refuse = |adapter: &Adapter| Merged::new(&cpu, &config, &params, Some(adapter)).unwrap_err().to_string();
    let none = Adapter { targets: Vec::new(), ..adapter.clone() };
    assert_eq!(refuse(&none), "adapter does not fit: it has no target, needed at least 1");
    let powerless = Adapter { alpha: 0.0, ..adapter.clone() };
    assert_eq!(refuse(&powerless), "adapter does not fit: alpha 0, needed a number above 0");
    let (_, _, foreign) = open("qwen2");
    assert_eq!(refuse(&foreign), "adapter does not fit: its products have other widths than this model's");
    let short = Adapter { layers: adapter.layers[1..].to_vec(), ..adapter.clone() };
    assert_eq!(refuse(&short), "adapter does not fit: it has 2 layers, needed 3");
}

#[test]
fn a_gguf_file_in_f32_reads_back_with_the_same_bits() {
    for family in FAMILIES {
        let (config, params, adapter) = if family.starts_with("gemma") { plain_gemma(family) } else { open(family) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        to_gguf(&path, &config, &params, Some(&adapter), Store::F32).unwrap();
        let (again, weights) = crate::load(&path).unwrap();
        let merged = merged_params(&config, &params, &adapter);
        assert_same_bits(&weights, &merged, family);
        let by = far(&logits(&again, &weights, None), &logits(&config, &merged, None));
        println!("{family}: logits read back from GGUF differ by at most {by:.1e} of the largest");
        assert!(by < if family == "llama" { LOGITS } else { 1e-9 }, "{family}: {by}");
    }
}

#[test]
fn llama_rows_of_queries_and_keys_are_interleaved_in_gguf() {
    let (config, params, _) = open("smollm2");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    to_gguf(&path, &config, &params, None, Store::F32).unwrap();
    let file = tensor::weights::Gguf::open(&path).unwrap();
    let (head, half, d) = (config.head_dim, config.head_dim / 2, config.width);
    for (name, part) in [("attn_q", In::Q), ("attn_k", In::K)] {
        let mut got = vec![0.0; file.shape(&format!("blk.0.{name}.weight")).unwrap().iter().product()];
        file.read_f32(&format!("blk.0.{name}.weight"), &mut got).unwrap();
        let want = params.read(&config, Slot::Layer(0, part));
        for row in 0..got.len() / d {
            // Pair p of a head, rows p and p + half, lies at rows 2p and 2p + 1.
            let (at, within) = (row / head * head, row % head);
            let file_row = at + 2 * (within % half) + within / half;
            assert_eq!(got[file_row * d..][..d], want[row * d..][..d], "{name} row {row}");
        }
    }
}

#[test]
fn smaller_encodings_round_each_weight_once() {
    let (config, params, adapter) = open("smollm2");
    let merged = merged_params(&config, &params, &adapter);
    let folder = tempfile::tempdir().unwrap();
    for (store, bound) in [(Store::F16, 2.0_f32.powi(-11)), (Store::Bf16, 2.0_f32.powi(-8))] {
        let path = folder.path().join(format!("{}.gguf", store.encoding().name));
        to_gguf(&path, &config, &params, Some(&adapter), store).unwrap();
        let (_, again) = crate::load(&path).unwrap();
        let slot = Slot::Layer(2, In::Down);
        for (a, b) in again.read(&config, slot).iter().zip(merged.read(&config, slot)) {
            assert!((a - b).abs() <= bound * b.abs().max(1e-4), "{a} {b}");
        }
        assert_eq!(again.read(&config, Slot::FinalNorm), params.read(&config, Slot::FinalNorm));
    }
    // Rows of 36 values are no whole blocks of 32.
    let path = folder.path().join("q8.gguf");
    let error = to_gguf(&path, &config, &params, None, Store::Q8_0).unwrap_err().to_string();
    assert!(error.contains("needed rows of a multiple of 32 values for `Q8_0`, got rows of 36"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_llama3_scaling_survives_gguf_and_back() {
    let (config, params, _) = open("llama");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    to_gguf(&path, &config, &params, None, Store::F32).unwrap();
    let (from_gguf, weights) = crate::load(&path).unwrap();
    assert_eq!(from_gguf.rope.factors.as_ref().unwrap().len(), config.head_dim / 2);
    to_hf(folder.path(), &from_gguf, &weights, None).unwrap();
    let (again, _) = crate::load(folder.path()).unwrap();
    assert_eq!(again.rope.scaling, config.rope.scaling);
    // And as a list once more, unchanged.
    let second = folder.path().join("second.gguf");
    to_gguf(&second, &from_gguf, &weights, None, Store::F32).unwrap();
    assert_eq!(crate::load(&second).unwrap().0, from_gguf);

    let mut odd = from_gguf;
    odd.rope.factors.as_mut().unwrap()[1] = 1.7;
    let error = hf_config(&odd).unwrap_err().to_string();
    assert_eq!(
        error,
        "model setting `rope_freqs.weight` is `other divisors`, needed divisors of a `llama3` scaling, the only ones \
         `config.json` can say"
    );
}

#[test]
fn gemma_norms_gain_one_in_gguf_and_lose_it_in_a_folder() {
    let (config, params, _) = plain_gemma("gemma3");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    to_gguf(&path, &config, &params, None, Store::F32).unwrap();
    let file = tensor::weights::Gguf::open(&path).unwrap();
    let mut got = vec![0.0; config.width];
    file.read_f32("blk.0.attn_norm.weight", &mut got).unwrap();
    let offsets = params.read(&config, Slot::Layer(0, In::AttnNorm));
    assert!(got.iter().zip(&offsets).all(|(g, o)| *g == o + 1.0));
    // From that file, whose configuration has no offsets, a folder gets them again.
    let (from_gguf, weights) = crate::load(&path).unwrap();
    assert!(!from_gguf.norm_plus_one && config.norm_plus_one);
    to_hf(folder.path(), &from_gguf, &weights, None).unwrap();
    let (again, weights) = crate::load(folder.path()).unwrap();
    assert_eq!(again, config);
    assert_same_bits(&weights, &params, "gemma3");
}

#[test]
fn what_a_format_cannot_say_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let refuse =
        |config: &Config, params: &Params| to_gguf(&path, config, params, None, Store::F32).unwrap_err().to_string();
    let (config, params, _) = open("gemma3");
    assert_eq!(
        refuse(&config, &params),
        "model setting `local` is `llgl`, needed what GGUF can say, where it would be read back as `llll`"
    );
    let config = Config { local: vec![true; 4], ..config };
    let error = refuse(&config, &params);
    assert!(error.starts_with("model setting `attention_scale` is `0.2236"), "{error}");
    let (mut config, params, _) = open("qwen2_yarn");
    let Scaling::Yarn { attention, .. } = &mut config.rope.scaling else { unreachable!("that is its name") };
    *attention = Some(1.5);
    let error = refuse(&config, &params);
    assert!(error.starts_with("model setting `rope` is `yarn scaling over base 10000`"), "{error}");
    assert!(!path.exists());
    let odd = Config { qkv_bias: true, ..open("smollm2").0 };
    let error = hf_config(&odd).unwrap_err().to_string();
    let want =
        "model setting `qkv_bias` is `on`, needed what `config.json` can say, where it would be read back as `off`";
    assert_eq!(error, want);
}

#[test]
fn every_family_has_its_config_json() {
    assert_eq!(super::hf::families(), arch::names().collect::<Vec<_>>());
    let (config, ..) = open("smollm2");
    let json = hf_config(&config).unwrap();
    assert_eq!(json["architectures"], json!(["LlamaForCausalLM"]));
    // The short form of an f32, as people write it.
    assert_eq!(json["rms_norm_eps"].to_string(), "0.00001");
}

#[test]
fn a_folder_of_another_model_is_refused() {
    let (config, params, _) = open("smollm2");
    let (other, ..) = open("llama");
    let cpu = cpu();
    let merged = Merged::new(&cpu, &config, &params, None).unwrap();
    let error = write_hf(Path::new("x"), &mut Vec::new(), &merged, &other).unwrap_err().to_string();
    assert!(
        error.starts_with("model setting `vocabulary` is `128`, needed what this `config.json` can say"),
        "{error}"
    );
}
