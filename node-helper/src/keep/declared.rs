//! Which run has changed the GPUs in this boot: what it declared counts more than what was kept before.

use std::path::PathBuf;

use super::{kind::unlink, read, write};
use crate::os::{files::FileError, roots::Roots};

/// Below /run, so that a boot forgets it.
const FILE: &str = "/run/gpufleet/gpus-by-run";

fn path(roots: &Roots) -> PathBuf {
    roots.path(FILE)
}

/// Notes that a run changes the GPUs.
///
/// # Errors
/// If it cannot be written.
pub fn note(roots: &Roots, run: &str) -> Result<(), FileError> {
    write(&path(roots), &run)
}

/// Forgets it: a run has proven what the node keeps.
///
/// # Errors
/// If it cannot be removed.
pub fn forget(roots: &Roots) -> Result<(), FileError> {
    unlink(&path(roots))
}

/// Returns the run that has changed them in this boot.
pub fn noted(roots: &Roots) -> Option<String> {
    read(&path(roots)).ok().flatten()
}
