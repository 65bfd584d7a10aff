//! Parameters of the kinds that run in the controller only.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{Disruption, lenient};

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

impl Kind for Debug {
    const INFO: KindInfo = KindInfo {
        name: "debug",
        aliases: &["ansible.builtin.debug"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: Some("msg"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("verbosity", None, 0)],
        since: &[("verbosity", "2.1")],
        summary: "Prints a message or a variable.",
        example: "debug: {msg: 'hello'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

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
    /// Text when one does not hold, or a list of texts.
    #[serde(default, alias = "msg", skip_serializing_if = "Option::is_none")]
    pub fail_msg: Option<Value>,
    /// Text when all hold, or a list of texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_msg: Option<Value>,
    /// Says nothing when all hold.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub quiet: bool,
}

impl Kind for Assert {
    const INFO: KindInfo = KindInfo {
        name: "assert",
        aliases: &["ansible.builtin.assert"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::BY_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("fail_msg", "2.7"), ("quiet", "2.8"), ("success_msg", "2.7")],
        summary: "Fails unless every condition holds.",
        example: "assert: {that: ['1 + 1 == 2']}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.that.is_empty() {
            return Err(ParamError::new("that", "at least one condition is needed"));
        }
        for (name, told) in [("fail_msg", &self.fail_msg), ("success_msg", &self.success_msg)] {
            // Only lists: the run reports a single value that is no text, in Ansible's words.
            if let Some(Value::Array(texts)) = told
                && !texts.iter().all(Value::is_string)
            {
                return Err(ParamError::new(name, format!("`{name}` wants a text or a list of texts")));
            }
        }
        Ok(())
    }
}

/// Fails with a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// Text, or any value.
    #[serde(default = "asked_to_fail")]
    pub msg: Value,
}

fn asked_to_fail() -> Value {
    Value::from("Failed as requested from task")
}
impl Kind for Fail {
    const INFO: KindInfo = KindInfo {
        name: "fail",
        aliases: &["ansible.builtin.fail"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: Some("msg"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Fails with a message.",
        example: "fail: {msg: 'not on this node'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Sets variables of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SetFact {
    /// Names and values.
    pub facts: Map<String, Value>,
}

impl Kind for SetFact {
    const INFO: KindInfo = KindInfo {
        name: "set_fact",
        aliases: &["ansible.builtin.set_fact"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: None,
        open_keys: true,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Sets variables of the host for the rest of the run.",
        example: "set_fact: {rack_ready: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

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
    /// Hosts that failed so far take part again from the next play on.
    ClearHostErrors: "clear_host_errors",
    /// Ends the batch: the play goes on with the next one.
    EndBatch: "end_batch",
    /// Ends the role for this host.
    EndRole: "end_role",
    /// Does nothing: an inventory is read once, before the run, so that a run can be planned and resumed.
    RefreshInventory: "refresh_inventory",
    /// Forgets the facts of the host.
    ClearFacts: "clear_facts",
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
impl Kind for Meta {
    const INFO: KindInfo = KindInfo {
        name: "meta",
        aliases: &["ansible.builtin.meta"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: Some("action"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Steers the play: runs handlers now, ends the play, ends it for this host, clears errors.",
        example: "meta: flush_handlers",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Includes a file of tasks when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IncludeTasks {
    /// The file: beside the one that includes it, in the role, or beside the playbook.
    pub file: String,
    /// Keys that the included tasks get, such as `become` or `tags`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Map<String, Value>>,
}
impl Kind for IncludeTasks {
    const INFO: KindInfo = KindInfo {
        name: "include_tasks",
        aliases: &["ansible.builtin.include_tasks"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: Some("file"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Includes a file of tasks when its turn comes.",
        example: "include_tasks: driver.yml",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Includes a role when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IncludeRole {
    /// The role.
    #[serde(alias = "role")]
    pub name: String,
    /// The file of its `tasks/`, without ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks_from: Option<String>,
    /// The file of its `vars/`, without ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vars_from: Option<String>,
    /// The file of its `defaults/`, without ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults_from: Option<String>,
    /// The file of its `handlers/`, without ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handlers_from: Option<String>,
    /// Whether later tasks of the play see its variables.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub public: bool,
    /// Taken for Ansible's sake: a role that is included runs each time.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub allow_duplicates: bool,
    /// Whether its arguments are checked against `meta/argument_specs.yml`.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub rolespec_validate: bool,
    /// Keys that the included tasks get, such as `become` or `tags`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply: Option<Map<String, Value>>,
}
impl Kind for IncludeRole {
    const INFO: KindInfo = KindInfo {
        name: "include_role",
        aliases: &["ansible.builtin.include_role"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Includes a role when its turn comes.",
        example: "include_role: {name: gpu_driver}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

fn yes() -> bool {
    true
}

/// Reads variables from files of the controller when its turn comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IncludeVars {
    /// The file: in `vars/` of the role or playbook, or beside the tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A folder, all of whose files are read in the order of their names, those of folders in it after its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// One variable that takes all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How deep folders are read: 1 is the folder alone, 0 (default) all in it.
    #[serde(default, deserialize_with = "lenient::u32")]
    pub depth: u32,
    /// Only files whose name matches this expression somewhere are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_matching: Option<String>,
    /// Expressions; a file whose name ends with a match of one is not read.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub ignore_files: Vec<String>,
    /// Endings that files of variables have: `yaml`, `yml` and `json` when left out.
    #[serde(default = "of_variables", deserialize_with = "lenient::one_or_many")]
    pub extensions: Vec<String>,
    /// Whether files with other endings are passed over; they are a mistake otherwise.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub ignore_unknown_extensions: bool,
    /// `replace` (default), or `merge` with what the variables are already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_behaviour: Option<HashBehaviour>,
}

/// What becomes of mappings that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HashBehaviour {
    Replace,
    Merge,
}

fn of_variables() -> Vec<String> {
    ["yaml", "yml", "json"].map(ToOwned::to_owned).into()
}

fn are_of_variables(endings: &[String]) -> bool {
    endings == of_variables()
}

impl Kind for IncludeVars {
    const INFO: KindInfo = KindInfo {
        name: "include_vars",
        aliases: &["ansible.builtin.include_vars"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: Some("file"),
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("depth", None, 0)],
        since: &[
            ("depth", "2.2"),
            ("dir", "2.2"),
            ("extensions", "2.3"),
            ("file", "2.2"),
            ("files_matching", "2.2"),
            ("hash_behaviour", "2.12"),
            ("ignore_files", "2.2"),
            ("ignore_unknown_extensions", "2.7"),
            ("name", "2.2"),
        ],
        summary: "Reads variables from files of the controller when its turn comes.",
        example: "include_vars: driver.yml",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match (&self.file, &self.dir) {
            (None, None) => Err(ParamError::new("file", "`file` or `dir` is needed")),
            (Some(_), Some(_)) => Err(ParamError::new("dir", "`file` and `dir` exclude each other")),
            (Some(_), None) => {
                let of_folders = [
                    ("depth", self.depth != 0),
                    ("files_matching", self.files_matching.is_some()),
                    ("ignore_files", !self.ignore_files.is_empty()),
                    ("extensions", !are_of_variables(&self.extensions)),
                    ("ignore_unknown_extensions", self.ignore_unknown_extensions),
                ];
                match of_folders.into_iter().find(|(_, given)| *given) {
                    Some((name, _)) => Err(ParamError::new(name, format!("`{name}` goes with `dir`"))),
                    None => Ok(()),
                }
            }
            (None, Some(_)) => Ok(()),
        }
    }
}

/// Checks variables against the arguments of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ValidateArgumentSpec {
    /// Options with `type`, `required`, `choices`, `elements`, `options`, as in `meta/argument_specs.yml`.
    pub argument_spec: Map<String, Value>,
    /// The arguments; without them the variables of the same names.
    #[serde(default)]
    pub provided_arguments: Map<String, Value>,
}
impl Kind for ValidateArgumentSpec {
    const INFO: KindInfo = KindInfo {
        name: "validate_argument_spec",
        aliases: &["ansible.builtin.validate_argument_spec"],
        class: Class::Control,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::BY_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Checks variables against the arguments of a role.",
        example: "validate_argument_spec: {argument_spec: {version: {type: str, required: true}}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}
