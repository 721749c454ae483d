//! Comparison with Hugging Face's libraries and llama.cpp on real vocabularies and templates.
//!
//! The references come from `golden.py` beside this file. Real vocabularies are not part of the repository: tests on
//! them run where `SUREFOOT_TEST_MODELS` names a folder that `golden.py` was run on, and say so where they do not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the workspace allows these in tests; helpers outside `#[test]` are tests too"
)]

mod support;

use std::path::Path;

use episode::Message;
use serde_json::Value;
use support::{family, fixture, ids, models, read_gguf, texts};
use surefoot_text::{ChatOptions, ChatTemplate, Date, Special, TextError, Tokenizer};

struct Chat {
    messages: Vec<Message>,
    options: ChatOptions,
}

fn chats() -> Vec<Chat> {
    let chats = fixture("conversations.json");
    let chat = |chat: &Value| Chat {
        messages: serde_json::from_value(chat["messages"].clone()).unwrap(),
        options: ChatOptions {
            add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap(),
            tools: chat.get("tools").map(|v| serde_json::from_value(v.clone()).unwrap()).unwrap_or_default(),
            variables: chat.get("variables").map(|v| serde_json::from_value(v.clone()).unwrap()).unwrap_or_default(),
        },
    };
    chats.as_array().unwrap().iter().map(chat).collect()
}

/// Compares every text and conversation with the reference; gives how many were compared.
fn check_golden(name: &str, tokenizer: &Tokenizer, golden: &Value) -> usize {
    let mut n = 0;
    for (text, want) in texts().iter().zip(golden["texts"].as_array().unwrap()) {
        let got = tokenizer.encode(text, Special::Parse);
        assert_eq!(got, ids(&want["ids"]), "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&got, false), want["decoded"].as_str().unwrap(), "{name}: {text:?}");
        let literal = tokenizer.encode(text, Special::Literal);
        assert!(literal.iter().all(|id| !tokenizer.control().contains(id)), "{name}: {text:?}");
        n += 1;
    }
    for (chat, want) in chats().iter().zip(golden["chats"].as_array().unwrap()) {
        let template = tokenizer.chat().unwrap();
        match (template.render(&chat.messages, &chat.options), &want["text"]) {
            (Ok(text), Value::String(want)) => assert_eq!(&text, want, "{name}: {:?}", chat.messages),
            (Err(_), Value::Object(_)) => {
                n += 1;
                continue;
            }
            (got, want) => panic!("{name}: {:?}: got {got:?}, want {want}", chat.messages),
        }
        // Content that spells mark-up is where we differ on purpose.
        let spells = chat.messages.iter().any(|m| m.content.contains("<think>"));
        if !spells {
            let got = tokenizer.render_tokens_with(&chat.messages, &chat.options).unwrap();
            assert_eq!(got, ids(&want["ids"]), "{name}: {:?}", chat.messages);
        }
        n += 1;
    }
    n
}

#[test]
fn smollm2_template_renders_as_the_reference() {
    let golden = fixture("smollm2.json");
    let template = ChatTemplate::new(golden["template"].as_str().unwrap(), []).unwrap();
    for (chat, want) in chats().iter().zip(golden["chats"].as_array().unwrap()) {
        let got = template.render(&chat.messages, &chat.options).unwrap();
        assert_eq!(got, want["text"].as_str().unwrap());
    }
}

/// Templates of our own in the manner of many families, rendered by Hugging Face's code; tools in the OpenAI envelope (E9),
/// answers that follow each other (E6), reasoning cut and kept (E7).
#[test]
fn templates_of_many_families_render_as_the_reference() {
    let golden = fixture("families.json");
    let named = [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    for (name, wants) in golden.as_object().unwrap() {
        let template = ChatTemplate::new(&family(name), named.clone()).unwrap();
        assert_eq!(wants.as_array().unwrap().len(), chats().len());
        for (chat, want) in chats().iter().zip(wants.as_array().unwrap()) {
            match (template.render(&chat.messages, &chat.options), want) {
                (Ok(got), Value::String(want)) => assert_eq!(&got, want, "{name}: {:?}", chat.messages),
                (Err(TextError::TemplateRefused(got)), Value::Object(error)) => {
                    let want = error["error"].as_str().unwrap();
                    assert!(want.ends_with(&got), "{name}: {want}, got {got}");
                }
                (got, want) => panic!("{name}: {:?}: got {got:?}, want {want}", chat.messages),
            }
        }
    }
}

#[test]
fn smollm2_gguf_encodes_as_the_reference() {
    let Some(folder) = models("smollm2_gguf_encodes_as_the_reference") else { return };
    let tokenizer = Tokenizer::from_gguf(read_gguf(&folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"))).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49_152);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), [0, 2].as_slice()));
    assert_eq!(tokenizer.structural(), [1].into_iter().chain(3..17).collect::<Vec<_>>());
    assert!(tokenizer.before().is_empty());
    check_golden("smollm2", &tokenizer, &fixture("smollm2.json"));
    // Ids and text from an independent engine, llama.cpp.
    let oracle = [504, 3575, 282, 4649, 314, 7042, 30, 216, 33, 39, 1232, 216, 34, 37, 446];
    let text = tokenizer.decode(&oracle, false);
    assert_eq!(text, "The capital of France is Paris. 17 + 25 =");
    assert_eq!(tokenizer.encode(&text, Special::Literal), oracle);
}

#[test]
fn huggingface_folders_encode_as_the_reference() {
    let Some(folder) = models("huggingface_folders_encode_as_the_reference") else { return };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.join("golden.json").exists() && path.join("tokenizer.json").exists() {
            let golden = serde_json::from_str(&std::fs::read_to_string(path.join("golden.json")).unwrap()).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let tokenizer = Tokenizer::from_folder(&path).unwrap();
            names.push(format!("{name} ({})", check_golden(&name, &tokenizer, &golden)));
        }
    }
    println!("compared {}", names.join(", "));
}

#[test]
fn real_templates_render_as_the_reference() {
    let Some(folder) = models("real_templates_render_as_the_reference") else { return };
    let Ok(golden) = std::fs::read_to_string(folder.join("templates/golden.json")) else {
        println!("skipped: no templates");
        return;
    };
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let named = [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    let (mut same, mut lenient, mut wrong) = (0, 0, Vec::new());
    for (name, wants) in golden.as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join("templates").join(name)).unwrap();
        let template = match ChatTemplate::new(&source, named.clone()) {
            Ok(template) => template.with_date(Date::new((2024, 7, 6), (0, 0, 0)).unwrap()),
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (index, (chat, want)) in chats().iter().zip(wants.as_array().unwrap()).enumerate() {
            match (template.render(&chat.messages, &chat.options), want) {
                (Ok(got), Value::String(want)) if &got == want => same += 1,
                (Err(_), Value::Object(_)) => same += 1,
                // Python's own type errors, such as a loop over `None`, are not part of a template's contract.
                (Ok(_), Value::Object(error)) if error["error"].as_str().unwrap().starts_with("TypeError") => {
                    lenient += 1
                }
                // `"…"|safe + text` escapes HTML in Jinja, by accident of this template; no other does it.
                _ if name.starts_with("meetkai-functionary-medium-v3.1")
                    && !chats()[index].options.tools.is_empty() =>
                {
                    lenient += 1
                }
                (got, want) => wrong.push(format!("{name} {index}:\n  got  {got:?}\n  want {want}")),
            }
        }
    }
    println!("{same} renderings agree, {lenient} render where the reference fails");
    assert!(wrong.is_empty(), "{} do not agree:\n{}", wrong.len(), wrong.join("\n"));
}

/// The vocabularies and answers that llama.cpp tests itself with: texts between lines `__ggml_vocab_test__`, ids a line.
#[test]
fn gguf_vocabularies_encode_as_llama_cpp() {
    let Some(folder) = models("gguf_vocabularies_encode_as_llama_cpp") else { return };
    for name in ["llama-bpe", "qwen2", "gpt-2", "starcoder", "refact", "llama-spm", "phi-3"] {
        let path = folder.join(format!("vocab/ggml-vocab-{name}.gguf"));
        let Ok(input) = std::fs::read_to_string(path.with_extension("gguf.inp")) else {
            println!("skipped {name}");
            continue;
        };
        let output = std::fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let tokenizer = Tokenizer::from_gguf(read_gguf(&path)).unwrap();
        check_llama_cpp(name, &tokenizer, &input, &output, &path);
    }
}

fn check_llama_cpp(name: &str, tokenizer: &Tokenizer, input: &str, output: &str, path: &Path) {
    let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    let mut n = 0;
    for (text, want) in texts.iter().zip(output.lines()) {
        let want: Vec<u32> = want.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, Special::Literal), want, "{name}: {text:?}");
        n += 1;
    }
    assert!(n > 40, "{}: only {n} texts", path.display());
    println!("{name}: {n} texts agree");
}

#[test]
fn vocabularies_of_other_kinds_are_refused_by_name() {
    let Some(folder) = models("vocabularies_of_other_kinds_are_refused_by_name") else { return };
    for (name, got) in [("bert-bge", "bert"), ("deepseek-llm", "deepseek-llm")] {
        let path = folder.join(format!("vocab/ggml-vocab-{name}.gguf"));
        if path.exists() {
            let error = Tokenizer::from_gguf(read_gguf(&path)).unwrap_err();
            assert!(matches!(&error, TextError::Unsupported { got: g, .. } if g == got), "{error}");
        }
    }
}

/// Gemma 3's GGUF against the same vocabulary's `tokenizer.json`.
#[test]
fn gemma_from_gguf_encodes_as_from_its_folder() {
    let Some(folder) = models("gemma_from_gguf_encodes_as_from_its_folder") else { return };
    let path = folder.join("vocab/gemma-3-270m.part");
    if !path.exists() || !folder.join("gemma3/tokenizer.json").exists() {
        println!("skipped: no Gemma");
        return;
    }
    let from_gguf = Tokenizer::from_gguf(read_gguf(&path)).unwrap();
    let from_folder = Tokenizer::from_folder(&folder.join("gemma3")).unwrap();
    for text in texts() {
        for special in [Special::Parse, Special::Literal] {
            assert_eq!(from_gguf.encode(&text, special), from_folder.encode(&text, special), "{text:?} {special:?}");
        }
    }
    assert_eq!(from_gguf.before(), from_folder.before());
}
