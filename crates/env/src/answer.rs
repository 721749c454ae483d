//! Reading a number out of a reply, exactly and without credit for luck.
//!
//! A number is compared as a rational, so `0.5`, `1/2` and `\frac{1}{2}` are one number and no rounding decides. What
//! could be read in two ways (`1.2.3`, `40-42`, `12:30`, `2^3`) is no number, and when the answer is such a thing there is
//! no answer: an earlier number is not taken in its place. Text is only ever read, never evaluated.

use std::fmt;

/// An exact rational number in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number {
    numerator: i128,
    /// At least 1.
    denominator: i128,
}

/// More digits than this are not read, which keeps every product inside 128 bits; no gold answer comes near.
const MAX_DIGITS: usize = 18;

impl Number {
    fn new(numerator: i128, denominator: i128) -> Option<Self> {
        let (mut a, mut b) = (numerator.unsigned_abs(), denominator.unsigned_abs());
        if b == 0 {
            return None;
        }
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let divisor = i128::try_from(a).ok()?;
        let sign = if denominator < 0 { -1 } else { 1 };
        Some(Number { numerator: sign * numerator / divisor, denominator: sign * denominator / divisor })
    }

    /// Reads text that is one number and nothing else, such as a gold answer.
    pub fn parse(text: &str) -> Option<Self> {
        match &read(text)[..] {
            [item] if item.covers(text) => item.value,
            _ => None,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Self::new(left.checked_add(right)?, self.denominator.checked_mul(other.denominator)?)
    }

    pub(crate) fn minus(self, other: Self) -> Option<Self> {
        self.plus(Number { numerator: other.numerator.checked_neg()?, ..other })
    }

    pub(crate) fn times(self, other: Self) -> Option<Self> {
        let top = self.numerator.checked_mul(other.numerator)?;
        Self::new(top, self.denominator.checked_mul(other.denominator)?)
    }

    pub(crate) fn over(self, other: Self) -> Option<Self> {
        let top = self.numerator.checked_mul(other.denominator)?;
        Self::new(top, self.denominator.checked_mul(other.numerator)?)
    }
}

impl From<i64> for Number {
    fn from(value: i64) -> Self {
        Number { numerator: value.into(), denominator: 1 }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            d => write!(f, "{}/{d}", self.numerator),
        }
    }
}

/// The last number of a text, or nothing when there is none or the last one cannot be read in one way only.
pub fn last_number(text: &str) -> Option<Number> {
    read(text).last().and_then(|item| item.value)
}

/// The final answer of a worked solution: what follows the last `####` on its line, else the last `\boxed{…}`, else the
/// last number.
///
/// - Holds: a marked answer must hold exactly one number besides its units; a marked answer that cannot be read is no
///   answer, whatever stands elsewhere.
pub fn final_answer(text: &str) -> Option<Number> {
    let marked = match text.rsplit_once("####") {
        Some((_, rest)) => rest.lines().next().unwrap_or(""),
        None => match last_boxed(text) {
            Some(inside) => inside?,
            None => return last_number(&plain(text)),
        },
    };
    let marked = plain(marked);
    // `x = 42` marks the 42.
    let right = marked.rsplit_once('=').map_or(&*marked, |(_, right)| right);
    match &read(right)[..] {
        [item] => item.value,
        _ => None,
    }
}

/// Whether a reply is one whole number and nothing else: form, not truth.
pub fn is_only_number(reply: &str) -> bool {
    let text = reply.trim();
    let digits = text.strip_prefix(['-', '−', '+']).unwrap_or(text);
    let is_integer = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    is_integer(digits) || has_thousands(digits)
}

/// What stands in the last `\boxed{…}`: `None` without one, `Some(None)` when its brace never closes.
fn last_boxed(text: &str) -> Option<Option<&str>> {
    let start = ["\\boxed{", "\\fbox{"].iter().filter_map(|m| text.rfind(m).map(|at| at + m.len())).max()?;
    let mut depth = 1;
    for (at, c) in text[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(Some(&text[start..start + at]));
        }
    }
    Some(None)
}

/// The text with LaTeX's ways of writing numbers turned into plain ones.
fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for (from, to) in [("{,}", ","), ("\\,", ""), ("\\!", ""), ("\\ ", " "), ("\\$", "$"), ("\\%", "%"), ("**", " ")] {
        text = text.replace(from, to);
    }
    for name in ["\\dfrac", "\\tfrac", "\\frac"] {
        text = spread_fractions(&text, name);
    }
    text
}

/// `\frac{3}{4}` as `3/4`.
fn spread_fractions(text: &str, name: &str) -> String {
    let mut parts = text.split(name);
    let mut spread = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match fraction(part) {
            Some((n_bytes, top, bottom)) => {
                // `1\frac{1}{2}` is a mixed number, not eleven halves.
                let gap = if spread.ends_with(|c: char| c.is_ascii_digit()) { " " } else { "" };
                spread.extend([gap, top, "/", bottom, &part[n_bytes..]]);
            }
            // `\frac12` and worse: the digits stay glued to a letter, so that they are no number.
            None => spread.extend(["frac_", part]),
        }
    }
    spread
}

/// The two arguments of a `\frac` and how many bytes they take.
fn fraction(text: &str) -> Option<(usize, &str, &str)> {
    let (top, rest) = text.strip_prefix('{')?.split_once('}')?;
    let (bottom, _) = rest.strip_prefix('{')?.split_once('}')?;
    Some((top.len() + bottom.len() + 4, top.trim(), bottom.trim()))
}

/// Something in a text that starts with a digit; without a value when it cannot be read in one way only.
struct Item {
    start: usize,
    end: usize,
    value: Option<Number>,
}

impl Item {
    /// Whether nothing but space, currency, percent sign and a full stop stands around it.
    fn covers(&self, text: &str) -> bool {
        let around = |s: &str| s.chars().all(|c| c.is_whitespace() || "$€£¥%.".contains(c));
        around(&text[..self.start]) && around(&text[self.end..])
    }
}

/// All numbers of a text, in order. Digits glued behind a letter (`v2`) or a power of a unit (`cm^2`) belong to a name and
/// are passed over.
fn read(text: &str) -> Vec<Item> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let at = |i: usize| chars.get(i).map(|c| c.1);
    let is_digit = |i: usize| at(i).is_some_and(|c| c.is_ascii_digit());
    let byte = |i: usize| chars.get(i).map_or(text.len(), |c| c.0);
    let mut items: Vec<Item> = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let before = i.checked_sub(1).and_then(at);
        let bare_point = at(i) == Some('.') && is_digit(i + 1) && before != Some('.');
        if !is_digit(i) && !bare_point {
            i += 1;
            continue;
        }
        let first = i;
        // A digit, or one separator with a digit behind it.
        while is_digit(i) || (at(i).is_some_and(|c| ",.:/-".contains(c)) && is_digit(i + 1)) {
            i += 1;
        }
        let mut run: String = chars[first..i].iter().map(|c| c.1).collect();
        if let Some(end) = exponent(&chars, i) {
            run.extend(chars[i..end].iter().map(|c| c.1));
            i = end;
        }
        if before.is_some_and(|c| c.is_alphabetic() || c == '_') {
            continue;
        }
        let is_power_of_unit = before == Some('^')
            && first.checked_sub(2).and_then(at).is_some_and(|c| c.is_alphabetic() || c == '}' || c == ')');
        if is_power_of_unit {
            continue;
        }
        let has_power = before == Some('^') || at(i).is_some_and(|c| c == '^' || (c.is_numeric() && !c.is_ascii()));
        let (start, negative) = sign(&chars, first);
        let mut value = if has_power { None } else { value(&run, negative) };
        if let (Some(whole), Some(part)) = (items.last(), value) {
            // `1 1/2` is one number, three halves.
            if run.contains('/') && whole.is_mixed_with(text, byte(start), part) {
                let whole = items.pop().expect("`last` just gave it");
                value = whole.value.and_then(|w| w.plus(part));
                items.push(Item { start: whole.start, end: byte(i), value });
                continue;
            }
        }
        items.push(Item { start: byte(start), end: byte(i), value });
    }
    items
}

impl Item {
    fn is_mixed_with(&self, text: &str, start: usize, part: Number) -> bool {
        let is_whole = self.value.is_some_and(|v| v.denominator == 1 && v.numerator > 0);
        let is_proper = part.numerator > 0 && part.numerator < part.denominator;
        is_whole && is_proper && text.get(self.end..start) == Some(" ")
    }
}

/// Where an exponent that starts at `i` ends.
fn exponent(chars: &[(usize, char)], i: usize) -> Option<usize> {
    let is = |i: usize, what: &dyn Fn(char) -> bool| chars.get(i).is_some_and(|c| what(c.1));
    if !is(i, &|c| c == 'e' || c == 'E') {
        return None;
    }
    let mut end = i + 1 + usize::from(is(i + 1, &|c| c == '+' || c == '-'));
    let digits = end;
    while is(end, &|c| c.is_ascii_digit()) {
        end += 1;
    }
    (end > digits).then_some(end)
}

/// Where a number whose digits start at `first` begins with its sign and currency, and whether it is negative. A minus
/// behind a letter, a digit, a bracket or another dash joins or subtracts.
fn sign(chars: &[(usize, char)], first: usize) -> (usize, bool) {
    let at = |i: usize| chars.get(i).map(|c| c.1);
    let is_currency = |c: char| "$€£¥".contains(c);
    let mut start = first;
    if start > 0 && at(start - 1).is_some_and(is_currency) {
        start -= 1;
    }
    let Some(dash) = start.checked_sub(1) else { return (start, false) };
    if !at(dash).is_some_and(|c| "-−–+".contains(c)) {
        return (start, false);
    }
    let mut before = dash.checked_sub(1);
    if before.and_then(at).is_some_and(is_currency) {
        before = before.and_then(|b| b.checked_sub(1));
    }
    if before.and_then(at).is_some_and(|c| c.is_alphanumeric() || ")]}-−–+".contains(c)) {
        return (start, false);
    }
    (dash, at(dash) != Some('+'))
}

fn value(run: &str, negative: bool) -> Option<Number> {
    let (mantissa, power) = match run.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i32>().ok()?),
        None => (run, 0),
    };
    let value = match mantissa.split_once('/') {
        Some((top, bottom)) => decimal(top)?.over(decimal(bottom)?)?,
        None => decimal(mantissa)?,
    };
    let value = shifted(value, power)?;
    Some(if negative { Number { numerator: -value.numerator, ..value } } else { value })
}

fn shifted(value: Number, power: i32) -> Option<Number> {
    let scale = 10i128.checked_pow(power.unsigned_abs()).filter(|_| power.unsigned_abs() as usize <= MAX_DIGITS)?;
    let scale = Number { numerator: scale, denominator: 1 };
    match power {
        0 => Some(value),
        p if p < 0 => value.over(scale),
        _ => value.over(Number { numerator: 1, denominator: scale.numerator }),
    }
}

/// Digits with an optional decimal part and thousands commas at the right places only.
fn decimal(text: &str) -> Option<Number> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let grouped = whole.contains(',');
    if (grouped && !has_thousands(whole)) || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let digits: String = whole.chars().filter(|c| *c != ',').chain(part.chars()).collect();
    let significant = digits.trim_start_matches('0');
    if !digits.bytes().all(|b| b.is_ascii_digit()) || significant.len() > MAX_DIGITS || part.len() > MAX_DIGITS {
        return None;
    }
    let numerator = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    Number::new(numerator, 10i128.pow(part.len() as u32))
}

/// Whether digits are grouped as in `1,234,567`.
fn has_thousands(text: &str) -> bool {
    let mut groups = text.split(',');
    let is_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let first = groups.next().is_some_and(|g| (1..=3).contains(&g.len()) && is_digits(g));
    let mut rest = groups.peekable();
    first && rest.peek().is_some() && rest.all(|g| g.len() == 3 && is_digits(g))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_last(text: &str, want: &str) {
        let got = last_number(text).map_or("none".to_owned(), |n| n.to_string());
        assert_eq!(got, want, "last number of {text:?}");
    }

    fn check_final(text: &str, want: &str) {
        let got = final_answer(text).map_or("none".to_owned(), |n| n.to_string());
        assert_eq!(got, want, "final answer of {text:?}");
    }

    #[test]
    fn the_last_number_is_read_as_a_person_would() {
        for (text, want) in [
            ("5", "5"),
            ("12.", "12"),
            ("12.\n", "12"),
            ("3 + 4 = 7", "7"),
            ("The answer is **42**!", "42"),
            ("It's 5, not 6", "6"),
            ("007", "7"),
            ("-5", "-5"),
            ("−5", "-5"),
            ("= -5", "-5"),
            ("(-5)", "-5"),
            ("+5", "5"),
            ("7-5=2", "2"),
            ("7 - 5", "5"),
            ("1,234", "1234"),
            ("1,234,567.50", "2469135/2"),
            ("1, 234", "234"),
            ("$1,080", "1080"),
            ("-$5", "-5"),
            ("$-5", "-5"),
            ("42%", "42"),
            ("42 km", "42"),
            ("42km", "42"),
            ("12.0", "12"),
            ("0.50", "1/2"),
            (".5", "1/2"),
            ("wait...5", "5"),
            ("3/4", "3/4"),
            ("6/8", "3/4"),
            ("1 1/2", "3/2"),
            ("2 3/2", "3/2"),
            ("48/2=24", "24"),
            ("1e3", "1000"),
            ("25e-1", "5/2"),
            ("answer:30", "30"),
            ("5 cm^2", "5"),
            ("42 (v2)", "42"),
            ("-0", "0"),
            ("10 − 3", "3"),
        ] {
            check_last(text, want);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_no_answer() {
        for text in [
            "",
            "none",
            "1.5.2",
            "1.2.3",
            "1,23",
            "12,34",
            "1,2,3",
            "40-42",
            "12:30",
            "2^3",
            "2³",
            "1½",
            "10/0",
            "3/4/5",
            "١٢",
            "１２",
            "v2",
            "x_1",
            "2020-10-05",
            "42 or 1.2.3",
        ] {
            check_last(text, "none");
        }
    }

    #[test]
    fn a_decimal_is_not_its_last_digits() {
        assert_ne!(last_number("1.5"), Some(Number::from(5)));
        assert_ne!(last_number("42"), Some(Number::from(2)));
        assert_ne!(last_number("1,234"), Some(Number::from(234)));
        assert_ne!(last_number("15"), Some(Number::from(5)));
    }

    #[test]
    fn digits_without_end_neither_overflow_nor_count() {
        let long = "9".repeat(100_000);
        for text in [&long, &format!("1.{long}"), &format!("1/{long}"), &format!("1e{long}"), "1e999", "1e-999"] {
            check_last(text, "none");
        }
        check_last("999999999999999999/999999999999999998", "999999999999999999/999999999999999998");
        check_last("999999999999999999e18", "999999999999999999000000000000000000");
        check_last(&format!("{}42", "0".repeat(1000)), "42");
    }

    #[test]
    fn the_final_answer_is_the_marked_one() {
        for (text, want) in [
            ("48 / 2 = 24\n#### 72", "72"),
            ("#### 1\n#### 2", "2"),
            ("####72", "72"),
            ("#### $1,080", "1080"),
            ("#### -3", "-3"),
            ("#### 42 dollars\nThat is 3 more.", "42"),
            ("#### 18%", "18"),
            ("#### x = 42", "42"),
            ("#### **42**", "42"),
            (r"so \boxed{42}. Checked 3 times.", "42"),
            (r"\boxed{1} then \boxed{2}", "2"),
            (r"\boxed{1{,}234}", "1234"),
            (r"\boxed{1,\!234}", "1234"),
            (r"\boxed{\$42}", "42"),
            (r"\boxed{42\%}", "42"),
            (r"\boxed{42\text{ dollars}}", "42"),
            (r"\boxed{5\text{ cm}^2}", "5"),
            (r"\boxed{\frac{3}{4}}", "3/4"),
            (r"\boxed{-\dfrac{6}{8}}", "-3/4"),
            (r"\boxed{1\frac{1}{2}}", "3/2"),
            (r"\boxed{x = 7}", "7"),
            ("no mark, just 9 apples", "9"),
        ] {
            check_final(text, want);
        }
    }

    #[test]
    fn a_hedged_or_unreadable_marked_answer_is_none_whatever_else_is_said() {
        for text in [
            "42\n#### ",
            "42\n#### unknown",
            "#### 40 or 42",
            "#### 40, 42",
            r"42 \boxed{}",
            r"42 \boxed{40, 42}",
            r"42 \boxed{42",
            r"42 \boxed{\frac12}",
            r"42 \boxed{6 \cdot 7}",
            "####",
        ] {
            check_final(text, "none");
        }
    }

    #[test]
    fn only_a_number_is_a_matter_of_form() {
        for (reply, want) in [
            ("12", true),
            (" 12\n", true),
            ("-12", true),
            ("1,234", true),
            ("12.", false),
            ("1,2", false),
            ("12 apples", false),
            ("3 + 4", false),
            ("", false),
            ("-", false),
            ("99999999999999999999999999", true),
        ] {
            assert_eq!(is_only_number(reply), want, "{reply:?}");
        }
    }

    #[test]
    fn a_gold_answer_is_one_number_and_nothing_else() {
        assert_eq!(Number::parse(" $109,200,000 "), Some(Number::from(109_200_000)));
        assert_eq!(Number::parse("4 or 5"), None);
        assert_eq!(Number::parse("about 5"), None);
        assert_eq!(Number::parse(""), None);
    }

    #[test]
    fn long_junk_takes_no_long_time() {
        for junk in ["\\frac", "\\frac{", "\\boxed{", "####", "1/", "-", "{,}", "1 1/2 ", "$-"] {
            let text = junk.repeat(50_000);
            let _ = (last_number(&text), final_answer(&text), is_only_number(&text));
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "(\\PC|[0-9,./:^$%{}\\\\ -]|#### |\\\\boxed\\{|\\\\frac\\{){0,40}") {
            let _ = (last_number(&text), final_answer(&text), is_only_number(&text), Number::parse(&text));
        }

        #[test]
        fn text_without_digits_holds_no_number(text in "[^0-9]{0,60}") {
            prop_assert_eq!(last_number(&text), None);
            prop_assert_eq!(final_answer(&text), None);
        }

        #[test]
        fn every_integer_is_read_back(n in -999_999_999_999_999_999i64..=999_999_999_999_999_999) {
            prop_assert_eq!(last_number(&n.to_string()), Some(Number::from(n)));
            prop_assert_eq!(final_answer(&format!("so\n#### {n}")), Some(Number::from(n)));
        }
    }
}
