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
        Ok(())
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
