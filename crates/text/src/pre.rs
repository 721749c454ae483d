//! How GGUF files name the rule that cuts text into words before merging.
//!
//! Each entry gives the pre-tokeniser of the model family's own `tokenizer.json`; the names are llama.cpp's.
//! Source: llama.cpp, `llama-vocab.cpp`, and the families' tokenizer files.

use serde_json::{Value, json};

use crate::TextError;

/// What a name stands for.
pub(crate) struct Pre {
    /// Normaliser, in the words of `tokenizer.json`.
    pub(crate) normalizer: Option<Value>,
    /// Pre-tokeniser, likewise.
    pub(crate) pre_tokenizer: Value,
    /// Whether a word that is a token is taken whole.
    pub(crate) ignore_merges: bool,
}

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What files without a name get: llama.cpp's four rules, one after the other.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// The rule of a name; files written before there were names have none and get `default`.
///
/// - Errors: `Unsupported` names what was given.
pub(crate) fn named(name: Option<&str>) -> Result<Pre, TextError> {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let plain = |steps: Vec<Value>| Pre { normalizer: None, pre_tokenizer: sequence(steps), ignore_merges: false };
    Ok(match name.unwrap_or("default") {
        "smollm" | "starcoder" | "refact" => plain(vec![digits, split(GPT2)]),
        "gpt-2" | "phi-2" => plain(vec![split(GPT2)]),
        "qwen2" => Pre { normalizer: Some(json!({"type": "NFC"})), ..plain(vec![split(QWEN2)]) },
        "deepseek-r1-qwen" => plain(vec![split(QWEN2)]),
        "llama-bpe" | "llama3" | "llama-v3" => Pre { ignore_merges: true, ..plain(vec![split(LLAMA3)]) },
        "gpt-4o" | "llama4" => plain(vec![split(GPT4O)]),
        "default" => plain(DEFAULT.iter().map(|regex| split(regex)).collect()),
        other => {
            return Err(TextError::Unsupported {
                part: "pre-tokenizer",
                got: other.into(),
                needed: "one of `smollm`, `starcoder`, `refact`, `gpt-2`, `phi-2`, `qwen2`, `deepseek-r1-qwen`, \
                         `llama-bpe`, `llama3`, `llama-v3`, `gpt-4o`, `llama4`, `default`",
            });
        }
    })
}

/// Every match is a word, and so is what lies between two.
fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// The steps, then one character for each byte.
fn sequence(mut steps: Vec<Value>) -> Value {
    steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
    json!({"type": "Sequence", "pretokenizers": steps})
}
