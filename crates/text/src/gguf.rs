//! The vocabulary inside a GGUF file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use episode::Token;
use serde_json::json;

use crate::TextError;
use crate::added::Added;
use crate::error::Inconsistency;
use crate::spec::{Spec, Style};

/// Fields `tokenizer.ggml.*` of a GGUF file, as they stand there; whoever reads the file fills this in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `model`: `gpt2` for byte-level merging, `llama` for SentencePiece.
    pub model: String,
    /// `pre`: the rule that cuts text into words.
    pub pre: Option<String>,
    /// `tokens`: the text of each token.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty means all normal.
    ///
    /// An unused one is a row of the embedding without a token: it has no text and no text becomes it, so it is
    /// structural. One that a merge or a field names is in use all the same.
    pub token_types: Vec<i32>,
    /// `scores`: of each token, needed for `llama`.
    pub scores: Vec<f32>,
    /// `merges`: pairs joined by a space, needed for `gpt2`.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn where `eos` ends a document.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: whether `llama` puts a space before a text; true where the file does not say.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

pub(crate) fn spec(gguf: GgufVocabulary) -> Result<Spec, TextError> {
    let n_tokens = gguf.tokens.len();
    let length =
        |name, needed, got| if needed == got { Ok(()) } else { Err(Inconsistency::Length { name, needed, got }) };
    crate::spec::id(n_tokens as u64)?;
    if !gguf.token_types.is_empty() {
        length("tokenizer.ggml.token_type", n_tokens, gguf.token_types.len())?;
    }
    for (id, &got) in gguf.token_types.iter().enumerate() {
        if !(1..=6).contains(&got) {
            return Err(Inconsistency::BadType { id: id as Token, got }.into());
        }
    }
    let kind = |id: Token| gguf.token_types.get(id as usize).copied().unwrap_or(1);
    let names = [("bos_token", gguf.bos), ("eos_token", gguf.eos), ("unk_token", gguf.unk), ("pad_token", gguf.pad)];
    let named: BTreeMap<String, Token> = names.iter().filter_map(|(n, id)| Some((n.to_string(), (*id)?))).collect();
    for (name, id) in named.iter().map(|(n, id)| (n.as_str(), *id)).chain(gguf.eot.map(|id| ("eot_token", id))) {
        if id as usize >= n_tokens {
            return Err(Inconsistency::NoSuchToken { name: name.into(), id: id.into() }.into());
        }
    }
    let style = match gguf.model.as_str() {
        "gpt2" => Style::ByteLevel,
        "llama" => Style::SentencePiece { strip_first_space: gguf.add_space_prefix.unwrap_or(true) },
        other => {
            return Err(TextError::Unsupported { part: "model", got: other.into(), needed: "`gpt2` or `llama`" });
        }
    };
    let mut vocabulary: BTreeMap<Token, String> = (0..).zip(gguf.tokens).collect();
    if style != Style::ByteLevel {
        // Such tokens are written with spaces; the normaliser turns a text's spaces into ▁ before they could match.
        for (_, text) in vocabulary.iter_mut().filter(|(id, _)| kind(**id) == USER_DEFINED) {
            *text = text.replace(' ', "▁");
        }
    }
    let named_special: BTreeSet<Token> = named.values().copied().chain(gguf.eot).collect();
    let mut added = BTreeMap::new();
    for (&id, text) in &vocabulary {
        let special = matches!(kind(id), CONTROL | UNKNOWN) || named_special.contains(&id);
        if special || kind(id) == USER_DEFINED {
            let content = text.clone();
            let flags = Added {
                id,
                content,
                special,
                normalized: false,
                single_word: false,
                lstrip: false,
                rstrip: false,
                control: false,
            };
            added.insert(id, flags);
        }
    }
    let list = |add: Option<bool>, id: Option<u32>| add.unwrap_or(false).then_some(id).flatten().into_iter().collect();
    let mut spec = Spec {
        merges: Vec::new(),
        added,
        normalizer: None,
        pre_tokenizer: None,
        style,
        unk: None,
        byte_fallback: false,
        fuse_unk: false,
        ignore_merges: false,
        before: list(gguf.add_bos, gguf.bos),
        after: list(gguf.add_eos, gguf.eos),
        eos: gguf.eos.into_iter().chain(gguf.eot).collect(),
        named,
        template: gguf.chat_template,
        vocabulary,
    };
    let is_unused = |id: Token| kind(id) == UNUSED && !named_special.contains(&id);
    match style {
        Style::ByteLevel => {
            let pre = crate::pre::named(gguf.pre.as_deref())?;
            spec.merges = pairs(gguf.merges)?;
            drop_unused(&mut spec, is_unused);
            spec.normalizer = pre.normalizer;
            spec.pre_tokenizer = Some(pre.pre_tokenizer);
            spec.ignore_merges = pre.ignore_merges;
        }
        Style::SentencePiece { strip_first_space } => {
            length("tokenizer.ggml.scores", n_tokens, gguf.scores.len())?;
            if let Some(id) = gguf.scores.iter().position(|score| score.is_nan()) {
                return Err(Inconsistency::BadScore { id: id as Token }.into());
            }
            drop_unused(&mut spec, is_unused);
            // Such tokens are joined before all others, whatever score the file gives them.
            let score = |id: Token| if kind(id) == USER_DEFINED { f32::INFINITY } else { gguf.scores[id as usize] };
            let whole = |id: &Token| !matches!(kind(*id), CONTROL | UNKNOWN | BYTE);
            spec.merges = by_score(&spec.vocabulary, score, whole);
            let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
            spec.normalizer = Some(match strip_first_space {
                true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}),
                false => spaces,
            });
            spec.unk = gguf.unk.and_then(|id| spec.vocabulary.get(&id)).cloned();
            spec.byte_fallback = true;
            spec.fuse_unk = true;
        }
    }
    Ok(spec)
}

/// Leaves tokens out that the file calls unused, unless merges reach them.
///
/// - Source: llama.cpp, `llama-vocab.cpp`, which gives such tokens an empty text and bars none of them from sampling; here
///   they are barred with everything that has no text.
fn drop_unused(spec: &mut Spec, is_unused: impl Fn(Token) -> bool) {
    if !spec.vocabulary.keys().any(|id| is_unused(*id)) {
        return;
    }
    let texts = |(left, right): &(String, String)| [left.clone(), right.clone(), format!("{left}{right}")];
    let reached: HashSet<String> = spec.merges.iter().flat_map(texts).collect();
    spec.vocabulary.retain(|id, text| !is_unused(*id) || reached.contains(text));
}

fn pairs(merges: Vec<String>) -> Result<Vec<(String, String)>, TextError> {
    let pair = |(index, text): (usize, String)| match text.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() => Ok((left.to_owned(), right.to_owned())),
        _ => Err(Inconsistency::BadMerge { index, text }.into()),
    };
    merges.into_iter().enumerate().map(pair).collect()
}

/// All ways in which two pieces join into a third, best score of the third first.
///
/// SentencePiece joins the neighbours that give the best score, the leftmost of equals; equal scores of different
/// pieces are here settled by the lengths of the two halves, as Hugging Face's converter does it.
///
/// - Source: `generate_merges` of Hugging Face transformers.
fn by_score(
    vocabulary: &BTreeMap<Token, String>,
    score: impl Fn(Token) -> f32,
    whole: impl Fn(&Token) -> bool,
) -> Vec<(String, String)> {
    let ids: HashMap<&str, Token> =
        vocabulary.iter().filter(|(id, _)| whole(id)).map(|(id, text)| (text.as_str(), *id)).collect();
    let mut found = Vec::new();
    for (&id, text) in vocabulary.iter().filter(|(id, _)| whole(id)) {
        for (middle, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(middle);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                found.push((id, l, r, left, right));
            }
        }
    }
    let chars = |text: &str| std::cmp::Reverse(text.chars().count());
    found.sort_by(|a, b| {
        score(b.0)
            .total_cmp(&score(a.0))
            .then_with(|| (chars(a.3), chars(a.4)).cmp(&(chars(b.3), chars(b.4))))
            .then_with(|| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)))
    });
    found.into_iter().map(|(_, _, _, left, right)| (left.to_owned(), right.to_owned())).collect()
}
