//! `gpu_confidential_compute`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, Hardware, Lasts};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading, words::words},
};

words! { ConfidentialMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

/// Declares confidential computing of a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuConfidentialCompute {
    /// `enabled` or `disabled`: what is expected of the node. It is set outside of the driver, so that another mode is an
    /// error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ConfidentialMode>,
    /// Whether the GPUs accept work while the mode is on.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

impl Kind for GpuConfidentialCompute {
    const INFO: KindInfo = KindInfo {
        name: "gpu_confidential_compute",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
        gpus: true,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Lets GPUs in confidential computing mode accept work, and checks that mode.",
        example: "gpu_confidential_compute: {mode: enabled, ready: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match (self.mode, self.ready) {
            (None, None) => Err(ParamError::new("ready", "one of `mode` and `ready` is needed")),
            (Some(ConfidentialMode::Disabled), Some(true)) => {
                Err(ParamError::new("ready", "GPUs are ready for confidential work only in `mode: enabled`"))
            }
            _ => Ok(()),
        }
    }
}

impl GpuKind for GpuConfidentialCompute {
    const HARDWARE: Hardware = Hardware {
        reads: &["nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeGpusReadyState"],
        writes: &["nvmlSystemSetConfComputeGpusReadyState"],
        takes_effect: "at once",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "Hopper and later, on CPUs with SEV-SNP or TDX",
        source: "nvml.h 13",
        beliefs: &[Belief {
            believed: "the mode is a setting of the driver",
            fact: "it is set on each GPU while no driver has it (NVIDIA's gpu-admin-tools); the driver sets the ready state only",
        }],
    };
}

impl GpuConfidentialCompute {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        (self.mode.is_none() || newer.mode.is_some()) && (self.ready.is_none() || newer.ready.is_some())
    }
}
