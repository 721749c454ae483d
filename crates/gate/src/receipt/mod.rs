//! Receipts: what is written down of every call, read back, checked and reported.

pub mod audit;
mod check;
mod read;
mod record;
mod write;

pub use check::{Checked, Checker, Fault, Finding};
pub use read::{parse, read, verify, walk};
pub use record::{Approval, Attempt, Ended, Opened, Outcome, Part, Receipt, RuleHit, What};
pub(crate) use record::{VERSION, runs};
pub use write::{Book, Durable, ReceiptError, Receipts};

/// A receipt in its log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// Which entry it is, from 0.
    pub index: u64,
    /// The SHA-256 of the entry's bytes, in lower-case hexadecimal.
    pub digest: String,
    /// What it says.
    pub receipt: Receipt,
}

#[cfg(test)]
mod tests;
