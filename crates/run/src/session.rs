//! A run that is open: started anew, or taken up where it stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agent::Codec;
use algo::{Data, TeacherRule};
use env::{Environments, Mixture, Probe, Split};
use episode::Token;
use eval::Criteria;
use gate::receipt::{Durable, Receipts};
use policy::{Checkpoint, Policy, PolicyError, Sampling};
use rollout::stream::protocol::Bounds;
use rollout::stream::{Stream, Terms};
use rollout::{Gates, Rollout};
use serde::{Deserialize, Serialize};
use store::{Keep, RunDir, RunId, RunWriter, Summary, hash_bytes, hash_file, hash_folder};
use tensor::Cpu;
use text::Tokenizer;
use train::{Engine, Trainable};

use crate::data::{self, Given};
use crate::evaluate::Evaluator;
use crate::kept::{self, Moment};
use crate::post_train::post_train;
use crate::record::{HELD_OUT, now};
use crate::replay::{Fit, Library, Replayed};
use crate::source::{Answers, Attempts, Source};
use crate::{Advice, Chat, Ended, Opened, Progress, Recorder, RunError, RunFile, Settings, State, Trial, open};

const MANIFEST: &str = "manifest.json";
/// The folder of receipts in a run directory.
pub const RECEIPTS: &str = "receipts";

/// What went into a run, as hashes; a run is only gone on with when all of them are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this program.
    pub version: String,
    /// SHA-256 of the model's file, or of its folder's files.
    pub weights: String,
    /// The tokenizer's fingerprint.
    pub tokenizer: String,
    /// SHA-256 over the ids of all tasks and given answers.
    pub data: String,
    /// SHA-256 over the files of episodes that are replayed, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// SHA-256 of the model that teaches, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
    /// SHA-256 of the settings.
    pub settings: String,
    /// SHA-256 of the weights the run began with instead of the model's own.
    pub from: Option<String>,
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// The checkpoint the run began with.
    pub from_path: Option<PathBuf>,
    /// Where the model that teaches lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_path: Option<PathBuf>,
}

/// The files that a run is opened from.
struct Files<'a> {
    model: &'a Path,
    base: &'a Path,
    from: Option<&'a Path>,
    teacher: Option<&'a Path>,
}

/// What a new run is made of, beside its settings.
pub struct Begin<'a> {
    /// The model's file or folder.
    pub model: &'a Path,
    /// The folder that relative paths in the settings start from.
    pub base: &'a Path,
    /// The run directory.
    pub folder: &'a Path,
    /// A checkpoint's folder whose weights to start from.
    pub from: Option<&'a Path>,
    /// The file or folder of the model that teaches, where the algorithm names one.
    pub teacher: Option<&'a Path>,
    /// The processor.
    pub cpu: Cpu,
}

/// An open run.
pub struct Session {
    /// Its settings.
    pub settings: Settings,
    /// The policy.
    pub engine: Engine,
    /// The chat format.
    pub chat: Arc<Chat>,
    /// How far it is.
    pub state: State,
    source: Box<dyn Source>,
    advice: Advice,
    recorder: Recorder,
}

impl Session {
    /// Starts a new run: everything is opened and audited first, then the run directory is made.
    pub fn start(
        settings: Settings,
        begin: Begin<'_>,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Session, RunError> {
        let files = Files { model: begin.model, base: begin.base, from: begin.from, teacher: begin.teacher };
        let parts = Parts::open(&settings, &files, begin.cpu, progress, cancel)?;
        let toml = settings.to_toml()?;
        let manifest = parts.manifest(&files, &toml)?;
        let nonce = format!("{} {}", now(), std::process::id());
        let id = RunId::from_content(&[toml.as_bytes(), manifest.weights.as_bytes(), nonce.as_bytes()]);
        let writer = RunDir::create(begin.folder, id)?;
        writer.write_settings(&toml)?;
        writer.write_json(MANIFEST, &manifest)?;
        let summary = Summary {
            status: "running".to_owned(),
            started: now(),
            algorithm: settings.algorithm.name().to_owned(),
            model: settings.model.clone(),
            last_step: 0,
            best_score: None,
        };
        writer.write_summary(&summary)?;
        parts.session(settings, writer, summary, State::default(), None, begin.base)
    }

    /// Takes a run up after its last checkpoint.
    ///
    /// - Errors: [`RunError::Resume`] when model, tokenizer, data or program differ from what the run began with.
    pub fn resume(
        folder: &Path,
        model: &Path,
        cpu: Cpu,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Session, RunError> {
        let refuse = |reason: String| RunError::Resume { path: folder.to_owned(), reason };
        let mut writer = RunDir::open(folder)?;
        let toml = writer.settings()?.ok_or_else(|| refuse("it has no settings".to_owned()))?;
        let settings = RunFile::parse(&toml)?.resolve()?;
        let stored: Option<Manifest> = writer.read_json(MANIFEST)?;
        let stored = stored.ok_or_else(|| refuse("it has no manifest".to_owned()))?;
        let (from, teacher) = (stored.from_path.as_deref(), stored.teacher_path.as_deref());
        let files = Files { model, base: &stored.base, from, teacher };
        let mut parts = Parts::open(&settings, &files, cpu, progress, cancel)?;
        let manifest = parts.manifest(&files, &toml)?;
        let none = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "none".to_owned());
        let text = |from: &Option<String>| from.clone().unwrap_or_else(|| "the model's own weights".to_owned());
        for (what, was, is) in [
            ("program version", &stored.version, &manifest.version),
            ("weights", &stored.weights, &manifest.weights),
            ("tokenizer", &stored.tokenizer, &manifest.tokenizer),
            ("data", &stored.data, &manifest.data),
            ("replayed episodes", &none(&stored.replay), &none(&manifest.replay)),
            ("teacher", &none(&stored.teacher), &none(&manifest.teacher)),
            ("settings", &stored.settings, &manifest.settings),
            ("start", &text(&stored.from), &text(&manifest.from)),
        ] {
            if was != is {
                return Err(refuse(format!("its {what} is not what it began with: needed `{was}`, got `{is}`")));
            }
        }
        let latest = writer.checkpoints().latest()?;
        let (mut state, mut saved) = (State::default(), None);
        if let Some(checkpoint) = latest {
            for skipped in &checkpoint.skipped {
                let (path, reason) = (skipped.path.display(), &skipped.reason);
                progress.note(&format!("checkpoint `{path}` was passed over: {reason}"));
            }
            state = checkpoint.state()?;
            state.load_flight(&checkpoint.path)?;
            let step = state.step;
            parts.engine.load(&checkpoint.path).map_err(|source| RunError::Policy { step, source })?;
            saved = Some(step);
        }
        let version = u32::try_from(state.step).unwrap_or(u32::MAX);
        parts.engine.set_version(version);
        writer.rewind(state.step)?;
        let mut summary = writer.summary()?.ok_or_else(|| refuse("it has no summary".to_owned()))?;
        summary.status = "running".to_owned();
        parts.session(settings, writer, summary, state, saved, &stored.base)
    }

    /// Trains to the end.
    pub fn run(&mut self, progress: &mut dyn Progress, cancel: &AtomicBool) -> Result<Ended, RunError> {
        let Session { settings, engine, state, source, advice, recorder, .. } = self;
        let result = post_train(engine, settings, source.as_mut(), advice, recorder, state, progress, cancel);
        if result.is_ok() && !state.flight.is_empty() {
            let (n_aside, n_queued) = (state.flight.n_aside(), state.flight.n_queued());
            progress.note(&format!("left over: {n_queued} finished groups and {n_aside} attempts under way"));
        }
        recorder.summary.last_step = state.step;
        recorder.summary.status = match &result {
            Ok(Ended::Finished) => "finished",
            Ok(Ended::Early) => "stopped early",
            Err(RunError::Interrupted) => "interrupted",
            Err(_) => "failed",
        }
        .to_owned();
        recorder.writer.write_summary(&recorder.summary)?;
        recorder.writer.export(settings)?;
        result
    }

    /// Tries the policy as it is on the held-out tasks, as the run's own evaluations do, and keeps its answers to the
    /// questions kept for reading; nothing where no task is held out.
    pub fn try_held_out(
        &mut self,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Option<Trial>, RunError> {
        let Some(evaluator) = &self.recorder.evaluator else { return Ok(None) };
        let trial = evaluator.run(HELD_OUT, &mut self.engine, progress, cancel)?;
        self.recorder.keep_answers(self.state.step, &trial)?;
        Ok(Some(trial))
    }

    /// What counts as solved, where tasks are held out.
    pub fn criteria(&self) -> Option<Criteria<'_>> {
        self.recorder.evaluator.as_ref().map(Evaluator::criteria)
    }

    /// The run directory.
    pub fn folder(&self) -> &RunWriter {
        &self.recorder.writer
    }

    /// What the run will cost on this machine, from the start.
    pub fn estimate(&self) -> crate::Estimate {
        let evaluator = self.recorder.evaluator.as_ref();
        let task = evaluator.and_then(|e| e.tasks().first());
        let n_prompt = task.and_then(|t| self.chat.open(&t.messages, &[]).ok()).map_or(0, |t| t.len());
        let n_held_out = evaluator.map_or(0, Evaluator::n_tasks);
        let gflops = crate::estimate::measure(self.engine.cpu());
        crate::estimate::estimate(&self.settings, self.engine.config(), n_prompt, n_held_out, gflops)
    }
}

/// Opens the gate that the attempts of an open run pass; its receipts go into the run directory.
fn open_gates(settings: &Settings, base: &Path, folder: &Path, gates: &Gates) -> Result<(), RunError> {
    let receipts = match settings.gate.receipts {
        true => crate::gate::receipts(&folder.join(RECEIPTS), Durable::OnSync)?,
        false => Receipts::Off,
    };
    gates.open(settings.gate.gate(base, receipts)?);
    Ok(())
}

/// How far the sampler may run ahead, and what it samples.
fn terms(settings: &Settings, sampling: Arc<Sampling>) -> Terms {
    let bounds = Bounds {
        batch: (settings.batch.tasks - settings.n_replayed()) as u64,
        max_lag: settings.max_lag,
        // Each of them has a row at least.
        max_running: settings.engine.batch as u64,
        max_draws: settings.algorithm.algorithm().max_draws() as u64,
        steps: settings.steps,
        holds_lag: settings.control.hold_lag,
    };
    Terms { bounds, group_size: settings.batch.group_size, run_seed: settings.seed, sampling }
}

/// The model that teaches, if the algorithm names one.
///
/// - Errors: [`RunError::Settings`] when it has another tokenizer than the policy, whose tokens it could not judge.
fn teacher(
    settings: &Settings,
    path: Option<&Path>,
    tokenizer: &Tokenizer,
    cpu: &Cpu,
) -> Result<Option<Engine>, RunError> {
    let Some(TeacherRule::Model(name)) = settings.algorithm.algorithm().teacher() else { return Ok(None) };
    let refuse = |text: String| Err(RunError::Settings(format!("`algorithm.teacher` is `{name}`: {text}")));
    let Some(path) = path else { return refuse("needed the model's file or folder, got none".to_owned()) };
    let Opened { config, params, tokenizer: own } = open(path)?;
    if own.fingerprint() != tokenizer.fingerprint() {
        return refuse("it has another tokenizer than the policy, whose tokens it cannot judge".to_owned());
    }
    // The policy owns its processor; the two are never asked at the same time, so threads of one wait while the other's work.
    let own_cpu = Cpu::new(cpu.isa(), cpu.pool().n_threads()).map_err(|e| RunError::Settings(e.to_string()))?;
    let engine = Engine::new(own_cpu, (config, params), Some(own), Trainable::Frozen {}, settings.engine.clone(), 0)?;
    Ok(Some(engine.with_precision(settings.precision)))
}

/// Everything that is opened before a run directory is touched.
struct Parts {
    engine: Engine,
    chat: Arc<Chat>,
    teacher: Option<Engine>,
    banned: Vec<Token>,
    source: Box<dyn Source>,
    library: Library,
    evaluator: Option<Evaluator>,
    baselines: Vec<(String, Evaluator)>,
    data: String,
    gates: Gates,
    with_tools: bool,
}

impl Parts {
    fn open(
        settings: &Settings,
        files: &Files<'_>,
        cpu: Cpu,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<Parts, RunError> {
        let base = files.base;
        let algorithm = settings.algorithm.algorithm();
        for env in settings.env.iter().chain(&settings.eval.baseline) {
            let audit = env::audit(env, base, &Probe::default(), cancel)?.ok_or(RunError::Interrupted)?;
            if !audit.passed() {
                return Err(RunError::Audit { env: audit.env.clone(), report: audit.to_string() });
            }
        }
        let Opened { config, params, tokenizer } = open(files.model)?;
        let (dialect, reading) = (settings.tools.dialect, settings.tools.reading);
        let chat = Chat::with_tools(tokenizer.clone(), dialect, reading).map_err(RunError::Settings)?;
        let chat = Arc::new(chat.announcing(settings.tools.announce));
        let mut banned = Vec::new();
        if settings.sampling.ban_structural {
            banned.extend(chat.banned());
            // Rows of the embedding beyond the tokenizer stand for no text.
            banned.extend(tokenizer.vocab_size() as Token..config.vocabulary as Token);
        }
        let teacher = teacher(settings, files.teacher, &tokenizer, &cpu)?;
        let mut engine = Engine::new(
            cpu,
            (config, params),
            Some(tokenizer.clone()),
            settings.train.clone(),
            settings.engine.clone(),
            settings.seed,
        )?
        .with_precision(settings.precision);
        if algorithm.value_head() {
            engine = engine.with_value_head();
        }
        let policy_error = |source: PolicyError| RunError::Policy { step: 0, source };
        kept::keep(&mut engine, settings, Moment::Loaded).map_err(policy_error)?;
        if let Some(from) = files.from {
            engine.load_weights(from).map_err(policy_error)?;
        }
        kept::keep(&mut engine, settings, Moment::Begun).map_err(policy_error)?;
        let sampling = Arc::new(Sampling {
            stop_strings: settings.sampling.stop.clone(),
            banned: banned.clone(),
            ..Sampling::plain(settings.sampling.temperature, settings.sampling.max_tokens, tokenizer.eos().to_vec())
        });
        let tried = Arc::new(Sampling { temperature: settings.eval.temperature, ..(*sampling).clone() });
        let gates = settings.gate.gates();
        let checked = settings.gate.gate(base, Receipts::Off)?;
        let mut with_tools = false;
        let mut rollout = |list: &[env::Settings]| -> Result<Arc<Rollout>, RunError> {
            let environments = Environments::load(list, base)?;
            with_tools |= settings.gate.fits(&checked, &environments, settings.rollout.turns)?;
            let (codec, gates) = (chat.clone(), gates.clone());
            Ok(Arc::new(Rollout { codec, environments, gates, settings: settings.rollout.clone() }))
        };
        let evaluator = |rollout: Arc<Rollout>| {
            let e = &settings.eval;
            Evaluator::new(rollout, e.tasks, e.attempts, tried.clone(), e.pass_at.clone())
        };
        let own = if settings.env.is_empty() { None } else { Some(rollout(&settings.env)?) };
        let held_out = own.clone().filter(|_| settings.eval.tasks > 0).map(&evaluator);
        let mut baselines = Vec::new();
        for env in &settings.eval.baseline {
            baselines.push((env.name.clone(), evaluator(rollout(std::slice::from_ref(env))?)));
        }
        let says_nothing = settings.gate.is_default() && settings.tools.is_default();
        if !with_tools && !says_nothing {
            let text = "`[gate]` and `[tools]` would be ignored: no environment here has tools";
            return Err(RunError::Settings(text.to_owned()));
        }
        let library = match &settings.replay {
            Some(replay) => {
                let config = engine.config();
                let (vocabulary, context) = (config.vocabulary, config.context);
                Library::open(replay, base, Fit { vocabulary, context, tokenizer: tokenizer.fingerprint() })?
            }
            None => Library::default(),
        };
        let mut ids = String::new();
        let source: Box<dyn Source> = match (&settings.data, own) {
            (Some(data), _) => {
                let given = if algorithm.data() == Data::EpisodesOrPairs { Given::Pairs } else { Given::Answers };
                let groups = data::read(&base.join(&data.file), &chat, engine.config().context, given)?;
                groups.iter().for_each(|g| ids.push_str(g.task.id.as_str()));
                Box::new(Answers { groups, seed: settings.seed })
            }
            (None, Some(rollout)) => {
                for split in [Split::Train, Split::HeldOut] {
                    let tasks = rollout.environments.tasks(split, usize::MAX);
                    tasks.iter().for_each(|t| ids.push_str(t.id.as_str()));
                }
                let mixture = Mixture::new(&rollout.environments, settings.seed)?;
                let rollouts = Stream::new(rollout, terms(settings, sampling));
                Box::new(Attempts::new(rollouts, mixture, settings.seed, settings.control.coin_flips))
            }
            (None, None) => return Err(RunError::Settings("a run needs at least 1 `[[env]]`, got 0".to_owned())),
        };
        if held_out.as_ref().is_some_and(|e| e.n_tasks() == 0) {
            progress.note("there are no held-out tasks, so nothing is evaluated");
        }
        let data = hash_bytes(ids.as_bytes());
        let held_out = held_out.filter(|e| e.n_tasks() > 0);
        Ok(Parts {
            engine,
            chat,
            teacher,
            banned,
            source,
            library,
            evaluator: held_out,
            baselines,
            data,
            gates,
            with_tools,
        })
    }

    fn manifest(&self, files: &Files<'_>, toml: &str) -> Result<Manifest, RunError> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|source| RunError::Io { path: path.to_owned(), source });
        let hash = |path: &Path| if path.is_dir() { hash_folder(path) } else { hash_file(path) };
        Ok(Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            weights: hash(files.model)?,
            tokenizer: self.chat.tokenizer().fingerprint().to_owned(),
            data: self.data.clone(),
            replay: self.library.hash().map(str::to_owned),
            settings: hash_bytes(toml.as_bytes()),
            from: files.from.map(hash).transpose()?,
            base: absolute(files.base)?,
            from_path: files.from.map(absolute).transpose()?,
            teacher: files.teacher.map(hash).transpose()?,
            teacher_path: files.teacher.map(absolute).transpose()?,
        })
    }

    fn session(
        self,
        settings: Settings,
        writer: RunWriter,
        summary: Summary,
        state: State,
        saved: Option<u64>,
        base: &Path,
    ) -> Result<Session, RunError> {
        let Parts {
            engine, chat, teacher, banned, mut source, library, evaluator, baselines, gates, with_tools, ..
        } = self;
        if let Some(replay) = &settings.replay {
            source = Box::new(Replayed::new(source, library, RunDir::clone(&writer), &settings, replay));
        }
        if with_tools {
            open_gates(&settings, base, writer.path(), &gates)?;
        }
        let keep = Keep { last: settings.checkpoint.keep_last, best: settings.checkpoint.keep_best };
        let checkpoints = writer.checkpoints_to_write(keep)?;
        let n_samples = settings.eval.samples;
        let recorder = Recorder::new(writer, checkpoints, evaluator, baselines, summary, n_samples, saved);
        let advice = Advice { chat: chat.clone(), teacher };
        Ok(Session { settings, engine, chat, state: State { banned, ..state }, source, advice, recorder })
    }
}
