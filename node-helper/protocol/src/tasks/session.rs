//! Parameters of the kinds that act on the connection or the life of the node.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{Disruption, Unit, lenient};

words! { RebootWhen {
    /// Only where something that this play declared waits for a reboot.
    Required: "required",
    Always: "always",
} }

/// Reboots the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reboot {
    /// `required` (default): only where something that this play declared waits for it; or `always`.
    #[serde(default = "required")]
    pub when: RebootWhen,
    /// How long the node may take to come back, such as `20m`.
    #[serde(default = "twenty_minutes", alias = "reboot_timeout", deserialize_with = "lenient::seconds")]
    pub timeout: u64,
}

fn required() -> RebootWhen {
    RebootWhen::Required
}
fn twenty_minutes() -> u64 {
    20 * 60
}
impl Kind for Reboot {
    const INFO: KindInfo = KindInfo {
        name: "reboot",
        aliases: &["ansible.builtin.reboot"],
        class: Class::Session,
        disruption: Disruption::Reboot,
        gpus: false,
        needs_root: true,
        judged: false,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        // The node is drained before, so no user is logged in to read it.
        ignored: &["msg"],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("timeout", Some(Unit::Seconds), 0)],
        since: &[],
        summary: "Reboots the node, proven by a new boot id, when something written waits for it.",
        example: "reboot: {when: required, timeout: 20m}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

/// Waits until the node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitForConnection {
    /// How long to wait at most, such as `10m`.
    #[serde(default = "ten_minutes", deserialize_with = "lenient::seconds")]
    pub timeout: u64,
    /// How long to wait before the first try.
    #[serde(default, deserialize_with = "lenient::seconds")]
    pub delay: u64,
}

fn ten_minutes() -> u64 {
    600
}
impl Kind for WaitForConnection {
    const INFO: KindInfo = KindInfo {
        name: "wait_for_connection",
        aliases: &["ansible.builtin.wait_for_connection"],
        class: Class::Session,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[
            Number::from("timeout", Some(Unit::Seconds), 0),
            Number::from("delay", Some(Unit::Seconds), 0),
        ],
        since: &[],
        summary: "Waits until the node answers over SSH.",
        example: "wait_for_connection: {timeout: 300}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}
