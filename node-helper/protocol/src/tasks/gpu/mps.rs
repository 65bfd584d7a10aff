//! `gpu_mps`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, Unit, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { MpsState { Started: "started", Stopped: "stopped" } }

/// Runs the CUDA MPS control daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMps {
    /// `started` or `stopped`.
    pub state: MpsState,
    /// Share of the threads that a client gets unless it asks for less, in percent.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub default_active_thread_percentage: Option<u32>,
    /// Device memory that a client may pin unless told otherwise, such as `8G`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub default_pinned_memory_limit: Option<String>,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuMps {
    const INFO: KindInfo = KindInfo {
        name: "gpu_mps",
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
        numbers: &[
            Number::from("gpus", None, 0),
            Number::within("default_active_thread_percentage", Some(Unit::Percent), 1, 100),
        ],
        since: &[],
        summary: "Runs the CUDA MPS control daemon as a systemd unit, with its limits, or stops it cleanly.",
        example: "gpu_mps: {state: started, default_active_thread_percentage: 50}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuKind for GpuMps {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvidia-cuda-mps-control: get_server_list, get_default_active_thread_percentage",
            "/tmp/nvidia-mps",
            "systemctl show gpufleet-mps.service",
        ],
        writes: &[
            "/etc/systemd/system/gpufleet-mps.service",
            "systemctl enable, start, stop and disable of it",
        ],
        takes_effect: "at once; a changed limit restarts the daemon and ends its clients",
        survives_reset: Lasts::Partly("it is stopped before, and started after"),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("it has to be stopped before, and is started after"),
        survives_reboot: Lasts::Partly("yes, as its unit is enabled"),
        architectures: "Volta and later",
        source: "NVIDIA MPS documentation R580",
        beliefs: &[
            Belief {
                believed: "`set_active_thread_percentage` takes the process of a client",
                fact: "it takes the process of a server",
            },
            Belief {
                believed: "a socket in the pipe directory shows that MPS runs",
                fact: "one without a daemon that answers is what a crash left, and is cleaned away",
            },
            Belief {
                believed: "MPS keeps clients apart",
                fact: "a fault of one client ends all clients on that GPU; only MIG isolates",
            },
        ],
    };
}

impl GpuMps {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}
