//! Jobs: which kinds may run as one, and the kind that asks for a job's state.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading, words::words};
use crate::Disruption;

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
impl Kind for AsyncStatus {
    const INFO: KindInfo = KindInfo {
        name: "async_status",
        aliases: &["ansible.builtin.async_status"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Asks how a task with `async` and `poll: 0` is, or forgets what it has said.",
        example: "async_status: {jid: j482910375561.20417}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::KINDS;

    #[test]
    fn what_runs_alone_disturbs_nobody() {
        for kind in KINDS.iter().filter(|kind| kind.alone == Alone::Yes) {
            assert_eq!(kind.disruption, Disruption::Live, "{}", kind.name);
            assert!(matches!(kind.class, Class::Node | Class::Command), "{}", kind.name);
            assert!(!kind.gpus, "{}", kind.name);
        }
    }
}
