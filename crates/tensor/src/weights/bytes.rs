//! Where a weight file's bytes come from, and reading them without trusting any length in them.

use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

use super::WeightsError;

/// The bytes of a file, mapped or owned.
#[derive(Debug)]
pub(super) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file.
    ///
    /// - Holds: nobody may shorten or rewrite the file while it is mapped; files are replaced by renaming, which is safe.
    pub(super) fn map(path: &Path) -> Result<Self, WeightsError> {
        let failed = |action, source| WeightsError::Io { path: path.to_owned(), action, source };
        let file = File::open(path).map_err(|e| failed("open", e))?;
        let meta = file.metadata().map_err(|e| failed("read", e))?;
        if !meta.is_file() {
            // A folder or a pipe opens, but mapping it fails with a message that helps nobody.
            return Err(failed("map", std::io::Error::other("needed a file, got something else")));
        }
        if meta.len() == 0 {
            return Ok(Bytes::Owned(Vec::new())); // an empty file cannot be mapped everywhere
        }
        // SAFETY: the map is read-only and private to this value. That no other process changes the file in place is a
        // demand on the caller (`Holds` above) which no reader of mapped files can check; every length in the file is
        // checked against the map's own length, so its content cannot lead out of it.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| failed("map", e))?;
        Ok(Bytes::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// Reads little-endian values one after another; each read is checked against what is left before anything is allocated.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

macro_rules! numbers {
    ($($name:ident $kind:ty),*) => {$(
        pub(super) fn $name(&mut self, what: fmt::Arguments<'_>) -> Result<$kind, WeightsError> {
            const SIZE: usize = size_of::<$kind>();
            let taken = self.take(SIZE as u64, what)?;
            Ok(<$kind>::from_le_bytes(taken.try_into().expect("`take` returns as many bytes as were asked for")))
        }
    )*};
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], path: &'a Path) -> Self {
        Cursor { bytes, at: 0, path }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: u64, what: fmt::Arguments<'_>) -> Result<&'a [u8], WeightsError> {
        let n = self.fits(n, 1, what)?;
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    /// The count as a `usize`, if that many items of at least `each` bytes can still follow.
    pub(super) fn fits(&self, n: u64, each: u64, what: fmt::Arguments<'_>) -> Result<usize, WeightsError> {
        let left = (self.bytes.len() - self.at) as u64;
        let needed = n.saturating_mul(each);
        if needed > left {
            return Err(WeightsError::Truncated {
                path: self.path.to_owned(),
                what: what.to_string(),
                at: self.at as u64,
                needed,
                got: left,
            });
        }
        Ok(usize::try_from(n).expect("a count of bytes in memory fits"))
    }

    /// A length and as many bytes of UTF-8.
    pub(super) fn text(&mut self, what: fmt::Arguments<'_>) -> Result<&'a str, WeightsError> {
        let n = self.u64(what)?;
        let at = self.at();
        let taken = self.take(n, what)?;
        std::str::from_utf8(taken).map_err(|_| WeightsError::Utf8 {
            path: self.path.to_owned(),
            what: what.to_string(),
            at,
        })
    }

    numbers!(u8 u8, i8 i8, u16 u16, i16 i16, u32 u32, i32 i32, u64 u64, i64 i64, f32 f32, f64 f64);
}
