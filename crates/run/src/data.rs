//! Given answers and given preferences as finished episodes: the tokens the policy would have sampled are marked, nothing
//! else is.

use std::path::Path;

use agent::{Codec, Next};
use episode::{
    Episode, EpisodeKey, Group, Message, Outcome, Role, Sequence, SequenceError, StopReason, Task, ToolSpec,
};
use serde::Deserialize;
use serde_json::Value;
use text::Special;

use crate::{Chat, RunError};

/// What the lines of a file hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// An answer each.
    Answers,
    /// A better and a worse answer each.
    Pairs,
}

impl Given {
    fn needed(self) -> &'static str {
        match self {
            Given::Answers => "needed `{\"messages\": […]}` or `{\"prompt\": …, \"completion\": …}`",
            Given::Pairs => "needed `{\"prompt\": …, \"chosen\": …, \"rejected\": …}`",
        }
    }
}

/// A line with one answer.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Answer {
    Chat {
        messages: Vec<Message>,
        #[serde(default)]
        tools: Vec<ToolSpec>,
    },
    Plain {
        prompt: String,
        completion: String,
    },
}

/// A line with two answers to one prompt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    prompt: Said,
    chosen: Said,
    rejected: Said,
}

/// Plain text, or messages of a chat.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Said {
    Text(String),
    Chat(Vec<Message>),
}

/// Reads a data file: a group a line, of one episode with reward 1, or of two with rewards 1 and 0.
///
/// - Errors: a line of another form, one that has nothing for the policy to say, or one longer than the context.
pub(crate) fn read(path: &Path, chat: &Chat, context: usize, given: Given) -> Result<Vec<Group>, RunError> {
    let text = std::fs::read_to_string(path).map_err(|source| RunError::Io { path: path.to_owned(), source })?;
    let mut groups = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let bad = |reason: String| RunError::Data { path: path.to_owned(), line: index + 1, reason };
        let unread = |_| bad(given.needed().to_owned());
        let said = match given {
            Given::Answers => vec![answer(chat, serde_json::from_str(line).map_err(unread)?).map_err(bad)?],
            Given::Pairs => pair(chat, serde_json::from_str(line).map_err(unread)?).map_err(bad)?,
        };
        for (sequence, _) in &said {
            if sequence.n_sampled() == 0 {
                return Err(bad("needed something for the policy to say, got none".to_owned()));
            }
            if sequence.len() > context {
                let got = sequence.len();
                return Err(bad(format!("{got} tokens do not fit the context window of {context}")));
            }
        }
        groups.push(group(said));
    }
    if groups.is_empty() {
        return Err(RunError::Settings(format!("`{}` has no line, needed at least 1", path.display())));
    }
    Ok(groups)
}

/// The episodes of one line; the first is the best.
fn group(said: Vec<(Sequence, Vec<Message>)>) -> Group {
    let messages = &said[0].1;
    let asked = messages.iter().take_while(|m| m.role != Role::Assistant).cloned().collect();
    let gold = Value::String(
        messages.iter().rev().find(|m| m.role == Role::Assistant).map_or(String::new(), |m| m.content.clone()),
    );
    let task = Task::new("data", asked, gold, Value::Null);
    let episode = |(sample, (sequence, messages)): (usize, (Sequence, Vec<Message>))| Episode {
        key: EpisodeKey { step: 0, task: task.id.clone(), sample: sample as u32 },
        sequences: vec![sequence],
        messages,
        outcome: Outcome::Graded { reward: if sample == 0 { 1.0 } else { 0.0 }, parts: Vec::new() },
        stop: StopReason::Eos,
        turn_rewards: Vec::new(),
        conduct: episode::Conduct::default(),
    };
    let episodes = said.into_iter().enumerate().map(episode).collect();
    Group { task, episodes }
}

fn answer(chat: &Chat, line: Answer) -> Result<(Sequence, Vec<Message>), String> {
    match line {
        Answer::Plain { prompt, completion } => plain(chat, prompt, completion),
        Answer::Chat { messages, tools } => conversation(chat, messages, &tools),
    }
}

fn pair(chat: &Chat, line: Pair) -> Result<Vec<(Sequence, Vec<Message>)>, String> {
    let Pair { prompt, chosen, rejected } = line;
    let one = |said: Said| match (prompt.clone(), said) {
        (Said::Text(prompt), Said::Text(said)) => plain(chat, prompt, said),
        (Said::Chat(mut messages), said) => {
            match said {
                Said::Text(text) => messages.push(Message::new(Role::Assistant, text)),
                Said::Chat(more) => messages.extend(more),
            }
            conversation(chat, messages, &[])
        }
        (Said::Text(_), Said::Chat(_)) => {
            Err("`prompt` is a text and an answer is a chat, needed both as texts, or the prompt as a chat".to_owned())
        }
    };
    Ok(vec![one(chosen)?, one(rejected)?])
}

fn plain(chat: &Chat, prompt: String, completion: String) -> Result<(Sequence, Vec<Message>), String> {
    let tokenizer = chat.tokenizer();
    let mut sequence = Sequence::new();
    let mut tokens = tokenizer.before().to_vec();
    tokens.extend(tokenizer.encode(&prompt, Special::Literal));
    if tokens.is_empty() {
        return Err("needed a prompt of at least 1 token, got none".to_owned());
    }
    sequence.append_context(Role::User, &tokens);
    say(&mut sequence, chat, &completion)?;
    Ok((sequence, vec![Message::new(Role::User, prompt), Message::new(Role::Assistant, completion)]))
}

fn conversation(chat: &Chat, messages: Vec<Message>, tools: &[ToolSpec]) -> Result<(Sequence, Vec<Message>), String> {
    let mut sequence = Sequence::new();
    let mut begun = 0;
    for (at, message) in messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
        let waiting = &messages[begun..at];
        let context = match sequence.is_empty() {
            true => chat.open(waiting, tools)?,
            false => match chat.go_on(&messages[..begun], tools, true, waiting)? {
                Next::Append(tokens) => tokens,
                Next::Anew(_) => {
                    return Err(
                        "the chat template rewrites earlier turns, so turns cannot be learned together".to_owned()
                    );
                }
            },
        };
        sequence.append_context(waiting.last().map_or(Role::User, |m| m.role), &context);
        begun = at + 1;
        say(&mut sequence, chat, &chat.turn(message, tools)?)?;
    }
    Ok((sequence, messages))
}

/// Appends what the policy would have sampled, its stop token included. What is recorded as its log-probability is not
/// read by any supervised loss.
fn say(sequence: &mut Sequence, chat: &Chat, text: &str) -> Result<(), String> {
    let end = chat.end().ok_or("the tokenizer has no token that ends a turn")?;
    let mut tokens = chat.tokenizer().encode(text, Special::Literal);
    tokens.push(end);
    let zeros = vec![0.0; tokens.len()];
    sequence.append_sampled(&tokens, &zeros, &zeros, 0).map_err(|e: SequenceError| e.to_string())
}
