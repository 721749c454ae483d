//! A study's page, with names that attack whoever looks.

use episode::{Message, Role, Task};
use eval::study::{Cell, CellRun, Ended, Report, ScoreAt, Setup, StepNumbers, TaskResult, Twin};
use serde_json::{Value, json};

use super::*;

const ATTACK: &str = "</style><script>alert(1)</script>\"'\u{202e}";

fn cell_run(cell: &Cell, seed: u64, n_solved: u64, ended: Ended) -> CellRun {
    let task = |n: u64| Task::new("t", vec![Message::new(Role::User, n.to_string())], json!(n), Value::Null).id;
    let held_out =
        (0..30).map(|n| TaskResult { task: task(n), attempts: 1, solved: u64::from(n < n_solved) }).collect();
    let steps = (1..=4)
        .map(|step| StepNumbers {
            step,
            tokens: 250 * step,
            kl_mismatch: Some(cell.lag as f64 * 0.001),
            ess: Some(0.75),
            clip_share: Some(0.125),
            lags: vec![(cell.lag as i64, 250)],
        })
        .collect();
    let score = |step, accuracy| ScoreAt { step, tokens: 250 * step, accuracy };
    let folder = format!("cells/{ATTACK}");
    let scores = vec![score(0, 0.0), score(2, 0.2), score(4, n_solved as f64 / 30.0)];
    CellRun { cell: cell.clone(), seed, folder, steps, scores, held_out, ended }
}

fn report() -> Report {
    let late = |correction: &str| Cell { lag: 4, correction: correction.to_owned() };
    let mut runs = Vec::new();
    for seed in [1, 2] {
        runs.push(cell_run(&Cell::baseline(), seed, 20, Ended::Budget));
        runs.push(cell_run(&late("none"), seed, 2, Ended::GaveUp { why: ATTACK.to_owned() }));
        runs.push(cell_run(&late(ATTACK), seed, 20, Ended::Budget));
    }
    let setup = Setup {
        model: ATTACK.to_owned(),
        algorithm: ATTACK.to_owned(),
        budget: 990,
        budget_from: ATTACK.to_owned(),
        seeds: vec![1, 2],
        lags: vec![0, 4],
        corrections: vec!["none".to_owned(), ATTACK.to_owned()],
        n_tasks: 30,
        attempts: 1,
        temperature: 0.0,
        target: None,
        notes: vec![ATTACK.to_owned()],
        settings: ATTACK.to_owned(),
    };
    let twin = Twin { cell: Cell { lag: 0, correction: ATTACK.to_owned() }, of: Cell::baseline(), seed: 1 };
    eval::study::report(setup, &runs, &[twin]).unwrap()
}

#[test]
fn nothing_on_the_page_of_a_study_runs_or_is_loaded() {
    let page = study_html(&report());
    for needle in ["<script", "http://", "https://", "src=", "url(", "@import", "alert(1)</", "\u{202e}"] {
        assert!(!page.contains(needle), "{needle}");
    }
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'"));
    assert_eq!(page.matches("</style>").count(), 1);
    assert!(page.matches("&lt;script&gt;alert(1)").count() >= 8);
    assert!(page.ends_with("</body></html>\n"));
}

#[test]
fn the_page_says_what_the_report_says() {
    let report = report();
    let page = study_html(&report);
    let worse = report.verdicts.iter().find(|v| v.cell.correction == "none").unwrap();
    assert!(page.contains(&format!("<td>{}</td>", crate::text::escape(&worse.sentence))), "{}", worse.sentence);
    assert!(page.contains("<td class=\"n worse\">−60.0</td>"));
    assert!(page.contains("the smallest p that a test over the seeds alone could give is 0.5"));
    // Nine tenths of the way from 0 to two thirds.
    assert!(page.contains("Target: 60.0 % held-out accuracy (nine tenths of what lag 0 / none gained)"));
    assert!(page.contains("<td class=\"n\">1000 (2 of 2 seeds)</td>") && page.contains("not reached (0 of 2 seeds)"));
    assert!(page.contains("<td>gave up: &lt;/style&gt;"));
    assert!(page.contains("(the same run as lag 0 / none)"));
    assert!(page.contains("at most 10 in all"));
    // Curves, mismatch, sample size, clip share and staleness, each for both lags, and two rows of keys of three each.
    assert_eq!(page.matches("role=\"img\"").count(), 5 * 2);
    assert!(page.contains("lag 4 / none, 500: 0.2"));
}

#[test]
fn json_of_a_study_is_its_report_on_one_line() {
    let report = report();
    let text = study_json(&report);
    assert_eq!(text.lines().count(), 1);
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}
