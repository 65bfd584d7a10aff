//! What a prediction cannot know, because only the run does it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::playbook::Task;

#[derive(Default)]
pub(super) struct PredictionGaps {
    /// A command was met that only the run carries out.
    skipped_commands: bool,
    /// Registered results of tasks that would change something: only the run will tell all of them.
    results: HashSet<Arc<str>>,
    /// Something was foreseen after which the node offers other GPUs to pods.
    disturbance: bool,
}

impl PredictionGaps {
    pub(super) const fn skip_command(&mut self) {
        self.skipped_commands = true;
    }

    pub(super) const fn has_skipped_commands(&self) -> bool {
        self.skipped_commands
    }

    pub(super) const fn foresee_disturbance(&mut self) {
        self.disturbance = true;
    }

    /// Whether what the node offers to pods may be another thing by then.
    pub(super) const fn has_disturbance(&self) -> bool {
        self.disturbance
    }

    pub(super) fn leave_open(&mut self, result: &Arc<str>) {
        self.results.insert(Arc::clone(result));
    }

    /// Whether a task uses a result that is not fully known.
    pub(super) fn concern(&self, task: &Task) -> bool {
        task.asks_for(&self.results)
    }
}
