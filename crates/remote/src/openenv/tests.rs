use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent::World;
use episode::ToolCall;
use guard::{Labels, Origin};
use serde_json::{Map, Value, json};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Message, WebSocket, accept, accept_hdr};

use super::*;
use crate::mcp::ToolClass;
use crate::wire::fake::{FakeServer, Reply};
use crate::wire::{Secret, WireError};

/// What a server does with one message: answers, or something else.
enum Does {
    Say(Value),
    Text(&'static str),
    Bytes,
    Close,
    Hang,
}

type Said = Arc<Mutex<Vec<Value>>>;

/// A server that speaks WebSocket, one session after the other; what it was told is kept.
fn server(script: impl Fn(usize, &Value) -> Does + Send + 'static) -> (String, Said) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let told: Said = Arc::default();
    let kept = told.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let heads = kept.clone();
            #[allow(clippy::result_large_err, reason = "the library's own signature")]
            let keep = |request: &Request, response: Response| {
                let auth = request.headers().get("authorization").map(|v| v.to_str().unwrap().to_owned());
                heads.lock().unwrap().push(json!({"path": request.uri().path(), "authorization": auth}));
                Ok(response)
            };
            let Ok(mut socket) = accept_hdr(stream.unwrap(), keep) else { continue };
            let mut n = 0;
            while let Ok(Message::Text(text)) = socket.read() {
                let message: Value = serde_json::from_str(&text).unwrap();
                kept.lock().unwrap().push(message.clone());
                let sent = match script(n, &message) {
                    Does::Say(value) => socket.send(Message::text(value.to_string())),
                    Does::Text(text) => socket.send(Message::text(text)),
                    Does::Bytes => socket.send(Message::binary(vec![1, 2])),
                    Does::Close => socket.close(None),
                    Does::Hang => Ok(()),
                };
                n += 1;
                if sent.is_err() {
                    break;
                }
            }
        }
    });
    (url, told)
}

fn seen(observation: Value, reward: Value, done: bool) -> Value {
    json!({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})
}

fn error(code: &str, message: &str) -> Value {
    json!({"type": "error", "data": {"message": message, "code": code}})
}

fn settings(url: &str) -> OpenEnvSettings {
    let mut settings = OpenEnvSettings::new(url);
    settings.patience.deadline = Duration::from_secs(10);
    settings.patience.backoff = Duration::from_millis(1);
    settings
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn an_episode_is_reset_stepped_and_closed_in_the_servers_own_words() {
    let (url, told) = server(|n, _| {
        Does::Say(match n {
            0 => seen(json!({"echoed": ""}), Value::Null, false),
            1 => seen(json!({"echoed": "hi"}), json!(0.5), false),
            2 => json!({"type": "state", "data": {"episode_id": "e", "step_count": 1}}),
            _ => seen(json!({"echoed": "bye"}), json!(true), true),
        })
    });
    let secret = Secret::from_env("K", &|_| Some("sk-env".to_owned())).unwrap();
    let env = OpenEnv::connect(&settings(&url), Some(secret)).unwrap();
    let first = env.reset(Some(7), &map(json!({"level": 2}))).unwrap();
    assert_eq!(first, Seen { observation: map(json!({"echoed": ""})), reward: None, done: false });
    assert_eq!(env.step(&map(json!({"message": "hi"}))).unwrap().reward, Some(0.5));
    assert_eq!(env.state().unwrap(), json!({"episode_id": "e", "step_count": 1}));
    let last = env.step(&map(json!({"message": "bye"}))).unwrap();
    assert_eq!((last.reward, last.done), (Some(1.0), true));
    env.close();
    let late = Instant::now() + Duration::from_secs(10);
    while told.lock().unwrap().last() != Some(&json!({"type": "close"})) {
        assert!(Instant::now() < late, "it never said goodbye: {:?}", told.lock().unwrap());
    }
    let want = json!([
        {"path": "/ws", "authorization": "Bearer sk-env"},
        {"type": "reset", "data": {"level": 2, "seed": 7}},
        {"type": "step", "data": {"message": "hi"}},
        {"type": "state"},
        {"type": "step", "data": {"message": "bye"}},
        {"type": "close"},
    ]);
    assert_eq!(json!(*told.lock().unwrap()), want);
}

fn check_refused(does: impl Fn() -> Does + Send + 'static, want: &str) {
    let (url, _) = server(move |_, _| does());
    let got = OpenEnv::connect(&settings(&url), None).unwrap().reset(None, &Map::new()).unwrap_err().to_string();
    assert!(got.contains(want), "needed `{want}`, got `{got}`");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    check_refused(
        || Does::Say(error("CAPACITY_REACHED", "1 of 1 sessions")),
        "says `CAPACITY_REACHED`: 1 of 1 sessions",
    );
    check_refused(|| Does::Say(error("NEW_CODE", "x")), "says `NEW_CODE`: x");
    check_refused(|| Does::Text("<html>"), "not JSON");
    check_refused(
        || Does::Text("{\"type\": \"observation\", \"data\": {\"observation\": {}, \"reward\": NaN}}"),
        "not JSON",
    );
    check_refused(|| Does::Say(seen(json!([1]), Value::Null, false)), "cannot be used");
    check_refused(|| Does::Say(seen(json!({}), json!("1"), false)), "gave the reward `\"1\"`, needed a finite number");
    check_refused(
        || Does::Say(json!({"type": "state", "data": {}})),
        "needed an answer of kind `observation`, got `state`",
    );
    check_refused(|| Does::Say(json!({})), "got `none`");
    check_refused(|| Does::Bytes, "needed text, got bytes");
    check_refused(|| Does::Close, "the server closed it");
}

#[test]
fn i11_a_step_without_an_answer_ends_the_session_and_no_late_answer_is_taken_for_another() {
    let (url, _) = server(|n, _| match n {
        0 => Does::Say(seen(json!({}), Value::Null, false)),
        _ => Does::Hang,
    });
    let mut short = settings(&url);
    short.patience.deadline = Duration::from_millis(300);
    let env = OpenEnv::connect(&short, None).unwrap();
    env.reset(None, &Map::new()).unwrap();
    let error = env.step(&Map::new()).unwrap_err();
    assert!(matches!(error, OpenEnvError::Wire(WireError::Deadline { .. })), "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "no answer from `{}/ws` within 0.3 s while waiting for the answer to `step`",
            url.replace("http", "ws")
        )
    );
    assert!(matches!(env.step(&Map::new()), Err(OpenEnvError::Closed { .. })));
}

#[test]
fn a_message_beyond_the_limit_ends_the_session() {
    let (url, _) = server(|_, _| Does::Say(seen(json!({"x": "y".repeat(5000)}), Value::Null, false)));
    let mut small = settings(&url);
    small.patience.max_answer_bytes = 1000;
    let env = OpenEnv::connect(&small, None).unwrap();
    assert!(matches!(env.reset(None, &Map::new()), Err(OpenEnvError::Closed { .. })));
}

#[test]
fn a_server_that_is_not_there_or_speaks_no_websocket_is_named() {
    let error = OpenEnv::connect(&settings("http://127.0.0.1:1"), None).unwrap_err();
    assert!(matches!(error, OpenEnvError::Wire(WireError::Unreachable { .. })), "{error}");
    let plain = FakeServer::start(|_, _| Reply::Json(404, json!({})));
    let error = OpenEnv::connect(&settings(&plain.url), None).unwrap_err();
    assert!(matches!(error, OpenEnvError::Wire(WireError::Refused { status: 404, .. })), "{error}");
    let silent = FakeServer::start(|_, _| Reply::Hang);
    let mut short = settings(&silent.url);
    short.patience.connect = Duration::from_millis(200);
    let error = OpenEnv::connect(&short, None).unwrap_err();
    assert!(matches!(error, OpenEnvError::Wire(WireError::Deadline { .. })), "{error}");
}

/// A server over HTTP that keeps one environment, or none.
fn http(keeps: bool) -> FakeServer {
    FakeServer::start(move |n, asked| match asked.path.as_str() {
        "/reset" => Reply::Json(200, json!({"observation": {"n": 0}, "reward": null, "done": false})),
        "/step" if asked.json()["action"]["bad"] == true => Reply::Json(
            422,
            json!({"detail": [{"loc": ["body", "action", "bad"], "msg": "Extra inputs are not permitted"}]}),
        ),
        "/step" if asked.json()["action"]["boom"] == true => Reply::Json(500, json!({"detail": "boom"})),
        "/step" => Reply::Json(200, json!({"observation": {"n": 1}, "reward": 1.0, "done": true})),
        "/state" => Reply::Json(200, json!({"episode_id": if keeps { json!("e") } else { json!(n) }, "step_count": 1})),
        "/schema" => Reply::Json(
            200,
            json!({
                "action": {"type": "object", "properties": {"n": {"type": "integer"}, "metadata": {"type": "object"}}, "required": ["n"]},
                "observation": {"type": "object"}, "state": {"type": "object"},
            }),
        ),
        "/health" => Reply::Json(200, json!({"status": "healthy"})),
        _ => Reply::Json(404, json!({"detail": "Not Found"})),
    })
}

#[test]
fn over_http_only_a_server_that_keeps_the_episode_is_played() {
    let over_http = |server: &FakeServer| OpenEnvSettings { transport: Transport::Http, ..settings(&server.url) };
    let keeps = http(true);
    let env = OpenEnv::connect(&over_http(&keeps), None).unwrap();
    assert!(env.is_healthy().unwrap());
    assert_eq!(env.reset(Some(1), &Map::new()).unwrap().observation, map(json!({"n": 0})));
    assert_eq!(keeps.asked()[1].json(), json!({"seed": 1}));
    assert!(env.step(&map(json!({"n": 1}))).unwrap().done);
    let error = env.step(&map(json!({"bad": true}))).unwrap_err();
    assert!(
        matches!(&error, OpenEnvError::Said { code: Code::Validation, said, .. } if said.contains("Extra inputs")),
        "{error}"
    );
    let forgets = http(false);
    let env = OpenEnv::connect(&over_http(&forgets), None).unwrap();
    assert!(matches!(env.reset(None, &Map::new()), Err(OpenEnvError::NoSession { .. })));
}

#[test]
fn f13_a_step_that_may_have_been_taken_is_not_taken_again() {
    let server = http(true);
    let env = OpenEnv::connect(&OpenEnvSettings { transport: Transport::Http, ..settings(&server.url) }, None).unwrap();
    assert!(env.step(&map(json!({"boom": true}))).is_err());
    assert_eq!(server.asked().iter().filter(|a| a.path == "/step").count(), 1);
}

fn classes(tool: &str) -> std::collections::BTreeMap<String, ToolClass> {
    [(tool.to_owned(), ToolClass { action: "update".to_owned(), data: vec!["code".to_owned()], trusted: false })].into()
}

#[test]
fn an_environment_of_actions_is_a_world_with_one_tool() {
    let server = http(true);
    let env = OpenEnv::connect(&OpenEnvSettings { transport: Transport::Http, ..settings(&server.url) }, None).unwrap();
    let mut world = OpenEnvWorld::begin(env, Shape::Action, 3, &Map::new(), classes("act")).unwrap();
    assert_eq!(world.first(), r#"{"n":0}"#);
    let act = &world.tools()[0];
    assert_eq!((act.name.as_str(), act.action.as_str()), ("act", "update"));
    assert_eq!(act.parameters["properties"], json!({"n": {"type": "integer"}}));
    let refused = world.call(&ToolCall::new("act", json!({"bad": true}))).unwrap();
    assert!(!refused.ok && refused.text.contains("Extra inputs") && !world.is_over());
    let answer = world.call(&ToolCall::new("act", json!({"n": 1}))).unwrap();
    assert_eq!((answer.text.as_str(), answer.ok), (r#"{"n":1}"#, true));
    let want = Labels { sensitivity: ["code".to_owned()].into(), ..Labels::untrusted(Origin::Tool("act".to_owned())) };
    assert_eq!(answer.labels, want);
    assert!(world.is_over());
    let want = json!({"reward": 1.0, "last_reward": 1.0, "steps": 1, "done": true, "server": {"episode_id": "e", "step_count": 1}});
    assert_eq!(world.state(), want);
    assert_eq!(world.call(&ToolCall::new("act", json!({"boom": true}))).unwrap_err().class, "openenv");
    assert_eq!(world.call(&ToolCall::new("other", json!({}))).unwrap_err().class, "no_such_tool");
}

#[test]
fn an_environment_of_tools_is_a_world_with_its_tools() {
    let (url, told) = server(|_, message| {
        Does::Say(match (message["type"].as_str().unwrap(), message["data"]["type"].as_str()) {
            ("reset", _) => seen(json!({}), Value::Null, false),
            ("step", Some("list_tools")) => {
                let tool = json!({"name": "add", "description": "adds", "input_schema": {"type": "object"}});
                seen(json!({"tools": [tool]}), Value::Null, false)
            }
            ("step", Some("call_tool")) => match message["data"]["arguments"]["a"].as_i64() {
                Some(1) => seen(
                    json!({"tool_name": "add", "result": {"content": [{"type": "text", "text": "2"}], "data": 2}, "error": null}),
                    json!(0.25),
                    false,
                ),
                Some(2) => seen(json!({"tool_name": "add", "result": 4, "error": null}), json!(0.5), true),
                _ => seen(
                    json!({"tool_name": "add", "result": null, "error": {"error_type": "invalid_args", "message": "no a"}}),
                    Value::Null,
                    false,
                ),
            },
            ("state", _) => json!({"type": "state", "data": {"step_count": 2}}),
            _ => error("EXECUTION_ERROR", "boom"),
        })
    });
    let env = OpenEnv::connect(&settings(&url), None).unwrap();
    let mut world = OpenEnvWorld::begin(env, Shape::Tools, 3, &Map::new(), classes("other")).unwrap();
    assert_eq!(world.tools()[0].action, "", "not classed, which a guard denies");
    let mut call = |arguments: Value| {
        let answer = world.call(&ToolCall::new("add", arguments)).unwrap();
        (answer.text, answer.ok)
    };
    assert_eq!(call(json!({"a": 1})), ("2".to_owned(), true));
    assert_eq!(call(json!({})), ("no a".to_owned(), false));
    assert_eq!(call(json!({"a": 2})), ("4".to_owned(), true));
    assert!(world.is_over());
    assert_eq!((&world.state()["reward"], &world.state()["server"]), (&json!(0.75), &json!({"step_count": 2})));
    let sent = told.lock().unwrap().iter().find(|m| m["data"]["type"] == "call_tool").cloned();
    assert_eq!(
        sent.unwrap(),
        json!({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}})
    );
}

#[test]
fn a_ping_between_question_and_answer_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let serves = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let raw = stream.try_clone().unwrap();
        let mut socket = accept(stream).unwrap();
        socket.read().unwrap();
        // A second view of the same connection, to write while the first reads.
        let mut other = WebSocket::from_raw_socket(raw, Role::Server, None);
        other.send(Message::Ping(vec![9].into())).unwrap();
        let pong = socket.read().unwrap();
        socket.send(Message::text(seen(json!({}), Value::Null, false).to_string())).unwrap();
        pong
    });
    let env = OpenEnv::connect(&settings(&url), None).unwrap();
    env.reset(None, &Map::new()).unwrap();
    assert_eq!(serves.join().unwrap(), Message::Pong(vec![9].into()));
}
