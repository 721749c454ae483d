//! Arithmetic questions made from a seed, in levels of difficulty.
//!
//! Two orders of one sum are two tasks but one piece of knowledge, so the side a task is on is decided by the hash of its
//! numbers in ascending order and by nothing else: not the seed, not the level, not the wording.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use episode::random::Stream;
use episode::{Message, Role, Task};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::gsm8k::check_prompt;
use crate::tasks::{Loaded, Source};
use crate::{EnvError, Split, grader};

/// Which questions, how many, and how they are put.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The levels with their weights. A level smaller than its share gives all it has and the others fill up.
    pub levels: BTreeMap<Level, f64>,
    /// Number of training tasks.
    pub n_train: usize,
    /// Number of held-out tasks.
    pub n_held_out: usize,
    /// Chooses the tasks and their order.
    pub seed: u64,
    /// What is said to the policy; `{question}` stands for the calculation.
    pub prompt: String,
    /// Standing instructions said first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// How many worked examples from the training side come before the question, as earlier turns.
    pub few_shot: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            levels: [(Level::OneDigit, 1.0), (Level::OneTwoDigit, 1.0), (Level::TwoDigit, 1.0)].into(),
            n_train: 600,
            n_held_out: 300,
            seed: 0,
            prompt: "What is {question}? Answer with only the number.".to_owned(),
            system: None,
            few_shot: 0,
        }
    }
}

/// A level of difficulty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// `a + b`, both from 1 to 9.
    OneDigit,
    /// `a + b`, one from 1 to 9 and one from 10 to 99.
    OneTwoDigit,
    /// `a + b`, both from 10 to 99.
    TwoDigit,
    /// `a + b`, both from 100 to 999.
    ThreeDigit,
    /// `a * b`, one from 2 to 9 and one from 10 to 99.
    Product,
    /// `a + b - c`, all from 10 to 99, the result above 0.
    PlusMinus,
    /// `a + b * c`, a from 10 to 99, the others from 2 to 9.
    PlusTimes,
}

/// A calculation with its result.
struct Question {
    text: String,
    /// The numbers in an order that all ways of writing the same knowledge share.
    knowledge: String,
    result: i64,
    /// The number that stands last, which a reply that repeats the question ends with.
    last: i64,
}

impl Level {
    /// How many values each choice has; the product is the size of the level.
    fn choices(self) -> [i64; 3] {
        match self {
            Level::OneDigit => [1, 9, 9],
            Level::OneTwoDigit => [2, 9, 90],
            Level::TwoDigit => [1, 90, 90],
            Level::ThreeDigit => [1, 900, 900],
            Level::Product => [2, 8, 90],
            Level::PlusMinus => [90, 90, 90],
            Level::PlusTimes => [90, 8, 8],
        }
    }

    fn size(self) -> usize {
        self.choices().iter().product::<i64>() as usize
    }

    fn question(self, index: usize) -> Question {
        let [_, m, n] = self.choices();
        let index = index as i64;
        let (x, y, z) = (index / (m * n), index / n % m, index % n);
        let swap = |a, b| if x == 1 { (b, a) } else { (a, b) };
        let plus = |(a, b): (i64, i64)| Question {
            text: format!("{a} + {b}"),
            knowledge: format!("+ {} {}", a.min(b), a.max(b)),
            result: a + b,
            last: b,
        };
        match self {
            Level::OneDigit => plus((y + 1, z + 1)),
            Level::OneTwoDigit => plus(swap(y + 1, z + 10)),
            Level::TwoDigit => plus((y + 10, z + 10)),
            Level::ThreeDigit => plus((y + 100, z + 100)),
            Level::Product => {
                let (a, b) = swap(y + 2, z + 10);
                Question {
                    text: format!("{a} * {b}"),
                    knowledge: format!("* {} {}", a.min(b), a.max(b)),
                    result: a * b,
                    last: b,
                }
            }
            Level::PlusMinus => {
                let (a, b, c) = (x + 10, y + 10, z + 10);
                Question {
                    text: format!("{a} + {b} - {c}"),
                    knowledge: format!("+- {} {} {c}", a.min(b), a.max(b)),
                    result: a + b - c,
                    last: c,
                }
            }
            Level::PlusTimes => {
                let (a, b, c) = (x + 10, y + 2, z + 2);
                Question {
                    text: format!("{a} + {b} * {c}"),
                    knowledge: format!("+* {a} {} {}", b.min(c), b.max(c)),
                    result: a + b * c,
                    last: c,
                }
            }
        }
    }

    /// The name as the run file writes it.
    fn name(self) -> String {
        json!(self).as_str().unwrap_or_default().to_owned()
    }

    /// The questions of one side in a seeded order, as far as they are asked for.
    fn walk(self, purpose: &str, seed: u64, split: Split) -> impl Iterator<Item = Question> {
        let stream = Stream::new(&format!("sums {purpose} {}", self.name()), &[seed]);
        let size = self.size();
        // A shuffle that keeps only what it moved: large levels are never walked to their end.
        let mut moved: HashMap<usize, usize> = HashMap::new();
        (0..size)
            .map(move |i| {
                let j = i + stream.below(i as u64, (size - i) as u64) as usize;
                let picked = moved.get(&j).copied().unwrap_or(j);
                moved.insert(j, moved.get(&i).copied().unwrap_or(i));
                self.question(picked)
            })
            // No repeated question may end with the right number, and no result is below 1.
            .filter(move |q| q.result > 0 && q.result != q.last && side_of(q) == split)
    }
}

/// One of four questions is held out, chosen by its content.
fn side_of(question: &Question) -> Split {
    match Stream::new(&format!("sums side {}", question.knowledge), &[]).below(0, 4) {
        0 => Split::HeldOut,
        _ => Split::Train,
    }
}

impl Source for Settings {
    fn load(&self, env: &str, _base: &Path) -> Result<Loaded, EnvError> {
        self.check(env)?;
        let examples = self.examples(env)?;
        let make = |split, n| -> Result<Vec<Task>, EnvError> {
            let picked = self.pick(env, "tasks", split, n)?;
            Ok(picked.iter().map(|(level, question)| self.task(env, *level, question, &examples)).collect())
        };
        let (train, held_out) = (make(Split::Train, self.n_train)?, make(Split::HeldOut, self.n_held_out)?);
        Ok(Loaded { train, held_out, gold_reply: Box::new(|task| task.gold.as_i64().map(|n| n.to_string())), stage: None })
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        Some(grader::Kind::LastNumber(grader::last_number::Settings::default()))
    }
}

impl Settings {
    fn check(&self, env: &str) -> Result<(), EnvError> {
        check_prompt(env, &self.prompt)?;
        let refuse = |key: String, reason: String| Err(EnvError::Setting { env: env.to_owned(), key, reason });
        if self.levels.is_empty() {
            return refuse("levels".to_owned(), "is empty, needed at least 1 level with its weight".to_owned());
        }
        for (level, weight) in &self.levels {
            if !(weight.is_finite() && *weight > 0.0) {
                return refuse(format!("levels.{}", level.name()), format!("is {weight}, needed a number above 0"));
            }
        }
        if self.n_train == 0 {
            return refuse("n_train".to_owned(), "is 0, needed at least 1".to_owned());
        }
        Ok(())
    }

    /// Questions of one side, the levels mixed by weight.
    fn pick(&self, env: &str, purpose: &str, split: Split, n: usize) -> Result<Vec<(Level, Question)>, EnvError> {
        let mut walks: Vec<_> = self
            .levels
            .iter()
            .map(|(level, weight)| (*level, *weight, 0usize, level.walk(purpose, self.seed, split)))
            .collect();
        let mut picked = Vec::new();
        let mut exhausted = Vec::new();
        while picked.len() < n {
            // The level that is furthest behind its share; the first of them on a tie.
            let behind = walks.iter().enumerate().min_by(|(_, a), (_, b)| {
                let filled = |w: &(Level, f64, usize, _)| (w.2 as f64 + 0.5) / w.1;
                filled(a).total_cmp(&filled(b))
            });
            let Some((index, _)) = behind else { break };
            let (level, _, taken, walk) = &mut walks[index];
            match walk.next() {
                Some(question) => {
                    *taken += 1;
                    picked.push((*level, question));
                }
                None => {
                    exhausted.push(format!("`{}` has {taken}", level.name()));
                    drop(walks.remove(index));
                }
            }
        }
        if picked.len() < n {
            let (got, detail) = (picked.len(), exhausted.join(", "));
            return Err(EnvError::TooFew { env: env.to_owned(), split, needed: n, got, detail });
        }
        Ok(picked)
    }

    /// Two examples more than are shown, since both orders of a question itself may be among them.
    fn examples(&self, env: &str) -> Result<Vec<Question>, EnvError> {
        let n = if self.few_shot == 0 { 0 } else { self.few_shot + 2 };
        let picked = self.pick(env, "few shot", Split::Train, n)?;
        Ok(picked.into_iter().map(|(_, question)| question).collect())
    }

    fn task(&self, env: &str, level: Level, question: &Question, examples: &[Question]) -> Task {
        let ask = |q: &Question| Message::new(Role::User, self.prompt.replace("{question}", &q.text));
        let mut messages: Vec<Message> = self.system.iter().map(|s| Message::new(Role::System, s)).collect();
        let others = examples.iter().filter(|e| e.knowledge != question.knowledge).take(self.few_shot);
        messages.extend(others.flat_map(|e| [ask(e), Message::new(Role::Assistant, e.result.to_string())]));
        messages.push(ask(question));
        Task::new(env, messages, question.result.into(), json!({ "level": level }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Number;
    use crate::{Environment, Submission, TaskSet};
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    const ALL: [Level; 7] = [
        Level::OneDigit,
        Level::OneTwoDigit,
        Level::TwoDigit,
        Level::ThreeDigit,
        Level::Product,
        Level::PlusMinus,
        Level::PlusTimes,
    ];

    fn settings(levels: &[Level], n_train: usize, n_held_out: usize) -> Settings {
        let levels = levels.iter().map(|level| (*level, 1.0)).collect();
        Settings { levels, n_train, n_held_out, ..Settings::default() }
    }

    fn load(settings: Settings) -> Result<TaskSet, EnvError> {
        crate::Settings::plain(crate::Kind::Sums(settings)).load(Path::new(""))
    }

    fn asked(task: &Task) -> &str {
        &task.messages.last().unwrap().content
    }

    #[test]
    fn the_default_prompt_is_the_documented_one() {
        let env = load(settings(&[Level::TwoDigit], 5, 5)).unwrap();
        let task = &env.tasks(Split::Train)[0];
        let numbers: Vec<i64> = asked(task).split(' ').filter_map(|w| w.trim_end_matches('?').parse().ok()).collect();
        assert_eq!(asked(task), format!("What is {} + {}? Answer with only the number.", numbers[0], numbers[1]));
        assert_eq!(task.gold, json!(numbers[0] + numbers[1]));
        assert_eq!((task.messages.len(), &task.meta), (1, &json!({"level": "two_digit"})));
    }

    #[test]
    fn every_level_but_the_smallest_holds_out_at_least_300_tasks_and_every_result_is_right() {
        for level in ALL {
            let mut n = 0;
            for question in level.walk("test", 1, Split::HeldOut).take(1000) {
                let parts: Vec<&str> = question.text.split(' ').collect();
                let number = |i: usize| parts[i].parse::<i64>().unwrap();
                let want = match (parts.len(), parts[1], parts.get(3)) {
                    (3, "+", _) => number(0) + number(2),
                    (3, "*", _) => number(0) * number(2),
                    (5, "+", Some(&"-")) => number(0) + number(2) - number(4),
                    (5, "+", Some(&"*")) => number(0) + number(2) * number(4),
                    _ => panic!("{}", question.text),
                };
                assert_eq!(question.result, want, "{}", question.text);
                n += 1;
            }
            assert!(n >= 300 || level == Level::OneDigit, "{level:?} has {n}");
        }
    }

    #[test]
    fn a_plus_b_and_b_plus_a_are_on_one_side_whatever_the_seed_and_the_level() {
        let mut sides: BTreeMap<(i64, i64), BTreeSet<bool>> = BTreeMap::new();
        for seed in 0..3 {
            for level in [Level::OneDigit, Level::OneTwoDigit, Level::TwoDigit] {
                for split in [Split::Train, Split::HeldOut] {
                    for question in level.walk("test", seed, split) {
                        let (a, b) = question.text.split_once(" + ").unwrap();
                        let (a, b): (i64, i64) = (a.parse().unwrap(), b.parse().unwrap());
                        sides.entry((a.min(b), a.max(b))).or_default().insert(split == Split::Train);
                    }
                }
            }
        }
        assert_eq!(sides.len(), 45 + 9 * 90 + 90 * 91 / 2);
        assert!(sides.values().all(|s| s.len() == 1));
        let held_out = sides.values().filter(|s| s.contains(&false)).count() as f64 / sides.len() as f64;
        assert!((held_out - 0.25).abs() < 0.03, "{held_out}");
    }

    #[test]
    fn a_walk_visits_every_question_once() {
        for level in [Level::OneDigit, Level::OneTwoDigit, Level::Product] {
            let both = [Split::Train, Split::HeldOut].into_iter().flat_map(|s| level.walk("test", 5, s));
            let texts: Vec<String> = both.map(|q| q.text).collect();
            assert_eq!(texts.len(), level.size());
            assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), texts.len());
        }
    }

    #[test]
    fn one_seed_gives_one_set_of_tasks_and_another_seed_another() {
        let load = |seed| load(Settings { seed, ..settings(&ALL, 200, 100) }).unwrap();
        assert_eq!(load(1).train, load(1).train);
        assert_ne!(load(1).train, load(2).train);
        let ids: BTreeSet<_> = load(1).train.iter().map(|t| t.id.clone()).collect();
        assert_eq!(ids.len(), 200);
        assert!(load(2).held_out.iter().all(|t| !ids.contains(&t.id)));
    }

    #[test]
    fn levels_are_mixed_by_weight_and_a_small_one_gives_all_it_has() {
        let count = |env: &TaskSet, level: &str| env.train.iter().filter(|t| t.meta["level"] == level).count();
        let levels = [(Level::TwoDigit, 3.0), (Level::ThreeDigit, 1.0)].into();
        let env = load(Settings { levels, n_train: 100, ..Settings::default() }).unwrap();
        assert_eq!((count(&env, "two_digit"), count(&env, "three_digit")), (75, 25));
        let env = load(settings(&[Level::OneDigit, Level::TwoDigit], 600, 0)).unwrap();
        let all = Level::OneDigit.walk("x", 0, Split::Train).count();
        assert_eq!((count(&env, "one_digit"), count(&env, "two_digit")), (all, 600 - all));
    }

    #[test]
    fn a_level_that_is_too_small_says_how_much_it_has() {
        let has = Level::OneDigit.walk("x", 0, Split::HeldOut).count();
        let error = load(settings(&[Level::OneDigit], 10, 300)).err().unwrap().to_string();
        let want = format!("environment `sums`: needed 300 held-out tasks, got {has}: `one_digit` has {has}");
        assert_eq!(error, want);
    }

    #[test]
    fn examples_come_from_the_training_side_and_never_hold_the_question() {
        let env =
            load(Settings { few_shot: 3, system: Some("Be brief.".into()), ..settings(&[Level::OneDigit], 40, 14) })
                .unwrap();
        let train: BTreeSet<String> = Level::OneDigit.walk("x", 0, Split::Train).map(|q| q.knowledge).collect();
        let pair = |text: &str| {
            let inside = text.strip_prefix("What is ").unwrap().split('?').next().unwrap();
            let (a, b) = inside.split_once(" + ").unwrap();
            let (a, b): (i64, i64) = (a.parse().unwrap(), b.parse().unwrap());
            (format!("+ {} {}", a.min(b), a.max(b)), a + b)
        };
        for task in env.train.iter().chain(&env.held_out) {
            assert_eq!(task.messages.len(), 1 + 3 * 2 + 1);
            assert_eq!(task.messages[0].role, Role::System);
            for example in task.messages[1..7].chunks(2) {
                let (knowledge, result) = pair(&example[0].content);
                assert!(train.contains(&knowledge));
                assert_ne!(knowledge, pair(asked(task)).0);
                assert_eq!((example[1].role, &example[1].content), (Role::Assistant, &result.to_string()));
            }
        }
    }

    #[test]
    fn repeating_the_question_earns_nothing_at_any_level() {
        let cancel = AtomicBool::new(false);
        for level in ALL {
            let env = load(settings(&[level], 50, 10)).unwrap();
            for task in env.tasks(Split::Train) {
                let reward = |reply: &str| env.grade(&Submission { task, reply, state: &serde_json::Value::Null, cancel: &cancel }).unwrap().reward;
                assert_eq!(reward(asked(task)), 0.0, "{}", asked(task));
                assert_eq!(reward(&format!("{}.", task.gold)), 1.0);
                assert_ne!(crate::answer::last_number(asked(task)), Some(Number::from(task.gold.as_i64().unwrap())));
            }
        }
    }

    #[test]
    fn settings_that_cannot_be_used_are_named() {
        let check = |settings: Settings, want: &str| assert_eq!(load(settings).err().unwrap().to_string(), want);
        check(settings(&[], 1, 1), "environment `sums`: `levels` is empty, needed at least 1 level with its weight");
        check(settings(&ALL, 0, 1), "environment `sums`: `n_train` is 0, needed at least 1");
        let levels = [(Level::Product, f64::NAN)].into();
        check(
            Settings { levels, ..Settings::default() },
            "environment `sums`: `levels.product` is NaN, needed a number above 0",
        );
        check(
            Settings { prompt: "Add!".into(), ..Settings::default() },
            "environment `sums`: `prompt` is `Add!`, needed a text with `{question}` in it",
        );
    }
}
