//! Walks a value before it is written, and refuses what JSON would write as something else.

use std::fmt::Display;

use serde::Serialize;
use serde::ser::{
    self, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
    SerializeTupleVariant, Serializer,
};

use crate::canonical::{CanonicalError, DEEPEST, LARGEST};

/// Refuses integers that would be rounded, numbers that are none, and nesting that is too deep. Its only state is how much
/// deeper a value may go.
#[derive(Clone, Copy)]
pub(crate) struct Exact(usize);

impl Exact {
    /// Checks a value.
    pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), CanonicalError> {
        value.serialize(Self(DEEPEST))
    }

    /// Inside an array or an object.
    fn inside(self) -> Result<Self, CanonicalError> {
        self.0.checked_sub(1).map(Self).ok_or(CanonicalError::Depth)
    }
}

impl ser::Error for CanonicalError {
    fn custom<T: Display>(message: T) -> Self {
        Self::NotJson { reason: message.to_string() }
    }
}

/// Scalars that are written as they are.
macro_rules! fine {
    ($($method:ident($($argument:ty),*))*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<(), CanonicalError> { Ok(()) })*
    };
}

/// Integers, whose size matters.
macro_rules! integers {
    ($($method:ident($integer:ty))*) => {
        $(fn $method(self, value: $integer) -> Result<(), CanonicalError> {
            let largest = i128::from(LARGEST);
            match i128::try_from(value) {
                Ok(value) if (-largest..=largest).contains(&value) => Ok(()),
                _ => Err(CanonicalError::Integer { got: value.to_string() }),
            }
        })*
    };
}

impl Serializer for Exact {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fine! {
        serialize_bool(bool) serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_u8(u8) serialize_u16(u16)
        serialize_u32(u32) serialize_char(char) serialize_str(&str) serialize_bytes(&[u8]) serialize_none()
        serialize_unit() serialize_unit_struct(&'static str) serialize_unit_variant(&'static str, u32, &'static str)
    }

    integers! { serialize_i64(i64) serialize_i128(i128) serialize_u64(u64) serialize_u128(u128) }

    fn serialize_f32(self, value: f32) -> Result<(), CanonicalError> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), CanonicalError> {
        if value.is_finite() { Ok(()) } else { Err(ser::Error::custom(format!("needed a finite number, got {value}"))) }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), CanonicalError> {
        value.serialize(self.inside()?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, CanonicalError> {
        self.inside()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, CanonicalError> {
        self.inside()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, CanonicalError> {
        self.inside()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, CanonicalError> {
        self.inside()?.inside()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, CanonicalError> {
        self.inside()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, CanonicalError> {
        self.inside()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, CanonicalError> {
        self.inside()?.inside()
    }
}

/// What holds several values, each checked as deep as the room inside allows.
macro_rules! several {
    ($($holder:ident $method:ident($($name:ty)?))*) => {
        $(impl $holder for Exact {
            type Ok = ();
            type Error = CanonicalError;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), CanonicalError> {
                value.serialize(*self)
            }

            fn end(self) -> Result<(), CanonicalError> {
                Ok(())
            }
        })*
    };
}

several! {
    SerializeSeq serialize_element()
    SerializeTuple serialize_element()
    SerializeTupleStruct serialize_field()
    SerializeTupleVariant serialize_field()
    SerializeStruct serialize_field(&'static str)
    SerializeStructVariant serialize_field(&'static str)
}

impl SerializeMap for Exact {
    type Ok = ();
    type Error = CanonicalError;

    /// Keys become text, so any integer is exact there; what cannot become text is refused when it is written.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), CanonicalError> {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        value.serialize(*self)
    }

    fn end(self) -> Result<(), CanonicalError> {
        Ok(())
    }
}
