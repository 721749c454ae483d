//! The numbers of a run as a table with its settings, which every other tracker can import.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::disk::Disk;
use crate::run_dir::RUN_KEY;
use crate::writer::{METRICS, TIMINGS};
use crate::{RunDir, StoreError};

const TABLE: &str = "metrics.csv";
const PARAMS: &str = "params.json";

/// Every number in named fields, in order; those of fields within fields are named `outer.inner`. Lists are left out.
pub fn numbers(fields: &Map<String, Value>) -> Vec<(String, f64)> {
    leaves(fields).into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()
}

fn leaves(fields: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut out = Vec::new();
    for (key, value) in fields {
        match value {
            Value::Object(inner) => out.extend(leaves(inner).into_iter().map(|(k, v)| (format!("{key}.{k}"), v))),
            leaf => out.push((key.clone(), leaf)),
        }
    }
    out
}

/// Writes `metrics.csv`, a row a step and a column a number, and `params.json`, the settings with dotted names.
pub(crate) fn export(disk: &Disk, run: &RunDir, params: &impl Serialize) -> Result<(), StoreError> {
    let mut rows: Vec<(u64, Map<String, Value>)> = Vec::new();
    for file in [METRICS, TIMINGS] {
        for mut fields in run.read_lines::<Map<String, Value>>(file)? {
            let step = fields.shift_remove("step").and_then(|s| s.as_u64()).unwrap_or_default();
            match rows.binary_search_by_key(&step, |r| r.0) {
                Ok(at) => rows[at].1.extend(fields),
                Err(at) => rows.insert(at, (step, fields)),
            }
        }
    }
    let path = run.path().join(TABLE);
    disk.write_whole(&path, table(run.run_id().as_str(), &rows).as_bytes())?;

    let path = run.path().join(PARAMS);
    let value = serde_json::to_value(params)
        .map_err(|e| StoreError::Unstorable { path: path.clone(), reason: e.to_string() })?;
    let mut flat = Map::new();
    flat.insert(RUN_KEY.to_string(), run.run_id().as_str().into());
    if let Value::Object(fields) = &value {
        flat.extend(leaves(fields).into_iter().map(|(k, v)| (k, v.clone())));
    }
    disk.write_whole(&path, &crate::run_dir::pretty(&flat, &path)?)
}

fn table(run: &str, rows: &[(u64, Map<String, Value>)]) -> String {
    let numbered: Vec<(u64, Vec<(String, f64)>)> = rows.iter().map(|(step, f)| (*step, numbers(f))).collect();
    let mut names: Vec<&str> = Vec::new();
    for name in numbered.iter().flat_map(|(_, n)| n.iter().map(|(k, _)| k.as_str())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut out = String::from("run,step");
    for name in &names {
        out.push(',');
        out.push_str(&quoted(name));
    }
    out.push('\n');
    for (step, values) in &numbered {
        out.push_str(&format!("{run},{step}"));
        for name in &names {
            out.push(',');
            if let Some((_, value)) = values.iter().find(|(k, _)| k == name) {
                out.push_str(&Value::from(*value).to_string());
            }
        }
        out.push('\n');
    }
    out
}

/// A CSV field, quoted where RFC 4180 asks for it.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_table_has_a_column_for_every_number_and_a_gap_where_one_is_missing() {
        let rows = [
            (1, fields(json!({"reward": 0.1, "lag": {"max": 2}, "note": "x", "nothing": null}))),
            (2, fields(json!({"reward": 0.25, "failures": {"a,\"b\"": 1}}))),
        ];
        let want = "run,step,reward,lag.max,\"failures.a,\"\"b\"\"\"\nr,1,0.1,2.0,\nr,2,0.25,,1.0\n";
        assert_eq!(table("r", &rows), want);
    }
}
