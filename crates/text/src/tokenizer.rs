//! The tokenizer: text to tokens and back.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use episode::{Message, Token};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{Model, NormalizerWrapper, OffsetType, PreTokenizer, PreTokenizerWrapper};

use crate::added::{AddedTokens, Author, Span, build_error};
use crate::chat::{ChatOptions, ChatTemplate};
use crate::spec::{Spec, Style};
use crate::{Date, GgufVocabulary, TextError, gguf, huggingface, provenance};

/// What the spelling of a control token in a text stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// The control token: for text whose author is trusted, such as a template.
    Parse,
    /// Its letters: for everything else.
    Literal,
}

/// Text to tokens and back, for one vocabulary; shared freely between threads.
pub struct Tokenizer {
    pub(crate) added: AddedTokens,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
    bytes: ByteTable,
    /// Special tokens, by id.
    special: Vec<bool>,
    control: Vec<Token>,
    strip_first_space: bool,
    before: Vec<Token>,
    after: Vec<Token>,
    bos: Option<Token>,
    eos: Vec<Token>,
    structural: Vec<Token>,
    missing_bytes: Vec<u8>,
    chat: Option<ChatTemplate>,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads a Hugging Face model folder: `tokenizer.json`, and where there are such files `tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json`, `config.json` (for the tokens that end a turn) and
    /// `chat_template.jinja`.
    ///
    /// - Errors: `Read`, `Json`; `Unsupported` names the first part that is not byte-pair encoding as GPT-2 or
    ///   SentencePiece spell it; `Inconsistent`; `TemplateSyntax`.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        Self::build(huggingface::spec(folder)?)
    }

    /// Builds the tokenizer a GGUF file describes.
    ///
    /// - Errors: `Unsupported` names an unknown `model` or `pre`; `Inconsistent`; `TemplateSyntax`.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TextError> {
        Self::build(gguf::spec(vocabulary)?)
    }

    fn build(mut spec: Spec) -> Result<Self, TextError> {
        spec.check()?;
        let part = |value: &Option<serde_json::Value>| value.clone().filter(|v| !v.is_null());
        let normalizer = part(&spec.normalizer).map(serde_json::from_value::<NormalizerWrapper>).transpose();
        let normalizer = normalizer.map_err(|e| build_error("normalizer", e))?;
        let pre_tokenizer = part(&spec.pre_tokenizer).map(serde_json::from_value::<PreTokenizerWrapper>).transpose();
        let pre_tokenizer = pre_tokenizer.map_err(|e| build_error("pre-tokenizer", e))?;
        let chat = spec.template.as_deref().map(|source| {
            let named = spec.named.iter().filter_map(|(name, id)| Some((name.clone(), spec.text(*id)?.to_owned())));
            ChatTemplate::new(source, named)
        });
        let size = spec.size();
        let mut special = vec![false; size];
        spec.added.values().filter(|a| a.special).for_each(|a| special[a.id as usize] = true);
        let eos = spec.end_of_turn();
        let structural = (0..size as Token)
            .filter(|id| (special[*id as usize] || spec.text(*id).is_none()) && !eos.contains(id))
            .collect();
        Ok(Tokenizer {
            fingerprint: spec.fingerprint(),
            model: model(&spec)?,
            bytes: ByteTable::new(&spec),
            missing_bytes: missing_bytes(&spec),
            bos: spec.named.get("bos_token").copied(),
            eos: eos.into_iter().collect(),
            control: spec.added.values().filter(|a| a.control).map(|a| a.id).collect(),
            added: AddedTokens::new(spec.added.into_values().collect(), normalizer.as_ref())?,
            strip_first_space: spec.style == Style::SentencePiece { strip_first_space: true },
            before: spec.before,
            after: spec.after,
            normalizer,
            pre_tokenizer,
            special,
            structural,
            chat: chat.transpose()?,
        })
    }

    /// Encodes a text as it stands, without the tokens that open and close a document (see [`Tokenizer::before`]).
    ///
    /// - Holds: with [`Special::Literal`] no token is one of [`Tokenizer::control`]; with [`Special::Parse`] the ids
    ///   are those of Hugging Face's tokenizer with `add_special_tokens=False`.
    pub fn encode(&self, text: &str, special: Special) -> Vec<Token> {
        match special {
            Special::Parse => self.encode_spans(text, &[]),
            Special::Literal => self.encode_spans(text, &[Span { range: 0..text.len(), author: Author::Outside }]),
        }
    }

    /// Encodes a text in which the template wrote everything but the spans.
    pub(crate) fn encode_spans(&self, text: &str, spans: &[Span]) -> Vec<Token> {
        let encoded = self.added.split(text, spans, self.normalizer.as_ref()).and_then(|mut pieces| {
            if let Some(pre_tokenizer) = &self.pre_tokenizer {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| self.model.tokenize(piece.get()))?;
            pieces.into_encoding(None, 0, OffsetType::None)
        });
        encoded.expect("every step is total: splits fall on characters and the unknown token exists").get_ids().to_vec()
    }

    /// The text of some tokens; ids without a token have none.
    ///
    /// - Holds: bytes that are not UTF-8 become U+FFFD, one for each maximal broken stretch.
    pub fn decode(&self, tokens: &[Token], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &token in tokens.iter().filter(|t| !(skip_special && self.is_special(**t))) {
            bytes.extend_from_slice(self.token_bytes(token));
        }
        let start = usize::from(self.strip_first_space && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    /// The bytes a token adds to the text; none for an id without a token.
    pub fn token_bytes(&self, token: Token) -> &[u8] {
        self.bytes.get(token)
    }

    /// Whether decoding leaves this token out on request.
    pub fn is_special(&self, token: Token) -> bool {
        self.special.get(token as usize).copied().unwrap_or(false)
    }

    pub(crate) fn strips_first_space(&self) -> bool {
        self.strip_first_space
    }

    /// One more than the largest id. A model may have more rows than that; they stand for nothing and must not be
    /// sampled.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// The token that opens a document, if the files name one.
    pub fn bos(&self) -> Option<Token> {
        self.bos
    }

    /// All tokens that end a turn, ascending: those the files name and those known by their text, such as `<|im_end|>`.
    pub fn eos(&self) -> &[Token] {
        &self.eos
    }

    /// Tokens to put before raw text that opens a document, as the files ask; a chat template writes its own.
    pub fn before(&self) -> &[Token] {
        &self.before
    }

    /// Tokens to put after raw text that closes a document, as the files ask.
    pub fn after(&self) -> &[Token] {
        &self.after
    }

    /// Special tokens that do not end a turn, and ids without a token, ascending: what a policy must never sample.
    ///
    /// Mark-up that a policy has to write, such as `<tool_call>`, is not special and not among them.
    pub fn structural(&self) -> &[Token] {
        &self.structural
    }

    /// Tokens that shape a conversation, ascending; literal text never encodes to one.
    ///
    /// These are the special tokens, and other added tokens unless they are words or ordinary merging reaches them too.
    pub fn control(&self) -> &[Token] {
        &self.control
    }

    /// Bytes of UTF-8 text that this vocabulary cannot express and silently drops, ascending; the same bytes are
    /// dropped by Hugging Face's tokenizer.
    ///
    /// - Holds: in a byte-level vocabulary without a normaliser, `decode(encode(x)) = x` for every text `x` that has
    ///   none of these bytes.
    pub fn missing_bytes(&self) -> &[u8] {
        &self.missing_bytes
    }

    /// SHA-256, in hex, over everything that decides an encoding or a rendering.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The chat template, if there is one.
    pub fn chat(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Sets the date that the chat template may print. Without one, `strftime_now` does not exist, and templates that
    /// ask whether it does print a date of their own.
    pub fn with_date(mut self, date: Date) -> Self {
        self.chat = self.chat.map(|chat| chat.with_date(date));
        self
    }

    /// Renders a conversation and encodes it, so that only the template's own text can become control tokens.
    ///
    /// - Holds: where no content spells a control token, alone or together with what stands beside it, the ids are
    ///   those of Hugging Face's `apply_chat_template(tokenize=True)`. No content becomes a special token, whatever it
    ///   spells; content of any role but [`Role::Assistant`](episode::Role::Assistant) becomes no control token.
    ///   A template that changes the letters of a content (say, its case) is beyond this promise.
    /// - Errors: `NoTemplate`, `TemplateRefused`, `TemplateFailed`.
    pub fn render_tokens(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Vec<Token>, TextError> {
        self.render_tokens_with(messages, &ChatOptions { add_generation_prompt, ..ChatOptions::default() })
    }

    /// [`Tokenizer::render_tokens`] with tools and template variables; their strings are content like the messages'.
    pub fn render_tokens_with(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<Token>, TextError> {
        let chat = self.chat.as_ref().ok_or(TextError::NoTemplate)?;
        let (text, spans) = provenance::render(&self.added, chat, messages, options)?;
        Ok(self.encode_spans(&text, &spans))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// The merges, without those that lead to a control token: so that no text can.
fn model(spec: &Spec) -> Result<BPE, TextError> {
    let control: HashSet<&str> = spec.added.values().filter(|a| a.control).map(|a| a.content.as_str()).collect();
    let keep = |text: &str| !control.contains(text);
    // The unknown token stays: it stands for what cannot be encoded, and its own spelling is no longer merged to it.
    let vocabulary = spec.vocabulary.iter().filter(|(_, text)| keep(text) || spec.unk.as_ref() == Some(text));
    let vocabulary: Vocab = vocabulary.map(|(id, text)| (text.clone(), *id)).collect();
    let mut joined = String::new();
    let merges = spec.merges.iter().filter(|(left, right)| {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        keep(left) && keep(right) && keep(&joined)
    });
    let mut builder = BPE::builder()
        .vocab_and_merges(vocabulary, merges.cloned().collect())
        .byte_fallback(spec.byte_fallback)
        .fuse_unk(spec.fuse_unk)
        .ignore_merges(spec.ignore_merges);
    if let Some(unk) = &spec.unk {
        builder = builder.unk_token(unk.clone());
    }
    builder.build().map_err(|e| build_error("merges", e))
}

/// The bytes of each token, end to end.
struct ByteTable {
    bytes: Vec<u8>,
    /// Where token `i` ends; it begins where the one before ends.
    ends: Vec<usize>,
}

impl ByteTable {
    fn new(spec: &Spec) -> Self {
        let size = spec.size();
        let mut table = ByteTable { bytes: Vec::new(), ends: Vec::with_capacity(size) };
        for id in 0..size as Token {
            match (spec.added.get(&id), spec.vocabulary.get(&id), spec.style) {
                (Some(added), _, Style::ByteLevel) => table.bytes.extend_from_slice(added.content.as_bytes()),
                (None, Some(text), Style::ByteLevel) => push_byte_level(&mut table.bytes, text),
                (Some(added), _, Style::SentencePiece { .. }) => push_piece(&mut table.bytes, &added.content),
                (None, Some(text), Style::SentencePiece { .. }) => match byte_piece(text) {
                    Some(byte) if spec.byte_fallback => table.bytes.push(byte),
                    _ => push_piece(&mut table.bytes, text),
                },
                (None, None, _) => {}
            }
            table.ends.push(table.bytes.len());
        }
        table
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, token: Token) -> &[u8] {
        let index = token as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..end]
    }
}

fn push_piece(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(text.replace('▁', " ").as_bytes());
}

/// The byte of a piece such as `<0x0A>`.
fn byte_piece(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let exact = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if exact { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A text of byte characters; one that holds any other character stands for itself.
fn push_byte_level(bytes: &mut Vec<u8>, text: &str) {
    let start = bytes.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// GPT-2's character for a byte: itself where printable, else the next free one from U+0100.
pub(crate) fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            let rank = match byte {
                0..=0x20 => u32::from(byte),
                0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
                _ => 0x43,
            };
            char::from_u32(0x100 + rank).expect("U+0100 to U+0143 are characters")
        }
    }
}

fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|byte| char_of(*byte) == c),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

fn missing_bytes(spec: &Spec) -> Vec<u8> {
    let texts: BTreeSet<&str> = spec.vocabulary.values().map(String::as_str).filter(|t| t.len() <= 6).collect();
    let has = |byte: u8| match spec.style {
        Style::ByteLevel => texts.contains(char_of(byte).to_string().as_str()),
        Style::SentencePiece { .. } => {
            spec.unk.is_some() || (spec.byte_fallback && texts.contains(format!("<0x{byte:02X}>").as_str()))
        }
    };
    // C0, C1 and F5 to FF occur in no UTF-8 text.
    let utf8 = |byte: &u8| !matches!(byte, 0xC0 | 0xC1 | 0xF5..=0xFF);
    if spec.style == Style::ByteLevel && spec.unk.is_some() {
        return Vec::new();
    }
    (0..=u8::MAX).filter(utf8).filter(|byte| !has(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_characters_are_a_bijection() {
        let chars: BTreeSet<char> = (0..=u8::MAX).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        assert!((0..=u8::MAX).all(|byte| byte_of(char_of(byte)) == Some(byte)));
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xAD)), ('Ġ', 'Ċ', 'Ń'));
        assert_eq!((byte_of(' '), byte_of('Ń'), byte_of('ń')), (None, Some(0xAD), None));
    }

    #[test]
    fn a_byte_piece_is_exactly_two_hex_digits() {
        assert_eq!(byte_piece("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x00A>", "<0x0G>", "0x0A", "<0x+A>"] {
            assert_eq!(byte_piece(text), None, "{text}");
        }
    }
}
