//! `gpu_persistence`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { PersistenceMode {
    /// nvidia-persistenced runs and is enabled at boot.
    Daemon: "daemon",
    /// The kernel flag, lost at reboot.
    Legacy: "legacy",
    Off: "off" | "none" | "disabled",
} }

/// Keeps the driver loaded while no client runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuPersistence {
    /// `daemon`: nvidia-persistenced runs and is enabled; `legacy`: the kernel flag, lost at reboot; `off`.
    pub mode: PersistenceMode,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuPersistence {
    const INFO: KindInfo = KindInfo {
        name: "gpu_persistence",
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
        summary: "Keeps the driver loaded while no client runs, through the daemon or the legacy flag.",
        example: "gpu_persistence: {mode: daemon}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuPersistence {
    const HARDWARE: Hardware = Hardware {
        reads: &["nvmlDeviceGetPersistenceMode", "systemctl show nvidia-persistenced.service"],
        writes: &[
            "nvmlDeviceSetPersistenceMode",
            "systemctl enable, add-wants, start, stop and disable of the unit",
            "/etc/systemd/system/nvidia-persistenced.service.d/{50-gpufleet,51-gpufleet-start}.conf, where the unit needs them",
        ],
        takes_effect: "at once",
        survives_reset: Lasts::Partly(
            "the daemon: it is taken off for the reset and put back; the flag: set again",
        ),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("the daemon: yes, it opens the GPUs again; the flag: no"),
        survives_reboot: Lasts::Partly("the daemon: yes, if its unit is enabled; the flag: no"),
        architectures: "all",
        source: "nvml.h 13; NVIDIA/nvidia-persistenced 595.71; the unit of Ubuntu's nvidia-compute-utils; systemd 252",
        beliefs: &[
            Belief {
                believed: "`persistence_mode` Enabled shows that the daemon runs",
                fact: "the legacy flag gives the same reading; only the unit tells them apart",
            },
            Belief {
                believed: "`systemctl enable nvidia-persistenced` keeps persistence on after a boot",
                fact: "Ubuntu's unit has no [Install], so that it does nothing, and starts the daemon with `--no-persistence-mode`",
            },
            Belief {
                believed: "the daemon has to be stopped for a reset",
                fact: "persistence of the one GPU is enough, and other GPUs keep their state",
            },
        ],
    };
}

impl GpuPersistence {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}
