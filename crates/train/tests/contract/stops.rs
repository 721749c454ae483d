//! What ends a turn: stop tokens, and stop strings wherever tokens cut them.

use std::path::Path;
use std::sync::Arc;

use episode::StopReason;
use policy::{Job, Sampler, Sampling};
use serde_json::{Map, Value, json};
use surefoot_train::Engine;
use text::Tokenizer;

use crate::support::*;

/// The letters `a` to `p`, then pairs of them: 48 tokens, as many as the model has.
pub(crate) fn tokenizer(folder: &Path) -> Tokenizer {
    let letters: Vec<String> = ('a'..='p').map(String::from).collect();
    let pairs: Vec<(String, String)> = (0..32).map(|i| (letters[i / 8].clone(), letters[i % 8].clone())).collect();
    let all = letters.into_iter().chain(pairs.iter().map(|(a, b)| format!("{a}{b}")));
    let vocabulary: Map<String, Value> = all.enumerate().map(|(id, text)| (text, id.into())).collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": pairs.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>(),
        },
    });
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    Tokenizer::from_folder(folder).unwrap()
}

pub(crate) fn engine(tokenizer: Arc<Tokenizer>) -> Engine {
    let tiny = Tiny::load("llama_linear");
    let machine = Machine::plain();
    let weights = (tiny.config.clone(), tiny.params.clone());
    Engine::new(machine.cpu(), weights, Some(tokenizer), tiny.trainable(false), machine.settings.clone(), 1).unwrap()
}

#[test]
fn a_stop_string_ends_a_turn_wherever_tokens_cut_it() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Arc::new(tokenizer(folder.path()));
    let mut engine = engine(tokenizer.clone());
    let free = Sampling::plain(1.0, 40, Vec::new());
    let jobs: Vec<Job> = (0..60).map(|i| job(i, &tokens(1 + i % 3, 6), &free)).collect();
    let whole = sample(&mut engine, &jobs);
    let (mut n_across, mut n_within, mut n_never) = (0, 0, 0);
    for stops in [&["ab"][..], &["cab", "b"], &["ac", "acb", "fa"], &["dbfe"]] {
        let sampling = Sampling { stop_strings: stops.iter().map(|s| (*s).to_owned()).collect(), ..free.clone() };
        let jobs: Vec<Job> = jobs.iter().map(|j| Job { sampling: Arc::new(sampling.clone()), ..j.clone() }).collect();
        for (got, whole) in sample(&mut engine, &jobs).iter().zip(&whole) {
            // The first token with which the text holds one of the strings, by decoding from the start each time.
            let holds = |n: &usize| stops.iter().any(|s| tokenizer.decode(&whole.tokens[..*n], true).contains(s));
            let end = (1..=whole.tokens.len()).find(holds);
            let n = end.unwrap_or(whole.tokens.len());
            let want = Said {
                tokens: whole.tokens[..n].to_vec(),
                logp: whole.logp[..n].to_vec(),
                logp_t1: whole.logp_t1[..n].to_vec(),
                stop: if end.is_some() { StopReason::Stop } else { StopReason::Length },
            };
            assert_eq!(got, &want, "{stops:?}");
            let last = tokenizer.decode(&whole.tokens[n - 1..n], true);
            match end {
                None => n_never += 1,
                Some(_) if stops.iter().any(|s| last.contains(s)) => n_within += 1,
                Some(_) => n_across += 1,
            }
        }
    }
    assert!(n_across > 20 && n_within > 20 && n_never > 20, "{n_across} across, {n_within} within, {n_never} never");
}

#[test]
fn an_empty_stop_string_fails_its_job_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(Arc::new(tokenizer(folder.path())));
    let plain = Sampling::plain(1.0, 4, Vec::new());
    let empty = Sampling { stop_strings: vec!["a".to_owned(), String::new()], ..plain.clone() };
    let prompt = tokens(1, 5);
    let mut desk = Desk::of(&[job(0, &prompt, &plain), job(1, &prompt, &empty), job(2, &prompt, &plain)]);
    engine.sample(&mut desk).unwrap();
    assert_eq!(desk.done.keys().copied().collect::<Vec<_>>(), [0, 2]);
    assert!(desk.failed[&1].contains("stop string"), "{}", desk.failed[&1]);
}

#[test]
fn d2_the_first_stop_token_ends_a_turn_and_is_part_of_it() {
    everywhere(|tiny, adapted, what| {
        let mut engine = tiny.engine(adapted, &Machine::plain());
        let free = Sampling::plain(1.0, 30, Vec::new());
        let jobs: Vec<Job> = (0..12).map(|i| job(i, &tokens(1 + i % 3, 6), &free)).collect();
        let whole = sample(&mut engine, &jobs);
        let stops = [0, 2, 11, 12, 23, 24, 30, 40];
        let sampling = Sampling { stop_tokens: stops.to_vec(), ..free };
        let jobs: Vec<Job> = jobs.iter().map(|j| Job { sampling: Arc::new(sampling.clone()), ..j.clone() }).collect();
        let mut n_stopped = 0;
        for (got, whole) in sample(&mut engine, &jobs).iter().zip(&whole) {
            let end = whole.tokens.iter().position(|t| stops.contains(t));
            let n = end.map_or(whole.tokens.len(), |i| i + 1);
            assert_eq!((&got.tokens[..], &got.logp[..]), (&whole.tokens[..n], &whole.logp[..n]), "{what}");
            assert_eq!(got.stop, if end.is_some() { StopReason::Eos } else { StopReason::Length }, "{what}");
            n_stopped += usize::from(end.is_some());
        }
        assert!(n_stopped > 2, "{what}: {n_stopped}");
    });
}
