//! A model small enough for tests, as a Hugging Face folder: random weights, one token a byte, ChatML.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests stop where something is wrong and print what they measure"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use episode::random::Stream;
use serde_json::{Map, Value, json};
use tensor::weights::{OutTensor, write_safetensors};

const WIDTH: usize = 32;
const FFN: usize = 48;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
/// 256 bytes, then `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
const VOCABULARY: usize = 259;

/// A folder that holds the model, and whatever a test puts beside it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        write(&place.model(), 1);
        place
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.path("model")
    }
}

/// Writes the model; another seed is another model.
pub(crate) fn write(folder: &Path, seed: u64) {
    std::fs::create_dir_all(folder).unwrap();
    let put = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    put("config.json", &config());
    put("tokenizer.json", &tokenizer());
    put(
        "tokenizer_config.json",
        &json!({
            "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>",
            "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                              {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        }),
    );
    weights(&folder.join("model.safetensors"), seed);
}

fn config() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": WIDTH,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 258, "bos_token_id": 257,
    })
}

/// Byte-level BPE without a merge. The letters that stand for bytes are GPT-2's: printable bytes stand for themselves, the
/// others for the letters from 256 on, in order.
fn tokenizer() -> Value {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut vocabulary = Map::new();
    let mut next = 256;
    for byte in 0..256_u32 {
        let letter = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        vocabulary.insert(char::from_u32(letter).unwrap().to_string(), byte.into());
    }
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut added = Vec::new();
    for (i, content) in special.iter().enumerate() {
        vocabulary.insert((*content).to_owned(), (256 + i).into());
        added.push(json!({
            "id": 256 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    })
}

/// Random weights, the embeddings large enough that a tied head's logits are not flat.
fn weights(path: &Path, seed: u64) {
    let head = WIDTH / HEADS;
    let mut shapes: Vec<(String, Vec<usize>, f64)> =
        vec![("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH], 0.6)];
    for l in 0..LAYERS {
        let mut layer =
            |name: &str, shape: Vec<usize>, scale: f64| shapes.push((format!("model.layers.{l}.{name}"), shape, scale));
        layer("input_layernorm.weight", vec![WIDTH], 0.0);
        layer("post_attention_layernorm.weight", vec![WIDTH], 0.0);
        layer("self_attn.q_proj.weight", vec![HEADS * head, WIDTH], 0.3);
        layer("self_attn.k_proj.weight", vec![KV_HEADS * head, WIDTH], 0.3);
        layer("self_attn.v_proj.weight", vec![KV_HEADS * head, WIDTH], 0.3);
        layer("self_attn.o_proj.weight", vec![WIDTH, HEADS * head], 0.3);
        layer("mlp.gate_proj.weight", vec![FFN, WIDTH], 0.3);
        layer("mlp.up_proj.weight", vec![FFN, WIDTH], 0.3);
        layer("mlp.down_proj.weight", vec![WIDTH, FFN], 0.3);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![WIDTH], 0.0));
    let values: Vec<Vec<f32>> = shapes
        .iter()
        .enumerate()
        .map(|(index, (_, shape, scale))| {
            let stream = Stream::new("tiny", &[seed, index as u64]);
            let n = shape.iter().product::<usize>() as u64;
            // A norm's weights are 1; the others uniform, in steps that single precision holds exactly.
            let value = |i: u64| ((stream.uniform(i) * 2.0 - 1.0) * scale * 4096.0).round() / 4096.0;
            (0..n).map(|i| if *scale == 0.0 { 1.0 } else { value(i) as f32 }).collect()
        })
        .collect();
    let tensors =
        shapes.iter().zip(&values).map(|((name, shape, _), v)| OutTensor::new(name.clone(), shape.clone(), v));
    let mut file = File::create(path).unwrap();
    write_safetensors(path, &mut file, tensors, &BTreeMap::from([("format".to_owned(), "pt".to_owned())])).unwrap();
}
