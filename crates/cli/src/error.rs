//! Errors as a person meets them: what, where, why, and what to do.

use std::error::Error;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use env::EnvError;
use model::ModelError;
use policy::PolicyError;
use remote::RemoteError;
use run::{OpenError, RunError};
use serde_json::json;
use store::StoreError;
use tensor::CpuError;
use tensor::weights::WeightsError;
use text::TextError;
use train::EngineError;
use view::ViewError;

/// How a command ended, as the shell sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Something went wrong that the input is not to blame for.
    Failed = 1,
    /// The input is at fault.
    BadInput = 2,
    /// The user stopped it.
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// A failure with everything that helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: Code,
    /// What happened, needed and got.
    pub(crate) message: String,
    /// Where it happened.
    pub(crate) place: Option<String>,
    /// What is behind it.
    pub(crate) why: Option<String>,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl Failure {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), place: None, why: None, hint: None }
    }

    /// A failure that the input is not to blame for.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure::new(Code::Failed, message)
    }

    /// Bad input.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Failure::new(Code::BadInput, message)
    }

    /// The user stopped it.
    pub(crate) fn interrupted() -> Self {
        Failure::new(Code::Interrupted, "interrupted")
    }

    /// A fault of the gate, its rules, approvals or receipts.
    pub(crate) fn gate(error: impl fmt::Display) -> Self {
        Failure::bad(error.to_string())
    }

    /// A refusal of the system; a file that is not there is the input's fault.
    pub(crate) fn io(action: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let message = format!("cannot {action} `{}`", path.display());
        Failure { why: Some(error.to_string()), ..Failure::new(code_of_io(error), message) }
    }

    /// Says where.
    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Says what is behind it.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Says what to do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints it to standard error. Nothing can be done where that fails.
    pub(crate) fn print(&self, json: bool) {
        let text = if json { format!("{}\n", self.to_json()) } else { view::visible(&self.to_string()) };
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "error": self.message, "where": self.place, "why": self.why, "hint": self.hint, "code": self.code as u8,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, word: &str, text: &str| {
            let indent = format!("\n{}", " ".repeat(word.len()));
            writeln!(f, "{word}{}", text.trim_end().replace('\n', &indent))
        };
        line(f, "error: ", &self.message)?;
        for (word, text) in [("  where: ", &self.place), ("  why:   ", &self.why), ("hint: ", &self.hint)] {
            if let Some(text) = text {
                line(f, word, text)?;
            }
        }
        Ok(())
    }
}

/// What the command line knows about a crate's error beside its text.
pub(crate) trait Judged: Error {
    /// Who is to blame.
    fn code(&self) -> Code;

    /// Where it happened, as far as the error knows.
    fn place(&self) -> Option<String> {
        None
    }

    /// What the user can do.
    fn hint(&self) -> Option<String> {
        None
    }
}

impl<E: Judged> From<E> for Failure {
    fn from(error: E) -> Self {
        let place = error.place();
        let mut texts = flatten(&error);
        // Where a place is all that the outer error adds, the inner one is the message.
        if texts.len() > 1 && place.as_ref() == texts.first() {
            texts.remove(0);
        }
        let message = texts.remove(0);
        let why = (!texts.is_empty()).then(|| texts.join(": "));
        Failure { why, place, hint: error.hint(), ..Failure::new(error.code(), message) }
    }
}

/// The text of an error without that of what is behind it, then that, and so on; at least one.
fn flatten(error: &dyn Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        let last = texts.last_mut().expect("the list starts with one text");
        // Many errors end in the text of their source already.
        if let Some(start) = last.strip_suffix(&text).and_then(|s| s.strip_suffix(": ")) {
            *last = start.to_owned();
            texts.push(text);
        } else if !last.contains(&text) {
            texts.push(text);
        }
        next = source.source();
    }
    texts
}

fn code_of_io(error: &std::io::Error) -> Code {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidFilename => {
            Code::BadInput
        }
        _ => Code::Failed,
    }
}

impl Judged for WeightsError {
    fn code(&self) -> Code {
        match self {
            WeightsError::Io { source, .. } => code_of_io(source),
            _ => Code::BadInput,
        }
    }
}

impl Judged for ModelError {
    fn code(&self) -> Code {
        match self {
            ModelError::Weights(inner) => inner.code(),
            ModelError::Io { source, .. } => code_of_io(source),
            _ => Code::BadInput,
        }
    }
}

impl Judged for TextError {
    fn code(&self) -> Code {
        match self {
            TextError::Read { cause, .. } => code_of_io(cause),
            _ => Code::BadInput,
        }
    }
}

impl Judged for OpenError {
    fn code(&self) -> Code {
        match self {
            OpenError::Model(inner) => inner.code(),
            OpenError::Text(inner) => inner.code(),
        }
    }
}

impl Judged for RunError {
    fn code(&self) -> Code {
        match self {
            RunError::Open(inner) => inner.code(),
            RunError::Engine(inner) => inner.code(),
            RunError::Env(inner) => inner.code(),
            RunError::Store(inner) => inner.code(),
            RunError::Io { source, .. } => code_of_io(source),
            RunError::Interrupted => Code::Interrupted,
            other if other.is_bad_input() => Code::BadInput,
            _ => Code::Failed,
        }
    }

    fn place(&self) -> Option<String> {
        match self {
            RunError::Rollout { step, .. } | RunError::Algo { step, .. } | RunError::Policy { step, .. } => {
                Some(format!("step {step}"))
            }
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RunError::Store(inner) => Judged::hint(inner),
            RunError::Audit { .. } => Some("`surefoot env check` runs the same audit alone".to_owned()),
            RunError::Settings(_) => Some(
                "`docs/run-file.md` lists every setting; `surefoot init` writes a run file to begin with".to_owned(),
            ),
            _ => None,
        }
    }
}

impl Judged for EngineError {
    fn code(&self) -> Code {
        match self {
            EngineError::Model(inner) => inner.code(),
            EngineError::Setting { .. } | EngineError::Vocabulary { .. } => Code::BadInput,
        }
    }
}

impl Judged for CpuError {
    fn code(&self) -> Code {
        match self {
            CpuError::Spawn(_) => Code::Failed,
            CpuError::UnknownIsa(_) | CpuError::Unavailable { .. } | CpuError::Threads(_) => Code::BadInput,
        }
    }
}

impl Judged for PolicyError {
    fn code(&self) -> Code {
        match self {
            PolicyError::Io { source, .. } => code_of_io(source),
            PolicyError::Cancelled => Code::Interrupted,
            PolicyError::Loss { .. } | PolicyError::NotFinite { .. } => Code::Failed,
            _ => Code::BadInput,
        }
    }
}

impl Judged for EnvError {
    fn code(&self) -> Code {
        match self {
            EnvError::File { source, .. } => code_of_io(source),
            _ => Code::BadInput,
        }
    }
}

impl Judged for StoreError {
    fn code(&self) -> Code {
        match self {
            StoreError::Io { source, .. } => code_of_io(source),
            StoreError::Index { .. } | StoreError::CheckpointWriter { .. } | StoreError::Unstorable { .. } => {
                Code::Failed
            }
            _ => Code::BadInput,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::Index { .. } => "`surefoot runs list --rebuild` makes the index anew".to_owned(),
            StoreError::NoRun { .. } => "`surefoot runs list` shows the runs there are".to_owned(),
            StoreError::NotARun { .. } => "`surefoot runs list` shows the run directories there are".to_owned(),
            StoreError::NotEmpty { .. } => "name another folder with `--out`".to_owned(),
            StoreError::Locked { .. } => "wait for the other process, or stop it".to_owned(),
            _ => return None,
        })
    }
}

impl Judged for ViewError {
    fn code(&self) -> Code {
        match self {
            ViewError::Store(inner) => inner.code(),
            ViewError::NoTask { .. } | ViewError::Ambiguous { .. } => Code::BadInput,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ViewError::Store(inner) => Judged::hint(inner),
            _ => None,
        }
    }
}

impl Judged for RemoteError {
    fn code(&self) -> Code {
        match self {
            RemoteError::Cancelled => Code::Interrupted,
            RemoteError::Io { source, .. } => code_of_io(source),
            RemoteError::UnknownModel { .. }
            | RemoteError::NotInstalled { .. }
            | RemoteError::BadName { .. }
            | RemoteError::NameTaken { .. }
            | RemoteError::Damaged { .. }
            | RemoteError::WrongFile { .. }
            | RemoteError::NotAModel { .. }
            | RemoteError::BadReference { .. }
            | RemoteError::BadSetting { .. } => Code::BadInput,
            _ => Code::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        RemoteError::hint(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn check(failure: impl Into<Failure>, code: Code, want: &str) {
        let failure = failure.into();
        assert_eq!((failure.to_string().as_str(), failure.code), (want, code));
    }

    #[test]
    fn what_is_behind_an_error_is_said_once_and_apart() {
        let source = || std::io::Error::new(ErrorKind::NotFound, "no such file");
        check(
            OpenError::Model(ModelError::Io { path: "m/config.json".into(), source: source() }),
            Code::BadInput,
            "error: cannot read `m/config.json`\n  why:   no such file\n",
        );
        let full = std::io::Error::new(ErrorKind::StorageFull, "no space left");
        check(
            ViewError::Store(StoreError::Io { action: "write", path: "r/x".into(), source: full }),
            Code::Failed,
            "error: cannot write `r/x`\n  why:   no space left\n",
        );
        check(
            StoreError::NoRun { name: "x".into(), path: PathBuf::from("i") },
            Code::BadInput,
            "error: no run `x` in `i`\nhint: `surefoot runs list` shows the runs there are\n",
        );
        check(
            RunError::Policy { step: 3, source: PolicyError::Context { needed: 9, context: 8 } },
            Code::Failed,
            "error: 9 tokens do not fit the context window of 8\n  where: step 3\n",
        );
        check(PolicyError::Cancelled, Code::Interrupted, "error: cancelled\n");
    }

    #[test]
    fn every_part_has_its_line_and_further_lines_are_indented() {
        let failure = Failure::failed("a\nb").at("here").why("so").hint("do");
        check(failure.clone(), Code::Failed, "error: a\n       b\n  where: here\n  why:   so\nhint: do\n");
        assert_eq!(failure.to_json().to_string(), r#"{"error":"a\nb","where":"here","why":"so","hint":"do","code":1}"#);
    }
}
