//! Files of JSON lines: each bears the run's id and a step, is synced when written, and can be taken back.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::disk::read_if_there;
use crate::run_dir::RUN_KEY;
use crate::{RunId, StoreError};

/// The key of a line's step.
const STEP_KEY: &str = "step";

/// What every line starts with.
#[derive(Deserialize)]
struct Head {
    run: String,
    step: u64,
}

/// A file of lines opened for adding to.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    run_id: RunId,
    file: File,
    length: u64,
    last_step: Option<u64>,
}

impl LineFile {
    /// Opens or makes the file; a last line that was cut off by a crash is removed.
    pub(crate) fn open(path: &Path, run_id: &RunId) -> Result<Self, StoreError> {
        let bytes = read_if_there(path)?.unwrap_or_default();
        let mut last_step = None;
        for (number, line) in complete_lines(&bytes) {
            last_step = Some(head(path, run_id, number, line)?.step);
        }
        let length = complete_length(&bytes) as u64;
        let file = File::options().create(true).append(true).open(path).map_err(StoreError::io("write", path))?;
        if length < bytes.len() as u64 {
            file.set_len(length).and_then(|()| file.sync_all()).map_err(StoreError::io("write", path))?;
        }
        Ok(LineFile { path: path.to_path_buf(), run_id: run_id.clone(), file, length, last_step })
    }

    /// Adds one line and syncs it.
    ///
    /// - Holds: on an error the file is as before.
    pub(crate) fn append(&mut self, step: u64, fields: &impl Serialize, once: bool) -> Result<(), StoreError> {
        let needed = self.last_step.map_or(0, |last| last + u64::from(once));
        if step < needed {
            return Err(StoreError::StepOrder { path: self.path.clone(), needed, got: step });
        }
        let line = stamped_line(&self.path, &self.run_id, step, fields)?;
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // Half a line would hide the next one; if even this fails, opening the file again removes it.
            let _ = self.file.set_len(self.length);
            return Err(StoreError::io("write", &self.path)(e));
        }
        self.length += line.len() as u64;
        self.last_step = Some(step);
        Ok(())
    }

    /// Removes every line of a later step.
    pub(crate) fn rewind(&mut self, done: u64) -> Result<(), StoreError> {
        let bytes = fs::read(&self.path).map_err(StoreError::io("read", &self.path))?;
        let mut length = 0;
        let mut last_step = None;
        for (number, line) in complete_lines(&bytes) {
            let step = head(&self.path, &self.run_id, number, line)?.step;
            if step > done {
                break;
            }
            length += line.len() as u64 + 1;
            last_step = Some(step);
        }
        self.file.set_len(length).and_then(|()| self.file.sync_all()).map_err(StoreError::io("write", &self.path))?;
        self.length = length;
        self.last_step = last_step;
        Ok(())
    }
}

/// One line of JSON, `\n` included: run id and step first, then the fields.
///
/// Numbers that are not finite become `null`, the only way JSON has to say it.
fn stamped_line(path: &Path, run_id: &RunId, step: u64, fields: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let refuse = |reason: String| StoreError::Unstorable { path: path.to_path_buf(), reason };
    let value = serde_json::to_value(fields).map_err(|e| refuse(e.to_string()))?;
    let Value::Object(fields) = value else { return Err(refuse("a line needs named fields".to_string())) };
    let mut object = Map::new();
    object.insert(RUN_KEY.to_string(), run_id.as_str().into());
    object.insert(STEP_KEY.to_string(), step.into());
    for (key, value) in fields {
        if key == STEP_KEY && value == step {
            continue;
        }
        if key == STEP_KEY || key == RUN_KEY {
            return Err(refuse(format!("the line already has a `{key}`, got another in its fields")));
        }
        object.insert(key, value);
    }
    let mut line = serde_json::to_vec(&object).map_err(|e| refuse(e.to_string()))?;
    line.push(b'\n');
    Ok(line)
}

/// Every complete line, parsed, without the run id.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, run_id: &RunId) -> Result<Vec<T>, StoreError> {
    let bytes = read_if_there(path)?.unwrap_or_default();
    let mut out = Vec::new();
    for (number, line) in complete_lines(&bytes) {
        let damaged = |e: serde_json::Error| StoreError::damaged(path, Some(number), e);
        head(path, run_id, number, line)?;
        let mut object: Map<String, Value> = serde_json::from_slice(line).map_err(damaged)?;
        object.shift_remove(RUN_KEY);
        out.push(serde_json::from_value(Value::Object(object)).map_err(damaged)?);
    }
    Ok(out)
}

fn head(path: &Path, run_id: &RunId, number: usize, line: &[u8]) -> Result<Head, StoreError> {
    let head: Head = serde_json::from_slice(line).map_err(|e| StoreError::damaged(path, Some(number), e))?;
    run_id.check(path, Some(number), Some(&head.run))?;
    Ok(head)
}

/// Lines that end in `\n`, without it, numbered from 1.
pub(crate) fn complete_lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    bytes[..complete_length(bytes)]
        .split_inclusive(|b| *b == b'\n')
        .map(|l| &l[..l.len() - 1])
        .enumerate()
        .map(|(i, line)| (i + 1, line))
}

fn complete_length(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn id() -> RunId {
        RunId::new("run-1").unwrap()
    }

    fn write(path: &Path, steps: std::ops::RangeInclusive<u64>) {
        let mut file = LineFile::open(path, &id()).unwrap();
        for step in steps {
            file.append(step, &json!({"loss": 1.0 / step as f64}), true).unwrap();
        }
    }

    /// CASES H7: a resumed file equals the uninterrupted one, byte for byte, wherever the crash cut it.
    #[test]
    fn a_resumed_file_equals_the_uninterrupted_one_byte_for_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        write(&path, 1..=6);
        let whole = fs::read(&path).unwrap();
        let done: usize = whole.split_inclusive(|b| *b == b'\n').take(3).map(<[u8]>::len).sum();
        for cut in done..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            LineFile::open(&path, &id()).unwrap().rewind(3).unwrap();
            write(&path, 4..=6);
            assert_eq!(fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_bears_run_and_step_and_its_floats_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        let mut file = LineFile::open(&path, &id()).unwrap();
        let values = [0.1, 1.0 / 3.0, f64::MIN_POSITIVE, 5e-324, 1.7976931348623157e308, -0.0];
        file.append(7, &json!({"values": values}), false).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(r#"{"run":"run-1","step":7,"values":[0.1,0.3333333333333333,"#), "{text}");
        let back: Vec<Value> = read(&path, &id()).unwrap();
        for (i, value) in values.iter().enumerate() {
            assert_eq!(back[0]["values"][i].as_f64().map(f64::to_bits), Some(value.to_bits()));
        }
    }

    #[test]
    fn steps_that_go_back_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        write(&path, 1..=2);
        let mut file = LineFile::open(&path, &id()).unwrap();
        file.append(2, &json!({"again": 1}), false).unwrap();
        let error = file.append(2, &json!({}), true).unwrap_err().to_string();
        assert!(
            error.ends_with("m.jsonl`: needed at least 3") && error.starts_with("cannot add step 2 to `"),
            "{error}"
        );
    }

    /// CASES I18: a run consumed the leftovers of an older one in the same folder.
    #[test]
    fn a_line_of_another_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        write(&path, 1..=2);
        let other = RunId::new("run-2").unwrap();
        for error in [LineFile::open(&path, &other).unwrap_err(), read::<Value>(&path, &other).unwrap_err()] {
            assert!(error.to_string().ends_with("belongs to run `run-1`, needed run `run-2`"), "{error}");
        }
    }

    #[test]
    fn a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        write(&path, 1..=1);
        fs::write(&path, [fs::read(&path).unwrap(), b"\0\0\0\n".to_vec()].concat()).unwrap();
        let error = read::<Value>(&path, &id()).unwrap_err().to_string();
        assert!(error.contains("m.jsonl` is damaged at line 2: "), "{error}");
    }

    #[test]
    fn a_full_disk_is_one_clear_error_and_leaves_no_half_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        let mut full = LineFile { path: path.clone(), run_id: id(), file, length: 0, last_step: None };
        let error = full.append(1, &json!({"a": 1}), true).unwrap_err().to_string();
        assert_eq!(error, format!("cannot write `{}`: No space left on device (os error 28)", path.display()));
        assert_eq!(full.last_step, None);
    }

    #[test]
    fn fields_cannot_contradict_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LineFile::open(&folder.path().join("m.jsonl"), &id()).unwrap();
        file.append(1, &json!({"step": 1}), false).unwrap();
        assert!(file.append(1, &json!({"step": 2}), false).is_err());
        assert!(file.append(1, &json!({"run": "x"}), false).is_err());
        assert!(file.append(1, &json!(3), false).unwrap_err().to_string().ends_with("a line needs named fields"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever a crash leaves after the last whole line is cut off, and only that.
        #[test]
        fn any_torn_end_is_cut_off_and_only_that(mut torn in prop::collection::vec(any::<u8>(), 0..60)) {
            torn.retain(|b| *b != b'\n');
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("m.jsonl");
            write(&path, 1..=2);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, [whole.clone(), torn].concat()).unwrap();
            prop_assert_eq!(read::<Value>(&path, &id()).unwrap().len(), 2);
            drop(LineFile::open(&path, &id()).unwrap());
            prop_assert_eq!(fs::read(&path).unwrap(), whole);
        }

        /// Damage inside whole lines is an error that names the file, never a panic and never fewer lines.
        #[test]
        fn changed_bytes_never_lose_a_line_in_silence(at in 0usize..60, byte in any::<u8>()) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("m.jsonl");
            write(&path, 1..=2);
            let mut bytes = fs::read(&path).unwrap();
            let at = at % (bytes.len() - 1);
            bytes[at] = byte;
            fs::write(&path, bytes).unwrap();
            match read::<Value>(&path, &id()) {
                Ok(lines) => prop_assert_eq!(lines.len(), 2),
                Err(e) => prop_assert!(e.to_string().contains("m.jsonl` "), "{}", e),
            }
        }
    }
}
