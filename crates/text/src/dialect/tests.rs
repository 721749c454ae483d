use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn tools() -> Vec<ToolSpec> {
    let search = json!({
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "n": {"type": "integer", "minimum": 1},
            "items": {"type": "array", "items": {"type": "integer"}},
            "deep": {"type": "boolean"},
            "any": {},
        },
        "required": ["query"],
    });
    vec![
        ToolSpec::new("search", "Finds \"things\" </tools>", "search", search),
        ToolSpec::new("now", "The time.", "read", json!({"type": "object", "properties": {}})),
        ToolSpec::new("any", "Takes anything.", "read", json!({"type": "object"})),
    ]
}

/// A reading in short: calls as `name{…}`, malformed ones as `!reason`, then what is said.
fn shown(reading: &Reading) -> String {
    let calls = reading.calls.iter().map(|call| match call {
        Ok(call) => format!("{}{}", call.tool, Value::Object(call.arguments.clone())),
        Err(malformed) => format!("!{}", malformed.reason),
    });
    calls.chain([format!("|{}", reading.said)]).collect::<Vec<_>>().join(" ")
}

fn check(dialect: Dialect, text: &str, lenient: &str, strict: &str) {
    for (how, want) in [(Strictness::Lenient, lenient), (Strictness::Strict, strict)] {
        assert_eq!(shown(&dialect.read(text, &tools(), how)), want, "{dialect} {how:?}: {text:?}");
    }
}

/// Both ways alike.
fn both(dialect: Dialect, text: &str, want: &str) {
    check(dialect, text, want, want);
}

#[test]
fn hermes_reads_what_stands_between_its_tags() {
    use Dialect::Hermes;
    both(
        Hermes,
        "Let me see.\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}\n</tool_call>\n",
        r#"search{"query":"x"} |Let me see."#,
    );
    both(
        Hermes,
        r#"a <tool_call>{"name":"now","arguments":{}}</tool_call> b <tool_call>{"name":"other","arguments":{"z":[1]}}</tool_call> c"#,
        "now{} other{\"z\":[1]} |a\nb\nc",
    );
    both(
        Hermes,
        r#"<tool_call>{"name": "search", "arguments": {"query": "</tool_call>\"}"}}</tool_call>"#,
        r#"search{"query":"</tool_call>\"}"} |"#,
    );
    check(
        Hermes,
        r#"<tool_call>{"name": "now", "arguments": {}}"#,
        "now{} |",
        r#"!need `</tool_call>`, got the end of the text |<tool_call>{"name": "now", "arguments": {}}"#,
    );
    check(
        Hermes,
        r#"<tool_call>{"name": "search", "arguments": "{\"query\": \"x\"}"}</tool_call>"#,
        r#"search{"query":"x"} |"#,
        r#"!need `arguments`, an object |{"name":"search","arguments":"{\"query\": \"x\"}"}"#,
    );
    check(
        Hermes,
        r#"<tool_call>{"name": "search", "arguments": {"query": "a", "query": "b"}}</tool_call>"#,
        r#"search{"query":"b"} |"#,
        r#"!`query` is given twice |<tool_call>{"name": "search", "arguments": {"query": "a", "query": "b"}}</tool_call>"#,
    );
    both(Hermes, "no call <b>here</b>\n", "|no call <b>here</b>\n");
}

#[test]
fn f2_a_malformed_call_is_told_and_the_rest_goes_on() {
    both(
        Dialect::Xml,
        "<function=search<parameter=q>x",
        "!need a name and `>`, got `search` |<function=search<parameter=q>x",
    );
    both(Dialect::Json, r#"{"a": 1"#, "!not JSON: EOF while parsing an object at line 1 column 7 |{\"a\": 1");
    both(
        Dialect::Hermes,
        "<tool_call>{\"a\": 1</tool_call><tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
        "!not JSON: expected `,` or `}` at line 1 column 8 now{} |<tool_call>{\"a\": 1</tool_call>",
    );
    both(
        Dialect::Hermes,
        "<tool_call><tool_call>",
        "!not JSON: expected value at line 1 column 1 !need a JSON value, got the end of the text |<tool_call>\n<tool_call>",
    );
    both(
        Dialect::Llama,
        "<|python_tag|>import os",
        "!need a call as a JSON object, got `import os` |<|python_tag|>import os",
    );
    check(
        Dialect::Mistral,
        "[TOOL_CALLS] nothing",
        "!need a JSON value, got the end of the text |[TOOL_CALLS] nothing",
        "!need `[ARGS]` and an object of arguments, got the end of the text |[TOOL_CALLS] nothing",
    );
    let malformed = Dialect::Json.read(&format!("{{\"name\": \"{}", "x".repeat(900)), &[], Strictness::Lenient);
    let text = malformed.calls[0].as_ref().unwrap_err().to_string();
    assert!(text.starts_with("cannot read the call `{\"name\": \"xxx") && text.len() < 400, "{text}");
}

#[test]
fn f1_nothing_in_a_text_is_evaluated() {
    let evil = r#"__import__("os").system("touch pwned")"#;
    let call = |value: &str| {
        format!(
            "<function=search>\n<parameter=query>\nq\n</parameter>\n<parameter=items>{value}</parameter>\n</function>"
        )
    };
    let reading = Dialect::Xml.read(&call(evil), &tools(), Strictness::Lenient);
    let reason = &reading.calls[0].as_ref().unwrap_err().reason;
    assert!(reason.to_string().starts_with("argument `items` needs an array, got `\"__import__"), "{reason}");
    let free = call(evil).replace("=items", "=any");
    both(Dialect::Xml, &free, &format!("search{{\"query\":\"q\",\"any\":{}}} |", json!(evil)));
    both(Dialect::Xml, &call("[1,2,3]"), r#"search{"query":"q","items":[1,2,3]} |"#);
    for value in
        [evil, "f(x=1)", "[x for x in y]", "1+1", "open", "f'{x}'", "b'x'", "lambda: 1", "1if 1else 2", "{1: 2}", "..."]
    {
        let text = format!("[search(query={value})]");
        let reading = Dialect::Pythonic.read(&text, &tools(), Strictness::Lenient);
        assert!(matches!(reading.calls.as_slice(), [Err(_)]), "{text}: {reading:?}");
    }
}

#[test]
fn xml_values_are_text_or_what_the_schema_asks_for() {
    use Dialect::Xml;
    both(
        Xml,
        "I look.\n\n<tool_call>\n<function=search>\n<parameter=query>\n 12 \n\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        r#"search{"query":" 12 \n","n":3} |I look."#,
    );
    both(Xml, "<function=now></function><function=now>\n</function>", "now{} now{} |");
    both(Xml, "<function=search>{\"query\": \"</function>\"}</function>", r#"search{"query":"</function>"} |"#);
    check(
        Xml,
        "<function=search><parameter=query>x</parameter><parameter=deep>True</parameter></function>",
        r#"search{"query":"x","deep":true} |"#,
        "!argument `deep` needs a boolean, got `\"True\"` |<function=search><parameter=query>x</parameter><parameter=deep>True</parameter></function>",
    );
    check(
        Xml,
        "<function=search><parameter=query>x",
        "!need `</parameter>`, got the end of the text |<function=search><parameter=query>x",
        "!need `</parameter>`, got the end of the text |<function=search><parameter=query>x",
    );
    check(
        Xml,
        "<tool_call><function=search><parameter=query>x</parameter>",
        r#"search{"query":"x"} |"#,
        "!need `<parameter=` or `</function>`, got the end of the text |<tool_call><function=search><parameter=query>x</parameter>",
    );
    check(
        Xml,
        "<function=search><parameter=query>x</function>",
        r#"search{"query":"x"} |"#,
        "!need `</parameter>`, got the end of the text |<function=search><parameter=query>x</function>",
    );
}

#[test]
fn bare_json_is_a_call_where_it_is_all_there_is() {
    use Dialect::Json;
    both(Json, " {\"name\": \"now\", \"arguments\": {}} ", "now{} |");
    both(
        Json,
        r#"[{"name": "now", "parameters": {}}, {"name": "search", "arguments": {"query": "x"}}]"#,
        r#"now{} search{"query":"x"} |"#,
    );
    both(
        Json,
        r#"[{"name": "now", "arguments": {}}, 3]"#,
        "now{} !need an object with `name` and `arguments`, got `3` |3",
    );
    both(Json, r#"{"answer": 42}"#, r#"|{"answer": 42}"#);
    both(Json, "[1] says so", "|[1] says so");
    check(
        Json,
        "I will call\n```json\n{\"name\": \"now\", \"arguments\": {}}\n```\nthen",
        "now{} |I will call\nthen",
        "|I will call\n```json\n{\"name\": \"now\", \"arguments\": {}}\n```\nthen",
    );
    check(
        Json,
        r#"{"function": {"name": "now", "arguments": {}}, "type": "function"}"#,
        "now{} |",
        r#"!need a tool's name of 1 to 256 bytes, got `` |{"function":{"name":"now","arguments":{}},"type":"function"}"#,
    );
    both(Json, "use `{\"x\": 1}` or {\"name\": 2}", "|use `{\"x\": 1}` or {\"name\": 2}");
    check(Json, "Answer:\n{\"x\": …}", "|Answer:\n{\"x\": …}", "|Answer:\n{\"x\": …}");
}

#[test]
fn llama_reads_calls_with_and_without_its_mark() {
    use Dialect::Llama;
    both(Llama, r#"{"name": "now", "parameters": {}}"#, "now{} |");
    both(
        Llama,
        r#"{"name": "now", "parameters": {}}; {"name": "search", "parameters": {"query": "x"}};"#,
        r#"now{} search{"query":"x"} |"#,
    );
    both(
        Llama,
        r#"<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "now", "parameters": {}}"#,
        "now{} now{} |",
    );
    both(
        Llama,
        r#"Well. <|python_tag|>{"name": "now", "parameters": {}}; then"#,
        "now{} !need a call as a JSON object, got `then` |Well.\nthen",
    );
}

#[test]
fn mistral_reads_both_of_its_forms() {
    use Dialect::Mistral;
    both(
        Mistral,
        r#"[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}, {"name": "search", "arguments": {"query": "x"}}]"#,
        r#"now{} search{"query":"x"} |"#,
    );
    both(
        Mistral,
        r#"Hm.[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{"query": "[TOOL_CALLS]"}[TOOL_CALLS]now[ARGS]{}"#,
        r#"search{"query":"[TOOL_CALLS]"} now{} |Hm."#,
    );
    check(
        Mistral,
        "[TOOL_CALLS]now{}",
        "now{} |",
        "!need `[ARGS]` and an object of arguments, got `{}` |[TOOL_CALLS]now{}",
    );
}

#[test]
fn pythonic_reads_literals() {
    use Dialect::Pythonic;
    both(
        Pythonic,
        r#"[search(query='it\'s "x"\n', n=3, any={"a": [True, None, -1.5e3]}), now()]"#,
        r#"search{"query":"it's \"x\"\n","n":3,"any":{"a":[true,null,-1500.0]}} now{} |"#,
    );
    both(Pythonic, "Sure. <|tool_call_start|>[now()]<|tool_call_end|>done", "now{} |Sure.\ndone");
    both(Pythonic, "[now(1)]", "!need `=`: each argument needs its name, got `)]` |[now(1)]");
    both(Pythonic, "[search(query=\"x\", query=\"y\")]", "!`query` is given twice |[search(query=\"x\", query=\"y\")]");
    both(Pythonic, "[see](http://x) [1]", "|[see](http://x) [1]");
    check(Pythonic, "So:\n[now()]", "now{} |So:", "|So:\n[now()]");
    both(Pythonic, r#"[any(x="\u00e9\x41\q\U0001F916", y='')]"#, r#"any{"x":"éA\\q🤖","y":""} |"#);
    check(Pythonic, "[any(x=(1, 2))]", "any{\"x\":[1,2]} |", "!need a literal value, got `(1, 2))]` |[any(x=(1, 2))]");
}

#[test]
fn arguments_are_checked_and_unknown_tools_left_for_the_gate() {
    let call = |name: &str, arguments: &str| format!(r#"{{"name": "{name}", "arguments": {arguments}}}"#);
    let reasons = [
        ("{}", "argument `query` needs to be given, got nothing"),
        (r#"{"query": 1}"#, "argument `query` needs a string, got `1`"),
        (r#"{"query": "", "n": 0}"#, "argument `n` needs at least 1, got 0"),
        (r#"{"query": "", "items": [1, "2"]}"#, "argument `items[1]` needs an integer, got `\"2\"`"),
    ];
    for (arguments, want) in reasons {
        let text = call("search", arguments);
        both(Dialect::Json, &text, &format!("!{want} |{text}"));
    }
    both(Dialect::Json, &call("launch_missiles", "{\"now\":true}"), "launch_missiles{\"now\":true} |");
    for name in ["", &"x".repeat(257), "a\\nb"] {
        let reading = Dialect::Json.read(&call(name, "{}"), &tools(), Strictness::Lenient);
        assert!(matches!(reading.calls[0], Err(Malformed { reason: Reason::Name { .. }, .. })), "{name}");
    }
}

#[test]
fn what_the_policy_thinks_calls_nothing() {
    let call = r#"<tool_call>{"name": "now", "arguments": {}}</tool_call>"#;
    both(
        Dialect::Hermes,
        &format!("<think>maybe {call}</think>\n\nyes {call}"),
        &format!("now{{}} |<think>maybe {call}</think>\n\nyes"),
    );
    both(Dialect::Hermes, &format!("\n<think>maybe {call}"), &format!("|\n<think>maybe {call}"));
    let opened = Dialect::Hermes.read_behind(&format!("hm {call}</think>{call}"), true, &tools(), Strictness::Strict);
    assert_eq!(shown(&opened), format!("now{{}} |hm {call}</think>"));
    let inside = r#"<tool_call>{"name": "any", "arguments": {"x": "</think>"}}</tool_call>"#;
    both(Dialect::Hermes, inside, r#"any{"x":"</think>"} |"#);
}

#[test]
fn calls_are_bounded_in_number_size_and_depth() {
    let call = r#"<tool_call>{"name": "now", "arguments": {}}</tool_call>"#;
    let many = Dialect::Hermes.read(&call.repeat(1000), &tools(), Strictness::Lenient);
    assert_eq!(many.calls.len(), MAX_CALLS + 1);
    assert_eq!(many.calls.last().unwrap().as_ref().unwrap_err().reason, Reason::TooMany);
    let long = format!(r#"{{"name": "any", "arguments": {{"x": "{}"}}}}"#, "x".repeat(MAX_CALL_BYTES));
    let deep = format!(r#"{{"name": "any", "arguments": {{"x": {}1{}}}}}"#, "[".repeat(70), "]".repeat(70));
    for dialect in [Dialect::Json, Dialect::Llama] {
        let reason =
            |text: &str| dialect.read(text, &tools(), Strictness::Lenient).calls[0].clone().unwrap_err().reason;
        assert!(matches!(reason(&long), Reason::TooLong { .. }));
        assert_eq!(reason(&deep), Reason::TooDeep);
    }
    let nested = format!("[any(x={}1{})]", "[".repeat(100_000), "]".repeat(100_000));
    let reading = Dialect::Pythonic.read(&nested, &tools(), Strictness::Lenient);
    assert_eq!(reading.calls[0].as_ref().unwrap_err().reason, Reason::TooDeep);
}

/// Texts made to be slow or deep: each is read in one pass a call at most.
#[test]
fn hostile_texts_are_read_in_bounded_time() {
    let began = std::time::Instant::now();
    for unit in [
        "<tool_call>",
        "<tool_call>{\"a\":\"",
        "{\"a\":",
        "[{\"a\":\n",
        "<function=a>",
        "<function=a><parameter=b>",
        "[f(a=",
        "[TOOL_CALLS]a",
        "\n[",
        "[f(a='\\",
        "<|python_tag|>{\"a\":{",
        "<|tool_call_start|>[",
        "{\"name\": ",
        "</think>",
    ] {
        let text = unit.repeat(400_000 / unit.len());
        for dialect in Dialect::ALL {
            for how in [Strictness::Lenient, Strictness::Strict] {
                let reading = dialect.read(&text, &tools(), how);
                assert!(reading.calls.iter().all(Result::is_err), "{dialect} {unit}");
            }
        }
    }
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn instructions_name_every_tool_and_show_a_call_that_can_be_read() {
    for dialect in Dialect::ALL {
        let text = dialect.instructions(&tools());
        assert!(tools().iter().all(|t| text.contains(&format!("\"name\": \"{}\"", t.name))), "{text}");
        let (_, how) = text.split_once("</tools>").unwrap();
        let shown: String = how.replace("the tool's name", "any").replace("tool_name", "any");
        // The example stands on lines of its own behind the sentence.
        let example = &shown[shown.find(":\n").unwrap() + 2..shown.find("\nIts answer").unwrap()];
        let reading = dialect.read(example, &[], Strictness::Strict);
        assert!(matches!(reading.calls.as_slice(), [Ok(call)] if call.tool == "any"), "{dialect}: {reading:?}");
        assert_eq!(dialect.instructions(&[]), "");
    }
}

#[test]
fn names_are_parsed_and_unknown_ones_told() {
    for dialect in Dialect::ALL {
        assert_eq!(Dialect::parse(dialect.name()).unwrap(), *dialect);
        assert_eq!(serde_json::to_value(dialect).unwrap(), json!(dialect.name()));
        assert!(!dialect.summary().is_empty());
    }
    let error = Dialect::parse("xlm").unwrap_err().to_string();
    assert_eq!(error, "unknown dialect `xlm`, need one of `xml`, `hermes`, `mistral`, `pythonic`, `llama`, `json`");
}

#[test]
fn what_a_dialect_cannot_hold_is_refused() {
    let refused = |dialect: Dialect, arguments: Value| {
        let call = ToolCall::new("search", arguments);
        dialect.write(&[call], &tools()).unwrap_err().to_string()
    };
    let closing = json!({"query": "a</parameter>b"});
    assert!(refused(Dialect::Xml, closing.clone()).starts_with("cannot write the calls in dialect `xml`: "));
    assert!(Dialect::Hermes.write(&[ToolCall::new("search", closing)], &tools()).is_ok());
    assert!(refused(Dialect::Pythonic, json!({"query": "", "not a name": 1})).contains("need `=`"));
    assert_eq!(
        refused(Dialect::Json, json!({"query": 3})),
        "cannot write the calls in dialect `json`: argument `query` needs a string, got `3`"
    );
}

/// Strings that end, open or escape what they stand in.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("</tool_call>"),
        Just("<tool_call>"),
        Just("</parameter>"),
        Just("<parameter=a>"),
        Just("</function>"),
        Just("[TOOL_CALLS]"),
        Just("[ARGS]"),
        Just("<|python_tag|>"),
        Just("<|tool_call_end|>"),
        Just("</think>"),
        Just("<think>"),
        Just("\""),
        Just("'"),
        Just("\\"),
        Just("\n"),
        Just("\r"),
        Just("\t"),
        Just("\0"),
        Just(";"),
        Just("]"),
        Just("}"),
        Just("{\"name\": \"now\", \"arguments\": {}}"),
        Just("é"),
        Just("🤖"),
        Just("\u{2028}"),
        Just("42"),
        Just("True"),
        Just("null"),
        Just(" "),
        Just("```"),
        Just("x"),
        Just("\u{7f}"),
        Just("\u{85}"),
    ];
    prop_oneof![
        3 => proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat()),
        1 => any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        hostile().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((hostile(), inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

fn calls() -> impl Strategy<Value = Vec<ToolCall>> {
    let key = prop_oneof![4 => "[a-z_]{1,6}", 1 => hostile()];
    let arguments =
        proptest::collection::vec((key, value()), 0..4).prop_map(|all| all.into_iter().collect::<Map<_, _>>());
    let name = prop_oneof![Just("any".to_owned()), Just("now".to_owned()), Just("fs.read-file".to_owned())];
    let any = (name, arguments).prop_map(|(tool, arguments)| ToolCall { tool, arguments });
    let search = hostile().prop_map(|query| ToolCall::new("search", json!({"query": query})));
    proptest::collection::vec(prop_oneof![any, search], 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// What is written is read back alike, both ways, also behind words; or it is refused, and JSON never is.
    #[test]
    fn reading_undoes_writing(calls in calls()) {
        for dialect in Dialect::ALL {
            let Ok(text) = dialect.write(&calls, &tools()) else {
                prop_assert!(matches!(dialect, Dialect::Xml | Dialect::Pythonic), "{} refuses {:?}", dialect, calls);
                continue;
            };
            for how in [Strictness::Lenient, Strictness::Strict] {
                let read = dialect.read(&text, &tools(), how);
                let got: Result<Vec<ToolCall>, Malformed> = read.calls.into_iter().collect();
                prop_assert_eq!(got, Ok(calls.clone()), "{} {:?}: {}", dialect, how, text);
            }
            let said = format!("I see.\n{text}");
            let read = dialect.read(&said, &tools(), Strictness::Lenient);
            prop_assert_eq!((read.said.as_str(), read.calls.len()), ("I see.", calls.len()), "{}: {}", dialect, said);
        }
    }

    /// Any text is read, alike each time, and none of it is lost but white space beside calls that were read.
    #[test]
    fn any_text_is_read(pieces in proptest::collection::vec(prop_oneof![
        hostile(), Just("<function=search>".to_owned()), Just("[search(query=".to_owned()), Just("{\"name\": \"search\", ".to_owned()),
        Just("\"arguments\": {\"query\": \"x\"}}".to_owned()), Just("<parameter=query>".to_owned()), Just("\n".to_owned()),
    ], 0..8)) {
        let text = pieces.concat();
        for dialect in Dialect::ALL {
            for how in [Strictness::Lenient, Strictness::Strict] {
                let reading = dialect.read(&text, &tools(), how);
                prop_assert_eq!(&reading, &dialect.read(&text, &tools(), how));
                if reading.calls.is_empty() {
                    prop_assert_eq!(&reading.said, &text);
                }
                if reading.calls.iter().all(Result::is_err) {
                    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
                    let is_list = reading.said.contains("{\"") || text.contains("[{");
                    prop_assert!(is_list || letters(&reading.said) == letters(&text), "{} {:?}: {:?} {:?}", dialect, how, text, reading);
                }
            }
        }
    }
}

/// How often the dialects that may refuse do: the property above would hold for one that always refuses.
#[test]
fn few_hostile_calls_cannot_be_written() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let all: Vec<Vec<ToolCall>> = (0..500).map(|_| calls().new_tree(&mut runner).unwrap().current()).collect();
    for (dialect, most) in [(Dialect::Xml, 250), (Dialect::Pythonic, 300)] {
        let refused = all.iter().filter(|calls| dialect.write(calls, &tools()).is_err()).count();
        assert!(refused < most, "{dialect} refuses {refused} of {}", all.len());
    }
}
