//! Parameters of `cuda_compat`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Checks that the driver that runs can run programs and containers of a CUDA version. Changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CudaCompat {
    /// The CUDA version of the programs, such as `12.4`; in quotes, because YAML reads `12.10` as 12.1.
    #[serde(deserialize_with = "lenient::text")]
    pub cuda: String,
    /// Whether it is enough that the driver is too old and the containers bring NVIDIA's `cuda-compat` libraries
    /// (forward compatibility), which only data-center GPUs take.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub forward: bool,
}

impl CudaCompat {
    /// Returns major and minor version.
    pub fn version(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.cuda.split_once('.')?;
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
        if self.version().is_none() {
            return Err(ParamError::new(
                "cuda",
                format!("`{}` is no version of CUDA, such as 12.4", self.cuda),
            ));
        }
        Ok(())
    }
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
        !matches!(newer.op, NodeOp::CudaCompat(new) if new.cuda == self.cuda)
    }
}
