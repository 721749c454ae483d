//! How much money a call would move: every amount in its arguments, read as the greatest that its text may mean.

use serde_json::Number;

use super::readings;

/// What is known of the amounts in a call.
///
/// - Units: hundredths of whatever unit the arguments speak in, rounded up; what does not fit is the greatest number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Whether there is one.
    pub(crate) found: bool,
    /// The greatest, its sign left out.
    pub(crate) most: i64,
    /// Their sum, signs left out.
    pub(crate) total: i64,
    /// Whether one is below zero.
    pub(crate) negative: bool,
    /// Whether one cannot be read as a number.
    pub(crate) unreadable: bool,
}

impl Amount {
    /// Takes in an argument that names an amount.
    pub(super) fn text(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        self.found = true;
        let (all, more) = readings::of(text);
        let read: Vec<(i64, bool)> = all.iter().filter_map(|reading| greatest(reading)).collect();
        self.unreadable |= more || read.is_empty();
        self.negative |= read.iter().any(|(_, negative)| *negative);
        if let Some(most) = read.iter().map(|(n, _)| *n).max() {
            self.most = self.most.max(most);
            self.total = self.total.saturating_add(most);
        }
    }

    /// Takes in a number, whose point is a point and nothing else.
    pub(super) fn number(&mut self, number: &Number) {
        let (below, most) = scaled_up(number, 2);
        self.found = true;
        self.negative |= below;
        self.most = self.most.max(most);
        self.total = self.total.saturating_add(most);
    }

    /// Takes in what is neither a number nor a text.
    pub(super) fn other(&mut self) {
        (self.found, self.unreadable) = (true, true);
    }
}

/// Whether a number is below zero, and its size times `10^places`, rounded up; what does not fit is the greatest number.
pub(crate) fn scaled_up(number: &Number, places: i32) -> (bool, i64) {
    let text = number.to_string();
    let (sign, plain) = text.strip_prefix('-').map_or((false, text.as_str()), |rest| (true, rest));
    let (mantissa, exponent) = plain.split_once(['e', 'E']).unwrap_or((plain, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.parse::<i32>().unwrap_or(i32::MAX);
    let size = scaled(whole, part, exponent.saturating_add(places)).unwrap_or(i64::MAX);
    (sign && size > 0, size)
}

/// The greatest number a text may mean, in hundredths, and whether it is below zero.
fn greatest(text: &str) -> Option<(i64, bool)> {
    let text = text.trim();
    let negative = text.contains('-') && !text.contains(['e', 'E']) || text.starts_with(['-', '(', '\u{2212}']);
    let inner = text.trim_matches(['-', '+', '(', ')', '\u{2212}', ' ']);
    // A currency before or after, as a sign or in letters; a factor in letters after.
    let is_digit = |c: char| c.is_ascii_digit();
    let start = inner.find(|c: char| is_digit(c) || (c == '.' || c == ','))?;
    let end = inner.rfind(is_digit)? + 1;
    let (before, body, after) = (inner[..start].trim(), inner.get(start..end)?, inner[end..].trim());
    let before = before.trim_end_matches(['-', '\u{2212}', ' ']);
    if !currency(before) {
        return None;
    }
    let factor = factor(after)?;
    let body: String = body.chars().filter(|c| !matches!(c, ' ' | '_' | '\'' | '\u{2019}')).collect();
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((m, e)) => (m.to_owned(), e.parse::<i32>().ok()?),
        None => (body, 0),
    };
    let as_point = |point: char, group: char| -> Option<i64> {
        let (whole, part) = mantissa.split_once(point).unwrap_or((&mantissa, ""));
        let whole = ungrouped(whole, group)?;
        scaled(&whole, part, exponent.saturating_add(factor).saturating_add(2))
    };
    let most = as_point('.', ',').max(as_point(',', '.'))?;
    Some((most, negative))
}

/// The digits of a whole number without what groups them, where the groups are such as people write: three digits last, two
/// or three before, no leading nought.
fn ungrouped(whole: &str, group: char) -> Option<String> {
    let groups: Vec<&str> = whole.split(group).collect();
    let fits = match groups[..] {
        [_] => true,
        [first, ref middle @ .., last] => {
            (1..=3).contains(&first.len())
                && !first.starts_with('0')
                && middle.iter().all(|g| (2..=3).contains(&g.len()))
                && last.len() == 3
        }
        [] => false,
    };
    fits.then(|| groups.concat())
}

fn currency(text: &str) -> bool {
    text.chars().count() <= 4
        && text.chars().all(|c| c.is_alphabetic() || "$\u{20ac}\u{a3}\u{a5}\u{20b9}\u{20bd}.".contains(c))
}

/// The power of ten that follows a number, or nothing where what follows is no unit.
fn factor(text: &str) -> Option<i32> {
    let mut factor = 0;
    for word in text.split_whitespace() {
        match word.to_lowercase().as_str() {
            "k" | "thousand" => factor += 3,
            "m" | "mn" | "mio" | "million" | "millions" => factor += 6,
            "b" | "bn" | "billion" | "billions" => factor += 9,
            "t" | "tn" | "trillion" => factor += 12,
            unit if currency(unit) || ["euro", "euros", "dollar", "dollars", "pounds", "cents"].contains(&unit) => {}
            _ => return None,
        }
    }
    Some(factor)
}

/// `whole.part × 10^power`, rounded up.
fn scaled(whole: &str, part: &str, power: i32) -> Option<i64> {
    let digits: String = format!("{whole}{part}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    // The value is `significant × 10^shift`.
    let shift = i64::from(power) - i64::try_from(part.len()).ok()?;
    let length = i64::try_from(significant.len()).ok()? + shift;
    if length > 19 {
        return Some(i64::MAX);
    }
    if length <= 0 {
        return Some(1);
    }
    let kept = usize::try_from(length).ok()?;
    let n = if significant.len() > kept {
        let up = significant[kept..].bytes().any(|b| b != b'0');
        significant[..kept].parse::<i128>().ok()? + i128::from(up)
    } else {
        significant.parse::<i128>().ok()? * 10_i128.pow(u32::try_from(kept - significant.len()).ok()?)
    };
    Some(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_read_as_the_greatest_it_may_mean() {
        for (text, want) in [
            ("100", 10_000),
            ("100.00", 10_000),
            ("12.345", 1_234_500),
            ("12.3", 1_230),
            ("1,5", 150),
            ("0.001", 1),
            ("1,234", 123_400),
            ("1,00,000.5", 10_000_050),
            ("1,000.50", 100_050),
            ("1.000,50", 100_050),
            ("1'000", 100_000),
            ("1 000", 100_000),
            ("$1,000", 100_000),
            ("EUR 20", 2_000),
            ("20 \u{20ac}", 2_000),
            ("1e3", 100_000),
            ("1.5E2", 15_000),
            ("5k", 500_000),
            ("2 million USD", 200_000_000),
            ("\u{ff11}\u{ff10}\u{ff10}", 10_000),
            ("99999999999999999999", i64::MAX),
            ("1e400", i64::MAX),
            ("1e-400", 1),
            ("0", 0),
            ("007", 700),
        ] {
            let mut amount = Amount::default();
            amount.text(text);
            assert_eq!((amount.most, amount.unreadable, amount.found), (want, false, true), "`{text}`");
        }
    }

    #[test]
    fn a_sign_is_told_apart_from_how_much() {
        for text in ["-5", "(5)", "\u{2212}5", "$-5", "- 5"] {
            let mut amount = Amount::default();
            amount.text(text);
            assert_eq!((amount.most, amount.negative), (500, true), "`{text}`");
        }
        let mut amount = Amount::default();
        amount.text("1e-1");
        assert!(!amount.negative);
    }

    #[test]
    fn what_is_no_number_is_said_to_be_unreadable() {
        for text in
            ["all of it", "a hundred", "1/2", "5 apples each", "12abc34", "1.00.00", "1.2.3", "\u{0661}\u{0662}"]
        {
            let mut amount = Amount::default();
            amount.text(text);
            assert!(amount.unreadable, "`{text}`: {amount:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_amount_is_read_as_less_than_it_is(n in 0u64..1_000_000_000_000, cents in 0u32..100) {
            for text in [format!("{n}.{cents:02}"), format!("{n},{cents:02}"), format!("${n}.{cents:02}")] {
                let mut amount = Amount::default();
                amount.text(&text);
                let least = i64::try_from(n).unwrap() * 100 + i64::from(cents);
                proptest::prop_assert!(amount.most >= least, "{text}: {amount:?}");
            }
        }
        #[test]
        fn a_json_number_is_read_exactly_or_rounded_up(x in 0.0f64..1e12) {
            let mut amount = Amount::default();
            amount.number(&Number::from_f64(-x).unwrap());
            let hundredths = amount.most as f64;
            proptest::prop_assert!(hundredths >= x * 100.0 * (1.0 - 1e-12) && hundredths <= x * 100.0 + 1.01, "{x}: {amount:?}");
            proptest::prop_assert!(amount.negative || x == 0.0);
        }
        #[test]
        fn no_text_panics(text in ".{0,30}") {
            Amount::default().text(&text);
        }
    }
}
