//! `gpu_mps`.

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, Unit, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { MpsState { Started: "started", Stopped: "stopped" } }
words! { MpsScope { Node: "node", Gpu: "gpu", Mig: "mig" } }

impl MpsScope {
    fn is_node(&self) -> bool {
        *self == Self::Node
    }
}

fn node() -> MpsScope {
    MpsScope::Node
}

/// Longest name of a user. Source: useradd(8).
const LONGEST_USER: usize = 32;

/// Runs CUDA MPS control daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMps {
    /// `started` or `stopped`.
    pub state: MpsState,
    /// What has a daemon of its own: the `node` (clients find it by themselves), each `gpu`, or each compute instance of
    /// `mig`. The last two have their pipes in `/run/nvidia-mps/UUID`, which clients need as `CUDA_MPS_PIPE_DIRECTORY`.
    #[serde(default = "node", skip_serializing_if = "MpsScope::is_node")]
    pub scope: MpsScope,
    /// User that the daemons run as and that alone may be their client, with `scope: gpu` or `mig`; without it every
    /// user of the node may.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Share of the threads that a client gets unless it asks for less, in percent. Reaches servers that start later.
    #[serde(
        default,
        alias = "active_thread_percentage",
        deserialize_with = "lenient::optional_u32",
        skip_serializing_if = "Option::is_none"
    )]
    pub default_active_thread_percentage: Option<u32>,
    /// Device memory that a client may pin unless told otherwise, such as `8G`. Reaches servers that start later.
    #[serde(
        default,
        alias = "pinned_device_memory",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
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
        summary: "Runs CUDA MPS control daemons as systemd units, for the node, each GPU or each MIG instance, with their \
                  limits, or stops them cleanly.",
        example: "gpu_mps: {state: started, scope: gpu, user: triton, default_active_thread_percentage: 50}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if let Some(Err(wrong)) = self.default_pinned_memory_limit.as_deref().map(Self::memory_limit) {
            return Err(ParamError::new("default_pinned_memory_limit", wrong));
        }
        let Some(user) = &self.user else { return Ok(()) };
        if self.scope == MpsScope::Node {
            let message =
                "the daemon of a node serves one user after the other; give `scope: gpu` or `scope: mig`";
            return Err(ParamError::new("user", message));
        }
        // It is written into a unit file, where other characters have a meaning.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if user.is_empty()
            || user.len() > LONGEST_USER
            || user.starts_with(['-', '.'])
            || !user.bytes().all(plain)
        {
            return Err(ParamError::new("user", format!("`{user}` is no name of a user")));
        }
        Ok(())
    }
}

impl GpuKind for GpuMps {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvidia-cuda-mps-control: get_server_list, get_default_active_thread_percentage",
            "/tmp/nvidia-mps, /run/nvidia-mps/UUID",
            "systemctl show of the units",
        ],
        writes: &[
            "/etc/systemd/system/gpufleet-mps.service, gpufleet-mps@UUID.service",
            "systemctl enable, start, stop and disable of them",
            "nvidia-cuda-mps-control: set_default_active_thread_percentage, set_default_device_pinned_mem_limit",
        ],
        takes_effect: "at once; a changed limit reaches servers that start later, and a removed one restarts the daemon",
        survives_reset: Lasts::Partly(
            "it is stopped before, and started after; those of MIG instances go with them",
        ),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("it has to be stopped before, and is started after"),
        survives_reboot: Lasts::Partly(
            "yes, as its unit is enabled; those of MIG instances not, because the instances go (`gpufleet run --keep`)",
        ),
        architectures: "Volta and later",
        source: "NVIDIA MPS documentation R580 and R615; NVIDIA/k8s-device-plugin mps-control-daemon",
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
            Belief {
                believed: "a daemon without `user` shares a GPU between users",
                fact: "it serves one user at a time: others wait until the clients of the first have ended, and whoever \
                       comes may hold the GPU for as long as they like",
            },
            Belief {
                believed: "a new default limit reaches clients that run",
                fact: "it reaches servers that start later; a server keeps the limits that it was started with",
            },
            Belief {
                believed: "MPS alone decides who uses a GPU",
                fact: "a process without its pipe directory works beside it, unless the compute mode is \
                       exclusive_process (`gpu_compute_mode`), which a GPU in MIG mode does not have",
            },
        ],
    };
}

impl GpuMps {
    /// Returns a memory limit as the daemon reads it.
    ///
    /// # Errors
    /// One sentence, if it is no number with one of the units K, M, G and T, or none.
    pub fn memory_limit(text: &str) -> Result<String, String> {
        let limit = text.trim().to_ascii_uppercase();
        let digits = limit.trim_end_matches(['K', 'M', 'G', 'T']);
        let unit = limit.len() - digits.len();
        if !digits.is_empty() && unit <= 1 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(limit);
        }
        Err(format!("`{text}` is no memory limit; write it as 8G or 512M"))
    }

    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        // A node has one daemon or one for each device, never both.
        newer.scope != self.scope && newer.state == MpsState::Started || covers(&newer.gpus, &self.gpus)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_memory_limit_that_the_daemon_would_not_read_is_refused() {
        let read = |limit: &str| {
            GpuMps::INFO.parse(json!({"state": "started", "default_pinned_memory_limit": limit}))
        };
        assert!(read("16G").is_ok() && read("512m").is_ok());
        let why = read("16GiB").unwrap_err().to_string();
        assert_eq!(why, "`16GiB` is no memory limit; write it as 8G or 512M");
    }
}
