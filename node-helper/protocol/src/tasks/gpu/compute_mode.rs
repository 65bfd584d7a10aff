//! `gpu_compute_mode`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { ComputeModeName {
    Default: "default",
    ExclusiveProcess: "exclusive_process" | "exclusive-process",
    Prohibited: "prohibited",
} }

/// Sets the compute mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuComputeMode {
    /// `default`, `exclusive_process` or `prohibited`.
    pub mode: ComputeModeName,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuComputeMode {
    const INFO: KindInfo = KindInfo {
        name: "gpu_compute_mode",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: true,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("gpus", None, 0)],
        since: &[],
        summary: "Sets who may use a GPU: all processes, one, or none.",
        example: "gpu_compute_mode: {mode: default}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuComputeMode {
    const HARDWARE: Hardware = Hardware {
        reads: &["nvmlDeviceGetComputeMode"],
        writes: &["nvmlDeviceSetComputeMode"],
        takes_effect: "at once, for new contexts",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::No,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "all; not on a GPU in MIG mode",
        source: "nvml.h 13",
        beliefs: &[Belief {
            believed: "one thread may be given a GPU (`exclusive_thread`)",
            fact: "that mode is gone from NVML; `exclusive_process` is what is left of it",
        }],
    };
}

impl GpuComputeMode {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}
