//! Spoken to in messages: a conversation in, a message and calls out; no token of it can be vouched for.

use std::collections::VecDeque;

use episode::{Message, Role, StopReason};
use policy::{Job, Sampled};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::envelope::{RawCall, Said, Talk};
use super::{ChatCodec, OpenAiError, OpenAiSettings};
use crate::wire::WireError;

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Reply,
    finish_reason: Option<String>,
    /// vLLM's: the stop string, where one ended the turn.
    stop_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Reply {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    /// A text that should be JSON; some endpoints give the object itself.
    arguments: Option<Value>,
}

/// What is asked for a job.
pub(super) fn request(settings: &OpenAiSettings, new_limit: bool, job: &Job) -> Result<Value, OpenAiError> {
    let s = &*job.sampling;
    s.check()?;
    let refuse = |setting, got: String, reason| {
        Err(OpenAiError::Setting { setting, got, model: settings.model.clone(), reason })
    };
    let in_messages = "it is spoken to in messages";
    if let Some(other) = s.stop_tokens.iter().find(|t| **t != ChatCodec::END) {
        return refuse("stop_tokens", other.to_string(), in_messages);
    }
    if let Some(k) = s.top_k {
        return refuse("top_k", k.to_string(), in_messages);
    }
    if let Some(p) = s.min_p {
        return refuse("min_p", p.to_string(), in_messages);
    }
    if !s.banned.is_empty() {
        return refuse("banned", format!("{} tokens", s.banned.len()), in_messages);
    }
    if job.begun > 0 {
        return refuse("begun", format!("{} tokens", job.begun), "a turn cannot be taken up in the middle");
    }
    let odd = |reason| OpenAiError::NotAConversation { model: settings.model.clone(), reason };
    let talk = ChatCodec::talk(&job.prompt).map_err(odd)?;
    let messages = messages(&talk).map_err(odd)?;
    let mut body = json!({
        "model": settings.model,
        "messages": messages,
        "temperature": s.temperature,
        limit(new_limit): s.max_tokens,
        "seed": job.stream.bits(job.prompt.len() as u64) >> 11,
        "n": 1,
    });
    let map = body.as_object_mut().expect("written as an object above");
    if let Some(tools) = talk.tools {
        map.insert("tools".to_owned(), tools);
    }
    if let Some(p) = s.top_p {
        map.insert("top_p".to_owned(), json!(p));
    }
    if !s.stop_strings.is_empty() {
        map.insert("stop".to_owned(), json!(s.stop_strings));
    }
    Ok(body)
}

fn limit(new: bool) -> &'static str {
    if new { "max_completion_tokens" } else { "max_tokens" }
}

/// The question that finds out whether an endpoint answers at all, and under which name it takes the limit.
pub(super) fn probe(settings: &OpenAiSettings, new_limit: bool) -> Value {
    json!({
        "model": settings.model,
        "messages": [{"role": "user", "content": "Say ok."}],
        limit(new_limit): 16,
        "n": 1,
    })
}

/// Whether a refusal of [`probe`] asks for the limit under its new name.
pub(super) fn wants_new_limit(error: &WireError) -> bool {
    matches!(error, WireError::Refused { status: 400 | 422, said, .. } if said.contains("max_completion_tokens"))
}

/// The conversation as the API takes it; answers are matched to the calls before them in order.
fn messages(talk: &Talk) -> Result<Vec<Value>, String> {
    let mut out = Vec::with_capacity(talk.said.len());
    let mut waiting: VecDeque<String> = VecDeque::new();
    for (i, said) in talk.said.iter().enumerate() {
        let role = match said {
            Said::Message(message) => message.role,
            Said::Turn { .. } => Role::Assistant,
        };
        if role != Role::Tool && !waiting.is_empty() {
            return Err(format!("{} calls have no answer", waiting.len()));
        }
        match said {
            Said::Turn { content, calls } => {
                waiting.extend(calls.iter().map(|c| c.id.clone()));
                out.push(assistant(content, calls));
            }
            Said::Message(message) if role == Role::Assistant => {
                let calls = given(i, message)?;
                waiting.extend(calls.iter().map(|c| c.id.clone()));
                out.push(assistant(&message.content, &calls));
            }
            Said::Message(message) if role == Role::Tool => out.push(match waiting.pop_front() {
                Some(id) => json!({"role": "tool", "tool_call_id": id, "content": message.content}),
                // A call that was read from the text has no id there, so its answer comes as a text too.
                None => {
                    json!({"role": "user", "content": format!("<tool_response>\n{}\n</tool_response>", message.content)})
                }
            }),
            Said::Message(message) => out.push(json!({"role": message.role.as_str(), "content": message.content})),
        }
    }
    match waiting.len() {
        0 => Ok(out),
        n => Err(format!("{n} calls have no answer")),
    }
}

/// Calls of a message that the task came with; they have no ids yet.
fn given(index: usize, message: &Message) -> Result<Vec<RawCall>, String> {
    let raw = |(j, call): (usize, &episode::ToolCall)| {
        let arguments = serde_json::to_string(&call.arguments).map_err(|e| e.to_string())?;
        Ok(RawCall { id: format!("given-{index}-{j}"), name: call.tool.clone(), arguments })
    };
    message.calls.iter().enumerate().map(raw).collect()
}

fn assistant(content: &str, calls: &[RawCall]) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    // An empty text beside calls is written as none, as the endpoint gave it.
    let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { json!(content) };
    message.insert("content".to_owned(), content);
    if !calls.is_empty() {
        let call = |c: &RawCall| json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}});
        message.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
    }
    Value::Object(message)
}

/// Reads the answer to a job.
pub(super) fn read(url: &str, body: &[u8], job: &Job, version: u32) -> Result<Sampled, OpenAiError> {
    let bad = |reason: String| OpenAiError::Wire(WireError::BadAnswer { url: url.to_owned(), reason });
    let answer: Completion = serde_json::from_slice(body).map_err(|e| bad(format!("not a chat completion: {e}")))?;
    let n = answer.choices.len();
    let [choice] = <[Choice; 1]>::try_from(answer.choices).map_err(|_| bad(format!("needed 1 choice, got {n}")))?;
    let stop = match choice.finish_reason.as_deref() {
        Some("stop" | "tool_calls") if matches!(choice.stop_reason, Some(Value::String(_))) => StopReason::Stop,
        Some("stop" | "tool_calls") => StopReason::Eos,
        Some("length") => StopReason::Length,
        Some("content_filter") => {
            return Err(OpenAiError::Withheld { url: url.to_owned(), reason: "content_filter".to_owned() });
        }
        Some(other) => return Err(bad(format!("needed a known `finish_reason`, got `{}`", crate::wire::shown(other)))),
        None => return Err(bad("needed a `finish_reason`, got none".to_owned())),
    };
    let content = choice.message.content.or(choice.message.refusal).unwrap_or_default();
    let calls = choice.message.tool_calls.unwrap_or_default();
    let raw = |(i, call): (usize, Call)| RawCall {
        // Unique in the conversation, since a turn begins at one place of it only.
        id: call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call-{}-{i}", job.prompt.len())),
        name: call.function.name,
        arguments: match call.function.arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        },
    };
    let calls: Vec<RawCall> = calls.into_iter().enumerate().map(raw).collect();
    let tokens = ChatCodec::turn(&content, &calls, stop != StopReason::Length);
    let unknown = vec![0.0; tokens.len()];
    Ok(Sampled { id: job.id, tokens, logp: unknown.clone(), logp_t1: unknown, stop, version })
}
