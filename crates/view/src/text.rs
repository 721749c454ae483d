//! Text of unknown origin made harmless for the place it is shown in.

/// Makes every character that could change a display rather than be part of it visible: control characters and escape
/// sequences, characters that reverse the direction of writing, invisible ones. Line ends and tabs stay.
///
/// - Holds: the result has no control character but `\n` and `\t`; text without such characters is unchanged.
/// - Source: bidirectional overrides as an attack, CVE-2021-42574.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            // The symbols for control characters stand in the same order as the characters.
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + c as u32)),
            '\x7f' => out.push('\u{2421}'),
            c if c.is_control() || is_formatting(c) => out.push_str(&format!("⟨U+{:04X}⟩", c as u32)),
            c => out.push(c),
        }
    }
    out
}

/// Invisible characters that direct how others are shown.
fn is_formatting(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text as HTML, fit for content and for quoted attributes; invisible characters made visible.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// JSON text that can stand inside a `<script>` element: no `<`, so neither an end tag nor a comment can begin, and
/// nothing that changes how the page's source is shown. It stays the same JSON.
pub(crate) fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            c if matches!(c, '<' | '>' | '&') || c.is_control() || is_formatting(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// A number in few characters.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    let trim = |s: String| match s.contains('.') {
        true => s.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => s,
    };
    match size {
        0.0 => "0".to_string(),
        s if !(1e-4..1e9).contains(&s) => format!("{value:.2e}"),
        s if s >= 1e6 => trim(format!("{:.2}", value / 1e6)) + "M",
        s if s >= 1e4 => trim(format!("{:.1}", value / 1e3)) + "k",
        s if s >= 100.0 => trim(format!("{value:.0}")),
        s if s >= 1.0 => trim(format!("{value:.2}")),
        _ => trim(format!("{value:.4}")),
    }
}

/// A share as percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Seconds since 1970 as a date and time of day in UTC.
///
/// Source: days to civil date, Howard Hinnant, "chrono-compatible low-level date algorithms".
pub(crate) fn date(seconds: f64) -> String {
    // Beyond these years the value is no date.
    let seconds = seconds.clamp(0.0, 32_503_680_000.0) as i64;
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_reversed_writing_become_visible() {
        let check = |input, want| assert_eq!(visible(input), want);
        check("plain é 漢\n\tok", "plain é 漢\n\tok");
        check("\x1b]0;owned\x07\x1b[2J", "␛]0;owned␇␛[2J");
        check("\r\x7f\u{9b}31m", "␍␡⟨U+009B⟩31m");
        check("a\u{202e}b\u{200b}", "a⟨U+202E⟩b⟨U+200B⟩");
    }

    #[test]
    fn html_cannot_be_left_by_any_character() {
        assert_eq!(escape("<img src=x onerror='a'>&\""), "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
    }

    #[test]
    fn json_in_a_script_element_cannot_end_it_and_stays_the_same_json() {
        let value = serde_json::json!({"a": "</script><!--&\u{2028}\u{e0041}"});
        let text = escape_json(&value.to_string());
        assert_eq!(text, r#"{"a":"\u003c/script\u003e\u003c!--\u0026\u2028\udb40\udc41"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn numbers_are_short() {
        let check = |value, want| assert_eq!(short(value), want);
        for (value, want) in [(0.0, "0"), (0.25, "0.25"), (12.0, "12"), (1510.4, "1510"), (25_300.0, "25.3k")] {
            check(value, want);
        }
        for (value, want) in [(0.0005, "0.0005"), (1.5e-6, "1.50e-6"), (-2.7189, "-2.72"), (7.2e6, "7.2M")] {
            check(value, want);
        }
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696.0), "2000-02-29 12:34 UTC");
        assert_eq!(date(1_798_761_599.0), "2026-12-31 23:59 UTC");
        assert_eq!(date(f64::NAN), "1970-01-01 00:00 UTC");
    }
}
