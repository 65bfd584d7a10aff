//! The interface of task kinds to the rest of the program.

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{PackageFacts, Params, ServiceFacts, number::Number, reading::read};
use crate::{Disruption, lenient};

/// Where and how a kind is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Declarative on the node: observe, plan, apply.
    Node,
    /// Runs a command with effects that cannot be predicted.
    Command,
    /// Runs in the controller only.
    Control,
    /// Acts on the connection or the life of the node.
    Session,
}

/// Whether a task may run as a job (`async`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It needs nothing of the controller once it has begun, and disturbs nothing on the node.
    Yes,
    No {
        why: &'static str,
        instead: &'static str,
    },
}

impl Alone {
    const LONGER: &'static str = "leave it out; a task may take longer with `timeout`";
    const LEAVE_OUT: &'static str = "leave it out";

    pub const BY_CONTROLLER: Self = Self::No { why: "the controller does it", instead: Self::LEAVE_OUT };
    pub const DISTURBS: Self = Self::No {
        why: "it may disturb the node, which is bounded only while somebody waits for it",
        instead: Self::LONGER,
    };
    pub const NEEDS_CONTROLLER: Self =
        Self::No { why: "it needs the controller until its end", instead: Self::LONGER };
    pub const AT_ONCE: Self = Self::No { why: "it is done at once", instead: Self::LEAVE_OUT };
}

/// Rendered parameters by name.
pub type Given = Map<String, Value>;

/// A task kind. There are no defaults: a kind that leaves an answer out does not compile.
#[derive(Debug)]
pub struct KindInfo {
    pub name: &'static str,
    /// Other full names, such as Ansible's.
    pub aliases: &'static [&'static str],
    pub class: Class,
    /// Highest disruption that a task of this kind can need.
    pub disruption: Disruption,
    /// Whether it declares the state of GPUs: consecutive tasks of such kinds form one desired state.
    pub gpus: bool,
    /// Whether it needs root.
    pub needs_root: bool,
    /// Whether an audit counts it; not if it only reads or prints.
    pub judged: bool,
    pub alone: Alone,
    /// The parameter for the text of `kind: text`.
    pub free_form: Option<&'static str>,
    /// Whether any key is a parameter, as in `set_fact`.
    pub open_keys: bool,
    /// Parameters of Ansible without effect here.
    pub ignored: &'static [&'static str],
    /// Parameters of Ansible that this kind refuses, each with what to do instead.
    pub refused: &'static [(&'static str, &'static str)],
    /// Parameters whose values are never shown, under all their names.
    pub secret: &'static [&'static str],
    /// Units and ranges of all parameters that are numbers.
    pub numbers: &'static [Number],
    /// Parameters that Ansible's module did not have from the beginning, each with the version of ansible-core, or of
    /// the module's collection, that introduced it (`community.general 7.0.0`). From `version_added` in the modules'
    /// documentation (ansible 12.3).
    pub since: &'static [(&'static str, &'static str)],
    /// One sentence, third person.
    pub summary: &'static str,
    /// A valid task.
    pub example: &'static str,
    pub reading: Reading,
}

impl KindInfo {
    /// Whether it is this kind.
    pub fn is<K: Kind>(&self) -> bool {
        self.name == K::INFO.name
    }

    /// Returns the fact that a task of this kind sets, if its result is one.
    pub fn fact(&self) -> Option<&'static str> {
        match self {
            kind if kind.is::<PackageFacts>() => Some("packages"),
            kind if kind.is::<ServiceFacts>() => Some("services"),
            _ => None,
        }
    }

    /// Reads rendered parameters.
    ///
    /// # Errors
    /// If a parameter is unknown, missing, of the wrong type, or against the kind's rules.
    pub fn parse(&self, value: Value) -> Result<Params, ParamError> {
        (self.reading.parse)(self, value)
    }

    /// Returns the names of the parameters, including aliases; empty if any name is accepted.
    pub fn parameters(&self) -> &'static [&'static str] {
        // By a failed parse, because only serde knows the aliases of a field.
        match self.parse(serde_json::json!({"\u{1}": null})) {
            Err(ParamError { mistake: Mistake::Unknown { known }, .. }) => known,
            _ => &[],
        }
    }

    /// Whether it accepts or refuses a parameter of this name.
    pub fn has(&self, name: &str) -> bool {
        let read = self.parse(serde_json::json!({ name: null }));
        !matches!(read, Err(ParamError { mistake: Mistake::Unknown { .. }, .. }))
    }

    /// Returns the JSON schema of the parameters, with documentation; numbers have `minimum`, `maximum` and `x-unit`.
    #[cfg(feature = "schema")]
    pub fn schema(&self) -> Value {
        let mut schema = (self.reading.schema)();
        for number in self.numbers {
            number.annotate(&mut schema);
        }
        schema
    }

    /// Returns the version of Ansible that introduced a parameter, such as `Ansible 2.11`; `None` if it always had it.
    pub fn since(&self, parameter: &str) -> Option<String> {
        let (_, version) = self.since.iter().find(|(name, _)| *name == parameter)?;
        let of_collection = version.contains(' ');
        Some(if of_collection { (*version).to_owned() } else { format!("Ansible {version}") })
    }
}

/// How a kind's parameters are read.
#[derive(Debug)]
pub struct Reading {
    parse: fn(&KindInfo, Value) -> Result<Params, ParamError>,
    #[cfg(feature = "schema")]
    schema: fn() -> Value,
}

#[cfg(feature = "schema")]
impl Reading {
    pub const fn of<K: Kind + schemars::JsonSchema>() -> Self {
        Self { parse: parse::<K>, schema: || schemars::schema_for!(K).to_value() }
    }
}

#[cfg(not(feature = "schema"))]
impl Reading {
    pub const fn of<K: Kind>() -> Self {
        Self { parse: parse::<K> }
    }
}

/// The parameters of a task kind.
pub trait Kind: Serialize + DeserializeOwned + Into<Params> {
    const INFO: KindInfo;

    /// Converts Ansible's spellings to the kind's parameters.
    fn rewrite(given: &mut Given);

    /// Checks rules beyond the types of single parameters, such as "one of two".
    ///
    /// # Errors
    /// The first rule that the parameters break.
    fn check(&self) -> Result<(), ParamError>;
}

fn parse<K: Kind>(kind: &KindInfo, mut value: Value) -> Result<Params, ParamError> {
    if let Some(given) = value.as_object_mut() {
        if let Some((name, instead)) = kind.refused.iter().find(|(name, _)| given.contains_key(*name)) {
            let message = format!("`{}` does not support `{name}`", kind.name);
            return Err(ParamError { instead: Some(instead), ..ParamError::new(*name, message) });
        }
        given.retain(|name, _| !kind.ignored.contains(&name.as_str()));
        K::rewrite(given);
    }
    let parameters: K = read(value, kind.numbers)?;
    check_numbers(kind.numbers, &parameters)?;
    parameters.check()?;
    Ok(parameters.into())
}

fn check_numbers(numbers: &'static [Number], parameters: &impl Serialize) -> Result<(), ParamError> {
    if numbers.is_empty() {
        return Ok(());
    }
    // From the parsed parameters, because numbers may be written as text, and durations as `20m`.
    let read = serde_json::to_value(parameters)
        .map_err(|error| ParamError::of(Mistake::Rule, format!("its numbers cannot be checked: {error}")))?;
    numbers.iter().try_for_each(|number| number.check(&read))
}

/// The kind of a mistake in parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The kind has no parameter of this name; `known` are its parameters, including aliases.
    Unknown { known: &'static [&'static str] },
    /// A required parameter is missing.
    Missing { name: &'static str },
    /// The value has a wrong type, is out of range, or is no accepted word.
    Value { wanted: Accepted },
    /// A rule beyond the types of single parameters.
    Rule,
}

/// What is accepted as a value, written as what a parameter wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    Text(String),
    Number {
        /// Whether it was refused for not being a whole number from 0.
        whole: bool,
        /// `None` for a number that the kind does not describe.
        range: Option<&'static Number>,
    },
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number { whole, range: Some(range) } => range.describe(*whole, f),
            Self::Number { whole: true, range: None } => f.write_str(lenient::WHOLE_NUMBER),
            Self::Number { whole: false, range: None } => f.write_str(lenient::NUMBER),
        }
    }
}

/// An error in a kind's parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// The parameter and the keys inside of it, if a single value is wrong. Places in lists are not counted.
    pub place: Vec<String>,
    pub mistake: Mistake,
    /// The message for people, without the value.
    pub message: String,
    /// The wrong value, which may be a secret.
    pub value: Option<String>,
    /// What to use instead of a parameter of Ansible that the kind refuses whatever its value is.
    pub instead: Option<&'static str>,
}

impl ParamError {
    /// Creates an error about a rule that one parameter breaks.
    pub fn new(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: vec![parameter.into()],
            mistake: Mistake::Rule,
            message: message.into(),
            value: None,
            instead: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_checked_are_refused() {
        struct Unreadable;
        impl Serialize for Unreadable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("no"))
            }
        }
        static NUMBERS: &[Number] = &[Number::from("limit", None, 1)];
        let error = check_numbers(NUMBERS, &Unreadable).unwrap_err();
        assert_eq!(error.to_string(), "its numbers cannot be checked: no");
    }
}
