//! What to run and how far it may go.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{Access, access};

use crate::Rules;

/// Variables a program needs to find its interpreter, its temporary folder and its language; nothing that names a key or
/// an endpoint.
const PASSED: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"];

/// A program, its arguments and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The program: a path, or a name looked up in `PATH`.
    pub program: OsString,
    /// Its arguments; anything long goes through standard input.
    pub args: Vec<OsString>,
    /// Where it runs; the caller's own folder if not given.
    pub folder: Option<PathBuf>,
    /// Variables it gets besides the few every program gets.
    pub variables: Vec<(OsString, OsString)>,
    /// How long one answer may take.
    pub deadline: Duration,
    /// How many bytes one answer may have.
    pub max_stdout_bytes: usize,
    /// How many bytes of standard error are kept, the last ones.
    pub max_stderr_bytes: usize,
    /// The walls it stands behind, none if not given: then it is the user's own program and may do what the user may.
    pub confinement: Option<Rules>,
}

impl Spec {
    /// A program with ten seconds, a mebibyte of answer and the last 16 KiB of standard error.
    pub fn new(program: impl Into<OsString>) -> Self {
        Spec {
            program: program.into(),
            args: Vec::new(),
            folder: None,
            variables: Vec::new(),
            deadline: Duration::from_secs(10),
            max_stdout_bytes: 1 << 20,
            max_stderr_bytes: 16 << 10,
            confinement: None,
        }
    }

    /// The same with these arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// The same with this deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same behind these walls. Its folder, if not given, is then its private `/tmp`.
    pub fn confined(mut self, rules: Rules) -> Self {
        self.confinement = Some(rules);
        self
    }

    /// The program's name for messages.
    pub fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// What every program gets of the caller's variables.
    pub(crate) fn passed() -> impl Iterator<Item = (OsString, OsString)> {
        PASSED.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)))
    }

    /// Where the program is, if it is a name and found in the `PATH` that it will have.
    ///
    /// Left to itself the standard library looks a name up in a `PATH` of the child's own between `fork` and `exec`; given a
    /// path it calls `posix_spawn`, which does not copy the page tables of a loaded model.
    fn found(&self) -> Option<PathBuf> {
        let given = self.variables.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
        let path = given.or_else(|| std::env::var_os("PATH"))?;
        if self.program.is_empty() || self.program.as_encoded_bytes().contains(&b'/') {
            return None;
        }
        let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
        folders
            .map(|folder| folder.join(&self.program))
            .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
    }

    pub(crate) fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new(self.found().as_ref().map_or(self.program.as_os_str(), |path| path.as_os_str()));
        command.args(&self.args).env_clear().process_group(0);
        command.envs(Self::passed());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Whether it says of itself that it succeeded; what it wrote does not count.
    pub fn success(self) -> bool {
        self == Exit::Code(0)
    }

    /// Of a status as `wait` gives it.
    pub(crate) fn of_raw(status: i32) -> Self {
        use std::os::unix::process::ExitStatusExt;

        Self::of(ExitStatus::from_raw(status))
    }

    pub(crate) fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;

        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            // `wait` reports only ended processes, which have one of the two.
            (None, None) => Exit::Code(-1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit status {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
