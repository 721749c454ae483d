//! A tokenizer from one kind of file to the other: GGUF's fields as a Hugging Face folder's files, and the reverse.

use episode::Token;
use serde_json::{Map, Value, json};

use crate::added::Added;
use crate::error::Inconsistency;
use crate::spec::{Spec, Style};
use crate::{GgufVocabulary, TextError, gguf, huggingface, pre};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Word rules that a folder can be recognised by, one name for each rule.
const RULES: [&str; 6] = ["smollm", "gpt-2", "qwen2", "deepseek-r1-qwen", "llama-bpe", "gpt-4o"];

impl GgufVocabulary {
    /// The files of a Hugging Face folder that make the same tokenizer: `tokenizer.json`, `tokenizer_config.json` with the
    /// chat template, and `generation_config.json` with the tokens that end a turn; names and contents.
    ///
    /// - Holds: read back by [`Tokenizer::from_folder`](crate::Tokenizer::from_folder) it has the same fingerprint.
    /// - Errors: as [`Tokenizer::from_gguf`](crate::Tokenizer::from_gguf).
    pub fn folder_files(&self) -> Result<[(&'static str, Vec<u8>); 3], TextError> {
        let mut spec = gguf::spec(self.clone())?;
        spec.check()?;
        let bytes = |json: &Value| serde_json::to_vec_pretty(json).expect("a JSON value always serialises");
        Ok([
            ("tokenizer.json", bytes(&tokenizer_json(&spec))),
            ("tokenizer_config.json", bytes(&tokenizer_config(&spec))),
            ("generation_config.json", bytes(&generation_config(&spec))),
        ])
    }

    /// The fields a GGUF file needs for the tokenizer of a Hugging Face folder, for a model with this many rows of
    /// embeddings; rows without a token become unused ones, as llama.cpp's converter fills them.
    ///
    /// - Holds: [`Tokenizer::from_gguf`](crate::Tokenizer::from_gguf) encodes as the folder's tokenizer does.
    /// - Errors: `Unsupported` for what these fields cannot say: SentencePiece pieces (a folder does not hold their scores), a
    ///   word rule that has no name, an added token that swallows white space, more kinds of opening, closing or end-of-turn
    ///   tokens than there are fields; all of [`Tokenizer::from_folder`](crate::Tokenizer::from_folder).
    pub fn from_folder(folder: &std::path::Path, n_rows: usize) -> Result<Self, TextError> {
        let mut spec = huggingface::spec(folder)?;
        spec.check()?;
        if spec.style != Style::ByteLevel {
            let needed = "byte-level merges: GGUF wants each piece's score, which `tokenizer.json` does not hold";
            return Err(unsupported("vocabulary", "SentencePiece pieces".into(), needed));
        }
        if spec.size() > n_rows {
            return Err(Inconsistency::IdTooLarge { id: spec.size() as u64 - 1, limit: n_rows as u64 }.into());
        }
        if let Some(odd) = spec.added.values().find(|a| a.lstrip || a.rstrip || a.single_word) {
            let needed = "one that is matched wherever it stands and takes no white space along";
            return Err(unsupported("added token", odd.content.clone(), needed));
        }
        let pre = rule_of(&spec)?;
        let named = |name: &str| spec.named.get(name).copied();
        let eos = named("eos_token").or_else(|| spec.eos.first().copied());
        let mut made = GgufVocabulary {
            model: "gpt2".into(),
            pre: Some(pre.into()),
            tokens: (0..n_rows as Token).map(|id| spec.text(id).map_or(format!("[PAD{id}]"), str::to_owned)).collect(),
            token_types: (0..n_rows as Token).map(|id| kind(&spec, id)).collect(),
            scores: Vec::new(),
            merges: spec.merges.iter().map(|(left, right)| format!("{left} {right}")).collect(),
            bos: named("bos_token"),
            eos,
            eot: None,
            unk: named("unk_token"),
            pad: named("pad_token"),
            add_bos: Some(asks(&spec.before, named("bos_token"), "tokens before a text", "none, or the `bos` token")?),
            add_eos: Some(asks(&spec.after, eos, "tokens after a text", "none, or the `eos` token")?),
            add_space_prefix: Some(false),
            chat_template: spec.template.clone(),
        };
        let read = |made: &GgufVocabulary| -> Result<Spec, TextError> {
            let mut spec = gguf::spec(made.clone())?;
            spec.check()?;
            Ok(spec)
        };
        let wanted = spec.end_of_turn();
        let missing: Vec<Token> = wanted.difference(&read(&made)?.end_of_turn()).copied().collect();
        made.eot = missing.first().copied();
        if read(&made)?.end_of_turn() != wanted {
            let got = missing.iter().filter_map(|id| spec.text(*id)).collect::<Vec<_>>().join("`, `");
            return Err(unsupported(
                "end-of-turn tokens",
                got,
                "at most 1 besides `eos` and those with a well-known text",
            ));
        }
        Ok(made)
    }
}

fn unsupported(part: &'static str, got: String, needed: &'static str) -> TextError {
    TextError::Unsupported { part, got, needed }
}

fn kind(spec: &Spec, id: Token) -> i32 {
    match spec.added.get(&id) {
        Some(added) if added.special => CONTROL,
        Some(_) => USER_DEFINED,
        None if spec.vocabulary.contains_key(&id) => NORMAL,
        None => UNUSED,
    }
}

/// Whether a list of tokens to put around a text is exactly the one a flag stands for.
fn asks(list: &[Token], one: Option<Token>, part: &'static str, needed: &'static str) -> Result<bool, TextError> {
    match list {
        [] => Ok(false),
        [token] if Some(*token) == one => Ok(true),
        more => Err(unsupported(part, more.iter().map(Token::to_string).collect::<Vec<_>>().join(", "), needed)),
    }
}

/// The name of the rule that cuts text into words.
fn rule_of(spec: &Spec) -> Result<&'static str, TextError> {
    let own = spec.pre_tokenizer.as_ref().map(steps).unwrap_or_default();
    let normalizer = |value: &Option<Value>| value.clone().filter(|v| !v.is_null());
    for name in RULES {
        let rule = pre::named(Some(name))?;
        let same = (own == steps(&rule.pre_tokenizer), normalizer(&spec.normalizer) == normalizer(&rule.normalizer));
        if same == (true, true) && spec.ignore_merges == rule.ignore_merges {
            return Ok(name);
        }
    }
    let needed =
        "one of those that GGUF files name `smollm`, `gpt-2`, `qwen2`, `deepseek-r1-qwen`, `llama-bpe`, `gpt-4o`";
    let kinds = own.iter().filter_map(|s| s.get("type")).filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    Err(unsupported("word rule", if kinds.is_empty() { "none".into() } else { kinds }, needed))
}

/// The steps of a pre-tokeniser in one spelling: what does not change the words is left out.
fn steps(value: &Value) -> Vec<Value> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    match text("type") {
        Some("Sequence") => {
            value.get("pretokenizers").and_then(Value::as_array).into_iter().flatten().flat_map(steps).collect()
        }
        Some("ByteLevel") => {
            let bytes = json!({"type": "ByteLevel", "add_prefix_space": flag("add_prefix_space").unwrap_or(true)});
            // The library's own rule is GPT-2's, spelled out in files that do not rely on it.
            let own =
                flag("use_regex").unwrap_or(true).then(|| json!({"type": "Split", "pattern": {"Regex": pre::GPT2}}));
            own.into_iter().chain([bytes]).collect()
        }
        // These expressions match every character, so that "what lies between matches" is nothing either way.
        Some("Split")
            if matches!(
                (text("behavior"), flag("invert")),
                (Some("Isolated"), Some(false)) | (Some("Removed"), Some(true))
            ) =>
        {
            vec![json!({"type": "Split", "pattern": value["pattern"]})]
        }
        _ => vec![value.clone()],
    }
}

fn tokenizer_json(spec: &Spec) -> Value {
    let added: Vec<Value> = spec.added.values().map(added_json).collect();
    let vocabulary: Map<String, Value> = spec.vocabulary.iter().map(|(id, text)| (text.clone(), json!(id))).collect();
    let decoder = match spec.style {
        Style::ByteLevel => {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false})
        }
        Style::SentencePiece { strip_first_space } => {
            let mut steps = vec![
                json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
            ];
            steps.extend(strip_first_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
            json!({"type": "Sequence", "decoders": steps})
        }
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": spec.normalizer,
        "pre_tokenizer": spec.pre_tokenizer,
        "post_processor": around(spec),
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": spec.unk,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": spec.fuse_unk,
            "byte_fallback": spec.byte_fallback,
            "ignore_merges": spec.ignore_merges,
            "vocab": vocabulary,
            "merges": spec.merges.iter().map(|(left, right)| [left, right]).collect::<Vec<_>>(),
        },
    })
}

fn added_json(a: &Added) -> Value {
    json!({
        "id": a.id,
        "content": a.content,
        "single_word": a.single_word,
        "lstrip": a.lstrip,
        "rstrip": a.rstrip,
        "normalized": a.normalized,
        "special": a.special,
    })
}

/// The post-processor that puts tokens around a text; none when there are none.
fn around(spec: &Spec) -> Value {
    if spec.before.is_empty() && spec.after.is_empty() {
        return Value::Null;
    }
    let text = |id: &Token| spec.text(*id).unwrap_or_default().to_owned();
    let one = |kind: u32| -> Vec<Value> {
        let token = |id: &Token| json!({"SpecialToken": {"id": text(id), "type_id": kind}});
        let content = json!({"Sequence": {"id": if kind == 0 { "A" } else { "B" }, "type_id": kind}});
        spec.before.iter().map(token).chain([content]).chain(spec.after.iter().map(token)).collect()
    };
    let used = spec.before.iter().chain(&spec.after);
    let special: Map<String, Value> =
        used.map(|id| (text(id), json!({"id": text(id), "ids": [id], "tokens": [text(id)]}))).collect();
    let (single, pair) = (one(0), [one(0), one(1)].concat());
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}

fn tokenizer_config(spec: &Spec) -> Value {
    // The class that takes `tokenizer.json` as it stands; a family's own class would build another tokenizer.
    let mut config = Map::from_iter([
        ("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast")),
        ("clean_up_tokenization_spaces".to_owned(), json!(false)),
    ]);
    config.extend(spec.named.iter().map(|(name, id)| (name.clone(), json!(spec.text(*id)))));
    config.extend(spec.template.iter().map(|source| ("chat_template".to_owned(), json!(source))));
    Value::Object(config)
}

fn generation_config(spec: &Spec) -> Value {
    let mut config = Map::new();
    let ids = ["bos_token", "pad_token"]
        .into_iter()
        .filter_map(|name| Some((format!("{name}_id"), json!(spec.named.get(name)?))));
    config.extend(ids);
    let eos: Vec<Token> = spec.eos.iter().copied().collect();
    match eos.as_slice() {
        [] => None,
        [one] => config.insert("eos_token_id".to_owned(), json!(one)),
        many => config.insert("eos_token_id".to_owned(), json!(many)),
    };
    Value::Object(config)
}
