//! What the pages need of runs and their journals.

use std::error::Error;

use gpufleet_compliance::Verdict;
use jiff::Timestamp;
use serde::Serialize;

/// Why something about a run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    #[error("no such run")]
    NoSuchRun,
    #[error("its journal cannot be read: {0}")]
    Unreadable(Box<dyn Error + Send + Sync>),
}

/// Whether a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStanding {
    Finished,
    Running,
    /// Its process is gone, and it did not reach its end.
    CutOff,
}

/// One run in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunLine {
    pub id: String,
    pub verb: String,
    pub playbooks: Vec<String>,
    /// What an audit judged by.
    pub baselines: Vec<String>,
    pub started: Timestamp,
    pub standing: RunStanding,
    pub exit_code: Option<u8>,
    pub nodes: usize,
    /// In one sentence.
    pub summary: String,
}

/// How good what a node does is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mood {
    /// It was not begun.
    Waiting,
    Working,
    Good,
    /// It needs a look: it differs, is held, or could not be read.
    Doubtful,
    Bad,
}

/// A node in a run that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveNode {
    pub name: String,
    /// In a word, such as `rebooting`.
    pub state: String,
    pub mood: Mood,
    /// What it does now, or why it is in this state.
    pub doing: String,
    pub since: Option<Timestamp>,
    /// What an audit has judged so far.
    pub verdict: Option<Verdict>,
}

/// A run that is under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveRun {
    pub run: RunLine,
    /// Where the run is, and how many nodes are in which state, in a line.
    pub status: String,
    /// The latest messages about the whole run, the newest last.
    pub notices: Vec<String>,
    /// In the order of the inventory.
    pub nodes: Vec<LiveNode>,
}

/// The state of one run, read on.
pub trait Follow: Send {
    /// Returns the state if it is another than at the last call. It may read files.
    ///
    /// # Errors
    /// The journal cannot be read any more.
    fn poll(&mut self) -> Result<Option<LiveRun>, RunsError>;
}

/// Runs that this machine has recorded. All methods may read files, so that the crate calls them on threads for that.
/// An id comes from an address: an implementation must take no other than that of a run.
pub trait Runs: Send + Sync + 'static {
    /// Returns runs, the newest first, at most `most` of those that began before `before`, an id.
    fn list(&self, before: Option<&str>, most: usize) -> Vec<RunLine>;

    /// Returns the line of one run.
    ///
    /// # Errors
    /// No such run, or it cannot be read.
    fn line(&self, id: &str) -> Result<RunLine, RunsError>;

    /// Returns the report of a run as an HTML document that stands alone and names its own content security policy.
    ///
    /// # Errors
    /// No such run, or it cannot be read.
    fn report(&self, id: &str) -> Result<String, RunsError>;

    /// Begins to follow a run.
    ///
    /// # Errors
    /// No such run, or it cannot be read.
    fn follow(&self, id: &str) -> Result<Box<dyn Follow>, RunsError>;
}
