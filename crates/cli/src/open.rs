//! From what the user calls a model to weights that compute.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::Config;
use policy::PolicyError;
use remote::RemoteError;
use run::{Chat, OpenError};
use serde::Deserialize;
use store::{RunDir, StoreError};
use tensor::Cpu;
use text::Tokenizer;
use train::{Engine, EngineSettings, Precision, Trainable};

use crate::context::{Context, show};
use crate::error::Failure;

/// A model that was found, not yet read.
#[derive(Debug)]
pub(crate) struct Located {
    /// What the user called it.
    pub(crate) name: String,
    /// The GGUF file or the folder of its (base) weights.
    pub(crate) path: PathBuf,
    /// What a run made of it.
    pub(crate) learned: Option<Learned>,
}

/// The weights of a checkpoint.
#[derive(Debug)]
pub(crate) struct Learned {
    /// The run.
    pub(crate) run: RunDir,
    /// The step after which they were saved.
    pub(crate) step: u64,
    /// What was trained.
    pub(crate) trainable: Trainable,
    /// How its products were computed.
    pub(crate) precision: Precision,
    /// The folder to give to [`Engine::load_weights`].
    pub(crate) weights: PathBuf,
}

/// Finds a model by name, path or `RUN[@STEP]`; without a step the newest checkpoint is meant.
///
/// - Holds: names of the model store come first, then paths, then runs.
pub(crate) fn locate(context: &Context, model: &str) -> Result<Located, Failure> {
    let unknown = match context.models().resolve(model) {
        Ok(path) if RunDir::read(&path).is_err() => {
            return Ok(Located { name: model.to_owned(), path, learned: None });
        }
        Ok(_) => None,
        Err(unknown @ RemoteError::UnknownModel { .. }) => Some(unknown),
        Err(other) => return Err(other.into()),
    };
    // A folder's name may hold an `@`, so the whole text is tried first.
    if let Some(run) = find_run(context, model)? {
        return checkpoint(context, model, run, None);
    }
    if let Some((name, step)) = model.rsplit_once('@')
        && let Some(run) = find_run(context, name)?
    {
        let digits =
            step.parse().map_err(|_| Failure::bad(format!("`{model}`: needed a step after `@`, got `{step}`")))?;
        return checkpoint(context, model, run, Some(digits));
    }
    Err(unknown.map_or_else(|| Failure::bad(format!("no model `{model}`")), Failure::from))
}

/// The run of a path, an id or a folder's name, if there is one.
pub(crate) fn find_run(context: &Context, name: &str) -> Result<Option<RunDir>, Failure> {
    match RunDir::read(Path::new(name)) {
        Ok(run) => return Ok(Some(run)),
        Err(StoreError::NotARun { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    if !context.root.is_dir() {
        return Ok(None);
    }
    match context.runs()?.find(name) {
        Ok(row) => Ok(Some(RunDir::read(&row.path)?)),
        Err(StoreError::NoRun { .. }) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn checkpoint(context: &Context, name: &str, run: RunDir, step: Option<u64>) -> Result<Located, Failure> {
    let found = match step {
        Some(step) => run.checkpoints().at(step)?,
        None => run.checkpoints().latest()?.ok_or_else(|| {
            Failure::bad(format!("run `{}` has no checkpoint yet", run.run_id())).at(format!("`{}`", show(run.path())))
        })?,
    };
    for passed in &found.skipped {
        context.note(&format!("checkpoint `{}` is damaged and passed over: {}", show(&passed.path), passed.reason));
    }
    let Base { model, train, precision } = base_of(&run)?;
    let path = context
        .models()
        .resolve(&model)
        .map_err(|e| Failure::from(e).at(format!("settings of run `{}`, whose model this is", run.run_id())))?;
    let learned = Learned { step: found.step, trainable: train, precision, weights: found.path, run };
    Ok(Located { name: name.to_owned(), path, learned: Some(learned) })
}

/// The part of a run's settings that says what its checkpoints belong to.
#[derive(Debug, Deserialize)]
struct Base {
    model: String,
    train: Trainable,
    #[serde(default)]
    precision: Precision,
}

fn base_of(run: &RunDir) -> Result<Base, Failure> {
    let place = || format!("`{}`", show(&run.path().join("settings.toml")));
    let text = run.settings()?.ok_or_else(|| Failure::bad("the run has no settings yet").at(place()))?;
    toml::from_str(&text).map_err(|e| Failure::bad("the run's settings cannot be read").at(place()).why(e.message()))
}

/// The tokenizer of the model that a run was made from.
pub(crate) fn tokenizer_of(context: &Context, run: &RunDir) -> Result<Option<Arc<Tokenizer>>, Failure> {
    let name = base_of(run)?.model;
    let path = context.models().resolve(&name)?;
    Located { name, path, learned: None }.tokenizer()
}

impl Located {
    /// Adds to a failure which model it is about.
    pub(crate) fn about(&self, error: impl Into<Failure>) -> Failure {
        let failure = error.into();
        match failure.place {
            Some(_) => failure,
            None => failure.at(format!("model `{}`", self.name)),
        }
    }

    /// What its base model is called: a run's own word for it, or the user's.
    pub(crate) fn base_name(&self) -> String {
        let named = self.learned.as_ref().and_then(|l| base_of(&l.run).ok()).map(|b| b.model);
        named.unwrap_or_else(|| self.name.clone())
    }

    /// Reads the configuration alone.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        model::load::load_config(&self.path).map_err(|e| self.about(e))
    }

    /// Reads the tokenizer; none where weights stand without one.
    pub(crate) fn tokenizer(&self) -> Result<Option<Arc<Tokenizer>>, Failure> {
        let folder = if self.path.is_dir() { Some(&*self.path) } else { self.path.parent() };
        let is_gguf = self.path.is_file() && self.path.extension().is_none_or(|e| e != "safetensors");
        if !is_gguf && folder.is_some_and(|f| !f.join("tokenizer.json").exists()) {
            return Ok(None);
        }
        let tokenizer = run::open::tokenizer(&self.path).map_err(|e| self.about(e))?;
        Ok(Some(Arc::new(tokenizer)))
    }

    /// That there is no tokenizer where one is needed.
    pub(crate) fn no_tokenizer(&self, needing: &str) -> Failure {
        self.about(Failure::bad(format!("{needing} needs a tokenizer, got a model without `tokenizer.json`")))
    }

    /// The chat format.
    pub(crate) fn chat(&self, tokenizer: &Arc<Tokenizer>) -> Result<Chat, Failure> {
        Chat::new(Arc::clone(tokenizer))
            .map_err(|why| self.about(Failure::bad("the chat template cannot be used").why(why)))
    }

    /// Reads the weights into an engine that samples and scores. Products are computed as asked, else as the run computed
    /// them, else in f32.
    pub(crate) fn engine(
        &self,
        cpu: Cpu,
        tokenizer: Option<Arc<Tokenizer>>,
        precision: Option<Precision>,
        settings: EngineSettings,
        seed: u64,
    ) -> Result<Engine, Failure> {
        // An engine that holds a run's adapter but is never asked to train allocates nothing for training.
        let trainable = self.learned.as_ref().map_or(Trainable::Frozen {}, |l| l.trainable.clone());
        let precision = precision.or(self.learned.as_ref().map(|l| l.precision)).unwrap_or_default();
        let weights = model::load(&self.path).map_err(|e| self.about(OpenError::from(e)))?;
        let engine = Engine::new(cpu, weights, tokenizer, trainable, settings, seed).map_err(|e| self.about(e))?;
        let mut engine = engine.with_precision(precision);
        if let Some(learned) = &self.learned {
            engine.load_weights(&learned.weights).map_err(|e: PolicyError| self.about(e))?;
        }
        Ok(engine)
    }

    /// Puts on a PEFT adapter.
    pub(crate) fn wear(&self, engine: &mut Engine, folder: &Path) -> Result<(), Failure> {
        if engine.adapter().is_some() {
            let message = format!("`--adapter` cannot be put on `{}`, which has an adapter of its own", self.name);
            return Err(Failure::bad(message));
        }
        let place = |f: Failure| f.at(format!("adapter `{}`", folder.display()));
        let adapter = model::peft::load(folder, engine.config()).map_err(|e| place(e.into()))?;
        engine.set_adapter(adapter).map_err(|e| place(e.into()))
    }
}
