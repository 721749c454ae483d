//! What every command is given: where things live, how to compute, where to print, when to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remote::ModelStore;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use store::Index;
use tensor::{Cpu, Isa};

use crate::args::Global;
use crate::error::{Code, Failure};
use crate::open::{self, Located};
use crate::out::Out;

/// The surroundings of a command.
#[derive(Debug)]
pub(crate) struct Context {
    /// Standard output.
    pub(crate) out: Out,
    /// Threads to compute with.
    pub(crate) n_threads: usize,
    /// The vector set to compute with.
    pub(crate) isa: Isa,
    /// The folder of models and of the index of runs.
    pub(crate) root: PathBuf,
    /// Becomes true when the user wants to stop.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Context {
    /// Reads the environment and listens for the user's wish to stop: the first signal asks, the second one ends.
    pub(crate) fn new(global: &Global) -> Result<Context, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag raised by the first.
            flag::register_conditional_shutdown(signal, Code::Interrupted as i32, Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .map_err(|e| Failure::failed("cannot listen for Ctrl-C").why(e.to_string()))?;
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Context {
            out: Out::new(global.json),
            n_threads: global.threads.map_or_else(cores, usize::from),
            isa: isa(variable("SUREFOOT_ISA"))?,
            root: store::default_root(&variable),
            stop,
        })
    }

    /// Whether results are JSON lines.
    pub(crate) fn json(&self) -> bool {
        self.out.is_json()
    }

    /// Whether the user wants to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the command if the user wants to stop.
    pub(crate) fn check_stop(&self) -> Result<(), Failure> {
        if self.is_stopped() { Err(Failure::interrupted()) } else { Ok(()) }
    }

    /// A remark for a person, on standard error; nothing with `--json`.
    pub(crate) fn note(&self, text: &str) {
        use std::io::Write;
        if !self.json() {
            let _ = writeln!(std::io::stderr().lock(), "{}", view::visible(text));
        }
    }

    /// The processor as kernels see it.
    pub(crate) fn cpu(&self) -> Result<Cpu, Failure> {
        Ok(Cpu::new(self.isa, self.n_threads)?)
    }

    /// The folder of models.
    pub(crate) fn models(&self) -> ModelStore {
        ModelStore::new(store::models_folder(&self.root))
    }

    /// The index of runs.
    pub(crate) fn runs(&self) -> Result<Index, Failure> {
        Ok(Index::open(&self.root)?)
    }

    /// Finds a model by what the user calls it: a known or installed name, a path, or `RUN[@STEP]`.
    pub(crate) fn locate(&self, model: &str) -> Result<Located, Failure> {
        open::locate(self, model)
    }
}

/// A variable of the environment that is set, is text and is not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

fn isa(wanted: Option<String>) -> Result<Isa, Failure> {
    match wanted {
        None => Ok(Isa::best()),
        Some(text) => {
            text.parse().map_err(|e: tensor::CpuError| Failure::from(e).at("environment variable `SUREFOOT_ISA`"))
        }
    }
}

/// A path for a person.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}
