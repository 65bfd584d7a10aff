//! The power switch of a node, like that of a management controller: it works in any state of the node.
//!
//! A switch marks the node and ends its first process. The node's supervisor sees the mark and boots it again, even a
//! node that vanished or never booted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::restore;

const MARK: &str = "power-cycle";
/// How long a supervisor may take to see the mark.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    #[error(transparent)]
    NoLab(#[from] restore::RestoreError),
    #[error("this lab has no node `{0}`")]
    NoNode(String),
    #[error("cannot switch {node}: {source}")]
    Node { node: String, source: io::Error },
    #[error("nobody looks after {0} any more; its console.log may say why")]
    Unattended(String),
}

/// Whether the node was switched off and on.
pub fn asked(dir: &Path) -> bool {
    dir.join(MARK).exists()
}

/// Removes the mark, once the node is down.
pub fn seen(dir: &Path) -> io::Result<()> {
    fs::remove_file(dir.join(MARK))
}

/// Switches a node off and on again; returns when its boot begins.
pub fn cycle(fleet: &Path, name: &str) -> Result<(), PowerError> {
    let dir = node(fleet, name)?;
    fs::write(dir.join(MARK), "").map_err(|source| PowerError::Node { node: name.to_owned(), source })?;
    super::fleet::kill_node(&dir);
    let limit = Instant::now() + LIMIT;
    while asked(&dir) {
        if Instant::now() > limit {
            return Err(PowerError::Unattended(name.to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the directory of a node; its existence is all of its power state.
pub fn node(fleet: &Path, name: &str) -> Result<PathBuf, PowerError> {
    let nodes = restore::nodes(fleet)?;
    nodes
        .into_iter()
        .find(|dir| restore::name(dir) == name)
        .ok_or_else(|| PowerError::NoNode(name.to_owned()))
}
