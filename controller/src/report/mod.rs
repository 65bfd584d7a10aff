//! Reports: what a run did or found, folded from its events.
//!
//! Owns the model of a run, the verdict of each node, the exit code, the JSON document and the HTML page. It knows
//! events and nothing else: no terminal, no file system, no clock. The same events always give the same report.

mod document;
mod fold;
mod gpus;
mod grouping;
mod html;
mod junit;
pub(crate) mod mig;
mod model;
mod page;
mod timing;
mod verdict;

pub use document::{DOCUMENT_FORMAT, document};
pub use fold::{fold_names, fold_numbers, unfold_names};
pub use grouping::{Cause, ChangeGroup, causes, fold_changes, hardware_class, reasons};
pub(crate) use grouping::{values, without_name};
pub use html::{HtmlError, html};
pub use junit::junit;
pub(crate) use model::host_of;
pub(crate) use model::seconds_between;
pub use model::{Connection, NodeModel, Notice, Reboot, RunModel, RunningTask, Wanted};
pub use timing::{Case, TaskTime, Timing};
pub use verdict::{Ending, ExitRules, NextAction, Verdict, computed_exit_code, exit_code};

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
