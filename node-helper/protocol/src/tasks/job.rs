//! Tasks that go on by themselves: which kinds may, and the kind that asks for them later.

use serde::{Deserialize, Serialize};

use super::{Checked, KindInfo, words::words};

words! { JobMode {
    Status: "status",
    /// Forgets what a job that ended has said.
    Cleanup: "cleanup",
} }

/// Asks how a task with `async` and `poll: 0` is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AsyncStatus {
    /// `ansible_job_id` of the task that began it.
    pub jid: String,
    /// `status` (default), or `cleanup` to forget what it has said.
    #[serde(default = "status")]
    pub mode: JobMode,
}

fn status() -> JobMode {
    JobMode::Status
}
impl Checked for AsyncStatus {}

/// Kinds that need nothing of the controller once they have begun, and disturb nobody who works on the node.
const ALONE: &[&str] = &[
    "command",
    "shell",
    "sysctl",
    "service",
    "package",
    "apt",
    "dnf",
    "user",
    "group",
    "cron",
    "hostname",
    "modprobe",
    "mount",
    "file",
    "lineinfile",
    "blockinfile",
    "replace",
    "get_url",
    "tempfile",
    "stat",
    "find",
    "slurp",
    "wait_for",
];

impl KindInfo {
    /// Whether a task of this kind may go on by itself (`async`).
    pub fn runs_alone(&self) -> bool {
        ALONE.contains(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Disruption,
        tasks::{Class, KINDS, find},
    };

    #[test]
    fn what_runs_alone_is_known_and_disturbs_nobody() {
        for name in ALONE {
            let kind = find(name).unwrap_or_else(|| panic!("{name} is no kind"));
            assert_eq!(kind.disruption, Disruption::Live, "{name}");
            assert!(matches!(kind.class, Class::Node | Class::Command), "{name}");
        }
        assert!(!KINDS.iter().any(|kind| kind.name.starts_with("gpu_") && kind.runs_alone()));
    }
}
