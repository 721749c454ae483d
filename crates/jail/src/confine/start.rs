//! Starts, ends and tries out confined programs from outside.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use tempfile::TempDir;

use super::clone::{Blocked, Stack, share};
use super::inside::{self, Stage};
use super::plan::Plan;
use super::sys::{Errno, Report, Step, call};
use super::{Pipes, files};
use crate::watch::Watched;
use crate::{Exit, JailError, Layer, Layers, Rules, Spec};

/// How long a killed namespace may take to be gone before this stops waiting; the kernel is done in milliseconds.
const GONE_WITHIN_S: i64 = 10;

/// A confined program with all that dies with it.
pub(crate) struct Jailed {
    pid: Pid,
    /// Without namespaces the group is all there is to kill, and is killed by the watching shell if this process dies.
    alone: Option<Watched>,
    init: Option<Init>,
    _temp: Option<TempDir>,
}

impl Jailed {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills all of it; the program is there to be waited for.
    pub(crate) fn kill(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
        if let Some(init) = &self.init {
            let _ = kill_process(init.pid, Signal::KILL);
        }
    }

    /// To be called after `kill`: waits until everything is gone, and says how the program ended.
    pub(crate) fn end(&mut self) -> io::Result<Exit> {
        self.alone = None;
        // The namespace's first process cannot end before the program was waited for, which is this process's child.
        let exit = wait(self.pid);
        self.init = None;
        exit
    }
}

/// The first process of a namespace; when it is gone, so is every other one.
struct Init {
    pid: Pid,
    handle: OwnedFd,
    /// The end of its input; closed when this process dies, it ends.
    _lifeline: OwnedFd,
}

impl Drop for Init {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let within = Timespec { tv_sec: GONE_WITHIN_S, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&within));
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
    }
}

/// Waits for a child that ends.
fn wait(pid: Pid) -> io::Result<Exit> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(Exit::of_raw(status.as_raw())),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Starts a program behind its walls, or says which of them is missing.
pub(crate) fn start(spec: &Spec, rules: &Rules, layers: &Layers) -> Result<(Jailed, Pipes), JailError> {
    let missing = layers.missing(rules);
    if !missing.is_empty() {
        return Err(JailError::Missing { program: spec.name(), layers: layers.reasons(&missing) });
    }
    let lost = |source| JailError::Spawn { program: spec.name(), source };
    let mut plan = Plan::new(spec, rules, layers)?;
    let (theirs, ours) = pipes().map_err(lost)?;
    let fds = theirs.each_ref().map(AsRawFd::as_raw_fd);
    let entered = enter(&plan, Some(fds)).map_err(|failure| failure.explain(spec, &plan))?;
    // A start with pipes has a program.
    let pid = entered.program.ok_or_else(|| lost(io::ErrorKind::NotFound.into()))?;
    let mut jailed = Jailed { pid, alone: None, init: entered.init, _temp: plan.temp.take() };
    if jailed.init.is_none() {
        match Watched::new(pid) {
            Ok(watched) => jailed.alone = Some(watched),
            Err(source) => {
                jailed.kill();
                let _ = jailed.end();
                return Err(lost(source));
            }
        }
    }
    Ok((jailed, ours))
}

/// Tries what a start would do, without a program.
pub(crate) fn probe() -> Layers {
    let landlock = files::version();
    let needs = |abi: i32| format!("needed version {abi} of Landlock's interface, got {landlock}");
    let mut absent = BTreeMap::new();
    for (layer, abi) in [(Layer::Files, 1), (Layer::Network, 4), (Layer::Scopes, 6)] {
        if landlock < abi {
            absent.insert(layer, needs(abi));
        }
    }
    if let Err(why) = filters_work() {
        absent.insert(Layer::SystemCalls, why);
    }
    let mut layers = Layers { absent, landlock, own_proc: false };
    let mut tried = try_namespaces(&layers);
    if let Err(Trial { no_limit: Some(why), .. }) = &tried {
        layers.absent.insert(Layer::Processes, why.clone());
        tried = try_namespaces(&layers);
    }
    match tried {
        Ok(own_proc) => layers.own_proc = own_proc,
        Err(trial) => {
            layers.absent.insert(Layer::Namespaces, trial.why);
            let why = "without an own user namespace the kernel counts all the processes of a user".to_owned();
            layers.absent.insert(Layer::Processes, why);
            // Before that version a file could be cut to nothing, which read-only mounts prevent where there are some.
            if landlock < 3 {
                layers.absent.insert(Layer::Files, needs(3));
            }
        }
    }
    layers
}

/// Why the namespaces were not to be had.
struct Trial {
    why: String,
    /// Why root's processes cannot be bounded, if that was it.
    no_limit: Option<String>,
}

/// Makes the namespaces of a confined program once; says whether it gets a `/proc`.
fn try_namespaces(layers: &Layers) -> Result<bool, Trial> {
    let spec = Spec::new("true");
    let plan = Plan::new(&spec, &Rules::default(), layers).map_err(|e| Trial { why: e.to_string(), no_limit: None })?;
    enter(&plan, None).map(|entered| entered.own_proc).map_err(|failure| Trial {
        no_limit: failure.pid_max.map(|errno| format!("for root: {}", io::Error::from_raw_os_error(errno))),
        why: failure.what(&plan),
    })
}

/// Whether the kernel takes filters, and this architecture's numbers are known.
fn filters_work() -> Result<(), String> {
    const IS_AVAILABLE: c_int = 2;
    super::calls::filters(super::calls::Sockets::Pairs).map_err(|e| e.to_string())?;
    let action = libc::SECCOMP_RET_ERRNO;
    let asked = call!(libc::SYS_seccomp, IS_AVAILABLE, 0, &raw const action);
    asked.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno).to_string())
}

struct Entered {
    program: Option<Pid>,
    init: Option<Init>,
    own_proc: bool,
}

/// What a child failed at.
struct Failure {
    step: Step,
    item: Option<usize>,
    errno: Errno,
    /// Why the bound on process numbers could not be set, if that was tried and failed.
    pid_max: Option<Errno>,
}

impl Failure {
    fn of(report: &Report) -> Result<(), Self> {
        let pid_max = report.pid_max.load(Ordering::Relaxed);
        match report.failure() {
            Some((step, item, errno)) => Err(Failure { step, item, errno, pid_max: (pid_max != 0).then_some(pid_max) }),
            None => Ok(()),
        }
    }

    fn at(step: Step, errno: Errno) -> Self {
        Failure { step, item: None, errno, pid_max: None }
    }

    fn source(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }

    /// The step and the path it was about.
    fn step(&self, plan: &Plan) -> String {
        let place = self.item.and_then(|item| plan.place(item));
        let path = place.map(|place| format!(" `{}`", place.path.display()));
        format!("{}{}", self.step.text(), path.unwrap_or_default())
    }

    fn what(&self, plan: &Plan) -> String {
        format!("{}: {}", self.step(plan), self.source())
    }

    fn explain(self, spec: &Spec, plan: &Plan) -> JailError {
        match self.step {
            Step::Exec => JailError::Spawn { program: spec.name(), source: self.source() },
            _ => JailError::Confine { program: spec.name(), step: self.step(plan), source: self.source() },
        }
    }
}

/// Makes the namespaces, if there are any, and starts the program in them, if there are pipes for one.
fn enter(plan: &Plan, pipes: Option<[c_int; 3]>) -> Result<Entered, Failure> {
    let begin = |e: rustix::io::Errno| Failure::at(Step::Begin, e.raw_os_error());
    let memory = |e: io::Error| Failure::at(Step::Begin, e.raw_os_error().unwrap_or(libc::ENOMEM));
    let [arguments, variables] = plan.program.pointers();
    let first = Stack::new().map_err(memory)?;
    let (their_end, our_end) = pipe_with(PipeFlags::CLOEXEC).map_err(begin)?;
    let their_end = above_stdio(their_end).map_err(begin)?;
    let mut stage = Stage {
        plan,
        report: Report::default(),
        arguments: &arguments,
        variables: &variables,
        pipes: pipes.unwrap_or([-1; 3]),
        lifeline: their_end.as_raw_fd(),
        init: -1,
        stack: Stack::new().map_err(memory)?,
    };
    let _blocked = Blocked::all();
    let mut init = None;
    if let Some(own) = &plan.own {
        let mut handle = -1;
        // SAFETY: the stage is what `init` takes, which only makes system calls; signals are blocked.
        let pid = unsafe { share(&first, own.flags | libc::CLONE_PIDFD, inside::init, &stage, &mut handle) };
        let pid = pid.and_then(process).map_err(|errno| Failure::at(Step::User, errno))?;
        // SAFETY: the kernel opened it for this call, and nobody else knows of it.
        let handle = unsafe { OwnedFd::from_raw_fd(handle) };
        stage.init = handle.as_raw_fd();
        init = Some(Init { pid, handle, _lifeline: our_end });
        Failure::of(&stage.report)?;
    }
    let own_proc = stage.report.own_proc.load(Ordering::Relaxed);
    if pipes.is_none() {
        return Ok(Entered { program: None, init, own_proc });
    }
    let program = match init {
        Some(_) => {
            // SAFETY: as above; `usher` passes the stage on to `program`.
            let usher = unsafe { share(&first, 0, inside::usher, &stage, &mut -1) };
            let usher = usher.and_then(process).map_err(|errno| Failure::at(Step::Enter, errno))?;
            let _ = wait(usher);
            stage.report.program.load(Ordering::Relaxed)
        }
        // SAFETY: as above.
        None => unsafe { share(&stage.stack, 0, inside::program, &stage, &mut -1) }
            .map_err(|errno| Failure::at(Step::Clone, errno))?,
    };
    let program = process(program);
    if let Err(failure) = Failure::of(&stage.report) {
        // It ended without becoming the program; its namespace cannot end before it was waited for.
        if let Ok(program) = program {
            let _ = wait(program);
        }
        return Err(failure);
    }
    let program = program.map_err(|errno| Failure::at(Step::Clone, errno))?;
    Ok(Entered { program: Some(program), init, own_proc })
}

fn process(number: i32) -> Result<Pid, Errno> {
    Pid::from_raw(number).filter(|_| number > 0).ok_or(libc::ESRCH)
}

/// The same descriptor with a number that standard input, output and error do not have, should the caller have closed its own.
fn above_stdio(fd: OwnedFd) -> Result<OwnedFd, rustix::io::Errno> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { fcntl_dupfd_cloexec(&fd, 3) }
}

/// The program's ends and ours.
fn pipes() -> io::Result<([OwnedFd; 3], Pipes)> {
    let [stdin, stdout, stderr] =
        [pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?];
    let theirs = [above_stdio(stdin.0)?, above_stdio(stdout.1)?, above_stdio(stderr.1)?];
    Ok((theirs, Pipes { stdin: File::from(stdin.1), stdout: File::from(stdout.0), stderr: File::from(stderr.0) }))
}
