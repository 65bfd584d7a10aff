//! Parameters of `cuda_compat`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! {
    /// What becomes of containers that want another driver.
    CudaContainers {
        /// They are told.
        Tell: "tell",
        /// The task fails.
        Require: "require",
        /// Nobody looks at them.
        Ignore: "ignore",
    }
}

/// Checks that the driver that runs can run programs and containers of a CUDA version. Changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CudaCompat {
    /// The CUDA version of the programs, such as `12.4`; in quotes, because YAML reads `12.10` as 12.1. Without it, only
    /// the library and the containers are judged.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// Whether it is enough that the driver is too old and the containers bring NVIDIA's `cuda-compat` libraries
    /// (forward compatibility), which only data-center GPUs take.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub forward: bool,
    /// The containers that hold GPUs now, by what their images say (`CUDA_VERSION`, `NVIDIA_REQUIRE_CUDA`): `tell`
    /// (default) warns of those that want another driver, `require` fails, also where it cannot be read, and `ignore`
    /// does not look.
    #[serde(default = "tell")]
    pub containers: CudaContainers,
}

const fn tell() -> CudaContainers {
    CudaContainers::Tell
}

impl CudaCompat {
    /// Returns major and minor version; `None` without one, or where it is none.
    pub fn version(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.cuda.as_ref()?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

impl Kind for CudaCompat {
    const INFO: KindInfo = KindInfo {
        name: "cuda_compat",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Checks that the driver that runs can run programs and containers of a CUDA version.",
        example: "cuda_compat: {cuda: \"12.4\"}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match &self.cuda {
            Some(cuda) if self.version().is_none() => {
                Err(ParamError::new("cuda", format!("`{cuda}` is no version of CUDA, such as 12.4")))
            }
            None if self.forward => {
                Err(ParamError::new("forward", "it is about the version in `cuda`, which is missing"))
            }
            _ => Ok(()),
        }
    }
}

impl GroundKind for CudaCompat {
    const GROUND: Ground = Ground {
        reads: &[
            "NVML: the version of the driver, and the newest CUDA that it knows",
            "`ldconfig -p`: which libcuda.so.1 the loader takes",
            "/proc/PID/environ of containers that hold GPUs: CUDA_VERSION, NVIDIA_REQUIRE_CUDA, NVIDIA_DISABLE_REQUIRE",
        ],
        writes: &["nothing"],
        takes_effect: "it changes nothing",
        survives: "nothing that it set; another driver changes the answer",
        owners: &[
            "packages named cuda-compat, and lines in /etc/ld.so.conf.d, which may put an older libcuda.so in front of the driver's",
            "the container toolkit, which judges NVIDIA_REQUIRE_CUDA when a container starts, and not after an upgrade",
        ],
        source: "NVIDIA, CUDA Compatibility; NVIDIA, container toolkit, driver constraints; images of nvidia/cuda",
    };
}

impl Operation for CudaCompat {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Nothing
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::CudaCompat(new) if new.cuda == self.cuda && new.containers == self.containers)
    }
}
