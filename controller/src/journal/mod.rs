//! The durable record of a run: one folder a run, one event a line.
//!
//! Owns the folder's layout, when a record is on disk, and what a reader accepts. An event that announces a
//! disruptive act or a command is on disk before the act ([`Journal::durable`]); the others are written in groups.
//! The journal is the one sink whose error stops a run.

mod at_work;
mod reader;
mod run_id;
mod skim;
mod writer;

pub use at_work::{AtWork, Turn, at_work, process_of, take_turn};
pub use reader::{JournalError, RunSummary, Runs, list_runs, read_events, read_for_resume, resolve_run};
pub use run_id::RunId;
pub use skim::{newest_runs, skim};
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
    /// Results that must not be read in the journal; gone when the run is over.
    pub fn sealed(&self) -> PathBuf {
        self.0.join("sealed.jsonl")
    }
    /// The process that writes the journal, while it does.
    fn process(&self) -> PathBuf {
        self.0.join("pid")
    }
    /// What the run was started with, for a resume.
    pub fn inputs(&self) -> PathBuf {
        self.0.join("inputs.json")
    }
    /// Copies of files that tasks included and nobody could name before; gone when the run is over.
    pub fn included(&self) -> PathBuf {
        self.0.join("included")
    }
    pub fn report_json(&self) -> PathBuf {
        self.0.join("report.json")
    }
    pub fn report_html(&self) -> PathBuf {
        self.0.join("report.html")
    }
}
