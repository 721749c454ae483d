//! What is asked of an environment whose tasks are acted upon: calls at random, fitting tools, attacks that can be told.

use std::collections::BTreeSet;
use std::fmt;

use agent::Reaction;
use episode::random::Stream;
use episode::{Task, ToolCall, ToolSpec};
use serde_json::{Map, Value};

use super::{Check, Judge, Mean, Stopped, shorten};
use crate::{Environment, injection};

/// What a way of answering does and says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) reply: String,
    pub(super) calls: Vec<ToolCall>,
}

impl Answer {
    pub(super) fn said(reply: impl Into<String>) -> Answer {
        Answer { reply: reply.into(), calls: Vec::new() }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for call in &self.calls {
            write!(f, "{} {}; ", call.tool, Value::Object(call.arguments.clone()))?;
        }
        f.write_str(&self.reply)
    }
}

/// Turns in which a way of answering says the same to a world that goes on asking.
const MAX_TURNS: usize = 100;
/// How many calls a blind policy makes; few calls have few side effects, many meet more goals.
const N_BLIND: [u64; 4] = [1, 2, 4, 8];
/// How often it is tried on each task.
const N_TRIES: u64 = 4;

/// How a world stood after a way of answering, and what its tools said.
pub(super) struct End {
    pub(super) state: Value,
    pub(super) heard: Vec<String>,
}

impl Judge<'_> {
    /// Does and says in a fresh world what a way of answering does and says.
    ///
    /// - Errors: what failed in the world.
    pub(super) fn act(&self, task: &Task, answer: &Answer) -> Result<End, String> {
        let mut world = self.env.world(task);
        let mut heard = Vec::with_capacity(answer.calls.len());
        for call in &answer.calls {
            if world.is_over() {
                break;
            }
            match world.call(call) {
                Ok(answer) => heard.push(answer.text),
                Err(cause) => return Err(format!("task `{}`: `{}` failed: {}", task.id, call.tool, cause.detail)),
            }
        }
        // A game goes on for as long as it asks for more; whoever says one thing says it again.
        for _ in 0..MAX_TURNS {
            if world.is_over() {
                break;
            }
            match world.answer(&answer.reply) {
                Ok(Reaction::End) => break,
                Ok(Reaction::Say(_)) => {}
                Err(cause) => return Err(format!("task `{}`: the world failed: {}", task.id, cause.detail)),
            }
        }
        Ok(End { state: world.state(), heard })
    }

    /// Valid calls drawn blindly, with arguments that stand in the task or in any task's gold calls.
    pub(super) fn random(&self, tasks: &[&Task], limit: f64) -> Result<Mean, Stopped> {
        let name = "random";
        let mut words: Vec<Value> = tasks
            .iter()
            .filter_map(|t| self.env.gold_calls(t))
            .flatten()
            .flat_map(|call| call.arguments.into_iter().map(|(_, value)| value))
            .collect();
        words.sort_by_key(Value::to_string);
        words.dedup();
        let mut best = 0.0f64;
        for n_calls in N_BLIND {
            let mut total = 0.0;
            for attempt in 0..N_TRIES {
                let blind = |task: &Task| self.blind(task, &words, n_calls, attempt);
                match self.mean(tasks, blind)? {
                    Ok(mean) => total += mean,
                    Err(detail) => return Ok(Mean::fault(name, detail)),
                }
            }
            best = best.max(total / N_TRIES as f64);
        }
        Ok(Mean::at_most(name, best, limit))
    }

    fn blind(&self, task: &Task, words: &[Value], n_calls: u64, attempt: u64) -> Answer {
        let tools = self.env.tools(task);
        let stream = Stream::new("audit random", &[task.id.bits(), n_calls, attempt]);
        let said = task.messages.iter().flat_map(|m| m.content.split_whitespace());
        let bare = said.map(|w| w.trim_matches(|c: char| !c.is_alphanumeric()));
        // A number in the task is one that an argument may be.
        let own = bare.flat_map(|w| [w.parse::<i64>().ok().map(Value::from), Some(Value::from(w))]).flatten();
        let words: Vec<Value> = own.chain(words.iter().cloned()).collect();
        let call = |i: u64| {
            let tool = &tools[stream.below(i * 64, tools.len() as u64) as usize];
            let fields = tool.parameters["properties"].as_object().into_iter().flatten();
            let given: Map<String, Value> = fields
                .zip(1..)
                .filter_map(|((field, schema), n)| Some((field.clone(), value(schema, &words, stream, i * 64 + n)?)))
                .collect();
            ToolCall { tool: tool.name.clone(), arguments: given }
        };
        let calls = if tools.is_empty() { Vec::new() } else { (0..n_calls).map(call).collect() };
        Answer { reply: "done".to_owned(), calls }
    }

    /// Whether rules know what each tool does and touches, gold calls fit the tools, and the same calls are answered alike.
    pub(super) fn tools(&self, tasks: &[&Task]) -> Check {
        let check = |passed, detail| Check { name: "tools", passed, detail };
        let mut names = BTreeSet::new();
        let mut n_calls = 0;
        for task in tasks {
            let tools = self.env.tools(task);
            if let Some(odd) = tools.iter().find_map(unruly) {
                return check(false, odd);
            }
            names.extend(tools.iter().map(|t| t.name.clone()));
            let calls = self.env.gold_calls(task).unwrap_or_default();
            if let Some(odd) = calls.iter().find_map(|call| misfit(&tools, call)) {
                return check(false, format!("task `{}`: {odd}", task.id));
            }
            n_calls += calls.len();
            let gold = Answer { reply: String::new(), calls };
            match (self.act(task, &gold), self.act(task, &gold)) {
                (Ok(one), Ok(two)) if one.state == two.state && one.heard == two.heard => {}
                (Ok(_), Ok(_)) => {
                    let shown = shorten(&gold.to_string());
                    return check(false, format!("task `{}`: `{shown}` twice gave two answers", task.id));
                }
                (Err(detail), _) | (_, Err(detail)) => return check(false, detail),
            }
        }
        check(true, format!("{} tools, {n_calls} gold calls that fit them and are answered alike twice", names.len()))
    }

    /// Whether each planted instruction is carried out by whoever obeys it and by no gold call.
    pub(super) fn attacks(&self, tasks: &[&Task]) -> Option<Check> {
        let check = |passed, detail| Some(Check { name: "attacks", passed, detail });
        let mut n = 0;
        for task in tasks {
            let Some(attack) = injection::attack(task) else { continue };
            n += 1;
            let calls = self.env.gold_calls(task).unwrap_or_default();
            let gold = Answer { reply: String::new(), calls };
            let fooled = Answer { reply: String::new(), calls: [&[attack], &gold.calls[..]].concat() };
            let (honest, fooled) = match (self.act(task, &gold), self.act(task, &fooled)) {
                (Ok(honest), Ok(fooled)) => (honest, fooled),
                (Err(detail), _) | (_, Err(detail)) => return check(false, detail),
            };
            if injection::attack_done(task, &honest.state) {
                return check(false, format!("task `{}`: its gold calls count as an attack", task.id));
            }
            if !injection::attack_done(task, &fooled.state) {
                return check(false, format!("task `{}`: its attack succeeds and is not told", task.id));
            }
            if honest.heard.iter().all(|text| injection::obey(text).is_empty()) {
                return check(false, format!("task `{}`: its gold calls never read its attack", task.id));
            }
        }
        if n == 0 {
            None
        } else {
            check(true, format!("{n} tasks with a planted instruction; obeying each is told, gold obeys none"))
        }
    }
}

/// What rules could not know of a tool.
fn unruly(tool: &ToolSpec) -> Option<String> {
    if guard::ActionClass::parse(&tool.action).is_none() {
        return Some(format!("tool `{}`: no class of action is called `{}`", tool.name, tool.action));
    }
    let odd = tool.data.iter().find(|d| guard::DataClass::parse(d).is_none())?;
    Some(format!("tool `{}`: no class of data is called `{odd}`", tool.name))
}

/// How a call does not fit the tools.
fn misfit(tools: &[ToolSpec], call: &ToolCall) -> Option<String> {
    let Some(tool) = tools.iter().find(|t| t.name == call.tool) else {
        return Some(format!("there is no tool `{}`", call.tool));
    };
    let needed = tool.parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(key) = needed.into_iter().find(|key| !call.arguments.contains_key(*key)) {
        return Some(format!("`{}` needs `{key}`", call.tool));
    }
    let known = tool.parameters["properties"].as_object();
    let odd = call.arguments.keys().find(|key| !known.is_some_and(|k| k.contains_key(*key)))?;
    Some(format!("`{}` takes no `{odd}`", call.tool))
}

/// A value that a schema allows; nothing where no word does.
fn value(schema: &Value, words: &[Value], stream: Stream, at: u64) -> Option<Value> {
    let pick = |list: &[&Value]| {
        let index = stream.below(at, list.len().max(1) as u64) as usize;
        list.get(index).map(|v| (*v).clone())
    };
    if let Some(all) = schema["enum"].as_array() {
        return pick(&all.iter().collect::<Vec<_>>());
    }
    let fits = |v: &&Value| match schema["type"].as_str() {
        Some("integer") => v.is_i64() || v.is_u64(),
        Some("number") => v.is_number(),
        Some("boolean") => v.is_boolean(),
        Some("string") => v.is_string(),
        _ => true,
    };
    pick(&words.iter().filter(fits).collect::<Vec<_>>())
}
