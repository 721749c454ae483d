//! What the run directories of a study say.

use std::path::Path;

use eval::EvalLine;
use eval::study::{Cell, CellRun, Report, ScoreAt, Setup, StepNumbers};
use serde_json::{Map, Value};
use store::{RunDir, StoreError};

use super::cell::{Outcome, outcome};
use super::{Study, StudyError, cell_path};
use crate::record::HELD_OUT;

const METRICS: &str = "metrics.jsonl";
/// The files of a checkpoint that are what was learned, and not when it was noted down.
const LEARNED: &[&str] = &["weights.safetensors", "moment1.safetensors", "moment2.safetensors"];

/// Tokens sampled in all steps that are written.
pub(super) fn tokens(run: &RunDir) -> Result<u64, StoreError> {
    Ok(steps(run)?.last().map_or(0, |s| s.tokens))
}

fn steps(run: &RunDir) -> Result<Vec<StepNumbers>, StoreError> {
    let lines: Vec<Map<String, Value>> = run.read_lines(METRICS)?;
    let mut tokens = 0;
    let one = |line: Map<String, Value>| {
        let number = |key: &str| line.get(key).and_then(Value::as_f64);
        tokens += number("n_tokens").unwrap_or_default() as u64;
        StepNumbers {
            step: line.get("step").and_then(Value::as_u64).unwrap_or_default(),
            tokens,
            kl_mismatch: number("kl_mismatch"),
            ess: number("ess"),
            clip_share: number("clip_share"),
            lags: lags(&line),
        }
    };
    Ok(lines.into_iter().map(one).collect())
}

/// How many tokens of a step were trained on how many versions late. A run that cannot be late reports no distribution, only
/// its largest lag, which is then that of every token.
fn lags(line: &Map<String, Value>) -> Vec<(i64, u64)> {
    let number = |key: &str| line.get(key).and_then(Value::as_f64);
    match line.get("lags").and_then(Value::as_object) {
        Some(lags) => lags.iter().filter_map(|(lag, n)| Some((lag.parse().ok()?, n.as_u64()?))).collect(),
        None => number("lag_max").zip(number("n_tokens")).map(|(lag, n)| (lag as i64, n as u64)).into_iter().collect(),
    }
}

/// Whether two runs that are done learned the same to the bit: as many steps and tokens, the same final weights and
/// moments. False where one is not done.
pub(super) fn same_bits(one: &Path, other: &Path) -> Result<bool, StoreError> {
    let (Some(a), Some(b)) = (learned(one)?, learned(other)?) else { return Ok(false) };
    Ok(a == b)
}

/// Steps, tokens, and the hashes of what was learned.
type Learned = (u64, u64, Vec<(String, String)>);

fn learned(folder: &Path) -> Result<Option<Learned>, StoreError> {
    let Some(outcome) = outcome(folder)? else { return Ok(None) };
    let run = RunDir::read(folder)?;
    let Some(checkpoint) = run.checkpoints().latest()? else { return Ok(None) };
    if checkpoint.step != outcome.step {
        return Ok(None);
    }
    let files = checkpoint.files.iter().filter(|f| LEARNED.contains(&f.path.as_str()));
    Ok(Some((outcome.step, tokens(&run)?, files.map(|f| (f.path.clone(), f.sha256.clone())).collect())))
}

/// What a run that is done left behind.
fn cell_run(study: &Study, cell: &Cell, seed: u64) -> Result<Option<CellRun>, StoreError> {
    let folder = study.cell_folder(cell, seed);
    let Some(Outcome { step, ended, score, held_out }) = outcome(&folder)? else { return Ok(None) };
    let run = RunDir::read(&folder)?;
    let steps = steps(&run)?;
    let tokens_at = |step: u64| steps.iter().rfind(|s| s.step <= step).map_or(0, |s| s.tokens);
    let at =
        |step: u64, accuracy: Option<f64>| accuracy.map(|accuracy| ScoreAt { step, tokens: tokens_at(step), accuracy });
    let lines: Vec<EvalLine> = run.read_lines("evals.jsonl")?;
    let way = lines.iter().filter(|l| l.score.name == HELD_OUT && l.step < step);
    let mut scores: Vec<ScoreAt> = way.filter_map(|l| at(l.step, l.score.accuracy)).collect();
    scores.extend(at(step, score.accuracy));
    let folder = cell_path(cell, seed).to_string_lossy().into_owned();
    Ok(Some(CellRun { cell: cell.clone(), seed, folder, steps, scores, held_out, ended }))
}

pub(super) fn report(study: &Study) -> Result<Report, StudyError> {
    let plan = study.plan();
    let mut runs = Vec::new();
    for cell in plan.cells() {
        for seed in &plan.seeds {
            runs.extend(cell_run(study, &cell, *seed)?);
        }
    }
    let seed = plan.seeds.first().copied().unwrap_or_default();
    let settings = plan.baseline()?;
    let budget_from = match plan.tokens {
        Some(_) => "as named".to_owned(),
        None => {
            let n_steps = runs.first().and_then(|r| r.steps.last()).map_or(0, |s| s.step);
            format!("what lag 0 / none with seed {seed} sampled in {n_steps} steps")
        }
    };
    let held_out = runs.first().map_or(&[][..], |r| &r.held_out);
    let setup = Setup {
        model: settings.model.clone(),
        algorithm: settings.algorithm.name().to_owned(),
        budget: study.budget()?,
        budget_from,
        seeds: plan.seeds.clone(),
        lags: plan.lags.clone(),
        corrections: plan.corrections.clone(),
        n_tasks: held_out.len() as u64,
        attempts: held_out.first().map_or(0, |t| t.attempts),
        temperature: f64::from(settings.eval.temperature),
        target: plan.target,
        notes: plan.notes()?,
        settings: plan.settings.clone(),
    };
    Ok(eval::study::report(setup, &runs, &study.twins()?)?)
}
