//! Reads changes, those of records from before they were typed too.
//!
//! Version 1 of the journal had `what`, `from` and `to` as text, and null for no value. Runs of that time can still be resumed and reported;
//! new records are never written so.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{Certainty, Change, Disruption, Layer, Property, Subject, Value};

#[derive(Deserialize)]
struct Record {
    /// Of version 1.
    what: Option<String>,
    subject: Option<Subject>,
    property: Option<Property>,
    #[serde(default)]
    layer: Layer,
    #[serde(default)]
    from: Side,
    to: Side,
    disruption: Disruption,
    #[serde(default)]
    certainty: Certainty,
    note: Option<String>,
    diff: Option<String>,
}

/// What version 1 said to differ. Only GPUs are told from the text: reports fold them.
fn described(text: String) -> (Subject, Property) {
    let gpu = || {
        let (index, property) = text.strip_prefix("GPU ")?.split_once(' ')?;
        let subject = Subject::Gpu { index: index.parse().ok()?, uuid: String::new() };
        Some((subject, Property::from(property.to_owned())))
    };
    gpu().unwrap_or((Subject::Described { text }, Property::VALUE))
}

/// A value, or the text or null of version 1.
struct Side(Value);

impl Default for Side {
    fn default() -> Self {
        Self(Value::Unknown)
    }
}

impl<'de> Deserialize<'de> for Side {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = Side;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its type")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Side, E> {
                Ok(Side(Value::text(text)))
            }

            // Why unknown: null stood for that too, and neither is said.
            fn visit_unit<E: de::Error>(self) -> Result<Side, E> {
                Ok(Side(Value::Unknown))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Side, A::Error> {
                Value::deserialize(MapAccessDeserializer::new(map)).map(Side)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let record = Record::deserialize(deserializer)?;
        let (subject, property) = match (record.subject, record.property, record.what) {
            (Some(subject), Some(property), None) => (subject, property),
            (None, None, Some(text)) => described(text),
            (_, _, Some(_)) => return Err(de::Error::custom("`what` excludes `subject` and `property`")),
            (Some(_), None, None) => return Err(de::Error::missing_field("property")),
            _ => return Err(de::Error::missing_field("subject")),
        };
        Ok(Self {
            subject,
            property,
            layer: record.layer,
            from: record.from.0,
            to: record.to.0,
            disruption: record.disruption,
            certainty: record.certainty,
            note: record.note,
            diff: record.diff,
        })
    }
}
