//! What slurmd would offer with files that are not written yet.

use std::{fs, io::Write as _, path::PathBuf};

use super::daemon::{Daemon, Offers};
use crate::{
    declare::{Node, Trouble},
    os::{
        files::At as _,
        tree::{self, Spot},
    },
    tasks::edits,
};

/// A folder as slurm.conf's, with files that differ; it ends with this.
struct Trial(Spot);

impl Drop for Trial {
    fn drop(&mut self) {
        // What is left of it is in the folder for temporary files.
        let _ = self.0.remove_all(&|| true);
    }
}

/// Asks slurmd with these files in place of those beside slurm.conf; writes nothing there.
///
/// # Errors
/// If slurmd does not end in time, or there is no place for temporary files.
pub fn offers(
    node: &Node<'_>,
    daemon: &Daemon,
    conf: &std::path::Path,
    name: &str,
    steps: &[&edits::Step],
) -> Result<Offers, Trouble> {
    let folder = conf.parent().unwrap_or(conf);
    let (spot, inside) = tree::dir(&std::env::temp_dir())?.private("gpufleet-slurm")?;
    let trial = Trial(spot);
    let mut written = Vec::new();
    for step in steps {
        let edits::Step::Write { place, bytes, .. } = step else { continue };
        let Some(file) = place.file_name().filter(|_| place.parent() == Some(folder)) else { continue };
        let path = inside.spot(file);
        path.create(0o600).and_then(|mut new| new.write_all(bytes)).at("write", path.path())?;
        written.push(file.to_owned());
    }
    for entry in fs::read_dir(folder).at("read", folder)?.flatten() {
        // Includes are relative to slurm.conf.
        if !written.contains(&entry.file_name()) {
            inside.spot(entry.file_name()).link_to(&entry.path()).at("make", entry.path())?;
        }
    }
    let conf: PathBuf = trial.0.path().join(conf.file_name().unwrap_or_default());
    daemon.offers(node, &conf, name)
}
