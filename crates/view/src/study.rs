//! A study's page: the table first, then what it rests on. One file, no network, no script.

use std::fmt::Write;

use eval::Interval;
use eval::study::{Call, Cell, CellReport, Ended, Report, Track, Verdict};

use crate::chart::{At, Line, class, draw_lines};
use crate::html::STYLE;
use crate::text::{escape, percent, short};

const STUDY_STYLE: &str = include_str!("study.css");

/// A study's report as one HTML page that needs nothing else.
pub fn study_html(report: &Report) -> String {
    let mut page = String::new();
    head(&mut page, report);
    page.push_str("<main>");
    verdicts(&mut page, report);
    curves(&mut page, report);
    cells(&mut page, report);
    tracks(&mut page, report);
    staleness(&mut page, report);
    runs(&mut page, report);
    equal(&mut page, report);
    put(
        &mut page,
        format_args!(
            "<section id=\"settings\"><h2>Settings of lag 0 / none</h2><pre>{}</pre></section>",
            escape(&report.setup.settings)
        ),
    );
    page.push_str(
        "</main><footer>Made by Surefoot from the study's run directories alone. This page loads nothing from \
         anywhere.</footer></body></html>\n",
    );
    page
}

/// The report as JSON, on one line, ending in a line end.
pub fn study_json(report: &Report) -> String {
    let mut text =
        serde_json::to_string(report).expect("a report has text keys and plain values, which always serialise");
    text.push('\n');
    text
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a string cannot fail");
}

fn head(page: &mut String, report: &Report) {
    let s = &report.setup;
    put(
        page,
        format_args!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             base-uri 'none'; form-action 'none'\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>On-policy against off-policy</title><style>{STYLE}{STUDY_STYLE}</style></head><body>\
             <header class=\"top\"><h1>On-policy against off-policy</h1><div class=\"facts\">"
        ),
    );
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    for (name, value) in [
        ("model", s.model.clone()),
        ("algorithm", s.algorithm.clone()),
        ("lags", list(&s.lags)),
        ("corrections", s.corrections.join(", ")),
        ("seeds", list(&s.seeds)),
        ("budget", format!("{} tokens a run", short(s.budget as f64))),
        ("held-out tasks", s.n_tasks.to_string()),
    ] {
        put(page, format_args!("<span>{name} <b>{}</b></span>", escape(&value)));
    }
    page.push_str(
        "</div><nav><a href=\"#verdicts\">Verdicts</a><a href=\"#curves\">Curves</a><a href=\"#cells\">Cells</a>\
         <a href=\"#tracks\">Off-policyness</a><a href=\"#staleness\">Staleness</a><a href=\"#runs\">Runs</a>\
         <a href=\"#equal\">What is equal</a><a href=\"#settings\">Settings</a></nav></header>",
    );
}

/// A number of points with its sign.
fn points(v: f64) -> String {
    format!("{:+.1}", 100.0 * v).replace('-', "−")
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "&lt; 0.001".to_owned() } else { format!("{p:.3}") }
}

fn interval(i: Option<&Interval>) -> String {
    i.map_or_else(|| "–".to_owned(), |i| format!("{} to {}", percent(i.low), percent(i.high)))
}

fn verdicts(page: &mut String, report: &Report) {
    let n_seeds = report.setup.seeds.len();
    put(
        page,
        format_args!(
            "<section id=\"verdicts\"><h2>Against lag 0 / none</h2><p class=\"note\">Each row is compared with on-policy training by \
             seed and by held-out task, after the same number of generated tokens. <b>p</b> is of an exact test over the \
             tasks of these trained policies, after Holm over all rows; the interval is over seeds and tasks. A \
             difference is called shown only where both agree. With {n_seeds} seed{} the smallest p that a test over the \
             seeds alone could give is {}, so no row rests on that test.</p>",
            if n_seeds == 1 { "" } else { "s" },
            report.smallest_p_seeds
        ),
    );
    for note in &report.setup.notes {
        put(page, format_args!("<p class=\"note\">{}</p>", escape(note)));
    }
    page.push_str(
        "<div class=\"wide\"><table><thead><tr><th>Lag</th><th>Correction</th><th class=\"n\">Difference, points</th>\
         <th class=\"n\">95 % interval</th><th class=\"n\">Gained / lost</th><th class=\"n\">p, Holm</th>\
         <th class=\"n\">p over seeds</th><th>In words</th></tr></thead><tbody>",
    );
    for v in &report.verdicts {
        verdict(page, v);
    }
    page.push_str("</tbody></table></div></section>");
}

fn verdict(page: &mut String, v: &Verdict) {
    put(page, format_args!("<tr><td>{}</td><td>{}</td>", v.cell.lag, escape(&v.cell.correction)));
    if v.call == Call::Same {
        page.push_str("<td class=\"n\">–</td><td class=\"n\">–</td><td class=\"n\">–</td><td class=\"n\">–</td><td class=\"n\">–</td>");
    } else {
        let class = match v.call {
            Call::Better => "n better",
            Call::Worse => "n worse",
            _ => "n",
        };
        put(
            page,
            format_args!(
                "<td class=\"{class}\">{}</td><td class=\"n\">{} to {}</td><td class=\"n\">{} / {}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td>",
                points(v.effect),
                points(v.interval.low),
                points(v.interval.high),
                v.gained,
                v.lost,
                p_value(v.p_holm),
                p_value(v.p_seeds),
            ),
        );
    }
    put(page, format_args!("<td>{}</td></tr>", escape(&v.sentence)));
}

/// The lines of one lag: what every lag is compared with first, then each correction in its colour.
fn lines(report: &Report, lag: u64, at: &dyn Fn(&CellReport) -> Vec<At>) -> Vec<Line> {
    let base = report.cells.iter().filter(|c| c.cell.is_baseline());
    let own = report.cells.iter().filter(|c| c.cell.lag == lag && !c.cell.is_baseline() && c.same_as.is_none());
    let line =
        |cell: &CellReport| Line { name: cell.cell.to_string(), colour: colour(report, &cell.cell), points: at(cell) };
    base.chain(own).map(line).collect()
}

fn colour(report: &Report, cell: &Cell) -> Option<usize> {
    if cell.is_baseline() { None } else { report.setup.corrections.iter().position(|c| *c == cell.correction) }
}

/// What each colour stands for.
fn keys(page: &mut String, report: &Report) {
    let swatch = |colour| {
        let class = class(colour);
        format!("<svg viewBox=\"0 0 26 10\"><line class=\"line {class}\" x1=\"0\" x2=\"26\" y1=\"5\" y2=\"5\"/></svg>")
    };
    put(page, format_args!("<div class=\"keys\"><span>{}lag 0 / none</span>", swatch(None)));
    for (index, correction) in report.setup.corrections.iter().enumerate() {
        put(page, format_args!("<span>{}{}</span>", swatch(Some(index)), escape(correction)));
    }
    page.push_str("</div>");
}

/// A card for each lag.
fn cards(
    page: &mut String,
    report: &Report,
    title: &str,
    axis: &str,
    bounds: Option<(f64, f64)>,
    at: &dyn Fn(&CellReport) -> Vec<At>,
) {
    page.push_str("<div class=\"cards\">");
    for lag in &report.setup.lags {
        let lines = lines(report, *lag, at);
        let svg = draw_lines(&format!("{title} at lag {lag} by {axis}"), &lines, bounds);
        put(
            page,
            format_args!(
                "<div class=\"card\"><div class=\"head\"><h3>{title}, lag {lag} <span class=\"unit\">by {axis}</span></h3></div>\
                 {svg}</div>"
            ),
        );
    }
    page.push_str("</div>");
}

fn curves(page: &mut String, report: &Report) {
    page.push_str(
        "<section id=\"curves\"><h2>Learning curves</h2><p class=\"note\">Held-out accuracy by generated tokens, mean over seeds; \
         bands are 95 % intervals over seeds (Student's t), which are wide with few of them.</p>",
    );
    keys(page, report);
    cards(page, report, "Accuracy", "generated tokens", Some((0.0, 1.0)), &|cell| {
        let point = |p: &eval::study::CurvePoint| At {
            x: p.tokens,
            value: p.accuracy,
            range: p.interval.map(|i| (i.low, i.high)),
        };
        cell.curve.iter().map(point).collect()
    });
    page.push_str("</section>");
}

fn cells(page: &mut String, report: &Report) {
    page.push_str("<section id=\"cells\"><h2>Cells</h2>");
    match &report.target {
        Some(target) => put(
            page,
            format_args!(
                "<p class=\"note\">Target: {} held-out accuracy ({}). Tokens to the target are those of the first evaluation \
                 that reached it, of the middle seed; a seed that did not reach it counts as beyond all others.</p>",
                percent(target.accuracy),
                escape(&target.from)
            ),
        ),
        None => page.push_str(
            "<p class=\"note\">Lag 0 / none did not rise and no target was named, so there is none to reach.</p>",
        ),
    }
    page.push_str(
        "<div class=\"wide\"><table><thead><tr><th>Lag</th><th>Correction</th><th class=\"n\">Final accuracy</th>\
         <th class=\"n\">95 % over seeds</th><th class=\"n\">Tokens to target</th><th class=\"n\">Mismatch KL</th>\
         <th class=\"n\">ESS</th><th class=\"n\">Clip share</th><th class=\"n\">Mean lag</th></tr></thead><tbody>",
    );
    for cell in &report.cells {
        let number = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), short);
        put(
            page,
            format_args!(
                "<tr><td>{}</td><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                cell.cell.lag,
                escape(&cell.cell.correction),
                cell.same_as
                    .as_ref()
                    .map_or_else(String::new, |t| format!(" (the same run as {})", escape(&t.of.to_string()))),
                percent(cell.accuracy),
                interval(cell.interval.as_ref()),
                to_target(report, cell),
                number(cell.kl_mismatch.mean),
                number(cell.ess.mean),
                number(cell.clip_share.mean),
                number(cell.lag_mean),
            ),
        );
    }
    page.push_str("</tbody></table></div></section>");
}

/// Tokens to the target in words.
pub fn to_target(report: &Report, cell: &CellReport) -> String {
    if report.target.is_none() {
        return "–".to_owned();
    }
    let seeds = format!("{} of {} seeds", cell.n_reached, cell.runs.len());
    match cell.to_target {
        Some(tokens) => format!("{} ({seeds})", short(tokens as f64)),
        None => format!("not reached ({seeds})"),
    }
}

fn tracks(page: &mut String, report: &Report) {
    page.push_str(
        "<section id=\"tracks\"><h2>How far off-policy</h2><p class=\"note\">Mismatch KL: between the policy that sampled and the one \
         that learns, exactly 0 at lag 0. Effective sample size: (Σw)² / (n Σw²) of the correction's weights, 1 where it \
         corrects nothing. Clip share: tokens whose ratio was clipped. Means over seeds.</p>",
    );
    keys(page, report);
    let track =
        |track: &Track| track.points.iter().map(|(x, value)| At { x: *x, value: *value, range: None }).collect();
    cards(page, report, "Mismatch KL", "generated tokens", None, &|c| track(&c.kl_mismatch));
    if report.cells.iter().any(|c| c.ess.mean.is_some()) {
        cards(page, report, "ESS", "generated tokens", Some((0.0, 1.0)), &|c| track(&c.ess));
    }
    cards(page, report, "Clip share", "generated tokens", None, &|c| track(&c.clip_share));
    page.push_str("</section>");
}

fn staleness(page: &mut String, report: &Report) {
    page.push_str(
        "<section id=\"staleness\"><h2>Staleness</h2><p class=\"note\">Share of the trained tokens by how many published versions lay \
         between sampling and training. A lag is reached only after as many steps; what was really late is here.</p>",
    );
    keys(page, report);
    cards(page, report, "Share of tokens", "versions late", Some((0.0, 1.0)), &|cell| {
        cell.lags.iter().map(|l| At { x: l.lag as f64, value: l.share, range: None }).collect()
    });
    page.push_str("</section>");
}

fn runs(page: &mut String, report: &Report) {
    page.push_str(
        "<section id=\"runs\"><h2>Runs</h2><p class=\"note\">Each is an ordinary run directory, which <span class=\"mono\">surefoot report</span> shows.</p>\
         <div class=\"wide\"><table><thead><tr><th>Run</th><th class=\"n\">Seed</th><th class=\"n\">Steps</th><th class=\"n\">Tokens</th>\
         <th class=\"n\">Before</th><th class=\"n\">After</th><th class=\"n\">Tokens to target</th><th>Ended</th></tr></thead><tbody>",
    );
    for run in report.cells.iter().filter(|c| c.same_as.is_none()).flat_map(|c| &c.runs) {
        let ended = match &run.ended {
            Ended::Budget => "at the budget".to_owned(),
            Ended::GaveUp { why } => format!("gave up: {why}"),
        };
        let reached = match (&report.target, run.to_target) {
            (None, _) => "–".to_owned(),
            (Some(_), None) => "not reached".to_owned(),
            (Some(_), Some(tokens)) => tokens.to_string(),
        };
        put(
            page,
            format_args!(
                "<tr><td class=\"mono\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{reached}</td><td>{}</td></tr>",
                escape(&run.folder),
                run.seed,
                run.steps,
                run.tokens,
                run.before.map_or_else(|| "–".to_owned(), percent),
                percent(run.after),
                escape(&ended),
            ),
        );
    }
    page.push_str("</tbody></table></div></section>");
}

fn equal(page: &mut String, report: &Report) {
    let s = &report.setup;
    let most = report.cells.iter().flat_map(|c| &c.runs).map(|r| r.tokens).max().unwrap_or(s.budget);
    put(
        page,
        format_args!(
            "<section id=\"equal\"><h2>What is equal, and what is not</h2><p class=\"note\">Equal in every run: the weights it starts \
             from, the settings below but for lag and correction, the order of the training tasks and the random streams of \
             a seed, the {} held-out tasks with {} attempt{} at temperature {}, and the budget of {} tokens ({}): each run ends \
             at the first step that reaches it. Not equal: the tokens beyond the budget in that last step (at most {} in \
             all), the number of steps and episodes, since replies differ in length, and wall time. Rollouts that ran ahead \
             beyond the last step are not counted: no update saw them.</p></section>",
            s.n_tasks,
            s.attempts,
            if s.attempts == 1 { "" } else { "s" },
            short(s.temperature),
            s.budget,
            escape(&s.budget_from),
            most.saturating_sub(s.budget),
        ),
    );
}

#[cfg(test)]
#[path = "study_tests.rs"]
mod tests;
