//! `gpu_ecc`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { EccMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

/// Sets the ECC mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuEcc {
    /// `enabled` or `disabled`; current after the next reset or reboot.
    pub mode: EccMode,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuEcc {
    const INFO: KindInfo = KindInfo {
        name: "gpu_ecc",
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
        summary: "Sets the ECC mode, which becomes current with the next reset or reboot.",
        example: "gpu_ecc: {mode: enabled}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuEcc {
    const HARDWARE: Hardware = Hardware {
        reads: &["nvmlDeviceGetEccMode"],
        writes: &["nvmlDeviceSetEccMode"],
        takes_effect: "at the next reset or reboot",
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Yes,
        survives_reboot: Lasts::Yes,
        architectures: "GPUs with ECC memory; some refuse to switch it off, which only the call tells",
        source: "nvml.h 13; NVIDIA's note on memory errors of the A100 (R450)",
        beliefs: &[
            Belief {
                believed: "ECC takes 6 percent of the memory, so that an A100 40 GB has 37.5 GB",
                fact: "the A100 keeps ECC bits apart and loses none; parts with GDDR memory do lose some",
            },
            Belief {
                believed: "`nvidia-smi -p 0` clears the ECC counters",
                fact: "it clears the volatile ones; the aggregate ones cannot be cleared from Ampere on",
            },
            Belief {
                believed: "counters have to be cleared before a test",
                fact: "no kind clears them: audits judge what grew since the last one, and a cleared counter hides a fault; each reset \
                       and reload clears the volatile ones anyway",
            },
            Belief {
                believed: "the current mode tells whether there is something to set",
                fact: "the pending one does: a mode that is pending already only waits for a reset or reboot",
            },
        ],
    };
}

impl GpuEcc {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}
