//! What rules may say of a tool's arguments: a type for each, from its JSON Schema, and the arguments of a call in those
//! types.

use std::collections::BTreeMap;

use cedar_policy::RestrictedExpression as Expr;
use episode::ToolSpec;
use serde_json::{Map, Value, json};

use crate::GuardError;
use crate::facts::{Kind, scaled_up};

/// References followed and objects entered before a type is taken for unknown.
const DEEPEST: usize = 8;

/// The type of an argument as rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    Text,
    Integer,
    /// A number as a decimal of four places, rounded away from zero; rules that compare sizes err on the large side.
    Number,
    Boolean,
    /// A list as a set: order and repetition are not seen.
    List(Box<Shape>),
    Record(Record),
    /// Anything else, as text: texts as they are, the rest as JSON with sorted names.
    Unknown,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Record {
    fields: BTreeMap<String, Field>,
    /// Whether names that are not declared are let in; they are not seen as arguments, only as facts.
    open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    shape: Shape,
    required: bool,
}

/// The argument names a tool declares at any depth, and what each names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kinds(BTreeMap<String, Kind>);

impl Kinds {
    /// Whether some part of the schema declares a name.
    pub(crate) fn declares(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What a name names.
    pub(crate) fn of(&self, name: &str) -> Kind {
        self.0.get(name).copied().unwrap_or_else(|| Kind::of_name(name))
    }
}

/// The arguments of one tool as rules see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    record: Record,
    /// What its arguments' names name.
    pub(crate) kinds: Kinds,
}

/// Why arguments do not fit a tool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    #[error("argument `{at}` is missing")]
    Missing { at: String },
    #[error("argument `{at}` is not one of the tool's")]
    Undeclared { at: String },
    #[error("argument `{at}`: needed {needed}, got {got}")]
    Type { at: String, needed: &'static str, got: &'static str },
}

impl Input {
    /// The arguments a tool declares.
    ///
    /// - Errors: its parameters are not the schema of an object.
    pub(crate) fn of(tool: &ToolSpec) -> Result<Input, GuardError> {
        let fault = |reason: &str| GuardError::Tool { tool: tool.name.clone(), reason: reason.to_owned() };
        let root = &tool.parameters;
        if !matches!(root, Value::Object(_) | Value::Bool(true)) {
            return Err(fault("its parameters are not a JSON Schema object"));
        }
        if root.get("type").is_some_and(|t| t != "object") {
            return Err(fault("its parameters are not the schema of an object"));
        }
        let mut reader = Reader { root, kinds: BTreeMap::new() };
        let record = match root.get("properties") {
            Some(Value::Object(_)) => reader.record(root, 0),
            Some(_) => return Err(fault("its `properties` are not an object")),
            None => Record { open: root.get("additionalProperties") != Some(&Value::Bool(false)), ..Record::default() },
        };
        Ok(Input { record, kinds: Kinds(reader.kinds) })
    }

    /// The type of `context.input`, as Cedar's JSON schema writes it.
    pub(crate) fn schema(&self) -> Value {
        self.record.schema()
    }

    /// The arguments in their types.
    ///
    /// - Errors: one is missing, not declared, or of another type.
    pub(crate) fn read(&self, arguments: &Map<String, Value>) -> Result<Expr, Misfit> {
        self.record.read(arguments, "")
    }

    /// The names at the top that the tool does not declare.
    pub(crate) fn undeclared<'a>(&self, arguments: &'a Map<String, Value>) -> impl Iterator<Item = &'a str> {
        arguments.keys().map(String::as_str).filter(|name| !self.record.fields.contains_key(*name))
    }
}

struct Reader<'a> {
    root: &'a Value,
    kinds: BTreeMap<String, Kind>,
}

impl Reader<'_> {
    fn record(&mut self, schema: &Value, depth: usize) -> Record {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut record = Record { open: false, ..Record::default() };
        record.open = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false))
            || schema.get("patternProperties").is_some();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let format = property.get("format").and_then(Value::as_str).map(Kind::of_format).unwrap_or_default();
            let kind = self.kinds.entry(name.clone()).or_insert_with(|| Kind::of_name(name));
            *kind = kind.or(format);
            let (shape, nullable) = self.shape(property, depth + 1);
            let required = required.contains(&name.as_str()) && !nullable;
            record.fields.insert(name.clone(), Field { shape, required });
        }
        record
    }

    /// A schema's type, and whether null is one of its values.
    fn shape(&mut self, schema: &Value, depth: usize) -> (Shape, bool) {
        if depth > DEEPEST {
            return (Shape::Unknown, true);
        }
        if let Some(at) = schema.get("$ref").and_then(Value::as_str) {
            return match at.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) {
                Some(target) => self.shape(target, depth + 1),
                None => (Shape::Unknown, true),
            };
        }
        for choice in ["anyOf", "oneOf", "allOf"] {
            if let Some(list) = schema.get(choice).and_then(Value::as_array) {
                let null = |s: &&Value| s.get("type").is_some_and(|t| t == "null");
                let nullable = choice != "allOf" && list.iter().any(|s| null(&s));
                let mut others = list.iter().filter(|s| !null(s));
                return match (others.next(), others.next()) {
                    (Some(one), None) => {
                        let (shape, more) = self.shape(one, depth + 1);
                        (shape, nullable || more)
                    }
                    // More than one: what they have in common is not worked out. Their names are still declared.
                    _ => {
                        list.iter().for_each(|s| drop(self.shape(s, depth + 1)));
                        (Shape::Unknown, true)
                    }
                };
            }
        }
        let (name, nullable) = match schema.get("type") {
            Some(Value::String(name)) => (Some(name.as_str()), false),
            Some(Value::Array(names)) => {
                let others: Vec<&str> = names.iter().filter_map(Value::as_str).filter(|n| *n != "null").collect();
                (if let [one] = others[..] { Some(one) } else { None }, others.len() < names.len())
            }
            _ => (None, true),
        };
        let shape = match name {
            Some("string") => Shape::Text,
            Some("integer") => Shape::Integer,
            Some("number") => Shape::Number,
            Some("boolean") => Shape::Boolean,
            Some("array") => {
                let (items, _) =
                    schema.get("items").map_or((Shape::Unknown, true), |items| self.shape(items, depth + 1));
                Shape::List(Box::new(items))
            }
            Some("object") if schema.get("properties").is_some_and(Value::is_object) => {
                Shape::Record(self.record(schema, depth))
            }
            _ => Shape::Unknown,
        };
        // A schema without a type takes null, and one that may be null is not to be relied on.
        (shape, nullable)
    }
}

impl Record {
    fn schema(&self) -> Value {
        let attributes: Map<String, Value> = self
            .fields
            .iter()
            .map(|(name, field)| {
                let mut schema = field.shape.schema();
                schema["required"] = Value::Bool(field.required);
                (name.clone(), schema)
            })
            .collect();
        json!({"type": "Record", "attributes": attributes})
    }

    fn read(&self, values: &Map<String, Value>, at: &str) -> Result<Expr, Misfit> {
        let place = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        if !self.open
            && let Some(name) = values.keys().find(|name| !self.fields.contains_key(*name))
        {
            return Err(Misfit::Undeclared { at: place(name) });
        }
        let mut pairs = Vec::with_capacity(self.fields.len());
        for (name, field) in &self.fields {
            match values.get(name) {
                None | Some(Value::Null) if field.required => return Err(Misfit::Missing { at: place(name) }),
                None | Some(Value::Null) => {}
                Some(value) => pairs.push((name.clone(), field.shape.read(value, &|| place(name))?)),
            }
        }
        Ok(Expr::new_record(pairs).expect("a map has each name once"))
    }
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Shape::Text | Shape::Unknown => json!({"type": "String"}),
            Shape::Integer => json!({"type": "Long"}),
            Shape::Boolean => json!({"type": "Boolean"}),
            Shape::Number => json!({"type": "Extension", "name": "decimal"}),
            Shape::List(items) => json!({"type": "Set", "element": items.schema()}),
            Shape::Record(record) => record.schema(),
        }
    }

    fn read(&self, value: &Value, at: &dyn Fn() -> String) -> Result<Expr, Misfit> {
        let misfit = |needed| Misfit::Type { at: at(), needed, got: kind_of(value) };
        match self {
            Shape::Text => value.as_str().map(|s| Expr::new_string(s.to_owned())).ok_or_else(|| misfit("a string")),
            Shape::Boolean => value.as_bool().map(Expr::new_bool).ok_or_else(|| misfit("true or false")),
            Shape::Integer => integer(value).map(Expr::new_long).ok_or_else(|| misfit("an integer of 64 bits")),
            Shape::Number => match value {
                Value::Number(number) => {
                    let (below, size) = scaled_up(number, 4);
                    let sign = if below { "-" } else { "" };
                    Ok(Expr::new_decimal(format!("{sign}{}.{:04}", size / 10_000, size % 10_000)))
                }
                _ => Err(misfit("a number")),
            },
            Shape::List(items) => match value {
                Value::Array(list) => {
                    let place = |i: usize| format!("{}[{i}]", at());
                    let read = list.iter().enumerate().map(|(i, v)| items.read(v, &|| place(i)));
                    Ok(Expr::new_set(read.collect::<Result<Vec<_>, _>>()?))
                }
                _ => Err(misfit("a list")),
            },
            Shape::Record(record) => match value {
                Value::Object(map) => record.read(map, &at()),
                _ => Err(misfit("an object")),
            },
            Shape::Unknown => Ok(Expr::new_string(match value {
                Value::String(text) => text.clone(),
                other => {
                    let mut sorted = other.clone();
                    sorted.sort_all_objects();
                    sorted.to_string()
                }
            })),
        }
    }
}

/// A whole number, also when it is written with a point.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let x = value.as_f64().filter(|x| value.as_u64().is_none() && x.fract() == 0.0)?;
        // Beyond 2^53 a float no longer says which whole number is meant.
        (x.abs() <= 9_007_199_254_740_992.0).then_some(x as i64)
    })
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_f64() => "a number with a point",
        Value::Number(_) => "a whole number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(parameters: Value) -> Input {
        Input::of(&ToolSpec::new("t", "", "read", parameters)).unwrap()
    }

    #[track_caller]
    fn check(property: Value, want: Value) {
        let got = input(json!({"type": "object", "properties": {"x": property}})).schema();
        let mut want = want;
        want["required"] = json!(false);
        assert_eq!(got["attributes"]["x"], want);
    }

    #[test]
    fn an_argument_has_the_type_its_schema_gives() {
        check(json!({"type": "string"}), json!({"type": "String"}));
        check(json!({"type": "integer"}), json!({"type": "Long"}));
        check(json!({"type": "boolean"}), json!({"type": "Boolean"}));
        check(json!({"type": "number"}), json!({"type": "Extension", "name": "decimal"}));
        check(
            json!({"type": "array", "items": {"type": "string"}}),
            json!({"type": "Set", "element": {"type": "String"}}),
        );
        check(json!({"type": ["integer", "null"]}), json!({"type": "Long"}));
        check(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), json!({"type": "Long"}));
        check(
            json!({"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"]}),
            json!({"type": "Record", "attributes": {"y": {"type": "Boolean", "required": true}}}),
        );
        for unknown in [
            json!({}),
            json!(true),
            json!({"type": "null"}),
            json!({"type": "widget"}),
            json!({"type": ["string", "integer"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"type": "object"}),
            json!({"$ref": "#/nowhere"}),
            json!({"$ref": "https://x.example/schema"}),
        ] {
            check(unknown, json!({"type": "String"}));
        }
    }

    #[test]
    fn references_are_followed_and_never_for_ever() {
        let list = json!({
            "type": "object", "properties": {"x": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
        });
        let schema = input(list).schema();
        assert_eq!(schema["attributes"]["x"]["attributes"]["next"]["attributes"]["n"]["type"], "Long");
        let circle = json!({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}});
        assert_eq!(input(circle).schema()["attributes"]["x"]["type"], "String");
    }

    #[test]
    fn arguments_that_do_not_fit_are_told_where_and_why() {
        let tool = input(json!({
            "type": "object", "required": ["n"],
            "properties": {
                "n": {"type": "integer"}, "f": {"type": "number"}, "l": {"type": "array", "items": {"type": "boolean"}},
                "o": {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]},
            },
        }));
        for (arguments, want) in [
            (json!({}), "argument `n` is missing"),
            (json!({"n": null}), "argument `n` is missing"),
            (json!({"n": 1, "m": 2}), "argument `m` is not one of the tool's"),
            (json!({"n": "1"}), "argument `n`: needed an integer of 64 bits, got a string"),
            (json!({"n": 1.5}), "argument `n`: needed an integer of 64 bits, got a number with a point"),
            (json!({"n": 1e300}), "argument `n`: needed an integer of 64 bits, got a number with a point"),
            (json!({"n": u64::MAX}), "argument `n`: needed an integer of 64 bits, got a whole number"),
            (json!({"n": 1, "f": "x"}), "argument `f`: needed a number, got a string"),
            (json!({"n": 1, "l": [true, 0]}), "argument `l[1]`: needed true or false, got a whole number"),
            (json!({"n": 1, "o": {}}), "argument `o.y` is missing"),
            (json!({"n": 1, "o": {"y": "", "z": 0}}), "argument `o.z` is not one of the tool's"),
            (json!({"n": 1, "o": []}), "argument `o`: needed an object, got a list"),
        ] {
            let got = tool.read(arguments.as_object().unwrap()).unwrap_err();
            assert_eq!(got.to_string(), want);
        }
        for arguments in [json!({"n": 1.0, "f": 1, "l": null}), json!({"n": -3, "f": 1e300, "o": {"y": "a"}})] {
            assert!(tool.read(arguments.as_object().unwrap()).is_ok(), "{arguments}");
        }
    }

    #[test]
    fn undeclared_arguments_need_a_schema_that_says_so() {
        let (one, many) = (json!({"x": 1}), json!({"x": 1, "y": 2}));
        for (parameters, closed) in [
            (json!({"properties": {"x": {}}}), true),
            (json!({"properties": {"x": {}}, "additionalProperties": false}), true),
            (json!({"properties": {"x": {}}, "additionalProperties": true}), false),
            (json!({"properties": {"x": {}}, "additionalProperties": {"type": "integer"}}), false),
            (json!({"type": "object"}), false),
            (json!(true), false),
        ] {
            let input = input(parameters.clone());
            assert!(input.read(one.as_object().unwrap()).is_ok(), "{parameters}");
            assert_eq!(input.read(many.as_object().unwrap()).is_err(), closed, "{parameters}");
        }
        let nothing = input(json!({"type": "object", "additionalProperties": false}));
        assert!(nothing.read(one.as_object().unwrap()).is_err());
    }

    #[test]
    fn a_tool_without_an_objects_schema_is_refused() {
        for bad in [json!(null), json!([]), json!("x"), json!({"type": "string"}), json!({"properties": []})] {
            assert!(Input::of(&ToolSpec::new("t", "", "read", bad.clone())).is_err(), "{bad}");
        }
    }
}
