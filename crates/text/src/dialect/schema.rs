//! Whether arguments fit a tool's JSON Schema, in a bounded subset of our own.
//!
//! Checked: `type`, `enum`, `const`, `required`, `properties`, `additionalProperties`, `items`, `minItems`, `maxItems`,
//! `minLength`, `maxLength`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `allOf`, `anyOf`, `oneOf` and
//! `$ref` within the schema. Other keywords (`pattern`, `format`, …) are not: a tool still checks what it is given. A
//! schema comes from elsewhere too, so its size and depth are bounded.
//!
//! Source: JSON Schema 2020-12, validation vocabulary.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Reason, Strictness, literal, show};

/// Steps of one check: about one a keyword looked at.
const MAX_STEPS: usize = 20_000;
/// Schemas inside each other, references followed included.
const MAX_SCHEMA_DEPTH: usize = 128;

/// An argument that a tool does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("argument{} needs {needed}, got {got}", if path.is_empty() { "s".to_owned() } else { format!(" `{path}`") })]
pub struct Mismatch {
    /// Which, as a path; empty for the arguments as a whole.
    pub path: String,
    /// What is needed.
    pub needed: String,
    /// What was given.
    pub got: String,
}

/// Checks a call's arguments against the schema of its tool.
///
/// - Errors: the first argument that does not fit.
pub fn check(schema: &Value, arguments: &Map<String, Value>) -> Result<(), Mismatch> {
    let mut checker = Checker { root: schema, steps: MAX_STEPS, path: Vec::new() };
    checker.object(schema, arguments, 0)?;
    // The keywords that are not about an object's fields need it as a value.
    match schema
        .as_object()
        .is_some_and(|s| ["allOf", "anyOf", "oneOf", "enum", "const", "$ref"].iter().any(|k| s.contains_key(*k)))
    {
        true => checker.value(schema, &Value::Object(arguments.clone()), 0),
        false => Ok(()),
    }
}

struct Checker<'s> {
    root: &'s Value,
    steps: usize,
    path: Vec<String>,
}

impl<'s> Checker<'s> {
    fn mismatch(&self, needed: impl Into<String>, got: impl Into<String>) -> Mismatch {
        Mismatch { path: self.path.concat().trim_start_matches('.').to_owned(), needed: needed.into(), got: got.into() }
    }

    fn step(&mut self, depth: usize) -> Result<(), Mismatch> {
        self.steps = self.steps.saturating_sub(1);
        match self.steps == 0 || depth > MAX_SCHEMA_DEPTH {
            true => Err(self.mismatch("a schema that can be checked within bounds", "a larger one")),
            false => Ok(()),
        }
    }

    fn value(&mut self, schema: &'s Value, value: &Value, depth: usize) -> Result<(), Mismatch> {
        self.step(depth)?;
        let schema = match schema {
            Value::Bool(false) => return Err(self.mismatch("to be left out", given(value))),
            Value::Object(schema) => schema,
            _ => return Ok(()),
        };
        if let Some(target) = schema.get("$ref").and_then(|r| follow(self.root, r)) {
            self.value(target, value, depth + 1)?;
        }
        let types: BTreeSet<&str> = schema.get("type").map(names).unwrap_or_default();
        if !types.is_empty() && !types.iter().any(|name| is_of(value, name)) {
            return Err(self.mismatch(types.into_iter().map(a).collect::<Vec<_>>().join(" or "), given(value)));
        }
        if let Some(Value::Array(all)) = schema.get("enum") {
            self.steps = self.steps.saturating_sub(all.len());
            if !all.iter().any(|one| same(one, value)) {
                let shown: Vec<String> = all.iter().take(20).map(given).collect();
                return Err(self.mismatch(format!("one of {}", shown.join(", ")), given(value)));
            }
        }
        if let Some(one) = schema.get("const").filter(|one| !same(one, value)) {
            return Err(self.mismatch(given(one), given(value)));
        }
        self.combined(schema, value, depth)?;
        match value {
            Value::Object(fields) => self.fields(schema, fields, depth),
            Value::Array(items) => self.items(schema, items, depth),
            Value::String(text) => self.size(schema, ["minLength", "maxLength"], text.chars().count(), "characters"),
            Value::Number(number) => self.range(schema, number.as_f64().unwrap_or(f64::NAN)),
            _ => Ok(()),
        }
    }

    fn combined(&mut self, schema: &'s Map<String, Value>, value: &Value, depth: usize) -> Result<(), Mismatch> {
        for each in list(schema, "allOf") {
            self.value(each, value, depth + 1)?;
        }
        for (key, most) in [("anyOf", usize::MAX), ("oneOf", 1)] {
            let choices = list(schema, key);
            let (mut fit, mut first) = (0, None);
            for choice in choices {
                let kept = self.path.len();
                match self.value(choice, value, depth + 1) {
                    Ok(()) => fit += 1,
                    Err(mismatch) => {
                        self.path.truncate(kept);
                        first.get_or_insert(mismatch);
                    }
                }
            }
            match (choices.is_empty(), fit, first) {
                (false, 0, Some(mismatch)) if choices.len() == 1 => return Err(mismatch),
                (false, 0, _) => {
                    return Err(self.mismatch(format!("to fit one of {} choices", choices.len()), given(value)));
                }
                (_, n, _) if n > most => {
                    return Err(self.mismatch("to fit one choice only", format!("{} that fits {n}", given(value))));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn object(&mut self, schema: &'s Value, fields: &Map<String, Value>, depth: usize) -> Result<(), Mismatch> {
        match schema {
            Value::Object(schema) => self.fields(schema, fields, depth),
            _ => Ok(()),
        }
    }

    fn fields(
        &mut self,
        schema: &'s Map<String, Value>,
        fields: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        for key in list(schema, "required").iter().filter_map(Value::as_str) {
            self.step(depth)?;
            if !fields.contains_key(key) {
                self.path.push(format!(".{key}"));
                return Err(self.mismatch("to be given", "nothing"));
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (key, value) in fields {
            self.path.push(format!(".{}", show(key, 40)));
            match (properties.and_then(|p| p.get(key)), schema.get("additionalProperties")) {
                (Some(of), _) => self.value(of, value, depth + 1)?,
                (None, Some(Value::Bool(false))) => {
                    let known: Vec<&str> = properties.into_iter().flat_map(|p| p.keys().map(String::as_str)).collect();
                    let known = known.join("`, `");
                    let needed =
                        if known.is_empty() { "no arguments".into() } else { format!("to be one of `{known}`") };
                    return Err(self.mismatch(needed, given(value)));
                }
                (None, Some(of)) => self.value(of, value, depth + 1)?,
                (None, None) => {}
            }
            self.path.pop();
        }
        Ok(())
    }

    fn items(&mut self, schema: &'s Map<String, Value>, items: &[Value], depth: usize) -> Result<(), Mismatch> {
        self.size(schema, ["minItems", "maxItems"], items.len(), "items")?;
        if let Some(of) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.path.push(format!("[{index}]"));
                self.value(of, item, depth + 1)?;
                self.path.pop();
            }
        }
        Ok(())
    }

    fn size(&self, schema: &Map<String, Value>, keys: [&str; 2], size: usize, of: &str) -> Result<(), Mismatch> {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        match (bound(keys[0]), bound(keys[1])) {
            (Some(least), _) if (size as u64) < least => {
                Err(self.mismatch(format!("at least {least} {of}"), size.to_string()))
            }
            (_, Some(most)) if (size as u64) > most => {
                Err(self.mismatch(format!("at most {most} {of}"), size.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn range(&self, schema: &Map<String, Value>, number: f64) -> Result<(), Mismatch> {
        let bounds = [
            ("minimum", "at least", f64::ge as fn(&f64, &f64) -> bool),
            ("maximum", "at most", f64::le),
            ("exclusiveMinimum", "more than", f64::gt),
            ("exclusiveMaximum", "less than", f64::lt),
        ];
        for (key, words, fits) in bounds {
            if let Some(bound) = schema.get(key).and_then(Value::as_f64).filter(|bound| !fits(&number, bound)) {
                return Err(self.mismatch(format!("{words} {bound}"), number.to_string()));
            }
        }
        Ok(())
    }
}

/// The schema of one argument.
pub(super) fn property<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    schema.get("properties")?.get(key)
}

/// The value of an argument that is written as plain text: a JSON literal where the schema asks for one or says nothing,
/// else the text. Never anything else, whatever the text looks like.
pub(super) fn typed(of: Option<&Value>, root: Option<&Value>, text: &str, how: Strictness) -> Result<Value, Reason> {
    let mut types = BTreeSet::new();
    if let (Some(of), Some(root)) = (of, root) {
        declared(root, of, &mut types, 0);
    }
    if types.len() == 1 && types.contains("string") {
        return Ok(text.into());
    }
    let parsed = literal::whole(text);
    if let Some(key) = parsed.as_ref().and_then(|p| p.duplicate.clone()).filter(|_| how == Strictness::Strict) {
        return Err(Reason::Duplicate { key });
    }
    let python = || match (how, text.trim()) {
        (Strictness::Lenient, "True") => Some(true.into()),
        (Strictness::Lenient, "False") => Some(false.into()),
        (Strictness::Lenient, "None") => Some(Value::Null),
        _ => None,
    };
    let value = parsed.map(|p| p.value).or_else(python);
    Ok(match value {
        Some(value) if types.is_empty() || types.iter().any(|name| is_of(&value, name)) => value,
        _ => text.into(),
    })
}

/// The types a schema names, in all its choices.
fn declared<'s>(root: &'s Value, schema: &'s Value, into: &mut BTreeSet<&'s str>, depth: usize) {
    if depth > 16 {
        return;
    }
    let Value::Object(schema) = schema else { return };
    into.extend(schema.get("type").map(names).unwrap_or_default());
    if let Some(target) = schema.get("$ref").and_then(|r| follow(root, r)) {
        declared(root, target, into, depth + 1);
    }
    let values = list(schema, "enum").iter().chain(schema.get("const"));
    values.for_each(|value| {
        into.insert(kind(value));
    });
    for choice in ["anyOf", "oneOf", "allOf"].iter().flat_map(|key| list(schema, key)).take(64) {
        declared(root, choice, into, depth + 1);
    }
}

fn follow<'s>(root: &'s Value, reference: &Value) -> Option<&'s Value> {
    root.pointer(reference.as_str()?.strip_prefix('#')?)
}

fn names(types: &Value) -> BTreeSet<&str> {
    match types {
        Value::String(name) => BTreeSet::from([name.as_str()]),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    }
}

fn list<'s>(schema: &'s Map<String, Value>, key: &str) -> &'s [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if is_whole(n) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    let kind = kind(value);
    kind == name || (kind == "integer" && name == "number")
}

fn is_whole(number: &serde_json::Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0)
}

/// Equal as JSON Schema compares: 1 is 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn a(name: &str) -> String {
    match name {
        "null" => "null".into(),
        "array" | "integer" | "object" => format!("an {name}"),
        _ => format!("a {name}"),
    }
}

fn given(value: &Value) -> String {
    format!("`{}`", show(&value.to_string(), 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: Value, arguments: Value) -> String {
        let result = check(&schema, arguments.as_object().unwrap());
        result.err().map_or(String::new(), |mismatch| mismatch.to_string())
    }

    #[test]
    fn each_keyword_refuses_what_it_names_and_nothing_else() {
        let of = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
        let cases = [
            (json!({"type": "integer"}), json!(3), json!("3"), "an integer, got `\"3\"`"),
            (json!({"type": "integer"}), json!(3.0), json!(3.5), "an integer, got `3.5`"),
            (json!({"type": ["string", "null"]}), json!(null), json!([]), "null or a string, got `[]`"),
            (json!({"enum": ["c", 1]}), json!(1.0), json!("d"), "one of `\"c\"`, `1`, got `\"d\"`"),
            (json!({"const": true}), json!(true), json!(1), "`true`, got `1`"),
            (json!({"minLength": 2}), json!("éé"), json!("é"), "at least 2 characters, got 1"),
            (json!({"maxItems": 1}), json!([1]), json!([1, 2]), "at most 1 items, got 2"),
            (json!({"minimum": 1, "maximum": 2}), json!(2), json!(2.5), "at most 2, got 2.5"),
            (json!({"exclusiveMinimum": 1}), json!(1.1), json!(1), "more than 1, got 1"),
            (
                json!({"anyOf": [{"type": "null"}, {"type": "number"}]}),
                json!(1),
                json!("x"),
                "to fit one of 2 choices, got `\"x\"`",
            ),
            (
                json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
                json!(1.5),
                json!(1),
                "to fit one choice only, got `1` that fits 2",
            ),
            (
                json!({"allOf": [{"type": "string"}, {"maxLength": 1}]}),
                json!("x"),
                json!("xy"),
                "at most 1 characters, got 2",
            ),
            (json!(false), json!(null), json!(1), "to be left out, got `1`"),
        ];
        for (schema, good, bad, want) in cases {
            if schema != json!(false) {
                assert_eq!(refused(of(schema.clone()), json!({"a": good})), "", "{schema}");
            }
            assert_eq!(
                refused(of(schema.clone()), json!({"a": bad})),
                format!("argument `a` needs {want}"),
                "{schema}"
            );
        }
    }

    #[test]
    fn fields_are_needed_or_refused_and_named_by_their_path() {
        let schema = json!({
            "type": "object",
            "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/point"}}},
            "required": ["list"], "additionalProperties": false,
            "$defs": {"point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}},
        });
        assert_eq!(refused(schema.clone(), json!({"list": [{"x": 1}, {"x": 2.5, "y": 0}]})), "");
        assert_eq!(refused(schema.clone(), json!({})), "argument `list` needs to be given, got nothing");
        assert_eq!(
            refused(schema.clone(), json!({"list": [{"x": 1}, {}]})),
            "argument `list[1].x` needs to be given, got nothing"
        );
        assert_eq!(
            refused(schema.clone(), json!({"list": [], "z": 1})),
            "argument `z` needs to be one of `list`, got `1`"
        );
        assert_eq!(
            refused(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"a": 1, "b": 2})),
            "arguments needs to fit one choice only, got `{\"a\":1,\"b\":2}` that fits 2"
        );
        for anything in [json!({}), json!(true), json!(null), json!({"type": "object", "pattern": 3})] {
            assert_eq!(refused(anything, json!({"a": 1})), "");
        }
    }

    #[test]
    fn a_schema_that_never_ends_is_refused() {
        let endless = json!({"$ref": "#"});
        assert!(refused(endless, json!({"a": 1})).contains("within bounds"));
        let mut wide = json!({"type": "string"});
        for _ in 0..8 {
            wide = json!({"anyOf": [wide, wide, wide, wide]});
        }
        assert!(refused(json!({"properties": {"a": wide}}), json!({"a": 1})).contains("choices"));
    }

    #[test]
    fn f1_a_text_is_a_literal_where_the_schema_asks_for_one_and_else_a_text() {
        let value = |schema: Value, text: &str, how| {
            let root = json!({"properties": {"a": schema}, "$defs": {"n": {"type": "integer"}}});
            typed(property(&root, "a"), Some(&root), text, how).unwrap()
        };
        let evil = r#"__import__("os").system("touch pwned")"#;
        for schema in [json!({}), json!({"type": "array"}), json!({"type": "string"}), json!({"type": "object"})] {
            assert_eq!(value(schema, evil, Strictness::Lenient), json!(evil));
        }
        let lenient = Strictness::Lenient;
        assert_eq!(value(json!({}), "[1,2,3]", lenient), json!([1, 2, 3]));
        assert_eq!(value(json!({"type": "array"}), " [1,2,3]\n", lenient), json!([1, 2, 3]));
        assert_eq!(value(json!({"type": "string"}), "[1,2,3]", lenient), json!("[1,2,3]"));
        assert_eq!(value(json!({"enum": ["1", "2"]}), "1", lenient), json!("1"));
        assert_eq!(value(json!({"$ref": "#/$defs/n"}), "7", lenient), json!(7));
        assert_eq!(value(json!({"type": ["string", "integer"]}), "7", lenient), json!(7));
        assert_eq!(value(json!({"type": ["string", "integer"]}), "\"7\"", lenient), json!("7"));
        assert_eq!(value(json!({"type": "boolean"}), "True", lenient), json!(true));
        assert_eq!(value(json!({"type": "boolean"}), "True", Strictness::Strict), json!("True"));
        let twice = typed(None, None, r#"{"a":1,"a":2}"#, Strictness::Strict);
        assert_eq!(twice, Err(Reason::Duplicate { key: "a".into() }));
    }
}
