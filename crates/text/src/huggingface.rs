//! The tokenizer files of a Hugging Face model folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use episode::Token;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper};

use crate::TextError;
use crate::added::{Added, build_error};
use crate::error::Inconsistency;
use crate::spec::{Spec, Style, id};

/// Names of tokens that templates may print.
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer.json`. Its truncation and padding are left out: they are settings of a call, which the reference resets.
#[derive(Deserialize)]
struct File {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(default)]
    added_tokens: Vec<Entry>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: BTreeMap<String, u64>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Just the kind of model, to name it when it is not ours.
#[derive(Deserialize)]
struct Probe {
    model: ProbeModel,
}

#[derive(Deserialize)]
struct ProbeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    merges: Option<IgnoredAny>,
}

/// A pair, written `"a b"` or `["a", "b"]`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Merge;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a merge: `\"a b\"` or `[\"a\", \"b\"]`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                let pair = text.split_once(' ').map(|(left, right)| Merge(left.to_owned(), right.to_owned()));
                pair.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let short = |n| serde::de::Error::invalid_length(n, &"two texts");
                let left = seq.next_element()?.ok_or_else(|| short(0))?;
                let right = seq.next_element()?.ok_or_else(|| short(1))?;
                Ok(Merge(left, right))
            }
        }
        from.deserialize_any(Visitor)
    }
}

#[derive(Deserialize)]
struct Entry {
    id: Option<u64>,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// `tokenizer_config.json` or `special_tokens_map.json`.
#[derive(Default, Deserialize)]
struct Config {
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, Entry>,
    #[serde(default)]
    extra_special_tokens: Value,
    chat_template: Option<Template>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Template {
    One(String),
    Many(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// `generation_config.json` or `config.json`.
#[derive(Default, Deserialize)]
struct Generation {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u64),
    Many(Vec<u64>),
}

pub(crate) fn spec(folder: &Path) -> Result<Spec, TextError> {
    let path = folder.join("tokenizer.json");
    let text = read(&path)?;
    let json = |cause| TextError::Json { path: path.clone(), cause };
    let probe: Probe = serde_json::from_str(&text).map_err(json)?;
    let kind = probe.model.kind.unwrap_or_else(|| {
        let kind = if probe.model.merges.is_some() { "BPE" } else { "unnamed" };
        kind.into()
    });
    if kind != "BPE" {
        return Err(TextError::Unsupported { part: "model", got: kind, needed: "`BPE`" });
    }
    let file: File = serde_json::from_str(&text).map_err(json)?;
    drop(text);
    let config: Config = optional(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let older: Config = optional(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let generation: Generation = optional(&folder.join("generation_config.json"))?.unwrap_or_default();
    let model: Generation = optional(&folder.join("config.json"))?.unwrap_or_default();

    let style = style(file.decoder.as_ref())?;
    let mut spec = from_file(file, style)?;
    spec.template = match optional_text(&folder.join("chat_template.jinja"))? {
        Some(template) => Some(template),
        None => config.chat_template.map(template).transpose()?,
    };
    for (key, entry) in config.added_tokens_decoder {
        let number =
            key.parse().map_err(|_| Inconsistency::NoSuchText { name: "added_tokens_decoder".into(), text: key })?;
        let added = added(number, entry)?;
        spec.added.insert(added.id, added);
    }
    let ids: BTreeMap<String, Token> = spec.texts().map(|(id, text)| (text.to_owned(), id)).collect();
    let extra = config.extra_special_tokens.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v));
    let names = NAMES.iter().filter_map(|n| Some((*n, config.rest.get(*n).or_else(|| older.rest.get(*n))?)));
    for (name, value) in names.chain(extra) {
        let Some(text) = value.as_str().or_else(|| value.get("content").and_then(Value::as_str)) else { continue };
        let missing = || Inconsistency::NoSuchText { name: name.into(), text: text.into() };
        let id = *ids.get(text).ok_or_else(missing)?;
        spec.named.insert(name.to_owned(), id);
        // The reference adds every named token as a special one.
        spec.added.entry(id).or_insert_with(|| plain(id, text)).special = true;
    }
    let asked = [generation.eos_token_id, model.eos_token_id].into_iter().flatten().next();
    spec.eos = match asked {
        Some(Ids::One(one)) => BTreeSet::from([id(one)?]),
        Some(Ids::Many(many)) => many.into_iter().map(id).collect::<Result<_, _>>()?,
        None => BTreeSet::new(),
    };
    spec.eos.extend(spec.named.get("eos_token"));
    add_or_drop(&mut spec.before, config.add_bos_token, spec.named.get("bos_token"));
    add_or_drop(&mut spec.after, config.add_eos_token, spec.named.get("eos_token"));
    Ok(spec)
}

fn from_file(file: File, style: Style) -> Result<Spec, TextError> {
    let model = file.model;
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err(unsupported(
            "dropout",
            model.dropout.unwrap_or_default().to_string(),
            "none: encoding must not be random",
        ));
    }
    for (part, affix) in
        [("subword prefix", model.continuing_subword_prefix), ("word suffix", model.end_of_word_suffix)]
    {
        if let Some(got) = affix.filter(|affix| !affix.is_empty()) {
            return Err(unsupported(part, got, "none"));
        }
    }
    let mut vocabulary = BTreeMap::new();
    for (text, number) in model.vocab {
        let id = id(number)?;
        if let Some(first) = vocabulary.insert(id, text) {
            let second = vocabulary.remove(&id).unwrap_or_default();
            return Err(Inconsistency::TwoTexts { id, first, second }.into());
        }
    }
    let merges = model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    let mut list = BTreeMap::new();
    for entry in file.added_tokens {
        let Some(number) = entry.id else {
            return Err(Inconsistency::NoSuchText { name: "added_tokens".into(), text: entry.content }.into());
        };
        let added = added(number, entry)?;
        list.insert(added.id, added);
    }
    let (before, after) = around(file.post_processor)?;
    Ok(Spec {
        vocabulary,
        merges,
        added: list,
        normalizer: file.normalizer,
        pre_tokenizer: file.pre_tokenizer.map(keep_all),
        style,
        unk: model.unk_token,
        byte_fallback: model.byte_fallback,
        fuse_unk: model.fuse_unk,
        ignore_merges: model.ignore_merges,
        before,
        after,
        named: BTreeMap::new(),
        eos: BTreeSet::new(),
        template: None,
    })
}

/// Keeps what a splitting rule does not match, where the file says to drop it.
///
/// The rules of that kind match every character, so this changes nothing, until a regular expression gives up on a text
/// with a million spaces in a row: then the rest of the text would be gone without a word.
fn keep_all(mut pre_tokenizer: Value) -> Value {
    match &mut pre_tokenizer {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = keep_all(item.take())),
        Value::Object(fields) => {
            let is = |name: &str, value: Value| fields.get(name) == Some(&value);
            if is("type", "Split".into()) && is("behavior", "Removed".into()) && is("invert", true.into()) {
                fields.insert("behavior".into(), "Isolated".into());
                fields.insert("invert".into(), false.into());
            }
            fields.values_mut().for_each(|value| *value = keep_all(value.take()));
        }
        _ => {}
    }
    pre_tokenizer
}

/// The kind of decoder tells how texts stand for bytes.
fn style(decoder: Option<&Value>) -> Result<Style, TextError> {
    const NEEDED: &str = "`ByteLevel`, or SentencePiece's `Replace`, `ByteFallback` and `Fuse`";
    let kind = |v: &Value| v.get("type").and_then(Value::as_str).unwrap_or("none").to_owned();
    let steps: Vec<&Value> = match decoder {
        Some(value) if kind(value) == "Sequence" => {
            value.get("decoders").and_then(Value::as_array).into_iter().flatten().collect()
        }
        Some(value) => vec![value],
        None => vec![],
    };
    let kinds: Vec<String> = steps.iter().map(|step| kind(step)).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let refuse = || unsupported("decoder", if kinds.is_empty() { "none".into() } else { kinds.join(", ") }, NEEDED);
    let string = |v: &Value, pointer: &str, want: &str| v.pointer(pointer).and_then(Value::as_str) == Some(want);
    match kinds.as_slice() {
        ["ByteLevel"] => Ok(Style::ByteLevel),
        ["Metaspace"] => {
            let step = steps[0];
            let never = string(step, "/prepend_scheme", "never")
                || step.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
            if !string(step, "/replacement", "▁") {
                return Err(refuse());
            }
            Ok(Style::SentencePiece { strip_first_space: !never })
        }
        ["Replace", "ByteFallback", "Fuse", rest @ ..] => {
            let spaces = string(steps[0], "/pattern/String", "▁") && string(steps[0], "/content", " ");
            let strip = match (rest, steps.get(3)) {
                ([], _) => false,
                (["Strip"], Some(step)) => {
                    let number = |key: &str| step.get(key).and_then(Value::as_u64);
                    if !string(step, "/content", " ") || number("start") != Some(1) || number("stop") != Some(0) {
                        return Err(refuse());
                    }
                    true
                }
                _ => return Err(refuse()),
            };
            if spaces { Ok(Style::SentencePiece { strip_first_space: strip }) } else { Err(refuse()) }
        }
        _ => Err(refuse()),
    }
}

/// What the post-processor puts before and after a text, found by showing it a text of one token.
fn around(post_processor: Option<Value>) -> Result<(Vec<Token>, Vec<Token>), TextError> {
    let Some(value) = post_processor.filter(|v| !v.is_null()) else { return Ok((vec![], vec![])) };
    let failed = |e: &dyn std::fmt::Display| build_error("post-processor", e);
    let processor: PostProcessorWrapper = serde_json::from_value(value).map_err(|e| failed(&e))?;
    let token = tokenizers::Token::new(Token::MAX, String::new(), (0, 0));
    let out = processor.process(Encoding::from_tokens(vec![token], 0), None, true).map_err(|e| failed(&e))?;
    let mut halves = out.get_ids().split(|id| *id == Token::MAX).map(<[Token]>::to_vec);
    Ok((halves.next().unwrap_or_default(), halves.next().unwrap_or_default()))
}

/// Some tokenizer classes let the configuration override what the post-processor says.
fn add_or_drop(list: &mut Vec<Token>, add: Option<bool>, token: Option<&Token>) {
    if let (Some(add), Some(token)) = (add, token) {
        match (add, list.contains(token)) {
            (true, false) => list.push(*token),
            (false, true) => list.retain(|t| t != token),
            _ => {}
        }
    }
}

fn template(template: Template) -> Result<String, TextError> {
    match template {
        Template::One(source) => Ok(source),
        Template::Many(list) => {
            let names = list.iter().map(|t| t.name.clone()).collect();
            let default = list.into_iter().find(|t| t.name == "default");
            default.map(|t| t.template).ok_or(TextError::NoDefaultTemplate { names })
        }
    }
}

fn added(number: u64, entry: Entry) -> Result<Added, TextError> {
    let Entry { content, special, normalized, single_word, lstrip, rstrip, .. } = entry;
    Ok(Added { id: id(number)?, content, special, normalized, single_word, lstrip, rstrip, control: false })
}

fn plain(id: Token, text: &str) -> Added {
    Added {
        id,
        content: text.into(),
        special: false,
        normalized: false,
        single_word: false,
        lstrip: false,
        rstrip: false,
        control: false,
    }
}

fn unsupported(part: &'static str, got: String, needed: &'static str) -> TextError {
    TextError::Unsupported { part, got, needed }
}

fn read(path: &Path) -> Result<String, TextError> {
    fs::read_to_string(path).map_err(|cause| TextError::Read { path: path.into(), cause })
}

fn optional_text(path: &Path) -> Result<Option<String>, TextError> {
    match read(path) {
        Err(TextError::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(text) = optional_text(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|cause| TextError::Json { path: path.into(), cause })
}
