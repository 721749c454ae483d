//! A witness remembers, away from the log, the last checkpoint it saw.
//!
//! Whoever has a log's key can write its whole history anew, and whoever has its disk can cut its end off; neither can
//! change what a witness saw.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, LONGEST_NOTE};
use crate::disk::{read, write_durably};
use crate::error::{Fault, LedgerError};
use crate::key::Verifier;
use crate::proof::Consistency;
use crate::verify::{Look, Verified, verify_with};

/// A file that remembers the last checkpoint of one log.
#[derive(Debug)]
pub struct Witness {
    path: PathBuf,
    verifier: Verifier,
    known: Option<Checkpoint>,
}

impl Witness {
    /// Opens a witness's file, which need not be there yet: the first checkpoint seen is believed.
    ///
    /// - Errors: `Damaged` if what is in it is no checkpoint of that log.
    pub fn open(path: &Path, verifier: Verifier) -> Result<Self, LedgerError> {
        let what = path.display().to_string();
        let known = read(path, LONGEST_NOTE)?.map(|note| Checkpoint::open_as(&note, &verifier, &what)).transpose()?;
        Ok(Self { path: path.to_path_buf(), verifier, known })
    }

    /// The last checkpoint seen.
    pub fn known(&self) -> Option<&Checkpoint> {
        self.known.as_ref()
    }

    /// Takes note of a checkpoint that was proved to continue the known one.
    ///
    /// - Errors: `Damaged` with `Origin`, `RolledBack`, `Rewritten` or `Proof`; then it is not taken note of.
    pub fn observe(&mut self, next: Checkpoint, proof: &Consistency) -> Result<(), LedgerError> {
        match &self.known {
            Some(known) => proof.check(known, &next)?,
            None if next.origin() != self.verifier.name() => {
                let (needed, got) = (self.verifier.name().to_owned(), next.origin().to_owned());
                return Err(Fault::Origin { what: "a checkpoint".to_owned(), needed, got }.into());
            }
            None => (),
        }
        self.remember(next)
    }

    /// Verifies a log in full against the known checkpoint, and remembers its own if nothing is wrong.
    ///
    /// - Errors: as [`crate::verify`]; `Io` if it cannot be remembered.
    pub fn visit(&mut self, dir: &Path) -> Result<Verified, Vec<Fault>> {
        self.visit_with(dir, &mut |_, _| Ok(()))
    }

    /// As [`Witness::visit`], and shows each entry to `look` as [`verify_with`] does.
    pub fn visit_with(&mut self, dir: &Path, look: &mut Look<'_>) -> Result<Verified, Vec<Fault>> {
        let verified = verify_with(dir, &self.verifier, self.known.as_ref(), look)?;
        // What is known may be the head of entries that the checkpoint on disk does not cover yet.
        if self.known.as_ref().is_none_or(|known| known.size() < verified.checkpoint.size()) {
            self.remember(verified.checkpoint.clone()).map_err(|error| {
                let (action, path) = ("write", self.path.clone());
                vec![Fault::Io { action, path, reason: error.to_string() }]
            })?;
        }
        Ok(verified)
    }

    /// Keeps a checkpoint.
    fn remember(&mut self, next: Checkpoint) -> Result<(), LedgerError> {
        write_durably(&self.path, next.note().as_bytes())?;
        self.known = Some(next);
        Ok(())
    }
}
