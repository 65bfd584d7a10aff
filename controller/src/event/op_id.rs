//! The identity of an operation within a run.

use std::{fmt, str::FromStr, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Phase;
use crate::index::PlayIndex;

/// The identity of an operation within a run, by which the journal and a node's spool know it.
///
/// Written as text, such as `0/tasks.3[1]+reassert#2~1@gpu001`; what is 0 or absent is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub play: PlayIndex,
    /// Place of the task in the play, such as `tasks.3.rescue.0`.
    pub task: Arc<str>,
    /// Index of the loop's item, from 0.
    pub item: Option<u32>,
    pub phase: Phase,
    /// How often before the same was done: flushes of handlers, activations, verifications.
    pub round: u32,
    /// Which retry of `until` it is, from 0.
    pub retry: u32,
    pub host: Arc<str>,
}

impl OpId {
    /// A task's first operation in its own turn.
    pub fn new(play: PlayIndex, task: impl Into<Arc<str>>, host: impl Into<Arc<str>>) -> Self {
        let (task, host) = (task.into(), host.into());
        Self { play, task, item: None, phase: Phase::Declared, round: 0, retry: 0, host }
    }
}

/// A text that is no [`OpId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` does not identify an operation; it would be PLAY/TASK@HOST")]
pub struct OpIdError {
    pub text: String,
}

const REASSERT: &str = "+reassert";
const VERIFY: &str = "+verify";

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.play, self.task)?;
        if let Some(item) = self.item {
            write!(f, "[{item}]")?;
        }
        match self.phase {
            Phase::Declared => {}
            Phase::Reassert => f.write_str(REASSERT)?,
            Phase::Verify => f.write_str(VERIFY)?,
        }
        if self.round > 0 {
            write!(f, "#{}", self.round)?;
        }
        if self.retry > 0 {
            write!(f, "~{}", self.retry)?;
        }
        write!(f, "@{}", self.host)
    }
}

/// A number as [`OpId`] writes it: digits without a leading zero.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// Takes a count behind `mark` off the end; 0 where there is none.
fn counted(text: &str, mark: char) -> (&str, u32) {
    let found = text.rsplit_once(mark).and_then(|(rest, count)| Some((rest, number(count)?)));
    found.filter(|(_, count)| *count > 0).unwrap_or((text, 0))
}

impl FromStr for OpId {
    type Err = OpIdError;

    /// Reads from the end: the path of an included task has the file's name in it, which may hold any of the marks.
    fn from_str(text: &str) -> Result<Self, OpIdError> {
        let wrong = || OpIdError { text: text.to_owned() };
        let (play, rest) = text.split_once('/').ok_or_else(wrong)?;
        let play = PlayIndex(number(play).ok_or_else(wrong)?);
        let (rest, host) = rest.rsplit_once('@').ok_or_else(wrong)?;
        let (rest, retry) = counted(rest, '~');
        let (rest, round) = counted(rest, '#');
        let (rest, phase) = match (rest.strip_suffix(REASSERT), rest.strip_suffix(VERIFY)) {
            (Some(rest), _) => (rest, Phase::Reassert),
            (_, Some(rest)) => (rest, Phase::Verify),
            (None, None) => (rest, Phase::Declared),
        };
        let item = rest.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
        let item = item.and_then(|(rest, item)| Some((rest, number(item)?)));
        let (task, item) = item.map_or((rest, None), |(rest, item)| (rest, Some(item)));
        Ok(Self { play, task: Arc::from(task), item, phase, round, retry, host: Arc::from(host) })
    }
}

impl Serialize for OpId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OpId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for OpId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OpId".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_read_and_write_the_same() {
        let plain = OpId::new(PlayIndex(1), "tasks.0", "n1");
        let id = OpId { item: Some(2), phase: Phase::Reassert, round: 3, retry: 4, ..plain.clone() };
        let included = OpId { task: "tasks.1+a@b#1~[2]+verify.yml#3.0".into(), ..id.clone() };
        let facts = OpId { task: "facts".into(), phase: Phase::Verify, ..plain.clone() };
        let texts = [
            (plain, "1/tasks.0@n1"),
            (id, "1/tasks.0[2]+reassert#3~4@n1"),
            (included, "1/tasks.1+a@b#1~[2]+verify.yml#3.0[2]+reassert#3~4@n1"),
            (facts, "1/facts+verify@n1"),
        ];
        for (id, text) in texts {
            assert_eq!(id.to_string(), text);
            assert_eq!(serde_json::to_value(&id).unwrap(), text);
            assert_eq!(serde_json::from_value::<OpId>(text.into()).unwrap(), id);
        }
    }

    #[test]
    fn what_is_read_is_written_as_it_was() {
        for text in ["0/tasks.0#0@n", "0/tasks.0#07~0@n", "0/a@b@c", "0/tasks.0[x]@n", "0/@"] {
            assert_eq!(text.parse::<OpId>().unwrap().to_string(), text);
        }
        for text in ["", "tasks.0@n", "x/tasks.0@n", "00/tasks.0@n", "0/tasks.0"] {
            let error = text.parse::<OpId>().unwrap_err();
            assert_eq!(error, OpIdError { text: text.to_owned() });
        }
    }
}
