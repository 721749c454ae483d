//! A line of a file of episodes: one of this program's record, or of another system.

use episode::{Episode, EpisodeKey, Message, Outcome, Role, Sequence, StopReason, Task, Token, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Fit;

/// The environment that tasks of other systems are said to come from.
const ENV: &str = "replay";

/// What makes lines of one file a group.
pub(super) type GroupKey = (Option<u64>, String, String);

/// A line. Read into one flat form, since numbers that pass through a tagged one are widened on the way.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    #[serde(rename = "run")]
    _run: Option<String>,
    step: Option<u64>,
    pub(super) group: Option<Value>,
    task: Value,
    pub(super) episode: Option<Episode>,
    tokens: Option<Vec<Token>>,
    sampled: Option<Vec<u8>>,
    logp: Option<Vec<Option<f32>>>,
    logp_t1: Option<Vec<Option<f32>>>,
    version: Option<Vec<Option<u32>>>,
    turns: Option<Vec<Turn>>,
    reward: Option<f64>,
    stop: Option<StopReason>,
    messages: Option<Vec<Message>>,
}

impl Line {
    pub(super) fn parse(bytes: &[u8]) -> Result<Line, String> {
        serde_json::from_slice(bytes).map_err(|e| {
            let text = e.to_string();
            text.split_once(" at line ").map_or(text.clone(), |(reason, _)| reason.to_owned())
        })
    }

    pub(super) fn key(&self) -> GroupKey {
        let text = |value: Option<&Value>| value.map_or_else(String::new, Value::to_string);
        let task = if self.episode.is_some() { String::new() } else { self.task.to_string() };
        (self.step, text(self.group.as_ref()), task)
    }

    pub(super) fn episode(self) -> Result<(Task, Episode), String> {
        let task = match &self.task {
            Value::String(name) => {
                let asked = self.messages.iter().flatten().take_while(|m| m.role != Role::Assistant).cloned().collect();
                let named = |asked: Vec<Message>| match asked.is_empty() {
                    true => vec![Message::new(Role::User, name)],
                    false => asked,
                };
                Task::new(ENV, named(asked), Value::Null, json!({ "name": name }))
            }
            other => serde_json::from_value(other.clone())
                .map_err(|e| format!("`task` is neither a name nor a task of a record: {e}"))?,
        };
        if let Some(episode) = self.episode {
            return Ok((task, episode));
        }
        let (Some(tokens), Some(sampled), Some(logp), Some(reward)) =
            (&self.tokens, &self.sampled, &self.logp, self.reward)
        else {
            return Err("needed `tokens`, `sampled`, `logp` and `reward`, or a whole `episode`".to_owned());
        };
        let n = tokens.len();
        let logp_t1 = self.logp_t1.as_ref().unwrap_or(logp);
        let n_versions = self.version.as_ref().map_or(n, Vec::len);
        for (list, got) in
            [("sampled", sampled.len()), ("logp", logp.len()), ("logp_t1", logp_t1.len()), ("version", n_versions)]
        {
            if got != n {
                return Err(format!("`{list}` has {got} entries, needed {n}, one a token"));
            }
        }
        if !reward.is_finite() {
            return Err(format!("`reward` is {reward}, needed a finite number"));
        }
        let turns = self.turns.unwrap_or_else(|| runs(sampled));
        let sequence = sequence(tokens, sampled, (logp, logp_t1), &turns)?;
        let key = EpisodeKey { step: self.step.unwrap_or(0), task: task.id.clone(), sample: 0 };
        let episode = Episode {
            key,
            sequences: vec![sequence],
            messages: self.messages.unwrap_or_default(),
            outcome: Outcome::Graded { reward, parts: Vec::new() },
            stop: self.stop.unwrap_or(StopReason::Eos),
            turn_rewards: Vec::new(),
            conduct: episode::Conduct::default(),
        };
        Ok((task, episode))
    }
}

/// Turns as runs of tokens that were sampled and that were not.
fn runs(sampled: &[u8]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (at, is_sampled) in sampled.iter().map(|s| *s != 0).enumerate() {
        let role = if is_sampled { Role::Assistant } else { Role::User };
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.span.end = at + 1,
            _ => turns.push(Turn { role, span: at..at + 1 }),
        }
    }
    turns
}

fn sequence(
    tokens: &[Token],
    sampled: &[u8],
    (logp, logp_t1): (&[Option<f32>], &[Option<f32>]),
    turns: &[Turn],
) -> Result<Sequence, String> {
    let mut sequence = Sequence::new();
    for Turn { role, span } in turns {
        let is_next = span.start == sequence.len() && span.start <= span.end && span.end <= tokens.len();
        if !is_next {
            return Err(format!("`turns` do not cover the {} tokens in order", tokens.len()));
        }
        let n_sampled = sampled[span.clone()].iter().filter(|s| **s != 0).count();
        if n_sampled == 0 {
            sequence.append_context(*role, &tokens[span.clone()]);
            continue;
        }
        if n_sampled < span.len() {
            return Err(format!("the turn of tokens {} to {} is sampled in part", span.start, span.end));
        }
        let value =
            |list: &[Option<f32>]| -> Vec<f32> { list[span.clone()].iter().map(|v| v.unwrap_or(f32::NAN)).collect() };
        let appended = sequence.append_sampled(&tokens[span.clone()], &value(logp), &value(logp_t1), 0);
        appended.map_err(|e| e.to_string())?;
    }
    if sequence.len() < tokens.len() {
        return Err(format!("`turns` do not cover the {} tokens in order", tokens.len()));
    }
    Ok(sequence)
}

/// Whether an episode can be trained on here.
pub(super) fn check(episode: &Episode, fit: Fit<'_>) -> Result<(), String> {
    for sequence in &episode.sequences {
        let (tokens, vocabulary) = (sequence.tokens(), fit.vocabulary);
        if let Some(at) = tokens.iter().position(|t| *t as usize >= vocabulary) {
            return Err(format!("token {} at position {at} is outside the vocabulary of {vocabulary}", tokens[at]));
        }
        if tokens.len() > fit.context {
            let (got, context) = (tokens.len(), fit.context);
            return Err(format!("{got} tokens do not fit the context window of {context}"));
        }
        if sequence.sampled().first() == Some(&true) {
            return Err("the first token is sampled, needed at least 1 token before it".to_owned());
        }
    }
    Ok(())
}
