//! Self-distillation: the policy, shown how the task was solved or what was wrong, teaches the policy that was not.
//!
//! Formula: the teacher reads the problem, another attempt at it that succeeded (never the one it judges) or else the
//! graders' feedback, and a line asking to solve the problem; an attempt with neither weighs 0. Each of the attempt's tokens
//! has the loss (1 − α) · KL(S‖m) + α · KL(T‖m) with m = (1 − α)·S + α·T, over the `top_k` tokens that the student found most
//! likely and one bucket for all others; α = 0 is KL(T‖S), α = 1 is KL(S‖T). It is multiplied with min(π/π_old, `is_cap`),
//! held fixed. With `top_k = 0` it is sg(log π − log T)·log π, whose expected gradient is that of KL(S‖T).
//!
//! Source: arXiv:2601.20802. Top 100, a cap of 2 and a teacher that follows by 0.05 a step are published; α = 0.5 is that
//! of its runs on science questions, its runs on code have 1. That success means full marks is as in its public code.
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `alpha` | 0.5 | which divergence; absent with `top_k = 0` |
//! | `top_k` | 100 | tokens a place that are compared; 0 for the sampled one alone |
//! | `is_cap` | 2 | the most a token may weigh by π/π_old |
//! | `teacher` | `ema` | `current`: the policy as the step begins; `frozen`: as the run began; `ema`: an average that follows |
//! | `teacher_rate` | 0.05 | the share of the way that the average moves after each step; only with `ema` |
//! | `success` | 1 | the least reward of an attempt worth showing |
//!
//! Needs: attempts that succeed beside some that do not, or graders with feedback; the teacher's opinion of every sampled
//! token, under another context. Works with one attempt a task where there is feedback.
//!
//! Watch: the share of attempts without a context, or with one too long for the context window; entropy; whether answers
//! begin to speak of a solution they were not shown.

use episode::{Episode, Group, Message, Outcome, Role};
use loss::Term;
use serde::{Deserialize, Serialize};

use crate::assemble::whole;
use crate::method::Method;
use crate::settings::{rate_setting, setting};
use crate::step::{Step, Worth};
use crate::{AlgoError, Answers, Asked, Now, TeacherRule, Why};

/// Whose weights the teacher has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TeacherName {
    /// The policy's as the step begins.
    Current,
    /// Those the run began with.
    Frozen,
    /// After each step they move the share `teacher_rate` of the way to the policy.
    Ema,
}

settings! {
    /// The settings of SDPO; see the [module](self).
    pub struct Sdpo {
        /// Which divergence.
        #[serde(skip_serializing_if = "Option::is_none")]
        alpha: Option<f64> = None,
        /// Tokens a place that are compared; 0 for the sampled one alone.
        top_k: u32 = 100,
        /// The most a token may weigh by π/π_old.
        is_cap: f64 = 2.0,
        /// Whose weights the teacher has.
        teacher: TeacherName = TeacherName::Ema,
        /// The share of the way that they move after each step.
        #[serde(skip_serializing_if = "Option::is_none")]
        teacher_rate: Option<f64> = None,
        /// The least reward of an attempt worth showing.
        success: f64 = 1.0,
    }
    shares { reduction = TokenMean, entropy, updates, }
}

impl Sdpo {
    /// What the teacher reads in place of each episode's prompt; absent where there is nothing to show.
    fn contexts(&self, group: &Group) -> Vec<Option<Vec<Message>>> {
        let solved = |e: &Episode| e.outcome.reward().is_some_and(|r| r >= self.success);
        let solved = group.episodes.iter().enumerate().filter(|(_, e)| solved(e));
        let solved: Vec<(usize, String)> = solved.map(|(e, episode)| (e, said(group, episode))).collect();
        let context = |(e, episode): (usize, &Episode)| {
            episode.outcome.reward()?;
            let shown = match solved.iter().find(|(other, said)| *other != e && !said.is_empty()) {
                Some((_, said)) => format!("Here is a correct solution:\n\n{said}"),
                None => format!("An earlier attempt was answered with:\n\n{}", feedback(episode)?),
            };
            Some(with_more(&group.task.messages, &shown))
        };
        group.episodes.iter().enumerate().map(context).collect()
    }
}

/// Everything the policy said in an attempt; what the task has it say in worked examples is not its own.
fn said(group: &Group, episode: &Episode) -> String {
    let own = episode.messages.strip_prefix(group.task.messages.as_slice()).unwrap_or(&episode.messages);
    let own = own.iter().filter(|m| m.role == Role::Assistant).map(|m| m.content.trim());
    own.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// What graders said about an attempt, absent when they said nothing.
fn feedback(episode: &Episode) -> Option<String> {
    let Outcome::Graded { parts, .. } = &episode.outcome else { return None };
    let words: Vec<&str> = parts.iter().filter_map(|p| p.feedback.as_deref()).map(str::trim).collect();
    let words: Vec<&str> = words.into_iter().filter(|text| !text.is_empty()).collect();
    (!words.is_empty()).then(|| words.join("\n\n"))
}

/// A task with something more to read, and what is asked again.
fn with_more(task: &[Message], shown: &str) -> Vec<Message> {
    let more = format!("{shown}\n\nNow solve the original problem correctly.");
    let mut messages = task.to_vec();
    match messages.last_mut().filter(|m| m.role == Role::User) {
        // One message, since templates differ in how they take two of the same role in a row.
        Some(last) => last.content = format!("{}\n\n{more}", last.content),
        None => messages.push(Message::new(Role::User, more)),
    }
    messages
}

impl Method for Sdpo {
    const NEEDED: usize = 1;

    fn settle(&mut self) -> Result<(), AlgoError> {
        match (self.top_k, self.alpha) {
            (0, Some(_)) => {
                let (with, instead) = ("`top_k = 0`".to_owned(), "set `top_k = 100`");
                return Err(AlgoError::Unused { key: "alpha", with, instead });
            }
            (0, None) => (),
            (_, None) => self.alpha = Some(0.5),
            (_, Some(a)) => setting("alpha", a, (0.0..=1.0).contains(&a), "a number from 0 to 1")?,
        }
        match (self.teacher, self.teacher_rate) {
            (TeacherName::Ema, None) => self.teacher_rate = Some(0.05),
            (TeacherName::Ema, Some(rate)) => rate_setting("teacher_rate", rate)?,
            (_, None) => (),
            (_, Some(_)) => {
                let (with, instead) = ("a teacher that does not follow".to_owned(), "set `teacher = \"ema\"`");
                return Err(AlgoError::Unused { key: "teacher_rate", with, instead });
            }
        }
        setting("is_cap", self.is_cap, self.is_cap.is_finite() && self.is_cap >= 1.0, "a finite number at least 1")?;
        setting("success", self.success, self.success.is_finite(), "a finite number")
    }

    fn term(&self) -> Term {
        let cap = Some(self.is_cap);
        match self.alpha {
            Some(alpha) => Term::Divergence(loss::Divergence { alpha, cap }),
            None => Term::Distill(loss::Distill { cap }),
        }
    }

    fn asks_about(&self, group: &Group) -> bool {
        self.contexts(group).iter().any(Option::is_some)
    }

    fn now(&self) -> Option<Now> {
        (self.top_k > 0).then_some(Now { value: false, top_k: self.top_k as usize })
    }

    fn asked(&self, groups: &[Group], answers: &Answers) -> Option<Asked> {
        let top = self.top_k > 0;
        // Which tokens the teacher is to compare is only known once the student has named them.
        let known = !top || answers.now.is_some();
        known.then(|| Asked { contexts: Some(groups.iter().map(|g| self.contexts(g)).collect()), top })
    }

    fn teacher(&self) -> Option<TeacherRule> {
        Some(match self.teacher {
            TeacherName::Current => TeacherRule::Current,
            TeacherName::Frozen => TeacherRule::Frozen,
            TeacherName::Ema => TeacherRule::Ema(self.teacher_rate.unwrap_or_default()),
        })
    }

    fn worth(&self, step: &mut Step<'_>) -> Result<Vec<Vec<Option<Worth>>>, AlgoError> {
        let contexts: Vec<_> = step.groups.iter().map(|g| self.contexts(g)).collect();
        step.each(|step, (g, e), _| {
            let group = &step.groups[g];
            // Where the teacher had to pass, since its context did not fit the window, there is nothing to learn from it.
            let passed = |s: usize| step.answers.teacher.is_some() && step.answers.teacher_of((g, e, s)).is_none();
            let mut sequences = group.episodes[e].sequences.iter().enumerate().filter(|(_, s)| s.n_sampled() > 0);
            let idle = contexts[g][e].is_none() || sequences.any(|(s, _)| passed(s));
            let idle = idle.then_some(Why::NoContext);
            for (s, sequence) in group.episodes[e].sequences.iter().enumerate().filter(|_| idle.is_none()) {
                let (at, n) = ((g, e, s), sequence.len());
                let found = step.answers.teacher_of(at);
                whole("teacher", found.map(|t| t.logp.as_slice()), group, at, n)?;
                if self.top_k > 0 {
                    let top = found.and_then(|t| t.top.as_ref());
                    // What was asked for and what the vocabulary holds may differ, so its own word counts.
                    let needed = n * top.map_or(self.top_k as usize, |top| top.k);
                    let named = top.filter(|top| top.ids.len() == needed);
                    whole("teacher.top", named.map(|top| top.logp.as_slice()), group, at, needed)?;
                }
            }
            Ok(Some(Worth { idle, ..Worth::same(1.0) }))
        })
    }
}
