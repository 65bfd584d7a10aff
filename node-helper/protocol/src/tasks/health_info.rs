//! Parameters of `health_info`, which reads the signals of a node.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading};
use crate::{
    Disruption, lenient,
    operation::{Effect, Needs, Operation, paths, undeclared},
};

/// Reads the signals that the checks of an audit judge: counters, settings and messages of GPUs, driver and operating
/// system. `register` gets them as `signals`.
///
/// It reads without root too; what then cannot be read is `{"unknown": "why"}`, and what the node lacks is null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthInfo {
    /// Whether readings that cost more than milliseconds are taken too.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub deep: bool,
    /// What is read beside the signals, for checks of the user's own. `register` gets them among the signals of the node,
    /// by their ids. Plans and audits read them too, so that a command must change nothing.
    #[serde(default)]
    pub reads: Vec<OwnReading>,
}

/// One file or the output of one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OwnReading {
    /// The name of the reading: the id of the check.
    pub id: String,
    /// Absolute path of a file of text. One that is not there gives null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A program, by path or by name, and its arguments. No shell reads them. What it prints is the reading if it ends with
    /// 0; how it ended is the reading `ID.exit_code`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What the text is; `number` refuses any other.
    #[serde(default, rename = "as")]
    pub form: Form,
    /// Time limit of a command, in seconds.
    #[serde(default = "usual_limit")]
    pub timeout_s: u32,
}

/// What a text is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Form {
    #[default]
    Text,
    Number,
}

impl Form {
    pub const ALL: [Self; 2] = [Self::Text, Self::Number];

    /// Returns the word for it in files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "number",
        }
    }
}

const USUAL_S: u32 = 10;

const fn usual_limit() -> u32 {
    USUAL_S
}

impl Default for OwnReading {
    fn default() -> Self {
        Self { id: String::new(), file: None, command: Vec::new(), form: Form::Text, timeout_s: USUAL_S }
    }
}

impl OwnReading {
    /// Longest time limit of a command, in seconds: all of them together end before the audit's task does.
    pub const MOST_S: u32 = 60;

    /// Returns the name of the reading of how its command ended.
    pub fn exit_code(id: &str) -> String {
        format!("{id}.exit_code")
    }

    /// # Errors
    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), String> {
        let mistake = match (&self.file, self.command.as_slice()) {
            (Some(_), [_, ..]) => "`file` and `command` are two readings, and a check has one",
            (None, []) => "`file` or `command` is needed",
            (Some(path), _) if !path.starts_with('/') => "`file` wants an absolute path",
            (None, [program, ..]) if program.is_empty() => "`command` names no program",
            _ if !(1..=Self::MOST_S).contains(&self.timeout_s) => "`timeout_s` wants a number from 1 to 60",
            _ => return Ok(()),
        };
        Err(mistake.to_owned())
    }
}

impl HealthInfo {
    /// Largest number of readings for checks of the user's own.
    pub const MOST_READS: usize = 64;
}

impl Kind for HealthInfo {
    const INFO: KindInfo = KindInfo {
        name: "health_info",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Reads the signals that the checks of an audit judge.",
        example: "health_info: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.reads.len() > Self::MOST_READS {
            return Err(ParamError::new("reads", format!("at most {} things are read", Self::MOST_READS)));
        }
        let wrong = self.reads.iter().find_map(|read| read.check().err().map(|why| (&read.id, why)));
        match wrong {
            Some((id, why)) => Err(ParamError::new("reads", format!("`{id}`: {why}"))),
            None => Ok(()),
        }
    }
}

impl Operation for HealthInfo {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
