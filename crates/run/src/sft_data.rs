//! Given answers as finished episodes: the tokens the policy would have sampled are marked, nothing else is.

use std::path::Path;

use agent::Codec;
use episode::{Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, SequenceError, StopReason, Task, Token};
use serde::Deserialize;
use serde_json::Value;
use text::Special;

use crate::{Chat, RunError};

/// One line of the file.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Chat { messages: Vec<Message> },
    Plain { prompt: String, completion: String },
}

/// Reads a data file.
///
/// - Errors: a line that is not one of the two forms, has nothing for the policy to say, or is longer than the context.
pub(crate) fn read(path: &Path, chat: &Chat, context: usize) -> Result<Vec<Group>, RunError> {
    let text = std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    let mut groups = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let bad = |reason: String| RunError::Data { path: path.to_owned(), line: index + 1, reason };
        let parsed: Line = serde_json::from_str(line)
            .map_err(|_| bad("needed `{\"messages\": […]}` or `{\"prompt\": …, \"completion\": …}`".to_owned()))?;
        let (sequence, messages) = sequence(chat, parsed).map_err(bad)?;
        if sequence.n_sampled() == 0 {
            return Err(bad("needed something for the policy to say, got none".to_owned()));
        }
        if sequence.len() > context {
            let got = sequence.len();
            return Err(bad(format!("{got} tokens do not fit the context window of {context}")));
        }
        groups.push(group(sequence, messages));
    }
    if groups.is_empty() {
        return Err(RunError::Data { path: path.to_owned(), line: 0, reason: "needed at least 1 line".to_owned() });
    }
    Ok(groups)
}

fn group(sequence: Sequence, messages: Vec<Message>) -> Group {
    let asked = messages.iter().take_while(|m| m.role != Role::Assistant).cloned().collect();
    let gold = Value::String(
        messages.iter().rev().find(|m| m.role == Role::Assistant).map_or(String::new(), |m| m.content.clone()),
    );
    let task = Task::new("data", asked, gold, Value::Null);
    let key = EpisodeKey { step: 0, task: task.id.clone(), sample: 0 };
    let outcome = Outcome::Graded { reward: 1.0, parts: Vec::new() };
    let episode =
        Episode { key, sequences: vec![sequence], messages, outcome, stop: StopReason::Eos, turn_rewards: Vec::new() };
    Group { task, episodes: vec![episode] }
}

fn sequence(chat: &Chat, line: Line) -> Result<(Sequence, Vec<Message>), String> {
    let tokenizer = chat.tokenizer();
    let end = chat.end().ok_or("the tokenizer has no token that ends a turn")?;
    let mut sequence = Sequence::new();
    match line {
        Line::Plain { prompt, completion } => {
            let mut tokens = tokenizer.before().to_vec();
            tokens.extend(tokenizer.encode(&prompt, Special::Literal));
            if tokens.is_empty() {
                return Err("needed a prompt of at least 1 token, got none".to_owned());
            }
            sequence.append_context(Role::User, &tokens);
            say(&mut sequence, chat, &completion, end).map_err(|e| e.to_string())?;
            let messages = vec![Message::new(Role::User, prompt), Message::new(Role::Assistant, completion)];
            Ok((sequence, messages))
        }
        Line::Chat { messages } => {
            let mut waiting: Vec<Message> = Vec::new();
            for message in &messages {
                if message.role != Role::Assistant {
                    waiting.push(message.clone());
                    continue;
                }
                let context = if sequence.is_empty() { chat.open(&waiting)? } else { chat.go_on(true, &waiting)? };
                sequence.append_context(waiting.last().map_or(Role::User, |m| m.role), &context);
                waiting.clear();
                say(&mut sequence, chat, &message.content, end).map_err(|e| e.to_string())?;
            }
            Ok((sequence, messages))
        }
    }
}

/// Appends what the policy would have sampled, its stop token included. What is recorded as its log-probability is not
/// read by any supervised loss.
fn say(sequence: &mut Sequence, chat: &Chat, text: &str, end: Token) -> Result<(), SequenceError> {
    let mut tokens = chat.tokenizer().encode(text, Special::Literal);
    tokens.push(end);
    let zeros = vec![0.0; tokens.len()];
    sequence.append_sampled(&tokens, &zeros, &zeros, 0)
}
