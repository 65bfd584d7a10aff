//! What earlier processes and runs left: where to take a run up, and how long nodes were out. Pure.

pub(super) mod durations;
pub(super) mod history;
