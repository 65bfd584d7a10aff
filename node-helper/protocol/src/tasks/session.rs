//! Parameters of the kinds that act on the connection or the life of the node.

use serde::{Deserialize, Serialize};

use super::{Checked, words::words};
use crate::lenient;

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
impl Checked for Reboot {
    // Why: the node is drained before, so that nobody is there to read it.
    const IGNORED: &'static [&'static str] = &["msg"];
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
impl Checked for WaitForConnection {}
