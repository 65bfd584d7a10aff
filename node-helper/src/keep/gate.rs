//! The gate: whether the GPUs were brought to the kept state in this boot.

use std::{io, path::PathBuf, process::ExitCode};

use gpufleet_protocol::keep::Sealed;
use serde::{Deserialize, Serialize};

use super::{kept, kind::unlink, read, write};
use crate::{
    os::{
        files::{self, FileError},
        roots::Roots,
    },
    tasks::reboot,
};

/// Below /run, so that a boot closes it.
const FILE: &str = "/run/gpufleet/keep-gate";

/// What the gate was opened for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Opened {
    boot_id: String,
    /// SHA-256 of the document.
    document: String,
}

fn path(roots: &Roots) -> PathBuf {
    roots.path(FILE)
}

fn opened(roots: &Roots, sealed: &Sealed) -> Option<Opened> {
    let document = files::sha256(sealed.document.as_bytes());
    Some(Opened { boot_id: reboot::boot_id(roots)?, document })
}

/// Opens it for this document, until the next boot.
///
/// # Errors
/// If it cannot be written.
pub fn open(roots: &Roots, sealed: &Sealed) -> Result<(), FileError> {
    let path = path(roots);
    let Some(opened) = opened(roots, sealed) else {
        let why = io::Error::other("the kernel gives no boot id");
        return Err(FileError::new("write", path, why));
    };
    write(&path, &opened)
}

/// Closes it.
///
/// # Errors
/// If it cannot be removed.
pub fn shut(roots: &Roots) -> Result<(), FileError> {
    unlink(&path(roots))
}

/// Whether it is open for this document in this boot.
pub fn is_open(roots: &Roots, sealed: &Sealed) -> bool {
    let found = read::<Opened>(&path(roots)).ok().flatten();
    found.is_some() && found == opened(roots, sealed)
}

/// Returns success if units may start; `ExecStartPre=` of those that wait.
pub fn gate(roots: &Roots) -> ExitCode {
    match waits(roots) {
        None => ExitCode::SUCCESS,
        Some(why) => {
            super::boot::say(&format!(
                "not started: {why}; `systemctl status {}` tells more",
                super::units::UNIT
            ));
            ExitCode::FAILURE
        }
    }
}

/// Returns why units wait; `None` if they may start.
fn waits(roots: &Roots) -> Option<String> {
    // Checked as before an act: what is not authentic must not say that nobody waits.
    match kept(roots) {
        Ok(None) => None,
        Ok(Some((kept, sealed))) if !kept.holds() || is_open(roots, &sealed) => None,
        Ok(Some(_)) => Some("the GPUs are not as declared".to_owned()),
        Err(why) => Some(why),
    }
}
