//! The durable record of a run: one folder a run, one [`Record`] a line.
//!
//! Owns the folder's layout, what only a resume reads ([`Replayed`]), when a record is on disk, and what a reader accepts.
//! An event that announces a disruptive act or a command is on disk before the act ([`Journal::durable`]); other records
//! are written in groups. The journal is the one sink whose error stops a run.

mod at_work;
mod reader;
mod record;
mod run_id;
mod skim;
mod tail;
mod writer;

pub use at_work::{AtWork, Turn, at_work, process_of, take_turn};
pub use reader::{
    JournalError, RunSummary, Runs, glance, is_over, list_runs, read_events, read_for_resume, resolve_run,
};
pub use record::{Entry, Record, Replayed};
pub use run_id::RunId;
pub use skim::{newest_runs, skim};
pub use tail::Tail;
pub use writer::{Journal, WriteError};

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

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
    /// Writes a document of the run, for its owner alone: whole, or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, path: &Path, text: &str) -> io::Result<()> {
        // Why the process: two may write the same report at once.
        let new = self.0.join(format!(".new-{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
        written.inspect_err(|_| _ = fs::remove_file(&new))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_document_is_for_its_owner_alone_also_where_it_replaces_another() {
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        fs::create_dir_all(dir.path()).unwrap();
        fs::write(dir.report_json(), "old").unwrap();
        fs::set_permissions(dir.report_json(), fs::Permissions::from_mode(0o644)).unwrap();
        dir.put(&dir.report_json(), "new").unwrap();
        assert_eq!(fs::read_to_string(dir.report_json()).unwrap(), "new");
        assert_eq!(fs::metadata(dir.report_json()).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        assert!(dir.put(&dir.path().join("no/such/folder"), "x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }
}
