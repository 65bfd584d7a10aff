//! The values of variables.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value as Json;

use super::bounds::ITEM;
use super::scan::is_template;
use super::{frame, inert};

/// The text that Ansible shows for `omit`.
pub const OMITTED: &str = "<<Omit>>";

/// A value of a variable, a parameter or a result; cheap to clone.
#[derive(Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    /// Text with `{{ … }}` from an inventory or playbook, which is rendered when it is used. Text from a node is
    /// never one.
    Template(Arc<str>),
    List(Arc<List>),
    Map(Arc<Dict>),
    /// A value that was decrypted, or computed from one; [`super::watch`] reports its use.
    Secret(Arc<Value>),
    /// A value that is known only during the run.
    Unknown,
    /// `omit`: the parameter counts as not given.
    Omit,
}

/// A list of values.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    items: Vec<Value>,
    settled: bool,
    weight: usize,
}

/// A mapping that keeps the order of its entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Dict {
    entries: IndexMap<Arc<str>, Value>,
    /// Found by name but not listed, as Ansible treats the controller in `hostvars`.
    unlisted: Option<Arc<Dict>>,
    settled: bool,
    weight: usize,
}

impl List {
    pub fn new(items: Vec<Value>) -> Self {
        let settled = items.iter().all(Value::is_settled);
        let weight = items.iter().fold(ITEM, |sum, item| sum.saturating_add(item.weight()));
        Self { items, settled, weight }
    }

    pub fn items(&self) -> &[Value] {
        &self.items
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }
}

impl Default for Dict {
    fn default() -> Self {
        Self { entries: IndexMap::new(), unlisted: None, settled: true, weight: ITEM }
    }
}

impl Dict {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).or_else(|| self.unlisted.as_ref()?.get(key))
    }

    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns the entries that [`Dict::get`] finds but that are not listed.
    pub fn unlisted(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        self.unlisted.iter().flat_map(|hidden| hidden.entries.iter())
    }

    /// Adds an entry that is found but not listed.
    pub fn insert_unlisted(&mut self, key: impl Into<Arc<str>>, value: Value) {
        self.settled &= value.is_settled();
        Arc::make_mut(self.unlisted.get_or_insert_default()).insert(key, value);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Value)> {
        self.entries.iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(|key| &**key)
    }

    /// Sets `key`; an existing key keeps its place.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: Value) {
        let key = key.into();
        if self.unlisted.as_ref().is_some_and(|hidden| hidden.contains(&key)) {
            return self.insert_unlisted(key, value);
        }
        self.settled &= value.is_settled();
        let name = key.len();
        let more = value.weight();
        let before = self.entries.insert(key, value).map_or(0, |old| old.weight().saturating_add(name));
        self.weight = self.weight.saturating_sub(before).saturating_add(name).saturating_add(more);
    }

    /// Sets all entries of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (key, value) in other.iter() {
            self.insert(Arc::clone(key), value.clone());
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let gone = self.entries.shift_remove(key)?;
        self.weight = self.weight.saturating_sub(gone.weight().saturating_add(key.len()));
        Some(gone)
    }

    /// Converts a JSON object that a person wrote: text with `{{ … }}` is a template.
    pub fn trusted(map: &serde_json::Map<String, Json>) -> Self {
        map.iter().map(|(key, value)| (Arc::from(key.as_str()), Value::trusted(value))).collect()
    }

    /// Converts a JSON object that came from a node: text is never a template.
    pub fn literal(map: &serde_json::Map<String, Json>) -> Self {
        map.iter().map(|(key, value)| (Arc::from(key.as_str()), Value::literal(value))).collect()
    }

    pub fn to_json(&self) -> serde_json::Map<String, Json> {
        self.entries.iter().map(|(key, value)| (key.to_string(), value.to_json())).collect()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }
}

impl<K: Into<Arc<str>>> FromIterator<(K, Value)> for Dict {
    fn from_iter<T: IntoIterator<Item = (K, Value)>>(iter: T) -> Self {
        let mut dict = Self::default();
        for (key, value) in iter {
            dict.insert(key, value);
        }
        dict
    }
}

impl Value {
    pub fn str(text: impl AsRef<str>) -> Self {
        Self::Str(Arc::from(text.as_ref()))
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Arc::new(List::new(items)))
    }

    pub fn map<K: Into<Arc<str>>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Map(Arc::new(entries.into_iter().collect()))
    }

    /// Converts text that a person wrote: a template if it has the marks of one.
    pub fn text(text: &str) -> Self {
        if is_template(text) { Self::Template(Arc::from(text)) } else { Self::Str(Arc::from(text)) }
    }

    /// Converts JSON that a person wrote.
    pub fn trusted(json: &Json) -> Self {
        Self::read(json, true)
    }

    /// Converts JSON that came from a node.
    pub fn literal(json: &Json) -> Self {
        Self::read(json, false)
    }

    fn read(json: &Json, trusted: bool) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(int) => Self::Int(int),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) if trusted => Self::text(text),
            Json::String(text) => Self::Str(Arc::from(text.as_str())),
            Json::Array(items) => Self::list(items.iter().map(|item| Self::read(item, trusted)).collect()),
            Json::Object(map) => {
                if let Some(Json::String(text)) = map.get("__ansible_unsafe").filter(|_| map.len() == 1) {
                    return Self::Str(Arc::from(text.as_str()));
                }
                if let Some(inner) = crate::vault::is_secret(map) {
                    return Self::Secret(Arc::new(Self::read(inner, trusted)));
                }
                Self::map(map.iter().map(|(key, value)| (key.as_str(), Self::read(value, trusted))))
            }
        }
    }

    /// Whether no part of it is a template, unknown or omitted.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Template(_) | Self::Secret(_) | Self::Unknown | Self::Omit => false,
            Self::List(list) => list.settled,
            Self::Map(dict) => dict.settled,
            _ => true,
        }
    }

    /// Returns the approximate size when written out, in bytes; what it holds twice counts twice.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Str(text) | Self::Template(text) => text.len() + ITEM,
            Self::List(list) => list.weight,
            Self::Map(dict) => dict.weight,
            Self::Secret(value) => value.weight(),
            _ => ITEM,
        }
    }

    /// Whether any part of it is unknown.
    pub fn has_unknown(&self) -> bool {
        match self {
            Self::Unknown => true,
            Self::List(list) if !list.settled => list.items.iter().any(Self::has_unknown),
            Self::Map(dict) if !dict.settled => dict.entries.values().any(Self::has_unknown),
            _ => false,
        }
    }

    pub(super) fn has_omitted(&self) -> bool {
        match self {
            Self::Omit => true,
            Self::List(list) if !list.settled => list.items.iter().any(Self::has_omitted),
            Self::Map(dict) if !dict.settled => dict.entries.values().any(Self::has_omitted),
            _ => false,
        }
    }

    /// Returns the value without omitted entries of mappings and lists.
    #[must_use]
    pub fn without_omitted(&self) -> Self {
        match self {
            Self::List(list) if self.has_omitted() => Self::list(Self::kept(&list.items)),
            Self::Map(dict) if self.has_omitted() => {
                let entries = dict.iter().filter(|(_, value)| !matches!(value, Self::Omit));
                let entries = entries.map(|(key, value)| (Arc::clone(key), value.without_omitted()));
                Self::Map(Arc::new(entries.collect()))
            }
            other => other.clone(),
        }
    }

    /// Returns the items that are not omitted, each without its omitted entries.
    pub fn kept(items: &[Self]) -> Vec<Self> {
        items.iter().filter(|item| !matches!(item, Self::Omit)).map(Self::without_omitted).collect()
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) | Self::Template(text) => Some(text),
            Self::Secret(value) => {
                frame::met_secret();
                value.as_str()
            }
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Arc<Dict>> {
        match self {
            Self::Map(dict) => Some(dict),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(&list.items),
            _ => None,
        }
    }

    /// Marks every text and number in it as secret.
    #[must_use]
    pub fn sealed(&self) -> Self {
        match self {
            Self::Int(_) | Self::Float(_) | Self::Str(_) | Self::Template(_) => {
                Self::Secret(Arc::new(self.clone()))
            }
            Self::List(list) => Self::list(list.items.iter().map(Self::sealed).collect()),
            Self::Map(dict) => {
                Self::map(dict.entries.iter().map(|(key, value)| (Arc::clone(key), value.sealed())))
            }
            other => other.clone(),
        }
    }

    /// Returns JSON that keeps the marks of secrets; [`Value::literal`] reads it back.
    pub fn to_marked_json(&self) -> Json {
        match self {
            Self::Secret(value) => crate::vault::sealed(value.to_json()),
            Self::List(list) if !list.settled => list.items.iter().map(Self::to_marked_json).collect(),
            Self::Map(dict) if !dict.settled => Json::Object(
                dict.entries.iter().map(|(key, value)| (key.to_string(), value.to_marked_json())).collect(),
            ),
            other => other.to_json(),
        }
    }

    /// Returns the type, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Str(_) | Self::Template(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Secret(value) => value.kind(),
            Self::Unknown => "not known yet",
            Self::Omit => "omitted",
        }
    }

    /// Returns JSON without omitted entries; unknown values become null.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Null | Self::Unknown | Self::Omit => Json::Null,
            Self::Bool(value) => Json::Bool(*value),
            Self::Int(value) => Json::from(*value),
            Self::Float(value) => serde_json::Number::from_f64(*value).map_or(Json::Null, Json::Number),
            Self::Str(text) | Self::Template(text) => Json::String(text.to_string()),
            Self::Secret(value) => {
                frame::met_secret();
                value.to_json()
            }
            Self::List(list) => Json::Array(
                list.items.iter().filter(|item| !matches!(item, Self::Omit)).map(Self::to_json).collect(),
            ),
            Self::Map(dict) => Json::Object(
                dict.entries
                    .iter()
                    .filter(|(_, value)| !matches!(value, Self::Omit))
                    .map(|(key, value)| (key.to_string(), value.to_json()))
                    .collect(),
            ),
        }
    }

    /// Returns the text that a template shows for the value, as Python's `str` and Ansible write it.
    pub fn to_text(&self) -> String {
        match self {
            Self::Null | Self::Omit => String::new(),
            Self::Str(text) | Self::Template(text) => text.to_string(),
            Self::Secret(value) => {
                frame::met_secret();
                value.to_text()
            }
            other => {
                let mut out = String::new();
                other.repr(&mut out);
                out
            }
        }
    }

    /// Returns Python's `repr`: text is in quotes.
    pub fn python_repr(&self) -> String {
        let mut out = String::new();
        self.repr(&mut out);
        out
    }

    fn repr(&self, out: &mut String) {
        use fmt::Write as _;
        let _ = match self {
            Self::Null => write!(out, "None"),
            Self::Omit => out.write_str(OMITTED),
            Self::Bool(true) => write!(out, "True"),
            Self::Bool(false) => write!(out, "False"),
            Self::Int(value) => write!(out, "{value}"),
            Self::Float(value) => write!(out, "{}", crate::yaml::float_text(*value)),
            Self::Unknown => write!(out, "(not known yet)"),
            Self::Secret(value) => {
                frame::met_secret();
                value.repr(out);
                Ok(())
            }
            Self::Str(text) if inert::is_marked(text) => out.write_str(text),
            Self::Str(text) | Self::Template(text) => {
                let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
                out.push(quote);
                for c in text.chars() {
                    match c {
                        '\n' => out.push_str("\\n"),
                        '\t' => out.push_str("\\t"),
                        '\r' => out.push_str("\\r"),
                        '\\' => out.push_str("\\\\"),
                        c if c == quote => {
                            out.push('\\');
                            out.push(c);
                        }
                        c => out.push(c),
                    }
                }
                out.push(quote);
                Ok(())
            }
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    item.repr(out);
                }
                out.push(']');
                Ok(())
            }
            Self::Map(dict) => {
                out.push('{');
                for (index, (key, value)) in dict.entries.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    Self::Str(Arc::clone(key)).repr(out);
                    out.push_str(": ");
                    value.repr(out);
                }
                out.push('}');
                Ok(())
            }
        };
    }

    /// Whether Python takes it for true.
    pub fn truthy(&self) -> bool {
        match self {
            Self::Null | Self::Omit | Self::Unknown => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) | Self::Template(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(dict) => !dict.is_empty(),
            Self::Secret(value) => value.truthy(),
        }
    }
}

/// Prints no values, as they may hold secrets that a debug print of a cursor must not show.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::str(text)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(Arc::from(text))
    }
}
