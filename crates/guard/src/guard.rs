//! The guard itself: a call in, a verdict out.

use std::collections::{BTreeMap, BTreeSet};

use cedar_policy::{
    AuthorizationError, Authorizer, Entities, EntityId, EntityTypeName, EntityUid, PolicySet, RestrictedExpression,
};
use serde_json::{Map, Value};

use crate::context::{Seen, Wanted};
use crate::pack::{Rule, RuleInfo};
use crate::schema::Input;
use crate::sieve::Sieve;
use crate::temporal::{History, Temporal};
use crate::{Decision, Hit, Request, Scope, Verdict, facts};

/// How often a call is rewritten and looked at again before it counts as one that rules cannot agree on.
const ROUNDS: usize = 8;

/// Rules over the calls of a set of tools.
///
/// - Holds: a verdict is a function of the request, the history and what the guard was built from; what no rule permits is
///   denied; deny beats defer beats ask beats modify beats allow; a rule that fails denies.
#[derive(Debug)]
pub struct Guard {
    pub(crate) tools: BTreeMap<String, Tool>,
    pub(crate) rules: BTreeMap<String, Rule>,
    pub(crate) infos: Vec<RuleInfo>,
    pub(crate) entities: Entities,
    pub(crate) authorizer: Authorizer,
    pub(crate) agent: EntityTypeName,
    pub(crate) scope: Scope,
    pub(crate) temporal: Temporal,
    pub(crate) digest: String,
    #[cfg(test)]
    pub(crate) schema: cedar_policy::Schema,
}

/// A tool and the rules that may apply to it.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) action: EntityUid,
    pub(crate) resource: EntityUid,
    pub(crate) input: Input,
    pub(crate) data: BTreeSet<String>,
    /// Whether its texts may be run.
    pub(crate) commands: bool,
    /// What is said of every call when its class of action or of data is not known.
    pub(crate) unknown: Option<Hit>,
    /// The rules whose scope of action lets them apply to it.
    pub(crate) asked: Vec<Asked>,
}

/// A rule as it is asked about the calls of one tool.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: String,
    /// When it need not be.
    pub(crate) sieve: Sieve,
    /// What it looks at.
    pub(crate) wanted: Wanted,
    /// The rule alone, so that permits and restrictions do not hide each other.
    pub(crate) policies: PolicySet,
}

/// A hit of the guard itself.
pub(crate) fn builtin(id: &str, reason: impl Into<String>) -> Hit {
    Hit {
        id: id.to_owned(),
        pack: "guard".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clause: None,
        effect: Decision::Deny,
        reason: reason.into(),
        error: None,
    }
}

impl Guard {
    /// What may become of a call, given what came before it.
    ///
    /// When rules rewrite a call, the call as rewritten is looked at as well, and the stricter of both answers holds.
    pub fn decide(&self, request: &Request<'_>, history: &History) -> Verdict {
        let mut hits: BTreeMap<(String, String), Hit> = BTreeMap::new();
        let mut arguments = request.arguments.clone();
        let (mut settled, mut rewriters) = (false, BTreeSet::new());
        for _ in 0..ROUNDS {
            let round = self.look(&Request { arguments: &arguments, ..*request }, history);
            let rewrites: Vec<String> =
                round.iter().filter(|hit| hit.effect == Decision::Modify).map(|hit| hit.id.clone()).collect();
            for hit in round {
                keep(&mut hits, hit);
            }
            let mut changed = false;
            for id in rewrites {
                match self.rewrite(&id, &mut arguments) {
                    Ok(true) => {
                        changed = true;
                        rewriters.insert(id);
                    }
                    // It wanted what was there: it took no part, unless it did in an earlier round.
                    Ok(false) => {}
                    Err(hit) => keep(&mut hits, *hit),
                }
            }
            let strongest = hits.values().map(|hit| hit.effect).max();
            if !changed || strongest >= Some(Decision::Defer) {
                settled = true;
                break;
            }
        }
        if !settled {
            keep(&mut hits, builtin("unsettled", format!("rules still rewrite the call after {ROUNDS} rounds")));
        }
        hits.retain(|_, hit| hit.effect != Decision::Modify || rewriters.contains(&hit.id));
        self.verdict(request, arguments, hits.into_values().collect())
    }

    fn verdict(&self, request: &Request<'_>, arguments: Map<String, Value>, mut rules: Vec<Hit>) -> Verdict {
        rules.sort_by(|a, b| b.effect.cmp(&a.effect).then_with(|| (&a.pack, &a.id).cmp(&(&b.pack, &b.id))));
        let decision = rules.first().map_or(Decision::Deny, |hit| hit.effect);
        let asked = rules.iter().filter(|hit| decision == Decision::Ask && hit.effect == Decision::Ask);
        let mut needs: Vec<_> =
            asked.map(|hit| self.rules.get(&hit.id).and_then(|rule| rule.need.clone()).unwrap_or_default()).collect();
        needs.sort();
        needs.dedup();
        let arguments = if decision > Decision::Ask { request.arguments.clone() } else { arguments };
        Verdict { decision, arguments, rules, needs }
    }

    /// What every rule says of a call as it stands.
    fn look(&self, request: &Request<'_>, history: &History) -> Vec<Hit> {
        let Some(tool) = self.tools.get(request.tool) else {
            return vec![builtin("unknown-tool", format!("there is no tool `{}`", request.tool))];
        };
        if let Some(unknown) = &tool.unknown {
            return vec![unknown.clone()];
        }
        let input = match tool.input.read(request.arguments) {
            Ok(input) => input,
            Err(misfit) => return vec![builtin("arguments-misfit", misfit.to_string())],
        };
        let facts = facts::of(request.arguments, &tool.input.kinds, tool.commands, &self.scope, request.labels);
        let undeclared: Vec<&str> = tool.input.undeclared(request.arguments).collect();
        let seen = Seen { request, facts: &facts, data: &tool.data, undeclared: &undeclared };
        let asked: Vec<&Asked> = tool.asked.iter().filter(|rule| rule.sieve.answer(&seen) != Some(false)).collect();
        let wanted = asked.iter().fold(Wanted::default(), |all, rule| all.or(rule.wanted));
        let call = match self.call(tool, &seen, wanted, input) {
            Ok(call) => call,
            Err(hit) => return vec![*hit],
        };
        let mut hits = Vec::new();
        let mut permitted = false;
        for Asked { id, policies, .. } in asked {
            let response = self.authorizer.is_authorized(&call, policies, &self.entities);
            let diagnostics = response.diagnostics();
            let Some(rule) = self.rules.get(id) else { continue };
            // Cedar leaves out a rule that fails; here it denies.
            for AuthorizationError::PolicyEvaluationError(error) in diagnostics.errors() {
                hits.push(rule.fault(error.inner().to_string()));
            }
            if diagnostics.reason().next().is_some() && rule.from_s <= request.now_s {
                permitted |= rule.effect == Decision::Allow;
                hits.push(rule.hit());
            }
        }
        if !permitted {
            hits.push(builtin("default-deny", "no rule permits this call"));
        }
        match history.rules().digest() == self.temporal.digest() {
            true => hits.extend(history.check(request)),
            false => hits.push(builtin("foreign-history", "the history is one of other rules")),
        }
        hits
    }

    /// The call as Cedar sees it.
    pub(crate) fn call(
        &self,
        tool: &Tool,
        seen: &Seen<'_>,
        wanted: Wanted,
        input: RestrictedExpression,
    ) -> Result<cedar_policy::Request, Box<Hit>> {
        let fault = |e: &dyn std::fmt::Display| {
            Box::new(builtin("context-fault", format!("the call cannot be shown to rules: {e}")))
        };
        let context = wanted.context(seen, input).map_err(|e| fault(&e))?;
        let agent = EntityUid::from_type_name_and_id(self.agent.clone(), EntityId::new(&seen.request.principal.agent));
        // Built to the schema by construction, which a test holds every kind of call against; checking each would cost more
        // than deciding it.
        cedar_policy::Request::new(agent, tool.action.clone(), tool.resource.clone(), context, None)
            .map_err(|e| fault(&e))
    }

    /// Lets one rule rewrite the arguments; whether that changed them.
    fn rewrite(&self, id: &str, arguments: &mut Map<String, Value>) -> Result<bool, Box<Hit>> {
        let Some(rule) = self.rules.get(id) else { return Ok(false) };
        match &rule.rewrite {
            Some(rewrite) => rewrite.apply(arguments).map_err(|error| Box::new(rule.fault(error))),
            None => Ok(false),
        }
    }

    /// The history of an episode in which nothing has happened yet.
    pub fn history(&self) -> History {
        self.temporal.history()
    }

    /// The digest of all that decides: packs, tools, scope.
    pub fn rules_digest(&self) -> &str {
        &self.digest
    }

    /// Every rule in force, in the packs' order, and whether it can apply to any of the tools.
    pub fn rules(&self) -> &[RuleInfo] {
        &self.infos
    }
}

/// Keeps a rule's strongest word over all rounds.
fn keep(hits: &mut BTreeMap<(String, String), Hit>, hit: Hit) {
    let key = (hit.pack.clone(), hit.id.clone());
    if hits.get(&key).is_none_or(|old| old.effect < hit.effect) {
        hits.insert(key, hit);
    }
}

#[cfg(test)]
mod tests;
