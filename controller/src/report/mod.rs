//! Reports: what a run did or found, folded from its events.
//!
//! Owns the model of a run, the verdict of each node, the exit code, the JSON document and the HTML page. Must not know
//! anything but events: no terminal, no file system, no clock. The same events always give the same report.

mod csv;
mod difference;
mod digests;
mod document;
mod findings;
mod gpus;
mod grouping;
mod health;
mod html;
mod junit;
mod markdown;
pub(crate) mod mig;
mod model;
mod observation;
mod openmetrics;
mod page;
mod provenance;
mod rendering;
mod result;
mod sarif;
mod timing;
mod topology;
mod totals;
mod verdict;

pub use crate::names::{fold_names, fold_numbers};
pub use csv::inert;
pub use difference::{
    Changed, Difference, Found, Gone, ShapeError, Side, Snapshot, VerdictChange, WaiverChange,
    difference_schema,
};
pub(crate) use digests::short;
pub use document::{DOCUMENT_FORMAT, document, document_schema, event_schema, json};
pub use findings::{Control, FleetFinding, NodeFinding, fleet_findings};
pub use grouping::{Cause, ChangeGroup, causes, fold_changes, fold_gpus, hardware_class, reasons};
pub(crate) use grouping::{with_names_in_commands, without_name};
pub use health::NodeHealth;
pub use html::{HtmlError, html};
pub use junit::junit;
pub(crate) use model::seconds_between;
pub use model::{Connection, NodeModel, Notice, Reboot, RunModel, RunningTask, Standing, Wanted};
pub use observation::{EarlierShare, observation, series_of};
pub use openmetrics::{OPENMETRICS_TYPE, openmetrics};
pub use provenance::Provenance;
pub use rendering::{HTML, JSON, RENDERERS, RenderError, Renderer};
pub use result::NodeResult;
pub use timing::{Case, TaskTime, Timing};
pub use totals::{Judgements, Totals};
pub use verdict::{Ending, ExitRules, NOT_OVER, NextAction, Verdict, computed_exit_code, exit_code};

#[cfg(test)]
mod numbers;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
pub(crate) mod sample_audit;
#[cfg(test)]
mod tests;
