//! The tree of a YAML document.

use crate::diagnostic::{Diagnostic, Diagnostics, Span};

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub value: Value,
    /// The place of the scalar, of the first key or item of a block collection, or of the bracket of a flow
    /// collection. A value that is left out (`key:`) has the place of its key.
    pub span: Span,
}

/// The keys and values of a mapping in the order written, merged keys (`<<`) first.
pub type Entries = Vec<(Node, Node)>;

/// A YAML value, with plain scalars typed by YAML 1.1.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Str),
    Seq(Vec<Node>),
    Map(Entries),
    /// A value with one of the custom tags of [`super::Limits::tags`]; `tag` includes the `!`.
    Tagged {
        tag: Box<str>,
        node: Box<Node>,
    },
}

/// A string, and whether it was written without quotes (and so could have been another type).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Str {
    pub text: String,
    pub plain: bool,
}

impl Node {
    /// Converts a computed value; all of it has the place `span`.
    pub fn of_json(json: &serde_json::Value, span: &Span) -> Self {
        let of = |json: &serde_json::Value| Self::of_json(json, span);
        let value = match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(int) => Value::Int(int.into()),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::Str(Str { text: text.clone(), plain: false }),
            serde_json::Value::Array(items) => Value::Seq(items.iter().map(of).collect()),
            serde_json::Value::Object(map) => Value::Map(
                map.iter()
                    .map(|(key, value)| (of(&serde_json::Value::from(key.as_str())), of(value)))
                    .collect(),
            ),
        };
        Self { value, span: span.clone() }
    }

    /// Returns the type for messages: "a mapping", "a list", "a string" …
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Str(_) => "a string",
            Value::Seq(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Tagged { .. } => "a tagged value",
        }
    }

    pub fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// Whether Python takes the value for false: null, `false`, 0, or empty.
    pub fn is_falsy(&self) -> bool {
        match &self.value {
            Value::Null | Value::Bool(false) | Value::Int(0) => true,
            Value::Float(value) => *value == 0.0,
            Value::Str(text) => text.text.is_empty(),
            Value::Seq(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
            Value::Bool(true) | Value::Int(_) | Value::Tagged { .. } => false,
        }
    }

    /// Returns the text of a string; `None` for a number or a boolean.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self.value {
            Value::Int(value) => i64::try_from(value).ok(),
            _ => None,
        }
    }

    /// Returns the value of an integer or a float.
    pub fn as_f64(&self) -> Option<f64> {
        match self.value {
            #[expect(
                clippy::cast_precision_loss,
                reason = "what does not fit is rounded, as Python's float() does"
            )]
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Seq(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&[(Node, Node)]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the value under a string key of a mapping.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns the key and the value under a string key of a mapping.
    pub fn entry(&self, key: &str) -> Option<(&Node, &Node)> {
        let found = self.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key))?;
        Some((&found.0, &found.1))
    }

    /// Returns the text that Ansible makes of a scalar: `True`, `None`, numbers in decimal; `None` for collections.
    pub fn scalar_text(&self) -> Option<String> {
        match &self.value {
            Value::Null => Some("None".to_owned()),
            Value::Bool(true) => Some("True".to_owned()),
            Value::Bool(false) => Some("False".to_owned()),
            Value::Int(value) => Some(value.to_string()),
            Value::Float(value) => Some(float_text(*value)),
            Value::Str(text) => Some(text.text.clone()),
            Value::Seq(_) | Value::Map(_) => None,
            Value::Tagged { node, .. } => node.scalar_text(),
        }
    }

    /// Returns the text of this node as a key of a JSON object.
    pub fn key_text(&self) -> String {
        match &self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            _ => self.scalar_text().unwrap_or_default(),
        }
    }

    /// Returns the tree without places. Integers beyond 64 bits become strings.
    ///
    /// Tagged strings become `{"__ansible_vault": text}` and `{"__ansible_unsafe": text}`, as in Ansible's own JSON.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(value) => int_json(*value),
            Value::Float(value) => serde_json::Number::from_f64(*value)
                .map_or_else(|| Json::String(float_text(*value)), Json::Number),
            Value::Str(text) => Json::String(text.text.clone()),
            Value::Seq(items) => Json::Array(items.iter().map(Node::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, value)| (key.key_text(), value.to_json())).collect())
            }
            Value::Tagged { tag, node } => {
                let name = match &**tag {
                    "!vault" | "!vault-encrypted" => "__ansible_vault",
                    "!unsafe" => "__ansible_unsafe",
                    _ => return node.to_json(),
                };
                Json::Object([(name.to_owned(), node.to_json())].into_iter().collect())
            }
        }
    }

    /// Returns the error for a value of the wrong type: "`serial` wants a list, got a string".
    pub fn wrong_type(&self, what: &str, wanted: &str) -> Diagnostic {
        Diagnostic::error(format!("{what} wants {wanted}, got {}", self.kind())).at(&self.span)
    }

    /// Returns the entries of a mapping. `what` names the value in messages, with an article or in backticks.
    pub fn expect_map(&self, what: &str) -> Result<&[(Node, Node)], Diagnostics> {
        self.as_map().ok_or_else(|| self.wrong_type(what, "a mapping").into())
    }

    pub fn expect_seq(&self, what: &str) -> Result<&[Node], Diagnostics> {
        self.as_seq().ok_or_else(|| self.wrong_type(what, "a list").into())
    }

    pub fn expect_str(&self, what: &str) -> Result<&str, Diagnostics> {
        self.as_str().ok_or_else(|| {
            let mut error = self.wrong_type(what, "a string");
            if matches!(self.value, Value::Bool(_) | Value::Int(_) | Value::Float(_)) {
                error = error.help("put it in quotes to make it a string");
            }
            error.into()
        })
    }

    pub fn expect_bool(&self, what: &str) -> Result<bool, Diagnostics> {
        self.as_bool().ok_or_else(|| self.wrong_type(what, "true or false").into())
    }

    pub fn expect_i64(&self, what: &str) -> Result<i64, Diagnostics> {
        self.as_i64().ok_or_else(|| self.wrong_type(what, "a whole number").into())
    }

    /// Returns an error with a suggestion for each key of a mapping that is not in `known`.
    pub fn refuse_unknown_keys(&self, what: &str, known: &[&str]) -> Diagnostics {
        let mut errors = Diagnostics::new();
        for (key, _) in self.as_map().unwrap_or_default() {
            let text = key.key_text();
            if !known.contains(&text.as_str()) || key.as_str().is_none() {
                errors.push(
                    Diagnostic::error(format!("unknown key `{text}`"))
                        .at(&key.span)
                        .label(format!("not a key of {what}"))
                        .suggest(&text, known.iter().copied()),
                );
            }
        }
        errors
    }
}

fn int_json(value: i128) -> serde_json::Value {
    if let Ok(value) = i64::try_from(value) {
        value.into()
    } else if let Ok(value) = u64::try_from(value) {
        value.into()
    } else {
        value.to_string().into()
    }
}

/// Formats a float as Python's `str` does: an exponent has a sign and at least two digits.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let Some((digits, exponent)) = text.split_once('e') else { return text };
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}
