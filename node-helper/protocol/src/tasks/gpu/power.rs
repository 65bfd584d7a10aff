//! `gpu_power`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, Unit, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { PowerScope {
    /// The GPU.
    Gpu: "gpu",
    /// The module of GPU and CPU.
    Module: "module" | "total_module",
} }

const fn of_gpu() -> PowerScope {
    PowerScope::Gpu
}

/// Sets the power limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuPower {
    /// Limit in watts.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<u32>,
    /// Limit in percent of the default limit of the GPU or the module.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub limit_percent: Option<u32>,
    /// What is limited: `gpu`, or `module`, which is GPU and CPU of a Grace board together.
    #[serde(default = "of_gpu")]
    pub scope: PowerScope,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuPower {
    const INFO: KindInfo = KindInfo {
        name: "gpu_power",
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
        numbers: &[
            Number::from("gpus", None, 0),
            Number::from("limit_watts", Some(Unit::Watts), 1),
            Number::within("limit_percent", Some(Unit::Percent), 1, 200),
        ],
        since: &[],
        summary: "Sets the power limit of GPUs.",
        example: "gpu_power: {limit_watts: 600}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match (self.limit_watts, self.limit_percent) {
            (None, None) => {
                Err(ParamError::new("limit_watts", "one of `limit_watts` and `limit_percent` is needed"))
            }
            (Some(_), Some(_)) => {
                Err(ParamError::new("limit_percent", "`limit_watts` and `limit_percent` exclude each other"))
            }
            _ => Ok(()),
        }
    }
}

impl GpuKind for GpuPower {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvmlDeviceGetPowerManagementLimit",
            "nvmlDeviceGetPowerManagementLimitConstraints",
            "nvmlDeviceGetPowerManagementDefaultLimit",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetFieldValues 187 to 189 and 192, within the scope of the module",
        ],
        writes: &[
            "nvmlDeviceSetPowerManagementLimit",
            "nvmlDeviceSetPowerManagementLimit_v2, with NVML_POWER_SCOPE_MODULE",
        ],
        takes_effect: "at once",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::No,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "GPU: all with power management; module: Grace Hopper and Grace Blackwell",
        source: "nvml.h 13; nvidia-smi documentation, `--scope`",
        beliefs: &[
            Belief {
                believed: "a power limit stays until it is set anew",
                fact: "without persistence the driver takes the default again when the last client ends",
            },
            Belief {
                believed: "on a Grace board the limit of the GPU is the limit of the module",
                fact: "each has its own: with a limit of the module, the CPU's power comes out of what the GPU may draw",
            },
            Belief {
                believed: "the limit that was asked for is the one that counts",
                fact: "the enforced limit is the smallest of all limiters, and may be below it",
            },
        ],
    };
}

impl GpuPower {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        newer.scope == self.scope && covers(&newer.gpus, &self.gpus)
    }
}
