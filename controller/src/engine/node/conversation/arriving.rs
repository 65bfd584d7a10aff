//! A file that comes from a node, until it is whole.
//!
//! Owns the place on this machine while it is written: it lies beside its place under another name, locked, and is gone
//! when it is given up. What a process that was killed left there is removed by the next one that writes to the same
//! place. Invariant: the file system keeps a reserve, so that no node can stop the journal.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

pub(crate) use gpufleet_protocol::hex;
use rustix::fs::{FlockOperation, flock, statvfs};
use sha2::{Digest, Sha256};

/// What stays free on the file system for the journal and everything else, in bytes; on small ones a tenth.
const RESERVE: u64 = 512 << 20;

/// Why nothing is written, in words for people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// A size as people read it: to the next lower tenth.
pub(crate) fn size_text(bytes: u64) -> String {
    let unit = |shift: u32, name: &str| {
        let tenths = (u128::from(bytes) * 10) >> shift;
        match tenths % 10 {
            0 => format!("{} {name}", tenths / 10),
            tenth => format!("{}.{tenth} {name}", tenths / 10),
        }
    };
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => unit(10, "KiB"),
        0x10_0000..0x4000_0000 => unit(20, "MiB"),
        _ => unit(30, "GiB"),
    }
}

/// A file that is not yet at its place.
#[derive(Debug)]
pub(crate) struct Arriving {
    file: tempfile::NamedTempFile,
    digest: Sha256,
    place: PathBuf,
    folder: PathBuf,
    /// Bytes that came.
    pub(crate) has: u64,
}

impl Arriving {
    /// Begins a file of this size; whatever an earlier process left of one is removed.
    pub(crate) fn at(place: &Path, size: u64) -> Result<Self, Refused> {
        let refused = |error: io::Error| cannot_write(place, &error);
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(refused)?;
        let prefix = prefix(place);
        remove_left_behind(folder, &prefix);
        room(place, folder, size)?;
        let file = loop {
            let file = tempfile::Builder::new().prefix(&prefix).tempfile_in(folder).map_err(refused)?;
            flock(file.as_file(), FlockOperation::LockExclusive).map_err(|error| refused(error.into()))?;
            // Why looked at again: before it was locked, another run may have taken it for one that was left behind.
            if file.path().exists() {
                break file;
            }
        };
        let (place, folder) = (place.to_owned(), folder.to_owned());
        Ok(Self { file, digest: Sha256::new(), place, folder, has: 0 })
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        room(&self.place, &self.folder, bytes.len() as u64)?;
        self.digest.update(bytes);
        self.has += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error| cannot_write(&self.place, &error))
    }

    pub(crate) fn digest(&self) -> String {
        hex(self.digest.clone().finalize())
    }

    pub(crate) fn place(self) -> Result<(), Refused> {
        let Self { file, place, .. } = self;
        file.persist(&place).map(|_| ()).map_err(|error| cannot_write(&place, &error.error))
    }
}

fn cannot_write(place: &Path, error: &io::Error) -> Refused {
    Refused(format!("cannot write {} here: {error}", place.display()))
}

/// How the files begin that are on their way to this place.
///
/// Why a digest: names may be as long as a file system allows already.
fn prefix(place: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let name = place.file_name().unwrap_or_default().as_bytes();
    let digest = hex(Sha256::digest(name));
    format!(".gpufleet-partial-{}-", digest.get(..16).unwrap_or_default())
}

/// Removes what processes that are gone left behind. Errors are no matter: the file is written all the same.
fn remove_left_behind(folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if is_ours
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = File::open(entry.path())
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether so many bytes more leave the reserve untouched.
fn room(place: &Path, folder: &Path, wanted: u64) -> Result<(), Refused> {
    let found = statvfs(folder).map_err(|error| cannot_write(place, &error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let total = found.f_blocks.saturating_mul(found.f_frsize);
    fits(free, total, wanted).map_err(|reserve| {
        Refused(format!(
            "cannot write {} here: it takes {} more, the file system of {} has {} free, and {} of these stay reserved for \
             the journal of the run; free space there, or fetch to another file system",
            place.display(),
            size_text(wanted),
            folder.display(),
            size_text(free),
            size_text(reserve),
        ))
    })
}

/// The reserve, where so many bytes more would touch it.
fn fits(free: u64, total: u64, wanted: u64) -> Result<(), u64> {
    let reserve = RESERVE.min(total / 10);
    if free.checked_sub(wanted).is_some_and(|left| left >= reserve) { Ok(()) } else { Err(reserve) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_arrives_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b/file");
        let mut arriving = Arriving::at(&place, 3).unwrap();
        arriving.take(b"ab").unwrap();
        arriving.take(b"c").unwrap();
        assert!(!place.exists());
        assert_eq!(arriving.digest(), hex(Sha256::digest(b"abc")));
        arriving.place().unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"abc");
        drop(Arriving::at(&folder.path().join("x"), 0).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "what is given up leaves nothing");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_is_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (place, other) = (folder.path().join("file"), folder.path().join("other"));
        let left = |place: &Path| {
            let path = folder.path().join(format!("{}dead", prefix(place)));
            std::fs::write(&path, "half").unwrap();
            path
        };
        let (dead, unrelated) = (left(&place), left(&other));
        let written = Arriving::at(&place, 0).unwrap();
        assert!(!dead.exists() && unrelated.exists());
        let second = Arriving::at(&place, 0).unwrap();
        assert!(written.file.path().exists(), "somebody writes it");
        written.place().unwrap();
        second.place().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_reserve_is_never_touched() {
        const GIB: u64 = 1 << 30;
        assert_eq!(fits(GIB, 100 * GIB, 0), Ok(()));
        assert_eq!(fits(GIB, 100 * GIB, GIB / 2), Ok(()));
        assert_eq!(fits(GIB, 100 * GIB, GIB / 2 + 1), Err(RESERVE));
        assert_eq!(fits(GIB, 100 * GIB, 1 << 50), Err(RESERVE));
        assert_eq!(fits(10 << 20, 64 << 20, 1 << 20), Ok(()), "small file systems keep a tenth");
        assert_eq!(fits(7 << 20, 64 << 20, 1 << 20), Err((64 << 20) / 10));
        let folder = tempfile::tempdir().unwrap();
        let error = Arriving::at(&folder.path().join("f"), 1 << 60).unwrap_err().0;
        assert!(
            error.contains("stay reserved for the journal") && error.contains("it takes 1073741824 GiB more"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn sizes_are_told_in_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (1 << 30, "1 GiB"),
            (3 << 29, "1.5 GiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
