//! The table in `docs/metrics.md` is the one that reports show.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop where something is wrong")]

use std::path::PathBuf;

use surefoot_view::METRICS;

const BEGIN: &str = "<!-- table: METRICS of crates/view/src/metrics.rs; a test keeps the two equal -->\n";
const END: &str = "<!-- end of table -->\n";

fn table() -> String {
    let mut out = String::from("| key | title | unit | what to watch |\n|---|---|---|---|\n");
    for metric in METRICS {
        let unit = if metric.unit.is_empty() { "–" } else { metric.unit };
        let row = format!("| `{}` | {} | {unit} | {} |\n", metric.key, cell(metric.title), cell(metric.explanation));
        out.push_str(&row);
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// `UPDATE_DOCS=1` writes the table anew instead of comparing it.
#[test]
fn the_page_on_metrics_holds_the_table_of_reports() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks where the table begins");
    let (got, after) = rest.split_once(END).expect("the page marks where the table ends");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
    }
    let hint = "`UPDATE_DOCS=1 cargo test -p surefoot-view --test metrics_page` writes it anew";
    assert!(got == table(), "the table in `docs/metrics.md` is not that of `METRICS`: {hint}");
}
