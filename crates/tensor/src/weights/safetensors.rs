//! Reading safetensors: a file, or a folder with `model.safetensors` or an index of shards.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::bytes::{Bytes, Cursor};
use super::{Named, TensorSource, WeightsError, check_finite, quant};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The format's own limit on a header, kept for the index too.
const MAX_HEADER: u64 = 100_000_000;
/// The key of a header that is not a tensor.
pub(super) const METADATA: &str = "__metadata__";

/// A type that is read, its name, its decoder, and the bytes of a value.
type Readable = (Dtype, &'static str, fn(&[u8], &mut [f32]), usize);

/// What is read; f64 is refused rather than rounded silently.
const READABLE: [Readable; 3] =
    [(Dtype::F32, "F32", quant::f32s, 4), (Dtype::F16, "F16", quant::f16s, 2), (Dtype::BF16, "BF16", quant::bf16s, 2)];

/// One or more safetensors files read as one.
///
/// - Holds: everything the headers say was checked against the files' sizes when they were opened. A shard's tensors that the
///   index does not give to it are not part of the model.
#[derive(Debug)]
pub struct Safetensors {
    files: Vec<Shard>,
    tensors: Named<Info>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: Bytes,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Info {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl Safetensors {
    /// Opens a file, or a folder: its `model.safetensors` if there is one, else the shards of its index.
    ///
    /// - Holds: nobody may rewrite the files in place while they are open.
    /// - Errors: one for each thing that can be wrong with a header or the index, shards outside the folder among them.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        if !path.is_dir() {
            return Self::single(path, path, Bytes::map(path)?);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        if single.exists() {
            Self::single(path, &single, Bytes::map(&single)?)
        } else if index.exists() {
            let bytes = Bytes::map(&index)?;
            Self::sharded(path, &parse_index(&index, &bytes)?)
        } else {
            Err(WeightsError::Unrecognised { path: path.to_owned() })
        }
    }

    /// One file's bytes in memory; `path` only names them in messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, WeightsError> {
        Self::single(path, path, Bytes::Owned(bytes))
    }

    /// The free-form metadata; where shards disagree, the first one's.
    pub fn metadata(&self) -> BTreeMap<&str, &str> {
        let all = self.files.iter().rev().flat_map(|f| &f.metadata);
        all.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    fn single(path: &Path, file: &Path, bytes: Bytes) -> Result<Self, WeightsError> {
        let (metadata, tensors) = parse(file, &bytes, 0)?;
        let files = vec![Shard { path: file.to_owned(), bytes, metadata }];
        Ok(Safetensors { files, tensors: Named { path: path.to_owned(), tensors } })
    }

    fn sharded(folder: &Path, index: &BTreeMap<String, String>) -> Result<Self, WeightsError> {
        let mut by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in index {
            by_shard.entry(shard).or_default().push(tensor);
        }
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
        for (shard, names) in by_shard {
            let path = folder.join(shard);
            let bytes = Bytes::map(&path)?;
            let (metadata, mut found) = parse(&path, &bytes, files.len())?;
            for name in names {
                let Some(info) = found.remove(name) else {
                    return Err(WeightsError::MissingTensor { path, tensor: name.to_owned() });
                };
                tensors.insert(name.to_owned(), info);
            }
            files.push(Shard { path, bytes, metadata });
        }
        Ok(Safetensors { files, tensors: Named { path: folder.to_owned(), tensors } })
    }
}

impl TensorSource for Safetensors {
    fn path(&self) -> &Path {
        &self.tensors.path
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.names()
    }

    fn shape(&self, name: &str) -> Result<&[usize], WeightsError> {
        Ok(&self.tensors.get(name)?.shape)
    }

    fn stored_as(&self, name: &str) -> Result<&'static str, WeightsError> {
        Ok(dtype_name(self.tensors.get(name)?.dtype))
    }

    fn read_rows_f32(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), WeightsError> {
        let info = self.tensors.get(name)?;
        let file = &self.files[info.file];
        let first = super::first_value(&file.path, name, &info.shape, rows, out.len())?;
        let Some((_, _, decode, size)) = READABLE.iter().find(|r| r.0 == info.dtype) else {
            return Err(WeightsError::Encoding {
                path: file.path.clone(),
                tensor: name.to_owned(),
                needed: READABLE.iter().map(|r| r.1).collect(),
                got: dtype_name(info.dtype).to_owned(),
            });
        };
        let bytes = &file.bytes[info.bytes.clone()];
        decode(&bytes[first * size..(first + out.len()) * size], out);
        check_finite(&file.path, name, first, out)
    }
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::BF16 => "BF16",
        Dtype::F64 => "F64",
        Dtype::I64 => "I64",
        Dtype::I32 => "I32",
        Dtype::I16 => "I16",
        Dtype::I8 => "I8",
        Dtype::U64 => "U64",
        Dtype::U32 => "U32",
        Dtype::U16 => "U16",
        Dtype::U8 => "U8",
        Dtype::BOOL => "BOOL",
        Dtype::C64 => "C64",
        Dtype::F8_E4M3 => "F8_E4M3",
        Dtype::F8_E5M2 => "F8_E5M2",
        Dtype::F8_E8M0 => "F8_E8M0",
        Dtype::F8_E4M3FNUZ => "F8_E4M3FNUZ",
        Dtype::F8_E5M2FNUZ => "F8_E5M2FNUZ",
        Dtype::F6_E2M3 => "F6_E2M3",
        Dtype::F6_E3M2 => "F6_E3M2",
        Dtype::F4 => "F4",
        _ => "another type",
    }
}

type Parsed = (BTreeMap<String, String>, BTreeMap<String, Info>);

/// One file's metadata and tensors, which are given the number `file`.
fn parse(path: &Path, bytes: &[u8], file: usize) -> Result<Parsed, WeightsError> {
    let mut from = Cursor::new(bytes, path);
    let n = from.u64(format_args!("the header's length"))?;
    if n > MAX_HEADER {
        let got = format!("{n} bytes");
        return Err(WeightsError::Header { path: path.to_owned(), needed: "a header of at most 100 MB", got });
    }
    let at = from.at();
    let header = from.take(n, format_args!("the header"))?;
    let Ok(header) = std::str::from_utf8(header) else {
        return Err(WeightsError::Utf8 { path: path.to_owned(), what: "the header".to_owned(), at });
    };
    if let Some(tensor) = repeated_key(header) {
        return Err(WeightsError::DuplicateTensor { path: path.to_owned(), tensor });
    }
    let (n, header) =
        SafeTensors::read_metadata(bytes).map_err(|e| explain(path, header, bytes.len() as u64 - 8 - n, e))?;
    let start = 8 + n;
    let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    let tensors = header.tensors().into_iter().map(|(name, info)| {
        let (from, to) = info.data_offsets;
        (name, Info { file, dtype: info.dtype, shape: info.shape.clone(), bytes: start + from..start + to })
    });
    Ok((metadata, tensors.collect()))
}

/// The library's refusal in this crate's words; `got` is how many bytes follow the header.
fn explain(path: &Path, header: &str, got: u64, error: SafeTensorError) -> WeightsError {
    let path = path.to_owned();
    let layout = "tensors whose shapes, types and offsets agree and follow each other without a gap";
    match error {
        SafeTensorError::MetadataIncompleteBuffer => {
            let end = end_of_data(header).unwrap_or(u64::MAX);
            if end > got {
                let (what, at) = ("the tensors' values".to_owned(), 8 + header.len() as u64);
                return WeightsError::Truncated { path, what, at, needed: end, got };
            }
            let needed = "the last tensor to end where the file does";
            WeightsError::Header { path, needed, got: format!("{got} bytes for {end} of values") }
        }
        SafeTensorError::InvalidHeaderDeserialization(e) => {
            WeightsError::Header { path, needed: "a JSON header that describes tensors", got: e.to_string() }
        }
        // Which of several tensors the library names is chance, so none is named.
        SafeTensorError::InvalidOffset(_) => {
            WeightsError::Header { path, needed: layout, got: "an offset that does not".to_owned() }
        }
        other => WeightsError::Header { path, needed: layout, got: other.to_string() },
    }
}

/// Where the last tensor of a valid header ends.
fn end_of_data(header: &str) -> Option<u64> {
    let header: serde_json::Value = serde_json::from_str(header).ok()?;
    let ends = header.as_object()?.iter().filter(|(name, _)| *name != METADATA);
    ends.map(|(_, info)| info["data_offsets"][1].as_u64()).try_fold(0, |most, end| Some(most.max(end?)))
}

/// The first key that an object repeats at its top level; parsers keep the last one without a word.
///
/// - Holds: `None` for text that is not JSON, which the parser refuses by itself.
fn repeated_key(json: &str) -> Option<String> {
    let mut seen = BTreeMap::new();
    let (mut depth, mut key_next) = (0usize, false);
    let bytes = json.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'{' | b'[' => (depth, key_next) = (depth + 1, depth == 0),
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b',' if depth == 1 => key_next = true,
            b':' if depth == 1 => key_next = false,
            b'"' => {
                let start = i;
                i += 1;
                while *bytes.get(i)? != b'"' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                if depth == 1 && key_next {
                    let key: String = serde_json::from_str(&json[start..=i]).ok()?;
                    match seen.entry(key) {
                        Slot::Occupied(slot) => return Some(slot.key().clone()),
                        Slot::Vacant(slot) => slot.insert(()),
                    };
                }
            }
            _ => {}
        }
        i += 1;
    }
    None
}

/// An index's tensors with their shards' names.
pub(super) fn parse_index(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, String>, WeightsError> {
    let bad = |needed, got| WeightsError::Header { path: path.to_owned(), needed, got };
    if bytes.len() as u64 > MAX_HEADER {
        return Err(bad("an index of at most 100 MB", format!("{} bytes", bytes.len())));
    }
    let json: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| bad("an index in JSON", e.to_string()))?;
    let Some(map) = json.get("weight_map").and_then(|m| m.as_object()) else {
        return Err(bad("an object `weight_map`", "none".to_owned()));
    };
    let mut index = BTreeMap::new();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str() else {
            return Err(bad("file names in `weight_map`", format!("`{shard}` for `{tensor}`")));
        };
        if !stays_inside(shard) {
            return Err(WeightsError::Shard { path: path.to_owned(), shard: shard.to_owned() });
        }
        index.insert(tensor.clone(), shard.to_owned());
    }
    if index.is_empty() {
        return Err(bad("tensors in `weight_map`", "none".to_owned()));
    }
    Ok(index)
}

/// Whether a shard's name, as written by a stranger, stays inside its folder on every system.
fn stays_inside(shard: &str) -> bool {
    !shard.is_empty()
        && !shard.contains(['\\', ':', '\0'])
        && Path::new(shard).components().all(|c| matches!(c, Component::Normal(_)))
}
