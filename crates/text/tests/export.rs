//! A tokenizer written in the other kind of file is the same tokenizer.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "the workspace allows these in tests; helpers outside `#[test]` are tests too"
)]

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::{IM_END, LAST, TEMPLATE, models, pieces, texts, tiny_vocabulary};
use surefoot_text::{GgufVocabulary, Special, Tokenizer};

fn write(folder: &Path, vocabulary: &GgufVocabulary) {
    for (name, bytes) in vocabulary.folder_files().unwrap() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Writes a folder, changed, and gives what it is refused with.
fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_vocabulary(TEMPLATE));
    let path = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    GgufVocabulary::from_folder(folder.path(), 400).unwrap_err().to_string()
}

/// A SentencePiece vocabulary of letters and a few words, the first of them the most urgent.
fn words(add_space_prefix: bool) -> GgufVocabulary {
    let texts = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁h", "▁▁"];
    let words: Vec<_> = texts.into_iter().zip((0..).map(|i| -(i as f32))).collect();
    GgufVocabulary { add_space_prefix: Some(add_space_prefix), ..pieces(&words) }
}

#[test]
fn a_gguf_vocabulary_written_as_a_folder_is_the_same_tokenizer() {
    let around =
        GgufVocabulary { add_bos: Some(true), add_eos: Some(true), eot: Some(302), ..tiny_vocabulary(TEMPLATE) };
    for vocabulary in [tiny_vocabulary(TEMPLATE), around, words(true), words(false)] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &vocabulary);
        let want = Tokenizer::from_gguf(vocabulary).unwrap();
        let got = Tokenizer::from_folder(folder.path()).unwrap();
        assert_eq!(got.fingerprint(), want.fingerprint());
        assert_eq!((got.before(), got.after(), got.eos()), (want.before(), want.after(), want.eos()));
        for text in texts() {
            assert_eq!(got.encode(&text, Special::Parse), want.encode(&text, Special::Parse), "{text:?}");
        }
    }
}

#[test]
fn a_folder_written_as_gguf_fields_gives_them_back() {
    for (add_bos, add_eos) in [(false, false), (true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let vocabulary = GgufVocabulary {
            add_bos: Some(add_bos),
            add_eos: Some(add_eos),
            add_space_prefix: Some(false),
            ..tiny_vocabulary(TEMPLATE)
        };
        write(folder.path(), &vocabulary);
        assert_eq!(GgufVocabulary::from_folder(folder.path(), vocabulary.tokens.len()).unwrap(), vocabulary);
        let wider = GgufVocabulary::from_folder(folder.path(), vocabulary.tokens.len() + 2).unwrap();
        assert_eq!(wider.tokens[LAST as usize + 1..], ["[PAD306]", "[PAD307]"]);
        assert_eq!(wider.token_types[LAST as usize + 1..], [5, 5]);
        let fingerprint = |made: Result<Tokenizer, _>| made.unwrap().fingerprint().to_owned();
        assert_eq!(fingerprint(Tokenizer::from_gguf(wider)), fingerprint(Tokenizer::from_folder(folder.path())));
        let error = GgufVocabulary::from_folder(folder.path(), 300).unwrap_err().to_string();
        assert_eq!(error, "tokenizer is inconsistent: token id 305 is out of range, need below 300");
    }
}

#[test]
fn a_second_token_that_ends_a_turn_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_vocabulary(TEMPLATE));
    let path = folder.path().join("generation_config.json");
    std::fs::write(&path, json!({"eos_token_id": [IM_END, 302]}).to_string()).unwrap();
    let made = GgufVocabulary::from_folder(folder.path(), 306).unwrap();
    assert_eq!((made.eos, made.eot), (Some(IM_END), Some(302)));
    std::fs::write(&path, json!({"eos_token_id": [IM_END, 302, 303]}).to_string()).unwrap();
    let error = GgufVocabulary::from_folder(folder.path(), 306).unwrap_err().to_string();
    let want = "tokenizer has end-of-turn tokens `<|image_pad|>`, `<think>`, need at most 1 besides `eos` and those with a \
                well-known text";
    assert_eq!(error, want);
}

#[test]
fn what_gguf_cannot_say_is_refused_by_name() {
    let digits = json!({"type": "Digits", "individual_digits": false});
    let error = refusal(|json| json["pre_tokenizer"]["pretokenizers"][0] = digits);
    assert!(error.starts_with("tokenizer has word rule `Digits, Split, ByteLevel`, need one of"), "{error}");
    let error = refusal(|json| json["added_tokens"][0]["lstrip"] = json!(true));
    assert!(error.starts_with("tokenizer has added token `<|im_start|>`, need one that is matched"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &words(false));
    let error = GgufVocabulary::from_folder(folder.path(), 400).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer has vocabulary `SentencePiece pieces`, need byte-level merges"), "{error}");
}

/// The library's own spelling of a rule and the expression it stands for are one rule.
#[test]
fn a_word_rule_is_known_in_any_spelling() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_vocabulary(TEMPLATE));
    let path = folder.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["pre_tokenizer"]["pretokenizers"] = json!([
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    ]);
    std::fs::write(&path, json.to_string()).unwrap();
    assert_eq!(GgufVocabulary::from_folder(folder.path(), 306).unwrap().pre.as_deref(), Some("smollm"));
}

#[test]
fn real_folders_become_gguf_fields_that_encode_alike() {
    let Some(models) = models("real_folders_become_gguf_fields_that_encode_alike") else { return };
    for (name, pre) in [("qwen3", "qwen2"), ("llama3", "llama-bpe"), ("gpt4o", "gpt-4o")] {
        let folder = models.join(name);
        let want = Tokenizer::from_folder(&folder).unwrap();
        let made = GgufVocabulary::from_folder(&folder, want.vocab_size()).unwrap();
        assert_eq!(made.pre.as_deref(), Some(pre));
        let got = Tokenizer::from_gguf(made).unwrap();
        assert_eq!((got.eos(), got.before(), got.after()), (want.eos(), want.before(), want.after()), "{name}");
        for text in texts() {
            assert_eq!(got.encode(&text, Special::Parse), want.encode(&text, Special::Parse), "{name}: {text:?}");
            assert_eq!(got.encode(&text, Special::Literal), want.encode(&text, Special::Literal), "{name}: {text:?}");
        }
    }
    let error = GgufVocabulary::from_folder(&models.join("gemma3"), 262_208).unwrap_err().to_string();
    assert!(error.contains("SentencePiece pieces"), "{error}");
}
