//! What a rule may look at besides principal, action and resource: one line for each attribute of `context`, with its type
//! and its value.

use std::collections::BTreeSet;

use cedar_policy::{Context, ContextCreationError, RestrictedExpression as Expr};
use serde_json::{Map, Value, json};

use crate::facts::Facts;
use crate::{Origin, Readers, Request};

/// A call with all that was worked out about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) facts: &'a Facts,
    /// The classes of data that the tool touches.
    pub(crate) data: &'a BTreeSet<String>,
    /// The names of arguments that the tool does not declare.
    pub(crate) undeclared: &'a [&'a str],
}

/// The type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Flag,
    Long,
    Texts,
    Longs,
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Kind::Text => json!({"type": "String"}),
            Kind::Flag => json!({"type": "Boolean"}),
            Kind::Long => json!({"type": "Long"}),
            Kind::Texts => json!({"type": "Set", "element": {"type": "String"}}),
            Kind::Longs => json!({"type": "Set", "element": {"type": "Long"}}),
        }
    }
}

/// The value of an attribute, where it lies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum View<'a> {
    Text(&'a str),
    Flag(bool),
    Long(i64),
    Set(&'a BTreeSet<String>),
    Union(&'a BTreeSet<String>, &'a BTreeSet<String>),
    List(&'a [String]),
    Names(&'a [&'a str]),
    Origins(&'a BTreeSet<Origin>),
    Longs(&'a BTreeSet<i64>),
}

impl View<'_> {
    fn expr(self) -> Expr {
        match self {
            View::Text(value) => text(value),
            View::Flag(value) => Expr::new_bool(value),
            View::Long(value) => Expr::new_long(value),
            View::Set(values) => texts(values),
            View::Union(a, b) => texts(a.union(b)),
            View::List(values) => texts(values),
            View::Names(values) => texts(values),
            View::Origins(values) => texts(values.iter().map(origin_name)),
            View::Longs(values) => Expr::new_set(values.iter().map(|value| Expr::new_long(*value))),
        }
    }

    /// Whether a set of texts holds one.
    pub(crate) fn holds(self, one: &str) -> bool {
        match self {
            View::Set(values) => values.contains(one),
            View::Union(a, b) => a.contains(one) || b.contains(one),
            View::List(values) => values.iter().any(|value| value == one),
            View::Names(values) => values.contains(&one),
            View::Origins(values) => values.iter().any(|value| origin_name(value) == one),
            View::Text(_) | View::Flag(_) | View::Long(_) | View::Longs(_) => false,
        }
    }

    /// Whether a set is empty.
    pub(crate) fn is_empty(self) -> bool {
        match self {
            View::Set(values) => values.is_empty(),
            View::Union(a, b) => a.is_empty() && b.is_empty(),
            View::List(values) => values.is_empty(),
            View::Names(values) => values.is_empty(),
            View::Origins(values) => values.is_empty(),
            View::Longs(values) => values.is_empty(),
            View::Text(_) | View::Flag(_) | View::Long(_) => false,
        }
    }
}

/// One attribute: `context.GROUP.name`, or `context.name` where the group is empty.
#[derive(Debug)]
pub(crate) struct Field {
    group: &'static str,
    name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) value: for<'a> fn(&Seen<'a>) -> View<'a>,
}

macro_rules! fields {
    ($($group:literal { $($name:literal: $kind:ident = $value:expr,)+ })+) => {
        /// Every attribute, group by group.
        const FIELDS: &[Field] = &[
            $($(Field { group: $group, name: $name, kind: Kind::$kind, value: $value },)+)+
        ];
    };
}

fields! {
    "" {
        "data": Texts = |s| View::Union(s.data, &s.request.labels.sensitivity),
        "now": Long = |s| View::Long(i64::try_from(s.request.now_s).unwrap_or(i64::MAX)),
        "undeclared": Texts = |s| View::Names(s.undeclared),
    }
    "amount" {
        "found": Flag = |s| View::Flag(s.facts.amount.found),
        "most": Long = |s| View::Long(s.facts.amount.most),
        "negative": Flag = |s| View::Flag(s.facts.amount.negative),
        "total": Long = |s| View::Long(s.facts.amount.total),
        "unreadable": Flag = |s| View::Flag(s.facts.amount.unreadable),
    }
    "hosts" {
        "all": Texts = |s| View::Set(&s.facts.hosts.all),
        "literal": Flag = |s| View::Flag(s.facts.hosts.literal),
        "local": Flag = |s| View::Flag(s.facts.hosts.local),
        "odd": Flag = |s| View::Flag(s.facts.hosts.odd),
        "outside": Texts = |s| View::Set(&s.facts.hosts.outside),
        "ports": Longs = |s| View::Longs(&s.facts.hosts.ports),
        "schemes": Texts = |s| View::Set(&s.facts.hosts.schemes),
        "userinfo": Flag = |s| View::Flag(s.facts.hosts.userinfo),
        "within": Texts = |s| View::Set(&s.facts.hosts.within),
    }
    "labels" {
        "everyone": Flag = |s| View::Flag(s.request.labels.readers == Readers::Everyone),
        "origins": Texts = |s| View::Origins(&s.request.labels.origins),
        "readers": Texts = |s| match &s.request.labels.readers {
            Readers::Everyone => View::List(&[]),
            Readers::Only(who) => View::Set(who),
        },
        "sensitivity": Texts = |s| View::Set(&s.request.labels.sensitivity),
        "untrusted": Flag = |s| View::Flag(s.request.labels.untrusted),
    }
    "mentioned" {
        "all": Texts = |s| View::Set(&s.facts.mentioned.all),
        "endings": Texts = |s| View::Set(&s.facts.mentioned.endings),
        "outside": Texts = |s| View::Set(&s.facts.mentioned.outside),
        "parts": Texts = |s| View::Set(&s.facts.mentioned.parts),
        "top": Flag = |s| View::Flag(s.facts.mentioned.top),
        "unresolved": Flag = |s| View::Flag(s.facts.mentioned.unresolved),
        "wild": Flag = |s| View::Flag(s.facts.mentioned.wild),
        "within": Texts = |s| View::Set(&s.facts.mentioned.within),
    }
    "paths" {
        "all": Texts = |s| View::Set(&s.facts.paths.all),
        "endings": Texts = |s| View::Set(&s.facts.paths.endings),
        "outside": Texts = |s| View::Set(&s.facts.paths.outside),
        "parts": Texts = |s| View::Set(&s.facts.paths.parts),
        "top": Flag = |s| View::Flag(s.facts.paths.top),
        "unresolved": Flag = |s| View::Flag(s.facts.paths.unresolved),
        "wild": Flag = |s| View::Flag(s.facts.paths.wild),
        "within": Texts = |s| View::Set(&s.facts.paths.within),
    }
    "principal" {
        "agent": Text = |s| View::Text(&s.request.principal.agent),
        "autonomy": Text = |s| View::Text(s.request.principal.autonomy.as_str()),
        "chain": Texts = |s| View::List(&s.request.principal.chain),
        "deployment": Text = |s| View::Text(s.request.principal.deployment.as_str()),
        "depth": Long = |s| View::Long(i64::try_from(s.request.principal.chain.len()).unwrap_or(i64::MAX)),
        "purpose": Text = |s| View::Text(s.request.principal.purpose.trim()),
        "run": Text = |s| View::Text(&s.request.principal.run),
        "subject": Text = |s| View::Text(&s.request.principal.subject),
    }
    "recipients" {
        "all": Texts = |s| View::Set(&s.facts.recipients.all),
        "domains": Texts = |s| View::Set(&s.facts.recipients.domains),
        "not_readers": Texts = |s| View::Set(&s.facts.recipients.not_readers),
        "outside": Texts = |s| View::Set(&s.facts.recipients.outside),
    }
    "size" {
        "bytes": Long = |s| View::Long(s.facts.size_bytes),
        "widest": Long = |s| View::Long(s.facts.widest),
    }
}

fn text(value: &str) -> Expr {
    Expr::new_string(value.to_owned())
}

fn texts(values: impl IntoIterator<Item = impl AsRef<str>>) -> Expr {
    Expr::new_set(values.into_iter().map(|value| text(value.as_ref())))
}

/// An origin as rules write it; only a tool's has a colon, so no tool's name passes for another origin.
fn origin_name(origin: &Origin) -> String {
    match origin {
        Origin::System => "system".to_owned(),
        Origin::User => "user".to_owned(),
        Origin::Tool(name) => format!("tool:{name}"),
        Origin::Web => "web".to_owned(),
        Origin::Memory => "memory".to_owned(),
    }
}

/// The groups of attributes in the table's order, the empty one among them.
fn groups() -> impl Iterator<Item = &'static [Field]> {
    FIELDS.chunk_by(|a, b| a.group == b.group)
}

/// The type of a tool's context, given that of its arguments, as Cedar's JSON schema writes it.
pub(crate) fn schema(input: Value) -> Value {
    let record = |fields: &[Field]| -> Map<String, Value> {
        fields.iter().map(|field| (field.name.to_owned(), field.kind.schema())).collect()
    };
    let mut attributes = Map::from_iter([("input".to_owned(), input)]);
    for fields in groups() {
        match fields[0].group {
            "" => attributes.extend(record(fields)),
            group => {
                attributes.insert(group.to_owned(), json!({"type": "Record", "attributes": record(fields)}));
            }
        }
    }
    json!({"type": "Record", "attributes": attributes})
}

/// The attributes that a rule looks at; what is not looked at need not be turned into what Cedar reads, which takes longer
/// than reading it.
///
/// - Holds: an attribute left out is named by none of the rules that are asked, so that none can tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    input: bool,
    /// One bit for each line of the table.
    fields: u64,
}

const _: () = assert!(FIELDS.len() <= 64, "a bit for each attribute");

impl Wanted {
    /// What a rule looks at, from its JSON form.
    pub(crate) fn by(rule: &Value) -> Wanted {
        let mut names = Names::default();
        names.walk(rule, false);
        let mut wanted = Wanted { input: names.everything || names.tops.contains("input"), fields: 0 };
        for (i, field) in FIELDS.iter().enumerate() {
            // Who asks whether there is a group gets all of it.
            let top = if field.group.is_empty() { field.name } else { field.group };
            let part = (field.group.to_owned(), field.name.to_owned());
            if names.everything || names.whole.contains(top) || names.parts.contains(&part) {
                wanted.fields |= 1 << i;
            }
        }
        wanted
    }

    /// Everything there is.
    #[cfg(test)]
    pub(crate) fn everything() -> Wanted {
        Wanted { input: true, fields: u64::MAX >> (64 - FIELDS.len()) }
    }

    /// What either looks at.
    pub(crate) fn or(self, other: Wanted) -> Wanted {
        Wanted { input: self.input || other.input, fields: self.fields | other.fields }
    }

    /// The context of one call.
    pub(crate) fn context(self, seen: &Seen<'_>, input: Expr) -> Result<Context, Box<ContextCreationError>> {
        let mut pairs = Vec::new();
        if self.input {
            pairs.push(("input".to_owned(), input));
        }
        let mut at = 0;
        for fields in groups() {
            let wanted = fields.iter().enumerate().filter(|(i, _)| self.fields & (1 << (at + i)) != 0);
            let mut record = wanted.map(|(_, field)| (field.name.to_owned(), (field.value)(seen).expr())).peekable();
            match fields[0].group {
                "" => pairs.extend(record),
                group if record.peek().is_some() => {
                    let record = Expr::new_record(record).expect("the table has each name of a group once");
                    pairs.push((group.to_owned(), record));
                }
                _ => {}
            }
            at += fields.len();
        }
        Context::from_pairs(pairs).map_err(Box::new)
    }
}

/// The line of the table for `context.GROUP.name`, or for `context.name`.
pub(crate) fn field(path: &[&str]) -> Option<&'static Field> {
    let (group, name) = match *path {
        [name] => ("", name),
        [group, name] => (group, name),
        _ => return None,
    };
    FIELDS.iter().find(|field| field.group == group && field.name == name)
}

/// The attributes of `context` that rules name.
#[derive(Debug, Default)]
struct Names {
    /// A rule takes the whole context for a value.
    everything: bool,
    /// `context.X`, whatever follows.
    tops: BTreeSet<String>,
    /// `context.X` taken for a value as a whole.
    whole: BTreeSet<String>,
    /// `context.X.Y`.
    parts: BTreeSet<(String, String)>,
}

impl Names {
    /// Walks an expression in Cedar's JSON form. `under` says that only an attribute of it is taken.
    fn walk(&mut self, node: &Value, under: bool) {
        if is_context(node) {
            self.everything |= !under;
            return;
        }
        match node {
            Value::Object(map) => {
                for (key, value) in map {
                    match attribute(key, value) {
                        Some((left, name)) => {
                            self.take(left, name, under);
                            self.walk(left, true);
                        }
                        None => self.walk(value, false),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|node| self.walk(node, false)),
            _ => {}
        }
    }

    fn take(&mut self, left: &Value, name: &str, under: bool) {
        if is_context(left) {
            self.tops.insert(name.to_owned());
            if !under {
                self.whole.insert(name.to_owned());
            }
            return;
        }
        let above = left.as_object().filter(|map| map.len() == 1).and_then(|map| map.iter().next());
        if let Some((further, top)) = above.and_then(|(key, value)| attribute(key, value))
            && is_context(further)
        {
            self.parts.insert((top.to_owned(), name.to_owned()));
        }
    }
}

/// The parts of `left.name` and `left has name`.
fn attribute<'a>(key: &str, value: &'a Value) -> Option<(&'a Value, &'a str)> {
    match key {
        "." | "has" => Some((value.get("left")?, value.get("attr")?.as_str()?)),
        _ => None,
    }
}

fn is_context(node: &Value) -> bool {
    node.get("Var").is_some_and(|name| name == "context")
}
