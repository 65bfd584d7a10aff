//! Terminal output: progress, plan, audit, recap, held nodes, facts, command outputs.
//!
//! Screens are functions from a [`RunModel`](crate::report::RunModel) to text; only [`Progress`] and [`JsonLines`]
//! write, and only to a given writer. This module decides no outcome and must not know playbooks. No meaning is lost
//! without colour, and every screen is bounded for any number of nodes.

mod announce;
mod ansible;
mod audit;
mod confirm;
mod difference;
mod exec;
mod facts;
mod figures;
mod held;
mod history;
#[cfg(test)]
mod hostile;
mod jsonl;
mod live;
mod node;
mod plan;
mod profile;
mod progress;
mod recap;
mod runs;
mod schedule;
#[cfg(test)]
mod screens;
mod shared;
mod style;
#[cfg(test)]
mod tests;

pub use announce::Announcer;
pub use ansible::{AnsibleLines, ad_hoc, ad_hoc_loss};
pub use audit::audit_screen;
pub use confirm::{confirm_text, disrupted};
pub use difference::difference_screen;
pub use exec::{ExecResult, exec_grouped, exec_line, exec_one};
pub use facts::{FactsRow, facts_table};
pub use figures::{clean, clip, clock, moment};
pub use gpufleet_language::names::count;
pub use held::held_screen;
pub use history::{control_history, fleet_history, node_history};
pub use jsonl::JsonLines;
pub use live::{plain_status, progress_frame};
pub use node::node_screen;
pub use plan::{PlanView, changes_screen, plan_screen};
pub use profile::profile_screen;
pub use progress::Progress;
pub use recap::{again, ending_lines, explained, failures, limited, not_over, recap};
pub use runs::{RunRow, runs_table};
pub use style::{Role, Style, Verbosity};
