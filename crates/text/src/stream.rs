//! Tokens to text as they arrive, and the first stop string in it.

use episode::Token;

use crate::{TextError, Tokenizer};

/// Decodes one token at a time.
///
/// - Holds: without stop strings, all that is handed out, in order, is [`Tokenizer::decode`] of the tokens; nothing
///   handed out ends inside a character. With stop strings it is the text before the first of them: the one that is
///   complete first, and of two that end together the longer; how tokens cut the text makes no difference.
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    stops: Vec<String>,
    /// Bytes that may be the start of a character.
    bytes: Vec<u8>,
    /// Text that may be the start of a stop string.
    held: String,
    /// Whether a space that encoding put in front is still to be dropped.
    strip: bool,
    stopped: Option<usize>,
}

impl<'t> StreamDecoder<'t> {
    /// A decoder at the start of a text.
    ///
    /// - Errors: `EmptyStop`.
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool, stops: &[String]) -> Result<Self, TextError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop { index });
        }
        Ok(StreamDecoder {
            tokenizer,
            skip_special,
            stops: stops.to_vec(),
            bytes: Vec::new(),
            held: String::new(),
            strip: tokenizer.strips_first_space(),
            stopped: None,
        })
    }

    /// Takes a token; gives the text that is certain by now, which may be none. After a stop string it gives nothing.
    pub fn push(&mut self, token: Token) -> String {
        if self.stopped.is_some() || (self.skip_special && self.tokenizer.is_special(token)) {
            return String::new();
        }
        self.take(self.tokenizer.token_bytes(token), false)
    }

    /// Ends the text; gives what was still held back.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let mut out = self.take(&[], true);
        out.push_str(&std::mem::take(&mut self.held));
        out
    }

    /// The position in the list of the stop string that ended the text, if one did.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    fn take(&mut self, bytes: &[u8], last: bool) -> String {
        self.bytes.extend_from_slice(bytes);
        if self.strip && !self.bytes.is_empty() {
            self.strip = false;
            if self.bytes[0] == b' ' {
                self.bytes.remove(0);
            }
        }
        let old = self.held.len();
        let mut used = 0;
        // As `from_utf8_lossy` does it: one U+FFFD for each maximal stretch that begins a character and breaks off.
        for chunk in self.bytes.utf8_chunks() {
            self.held.push_str(chunk.valid());
            used += chunk.valid().len();
            let broken = chunk.invalid();
            let unfinished = used + broken.len() == self.bytes.len() && may_continue(broken);
            if broken.is_empty() || (unfinished && !last) {
                break;
            }
            self.held.push('\u{FFFD}');
            used += broken.len();
        }
        self.bytes.drain(..used);
        if let Some((start, stop)) = self.first_stop(old) {
            self.stopped = Some(stop);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Start and number of the stop string that is complete first; none ends before `old`.
    fn first_stop(&self, old: usize) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let mut from = (old + 1).saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from += 1;
            }
            let start = from + self.held.get(from..)?.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }
}

/// Whether bytes that do not end a character may yet become one.
fn may_continue(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(e) if e.error_len().is_none())
}

/// Length of the longest end of `text` that begins `stop` without being all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(end, _)| end).skip(1);
    ends.filter(|end| text.ends_with(&stop[..*end])).last().unwrap_or(0)
}
