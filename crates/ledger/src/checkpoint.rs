//! Checkpoints: size and root of a log, signed.
//!
//! The text is `origin`, size and root in base64, a line each (c2sp.org/tlog-checkpoint); the signatures follow after an
//! empty line, each as `— name base64` (c2sp.org/signed-note).

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::digest::Digest;
use crate::error::Fault;
use crate::key::{Signer, Verifier};

/// The most bytes a checkpoint may have: room for many witnesses, none for floods.
pub(crate) const LONGEST_NOTE: usize = 64 << 10;

/// What a fault calls a checkpoint that lies in no file.
const LOOSE: &str = "a checkpoint";

/// The signed size and root of a log; there is none whose signature was not checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    origin: String,
    size: u64,
    root: Digest,
    note: String,
}

impl Checkpoint {
    /// Reads a signed checkpoint.
    ///
    /// - Holds: signatures of other keys (witnesses) are carried along and do not count.
    /// - Errors: `Malformed`, `Signature` if the key did not sign it, `Origin` if it is of another log.
    /// - Source: c2sp.org/tlog-checkpoint, c2sp.org/signed-note.
    pub fn open(note: &[u8], verifier: &Verifier) -> Result<Self, Fault> {
        Self::open_as(note, verifier, LOOSE)
    }

    /// As [`Checkpoint::open`]; faults name the place it was read from.
    pub(crate) fn open_as(note: &[u8], verifier: &Verifier, what: &str) -> Result<Self, Fault> {
        let malformed = |reason: &str| Fault::Malformed { path: what.into(), reason: reason.to_owned() };
        if note.len() > LONGEST_NOTE {
            return Err(malformed("it is too long for a checkpoint"));
        }
        let note = std::str::from_utf8(note).map_err(|_| malformed("it is not text"))?;
        if note.chars().any(|c| c < ' ' && c != '\n') {
            return Err(malformed("it holds a control character"));
        }
        let (text, signatures) = note.rsplit_once("\n\n").ok_or_else(|| malformed("it bears no signature"))?;
        // The signed text ends with a line's end, which the cut at the empty line took.
        let text = &note[..text.len() + 1];
        let signatures = signatures.strip_suffix('\n').ok_or_else(|| malformed("its last line has no end"))?;

        let mut signed = false;
        let mut others = Vec::new();
        for line in signatures.split('\n') {
            let (name, id, signature) = signature(line).ok_or_else(|| malformed("a signature line is not one"))?;
            if name != verifier.name() || id != verifier.id() {
                others.push(name);
            } else if verifier.verify(text.as_bytes(), &signature) {
                signed = true;
            } else {
                return Err(unsigned(what, verifier, "its signature does not fit the text".to_owned()));
            }
        }
        let (origin, size, root) = statement(text).ok_or_else(|| malformed("needed origin, size and root"))?;
        if !signed {
            if origin != verifier.name() {
                return Err(Fault::Origin {
                    what: what.to_owned(),
                    needed: verifier.name().to_owned(),
                    got: origin.to_owned(),
                });
            }
            return Err(unsigned(what, verifier, format!("signed by `{}`", others.join("`, `"))));
        }
        if origin != verifier.name() {
            let (needed, got) = (verifier.name().to_owned(), origin.to_owned());
            return Err(Fault::Origin { what: what.to_owned(), needed, got });
        }
        Ok(Self { origin: origin.to_owned(), size, root, note: note.to_owned() })
    }

    /// Signs a size and a root.
    pub(crate) fn sign(signer: &Signer, size: u64, root: Digest) -> Self {
        let origin = signer.name();
        let text = format!("{origin}\n{size}\n{}\n", BASE64_STANDARD.encode(root.0));
        let mut signature = signer.verifier().id().to_vec();
        signature.extend(signer.sign(text.as_bytes()));
        let note = format!("{text}\n— {origin} {}\n", BASE64_STANDARD.encode(signature));
        Self { origin: origin.to_owned(), size, root, note }
    }

    /// The log's name.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// How many entries it covers.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The root of the tree over them.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// The signed text, as it is written to disk and handed on.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Whether two checkpoints of one log contradict each other at one size.
    ///
    /// - Errors: `Origin` if they are of two logs; `Rewritten` if one size has two roots, which only a log that tells two
    ///   histories signs. Checkpoints of different sizes need a [`crate::Consistency`] proof.
    pub fn same_history(&self, other: &Self) -> Result<(), Fault> {
        if self.origin != other.origin {
            let (needed, got) = (self.origin.clone(), other.origin.clone());
            return Err(Fault::Origin { what: LOOSE.to_owned(), needed, got });
        }
        if self.size == other.size && self.root != other.root {
            return Err(Fault::Rewritten { size: self.size, needed: self.root, got: other.root });
        }
        Ok(())
    }
}

/// The fault of a checkpoint whose signature does not count.
fn unsigned(what: &str, verifier: &Verifier, reason: String) -> Fault {
    Fault::Signature { what: what.to_owned(), key: verifier.to_string(), reason }
}

/// Takes `— name base64` apart: name, key id, signature.
fn signature(line: &str) -> Option<(&str, [u8; 4], Vec<u8>)> {
    let (name, bytes) = line.strip_prefix("— ")?.split_once(' ')?;
    let bytes = BASE64_STANDARD.decode(bytes).ok()?;
    let (id, signature) = bytes.split_first_chunk::<4>()?;
    let named = !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c == '+');
    (named && !signature.is_empty()).then(|| (name, *id, signature.to_vec()))
}

/// Takes the signed text apart: origin, size, root. Extension lines may follow.
fn statement(text: &str) -> Option<(&str, u64, Digest)> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let (origin, digits, root) = (lines.next()?, lines.next()?, lines.next()?);
    if origin.is_empty() || lines.any(str::is_empty) {
        return None;
    }
    let size: u64 = digits.parse().ok()?;
    let root = BASE64_STANDARD.decode(root).ok()?;
    // One spelling only: no sign, no leading zero.
    (digits == size.to_string()).then_some(())?;
    Some((origin, size, Digest(root.try_into().ok()?)))
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
