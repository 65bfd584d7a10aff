//! Reads parameters from values, and describes mistakes as data instead of as serde's sentences.
//!
//! Numbers and booleans are accepted as text: people write `msg: no` and `argv: [sleep, 5]`, and Ansible accepts them.

use std::fmt::Display;

use serde::{
    Deserialize,
    de::{
        self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, Unexpected, Visitor,
        value::SeqDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::Value;

use super::{Accepted, Mistake, Number, ParamError};
use crate::lenient::{self, python_bool};

/// Reads a value, of which these are the numbers.
///
/// # Errors
/// If the value is not accepted by `T`.
pub(super) fn read<T: for<'de> Deserialize<'de>>(
    value: Value,
    numbers: &'static [Number],
) -> Result<T, ParamError> {
    T::deserialize(Rendered(value)).map_err(|mut error| {
        if let Mistake::Value { wanted: Accepted::Number { range, .. } } = &mut error.mistake {
            *range = numbers.iter().find(|number| number.is_at(&error.place));
        }
        error
    })
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
            Value::Object(map) => visitor.visit_map(Entries { rest: map.into_iter(), entry: None }),
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

/// The entries of a mapping. An error in a value gets the value's key.
struct Entries {
    rest: serde_json::map::IntoIter,
    /// The entry whose key was read last, until its value is.
    entry: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Entries {
    type Error = ParamError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ParamError> {
        self.entry = self.rest.next();
        let Some((name, _)) = &self.entry else { return Ok(None) };
        seed.deserialize(name.clone().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ParamError> {
        let (name, value) = self.entry.take().ok_or_else(|| de::Error::custom("a value"))?;
        seed.deserialize(Rendered(value)).map_err(|mut error: ParamError| {
            error.place.insert(0, name);
            error
        })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

impl ParamError {
    /// Creates an error about all parameters.
    pub(super) fn of(mistake: Mistake, message: String) -> Self {
        Self { place: Vec::new(), mistake, message, value: None, instead: None }
    }

    /// Creates an error for what serde expected. Its words are all that tells a number from other values.
    fn expected(wanted: &dyn Display) -> Self {
        let text = wanted.to_string();
        Self::wants(match text.as_str() {
            lenient::NUMBER => Accepted::Number { whole: false, range: None },
            lenient::WHOLE_NUMBER => Accepted::Number { whole: true, range: None },
            _ => Accepted::Text(text),
        })
    }

    /// Creates an error for a wrong value, without the value, which may be a secret and is known to the caller.
    pub(super) fn wants(wanted: Accepted) -> Self {
        let message = format!("it wants {wanted}");
        Self::of(Mistake::Value { wanted }, message)
    }
}

impl de::Error for ParamError {
    fn custom<T: Display>(message: T) -> Self {
        Self::expected(&message)
    }

    fn invalid_type(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::expected(&wanted)
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::expected(&wanted)
    }

    fn invalid_length(_: usize, wanted: &dyn Expected) -> Self {
        Self::expected(&wanted)
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        Self::wants(Accepted::Text(match names.as_slice() {
            [one, other] => format!("{one} or {other}"),
            [one] => one.clone(),
            all => format!("one of {}", all.join(", ")),
        }))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        let error = Self::of(Mistake::Unknown { known }, format!("there is no parameter `{name}`"));
        Self { place: vec![name.to_owned()], ..error }
    }

    fn missing_field(name: &'static str) -> Self {
        let error = Self::of(Mistake::Missing { name }, format!("`{name}` is needed"));
        Self { place: vec![name.to_owned()], ..error }
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
