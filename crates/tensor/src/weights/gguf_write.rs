//! Writing GGUF version 3.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};

use super::gguf::{ALIGNMENT, ALIGNMENT_KEY, MAGIC, MAX_DIMS};
use super::metadata::{Value, write_text};
use super::quant::{Encoding, encode_q8_0};
use super::safetensors_write::CHUNK;
use super::{OutTensor, WeightsError};

/// The longest tensor name that llama.cpp reads, in bytes.
const MAX_NAME: usize = 63;

/// An encoding that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// As it is.
    F32,
    /// Rounded to the nearest half.
    F16,
    /// Rounded to the nearest bfloat16.
    Bf16,
    /// Signed bytes with a half scale for each 32 values, as the format's reference rounds them.
    Q8_0,
}

impl Store {
    /// The encoding it writes.
    pub fn encoding(self) -> &'static Encoding {
        let name = match self {
            Store::F32 => "F32",
            Store::F16 => "F16",
            Store::Bf16 => "BF16",
            Store::Q8_0 => "Q8_0",
        };
        Encoding::by_name(name).expect("every encoding that is written is in the table")
    }

    /// Appends whole blocks of finite values, or gives the position of one that is too large.
    fn encode(self, values: &[f32], out: &mut Vec<u8>) -> Result<(), usize> {
        match self {
            Store::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            Store::F16 => {
                for (i, v) in values.iter().enumerate() {
                    let rounded = f16::from_f32(*v);
                    if rounded.is_infinite() {
                        return Err(i);
                    }
                    out.extend_from_slice(&rounded.to_le_bytes());
                }
            }
            Store::Bf16 => {
                for (i, v) in values.iter().enumerate() {
                    let rounded = bf16::from_f32(*v);
                    if rounded.is_infinite() {
                        return Err(i);
                    }
                    out.extend_from_slice(&rounded.to_le_bytes());
                }
            }
            Store::Q8_0 => {
                for (i, block) in values.chunks_exact(32).enumerate() {
                    if !encode_q8_0(block, out) {
                        let largest = (0..32).max_by(|a, b| block[*a].abs().total_cmp(&block[*b].abs()));
                        return Err(32 * i + largest.expect("a block has 32 values"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes metadata and tensors in the order given: the same input gives the same bytes.
///
/// - Shapes: tensors' outermost dimension first; the file gets the reverse.
/// - Holds: what `out` holds after an error is of no use; making the file appear whole or not at all is the caller's.
/// - Errors: a key or name given twice, a shape the format or the encoding cannot hold, `Length`, `NotFinite`, `TooLarge`, or
///   `out`'s own; `path` only names `out` in messages.
pub fn write_gguf(
    path: &Path,
    out: &mut dyn Write,
    metadata: &[(String, Value)],
    tensors: &[(OutTensor<'_>, Store)],
) -> Result<(), WeightsError> {
    let alignment = alignment(path, metadata)?;
    let mut write = |bytes: &[u8]| {
        out.write_all(bytes).map_err(|source| WeightsError::Io { path: path.to_owned(), action: "write", source })
    };
    write(&header(path, metadata, tensors, alignment)?)?;
    let mut buffer = Vec::new();
    for (tensor, store) in tensors {
        let mut n_bytes = 0;
        for (i, chunk) in tensor.checked_values(path)?.chunks(CHUNK).enumerate() {
            buffer.clear();
            store.encode(chunk, &mut buffer).map_err(|at| WeightsError::TooLarge {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                index: i * CHUNK + at,
                value: chunk[at],
                encoding: store.encoding().name,
            })?;
            n_bytes += buffer.len();
            write(&buffer)?;
        }
        write(&vec![0; n_bytes.next_multiple_of(alignment) - n_bytes])?;
    }
    Ok(())
}

/// The alignment the metadata sets, or the format's default.
fn alignment(path: &Path, metadata: &[(String, Value)]) -> Result<usize, WeightsError> {
    match metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT as usize),
        Some((_, Value::U32(n))) if n.is_power_of_two() => Ok(*n as usize),
        Some((key, value)) => Err(WeightsError::Value {
            path: path.to_owned(),
            key: key.clone(),
            needed: "a u32 that is a power of two",
            got: value.to_string(),
        }),
    }
}

/// Everything before the tensors' values, padded to the alignment.
fn header(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[(OutTensor<'_>, Store)],
    alignment: usize,
) -> Result<Vec<u8>, WeightsError> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&3u32.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    let mut keys = BTreeSet::new();
    for (key, value) in metadata {
        if !keys.insert(key) {
            return Err(WeightsError::DuplicateKey { path: path.to_owned(), key: key.clone() });
        }
        write_text(key, &mut out);
        out.extend_from_slice(&value.id().to_le_bytes());
        value.write(&mut out);
    }
    let mut names = BTreeSet::new();
    let mut at = 0u64;
    for (tensor, store) in tensors {
        if !names.insert(&tensor.name) {
            return Err(WeightsError::DuplicateTensor { path: path.to_owned(), tensor: tensor.name.clone() });
        }
        let n_bytes = check_tensor(path, tensor, *store)?;
        write_text(&tensor.name, &mut out);
        out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        for dim in tensor.shape.iter().rev() {
            out.extend_from_slice(&(*dim as u64).to_le_bytes());
        }
        out.extend_from_slice(&store.encoding().id.to_le_bytes());
        out.extend_from_slice(&at.to_le_bytes());
        at += (n_bytes as u64).next_multiple_of(alignment as u64);
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    Ok(out)
}

/// Checks that the format can hold a tensor, and gives its size in bytes.
fn check_tensor(path: &Path, tensor: &OutTensor<'_>, store: Store) -> Result<usize, WeightsError> {
    let refuse = |needed: String, got: String| {
        let (path, tensor) = (path.to_owned(), tensor.name.clone());
        Err(WeightsError::Tensor { path, tensor, needed, got })
    };
    let encoding = store.encoding();
    if tensor.name.len() > MAX_NAME {
        return refuse(format!("a name of at most {MAX_NAME} bytes"), tensor.name.len().to_string());
    }
    if !(1..=MAX_DIMS).contains(&tensor.shape.len()) {
        return refuse("1 to 4 dimensions".to_owned(), tensor.shape.len().to_string());
    }
    let n = tensor.n_values(path)?;
    if n == 0 {
        return refuse("dimensions of at least 1".to_owned(), "one of 0".to_owned());
    }
    let row = tensor.shape[tensor.shape.len() - 1];
    if !row.is_multiple_of(encoding.block) {
        let needed = format!("rows of a multiple of {} values for `{}`", encoding.block, encoding.name);
        return refuse(needed, format!("rows of {row}"));
    }
    match (n / encoding.block).checked_mul(encoding.bytes).filter(|n| *n < 1 << 62) {
        Some(n_bytes) => Ok(n_bytes),
        None => refuse("a size below 2⁶² bytes".to_owned(), format!("{n} values")),
    }
}
