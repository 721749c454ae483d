//! Kills the programs that are left when this process dies without a word, by `kill -9` or for want of memory: a shell is
//! told of every process group that starts and ends, and kills those still there when its input ends.
//!
//! The kernel's own way, `PR_SET_PDEATHSIG`, is not taken: it reaches the program but none of its children; it comes when
//! the *thread* that started the program ends, while a [`Session`](crate::Session) outlives the thread that began it; and
//! setting it between fork and exec would copy the page tables of a process that holds a model, at every start.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::Pid;

/// Where POSIX systems have their shell.
pub(crate) const SHELL: &str = "/bin/sh";

const SCRIPT: &str = r#"live=' '
while read -r what group; do
    case $what$live in
        start*) live="$live$group ";;
        end*" $group "*) live="${live%% $group *} ${live#* $group }";;
    esac
done
for group in $live; do kill -s KILL -- "-$group"; done"#;

/// The one shell of this process, once a program was started.
static WATCHER: Mutex<Option<Child>> = Mutex::new(None);

/// A process group that does not outlive this process.
#[derive(Debug)]
pub(crate) struct Watched(Pid);

impl Watched {
    pub(crate) fn new(group: Pid) -> io::Result<Self> {
        let mut watcher = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
        let message = format!("start {group}\n");
        if watcher.as_mut().is_some_and(|shell| tell(shell, &message).is_err()) {
            // Somebody killed it. What it knew of is still killed by this process, unless that dies as well.
            watcher.take().map(|mut shell| shell.wait()).transpose()?;
        }
        if watcher.is_none() {
            let mut shell = start()?;
            tell(&mut shell, &message)?;
            *watcher = Some(shell);
        }
        Ok(Watched(group))
    }
}

impl Drop for Watched {
    /// To be dropped while the group's number cannot yet belong to another one.
    fn drop(&mut self) {
        let mut watcher = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
        // A shell that is gone knows of no group.
        let _ = watcher.as_mut().map(|shell| tell(shell, &format!("end {}\n", self.0)));
    }
}

/// In a group of its own, out of reach of a terminal's signals.
fn start() -> io::Result<Child> {
    let mut command = Command::new(SHELL);
    command.args(["-c", SCRIPT]).env_clear().current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

fn tell(shell: &mut Child, message: &str) -> io::Result<()> {
    shell.stdin.as_mut().map_or(Ok(()), |pipe| pipe.write_all(message.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn when_its_input_ends_the_shell_kills_the_groups_that_have_not_ended() {
        let mut sleepers: Vec<Child> =
            (0..4).map(|_| Command::new("sleep").arg("300").process_group(0).spawn().unwrap()).collect();
        let mut shell = start().unwrap();
        for (what, index) in
            [("start", 0), ("start", 1), ("end", 0), ("end", 3), ("start", 2), ("start", 3), ("end", 2), ("start", 0)]
        {
            tell(&mut shell, &format!("{what} {}\n", sleepers[index].id())).unwrap();
        }
        assert!(sleepers.iter_mut().all(|s| s.try_wait().unwrap().is_none()));
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        for index in [0, 1, 3] {
            assert_eq!(sleepers[index].wait().unwrap().signal(), Some(9), "{index}");
        }
        assert!(sleepers[2].try_wait().unwrap().is_none(), "it ended, so its number may be another's");
        sleepers[2].kill().unwrap();
        sleepers[2].wait().unwrap();
    }

    #[test]
    fn a_shell_that_was_killed_is_replaced() {
        let group = |child: &Child| Pid::from_child(child);
        let mut sleeper = Command::new("sleep").arg("300").process_group(0).spawn().unwrap();
        let id = || WATCHER.lock().unwrap().as_ref().map(Child::id);
        let first = Watched::new(group(&sleeper)).unwrap();
        let before = id().unwrap();
        WATCHER.lock().unwrap().as_mut().unwrap().kill().unwrap();
        // Its end of the pipe closes a moment after the signal.
        let second = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let watched = Watched::new(group(&sleeper)).unwrap();
            (id() != Some(before)).then_some(watched)
        });
        assert!(second.is_some());
        drop((first, second));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
