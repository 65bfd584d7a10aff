//! `gpu_reset`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { ResetWhen {
    /// The driver asks for it, or memory rows wait to be replaced.
    Required: "required",
    Always: "always",
} }

/// Resets GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuReset {
    /// `required` (default): where the driver asks for a reset, or memory rows wait to be replaced; `always`: once in every
    /// run.
    #[serde(default = "required")]
    pub when: ResetWhen,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

fn required() -> ResetWhen {
    ResetWhen::Required
}

impl Kind for GpuReset {
    const INFO: KindInfo = KindInfo {
        name: "gpu_reset",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
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
        summary: "Resets GPUs: those that need it, or all; what the play declared of them is set again.",
        example: "gpu_reset: {when: required}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuReset {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvmlDeviceGetFieldValues: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
            "nvmlDeviceGetRemappedRows",
            "/sys/bus/pci/devices/*/reset",
        ],
        writes: &["nvidia-smi --gpu-reset"],
        takes_effect: "at once; a reboot where the kernel offers no reset",
        survives_reset: Lasts::Partly("it is the reset"),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Yes,
        survives_reboot: Lasts::Yes,
        architectures: "all; up to Volta with all peers on NVLink at once, Ampere so without the fabric manager",
        source: "nvidia-smi documentation; nvml.h 13",
        beliefs: &[
            Belief {
                believed: "NVML resets GPUs",
                fact: "it has no public call for it; every tool starts `nvidia-smi --gpu-reset`",
            },
            Belief {
                believed: "a reset only needs the GPU to be idle",
                fact: "no process may have it open, not even one that only reads, and persistence has to be off meanwhile",
            },
            Belief {
                believed: "a reset helps against every error",
                fact: "the driver may ask for a reboot, or for the end of other work, which a reset is not",
            },
        ],
    };
}

impl GpuReset {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus) && (self.when == newer.when || newer.when == ResetWhen::Always)
    }
}
