//! Parameters of `swap`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { SwapState {
    /// Nothing is swapped to, now and after a boot.
    Off: "off",
    /// What this kind turned off is on again.
    On: "on",
} }

/// Turns swap off, now and at boot, or takes that back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// `off`: no swap, and nothing that a boot turns on; `on`: the reverse of what `off` did.
    pub state: SwapState,
}

impl Swap {
    /// Units that `off` masked, a line each.
    pub const RECORD: &str = "/etc/gpufleet/swap-masked";
}

impl Kind for Swap {
    const INFO: KindInfo = KindInfo {
        name: "swap",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Turns swap off, now and at boot, or takes that back.",
        example: "swap: {state: 'off'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GroundKind for Swap {
    const GROUND: Ground = Ground {
        reads: &[
            "/proc/swaps and /proc/meminfo",
            "/etc/fstab",
            "the swap units that systemd has loaded, and who made them",
        ],
        writes: &[
            "lines of /etc/fstab, commented out with a mark",
            "masks of swap units that no line of fstab makes (gpt-auto-generator, zram-generator), and of services such as \
             zramswap; noted in /etc/gpufleet/swap-masked",
        ],
        takes_effect: "at once: what is swapped out is read back into memory first, which can take minutes",
        survives: "reboots",
        owners: &[
            "systemd-gpt-auto-generator and zram-generator turn swap on at boot without any line of fstab: their units are masked",
            "cloud-init may write a swap line for a new instance",
            "the kubelet does not start with swap unless failSwapOn is false",
            "vm.swappiness=0 still swaps near the watermark; this is what turns it off",
        ],
        source: "swapoff(8), systemd.swap(5), systemd-gpt-auto-generator(8), zram-generator(8)",
    };
}

impl Operation for Swap {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::RECORD])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Swap(_))
    }
}
