//! What an approval is bound to.

use guard::{Labels, Principal};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Pending, Why};
use crate::digest::{self, NotCanonical};

/// The layout of what is hashed; another one gives other digests, so no approval passes from one to the other.
const SCHEMA: u32 = 1;

/// One exact call: who, what, with which arguments, having seen what, under which rules.
///
/// - Holds: the digest is the SHA-256 of its canonical JSON (RFC 8785); any difference in any field gives another.
#[derive(Debug, Serialize)]
pub(crate) struct Binding<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) tool: &'a str,
    pub(crate) tool_digest: &'a str,
    pub(crate) arguments: &'a Map<String, Value>,
    pub(crate) labels: &'a Labels,
    pub(crate) rules_digest: &'a str,
}

impl Binding<'_> {
    pub(crate) fn digest(&self) -> Result<String, NotCanonical> {
        #[derive(Serialize)]
        struct Bound<'a> {
            schema: u32,
            operation: &'static str,
            call: &'a Binding<'a>,
        }
        digest::of(&Bound { schema: SCHEMA, operation: "call", call: self })
    }

    pub(crate) fn request(&self, id: String, digest: String, why: Why, now_ms: u64) -> Pending {
        // Nothing that is asked for stands longer than any one rule lets it.
        let lifetime_s = why.needs.iter().map(|n| n.lifetime_s).min().unwrap_or(0);
        Pending {
            id,
            digest,
            principal: self.principal.clone(),
            tool: self.tool.to_owned(),
            tool_digest: self.tool_digest.to_owned(),
            arguments: self.arguments.clone(),
            labels: self.labels.clone(),
            rules_digest: self.rules_digest.to_owned(),
            reason: why.reason,
            rules: why.rules,
            asked_ms: now_ms,
            expires_ms: now_ms.saturating_add(lifetime_s.saturating_mul(1_000)),
            needs: why.needs,
        }
    }
}
