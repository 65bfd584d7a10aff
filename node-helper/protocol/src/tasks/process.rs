//! Parameters of the kinds that run a command.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading, files::yes};
use crate::{Disruption, lenient};

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

impl Kind for Command {
    const INFO: KindInfo = KindInfo {
        name: "command",
        aliases: &["ansible.builtin.command"],
        class: Class::Command,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: Some("cmd"),
        open_keys: false,
        // As in Ansible, no shell is used.
        ignored: &["executable"],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("argv", "2.6"),
            ("chdir", "0.6"),
            ("expand_argument_vars", "2.16"),
            ("removes", "0.8"),
            ("stdin", "2.4"),
            ("stdin_add_newline", "2.8"),
            ("strip_empty_ends", "2.8"),
        ],
        summary: "Runs a program without a shell.",
        example: "command: uname -r",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

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
impl Kind for Shell {
    const INFO: KindInfo = KindInfo {
        name: "shell",
        aliases: &["ansible.builtin.shell"],
        class: Class::Command,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: Some("cmd"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("chdir", "0.6"),
            ("executable", "0.9"),
            ("removes", "0.8"),
            ("stdin", "2.4"),
            ("stdin_add_newline", "2.8"),
        ],
        summary: "Runs a line in a shell.",
        example: "shell: dmesg | tail -1",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

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
impl Kind for Script {
    const INFO: KindInfo = KindInfo {
        name: "script",
        aliases: &["ansible.builtin.script"],
        class: Class::Command,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::No {
            why: "the controller sends what it needs",
            instead: "put the script on the node with `copy`, then run it with `command`",
        },
        free_form: Some("cmd"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("chdir", "2.4"), ("creates", "1.5"), ("executable", "2.6"), ("removes", "1.5")],
        summary: "Pushes a script of the controller and runs it on the node.",
        example: "script: check.sh --fast",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

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

impl Kind for Raw {
    const INFO: KindInfo = KindInfo {
        name: "raw",
        aliases: &["ansible.builtin.raw"],
        class: Class::Command,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::No { why: "nor with Ansible's", instead: "use `shell`" },
        free_form: Some("cmd"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("executable", "1.0")],
        summary: "Runs a line in a shell and gives its output as it comes.",
        example: "raw: uptime",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.cmd.trim().is_empty() {
            return Err(ParamError::new("cmd", "the line is empty"));
        }
        Ok(())
    }
}
