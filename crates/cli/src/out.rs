//! Standard output: results and nothing else.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::error::Failure;

/// Where results go. A reader that went away, as in `surefoot … | head`, is no error: what follows is dropped.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    closed: AtomicBool,
}

impl Out {
    /// Standard output; `json` says what results look like.
    pub(crate) fn new(json: bool) -> Self {
        Out { json, closed: AtomicBool::new(false) }
    }

    /// Whether results are JSON lines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether nobody reads any more, so that a command whose only fruit is its output may stop.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Writes a text as it is.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        if self.is_closed() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.closed.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => Err(Failure::failed("cannot write to standard output").why(e.to_string())),
        }
    }

    /// Writes a line.
    pub(crate) fn line(&self, line: impl Display) -> Result<(), Failure> {
        self.text(&format!("{line}\n"))
    }

    /// Writes a value as one line of JSON; floats come back the same when read.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_string(value)
            .map_err(|e| Failure::failed("cannot write a result as JSON").why(e.to_string()))?;
        line.push('\n');
        self.text(&line)
    }
}

/// A table as lines of equal columns; the last column is as long as it is.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A number of bytes for a person, in powers of ten.
pub(crate) fn bytes(n: u64) -> String {
    let size = n as f64;
    for (unit, scale) in [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)] {
        if size >= scale {
            return format!("{:.1} {unit}", size / scale);
        }
    }
    format!("{n} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let rows = [["a", "bb", "c"], ["aaa", "é", ""]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a    bb  c\naaa  é\n");
    }

    #[test]
    fn bytes_are_short() {
        for (n, want) in
            [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (1_500, "1.5 kB"), (2_000_000_000, "2.0 GB")]
        {
            assert_eq!(bytes(n), want);
        }
    }
}
