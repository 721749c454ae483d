//! A calculation that must use given numbers and reach a target. It is read by a parser of its own and never evaluated as
//! code; values are exact fractions.

use std::path::Path;

use episode::Task;
use serde::{Deserialize, Serialize};

use crate::answer::Number;
use crate::grader::{Grader, Make, Marks, bad_gold};
use crate::{Submission, Ungraded};

/// The settings of the grader `expression`; it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {}

impl Make for Settings {
    fn make(&self, _base: &Path) -> Result<Box<dyn Grader>, (&'static str, String)> {
        Ok(Box::new(Reaches))
    }
}

/// What a task asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goal {
    /// The numbers there are; each may be used as often as it stands here.
    pub(crate) numbers: Vec<u64>,
    /// What the calculation must give.
    pub(crate) target: u64,
    /// Whether none may be left over.
    pub(crate) use_all: bool,
}

/// 1 when the reply's last line is a calculation with the task's numbers that gives its target.
struct Reaches;

impl Reaches {
    fn goal(task: &Task) -> Result<Goal, String> {
        serde_json::from_value(task.gold.clone())
            .map_err(|e| format!("needed `gold` with `numbers`, `target` and `use_all`, got `{}`: {e}", task.gold))
    }
}

impl Grader for Reaches {
    fn accepts(&self, task: &Task) -> Result<(), String> {
        Self::goal(task).map(|_| ())
    }

    fn grade(&self, submission: &Submission<'_>) -> Result<Marks, Ungraded> {
        let goal = Self::goal(submission.task).map_err(bad_gold)?;
        let why = wrong(&goal, submission.reply);
        Ok(Marks { feedback: why.clone(), ..Marks::of(why.is_none()) })
    }
}

/// What is wrong with a reply, if anything.
pub(crate) fn wrong(goal: &Goal, reply: &str) -> Option<String> {
    let line = reply.lines().rev().map(str::trim).find(|l| !l.is_empty()).unwrap_or_default();
    // `(3 + 4) * 2 = 14` says what it gives; only that it is so counts.
    let said = line.split('=').next().unwrap_or_default();
    let Some((value, used)) = read(said) else {
        return Some("the last line is no calculation of whole numbers with + - * / and brackets".to_owned());
    };
    let mut left = goal.numbers.clone();
    for number in used {
        let Some(at) = left.iter().position(|n| *n == number) else {
            return Some(format!("{number} is not given, or not that often"));
        };
        left.swap_remove(at);
    }
    if goal.use_all && !left.is_empty() {
        return Some("not all numbers are used".to_owned());
    }
    let target = i64::try_from(goal.target).ok().map(Number::from);
    match value {
        Some(value) if Some(value) == target => None,
        Some(value) => Some(format!("it gives {value}, not {}", goal.target)),
        None => Some("it divides by 0 or is too large".to_owned()),
    }
}

/// Characters of a calculation, and brackets inside each other; a longer one is none.
const MAX_BYTES: usize = 500;
const MAX_DEPTH: usize = 50;

/// The value of a calculation and the numbers it uses, in order; nothing when the text is no calculation, and no value when
/// it has none.
pub(crate) fn read(text: &str) -> Option<(Option<Number>, Vec<u64>)> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let mut reader = Reader { rest: text, used: Vec::new() };
    let value = reader.sum(0)?;
    reader.rest.trim().is_empty().then_some((value, reader.used))
}

struct Reader<'a> {
    rest: &'a str,
    used: Vec<u64>,
}

/// A part's value: the outer option says whether it could be read, the inner one whether it has a value.
type Part = Option<Option<Number>>;

impl Reader<'_> {
    /// Takes the next character if it is one of these.
    fn take(&mut self, of: &str) -> Option<char> {
        let rest = self.rest.trim_start();
        let c = rest.chars().next().filter(|c| of.contains(*c))?;
        self.rest = &rest[c.len_utf8()..];
        Some(c)
    }

    fn sum(&mut self, depth: usize) -> Part {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take("+-−") {
            let other = self.product(depth)?;
            value = value.zip(other).and_then(|(a, b)| if sign == '+' { a.plus(b) } else { a.minus(b) });
        }
        Some(value)
    }

    fn product(&mut self, depth: usize) -> Part {
        let mut value = self.factor(depth)?;
        while let Some(sign) = self.take("*×·/÷") {
            let other = self.factor(depth)?;
            value = value.zip(other).and_then(|(a, b)| if "/÷".contains(sign) { a.over(b) } else { a.times(b) });
        }
        Some(value)
    }

    fn factor(&mut self, depth: usize) -> Part {
        if self.take("(").is_some() {
            if depth == MAX_DEPTH {
                return None;
            }
            let value = self.sum(depth + 1)?;
            self.take(")")?;
            return Some(value);
        }
        let rest = self.rest.trim_start();
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        // Nine digits are more than any number that is given.
        if digits == 0 || digits > 9 {
            return None;
        }
        let number: u64 = rest[..digits].parse().ok()?;
        self.rest = &rest[digits..];
        self.used.push(number);
        Some(i64::try_from(number).ok().map(Number::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reply: &str, use_all: bool, want: Result<(), &str>) {
        let goal = Goal { numbers: vec![3, 5, 7, 7], target: 24, use_all };
        assert_eq!(wrong(&goal, reply).as_deref(), want.err(), "{reply}");
    }

    #[test]
    fn only_a_calculation_with_the_numbers_given_reaches_the_target() {
        check("7 + 7 + 5 + 3 + 2", false, Err("2 is not given, or not that often"));
        check("(5 + 7) * (7 - 5)", false, Err("5 is not given, or not that often"));
        check("3 * (7 + 5 - 7 / 7)", false, Err("7 is not given, or not that often"));
        check("3 * 7 + 5", false, Err("it gives 26, not 24"));
        check("3 × (5 + 3)", false, Err("3 is not given, or not that often"));
        check("24", false, Err("24 is not given, or not that often"));
        check("7 / (5 - 5)", false, Err("5 is not given, or not that often"));
        check("3 / (7 - 7)", false, Err("it divides by 0 or is too large"));
        check("I think:\n\n 3*(7/7+7) ", false, Err("7 is not given, or not that often"));
        let goal = Goal { numbers: vec![1, 3, 4, 6], target: 24, use_all: true };
        assert_eq!(wrong(&goal, "let me see\n6 / (1 - 3 / 4) = 24\n"), None, "fractions on the way are exact");
        assert_eq!(wrong(&goal, "6 ÷ (1 − 3/4)"), None);
        assert_eq!(wrong(&goal, "6 * 4").as_deref(), Some("not all numbers are used"));
        assert_eq!(wrong(&Goal { use_all: false, ..goal }, "6 * 4"), None);
    }

    #[test]
    fn f1_what_is_no_calculation_is_refused_and_never_run() {
        let no = "the last line is no calculation of whole numbers with + - * / and brackets";
        for reply in [
            "",
            "   ",
            "3 *",
            "* 3",
            "(3 + 5",
            "3 + 5)",
            "3 5",
            "-3 + 27",
            "3 ** 5",
            "3 ^ 5",
            "3.0 * 8",
            "1e9",
            "__import__('os')",
            "24 == 24 or 1",
            "abs(3)",
            "3 + x",
            "3 // 5",
            "9999999999",
            "٣ + 5",
            "== 24",
        ] {
            let want = if reply.starts_with("24") { Err("24 is not given, or not that often") } else { Err(no) };
            check(reply, false, want);
        }
        check(&format!("{}3{}", "(".repeat(5000), ")".repeat(5000)), false, Err(no));
        check(&format!("{}3{}", "(".repeat(60), ")".repeat(60)), false, Err(no));
        assert!(read(&format!("{}3{}", "(".repeat(50), ")".repeat(50))).is_some());
        assert_eq!(read("999999999 * 999999999 * 999999999 * 999999999 * 999999999").unwrap().0, None, "no overflow");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_crash(text in "[-0-9()+*/ ×÷x=.]{0,40}|\\PC{0,40}") {
            let _ = read(&text);
        }

        #[test]
        fn sums_and_products_bind_as_in_school(a in 0i64..99, b in 0i64..99, c in 1i64..99, d in 0i64..99) {
            let value = |text: String| read(&text).unwrap().0.unwrap();
            proptest::prop_assert_eq!(value(format!("{a}+{b}*{c}-{d}")), Number::from(a + b * c - d));
            proptest::prop_assert_eq!(value(format!("({a}+{b})*{c}-({d}-{a})")), Number::from((a + b) * c - (d - a)));
            proptest::prop_assert_eq!(value(format!("({a}*{c})/{c}-{d}-{b}")), Number::from(a - d - b));
        }
    }
}
