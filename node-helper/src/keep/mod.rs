//! The state of the GPUs that the node asserts at each boot.
//!
//! `kind` writes it, `boot` asserts it, `ahead` tells what the next boot would set, `gate` lets units wait for it, `report`
//! tells what came of it. The document is the controller's, and nothing here changes it. Invariants: what is not
//! authentic, not of this machine or stale changes no GPU; nothing here reboots or resets; nothing here reloads systemd,
//! which takes GPUs from containers that run (NVIDIA/nvidia-container-toolkit#48): systemd reads the unit at the next boot.

mod ahead;
mod boot;
mod declared;
mod gate;
mod kind;
mod report;
mod seal;
#[cfg(test)]
mod tests;
mod units;

use std::path::{Path, PathBuf};

use gpufleet_protocol::keep::{KeptBoot, KeptState, MOST_BOOTS, MOST_BYTES, Sealed};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::os::{
    files::{self, FileError, Ownership},
    roots::Roots,
    tree,
};

pub use ahead::{at_boot, prove};
pub use boot::assert;
#[cfg(test)]
pub use boot::assert_on;
pub use declared::note;
pub use gate::gate;
pub use kind::remove;
pub use report::{report, resume, status};

/// Only for the helper's own user, as all of the state directory.
const FOLDER: &str = "/var/lib/gpufleet/keep";
const STATE: &str = "/var/lib/gpufleet/keep/state.json";
/// Where programs of the machine's owner are, so that SELinux lets systemd start it.
const PROGRAM: &str = "/usr/local/sbin/gpufleet-keep";

/// The newest document that the node took, and whose it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pin {
    key: String,
    serial: u64,
}

/// The files of [`FOLDER`].
#[derive(Clone, Debug)]
struct Store {
    folder: PathBuf,
}

impl Store {
    fn of(roots: &Roots) -> Self {
        Self { folder: roots.path(FOLDER) }
    }

    /// Document and signature in one file, because a power cut must not part them.
    fn state(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    fn pin(&self) -> PathBuf {
        self.folder.join("pin.json")
    }

    /// Locked by the process that asserts, so that others see whether it lives.
    fn alive(&self) -> PathBuf {
        self.folder.join("alive")
    }

    fn boots_file(&self) -> PathBuf {
        self.folder.join("boots.json")
    }

    /// Returns the latest boots, the newest last; a damaged file counts as none, as it only reports.
    fn boots(&self) -> Vec<KeptBoot> {
        read(&self.boots_file()).ok().flatten().unwrap_or_default()
    }

    /// Writes how far a boot came, in place of what was known of the same attempt.
    fn put_boot(&self, boot: &KeptBoot) -> Result<(), FileError> {
        let mut boots = self.boots();
        boots.retain(|known| (&known.boot_id, known.began) != (&boot.boot_id, boot.began));
        boots.push(boot.clone());
        boots.drain(..boots.len().saturating_sub(MOST_BOOTS));
        write(&self.boots_file(), &boots)
    }
}

/// Reads a small JSON file; `None` if there is none.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let bytes = files::read_bounded(path, 4 * MOST_BYTES as u64).map_err(|error| error.to_string())?;
    parsed(path, bytes.as_deref())
}

fn parsed<T: DeserializeOwned>(path: &Path, bytes: Option<&[u8]>) -> Result<Option<T>, String> {
    let Some(bytes) = bytes else { return Ok(None) };
    serde_json::from_slice(bytes).map(Some).map_err(|error| format!("{} is damaged: {error}", path.display()))
}

/// Writes a small JSON file that only the helper's own user can read.
fn write(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        tree::make_dirs(folder)?;
        tree::own(folder, Ownership { mode: Some(0o700), ..Ownership::default() })?;
    }
    let bytes = serde_json::to_vec(value).map_err(|error| FileError::new("write", path, error))?;
    files::replace(path, &bytes, Ownership { mode: Some(0o600), ..Ownership::default() })
}

fn machine_id(roots: &Roots) -> Option<String> {
    let bytes = files::read_bounded(&roots.path("/etc/machine-id"), 4096).ok()??;
    let text = String::from_utf8(bytes).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Returns what the node keeps, checked against its pin and the machine, and as it was signed.
///
/// # Errors
/// Why it must not be asserted, for people.
fn kept(roots: &Roots) -> Result<Option<(KeptState, Sealed)>, String> {
    let Some(sealed) = read::<Sealed>(&Store::of(roots).state())? else { return Ok(None) };
    let kept = authentic(roots, &sealed)?;
    Ok(Some((kept, sealed)))
}

/// Returns the document if it is the newest one for this machine, by the pinned key.
///
/// # Errors
/// Why it must not be asserted, for people.
fn authentic(roots: &Roots, sealed: &Sealed) -> Result<KeptState, String> {
    let pin = read::<Pin>(&Store::of(roots).pin())?;
    seal::check(sealed, pin.as_ref(), machine_id(roots).as_deref())
}

/// Whether this process may read and change what the node keeps.
fn may(roots: &Roots) -> bool {
    rustix::process::geteuid().is_root() || !roots.is_real()
}
