//! Parameters of `health_info`, which reads the signals of a node.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading};
use crate::{
    Disruption, Unit, lenient,
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
    /// by their ids. A playbook can read files; commands run for own checks of an audit's baseline only.
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
    /// Time limit, in seconds.
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
    /// Longest time limit of one reading, in seconds.
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
    /// Whether it runs commands of the user's own, for which a session has to be opened.
    pub fn runs_commands(&self) -> bool {
        self.reads.iter().any(|read| read.file.is_none())
    }

    /// Largest number of readings for checks of the user's own.
    pub const MOST_READS: usize = 64;
    /// Largest sum of their time limits, in seconds; they are taken one after the other.
    pub const MOST_READS_S: u32 = 600;

    /// # Errors
    /// If there are too many readings, or they may take too long together, in words.
    pub fn within_limits<'a>(reads: impl IntoIterator<Item = &'a OwnReading>) -> Result<(), String> {
        let (count, seconds) = reads
            .into_iter()
            .fold((0, 0_u32), |(count, seconds), read| (count + 1, seconds.saturating_add(read.timeout_s)));
        if count > Self::MOST_READS || seconds > Self::MOST_READS_S {
            return Err(format!(
                "{count} readings of at most {seconds} s together are too many: {} of {} s are the most",
                Self::MOST_READS,
                Self::MOST_READS_S
            ));
        }
        Ok(())
    }
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
        numbers: &[Number::within("reads.timeout_s", Some(Unit::Seconds), 1, OwnReading::MOST_S as i64)],
        since: &[],
        summary: "Reads the signals that the checks of an audit judge.",
        example: "health_info: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if let Err(why) = Self::within_limits(&self.reads) {
            return Err(ParamError::new("reads", why));
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
