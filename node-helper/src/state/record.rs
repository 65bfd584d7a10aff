//! Values that were applied and cannot be read back, such as locked clocks.
//!
//! `record.json` is one JSON object. It is read at each access, because an earlier session may have written it, and
//! replaced as a whole. Without a state directory, readers find it empty and write nothing.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::os::files::{self, FileError, Ownership};

/// Larger than any record, in bytes.
const LIMIT: u64 = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a JSON object; it is kept, so that a person can look at it.
    #[error("{} is damaged ({reason}); remove it to go on, gpufleet then sets again what it cannot read back", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("there is no state directory, so nothing can be recorded")]
    NoDirectory,
}

/// A handle to the record; all clones write the same file.
#[derive(Clone, Debug)]
pub struct Record {
    path: Option<PathBuf>,
    writing: Arc<Mutex<()>>,
}

impl Record {
    /// Returns the record of a state directory; without one, it is always empty.
    pub fn of(state_dir: Option<&Path>) -> Self {
        Self { path: state_dir.map(|dir| dir.join("record.json")), writing: Arc::default() }
    }

    fn read(&self) -> Result<Map<String, Value>, RecordError> {
        let Some(path) = &self.path else { return Ok(Map::new()) };
        let Some(bytes) = files::read_bounded(path, LIMIT)? else { return Ok(Map::new()) };
        serde_json::from_slice(&bytes)
            .map_err(|error| RecordError::Damaged { path: path.clone(), reason: error.to_string() })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the record cannot be read, which does not mean that the key is missing.
    pub fn get(&self, key: &str) -> Result<Option<Value>, RecordError> {
        Ok(self.read()?.get(key).cloned())
    }

    /// Stores a value; it is on disk when this returns.
    ///
    /// # Errors
    /// If it cannot be written; then the old record stays.
    pub fn put(&self, key: &str, value: Value) -> Result<(), RecordError> {
        self.change(|record| record.insert(key.to_owned(), value))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// As [`Record::put`].
    pub fn remove(&self, key: &str) -> Result<(), RecordError> {
        self.change(|record| record.shift_remove(key))
    }

    fn change(&self, edit: impl FnOnce(&mut Map<String, Value>) -> Option<Value>) -> Result<(), RecordError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.as_ref().ok_or(RecordError::NoDirectory)?;
        let mut record = self.read()?;
        let before = record.clone();
        edit(&mut record);
        if record == before {
            return Ok(());
        }
        let bytes = Value::Object(record).to_string().into_bytes();
        Ok(files::replace(path, &bytes, Ownership { mode: Some(0o600), ..Ownership::default() })?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_survive_and_clones_share_them() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::of(Some(dir.path()));
        assert_eq!(record.get("clocks/GPU-1").unwrap(), None);
        record.put("clocks/GPU-1", json!({"low": 1200})).unwrap();
        record.clone().put("clocks/GPU-2", json!(1)).unwrap();
        let again = Record::of(Some(dir.path()));
        assert_eq!(again.get("clocks/GPU-1").unwrap(), Some(json!({"low": 1200})));
        again.remove("clocks/GPU-1").unwrap();
        assert_eq!(record.get("clocks/GPU-1").unwrap(), None);
        assert_eq!(record.get("clocks/GPU-2").unwrap(), Some(json!(1)));
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("record.json"), "[1,").unwrap();
        let record = Record::of(Some(dir.path()));
        assert!(matches!(record.get("x"), Err(RecordError::Damaged { .. })));
        assert!(matches!(record.put("x", json!(1)), Err(RecordError::Damaged { .. })));
    }

    #[test]
    fn without_a_directory_nothing_is_found_and_nothing_written() {
        let record = Record::of(None);
        assert_eq!(record.get("x").unwrap(), None);
        assert!(matches!(record.put("x", json!(1)), Err(RecordError::NoDirectory)));
    }
}
