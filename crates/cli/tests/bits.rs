//! The contract at the outermost layer: what is printed depends on weights, tokens, settings and seeds alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod program;

use program::{Desk, golden, speaking};
use serde_json::{Value, json};
use tensor::Isa;

const FAMILIES: [&str; 8] =
    ["llama", "llama_linear", "smollm2", "qwen2", "qwen2_yarn", "qwen3", "gemma3", "gemma3_linear"];

/// Prompts of several lengths, two of them with a common start, one of them twice.
fn prompts() -> String {
    let long: Vec<u32> = (0..70).map(|i| (i * 7 + 3) % 40).collect();
    let longer = [&long[..], &[5, 6]].concat();
    let line = |tokens: &[u32]| format!("{}\n", json!({ "tokens": tokens }));
    [line(&[1]), line(&long), line(&longer), line(&[9, 8, 7]), line(&[9, 8, 7])].concat()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn f32s(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

#[test]
fn samples_depend_on_no_batch_no_threads_and_no_vector_set() {
    let desk = Desk::new();
    let prompts = desk.file("p.jsonl", prompts());
    let isas: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    for family in FAMILIES {
        let model = golden(family);
        let sample = |batch: &str, threads: &str, isa: &str| {
            let words = ["sample", "--model", &model, "--prompts", &prompts, "--n", "3", "--max-tokens", "9"];
            let words = [&words[..], &["--seed", "5", "--json", "--batch", batch, "--threads", threads]].concat();
            let ran = desk.run_with(&words, b"", &[("SUREFOOT_ISA", isa)]);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{family}");
            ran.out
        };
        let best = isas.last().unwrap();
        let want = sample("64", "2", best);
        assert_eq!(want.lines().count(), 15);
        assert_eq!(sample("1", "1", best), want, "{family}: batch of 1, 1 thread");
        assert_eq!(sample("4", "3", best), want, "{family}: batch of 4, 3 threads");
        for isa in &isas {
            assert_eq!(sample("7", "2", isa), want, "{family}: {isa}");
        }
    }
}

#[test]
fn what_sampling_records_is_to_the_bit_what_scoring_computes() {
    let desk = Desk::new();
    for family in FAMILIES {
        let model = golden(family);
        let adapter = format!("{model}/adapter");
        for worn in [&[][..], &["--adapter", &*adapter]] {
            let given = prompts();
            let file = desk.file("p.jsonl", &given);
            let words = ["sample", "--model", &model, "--prompts", &file, "--n", "2", "--max-tokens", "12", "--json"];
            let samples = lines(&desk.ok(&[&words, worn].concat()));
            let given = lines(&given);
            let mut whole = String::new();
            for sample in &samples {
                let mut tokens = given[sample["prompt_index"].as_u64().unwrap() as usize]["tokens"].clone();
                tokens.as_array_mut().unwrap().extend(sample["tokens"].as_array().unwrap().iter().cloned());
                whole.push_str(&format!("{}\n", json!({ "tokens": tokens })));
            }
            let file = desk.file("whole.jsonl", whole);
            let scored =
                lines(&desk.ok(&[&["logprobs", "--model", &model, "--tokens", &file, "--json"], worn].concat()));
            assert_eq!(scored.len(), samples.len());
            for (sample, scored) in samples.iter().zip(&scored) {
                let (drawn, all) = (f32s(&sample["logprobs"]), scored["logprobs"].as_array().unwrap());
                let tail = f32s(&all[all.len() - drawn.len()..].to_vec().into());
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&drawn), bits(&tail), "{family} {worn:?}");
                assert!(all[0].is_null() && scored["entropy"][0].is_null());
            }
        }
    }
}

#[test]
fn an_adapter_changes_what_is_said() {
    let desk = Desk::new();
    let (model, file) = (golden("llama"), desk.file("p.jsonl", prompts()));
    let adapter = format!("{model}/adapter");
    let words = ["logprobs", "--model", &model, "--tokens", &file, "--json"];
    assert_ne!(desk.ok(&words), desk.ok(&[&words[..], &["--adapter", &adapter]].concat()));
}

#[test]
fn scores_depend_on_no_neighbours_no_threads_and_no_vector_set() {
    let desk = Desk::new();
    let all = prompts();
    for family in FAMILIES {
        let model = golden(family);
        let score = |text: &str, threads: &str, isa: Isa| {
            let words = ["logprobs", "--model", &model, "--tokens", "-", "--json", "--threads", threads];
            let ran = desk.run_with(&words, text.as_bytes(), &[("SUREFOOT_ISA", &isa.to_string())]);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{family}");
            ran.out
        };
        let want = score(&all, "1", Isa::best());
        let alone: String = all.lines().map(|l| score(l, "2", Isa::best())).collect();
        assert_eq!(alone, want, "{family}: alone");
        for isa in Isa::available() {
            assert_eq!(score(&all, "2", isa), want, "{family}: {isa}");
        }
    }
}

#[test]
fn samples_of_one_prompt_differ_and_come_again_with_their_seed() {
    let desk = Desk::new();
    let file = desk.file("p.jsonl", "{\"tokens\":[4,5]}\n{\"tokens\":[4,5]}\n");
    let model = golden("qwen3");
    let sample = |n: &str, seed: &str| {
        let words = ["sample", "--model", &model, "--prompts", &file, "--n", n, "--seed", seed, "--max-tokens", "8"];
        lines(&desk.ok(&[&words[..], &["--json"]].concat()))
    };
    let eight = sample("8", "1");
    assert_eq!(eight, sample("8", "1"));
    assert_ne!(eight, sample("8", "2"));
    let mut tokens: Vec<String> = eight.iter().map(|l| l["tokens"].to_string()).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 16, "samples of one prompt, and of the same prompt on another line, all differ");
    // More samples leave the first ones as they are.
    let three = sample("3", "1");
    let first: Vec<&Value> = eight.iter().filter(|l| l["sample"].as_u64().unwrap() < 3).collect();
    assert_eq!(three.iter().collect::<Vec<_>>(), first);
}

#[test]
fn lines_come_in_order_with_exactly_the_promised_keys_and_numbers_that_round_trip() {
    let desk = Desk::new();
    let (model, file) = (golden("smollm2"), desk.file("p.jsonl", prompts()));
    let words = ["sample", "--model", &model, "--prompts", &file, "--n", "2", "--max-tokens", "5", "--json"];
    let text = desk.ok(&words);
    let mut places = Vec::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["prompt_index", "sample", "tokens", "logprobs", "text", "stop"]);
        assert_eq!((value["stop"].as_str(), value["text"].as_str()), (Some("length"), Some("")));
        // Shortest text that gives the same f32 back.
        let again: Vec<String> = f32s(&value["logprobs"]).iter().map(f32::to_string).collect();
        assert!(line.contains(&format!("\"logprobs\":[{}]", again.join(","))), "{line}");
        places.push((value["prompt_index"].as_u64().unwrap(), value["sample"].as_u64().unwrap()));
    }
    assert_eq!(places, (0..10).map(|i| (i / 2, i % 2)).collect::<Vec<_>>());
}

#[test]
fn text_has_no_end_token_and_ends_before_a_stop_string() {
    let desk = Desk::new();
    let model = speaking(&desk);
    let file = desk.file("p.jsonl", "{\"prompt\":\"ab\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n");
    let words = ["sample", "--model", &model, "--prompts", &file, "--n", "40", "--max-tokens", "60", "--json"];
    let letter = |id: u64| match id {
        0..=2 => String::new(),
        96 => " ".to_owned(),
        id => char::from(b'!' + (id - 3) as u8).to_string(),
    };
    let plain = lines(&desk.ok(&words));
    let said = |line: &Value| {
        line["tokens"].as_array().unwrap().iter().map(|t| letter(t.as_u64().unwrap())).collect::<String>()
    };
    let mut n_ended = 0;
    for line in &plain {
        let tokens = line["tokens"].as_array().unwrap();
        let ends = tokens.iter().filter(|t| **t == 2).count();
        let ended = line["stop"] == "eos";
        assert_eq!(ends, usize::from(ended), "{line}");
        assert_eq!(tokens.last().unwrap() == 2, ended);
        assert_eq!(line["text"], said(line), "{line}");
        n_ended += ends;
    }
    assert!(n_ended > 5, "{n_ended} samples ended");
    let stopped = lines(&desk.ok(&[&words[..], &["--stop", "A", "--stop", "b"]].concat()));
    let mut n_stopped = 0;
    for (line, plain) in stopped.iter().zip(&plain) {
        let all = said(plain);
        // The draws are the same, so the text is the beginning of the other one.
        let want = all.find(['A', 'b']).map_or(all.as_str(), |at| &all[..at]);
        assert_eq!(line["text"], want);
        assert_eq!(line["stop"] == "stop", want.len() < all.len());
        n_stopped += usize::from(want.len() < all.len());
    }
    assert!(n_stopped > 5, "{n_stopped} samples were stopped");
}

#[test]
fn a_prompt_on_the_command_line_is_a_users_message_or_raw() {
    let desk = Desk::new();
    let model = speaking(&desk);
    let greedy = ["--model", &*model, "--temperature", "0", "--max-tokens", "6"];
    let spoken = desk.ok(&[&["sample", "hi"], &greedy[..]].concat());
    let raw = desk.ok(&[&["sample", "hi", "--raw"], &greedy[..]].concat());
    let text_of = |line: &str| {
        let file = desk.file("p.jsonl", line);
        lines(&desk.ok(&[&["sample", "--prompts", &file, "--json"], &greedy[..]].concat()))[0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(spoken.trim_end_matches('\n'), text_of(r#"{"messages":[{"role":"user","content":"hi"}]}"#));
    assert_eq!(raw.trim_end_matches('\n'), text_of(r#"{"prompt":"hi"}"#));
    assert_ne!(spoken, raw);
    // The spelling of a control token in a text is text: seven characters, seven tokens.
    assert_ne!(text_of(r#"{"prompt":"<|end|>"}"#), text_of(r#"{"tokens":[2]}"#));
}
