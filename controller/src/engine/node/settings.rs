//! What is the same for all nodes of a run, and of a play.

/// What a person said may go over a safety check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrules {
    /// `--force`: a node that is busy, or of which nobody knows whether it is, is disturbed all the same.
    pub force: bool,
    /// `--steal`: a lock of another run is taken over.
    pub steal: bool,
}
