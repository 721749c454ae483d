//! An append-only log that shows every change to it.
//!
//! A [`Log`] takes entries, which it does not understand, into a Merkle tree over SHA-256, and signs its size and root in
//! checkpoints. [`verify`] checks all of it from the files, the public key and the last checkpoint that is known, and says
//! what is wrong and where. What lies on disk is laid out as C2SP specifies (tlog-tiles, tlog-checkpoint, signed-note), so
//! that other tools read it too.
//!
//! ```text
//! LOG/
//!   checkpoint                  size and root, signed
//!   tile/entries/x001/234       256 entries, each with its length before it; 234.p/17 holds 17
//!   tile/0/x001/234             their hashes; tile/1 holds the roots over 256 of those, and so on
//!   journal                     what is logged and not covered by the checkpoint yet, signed frame by frame
//!   lock                        held by the writer
//! ```
//!
//! What the last checkpoint known elsewhere covers cannot be changed unseen by anybody; what was logged since cannot be
//! changed unseen without the log's key, but its end can be cut off. So [`Log::head`] is to be kept where the log's host
//! cannot reach, by a [`Witness`] or otherwise.
//!
//! Entries are shorter than 64 KiB: what is longer goes to [`Payloads`] under its digest, and the digest is logged.
//! [`canonical`] gives every JSON value one spelling, and so one digest.

mod canonical;
mod checkpoint;
mod digest;
mod disk;
mod error;
mod exact;
mod journal;
mod key;
mod log;
mod payload;
mod proof;
mod reader;
mod tree;
mod verify;
mod witness;
mod writer;

pub use canonical::{CanonicalError, canonical, canonical_digest};
pub use checkpoint::Checkpoint;
pub use digest::Digest;
pub use disk::LONGEST_ENTRY;
pub use error::{Fault, LedgerError};
pub use key::{Signer, Verifier};
pub use log::{Log, Options};
pub use payload::{Limits, Payloads};
pub use proof::{Consistency, Inclusion};
pub use reader::Reader;
pub use verify::{Look, Verified, verify, verify_with};
pub use witness::Witness;
