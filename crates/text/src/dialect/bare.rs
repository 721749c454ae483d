//! Calls as JSON without any mark around them: shared by the dialects that have none.

use super::{Piece, Reason, Strictness, shape};

/// The bare calls of a text.
///
/// A call may begin the text, and follow another behind a separator; forgiving reading also finds one that begins a line.
/// JSON that is no call is something said. What begins like an object and is no JSON is a broken call when it begins the
/// text, or where it names something.
pub(super) fn cut(text: &str, how: Strictness, separators: &[char]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    let mut tries = 0;
    // Whether a call may begin right here.
    let mut free = true;
    while let Some(start) = next(text, at, free, how).filter(|_| tries <= super::MAX_CALLS) {
        tries += 1;
        match shape::value(&text[start..], how) {
            Ok((value, length)) => {
                let end = start + length;
                (at, free) = (end, false);
                if shape::is_call(&value) {
                    free = true;
                    at = behind(text, end, separators);
                    pieces.push(shape::piece(start..at, value, how));
                } else if how == Strictness::Strict {
                    break;
                }
            }
            Err(reason) => {
                if is_meant(text, start) || matches!(reason, Reason::Duplicate { .. } | Reason::TooLong { .. }) {
                    pieces.push(Piece::broken(start..text.len(), text, reason));
                    break;
                }
                if how == Strictness::Strict {
                    break;
                }
                (at, free) = (start + 1, false);
            }
        }
    }
    unfence(text, &mut pieces);
    pieces
}

/// Where something that looks like a call begins, from `at` on: right there if it is `free` to, or at a line's beginning.
fn next(text: &str, at: usize, free: bool, how: Strictness) -> Option<usize> {
    let rest = text[at..].trim_start();
    if free && looks_like_json(rest) {
        return Some(text.len() - rest.len());
    }
    if how == Strictness::Strict {
        return None;
    }
    let mut lines = text[at..].match_indices('\n').map(|(n, _)| text[at + n + 1..].trim_start_matches([' ', '\t']));
    lines.find(|line| looks_like_json(line)).map(|line| text.len() - line.len())
}

/// An object with a key, or a list that begins with one.
fn looks_like_json(text: &str) -> bool {
    let list = text.strip_prefix('[').map_or(text, str::trim_start);
    list.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with('"'))
}

fn is_meant(text: &str, start: usize) -> bool {
    let head: String = text[start..].chars().take(200).collect();
    text[..start].trim().is_empty() || head.contains("\"name\"")
}

/// Behind a separator, if there is one.
fn behind(text: &str, end: usize, separators: &[char]) -> usize {
    let rest = text[end..].trim_start();
    rest.strip_prefix(separators).map_or(end, |after| text.len() - after.len())
}

/// Takes the code fence around calls with them.
fn unfence(text: &str, pieces: &mut [Piece]) {
    let Some(open) = pieces.first().and_then(|piece| {
        let before = text[..piece.range.start].trim_end();
        let fence = before.strip_suffix("json").unwrap_or(before).strip_suffix("```")?;
        (fence.is_empty() || fence.ends_with('\n')).then_some(fence.len())
    }) else {
        return;
    };
    let Some(close) = pieces.last().and_then(|piece| {
        let after = text[piece.range.end..].trim_start().strip_prefix("```")?;
        Some(text.len() - after.len())
    }) else {
        return;
    };
    if let Some(first) = pieces.first_mut() {
        first.range.start = open;
    }
    if let Some(last) = pieces.last_mut() {
        last.range.end = close;
    }
}
