//! Who did what, why it was allowed or not, and under which version of which rule.

use std::collections::{BTreeMap, BTreeSet};

use guard::Decision;
use serde::Serialize;

use super::{Attempt, Ended, Logged, Part, Receipt, RuleHit, What};

/// Which calls to tell of; nothing set is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this run.
    pub run: Option<String>,
    /// Of this session and of those begun from it.
    pub session: Option<String>,
    /// Made for this subject.
    pub subject: Option<String>,
    /// Made by this agent, or by one it started.
    pub agent: Option<String>,
    /// On this tool.
    pub tool: Option<String>,
    /// Of this class of action.
    pub action: Option<String>,
    /// In which this rule took part.
    pub rule: Option<String>,
    /// In which a rule for this clause took part.
    pub clause: Option<String>,
    /// Ruled so.
    pub ruled: Option<Decision>,
    /// Not before, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Before, in milliseconds since 1970.
    pub until_ms: Option<u64>,
}

impl Filter {
    fn lets(&self, receipt: &Receipt, attempt: &Attempt) -> bool {
        let is = |want: &Option<String>, got: &str| want.as_deref().is_none_or(|w| w == got);
        let who = &receipt.principal;
        let below = |w: &String| {
            let rest = receipt.session.strip_prefix(w.as_str());
            rest.is_some_and(|r| r.is_empty() || r.starts_with(crate::CHILD_MARK))
        };
        is(&self.run, &who.run)
            && self.session.as_ref().is_none_or(below)
            && is(&self.subject, &who.subject)
            && self.agent.as_ref().is_none_or(|a| who.agent == *a || who.chain.contains(a))
            && is(&self.tool, &attempt.tool)
            && is(&self.action, &attempt.action)
            && self.rule.as_ref().is_none_or(|rule| attempt.rules.iter().any(|r| r.id == *rule))
            && self.clause.as_ref().is_none_or(|c| attempt.rules.iter().any(|r| r.clause.as_ref() == Some(c)))
            && self.ruled.is_none_or(|ruled| attempt.ruled == ruled)
            && self.since_ms.is_none_or(|since| receipt.at_ms >= since)
            && self.until_ms.is_none_or(|until| receipt.at_ms < until)
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The entry of the log that holds the ruling.
    pub index: u64,
    /// The session.
    pub session: String,
    /// The number of the call in it.
    pub call: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who it was made for.
    pub subject: String,
    /// The agent that made it.
    pub agent: String,
    /// The agents that had started that one, the first first.
    pub chain: Vec<String>,
    /// What for.
    pub purpose: String,
    /// The tool.
    pub tool: String,
    /// Its class of action.
    pub action: String,
    /// The digest of the arguments that ran or would have.
    pub arguments: String,
    /// What was decided.
    pub ruled: Decision,
    /// By which part of the gate.
    pub by: Part,
    /// Why, when it was not the rules that said so.
    pub reason: String,
    /// The rules that took part.
    pub rules: Vec<RuleHit>,
    /// Who approved.
    pub approved_by: Vec<String>,
    /// The digest of the rules in force.
    pub rules_digest: String,
    /// How it ended; none while nothing tells of it, or when it did not run.
    pub ended: Option<Ended>,
}

/// How often something came to which ruling.
pub type Tally = BTreeMap<Decision, u64>;

/// The transparency report: calls, and counts over them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The calls, in the order of the log. One that waited and was ruled upon again is told of once per ruling.
    pub calls: Vec<Line>,
    /// By ruling.
    pub ruled: Tally,
    /// By rule, as `pack/id@version`.
    pub by_rule: BTreeMap<String, Tally>,
    /// By the clause that the rules enforce; a call in which two rules for one clause took part counts once.
    pub by_clause: BTreeMap<String, Tally>,
    /// By tool.
    pub by_tool: BTreeMap<String, Tally>,
    /// By the part of the gate that decided.
    pub by_part: BTreeMap<&'static str, Tally>,
    /// Calls by the digest of the rules in force.
    pub by_rules_digest: BTreeMap<String, u64>,
    /// How the calls that were let through ended.
    pub ended: BTreeMap<&'static str, u64>,
}

/// Makes a report of receipts that come one by one.
#[derive(Debug, Default)]
pub struct Reporter {
    filter: Filter,
    report: Report,
    /// Calls that were let through and have not ended, by session and number.
    open: BTreeMap<(String, u64), usize>,
}

impl Reporter {
    /// Nothing yet of what the filter lets through.
    pub fn new(filter: Filter) -> Reporter {
        Reporter { filter, ..Reporter::default() }
    }

    /// Takes in the next receipt of a log.
    pub fn take(&mut self, logged: &Logged) {
        let receipt = &logged.receipt;
        let key = || (receipt.session.clone(), receipt.call);
        match &receipt.what {
            What::Attempt(attempt) if self.filter.lets(receipt, attempt) => {
                self.report.count(receipt, attempt);
                if super::runs(attempt.ruled) {
                    self.open.insert(key(), self.report.calls.len());
                }
                self.report.calls.push(line(logged.index, receipt, attempt));
            }
            What::Outcome(outcome) => {
                if let Some(line) = self.open.remove(&key()) {
                    self.report.calls[line].ended = Some(outcome.ended);
                    *self.report.ended.entry(outcome.ended.as_str()).or_default() += 1;
                }
            }
            What::Attempt(_) | What::Opened(_) => {}
        }
    }

    /// The report, when there are no more.
    #[must_use]
    pub fn finish(self) -> Report {
        self.report
    }
}

/// The report of receipts that were read before.
pub fn report<'a>(receipts: impl IntoIterator<Item = &'a Logged>, filter: Filter) -> Report {
    let mut reporter = Reporter::new(filter);
    receipts.into_iter().for_each(|logged| reporter.take(logged));
    reporter.finish()
}

impl Report {
    fn count(&mut self, receipt: &Receipt, attempt: &Attempt) {
        let add = |tally: &mut Tally| *tally.entry(attempt.ruled).or_default() += 1;
        add(&mut self.ruled);
        add(self.by_tool.entry(attempt.tool.clone()).or_default());
        add(self.by_part.entry(attempt.by.as_str()).or_default());
        for rule in &attempt.rules {
            add(self.by_rule.entry(format!("{}/{}@{}", rule.pack, rule.id, rule.version)).or_default());
        }
        let clauses: BTreeSet<&String> = attempt.rules.iter().filter_map(|r| r.clause.as_ref()).collect();
        for clause in clauses {
            add(self.by_clause.entry(clause.clone()).or_default());
        }
        *self.by_rules_digest.entry(receipt.rules_digest.clone()).or_default() += 1;
    }
}

fn line(index: u64, receipt: &Receipt, attempt: &Attempt) -> Line {
    let who = &receipt.principal;
    Line {
        index,
        session: receipt.session.clone(),
        call: receipt.call,
        at_ms: receipt.at_ms,
        subject: who.subject.clone(),
        agent: who.agent.clone(),
        chain: who.chain.clone(),
        purpose: who.purpose.clone(),
        tool: attempt.tool.clone(),
        action: attempt.action.clone(),
        arguments: attempt.rewritten.clone().unwrap_or_else(|| attempt.arguments.clone()),
        ruled: attempt.ruled,
        by: attempt.by,
        reason: attempt.reason.clone(),
        rules: attempt.rules.clone(),
        approved_by: attempt.approval.as_ref().map(super::Approval::granted_by).unwrap_or_default(),
        rules_digest: receipt.rules_digest.clone(),
        ended: None,
    }
}
