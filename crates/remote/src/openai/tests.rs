use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::Codec;
use episode::random::Stream;
use episode::{Message, Role, StopReason, Token, ToolCall, ToolSpec};
use policy::{Job, Jobs, PolicyError, Sampled, Sampler, Sampling};
use serde_json::{Value, json};
use text::Next;
use text::dialect::{Dialect, Strictness};

use super::*;
use crate::wire::fake::{Asked, FakeServer, Reply};
use crate::wire::{Secret, WireError};

const KEY: &str = "sk-very-secret-17";

fn settings(server: &FakeServer) -> OpenAiSettings {
    let mut settings = OpenAiSettings::new(format!("{}/v1", server.url), "m");
    settings.patience.backoff = Duration::from_millis(1);
    settings.patience.deadline = Duration::from_secs(20);
    settings
}

fn training(server: &FakeServer) -> OpenAiSettings {
    OpenAiSettings { purpose: Purpose::Training, context: 100, ..settings(server) }
}

/// What a server that records everything answers to the probes; none when it is asked something else.
fn probes(asked: &Asked) -> Option<Value> {
    let q = asked.json();
    if q["prompt"] != json!([1, 2, 3]) {
        return None;
    }
    let mut answer = record(&[1, 2, 3], &[7], &[-0.25], "length");
    if !q["prompt_logprobs"].is_null() {
        let at = |id: &str, logp: f64| json!({id: {"logprob": logp, "rank": 1, "decoded_token": "x"}});
        answer["choices"][0]["prompt_logprobs"] = json!([null, at("2", -1.0), at("3", -2.0)]);
    }
    Some(answer)
}

/// A complete record in the form of vLLM.
fn record(prompt: &[Token], tokens: &[Token], logp: &[f64], finish: &str) -> Value {
    let spelled: Vec<String> = tokens.iter().map(|t| format!("token_id:{t}")).collect();
    json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0, "text": "?", "finish_reason": finish, "stop_reason": null,
            "token_ids": tokens, "prompt_token_ids": prompt,
            "logprobs": {"text_offset": [], "token_logprobs": logp, "tokens": spelled, "top_logprobs": []},
        }],
        "usage": {"prompt_tokens": prompt.len(), "completion_tokens": tokens.len(), "total_tokens": 0},
    })
}

pub(super) fn said(content: Option<&str>, calls: Value, finish: &str) -> Value {
    json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{
        "index": 0, "finish_reason": finish,
        "message": {"role": "assistant", "content": content, "tool_calls": calls},
    }]})
}

fn job(id: u64, prompt: &[Token], change: impl Fn(&mut Sampling)) -> Job {
    let mut sampling = Sampling::plain(1.0, 8, vec![2]);
    change(&mut sampling);
    Job { id, prompt: prompt.into(), begun: 0, sampling: Arc::new(sampling), stream: Stream::from_key(id) }
}

#[derive(Default)]
struct Source {
    waiting: VecDeque<Job>,
    done: Vec<Sampled>,
    failed: Vec<(u64, String)>,
    aside: Vec<Sampled>,
    stop_after: Option<Instant>,
    pause: bool,
}

impl Source {
    fn of(jobs: impl IntoIterator<Item = Job>) -> Source {
        Source { waiting: jobs.into_iter().collect(), ..Source::default() }
    }

    fn is_late(&self) -> bool {
        self.stop_after.is_some_and(|t| Instant::now() >= t)
    }
}

impl Jobs for Source {
    fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front()
    }

    fn done(&mut self, result: Sampled) {
        self.done.push(result);
    }

    fn failed(&mut self, id: u64, error: PolicyError) {
        self.failed.push((id, error.to_string()));
    }

    fn cancelled(&self) -> bool {
        !self.pause && self.is_late()
    }

    fn paused(&mut self) -> bool {
        self.pause && self.is_late()
    }

    fn set_aside(&mut self, part: Sampled) {
        self.aside.push(part);
    }
}

/// Samples one job of a training endpoint that answers it so.
fn sample(
    change: impl Fn(&mut Sampling),
    answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> (FakeServer, Source) {
    let server = FakeServer::start(move |_, asked| match probes(asked) {
        Some(probe) => Reply::Json(200, probe),
        None => answer(asked),
    });
    let mut policy = OpenAi::connect(training(&server), None).unwrap();
    assert!(policy.trains());
    policy.set_version(3);
    let mut source = Source::of([job(9, &[5, 6], change)]);
    policy.sample(&mut source).unwrap();
    (server, source)
}

fn check_record(answer: Value, want: Result<StopReason, &str>) {
    let (_, source) = sample(|_| (), move |_| Reply::Json(200, answer.clone()));
    let failed: Vec<&str> = source.failed.iter().map(|(_, e)| e.as_str()).collect();
    match want {
        Ok(stop) => {
            assert_eq!(failed, Vec::<&str>::new());
            assert_eq!(source.done[0].stop, stop);
        }
        Err(text) => {
            assert!(source.done.is_empty(), "{:?}", source.done);
            assert!(failed.len() == 1 && failed[0].contains(text), "needed `{text}`, got {failed:?}");
        }
    }
}

#[test]
fn a_complete_record_is_taken_as_it_was_given() {
    let (server, source) = sample(
        |s| s.stop_strings = vec!["\n".to_owned()],
        |_| Reply::Json(200, record(&[5, 6], &[9, 9, 2], &[-0.5, -1.25, 0.0], "stop")),
    );
    let want = Sampled {
        id: 9,
        tokens: vec![9, 9, 2],
        logp: vec![-0.5, -1.25, 0.0],
        logp_t1: vec![-0.5, -1.25, 0.0],
        stop: StopReason::Eos,
        version: 3,
    };
    assert_eq!(source.done, [want]);
    let q = server.asked().last().unwrap().json();
    assert_eq!(q["prompt"], json!([5, 6]));
    assert_eq!(q["stop_token_ids"], json!([2]));
    assert_eq!(
        (&q["ignore_eos"], &q["return_token_ids"], &q["add_special_tokens"]),
        (&json!(true), &json!(true), &json!(false))
    );
    assert_eq!((&q["max_tokens"], &q["temperature"], &q["stop"]), (&json!(8), &json!(1.0), &json!(["\n"])));
    assert_eq!(q["seed"], json!(Stream::from_key(9).bits(2) >> 11));
}

#[test]
fn d13_what_lacks_a_record_is_refused_and_never_rebuilt_from_text() {
    let good = record(&[5, 6], &[9, 2], &[-0.5, -0.5], "stop");
    check_record(good.clone(), Ok(StopReason::Eos));
    let without = |at: &str| {
        let mut answer = good.clone();
        *answer.pointer_mut(at).unwrap() = Value::Null;
        answer
    };
    let with = |at: &str, value: Value| {
        let mut answer = good.clone();
        *answer.pointer_mut(at).unwrap() = value;
        answer
    };
    const C: &str = "/choices/0";
    check_record(without(&format!("{C}/logprobs")), Err("needed `logprobs`, got none"));
    check_record(without(&format!("{C}/logprobs/token_logprobs")), Err("needed `token_logprobs`, got none"));
    // The ids may come either way; both ways must agree.
    check_record(without(&format!("{C}/token_ids")), Ok(StopReason::Eos));
    check_record(with(&format!("{C}/logprobs/tokens"), json!(["a", "b"])), Ok(StopReason::Eos));
    let mut textual = with(&format!("{C}/logprobs/tokens"), json!(["a", "b"]));
    textual["choices"][0]["token_ids"] = Value::Null;
    check_record(textual, Err("needed `token_ids`, got none"));
    check_record(with(&format!("{C}/token_ids"), json!([8, 2])), Err("name different tokens"));
    let logprobs = format!("{C}/logprobs/token_logprobs");
    check_record(with(&logprobs, json!([-0.5])), Err("needed 2 log-probabilities, one a token, got 1"));
    for odd in [json!(null), json!(0.5), json!(-9999.0), json!(-1e300)] {
        check_record(with(&logprobs, json!([-0.5, odd])), Err("log-probability is not finite at sampled token 1"));
    }
    check_record(
        with(&format!("{C}/prompt_token_ids"), json!([1, 5, 6])),
        Err("needed the prompt as it was sent, got another"),
    );
    let mut longer = without(&format!("{C}/prompt_token_ids"));
    check_record(longer.clone(), Ok(StopReason::Eos));
    longer["usage"]["prompt_tokens"] = json!(3);
    check_record(longer.clone(), Err("needed a prompt of 2 tokens, got 3"));
    longer["usage"] = Value::Null;
    check_record(longer, Err("needed a sign that the prompt was read as it was sent"));
    check_record(with("/choices", json!([])), Err("needed 1 choice, got 0"));
    check_record(json!({"choices": [good["choices"][0], good["choices"][0]]}), Err("needed 1 choice, got 2"));
    check_record(json!("hi"), Err("not a completion"));
}

#[test]
fn d2_a_turn_ends_where_it_says_and_nowhere_else() {
    let logp = |n| vec![-0.5; n];
    let ended = |tokens: &[Token], finish: &str| record(&[5, 6], tokens, &logp(tokens.len()), finish);
    check_record(ended(&[9, 2, 9], "length"), Err("went on behind a stop token"));
    check_record(ended(&[9, 9], "stop"), Err("stopped at none of the stop tokens named"));
    check_record(ended(&[9, 9], "length"), Err("stopped at 2 tokens for their number, needed 8"));
    check_record(ended(&[9; 8], "length"), Ok(StopReason::Length));
    check_record(ended(&[9; 9], "length"), Err("needed at most 8 tokens, got 9"));
    check_record(ended(&[9, 9, 9, 9, 9, 9, 9, 2], "length"), Ok(StopReason::Eos));
    check_record(ended(&[9], "abort"), Err("needed `stop` or `length` as `finish_reason`, got `abort`"));
    check_record(ended(&[9], "content_filter"), Err("withheld its answer"));
    check_record(ended(&[], "length"), Err("stopped at 0 tokens"));
}

#[test]
fn a_record_needs_both_log_probabilities_or_the_setting_is_refused() {
    let check = |change: fn(&mut Sampling), want: Option<&str>| {
        let (_, source) = sample(change, |_| Reply::Json(200, record(&[5, 6], &[2], &[-0.5], "stop")));
        assert_eq!(
            source.failed.first().map(|(_, e)| e.contains(want.unwrap_or("?"))),
            want.map(|_| true),
            "{:?}",
            source.failed
        );
    };
    check(|_| (), None);
    check(|s| s.temperature = 0.0, None);
    check(|s| s.top_p = Some(0.9), None);
    check(|s| s.temperature = 0.7, Some("`temperature` is 0.7, which `m` cannot be asked for"));
    check(|s| s.banned = vec![4], Some("`banned` is 1 tokens"));
    check(|s| s.temperature = -1.0, Some("`temperature` is -1"));
}

#[test]
fn log_probabilities_after_cutting_off_are_noticed_and_not_mixed_up() {
    let server = FakeServer::start(|_, asked| {
        let mut answer = probes(asked).unwrap_or_else(|| record(&[5, 6], &[2], &[-0.5], "stop"));
        if asked.json()["top_k"] == 1 {
            answer["choices"][0]["logprobs"]["token_logprobs"] = json!([0.0]);
        }
        Reply::Json(200, answer)
    });
    let mut policy = OpenAi::connect(training(&server), None).unwrap();
    assert_eq!(policy.mode(), Mode::Tokens { scale: Scale::Cut, scores: true });
    let mut source = Source::of([
        job(1, &[5, 6], |s| s.top_k = Some(3)),
        job(2, &[5, 6], |s| s.temperature = 0.0),
        job(3, &[5, 6], |_| ()),
    ]);
    policy.sample(&mut source).unwrap();
    assert_eq!(source.done.iter().map(|s| s.id).collect::<Vec<_>>(), [3]);
    assert_eq!(source.failed.len(), 2);
    assert!(source.failed[0].1.contains("those after cutting off"), "{:?}", source.failed);
}

#[test]
fn tokens_are_scored_or_refused() {
    let server = FakeServer::start(|_, asked| match probes(asked) {
        Some(probe) => Reply::Json(200, probe),
        None => {
            let mut answer = record(&[8, 9], &[1], &[-0.5], "length");
            answer["choices"][0]["prompt_logprobs"] = json!([null, {"8": {"logprob": -0.1}}]);
            Reply::Json(200, answer)
        }
    });
    let policy = OpenAi::connect(training(&server), None).unwrap();
    assert_eq!(policy.score(&[1, 2, 3]), Ok(vec![-1.0, -2.0]));
    let error = policy.score(&[8, 9]).unwrap_err();
    assert!(matches!(&error, OpenAiError::LogProbability { index: 1, value, .. } if value == "null"), "{error}");
}

#[test]
fn an_endpoint_without_records_is_refused_for_training_and_used_in_messages_else() {
    let script = |_: usize, asked: &Asked| match asked.path.as_str() {
        "/v1/completions" => Reply::Json(200, json!({"choices": [{"text": "hi", "finish_reason": "stop"}]})),
        "/v1/chat/completions" => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
        _ => Reply::Json(404, json!({})),
    };
    let server = FakeServer::start(script);
    let error = OpenAi::connect(training(&server), None).unwrap_err().to_string();
    assert!(error.starts_with("`m` gives no record that can be trained on: "), "{error}");
    let policy = OpenAi::connect(settings(&server), None).unwrap();
    assert_eq!(policy.mode(), Mode::Chat { new_limit: false });
    assert!(!policy.trains() && !policy.recorded().log_probabilities);
    assert!(policy.why_chat().unwrap().to_string().contains("needed a sign that the prompt was read as it was sent"));
    let only = OpenAiSettings { mode: WantedMode::Tokens, ..settings(&server) };
    assert!(matches!(OpenAi::connect(only, None), Err(OpenAiError::NoRecord { .. })));
    let odd = OpenAiSettings { mode: WantedMode::Chat, ..training(&server) };
    assert!(matches!(
        OpenAi::connect(odd, None),
        Err(OpenAiError::Wire(WireError::BadSetting { setting: "mode", .. }))
    ));
}

#[test]
fn an_endpoint_that_records_but_is_only_evaluated_gives_unknown_log_probabilities() {
    let server = FakeServer::start(|_, asked| {
        Reply::Json(200, probes(asked).unwrap_or_else(|| record(&[5, 6], &[2], &[-0.5], "stop")))
    });
    let mut policy = OpenAi::connect(settings(&server), None).unwrap();
    let mut source = Source::of([job(1, &[5, 6], |s| (s.temperature, s.banned) = (0.7, vec![4]))]);
    policy.sample(&mut source).unwrap();
    assert_eq!(source.done[0].logp, [0.0]);
    assert!(!policy.trains());
    assert_eq!(server.asked().last().unwrap().json()["logit_bias"], json!({"4": -100.0}));
}

fn chat_server(answer: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> (FakeServer, OpenAi) {
    let server = FakeServer::start(move |n, asked| match n {
        0 => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
        n => answer(n - 1, asked),
    });
    let policy = OpenAi::connect(OpenAiSettings { mode: WantedMode::Chat, ..settings(&server) }, None).unwrap();
    (server, policy)
}

fn tool() -> ToolSpec {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    ToolSpec::new("search", "looks things up", "search", schema)
}

fn chat_job(id: u64, prompt: Vec<Token>) -> Job {
    job(id, &prompt, |s| (s.stop_tokens, s.max_tokens) = (vec![ChatCodec::END], 64))
}

#[test]
fn e13_a_conversation_with_calls_survives_the_way_there_and_back() {
    let calls =
        json!([{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{\"q\": \"é\"}"}}]);
    let (server, mut policy) = chat_server(move |n, _| match n {
        0 => Reply::Json(200, said(Some("let me see"), calls.clone(), "tool_calls")),
        _ => Reply::Json(200, said(Some("it is 4"), Value::Null, "stop")),
    });
    let codec = ChatCodec::native();
    let opening = [Message::new(Role::System, "be brief"), Message::new(Role::User, "2+2?")];
    let mut prompt = codec.open(&opening, &[tool()]).unwrap();
    let mut source = Source::of([chat_job(1, prompt.clone())]);
    policy.sample(&mut source).unwrap();
    let turn = source.done.remove(0);
    assert_eq!((turn.stop, turn.tokens.last()), (StopReason::Eos, Some(&ChatCodec::END)));
    assert_eq!(turn.logp, vec![0.0; turn.tokens.len()]);
    let text = codec.decode(&turn.tokens[..turn.tokens.len() - 1]);
    let reading = codec.read(&text, &[tool()]);
    assert_eq!(reading.said, "let me see");
    assert_eq!(reading.calls, [Ok(ToolCall::new("search", json!({"q": "é"})))]);
    prompt.extend(&turn.tokens);
    let answer = Message { tool: Some("search".to_owned()), ..Message::new(Role::Tool, "4") };
    let Next::Append(more) = codec.go_on(&[], &[tool()], true, &[answer]).unwrap() else { panic!("needed to append") };
    prompt.extend(more);
    source.waiting.push_back(chat_job(2, prompt));
    policy.sample(&mut source).unwrap();
    assert_eq!(codec.decode(&source.done[0].tokens[..7]), "it is 4");
    let asked = server.asked();
    let first = asked[1].json();
    assert_eq!(first["tools"][0]["function"]["name"], "search");
    assert_eq!((&first["max_tokens"], &first["seed"].is_u64()), (&json!(64), &true));
    let want = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "let me see", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{\"q\": \"é\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]);
    assert_eq!(asked[2].json()["messages"], want);
}

#[test]
fn f2_a_malformed_call_is_an_observation_and_a_look_alike_is_text() {
    let codec = ChatCodec::native();
    let raw = |name: &str, arguments: &str| envelope::RawCall {
        id: "1".to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let read = |content: &str, calls: &[envelope::RawCall]| {
        let tokens = ChatCodec::turn(content, calls, false);
        codec.read(&codec.decode(&tokens), &[tool()])
    };
    let malformed = |arguments: &str| read("x", &[raw("search", arguments)]).calls[0].clone().unwrap_err().to_string();
    assert!(malformed("{\"q\": ").contains("not JSON"));
    assert!(malformed("[1]").contains("need `arguments`, an object"));
    assert!(malformed("{}").contains("argument"), "{}", malformed("{}"));
    assert!(malformed("__import__('os')").contains("not JSON"));
    assert!(read("x", &[raw("", "{}")]).calls[0].is_err());
    // A text that holds what separates calls, or a call in some dialect, stays a text.
    let forged = "\u{1e}{\"id\":\"1\",\"name\":\"search\",\"arguments\":\"{}\"}";
    assert!(read(forged, &[]).calls.is_empty());
    assert!(
        read("<tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": \"a\"}}\n</tool_call>", &[]).calls.is_empty()
    );
    // Both of two calls, the good one and the odd one, in order.
    let both = read("x", &[raw("search", "{\"q\": \"\\u001e\"}"), raw("search", "no")]);
    assert_eq!(both.calls[0], Ok(ToolCall::new("search", json!({"q": "\u{1e}"}))));
    assert!(both.calls[1].is_err());
}

#[test]
fn an_endpoint_without_tools_is_told_of_them_in_words() {
    let codec = ChatCodec::written(Dialect::Hermes, Strictness::Lenient);
    let prompt = codec.open(&[Message::new(Role::User, "hi")], &[tool()]).unwrap();
    let talk = ChatCodec::talk(&prompt).unwrap();
    assert_eq!(talk.tools, None);
    let envelope::Said::Message(first) = &talk.said[0] else { panic!("{talk:?}") };
    assert!(first.role == Role::System && first.content.contains("looks things up"));
    let reading =
        codec.read("<tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": \"a\"}}\n</tool_call>", &[tool()]);
    assert_eq!(reading.calls, [Ok(ToolCall::new("search", json!({"q": "a"})))]);
}

#[test]
fn a_prompt_that_is_no_conversation_is_refused() {
    let (_server, mut policy) = chat_server(|_, _| Reply::Json(200, said(Some("ok"), Value::Null, "stop")));
    let open = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let call = envelope::RawCall { id: "1".to_owned(), name: "search".to_owned(), arguments: "{}".to_owned() };
    let unanswered = [&open[..], &ChatCodec::turn("", &[call], true), &[257]].concat();
    let jobs = [
        (vec![], "it does not open a turn"),
        (vec![65, 66], "a byte stands outside of any message"),
        (open[..open.len() - 1].to_vec(), "it does not open a turn"),
        ([&open[..], &[65]].concat(), "a turn does not end"),
        ([&open[..], &[65, 256, 999, 257]].concat(), "token 999 stands where none of its kind may"),
        (unanswered, "1 calls have no answer"),
    ];
    let mut source = Source::of(jobs.iter().enumerate().map(|(i, (prompt, _))| chat_job(i as u64, prompt.clone())));
    policy.sample(&mut source).unwrap();
    for ((_, want), (_, got)) in jobs.iter().zip(&source.failed) {
        assert!(got.contains(want), "needed `{want}`, got `{got}`");
    }
    assert_eq!(source.failed.len(), jobs.len());
}

#[test]
fn what_cannot_be_asked_in_messages_is_refused_and_not_ignored() {
    let (server, mut policy) = chat_server(|_, _| Reply::Json(200, said(Some("ok"), Value::Null, "stop")));
    let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let changes: [fn(&mut Sampling); 4] =
        [|s| s.top_k = Some(1), |s| s.min_p = Some(0.1), |s| s.banned = vec![1], |s| s.stop_tokens = vec![3]];
    let mut source = Source::of(changes.iter().map(|change| job(1, &prompt, change)));
    source.waiting.push_back(Job { begun: 1, ..chat_job(2, prompt.clone()) });
    policy.sample(&mut source).unwrap();
    assert_eq!((source.failed.len(), source.done.len(), server.asked().len()), (5, 0, 1));
}

#[test]
fn the_limit_is_sent_under_the_name_that_the_endpoint_takes() {
    let server = FakeServer::start(|_, asked| match asked.json()["max_tokens"].is_null() {
        false => Reply::Json(400, json!({"error": {"message": "Use 'max_completion_tokens' instead."}})),
        true => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
    });
    let chat = OpenAiSettings { mode: WantedMode::Chat, ..settings(&server) };
    let mut policy = OpenAi::connect(chat, None).unwrap();
    let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let mut source = Source::of([chat_job(1, prompt)]);
    policy.sample(&mut source).unwrap();
    assert_eq!(source.done.len(), 1);
    assert_eq!(server.asked().last().unwrap().json()["max_completion_tokens"], 64);
}

fn chat_once(answer: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> (FakeServer, Source) {
    let (server, mut policy) = chat_server(answer);
    let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let mut source = Source::of([chat_job(1, prompt)]);
    policy.sample(&mut source).unwrap();
    (server, source)
}

#[test]
fn i15_what_failed_is_asked_again_and_answered_once() {
    let broken: [fn() -> Reply; 5] = [
        || Reply::Json(503, json!({"error": {"message": "loading"}})),
        || Reply::Json(500, json!({})),
        || Reply::CutOff(b"{\"choices\": [".to_vec()),
        || Reply::Drop,
        || Reply::Raw(429, "retry-after: 0\r\n", b"slow down".to_vec()),
    ];
    for reply in broken {
        let (server, source) = chat_once(move |n, _| match n {
            0 | 1 => reply(),
            _ => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
        });
        assert_eq!((source.done.len(), &source.failed), (1, &vec![]));
        let asked = server.asked();
        assert_eq!(asked.len(), 4);
        assert_eq!(asked[1].body, asked[3].body, "the same question, with the same seed");
    }
}

type Says = fn() -> Reply;

#[test]
fn f13_what_makes_no_sense_is_not_asked_again() {
    let malformed: [(Says, &str); 7] = [
        (|| Reply::Raw(200, "", b"<html>".to_vec()), "not a chat completion"),
        (
            || Reply::Raw(200, "", b"{\"choices\": [{\"message\": {\"content\": NaN}}]}".to_vec()),
            "not a chat completion",
        ),
        (|| Reply::Json(200, json!({"choices": []})), "needed 1 choice, got 0"),
        (|| Reply::Json(200, said(Some("x"), Value::Null, "odd")), "needed a known `finish_reason`, got `odd`"),
        (|| Reply::Json(400, json!({"error": {"message": "bad stop"}})), "status 400: bad stop"),
        (|| Reply::Json(404, json!({"detail": "no such model"})), "status 404: no such model"),
        (|| Reply::Raw(307, "location: http://127.0.0.1:1/\r\n", vec![]), "status 307"),
    ];
    for (reply, want) in malformed {
        let (server, source) = chat_once(move |_, _| reply());
        assert!(source.done.is_empty());
        assert!(source.failed[0].1.contains(want), "needed `{want}`, got {:?}", source.failed);
        assert_eq!(server.asked().len(), 2);
    }
}

#[test]
fn i11_a_server_that_never_answers_is_given_up_at_the_deadline() {
    let server = FakeServer::start(|n, _| match n {
        0 => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
        _ => Reply::Hang,
    });
    let mut chat = OpenAiSettings { mode: WantedMode::Chat, ..settings(&server) };
    chat.patience.deadline = Duration::from_millis(400);
    let mut policy = OpenAi::connect(chat, None).unwrap();
    let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let mut source = Source::of([chat_job(1, prompt)]);
    let started = Instant::now();
    policy.sample(&mut source).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(source.failed[0].1.contains("within 0.4 s while waiting for an answer"), "{:?}", source.failed);
    assert_eq!(server.asked().len(), 2, "a deadline is not asked past");
}

#[test]
fn a_long_wish_to_wait_ends_at_the_deadline_and_says_why() {
    let (server, source) = chat_once(|_, _| Reply::Raw(429, "retry-after: 100\r\n", b"slow down".to_vec()));
    let want = "while waiting to ask again after: status 429: slow down";
    assert!(source.failed[0].1.contains(want), "{:?}", source.failed);
    assert_eq!(server.asked().len(), 2);
}

#[test]
fn an_answer_beyond_the_limit_is_dropped() {
    let server = FakeServer::start(|n, _| match n {
        0 => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
        _ => Reply::Raw(200, "", vec![b' '; 5000]),
    });
    let mut chat = OpenAiSettings { mode: WantedMode::Chat, ..settings(&server) };
    chat.patience.max_answer_bytes = 4096;
    let mut policy = OpenAi::connect(chat, None).unwrap();
    let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
    let mut source = Source::of([chat_job(1, prompt)]);
    policy.sample(&mut source).unwrap();
    assert!(source.failed[0].1.contains("longer than 4096 bytes"), "{:?}", source.failed);
}

#[test]
fn i17_a_prompt_too_long_for_the_endpoint_is_no_fault() {
    let (_server, source) = chat_once(|_, _| {
        let message = "This model's maximum context length is 10 tokens. However, you requested 12 tokens";
        Reply::Json(400, json!({"error": {"message": message}}))
    });
    assert_eq!(source.failed[0].1, "12 tokens do not fit the context window of 10");
    let (server, source) = sample(|_| (), |_| Reply::Json(200, json!({})));
    assert_eq!(source.failed.len(), 1);
    let mut policy = OpenAi::connect(training(&server), None).unwrap();
    let mut source = Source::of([job(1, &[5; 100], |_| ())]);
    policy.sample(&mut source).unwrap();
    assert_eq!(source.failed[0].1, "101 tokens do not fit the context window of 100");
}

#[test]
fn at_most_so_many_requests_at_once_and_each_job_gets_its_own_answer() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (here, peak) = (now.clone(), most.clone());
    let server = FakeServer::start(move |_, asked| {
        if let Some(probe) = probes(asked) {
            return Reply::Json(200, probe);
        }
        let n = here.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(n, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        here.fetch_sub(1, Ordering::SeqCst);
        let id = asked.json()["prompt"][1].as_u64().unwrap() as Token;
        Reply::Json(200, record(&[5, id], &[id, 2], &[-0.5, -0.5], "stop"))
    });
    let settings = OpenAiSettings { concurrent: 3, ..training(&server) };
    let mut policy = OpenAi::connect(settings, None).unwrap();
    let mut source = Source::of((10..30).map(|i| job(i, &[5, i as Token], |_| ())));
    policy.sample(&mut source).unwrap();
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(source.done.len(), 20);
    assert!(source.done.iter().all(|s| s.tokens[0] as u64 == s.id));
    let seeds: std::collections::BTreeSet<_> = server.asked()[2..].iter().map(|a| a.json()["seed"].as_u64()).collect();
    assert_eq!(seeds.len(), 20, "every job draws by its own seed");
}

fn stopped(pause: bool) -> Source {
    let server = FakeServer::start(|_, asked| match probes(asked) {
        Some(probe) => Reply::Json(200, probe),
        None => Reply::Hang,
    });
    let mut policy = OpenAi::connect(training(&server), None).unwrap();
    let mut source = Source::of([job(1, &[5, 6], |_| ()), job(2, &[5, 6], |_| ())]);
    source.stop_after = Some(Instant::now() + Duration::from_millis(100));
    source.pause = pause;
    let started = Instant::now();
    policy.sample(&mut source).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
    source
}

#[test]
fn jobs_under_way_are_given_back_when_the_source_stops_or_pauses() {
    let cancelled = stopped(false);
    assert_eq!(
        cancelled.done.iter().map(|s| (s.id, s.stop)).collect::<Vec<_>>(),
        [(1, StopReason::Cancelled), (2, StopReason::Cancelled)]
    );
    let paused = stopped(true);
    assert_eq!(paused.aside.iter().map(|s| (s.id, s.tokens.len())).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert!(paused.done.is_empty() && paused.failed.is_empty());
}

#[test]
fn the_key_is_sent_and_shown_nowhere() {
    let secret = || Some(Secret::from_env("THE_KEY", &|_| Some(KEY.to_owned())).unwrap());
    let echo = |status: u16| {
        move |n: usize, asked: &Asked| match n {
            0 => Reply::Json(200, said(Some("ok"), Value::Null, "stop")),
            _ => {
                let sent = asked
                    .head
                    .lines()
                    .find(|l| l.to_ascii_lowercase().starts_with("authorization"))
                    .unwrap()
                    .to_owned();
                assert_eq!(sent.split_once(' ').unwrap().1, format!("Bearer {KEY}"));
                Reply::Json(status, json!({"error": {"message": format!("no: {sent}")}}))
            }
        }
    };
    for status in [400, 401, 403, 404, 429] {
        let server = FakeServer::start(echo(status));
        let mut chat = OpenAiSettings { mode: WantedMode::Chat, ..settings(&server) };
        chat.patience.attempts = 2;
        let mut policy = OpenAi::connect(chat, secret()).unwrap();
        assert!(!format!("{policy:?}").contains(KEY), "{policy:?}");
        let recorded = serde_json::to_string(&policy.recorded()).unwrap();
        assert!(!recorded.contains(KEY), "{recorded}");
        let prompt = ChatCodec::native().open(&[Message::new(Role::User, "hi")], &[]).unwrap();
        let mut source = Source::of([chat_job(1, prompt.clone()), chat_job(2, prompt)]);
        let shown = match policy.sample(&mut source) {
            Err(error) => {
                assert!(matches!(status, 401 | 403), "only a refused key stops every job");
                format!("{error} {error:?}")
            }
            Ok(()) => source.failed[0].1.clone(),
        };
        assert!(shown.contains(&format!("status {status}")) && !shown.contains(KEY), "{shown}");
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_no_reason_to_speak_otherwise() {
    let mut gone = OpenAiSettings::new("http://127.0.0.1:1/v1", "m");
    (gone.patience.attempts, gone.patience.backoff) = (2, Duration::from_millis(1));
    let error = OpenAi::connect(gone, None).unwrap_err();
    assert!(matches!(&error, OpenAiError::Wire(WireError::Unreachable { attempts: 2, .. })), "{error}");
}
