//! Conversations with tools over the templates of many families: what is sampled stays, token for token.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the workspace allows these in tests; helpers outside `#[test]` are tests too"
)]

mod support;

use std::sync::Arc;

use episode::{Message, Role, Token, ToolCall, ToolSpec};
use proptest::prelude::*;
use serde_json::json;
use support::{IM_END, families, family, models, vocabulary_for};
use surefoot_text::dialect::Reading;
use surefoot_text::{Date, Dialect, Dialogue, GgufVocabulary, Next, Strictness, TextError, Tokenizer};

fn tools() -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "City"},
            "days": {"type": "integer", "description": "How many"},
            "more": {"type": "array", "description": "Anything"},
        },
        "required": ["city"],
    });
    let stop = json!({"type": "object", "properties": {}});
    vec![ToolSpec::new("get_weather", "The weather.", "read", weather), ToolSpec::new("stop", "Stops.", "update", stop)]
}

fn dialogue_of(vocabulary: GgufVocabulary, wish: Option<Dialect>) -> Result<Dialogue, TextError> {
    Dialogue::new(Arc::new(Tokenizer::from_gguf(vocabulary)?), wish, Strictness::Lenient)
}

fn dialogue(name: &str) -> Dialogue {
    dialogue_of(vocabulary_for(&family(name)), None).unwrap()
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

fn asks(said: &str, cities: &[&str]) -> Message {
    let calls = cities.iter().map(|city| ToolCall::new("get_weather", json!({"city": city, "days": 2}))).collect();
    Message { calls, ..Message::new(Role::Assistant, said) }
}

fn answers(text: &str) -> Message {
    Message { tool: Some("get_weather".into()), ..Message::new(Role::Tool, text) }
}

#[test]
fn each_family_is_spoken_to_in_its_own_dialect() {
    let want = [
        ("bare", Dialect::Json),
        ("brackets", Dialect::Mistral),
        ("chatml", Dialect::Hermes),
        ("functions", Dialect::Xml),
        ("headers", Dialect::Llama),
        ("list", Dialect::Pythonic),
        ("prefilled", Dialect::Hermes),
        ("script", Dialect::Hermes),
        ("tags", Dialect::Hermes),
        ("thinking", Dialect::Hermes),
        ("two_roles", Dialect::Hermes),
    ];
    assert_eq!(families(), want.map(|(name, _)| name));
    for (name, dialect) in want {
        assert_eq!(dialogue(name).dialect(), dialect, "{name}");
    }
}

/// Every family shows the policy its tools, what was called and what was answered, whatever its template knows.
#[test]
fn whatever_a_template_knows_the_policy_sees_tools_calls_and_answers() {
    for name in families() {
        let spoken = dialogue(&name);
        for (turn, n) in [(asks("", &["Oslo"]), 1), (asks("", &["Oslo", "Rome"]), 2)] {
            let mut messages = vec![Message::new(Role::System, "Be brief."), user("Weather?"), turn];
            messages.extend([answers("20 degrees"), answers("30 degrees")].into_iter().take(n));
            let text = spoken.tokenizer().decode(&spoken.render(&messages, &tools(), true).unwrap(), false);
            let mut needed = vec!["get_weather", "The weather.", "Be brief.", "Weather?", "Oslo", "20 degrees"];
            needed.extend(["Rome", "30 degrees"].into_iter().take(2 * (n - 1)));
            // This family prints a system message only where the question comes last.
            let lost: Vec<_> = needed.into_iter().filter(|part| !text.contains(part)).collect();
            let want: &[&str] = if name == "brackets" { &["Be brief."] } else { &[] };
            assert_eq!(lost, want, "{name}: {text}");
        }
    }
}

#[test]
fn a_template_without_tools_gets_them_in_the_system_message() {
    let text = |name: &str, messages: &[Message]| {
        let spoken = dialogue(name);
        spoken.tokenizer().decode(&spoken.render(messages, &tools(), true).unwrap(), false)
    };
    let instructions = Dialect::Hermes.instructions(&tools());
    let question = [user("Weather?")];
    assert_eq!(
        text("chatml", &question),
        format!(
            "<|im_start|>system\n{instructions}<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
        )
    );
    // No system message either: everything is the user's, and roles alternate.
    let call = r#"{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}"#;
    let messages = [
        Message::new(Role::System, "Be brief."),
        user("Weather?"),
        asks("Hm.", &["Oslo"]),
        answers("a"),
        answers("b"),
        user("So?"),
    ];
    assert_eq!(
        text("two_roles", &messages),
        format!(
            "<|endoftext|><start_of_turn>user\nBe brief.\n\n{instructions}\n\nWeather?<end_of_turn>\n<start_of_turn>model\nHm.\n\
             <tool_call>\n{call}\n</tool_call><end_of_turn>\n<start_of_turn>user\n<tool_response>\na\n</tool_response>\n\
             <tool_response>\nb\n</tool_response>\nSo?<end_of_turn>\n<start_of_turn>model\n"
        )
    );
}

#[test]
fn without_tools_nothing_is_added() {
    for name in families() {
        let spoken = dialogue(&name);
        let messages = [user("Weather?"), Message::new(Role::Assistant, "Fine."), user("Sure?")];
        let plain = spoken.tokenizer().render_tokens(&messages, true).unwrap();
        assert_eq!(spoken.render(&messages, &[], true).unwrap(), plain, "{name}");
    }
}

/// Two calls in a turn, which this family's template refuses: the policy's doing, so the conversation still goes on.
#[test]
fn calls_that_a_template_refuses_are_written_as_text() {
    let spoken = dialogue("headers");
    let messages = [user("Weather?"), asks("", &["Oslo", "Rome"]), answers("20"), answers("30")];
    let text = spoken.tokenizer().decode(&spoken.render(&messages, &tools(), true).unwrap(), false);
    let calls = r#"{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}; {"name": "get_weather", "parameters": {"city": "Rome", "days": 2}}"#;
    assert!(text.contains(&format!("assistant<|end_header_id|>\n\n{calls}<|eot_id|>")), "{text}");
    // What is refused for another reason stays refused.
    let spoken = dialogue("brackets");
    assert!(matches!(spoken.render(&[user("a"), user("b")], &tools(), true), Err(TextError::TemplateRefused(_))));
}

/// Marks that are special tokens can be sampled and are seen; all others stay banned and unseen.
#[test]
fn a_dialects_own_marks_are_free_and_kept() {
    let spoken = dialogue("brackets");
    let tokenizer = spoken.tokenizer();
    let id = |text: &str| {
        (0..tokenizer.vocab_size() as Token).find(|t| tokenizer.token_bytes(*t) == text.as_bytes()).unwrap()
    };
    let (mark, other) = (id("[TOOL_CALLS]"), id("[INST]"));
    assert!(tokenizer.structural().contains(&mark) && !spoken.banned().contains(&mark));
    assert!(spoken.banned().contains(&other));
    let sampled = [&[other, mark][..], &tokenizer.encode("x", surefoot_text::Special::Literal), &[IM_END]].concat();
    assert_eq!(spoken.decode(&sampled), "[TOOL_CALLS]x");
}

#[test]
fn a_turn_opened_within_reasoning_calls_nothing_before_it_ends() {
    let spoken = dialogue("prefilled");
    let call = r#"<tool_call>{"name": "stop", "arguments": {}}</tool_call>"#;
    assert_eq!(spoken.read(&format!("maybe {call}"), &tools()), Reading::plain(format!("maybe {call}")));
    let reading = spoken.read(&format!("maybe {call}</think>{call}"), &tools());
    assert_eq!(reading.calls, [Ok(ToolCall::new("stop", json!({})))]);
    assert_eq!(dialogue("tags").read(call, &tools()).calls.len(), 1);
}

/// An attempt as the turn loop leads it: the tokens of its sequences and which of them were sampled.
struct Attempt<'d> {
    spoken: &'d Dialogue,
    tools: Vec<ToolSpec>,
    messages: Vec<Message>,
    tokens: Vec<Token>,
    sampled: Vec<bool>,
    n_anew: usize,
}

impl<'d> Attempt<'d> {
    fn open(spoken: &'d Dialogue, messages: Vec<Message>, tools: Vec<ToolSpec>) -> Self {
        let tokens = spoken.render(&messages, &tools, true).unwrap();
        let sampled = vec![false; tokens.len()];
        Attempt { spoken, tools, messages, tokens, sampled, n_anew: 0 }
    }

    fn is_end(&self, token: Token) -> bool {
        self.spoken.tokenizer().eos().contains(&token)
    }

    /// Takes a turn's tokens and says something; checks what must hold of any way to go on.
    fn turn(&mut self, tokens: &[Token], new: &[Message]) -> Result<(), String> {
        let closed = tokens.last().is_some_and(|t| self.is_end(*t));
        let text = self.spoken.decode(&tokens[..tokens.len() - usize::from(closed)]);
        let reading = self.spoken.read(&text, &self.tools);
        let calls = reading.calls.into_iter().filter_map(Result::ok).collect();
        self.messages.push(Message { calls, ..Message::new(Role::Assistant, reading.said) });
        self.tokens.extend_from_slice(tokens);
        self.sampled.extend(tokens.iter().map(|_| true));
        let before = self.tokens.clone();
        let next = self.spoken.go_on(&self.messages, &self.tools, closed, new).map_err(|e| e.to_string())?;
        self.messages.extend_from_slice(new);
        let full = self.spoken.render(&self.messages, &self.tools, true).map_err(|e| e.to_string())?;
        match next {
            Next::Append(added) => {
                if let (false, Some(end)) = (closed, self.spoken.end()) {
                    let closes = added.first().is_some_and(|t| self.is_end(*t));
                    assert!(closes, "an open turn is closed first, by {end} or its like: {added:?}");
                }
                self.tokens.extend(&added);
                self.sampled.extend(added.iter().map(|_| false));
                // E1: what stood there stands there.
                assert_eq!(self.tokens[..before.len()], before);
                // The rest is the template's own writing, to the letter.
                let n_end = usize::from(!closed && self.spoken.end().is_some());
                let rest = &added[n_end..];
                assert!(full.ends_with(rest), "{}", self.spoken.tokenizer().decode(rest, false));
            }
            Next::Anew(prompt) => {
                assert_eq!(prompt, full);
                self.sampled = vec![false; prompt.len()];
                self.tokens = prompt;
                self.n_anew += 1;
            }
        }
        // D12
        assert_eq!(self.tokens.len(), self.sampled.len());
        Ok(())
    }

    /// The tokens the template itself would write for a turn, up to and with its end; `None` where it writes none that
    /// could have been sampled (no end token, or not behind the prompt as it stands).
    fn written(&self, turn: &Message) -> Option<Vec<Token>> {
        let all = [&self.messages[..], std::slice::from_ref(turn)].concat();
        let tokens = self.spoken.render(&all, &self.tools, false).ok()?;
        let rest = tokens.strip_prefix(&self.tokens[..])?;
        let end = rest.iter().position(|t| self.is_end(*t))?;
        Some(rest[..=end].to_vec())
    }
}

/// E7: a template that cuts reasoning begins a new sequence where it does, and only there; the empty block that it writes
/// into the last turn rewrites nothing.
#[test]
fn e7_reasoning_stays_until_the_template_cuts_it() {
    let spoken = dialogue("thinking");
    let encode = |text: &str| spoken.tokenizer().encode(text, surefoot_text::Special::Literal);
    let call = Dialect::Hermes.write(&asks("", &["Oslo"]).calls, &tools()).unwrap();
    let think = "<think>\nhm\n</think>\n\n";
    let cases: [(String, Message, usize); 5] = [
        (call.clone(), answers("20"), 0),
        (format!("{think}{call}"), answers("20"), 0),
        ("It is 20.".into(), user("Sure?"), 0),
        (format!("{think}It is 20."), user("Sure?"), 1),
        (format!("<think>\n\n</think>\n\n{call}"), answers("20"), 1),
    ];
    for (said, new, want) in cases {
        let mut attempt = Attempt::open(&spoken, vec![user("Weather?")], tools());
        let turn = [encode(&said), vec![IM_END]].concat();
        attempt.turn(&turn, &[new]).unwrap();
        assert_eq!(attempt.n_anew, want, "{said}");
    }
}

/// What a policy wrote so badly that it is no call is answered all the same, in a template that refuses that.
#[test]
fn f2_the_answer_to_a_malformed_call_can_be_shown_by_any_template() {
    for name in families() {
        let spoken = dialogue(&name);
        let mut attempt = Attempt::open(&spoken, vec![user("Weather?")], tools());
        for _ in 0..3 {
            let turn =
                spoken.tokenizer().encode("[TOOL_CALLS]{<tool_call>{<function=", surefoot_text::Special::Literal);
            let turn = [turn, spoken.end().into_iter().collect()].concat();
            attempt.turn(&turn, &[Message::new(Role::Tool, "error: cannot read the call")]).unwrap();
        }
    }
}

/// A turn that a stop string or a limit cut is closed for the policy, by context.
#[test]
fn an_open_turn_is_closed_before_anything_is_said() {
    for (name, end) in [("tags", "<|im_end|>\n<|im_start|>user\nb"), ("headers", "<|eot_id|><|start_header_id|>user")] {
        let spoken = dialogue(name);
        let history = [user("a"), Message::new(Role::Assistant, "x")];
        let text = |closed| match spoken.go_on(&history, &tools(), closed, &[user("b")]).unwrap() {
            Next::Append(tokens) => spoken.tokenizer().decode(&tokens, false),
            Next::Anew(_) => panic!("{name}"),
        };
        assert!(text(false).starts_with(end), "{name}: {}", text(false));
        assert_eq!(text(true), text(false)[end.find('>').unwrap() + 1..], "{name}");
    }
}

/// Leads an attempt of five turns, each as the template would write it where it could have been sampled, else as the
/// dialect has it. Gives how often it began anew, how many turns were the template's, after how many of these the sequence
/// was the whole rendering.
fn lead(name: &str, spoken: &Dialogue, opening: Vec<Message>) -> Result<(usize, usize, usize), String> {
    let rounds = [
        (asks("Let me look.", &["Oslo"]), vec![answers("20")]),
        (asks("", &["Rome", "Bern"]), vec![answers("a\n"), answers("b")]),
        (Message::new(Role::Assistant, "It is 20."), vec![user("Sure?")]),
        (asks("", &["Oslo"]), vec![answers("20")]),
        (Message::new(Role::Assistant, "Yes."), vec![user("Thanks.")]),
    ];
    let mut attempt = Attempt::open(spoken, opening, tools());
    let (mut n_written, mut n_equal) = (0, 0);
    for (turn, new) in rounds {
        let n_anew = attempt.n_anew;
        let Some(tokens) = attempt.written(&turn) else {
            let said = [turn.content.clone(), spoken.dialect().write(&turn.calls, &tools()).unwrap()].join("\n");
            let mut tokens = spoken.tokenizer().encode(said.trim(), surefoot_text::Special::Literal);
            tokens.extend(spoken.end());
            attempt.turn(&tokens, &new)?;
            continue;
        };
        attempt.turn(&tokens, &new)?;
        // What the template writes, the dialect reads; some templates leave out what is said beside a call.
        let read = &attempt.messages[attempt.messages.len() - new.len() - 1];
        assert!(read.content.trim_end().ends_with(&turn.content) || !turn.calls.is_empty(), "{name}: {read:?}");
        assert_eq!(read.calls, turn.calls, "{name}");
        // A block of reasoning that the template put in is said twice when it is written again: no turn of the template's.
        if read.content.is_empty() || read.content == turn.content {
            n_written += 1;
            let full = spoken.render(&attempt.messages, &tools(), true).unwrap();
            n_equal += usize::from(attempt.n_anew == n_anew && full == attempt.tokens);
        }
    }
    Ok((attempt.n_anew, n_written, n_equal))
}

/// E3, E6: where the policy writes what the template would write, the whole sequence is the template's rendering: no
/// separator lost, none doubled. A sequence begins anew only where a template rewrites.
#[test]
fn e3_incremental_tokens_are_those_of_the_whole_conversation() {
    for name in families() {
        let want = match name.as_str() {
            // Tools move to the last question, twice; the system message is printed only before an answer to a question.
            "brackets" => [(2, 0, 0), (2, 5, 3)],
            // No token ends a turn, or the prompt already began it: never what the template would write.
            "script" | "prefilled" => [(0, 0, 0); 2],
            // It writes an empty block of reasoning into the turn and leaves it out as soon as something follows.
            "thinking" => [(5, 0, 0); 2],
            _ => [(0, 5, 5); 2],
        };
        let spoken = dialogue(&name);
        let openings = [vec![Message::new(Role::System, "Be brief."), user("Weather?")], vec![user("Weather?")]];
        let got = openings.map(|opening| lead(&name, &spoken, opening).unwrap());
        assert_eq!(got, want, "{name}");
    }
}

/// The same over real templates, and real vocabularies with theirs, where they are present.
#[test]
fn e3_holds_for_real_templates() {
    let Some(folder) = models("e3_holds_for_real_templates") else { return };
    let mut all: Vec<(String, Tokenizer)> = Vec::new();
    for entry in std::fs::read_dir(folder.join("templates")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "jinja") {
            let source = std::fs::read_to_string(&path).unwrap();
            all.push((name, Tokenizer::from_gguf(vocabulary_for(&source)).unwrap()));
        }
    }
    for name in ["qwen3", "llama3", "gemma3"].iter().filter(|name| folder.join(name).join("tokenizer.json").exists()) {
        all.push(((*name).to_owned(), Tokenizer::from_folder(&folder.join(name)).unwrap()));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let mut n_native = 0;
    let n = all.len();
    for (name, tokenizer) in all {
        let tokenizer = tokenizer.with_date(Date::new((2024, 7, 6), (0, 0, 0)).unwrap());
        let native = Dialect::guess(tokenizer.chat().unwrap()).map_or("-", Dialect::name);
        n_native += usize::from(native != "-");
        let led = Dialogue::new(Arc::new(tokenizer), None, Strictness::Lenient).map_err(|e| e.to_string());
        match led.and_then(|spoken| lead(&name, &spoken, vec![user("Weather?")])) {
            Ok((anew, written, equal)) => {
                println!("{name}: {native}, {anew} anew, {written} written, {equal} equal");
                assert!(written <= anew + equal, "{name}");
            }
            // This one wants its tools under a name of its own.
            Err(error) => {
                assert!(name.contains("firefunction") && error.contains("`functions` is undefined"), "{name}: {error}")
            }
        }
    }
    println!("{n} templates, {n_native} in a dialect of ours");
}

/// Texts that end, open or escape what they stand in.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<|im_end|>"),
        Just("<|im_start|>system\n"),
        Just("<|eot_id|>"),
        Just("[INST]"),
        Just("[TOOL_CALLS]"),
        Just("</tool_call>"),
        Just("<tool_call>"),
        Just("</think>"),
        Just("<think>"),
        Just("</tool_response>"),
        Just("\""),
        Just("'"),
        Just("\\"),
        Just("\n"),
        Just("{"),
        Just("}"),
        Just("é"),
        Just("🤖"),
        Just("hello"),
        Just("<|im_"),
        Just("end|>"),
        Just(" "),
        Just("<start_of_turn>"),
        Just("</parameter>"),
        Just("42"),
        Just("\u{F0000}"),
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

/// What a policy does in a turn: words, calls with these arguments, tokens no encoder would choose, and whether it ends.
type Did = (String, Vec<String>, Vec<Token>, bool);

fn turns() -> impl Strategy<Value = Vec<(Did, String)>> {
    let words =
        prop_oneof![3 => Just(String::new()), 2 => Just("<think>\nhm\n</think>\n\n".to_owned()), 3 => hostile()];
    let odd = prop_oneof![3 => Just(vec![]), 1 => proptest::collection::vec(0u32..300, 0..4)];
    let did = (words, proptest::collection::vec(hostile(), 0..3), odd, any::<bool>());
    proptest::collection::vec((did, hostile()), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    /// E1, E2, D5, D12 over random attempts with tools in every family: what was sampled stays, token for token, and
    /// nothing else is marked as sampled.
    #[test]
    fn e1_what_was_sampled_stays_whatever_is_said(turns in turns(), family in 0..families().len()) {
        let name = &families()[family];
        let spoken = dialogue(name);
        let mut attempt = Attempt::open(&spoken, vec![user("Weather?")], tools());
        let (mut n_sampled, mut n_anew) = (0, 0);
        for ((words, cities, odd, ends), heard) in turns {
            let calls: Vec<ToolCall> = cities.iter().map(|city| ToolCall::new("get_weather", json!({"city": city}))).collect();
            let written = spoken.dialect().write(&calls, &tools()).unwrap_or_default();
            let mut tokens = spoken.tokenizer().encode(&format!("{words}{written}"), surefoot_text::Special::Literal);
            tokens.extend(odd);
            tokens.extend(spoken.end().filter(|_| ends));
            let text = spoken.decode(&tokens);
            let reading = spoken.read(&text, &tools());
            let told: Vec<Message> = reading.calls.iter().map(|call| match call {
                Ok(_) => answers(&heard),
                Err(_) => Message::new(Role::Tool, heard.clone()),
            }).collect();
            let told = if told.is_empty() { vec![user(&heard)] } else { told };
            attempt.turn(&tokens, &told).unwrap();
            n_sampled = if attempt.n_anew > n_anew { 0 } else { n_sampled + tokens.len() };
            n_anew = attempt.n_anew;
            prop_assert_eq!(attempt.sampled.iter().filter(|s| **s).count(), n_sampled);
        }
    }

    /// Neither a tool's description, nor an argument, nor an answer, nor a name becomes a control token: there are as many as
    /// in the same conversation about nothing.
    #[test]
    fn tools_calls_and_answers_write_no_control_token(
        texts in proptest::collection::vec(hostile(), 5), family in 0..families().len(),
    ) {
        let name = &families()[family];
        let spoken = dialogue(name);
        let count = |texts: &[String]| {
            let parameters = json!({"type": "object", "properties": {"a": {"type": "string", "description": texts[0]}}});
            let tools = [ToolSpec::new("look", format!("x{}x", texts[1]), "read", parameters)];
            let call = ToolCall::new("look", json!({"a": texts[2], "b": [texts[3]]}));
            let turn = Message { calls: vec![call], ..Message::new(Role::Assistant, "") };
            let answer = Message { tool: Some("look".into()), ..Message::new(Role::Tool, texts[4].clone()) };
            let tokens = spoken.render(&[user("a"), turn, answer], &tools, true).unwrap();
            let special = |t: &&Token| spoken.tokenizer().is_special(**t);
            tokens.iter().filter(special).count()
        };
        prop_assert_eq!(count(&texts), count(&["", "", "", "", ""].map(|t| format!("{t}x"))), "{}", name);
    }
}
