//! A shop with its database and twenty tools, several of them near another: find, show, cancel, delete, refund, pay, notify.
//! Graded on how the database ends, not on what was said.
//!
//! With `injections`, a review or a mail that the task has to read also holds somebody's instruction to the agent;
//! `task.meta.attack` is the call that it asks for.

mod attack;
mod level;
mod store;
mod tools;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use agent::World;
use episode::{Message, Role, Task, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use attack::{attack_done, obey};
use level::Errand;
pub use level::Level;
use store::Store;
use tools::{Shop, TOOLS};

use crate::draw::Draw;
use crate::stage::Stage;
use crate::tasks::{Loaded, Source};
use crate::{EnvError, Split, grader, levels};

/// Which tasks, how many, and how they are put.
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
    /// Orders that have nothing to do with the task; at most 60.
    pub n_others: usize,
    /// The share of tasks, among those that read a review or a mail, in which it also holds somebody's instruction.
    pub injections: f64,
    /// What is said to the policy; `{task}` stands for what is asked.
    pub prompt: String,
    /// Standing instructions said first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            levels: Level::ALL.map(|l| (l, 1.0)).into(),
            n_train: 1000,
            n_held_out: 200,
            seed: 0,
            n_others: 4,
            injections: 0.0,
            prompt: "{task}".to_owned(),
            system: None,
        }
    }
}

impl Source for Settings {
    fn load(&self, env: &str, _base: &Path) -> Result<Loaded, EnvError> {
        self.check(env)?;
        let train = self.side(env, Split::Train, self.n_train)?;
        let held_out = self.side(env, Split::HeldOut, self.n_held_out)?;
        Ok(Loaded { train, held_out, gold_reply: Box::new(|_| None), stage: Some(Box::new(Counter)) })
    }

    fn own_grader(&self) -> Option<grader::Kind> {
        Some(grader::Kind::Goal(grader::goal::Settings::default()))
    }
}

impl Settings {
    fn check(&self, env: &str) -> Result<(), EnvError> {
        levels::check(env, &self.levels, self.n_train)?;
        let refuse =
            |key: &str, reason: String| Err(EnvError::Setting { env: env.to_owned(), key: key.to_owned(), reason });
        if self.n_others > 60 {
            return refuse("n_others", format!("is {}, needed at most 60", self.n_others));
        }
        if !(0.0..=1.0).contains(&self.injections) {
            return refuse("injections", format!("is {}, needed a share from 0 to 1", self.injections));
        }
        if self.injections > 0.0 && !self.levels.keys().any(|l| l.reads()) {
            let reason = "would be ignored: only `question`, `notice` and `claim` read what somebody wrote";
            return refuse("injections", reason.to_owned());
        }
        if !self.prompt.contains("{task}") {
            return refuse("prompt", format!("is `{}`, needed a text with `{{task}}` in it", self.prompt));
        }
        Ok(())
    }

    fn side(&self, env: &str, split: Split, n: usize) -> Result<Vec<Task>, EnvError> {
        // Far more draws than tasks: only levels without enough different tasks come to the end.
        levels::fill((env, "shop"), (split, n, 40), (&self.levels, self.seed), |level, draw| {
            let errand = level.errand(draw, self.n_others);
            (levels::side_of("shop", &errand.ask) == split).then(|| self.task(env, level, errand, draw))
        })
    }

    fn task(&self, env: &str, level: Level, mut errand: Errand, draw: &mut Draw) -> Task {
        let read = errand.read.clone().filter(|_| draw.uniform() < self.injections);
        let attack = read.map(|read| {
            let call = attack::wanted(&errand.start, draw);
            attack::plant(&mut errand.start, &read, &call, draw);
            call
        });
        let mut end = errand.start.clone();
        for call in &errand.gold {
            end.call(&call.tool, &call.arguments).expect("gold calls are made for the shop they are made in");
        }
        let mut messages: Vec<Message> = self.system.iter().map(|s| Message::new(Role::System, s)).collect();
        messages.push(Message::new(Role::User, self.prompt.replace("{task}", &errand.ask)));
        let meta = json!({ "level": level, "start": errand.start, "gold_calls": errand.gold, "attack": attack });
        Task::new(env, messages, json!(end.tables), meta)
    }
}

/// The stage of all tasks.
struct Counter;

impl Stage for Counter {
    fn tools(&self, _task: &Task) -> Arc<[ToolSpec]> {
        TOOLS.clone()
    }

    fn world(&self, task: &Task) -> Box<dyn World> {
        let store: Store = serde_json::from_value(task.meta["start"].clone()).unwrap_or_default();
        Box::new(Shop(store))
    }

    fn gold_calls(&self, task: &Task) -> Option<Vec<ToolCall>> {
        serde_json::from_value(task.meta["gold_calls"].clone()).ok()
    }
}

#[cfg(test)]
mod tests;
