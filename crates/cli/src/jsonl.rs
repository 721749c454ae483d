//! Files of JSON lines, or the same from standard input.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::Failure;

/// A file read whole; errors name it and the line.
#[derive(Debug)]
pub(crate) struct JsonLines {
    name: String,
    bytes: Vec<u8>,
}

/// A parsed line, and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placed<T> {
    /// `FILE:LINE`, lines counted from 1.
    pub(crate) place: String,
    /// What the line says.
    pub(crate) value: T,
}

impl JsonLines {
    /// Reads a file; `-` is standard input.
    pub(crate) fn read(path: &str) -> Result<JsonLines, Failure> {
        if path != "-" {
            let bytes = std::fs::read(path).map_err(|e| Failure::io("read", Path::new(path), &e))?;
            return Ok(JsonLines { name: path.to_owned(), bytes });
        }
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map_err(|e| Failure::failed("cannot read standard input").why(e.to_string()))?;
        Ok(JsonLines { name: "standard input".to_owned(), bytes })
    }

    /// Every line that is not blank.
    ///
    /// - Errors: the first line that is not what it should be; no line at all.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<Vec<Placed<T>>, Failure> {
        let mut all = Vec::new();
        for (index, line) in self.bytes.split(|b| *b == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let place = format!("{}:{}", self.name, index + 1);
            match serde_json::from_slice(line) {
                Ok(value) => all.push(Placed { place, value }),
                Err(e) => {
                    return Err(Failure::bad("a line cannot be read").at(place).why(without_line(&e.to_string())));
                }
            }
        }
        if all.is_empty() {
            return Err(Failure::bad(format!("needed at least 1 line of JSON, got none in `{}`", self.name)));
        }
        Ok(all)
    }
}

/// The parser counts lines inside the line it was given.
fn without_line(text: &str) -> String {
    text.replacen(" at line 1 column ", " at column ", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], want: Result<Vec<(&str, u32)>, &str>) {
        let lines = JsonLines { name: "f".to_owned(), bytes: bytes.to_vec() };
        let got = lines.parse::<u32>().map_err(|e| e.to_string());
        let want = want.map(|w| w.into_iter().map(|(p, value)| Placed { place: p.to_owned(), value }).collect());
        assert_eq!(got, want.map_err(str::to_owned));
    }

    #[test]
    fn lines_keep_their_numbers_and_blank_ones_are_skipped() {
        check(b"1\n\n 2 \r\n3", Ok(vec![("f:1", 1), ("f:3", 2), ("f:4", 3)]));
    }

    #[test]
    fn a_bad_line_is_named() {
        let bad = |why: &str| format!("error: a line cannot be read\n  where: f:2\n  why:   {why}\n");
        check(b"1\nx", Err(&bad("expected value at column 1")));
        check(b"1\n\xff", Err(&bad("expected value at column 1")));
        check(b"1\n-1", Err(&bad("invalid value: integer `-1`, expected u32 at column 2")));
        check(b" \n", Err("error: needed at least 1 line of JSON, got none in `f`\n"));
    }
}
