//! A server's program, which cannot outlive its client.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Variables every program gets: what it needs to find its interpreter, its temporary folder and its language; nothing
/// that names a key or an endpoint.
const PASSED: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"];

/// How much of what it writes to standard error is kept, the last of it.
const STDERR_BYTES: usize = 4 << 10;

/// How long a program has to end by itself once its input is closed.
const GRACE: Duration = Duration::from_secs(1);

/// A running program. Dropping it kills its whole process group.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    pid: Option<Pid>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
}

impl Program {
    /// Starts it; to be called within a runtime.
    pub(super) fn start(
        program: &str,
        args: &[String],
        folder: Option<&Path>,
        variables: &BTreeMap<String, String>,
    ) -> std::io::Result<(Program, ChildStdout, ChildStdin)> {
        let mut command = Command::new(program);
        command.args(args).env_clear().process_group(0).kill_on_drop(true);
        command.envs(PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(variables);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let taken = || std::io::Error::other("its pipes are gone");
        let stdin = child.stdin.take().ok_or_else(taken)?;
        let stdout = child.stdout.take().ok_or_else(taken)?;
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(pipe) = child.stderr.take() {
            tokio::spawn(keep_last(pipe, stderr.clone()));
        }
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok((Program { child, pid, stderr }, stdout, stdin))
    }

    /// The end of what it wrote to standard error.
    pub(super) fn stderr(&self) -> String {
        let kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        crate::wire::shown(&String::from_utf8_lossy(&bytes))
    }

    /// Lets it end by itself for a moment, now that its input is closed, then kills what is left of its group.
    pub(super) async fn end(mut self) {
        let started = Instant::now();
        while !self.is_over() && started.elapsed() < GRACE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.kill();
        drop(self.child.wait().await);
    }

    /// Whether it ended; it stays a zombie, so that its number still names its group alone.
    fn is_over(&self) -> bool {
        let Some(pid) = self.pid else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    fn kill(&mut self) {
        if let Some(pid) = self.pid.take() {
            // Fails only when nobody of the group is left.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn keep_last(mut pipe: ChildStderr, into: Arc<Mutex<VecDeque<u8>>>) {
    let mut piece = [0; 1024];
    while let Ok(n @ 1..) = pipe.read(&mut piece).await {
        let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&piece[..n]);
        let over = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..over);
    }
}
