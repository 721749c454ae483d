//! The one turn loop over an endpoint that speaks in messages, with the tools of an MCP server behind a gate.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agent::{Frame, Limits, Opening, Place, Turns, drive};
use episode::{EpisodeKey, Message, Role, StopReason, Task, ToolSpec};
use gate::receipt::Receipts;
use gate::{Clock, Gate, Prices, Session};
use guard::{Labels, Origin, Pack, Packs, Principal, Scope};
use policy::Sampling;
use serde_json::{Value, json};

use super::tests::said;
use super::*;
use crate::Pins;
use crate::mcp::{Mcp, McpWorld, fake};
use crate::wire::fake::{FakeServer, Reply};

fn session(tools: Arc<[ToolSpec]>) -> Session {
    let header = "name = \"test\"\nversion = \"1\"\nabout = \"test\"";
    let rules = r#"@id("may") @reason("a test") permit (principal, action, resource);"#;
    let gate = Gate::open(gate::Settings {
        packs: Packs::new([Pack::read(header, rules, "").unwrap()]).unwrap(),
        scope: Scope::default(),
        prices: Prices::default(),
        limits: gate::Limits::default(),
        approvals: None,
        receipts: Receipts::Off,
        clock: Clock::Logical { start_ms: 0, tick_ms: 1 },
    });
    let who = Principal { subject: "ada".into(), agent: "a".into(), run: "r".into(), ..Principal::default() };
    let opening = gate::Opening {
        name: "s".into(),
        who: Arc::new(who),
        tools,
        declared: Default::default(),
        limits: gate::Limits::default(),
        labels: Labels::of(Origin::User),
    };
    gate.session(opening).unwrap()
}

#[test]
fn an_attempt_runs_over_messages_and_every_call_passes_the_gate() {
    let call = |id: &str, tool: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}});
    let calls = json!([call("c1", "echo", "{}"), call("c2", "long", "{}"), call("c3", "echo", "{\"x\": ")]);
    let server = FakeServer::start(move |n, _| {
        Reply::Json(
            200,
            match n {
                1 => said(Some("let me look"), calls.clone(), "tool_calls"),
                _ => said(Some("it says hello"), Value::Null, "stop"),
            },
        )
    });
    let folder = tempfile::tempdir().unwrap();
    let mut mcp = Mcp::connect(fake::program(folder.path(), ""), None).unwrap();
    let mut pins = Pins::open(folder.path().join("pins")).unwrap();
    pins.accept_tools("fake", mcp.listed()).unwrap();
    mcp.admit(&pins);
    let world = McpWorld::new(vec![mcp]).unwrap();
    let tools: Arc<[ToolSpec]> = world.tools().into();
    let mut settings = OpenAiSettings::new(format!("{}/v1", server.url), "m");
    settings.mode = WantedMode::Chat;
    let mut policy = OpenAi::connect(settings, None).unwrap();
    let codec = Arc::new(ChatCodec::native());
    let frame = Frame {
        codec: codec.clone(),
        sampling: Arc::new(Sampling::plain(1.0, 200, vec![ChatCodec::END])),
        limits: Limits::turns(5, policy::Sampler::context(&policy)),
        run_seed: 1,
        clock: Arc::new(|| Duration::ZERO),
        asks: None,
    };
    let task = Task::new("t", vec![Message::new(Role::User, "what does it say?")], json!(1), json!(0));
    let opening = Opening::new(&*codec, &task.messages, tools.clone());
    let key = EpisodeKey { step: 0, task: task.id, sample: 0 };
    let place = Place { world: Box::new(world), session: Ok(Some(session(tools))) };
    let step = Turns::begin(1, key, &opening, &frame, place);
    let attempt = drive(step, &mut policy, &mut |_| {}, &AtomicBool::new(false)).unwrap();
    assert_eq!((attempt.reply(), attempt.stop, &attempt.settled), ("it says hello", StopReason::Eos, &None));
    let conduct = &attempt.conduct;
    // `echo` ran; `long` is in no class of action, whatever its server says of it; the third was no call.
    assert_eq!((conduct.calls, conduct.denied, conduct.malformed), (2, 1, 1));
    let wanted = json!({"calls": [{"tool": "echo", "arguments": {}, "ok": true, "text": "hello"}]});
    assert_eq!(attempt.state, wanted);
    let told = server.asked().last().unwrap().json()["messages"].clone();
    assert_eq!((&told[1]["content"], told[1]["tool_calls"].as_array().unwrap().len()), (&json!("let me look"), 3));
    let answers: Vec<(&str, &str)> = told.as_array().unwrap()[2..]
        .iter()
        .map(|m| (m["tool_call_id"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect();
    assert_eq!(answers[0], ("c1", "hello"));
    assert!(answers[1].0 == "c2" && answers[1].1.starts_with("denied:"), "{answers:?}");
    assert!(answers[2].0 == "c3" && answers[2].1.starts_with("error: cannot read the call"), "{answers:?}");
    // The record is whole, in the codec's own tokens, and says that nothing is known of their log-probabilities.
    let sequence = &attempt.sequences[0];
    assert!(sequence.n_sampled() > 0 && sequence.logp().iter().all(|p| *p == 0.0));
    assert!(!policy.trains() && !policy.recorded().log_probabilities);
}
