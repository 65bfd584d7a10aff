//! Reports what an existing Ansible playbook needs before gpufleet can run it.
//!
//! Owns the knowledge about commands that a declarative kind replaces, and the report of `gpufleet import`. Reads
//! playbooks tolerantly: a file that the strict parser refuses is walked all the same. Must not contact hosts or
//! render templates. Invariant: a suggested task parses with the registry's own parameters.

mod commands;
mod gpu_commands;
mod report;
mod rewrite;
mod survey;
mod walk;

pub use commands::{Advice, Suggestion, advise, needs_shell};
pub use report::report_text;
pub use rewrite::{Edit, Rewritten, rewritten};
pub(crate) use survey::command_text;
pub use survey::{Survey, TaskReport, Totals, Verdict, survey};
pub use walk::{FileRole, Found, Recorder, TaskView, tasks_of};

#[cfg(test)]
mod tests;
