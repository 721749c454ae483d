//! Weight files: GGUF and safetensors behind one trait, read as f32, and writers for both.
//!
//! Files are mapped, never trusted: every length, offset and name in them is checked before it is used, so that a bad file is
//! one clear error.

mod bytes;
mod error;
pub mod fuzz;
mod gguf;
mod gguf_write;
mod metadata;
mod quant;
mod quant_k;
mod safetensors;
mod safetensors_write;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use error::WeightsError;
pub use gguf::Gguf;
pub use gguf_write::{Store, write_gguf};
pub use metadata::{Array, Entry, Metadata, Value};
pub use quant::Encoding;
pub use safetensors::Safetensors;
pub use safetensors_write::write_safetensors;

/// Named tensors that can be read as f32, whatever the file.
///
/// - Shapes: outermost dimension first, values row by row; a *row* is one index of the outermost dimension.
/// - Holds: reads go on at once from any number of threads, and each depends on the file alone.
pub trait TensorSource: Send + Sync {
    /// The file or folder, for messages.
    fn path(&self) -> &Path;

    /// Every tensor's name, sorted.
    fn names(&self) -> Vec<&str>;

    /// A tensor's shape; a single number has none: `[]`, and one row.
    fn shape(&self, name: &str) -> Result<&[usize], WeightsError>;

    /// The file format's name for how a tensor is stored.
    fn stored_as(&self, name: &str) -> Result<&'static str, WeightsError>;

    /// Reads some rows of a tensor.
    ///
    /// - Shapes: `out` `[rows × values a row]`.
    /// - Errors: a tensor, rows or an encoding that is not there; `NotFinite` names the first value that is not a number
    ///   (what was read before it is in `out`).
    fn read_rows_f32(&self, name: &str, rows: Range<usize>, out: &mut [f32]) -> Result<(), WeightsError>;

    /// Reads a whole tensor.
    ///
    /// - Shapes: `out` as many values as the shape's product.
    /// - Errors: as [`TensorSource::read_rows_f32`].
    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<(), WeightsError> {
        let rows = self.shape(name)?.first().copied().unwrap_or(1);
        self.read_rows_f32(name, 0..rows, out)
    }

    /// Whether there is a tensor of that name.
    fn has(&self, name: &str) -> bool {
        self.shape(name).is_ok()
    }
}

/// Weights of either format.
#[derive(Debug)]
pub enum Weights {
    /// A GGUF file.
    Gguf(Gguf),
    /// A safetensors file, or a folder of them.
    Safetensors(Safetensors),
}

impl Weights {
    /// Opens a GGUF file, a safetensors file, or a folder with `model.safetensors` or its index, told apart by content.
    ///
    /// - Errors: as [`Gguf::open`] and [`Safetensors::open`]; `Unrecognised` when it is neither.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let failed = |action, source| WeightsError::Io { path: path.to_owned(), action, source };
        let has_extension = |ext: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ext));
        if path.is_dir() {
            return Safetensors::open(path).map(Weights::Safetensors);
        }
        let mut start = Vec::new();
        let file = File::open(path).map_err(|e| failed("open", e))?;
        file.take(9).read_to_end(&mut start).map_err(|e| failed("read", e))?;
        if start.starts_with(gguf::MAGIC) || has_extension("gguf") {
            Gguf::open(path).map(Weights::Gguf)
        } else if start.get(8) == Some(&b'{') || has_extension("safetensors") {
            Safetensors::open(path).map(Weights::Safetensors)
        } else {
            Err(WeightsError::Unrecognised { path: path.to_owned() })
        }
    }

    /// The tensors, whatever the format.
    pub fn tensors(&self) -> &dyn TensorSource {
        match self {
            Weights::Gguf(gguf) => gguf,
            Weights::Safetensors(safetensors) => safetensors,
        }
    }
}

/// A tensor to be written.
pub struct OutTensor<'a> {
    /// Its name.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    values: Box<dyn Fn() -> Cow<'a, [f32]> + 'a>,
}

impl<'a> OutTensor<'a> {
    /// A tensor whose values lie row by row in memory.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, values: &'a [f32]) -> Self {
        Self::made(name, shape, move || Cow::Borrowed(values))
    }

    /// A tensor whose values are made when it is its turn to be written, so that a model need not lie in memory twice.
    pub fn made(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: impl Fn() -> Cow<'a, [f32]> + 'a,
    ) -> Self {
        OutTensor { name: name.into(), shape: shape.into(), values: Box::new(values) }
    }

    /// The values, after checking that there are as many as the shape says and that all are finite.
    fn checked_values(&self, path: &Path) -> Result<Cow<'a, [f32]>, WeightsError> {
        let values = (self.values)();
        let needed = self.n_values(path)?;
        if values.len() != needed {
            let (path, tensor, got) = (path.to_owned(), self.name.clone(), values.len());
            return Err(WeightsError::Length { path, tensor, needed, got });
        }
        check_finite(path, &self.name, 0, &values)?;
        Ok(values)
    }

    fn n_values(&self, path: &Path) -> Result<usize, WeightsError> {
        self.shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim)).ok_or_else(|| WeightsError::Tensor {
            path: path.to_owned(),
            tensor: self.name.clone(),
            needed: "a shape whose product fits in memory".to_owned(),
            got: "a larger one".to_owned(),
        })
    }
}

/// Refuses the first value that is infinite or not a number.
///
/// - Shapes: `values` are those from position `first` of the tensor on.
/// - Errors: `NotFinite` with the position in the whole tensor.
pub fn check_finite(path: &Path, tensor: &str, first: usize, values: &[f32]) -> Result<(), WeightsError> {
    // The common case is a loop without an early exit, which the compiler turns into vectors.
    if values.iter().fold(true, |all, v| all & v.is_finite()) {
        return Ok(());
    }
    let i = values.iter().position(|v| !v.is_finite()).expect("one was seen a moment ago");
    let (path, tensor) = (path.to_owned(), tensor.to_owned());
    Err(WeightsError::NotFinite { path, tensor, index: first + i, value: values[i] })
}

/// What the header of a file, or of several read as one, says of each tensor.
#[derive(Debug)]
struct Named<T> {
    path: PathBuf,
    tensors: BTreeMap<String, T>,
}

impl<T> Named<T> {
    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn get(&self, tensor: &str) -> Result<&T, WeightsError> {
        let missing = || WeightsError::MissingTensor { path: self.path.clone(), tensor: tensor.to_owned() };
        self.tensors.get(tensor).ok_or_else(missing)
    }
}

/// Checks a request for rows and gives the position of its first value in the tensor.
fn first_value(
    path: &Path,
    name: &str,
    shape: &[usize],
    rows: Range<usize>,
    got: usize,
) -> Result<usize, WeightsError> {
    let n_rows = shape.first().copied().unwrap_or(1);
    if rows.start > rows.end || rows.end > n_rows {
        let (path, tensor) = (path.to_owned(), name.to_owned());
        return Err(WeightsError::Rows { path, tensor, needed: n_rows, start: rows.start, end: rows.end });
    }
    // With no rows the other dimensions may multiply beyond any integer: the readers check the product of all of them.
    let row = if n_rows == 0 { 0 } else { shape.iter().skip(1).product() };
    let needed = rows.len() * row;
    if got != needed {
        let (path, tensor) = (path.to_owned(), name.to_owned());
        return Err(WeightsError::Length { path, tensor, needed, got });
    }
    Ok(rows.start * row)
}
