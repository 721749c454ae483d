//! `surefoot study`: several ways of training compared by one protocol.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use eval::study::{Call, Report};
use run::study::{Grid, Plan, Study, StudyError};
use run::{Begin, RunError, RunFile, Session};
use serde_json::json;
use store::RunDir;

use super::train;
use crate::Done;
use crate::context::{Context, show};
use crate::error::{Code, Failure, Judged};
use crate::live::{Live, duration};
use crate::out::table;

/// Compare several ways of training fairly
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// On-policy against off-policy: every lag with every correction, at the same number of generated tokens
    ///
    /// Makes a run for each lag, correction and seed, each a run directory of its own, and a report with curves, how far
    /// off-policy each was, and a table that compares each with lag 0 / none by exact paired tests. All runs start from the
    /// same weights, see the same tasks in the same order with the same seeds, and end at the same number of generated
    /// tokens. Ctrl-C leaves a study that `--resume` finishes. docs/study-lag.md is the protocol.
    Lag(Box<LagArgs>),
}

#[derive(Debug, clap::Args)]
struct LagArgs {
    /// The run file that every run starts from
    #[arg(value_name = "RUN.toml", required_unless_present = "resume", conflicts_with = "resume")]
    file: Option<PathBuf>,
    /// How many versions rollouts run ahead; lag 0 without a correction is always run, to compare with
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1,4,16,64", conflicts_with = "resume")]
    lags: Vec<u64>,
    /// Corrections by their name (`tis` is `token_tis`), or algorithms that take their place: `oapl`, `dro`
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "none,tis,decoupled,oapl,m2po",
        conflicts_with = "resume"
    )]
    corrections: Vec<String>,
    /// Seeds of each cell, from the run file's on
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "resume")]
    seeds: u64,
    /// Generated tokens after which each run ends [default: what lag 0 / none needs for the run file's steps]
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    tokens: Option<u64>,
    /// Held-out accuracy whose tokens are counted, such as 0.5 [default: nine tenths of what lag 0 / none gains]
    #[arg(long, value_name = "SHARE", conflicts_with = "resume")]
    target: Option<f64>,
    /// The study's folder to make [default: a new one beside the runs]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Finish this study
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Change a setting of every run, such as `steps=40`
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "resume")]
    set: Vec<String>,
    /// Print which runs there would be, what they would cost, and whether they would start; write nothing
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    let Action::Lag(args) = args.action;
    if let Some(folder) = &args.resume {
        let study = Study::open(folder)?;
        return drive(&study, context);
    }
    let Some(path) = &args.file else { return Err(Failure::bad("needed a run file")) };
    let place = |e: RunError| Failure::from(e).at(format!("`{}`", show(path)));
    let mut file = RunFile::read(path).map_err(place)?;
    for change in &args.set {
        file.set(change).map_err(place)?;
    }
    let mut settings = file.resolve().map_err(place)?;
    let base = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let LagArgs { lags, corrections, seeds, tokens, target, .. } = *args;
    let grid = Grid { lags, corrections, n_seeds: seeds, tokens, target };
    // What makes no study is refused before the model is looked for.
    Plan::new(&settings, base, grid.clone())?;
    let model = train::settle_model(&mut settings, base, context)?;
    let plan = Plan::new(&settings, base, grid)?;
    if args.dry_run {
        args.out.as_deref().map_or(Ok(()), RunDir::check_vacant)?;
        return dry_run(&plan, &model, context);
    }
    let stem = path.file_stem().map_or("run".to_owned(), |s| s.to_string_lossy().into_owned());
    let folder = match args.out {
        Some(folder) => folder,
        None => train::new_folder(context, &format!("{stem}-lag-study"))?,
    };
    drive(&Study::create(&folder, plan)?, context)
}

/// Makes every run that is left, then the report.
fn drive(study: &Study, context: &Context) -> Done {
    let settings = study.plan().baseline()?;
    let model = context.models().resolve(&settings.model)?;
    let resume = format!("`surefoot study lag --resume {}`", show(study.folder()));
    for note in study.plan().notes()? {
        context.note(&note);
    }
    context.note(&format!("study in `{}`", show(study.folder())));
    while let Some(next) = study.next()? {
        let (cell, seed) = (&next.cell, next.seed);
        if context.json() {
            let lag = cell.lag;
            let line = json!({
                "run": next.number, "of": next.of, "lag": lag, "correction": cell.correction, "seed": seed,
                "tokens": next.budget,
            });
            context.out.json(&line)?;
        }
        context.note(&format!("run {} of at most {}: {cell}, seed {seed}", next.number, next.of));
        let mut live = Live::new(context, settings.steps);
        let result = study.run(&next, &model, context.cpu()?, &mut live, &context.stop);
        drop(live);
        result.map_err(|e| match e.is_interrupt() {
            true => Failure::interrupted().hint(format!("{resume} finishes it")),
            false => Failure::from(e).hint(format!("{resume} tries again")),
        })?;
    }
    let report = study.report()?;
    study.write("report.json", view::study_json(&report).as_bytes())?;
    let page = study.write("report.html", view::study_html(&report).as_bytes())?;
    if context.json() {
        return context.out.json(&json!({
            "study": show(study.folder()), "report": show(&page), "budget": report.setup.budget,
            "target": report.target, "verdicts": report.verdicts,
        }));
    }
    context.out.text(&view::visible(&text(&report, &page)))
}

/// The tables and what they mean.
fn text(report: &Report, page: &Path) -> String {
    let s = &report.setup;
    let percent = |v: f64| format!("{:.1} %", 100.0 * v);
    let number = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{v:.4}"));
    let points = |v: f64| format!("{:+.1}", 100.0 * v);
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let mut out = format!(
        "{} seeds, {} held-out tasks, {} tokens a run ({})\n\n",
        s.seeds.len(),
        s.n_tasks,
        s.budget,
        s.budget_from
    );
    let mut rows = vec![words(&[
        "lag",
        "correction",
        "accuracy",
        "95 % over seeds",
        "to target",
        "KL",
        "ESS",
        "clip",
        "mean lag",
    ])];
    for cell in &report.cells {
        let same = cell.same_as.is_some();
        rows.push(vec![
            cell.cell.lag.to_string(),
            cell.cell.correction.clone() + if same { " =" } else { "" },
            percent(cell.accuracy),
            cell.interval.map_or_else(|| "–".to_owned(), |i| format!("{} to {}", percent(i.low), percent(i.high))),
            view::to_target(report, cell),
            number(cell.kl_mismatch.mean),
            number(cell.ess.mean),
            number(cell.clip_share.mean),
            cell.lag_mean.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}")),
        ]);
    }
    out.push_str(&table(&rows));
    if let Some(target) = &report.target {
        out.push_str(&format!("target: {} held-out accuracy ({})\n", percent(target.accuracy), target.from));
    }
    let mut rows =
        vec![words(&["against lag 0 / none", "points", "95 % interval", "p, Holm", "p over seeds", "gained/lost"])];
    for v in report.verdicts.iter().filter(|v| v.call != Call::Same) {
        rows.push(vec![
            v.cell.to_string(),
            points(v.effect),
            format!("{} to {}", points(v.interval.low), points(v.interval.high)),
            format!("{:.3}", v.p_holm),
            format!("{:.3}", v.p_seeds),
            format!("{}/{}", v.gained, v.lost),
        ]);
    }
    out.push('\n');
    out.push_str(&table(&rows));
    out.push('\n');
    for v in &report.verdicts {
        out.push_str(&format!("{}: {}\n", v.cell, v.sentence));
    }
    out.push_str(&format!(
        "\nWith {} seed{} a test over the seeds alone cannot give less than p = {}.\nreport: {}\n",
        s.seeds.len(),
        if s.seeds.len() == 1 { "" } else { "s" },
        report.smallest_p_seeds,
        show(page)
    ));
    out
}

fn dry_run(plan: &Plan, model: &Path, context: &Context) -> Done {
    let scratch =
        tempfile::tempdir().map_err(|e| Failure::failed("cannot make a temporary folder").why(e.to_string()))?;
    let settings = plan.baseline()?;
    let folder = scratch.path().join("run");
    let begin = Begin { model, base: &plan.base, folder: &folder, from: None, teacher: None, cpu: context.cpu()? };
    let session = Session::start(settings.clone(), begin, &mut run::Quiet, &context.stop)?;
    let estimate = session.estimate();
    let cells = plan.cells();
    let n_runs = cells.len() * plan.seeds.len();
    let total_s = estimate.total_s * n_runs as f64;
    if context.json() {
        return context.out.json(&json!({
            "settings": settings, "cells": cells, "seeds": plan.seeds, "runs": n_runs, "tokens": plan.tokens,
            "notes": plan.notes()?, "estimate": estimate, "total_s": total_s, "starts": true,
        }));
    }
    context.out.text(&settings.to_toml()?)?;
    let mut text = format!("\n# would start. At most {n_runs} runs: seeds {:?} of each of\n", plan.seeds);
    for cell in &cells {
        text.push_str(&format!("#   {cell}\n"));
    }
    for note in plan.notes()? {
        text.push_str(&format!("# {note}\n"));
    }
    text.push_str(&format!(
        "# At most {} a run on this machine at lag 0, about {} altogether, about {:.1} GB of memory.\n",
        duration(estimate.total_s),
        duration(total_s),
        estimate.memory_mib / 1024.0
    ));
    context.out.text(&text)
}

impl Judged for StudyError {
    fn code(&self) -> Code {
        match self {
            StudyError::Plan(_) | StudyError::Folder { .. } => Code::BadInput,
            StudyError::Run { source, .. } => source.code(),
            StudyError::Store(inner) => inner.code(),
            StudyError::Io { source, .. } => match source.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => Code::BadInput,
                _ => Code::Failed,
            },
            StudyError::Compare(_) => Code::Failed,
        }
    }

    fn place(&self) -> Option<String> {
        match self {
            StudyError::Run { cell, seed, .. } => Some(format!("{cell}, seed {seed}")),
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StudyError::Plan(_) => Some("`surefoot study lag --help` explains".to_owned()),
            StudyError::Run { source, .. } => Judged::hint(source.as_ref()),
            StudyError::Store(inner) => Judged::hint(inner),
            StudyError::Folder { .. } => {
                Some("`surefoot study lag --out DIR` makes a study in a new folder".to_owned())
            }
            _ => None,
        }
    }
}
