//! Scalars as a TensorBoard event file.
//!
//! The file is a series of records (length, checksum, bytes, checksum), each an `Event` message of which four fields are
//! used. Both are small and fixed for good, so they are written here by hand.
//!
//! Source: TFRecord framing, `tensorflow/core/lib/io/record_writer.h`; `Event` and `Summary`,
//! `tensorboard/compat/proto/{event,summary}.proto`; CRC-32C, RFC 3720 appendix B.4.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::disk::read_if_there;

/// Wire types of protocol buffers.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const LENGTH: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// An event file opened for adding to.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl EventFile {
    /// Opens or makes the file; a last record that was cut off by a crash is removed.
    pub(crate) fn open(path: &Path, wall_time_s: f64) -> Result<Self, StoreError> {
        let bytes = read_if_there(path)?.unwrap_or_default();
        let length = records(&bytes).last().map_or(0, |r| r.end) as u64;
        let file = File::options().create(true).append(true).open(path).map_err(StoreError::io("write", path))?;
        let mut events = EventFile { path: path.to_path_buf(), file, length };
        if length < bytes.len() as u64 {
            events.cut(length)?;
        }
        if length == 0 {
            let mut event = Vec::new();
            event.push(key(1, EIGHT_BYTES));
            event.extend(wall_time_s.to_le_bytes());
            put_bytes(&mut event, 3, b"brain.Event:2");
            events.append(&event)?;
        }
        Ok(events)
    }

    /// Adds the scalars of a step and syncs them.
    ///
    /// - Units: values become f32, all the format's scalars can hold; `wall_time_s` in seconds since 1970.
    pub(crate) fn scalars(&mut self, step: u64, wall_time_s: f64, values: &[(String, f64)]) -> Result<(), StoreError> {
        self.append(&scalar_event(step, wall_time_s, values))
    }

    /// Removes every event of a later step.
    pub(crate) fn rewind(&mut self, done: u64) -> Result<(), StoreError> {
        let bytes = std::fs::read(&self.path).map_err(StoreError::io("read", &self.path))?;
        let kept = records(&bytes).take_while(|r| event_step(r.data) <= done).last().map_or(0, |r| r.end);
        self.cut(kept as u64)
    }

    fn append(&mut self, event: &[u8]) -> Result<(), StoreError> {
        let record = frame(event);
        if let Err(e) = self.file.write_all(&record).and_then(|()| self.file.sync_data()) {
            let _ = self.file.set_len(self.length);
            return Err(StoreError::io("write", &self.path)(e));
        }
        self.length += record.len() as u64;
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<(), StoreError> {
        self.length = length;
        self.file.set_len(length).and_then(|()| self.file.sync_all()).map_err(StoreError::io("write", &self.path))
    }
}

fn scalar_event(step: u64, wall_time_s: f64, values: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut scalar = Vec::new();
        put_bytes(&mut scalar, 1, tag.as_bytes());
        scalar.push(key(2, FOUR_BYTES));
        scalar.extend((*value as f32).to_le_bytes());
        put_bytes(&mut summary, 1, &scalar);
    }
    let mut event = vec![key(1, EIGHT_BYTES)];
    event.extend(wall_time_s.to_le_bytes());
    event.push(key(2, VARINT));
    put_varint(&mut event, step);
    put_bytes(&mut event, 5, &summary);
    event
}

fn key(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(key(field, LENGTH));
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
    out
}

/// A record that is whole and whose checksums are right.
struct Record<'a> {
    data: &'a [u8],
    end: usize,
}

/// The records from the start of the bytes up to the first that is cut off or damaged.
fn records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(at..at + 12)?;
        let length = u64::from_le_bytes(head[..8].try_into().ok()?);
        let start = at + 12;
        let stop = start.checked_add(usize::try_from(length).ok()?)?;
        let end = stop.checked_add(4)?;
        let data = bytes.get(start..stop)?;
        let whole = head[8..] == masked_crc(&head[..8]).to_le_bytes()
            && bytes.get(stop..end)? == masked_crc(data).to_le_bytes();
        at = end;
        whole.then_some(Record { data, end })
    })
}

/// The step of an event this file wrote: field 2 stands right after the wall time; the first event has none, which
/// means 0.
fn event_step(event: &[u8]) -> u64 {
    let Some(rest) = event.get(9..).and_then(|r| r.strip_prefix(&[key(2, VARINT)])) else { return 0 };
    let mut step = 0;
    for (i, byte) in rest.iter().take(10).enumerate() {
        step |= u64::from(byte & 0x7F) << (7 * i as u32);
        if byte & 0x80 == 0 {
            break;
        }
    }
    step
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0x82F6_3B78 } else { value >> 1 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, b| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ b)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// RFC 3720 appendix B.4.
    #[test]
    fn crc32c_gives_the_published_values() {
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46DD_794E);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    /// The bytes of `Event(wall_time=2.0, step=300, summary=…tag "a" simple_value 1.5)`, encoded by Google's library.
    #[test]
    fn an_event_has_the_bytes_of_the_reference_encoder() {
        let want = [
            0x09, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x10, 0xAC, 0x02, 0x2A, 0x0A, 0x0A, 0x08, 0x0A, 0x01, 0x61, 0x15, 0, 0,
            0xC0, 0x3F,
        ];
        assert_eq!(scalar_event(300, 2.0, &[("a".to_string(), 1.5)]), want);
    }

    fn write(path: &Path, steps: std::ops::RangeInclusive<u64>) {
        let mut events = EventFile::open(path, 1.0).unwrap();
        for step in steps {
            events.scalars(step, 2.0, &[("reward".to_string(), step as f64), ("kl".to_string(), 0.5)]).unwrap();
        }
    }

    #[test]
    fn a_resumed_event_file_equals_the_uninterrupted_one_wherever_it_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        write(&path, 127..=130);
        let whole = fs::read(&path).unwrap();
        let kept = records(&whole).take_while(|r| event_step(r.data) <= 128).last().unwrap().end;
        assert_eq!(records(&whole).count(), 5);
        for cut in kept..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            EventFile::open(&path, 1.0).unwrap().rewind(128).unwrap();
            write(&path, 129..=130);
            assert_eq!(fs::read(&path).unwrap(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn damaged_bytes_end_the_records_and_never_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        write(&path, 1..=2);
        let whole = fs::read(&path).unwrap();
        for i in 0..whole.len() {
            let mut bad = whole.clone();
            bad[i] ^= 0xFF;
            assert!(records(&bad).count() < 3, "byte {i}");
        }
        assert_eq!(records(&[0xFF; 64]).count(), 0);
    }
}
