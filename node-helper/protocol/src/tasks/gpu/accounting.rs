//! `gpu_accounting`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { AccountingMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

/// Sets whether the driver keeps an account of each process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuAccounting {
    /// `enabled` or `disabled`.
    pub mode: AccountingMode,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuAccounting {
    const INFO: KindInfo = KindInfo {
        name: "gpu_accounting",
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
        summary: "Sets whether the driver keeps use and memory of each process for `nvidia-smi --query-accounted-apps`.",
        example: "gpu_accounting: {mode: enabled}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuAccounting {
    const HARDWARE: Hardware = Hardware {
        reads: &["nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingBufferSize"],
        writes: &["nvmlDeviceSetAccountingMode"],
        takes_effect: "at once, for processes that start later",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::No,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "Kepler and later; not on a GPU in MIG mode",
        source: "nvml.h 13",
        beliefs: &[
            Belief {
                believed: "accounting goes on under MIG",
                fact: "the driver forces it off as long as a GPU is in MIG mode",
            },
            Belief {
                believed: "accounts of all processes are kept",
                fact: "the buffer holds a number of them, and the oldest is overwritten",
            },
        ],
    };
}

impl GpuAccounting {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}
