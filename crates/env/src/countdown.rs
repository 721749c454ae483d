//! The numbers game: reach a target from a few numbers with + - * / and brackets, each number used at most once.
//!
//! Every task has a solution, since its target is made from one. Two orders of the same numbers are one piece of knowledge:
//! the side a task is on is decided by its sorted numbers and its target.

use std::collections::BTreeMap;
use std::path::Path;

use episode::{Message, Role, Task};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::draw::Draw;
use crate::grader::expression::{self, Goal};
use crate::tasks::{Loaded, Source};
use crate::{EnvError, Split, grader, levels};

/// Which games, how many, and how they are put.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The levels with their weights.
    pub levels: BTreeMap<Level, f64>,
    /// Number of training tasks.
    pub n_train: usize,
    /// Number of held-out tasks.
    pub n_held_out: usize,
    /// Chooses the tasks and their order, never the side they are on.
    pub seed: u64,
    /// Whether every number must be used.
    pub use_all: bool,
    /// What is said to the policy; `{numbers}` and `{target}` stand for the game.
    pub prompt: String,
    /// Standing instructions said first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            levels: [(Level::Three, 1.0), (Level::Four, 1.0)].into(),
            n_train: 1000,
            n_held_out: 200,
            seed: 0,
            use_all: false,
            prompt: "Make {target} from the numbers {numbers} with + - * / and brackets; use each at most once. \
                     End with a line that holds only the calculation."
                .to_owned(),
            system: None,
        }
    }
}

/// A level of difficulty: how many numbers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Three numbers.
    Three,
    /// Four numbers.
    Four,
    /// Five numbers.
    Five,
    /// Six numbers.
    Six,
}

impl Level {
    fn n_numbers(self) -> usize {
        match self {
            Level::Three => 3,
            Level::Four => 4,
            Level::Five => 5,
            Level::Six => 6,
        }
    }
}

/// The numbers of the game: each small one twice, each large one once.
const LARGE: [u64; 4] = [25, 50, 75, 100];

struct Game {
    numbers: Vec<u64>,
    target: u64,
    solution: String,
}

/// A calculation under construction; every value on the way is a whole number from 1.
struct Term {
    text: String,
    value: u64,
    /// Whether it is one number, which needs no brackets.
    is_plain: bool,
}

impl Game {
    /// Draws numbers and joins them two by two until one calculation is left; nothing where that gives no fair target.
    fn draw(level: Level, draw: &mut Draw) -> Option<Game> {
        let pool: Vec<u64> = (1..=10).flat_map(|n| [n, n]).chain(LARGE).collect();
        let numbers: Vec<u64> = draw.some(&pool, level.n_numbers()).into_iter().copied().collect();
        let mut terms: Vec<Term> =
            numbers.iter().map(|n| Term { text: n.to_string(), value: *n, is_plain: true }).collect();
        while terms.len() > 1 {
            let a = terms.remove(draw.below(terms.len() as u64) as usize);
            let b = terms.remove(draw.below(terms.len() as u64) as usize);
            let (sign, value) = match draw.below(4) {
                0 => ('+', Some(a.value + b.value)),
                1 => ('-', a.value.checked_sub(b.value)),
                2 => ('*', a.value.checked_mul(b.value)),
                _ => ('/', a.value.is_multiple_of(b.value).then(|| a.value / b.value)),
            };
            let value = value.filter(|v| (1..=100_000).contains(v))?;
            let side = |t: &Term| if t.is_plain { t.text.clone() } else { format!("({})", t.text) };
            terms.push(Term { text: format!("{} {sign} {}", side(&a), side(&b)), value, is_plain: false });
        }
        let Term { text: solution, value: target, .. } = terms.pop()?;
        // A target that stands among the numbers, or lies next to 0, is no game.
        ((10..1000).contains(&target) && !numbers.contains(&target)).then_some(Game { numbers, target, solution })
    }

    fn side(&self) -> Split {
        let mut numbers = self.numbers.clone();
        numbers.sort_unstable();
        levels::side_of("countdown", &format!("{numbers:?} {}", self.target))
    }
}

impl Source for Settings {
    fn load(&self, env: &str, _base: &Path) -> Result<Loaded, EnvError> {
        self.check(env)?;
        let train = self.tasks(env, Split::Train, self.n_train)?;
        let held_out = self.tasks(env, Split::HeldOut, self.n_held_out)?;
        let gold_reply = |task: &Task| task.meta["solution"].as_str().map(str::to_owned);
        Ok(Loaded { train, held_out, gold_reply: Box::new(gold_reply), stage: None })
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        Some(grader::Kind::Expression(expression::Settings::default()))
    }
}

impl Settings {
    fn check(&self, env: &str) -> Result<(), EnvError> {
        levels::check(env, &self.levels, self.n_train)?;
        let refuse =
            |key: &str, reason: String| Err(EnvError::Setting { env: env.to_owned(), key: key.to_owned(), reason });
        if !(self.prompt.contains("{numbers}") && self.prompt.contains("{target}")) {
            let reason = format!("is `{}`, needed a text with `{{numbers}}` and `{{target}}` in it", self.prompt);
            return refuse("prompt", reason);
        }
        Ok(())
    }

    fn tasks(&self, env: &str, split: Split, n: usize) -> Result<Vec<Task>, EnvError> {
        levels::fill((env, "countdown"), (split, n, 200), (&self.levels, self.seed), |level, draw| {
            // Many draws give no game; without more tries the hard levels would be rarer than their weights.
            let game = (0..200).find_map(|_| Game::draw(level, draw)).filter(|game| game.side() == split)?;
            Some(self.task(env, level, &game))
        })
    }

    fn task(&self, env: &str, level: Level, game: &Game) -> Task {
        let numbers: Vec<String> = game.numbers.iter().map(u64::to_string).collect();
        let ask = self.prompt.replace("{numbers}", &numbers.join(" ")).replace("{target}", &game.target.to_string());
        let mut messages: Vec<Message> = self.system.iter().map(|s| Message::new(Role::System, s)).collect();
        messages.push(Message::new(Role::User, ask));
        let goal = Goal { numbers: game.numbers.clone(), target: game.target, use_all: self.use_all };
        Task::new(env, messages, json!(goal), json!({ "level": level, "solution": game.solution }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Kind, Probe, Submission, TaskSet, audit};
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    fn all() -> Settings {
        let levels = [Level::Three, Level::Four, Level::Five, Level::Six].map(|l| (l, 1.0)).into();
        Settings { levels, use_all: true, ..Settings::default() }
    }

    fn load(settings: &Settings) -> Result<TaskSet, EnvError> {
        crate::Settings::plain(Kind::Countdown(settings.clone())).load(Path::new(""))
    }

    #[test]
    fn what_is_shipped_passes_its_audit() {
        for settings in [Settings::default(), all()] {
            let settings = crate::Settings::plain(Kind::Countdown(settings));
            let found = audit(&settings, Path::new(""), &Probe::default(), &AtomicBool::new(false)).unwrap().unwrap();
            assert!(found.passed(), "{found}");
        }
    }

    #[test]
    fn every_game_has_its_solution_and_levels_are_mixed_by_weight() {
        let env = load(&all()).unwrap();
        for (split, n) in [(Split::Train, 1000), (Split::HeldOut, 200)] {
            let tasks = env.tasks(split);
            assert_eq!(tasks.len(), n);
            for task in tasks {
                let reply = env.gold_reply(task).unwrap();
                let (state, cancel) = (serde_json::Value::Null, AtomicBool::new(false));
                let reward = |reply: &str| {
                    env.grade(&Submission { task, reply, state: &state, cancel: &cancel }).unwrap().reward
                };
                assert_eq!(reward(&reply), 1.0, "{task:?}");
                assert_eq!(reward(&task.gold["target"].to_string()), 0.0, "the target itself is no calculation of it");
            }
            for level in ["three", "four", "five", "six"] {
                let share = tasks.iter().filter(|t| t.meta["level"] == level).count() as f64 / n as f64;
                // Five standard errors of a share of 0.25 among 200.
                assert!((share - 0.25).abs() < 0.155, "{level} {share}");
            }
        }
    }

    #[test]
    fn no_order_of_the_same_numbers_is_on_both_sides_whatever_the_seed() {
        let knowledge = |task: &Task| {
            let mut goal: Goal = serde_json::from_value(task.gold.clone()).unwrap();
            goal.numbers.sort_unstable();
            (goal.numbers, goal.target)
        };
        let one = load(&Settings::default()).unwrap();
        let two = load(&Settings { seed: 1, ..Settings::default() }).unwrap();
        assert_ne!(one.train, two.train);
        assert_eq!(one.train, load(&Settings::default()).unwrap().train);
        let train: BTreeSet<_> = one.train.iter().chain(&two.train).map(knowledge).collect();
        assert!(one.held_out.iter().chain(&two.held_out).all(|t| !train.contains(&knowledge(t))));
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let check = |settings: Settings, want: &str| assert_eq!(load(&settings).err().unwrap().to_string(), want);
        let plain = Settings::default;
        check(
            Settings { levels: BTreeMap::new(), ..plain() },
            "environment `countdown`: `levels` is empty, needed at least 1 level with its weight",
        );
        let levels = [(Level::Six, -1.0)].into();
        check(Settings { levels, ..plain() }, "environment `countdown`: `levels.six` is -1, needed a number above 0");
        check(Settings { n_train: 0, ..plain() }, "environment `countdown`: `n_train` is 0, needed at least 1");
        check(
            Settings { prompt: "Make {target}!".into(), ..plain() },
            "environment `countdown`: `prompt` is `Make {target}!`, needed a text with `{numbers}` and `{target}` in it",
        );
    }
}
