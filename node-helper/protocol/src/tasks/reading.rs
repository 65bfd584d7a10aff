//! Reads parameters from values, and describes mistakes as data instead of as serde's sentences.
//!
//! Numbers and booleans are accepted as text: people write `msg: no` and `argv: [sleep, 5]`, and Ansible accepts them.

use std::fmt::Display;

use serde::{
    Deserialize,
    de::{
        self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::Value;

use super::{Mistake, ParamError};
use crate::lenient::python_bool;

/// Reads a value.
///
/// # Errors
/// If the value is not accepted by `T`.
pub(super) fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, ParamError> {
    T::deserialize(Rendered(value))
}

/// A value whose templates are rendered.
struct Rendered(Value);

impl Rendered {
    fn as_text(&self) -> Option<String> {
        match &self.0 {
            Value::Bool(flag) => Some(python_bool(*flag).to_owned()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

impl<'de> IntoDeserializer<'de, ParamError> for Rendered {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Rendered {
    type Error = ParamError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParamError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, Some(number)) => visitor.visit_f64(number),
                (None, None, None) => visitor.visit_string(number.to_string()),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Rendered));
                let found = visitor.visit_seq(&mut items)?;
                items.end().map(|()| found)
            }
            Value::Object(map) => {
                let mut map =
                    MapDeserializer::new(map.into_iter().map(|(name, value)| (name, Rendered(value))));
                let found = visitor.visit_map(&mut map)?;
                map.end().map(|()| found)
            }
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParamError> {
        match self.as_text() {
            Some(text) => visitor.visit_string(text),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParamError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ParamError> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ParamError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ParamError> {
        let wrong = |found| Err(de::Error::invalid_type(found, &"string or map"));
        match self.0 {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            Value::Null => wrong(Unexpected::Unit),
            Value::Bool(flag) => wrong(Unexpected::Bool(flag)),
            Value::Number(_) => wrong(Unexpected::Other("number")),
            Value::Array(_) => wrong(Unexpected::Seq),
            Value::Object(_) => wrong(Unexpected::Map),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple tuple_struct
        map struct identifier ignored_any
    }
}

impl ParamError {
    fn of(mistake: Mistake, message: String) -> Self {
        Self { parameter: None, mistake, message, value: None, instead: None }
    }

    /// Creates an error for a wrong value, without the value, which may be a secret and is known to the caller.
    fn wants(wanted: String) -> Self {
        let message = format!("it wants {wanted}");
        Self::of(Mistake::Value { wanted }, message)
    }
}

impl de::Error for ParamError {
    fn custom<T: Display>(message: T) -> Self {
        Self::wants(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::wants(wanted.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::wants(wanted.to_string())
    }

    fn invalid_length(_: usize, wanted: &dyn Expected) -> Self {
        Self::wants(wanted.to_string())
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        Self::wants(match names.as_slice() {
            [one, other] => format!("{one} or {other}"),
            [one] => one.clone(),
            all => format!("one of {}", all.join(", ")),
        })
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::of(Mistake::Unknown { known }, format!("there is no parameter `{name}`"))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::of(Mistake::Missing { name }, format!("`{name}` is needed"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tasks::{KINDS, Mistake};

    #[test]
    fn an_error_does_not_hold_what_was_given() {
        let kind = crate::tasks::find("user").unwrap();
        for given in [json!({"name": "x", "uid": "hunter2"}), json!({"name": "x", "state": "hunter2"})] {
            let error = kind.parse(given).unwrap_err();
            assert!(matches!(error.mistake, Mistake::Value { .. }), "{error:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn every_name_of_a_parameter_is_one_and_no_other_is() {
        for kind in KINDS.iter().filter(|kind| !kind.open_keys) {
            let known = kind.parameters();
            assert!(known.iter().all(|name| kind.has(name)), "{}", kind.name);
            assert!(!kind.has("no_such_parameter"), "{}", kind.name);
            assert!(kind.secret.iter().all(|name| known.contains(name)), "{}", kind.name);
            if let Err(error) = kind.parse(json!({}))
                && let Mistake::Missing { name } = error.mistake
            {
                assert!(known.contains(&name), "{}.{name}", kind.name);
            }
        }
    }
}
