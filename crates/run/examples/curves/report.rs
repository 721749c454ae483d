//! The runs of all rows as tables: curves and summaries as CSV, a summary in Markdown.

use std::fmt::Write;

use episode::random::Stream;
use eval::{Interval, crossed_bootstrap};

use crate::cases::{Case, Part};
use crate::trial::{NUMBERS, Outcome, Point};

/// What a row gains at least, by the mean of its seeds, for it to be said that it learned.
pub(crate) const MARGIN: f64 = 0.08;
/// What its control gains at most, by the mean of its seeds: two standard errors of one run's score.
pub(crate) const SLACK: f64 = 0.03;
/// What must be gained first for its episodes to be counted.
const AIM: f64 = 0.2;

/// A row with its runs by seed.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) runs: Vec<(u64, Outcome)>,
    pub(crate) controls: Vec<(u64, Outcome)>,
}

/// What was gained: the mean, with its interval over seeds and tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain {
    mean: f64,
    interval: Interval,
}

impl Row {
    fn start(&self) -> f64 {
        self.runs.first().and_then(|(_, o)| o.points.first()).map_or(f64::NAN, |p| p.accuracy)
    }

    fn gain(&self) -> Option<Gain> {
        gain(&self.runs)
    }

    /// Whether it gained the margin, with an interval above 0, and its control did not.
    fn holds(&self) -> (bool, Option<bool>) {
        let learned = self.gain().is_some_and(|g| g.mean >= MARGIN && g.interval.low > 0.0);
        (learned, gain(&self.controls).map(|g| g.mean <= SLACK))
    }

    /// A line for a person who waits.
    pub(crate) fn line(&self) -> String {
        let show = |g: Option<Gain>| g.map_or("none".to_owned(), signed);
        format!("gain {}, control {}", show(self.gain()), show(gain(&self.controls)))
    }
}

fn gain(runs: &[(u64, Outcome)]) -> Option<Gain> {
    let share =
        |tried: Option<&(u32, u32)>| tried.map_or(0.0, |(solved, n)| f64::from(*solved) / f64::from((*n).max(1)));
    let of = |o: &Outcome| -> Vec<f64> {
        o.before.iter().map(|(task, before)| share(o.after.get(task)) - share(Some(before))).collect()
    };
    let table: Vec<Vec<f64>> = runs.iter().map(|(_, o)| of(o)).collect();
    let n: usize = table.iter().map(Vec::len).sum();
    let mean = table.iter().flatten().sum::<f64>() / n.max(1) as f64;
    let interval = crossed_bootstrap(&table, Stream::new("curves gain", &[]))?;
    Some(Gain { mean, interval })
}

fn signed(gain: Gain) -> String {
    let Gain { mean, interval } = gain;
    format!("{:+.1} [{:+.1}, {:+.1}]", 100.0 * mean, 100.0 * interval.low, 100.0 * interval.high)
}

fn ends(runs: &[(u64, Outcome)]) -> String {
    let end = |(_, o): &(u64, Outcome)| o.points.last().map_or(f64::NAN, |p| p.accuracy);
    runs.iter().map(|run| format!("{:.1}", 100.0 * end(run))).collect::<Vec<_>>().join(" ")
}

/// Episodes generated when that was first gained at an evaluation; absent where it never was.
fn to_target(outcome: &Outcome) -> Option<u64> {
    let start = outcome.points.first()?.accuracy;
    outcome.points.iter().find(|p| p.accuracy >= start + AIM).map(|p| p.episodes)
}

/// Every point of every run.
pub(crate) fn curves(rows: &[Row]) -> String {
    let mut text = String::from("row,algorithm,seed,rewards,step,episodes,tokens,accuracy,low,high");
    NUMBERS.iter().for_each(|name| text.push_str(&format!(",{name}")));
    text.push('\n');
    for row in rows {
        for (rewards, runs) in [("as graded", &row.runs), ("control", &row.controls)] {
            for (seed, outcome) in runs {
                for point in &outcome.points {
                    let Case { name, algorithm, .. } = &row.case;
                    let _ = writeln!(text, "{name},{algorithm},{seed},{rewards},{}", line(point));
                }
            }
        }
    }
    text
}

fn line(point: &Point) -> String {
    let Point { step, episodes, tokens, accuracy, low, high, numbers } = point;
    let mut text = format!("{step},{episodes},{tokens},{accuracy:.4},{low:.4},{high:.4}");
    for name in NUMBERS {
        let value = numbers.get(name).map_or(String::new(), |v| format!("{v:.5}"));
        let _ = write!(text, ",{value}");
    }
    text
}

/// A line for each row.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut text = String::from(
        "row,algorithm,start,ends,gain,gain_low,gain_high,control_ends,control_gain,learned,control_held,episodes_to_target,\
         tokens,lag_mean,changes\n",
    );
    for row in rows {
        let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.4}"));
        let word = |v: Option<bool>| v.map_or(String::new(), |v| v.to_string());
        let (gained, (learned, held)) = (row.gain(), row.holds());
        let reached: Vec<String> =
            row.runs.iter().map(|(_, o)| to_target(o).map_or("never".to_owned(), |n| n.to_string())).collect();
        let _ = writeln!(
            text,
            "{},{},{:.4},{},{},{},{},{},{},{learned},{},{},{:.0},{},\"{}\"",
            row.case.name,
            row.case.algorithm,
            row.start(),
            ends(&row.runs),
            number(gained.map(|g| g.mean)),
            number(gained.map(|g| g.interval.low)),
            number(gained.map(|g| g.interval.high)),
            ends(&row.controls),
            number(gain(&row.controls).map(|g| g.mean)),
            word(held),
            reached.join(" "),
            mean(&row.runs, |o| o.points.last().map(|p| p.tokens as f64)).unwrap_or(f64::NAN),
            number(lag(row)),
            row.case.changes.join("; ").replace('"', "'"),
        );
    }
    text
}

fn mean(runs: &[(u64, Outcome)], of: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(|(_, o)| of(o)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The mean lag over the last stretch of the runs.
fn lag(row: &Row) -> Option<f64> {
    mean(&row.runs, |o| o.points.last()?.numbers.get("lag_mean").copied())
}

/// What a reader wants to know of a part.
pub(crate) fn table(part: Part, rows: &[Row]) -> String {
    let mut text = String::new();
    let mut put = |cells: &[String]| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let head: &[&str] = match part {
        Part::Algorithms => {
            &["row", "what is set", "start", "ends by seed", "gain [95 %]", "control's ends", "control's gain", "holds"]
        }
        Part::Feedback => {
            &["row", "what is read", "start", "ends by seed", "gain [95 %]", "episodes to +20 points by seed"]
        }
        Part::Lag => &["row", "what is set", "mean lag", "ends by seed", "gain [95 %]", "entropy", "mismatch KL"],
    };
    put(&head.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    put(&vec!["---".to_owned(); head.len()]);
    for row in rows {
        let gained = row.gain().map_or(String::new(), signed);
        let name = format!("`{}`", row.case.name);
        let last = |key: &str| {
            let value = mean(&row.runs, |o| o.points.last()?.numbers.get(key).copied());
            value.map_or(String::new(), |v| format!("{v:.3}"))
        };
        match part {
            Part::Algorithms => {
                let word = match row.holds() {
                    (true, Some(true) | None) => "yes",
                    (false, _) => "**no**",
                    (true, Some(false)) => "**control learns**",
                };
                let control = gain(&row.controls).map_or(String::new(), signed);
                let start = format!("{:.1}", 100.0 * row.start());
                let note = row.case.note.to_owned();
                put(&[name, note, start, ends(&row.runs), gained, ends(&row.controls), control, word.to_owned()]);
            }
            Part::Feedback => {
                let reached: Vec<String> =
                    row.runs.iter().map(|(_, o)| to_target(o).map_or("–".to_owned(), |n| n.to_string())).collect();
                let start = format!("{:.1}", 100.0 * row.start());
                put(&[name, row.case.note.to_owned(), start, ends(&row.runs), gained, reached.join(" ")]);
            }
            Part::Lag => {
                let lag = lag(row).map_or(String::new(), |v| format!("{v:.1}"));
                let note = row.case.note.to_owned();
                put(&[name, note, lag, ends(&row.runs), gained, last("entropy"), last("kl_mismatch")]);
            }
        }
    }
    text
}
