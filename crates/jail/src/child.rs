//! One running program with its three pipes, driven without threads: every wait is a `poll` with a deadline, so a program
//! that neither reads nor writes nor ends cannot hold its caller.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::confine::{self, Jailed, Pipes};
use crate::watch::{SHELL, Watched};
use crate::{Exit, JailError, Layers, Spec, layers};

/// The longest sleep between two looks at the cancellation flag and at whether the program ended.
const TICK: Duration = Duration::from_millis(10);

pub(crate) struct Running {
    name: String,
    process: Process,
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
    /// What it wrote to standard output and nobody took yet.
    pub(crate) out: Vec<u8>,
    err: Vec<u8>,
    max_stdout_bytes: usize,
    max_stderr_bytes: usize,
    ended: Option<Exit>,
}

/// The program with everything that has to end with it.
enum Process {
    /// A process group; not watched any more once it is about to be reaped.
    Group {
        child: Child,
        watched: Option<Watched>,
    },
    Jailed(Jailed),
}

impl Process {
    fn pid(&self) -> Pid {
        match self {
            Process::Group { child, .. } => Pid::from_child(child),
            Process::Jailed(jailed) => jailed.pid(),
        }
    }

    /// Kills and reaps. The program itself may be dead but is not reaped, so its number cannot belong to anyone else yet.
    fn end(&mut self) -> io::Result<Exit> {
        match self {
            Process::Group { child, watched } => {
                let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
                *watched = None;
                Ok(Exit::of(child.wait()?))
            }
            Process::Jailed(jailed) => {
                jailed.kill();
                jailed.end()
            }
        }
    }
}

/// What a round of waiting ended with.
pub(crate) enum Pulse {
    /// Pipes moved, or a tick passed.
    Alive,
    /// The program ended; all it wrote is in the buffers, its group is killed and it is reaped.
    Ended(Exit),
}

impl Running {
    pub(crate) fn start(spec: &Spec) -> Result<Self, JailError> {
        // What the system offers is looked at only where it matters.
        match spec.confinement {
            Some(_) => Self::start_behind(spec, layers()),
            None => Self::start_plain(spec),
        }
    }

    /// Starts a confined program on a system with these layers.
    pub(crate) fn start_behind(spec: &Spec, layers: &Layers) -> Result<Self, JailError> {
        let Some(rules) = &spec.confinement else { return Self::start_plain(spec) };
        let (jailed, pipes) = confine::start(spec, rules, layers)?;
        Self::begin(spec, Process::Jailed(jailed), pipes)
    }

    fn start_plain(spec: &Spec) -> Result<Self, JailError> {
        let program = spec.name();
        let mut child = spec.command().spawn().map_err(|source| JailError::Spawn { program, source })?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut process = Process::Group { child, watched: None };
        let watched = Watched::new(process.pid());
        let (watched, stdin, stdout, stderr) = match (watched, stdin, stdout, stderr) {
            (Ok(watched), Some(stdin), Some(stdout), Some(stderr)) => (watched, stdin, stdout, stderr),
            (watched, ..) => {
                let _ = process.end();
                let source = watched.err().unwrap_or_else(|| ErrorKind::BrokenPipe.into());
                return Err(JailError::Spawn { program: SHELL.to_owned(), source });
            }
        };
        if let Process::Group { watched: slot, .. } = &mut process {
            *slot = Some(watched);
        }
        let file = |pipe: OwnedFd| File::from(pipe);
        let pipes = Pipes { stdin: file(stdin.into()), stdout: file(stdout.into()), stderr: file(stderr.into()) };
        Self::begin(spec, process, pipes)
    }

    fn begin(spec: &Spec, process: Process, pipes: Pipes) -> Result<Self, JailError> {
        let running = Running {
            name: spec.name(),
            process,
            stdin: Some(pipes.stdin),
            stdout: Some(pipes.stdout),
            stderr: Some(pipes.stderr),
            out: Vec::new(),
            err: Vec::new(),
            max_stdout_bytes: spec.max_stdout_bytes,
            max_stderr_bytes: spec.max_stderr_bytes,
            ended: None,
        };
        // From here on a failure drops `running`, which kills and reaps.
        running.set_nonblocking().map_err(|source| running.lost(source))?;
        Ok(running)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        fn set(pipe: &Option<impl AsFd>) -> io::Result<()> {
            if let Some(pipe) = pipe {
                fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
            }
            Ok(())
        }
        set(&self.stdin)?;
        set(&self.stdout)?;
        set(&self.stderr)
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    pub(crate) fn lost(&self, source: io::Error) -> JailError {
        JailError::Io { program: self.name(), source }
    }

    /// The end of standard error as text.
    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    pub(crate) fn take_stderr(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.err)
    }

    /// Tells the program that no more input comes.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Moves whatever the pipes allow, sleeping until one of them can move, a tick passed or the deadline is reached.
    ///
    /// `input` loses what was written; a program that closed its input gets the rest dropped, since its exit status and
    /// answer decide.
    pub(crate) fn pulse(
        &mut self,
        input: &mut &[u8],
        started: Instant,
        deadline: Duration,
        cancel: &AtomicBool,
    ) -> Result<Pulse, JailError> {
        if let Some(exit) = self.ended {
            return Ok(Pulse::Ended(exit));
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(JailError::Cancelled);
        }
        let left = deadline.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(JailError::Deadline { program: self.name(), deadline, stderr: self.stderr_text() });
        }
        self.wait(!input.is_empty(), left.min(TICK)).map_err(|e| self.lost(e))?;
        self.write(input).map_err(|e| self.lost(e))?;
        self.read()?;
        if !self.has_ended().map_err(|e| self.lost(e))? {
            return Ok(Pulse::Alive);
        }
        // What it wrote before dying is in the pipes. A grandchild that keeps them open is not waited for.
        let exit = self.process.end().map_err(|e| self.lost(e))?;
        self.ended = Some(exit);
        self.read()?;
        Ok(Pulse::Ended(exit))
    }

    fn wait(&self, wants_to_write: bool, at_most: Duration) -> io::Result<()> {
        let mut fds = Vec::with_capacity(3);
        fn watch<'a>(fds: &mut Vec<PollFd<'a>>, pipe: &'a Option<impl AsFd>, flags: PollFlags) {
            if let Some(pipe) = pipe {
                fds.push(PollFd::new(pipe, flags));
            }
        }
        if wants_to_write {
            watch(&mut fds, &self.stdin, PollFlags::OUT);
        }
        watch(&mut fds, &self.stdout, PollFlags::IN);
        watch(&mut fds, &self.stderr, PollFlags::IN);
        // With no pipe left only the end of the process is awaited, which `poll` cannot see: look often.
        let at_most = if fds.is_empty() { at_most.min(Duration::from_millis(1)) } else { at_most };
        let at_most = Timespec { tv_sec: 0, tv_nsec: at_most.subsec_nanos().into() };
        match poll(&mut fds, Some(&at_most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn write(&mut self, input: &mut &[u8]) -> io::Result<()> {
        while let (Some(stdin), false) = (&mut self.stdin, input.is_empty()) {
            match stdin.write(input) {
                Ok(n) => *input = &input[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                    self.stdin = None;
                    *input = &[];
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes what the program wrote so far, without waiting.
    pub(crate) fn read(&mut self) -> Result<(), JailError> {
        let name = &self.name;
        let lost = |source| JailError::Io { program: name.clone(), source };
        let limit = self.max_stdout_bytes;
        drain(&mut self.stdout, &mut self.out, |out| out.len() <= limit).map_err(lost)?;
        if self.out.len() > limit {
            return Err(JailError::Output { program: self.name(), limit });
        }
        let keep = self.max_stderr_bytes;
        drain(&mut self.stderr, &mut self.err, |err| {
            err.drain(..err.len().saturating_sub(keep));
            true
        })
        .map_err(lost)
    }

    fn has_ended(&self) -> io::Result<bool> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.process.pid()), how) {
            Ok(status) => Ok(status.is_some()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.process.end();
        }
    }
}

/// Reads what is there without waiting, in bounded pieces; `goes_on` sees the buffer after each and may stop.
fn drain<P: Read>(
    pipe: &mut Option<P>,
    into: &mut Vec<u8>,
    mut goes_on: impl FnMut(&mut Vec<u8>) -> bool,
) -> io::Result<()> {
    let mut piece = [0; 16 << 10];
    // A program that writes as fast as this reads must not keep the loop from looking at the deadline.
    for _ in 0..64 {
        let Some(open) = pipe else { return Ok(()) };
        match open.read(&mut piece) {
            Ok(0) => *pipe = None,
            Ok(n) => {
                into.extend_from_slice(&piece[..n]);
                if !goes_on(into) {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
