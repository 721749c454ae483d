//! Which rules need not be asked about a call, because a glance at the facts shows that they do not apply.
//!
//! Most conditions are questions about facts that lie ready: is a set empty, does it hold one of these, is a flag up. Such a
//! condition is answered here. Cedar still decides for every rule that may apply; what is known not to is not handed to it.
//!
//! - Holds: where the answer is known, it is Cedar's, and Cedar would have met no error on the way. A test compares both for
//!   random conditions and for every shipped rule.

use serde_json::Value;

use crate::context::{Field, Kind, Seen, field};

/// What is static about a tool, as `resource` shows it to rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resource<'a> {
    pub(crate) action: &'a str,
    pub(crate) granted: bool,
    pub(crate) data: &'a std::collections::BTreeSet<String>,
}

/// A condition as far as it can be answered from facts.
#[derive(Debug, Clone)]
pub(crate) enum Sieve {
    /// It cannot be answered here.
    Unknown,
    /// It is the same for every call of the tool.
    Known(bool),
    Flag(&'static Field),
    Empty(&'static Field),
    /// The set holds one of these.
    Any(&'static Field, Vec<String>),
    /// The set holds all of these.
    All(&'static Field, Vec<String>),
    /// The text is one of these.
    Among(&'static Field, Vec<String>),
    Below(&'static Field, i64),
    Above(&'static Field, i64),
    Equals(&'static Field, i64),
    Not(Box<Sieve>),
    And(Box<Sieve>, Box<Sieve>),
    Or(Box<Sieve>, Box<Sieve>),
}

impl Sieve {
    /// The condition of a rule in Cedar's JSON form, for one tool. What its scope asks is not part of it.
    pub(crate) fn of(rule: &Value, resource: Resource<'_>) -> Sieve {
        let scope = |name: &str| rule[name]["op"] == "All";
        // A scope that names a principal or a resource is Cedar's to look at: unknown, and first.
        let first = if scope("principal") && scope("resource") { Sieve::Known(true) } else { Sieve::Unknown };
        let conditions = rule["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        // The order of several clauses is Cedar's own, and decides which error is met: only one clause is read.
        let body = match conditions {
            [] => Sieve::Known(true),
            [one] if one["kind"] == "when" => read(&one["body"], resource),
            [one] if one["kind"] == "unless" => read(&one["body"], resource).not(),
            _ => Sieve::Unknown,
        };
        match first {
            Sieve::Known(true) => body,
            _ => Sieve::Unknown,
        }
    }

    /// The answer, where it is known.
    pub(crate) fn answer(&self, seen: &Seen<'_>) -> Option<bool> {
        use crate::context::View;
        let long = |field: &Field| match (field.value)(seen) {
            View::Long(n) => Some(n),
            _ => None,
        };
        match self {
            Sieve::Unknown => None,
            Sieve::Known(answer) => Some(*answer),
            Sieve::Flag(field) => match (field.value)(seen) {
                View::Flag(up) => Some(up),
                _ => None,
            },
            Sieve::Empty(field) => Some((field.value)(seen).is_empty()),
            Sieve::Any(field, texts) => {
                let set = (field.value)(seen);
                Some(!set.is_empty() && texts.iter().any(|text| set.holds(text)))
            }
            Sieve::All(field, texts) => {
                let set = (field.value)(seen);
                Some(texts.iter().all(|text| set.holds(text)))
            }
            Sieve::Among(field, texts) => match (field.value)(seen) {
                View::Text(text) => Some(texts.iter().any(|one| one == text)),
                _ => None,
            },
            Sieve::Below(field, bound) => long(field).map(|n| n < *bound),
            Sieve::Above(field, bound) => long(field).map(|n| n > *bound),
            Sieve::Equals(field, value) => long(field).map(|n| n == *value),
            Sieve::Not(inner) => inner.answer(seen).map(|answer| !answer),
            // As Cedar does it: the right side is not looked at, and so cannot fail, where the left one settles it.
            Sieve::And(left, right) => match left.answer(seen) {
                Some(true) => right.answer(seen),
                other => other,
            },
            Sieve::Or(left, right) => match left.answer(seen) {
                Some(false) => right.answer(seen),
                other => other,
            },
        }
    }

    fn not(self) -> Sieve {
        match self {
            Sieve::Known(answer) => Sieve::Known(!answer),
            Sieve::Unknown => Sieve::Unknown,
            other => Sieve::Not(Box::new(other)),
        }
    }
}

/// Reads an expression of Cedar's JSON form.
fn read(node: &Value, resource: Resource<'_>) -> Sieve {
    let Some((op, of)) = node.as_object().filter(|map| map.len() == 1).and_then(|map| map.iter().next()) else {
        return Sieve::Unknown;
    };
    let (left, right) = (&of["left"], &of["right"]);
    let sub = |node| Box::new(read(node, resource));
    match op.as_str() {
        "Value" => of.as_bool().map_or(Sieve::Unknown, Sieve::Known),
        "!" => read(&of["arg"], resource).not(),
        "&&" => Sieve::And(sub(left), sub(right)),
        "||" => Sieve::Or(sub(left), sub(right)),
        "." => match place(node) {
            Some(Place::Context(field)) if field.kind == Kind::Flag => Sieve::Flag(field),
            Some(Place::Resource("granted")) => Sieve::Known(resource.granted),
            _ => Sieve::Unknown,
        },
        "isEmpty" => match place(&of["arg"]) {
            Some(Place::Context(field)) if matches!(field.kind, Kind::Texts | Kind::Longs) => Sieve::Empty(field),
            Some(Place::Resource("data")) => Sieve::Known(resource.data.is_empty()),
            _ => Sieve::Unknown,
        },
        "contains" => match (place(left), text(right), texts(left), place(right)) {
            (Some(Place::Context(field)), Some(one), ..) if field.kind == Kind::Texts => Sieve::Any(field, vec![one]),
            (Some(Place::Resource("data")), Some(one), ..) => Sieve::Known(resource.data.contains(&one)),
            (_, _, Some(list), Some(Place::Context(field))) if field.kind == Kind::Text => Sieve::Among(field, list),
            (_, _, Some(list), Some(Place::Resource("action"))) => {
                Sieve::Known(list.iter().any(|a| a == resource.action))
            }
            _ => Sieve::Unknown,
        },
        "containsAny" | "containsAll" => match (place(left), texts(right)) {
            (Some(Place::Context(field)), Some(list)) if field.kind == Kind::Texts => match op.as_str() {
                "containsAny" => Sieve::Any(field, list),
                _ => Sieve::All(field, list),
            },
            (Some(Place::Resource("data")), Some(list)) => Sieve::Known(match op.as_str() {
                "containsAny" => list.iter().any(|one| resource.data.contains(one)),
                _ => list.iter().all(|one| resource.data.contains(one)),
            }),
            _ => Sieve::Unknown,
        },
        "==" => equals(left, right, resource),
        "!=" => equals(left, right, resource).not(),
        "<" | "<=" | ">" | ">=" => match (place(left), right["Value"].as_i64()) {
            (Some(Place::Context(field)), Some(bound)) if field.kind == Kind::Long => match op.as_str() {
                "<" => Sieve::Below(field, bound),
                ">" => Sieve::Above(field, bound),
                "<=" => Sieve::Above(field, bound).not(),
                _ => Sieve::Below(field, bound).not(),
            },
            _ => Sieve::Unknown,
        },
        _ => Sieve::Unknown,
    }
}

fn equals(left: &Value, right: &Value, resource: Resource<'_>) -> Sieve {
    match (place(left), text(right), right["Value"].as_i64()) {
        (Some(Place::Context(field)), Some(one), _) if field.kind == Kind::Text => Sieve::Among(field, vec![one]),
        (Some(Place::Context(field)), _, Some(n)) if field.kind == Kind::Long => Sieve::Equals(field, n),
        (Some(Place::Resource("action")), Some(one), _) => Sieve::Known(one == resource.action),
        _ => Sieve::Unknown,
    }
}

/// Where an expression points.
enum Place<'a> {
    Context(&'static Field),
    Resource(&'a str),
}

fn place(node: &Value) -> Option<Place<'_>> {
    let name = |node: &'_ Value| -> Option<(Value, String)> {
        let dot = node.get(".")?;
        Some((dot["left"].clone(), dot["attr"].as_str()?.to_owned()))
    };
    let dot = node.get(".")?;
    if dot["left"]["Var"] == "resource" {
        return dot["attr"].as_str().map(Place::Resource);
    }
    let (left, last) = name(node)?;
    if left["Var"] == "context" {
        return field(&[&last]).map(Place::Context);
    }
    let (further, group) = name(&left)?;
    (further["Var"] == "context").then(|| field(&[&group, &last])).flatten().map(Place::Context)
}

fn text(node: &Value) -> Option<String> {
    node.get("Value")?.as_str().map(str::to_owned)
}

fn texts(node: &Value) -> Option<Vec<String>> {
    node.get("Set")?.as_array()?.iter().map(text).collect()
}
