//! The episodes of a step as one Parquet table, a row each, for people with their own tools.
//!
//! The run's id is in the file's metadata under `surefoot.run`. An episode of several sequences has them one after the
//! other in the list columns; `sequence_lengths` tells where one ends.

use std::path::Path;
use std::sync::Arc;

use episode::{Episode, Group, Outcome, Sequence};
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Serialize;
use serde_json::Value;

use crate::disk::{Disk, parent};
use crate::episodes::{EPISODES, step_path};
use crate::{RunDir, StoreError};

/// The metadata key of the run's id.
const RUN_META: &str = "surefoot.run";

/// One row: an episode and where it stands.
struct Row<'a> {
    step: u64,
    group: usize,
    env: &'a str,
    gold: &'a Value,
    episode: &'a Episode,
}

/// A column's values with their Parquet levels: what is missing, and where a list begins.
struct Column {
    declaration: String,
    data: Data,
    defined: Option<Vec<i16>>,
    repeated: Option<Vec<i16>>,
}

enum Data {
    Int(Vec<i32>),
    Long(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<ByteArray>),
}

/// Writes a step's episodes as Parquet, whole or not at all.
pub(crate) fn write_parquet(disk: &Disk, run: &RunDir, step: u64, groups: &[Group]) -> Result<(), StoreError> {
    let path = step_path(run.path(), EPISODES, step, "parquet");
    let rows: Vec<Row<'_>> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, g)| {
            g.episodes.iter().map(move |episode| Row { step, group, env: &g.task.env, gold: &g.task.gold, episode })
        })
        .collect();
    disk.create_folder(&parent(&path))?;
    disk.write_whole_with(&path, |file| {
        write_table(file, run.run_id().as_str(), &columns(&rows)).map_err(|e| refused(&path, e))
    })
}

fn refused(path: &Path, error: ParquetError) -> StoreError {
    let source = match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(io) => *io,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    };
    StoreError::io("write", path)(source)
}

fn columns(rows: &[Row<'_>]) -> Vec<Column> {
    let by = |f: fn(&Row<'_>) -> i64| Data::Long(rows.iter().map(f).collect());
    let text = |f: &dyn Fn(&Row<'_>) -> String| Data::Text(rows.iter().map(|r| f(r).into_bytes().into()).collect());
    vec![
        plain("INT64 step", by(|r| r.step as i64)),
        plain("INT64 group", by(|r| r.group as i64)),
        plain("BYTE_ARRAY task (STRING)", text(&|r| r.episode.key.task.to_string())),
        plain("BYTE_ARRAY env (STRING)", text(&|r| r.env.to_string())),
        plain("INT64 sample", by(|r| i64::from(r.episode.key.sample))),
        optional_double("reward", rows.iter().map(|r| r.episode.outcome.reward())),
        plain("BYTE_ARRAY outcome (STRING)", text(&|r| outcome_word(&r.episode.outcome).to_string())),
        optional_text("failure_stage", rows.iter().map(|r| failure(r).map(|f| f.0))),
        optional_text("failure_class", rows.iter().map(|r| failure(r).map(|f| f.1))),
        optional_text("failure_detail", rows.iter().map(|r| failure(r).map(|f| f.2))),
        plain("BYTE_ARRAY stop (STRING)", text(&|r| r.episode.stop.as_str().to_string())),
        plain("INT64 n_sampled", by(|r| r.episode.n_sampled() as i64)),
        plain("BYTE_ARRAY reply (STRING)", text(&|r| r.episode.reply().to_string())),
        plain("BYTE_ARRAY gold (JSON)", text(&|r| r.gold.to_string())),
        plain("BYTE_ARRAY messages (JSON)", text(&|r| json(&r.episode.messages))),
        list(
            "INT32 element (INTEGER(32,false))",
            "sequence_lengths",
            rows,
            |e| e.sequences.iter().map(|s| Some(s.len() as i32)).collect(),
            Data::Int,
        ),
        tokens(
            "INT32 element (INTEGER(32,false))",
            "tokens",
            rows,
            |s| {
                // Parquet keeps unsigned numbers in the signed type of the same width.
                s.tokens().iter().map(|t| Some(t.cast_signed())).collect()
            },
            Data::Int,
        ),
        tokens("BOOLEAN element", "sampled", rows, |s| s.sampled().iter().map(|b| Some(*b)).collect(), Data::Bool),
        tokens("FLOAT element", "logp", rows, |s| where_sampled(s.logp(), s), Data::Float),
        tokens("FLOAT element", "logp_t1", rows, |s| where_sampled(s.logp_t1(), s), Data::Float),
        tokens(
            "INT32 element (INTEGER(32,false))",
            "version",
            rows,
            |s| where_sampled(s.version(), s).into_iter().map(|v| v.map(u32::cast_signed)).collect(),
            Data::Int,
        ),
    ]
}

fn where_sampled<V: Copy>(values: &[V], sequence: &Sequence) -> Vec<Option<V>> {
    values.iter().zip(sequence.sampled()).map(|(v, sampled)| sampled.then_some(*v)).collect()
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Graded { .. } => "graded",
        Outcome::Failed { .. } => "failed",
        Outcome::Cancelled => "cancelled",
    }
}

fn failure(row: &Row<'_>) -> Option<(String, String, String)> {
    match &row.episode.outcome {
        Outcome::Failed { stage, cause } => {
            Some((stage.as_str().to_string(), cause.class.clone(), cause.detail.clone()))
        }
        Outcome::Graded { .. } | Outcome::Cancelled => None,
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("messages are plain strings, which always serialise")
}

fn plain(declaration: &str, data: Data) -> Column {
    Column { declaration: format!("REQUIRED {declaration};"), data, defined: None, repeated: None }
}

fn optional_double(name: &str, values: impl Iterator<Item = Option<f64>>) -> Column {
    let values: Vec<Option<f64>> = values.collect();
    let defined = Some(values.iter().map(|v| i16::from(v.is_some())).collect());
    let data = Data::Double(values.into_iter().flatten().collect());
    Column { declaration: format!("OPTIONAL DOUBLE {name};"), data, defined, repeated: None }
}

fn optional_text(name: &str, values: impl Iterator<Item = Option<String>>) -> Column {
    let values: Vec<Option<String>> = values.collect();
    let defined = Some(values.iter().map(|v| i16::from(v.is_some())).collect());
    let data = Data::Text(values.into_iter().flatten().map(|s| s.into_bytes().into()).collect());
    Column { declaration: format!("OPTIONAL BYTE_ARRAY {name} (STRING);"), data, defined, repeated: None }
}

/// A list column of one value a token, all sequences of an episode after each other.
fn tokens<V>(
    element: &str,
    name: &str,
    rows: &[Row<'_>],
    of: impl Fn(&Sequence) -> Vec<Option<V>>,
    data: fn(Vec<V>) -> Data,
) -> Column {
    list(element, name, rows, |e| e.sequences.iter().flat_map(&of).collect(), data)
}

/// A list column: definition level 0 is an empty list, 1 a missing element, 2 an element.
fn list<V>(
    element: &str,
    name: &str,
    rows: &[Row<'_>],
    of: impl Fn(&Episode) -> Vec<Option<V>>,
    data: fn(Vec<V>) -> Data,
) -> Column {
    let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let row_values = of(row.episode);
        if row_values.is_empty() {
            defined.push(0);
            repeated.push(0);
        }
        for (i, value) in row_values.into_iter().enumerate() {
            repeated.push(i16::from(i > 0));
            defined.push(1 + i16::from(value.is_some()));
            values.extend(value);
        }
    }
    let declaration = format!("REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ OPTIONAL {element}; }} }}");
    Column { declaration, data: data(values), defined: Some(defined), repeated: Some(repeated) }
}

fn write_table(file: &mut std::fs::File, run: &str, columns: &[Column]) -> Result<(), ParquetError> {
    let declarations: Vec<&str> = columns.iter().map(|c| c.declaration.as_str()).collect();
    let schema = parse_message_type(&format!("message episode {{ {} }}", declarations.join(" ")))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_created_by("surefoot".to_string())
        .set_key_value_metadata(Some(vec![KeyValue::new(RUN_META.to_string(), run.to_string())]))
        .build();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    let mut row_group = writer.next_row_group()?;
    for column in columns {
        let mut out = row_group
            .next_column()?
            .ok_or_else(|| ParquetError::General("the schema has fewer columns than the table".to_string()))?;
        let (defined, repeated) = (column.defined.as_deref(), column.repeated.as_deref());
        match (out.untyped(), &column.data) {
            (ColumnWriter::Int32ColumnWriter(w), Data::Int(v)) => w.write_batch(v, defined, repeated)?,
            (ColumnWriter::Int64ColumnWriter(w), Data::Long(v)) => w.write_batch(v, defined, repeated)?,
            (ColumnWriter::FloatColumnWriter(w), Data::Float(v)) => w.write_batch(v, defined, repeated)?,
            (ColumnWriter::DoubleColumnWriter(w), Data::Double(v)) => w.write_batch(v, defined, repeated)?,
            (ColumnWriter::BoolColumnWriter(w), Data::Bool(v)) => w.write_batch(v, defined, repeated)?,
            (ColumnWriter::ByteArrayColumnWriter(w), Data::Text(v)) => w.write_batch(v, defined, repeated)?,
            _ => return Err(ParquetError::General(format!("`{}` has values of another type", column.declaration))),
        };
        out.close()?;
    }
    row_group.close()?;
    writer.close()?;
    Ok(())
}
