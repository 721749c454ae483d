//! A GGUF file's metadata: the model's and the tokenizer's.

use model::export::gguf_metadata;
use tensor::weights::{Array, Metadata, Store, Value, WeightsError};
use text::GgufVocabulary;

use super::{ExportError, Source};

/// Keys about how a file's weights are stored, which are told anew.
const STORAGE: [&str; 5] = [
    "general.alignment",
    "general.architecture",
    "general.file_type",
    "general.quantization_version",
    "general.quantized_by",
];

/// Prefixes of keys about how a file was cut or made smaller.
const MADE: [&str; 2] = ["split.", "quantize."];

/// The metadata of a file to be written: what the source file says, or what a folder's files come to.
pub(super) fn metadata(
    config: &model::Config,
    source: &Source,
    base_name: &str,
    store: Store,
) -> Result<Vec<(String, Value)>, ExportError> {
    let text = |key: &str, value: &str| (key.to_owned(), Value::Text(value.to_owned()));
    // The format's numbers for "all f32", "mostly f16" and so on.
    let file_type = match store {
        Store::F32 => 0,
        Store::F16 => 1,
        Store::Q8_0 => 7,
        Store::Bf16 => 32,
    };
    let mut all = match source {
        Source::Gguf(file) => {
            let kept = |key: &str| !STORAGE.contains(&key) && !MADE.iter().any(|p| key.starts_with(p));
            let copied = file.metadata().iter().filter(|(key, _)| kept(key));
            let family = text("general.architecture", config.family);
            std::iter::once(family).chain(copied.map(|(key, value)| (key.to_owned(), value.clone()))).collect()
        }
        Source::Folder(folder) => {
            let vocabulary = GgufVocabulary::from_folder(folder, config.vocabulary)?;
            let mut all = gguf_metadata(config)?;
            all.insert(1, text("general.type", "model"));
            all.insert(2, text("general.name", base_name));
            all.extend(tokenizer(vocabulary));
            all
        }
    };
    all.push(("general.file_type".to_owned(), Value::U32(file_type)));
    all.push(("general.quantization_version".to_owned(), Value::U32(2)));
    Ok(all)
}

/// A vocabulary as keys and values; the inverse of [`vocabulary`].
fn tokenizer(v: GgufVocabulary) -> Vec<(String, Value)> {
    let id = |id: Option<u32>| id.map(Value::U32);
    let flag = |flag: Option<bool>| flag.map(Value::Bool);
    let scores = (!v.scores.is_empty()).then_some(Value::Array(Array::F32(v.scores)));
    let merges = (!v.merges.is_empty()).then_some(Value::Array(Array::Text(v.merges)));
    let fields = [
        ("model", Some(Value::Text(v.model))),
        ("pre", v.pre.map(Value::Text)),
        ("tokens", Some(Value::Array(Array::Text(v.tokens)))),
        ("token_type", Some(Value::Array(Array::I32(v.token_types)))),
        ("scores", scores),
        ("merges", merges),
        ("bos_token_id", id(v.bos)),
        ("eos_token_id", id(v.eos)),
        ("eot_token_id", id(v.eot)),
        ("unknown_token_id", id(v.unk)),
        ("padding_token_id", id(v.pad)),
        ("add_bos_token", flag(v.add_bos)),
        ("add_eos_token", flag(v.add_eos)),
        ("add_space_prefix", flag(v.add_space_prefix)),
    ];
    let fields = fields.into_iter().filter_map(|(key, value)| Some((format!("tokenizer.ggml.{key}"), value?)));
    let template = v.chat_template.map(|source| ("tokenizer.chat_template".to_owned(), Value::Text(source)));
    fields.chain(template).collect()
}

/// The tokenizer's fields of a GGUF file.
///
/// - Errors: a field that is missing or of another kind.
pub fn vocabulary(m: &Metadata) -> Result<GgufVocabulary, WeightsError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| m.find(&key(name)).map(|e| e.u32()).transpose();
    let flag = |name: &str| m.find(&key(name)).map(|e| e.bool()).transpose();
    let text = |name: &str| m.find(name).map(|e| e.str().map(str::to_owned)).transpose();
    Ok(GgufVocabulary {
        model: m.str(&key("model"))?.to_owned(),
        pre: text(&key("pre"))?,
        tokens: m.strings(&key("tokens"))?.to_vec(),
        token_types: m.find(&key("token_type")).map(|e| e.i32s()).transpose()?.unwrap_or_default(),
        scores: m.find(&key("scores")).map(|e| e.f32s().map(<[f32]>::to_vec)).transpose()?.unwrap_or_default(),
        merges: m.find(&key("merges")).map(|e| e.strings().map(<[String]>::to_vec)).transpose()?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    })
}
