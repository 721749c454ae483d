//! How a guard is built: the schema that tools give, rules held against it, and for each tool the rules that may apply.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use cedar_policy::{
    ActionConstraint, Authorizer, Entities, Entity, EntityId, EntityTypeName, EntityUid, Policy, PolicySet,
    RestrictedExpression as Expr, Schema, ValidationMode, ValidationWarning, Validator,
};
use episode::ToolSpec;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::context::{self, Wanted};
use crate::guard::{Asked, Guard, Tool, builtin};
use crate::pack::Rule;
use crate::schema::Input;
use crate::sieve::{Resource, Sieve};
use crate::temporal::Temporal;
use crate::{ActionClass, DataClass, GuardError, Pack, Packs, RuleInfo, Scope, action_classes, data_classes};

/// The layout of what the rules' digest covers.
const DIGEST: &str = "surefoot guard rules 1";

impl Guard {
    /// A guard over these tools.
    ///
    /// - Errors: two tools share a name; a tool's parameters are not the schema of an object; a rule does not fit the tools.
    pub fn new(packs: &Packs, tools: &[ToolSpec], scope: &Scope) -> Result<Guard, GuardError> {
        Guard::build(packs, tools, scope, true)
    }

    /// As [`Guard::new`]; unchecked rules are for the tests that show that a rule which fails denies.
    pub(crate) fn build(packs: &Packs, tools: &[ToolSpec], scope: &Scope, checked: bool) -> Result<Guard, GuardError> {
        let mut sorted: Vec<&ToolSpec> = tools.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let reason = "another tool has the same name".to_owned();
            return Err(GuardError::Tool { tool: pair[0].name.clone(), reason });
        }
        let inputs = sorted.iter().map(|tool| Input::of(tool)).collect::<Result<Vec<_>, _>>()?;
        let written = schema(&sorted, &inputs);
        let schema = Schema::from_json_value(written.clone()).map_err(|e| GuardError::Tool {
            tool: sorted.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join("`, `"),
            reason: e.to_string(),
        })?;
        let rules: BTreeMap<String, Rule> =
            packs.iter().flat_map(|pack| &pack.rules).map(|rule| (rule.id.clone(), rule.clone())).collect();
        let temporal = Temporal::compile(packs.iter().map(Pack::history), tools)?;
        for hit in temporal.rules() {
            if let Some(rule) = rules.get(&hit.id) {
                let (first, second) = (rule.pack.clone(), hit.pack.clone());
                return Err(GuardError::Duplicate { rule: hit.id.clone(), first, second });
            }
        }
        let idle = if checked { check(&rules, &schema)? } else { BTreeSet::new() };
        let internal = |e: &dyn std::fmt::Display| GuardError::Tool { tool: String::new(), reason: e.to_string() };
        let mut used = BTreeSet::new();
        let mut table = BTreeMap::new();
        let mut entities: Vec<Entity> = Vec::new();
        for (tool, input) in sorted.iter().zip(inputs) {
            let (entry, entity) = one(tool, input, &rules, scope, &mut used)?;
            entities.push(entity);
            table.insert(tool.name.clone(), entry);
        }
        let actions = schema.action_entities().map_err(|e| internal(&e))?;
        let entities =
            Entities::from_entities(actions.into_iter().chain(entities), Some(&schema)).map_err(|e| internal(&e))?;
        let mut infos = Vec::new();
        for pack in packs.iter() {
            let applies = |rule: &Rule| used.contains(&rule.id) && !idle.contains(&rule.id);
            infos.extend(pack.rules.iter().map(|rule| RuleInfo { rule: rule.hit(), applies: applies(rule) }));
            let over_history = temporal.rules().filter(|hit| hit.pack == pack.header.name);
            infos.extend(over_history.map(|hit| RuleInfo { rule: hit.clone(), applies: true }));
        }
        Ok(Guard {
            tools: table,
            rules,
            infos,
            entities,
            authorizer: Authorizer::new(),
            agent: type_name("Agent"),
            scope: scope.clone(),
            digest: digest(packs, written, &temporal, &sorted, scope),
            temporal,
            #[cfg(test)]
            schema,
        })
    }
}

pub(crate) fn type_name(name: &str) -> EntityTypeName {
    EntityTypeName::from_str(name).expect("a plain name is a type's name")
}

fn action(id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(type_name("Action"), EntityId::new(id))
}

/// The names of a tool's action and of the groups it is in: its class and its classes of data. One that is not in the
/// tables has no group; its tool's calls are denied.
fn groups(tool: &ToolSpec) -> Vec<String> {
    let class = ActionClass::parse(&tool.action).map(|class| format!("class:{}", class.as_str()));
    let data: BTreeSet<DataClass> = tool.data.iter().filter_map(|word| DataClass::parse(word)).collect();
    class.into_iter().chain(data.into_iter().map(|class| format!("data:{}", class.as_str()))).collect()
}

/// Cedar's schema for these tools, in its JSON form.
fn schema(tools: &[&ToolSpec], inputs: &[Input]) -> Value {
    let mut actions = Map::new();
    for class in action_classes() {
        actions.insert(format!("class:{}", class.as_str()), json!({}));
    }
    for class in data_classes() {
        actions.insert(format!("data:{}", class.as_str()), json!({}));
    }
    for (tool, input) in tools.iter().zip(inputs) {
        let above: Vec<Value> = groups(tool).into_iter().map(|id| json!({"id": id})).collect();
        let applies = json!({
            "principalTypes": ["Agent"], "resourceTypes": ["Tool"], "context": context::schema(input.schema()),
        });
        actions.insert(format!("tool:{}", tool.name), json!({"memberOf": above, "appliesTo": applies}));
    }
    let tool = json!({"type": "Record", "attributes": {
        "name": {"type": "String"},
        "action": {"type": "String"},
        "data": {"type": "Set", "element": {"type": "String"}},
        "granted": {"type": "Boolean"},
    }});
    json!({"": {
        "entityTypes": {"Agent": {}, "Tool": {"shape": tool}},
        "actions": actions,
    }})
}

/// Holds rules against the schema; which of them can apply to no tool.
fn check(rules: &BTreeMap<String, Rule>, schema: &Schema) -> Result<BTreeSet<String>, GuardError> {
    let set = PolicySet::from_policies(rules.values().map(|rule| rule.policy.clone()))
        .expect("ids are distinct, which packs see to");
    let result = Validator::new(schema.clone()).validate(&set, ValidationMode::Strict);
    let misfit = |id: &str, reason: String| GuardError::Misfit {
        pack: rules.get(id).map_or_else(String::new, |rule| rule.pack.clone()),
        rule: id.to_owned(),
        reason,
    };
    let mut errors: Vec<(String, String)> =
        result.validation_errors().map(|e| (e.policy_id().to_string(), told(&e.to_string()))).collect();
    errors.sort();
    if let Some((id, reason)) = errors.into_iter().next() {
        return Err(misfit(&id, reason));
    }
    let mut idle = BTreeSet::new();
    for warning in result.validation_warnings() {
        let id = warning.policy_id().to_string();
        match warning {
            ValidationWarning::ImpossiblePolicy(_) | ValidationWarning::InvalidActionApplication(_) => {
                idle.insert(id);
            }
            // A rule that reads otherwise than it means.
            ValidationWarning::BidiCharsInString(_)
            | ValidationWarning::BidiCharsInIdentifier(_)
            | ValidationWarning::MixedScriptIdentifier(_)
            | ValidationWarning::ConfusableIdentifier(_) => return Err(misfit(&id, told(&warning.to_string()))),
            _ => {}
        }
    }
    Ok(idle)
}

/// A validator's message without its head, which names the policy once more.
fn told(message: &str) -> String {
    match message.strip_prefix("for policy `").and_then(|rest| rest.split_once("`, ")) {
        Some((_, rest)) => rest.to_owned(),
        None => message.to_owned(),
    }
}

/// One tool's entry: its names to Cedar, and the rules whose scope of action lets them apply to it.
///
/// - Holds: a rule left out could neither apply nor fail, since Cedar looks at the scope before the conditions.
fn one(
    tool: &ToolSpec,
    input: Input,
    rules: &BTreeMap<String, Rule>,
    scope: &Scope,
    used: &mut BTreeSet<String>,
) -> Result<(Tool, Entity), GuardError> {
    let class = ActionClass::parse(&tool.action);
    let name = action(&format!("tool:{}", tool.name));
    let mut among: Vec<EntityUid> = groups(tool).iter().map(|id| action(id)).collect();
    among.push(name.clone());
    let applies = |rule: &Rule| match rule.policy.action_constraint() {
        ActionConstraint::Any => true,
        ActionConstraint::Eq(one) => one == name,
        ActionConstraint::In(any) => any.iter().any(|one| among.contains(one)),
    };
    let unknown = match (class, tool.data.iter().find(|word| DataClass::parse(word).is_none())) {
        (None, _) => {
            Some(format!("tool `{}` has the class of action `{}`, which is not known", tool.name, tool.action))
        }
        (_, Some(word)) => Some(format!("tool `{}` touches the class of data `{word}`, which is not known", tool.name)),
        _ => None,
    };
    let resource = EntityUid::from_type_name_and_id(type_name("Tool"), EntityId::new(&tool.name));
    let data: BTreeSet<String> = tool.data.iter().cloned().collect();
    let granted = class.is_some_and(|class| scope.grants(class));
    let shown = Resource { action: &tool.action, granted, data: &data };
    let mut asked = Vec::new();
    for rule in rules.values().filter(|rule| applies(rule)) {
        used.insert(rule.id.clone());
        let (policy, form) = plain(rule)?;
        let policies = PolicySet::from_policies([policy]).expect("one policy has one id");
        asked.push(Asked { id: rule.id.clone(), sieve: Sieve::of(&form, shown), wanted: Wanted::by(&form), policies });
    }
    let attributes = [
        ("name".to_owned(), Expr::new_string(tool.name.clone())),
        ("action".to_owned(), Expr::new_string(tool.action.clone())),
        ("data".to_owned(), Expr::new_set(data.iter().map(|word| Expr::new_string(word.clone())))),
        ("granted".to_owned(), Expr::new_bool(granted)),
    ];
    let entity = Entity::new(resource.clone(), attributes.into(), Default::default())
        .map_err(|e| GuardError::Tool { tool: tool.name.clone(), reason: e.to_string() })?;
    let entry = Tool {
        action: name,
        resource,
        input,
        data,
        commands: matches!(class, Some(ActionClass::Execute)),
        unknown: unknown.map(|reason| builtin("unknown-class", reason)),
        asked,
    };
    Ok((entry, entity))
}

/// A rule without the places in its text, which Cedar would carry along with every value it works out; and its JSON form.
fn plain(rule: &Rule) -> Result<(Policy, Value), GuardError> {
    let misfit = |reason: String| GuardError::Misfit { pack: rule.pack.clone(), rule: rule.id.clone(), reason };
    let form = rule.policy.to_json().map_err(|e| misfit(e.to_string()))?;
    let policy = Policy::from_json(Some(rule.policy.id().clone()), form.clone()).map_err(|e| misfit(e.to_string()))?;
    Ok((policy, form))
}

/// SHA-256 over all that decides: the packs' texts, the schema, the tools' classes, the scope; each with its length before
/// it, so that no two different sets of rules give the same bytes.
fn digest(packs: &Packs, mut schema: Value, temporal: &Temporal, tools: &[&ToolSpec], scope: &Scope) -> String {
    let mut hasher = Sha256::new();
    let mut part = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    part(DIGEST);
    part(env!("CARGO_PKG_VERSION"));
    for (i, pack) in packs.iter().enumerate() {
        part(&format!("pack {i}"));
        pack.source().iter().for_each(|text| part(text));
    }
    part(temporal.digest());
    schema.sort_all_objects();
    part(&schema.to_string());
    for tool in tools {
        // The whole of its parameters, since formats in them decide what is read as a path or a host.
        let mut parameters = tool.parameters.clone();
        parameters.sort_all_objects();
        part(&json!([tool.name, tool.action, tool.data, parameters]).to_string());
    }
    part(&serde_json::to_string(scope).expect("a scope is plain data"));
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
