//! What is to be told of a host: reports of tasks, and warnings of templates.

use crate::event::TaskReport;
use crate::template;

#[derive(Default)]
pub(super) struct Reports {
    /// Reports that were not given out yet.
    queue: Vec<TaskReport>,
    /// What templates warned of since the end of the last task.
    warnings: Vec<String>,
}

impl Reports {
    pub(super) const fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, report: TaskReport) {
        self.queue.push(report);
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TaskReport> {
        self.queue.iter_mut()
    }

    pub(super) fn take(&mut self) -> Vec<TaskReport> {
        std::mem::take(&mut self.queue)
    }

    /// Takes over what templates of this thread warn of: the next step may be on another one.
    pub(super) fn keep_warnings(&mut self) {
        for warning in template::take_warnings() {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// What templates warned of by now.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        self.keep_warnings();
        std::mem::take(&mut self.warnings)
    }
}
