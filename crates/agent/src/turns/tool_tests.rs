//! Turns that call tools, through a gate with rules.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::fake::Chars;
use crate::{Reaction, World, drive};
use episode::{Outcome, Task, ToolCall};
use gate::receipt::Receipts;
use gate::{Answer, Approvals, Approver, Clock, Consent, Gate, Pending, Prices, Roster};
use guard::{Labels, Origin, Pack, Packs, Principal, Scope};
use policy::fake::Scripted;
use serde_json::json;

/// A store of texts by key. Getting `fire` breaks the tool; `quit` ends the attempt.
#[derive(Default)]
struct Store {
    texts: BTreeMap<String, String>,
    over: bool,
    seen: Arc<Mutex<Vec<ToolCall>>>,
}

impl World for Store {
    fn answer(&mut self, _: &str) -> Result<Reaction, Cause> {
        Ok(Reaction::End)
    }

    fn call(&mut self, call: &ToolCall) -> Result<Answer, Cause> {
        self.seen.lock().unwrap().push(call.clone());
        let text = |key: &str| call.arguments[key].as_str().unwrap().to_owned();
        let labels = Labels::of(Origin::Tool(call.tool.clone()));
        if call.tool == "put" {
            self.texts.insert(text("key"), text("text"));
            return Ok(Answer::new("stored", labels));
        }
        match text("key").as_str() {
            "fire" => Err(Cause::new("burnt", "the store is on fire")),
            "quit" => {
                self.over = true;
                Ok(Answer::new("bye", labels))
            }
            key => Ok(match self.texts.get(key) {
                Some(text) => Answer::new(text, labels),
                None => Answer::refused("nothing there", labels),
            }),
        }
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn state(&self) -> Value {
        json!(self.texts)
    }
}

const RULES: &str = r#"
@id("may") @reason("a simulation") permit (principal, action, resource);
@id("no-b") @reason("b is closed") forbid (principal, action == Action::"tool:get", resource) when { context.input.key == "b" };
@id("ask-c") @effect("ask") @reason("c needs a word")
forbid (principal, action == Action::"tool:get", resource) when { context.input.key == "c" };
"#;

fn tools() -> Arc<[ToolSpec]> {
    let schema = |fields: &[&str]| {
        let properties: BTreeMap<&str, Value> = fields.iter().map(|f| (*f, json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties, "required": fields, "additionalProperties": false})
    };
    let tool = |name: &str, action: &str, fields: &[&str]| ToolSpec::new(name, name, action, schema(fields));
    [tool("get", "read", &["key"]), tool("put", "update", &["key", "text"])].into()
}

fn gate(approvals: Option<Approvals>) -> Gate {
    let header = "name = \"test\"\nversion = \"1\"\nabout = \"test\"";
    let packs = Packs::new([Pack::read(header, RULES, "").unwrap()]).unwrap();
    Gate::open(gate::Settings {
        packs,
        scope: Scope::default(),
        prices: Prices::default(),
        limits: gate::Limits::default(),
        approvals,
        receipts: Receipts::Off,
        clock: Clock::Logical { start_ms: 0, tick_ms: 1 },
    })
}

fn session(gate: &Gate) -> Session {
    let principal =
        Principal { subject: "ada".into(), agent: "policy".into(), run: "r".into(), ..Principal::default() };
    let opening = gate::Opening {
        name: "s".into(),
        who: Arc::new(principal),
        tools: tools(),
        declared: Default::default(),
        limits: gate::Limits::default(),
        labels: Labels::of(Origin::User),
    };
    gate.session(opening).unwrap()
}

fn frame() -> Frame {
    let sampling = Sampling::plain(1.0, 200, vec![Chars::END]);
    let clock = Arc::new(|| Duration::ZERO);
    let (codec, limits) = (Arc::new(Chars), Limits::turns(10, 4000));
    Frame { codec, sampling: Arc::new(sampling), limits, run_seed: 1, clock, asks: None }
}

struct Play {
    frame: Frame,
    gate: Gate,
    seen: Arc<Mutex<Vec<ToolCall>>>,
}

impl Play {
    fn new() -> Play {
        Play { frame: frame(), gate: gate(None), seen: Arc::default() }
    }

    fn place(&self) -> Place {
        let world = Store { texts: [("a".to_owned(), "1".to_owned())].into(), seen: self.seen.clone(), over: false };
        Place { world: Box::new(world), session: Ok(Some(session(&self.gate))) }
    }

    fn begin(&self) -> (Step, Opening) {
        let task = Task::new("t", vec![Message::new(Role::User, "go")], 1.into(), 0.into());
        let opening = Opening::new(&Chars, &task.messages, tools());
        let key = EpisodeKey { step: 1, task: task.id, sample: 0 };
        (Turns::begin(1, key, &opening, &self.frame, self.place()), opening)
    }

    /// A policy that says these turns one after the other.
    fn says(&self, turns: &[&str]) -> Attempt {
        let said: Vec<Vec<Token>> = turns.iter().map(|t| Chars::turn(t)).collect();
        let next = Mutex::new(0);
        let mut policy = Scripted::new(Box::new(move |_, _| {
            let mut next = next.lock().unwrap();
            *next += 1;
            said.get(*next - 1).cloned().unwrap_or_else(|| Chars::turn("out of words"))
        }));
        drive(self.begin().0, &mut policy, &mut |_| {}, &AtomicBool::new(false)).unwrap()
    }

    fn ran(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn get(key: &str) -> String {
    json!({"name": "get", "arguments": {"key": key}}).to_string()
}

fn answers(attempt: &Attempt) -> Vec<&str> {
    attempt.messages.iter().filter(|m| m.role == Role::Tool).map(|m| m.content.as_str()).collect()
}

#[test]
fn a_call_runs_and_its_answer_is_read_before_the_next_turn() {
    let play = Play::new();
    let put = json!({"name": "put", "arguments": {"key": "x", "text": "y"}}).to_string();
    let attempt = play.says(&[&get("a"), &put, "done"]);
    assert_eq!((answers(&attempt), attempt.reply(), attempt.stop), (vec!["1", "stored"], "done", StopReason::Eos));
    assert_eq!(attempt.state, json!({"a": "1", "x": "y"}));
    assert_eq!(attempt.conduct, Conduct { calls: 2, ..Conduct::default() });
    assert_eq!(attempt.messages[1].calls, [ToolCall::new("get", json!({"key": "a"}))]);
    assert_eq!((attempt.messages[1].content.as_str(), attempt.messages[2].tool.as_deref()), ("", Some("get")));
    // E1, D5: what was sampled stands in the record token by token, whatever the template makes of calls.
    let tokens = attempt.sequences[0].tokens();
    let said = Chars::turn(&get("a"));
    let at = tokens.windows(said.len()).position(|w| w == said).unwrap();
    assert!(attempt.sequences[0].sampled()[at..at + said.len()].iter().all(|s| *s));
    assert_eq!(attempt.sequences.len(), 1);
}

#[test]
fn what_a_rule_denies_never_reaches_the_tool_and_the_policy_is_told_why() {
    let play = Play::new();
    let attempt = play.says(&[&get("b"), "done"]);
    assert_eq!(play.ran(), 0);
    assert_eq!(answers(&attempt), ["denied: b is closed"]);
    assert_eq!(attempt.conduct, Conduct { calls: 1, denied: 1, ..Conduct::default() });
    let unknown = json!({"name": "rm", "arguments": {}}).to_string();
    let attempt = play.says(&[&unknown, "done"]);
    assert!(answers(&attempt)[0].starts_with("denied: "), "{:?}", answers(&attempt));
    assert_eq!((play.ran(), attempt.conduct.denied), (0, 1));
}

#[test]
fn f2_a_malformed_call_is_an_observation_and_the_attempt_goes_on() {
    let play = Play::new();
    let attempt = play.says(&[r#"{"name": "get", "arguments": {"key": "a""#, &get("a"), "done"]);
    assert_eq!((attempt.conduct.malformed, attempt.conduct.calls, attempt.reply()), (1, 1, "done"));
    assert!(answers(&attempt)[0].starts_with("error: cannot read the call"), "{:?}", answers(&attempt));
    let misfit = json!({"name": "get", "arguments": {"kee": "a"}}).to_string();
    let attempt = play.says(&[&misfit, "done"]);
    assert_eq!((attempt.conduct.malformed, play.ran()), (1, 1), "{:?}", answers(&attempt));
}

#[test]
fn a_tool_that_breaks_fails_the_attempt_and_one_that_cannot_is_told() {
    let play = Play::new();
    let attempt = play.says(&[&get("nowhere"), "done"]);
    assert_eq!((answers(&attempt), attempt.conduct.failed), (vec!["nothing there"], 1));
    let attempt = play.says(&[&get("fire"), "done"]);
    let cause = Cause::new("burnt", "the store is on fire");
    assert_eq!(attempt.settled, Some(Outcome::Failed { stage: Stage::Tool, cause }));
}

#[test]
fn each_limit_has_its_own_reason() {
    let check = |change: &dyn Fn(&mut Limits), turns: &[&str], stop| {
        let mut play = Play::new();
        change(&mut play.frame.limits);
        assert_eq!(play.says(turns).stop, stop);
    };
    let (a, b) = (get("a"), get("b"));
    check(&|l| l.calls = 1, &[&a, &a, "x"], StopReason::Calls);
    check(&|l| l.denied = 0, &[&b, "x"], StopReason::Guard);
    check(&|l| l.denied = 1, &[&b, "x"], StopReason::Eos);
    check(&|l| l.turns = 1, &[&a, "x"], StopReason::Turns);
    check(&|l| l.wall = Duration::ZERO, &[&a, "x"], StopReason::Deadline);
    check(&|l| l.tokens = a.len() + 1, &[&a, "x"], StopReason::Length);
    check(&|_| (), &[&get("quit"), "x"], StopReason::Eos);
}

/// Grants whatever is asked, or leaves it.
struct Grants(Gate, bool);

impl Asks for Grants {
    fn ask(&self, pending: &Pending) -> bool {
        let by = Approver::Person("ada".into());
        let consent = if self.1 { Consent::Grant } else { Consent::Refuse };
        self.0.approvals().unwrap().answer(&pending.id, &by, consent, 1).unwrap();
        true
    }
}

#[test]
fn an_approval_is_asked_for_where_somebody_is_there_and_missing_where_nobody_is() {
    for (answer, want, ran) in [(Some(true), "nothing there", 1), (Some(false), "denied: ", 0), (None, "denied: ", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let approvals = Approvals::open(folder.path(), Roster::person("ada")).unwrap();
        let mut play = Play { gate: gate(Some(approvals)), ..Play::new() };
        play.frame.asks = answer.map(|grants| Arc::new(Grants(play.gate.clone(), grants)) as Arc<dyn Asks>);
        let attempt = play.says(&[&get("c"), "done"]);
        assert!(answers(&attempt)[0].starts_with(want), "{answer:?}: {:?}", answers(&attempt));
        assert_eq!((play.ran(), attempt.conduct.denied as usize), (ran, 1 - ran), "{answer:?}");
        assert_eq!(attempt.conduct.unapproved, u32::from(answer.is_none()));
    }
}

#[test]
fn an_attempt_with_calls_is_taken_up_from_its_record_with_the_same_world() {
    let play = Play::new();
    let (step, opening) = play.begin();
    let Step::Sample(turns, _) = step else { panic!("it begins") };
    let sampled = |text: &str| {
        let tokens = Chars::turn(text);
        let logp = vec![-0.5; tokens.len()];
        Sampled { id: 1, logp_t1: logp.clone(), logp, tokens, stop: StopReason::Eos, version: 0 }
    };
    let put = json!({"name": "put", "arguments": {"key": "x", "text": "y"}}).to_string();
    let Step::Sample(turns, _) = turns.feed(sampled(&put)) else { panic!("it goes on") };
    let Step::Sample(turns, want) = turns.feed(sampled(&get("b"))) else { panic!("it goes on") };
    let record = turns.so_far().clone();
    let again = Turns::restore(1, record.clone(), &opening, &play.frame, play.place()).map_err(|a| a.settled).unwrap();
    assert_eq!(again.so_far(), &record);
    let Step::Sample(again, job) = again.go_on() else { panic!("it goes on") };
    assert_eq!((job.prompt, job.stream), (want.prompt, want.stream));
    let Step::Finished(end) = again.feed(sampled("done")) else { panic!("it ends") };
    assert_eq!((end.state, end.conduct.calls, end.conduct.denied), (json!({"a": "1", "x": "y"}), 2, 1));
}

/// Forgets every earlier turn, as templates that strip reasoning do.
struct Forgets;

impl Codec for Forgets {
    fn open(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<Token>, String> {
        Chars.open(messages, tools)
    }

    fn go_on(&self, _: &[Message], tools: &[ToolSpec], _: bool, new: &[Message]) -> Result<Next, String> {
        Chars.open(new, tools).map(Next::Anew)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        Chars.decode(tokens)
    }

    fn read(&self, text: &str, tools: &[ToolSpec]) -> text::dialect::Reading {
        Chars.read(text, tools)
    }
}

#[test]
fn e1_a_template_that_rewrites_history_begins_a_new_sequence_and_is_counted() {
    let mut play = Play::new();
    play.frame.codec = Arc::new(Forgets);
    let attempt = play.says(&[&get("a"), &get("a"), "done"]);
    assert_eq!((attempt.sequences.len(), attempt.conduct.restarts, attempt.reply()), (3, 2, "done"));
    for (sequence, said) in attempt.sequences.iter().zip([&get("a"), &get("a"), "done"]) {
        assert_eq!(sequence.n_sampled(), Chars::turn(said).len(), "each is sampled once and trained once");
    }
    let streams: Vec<u64> = (0..3).map(|s| stream(1, &attempt.key, s).bits(0)).collect();
    assert!(streams[0] != streams[1] && streams[1] != streams[2]);
}
