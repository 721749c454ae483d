//! What a tool answers.

use guard::Labels;
use serde::{Deserialize, Serialize};

/// What a tool answered to a call that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The text the policy reads.
    pub text: String,
    /// Where the text comes from and who may see it; joined into every later call of the session.
    pub labels: Labels,
    /// Whether the tool did what it was asked. A call that made no sense is an answer that is not.
    pub ok: bool,
}

impl Answer {
    /// An answer of a tool that did what it was asked.
    pub fn new(text: impl Into<String>, labels: Labels) -> Self {
        Answer { text: text.into(), labels, ok: true }
    }

    /// An answer of a tool that could not do what it was asked, and says why.
    pub fn refused(text: impl Into<String>, labels: Labels) -> Self {
        Answer { text: text.into(), labels, ok: false }
    }
}
