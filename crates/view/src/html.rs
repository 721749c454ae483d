//! The page: one file, no network, nothing of the policy's that could run.
//!
//! Text is escaped where it is put in; the episodes travel as JSON that cannot end its element, and the script only ever
//! sets text. Should all that fail, the page's own policy lets no script run but the one whose hash it names.

use std::fmt::Write;

use eval::{Answer, EvalLine, Question, difference};
use serde::Serialize;
use serde_json::Value;

use crate::chart::{Dot, draw};
use crate::load::{Curve, RunView, StepView};
use crate::text::{date, escape, escape_json, percent, short};

pub(crate) const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The view as one HTML page that needs nothing else.
pub fn html(view: &RunView) -> String {
    let mut page = String::new();
    head(&mut page, view);
    page.push_str("<main>");
    results(&mut page, view);
    answers(&mut page, view);
    curves(&mut page, view);
    browser(&mut page, view);
    settings(&mut page, view);
    hashes(&mut page, view);
    page.push_str(
        "</main><footer>Made by Surefoot from the run directory alone. This page loads nothing from anywhere.</footer>",
    );
    put(
        &mut page,
        format_args!("<script type=\"application/json\" id=\"episode-data\">{}</script>", episode_data(view)),
    );
    put(&mut page, format_args!("<script>{SCRIPT}</script></body></html>\n"));
    page
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a string cannot fail");
}

fn head(page: &mut String, view: &RunView) {
    let run = escape(&view.run);
    let policy = format!(
        "default-src 'none'; script-src {}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
        source_hash(SCRIPT),
    );
    put(
        page,
        format_args!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>Run {run}</title><style>{STYLE}</style></head><body>\
             <header class=\"top\"><h1>Run {run}</h1><div class=\"facts\">"
        ),
    );
    let s = &view.summary;
    let started = if s.started > 0.0 { date(s.started) } else { String::new() };
    let last_step = s.last_step.to_string();
    let facts = [
        ("status", s.status.as_str()),
        ("algorithm", &s.algorithm),
        ("model", &s.model),
        ("steps", &last_step),
        ("started", &started),
    ];
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        put(page, format_args!("<span>{name} <b>{}</b></span>", escape(value)));
    }
    page.push_str(
        "</div><nav><a href=\"#results\">Results</a><a href=\"#answers\">Questions</a><a href=\"#curves\">Curves</a>\
         <a href=\"#episodes\">Episodes</a><a href=\"#settings\">Settings</a><a href=\"#hashes\">Hashes</a></nav></header>",
    );
}

/// The scores of one name, in order.
fn by_name(view: &RunView) -> Vec<(&str, Vec<&EvalLine>)> {
    let mut names: Vec<(&str, Vec<&EvalLine>)> = Vec::new();
    for line in &view.evals {
        match names.iter_mut().find(|(name, _)| *name == line.score.name) {
            Some((_, lines)) => lines.push(line),
            None => names.push((&line.score.name, vec![line])),
        }
    }
    names
}

fn results(page: &mut String, view: &RunView) {
    page.push_str(
        "<section id=\"results\"><h2>Accuracy, before → after</h2><p class=\"note\">Solved of all attempts, those the system \
         failed included, with 95 % intervals. Two intervals that do not touch are a clear difference.</p><div class=\"cards\">",
    );
    for (name, lines) in by_name(view) {
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { continue };
        put(page, format_args!("<div class=\"card\"><h3>{}</h3>", escape(name)));
        let accuracy = |l: &EvalLine| l.score.accuracy.map_or_else(|| "none".to_string(), percent);
        let range = |l: &EvalLine| format!("{} to {}", percent(l.score.low), percent(l.score.high));
        if first.step == last.step {
            put(
                page,
                format_args!(
                    "<div class=\"result\">{}</div><p>step {}: {}.</p>",
                    accuracy(last),
                    last.step,
                    range(last)
                ),
            );
        } else {
            let direction = if last.score.accuracy >= first.score.accuracy { "up" } else { "down" };
            put(
                page,
                format_args!(
                    "<div class=\"result\"><span class=\"from\">{}</span> → <span class=\"{direction}\">{}</span></div>\
                     <p>step {}: {}<br>step {}: {}</p>",
                    accuracy(first),
                    accuracy(last),
                    first.step,
                    range(first),
                    last.step,
                    range(last),
                ),
            );
            let one_each = |l: &EvalLine| l.score.n == l.score.n_tasks;
            let counts = |l: &EvalLine| (l.score.solved, l.score.n);
            if let Some((change, interval)) =
                difference(counts(first), counts(last)).filter(|_| one_each(first) && one_each(last))
            {
                let points = |v: f64| format!("{:+.1}", v * 100.0);
                put(
                    page,
                    format_args!(
                        "<p>Change {} points, 95 % interval {} to {}.</p>",
                        points(change),
                        points(interval.low),
                        points(interval.high)
                    ),
                );
            }
        }
        details(page, last);
        page.push_str("</div>");
    }
    if view.evals.is_empty() {
        page.push_str("<div class=\"card\"><p>This run was not evaluated.</p></div>");
    }
    page.push_str("</div></section>");
}

fn details(page: &mut String, line: &EvalLine) {
    let s = &line.score;
    let mut parts = vec![
        format!("{} of {} attempts at {} tasks solved", s.solved, s.n, s.n_tasks),
        format!("{} failed by the system", s.errors),
        format!("{} cut off", s.truncated),
    ];
    if s.cancelled > 0 {
        parts.push(format!("{} cancelled", s.cancelled));
    }
    if let Some(well_formed) = s.well_formed {
        parts.push(format!("{well_formed} well-formed ({})", percent(share(well_formed, s.n))));
    }
    if let Some(length) = s.mean_length {
        parts.push(format!("{} tokens an attempt", short(length)));
    }
    for pass in s.pass_at.iter().filter(|p| p.k > 1) {
        let value = pass.value.map_or_else(|| format!("not defined for {} tasks", pass.n_undefined), percent);
        parts.push(format!("pass@{} {value}", pass.k));
    }
    for (cause, n) in &s.failures {
        parts.push(format!("{n} × {cause}"));
    }
    put(page, format_args!("<p>{}.</p>", escape(&parts.join(" · "))));
}

fn share(part: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { part as f64 / n as f64 }
}

fn answers(page: &mut String, view: &RunView) {
    page.push_str(
        "<section id=\"answers\"><h2>The same questions, before and after</h2><p class=\"note\">Answered by the policy as it was before \
         training and as it is now.</p>",
    );
    let questions: &[Question] = view.answers.as_ref().map_or(&[], |a| &a.questions);
    if questions.is_empty() {
        page.push_str("<p>None were stored.</p></section>");
        return;
    }
    page.push_str("<div class=\"wide\"><table><thead><tr><th>Question</th><th>Gold</th><th>Before</th><th>After</th></tr></thead><tbody>");
    for question in questions {
        let asked: Vec<&str> = question.messages.iter().map(|m| m.content.as_str()).collect();
        put(
            page,
            format_args!(
                "<tr><td class=\"said\">{}</td><td class=\"said\">{}</td>{}{}</tr>",
                escape(&asked.join("\n")),
                escape(&question.gold),
                answer(question.before.as_ref()),
                answer(question.after.as_ref()),
            ),
        );
    }
    page.push_str("</tbody></table></div></section>");
}

fn answer(answer: Option<&Answer>) -> String {
    let Some(answer) = answer else { return "<td class=\"said\">not asked</td>".to_string() };
    let (class, mark) = match (answer.reward, answer.solved) {
        (None, _) => ("no", "not graded".to_string()),
        (Some(reward), true) => ("yes", format!("✓ reward {}", short(reward))),
        (Some(reward), false) => ("no", format!("✗ reward {}", short(reward))),
    };
    format!("<td class=\"said\"><span class=\"mark {class}\">{mark}</span>\n{}</td>", escape(&answer.reply))
}

fn curves(page: &mut String, view: &RunView) {
    page.push_str("<section id=\"curves\"><h2>Curves</h2><p class=\"note\">Every number the run reported, by step.</p><div class=\"cards\">");
    for (name, lines) in by_name(view) {
        let dots: Vec<Dot> = lines
            .iter()
            .filter_map(|l| {
                let range = Some((l.score.low, l.score.high));
                Some(Dot { step: l.step, value: l.score.accuracy?, range })
            })
            .collect();
        let now = dots.last().map_or_else(String::new, |d| percent(d.value));
        let explanation = "Should rise and stay; the band is the 95 % interval, and a move inside it means nothing.";
        card(page, &format!("Accuracy: {name}"), "share", &now, &dots, Some((0.0, 1.0)), explanation);
    }
    for curve in &view.curves {
        draw_curve(page, curve);
    }
    if view.curves.is_empty() && view.evals.is_empty() {
        page.push_str("<div class=\"card\"><p>No step has reported yet.</p></div>");
    }
    page.push_str("</div></section>");
}

fn draw_curve(page: &mut String, curve: &Curve) {
    let dot =
        |p: &crate::Point| Dot { step: p.step, value: p.value, range: p.spread.map(|s| (p.value - s, p.value + s)) };
    let dots: Vec<Dot> = curve.points.iter().map(dot).collect();
    let now = dots.last().map_or_else(String::new, |d| short(d.value));
    card(page, &curve.title, &curve.unit, &now, &dots, None, &curve.explanation);
}

fn card(
    page: &mut String,
    title: &str,
    unit: &str,
    now: &str,
    dots: &[Dot],
    bounds: Option<(f64, f64)>,
    explanation: &str,
) {
    let drawn = draw(&format!("{title} by step"), dots, bounds);
    let joined = if drawn.steps_a_point > 1 {
        format!(
            " Each point is the mean of {} steps; the band reaches from the smallest to the largest.",
            drawn.steps_a_point
        )
    } else {
        String::new()
    };
    put(
        page,
        format_args!(
            "<div class=\"card\"><div class=\"head\"><h3>{} <span class=\"unit\">{}</span></h3>\
             <span class=\"now\">{}</span></div>{}<p>{}{joined}</p></div>",
            escape(title),
            escape(unit),
            escape(now),
            drawn.svg,
            escape(explanation),
        ),
    );
}

fn browser(page: &mut String, view: &RunView) {
    let e = view.excerpt;
    let all = if view.episodes.len() == view.n_episode_steps {
        format!("all {} steps", view.n_episode_steps)
    } else {
        format!("the first {} and last {} of {} steps", e.first_steps, e.last_steps, view.n_episode_steps)
    };
    put(
        page,
        format_args!(
            "<section id=\"episodes\"><h2>Episodes</h2><p class=\"note\">This page holds {all}, at most {} tasks of each; the \
             run directory holds every one, in <span class=\"mono\">episodes/</span>. Grey tokens were given, the others \
             sampled and trained on.</p>\
             <div id=\"browser\"><noscript><p>The episode browser needs JavaScript.</p></noscript>\
             <div class=\"controls\"><label>Step <select id=\"step\"></select></label>\
             <label>Task <select id=\"task\"></select></label><label>Sample <select id=\"sample\"></select></label>\
             <button type=\"button\" id=\"previous\" aria-label=\"previous sample\">←</button>\
             <button type=\"button\" id=\"next\" aria-label=\"next sample\">→</button><span class=\"facts\" id=\"of\"></span></div>\
             <p id=\"asked\"></p><p id=\"ended\"></p>\
             <div class=\"controls\"><span class=\"facts\">Colour by</span><span class=\"controls\" id=\"colours\"></span></div>\
             <div id=\"tokens\" dir=\"ltr\"></div><div id=\"readout\" aria-live=\"polite\"></div></div></section>",
            e.groups
        ),
    );
}

fn settings(page: &mut String, view: &RunView) {
    page.push_str("<section id=\"settings\"><h2>Settings that ran</h2>");
    match &view.settings {
        Some(text) => put(page, format_args!("<pre>{}</pre>", escape(text))),
        None => page.push_str("<p>None were stored.</p>"),
    }
    page.push_str("</section>");
}

fn hashes(page: &mut String, view: &RunView) {
    page.push_str("<section id=\"hashes\"><h2>Hashes</h2><p class=\"note\">What went in, so that another can check it is the same.</p>");
    let mut rows = Vec::new();
    if let Some(manifest) = &view.manifest {
        flatten("", manifest, &mut rows);
    }
    if rows.is_empty() {
        page.push_str("<p>None were stored.</p></section>");
        return;
    }
    page.push_str("<div class=\"wide\"><table><tbody>");
    for (name, value) in rows {
        put(page, format_args!("<tr><td>{}</td><td class=\"hash\">{}</td></tr>", escape(&name), escape(&value)));
    }
    page.push_str("</tbody></table></div></section>");
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix} › {key}") };
                flatten(&name, inner, rows);
            }
        }
        Value::String(text) => rows.push((prefix.to_string(), text.clone())),
        other => rows.push((prefix.to_string(), other.to_string())),
    }
}

/// What the episode browser reads.
#[derive(Serialize)]
struct EpisodeData<'a> {
    steps: &'a [StepView],
    texts: &'a std::collections::BTreeMap<u32, String>,
}

fn episode_data(view: &RunView) -> String {
    let data = EpisodeData { steps: &view.episodes, texts: &view.token_texts };
    escape_json(&serde_json::to_string(&data).expect("a view has text keys and plain values, which always serialise"))
}

/// The hash of an inline script as a content security policy names it.
///
/// Source: Content Security Policy Level 3, `hash-source`; base64, RFC 4648.
fn source_hash(source: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let hex = store::hash_bytes(source.as_bytes());
    let bits: Vec<u8> = hex
        .chars()
        .filter_map(|c| c.to_digit(16))
        .flat_map(|d| (0..4).rev().map(move |i| (d >> i & 1) as u8))
        .collect();
    let mut out: String = bits
        .chunks(6)
        .map(|six| (0..6).fold(0, |v, i| v << 1 | six.get(i).copied().unwrap_or(0)))
        .map(|v| ALPHABET[usize::from(v)] as char)
        .collect();
    // 256 bits make 43 characters; one stands for what is missing to a multiple of four.
    out.push('=');
    format!("'sha256-{out}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of nothing, known from every list of hashes.
    #[test]
    fn a_source_hash_is_sha256_in_base64() {
        assert_eq!(source_hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }
}
