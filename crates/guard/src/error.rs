//! Why no guard can be built.

use crate::temporal::TemporalError;

/// Why no guard can be built from these packs, tools and scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// A pack's header cannot be read.
    #[error("cannot read the header of a pack: {reason}")]
    Header {
        /// What is wrong.
        reason: String,
    },
    /// A pack's rules cannot be read.
    #[error("cannot read the rules of pack `{pack}`: {reason}")]
    Rules {
        /// The pack.
        pack: String,
        /// What is wrong.
        reason: String,
    },
    /// A rule says something about itself that it may not, or does not say what it must.
    #[error("cannot take rule `{rule}` of pack `{pack}`: needed {needed}, got {got}")]
    Rule {
        /// The pack.
        pack: String,
        /// The rule, or its place in the pack where it has no id.
        rule: String,
        /// What it must say.
        needed: String,
        /// What it says.
        got: String,
    },
    /// Two rules have one id.
    #[error("cannot tell two rules apart: `{rule}` is in pack `{first}` and again in pack `{second}`")]
    Duplicate {
        /// The id.
        rule: String,
        /// The pack that has it first.
        first: String,
        /// The pack that has it again.
        second: String,
    },
    /// A pack that may only tighten would let something through.
    #[error("cannot tighten rules by pack `{pack}`: needed rules that restrict, got `{rule}`, which permits")]
    Loosens {
        /// The pack.
        pack: String,
        /// The rule.
        rule: String,
    },
    /// A pack's rules over history cannot be taken.
    #[error(transparent)]
    Temporal(#[from] TemporalError),
    /// A rule does not fit what calls look like.
    #[error("rule `{rule}` of pack `{pack}` does not fit the tools: {reason}")]
    Misfit {
        /// The pack.
        pack: String,
        /// The rule.
        rule: String,
        /// What is wrong.
        reason: String,
    },
    /// A tool cannot be described to rules.
    #[error("cannot describe tool `{tool}` to rules: {reason}")]
    Tool {
        /// The tool.
        tool: String,
        /// What is wrong.
        reason: String,
    },
    /// A scope holds what it cannot mean.
    #[error("cannot take `{got}` as a scope's {field}: needed {needed}")]
    Scope {
        /// Which part of it.
        field: &'static str,
        /// What it holds.
        got: String,
        /// What it may hold.
        needed: &'static str,
    },
    /// Cases that show what a pack does cannot be read.
    #[error("cannot read cases: {reason}")]
    Cases {
        /// What is wrong.
        reason: String,
    },
}

impl GuardError {
    pub(crate) fn scope(field: &'static str, got: &str, needed: &'static str) -> GuardError {
        GuardError::Scope { field, got: got.to_owned(), needed }
    }
}
