//! What the journal's entries add up to. No file and no clock: what is known, and what may be added to it.

use std::collections::{BTreeMap, BTreeSet};

use guard::{Labels, Need, Principal};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::approver::{Stored, is_met};
use super::{ApprovalError, Approver, Roster};

/// A call that waits for an approval, as the journal holds it and as an approver must see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pending {
    /// Its name, for the answer.
    pub id: String,
    /// The digest the approval is bound to: of everything below but reason, rules, needs and times.
    pub digest: String,
    /// Who the call is made for and by.
    pub principal: Principal,
    /// The tool.
    pub tool: String,
    /// The digest of the tool's description and schema.
    pub tool_digest: String,
    /// The arguments the call would run with.
    pub arguments: Map<String, Value>,
    /// The labels of what the agent had seen.
    pub labels: Labels,
    /// The digest of the rules that asked.
    pub rules_digest: String,
    /// Why an approval is needed.
    pub reason: String,
    /// The rules that want it.
    pub rules: Vec<String>,
    /// What each of them wants.
    pub needs: Vec<Need>,
    /// When it was asked for.
    ///
    /// - Units: milliseconds since 1970.
    pub asked_ms: u64,
    /// When it ends, answered or not.
    ///
    /// - Units: milliseconds since 1970.
    pub expires_ms: u64,
}

impl std::fmt::Display for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}", self.id, self.reason)
    }
}

/// What an approver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consent {
    /// The call may run, once, as shown.
    Grant,
    /// It may not. Said after others granted it, this takes their grant away, unless the call has begun.
    Refuse,
}

/// How a request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Not enough have answered.
    Waiting,
    /// The call may begin.
    Granted,
    /// Somebody said no.
    Refused {
        /// Who.
        by: Approver,
    },
    /// Its time is over.
    Expired,
    /// A call has begun on it: it is used up.
    Started,
    /// That call has ended.
    Finished,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Standing::Waiting => f.write_str("not answered yet"),
            Standing::Granted => f.write_str("granted"),
            Standing::Refused { by } => write!(f, "refused by {by}"),
            Standing::Expired => f.write_str("expired"),
            Standing::Started => f.write_str("used for a call that has begun"),
            Standing::Finished => f.write_str("used for a call that has ended"),
        }
    }
}

/// The call that used an approval.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// The session.
    pub session: String,
    /// The number of the call in it.
    pub call: u64,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Entry {
    Asked(Box<Pending>),
    Answered { id: String, by: Stored, consent: Consent, at_ms: u64 },
    Started { id: String, digest: String, by: Use, at_ms: u64 },
    Finished { id: String, at_ms: u64 },
}

/// A request and what became of it.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) request: Pending,
    answers: Vec<(Approver, Consent)>,
    pub(super) started: Option<Use>,
    pub(super) finished: bool,
}

impl Record {
    pub(super) fn standing(&self, now_ms: u64, roster: &Roster) -> Standing {
        if self.started.is_some() {
            return if self.finished { Standing::Finished } else { Standing::Started };
        }
        // Who is not on this gate's roster could not stop the call either, but a no that was written down is a no.
        if let Some((by, _)) = self.answers.iter().find(|(_, c)| *c == Consent::Refuse) {
            return Standing::Refused { by: by.clone() };
        }
        if now_ms >= self.request.expires_ms {
            return Standing::Expired;
        }
        let by = self.granted_by();
        // No need at all is no approval either: nothing here is granted by default.
        match !by.is_empty() && self.request.needs.iter().all(|need| is_met(need, &by, roster)) {
            true => Standing::Granted,
            false => Standing::Waiting,
        }
    }

    pub(super) fn granted_by(&self) -> BTreeSet<Approver> {
        self.answers.iter().filter(|(_, c)| *c == Consent::Grant).map(|(by, _)| by.clone()).collect()
    }

    pub(super) fn said(&self, by: &Approver) -> Option<Consent> {
        self.answers.iter().rev().find(|(a, _)| a == by).map(|(_, c)| *c)
    }
}

/// Everything in the journal.
#[derive(Debug, Default)]
pub(super) struct Book {
    records: BTreeMap<String, Record>,
    by_digest: BTreeMap<String, Vec<String>>,
    /// Those on which no call has begun.
    open: BTreeSet<String>,
    /// The latest time written down: a clock that was put back revives nothing.
    latest_ms: u64,
}

impl Book {
    /// Takes an entry in.
    ///
    /// - Errors: what is wrong with it, when it cannot follow what came before.
    pub(super) fn apply(&mut self, entry: Entry) -> Result<(), String> {
        match entry {
            Entry::Asked(request) => {
                let id = request.id.clone();
                if self.records.contains_key(&id) {
                    return Err(format!("`{id}` was asked for before"));
                }
                self.at(request.asked_ms);
                self.by_digest.entry(request.digest.clone()).or_default().push(id.clone());
                self.open.insert(id.clone());
                let record = Record { request: *request, answers: Vec::new(), started: None, finished: false };
                self.records.insert(id, record);
            }
            Entry::Answered { id, by, consent, at_ms } => {
                self.at(at_ms);
                let record = self.record_mut(&id)?;
                if record.started.is_some() {
                    return Err(format!("`{id}` was answered after its call began"));
                }
                record.answers.push(((&by).into(), consent));
            }
            Entry::Started { id, digest, by, at_ms } => {
                self.at(at_ms);
                let record = self.record_mut(&id)?;
                if record.started.is_some() || record.request.digest != digest {
                    return Err(format!("`{id}` was used twice or for another call"));
                }
                record.started = Some(by);
                self.open.remove(&id);
            }
            Entry::Finished { id, at_ms } => {
                self.at(at_ms);
                let record = self.record_mut(&id)?;
                if record.started.is_none() || record.finished {
                    return Err(format!("`{id}` ended without having begun"));
                }
                record.finished = true;
            }
        }
        Ok(())
    }

    fn at(&mut self, ms: u64) {
        self.latest_ms = self.latest_ms.max(ms);
    }

    fn record_mut(&mut self, id: &str) -> Result<&mut Record, String> {
        self.records.get_mut(id).ok_or_else(|| format!("`{id}` was never asked for"))
    }

    /// This time, or the latest one written down if that is later.
    pub(super) fn now(&self, now_ms: u64) -> u64 {
        now_ms.max(self.latest_ms)
    }

    pub(super) fn get(&self, id: &str) -> Result<&Record, ApprovalError> {
        self.records.get(id).ok_or_else(|| ApprovalError::Unknown { id: id.to_owned() })
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Requests on which no call has begun, the oldest first.
    pub(super) fn open(&self) -> impl Iterator<Item = &Record> {
        let mut open: Vec<&Record> = self.open.iter().filter_map(|id| self.records.get(id)).collect();
        open.sort_by_key(|r| (r.request.asked_ms, &r.request.id));
        open.into_iter()
    }

    /// The requests for exactly this call, the oldest first.
    ///
    /// Canonical JSON writes `1` and `1.0` alike, and whole numbers above 2⁵³ that differ; a tool may tell them apart, so
    /// the arguments themselves must be equal too.
    pub(super) fn of<'a>(
        &'a self,
        digest: &str,
        arguments: &'a Map<String, Value>,
    ) -> impl DoubleEndedIterator<Item = &'a Record> {
        let ids = self.by_digest.get(digest).map(Vec::as_slice).unwrap_or_default();
        ids.iter().filter_map(|id| self.records.get(id)).filter(move |r| r.request.arguments == *arguments)
    }

    /// A name for the next request of a digest.
    pub(super) fn next_id(&self, digest: &str) -> String {
        let stem = &digest[..digest.len().min(16)];
        let mut n = self.by_digest.get(digest).map_or(0, Vec::len);
        loop {
            let id = format!("{stem}-{n}");
            if !self.records.contains_key(&id) {
                return id;
            }
            n += 1;
        }
    }
}
