//! Whole exports of a tiny policy, read back.

use std::fs;
use std::path::{Path, PathBuf};

use model::params::{Slot, Storage};
use model::{Adapter, Params};
use serde_json::Value;
use tensor::weights::{Gguf, Store};
use tensor::{Cpu, Isa};
use text::{GgufVocabulary, Tokenizer};

use super::*;
use crate::{EngineSettings, Trainable};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/smollm2")
}

/// A vocabulary that fits the tiny model: printable characters of ASCII, a space and three marks.
fn tiny_vocabulary() -> GgufVocabulary {
    let marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let tokens: Vec<String> = marks.into_iter().chain(('!'..='~').map(String::from)).chain(["Ġ".to_owned()]).collect();
    let token_types = (0..tokens.len()).map(|i| if i < 3 { 3 } else { 1 }).collect();
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("smollm".into()),
        tokens,
        token_types,
        bos: Some(1),
        eos: Some(2),
        chat_template: Some("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}".into()),
        ..GgufVocabulary::default()
    }
}

/// A base model's folder as from a hub: settings, weights, tokenizer, and a card.
fn base() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden().join(name), folder.path().join(name)).unwrap();
    }
    for (name, bytes) in tiny_vocabulary().folder_files().unwrap() {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    fs::write(folder.path().join("README.md"), "a card").unwrap();
    fs::write(folder.path().join("LICENSE"), "do as you like").unwrap();
    folder
}

fn engine(path: &Path, trainable: Trainable) -> Engine {
    let cpu = Cpu::new(Isa::best(), 1).unwrap();
    let settings = EngineSettings { cache_mb: 1, ..EngineSettings::default() };
    Engine::new(cpu, model::load(path).unwrap(), None, trainable, settings, 7).unwrap()
}

fn lora() -> Trainable {
    Trainable::Lora { rank: 4, alpha: 8.0, targets: vec!["all".into()] }
}

/// A policy with the adapter of the golden tests, whose B is not zero.
fn adapted(path: &Path) -> Engine {
    let mut engine = engine(path, lora());
    engine.set_adapter(model::peft::load(&golden().join("adapter"), engine.config()).unwrap()).unwrap();
    engine
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn bits(storage: Vec<Storage<&[f32]>>) -> Vec<u32> {
    storage.into_iter().flat_map(|s| s.into_inner().iter().map(|v| v.to_bits())).collect()
}

/// What merging should give, as this engine would hold it.
fn merged(engine: &Engine) -> Params {
    let merged = Merged::new(engine.cpu(), engine.config(), engine.params(), engine.adapter()).unwrap();
    let mut params = engine.params().clone();
    for slot in Slot::all(engine.config()) {
        params.write(engine.config(), slot, &merged.read(engine.config(), slot));
    }
    params
}

#[test]
fn a_peft_folder_holds_the_adapter_and_names_its_model() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    let target = out.path().join("adapter");
    let done = export(&engine, base.path(), "ORG/NAME", &target, Format::Peft).unwrap();
    assert_eq!(names(&target), ["adapter_config.json", "adapter_model.safetensors"]);
    assert_eq!(done.files[1].1, fs::metadata(target.join("adapter_model.safetensors")).unwrap().len());
    assert_eq!(done.n_merged, 0);
    let json: Value = serde_json::from_slice(&fs::read(target.join("adapter_config.json")).unwrap()).unwrap();
    // CASES K1: alpha is in the metadata.
    assert_eq!((&json["lora_alpha"], &json["r"]), (&Value::from(8.0), &Value::from(4)));
    assert_eq!(json["base_model_name_or_path"], "ORG/NAME");
    let again: Adapter = model::peft::load(&target, engine.config()).unwrap();
    assert_eq!(bits(again.storage()), bits(engine.adapter().unwrap().storage()));
    // Nothing else is left beside it.
    assert_eq!(names(out.path()), ["adapter"]);
}

#[test]
fn a_policy_without_an_adapter_is_no_peft_folder() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let error = export(&engine(base.path(), Trainable::Full {}), base.path(), "b", &out.path().join("x"), Format::Peft);
    let want = "the policy has no adapter, its own weights were trained: needed the format `hf` or `gguf`, got `peft`";
    assert_eq!(error.unwrap_err().to_string(), want);
    assert!(names(out.path()).is_empty());
}

#[test]
fn a_folder_keeps_the_files_of_its_base_and_changes_the_weights() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    let target = out.path().join("model");
    let done = export(&engine, base.path(), "b", &target, Format::Hf).unwrap();
    assert_eq!(done.n_merged, 21);
    let kept = ["LICENSE", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names(&target), [&kept[..3], &["model.safetensors"], &kept[3..]].concat());
    for name in kept {
        assert_eq!(fs::read(target.join(name)).unwrap(), fs::read(base.path().join(name)).unwrap(), "{name}");
    }
    let (config, params) = model::load(&target).unwrap();
    assert_eq!(config, *engine.config());
    assert_eq!(bits(params.storage()), bits(merged(&engine).storage()));
    assert_ne!(bits(params.storage()), bits(engine.params().storage()));
    let header = fs::read(target.join("model.safetensors")).unwrap();
    assert!(String::from_utf8_lossy(&header[8..200]).contains(r#""__metadata__":{"format":"pt"}"#));
    assert_eq!(names(out.path()), ["model"]);
}

#[test]
fn fully_trained_weights_are_exported_as_they_are() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let mut engine = self::engine(base.path(), Trainable::Full {});
    engine.params.embedding.data_mut().iter_mut().for_each(|w| *w *= 1.5);
    for (name, format) in [("hf", Format::Hf), ("model.gguf", Format::Gguf(Store::F32))] {
        let target = out.path().join(name);
        assert_eq!(export(&engine, base.path(), "b", &target, format).unwrap().n_merged, 0);
        assert_eq!(bits(model::load(&target).unwrap().1.storage()), bits(engine.params().storage()), "{name}");
    }
}

#[test]
fn from_folder_to_gguf_to_folder_nothing_is_lost() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    let file = out.path().join("model.gguf");
    export(&engine, base.path(), "a name", &file, Format::Gguf(Store::F32)).unwrap();
    let want = merged(&engine);
    assert_eq!(bits(model::load(&file).unwrap().1.storage()), bits(want.storage()));
    let gguf = Gguf::open(&file).unwrap();
    assert_eq!(gguf.metadata().str("general.name").unwrap(), "a name");
    assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), 0);
    // As many tokens as rows, as other programs want it.
    let made = vocabulary(gguf.metadata()).unwrap();
    assert_eq!((made.tokens.len(), made.tokens[127].as_str(), made.token_types[127]), (128, "[PAD127]", 5));
    assert_eq!(made.tokens[..98], tiny_vocabulary().tokens);

    // The second policy came from that file; its weights are frozen, so export only translates.
    let second = self::engine(&file, Trainable::Frozen {});
    let folder = out.path().join("folder");
    export(&second, &file, "b", &folder, Format::Hf).unwrap();
    let (config, params) = model::load(&folder).unwrap();
    assert_eq!((&config, bits(params.storage())), (second.config(), bits(want.storage())));
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    assert_eq!(tokenizer.fingerprint(), Tokenizer::from_gguf(made.clone()).unwrap().fingerprint());
    let json: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!((&json["bos_token_id"], &json["eos_token_id"]), (&Value::from(1), &Value::from(2)));

    // And from GGUF to GGUF the tokenizer's fields are the source's own.
    let smaller = out.path().join("half.gguf");
    export(&second, &file, "b", &smaller, Format::Gguf(Store::F16)).unwrap();
    let gguf = Gguf::open(&smaller).unwrap();
    assert_eq!(vocabulary(gguf.metadata()).unwrap(), made);
    assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), 1);
    assert_eq!(gguf.metadata().str("general.name").unwrap(), "a name");
    assert_eq!(gguf.encoding("blk.0.ffn_up.weight").unwrap().name, "F16");
    assert_eq!(gguf.encoding("blk.0.ffn_norm.weight").unwrap().name, "F32");
}

#[test]
fn the_same_policy_gives_the_same_bytes() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    for (name, format) in [("peft", Format::Peft), ("hf", Format::Hf), ("gguf", Format::Gguf(Store::F16))] {
        let all = ["a", "b"].map(|copy| {
            let target = out.path().join(format!("{name}-{copy}"));
            let done = export(&engine, base.path(), "b", &target, format).unwrap();
            done.files.iter().map(|(path, _)| fs::read(path).unwrap()).collect::<Vec<_>>()
        });
        assert!(all[0] == all[1], "{name}");
    }
}

#[test]
fn what_exists_is_left_alone() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    let file = out.path().join("file");
    fs::write(&file, "mine").unwrap();
    let folder = out.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let link = out.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for target in [&file, &folder, &link] {
        for format in [Format::Peft, Format::Hf, Format::Gguf(Store::F32)] {
            let error = export(&engine, base.path(), "b", target, format).unwrap_err().to_string();
            assert_eq!(error, format!("`{}` exists already, needed a new name", target.display()));
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(names(out.path()), ["file", "folder", "link"]);
}

#[test]
fn an_error_leaves_nothing_behind() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let mut engine = adapted(base.path());
    // The last layer's weight, so that much has been written by then.
    let slot = Slot::Layer(2, model::params::In::Up);
    let mut values = engine.params.read(&engine.config, slot);
    values[5] = f32::NAN;
    let config = engine.config.clone();
    engine.params.write(&config, slot, &values);
    for format in [Format::Hf, Format::Gguf(Store::F32), Format::Gguf(Store::F16)] {
        let error = export(&engine, base.path(), "b", &out.path().join("x"), format).unwrap_err().to_string();
        assert!(error.contains("NaN"), "{error}");
        assert!(names(out.path()).is_empty(), "{format}");
    }
    let error = export(&engine, base.path(), "b", &out.path().join("no/x"), Format::Hf).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot write `{}`: No such file or directory (os error 2)", out.path().join("no/x").display())
    );
}

#[test]
fn a_weight_beyond_an_encoding_is_refused() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let mut engine = self::engine(base.path(), Trainable::Full {});
    let mut table = engine.params.read(&engine.config, Slot::Embedding);
    table[3] = 1e5;
    let config = engine.config.clone();
    engine.params.write(&config, Slot::Embedding, &table);
    let target = out.path().join("x.gguf");
    let error = export(&engine, base.path(), "b", &target, Format::Gguf(Store::F16)).unwrap_err().to_string();
    assert!(error.contains("token_embd.weight") && error.contains("F16"), "{error}");
    assert!(names(out.path()).is_empty());
    export(&engine, base.path(), "b", &target, Format::Gguf(Store::Bf16)).unwrap();
}

#[test]
fn another_base_model_is_refused() {
    let (base, out) = (base(), tempfile::tempdir().unwrap());
    let engine = adapted(base.path());
    let other = golden().join("../qwen2");
    for format in [Format::Peft, Format::Hf, Format::Gguf(Store::F32)] {
        let error = export(&engine, &other, "b", &out.path().join("x"), format).unwrap_err().to_string();
        let want = "is not the model of this policy: needed a `llama of 3 layers, width 36, vocabulary 128, context 1024`, got a \
                    `qwen2 of 3 layers, width 48, vocabulary 101, context 1024`";
        assert!(error.ends_with(want), "{error}");
    }
    assert!(names(out.path()).is_empty());
}

#[test]
fn a_folder_without_a_tokenizer_is_no_gguf() {
    let out = tempfile::tempdir().unwrap();
    let engine = adapted(&golden());
    let error =
        export(&engine, &golden(), "b", &out.path().join("x"), Format::Gguf(Store::F32)).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json`: No such file"), "{error}");
    assert!(names(out.path()).is_empty());
}

#[test]
fn every_format_has_a_name() {
    for name in formats().filter(|n| *n != "gguf") {
        assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
    }
    assert_eq!("gguf".parse::<Format>().unwrap(), Format::Gguf(Store::F16));
    let want =
        "unknown format `onnx`, needed one of `peft`, `hf`, `gguf`, `gguf-f32`, `gguf-f16`, `gguf-bf16`, `gguf-q8_0`";
    assert_eq!("onnx".parse::<Format>().unwrap_err().to_string(), want);
}
