//! Which command a run belongs to, and everything in which the commands differ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which command a run belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Run,
    /// `plan`, and `run --check`.
    Plan,
    Audit,
}

/// In what verbs differ. It has no defaults: a verb that leaves an answer out does not compile.
#[derive(Debug)]
pub struct VerbInfo {
    /// As people call the command.
    pub word: &'static str,
    /// Whether nodes may be changed: the run locks them, can be resumed, and leaves a record that durations are learned from.
    pub writes: bool,
    /// Whether commands may run on nodes, if only with `check_mode: false` or for `--check`.
    pub may_run_commands: bool,
    /// Whether each declaration counts as held or not; a node that is not as declared is then exit code 3.
    pub judges: bool,
    /// Whether later plays are left out where no host is left, or too many failed.
    pub ends_early: bool,
    /// Whether it tells which nodes could be drained now.
    pub previews_drains: bool,
    /// Whether durations of earlier runs take the place of defaults.
    pub uses_learned_durations: bool,
    /// What it shows at the end.
    pub screen: ResultScreen,
}

/// What is shown at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultScreen {
    Recap,
    /// The changes to come; nothing more is said below it.
    Plan,
    Audit,
}

impl Verb {
    /// The one place that tells verbs apart.
    pub const fn info(self) -> &'static VerbInfo {
        match self {
            Self::Run => &VerbInfo {
                word: "run",
                writes: true,
                may_run_commands: true,
                judges: false,
                ends_early: true,
                previews_drains: false,
                uses_learned_durations: true,
                screen: ResultScreen::Recap,
            },
            Self::Plan => &VerbInfo {
                word: "plan",
                writes: false,
                may_run_commands: true,
                judges: false,
                ends_early: true,
                previews_drains: true,
                uses_learned_durations: true,
                screen: ResultScreen::Plan,
            },
            Self::Audit => &VerbInfo {
                word: "audit",
                writes: false,
                may_run_commands: false,
                judges: true,
                ends_early: false,
                previews_drains: false,
                uses_learned_durations: false,
                screen: ResultScreen::Audit,
            },
        }
    }

    /// As people call the command.
    pub const fn as_str(self) -> &'static str {
        self.info().word
    }

    /// Whether nodes may be changed.
    pub const fn writes(self) -> bool {
        self.info().writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_written_as_people_call_it() {
        for verb in [Verb::Run, Verb::Plan, Verb::Audit] {
            assert_eq!(serde_json::to_value(verb).unwrap(), verb.as_str());
        }
    }
}
