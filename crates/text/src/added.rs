//! Added tokens: matched as a whole before anything is merged, and only where the text may write them.

use std::collections::HashSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use episode::Token;
use tokenizers::normalizer::Range as TextRange;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString};

use crate::TextError;

/// A token matched as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    /// Its id.
    pub(crate) id: Token,
    /// Its text.
    pub(crate) content: String,
    /// Left out of decoded text on request.
    pub(crate) special: bool,
    /// Matched in the normalised text rather than the original.
    pub(crate) normalized: bool,
    /// Matched only as a whole word.
    pub(crate) single_word: bool,
    /// Takes the white space before it.
    pub(crate) lstrip: bool,
    /// Takes the white space after it.
    pub(crate) rstrip: bool,
    /// Shapes the conversation, so text from outside may not write it. Set by `Spec::check`.
    pub(crate) control: bool,
}

/// Who wrote a stretch of text, and so which added tokens it may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Author {
    /// The policy's own words: mark-up such as `<think>`, but no special token.
    Policy,
    /// Anyone else: no control token at all.
    Outside,
}

/// A stretch of text that the template did not write; an empty one is a border no token may cross.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where, in bytes.
    pub(crate) range: Range<usize>,
    /// Who wrote it.
    pub(crate) author: Author,
}

/// The added tokens of one tokenizer.
pub(crate) struct AddedTokens {
    list: Vec<Added>,
    original: Option<Matcher>,
    normalized: Option<Matcher>,
    /// Parts of the tokens that an author may not write, for each kind of author.
    parts: [Parts; 2],
}

/// Proper beginnings and ends of some tokens.
#[derive(Default)]
struct Parts {
    beginnings: HashSet<String>,
    ends: HashSet<String>,
    /// Length of the longest, in bytes.
    longest: usize,
}

struct Matcher {
    automaton: AhoCorasick,
    /// For each pattern, its place in the list.
    places: Vec<usize>,
}

impl AddedTokens {
    pub(crate) fn new(list: Vec<Added>, normalizer: Option<&NormalizerWrapper>) -> Result<Self, TextError> {
        let mut original = Vec::new();
        let mut normalized = Vec::new();
        for (place, added) in list.iter().enumerate().filter(|(_, a)| !a.content.is_empty()) {
            if added.normalized {
                let mut text = NormalizedString::from(added.content.as_str());
                if let Some(normalizer) = normalizer {
                    normalizer.normalize(&mut text).map_err(|e| build_error("normalizer", e))?;
                }
                // A pattern that normalises to nothing would match everywhere.
                if !text.get().is_empty() {
                    normalized.push((place, text.get().to_owned()));
                }
            } else {
                original.push((place, added.content.clone()));
            }
        }
        let parts = [Author::Policy, Author::Outside].map(|author| {
            let forbidden = list.iter().filter(|a| !may_write(author, a));
            Parts::new(forbidden.map(|a| a.content.as_str()))
        });
        Ok(AddedTokens { original: Matcher::new(original)?, normalized: Matcher::new(normalized)?, parts, list })
    }

    /// Where a text spells a control token its author may not write, or begins or ends with a part of one that what
    /// stands beside it might complete: disjoint, in order.
    pub(crate) fn dangerous(&self, text: &str, author: Author) -> Vec<Range<usize>> {
        let mut found = self.forbidden_in(text, author);
        let parts = &self.parts[author as usize];
        let lengths = || (1..=parts.longest.min(text.len())).rev();
        // A template may trim; then the border is where the outer white space ends.
        for (start, end) in [(0, text.len()), (text.len() - text.trim_start().len(), text.trim_end().len())] {
            let ends = |n: &usize| text.get(end.saturating_sub(*n)..end).is_some_and(|p| parts.beginnings.contains(p));
            let begins = |n: &usize| text.get(start..start + n).is_some_and(|p| parts.ends.contains(p));
            found.extend(lengths().find(ends).map(|n| end - n.min(end)..end));
            found.extend(lengths().find(begins).map(|n| start..start + n));
        }
        found.sort_by_key(|range| (range.start, range.end));
        let mut disjoint: Vec<Range<usize>> = Vec::new();
        for range in found {
            match disjoint.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => disjoint.push(range),
            }
        }
        disjoint
    }

    fn forbidden_in(&self, text: &str, author: Author) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for matcher in [&self.original, &self.normalized].into_iter().flatten() {
            let hits = matcher.automaton.find_overlapping_iter(text);
            let hits = hits.map(|m| (m.range(), &self.list[matcher.places[m.pattern().as_usize()]]));
            found.extend(hits.filter(|(_, added)| !may_write(author, added)).map(|(range, _)| range));
        }
        found
    }

    /// Cuts a text at its added tokens and normalises the rest, as the `tokenizers` library does it, except that a
    /// token which touches a span must be one the span's author may write.
    ///
    /// - Holds: without spans, the same pieces as the library's own.
    pub(crate) fn split(
        &self,
        text: &str,
        spans: &[Span],
        normalizer: Option<&NormalizerWrapper>,
    ) -> tokenizers::Result<PreTokenizedString> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| self.cut(piece, self.original.as_ref(), spans))?;
        pieces.split(|_, mut piece| {
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut piece)?;
            }
            self.cut(piece, self.normalized.as_ref(), spans)
        })?;
        Ok(pieces)
    }

    fn cut(
        &self,
        piece: NormalizedString,
        matcher: Option<&Matcher>,
        spans: &[Span],
    ) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<tokenizers::Token>>)>> {
        let Some(matcher) = matcher else { return Ok(vec![(piece, None)]) };
        let shift = piece.offsets_original().0;
        let allowed = |added: &Added, range: &Range<usize>| {
            let original = piece.convert_offsets(TextRange::Normalized(range.clone())).unwrap_or(range.clone());
            allows(spans, added, original.start + shift..original.end + shift)
        };
        let mut out = Vec::new();
        for (place, range) in self.find(matcher, piece.get(), allowed) {
            let slice = piece.slice(TextRange::Normalized(range)).ok_or("an added token ends inside a character")?;
            let token = place.map(|place| {
                let text = slice.get().to_owned();
                let end = text.len();
                vec![tokenizers::Token::new(self.list[place].id, text, (0, end))]
            });
            out.push((slice, token));
        }
        Ok(out)
    }

    /// Cuts a text into added tokens and what lies between: leftmost first, then longest, among the allowed.
    fn find(
        &self,
        matcher: &Matcher,
        text: &str,
        allowed: impl Fn(&Added, &Range<usize>) -> bool,
    ) -> Vec<(Option<usize>, Range<usize>)> {
        let mut hits: Vec<(Range<usize>, usize)> = matcher
            .automaton
            .find_overlapping_iter(text)
            .map(|m| (m.range(), matcher.places[m.pattern().as_usize()]))
            .filter(|(range, place)| allowed(&self.list[*place], range))
            .collect();
        hits.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
        let mut out = Vec::new();
        let (mut done, mut next) = (0, 0);
        for (range, place) in hits {
            if range.start < next {
                continue;
            }
            next = range.end;
            let added = &self.list[place];
            if added.single_word && (ends_in_word(&text[..range.start]) || starts_with_word(&text[range.end..])) {
                continue;
            }
            let mut range = range;
            if added.lstrip {
                range.start = text[..range.start].trim_end().len().max(done);
            }
            if added.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
            }
            // A token before may have taken white space that begins this one.
            if range.start < done {
                continue;
            }
            if done < range.start {
                out.push((None, done..range.start));
            }
            done = range.end;
            out.push((Some(place), range));
        }
        if done < text.len() {
            out.push((None, done..text.len()));
        }
        out
    }
}

impl Parts {
    fn new<'a>(tokens: impl Iterator<Item = &'a str>) -> Self {
        let mut parts = Parts::default();
        for token in tokens {
            for (cut, _) in token.char_indices().skip(1) {
                parts.beginnings.insert(token[..cut].to_owned());
                parts.ends.insert(token[cut..].to_owned());
            }
            parts.longest = parts.longest.max(token.len());
        }
        parts
    }
}

impl Matcher {
    fn new(patterns: Vec<(usize, String)>) -> Result<Option<Self>, TextError> {
        if patterns.is_empty() {
            return Ok(None);
        }
        let (places, texts): (Vec<usize>, Vec<String>) = patterns.into_iter().unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(&texts)
            .map_err(|e| build_error("added tokens", e))?;
        Ok(Some(Matcher { automaton, places }))
    }
}

fn may_write(author: Author, added: &Added) -> bool {
    match author {
        Author::Policy => !added.special,
        Author::Outside => !added.control,
    }
}

/// Whether a token may stand here: it lies in the template's text, or in one span whose author may write it, or is no
/// control token at all.
fn allows(spans: &[Span], added: &Added, range: Range<usize>) -> bool {
    if !added.control {
        return true;
    }
    let first = spans.partition_point(|s| s.range.end <= range.start && s.range.start < range.start);
    for span in &spans[first..] {
        let Range { start, end } = span.range.clone();
        if start >= range.end {
            break;
        }
        let touches = if start == end { range.start < start } else { end > range.start };
        let within = start <= range.start && range.end <= end;
        if touches && !(within && may_write(span.author, added)) {
            return false;
        }
    }
    true
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn ends_in_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(is_word)
}

fn starts_with_word(text: &str) -> bool {
    text.chars().next().is_some_and(is_word)
}

pub(crate) fn build_error(part: &'static str, cause: impl std::fmt::Display) -> TextError {
    TextError::Build { part, cause: cause.to_string() }
}
