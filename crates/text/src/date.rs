//! The date a template may print: an argument, never the clock.

use crate::TextError;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A day and a time of day, without a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

impl Date {
    /// A moment from its parts: a date of the Gregorian calendar and a time of day.
    ///
    /// - Errors: `BadDate`.
    pub fn new((year, month, day): (u16, u8, u8), (hour, minute, second): (u8, u8, u8)) -> Result<Self, TextError> {
        let good = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        let got = || format!("{year}-{month}-{day} {hour}:{minute}:{second}");
        if good { Ok(Date { year, month, day, hour, minute, second }) } else { Err(TextError::BadDate { got: got() }) }
    }

    /// The moment in universal time, from seconds since 1970.
    ///
    /// - Errors: `BadDate` after the year 9999.
    pub fn from_unix(seconds: u64) -> Result<Self, TextError> {
        let mut days = seconds / 86_400;
        let mut year: u16 = 1970;
        // Past the last year we print, to refuse it below.
        while year < 10_000 {
            let length = if days_in(year, 2) == 29 { 366 } else { 365 };
            if days < length {
                break;
            }
            days -= length;
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days >= u64::from(days_in(year, month)) {
            days -= u64::from(days_in(year, month));
            month += 1;
        }
        let day = u8::try_from(days + 1).unwrap_or(u8::MAX);
        let time = seconds % 86_400;
        let part = |n: u64| u8::try_from(n).expect("hours, minutes and seconds are below 60");
        Date::new((year, month, day), (part(time / 3600), part(time / 60 % 60), part(time % 60)))
    }

    /// Python's `strftime` in the C locale; `None` for a directive it does not know.
    pub(crate) fn format(self, pattern: &str) -> Option<String> {
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next()?;
            let padded = directive != '-';
            if !padded {
                directive = chars.next()?;
            }
            let number = |n: u16, width: usize| match padded {
                true => format!("{n:0width$}"),
                false => n.to_string(),
            };
            let hour12 = match self.hour % 12 {
                0 => 12,
                hour => hour,
            };
            out.push_str(&match directive {
                'Y' => number(self.year, 4),
                'y' => number(self.year % 100, 2),
                'm' => number(self.month.into(), 2),
                'd' => number(self.day.into(), 2),
                'H' => number(self.hour.into(), 2),
                'I' => number(hour12.into(), 2),
                'M' => number(self.minute.into(), 2),
                'S' => number(self.second.into(), 2),
                'j' => number(self.day_of_year(), 3),
                'B' => MONTHS[usize::from(self.month - 1)].into(),
                'b' | 'h' => MONTHS[usize::from(self.month - 1)][..3].into(),
                'A' => DAYS[self.weekday()].into(),
                'a' => DAYS[self.weekday()][..3].into(),
                'p' => if self.hour < 12 { "AM" } else { "PM" }.into(),
                'F' => self.format("%Y-%m-%d")?,
                'T' => self.format("%H:%M:%S")?,
                'D' => self.format("%m/%d/%y")?,
                '%' => "%".into(),
                _ => return None,
            });
        }
        Some(out)
    }

    fn day_of_year(self) -> u16 {
        (1..self.month).map(|month| u16::from(days_in(self.year, month))).sum::<u16>() + u16::from(self.day)
    }

    /// Days since Monday.
    fn weekday(self) -> usize {
        let years = usize::from(self.year) - 1;
        // 1 January of the year 1 was a Monday in the Gregorian calendar.
        (years * 365 + years / 4 - years / 100 + years / 400 + usize::from(self.day_of_year()) - 1) % 7
    }
}

fn days_in(year: u16, month: u8) -> u8 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_print_as_python_does() {
        let date = Date::new((2024, 7, 6), (0, 5, 9)).unwrap();
        assert_eq!(date.format("%d %b %Y").unwrap(), "06 Jul 2024");
        assert_eq!(
            date.format("%A %a %B %-d %y %j %I %p %H:%M:%S %%").unwrap(),
            "Saturday Sat July 6 24 188 12 AM 00:05:09 %"
        );
        assert_eq!(date.format("%Q"), None);
        assert_eq!(date.format("100%"), None);
    }

    #[test]
    fn seconds_since_1970_name_the_day() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thu"),
            (951_782_400, "2000-02-29 00:00:00 Tue"),
            (1_721_999_999, "2024-07-26 13:19:59 Fri"),
            (253_402_300_799, "9999-12-31 23:59:59 Fri"),
        ];
        for (seconds, want) in cases {
            assert_eq!(Date::from_unix(seconds).unwrap().format("%F %T %a").unwrap(), want);
        }
        for seconds in [253_402_300_800, u64::MAX] {
            assert!(matches!(Date::from_unix(seconds), Err(TextError::BadDate { .. })), "{seconds}");
        }
    }

    #[test]
    fn a_day_off_the_calendar_is_refused() {
        for (date, time) in [((2023, 2, 29), (0, 0, 0)), ((2024, 13, 1), (0, 0, 0)), ((2024, 1, 1), (24, 0, 0))] {
            assert!(Date::new(date, time).is_err(), "{date:?} {time:?}");
        }
    }
}
