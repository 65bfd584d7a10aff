//! Outcomes of operations, kept for a controller that lost the answer and asks again.
//!
//! Each operation has a file, named by a digest of run and operation, so that no id can leave the folder or collide
//! with that of another run. A file without outcome marks an operation that began. The spool is bounded by number and
//! age. Invariants: the mark of an operation that must not run twice is on disk before it begins; an unreadable file
//! counts as begun, because an operation must have written it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use gpufleet_protocol::{OpOutcome, OpStatus, message::Spooled};
use serde::{Deserialize, Serialize};

use crate::os::{
    files::{self, At, FileError, Ownership},
    tree,
};

const MOST: usize = 1000;
const OLDEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Number of writes of this process after which the spool is pruned again.
const PRUNE_EVERY: usize = 250;
/// Larger than any outcome, in bytes.
const LIMIT: u64 = 64 * 1024 * 1024;

static WRITTEN: AtomicUsize = AtomicUsize::new(0);

#[derive(Serialize, Deserialize)]
struct Kept {
    run: String,
    op_id: String,
    #[serde(default)]
    outcome: Option<OpOutcome>,
}

/// How durable a file must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On disk when the call returns: for operations that must not run twice.
    Disk,
    /// Outlives this process but perhaps not a power cut: for operations that can be repeated.
    Process,
}

/// The spool of a state directory.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

impl Spool {
    pub fn of(state_dir: &Path) -> Self {
        Self { folder: state_dir.join("spool") }
    }

    /// Returns the file of an operation.
    pub fn path(&self, run: &str, op_id: &str) -> PathBuf {
        self.folder.join(format!("{}.json", files::sha256(format!("{run}\n{op_id}").as_bytes())))
    }

    /// Marks an operation as begun, and drops the result of an earlier attempt.
    ///
    /// # Errors
    /// If the disk is full or read-only; then nothing is marked.
    pub fn begin(&self, run: &str, op_id: &str, durability: Durability) -> Result<(), FileError> {
        self.write(&Kept { run: run.to_owned(), op_id: op_id.to_owned(), outcome: None }, durability)
    }

    /// Stores a result.
    ///
    /// # Errors
    /// If the disk is full or read-only; then the mark stays.
    pub fn keep(
        &self,
        run: &str,
        op_id: &str,
        outcome: OpOutcome,
        durability: Durability,
    ) -> Result<(), FileError> {
        self.write(&Kept { run: run.to_owned(), op_id: op_id.to_owned(), outcome: Some(outcome) }, durability)
    }

    /// Removes the mark of an operation that did not act after all.
    pub fn forget(&self, run: &str, op_id: &str) {
        let _ = fs::remove_file(self.path(run, op_id));
    }

    /// Returns the outcome of an operation, as far as it is known.
    ///
    /// # Errors
    /// If the spool cannot be read, which does not mean that it has no entry.
    pub fn recall(&self, run: &str, op_id: &str) -> Result<Spooled, FileError> {
        let Some(bytes) = files::read_bounded(&self.path(run, op_id), LIMIT)? else {
            return Ok(Spooled::Nothing);
        };
        let kept: Option<Kept> = serde_json::from_slice(&bytes).ok();
        Ok(match kept.and_then(|kept| kept.outcome) {
            Some(outcome) => Spooled::Finished(Box::new(outcome)),
            None => Spooled::Started,
        })
    }

    fn write(&self, kept: &Kept, durability: Durability) -> Result<(), FileError> {
        if !self.folder.is_dir() {
            let state = tree::make_dirs(self.folder.parent().unwrap_or(Path::new("/")))?;
            state.spot("spool").make_dir(0o700).at("make", &self.folder)?;
            if durability == Durability::Disk {
                files::sync_folder(&self.folder);
            }
        }
        if WRITTEN.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY == PRUNE_EVERY - 1 {
            self.prune(false);
        }
        let path = self.path(&kept.run, &kept.op_id);
        let bytes = serde_json::to_vec(kept).map_err(|error| FileError::new("write", &path, error))?;
        match durability {
            Durability::Disk => {
                files::replace(&path, &bytes, Ownership { mode: Some(0o600), ..Ownership::default() })
            }
            Durability::Process => files::replace_quickly(&path, &bytes),
        }
    }

    /// Removes files that are too old or too many, and leftovers of a crash if no other process writes (`alone`).
    pub fn prune(&self, alone: bool) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let now = SystemTime::now();
        let mut kept: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in entries.flatten() {
            let Ok(modified) = entry.metadata().and_then(|meta| meta.modified()) else { continue };
            let old = now.duration_since(modified).is_ok_and(|age| age > OLDEST);
            let foreign = entry.path().extension().is_none_or(|extension| extension != "json");
            if old || foreign && alone {
                let _ = fs::remove_file(entry.path());
            } else if !foreign {
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

/// Returns what may be kept of a `no_log` operation: how it ended, without output or content.
pub fn without_output(outcome: &OpOutcome) -> OpOutcome {
    let status = match &outcome.status {
        OpStatus::Failed { kind, .. } => {
            OpStatus::Failed { kind: *kind, message: "failed; `no_log` hides why".to_owned() }
        }
        OpStatus::Skipped { .. } => OpStatus::Skipped { reason: "`no_log` hides why".to_owned() },
        OpStatus::Unknown { .. } => OpStatus::Unknown { reason: "`no_log` hides why".to_owned() },
        OpStatus::NotApplicable { .. } => OpStatus::NotApplicable { reason: "`no_log` hides why".to_owned() },
        other => other.clone(),
    };
    let mut kept = OpOutcome::new(status);
    kept.activated = outcome.activated;
    kept.awaiting.clone_from(&outcome.awaiting);
    kept.members = outcome.members.iter().map(without_output).collect();
    if let Some(rc) = outcome.data.get("rc") {
        kept.data.insert("rc".to_owned(), rc.clone());
    }
    kept.data.insert("withheld".to_owned(), true.into());
    kept
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gpufleet_protocol::FailureKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operation_is_nothing_then_started_then_finished() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path());
        for durability in [Durability::Disk, Durability::Process] {
            let id = format!("../../{durability:?}");
            assert_eq!(spool.recall("run", &id).unwrap(), Spooled::Nothing);
            spool.begin("run", &id, durability).unwrap();
            assert_eq!(spool.recall("run", &id).unwrap(), Spooled::Started);
            assert_eq!(spool.recall("other", &id).unwrap(), Spooled::Nothing, "another run's");
            let mut outcome = OpOutcome::new(OpStatus::Changed);
            outcome.data.insert("rc".into(), json!(3));
            spool.keep("run", &id, outcome.clone(), durability).unwrap();
            assert_eq!(spool.recall("run", &id).unwrap(), Spooled::Finished(Box::new(outcome)));
            let mode = fs::metadata(spool.path("run", &id)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            spool.begin("run", &id, durability).unwrap();
            assert_eq!(spool.recall("run", &id).unwrap(), Spooled::Started, "an attempt of its own");
            spool.forget("run", &id);
            assert_eq!(spool.recall("run", &id).unwrap(), Spooled::Nothing);
        }
    }

    #[test]
    fn what_was_torn_counts_as_begun() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path());
        spool.keep("run", "a", OpOutcome::new(OpStatus::Ok), Durability::Process).unwrap();
        let path = spool.path("run", "a");
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(spool.recall("run", "a").unwrap(), Spooled::Started, "{length} bytes");
        }
    }

    #[test]
    fn nothing_secret_is_kept() {
        let mut outcome = OpOutcome::failed(FailureKind::Exit, "said hunter2");
        outcome.data.insert("rc".into(), json!(1));
        outcome.data.insert("stdout".into(), json!("hunter2"));
        outcome.warnings.push("hunter2".into());
        let mut member = OpOutcome::new(OpStatus::Skipped { reason: "hunter2".into() });
        member.data.insert("x".into(), json!("hunter2"));
        outcome.members.push(member);
        let kept = without_output(&outcome);
        assert!(!serde_json::to_string(&kept).unwrap().contains("hunter2"));
        assert_eq!((&kept.data["rc"], &kept.data["withheld"]), (&json!(1), &json!(true)));
        assert!(matches!(kept.status, OpStatus::Failed { kind: FailureKind::Exit, .. }));
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
        spool.prune(false);
        assert_eq!(fs::read_dir(dir.path().join("spool")).unwrap().count(), MOST + 1, "somebody writes it");
        spool.prune(true);
        assert_eq!(fs::read_dir(dir.path().join("spool")).unwrap().count(), MOST);
    }
}
