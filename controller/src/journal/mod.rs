//! The durable record of a run: one folder a run, one event a line.
//!
//! Owns the folder's layout, when a record is on disk, and what a reader accepts. An event that announces a
//! disruptive act or a command is on disk before the act ([`Journal::durable`]); the others are written in groups.
//! The journal is the one sink whose error stops a run.

mod reader;
mod run_id;
mod writer;

pub use reader::{JournalError, RunSummary, list_runs, read_events, resolve_run};
pub use run_id::RunId;
pub use writer::{Journal, WriteError};

use std::path::{Path, PathBuf};

/// The folder of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The folder of `run` below the state directory of gpufleet.
    pub fn new(state_dir: &Path, run: &RunId) -> Self {
        Self(state_dir.join("runs").join(run.as_str()))
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal.jsonl")
    }
    /// Copies of playbooks, inventories and variables as they were.
    pub fn inputs(&self) -> PathBuf {
        self.0.join("inputs.json")
    }
    pub fn report_json(&self) -> PathBuf {
        self.0.join("report.json")
    }
    pub fn report_html(&self) -> PathBuf {
        self.0.join("report.html")
    }
}
