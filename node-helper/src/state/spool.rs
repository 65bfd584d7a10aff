//! Results of commands, kept until a controller that lost the answer asks again.
//!
//! One file an operation, named by the digest of run and operation, so that no id can leave the folder or meet that of
//! another run. Bounded by number and age.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use gpufleet_protocol::OpOutcome;
use serde_json::json;

use crate::os::files::{self, At, FileError, Ownership};

const MOST: usize = 1000;
const OLDEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// The spool of a state directory.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

impl Spool {
    pub fn of(state_dir: &Path) -> Self {
        Self { folder: state_dir.join("spool") }
    }

    /// The file that holds the result of an operation.
    pub fn path(&self, run: &str, op_id: &str) -> PathBuf {
        self.folder.join(format!("{}.json", files::sha256(format!("{run}\n{op_id}").as_bytes())))
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// The disk is full or read-only.
    pub fn keep(&self, run: &str, op_id: &str, outcome: &OpOutcome) -> Result<(), FileError> {
        if !self.folder.is_dir() {
            fs::DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(&self.folder)
                .at("make", &self.folder)?;
        }
        let path = self.path(run, op_id);
        let bytes = json!({ "run": run, "op_id": op_id, "outcome": outcome }).to_string();
        files::replace(&path, bytes.as_bytes(), Ownership { mode: Some(0o600), ..Ownership::default() })
    }

    /// Removes results that are too old or too many, and leftovers of a crash.
    pub fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let now = SystemTime::now();
        let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in entries.flatten() {
            let Ok(modified) = entry.metadata().and_then(|meta| meta.modified()) else { continue };
            let old = now.duration_since(modified).is_ok_and(|age| age > OLDEST);
            if old || entry.path().extension().is_none_or(|extension| extension != "json") {
                let _ = fs::remove_file(entry.path());
            } else {
                kept.push((modified, entry.path()));
            }
        }
        kept.sort();
        let surplus = kept.len().saturating_sub(MOST);
        for (_, path) in kept.into_iter().take(surplus) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::OpStatus;

    use super::*;

    #[test]
    fn results_are_kept_by_run_and_operation() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path());
        spool.keep("run", "../../x", &OpOutcome::new(OpStatus::Changed)).unwrap();
        let text = fs::read_to_string(spool.path("run", "../../x")).unwrap();
        assert!(text.contains("\"op_id\":\"../../x\""));
        assert_ne!(spool.path("run", "a"), spool.path("other", "a"));
    }

    #[test]
    fn the_spool_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path());
        fs::create_dir(dir.path().join("spool")).unwrap();
        for number in 0..MOST + 5 {
            fs::write(dir.path().join(format!("spool/{number}.json")), "").unwrap();
        }
        fs::write(dir.path().join("spool/.x.gpufleet-1-1"), "").unwrap();
        spool.prune();
        assert_eq!(fs::read_dir(dir.path().join("spool")).unwrap().count(), MOST);
    }
}
