//! What can be wrong with a model.

use std::path::PathBuf;

use tensor::weights::WeightsError;

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The weight file is at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A file could not be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A configuration file is not JSON.
    #[error("`{path}` is not JSON: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// No such family.
    #[error("model family `{got}` is not supported, needed one of {known}")]
    Family {
        /// What the file says.
        got: String,
        /// The names that work.
        known: String,
    },
    /// A field is missing or has a value that cannot be computed.
    #[error("model setting `{field}` is `{got}`, needed {needed}")]
    Field {
        /// The field.
        field: String,
        /// What would be right.
        needed: String,
        /// What is there.
        got: String,
    },
    /// A field that is not known, and so might change the maths.
    #[error("model setting `{field}` = `{got}` is not known to family `{family}` and might change the maths")]
    UnknownField {
        /// The field.
        field: String,
        /// Its value.
        got: String,
        /// The family.
        family: String,
    },
    /// A tensor is missing, of another shape, or not expected.
    #[error("tensor `{tensor}`: needed {needed}, got {got}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What would be right.
        needed: String,
        /// What is there.
        got: String,
    },
    /// An adapter that does not fit, or matches nothing.
    #[error("adapter does not fit: {0}")]
    Adapter(String),
    /// The key/value cache has no room.
    #[error("the key/value cache is full: needed {needed} pages more, {free} free")]
    CacheFull {
        /// Pages asked for.
        needed: usize,
        /// Pages there are.
        free: usize,
    },
}
