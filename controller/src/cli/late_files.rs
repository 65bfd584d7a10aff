//! Files of tasks whose names only the run tells, read when it first asks for them.
//!
//! Owns the copies that make a resumed run find what the first one found, what was not there included. Invariant: what
//! is given was kept before.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Mutex,
};

use gpufleet::playbook::Reader;
use sha2::{Digest as _, Sha256};

use super::sources::Disk;

/// First byte of a copy: the file was there, or was not.
const THERE: u8 = b'+';
const MISSING: u8 = b'-';

/// Reads a file once in the life of a run.
pub struct LateFiles {
    folder: PathBuf,
    turn: Mutex<()>,
}

impl LateFiles {
    /// With copies in this folder, which may not be there yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, turn: Mutex::new(()) }
    }

    fn keep(&self, copy: &Path, first: u8, bytes: &[u8]) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let new = copy.with_extension("new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&[first])?;
        file.write_all(bytes)?;
        // Why not for what is missing: a role looks for many files that it does not have.
        if first == THERE {
            file.sync_data()?;
        }
        fs::rename(&new, copy)
    }
}

impl Reader for LateFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let digest = Sha256::digest(path.as_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let copy = self.folder.join(name);
        let _turn = self.turn.lock();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        match fs::read(&copy) {
            Ok(kept) => {
                return match kept.split_first() {
                    Some((&THERE, text)) => Ok(text.to_vec()),
                    _ => Err(missing()),
                };
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let cannot = |error: io::Error| io::Error::new(error.kind(), format!("no copy can be kept: {error}"));
        match Disk.read(path) {
            Ok(bytes) => {
                self.keep(&copy, THERE, &bytes).map_err(cannot)?;
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.keep(&copy, MISSING, &[]).map_err(cannot)?;
                Err(missing())
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        Disk.list(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_finds_what_the_first_one_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name).display().to_string();
        fs::write(file("a.yml"), "first").unwrap();
        let late = LateFiles::new(dir.path().join("included"));
        assert_eq!(late.read(&file("a.yml")).unwrap(), b"first");
        assert_eq!(late.read(&file("b.yml")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(file("a.yml"), "second").unwrap();
        fs::write(file("b.yml"), "new").unwrap();
        for late in [late, LateFiles::new(dir.path().join("included"))] {
            assert_eq!(late.read(&file("a.yml")).unwrap(), b"first");
            assert_eq!(late.read(&file("b.yml")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
