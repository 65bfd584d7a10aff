//! The texts of the unit and of the drop-ins of units that wait.
//!
//! Order from the units' own files and from mig-parted's: after the driver's daemons, before everything that takes
//! notice of GPUs. A drop-in lets a unit try again until the gate is open, because a unit that merely requires this one
//! is not started later when the requirement is met at last, and one with a failed condition counts as started.

use std::path::PathBuf;

use gpufleet_protocol::keep::KeptState;

use super::{PROGRAM, STATE};
use crate::os::roots::Roots;

pub const UNIT: &str = "gpufleet-keep.service";
pub const FOLDER: &str = "/etc/systemd/system";
/// The link that lets a boot start the unit.
pub const WANTS: &str = "/etc/systemd/system/multi-user.target.wants/gpufleet-keep.service";
const DROP_IN: &str = "50-gpufleet-keep.conf";

/// With mig-parted's own unit: of two that lay out MIG, the later one counts.
const AFTER: &str = "nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service \
                     nvidia-mig-manager.service systemd-modules-load.service local-fs.target";
/// Without `nvidia-cdi-refresh.path`, because paths come before basic.target, and that before this unit.
const BEFORE: &str = "nvidia-gpu-reset.target nvidia-dcgm.service dcgm.service dcgm-exporter.service \
                      nvidia-dcgm-exporter.service nvsm.service nvidia-cdi-refresh.service nvidia-mps.service \
                      gpufleet-mps.service containerd.service docker.service crio.service slurmd.service \
                      kubelet.service k3s.service k3s-agent.service rke2-server.service rke2-agent.service";

/// Time that the unit gets beyond what the assertion may take, in seconds, so that it ends itself and tells why.
const GRACE_S: u64 = 30;

pub fn unit(kept: &KeptState) -> String {
    let waiting =
        kept.policy.hold.iter().filter(|unit| kept.holds() && !BEFORE.split(' ').any(|name| name == *unit));
    let before = waiting.fold(BEFORE.to_owned(), |all, unit| format!("{all} {unit}"));
    format!(
        "# Written by gpufleet: `gpu_keep`. Its state is below /var/lib/gpufleet/keep.\n\
         [Unit]\n\
         Description=Assert the declared state of the GPUs\n\
         After={AFTER}\n\
         Before={before}\n\
         RequiresMountsFor=/usr/local/sbin /var/lib/gpufleet\n\
         \n\
         [Service]\n\
         Type=oneshot\n\
         RemainAfterExit=yes\n\
         ExecStart={PROGRAM} keep\n\
         TimeoutStartSec={}\n\
         KillMode=mixed\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        kept.policy.timeout + GRACE_S
    )
}

/// Returns the drop-in of a unit that waits.
///
/// Those that their own unit restarts always would be weakened by `on-failure`. The state and not the program tells
/// whether anything is kept: a program that is gone is no reason to start, and `gpufleet keep remove` needs no reload.
pub fn drop_in(unit: &str) -> String {
    const ALWAYS: [&str; 4] = ["kubelet.service", "docker.service", "containerd.service", "crio.service"];
    let restart = if ALWAYS.contains(&unit) { "" } else { "Restart=on-failure\n" };
    format!(
        "# Written by gpufleet: `gpu_keep` with `on_failure: hold`.\n\
         [Unit]\n\
         After={UNIT}\n\
         RequiresMountsFor=/usr/local/sbin /var/lib/gpufleet\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         ExecStartPre=+/bin/sh -c 'test ! -e {STATE} || exec {PROGRAM} gate'\n\
         {restart}\
         RestartSec=15\n"
    )
}

/// Returns where the drop-in of a unit is.
pub fn drop_in_path(roots: &Roots, unit: &str) -> PathBuf {
    roots.path(FOLDER).join(format!("{unit}.d")).join(DROP_IN)
}

/// Returns the files that a kept state needs, with their texts.
pub fn files(roots: &Roots, kept: &KeptState) -> Vec<(PathBuf, String)> {
    let mut files = vec![(roots.path(FOLDER).join(UNIT), unit(kept))];
    if kept.holds() {
        files.extend(kept.policy.hold.iter().map(|unit| (drop_in_path(roots, unit), drop_in(unit))));
    }
    files
}
