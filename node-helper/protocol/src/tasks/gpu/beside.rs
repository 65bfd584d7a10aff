//! The kinds around the GPUs: services and files that the driver's users need, and how long what they set lasts.
//!
//! What they read and write stands with each of them ([`Ground`](super::super::Ground)); this is what a reset, a reload and
//! a reboot do to it, and which GPUs it is for.

use super::{Belief, Lasts};
use crate::tasks::{
    ContainerToolkit, CudaCompat, Dcgm, DockerDaemon, FabricManager, GpuDirect, GpuKeep, GroundKind,
    NvidiaImex, PciSettings,
};

/// The facts about such a kind. There are no defaults: a kind that leaves an answer out does not compile.
#[derive(Debug)]
pub struct Beside {
    pub survives_reset: Lasts,
    /// The end of the last client of a GPU without persistence.
    pub survives_last_client: Lasts,
    pub survives_reload: Lasts,
    pub survives_reboot: Lasts,
    pub architectures: &'static str,
    pub beliefs: &'static [Belief],
}

/// A kind for what stands beside the GPUs.
pub trait BesideKind: GroundKind {
    const BESIDE: Beside;
}

impl BesideKind for GpuKeep {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly(
            "yes; what it asserts is asserted at the next boot, not at the reload",
        ),
        survives_reboot: Lasts::Partly("yes: it is what asserts the state then"),
        architectures: "all",
        beliefs: &[Belief {
            believed: "a unit with `Before=slurmd.service` keeps slurmd from starting when it fails",
            fact: "slurmd starts all the same; only a check in front of its own start holds it, which `on_failure: hold` adds",
        }],
    };
}

impl BesideKind for FabricManager {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Partly("yes; it trains the links of a GPU that was reset anew"),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("it is stopped before, and started after in the driver's version"),
        survives_reboot: Lasts::Partly("yes, if its unit is enabled"),
        architectures: "machines with NVSwitches: HGX A100, H100 and H200; B200 and B300 with nvlsm too",
        beliefs: &[
            Belief {
                believed: "every machine with NVLink needs a fabric manager",
                fact: "only one with switches does; links from GPU to GPU (bridges) need none",
            },
            Belief {
                believed: "nvidia-smi shows healthy GPUs, so the fabric works",
                fact: "without a fabric manager CUDA fails with error 802, and nvidia-smi is as always",
            },
        ],
    };
}

impl BesideKind for NvidiaImex {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("it is stopped before, and started after in the driver's version"),
        survives_reboot: Lasts::Partly(
            "the daemon and its members: yes; the channels below /dev: only with `NVreg_CreateImexChannel0=1`",
        ),
        architectures: "racks with NVLink between nodes: GB200 and GB300 NVL",
        beliefs: &[],
    };
}

impl BesideKind for Dcgm {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Partly("it is stopped before, because it holds every GPU, and started after"),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("it is stopped before, and started after"),
        survives_reboot: Lasts::Partly("yes, if its unit is enabled"),
        architectures: "data-center GPUs; others only in part",
        beliefs: &[Belief {
            believed: "`dcgmi diag` can run beside a job",
            fact: "from level 2 on it loads the GPUs: it slows the job down, fails by it, or takes its memory; the node is drained \
                   for it",
        }],
    };
}

impl BesideKind for CudaCompat {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("another driver changes the answer"),
        survives_reboot: Lasts::Partly("another driver changes the answer"),
        architectures: "all; forward compatibility (cuda-compat) on data-center GPUs alone",
        beliefs: &[Belief {
            believed: "a container brings its CUDA along, so that the node's driver does not matter",
            fact: "it brings the runtime; libcuda.so is the node's, and a driver that is too old fails in the container",
        }],
    };
}

impl BesideKind for ContainerToolkit {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Partly(
            "files: yes; a CDI specification names MIG instances that are gone after a reset, and is made anew",
        ),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly(
            "files: yes; a CDI specification names libraries of the former version, and is made anew",
        ),
        survives_reboot: Lasts::Partly(
            "files and /etc/cdi: yes; /var/run/cdi: no, the toolkit's own unit makes it anew",
        ),
        architectures: "all",
        beliefs: &[Belief {
            believed: "nvidia-cdi-refresh notices new MIG instances",
            fact: "it notices new drivers and toolkits alone; gpufleet starts it after each change of a layout",
        }],
    };
}

impl BesideKind for DockerDaemon {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly(
            "yes; containers keep the libraries of the former driver until they are made anew",
        ),
        survives_reboot: Lasts::Yes,
        architectures: "all",
        beliefs: &[Belief {
            believed: "`live-restore: true` in daemon.json keeps containers over the next restart of Docker",
            fact: "only if it was in force before that restart; `docker info` tells",
        }],
    };
}

impl BesideKind for GpuDirect {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("nvidia-peermem is unloaded before, and loaded again"),
        survives_reboot: Lasts::Partly("with `peermem: present`"),
        architectures: "data-center and professional GPUs; dma-buf with the open kernel modules alone (Turing and later)",
        beliefs: &[],
    };
}

impl BesideKind for PciSettings {
    const BESIDE: Beside = Beside {
        survives_reset: Lasts::Partly(
            "registers of the GPU: no, the next run sets them; ACS of the ports above: yes",
        ),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("the driver may set the read request again"),
        survives_reboot: Lasts::Partly("by a service of gpufleet"),
        architectures: "all, on bare metal",
        beliefs: &[Belief {
            believed: "ACS has to be off wherever GPUs talk to each other",
            fact: "on bare metal it costs speed; in virtual machines with ATS only the bridges of the way need other values, and \
                   without ACS guests are not kept apart",
        }],
    };
}
