//! `surefoot train`: a run from its file, or the rest of one that stopped.

use std::path::{Path, PathBuf};
use std::time::Instant;

use algo::TeacherRule;
use eval::{Answers, EvalLine, Score};
use remote::RemoteError;
use run::record::HELD_OUT;
use run::{Begin, Ended, RunError, RunFile, Session, Settings};
use serde_json::json;
use store::RunDir;

use crate::Done;
use crate::context::{Context, show};
use crate::error::Failure;
use crate::live::{Live, duration, sentence};
use crate::open;

/// Train a policy as a run file says, or finish a run that was stopped
///
/// A run directory is made with everything in it: the settings as resolved, metrics, every episode, checkpoints, and a
/// report. Ctrl-C leaves a run that `--resume` finishes with the same bits as if nothing had happened.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run file
    #[arg(value_name = "RUN.toml", required_unless_present = "resume", conflicts_with = "resume")]
    file: Option<PathBuf>,
    /// The run directory to make [default: a new one beside the other runs]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Finish this run
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Start from the weights of another run's checkpoint, RUN@STEP
    #[arg(long, value_name = "RUN@STEP", conflicts_with = "resume")]
    from: Option<String>,
    /// Change a setting, such as `optimiser.learning_rate=1e-4` or `env.0.seed=3`
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "resume")]
    set: Vec<String>,
    /// Print the settings as resolved, what the run would cost, and whether it would start; write nothing
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    if let Some(folder) = &args.resume {
        return resume(folder, context);
    }
    let Some(path) = &args.file else { return Err(Failure::bad("needed a run file")) };
    let place = |e: RunError| Failure::from(e).at(format!("`{}`", show(path)));
    let mut file = RunFile::read(path).map_err(place)?;
    for change in &args.set {
        file.set(change).map_err(place)?;
    }
    let settings = file.resolve().map_err(place)?;
    let base = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    if args.dry_run {
        args.out.as_deref().map_or(Ok(()), RunDir::check_vacant)?;
        return dry_run(settings, &base, args.from.as_deref(), context);
    }
    let stem = path.file_stem().map_or("run".to_owned(), |s| s.to_string_lossy().into_owned());
    let folder = match args.out {
        Some(folder) => folder,
        None => new_folder(context, &stem)?,
    };
    let (mut session, _) = start(settings, &base, &folder, args.from.as_deref(), context)?;
    let conclusion = train(&mut session, context)?;
    print(&conclusion, context)
}

/// A folder of that name, numbered, that is not there yet.
pub(crate) fn new_folder(context: &Context, stem: &str) -> Result<PathBuf, Failure> {
    let runs = store::runs_folder(&context.root);
    let folder = (1..100_000).map(|n| runs.join(format!("{stem}-{n}"))).find(|f| !f.exists());
    folder.ok_or_else(|| Failure::failed(format!("`{}` holds too many runs called `{stem}`", show(&runs))))
}

/// Opens and audits everything, then makes the run directory; gives the session and how long the run should take.
pub(crate) fn start(
    mut settings: Settings,
    base: &Path,
    folder: &Path,
    from: Option<&str>,
    context: &Context,
) -> Result<(Session, run::Estimate), Failure> {
    let model = settle_model(&mut settings, base, context)?;
    let from = from.map(|name| checkpoint(name, &settings, context)).transpose()?;
    let teacher = teacher(&settings, base, context)?;
    let mut notes = Live::new(context, settings.steps);
    let (from, teacher) = (from.as_deref(), teacher.as_deref());
    let begin = Begin { model: &model, base, folder, from, teacher, cpu: context.cpu()? };
    let session = Session::start(settings, begin, &mut notes, &context.stop)?;
    drop(notes);
    let estimate = session.estimate();
    context.note(&format!(
        "run `{}` in `{}`: {} steps, at most {} on this machine, about {:.1} GB of memory",
        session.folder().run_id(),
        show(folder),
        session.settings.steps,
        duration(estimate.total_s),
        estimate.memory_mib / 1024.0
    ));
    Ok((session, estimate))
}

/// Finds the model. A name stays a name; a path starts from the run file's folder, as all its paths do, and is absolute in
/// the settings from here on, so that the run goes on from any folder.
pub(crate) fn settle_model(settings: &mut Settings, base: &Path, context: &Context) -> Result<PathBuf, Failure> {
    let models = context.models();
    let name = &settings.model;
    let path = models.resolve_from(base, name).map_err(|e| {
        let is_elsewhere = matches!(e, RemoteError::UnknownModel { .. }) && models.resolve(name).is_ok();
        let hint = format!("paths in a run file start from its folder, `{}`", show(base));
        if is_elsewhere { Failure::from(e).hint(hint) } else { Failure::from(e) }
    })?;
    if !models.is_name(name) {
        let absolute = std::path::absolute(&path).map_err(|e| Failure::io("find", &path, &e))?;
        let text = absolute.to_str();
        settings.model = text.ok_or_else(|| Failure::bad(format!("`{}` is not UTF-8", show(&absolute))))?.to_owned();
    }
    Ok(path)
}

/// Finds the model that teaches, where the algorithm names one; its path is kept with the run.
fn teacher(settings: &Settings, base: &Path, context: &Context) -> Result<Option<PathBuf>, Failure> {
    let Some(TeacherRule::Model(name)) = settings.algorithm.algorithm().teacher() else { return Ok(None) };
    let refuse = |text: &str, hint: &str| {
        Err(Failure::bad(format!("`{name}` is {text}, needed a model of this machine"))
            .at("`algorithm.teacher`")
            .hint(hint))
    };
    if name.contains("://") {
        let hint = "no client here asks another server about given tokens: pull the teacher's weights";
        return refuse("an address", hint);
    }
    let is_run = |name: &str| open::find_run(context, name).is_ok_and(|run| run.is_some());
    if is_run(&name) || name.rsplit_once('@').is_some_and(|(run, _)| is_run(run)) {
        return refuse("a run", "`surefoot export RUN@STEP --to hf --out DIR` makes a model of it");
    }
    let found = context.models().resolve_from(base, &name);
    found.map(Some).map_err(|e| Failure::from(e).at("`algorithm.teacher`"))
}

/// The folder of another run's checkpoint.
fn checkpoint(name: &str, settings: &Settings, context: &Context) -> Result<PathBuf, Failure> {
    let located = context.locate(name)?;
    let Some(learned) = located.learned else {
        return Err(
            Failure::bad(format!("`--from {name}` is a model, needed RUN@STEP")).hint("set `model` in the run file")
        );
    };
    if learned.trainable != settings.train {
        let how = |t: &train::Trainable| serde_json::to_string(t).unwrap_or_default();
        let (needed, got) = (how(&learned.trainable), how(&settings.train));
        return Err(Failure::bad(format!("`--from {name}` trained `{needed}`, `[train]` says `{got}`")));
    }
    Ok(learned.weights)
}

fn dry_run(mut settings: Settings, base: &Path, from: Option<&str>, context: &Context) -> Done {
    let scratch =
        tempfile::tempdir().map_err(|e| Failure::failed("cannot make a temporary folder").why(e.to_string()))?;
    let model = settle_model(&mut settings, base, context)?;
    let from = from.map(|name| checkpoint(name, &settings, context)).transpose()?;
    let folder = scratch.path().join("run");
    let teacher = teacher(&settings, base, context)?;
    let (from, teacher) = (from.as_deref(), teacher.as_deref());
    let begin = Begin { model: &model, base, folder: &folder, from, teacher, cpu: context.cpu()? };
    let session = Session::start(settings.clone(), begin, &mut run::Quiet, &context.stop)?;
    let estimate = session.estimate();
    if context.json() {
        return context.out.json(&json!({ "settings": settings, "estimate": estimate, "starts": true }));
    }
    context.out.text(&settings.to_toml()?)?;
    context.out.line(format!(
        "\n# would start. At most {} on this machine ({} a step, {} an evaluation), {} sampled tokens, about {:.1} GB of memory.",
        duration(estimate.total_s),
        duration(estimate.step_s),
        duration(estimate.eval_s),
        estimate.n_tokens,
        estimate.memory_mib / 1024.0
    ))
}

fn resume(folder: &Path, context: &Context) -> Done {
    let run = RunDir::read(folder)?;
    let text = run.settings()?.ok_or_else(|| Failure::bad(format!("run `{}` has no settings", show(folder))))?;
    let settings = RunFile::parse(&text)?.resolve()?;
    let model = context.models().resolve(&settings.model)?;
    let mut notes = Live::new(context, settings.steps);
    let mut session = Session::resume(folder, &model, context.cpu()?, &mut notes, &context.stop)?;
    drop(notes);
    context.note(&format!("run `{}` goes on after step {}", session.folder().run_id(), session.state.step));
    let conclusion = train(&mut session, context)?;
    print(&conclusion, context)
}

/// What a run came to.
pub(crate) struct Conclusion {
    /// The run directory.
    pub(crate) folder: PathBuf,
    /// How it ended.
    pub(crate) ended: Ended,
    /// Held-out score before training.
    pub(crate) before: Option<Score>,
    /// The newest held-out score.
    pub(crate) after: Option<Score>,
    /// Other scores from before training.
    pub(crate) baselines: Vec<Score>,
    /// The same questions before and after.
    pub(crate) answers: Answers,
    /// How long this process trained.
    pub(crate) seconds: f64,
    /// The report's file.
    pub(crate) report: PathBuf,
}

/// Trains to the end and writes the report.
pub(crate) fn train(session: &mut Session, context: &Context) -> Result<Conclusion, Failure> {
    let folder = session.folder().path().to_owned();
    let began = Instant::now();
    let mut live = Live::new(context, session.settings.steps);
    live.expect(&session.estimate());
    let result = session.run(&mut live, &context.stop);
    drop(live);
    // The index can be made anew from the folders, so trouble with it ends no run.
    if let Err(error) = context.runs().and_then(|index| Ok(index.record(session.folder())?)) {
        context.note(&format!("the run is not in the index: {}", error.message));
    }
    let report = super::report::write(context, session.folder(), None)?;
    let ended = result.map_err(|e| match e {
        RunError::Interrupted => {
            Failure::interrupted().hint(format!("`surefoot train --resume {}` finishes it", show(&folder)))
        }
        other => Failure::from(other).hint(format!("`surefoot train --resume {}` tries again", show(&folder))),
    })?;
    let lines: Vec<EvalLine> = session.folder().read_lines("evals.jsonl")?;
    let held_out = |l: &&EvalLine| l.score.name == HELD_OUT;
    let before = lines.iter().filter(held_out).find(|l| l.step == 0).map(|l| l.score.clone());
    let after = lines.iter().rfind(held_out).filter(|l| l.step > 0).map(|l| l.score.clone());
    let baselines = lines.iter().filter(|l| !held_out(l)).map(|l| l.score.clone()).collect();
    let answers = session.folder().read_json("samples.json")?.unwrap_or_default();
    let seconds = began.elapsed().as_secs_f64();
    Ok(Conclusion { folder, ended, before, after, baselines, answers, seconds, report })
}

/// Prints what a run came to.
pub(crate) fn print(c: &Conclusion, context: &Context) -> Done {
    let accuracy = |s: &Option<Score>| s.as_ref().and_then(|s| s.accuracy);
    if context.json() {
        return context.out.json(&json!({
            "accuracy_before": accuracy(&c.before), "accuracy_after": accuracy(&c.after),
            "n": c.after.as_ref().or(c.before.as_ref()).map(|s| s.n), "seconds": c.seconds,
            "report": show(&c.report), "run": show(&c.folder),
            "ended": match c.ended { Ended::Finished => "finished", Ended::Early => "stopped early" },
        }));
    }
    let mut text = String::new();
    for score in &c.baselines {
        text.push_str(&format!("before training, {}\n", sentence(score)));
    }
    match (&c.before, &c.after) {
        (Some(before), Some(after)) => {
            text.push_str(&format!("before  {}\nafter   {}\n", sentence(before), sentence(after)));
        }
        (_, Some(after)) => text.push_str(&format!("after   {}\n", sentence(after))),
        _ => {}
    }
    for question in &c.answers.questions {
        let asked = question.messages.last().map_or("", |m| m.content.as_str());
        let answer = |a: &Option<eval::Answer>| match a {
            None => "–".to_owned(),
            Some(a) => format!("{} {}", if a.solved { "✓" } else { "✗" }, a.reply.replace('\n', " ")),
        };
        text.push_str(&format!("\n  {asked}  [{}]\n", question.gold));
        text.push_str(&format!("    before  {}\n    after   {}\n", answer(&question.before), answer(&question.after)));
    }
    if c.ended == Ended::Early {
        text.push_str("\nstopped early: evaluations no longer got better\n");
    }
    text.push_str(&format!("\n{} of training, report: {}\n", duration(c.seconds), show(&c.report)));
    context.out.text(&view::visible(&text))
}
