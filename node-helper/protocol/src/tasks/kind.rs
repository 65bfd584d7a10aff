//! What the program asks about a task kind, answered by the kind itself.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{Params, reading::read};
use crate::Disruption;

/// What a kind is able to promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Declarative on the node: observe, plan, apply.
    Node,
    /// Runs something whose effect nobody can foresee.
    Command,
    /// The controller alone.
    Control,
    /// The connection or the life of the node.
    Session,
}

/// Whether a task may go on by itself (`async`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It needs nothing of the controller once it has begun, and disturbs nobody who works on the node.
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

/// One task kind. It has no defaults: a kind that leaves an answer out does not compile.
#[derive(Debug)]
pub struct KindInfo {
    pub name: &'static str,
    /// Other full names, such as Ansible's.
    pub aliases: &'static [&'static str],
    pub class: Class,
    /// The most that a task of this kind can ask for.
    pub disruption: Disruption,
    /// Whether it declares state of GPUs: consecutive tasks of such kinds are one desired state.
    pub gpus: bool,
    /// Whether only root may do what it is for.
    pub needs_root: bool,
    /// Whether a node is as declared or not by it, so that an audit counts it; not where it only reads or prints.
    pub judged: bool,
    pub alone: Alone,
    /// Parameter that takes the text of `kind: text`.
    pub free_form: Option<&'static str>,
    /// Whether any key is a parameter, as for `set_fact`.
    pub open_keys: bool,
    /// Parameters of Ansible that change nothing here.
    pub ignored: &'static [&'static str],
    /// Parameters of Ansible that this kind refuses, each with what to do instead.
    pub refused: &'static [(&'static str, &'static str)],
    /// Parameters whose values are never shown, by every name that they have.
    pub secret: &'static [&'static str],
    /// One sentence, third person.
    pub summary: &'static str,
    /// A task that parses.
    pub example: &'static str,
    pub reading: Reading,
}

impl KindInfo {
    /// Whether it is this kind.
    pub fn is<K: Kind>(&self) -> bool {
        self.name == K::INFO.name
    }

    /// Reads rendered parameters.
    ///
    /// # Errors
    /// A parameter that the kind does not have, of the wrong type, missing, or against the kind's rules.
    pub fn parse(&self, value: Value) -> Result<Params, ParamError> {
        (self.reading.parse)(self, value)
    }

    /// The names of the parameters, other names of them included; none where any name is one.
    pub fn parameters(&self) -> &'static [&'static str] {
        // Why asked this way: serde alone knows the other names of a field.
        match self.parse(serde_json::json!({"\u{1}": null})) {
            Err(ParamError { mistake: Mistake::Unknown { known }, .. }) => known,
            _ => &[],
        }
    }

    /// Whether it takes or refuses a parameter of this name.
    pub fn has(&self, name: &str) -> bool {
        let read = self.parse(serde_json::json!({ name: null }));
        !matches!(read, Err(ParamError { mistake: Mistake::Unknown { .. }, .. }))
    }

    /// JSON schema of the parameters, with their documentation.
    #[cfg(feature = "schema")]
    pub fn schema(&self) -> Value {
        (self.reading.schema)()
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

    /// Puts what Ansible writes in another way into the way of here.
    fn rewrite(given: &mut Given);

    /// What holds beyond the types of single parameters, such as "one of two".
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
    let parameters: K = read(value)?;
    parameters.check()?;
    Ok(parameters.into())
}

/// What is wrong with parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The kind has no parameter of this name; it has these, other names of them included.
    Unknown { known: &'static [&'static str] },
    /// A parameter that is needed is not given.
    Missing { name: &'static str },
    /// A value is not of the type or among the words that are wanted.
    Value { wanted: String },
    /// A rule beyond the types of single parameters.
    Rule,
}

/// Parameters that do not fit their kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// The parameter meant, where one alone is at fault.
    pub parameter: Option<String>,
    pub mistake: Mistake,
    /// For people, without the value.
    pub message: String,
    /// The value at fault, which may be a secret.
    pub value: Option<String>,
    /// What to do instead of a parameter that Ansible has and the kind refuses, whatever its value is.
    pub instead: Option<&'static str>,
}

impl ParamError {
    pub fn new(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            parameter: Some(parameter.into()),
            mistake: Mistake::Rule,
            message: message.into(),
            value: None,
            instead: None,
        }
    }
}
