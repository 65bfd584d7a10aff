//! Parameters of the kinds that wait.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading,
    files::{on_node, yes},
    words::words,
};
use crate::{
    Disruption, Unit, lenient,
    operation::{Effect, Needs, Operation, paths, undeclared},
    pattern,
};

words! { WaitState {
    Started: "started", Present: "present", Stopped: "stopped", Absent: "absent", Drained: "drained",
} }

/// Waits on the node for a port or a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitFor {
    /// Name or address to connect to, as the node sees it.
    #[serde(default = "localhost")]
    pub host: String,
    /// Port that takes connections, or does not any more.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    /// Path that appears, or goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Regular expression that what the port says, or what the file holds, must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_regex: Option<String>,
    /// `started` (default) or `present`: there; `stopped` or `absent`: gone; `drained`: no connection is open.
    #[serde(default = "started")]
    pub state: WaitState,
    /// How long to wait before the first look.
    #[serde(default, deserialize_with = "lenient::seconds")]
    pub delay: u64,
    /// How long to wait at most. With neither `port` nor `path` the task waits so long and is done.
    #[serde(default = "five_minutes", deserialize_with = "lenient::seconds")]
    pub timeout: u64,
    /// How long to wait between two looks.
    #[serde(default = "one", deserialize_with = "lenient::seconds")]
    pub sleep: u64,
    /// How long one try to connect may take.
    #[serde(default = "five", deserialize_with = "lenient::seconds")]
    pub connect_timeout: u64,
    /// Text when the time is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg: Option<String>,
    /// Addresses whose connections do not count for `drained`.
    #[serde(default, deserialize_with = "lenient::names", skip_serializing_if = "Vec::is_empty")]
    pub exclude_hosts: Vec<String>,
    /// States of connections that count for `drained`.
    #[serde(default = "active_states", deserialize_with = "lenient::names")]
    pub active_connection_states: Vec<String>,
}

fn localhost() -> String {
    "127.0.0.1".to_owned()
}
fn started() -> WaitState {
    WaitState::Started
}
fn five_minutes() -> u64 {
    300
}
fn one() -> u64 {
    1
}
fn five() -> u64 {
    5
}
fn active_states() -> Vec<String> {
    ["ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "SYN_RECV", "SYN_SENT", "TIME_WAIT"].map(str::to_owned).into()
}

impl Kind for WaitFor {
    const INFO: KindInfo = KindInfo {
        name: "wait_for",
        aliases: &["ansible.builtin.wait_for"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[
            Number::within("port", None, 1, 65_535),
            Number::from("delay", Some(Unit::Seconds), 0),
            Number::from("timeout", Some(Unit::Seconds), 0),
            Number::from("sleep", Some(Unit::Seconds), 0),
            Number::from("connect_timeout", Some(Unit::Seconds), 0),
        ],
        since: &[
            ("active_connection_states", "2.3"),
            ("exclude_hosts", "1.8"),
            ("msg", "2.4"),
            ("path", "1.4"),
            ("search_regex", "1.4"),
            ("sleep", "2.3"),
        ],
        summary: "Waits on the node for a port or a path.",
        example: "wait_for: {port: 22, timeout: 60}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let refuse = |parameter: &str, why: &str| Err(ParamError::new(parameter, why));
        match (&self.path, self.port) {
            (Some(_), Some(_)) => return refuse("port", "`port` and `path` exclude each other"),
            (Some(path), None) => on_node("path", path)?,
            _ => {}
        }
        match self.state {
            WaitState::Stopped if self.path.is_some() => {
                refuse("state", "a path is not stopped; `absent` waits until it is gone")
            }
            WaitState::Drained if self.port.is_none() => {
                refuse("port", "`drained` needs the port that drains")
            }
            _ if !self.exclude_hosts.is_empty() && self.state != WaitState::Drained => {
                refuse("exclude_hosts", "`exclude_hosts` needs `state: drained`")
            }
            _ if self.search_regex.is_some() && self.path.is_none() && self.port.is_none() => {
                refuse("search_regex", "`search_regex` needs `port` or `path`")
            }
            _ => pattern::check([("search_regex", self.search_regex.as_deref())]),
        }
    }
}

impl Operation for WaitFor {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}

/// Pauses the play.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// How many seconds to wait.
    #[serde(
        default,
        deserialize_with = "lenient::optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub seconds: Option<u64>,
    /// How many minutes to wait.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub minutes: Option<u32>,
    /// Text to show; without a time the play waits for the return key, and the answer is in `user_input`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Whether what is typed is shown (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub echo: bool,
}

impl Pause {
    /// Returns how long to wait, in seconds; `None` waits for a person.
    pub fn wait_s(&self) -> Option<u64> {
        self.seconds.or_else(|| self.minutes.map(|minutes| u64::from(minutes) * 60))
    }
}

impl Kind for Pause {
    const INFO: KindInfo = KindInfo {
        name: "pause",
        aliases: &["ansible.builtin.pause"],
        class: Class::Session,
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
        numbers: &[
            Number::from("seconds", Some(Unit::Seconds), 0),
            Number::from("minutes", Some(Unit::Minutes), 0),
        ],
        since: &[("echo", "2.5")],
        summary: "Pauses the play for a time or until a person says so, once for all hosts.",
        example: "pause: {seconds: 30}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.seconds.is_some() && self.minutes.is_some() {
            return Err(ParamError::new("minutes", "`seconds` and `minutes` exclude each other"));
        }
        Ok(())
    }
}
