//! JSON written as Python's `json.dumps` writes it, which is what Hugging Face gives templates as `tojson`.

use episode::ToolCall;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deeper values are refused: writing them would need a stack without bound.
const MAX_DEPTH: usize = 100;

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// - Holds: private-use characters are never escaped, since they mark who wrote a text.
/// - Errors: values that are no JSON.
pub(crate) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()).map(|v| match v.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(v.as_i64().unwrap_or(0).clamp(0, 64)).unwrap_or(0)),
    });
    let (item, key) = match options.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let parts: Vec<String> = pair.try_iter()?.map(|v| v.to_string()).collect();
            let [item, key] = parts.try_into().map_err(|_| refuse("`separators` needs two texts"))?;
            (item, key)
        }
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { out: String::new(), indent, item, key, sort_keys, ascii };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// A value as `json.dumps(value, ensure_ascii=False)` writes it, which is how models saw JSON most.
pub(crate) fn python_json(value: &serde_json::Value) -> String {
    let separators = (", ".to_owned(), ": ".to_owned());
    let mut writer = Writer {
        out: String::new(),
        indent: None,
        item: separators.0,
        key: separators.1,
        sort_keys: false,
        ascii: false,
    };
    match writer.value(&from_json(value), 0) {
        Ok(()) => writer.out,
        // Deeper than a template may print; nobody promised these spaces.
        Err(_) => value.to_string(),
    }
}

/// A call as an object, its arguments under this key.
pub(crate) fn python_call(call: &ToolCall, arguments: &str) -> String {
    let name = python_json(&call.tool.as_str().into());
    let values = python_json(&serde_json::Value::Object(call.arguments.clone()));
    format!("{{\"name\": {name}, \"{arguments}\": {values}}}")
}

/// A value as templates see it.
pub(crate) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(truth) => Value::from(*truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        serde_json::Value::Object(fields) => Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

struct Writer {
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    ascii: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse("value is nested too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.open('[', &items, depth);
                for (index, item) in items.iter().enumerate() {
                    self.start(index, depth + 1);
                    self.value(item, depth + 1)?;
                }
                self.close(']', &items, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.open('{', &keys, depth);
                for (index, key) in keys.iter().enumerate() {
                    self.start(index, depth + 1);
                    match (key.as_str(), key.kind()) {
                        (Some(text), _) => self.string(text),
                        (None, ValueKind::None | ValueKind::Bool | ValueKind::Number) => {
                            self.out.push('"');
                            self.value(key, depth + 1)?;
                            self.out.push('"');
                        }
                        _ => {
                            return Err(refuse(
                                "a key of a JSON object must be a text, a number, a truth value or none",
                            ));
                        }
                    }
                    self.out.push_str(&self.key);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close('}', &keys, depth);
            }
            kind => return Err(refuse(&format!("a value of kind {kind} is no JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return Ok(());
        }
        let number = f64::try_from(value.clone())?;
        self.out.push_str(&match number {
            n if n.is_nan() => "NaN".into(),
            f64::INFINITY => "Infinity".into(),
            f64::NEG_INFINITY => "-Infinity".into(),
            // Rust switches to an exponent where Python does, and writes it without sign and padding.
            n => match format!("{n:?}").split_once('e') {
                None => format!("{n:?}"),
                Some((digits, exponent)) => match exponent.strip_prefix('-') {
                    Some(exponent) => format!("{digits}e-{exponent:0>2}"),
                    None => format!("{digits}e+{exponent:0>2}"),
                },
            },
        });
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c if self.ascii && !c.is_ascii() && !is_private(c) => {
                    let units =
                        c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
                    self.out.push_str(&units);
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn open(&mut self, bracket: char, items: &[Value], depth: usize) {
        self.out.push(bracket);
        if !items.is_empty() {
            self.line(depth + 1);
        }
    }

    fn start(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.item);
            self.line(depth);
        }
    }

    fn close(&mut self, bracket: char, items: &[Value], depth: usize) {
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }
}

/// Whether a character is set aside for private use.
pub(crate) fn is_private(c: char) -> bool {
    matches!(c, '\u{E000}'..='\u{F8FF}' | '\u{F_0000}'..='\u{F_FFFD}' | '\u{10_0000}'..='\u{10_FFFD}')
}

fn refuse(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::{Environment, context};

    fn check(template: &str, want: &str) {
        let mut env = Environment::new();
        env.add_filter("tojson", tojson);
        let list =
            [1.into(), (-2.5).into(), 1e16.into(), true.into(), Value::from(()), Value::from_pairs([("", 0); 0])];
        let value = Value::from_pairs([("b", Value::from(list.to_vec())), ("a", Value::from("é\"\\\n\u{1}<'&"))]);
        assert_eq!(env.render_str(template, context!(x => value)).unwrap(), want);
    }

    /// Wanted texts printed by Python 3.11's `json.dumps(x, ensure_ascii=False, …)`.
    #[test]
    fn json_is_written_as_python_writes_it() {
        check("{{ x|tojson }}", r#"{"b": [1, -2.5, 1e+16, true, null, {}], "a": "é\"\\\n\u0001<'&"}"#);
        check(
            "{{ x|tojson(separators=(',', ':'), sort_keys=true) }}",
            r#"{"a":"é\"\\\n\u0001<'&","b":[1,-2.5,1e+16,true,null,{}]}"#,
        );
        check("{{ x.b[3:]|tojson(indent=2) }}", "[\n  true,\n  null,\n  {}\n]");
        check(
            "{{ [x.a, '🤖', 1e-7, 0.0001, 1.5e300]|tojson(ensure_ascii=true) }}",
            r#"["\u00e9\"\\\n\u0001<'&", "\ud83e\udd16", 1e-07, 0.0001, 1.5e+300]"#,
        );
        check("{{ {1: none, none: 2, false: []}|tojson }}", r#"{"1": null, "null": 2, "false": []}"#);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let env = {
            let mut env = Environment::new();
            env.add_filter("tojson", tojson);
            env
        };
        for template in ["{{ nothing|tojson }}", "{{ range|tojson }}", "{{ 1|tojson(other=1) }}"] {
            assert!(env.render_str(template, ()).is_err(), "{template}");
        }
    }
}
