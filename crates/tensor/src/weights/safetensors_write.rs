//! Writing safetensors in f32.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use super::safetensors::METADATA;
use super::{OutTensor, WeightsError};

/// How many values are turned into bytes at once.
pub(super) const CHUNK: usize = 1 << 16;

/// Writes tensors in f32, sorted by name, behind a header with sorted metadata: the same input gives the same bytes.
///
/// - Holds: what `out` holds after an error is of no use; making the file appear whole or not at all is the caller's.
/// - Errors: `DuplicateTensor`, `Length`, `NotFinite`, a reserved name, or `out`'s own; `path` only names `out` in messages.
/// - Source: the format's description; Hugging Face's loaders ask for the metadata `format = pt`.
pub fn write_safetensors<'a>(
    path: &Path,
    out: &mut dyn Write,
    tensors: impl IntoIterator<Item = OutTensor<'a>>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    let mut tensors: Vec<OutTensor<'a>> = tensors.into_iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut write = |bytes: &[u8]| {
        out.write_all(bytes).map_err(|source| WeightsError::Io { path: path.to_owned(), action: "write", source })
    };
    write(&header(path, &tensors, metadata)?)?;
    let mut buffer = Vec::new();
    for tensor in &tensors {
        for chunk in tensor.checked_values(path)?.chunks(CHUNK) {
            buffer.clear();
            buffer.extend(chunk.iter().flat_map(|v| v.to_le_bytes()));
            write(&buffer)?;
        }
    }
    Ok(())
}

fn header(
    path: &Path,
    tensors: &[OutTensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, WeightsError> {
    let mut json = serde_json::Map::new();
    if !metadata.is_empty() {
        json.insert(METADATA.to_owned(), serde_json::json!(metadata));
    }
    let mut names = BTreeSet::new();
    let mut at = 0usize;
    for tensor in tensors {
        let refuse = |needed: &str, got: &str| WeightsError::Tensor {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            needed: needed.to_owned(),
            got: got.to_owned(),
        };
        if tensor.name == METADATA {
            return Err(refuse("another name", "the one the format keeps for metadata"));
        }
        if !names.insert(&tensor.name) {
            return Err(WeightsError::DuplicateTensor { path: path.to_owned(), tensor: tensor.name.clone() });
        }
        let end = tensor.n_values(path)?.checked_mul(4).and_then(|n| n.checked_add(at));
        let end = end.ok_or_else(|| refuse("a file that fits in memory's address space", "a larger one"))?;
        let info = serde_json::json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [at, end] });
        json.insert(tensor.name.clone(), info);
        at = end;
    }
    let json = serde_json::Value::Object(json).to_string();
    // Spaces are legal after the object, and bring the values to a multiple of eight bytes.
    let n = json.len().next_multiple_of(8);
    let mut header = Vec::with_capacity(8 + n);
    header.extend_from_slice(&(n as u64).to_le_bytes());
    header.extend_from_slice(json.as_bytes());
    header.resize(8 + n, b' ');
    Ok(header)
}
