//! What the integration tests share: a tiny tokenizer, and a way to the real ones where they are present.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;
use surefoot_text::{GgufVocabulary, Tokenizer};

/// The folder with real vocabularies, or `None` with a line that says what was skipped.
pub(crate) fn models(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SUREFOOT_TEST_MODELS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped `{test}`: SUREFOOT_TEST_MODELS names no folder");
    }
    folder
}

pub(crate) fn fixture(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn texts() -> Vec<String> {
    serde_json::from_value(fixture("texts.json")).unwrap()
}

/// The template of this name.
pub(crate) fn family(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates").join(format!("{name}.jinja"));
    std::fs::read_to_string(path).unwrap()
}

/// The names of all families, in order.
pub(crate) fn families() -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let templates = paths.filter(|path| path.extension().is_some_and(|e| e == "jinja"));
    let mut names: Vec<String> = templates.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What in a template looks like a special token.
pub(crate) fn specials(template: &str) -> Vec<String> {
    let kinds = [("<|", "|>"), ("<｜", "｜>"), ("[", "]"), ("<", ">")];
    let mut found = Vec::new();
    for (at, _) in template.char_indices() {
        for (open, close) in kinds {
            let Some(rest) = template[at..].strip_prefix(open) else { continue };
            let Some(end) = rest.find(close) else { continue };
            let inner = &rest[..end];
            let letters = |extra: &str| inner.chars().all(|c| c.is_alphanumeric() || extra.contains(c));
            let is_one = match open {
                "[" => {
                    inner.len() > 2 && inner.trim_start_matches('/').chars().all(|c| c.is_ascii_uppercase() || c == '_')
                }
                "<" => matches!(inner, "start_of_turn" | "end_of_turn" | "tool_call" | "/tool_call" | "/think"),
                _ => letters("_▁ "),
            };
            if is_one && !inner.is_empty() {
                found.push(format!("{open}{inner}{close}"));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The tiny vocabulary with a template's special tokens in it.
pub(crate) fn vocabulary_for(template: &str) -> GgufVocabulary {
    let mut vocabulary = tiny_vocabulary(template);
    // Line breaks stay together, whatever follows them.
    vocabulary.pre = Some("qwen2".into());
    for text in specials(template) {
        if !vocabulary.tokens.contains(&text) {
            // As Qwen's vocabularies have them, a policy's own mark-up is not special.
            let own = ["<tool_call>", "</tool_call>", "</think>"].contains(&text.as_str());
            vocabulary.token_types.push(if own { 4 } else { 3 });
            vocabulary.tokens.push(text);
        }
    }
    vocabulary
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The mark-up of a made-up chat format.
pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                            {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Ids of the tiny vocabulary's added tokens; its bytes are 0 to 255, by value.
pub(crate) const IM_START: u32 = 300;
pub(crate) const IM_END: u32 = 301;
pub(crate) const IMAGE: u32 = 302;
pub(crate) const THINK: u32 = 303;
pub(crate) const WORD: u32 = 304;
pub(crate) const LAST: u32 = 305;

/// GPT-2's character for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count();
    char::from_u32(0x100 + rank as u32).unwrap()
}

pub(crate) fn byte_text(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// A byte-level vocabulary with a few merges: enough to be wrong in every interesting way.
pub(crate) fn tiny_vocabulary(template: &str) -> GgufVocabulary {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    let mut merges = Vec::new();
    let pairs = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        (" ", "w"),
        ("o", "r"),
        (" w", "or"),
        ("i", "m"),
        ("<", "|"),
        ("|", ">"),
        ("e", "n"),
        ("en", "d"),
        ("\n", "\n"),
        ("a", "b"),
        (" ", " "),
        ("é", "é"),
        ("im", "_"),
        ("s", "t"),
    ];
    for (left, right) in pairs {
        merges.push(format!("{} {}", byte_text(left), byte_text(right)));
        let joined = byte_text(&format!("{left}{right}"));
        if !tokens.contains(&joined) {
            tokens.push(joined);
        }
    }
    // Two characters of two bytes each: their halves have to be joined first.
    let pad = |tokens: &mut Vec<String>, merges: &mut Vec<String>| {
        let half = byte_text("é");
        let (first, second) = half.split_at(half.char_indices().nth(1).unwrap().0);
        merges.insert(0, format!("{first} {second}"));
        tokens.push(half.clone());
    };
    pad(&mut tokens, &mut merges);
    while tokens.len() < 300 {
        tokens.push(format!("[UNUSED{}]", tokens.len()));
    }
    let mut token_types = vec![1; tokens.len()];
    for (text, kind) in [
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("<|image_pad|>", 3),
        ("<think>", 4),
        ("blue-print", 4),
        ("<|endoftext|>", 3),
    ] {
        tokens.push(text.into());
        token_types.push(kind);
    }
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("smollm".into()),
        tokens,
        token_types,
        merges,
        eos: Some(IM_END),
        bos: Some(LAST),
        chat_template: Some(template.into()),
        ..GgufVocabulary::default()
    }
}

/// A SentencePiece vocabulary of every byte and these pieces with their scores; 0 to 2 are `<unk>`, `<s>` and `</s>`.
pub(crate) fn pieces(words: &[(&str, f32)]) -> GgufVocabulary {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, 3, 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        token_types.push(6);
    }
    let mut scores = vec![0.0; tokens.len()];
    for (text, score) in words {
        tokens.push((*text).to_owned());
        token_types.push(1);
        scores.push(*score);
    }
    GgufVocabulary {
        model: "llama".into(),
        tokens,
        token_types,
        scores,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(true),
        ..GgufVocabulary::default()
    }
}

pub(crate) fn tiny() -> Tokenizer {
    Tokenizer::from_gguf(tiny_vocabulary(TEMPLATE)).unwrap()
}

/// The `tokenizer.ggml` fields of a GGUF file's head; the file may end after them.
pub(crate) fn read_gguf(path: &std::path::Path) -> GgufVocabulary {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..4], b"GGUF");
    let mut at = Reader { bytes: &bytes, at: 16 };
    let mut fields: HashMap<String, Field> = HashMap::new();
    for _ in 0..at.u64() {
        let key = at.text();
        let kind = at.u32();
        let field = at.field(kind);
        fields.insert(key, field);
    }
    let mut take = |key: &str| fields.remove(&format!("tokenizer.ggml.{key}"));
    let number = |f: Option<Field>| {
        f.map(|f| match f {
            Field::Number(n) => n as u32,
            _ => unreachable!(),
        })
    };
    let truth = |f: Option<Field>| f.map(|f| matches!(f, Field::Number(n) if n != 0.0));
    let text = |f: Option<Field>| {
        f.map(|f| match f {
            Field::Text(t) => t,
            _ => unreachable!(),
        })
    };
    let list = |f: Option<Field>| match f {
        Some(Field::List(l)) => l,
        _ => vec![],
    };
    let texts = |f| list(f).into_iter().map(|f| text(Some(f)).unwrap()).collect();
    let numbers = |f| {
        list(f)
            .into_iter()
            .map(|f| match f {
                Field::Number(n) => n,
                _ => unreachable!(),
            })
            .collect::<Vec<f64>>()
    };
    GgufVocabulary {
        model: text(take("model")).unwrap(),
        pre: text(take("pre")),
        tokens: texts(take("tokens")),
        token_types: numbers(take("token_type")).into_iter().map(|n| n as i32).collect(),
        scores: numbers(take("scores")).into_iter().map(|n| n as f32).collect(),
        merges: texts(take("merges")),
        bos: number(take("bos_token_id")),
        eos: number(take("eos_token_id")),
        eot: number(take("eot_token_id")),
        unk: number(take("unknown_token_id")),
        pad: number(take("padding_token_id")),
        add_bos: truth(take("add_bos_token")),
        add_eos: truth(take("add_eos_token")),
        add_space_prefix: truth(take("add_space_prefix")),
        chat_template: text(fields.remove("tokenizer.chat_template")),
    }
}

enum Field {
    Number(f64),
    Text(String),
    List(Vec<Field>),
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let out = self.bytes[self.at..self.at + N].try_into().unwrap();
        self.at += N;
        out
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn text(&mut self) -> String {
        let n = self.u64() as usize;
        let out = String::from_utf8_lossy(&self.bytes[self.at..self.at + n]).into_owned();
        self.at += n;
        out
    }
    fn field(&mut self, kind: u32) -> Field {
        Field::Number(match kind {
            0 | 7 => f64::from(self.take::<1>()[0]),
            1 => f64::from(i8::from_le_bytes(self.take())),
            2 => f64::from(u16::from_le_bytes(self.take())),
            3 => f64::from(i16::from_le_bytes(self.take())),
            4 => f64::from(self.u32()),
            5 => f64::from(i32::from_le_bytes(self.take())),
            6 => f64::from(f32::from_le_bytes(self.take())),
            8 => return Field::Text(self.text()),
            9 => {
                let kind = self.u32();
                let n = self.u64();
                return Field::List((0..n).map(|_| self.field(kind)).collect());
            }
            10 => self.u64() as f64,
            11 => i64::from_le_bytes(self.take()) as f64,
            12 => f64::from_le_bytes(self.take()),
            other => unreachable!("GGUF value type {other}"),
        })
    }
}
