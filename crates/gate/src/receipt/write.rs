//! Where receipts go, and how soon they are on disk.

use std::fmt;
use std::sync::Arc;

use ledger::{CanonicalError, LedgerError, Log, Payloads};

use super::Receipt;
use crate::digest;

/// Why a receipt could not be written; the call it tells of does not run.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The log takes no more.
    #[error("cannot write a receipt: {0}")]
    Ledger(#[from] LedgerError),
    /// It has no canonical form.
    #[error("cannot write a receipt: {0}")]
    Canonical(#[from] CanonicalError),
}

/// When a receipt must be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// Before a call is let through, and before its answer is handed on: what was done is known after any crash.
    Each,
    /// When [`crate::Gate::sync`] is called: for training, where an attempt that a crash loses is made again. A crash may
    /// lose receipts of calls that ran since.
    OnSync,
}

/// Where receipts go.
#[derive(Debug)]
pub enum Receipts {
    /// Nowhere.
    Off,
    /// Into a log.
    Log(Arc<Book>),
}

/// A log of receipts, and what lies beside it.
pub struct Book {
    log: Log,
    durable: Durable,
    payloads: Option<Payloads>,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("durable", &self.durable).field("payloads", &self.payloads).finish_non_exhaustive()
    }
}

impl Book {
    /// Receipts in this log; arguments and answers themselves are kept only where there are payloads.
    pub fn new(log: Log, durable: Durable, payloads: Option<Payloads>) -> Book {
        Book { log, durable, payloads }
    }

    /// The log, for its checkpoints.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

impl Receipts {
    pub(crate) fn are_off(&self) -> bool {
        matches!(self, Receipts::Off)
    }

    /// The digest of what a receipt speaks of; the bytes are on disk first, where they are kept.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Result<String, ReceiptError> {
        let payloads = match self {
            Receipts::Log(book) => book.payloads.as_ref(),
            Receipts::Off => None,
        };
        Ok(payloads.map_or_else(|| Ok(digest::of_bytes(bytes)), |p| p.put(bytes).map(|d| d.to_string()))?)
    }

    /// Logs receipts with nothing between them; the digest of the last one.
    pub(crate) fn write(&self, receipts: &[Receipt]) -> Result<String, ReceiptError> {
        let Receipts::Log(book) = self else { return Ok(String::new()) };
        let entries = receipts.iter().map(ledger::canonical).collect::<Result<Vec<_>, _>>()?;
        let digest = entries.last().map_or(String::new(), |entry| digest::of_bytes(entry));
        match book.durable {
            Durable::Each => {
                book.log.append_many(&entries)?;
            }
            Durable::OnSync => {
                for entry in &entries {
                    book.log.submit(entry)?;
                }
            }
        }
        Ok(digest)
    }

    pub(crate) fn sync(&self) -> Result<(), ReceiptError> {
        if let Receipts::Log(book) = self {
            book.log.checkpoint()?;
        }
        Ok(())
    }
}
