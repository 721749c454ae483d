//! Which files of a Hugging Face folder make the model.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::RemoteError;
use crate::record::is_plain_file_name;

const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Without these nothing can be loaded.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];

/// These say more about tokens, chats and stopping, where they are there.
const OPTIONAL: [&str; 4] =
    ["chat_template.jinja", "generation_config.json", "special_tokens_map.json", "tokenizer_config.json"];

/// The files of a model, but for the shards that only its index names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) files: Vec<String>,
    pub(crate) sharded: bool,
}

/// Chooses among the names in a folder or repository.
///
/// - Errors: [`RemoteError::NotAModel`] says what is missing.
pub(crate) fn select(place: &str, names: &BTreeSet<&str>) -> Result<Selection, RemoteError> {
    let lacks =
        |what: String| RemoteError::NotAModel { place: place.to_string(), reason: format!("needed {what}, got none") };
    if let Some(missing) = NEEDED.iter().find(|n| !names.contains(**n)) {
        return Err(lacks(format!("`{missing}`")));
    }
    let mut files: Vec<String> =
        NEEDED.iter().chain(&OPTIONAL).filter(|n| names.contains(**n)).map(|n| n.to_string()).collect();
    let sharded = !names.contains(SINGLE);
    if sharded && !names.contains(INDEX) {
        return Err(lacks(format!("`{SINGLE}` or `{INDEX}`")));
    }
    files.push(if sharded { INDEX } else { SINGLE }.to_string());
    Ok(Selection { files, sharded })
}

/// The shards that an index names, each once.
///
/// - Errors: [`RemoteError::NotAModel`] for an index that is none, names a file that is not there, or leaves the folder.
pub(crate) fn shards(place: &str, index: &[u8], names: &BTreeSet<&str>) -> Result<Vec<String>, RemoteError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let bad =
        |reason: String| RemoteError::NotAModel { place: place.to_string(), reason: format!("`{INDEX}` {reason}") };
    let index: Index = serde_json::from_slice(index).map_err(|e| bad(format!("cannot be read: {e}")))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    if shards.is_empty() {
        return Err(bad("names no file".into()));
    }
    for shard in &shards {
        if !is_plain_file_name(shard) || !shard.ends_with(".safetensors") {
            return Err(bad(format!("names `{shard}`, needed a plain name that ends in `.safetensors`")));
        }
        if !names.contains(shard.as_str()) {
            return Err(bad(format!("names `{shard}`, which is not there")));
        }
    }
    Ok(shards.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], want: Result<(&[&str], bool), &str>) {
        match (select("x", &names.iter().copied().collect()), want) {
            (Ok(got), Ok((files, sharded))) => {
                assert_eq!(got.files, files);
                assert_eq!(got.sharded, sharded);
            }
            (Err(got), Err(want)) => assert_eq!(got.to_string(), want),
            (got, want) => panic!("{got:?} is not {want:?}"),
        }
    }

    #[test]
    fn the_files_of_a_model_are_chosen_and_the_rest_left() {
        let base = ["config.json", "tokenizer.json"];
        check(
            &[&base[..], &["model.safetensors", "pytorch_model.bin", "README.md"]].concat(),
            Ok((&["config.json", "tokenizer.json", "model.safetensors"], false)),
        );
        check(
            &[&base[..], &["generation_config.json", INDEX, "model-1.safetensors"]].concat(),
            Ok((&["config.json", "tokenizer.json", "generation_config.json", INDEX], true)),
        );
        check(&["config.json"], Err("`x` is no model that can be read: needed `tokenizer.json`, got none"));
        let none =
            "`x` is no model that can be read: needed `model.safetensors` or `model.safetensors.index.json`, got none";
        check(&base, Err(none));
    }

    #[test]
    fn an_index_cannot_name_files_outside_or_missing() {
        let names = BTreeSet::from(["a.safetensors", "b.safetensors"]);
        let read = |text: &str| shards("x", text.as_bytes(), &names).map_err(|e| e.to_string());
        let both = r#"{"metadata":{},"weight_map":{"u":"b.safetensors","v":"a.safetensors","w":"b.safetensors"}}"#;
        assert_eq!(read(both).unwrap(), ["a.safetensors", "b.safetensors"]);
        for bad in ["../a.safetensors", "/etc/a.safetensors", "d/a.safetensors", "a.bin", "c.safetensors"] {
            let error = read(&format!(r#"{{"weight_map":{{"u":"{bad}"}}}}"#)).unwrap_err();
            assert!(error.contains(&format!("names `{bad}`")), "{error}");
        }
        assert!(read("{}").unwrap_err().contains("cannot be read"));
        assert!(read(r#"{"weight_map":{}}"#).unwrap_err().contains("names no file"));
    }
}
