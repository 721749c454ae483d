//! A study: lag × correction × seed at one budget of generated tokens, each an ordinary run directory.
//!
//! A [`Plan`] says which runs there are and is checked whole before anything is opened. A [`Study`] is its folder: what is
//! done is read from the run directories, so a study that was killed goes on at the run, and the step, where it stopped.
//!
//! ```text
//! STUDY/
//!   study.json                    the plan
//!   cells/lag-4_tis_seed-2/       a run directory; cell.json in it says how it ended
//! ```
//!
//! What is held equal and what is not: `docs/study-lag.md`.

mod cell;
mod gather;
mod plan;

pub use plan::{Grid, Plan};

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use eval::study::{Cell, Report, Twin};
use store::{RunDir, StoreError};
use tensor::Cpu;

use crate::{Progress, RunError};

const PLAN: &str = "study.json";
const CELLS: &str = "cells";
/// Starts the name of what is being written.
const UNFINISHED: &str = ".tmp-";

/// Why a study cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// What was asked for makes no study.
    #[error("{0}")]
    Plan(String),
    /// A run of it.
    #[error("{cell}, seed {seed}: {source}")]
    Run {
        /// How it trains.
        cell: Cell,
        /// Its seed.
        seed: u64,
        /// What happened.
        source: Box<RunError>,
    },
    /// The runs cannot be compared.
    #[error(transparent)]
    Compare(#[from] eval::study::StudyError),
    /// A run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The study's own files.
    #[error("cannot use `{path}`: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder is no study, or not one of this program's.
    #[error("`{path}` {reason}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl StudyError {
    fn of_run(cell: &Cell, seed: u64, error: RunError) -> Self {
        StudyError::Run { cell: cell.clone(), seed, source: Box::new(error) }
    }

    /// Whether the user stopped it, so that nothing is wrong.
    pub fn is_interrupt(&self) -> bool {
        matches!(self, StudyError::Run { source, .. } if matches!(**source, RunError::Interrupted))
    }
}

/// A run that is still to be made, or to be finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// How it trains.
    pub cell: Cell,
    /// Its seed.
    pub seed: u64,
    /// Which run it is, from 1.
    pub number: usize,
    /// Runs there will be, as far as is known: a run that turns out to equal another is made once.
    pub of: usize,
    /// Sampled tokens after which it ends; none for the run that sets the budget.
    pub budget: Option<u64>,
}

/// A study's folder.
#[derive(Debug)]
pub struct Study {
    folder: PathBuf,
    plan: Plan,
}

impl Study {
    /// Makes the folder of a new study.
    ///
    /// - Errors: [`StudyError::Folder`] when something is there already.
    pub fn create(folder: &Path, plan: Plan) -> Result<Study, StudyError> {
        let io = |source| StudyError::Io { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        if std::fs::read_dir(folder).map_err(io)?.next().is_some() {
            let reason = "is not empty, needed a new or empty folder".to_owned();
            return Err(StudyError::Folder { path: folder.to_owned(), reason });
        }
        let study = Study { folder: folder.to_owned(), plan };
        let mut text = serde_json::to_vec_pretty(&study.plan).map_err(|e| StudyError::Plan(e.to_string()))?;
        text.push(b'\n');
        study.write(PLAN, &text)?;
        Ok(study)
    }

    /// Opens the folder of a study that began.
    ///
    /// - Errors: [`StudyError::Folder`] when it is none, or one of another version of this program.
    pub fn open(folder: &Path) -> Result<Study, StudyError> {
        let wrong = |reason: String| StudyError::Folder { path: folder.to_owned(), reason };
        let path = folder.join(PLAN);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Err(wrong(format!("is no study: it has no `{PLAN}`")));
            }
            Err(source) => return Err(StudyError::Io { path, source }),
        };
        let plan: Plan = serde_json::from_str(&text).map_err(|e| wrong(format!("has a damaged `{PLAN}`: {e}")))?;
        let (was, is) = (&plan.version, env!("CARGO_PKG_VERSION"));
        if was != is {
            return Err(wrong(format!("was begun by version {was}, needed the same, got {is}")));
        }
        Ok(Study { folder: folder.to_owned(), plan })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A run's directory.
    pub fn cell_folder(&self, cell: &Cell, seed: u64) -> PathBuf {
        self.folder.join(cell_path(cell, seed))
    }

    /// The first run that is not done; none when all are.
    ///
    /// - Holds: depends on the plan and the run directories alone; lag 0 / none with the first seed comes first, since it
    ///   may set the budget.
    pub fn next(&self) -> Result<Option<Next>, StudyError> {
        let runs = self.runs()?;
        for (index, (cell, seed)) in runs.iter().enumerate() {
            if !cell::is_done(&self.cell_folder(cell, *seed))? {
                let (cell, number, of) = (cell.clone(), index + 1, runs.len());
                let first = cell.is_baseline() && Some(seed) == self.plan.seeds.first();
                let budget = if first { self.plan.tokens } else { Some(self.budget()?) };
                return Ok(Some(Next { cell, seed: *seed, number, of, budget }));
            }
        }
        Ok(None)
    }

    /// Makes or finishes a run.
    ///
    /// - Errors: [`StudyError::Run`]; with [`RunError::Interrupted`] in it the run goes on where it stopped next time.
    pub fn run(
        &self,
        next: &Next,
        model: &Path,
        cpu: Cpu,
        progress: &mut dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<(), StudyError> {
        let seed = self.plan.seeds.first().copied().unwrap_or(next.seed);
        let job = cell::Job {
            first: &self.cell_folder(&Cell::baseline(), seed),
            folder: &self.cell_folder(&next.cell, next.seed),
            settings: self.plan.settings_within(&next.cell, next.seed, next.budget)?,
            base: &self.plan.base,
            model,
            budget: next.budget,
        };
        cell::run(&job, cpu, progress, cancel).map_err(|e| StudyError::of_run(&next.cell, next.seed, e))
    }

    /// What the runs came to.
    ///
    /// - Holds: follows from the plan and the run directories, and holds no clock and no run's id: a study that was
    ///   interrupted gives the bytes of one that was not.
    pub fn report(&self) -> Result<Report, StudyError> {
        gather::report(self)
    }

    /// Writes a file of the study whole or not at all.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, StudyError> {
        let path = self.folder.join(name);
        let io = |source| StudyError::Io { path: path.clone(), source };
        let unfinished = self.folder.join(format!("{UNFINISHED}{name}"));
        let mut file = std::fs::File::create(&unfinished).map_err(io)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&unfinished, &path).map_err(io)?;
        Ok(path)
    }

    /// Sampled tokens after which runs end: as asked, or what lag 0 / none used with the first seed.
    pub(crate) fn budget(&self) -> Result<u64, StudyError> {
        match (self.plan.tokens, self.plan.seeds.first()) {
            (Some(tokens), _) => Ok(tokens),
            (None, Some(seed)) => Ok(gather::tokens(&RunDir::read(&self.cell_folder(&Cell::baseline(), *seed))?)?),
            (None, None) => Err(StudyError::Plan("a study needs at least 1 seed, got 0".to_owned())),
        }
    }

    /// Every run, in the order they are made: all cells with the first seed, then with the next, without those that are
    /// known to equal another.
    fn runs(&self) -> Result<Vec<(Cell, u64)>, StudyError> {
        let twins: BTreeSet<Cell> = self.twins()?.into_iter().map(|t| t.cell).collect();
        let cells = self.plan.cells();
        let mut runs = Vec::new();
        for (index, seed) in self.plan.seeds.iter().enumerate() {
            runs.extend(cells.iter().filter(|c| index == 0 || !twins.contains(*c)).map(|c| (c.clone(), *seed)));
        }
        Ok(runs)
    }

    /// Cells that are lag 0 / none under another name, as the first seed's runs show: a correction weighs exactly 1 where
    /// nothing is late, and then every bit is the same.
    pub(crate) fn twins(&self) -> Result<Vec<Twin>, StudyError> {
        let Some(seed) = self.plan.seeds.first() else { return Ok(Vec::new()) };
        let of = Cell::baseline();
        let mut twins = Vec::new();
        for cell in self.plan.cells().into_iter().filter(|c| c.lag == 0 && !c.is_baseline()) {
            if gather::same_bits(&self.cell_folder(&of, *seed), &self.cell_folder(&cell, *seed))? {
                twins.push(Twin { cell, of: of.clone(), seed: *seed });
            }
        }
        Ok(twins)
    }
}

/// A run's directory, from the study's folder.
pub(crate) fn cell_path(cell: &Cell, seed: u64) -> PathBuf {
    Path::new(CELLS).join(format!("lag-{}_{}_seed-{seed}", cell.lag, cell.correction))
}
