//! Runs a shell command in the folder, behind the jail's walls: it sees the system's programs, the folder, a private `/tmp`,
//! and no network.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use episode::{Cause, ToolSpec};
use gate::Answer;
use guard::{Labels, Origin};
use jail::{JailError, Rules, Spec, run_once};
use serde_json::{Map, Value};

use super::{Tool, Workplace, refused, shortened, text, texts};

const NAME: &str = "shell";
/// How long a command may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// See the [module](self).
pub(super) struct Shell(pub(super) Workplace);

impl Tool for Shell {
    fn spec(&self) -> ToolSpec {
        let command = [("command", "for `sh`, run in the folder")];
        ToolSpec::new(NAME, "Runs a shell command without network and tells what it printed.", "execute", texts(&command))
            .touching(["internal"])
    }

    fn call(&mut self, arguments: &Map<String, Value>) -> Result<Answer, Cause> {
        let command = match text(arguments, "command") {
            Ok(command) => command,
            Err(why) => return Ok(refused(NAME, why)),
        };
        let folder = self.0.folder.canonicalize().map_err(|e| Cause::new("folder", e.to_string()))?;
        let mut spec = Spec::new("sh").args(["-s"]).deadline(DEADLINE);
        if !self.0.unjailed {
            spec = spec.confined(Rules { write: vec![folder.clone()], ..Rules::default() });
        }
        spec.folder = Some(folder);
        // Through standard input, since a long command does not fit an argument.
        let finished = match run_once(&spec, command.as_bytes(), &AtomicBool::new(false)) {
            Ok(finished) => finished,
            Err(e @ (JailError::Deadline { .. } | JailError::Output { .. } | JailError::Ended { .. })) => {
                return Ok(refused(NAME, e.to_string()));
            }
            Err(e) => return Err(Cause::new("jail", e.to_string())),
        };
        let mut said = String::from_utf8_lossy(&finished.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&finished.stderr));
        if !finished.exit.success() {
            said.push_str(&format!("\n({})", finished.exit));
        }
        let text = if said.trim().is_empty() { "(nothing printed)".to_owned() } else { shortened(said) };
        let labels = Labels::untrusted(Origin::Tool(NAME.to_owned()));
        Ok(Answer { text, labels, ok: finished.exit.success() })
    }
}
