//! Why a weight file was refused.

use std::path::PathBuf;

use super::quant;

/// Why a weight file was refused, with the file, the tensor or key, what was needed and what was found.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The operating system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path is no kind of weight file.
    #[error(
        "`{}` holds no weights: needed a GGUF file, a safetensors file, or a folder with `model.safetensors` or \
         `model.safetensors.index.json`",
        path.display()
    )]
    Unrecognised {
        /// The file or folder.
        path: PathBuf,
    },
    /// The first bytes are not GGUF's.
    #[error("`{}` is not a GGUF file: needed the first bytes `47475546`, got `{got}`", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes in hexadecimal.
        got: String,
    },
    /// A GGUF version that is not read.
    #[error("`{}` is GGUF version {got}: needed 2 or 3, little endian", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version; a multiple of 65536 marks a big-endian file.
        got: u32,
    },
    /// The file ends before what its header promises.
    #[error("`{}` is cut short or corrupt: {what} at byte {at}: needed {needed} bytes, got {got}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
        /// How many bytes it takes, `u64::MAX` when that many cannot exist.
        needed: u64,
        /// How many bytes are left there.
        got: u64,
    },
    /// Text that is not UTF-8.
    #[error("`{}`: {what} at byte {at} is not UTF-8", path.display())]
    Utf8 {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
    },
    /// A metadata key comes twice.
    #[error("`{}` has the metadata key `{key}` twice", path.display())]
    DuplicateKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A tensor name comes twice.
    #[error("`{}` has the tensor `{tensor}` twice", path.display())]
    DuplicateTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A metadata value that cannot be understood.
    #[error("`{}`: metadata key `{key}`: needed {needed}, got {got}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What would do.
        needed: &'static str,
        /// What is there.
        got: String,
    },
    /// A metadata key that is not there.
    #[error("`{}` lacks the metadata key `{key}`", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A tensor whose shape, place or name cannot be.
    #[error("`{}`: tensor `{tensor}`: needed {needed}, got {got}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What would do.
        needed: String,
        /// What is there.
        got: String,
    },
    /// A tensor stored in a way that is not read.
    #[error("`{}`: tensor `{tensor}` is stored as `{got}`: needed one of {needed}", path.display(), needed = needed.join(", "))]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Every encoding this kind of file may use.
        needed: Vec<&'static str>,
        /// Its encoding.
        got: String,
    },
    /// Two tensors share bytes.
    #[error("`{}`: tensors `{tensor}` and `{other}` share bytes", path.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The one that begins earlier.
        tensor: String,
        /// The other.
        other: String,
    },
    /// A tensor that is not there.
    #[error("`{}` has no tensor `{tensor}`", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor asked for.
        tensor: String,
    },
    /// A range of rows the tensor does not have.
    #[error("`{}`: tensor `{tensor}`: needed rows within 0..{needed}, got {start}..{end}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How many rows it has.
        needed: usize,
        /// First row asked for.
        start: usize,
        /// Row after the last.
        end: usize,
    },
    /// A buffer or a list of values of another length than the tensor's.
    #[error("`{}`: tensor `{tensor}`: needed {needed} values, got {got}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How many it takes.
        needed: usize,
        /// How many were given.
        got: usize,
    },
    /// A weight that is infinite or not a number.
    #[error("`{}`: tensor `{tensor}`: value {index} is {value}: needed a finite number", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its position in the tensor read row by row.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A weight too large for the encoding it is to be written in.
    #[error("`{}`: tensor `{tensor}`: value {index} is {value}: too large for `{encoding}`", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its position in the tensor read row by row.
        index: usize,
        /// The value.
        value: f32,
        /// The encoding.
        encoding: &'static str,
    },
    /// A safetensors header or index that cannot be understood.
    #[error("`{}`: needed {needed}, got {got}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What would do.
        needed: &'static str,
        /// What is there.
        got: String,
    },
    /// A shard name in an index that points out of its folder.
    #[error("`{}` names the shard `{shard}`: needed a relative path inside the folder", path.display())]
    Shard {
        /// The index file.
        path: PathBuf,
        /// The shard's name.
        shard: String,
    },
}

/// The encodings GGUF tensors may have, for messages.
pub(super) fn gguf_encodings() -> Vec<&'static str> {
    quant::ENCODINGS.iter().filter(|e| e.is_readable()).map(|e| e.name).collect()
}
