//! Parameters of the kinds that run something.

use serde::{Deserialize, Serialize};

use super::{Checked, ParamError, files::yes};
use crate::lenient;

/// Runs a program without a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Program and arguments in one text, split as a shell would, nothing expanded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// Program and arguments as a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chdir: Option<String>,
    /// Not run when this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates: Option<String>,
    /// Not run unless this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<String>,
    /// Text for its standard input.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Whether a line break follows `stdin` (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub stdin_add_newline: bool,
    /// Whether line breaks at the end of the output go (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub strip_empty_ends: bool,
    /// Whether `$NAME` in the arguments stands for a variable of the environment (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub expand_argument_vars: bool,
}

impl Checked for Command {
    // Why: as in Ansible, no shell is asked.
    const IGNORED: &'static [&'static str] = &["executable"];

    fn check(&self) -> Result<(), ParamError> {
        match (&self.cmd, self.argv.is_empty()) {
            (None, true) => Err(ParamError::new("cmd", "a command is needed")),
            (Some(_), false) => Err(ParamError::new("argv", "`cmd` and `argv` exclude each other")),
            (Some(cmd), true) if cmd.trim().is_empty() => Err(ParamError::new("cmd", "the command is empty")),
            _ => Ok(()),
        }
    }
}

/// Runs a line in a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// The line.
    pub cmd: String,
    /// Shell, `/bin/sh` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chdir: Option<String>,
    /// Not run when this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates: Option<String>,
    /// Not run unless this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<String>,
    /// Text for its standard input.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Whether a line break follows `stdin` (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub stdin_add_newline: bool,
}
impl Checked for Shell {}

/// Pushes a script and runs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// File of the controller, then arguments, split as a shell would.
    pub cmd: String,
    /// Interpreter, when the file has no `#!` line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chdir: Option<String>,
    /// Not run when this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates: Option<String>,
    /// Not run unless this path or glob exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<String>,
}
impl Checked for Script {}

/// Runs a line in a shell and gives its output as it comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// The line. As all kinds it needs the helper on the node, but nothing else there, no Python.
    pub cmd: String,
    /// Shell, `/bin/sh` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
}

impl Checked for Raw {
    fn check(&self) -> Result<(), ParamError> {
        if self.cmd.trim().is_empty() {
            return Err(ParamError::new("cmd", "the line is empty"));
        }
        Ok(())
    }
}
