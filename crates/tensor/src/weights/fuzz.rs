//! Entry points for fuzzing the readers: any bytes at all may be given, and none may panic or ask for much memory.

use std::path::{Component, Path};

use super::safetensors::parse_index;
use super::{Gguf, Safetensors, TensorSource, WeightsError};

/// Reads bytes as a GGUF file, and everything in it.
///
/// - Errors: the reader's first, if any; the caller of a fuzz target has no use for it, a test of the target has.
pub fn fuzz_gguf(bytes: &[u8]) -> Result<(), WeightsError> {
    let gguf = Gguf::from_bytes(Path::new("fuzz"), bytes.to_vec())?;
    for (key, value) in gguf.metadata().iter() {
        // Rendering and asking for every type: at most one of them is the right one.
        let entry = gguf.metadata().need(key)?;
        let answers = [
            entry.str().is_ok(),
            entry.u64().is_ok(),
            entry.f32().is_ok(),
            entry.bool().is_ok(),
            entry.strings().is_ok(),
            entry.f32s().is_ok(),
            entry.i32s().is_ok(),
            entry.bools().is_ok(),
            value.to_string().is_empty(),
        ];
        assert!(answers.iter().filter(|a| **a).count() <= 1, "metadata key `{key}` has two types");
    }
    read_all(&gguf, bytes.len())
}

/// Reads bytes as a safetensors file, and everything in it.
///
/// - Errors: as [`fuzz_gguf`].
pub fn fuzz_safetensors(bytes: &[u8]) -> Result<(), WeightsError> {
    read_all(&Safetensors::from_bytes(Path::new("fuzz"), bytes.to_vec())?, bytes.len())
}

/// Reads bytes as an index of safetensors shards.
///
/// - Errors: as [`fuzz_gguf`].
pub fn fuzz_safetensors_index(bytes: &[u8]) -> Result<(), WeightsError> {
    for shard in parse_index(Path::new("fuzz"), bytes)?.values() {
        let inside = Path::new(shard).components().all(|c| matches!(c, Component::Normal(_)));
        assert!(inside && !shard.is_empty(), "shard `{shard}` leaves its folder");
    }
    Ok(())
}

/// Reads every tensor that can be read, whole and by its last row, and checks that both agree.
fn read_all(tensors: &dyn TensorSource, size: usize) -> Result<(), WeightsError> {
    let mut first_error = Ok(());
    for name in tensors.names() {
        let shape = tensors.shape(name)?.to_vec();
        let n_rows = shape.first().copied().unwrap_or(1);
        let row: usize = if n_rows == 0 { 0 } else { shape.iter().skip(1).product() };
        let n = n_rows * row;
        // The densest encoding that is read has two values a byte.
        let read = if n <= 2 * size {
            let mut all = vec![0.0; n];
            let mut last = vec![0.0; if n_rows == 0 { 0 } else { row }];
            tensors.read_f32(name, &mut all).and_then(|()| {
                tensors.read_rows_f32(name, n_rows.saturating_sub(1)..n_rows, &mut last)?;
                assert!(all.ends_with(&last), "tensor `{name}` reads differently by rows");
                Ok(())
            })
        } else {
            // Larger ones must be of an encoding that is only skipped over.
            let mut none = [];
            tensors.read_rows_f32(name, 0..0, &mut none)
        };
        if first_error.is_ok() {
            first_error = read;
        }
    }
    first_error
}
