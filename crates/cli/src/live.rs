//! A run as it happens: a bar with the reward's curve for a person, a line a step for a log, JSON for a program.

use std::time::Instant;

use algo::Why;
use episode::{Episode, Group};
use eval::Score;
use indicatif::ProgressBar;
use run::{Estimate, Phase, Progress, StepSummary};
use serde_json::json;

use crate::context::Context;
use crate::progress;

/// Steps of the curve that are shown.
const CURVE: usize = 24;
/// Parts a step's stretch of the bar is divided into.
const PARTS: u64 = 100;

/// Shows a run.
pub(crate) struct Live<'a> {
    context: &'a Context,
    bar: ProgressBar,
    steps: u64,
    done: u64,
    phase: Phase,
    n_finished: usize,
    n_expected: usize,
    tokens: usize,
    phase_began: Instant,
    rewards: Vec<f64>,
    last: Option<StepSummary>,
    /// Seconds a step and an evaluation are expected to take.
    expected: (f64, f64),
}

impl<'a> Live<'a> {
    /// A display of a run of so many steps.
    pub(crate) fn new(context: &'a Context, steps: u64) -> Live<'a> {
        let bar = progress::plain(context.json(), steps * PARTS);
        Live {
            context,
            bar,
            steps,
            done: 0,
            phase: Phase::Evaluating,
            n_finished: 0,
            n_expected: 0,
            tokens: 0,
            phase_began: Instant::now(),
            rewards: Vec::new(),
            last: None,
            expected: (0.0, 0.0),
        }
    }

    /// Takes an estimate for the time left until there are measured steps.
    pub(crate) fn expect(&mut self, estimate: &Estimate) {
        self.expected = (estimate.step_s, estimate.eval_s);
    }

    fn say(&self, text: &str) {
        if self.bar.is_hidden() {
            self.context.note(text);
        } else {
            self.bar.println(view::visible(text));
        }
    }

    fn show(&self) {
        let inside = match self.phase {
            Phase::Collecting if self.n_expected > 0 => PARTS / 2 * self.n_finished as u64 / self.n_expected as u64,
            Phase::Learning | Phase::Saving => PARTS / 2,
            _ => 0,
        };
        self.bar.set_position((self.done * PARTS + inside).min(self.steps * PARTS));
        let what = match self.phase {
            Phase::Evaluating => format!("evaluating {}/{}", self.n_finished, self.n_expected),
            Phase::Collecting => {
                format!("step {}/{} sampling {}/{}", self.done + 1, self.steps, self.n_finished, self.n_expected)
            }
            Phase::Learning => format!("step {}/{} learning", self.done + 1, self.steps),
            Phase::Saving => "saving".to_owned(),
        };
        let mut parts = vec![what];
        if let Some(last) = &self.last {
            let number = |v: Option<f64>| v.map_or("–".to_owned(), |v| format!("{v:.2}"));
            parts.push(format!("reward {} {}", curve(&self.rewards), number(last.reward)));
            parts.push(format!("entropy {}", number(last.entropy)));
            parts.push(format!("{:.0} tokens/s", last.tokens_per_s));
        } else if self.tokens > 0 {
            let seconds = self.phase_began.elapsed().as_secs_f64().max(0.1);
            parts.push(format!("{:.0} tokens/s", self.tokens as f64 / seconds));
        }
        let left = (self.steps - self.done.min(self.steps)) as f64 * self.expected.0 + self.expected.1;
        parts.push(format!("{} left", duration(left)));
        self.bar.set_message(parts.join(" · "));
    }
}

impl Progress for Live<'_> {
    fn phase(&mut self, phase: Phase, total: usize) {
        (self.phase, self.n_expected, self.n_finished, self.tokens) = (phase, total, 0, 0);
        self.phase_began = Instant::now();
        self.show();
    }

    fn tokens(&mut self, n_tokens: usize) {
        self.tokens += n_tokens;
        self.show();
    }

    fn finished(&mut self, _: &Episode) {
        self.n_finished += 1;
        if self.n_finished == self.n_expected && self.phase == Phase::Collecting {
            self.phase = Phase::Learning;
        }
        self.show();
    }

    fn left_out(&mut self, group: &Group, why: &Why) {
        self.say(&format!("task `{}` is left out: {why}", group.task.id));
    }

    fn step(&mut self, summary: &StepSummary) {
        self.done = summary.step;
        self.rewards.extend(summary.reward);
        // Half old, half new: the first steps sample longer than later ones.
        self.expected.0 = if self.last.is_none() { summary.seconds } else { 0.5 * (self.expected.0 + summary.seconds) };
        self.last = Some(summary.clone());
        if self.context.json() {
            let StepSummary { step, of, reward, entropy, tokens_per_s, seconds } = summary;
            let line = json!({
                "step": step, "of": of, "reward": reward, "entropy": entropy, "tokens_per_s": tokens_per_s, "seconds": seconds,
            });
            // A reader that went away ends no run; other trouble shows at the final line.
            let _ = self.context.out.json(&line);
        } else if self.bar.is_hidden() {
            let number = |v: Option<f64>| v.map_or("–".to_owned(), |v| format!("{v:.3}"));
            let StepSummary { step, of, tokens_per_s, seconds, .. } = summary;
            let (reward, entropy) = (number(summary.reward), number(summary.entropy));
            self.say(&format!(
                "step {step}/{of}  reward {reward}  entropy {entropy}  {tokens_per_s:.0} tokens/s  {seconds:.1} s"
            ));
        }
        self.show();
    }

    fn score(&mut self, step: u64, score: &Score) {
        self.expected.1 = self.phase_began.elapsed().as_secs_f64();
        if self.context.json() {
            let _ = self.context.out.json(&json!({ "eval": score.name, "step": step, "score": score }));
        } else {
            self.say(&format!("after step {step}: {}", sentence(score)));
        }
    }

    fn note(&mut self, text: &str) {
        self.say(text);
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A score in a line.
pub(crate) fn sentence(score: &Score) -> String {
    let percent = |v: f64| format!("{:.1} %", 100.0 * v);
    let mut text = match score.accuracy {
        None => format!("{}: no tasks", score.name),
        Some(a) => format!(
            "{}: {}/{} solved, {} (95 % interval {} to {})",
            score.name,
            score.solved,
            score.n,
            percent(a),
            percent(score.low),
            percent(score.high)
        ),
    };
    if let Some(well_formed) = score.well_formed {
        text.push_str(&format!(", {well_formed} answered with a number alone"));
    }
    if score.errors > 0 {
        text.push_str(&format!(", {}/{} errors", score.errors, score.n));
    }
    text
}

/// Numbers from 0 up as a row of blocks, the tallest being the largest seen, at least 1.
fn curve(values: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = values.iter().copied().fold(1.0, f64::max);
    let last = &values[values.len().saturating_sub(CURVE)..];
    last.iter().map(|v| BLOCKS[((v / top).clamp(0.0, 1.0) * 7.0).round() as usize]).collect()
}

/// Seconds for a person.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_with_its_values() {
        assert_eq!(curve(&[0.0, 0.5, 1.0]), "▁▅█");
        assert_eq!(curve(&[]), "");
        assert_eq!(curve(&[-1.0, 4.0]), "▁█");
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([0.4, 61.0, 7260.0].map(duration), ["0 s", "1 min 1 s", "2 h 1 min"]);
    }
}
