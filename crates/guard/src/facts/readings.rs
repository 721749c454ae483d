//! The ways in which whoever receives a text may read it. A fact counts as soon as one reading gives it, so that no
//! encoding hides a destination.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Passes of percent decoding that are followed; a text that is still encoded after them counts as unreadable.
const PASSES: usize = 8;

/// Every reading of a text: as it stands, with lookalikes folded to ASCII and what cannot be seen dropped, and percent
/// decoded as often as it can be, each cut at a NUL as well. The flag says that it was encoded more often than is followed.
///
/// - Holds: the text itself is among them; plain ASCII without `%` and control characters has no other.
pub(super) fn of(text: &str) -> (BTreeSet<Cow<'_, str>>, bool) {
    let mut all = BTreeSet::from([Cow::Borrowed(text)]);
    if text.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'%') {
        return (all, false);
    }
    let mut now = text.to_owned();
    let mut more = true;
    for _ in 0..PASSES {
        let folded = fold(&now);
        for reading in [&now, &folded] {
            if let Some((before, _)) = reading.split_once('\0') {
                all.insert(Cow::Owned(before.to_owned()));
            }
        }
        let next = decode(&folded);
        all.insert(Cow::Owned(now));
        more = next != folded;
        all.insert(Cow::Owned(folded));
        if !more {
            break;
        }
        now = next;
    }
    (all, more)
}

/// One pass of percent decoding; bytes that are no UTF-8 become U+FFFD.
pub(super) fn decode(text: &str) -> String {
    let (bytes, mut out, mut i) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    while let Some(byte) = bytes.get(i) {
        match (byte, digit(i + 1), digit(i + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                i += 3;
            }
            _ => {
                out.push(*byte);
                i += 1;
            }
        }
    }
    match String::from_utf8(out) {
        Ok(text) => text,
        Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
    }
}

/// Lookalikes of ASCII as ASCII; control, formatting and other characters that cannot be seen left out. NUL stays: where it
/// cuts a text is a reading of its own.
pub(super) fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push(c),
            '\u{2024}' | '\u{3002}' | '\u{ff61}' | '\u{fe52}' => out.push('.'),
            '\u{2025}' => out.push_str(".."),
            '\u{2026}' => out.push_str("..."),
            '\u{2044}' | '\u{2215}' | '\u{29f8}' | '\u{2571}' => out.push('/'),
            '\u{2216}' | '\u{29f5}' | '\u{29f9}' | '\u{fe68}' | '\u{2572}' => out.push('\\'),
            '\u{2236}' | '\u{a789}' | '\u{fe55}' => out.push(':'),
            '\u{fe6b}' => out.push('@'),
            '\u{3000}' | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' => out.push(' '),
            '\u{ff01}'..='\u{ff5e}' => out.push(char::from(((u32::from(c) - 0xff01) as u8) + b'!')),
            _ if invisible(c) => {}
            _ => out.push(c),
        }
    }
    out
}

fn invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let (all, more) = of(text);
        assert!(all.contains(text), "the text itself");
        assert!(all.contains(want), "`{want}` among {all:?}");
        assert!(!more);
    }

    #[test]
    fn every_encoding_of_a_climb_is_seen_through() {
        check("../etc", "../etc");
        check("%2e%2e%2fetc", "../etc");
        check("%252e%252e%252fetc", "../etc");
        check("..%c0%af", "..\u{fffd}\u{fffd}");
        check("\u{ff0e}\u{ff0e}\u{ff0f}etc", "../etc");
        check("\u{2025}\u{2215}etc", "../etc");
        check("%EF%BC%8E%EF%BC%8E/etc", "../etc");
        check(".\u{200b}./etc", "../etc");
        check("a.txt\0.png", "a.txt");
        check("a.txt%00.png", "a.txt");
        check("ht\ntp://x", "http://x");
        check("%zz%4", "%zz%4");
    }

    #[test]
    fn what_is_encoded_without_end_is_said_to_be_unreadable() {
        let deep = format!("%{}2e", "25".repeat(40));
        assert!(of(&deep).1);
        assert!(!of("%252e").1);
    }

    proptest::proptest! {
        #[test]
        fn any_text_encoded_up_to_five_times_is_read(text in "[ -~]{0,12}", times in 0usize..6) {
            let mut coded = text.clone();
            for _ in 0..times {
                coded = coded.bytes().map(|b| format!("%{b:02x}")).collect();
            }
            let (all, more) = of(&coded);
            proptest::prop_assert!(all.contains(text.as_str()), "{text:?} among {all:?}");
            proptest::prop_assert!(!more || text.contains('%'));
        }
    }
}
