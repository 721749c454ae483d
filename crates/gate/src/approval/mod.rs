//! Approvals: bound to one call by its digest, expiring, good for one start, and written down before anyone acts on them.
//!
//! The journal is a file that several processes share: the one whose agent waits, and whichever takes the answer. Nothing
//! waits in here: a call that needs an approval is a request in the journal, and proposing the same call again finds what
//! has become of it. Beginning a call on an approval and using the approval up is one line of the journal, so a crash leaves
//! either an approval that is still good or a call that is known to have begun; the latter is [`Approvals::in_doubt`] until
//! its end is written, and is never begun again by itself.
//!
//! What this cannot know: whether whoever calls [`Approvals::answer`] has authenticated the approver. Whoever can write the
//! file can also forge it; it is readable and writable by its owner alone, and the receipts name every approval used.

mod approver;
mod binding;
mod book;
mod journal;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub(crate) use approver::Stored;
pub use approver::{Approver, Roster};
pub(crate) use binding::Binding;
pub use book::{Consent, Pending, Standing, Use};

use guard::Need;

use crate::digest::NotCanonical;
use approver::counts;
use book::{Book, Entry, Record};
use journal::Journal;

/// Why an approval could not be asked for, answered or used. Each of them means that the call does not run.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// The system refused: a full disk, no permission.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process keeps the journal.
    #[error("`{path}` is kept by another process")]
    Busy {
        /// The journal.
        path: PathBuf,
    },
    /// The journal is not what was written.
    #[error("`{path}` is damaged at line {line}: {reason}")]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The call cannot be written down.
    #[error(transparent)]
    NotCanonical(#[from] NotCanonical),
    /// Nobody asked for it.
    #[error("there is no approval `{id}`")]
    Unknown {
        /// What was named.
        id: String,
    },
    /// Not one of the known approvers.
    #[error("{approver} may not approve anything")]
    UnknownApprover {
        /// Who answered.
        approver: Approver,
    },
    /// The agent itself, or one that it acts for or through.
    #[error("{approver} cannot approve `{id}`: it has the name of an agent of that call")]
    OwnCall {
        /// Who answered.
        approver: Approver,
        /// The request.
        id: String,
    },
    /// A known approver whose word this request does not want.
    #[error("{approver} cannot approve `{id}`: needed {needed}")]
    NotEntitled {
        /// Who answered.
        approver: Approver,
        /// The request.
        id: String,
        /// Whose word it wants.
        needed: String,
    },
    /// It can no longer be answered, or not be used as it stands.
    #[error("approval `{id}` cannot be {action}: it is {standing}")]
    Closed {
        /// The request.
        id: String,
        /// `answered` or `used`.
        action: &'static str,
        /// How it stands.
        standing: Standing,
    },
    /// The call is not the one that was approved.
    #[error("approval `{id}` is for another call: needed digest {needed}, got {got}")]
    OtherCall {
        /// The request.
        id: String,
        /// The digest it is bound to.
        needed: String,
        /// The digest of the call.
        got: String,
    },
    /// So many requests wait that nobody could read them.
    #[error("run `{run}` waits for {most} approvals already: needed answers first")]
    TooMany {
        /// The run.
        run: String,
        /// How many may wait.
        most: usize,
    },
}

impl ApprovalError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ApprovalError {
        let path = path.to_path_buf();
        move |source| ApprovalError::Io { action, path, source }
    }
}

/// The approvals of a folder, shared with every other process that opened it.
///
/// - Holds: on each request at most one call begins, whatever the races and crashes; what a method returned is durable.
#[derive(Debug)]
pub struct Approvals {
    roster: Roster,
    /// How many requests of one run may wait at a time.
    max_waiting: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    book: Book,
    /// Why nothing in here can be trusted any more.
    broken: Option<String>,
}

/// What a call finds when it asks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// It may begin on this approval.
    Granted { id: String, by: Vec<Approver> },
    /// It waits, or was refused.
    Not(Box<Pending>, Standing),
}

impl Approvals {
    /// Opens or makes the journal in a folder.
    ///
    /// - Errors: `Damaged` when it is not what was written.
    pub fn open(folder: &Path, roster: Roster) -> Result<Approvals, ApprovalError> {
        let journal = Journal::open(folder)?;
        let inner = Mutex::new(Inner { journal, book: Book::default(), broken: None });
        let approvals = Approvals { roster, max_waiting: 32, inner };
        approvals.transact(|_| Ok((Vec::new(), ())))?;
        Ok(approvals)
    }

    /// The same with another number of requests that may wait at a time; a flood of them is approved unread.
    #[must_use]
    pub fn with_max_waiting(mut self, most: usize) -> Approvals {
        self.max_waiting = most;
        self
    }

    /// Requests that can still be answered, the oldest first.
    pub fn pending(&self, now_ms: u64) -> Result<Vec<Pending>, ApprovalError> {
        self.transact(|book| {
            let now_ms = book.now(now_ms);
            let waiting = |r: &&Record| r.standing(now_ms, &self.roster) == Standing::Waiting;
            Ok((Vec::new(), book.open().filter(waiting).map(|r| r.request.clone()).collect()))
        })
    }

    /// A request and how it stands.
    ///
    /// - Errors: `Unknown`.
    pub fn get(&self, id: &str, now_ms: u64) -> Result<(Pending, Standing), ApprovalError> {
        self.transact(|book| {
            let record = book.get(id)?;
            Ok((Vec::new(), (record.request.clone(), record.standing(book.now(now_ms), &self.roster))))
        })
    }

    /// Calls that began on an approval and whose end was never written: they ran in part, in whole, or not at all.
    pub fn in_doubt(&self) -> Result<Vec<(Pending, Use)>, ApprovalError> {
        self.transact(|book| {
            let begun = book.records().filter(|r| !r.finished);
            let begun = begun.filter_map(|r| Some((r.request.clone(), r.started.clone()?)));
            Ok((Vec::new(), begun.collect()))
        })
    }

    /// Takes an answer from an approver whom the caller has authenticated.
    ///
    /// - Holds: the same answer twice counts once.
    /// - Errors: `Unknown`; `UnknownApprover`, `OwnCall`, `NotEntitled` for a word that counts for nothing; `Closed` when it
    ///   is too late.
    pub fn answer(
        &self,
        id: &str,
        approver: &Approver,
        consent: Consent,
        now_ms: u64,
    ) -> Result<Standing, ApprovalError> {
        self.transact_then(|book| {
            let (record, now_ms) = (book.get(id)?, book.now(now_ms));
            let request = &record.request;
            if self.roster.roles(approver).is_none() {
                return Err(ApprovalError::UnknownApprover { approver: approver.clone() });
            }
            let (approver, id) = (approver.clone(), id.to_owned());
            let own = std::iter::once(&request.principal.agent).chain(&request.principal.chain);
            if own.into_iter().any(|agent| agent == approver.name()) {
                return Err(ApprovalError::OwnCall { approver, id });
            }
            if !request.needs.iter().any(|need| counts(need, &approver, &self.roster)) {
                return Err(ApprovalError::NotEntitled { approver, id, needed: wanted(&request.needs) });
            }
            let standing = record.standing(now_ms, &self.roster);
            let same = record.said(&approver) == Some(consent);
            match (&standing, consent) {
                (Standing::Waiting | Standing::Granted | Standing::Refused { .. }, _) if same => Ok(Vec::new()),
                (Standing::Waiting, _) | (Standing::Granted, Consent::Refuse) => {
                    Ok(vec![Entry::Answered { id, by: (&approver).into(), consent, at_ms: now_ms }])
                }
                (Standing::Granted, Consent::Grant) => Ok(Vec::new()),
                _ => Err(ApprovalError::Closed { id, action: "answered", standing }),
            }
        })?;
        self.get(id, now_ms).map(|(_, standing)| standing)
    }

    /// What has become of a call's request; one that nobody asked for, or that is used up or over, is asked for anew.
    pub(crate) fn ask(&self, call: &Binding<'_>, why: Why, now_ms: u64) -> Result<Found, ApprovalError> {
        let digest = call.digest()?;
        self.transact(|book| {
            let now_ms = book.now(now_ms);
            if let Some(record) = book.of(&digest, call.arguments).next_back() {
                match record.standing(now_ms, &self.roster) {
                    Standing::Granted => {
                        let by = record.granted_by().into_iter().collect();
                        return Ok((Vec::new(), Found::Granted { id: record.request.id.clone(), by }));
                    }
                    // A no holds as long as the question would have.
                    Standing::Refused { .. } if now_ms >= record.request.expires_ms => {}
                    standing @ (Standing::Waiting | Standing::Refused { .. }) => {
                        return Ok((Vec::new(), Found::Not(Box::new(record.request.clone()), standing)));
                    }
                    Standing::Expired | Standing::Started | Standing::Finished => {}
                }
            }
            let run = &call.principal.run;
            let waits =
                |r: &&Record| r.request.principal.run == *run && r.standing(now_ms, &self.roster) == Standing::Waiting;
            if book.open().filter(waits).count() >= self.max_waiting {
                return Err(ApprovalError::TooMany { run: run.clone(), most: self.max_waiting });
            }
            let request = call.request(book.next_id(&digest), digest.clone(), why, now_ms);
            let found = Found::Not(Box::new(request.clone()), Standing::Waiting);
            Ok((vec![Entry::Asked(Box::new(request))], found))
        })
    }

    /// The approval that this very call used when it ran.
    pub(crate) fn used(&self, call: &Binding<'_>, by: &Use) -> Result<Option<(String, Vec<Approver>)>, ApprovalError> {
        let digest = call.digest()?;
        self.transact(|book| {
            let used = book.of(&digest, call.arguments).find(|r| r.started.as_ref() == Some(by));
            let used = used.map(|r| (r.request.id.clone(), r.granted_by().into_iter().collect()));
            Ok((Vec::new(), used))
        })
    }

    /// Uses an approval up and writes down that the call begins, in one.
    ///
    /// - Errors: `OtherCall` when anything the approval is bound to differs; `Closed` when it is not granted any more.
    pub(crate) fn start(&self, id: &str, call: &Binding<'_>, by: Use, now_ms: u64) -> Result<(), ApprovalError> {
        let got = call.digest()?;
        self.transact_then(|book| {
            let (record, now_ms) = (book.get(id)?, book.now(now_ms));
            let needed = record.request.digest.clone();
            if needed != got || record.request.arguments != *call.arguments {
                return Err(ApprovalError::OtherCall { id: id.to_owned(), needed, got });
            }
            match record.standing(now_ms, &self.roster) {
                Standing::Granted => Ok(vec![Entry::Started { id: id.to_owned(), digest: got, by, at_ms: now_ms }]),
                standing => Err(ApprovalError::Closed { id: id.to_owned(), action: "used", standing }),
            }
        })
    }

    /// Writes down that the call which began on an approval has ended.
    pub(crate) fn finish(&self, id: &str, now_ms: u64) -> Result<(), ApprovalError> {
        self.transact_then(|book| {
            book.get(id)?;
            Ok(vec![Entry::Finished { id: id.to_owned(), at_ms: book.now(now_ms) }])
        })
    }

    fn transact_then(&self, f: impl FnOnce(&Book) -> Result<Vec<Entry>, ApprovalError>) -> Result<(), ApprovalError> {
        self.transact(|book| Ok((f(book)?, ())))
    }

    /// Looks and adds as one step that no other thread or process can come between.
    fn transact<T>(&self, f: impl FnOnce(&Book) -> Result<(Vec<Entry>, T), ApprovalError>) -> Result<T, ApprovalError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { journal, book, broken } = &mut *inner;
        let _lock = journal.lock()?;
        let mut take_in = |journal: &Journal, book: &mut Book, entries: Vec<Entry>| {
            let applied = match &broken {
                Some(reason) => Err(reason.clone()),
                None => entries.into_iter().try_for_each(|entry| book.apply(entry)),
            };
            applied.map_err(|reason| {
                let error = journal.damaged(&reason);
                *broken = Some(reason);
                error
            })
        };
        let news = journal.catch_up()?;
        take_in(journal, book, news)?;
        let (entries, out) = f(book)?;
        journal.append(&entries)?;
        take_in(journal, book, entries)?;
        Ok(out)
    }
}

/// Why a call needs an approval, and what kind.
#[derive(Debug, Clone)]
pub(crate) struct Why {
    pub(crate) reason: String,
    pub(crate) rules: Vec<String>,
    pub(crate) needs: Vec<Need>,
}

fn wanted(needs: &[Need]) -> String {
    let one = |need: &Need| {
        let who = if need.people { "a person" } else { "an approver" };
        let roles: Vec<String> = need.roles.iter().map(|r| format!("`{r}`")).collect();
        match roles.is_empty() {
            true => who.to_owned(),
            false => format!("{who} who is {}", roles.join(" or ")),
        }
    };
    needs.iter().map(one).collect::<Vec<_>>().join(", or ")
}

#[cfg(test)]
mod tests;
