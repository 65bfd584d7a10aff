//! Parameters of `gpudirect`, which checks that network cards reach the memory of GPUs.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! {
    #[derive(Default)]
    GpuDirectWay {
        /// One of the two.
        #[default]
        Any: "any",
        DmaBuf: "dma_buf",
        Peermem: "peermem",
    }
}

words! { PeermemState { Present: "present" } }

/// Checks that network cards reach the memory of GPUs directly (GPUDirect RDMA).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuDirect {
    /// `any` (default): dma-buf, or the older nvidia-peermem; `dma_buf` and `peermem` ask for that one.
    #[serde(default)]
    pub via: GpuDirectWay,
    /// Whether nvidia-peermem is loaded, now and at every boot. Not needed where dma-buf works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peermem: Option<PeermemState>,
}

impl GpuDirect {
    /// The module of the older way, as modules-load.d names it.
    pub const MODULE: &str = "nvidia-peermem";
}

impl Kind for GpuDirect {
    const INFO: KindInfo = KindInfo {
        name: "gpudirect",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Checks that network cards reach the memory of GPUs directly (GPUDirect RDMA).",
        example: "gpudirect: {via: dma_buf}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.via == GpuDirectWay::DmaBuf && self.peermem.is_some() {
            return Err(ParamError::new("peermem", "`via: dma_buf` does without it"));
        }
        Ok(())
    }
}

impl GroundKind for GpuDirect {
    const GROUND: Ground = Ground {
        reads: &[
            "/proc/driver/nvidia/version: open or proprietary kernel modules",
            "/proc/kallsyms: whether the RDMA core takes dma-buf (ib_umem_dmabuf_get) and peer memory \
             (ib_register_peer_memory_client)",
            "/sys/module: ib_core, nvidia_peermem, nv_peer_mem; /sys/class/infiniband, and whether an IOMMU translates for its \
             cards (iommu_group/type)",
            "with `peermem`, what `modprobe` reads",
        ],
        writes: &[
            "with `peermem: present`, the module nvidia-peermem and /etc/modules-load.d/nvidia-peermem.conf",
        ],
        takes_effect: "at once",
        survives: "reboots, with `peermem`; a driver of another sort of kernel modules changes the answer",
        owners: &[
            "NVIDIA prefers dma-buf; nvidia-peermem is the older way, and its absence is no fault where dma-buf works",
            "the GPU operator loads nvidia-peermem too (driver.rdma)",
        ],
        source: "NVIDIA, GPUDirect RDMA documentation; kernel, drivers/infiniband/core/umem_dmabuf.c (Linux 5.12)",
    };
}

impl Operation for GpuDirect {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        match self.peermem {
            Some(_) => Reach::places(["/etc/modules-load.d/nvidia-peermem.conf"]),
            None => Reach::Nothing,
        }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::GpuDirect(_))
    }
}
