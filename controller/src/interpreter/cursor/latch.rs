//! Tasks that one host runs for all (`run_once`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::playbook::Task;
use crate::template::Value;

/// The result of a `run_once` task, for the other hosts of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// Variables that it set, as JSON.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Variables that it set in a prediction, and whose values only the run will tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    pub failed: bool,
}

/// Where a host stands with the `run_once` task that it came to last.
#[derive(Default)]
pub(super) struct Latch {
    /// It is to be decided which host runs this task.
    open: Option<Arc<str>>,
    /// This host runs it, and has not begun.
    won: Option<Arc<str>>,
    /// What the task set here, for the others.
    gathered: Option<Copied>,
    /// Whether that task has ended.
    settled: bool,
}

impl Latch {
    /// The task that it is to be decided of.
    pub(super) const fn open(&self) -> Option<&Arc<str>> {
        self.open.as_ref()
    }

    /// Whether the task may begin here; if not, it is to be decided.
    pub(super) fn lets_begin(&mut self, task: &Task) -> bool {
        if task.run_once && self.won.as_ref() != Some(&task.path) {
            self.open = Some(Arc::clone(&task.path));
            return false;
        }
        self.won = None;
        true
    }

    /// Another host runs the task. Whether one was open.
    pub(super) fn lose(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// This host runs the task.
    pub(super) fn win(&mut self) {
        if let Some(key) = self.open.take() {
            self.won = Some(key);
            self.gathered = Some(Copied::default());
            self.settled = false;
        }
    }

    /// The task set a variable.
    pub(super) fn note(&mut self, task: &Task, name: &str, value: &Value) {
        let Some(gathered) = self.gathered.as_mut().filter(|_| task.run_once) else { return };
        if value.has_unknown() {
            gathered.unknown.push(name.to_owned());
        } else {
            gathered.variables.insert(name.to_owned(), value.to_marked_json());
        }
    }

    /// The task ended.
    pub(super) fn settle(&mut self, task: &Task, failed: bool) {
        if let Some(gathered) = self.gathered.as_mut().filter(|_| task.run_once) {
            gathered.failed |= failed;
            self.settled = true;
        }
    }

    /// The task's result for the other hosts, once.
    pub(super) fn take_result(&mut self) -> Option<Copied> {
        // Why: a task that has several answers, or none yet, has no result to hand on.
        std::mem::take(&mut self.settled).then(|| self.gathered.take()).flatten()
    }
}
