//! `gpu_clocks`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, Unit, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading},
};

/// A clock, or the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a clock in MHz or a list of two")]
pub enum ClockRange {
    Fixed(u32),
    Range([u32; 2]),
}

impl ClockRange {
    /// Returns the lowest and highest clock, in MHz.
    pub const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Fixed(clock) => (clock, clock),
            Self::Range([low, high]) => (low, high),
        }
    }
}

/// Locks clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuClocks {
    /// Graphics clock in MHz, or lowest and highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphics_mhz: Option<ClockRange>,
    /// Memory clock in MHz, or lowest and highest; up to Ada. The lock of Hopper and later (`nvidia-smi -lmcd`) is not
    /// set: see what is widely believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<ClockRange>,
    /// Gives the clocks back to the driver.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub reset: bool,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuClocks {
    const INFO: KindInfo = KindInfo {
        name: "gpu_clocks",
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
            Number::from("graphics_mhz", Some(Unit::Megahertz), 1),
            Number::from("memory_mhz", Some(Unit::Megahertz), 1),
        ],
        since: &[],
        summary: "Locks graphics or memory clocks, or gives them back to the driver.",
        example: "gpu_clocks: {graphics_mhz: [1200, 1980]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let given = self.graphics_mhz.is_some() || self.memory_mhz.is_some();
        if self.reset == given {
            let message = "give `graphics_mhz`, `memory_mhz` or both, or else `reset: true`";
            // One of them by name, because `gpus` alone is not what is wrong.
            return Err(ParamError::new("graphics_mhz", message));
        }
        for (name, range) in [("graphics_mhz", self.graphics_mhz), ("memory_mhz", self.memory_mhz)] {
            let Some((low, high)) = range.map(ClockRange::bounds) else { continue };
            if low > high {
                return Err(ParamError::new(name, format!("{low} to {high} MHz is not a range of clocks")));
            }
        }
        Ok(())
    }
}

impl GpuKind for GpuClocks {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvmlDeviceGetSupportedMemoryClocks",
            "nvmlDeviceGetSupportedGraphicsClocks",
            "gpufleet's record",
        ],
        writes: &[
            "nvmlDeviceSetGpuLockedClocks",
            "nvmlDeviceResetGpuLockedClocks",
            "nvmlDeviceSetMemoryLockedClocks",
            "nvmlDeviceResetMemoryLockedClocks",
        ],
        takes_effect: "at once",
        survives_reset: Lasts::Unsaid,
        survives_last_client: Lasts::No,
        survives_reload: Lasts::No,
        survives_reboot: Lasts::No,
        architectures: "graphics: Volta and later; memory: up to Ada while the driver runs",
        source: "nvml.h 13; nvidia-smi documentation",
        beliefs: &[
            Belief {
                believed: "`nvidia-smi -lmc` locks the memory clock of a Hopper GPU",
                fact: "Hopper locks it only at the next start of the driver (`--lock-memory-clocks-deferred`)",
            },
            Belief {
                believed: "gpufleet sets that deferred lock",
                fact: "it does not: NVML has no call that sets it or reads it (`nvidia-smi -q` alone shows it, as `Deferred \
                       Clocks`), and it counts only after the driver was loaded again. Do it by hand, once: `nvidia-smi -lmcd \
                       MHZ` in a `command` task, then a reboot (`reboot`), then compare `Deferred Clocks` of `nvidia-smi -q -d \
                       CLOCK`, and the memory clock under load. Back with `nvidia-smi -rmcd`",
            },
            Belief {
                believed: "a lock can be read back",
                fact: "no driver has a call for it; a record of this boot and load of the driver decides",
            },
            Belief {
                believed: "`nvidia-smi -ac` locks clocks",
                fact: "application clocks are a target that is deprecated and gone with CUDA 14",
            },
        ],
    };
}

impl GpuClocks {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        // The two clocks are independent.
        let both = (self.graphics_mhz.is_none() || newer.graphics_mhz.is_some())
            && (self.memory_mhz.is_none() || newer.memory_mhz.is_some());
        covers(&newer.gpus, &self.gpus) && (newer.reset || both)
    }
}
