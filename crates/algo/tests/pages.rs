//! The pages on algorithms are the heads of their own files, word for word, and what they share with others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use surefoot_algo::Settings;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/algorithms")
}

fn page(name: &str) -> String {
    let origin = "The head of this algorithm's file in `crates/algo/src`, and what it shares; a test keeps them equal.";
    format!("# `{name}`\n\n<!-- {origin} -->\n\n{}", Settings::docs(name).unwrap())
}

/// `UPDATE_DOCS=1` writes the pages anew instead of comparing them.
#[test]
fn every_algorithm_has_its_page_and_the_page_is_its_files_head() {
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    for name in Settings::NAMES {
        let path = folder().join(format!("{name}.md"));
        if update {
            std::fs::write(&path, page(name)).unwrap();
        }
        let got = std::fs::read_to_string(&path).unwrap_or_default();
        let hint = "`UPDATE_DOCS=1 cargo test -p surefoot-algo --test pages` writes it anew";
        assert!(got == page(name), "`docs/algorithms/{name}.md` is not the head of its file: {hint}");
    }
}

#[test]
fn no_page_is_left_of_an_algorithm_that_is_gone() {
    let names: BTreeSet<String> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let known: BTreeSet<String> = Settings::NAMES.iter().map(|name| format!("{name}.md")).collect();
    assert_eq!(names, known);
}
