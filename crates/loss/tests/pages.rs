//! The page on corrections and selections is the heads of their own files, word for word, and their settings.

#![allow(clippy::panic, reason = "tests stop where something is wrong")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use surefoot_loss::{Correction, Select};

const HEAD: &str = "# Corrections and selections\n\n<!-- The heads of the files in `crates/loss/src/correction` and `select`; \
a test keeps them equal. -->\n\nOf one run one correction says what a token weighs that an older policy sampled, or another \
engine (`correction.rule`), and one selection which tokens of a step learn (`select.rule`). The pages in `algorithms/` say \
which algorithms take them. π is the policy now, π_old the policy when the step began, μ the one that sampled; weights are \
held fixed in every derivative.\n";

fn source(folder: &str, name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src").join(folder).join(format!("{name}.rs"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The `//!` lines at the head of a file.
fn head(source: &str) -> String {
    let lines = source.lines().take_while(|line| line.starts_with("//!"));
    lines.map(|line| format!("{}\n", line.trim_start_matches("//!").trim_start())).collect()
}

/// What a field's docs say, in one line.
fn meaning(source: &str, field: &str) -> String {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|l| l.starts_with(&format!("pub {field}:"))).expect("a setting is a public field");
    let before = lines[..at].iter().rev().take_while(|l| l.starts_with("///") || l.starts_with("#["));
    let mut docs: Vec<&str> = before.filter_map(|l| l.strip_prefix("///")).map(str::trim).collect();
    docs.reverse();
    docs.join(" ").trim_end_matches('.').to_owned()
}

fn section(out: &mut String, table: &str, title: &str, resolved: &dyn Fn(&str) -> Value, names: &[&str]) {
    out.push_str(&format!("\n## {title}\n"));
    for name in names {
        let source = source(table, name);
        out.push_str(&format!("\n### `{table}.rule = \"{name}\"`\n\n{}", head(&source)));
        let settings = resolved(name);
        let own: Vec<_> = settings.as_object().into_iter().flatten().filter(|(key, _)| *key != "rule").collect();
        if own.is_empty() {
            out.push_str("\nIt has no further setting.\n");
            continue;
        }
        out.push_str("\n| setting | default | meaning |\n|---|---|---|\n");
        for (key, default) in own {
            out.push_str(&format!("| `{table}.{key}` | {default} | {} |\n", meaning(&source, key)));
        }
    }
}

fn page() -> String {
    let mut out = HEAD.to_owned();
    let correction = |name: &str| -> Value {
        let rule: Correction = serde_json::from_value(json!({ "rule": name })).expect("every setting has a default");
        serde_json::to_value(rule).expect("settings serialise")
    };
    let select = |name: &str| -> Value {
        let rule: Select = serde_json::from_value(json!({ "rule": name })).expect("every setting has a default");
        serde_json::to_value(rule).expect("settings serialise")
    };
    section(&mut out, "correction", "Corrections", &correction, Correction::NAMES);
    section(&mut out, "select", "Selections", &select, Select::NAMES);
    out
}

/// `UPDATE_DOCS=1` writes the page anew instead of comparing it.
#[test]
fn the_page_holds_every_rule_with_its_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/corrections.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("the docs are there");
    }
    let got = std::fs::read_to_string(&path).unwrap_or_default();
    let hint = "`UPDATE_DOCS=1 cargo test -p surefoot-loss --test pages` writes it anew";
    assert!(got == page(), "`docs/corrections.md` is not what the files say: {hint}");
}
