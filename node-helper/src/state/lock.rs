//! The lock of a node: one run at a time, and only the newest epoch of that run.
//!
//! There are two files. `lock` is only locked with `flock`, which tells whether its holder lives. `holder.json` names
//! the holder and keeps the newest epoch of the last runs, so that an older controller stays fenced after the newer one
//! has ended. A holder reads it again before each change.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    RunEpoch,
    message::{Locked, Open},
};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::os::{
    files::{self, At, FileError, Ownership},
    tree,
};

/// The name under which the node itself asserts what it keeps. Any run takes the node over from it.
pub const KEEPER: &str = "gpufleet-keep";
/// Number of runs whose newest epoch is kept.
const REMEMBERED: usize = 32;
/// Time for an older helper of the same run to end.
const HANDOVER: Duration = Duration::from_secs(8);
/// The same for the assertion of a boot, which may be reading GPUs that the driver has yet to start.
const FROM_KEEPER: Duration = Duration::from_secs(25);
const LIMIT: u64 = 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    holder: RunEpoch,
    who: String,
    /// Random, to tell two helpers of the same run and epoch apart.
    token: String,
    /// Newest epoch of each run, the latest run last.
    #[serde(default)]
    epochs: Vec<RunEpoch>,
}

impl Holder {
    fn newest(&self, run: &str) -> Option<u64> {
        self.epochs
            .iter()
            .chain([&self.holder])
            .filter(|known| known.run == run)
            .map(|known| known.epoch)
            .max()
    }
}

/// A failure to take the lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the node is locked by {}", .0.who)]
    Locked(Locked),
}

/// The lock of one session, released on drop.
#[derive(Debug)]
pub struct Lock {
    /// Holds the kernel's lock.
    _file: File,
    holder_path: PathBuf,
    token: Option<String>,
}

fn read_holder(path: &Path) -> Result<Option<Holder>, FileError> {
    // A damaged file counts as no holder: it is only ever replaced as a whole, so the damage comes from the disk.
    Ok(files::read_bounded(path, LIMIT)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

fn open_file(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .at("open", path)
}

fn try_lock(file: &File, path: &Path) -> Result<bool, FileError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(FileError::new("lock", path, error)),
    }
}

fn locked(known: Option<&Holder>, open: &Open, fenced: bool) -> LockError {
    LockError::Locked(match known {
        Some(known) => Locked { holder: known.holder.clone(), who: known.who.clone(), fenced },
        None => Locked {
            holder: open.holder.clone(),
            who: "a session that has not said who it is".to_owned(),
            fenced,
        },
    })
}

impl Lock {
    /// Takes the lock in a state directory for a writer; a reader takes none and never waits.
    ///
    /// # Errors
    /// If another session holds it, a newer epoch of the same run has taken the node over, or the directory is
    /// unusable.
    pub fn take(state_dir: &Path, open: &Open) -> Result<Self, LockError> {
        let (path, holder_path) = (state_dir.join("lock"), state_dir.join("holder.json"));
        if !open.writes || open.guest {
            // Readers and writers must not block each other.
            let file = File::open(state_dir).at("open", state_dir)?;
            return Ok(Self { _file: file, holder_path, token: None });
        }
        let file = open_file(&path)?;
        let mut known = read_holder(&holder_path)?;
        let newest = known.as_ref().and_then(|known| known.newest(&open.holder.run));
        if newest.is_some_and(|newest| newest > open.holder.epoch) {
            return Err(locked(known.as_ref(), open, true));
        }
        let gives_way = |known: Option<&Holder>| {
            known.is_some_and(|known| known.holder.run == open.holder.run || known.holder.run == KEEPER)
        };
        let same_run = gives_way(known.as_ref());
        let mut have = try_lock(&file, &path)?;
        let token = tree::random_letters::<24>().at("lock", state_dir)?;
        if !have && !same_run {
            // A short wait, because a helper whose controller has just ended will end within moments.
            let until = Instant::now() + Duration::from_millis(500);
            while !have && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
                have = try_lock(&file, &path)?;
            }
        }
        if !have {
            // Read again: who holds it may have come after the one that the file named.
            known = read_holder(&holder_path)?;
            if !gives_way(known.as_ref()) {
                return Err(locked(known.as_ref(), open, false));
            }
        }
        // A helper of the same run that still runs sees this, stops its operations and ends.
        write_holder(&holder_path, known.as_ref(), open, &token)?;
        let keeper = known.as_ref().is_some_and(|known| known.holder.run == KEEPER);
        let until = Instant::now() + if keeper { FROM_KEEPER } else { HANDOVER };
        while !have && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            have = try_lock(&file, &path)?;
        }
        if !have {
            return Err(locked(known.as_ref(), open, false));
        }
        // Read again, because another epoch may have come during the wait.
        let now = read_holder(&holder_path)?;
        if now.as_ref().is_none_or(|now| now.token != token) {
            let fenced = now.as_ref().is_some_and(|now| now.holder.epoch > open.holder.epoch);
            return Err(locked(now.as_ref(), open, fenced));
        }
        Ok(Self { _file: file, holder_path, token: Some(token) })
    }

    /// Whether no other session has taken the node over; always `true` for readers.
    ///
    /// # Errors
    /// If the state directory cannot be read any more.
    pub fn is_current(&self) -> Result<bool, FileError> {
        let Some(token) = &self.token else { return Ok(true) };
        Ok(read_holder(&self.holder_path)?.is_some_and(|now| now.token == *token))
    }
}

fn write_holder(path: &Path, known: Option<&Holder>, open: &Open, token: &str) -> Result<(), FileError> {
    let mut epochs: Vec<RunEpoch> = known.map(|known| known.epochs.clone()).unwrap_or_default();
    if let Some(known) = known {
        epochs.push(known.holder.clone());
    }
    epochs.push(open.holder.clone());
    let mut newest: Vec<RunEpoch> = Vec::new();
    for epoch in epochs {
        match newest.iter().position(|known| known.run == epoch.run) {
            Some(at) => {
                let known = newest.remove(at);
                newest.push(if known.epoch > epoch.epoch { known } else { epoch });
            }
            None => newest.push(epoch),
        }
    }
    let newest = newest.split_off(newest.len().saturating_sub(REMEMBERED));
    let holder = Holder {
        holder: open.holder.clone(),
        who: open.who.clone(),
        token: token.to_owned(),
        epochs: newest,
    };
    let bytes = serde_json::to_vec(&holder).map_err(|error| FileError::new("write", path, error))?;
    files::replace(path, &bytes, Ownership { mode: Some(0o600), ..Ownership::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(run: &str, epoch: u64, writes: bool) -> Open {
        Open {
            holder: RunEpoch { run: run.into(), epoch },
            who: format!("{run}@host"),
            writes,
            guest: false,
            commands: false,
            own_commands: false,
            login_uid: None,
        }
    }

    fn refused(result: Result<Lock, LockError>) -> Locked {
        match result {
            Err(LockError::Locked(locked)) => locked,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_living_run_is_named_and_a_dead_one_is_not_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path(), &open("a", 1, true)).unwrap();
        let locked = refused(Lock::take(dir.path(), &open("b", 1, true)));
        assert_eq!((locked.who.as_str(), locked.fenced), ("a@host", false));
        drop(first);
        Lock::take(dir.path(), &open("b", 1, true)).unwrap();
    }

    #[test]
    fn a_newer_epoch_fences_the_older_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let old = Lock::take(dir.path(), &open("a", 1, true)).unwrap();
        let path = dir.path().to_owned();
        let newer = std::thread::spawn(move || Lock::take(&path, &open("a", 2, true)));
        let until = Instant::now() + Duration::from_secs(30);
        while old.is_current().unwrap() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!old.is_current().unwrap());
        drop(old);
        let newer = newer.join().unwrap().unwrap();
        assert!(newer.is_current().unwrap());
        drop(newer);
        assert!(refused(Lock::take(dir.path(), &open("a", 1, true))).fenced);
        drop(Lock::take(dir.path(), &open("b", 1, true)).unwrap());
        assert!(refused(Lock::take(dir.path(), &open("a", 1, true))).fenced, "still, after another run");
        Lock::take(dir.path(), &open("a", 2, true)).unwrap();
    }

    #[test]
    fn readers_and_a_writer_are_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let early = Lock::take(dir.path(), &open("r", 1, false)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a reader makes nothing");
        let writer = Lock::take(dir.path(), &open("b", 1, true)).unwrap();
        let late = Lock::take(dir.path(), &open("s", 1, false)).unwrap();
        assert!(early.is_current().unwrap() && late.is_current().unwrap() && writer.is_current().unwrap());
        assert_eq!(refused(Lock::take(dir.path(), &open("c", 1, true))).who, "b@host", "writers are alone");
        drop(writer);
        Lock::take(dir.path(), &open("c", 1, true)).unwrap();
    }

    #[test]
    fn a_damaged_holder_counts_as_nobody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("holder.json"), "{\"hol").unwrap();
        Lock::take(dir.path(), &open("a", 1, true)).unwrap();
    }
}
