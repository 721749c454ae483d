//! An algorithm from its name and what was typed behind it.

use algo::Settings;
use toml::{Table, Value};

use super::SignalsError;

/// What only a run can do.
const IDLE: [&str; 2] = ["epochs", "max_draws"];

/// An algorithm with changes such as `kl.coefficient=0.1`; a value is TOML, or a plain word.
///
/// - Holds: unless they are changed there is no correction and no KL, whatever a run would have, so that a bare formula
///   comes out bare.
/// - Errors: [`SignalsError::Settings`] and [`SignalsError::Algo`] name the setting.
pub fn settings(name: &str, changes: &[String]) -> Result<Settings, SignalsError> {
    let refused = |reason: &str| SignalsError::Settings(reason.trim().to_owned());
    let default = Table::try_from(Settings::of(name)?).map_err(|e| refused(&e.to_string()))?;
    let mut text = format!("kind = \"{name}\"\n");
    let mut table = Table::new();
    for change in changes {
        text.push_str(&one_line(change)?);
        text.push('\n');
        let bad = |e: toml::de::Error| SignalsError::Settings(format!("cannot set `{change}`: {}", e.message().trim()));
        table = text.parse().map_err(bad)?;
    }
    table.insert("kind".to_owned(), Value::String(name.to_owned()));
    if let Some(key) = IDLE.into_iter().find(|key| table.get(*key).is_some_and(|value| *value != Value::Integer(1))) {
        let reason = format!("`{key}` does nothing here, where one pass over given episodes is made: leave it out");
        return Err(SignalsError::Settings(reason));
    }
    let is_on = |key: &str, inner: &str, off: &Value| {
        default.get(key).and_then(|v| v.get(inner)).is_some_and(|value| value != off)
    };
    let (no_rule, no_pull) = (Value::String("none".to_owned()), Value::Float(0.0));
    if is_on("correction", "rule", &no_rule) && !table.contains_key("correction") {
        table.insert("correction".to_owned(), Value::Table(Table::from_iter([("rule".to_owned(), no_rule)])));
    }
    if is_on("kl", "coefficient", &no_pull) {
        let kl = table.entry("kl").or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(kl) = kl {
            kl.entry("coefficient").or_insert(no_pull);
        }
    }
    table.try_into().map_err(|e| refused(e.message()))
}

/// A change as a line of TOML.
fn one_line(change: &str) -> Result<String, SignalsError> {
    let refused = |reason: &str| SignalsError::Settings(format!("cannot set `{change}`: {reason}"));
    let (key, value) = change.split_once('=').ok_or_else(|| refused("needed `key=value`"))?;
    let (key, value) = (key.trim(), value.trim());
    let whole = |value: &str| format!("{key} = {value}");
    let is_one = |text: &str| !text.contains(['\n', '\r']) && text.parse::<Table>().is_ok_and(|t| t.len() == 1);
    let word = Value::String(value.to_owned()).to_string();
    [whole(value), whole(&word)].into_iter().find(|text| is_one(text)).ok_or_else(|| refused("the key is not one"))
}
