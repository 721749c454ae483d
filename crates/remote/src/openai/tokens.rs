//! Spoken to in tokens: token ids in, token ids and log-probabilities out, nothing rebuilt from text.

use std::collections::BTreeMap;

use episode::{StopReason, Token};
use policy::{Job, Sampled, Sampling};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{OpenAiError, OpenAiSettings, Purpose, Scale};
use crate::wire::WireError;

/// What vLLM writes for minus infinity.
const FLOOR: f64 = -9999.0;

/// The prompt of the question that finds out what an endpoint gives: ids that every vocabulary has.
const PROBE: [Token; 3] = [1, 2, 3];

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
    token_ids: Option<Vec<Token>>,
    prompt_token_ids: Option<Vec<Token>>,
    logprobs: Option<Logprobs>,
    prompt_logprobs: Option<Vec<Option<BTreeMap<String, Scored>>>>,
}

#[derive(Deserialize)]
struct Logprobs {
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Deserialize)]
struct Scored {
    logprob: Option<f64>,
}

/// What is asked for a job.
pub(super) fn request(settings: &OpenAiSettings, scale: Scale, job: &Job) -> Result<Value, OpenAiError> {
    let s = &*job.sampling;
    s.check()?;
    if job.prompt.is_empty() {
        return Err(OpenAiError::NotAConversation {
            model: settings.model.clone(),
            reason: "it has no tokens".to_owned(),
        });
    }
    if job.begun > 0 && !s.stop_strings.is_empty() {
        let reason = "a stop string may have begun in the part of the turn that it is only shown";
        return Err(setting(settings, "stop_strings", &s.stop_strings.join("`, `"), reason));
    }
    if settings.purpose == Purpose::Training {
        knowable(settings, scale, s)?;
    }
    let room = settings.context.saturating_sub(job.prompt.len()).min(s.max_tokens.saturating_sub(job.begun));
    // A turn has a seed of its own, and an attempt at asking again has the same.
    let seed = job.stream.bits(job.prompt.len() as u64) >> 11;
    let mut body = json!({
        "model": settings.model,
        "prompt": &job.prompt[..],
        "max_tokens": room,
        "temperature": s.temperature,
        "seed": seed,
        "n": 1,
        "logprobs": 1,
        "return_token_ids": true,
        "return_tokens_as_token_ids": true,
        "add_special_tokens": false,
        "skip_special_tokens": false,
        // The stop tokens named here, and no others.
        "ignore_eos": true,
        "stop_token_ids": s.stop_tokens,
    });
    let map = body.as_object_mut().expect("written as an object above");
    if !s.stop_strings.is_empty() {
        map.insert("stop".to_owned(), json!(s.stop_strings));
    }
    if let Some(k) = s.top_k {
        map.insert("top_k".to_owned(), json!(k));
    }
    for (name, value) in [("top_p", s.top_p), ("min_p", s.min_p)] {
        if let Some(p) = value {
            map.insert(name.to_owned(), json!(p));
        }
    }
    if !s.banned.is_empty() {
        let bans: BTreeMap<String, f32> = s.banned.iter().map(|t| (t.to_string(), -100.0)).collect();
        map.insert("logit_bias".to_owned(), json!(bans));
    }
    Ok(body)
}

/// Whether both log-probabilities that a record holds, under π and at temperature 1, can be known from the one that the
/// endpoint gives.
pub(super) fn knowable(settings: &OpenAiSettings, scale: Scale, s: &Sampling) -> Result<(), OpenAiError> {
    if s.temperature != 1.0 && s.temperature != 0.0 {
        let reason = "it gives one log-probability a token, and the record needs that at the temperature and that at 1";
        return Err(setting(settings, "temperature", &s.temperature.to_string(), reason));
    }
    if !s.banned.is_empty() {
        let reason = "its log-probabilities do not leave the banned tokens out";
        return Err(setting(settings, "banned", &format!("{} tokens", s.banned.len()), reason));
    }
    if scale == Scale::Cut && (s.cuts_the_tail() || s.temperature == 0.0) {
        let (name, got) =
            if s.temperature == 0.0 { ("temperature", "0") } else { ("top_k`, `top_p` or `min_p", "set") };
        let reason = "its log-probabilities are those after cutting off, and the record needs those before";
        return Err(setting(settings, name, got, reason));
    }
    Ok(())
}

fn setting(settings: &OpenAiSettings, setting: &'static str, got: &str, reason: &'static str) -> OpenAiError {
    OpenAiError::Setting { setting, got: got.to_owned(), model: settings.model.clone(), reason }
}

/// One sampled turn, as the endpoint recorded it.
struct Turn {
    tokens: Vec<Token>,
    logp: Vec<f32>,
    finish: String,
}

/// Takes an answer apart and checks that it is a whole record of what was sampled behind this prompt.
fn turn(url: &str, body: &[u8], prompt: &[Token], vocabulary: Option<u32>) -> Result<(Turn, Choice), OpenAiError> {
    let bad = |reason: String| OpenAiError::BadRecord { url: url.to_owned(), reason };
    let answer: Completion = serde_json::from_slice(body)
        .map_err(|e| WireError::BadAnswer { url: url.to_owned(), reason: format!("not a completion: {e}") })?;
    let n = answer.choices.len();
    let [choice] = <[Choice; 1]>::try_from(answer.choices).map_err(|_| bad(format!("needed 1 choice, got {n}")))?;
    match (&choice.prompt_token_ids, answer.usage.and_then(|u| u.prompt_tokens)) {
        (Some(ids), _) if ids != prompt => return Err(bad("needed the prompt as it was sent, got another".to_owned())),
        (None, Some(n)) if n != prompt.len() => {
            return Err(bad(format!("needed a prompt of {} tokens, got {n}", prompt.len())));
        }
        (None, None) => return Err(bad("needed a sign that the prompt was read as it was sent, got none".to_owned())),
        _ => {}
    }
    let logprobs = choice.logprobs.as_ref().ok_or_else(|| bad("needed `logprobs`, got none".to_owned()))?;
    let spelled = logprobs.tokens.as_ref().and_then(|t| t.iter().map(|t| spelled_id(t)).collect::<Option<Vec<_>>>());
    let tokens = match (&choice.token_ids, spelled) {
        (Some(ids), Some(spelled)) if *ids != spelled => {
            return Err(bad("`token_ids` and `logprobs` name different tokens".to_owned()));
        }
        (Some(ids), _) => ids.clone(),
        (None, Some(spelled)) => spelled,
        (None, None) => return Err(bad("needed `token_ids`, got none".to_owned())),
    };
    let given = logprobs.token_logprobs.as_ref().ok_or_else(|| bad("needed `token_logprobs`, got none".to_owned()))?;
    if given.len() != tokens.len() {
        return Err(bad(format!("needed {} log-probabilities, one a token, got {}", tokens.len(), given.len())));
    }
    let logp = given.iter().enumerate().map(|(i, v)| log_probability(url, i, *v)).collect::<Result<Vec<f32>, _>>()?;
    check_ids(&tokens, vocabulary)?;
    let finish = choice.finish_reason.clone().ok_or_else(|| bad("needed a `finish_reason`, got none".to_owned()))?;
    Ok((Turn { tokens, logp, finish }, choice))
}

fn check_ids(tokens: &[Token], vocabulary: Option<u32>) -> Result<(), OpenAiError> {
    match vocabulary.and_then(|v| tokens.iter().find(|t| **t >= v).map(|t| (*t, v))) {
        Some((token, vocabulary)) => Err(OpenAiError::Vocabulary { token, vocabulary }),
        None => Ok(()),
    }
}

fn log_probability(url: &str, index: usize, value: Option<f64>) -> Result<f32, OpenAiError> {
    match value {
        Some(v) if v <= 0.0 && v > FLOOR => Ok(v as f32),
        other => {
            let value = other.map_or_else(|| "null".to_owned(), |v| v.to_string());
            Err(OpenAiError::LogProbability { url: url.to_owned(), index, value })
        }
    }
}

/// The id in `token_id:17`.
fn spelled_id(token: &str) -> Option<Token> {
    token.strip_prefix("token_id:")?.parse().ok()
}

/// Reads the answer to a job.
///
/// - Errors: whatever is missing from the record or contradicts the question; nothing of such an answer is kept.
pub(super) fn read(
    settings: &OpenAiSettings,
    url: &str,
    body: &[u8],
    job: &Job,
    version: u32,
) -> Result<Sampled, OpenAiError> {
    let bad = |reason: String| OpenAiError::BadRecord { url: url.to_owned(), reason };
    let (turn, _) = turn(url, body, &job.prompt, settings.vocabulary)?;
    let Turn { tokens, mut logp, finish } = turn;
    let s = &*job.sampling;
    let most = settings.context.saturating_sub(job.prompt.len()).min(s.max_tokens.saturating_sub(job.begun));
    if tokens.len() > most {
        return Err(bad(format!("needed at most {most} tokens, got {}", tokens.len())));
    }
    let stops = |t: &Token| s.stop_tokens.contains(t);
    if tokens.iter().rev().skip(1).any(stops) {
        return Err(bad("it went on behind a stop token".to_owned()));
    }
    let closed = tokens.last().is_some_and(stops);
    let stop = match finish.as_str() {
        "stop" if closed => StopReason::Eos,
        "stop" if !s.stop_strings.is_empty() => StopReason::Stop,
        "stop" => return Err(bad("it stopped at none of the stop tokens named".to_owned())),
        "length" if closed => StopReason::Eos,
        "length" if tokens.len() < most => {
            return Err(bad(format!("it stopped at {} tokens for their number, needed {most}", tokens.len())));
        }
        "length" if job.begun + tokens.len() >= s.max_tokens => StopReason::Length,
        "length" => StopReason::Context,
        "content_filter" => return Err(OpenAiError::Withheld { url: url.to_owned(), reason: finish }),
        other => return Err(bad(format!("needed `stop` or `length` as `finish_reason`, got `{other}`"))),
    };
    if settings.purpose == Purpose::Evaluation {
        logp.fill(0.0);
    }
    Ok(Sampled { id: job.id, tokens, logp_t1: logp.clone(), logp, stop, version })
}

/// The question that finds out what an endpoint gives.
pub(super) fn probe(settings: &OpenAiSettings) -> Value {
    json!({
        "model": settings.model, "prompt": PROBE, "max_tokens": 1, "temperature": 1.0, "top_k": 1, "seed": 0, "n": 1,
        "logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true, "add_special_tokens": false,
        "ignore_eos": true,
    })
}

/// What the answer to [`probe`] says: only the likeliest token was left, so after cutting off its log-probability is 0.
pub(super) fn probed(url: &str, body: &[u8]) -> Result<Scale, OpenAiError> {
    let (turn, _) = turn(url, body, &PROBE, None)?;
    match turn.logp[..] {
        [logp] => Ok(if logp == 0.0 { Scale::Cut } else { Scale::Raw }),
        _ => {
            let reason = format!("needed 1 token, got {}", turn.tokens.len());
            Err(OpenAiError::BadRecord { url: url.to_owned(), reason })
        }
    }
}

/// What is asked for the log-probabilities of given tokens.
pub(super) fn score_request(settings: &OpenAiSettings, tokens: &[Token]) -> Value {
    json!({
        "model": settings.model, "prompt": tokens, "max_tokens": 1, "temperature": 0.0, "n": 1, "logprobs": 1,
        "prompt_logprobs": 0, "return_token_ids": true, "return_tokens_as_token_ids": true, "add_special_tokens": false,
    })
}

/// The question that finds out whether an endpoint can score.
pub(super) fn score_probe(settings: &OpenAiSettings) -> Value {
    score_request(settings, &PROBE)
}

pub(super) fn score_probed(url: &str, body: &[u8]) -> bool {
    read_scores(url, body, &PROBE).is_ok()
}

/// The log-probability of each token but the first.
pub(super) fn read_scores(url: &str, body: &[u8], tokens: &[Token]) -> Result<Vec<f32>, OpenAiError> {
    let bad = |reason: String| OpenAiError::BadRecord { url: url.to_owned(), reason };
    let (_, choice) = turn(url, body, tokens, None)?;
    let given = choice.prompt_logprobs.ok_or_else(|| bad("needed `prompt_logprobs`, got none".to_owned()))?;
    if given.len() != tokens.len() {
        return Err(bad(format!("needed {} log-probabilities, one a token, got {}", tokens.len(), given.len())));
    }
    let mut scores = Vec::with_capacity(tokens.len().saturating_sub(1));
    for (i, (token, here)) in tokens.iter().zip(&given).enumerate().skip(1) {
        let found = here.as_ref().and_then(|map| map.get(&token.to_string())).and_then(|s| s.logprob);
        scores.push(log_probability(url, i, found)?);
    }
    Ok(scores)
}
