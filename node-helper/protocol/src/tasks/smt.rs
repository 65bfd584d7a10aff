//! Parameters of `smt`, the second threads of cores.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { SmtState { On: "on", Off: "off" } }

/// Turns the second threads of cores on or off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Smt {
    /// `off` takes the CPUs away from what runs on them.
    pub state: SmtState,
    /// Whether `nosmt` is put on the kernel command line (or taken off it), so that the second threads never run at a
    /// boot; by default systemd-tmpfiles turns them off early in the boot.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub cmdline: bool,
}

impl Smt {
    /// The file that sets it at boot.
    pub const FILE: &str = "/etc/tmpfiles.d/gpufleet-smt.conf";
}

impl Kind for Smt {
    const INFO: KindInfo = KindInfo {
        name: "smt",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
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
        summary: "Turns the second threads of cores (SMT, Hyper-Threading) on or off.",
        example: "smt: {state: 'off'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GroundKind for Smt {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/devices/system/cpu/smt/control",
            "tmpfiles.d of /etc, /run, /usr/local/lib and /usr/lib",
            "with `cmdline`, what `kernel_cmdline` reads",
        ],
        writes: &[
            "/sys/devices/system/cpu/smt/control",
            "a line of /etc/tmpfiles.d/gpufleet-smt.conf, or `nosmt` on the kernel command line with `cmdline`",
        ],
        takes_effect: "at once: the CPUs go offline, so the node is drained first; forceoff ends with a reboot only",
        survives: "reboots",
        owners: &[
            "`nosmt` and `mitigations=auto,nosmt` on the kernel command line turn it off; `nosmt=force` for good",
            "kubelet and slurmd count CPUs at their start only: they have to be restarted",
            "CPUs that go offline leave cpusets and the CPUAffinity= of units for good",
            "in virtual machines the host may not support it: not applicable",
        ],
        source: "kernel, ABI/testing/sysfs-devices-system-cpu (smt/control) and admin-guide/hw-vuln/l1tf; measured with Linux \
                 6.18",
    };
}

impl Operation for Smt {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::FILE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Smt(_))
    }
}
