//! Reading GGUF: one file with metadata and tensors.
//!
//! Source: the format's description, `docs/gguf.md` of ggml; versions 2 and 3, little endian.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::bytes::{Bytes, Cursor};
use super::error::gguf_encodings;
use super::metadata::Metadata;
use super::quant::Encoding;
use super::{Named, TensorSource, WeightsError, check_finite};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// The format's default for where tensors may begin, in bytes.
pub(super) const ALIGNMENT: u32 = 32;
/// The key that changes it.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// The most dimensions a tensor has in this format.
pub(super) const MAX_DIMS: usize = 4;
/// The fewest bytes that describe a tensor: name length, number of dimensions, one of them, encoding, offset.
const LEAST_INFO_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// A GGUF file.
///
/// - Shapes: outermost dimension first, the reverse of the file's own order, so that they agree with safetensors.
/// - Holds: everything the header says was checked against the file's size when it was opened.
#[derive(Debug)]
pub struct Gguf {
    bytes: Bytes,
    metadata: Metadata,
    tensors: Named<Info>,
}

#[derive(Debug)]
struct Info {
    shape: Vec<usize>,
    encoding: &'static Encoding,
    bytes: Range<usize>,
}

impl Gguf {
    /// Opens and checks a file, mapping it into memory.
    ///
    /// - Holds: nobody may rewrite the file in place while it is open.
    /// - Errors: one for each thing that can be wrong with the header; the weights themselves are checked when read.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::parse(path, Bytes::map(path)?)
    }

    /// The same over bytes in memory; `path` only names them in messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, WeightsError> {
        Self::parse(path, Bytes::Owned(bytes))
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// How a tensor is stored.
    pub fn encoding(&self, name: &str) -> Result<&'static Encoding, WeightsError> {
        Ok(self.tensors.get(name)?.encoding)
    }

    fn parse(path: &Path, bytes: Bytes) -> Result<Self, WeightsError> {
        let mut from = Cursor::new(&bytes, path);
        let magic = from.take(4, format_args!("the magic"))?;
        if magic != MAGIC {
            let got = magic.iter().map(|b| format!("{b:02x}")).collect();
            return Err(WeightsError::Magic { path: path.to_owned(), got });
        }
        let version = from.u32(format_args!("the version"))?;
        if !(2..=3).contains(&version) {
            return Err(WeightsError::Version { path: path.to_owned(), got: version });
        }
        let n_tensors = from.u64(format_args!("the number of tensors"))?;
        let n_keys = from.u64(format_args!("the number of metadata entries"))?;
        let metadata = Metadata::read(&mut from, n_keys)?;
        let alignment = alignment(&metadata)?;
        from.fits(n_tensors, LEAST_INFO_BYTES, format_args!("the descriptions of {n_tensors} tensors"))?;
        let mut raw = Vec::new();
        for i in 0..n_tensors {
            raw.push(RawInfo::read(&mut from, i)?);
        }
        // The end of the header is at most the file's size, so rounding it up cannot overflow 64 bits.
        let start = from.at().next_multiple_of(u64::from(alignment));
        let tensors = place(raw, start, u64::from(alignment), bytes.len() as u64, path)?;
        Ok(Gguf { bytes, metadata, tensors: Named { path: path.to_owned(), tensors } })
    }
}

impl TensorSource for Gguf {
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
        Ok(self.tensors.get(name)?.encoding.name)
    }

    fn read_rows_f32(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), WeightsError> {
        let info = self.tensors.get(name)?;
        let first = super::first_value(self.path(), name, &info.shape, rows, out.len())?;
        if !info.encoding.decode(&self.bytes[info.bytes.clone()], first, out) {
            return Err(WeightsError::Encoding {
                path: self.path().to_owned(),
                tensor: name.to_owned(),
                needed: gguf_encodings(),
                got: info.encoding.name.to_owned(),
            });
        }
        check_finite(self.path(), name, first, out)
    }
}

/// The alignment a file's metadata asks for, or the format's default.
fn alignment(metadata: &Metadata) -> Result<u32, WeightsError> {
    let Some(entry) = metadata.find(ALIGNMENT_KEY) else { return Ok(ALIGNMENT) };
    let got = entry.u32()?;
    if got.is_power_of_two() {
        return Ok(got);
    }
    Err(entry.not("a power of two", got))
}

/// A tensor's description as the file has it.
struct RawInfo {
    name: String,
    shape: Vec<usize>,
    encoding: &'static Encoding,
    n_bytes: u64,
    offset: u64,
}

impl RawInfo {
    fn read(from: &mut Cursor<'_>, i: u64) -> Result<Self, WeightsError> {
        let name = from.text(format_args!("the name of tensor {i}"))?.to_owned();
        let path = from.path();
        let refuse = |needed: &str, got: String| -> Result<Self, WeightsError> {
            let (path, tensor) = (path.to_owned(), name.clone());
            Err(WeightsError::Tensor { path, tensor, needed: needed.to_owned(), got })
        };
        let n_dims = from.u32(format_args!("the number of dimensions of tensor `{name}`"))?;
        if n_dims == 0 || n_dims as usize > MAX_DIMS {
            return refuse("1 to 4 dimensions", n_dims.to_string());
        }
        let mut shape = Vec::with_capacity(MAX_DIMS);
        let mut n = 1u64;
        for _ in 0..n_dims {
            let dim = from.u64(format_args!("a dimension of tensor `{name}`"))?;
            let (Some(product), Ok(dim)) = (n.checked_mul(dim).filter(|n| *n > 0), usize::try_from(dim)) else {
                let needed = "dimensions of at least 1 with a product below 2⁶⁴";
                return refuse(needed, format!("a dimension of {dim} after {shape}", shape = list(&shape)));
            };
            n = product;
            shape.push(dim);
        }
        let id = from.u32(format_args!("the encoding of tensor `{name}`"))?;
        let offset = from.u64(format_args!("the offset of tensor `{name}`"))?;
        let Some(encoding) = Encoding::by_id(id) else {
            let (path, got) = (path.to_owned(), format!("encoding number {id}"));
            return Err(WeightsError::Encoding { path, tensor: name, needed: gguf_encodings(), got });
        };
        if !shape[0].is_multiple_of(encoding.block) {
            let needed = format!("rows of a multiple of {} values for `{}`", encoding.block, encoding.name);
            return refuse(&needed, format!("rows of {}", shape[0]));
        }
        let Some(n_bytes) = (n / encoding.block as u64).checked_mul(encoding.bytes as u64) else {
            return refuse("a size below 2⁶⁴ bytes", format!("{n} values as `{}`", encoding.name));
        };
        shape.reverse();
        Ok(RawInfo { name, shape, encoding, n_bytes, offset })
    }
}

fn list(dims: &[usize]) -> String {
    let dims: Vec<_> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Checks that every tensor lies in the file, aligned, and shares no byte with another.
fn place(
    raw: Vec<RawInfo>,
    start: u64,
    alignment: u64,
    size: u64,
    path: &Path,
) -> Result<BTreeMap<String, Info>, WeightsError> {
    let mut spans = Vec::with_capacity(raw.len());
    let mut tensors = BTreeMap::new();
    for RawInfo { name, shape, encoding, n_bytes, offset } in raw {
        if !offset.is_multiple_of(alignment) {
            let (needed, got) = (format!("an offset that is a multiple of {alignment}"), offset.to_string());
            return Err(WeightsError::Tensor { path: path.to_owned(), tensor: name, needed, got });
        }
        let from = start.saturating_add(offset);
        if from.checked_add(n_bytes).is_none_or(|end| end > size) {
            return Err(WeightsError::Truncated {
                path: path.to_owned(),
                what: format!("the values of tensor `{name}`"),
                at: from,
                needed: n_bytes,
                got: size.saturating_sub(from),
            });
        }
        let in_memory = |at: u64| usize::try_from(at).expect("a position in bytes held in memory fits");
        let bytes = in_memory(from)..in_memory(from + n_bytes);
        spans.push((bytes.start, bytes.end, name.clone()));
        if tensors.insert(name.clone(), Info { shape, encoding, bytes }).is_some() {
            return Err(WeightsError::DuplicateTensor { path: path.to_owned(), tensor: name });
        }
    }
    spans.sort();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            let (tensor, other) = (pair[0].2.clone(), pair[1].2.clone());
            return Err(WeightsError::Overlap { path: path.to_owned(), tensor, other });
        }
    }
    Ok(tensors)
}
