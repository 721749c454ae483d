//! Reading Rust just closely enough: code without its comments and strings.

/// The file with comments, string and character contents blanked out, line by line as before.
pub(crate) fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let skip = if rest.starts_with(b"//") {
            rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if let Some(end) = raw_string(rest, at.checked_sub(1).map(|i| bytes[i])) {
            end
        } else if rest[0] == b'"' {
            quoted(rest)
        } else if rest[0] == b'\'' {
            character(rest)
        } else {
            out.push(rest[0]);
            at += 1;
            continue;
        };
        out.extend(rest[..skip].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
        at += skip;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a raw string that begins here.
fn raw_string(rest: &[u8], before: Option<u8>) -> Option<usize> {
    if before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') && !matches!(before, Some(b'b' | b'c')) {
        return None;
    }
    let inner = rest.strip_prefix(b"r")?;
    let hashes = inner.iter().take_while(|b| **b == b'#').count();
    let body = inner[hashes..].strip_prefix(b"\"")?;
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let end = body.windows(close.len()).position(|w| w == close).map_or(body.len(), |p| p + close.len());
    Some(1 + hashes + 1 + end)
}

fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character literal, or only the quote of a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return rest.iter().skip(3).position(|b| *b == b'\'').map_or(1, |p| p + 4);
    }
    // One character of up to four bytes, then the closing quote.
    (2..=5).find(|n| rest.get(*n) == Some(&b'\'')).filter(|n| *n == 2 || !rest[1].is_ascii()).map_or(1, |n| n + 1)
}

/// Whether a word stands in a line by itself.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part) && !line[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: &str) {
        let squeezed = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        let got = code_of(text);
        assert_eq!(squeezed(&got), want, "{text}");
        assert_eq!(got.lines().count(), text.lines().count(), "{text}");
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        check("a // b\nc", "a c");
        check("a /* b /* c */ d */ e", "a e");
        check("a \"b \\\" // c\" d", "a d");
        check("a r#\"b \" c\"# d", "a d");
        check("a r\"b\\\" d", "a d");
        check("var\"x\" y", "var y");
        check("f('\"', '\\'', 'é', '\\u{1}') g", "f( , , , ) g");
        check("fn f<'a>(x: &'a str) {} // '", "fn f< a>(x: & a str) {}");
        check("b\"x\" y", "b y");
        check("\"never closed", "");
    }

    #[test]
    fn words_stand_alone() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("an_unsafe", "unsafe"));
    }
}
