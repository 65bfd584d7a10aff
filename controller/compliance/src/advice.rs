//! What to type about a finding: what only reads, and what ends work.
//!
//! Owns the commands that change a node. They are gpufleet's own tasks and not the vendor's programs: a task proves that
//! the node is idle before it acts, and leaves a busy one alone. Invariant: whoever shows a [`Class::Destructive`] command
//! shows [`DRAIN_FIRST`] before it.

use gpufleet_language::visible::command_line;
use schemars::JsonSchema;
use serde::Serialize;

use crate::verdict::Action;

/// What a command does to the node that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It changes nothing, and jobs do not notice it.
    Reads,
    /// It ends what runs on the node or on its GPUs.
    Destructive,
}

impl Class {
    /// What is shown beside such a command.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reads => "reads only",
            Self::Destructive => "destructive",
        }
    }
}

/// What a person does before a destructive command.
pub const DRAIN_FIRST: &str = "Drain first: `scontrol update nodename=NODE state=drain reason=…`, or `kubectl cordon NODE`, and \
                               wait until its jobs have ended; a node with work is held, and not touched.";

/// What stands for the name of a node and for the UUID of a GPU where none is meant yet.
pub const PLACEHOLDERS: (&str, &str) = ("NODE", "UUID");

impl Action {
    /// Returns the command for the controller that does it on one node: `None` where it is no task.
    ///
    /// Without a GPU, a reset is that of the GPUs that ask for one.
    pub fn command(self, node: &str, gpu: Option<&str>) -> Option<String> {
        let (kind, arguments) = match (self, gpu) {
            (Self::Reset, Some(gpu)) => ("gpu_reset", format!("when=always gpus={gpu}")),
            (Self::Reset, None) => ("gpu_reset", "when=required".to_owned()),
            (Self::Reboot, _) => ("reboot", "when=always".to_owned()),
            _ => return None,
        };
        Some(command_line(["gpufleet", "exec", node, "-b", "-m", kind, "-a", &arguments]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reset_and_a_reboot_are_commands_and_names_are_single_words() {
        let of = |action: Action| action.command("gpu001", Some("GPU-1")).unwrap_or_default();
        assert_eq!(of(Action::Reset), "gpufleet exec gpu001 -b -m gpu_reset -a 'when=always gpus=GPU-1'");
        assert_eq!(of(Action::Reboot), "gpufleet exec gpu001 -b -m reboot -a 'when=always'");
        let others = Action::ALL.iter().filter(|action| !matches!(action, Action::Reset | Action::Reboot));
        assert_eq!(others.filter_map(|action| action.command("n", None)).next(), None);
        let hostile = Action::Reboot.command("a; reboot", None).unwrap_or_default();
        assert!(hostile.starts_with("gpufleet exec 'a; reboot' -b"), "{hostile}");
    }
}
