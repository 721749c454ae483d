//! A GGUF file's keys and values, and asking for them by type.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::WeightsError;
use super::bytes::Cursor;

/// How deep arrays may lie in arrays; no known file goes beyond 2, and reading recurses.
const MAX_DEPTH: usize = 8;

macro_rules! kinds {
    ($($id:literal $variant:ident $kind:ty, $name:literal;)*) => {
        /// A metadata value.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value {
            $(#[doc = concat!("One ", $name, ".")] $variant($kind),)*
            /// Many values of one kind.
            Array(Array),
        }

        /// Many metadata values of one kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Array {
            $(#[doc = concat!("Each a ", $name, ".")] $variant(Vec<$kind>),)*
            /// Each an array; their kinds may differ.
            Array(Vec<Array>),
        }

        impl Value {
            /// The format's number for this kind of value.
            pub(super) fn id(&self) -> u32 {
                match self {
                    $(Value::$variant(_) => $id,)*
                    Value::Array(_) => ARRAY,
                }
            }

            fn read(from: &mut Cursor<'_>, id: u32, key: &str) -> Result<Self, WeightsError> {
                match id {
                    $($id => <$kind>::read(from, key).map(Value::$variant),)*
                    ARRAY => Array::read(from, key, 1).map(Value::Array),
                    _ => Err(unknown_kind(from, key, id)),
                }
            }

            /// Appends the value as the format stores it, without its kind.
            pub(super) fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Value::$variant(value) => value.write(out),)*
                    Value::Array(array) => array.write(out),
                }
            }
        }

        impl Array {
            /// How many elements it has.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$variant(values) => values.len(),)*
                    Array::Array(values) => values.len(),
                }
            }

            fn id(&self) -> u32 {
                match self {
                    $(Array::$variant(_) => $id,)*
                    Array::Array(_) => ARRAY,
                }
            }

            fn read(from: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Self, WeightsError> {
                if depth > MAX_DEPTH {
                    let got = format!("arrays nested {depth} deep");
                    return Err(bad(from.path(), key, "arrays nested at most 8 deep", got));
                }
                let id = from.u32(format_args!("the element kind of metadata key `{key}`"))?;
                let n = from.u64(format_args!("the length of metadata key `{key}`"))?;
                match id {
                    $($id => {
                        let n = from.fits(n, <$kind>::LEAST_BYTES, format_args!("the {n} values of metadata key `{key}`"))?;
                        (0..n).map(|_| <$kind>::read(from, key)).collect::<Result<_, _>>().map(Array::$variant)
                    })*
                    ARRAY => {
                        let n = from.fits(n, 12, format_args!("the {n} arrays of metadata key `{key}`"))?;
                        (0..n).map(|_| Array::read(from, key, depth + 1)).collect::<Result<_, _>>().map(Array::Array)
                    }
                    _ => Err(unknown_kind(from, key, id)),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.id().to_le_bytes());
                out.extend_from_slice(&(self.len() as u64).to_le_bytes());
                match self {
                    $(Array::$variant(values) => values.iter().for_each(|v| v.write(out)),)*
                    Array::Array(values) => values.iter().for_each(|v| v.write(out)),
                }
            }
        }

        impl fmt::Display for Value {
            /// The kind and, for a single value, the value.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Value::$variant(value) => write!(f, concat!("the ", $name, " `{}`"), value),)*
                    Value::Array(array) => write!(f, "an array of {} {}", array.len(), array.kind()),
                }
            }
        }

        impl Array {
            fn kind(&self) -> &'static str {
                match self {
                    $(Array::$variant(_) => concat!($name, " values"),)*
                    Array::Array(_) => "arrays",
                }
            }
        }
    };
}

const ARRAY: u32 = 9;

kinds! {
    0 U8 u8, "u8";
    1 I8 i8, "i8";
    2 U16 u16, "u16";
    3 I16 i16, "i16";
    4 U32 u32, "u32";
    5 I32 i32, "i32";
    6 F32 f32, "f32";
    7 Bool bool, "bool";
    8 Text String, "string";
    10 U64 u64, "u64";
    11 I64 i64, "i64";
    12 F64 f64, "f64";
}

impl Array {
    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are.
    fn integers(&self) -> Option<Vec<i128>> {
        Some(match self {
            Array::U8(v) => v.iter().map(|&x| x.into()).collect(),
            Array::I8(v) => v.iter().map(|&x| x.into()).collect(),
            Array::U16(v) => v.iter().map(|&x| x.into()).collect(),
            Array::I16(v) => v.iter().map(|&x| x.into()).collect(),
            Array::U32(v) => v.iter().map(|&x| x.into()).collect(),
            Array::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Array::U64(v) => v.iter().map(|&x| x.into()).collect(),
            Array::I64(v) => v.iter().map(|&x| x.into()).collect(),
            _ => return None,
        })
    }
}

impl Value {
    /// The value as an integer, if it is one.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }
}

/// One kind of single value.
trait Single: Sized {
    /// The fewest bytes one takes, which bounds how many a file can hold.
    const LEAST_BYTES: u64;
    fn read(from: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError>;
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($kind:ident),*) => {$(
        impl Single for $kind {
            const LEAST_BYTES: u64 = size_of::<$kind>() as u64;

            fn read(from: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError> {
                from.$kind(format_args!("the value of metadata key `{key}`"))
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Single for bool {
    const LEAST_BYTES: u64 = 1;

    fn read(from: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError> {
        match u8::read(from, key)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(bad(from.path(), key, "a bool stored as 0 or 1", other.to_string())),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Single for String {
    const LEAST_BYTES: u64 = 8;

    fn read(from: &mut Cursor<'_>, key: &str) -> Result<Self, WeightsError> {
        from.text(format_args!("a string of metadata key `{key}`")).map(str::to_owned)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        out.extend_from_slice(self.as_bytes());
    }
}

/// Appends a key or a name: its length and its bytes.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn bad(path: &Path, key: &str, needed: &'static str, got: String) -> WeightsError {
    WeightsError::Value { path: path.to_owned(), key: key.to_owned(), needed, got }
}

fn unknown_kind(from: &Cursor<'_>, key: &str, id: u32) -> WeightsError {
    bad(from.path(), key, "a kind of value numbered 0 to 12", format!("kind {id}"))
}

/// A GGUF file's keys and values.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

/// One key and its value, to be asked for by type.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    path: &'a Path,
    key: &'a str,
    value: &'a Value,
}

impl Metadata {
    /// Reads `n` keys and values.
    pub(super) fn read(from: &mut Cursor<'_>, n: u64) -> Result<Self, WeightsError> {
        // The shortest entry: an empty key's length, a kind and one byte.
        from.fits(n, 8 + 4 + 1, format_args!("the {n} metadata entries"))?;
        let path = from.path().to_owned();
        let mut values = BTreeMap::new();
        for i in 0..n {
            let key = from.text(format_args!("metadata key {i}"))?;
            let id = from.u32(format_args!("the kind of metadata key `{key}`"))?;
            let value = Value::read(from, id, key)?;
            if values.insert(key.to_owned(), value).is_some() {
                return Err(WeightsError::DuplicateKey { path, key: key.to_owned() });
            }
        }
        Ok(Metadata { path, values })
    }

    /// Every key and value, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The entry of a key that may be absent: `meta.find("k").map(|e| e.u32()).transpose()?`.
    pub fn find(&self, key: &str) -> Option<Entry<'_>> {
        let (key, value) = self.values.get_key_value(key)?;
        Some(Entry { path: &self.path, key, value })
    }

    /// The entry of a key that must be there.
    pub fn need(&self, key: &str) -> Result<Entry<'_>, WeightsError> {
        self.find(key).ok_or_else(|| WeightsError::MissingKey { path: self.path.clone(), key: key.to_owned() })
    }
}

macro_rules! typed {
    ($($(#[$doc:meta])* $name:ident -> $kind:ty;)*) => {
        impl Metadata {
            $($(#[$doc])*
            ///
            /// - Errors: as [`Metadata::need`] and the same method of [`Entry`].
            pub fn $name(&self, key: &str) -> Result<$kind, WeightsError> {
                self.need(key)?.$name()
            })*
        }
    };
}

typed! {
    /// The string under a key.
    str -> &str;
    /// The integer under a key, whatever its width.
    u32 -> u32;
    /// The integer under a key, whatever its width.
    u64 -> u64;
    /// The f32 under a key.
    f32 -> f32;
    /// The bool under a key.
    bool -> bool;
    /// The strings under a key.
    strings -> &[String];
    /// The f32 values under a key.
    f32s -> &[f32];
    /// The integers under a key, whatever their width.
    i32s -> Vec<i32>;
    /// The integers under a key, whatever their width.
    u32s -> Vec<u32>;
    /// The bools under a key.
    bools -> &[bool];
}

impl<'a> Entry<'a> {
    /// The key.
    pub fn key(self) -> &'a str {
        self.key
    }

    /// The value as stored.
    pub fn value(self) -> &'a Value {
        self.value
    }

    /// The value, if it is a string.
    pub fn str(self) -> Result<&'a str, WeightsError> {
        if let Value::Text(text) = self.value { Ok(text) } else { self.refuse("a string") }
    }

    /// The value, if it is an integer that fits.
    pub fn u32(self) -> Result<u32, WeightsError> {
        self.integer("an integer from 0 to 4294967295")
    }

    /// The value, if it is an integer that fits.
    pub fn u64(self) -> Result<u64, WeightsError> {
        self.integer("an integer from 0 to 18446744073709551615")
    }

    /// The value, if it is an f32.
    pub fn f32(self) -> Result<f32, WeightsError> {
        if let Value::F32(x) = self.value { Ok(*x) } else { self.refuse("an f32") }
    }

    /// The value, if it is a bool.
    pub fn bool(self) -> Result<bool, WeightsError> {
        if let Value::Bool(x) = self.value { Ok(*x) } else { self.refuse("a bool") }
    }

    /// The value, if it is an array of strings.
    pub fn strings(self) -> Result<&'a [String], WeightsError> {
        if let Value::Array(Array::Text(v)) = self.value { Ok(v) } else { self.refuse("an array of strings") }
    }

    /// The value, if it is an array of f32.
    pub fn f32s(self) -> Result<&'a [f32], WeightsError> {
        if let Value::Array(Array::F32(v)) = self.value { Ok(v) } else { self.refuse("an array of f32") }
    }

    /// The value, if it is an array of integers that all fit.
    pub fn i32s(self) -> Result<Vec<i32>, WeightsError> {
        self.integers("an array of integers from -2147483648 to 2147483647")
    }

    /// The value, if it is an array of integers that all fit.
    pub fn u32s(self) -> Result<Vec<u32>, WeightsError> {
        self.integers("an array of integers from 0 to 4294967295")
    }

    /// The value, if it is an array of bools.
    pub fn bools(self) -> Result<&'a [bool], WeightsError> {
        if let Value::Array(Array::Bool(v)) = self.value { Ok(v) } else { self.refuse("an array of bools") }
    }

    /// The refusal of a value of the right kind that will not do.
    pub(super) fn not(self, needed: &'static str, got: impl fmt::Display) -> WeightsError {
        bad(self.path, self.key, needed, got.to_string())
    }

    fn integer<T: TryFrom<i128>>(self, needed: &'static str) -> Result<T, WeightsError> {
        match self.value.integer().and_then(|x| T::try_from(x).ok()) {
            Some(x) => Ok(x),
            None => self.refuse(needed),
        }
    }

    fn integers<T: TryFrom<i128>>(self, needed: &'static str) -> Result<Vec<T>, WeightsError> {
        let Value::Array(array) = self.value else { return self.refuse(needed) };
        let Some(all) = array.integers() else { return self.refuse(needed) };
        all.into_iter()
            .map(|x| T::try_from(x).map_err(|_| bad(self.path, self.key, needed, format!("{x} in it"))))
            .collect()
    }

    fn refuse<T>(self, needed: &'static str) -> Result<T, WeightsError> {
        // A chat template or a vocabulary must not fill the message.
        const MOST: usize = 80;
        let mut got = self.value.to_string();
        if got.chars().count() > MOST {
            got = got.chars().take(MOST).collect::<String>() + "…";
        }
        Err(bad(self.path, self.key, needed, got))
    }
}
