//! Parameters of the kinds that run in the controller alone.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Checked, ParamError, words::words};
use crate::lenient;

/// Prints a message or a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Debug {
    /// Text, or any value.
    #[serde(default)]
    pub msg: Option<Value>,
    /// An expression, printed with its value.
    #[serde(default)]
    pub var: Option<String>,
    /// Printed only from this number of `-v` on.
    #[serde(default, deserialize_with = "lenient::u32")]
    pub verbosity: u32,
}

impl Checked for Debug {
    fn check(&self) -> Result<(), ParamError> {
        if self.msg.is_some() && self.var.is_some() {
            return Err(ParamError::new("var", "`msg` and `var` exclude each other"));
        }
        Ok(())
    }
}

/// Fails unless every condition holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Assert {
    /// Conditions, as in `when`.
    #[serde(deserialize_with = "lenient::one_or_many")]
    pub that: Vec<Value>,
    /// Text when one does not hold.
    #[serde(default, alias = "msg", skip_serializing_if = "Option::is_none")]
    pub fail_msg: Option<String>,
    /// Text when all hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_msg: Option<String>,
    /// Says nothing when all hold.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub quiet: bool,
}

impl Checked for Assert {
    fn check(&self) -> Result<(), ParamError> {
        if self.that.is_empty() {
            return Err(ParamError::new("that", "at least one condition is needed"));
        }
        Ok(())
    }
}

/// Fails with a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// Text.
    #[serde(default = "asked_to_fail")]
    pub msg: String,
}

fn asked_to_fail() -> String {
    "failed as requested by the task".to_owned()
}
impl Checked for Fail {}

/// Sets variables of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SetFact {
    /// Names and values.
    pub facts: Map<String, Value>,
}

impl Checked for SetFact {
    fn check(&self) -> Result<(), ParamError> {
        let legal = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        match self.facts.keys().find(|name| !legal(name)) {
            Some(name) => Err(ParamError::new(name, format!("`{name}` is not the name of a variable"))),
            None => Ok(()),
        }
    }
}

words! { MetaAction {
    /// Runs the handlers that were notified so far.
    FlushHandlers: "flush_handlers",
    /// Ends the play for every host.
    EndPlay: "end_play",
    /// Ends the play for this host.
    EndHost: "end_host",
    /// Brings failed hosts back into the play.
    ClearHostErrors: "clear_host_errors",
    ResetConnection: "reset_connection",
    Noop: "noop",
} }

/// Steers the play.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// What to do.
    pub action: MetaAction,
}
impl Checked for Meta {}
