//! What a tokenizer consists of, whatever file it came from: the one form that is checked, hashed and built.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use episode::Token;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::TextError;
use crate::added::Added;
use crate::error::Inconsistency;

/// Ids from here on are refused: a table of all of them would not fit in memory, and no vocabulary comes near.
pub(crate) const ID_LIMIT: u64 = 1 << 24;

/// Texts by which model families end a turn; used when the files name too few. Source: llama.cpp, `llama-vocab.cpp`.
const END_OF_TURN: [&str; 16] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
];

/// How a token's text stands for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// One printable character for each byte, as GPT-2 does it.
    ByteLevel,
    /// Plain text with `▁` for a space and `<0xNN>` for a byte, as SentencePiece does it.
    SentencePiece {
        /// Whether encoding put a space in front, which decoding takes away again.
        strip_first_space: bool,
    },
}

/// The parts of a tokenizer.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// The text of each token that merging can reach.
    pub(crate) vocabulary: BTreeMap<Token, String>,
    /// Pairs to merge, most urgent first.
    pub(crate) merges: Vec<(String, String)>,
    /// Tokens that are matched as a whole before anything is merged.
    pub(crate) added: BTreeMap<Token, Added>,
    /// Normaliser, in the words of `tokenizer.json`.
    pub(crate) normalizer: Option<Value>,
    /// Pre-tokeniser, in the words of `tokenizer.json`.
    pub(crate) pre_tokenizer: Option<Value>,
    /// How texts stand for bytes.
    pub(crate) style: Style,
    /// The text of the token for what cannot be encoded.
    pub(crate) unk: Option<String>,
    /// Whether an unknown character falls back to `<0xNN>` tokens.
    pub(crate) byte_fallback: bool,
    /// Whether neighbouring unknown characters share one token.
    pub(crate) fuse_unk: bool,
    /// Whether a word that is a token is taken whole, without merging.
    pub(crate) ignore_merges: bool,
    /// Tokens the tokenizer puts before raw text.
    pub(crate) before: Vec<Token>,
    /// Tokens it puts after raw text.
    pub(crate) after: Vec<Token>,
    /// Named tokens the template may print: `bos_token` and so on.
    pub(crate) named: BTreeMap<String, Token>,
    /// Tokens that end a turn, as the files name them.
    pub(crate) eos: BTreeSet<Token>,
    /// The chat template's source.
    pub(crate) template: Option<String>,
}

impl Spec {
    /// The text of a token, from either list.
    pub(crate) fn text(&self, id: Token) -> Option<&str> {
        self.added.get(&id).map(|a| a.content.as_str()).or_else(|| self.vocabulary.get(&id).map(String::as_str))
    }

    /// All tokens and their texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (Token, &str)> {
        let rest = self.added.values().filter(|a| !self.vocabulary.contains_key(&a.id));
        self.vocabulary.iter().map(|(id, text)| (*id, text.as_str())).chain(rest.map(|a| (a.id, a.content.as_str())))
    }

    /// One more than the largest id.
    pub(crate) fn size(&self) -> usize {
        let last = self.vocabulary.keys().next_back().max(self.added.keys().next_back());
        last.map_or(0, |id| *id as usize + 1)
    }

    /// Refuses what contradicts itself, and marks the added tokens that are control tokens.
    pub(crate) fn check(&mut self) -> Result<(), TextError> {
        if self.vocabulary.is_empty() {
            return Err(Inconsistency::Empty.into());
        }
        let mut ids: HashMap<&str, Token> = HashMap::with_capacity(self.vocabulary.len());
        for (&id, text) in &self.vocabulary {
            if let Some(first) = ids.insert(text, id) {
                return Err(Inconsistency::TwoIds { text: text.clone(), first, second: id }.into());
            }
        }
        for (&id, added) in &self.added {
            if let Some(text) = self.vocabulary.get(&id).filter(|text| **text != added.content) {
                return Err(Inconsistency::TwoTexts { id, first: text.clone(), second: added.content.clone() }.into());
            }
            if let Some(&other) = ids.get(added.content.as_str()).filter(|other| **other != id) {
                return Err(Inconsistency::TwoIds { text: added.content.clone(), first: other, second: id }.into());
            }
        }
        if let Some(unk) = self.unk.as_ref().filter(|unk| !ids.contains_key(unk.as_str())) {
            return Err(Inconsistency::NoSuchText { name: "unk_token".into(), text: unk.clone() }.into());
        }
        for (name, id) in self
            .named
            .iter()
            .map(|(name, id)| (name.as_str(), *id))
            .chain(self.eos.iter().chain(&self.before).chain(&self.after).map(|id| ("special token", *id)))
        {
            if self.text(id).is_none() {
                return Err(Inconsistency::NoSuchToken { name: name.into(), id: id.into() }.into());
            }
        }
        let mut products = HashSet::with_capacity(self.merges.len());
        for (index, (left, right)) in self.merges.iter().enumerate() {
            let joined = format!("{left}{right}");
            if ![left.as_str(), right.as_str(), &joined].iter().all(|text| ids.contains_key(text)) {
                return Err(Inconsistency::BadMerge { index, text: format!("{left} {right}") }.into());
            }
            products.insert(joined);
        }
        for added in self.added.values_mut() {
            added.control = added.special || !(is_wordlike(&added.content) || products.contains(&added.content));
        }
        Ok(())
    }

    /// All tokens that end a turn: those the files name, and special tokens known to mean it.
    pub(crate) fn end_of_turn(&self) -> BTreeSet<Token> {
        let special = || self.added.values().filter(|a| a.special);
        // In the harmony format `<|end|>` closes a message in the middle of a turn; `<|return|>` closes the turn.
        let harmony = special().any(|a| a.content == "<|return|>");
        let known = |text: &str| END_OF_TURN.contains(&text) && !(harmony && text == "<|end|>");
        let mut eos = self.eos.clone();
        eos.extend(special().filter(|a| known(&a.content)).map(|a| a.id));
        eos
    }

    /// SHA-256 over everything that decides an encoding or a rendering.
    ///
    /// - Holds: independent of the order of keys in the files; each part is preceded by its length, so no two
    ///   different specifications are written alike.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = Hash(Sha256::new());
        hash.text("surefoot tokenizer 1");
        hash.number(self.vocabulary.len());
        for (id, text) in &self.vocabulary {
            hash.number(*id as usize);
            hash.text(text);
        }
        hash.number(self.merges.len());
        for (left, right) in &self.merges {
            hash.text(left);
            hash.text(right);
        }
        hash.number(self.added.len());
        for added in self.added.values() {
            hash.number(added.id as usize);
            hash.text(&added.content);
            for flag in [added.special, added.normalized, added.single_word, added.lstrip, added.rstrip] {
                hash.number(usize::from(flag));
            }
        }
        for part in [&self.normalizer, &self.pre_tokenizer] {
            hash.text(&part.as_ref().map_or_else(String::new, canonical));
        }
        hash.text(&format!("{:?}", self.style));
        hash.text(self.unk.as_deref().unwrap_or_default());
        for flag in [self.byte_fallback, self.fuse_unk, self.ignore_merges] {
            hash.number(usize::from(flag));
        }
        for list in [&self.before, &self.after, &self.end_of_turn().into_iter().collect()] {
            hash.number(list.len());
            list.iter().for_each(|id| hash.number(*id as usize));
        }
        hash.number(self.named.len());
        for (name, id) in &self.named {
            hash.text(name);
            hash.number(*id as usize);
        }
        hash.number(usize::from(self.template.is_some()));
        hash.text(self.template.as_deref().unwrap_or_default());
        hash.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// An id read from a file.
///
/// - Errors: `IdTooLarge`.
pub(crate) fn id(value: u64) -> Result<Token, TextError> {
    match Token::try_from(value) {
        Ok(id) if value < ID_LIMIT => Ok(id),
        _ => Err(Inconsistency::IdTooLarge { id: value, limit: ID_LIMIT }.into()),
    }
}

/// A word someone added to the vocabulary, as opposed to mark-up: harmless wherever it stands.
fn is_wordlike(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c.is_whitespace() || matches!(c, '-' | '_' | '\'' | '▁'))
}

/// A JSON value with its keys in order.
fn canonical(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Array(items) => items.iter().map(sorted).collect(),
            Value::Object(map) => {
                map.iter().map(|(k, v)| (k.clone(), sorted(v))).collect::<BTreeMap<_, _>>().into_iter().collect()
            }
            other => other.clone(),
        }
    }
    sorted(value).to_string()
}

struct Hash(Sha256);

impl Hash {
    fn number(&mut self, n: usize) {
        self.0.update((n as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }
}
