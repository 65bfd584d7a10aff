//! What a watcher remembers across restarts, in one file, so that findings and notifications never disagree.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{changes::Known, outbox::Outbox};

/// Version of the file.
const FORMAT: u32 = 1;
/// Bytes of the file that are read.
const MOST_BYTES: u64 = 512 << 20;

/// Everything that is remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    format: u32,
    /// By name of the schedule.
    pub schedules: BTreeMap<String, ScheduleState>,
    pub outbox: Outbox,
}

/// What is remembered of one schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// When its last audit began.
    pub begun: Option<Timestamp>,
    /// The last audit that came to its end.
    pub last: Option<LastAudit>,
    pub known: Known,
}

/// The last audit that reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastAudit {
    pub run_id: String,
    pub ended: Timestamp,
    pub exit_code: i32,
    pub seconds: f64,
}

impl Default for State {
    fn default() -> Self {
        Self { format: FORMAT, schedules: BTreeMap::new(), outbox: Outbox::default() }
    }
}

/// The folder of the state, which one watcher has at a time.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    _lock: File,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use the folder {}: {error}", .folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error("another gpufleet watch uses the folder {}", .0.display())]
    InUse(PathBuf),
}

impl Store {
    /// Takes the folder, and creates it where it does not exist.
    ///
    /// # Errors
    /// A folder that cannot be used, or that another watcher uses.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let failed = |error| StoreError::Folder { folder: folder.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        let lock = options.create(true).write(true).truncate(false).mode(0o600);
        let lock = lock.open(folder.join("lock")).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::InUse(folder.to_owned())),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// Reads the state. One that cannot be read is set aside, and what happened is the second value: then everything is
    /// told anew.
    ///
    /// # Errors
    /// A file that is there and cannot be opened.
    pub fn load(&self) -> Result<(State, Option<String>), StoreError> {
        let failed = |error| StoreError::Folder { folder: self.folder.clone(), error };
        let file = match File::open(self.file()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((State::default(), None)),
            Err(error) => return Err(failed(error)),
        };
        let reader = io::BufReader::new(io::Read::take(file, MOST_BYTES));
        let why = match serde_json::from_reader::<_, State>(reader) {
            Ok(state) if state.format == FORMAT => return Ok((state, None)),
            Ok(state) => format!("its format is {}, and this release reads {FORMAT}", state.format),
            Err(error) => error.to_string(),
        };
        let aside = self.folder.join("state.json.unreadable");
        fs::rename(self.file(), &aside).map_err(failed)?;
        let told = format!(
            "the state in {} cannot be read and lies in {} now: {why}. All findings are told anew",
            self.file().display(),
            aside.display()
        );
        Ok((State::default(), Some(told)))
    }

    /// Writes the state: all of it or nothing, also where the machine loses its power.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn save(&self, state: &State) -> Result<(), StoreError> {
        let failed = |error| StoreError::Folder { folder: self.folder.clone(), error };
        let write = || {
            let new = self.folder.join("state.json.new");
            let mut options = OpenOptions::new();
            let file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            let mut writer = io::BufWriter::new(file);
            serde_json::to_writer(&mut writer, state)?;
            writer.flush()?;
            writer.get_ref().sync_all()?;
            fs::rename(&new, self.file())?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_as_it_was_written_and_a_broken_one_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.load().unwrap(), (State::default(), None));
        let mut state = State::default();
        let schedule = state.schedules.entry("nightly".into()).or_default();
        schedule.begun = Some("2026-11-22T02:00:00Z".parse().unwrap());
        store.save(&state).unwrap();
        assert_eq!(store.load().unwrap(), (state, None));
        fs::write(folder.path().join("state.json"), "{\"form").unwrap();
        let (state, told) = store.load().unwrap();
        assert_eq!(state, State::default());
        assert!(told.unwrap().contains("state.json.unreadable"));
        assert_eq!(fs::read_to_string(folder.path().join("state.json.unreadable")).unwrap(), "{\"form");
    }

    #[test]
    fn two_watchers_cannot_use_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path()).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::InUse(_))));
        drop(first);
        Store::open(folder.path()).unwrap();
    }
}
