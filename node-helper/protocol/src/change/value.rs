//! Values before and after a change, with their units.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Unit;

/// A value that a node has or gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Value {
    /// Nothing is set, installed or present.
    Absent,
    /// Not known before the run, or not readable.
    Unknown,
    /// A secret of the declaration, or what it replaces; its text is never carried.
    Secret,
    /// Taken out because the task says `no_log`.
    Hidden,
    Bool {
        value: bool,
    },
    Number {
        value: Amount,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<Unit>,
    },
    /// Everything from `low` to `high`, both included.
    Range {
        low: Amount,
        high: Amount,
        unit: Unit,
    },
    Text {
        value: String,
    },
    List {
        values: Vec<String>,
    },
    /// Content, known by its digest.
    Digest {
        /// `sha256` and the like.
        algorithm: String,
        /// In hexadecimal.
        value: String,
        /// Size of the content.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// The GPU instances of one GPU.
    MigLayout(MigLayout),
}

/// A decimal number with up to three places behind the point: exact, so that changes can be compared and grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount {
    thousandths: i128,
}

impl Amount {
    pub fn whole(value: impl Into<i128>) -> Self {
        Self { thousandths: value.into().saturating_mul(1000) }
    }

    pub fn thousandths(value: impl Into<i128>) -> Self {
        Self { thousandths: value.into() }
    }

    fn as_f64(self) -> f64 {
        self.thousandths as f64 / 1000.0
    }
}

impl fmt::Display for Amount {
    /// Whole numbers without a point, others with one place behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.thousandths % 1000 {
            0 => write!(f, "{}", self.thousandths / 1000),
            _ => write!(f, "{:.1}", self.as_f64()),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.thousandths / 1000;
        match (self.thousandths % 1000, i64::try_from(whole), u64::try_from(whole)) {
            (0, Ok(whole), _) => serializer.serialize_i64(whole),
            (0, _, Ok(whole)) => serializer.serialize_u64(whole),
            _ => serializer.serialize_f64(self.as_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl de::Visitor<'_> for Number {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Amount, E> {
                Ok(Amount::whole(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Amount, E> {
                Ok(Amount::whole(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Amount, E> {
                Ok(Amount::thousandths((value * 1000.0).round() as i128))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "number"})
    }
}

/// The GPU and compute instances of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigLayout {
    /// Each with its place, or one entry a profile with their count.
    pub instances: Vec<MigInstances>,
    /// Instances without a compute instance: no process can use them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_compute_instance: usize,
    /// Instances whose compute instances do not take all of them, in records of versions that did not name those.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub with_partial_compute_instances: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Instances of one profile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigInstances {
    /// Such as `3g.40gb`; `1c.3g.40gb` is a compute instance that is a part of its GPU instance.
    pub profile: String,
    pub count: usize,
    /// The first memory slice of the GPU instance, where the layout is declared by places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
}

impl Value {
    pub fn text(value: impl Into<String>) -> Self {
        Self::Text { value: value.into() }
    }

    /// A number that needs no unit, such as a user's.
    pub fn number(value: impl Into<i128>) -> Self {
        Self::Number { value: Amount::whole(value), unit: None }
    }

    pub fn quantity(value: impl Into<i128>, unit: Unit) -> Self {
        Self::Number { value: Amount::whole(value), unit: Some(unit) }
    }

    /// Text, or the number that it is: `10`, but not `010`, which would read otherwise.
    pub fn parsed(text: &str) -> Self {
        match text.parse::<i64>() {
            Ok(number) if number.to_string() == text => Self::number(number),
            _ => Self::text(text),
        }
    }

    pub fn list<T: Into<String>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::List { values: values.into_iter().map(Into::into).collect() }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool { value }
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::text(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::text(value)
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::text(value)
    }
}

impl From<MigLayout> for Value {
    fn from(layout: MigLayout) -> Self {
        Self::MigLayout(layout)
    }
}

/// Nothing is [`Value::Absent`].
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}
