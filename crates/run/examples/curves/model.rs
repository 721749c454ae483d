//! A model small enough to train in seconds, as a Hugging Face folder: fixed random weights, a token a character.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use episode::random::Stream;
use serde_json::{Map, Value, json};
use tensor::weights::{OutTensor, write_safetensors};

/// The tokens that open and end a turn, in the order of their ids.
const SPECIAL: [&str; 5] = ["<|nothing|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];

/// How large a model is.
pub(crate) struct Shape {
    pub(crate) width: usize,
    pub(crate) ffn: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) context: usize,
}

/// The letters it reads: the line feed, then the printable ones of ASCII.
fn letters() -> impl Iterator<Item = u8> {
    std::iter::once(b'\n').chain(b' '..=b'~')
}

/// Writes the model; another seed is another model.
pub(crate) fn write(folder: &Path, shape: &Shape, seed: u64) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let put = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string());
    let n_letters = letters().count();
    put("config.json", &config(shape, n_letters + SPECIAL.len()))?;
    put("tokenizer.json", &tokenizer())?;
    let template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
                    {% if add_generation_prompt %}<|assistant|>{% endif %}";
    put(
        "tokenizer_config.json",
        &json!({"eos_token": "<|end|>", "unk_token": "<|nothing|>", "chat_template": template}),
    )?;
    weights(&folder.join("model.safetensors"), shape, n_letters + SPECIAL.len(), seed)
}

fn config(shape: &Shape, vocabulary: usize) -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary,
        "hidden_size": shape.width, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": vocabulary - 1,
    })
}

/// Byte-level BPE without a merge. Printable bytes stand for themselves, the line feed and the space for the letters that
/// GPT-2 gives them.
fn tokenizer() -> Value {
    let mut vocabulary = Map::new();
    for (id, byte) in letters().enumerate() {
        let letter = match byte {
            b'\n' => '\u{10A}',
            b' ' => '\u{120}',
            other => char::from(other),
        };
        vocabulary.insert(letter.to_string(), id.into());
    }
    let mut added = Vec::new();
    for (id, content) in (vocabulary.len()..).zip(SPECIAL) {
        vocabulary.insert(content.to_owned(), id.into());
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<|nothing|>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": [],
        },
    })
}

/// Random weights of the usual spread: a row of width n has entries of about 1/√n, what is added to the residual stream
/// less, and the embeddings small, so that the first predictions are nearly flat.
fn weights(path: &Path, shape: &Shape, vocabulary: usize, seed: u64) -> io::Result<()> {
    let Shape { width, ffn, layers, heads, .. } = *shape;
    let attention = heads * (width / heads);
    let of = |n: usize| (3.0 / n as f64).sqrt();
    let back = 1.0 / (2.0 * layers as f64).sqrt();
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![vocabulary, width], 0.1)];
    for l in 0..layers {
        let mut layer =
            |name: &str, shape: Vec<usize>, scale: f64| shapes.push((format!("model.layers.{l}.{name}"), shape, scale));
        layer("input_layernorm.weight", vec![width], 0.0);
        layer("post_attention_layernorm.weight", vec![width], 0.0);
        layer("self_attn.q_proj.weight", vec![attention, width], of(width));
        layer("self_attn.k_proj.weight", vec![attention, width], of(width));
        layer("self_attn.v_proj.weight", vec![attention, width], of(width));
        layer("self_attn.o_proj.weight", vec![width, attention], of(attention) * back);
        layer("mlp.gate_proj.weight", vec![ffn, width], of(width));
        layer("mlp.up_proj.weight", vec![ffn, width], of(width));
        layer("mlp.down_proj.weight", vec![width, ffn], of(ffn) * back);
    }
    shapes.push(("model.norm.weight".to_owned(), vec![width], 0.0));
    let values: Vec<Vec<f32>> = shapes
        .iter()
        .enumerate()
        .map(|(index, (_, shape, scale))| {
            let stream = Stream::new("curves model", &[seed, index as u64]);
            let n = shape.iter().product::<usize>() as u64;
            // A norm's weights are 1, the others uniform.
            let value = |i: u64| if *scale == 0.0 { 1.0 } else { (stream.uniform(i) * 2.0 - 1.0) * scale };
            (0..n).map(|i| value(i) as f32).collect()
        })
        .collect();
    let tensors =
        shapes.iter().zip(&values).map(|((name, shape, _), v)| OutTensor::new(name.clone(), shape.clone(), v));
    let mut file = File::create(path)?;
    let meta = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    write_safetensors(path, &mut file, tensors, &meta).map_err(io::Error::other)
}
