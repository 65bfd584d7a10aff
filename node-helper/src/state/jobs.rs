//! Operations that outlive the helper that started them: their order, their start and their outcome.
//!
//! Each job has a folder below `jobs`. Its id is derived from run and operation, so that a resumed run finds the same
//! one. `order.json` says what to do, until it begins. `began.json` is created exclusively, which keeps a job from
//! beginning twice. `result.json` is the outcome. The job's process holds `lock` while it lives. Jobs are bounded by
//! number and age; a running job is never removed. Only the helper's user can read any of it.
//!
//! The output of a secret job (`no_log`; its folder has the mark `secret`) is kept until it is asked for, its run ends
//! or another run comes (the mark `closed`), whichever is first; how it ended is kept.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use gpufleet_protocol::{OpOutcome, OpRequest, message::Open};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::spool::without_output;
use crate::os::{
    files::{self, At, FileError, Ownership},
    tree,
};

const MOST: usize = 1000;
const OLDEST: Duration = Duration::from_secs(7 * 24 * 3600);
const RESULT: &str = "result.json";
/// Marks a job whose output is secret.
const SECRET: &str = "secret";
/// Marks a secret job whose output will not be asked for any more.
const CLOSED: &str = "closed";
/// Larger than any outcome, in bytes.
const LIMIT: u64 = 64 * 1024 * 1024;

/// The operation of a job, and the session that asked for it.
#[derive(Serialize, Deserialize)]
pub struct Order {
    pub open: Open,
    pub request: OpRequest,
    /// The boot in which it begins.
    pub boot_id: Option<String>,
}

/// The record that a job began.
#[derive(Serialize, Deserialize)]
struct Began {
    pid: u32,
    boot_id: Option<String>,
}

/// The state of a job.
#[derive(Debug)]
pub enum Look {
    /// No such job is known.
    Missing,
    /// It is prepared and has not begun.
    Prepared,
    Running,
    Finished(Box<OpOutcome>),
    /// It began, and its process is gone without a result; with the boot in which it began.
    Lost {
        boot_id: Option<String>,
    },
}

/// The jobs of a state directory.
#[derive(Clone, Debug)]
pub struct Jobs {
    folder: PathBuf,
}

/// Returns the id of an operation's job, in the form of Ansible's ids.
pub fn id(run: &str, op_id: &str) -> String {
    let digest = Sha256::digest(format!("job\n{run}\n{op_id}").as_bytes());
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let (first, second) = digest.split_at(8);
    let second = second.get(..8).unwrap_or_default();
    format!("j{:012}.{:06}", number(first) % 1_000_000_000_000, number(second) % 1_000_000)
}

impl Jobs {
    pub fn of(state_dir: &Path) -> Self {
        Self { folder: state_dir.join("jobs") }
    }

    /// Returns the folder of a job; `None` if the text is no valid id, so that no id leads out of `jobs`.
    fn place(&self, jid: &str) -> Option<PathBuf> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let is_id = jid.starts_with(|c: char| c.is_ascii_alphanumeric()) && jid.chars().all(fits);
        (is_id && jid.len() <= 64).then(|| self.folder.join(jid))
    }

    /// Returns the path of a job's outcome, which need not exist.
    pub fn results_file(&self, jid: &str) -> PathBuf {
        self.place(jid).unwrap_or_else(|| self.folder.join("none")).join("result.json")
    }

    /// Returns the state of a job.
    ///
    /// # Errors
    /// If it cannot be read, which does not mean that it is missing.
    pub fn look(&self, jid: &str) -> Result<Look, FileError> {
        let Some(place) = self.place(jid).filter(|place| place.is_dir()) else { return Ok(Look::Missing) };
        if let Some(outcome) = result(&place)? {
            return Ok(Look::Finished(outcome));
        }
        if self.hold(jid)?.is_none() {
            return Ok(Look::Running);
        }
        // Read again, because the job may have ended between the two checks.
        if let Some(outcome) = result(&place)? {
            return Ok(Look::Finished(outcome));
        }
        Ok(match files::read_bounded(&place.join("began.json"), LIMIT)? {
            None => Look::Prepared,
            Some(bytes) => {
                let began: Option<Began> = serde_json::from_slice(&bytes).ok();
                Look::Lost { boot_id: began.and_then(|began| began.boot_id) }
            }
        })
    }

    /// Stores an order, for the process that will carry it out.
    ///
    /// # Errors
    /// If the disk is full or read-only; then nothing begins.
    pub fn prepare(&self, jid: &str, order: &Order) -> Result<(), FileError> {
        let place = self.known(jid)?;
        let jobs = tree::make_dirs(self.folder.parent().unwrap_or(Path::new("/")))?.spot("jobs");
        jobs.make_dir(0o700).at("make", &self.folder)?;
        jobs.enter()?.spot(jid).make_dir(0o700).at("make", &place)?;
        if order.request.secret {
            let mark = place.join(SECRET);
            files::replace(&mark, order.open.holder.run.as_bytes(), private())?;
        }
        let path = place.join("order.json");
        let bytes = serde_json::to_vec(order).map_err(|error| FileError::new("write", &path, error))?;
        files::replace(&path, &bytes, private())
    }

    fn known(&self, jid: &str) -> Result<PathBuf, FileError> {
        let none = || FileError::new("use", Path::new(jid), io::Error::from(io::ErrorKind::InvalidInput));
        self.place(jid).ok_or_else(none)
    }

    /// Takes the lock of a job; `None` while another process holds it.
    ///
    /// # Errors
    /// If the disk is full or read-only.
    pub fn hold(&self, jid: &str) -> Result<Option<File>, FileError> {
        let path = self.known(jid)?.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .at("open", &path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(FileError::new("lock", path, error)),
        }
    }

    /// Whether it has begun, in whatever state it is now.
    pub fn has_begun(&self, jid: &str) -> bool {
        self.place(jid).is_some_and(|place| place.join("began.json").exists())
    }

    /// Takes the order of a job. From then on the job has begun, on disk, and no other process can begin it.
    ///
    /// # Errors
    /// If it has begun before, there is no order, or the disk is full.
    pub fn begin(&self, jid: &str) -> Result<Order, FileError> {
        let place = self.known(jid)?;
        let (path, order_path) = (place.join("began.json"), place.join("order.json"));
        let bytes = files::read_bounded(&order_path, LIMIT)?
            .ok_or_else(|| FileError::new("read", &order_path, io::Error::from(io::ErrorKind::NotFound)))?;
        let order: Order =
            serde_json::from_slice(&bytes).map_err(|error| FileError::new("read", &order_path, error))?;
        let began = Began { pid: std::process::id(), boot_id: order.boot_id.clone() };
        let bytes = serde_json::to_vec(&began).map_err(|error| FileError::new("write", &path, error))?;
        let mut file = once(&path).at("make", &path)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).at("write", &path)?;
        files::sync_folder(&path);
        // A command line may hold secrets, and the order is not needed any more.
        let _ = fs::remove_file(order_path);
        Ok(order)
    }

    /// Calls off a job that has not begun, so that it never will; returns `false` if it has begun.
    ///
    /// # Errors
    /// If the disk is full or read-only; then it may still begin.
    pub fn revoke(&self, jid: &str) -> Result<bool, FileError> {
        let place = self.known(jid)?;
        let path = place.join("began.json");
        match once(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            made => {
                made.at("make", &path)?;
                let _ = fs::remove_file(place.join("order.json"));
                Ok(true)
            }
        }
    }

    /// Stores the outcome of a job.
    ///
    /// # Errors
    /// If the disk is full or read-only.
    pub fn finish(&self, jid: &str, outcome: &OpOutcome) -> Result<(), FileError> {
        let place = self.known(jid)?;
        let over = || place.join(SECRET).exists() && place.join(CLOSED).exists();
        if over() {
            return write(&place, &without_output(outcome));
        }
        write(&place, outcome)?;
        // Checked again, because the session may have closed the job before there was a result to withhold.
        if over() { self.withhold(jid) } else { Ok(()) }
    }

    /// Removes the output of a secret job from disk; how it ended is kept.
    ///
    /// # Errors
    /// If it cannot be rewritten; then it is removed as a whole, if that is possible.
    pub fn withhold(&self, jid: &str) -> Result<(), FileError> {
        let place = self.known(jid)?;
        if !place.join(SECRET).exists() {
            return Ok(());
        }
        let Some(outcome) = result(&place)? else { return Ok(()) };
        write(&place, &without_output(&outcome)).or_else(|_| {
            let path = place.join(RESULT);
            tree::spot(&path)?.remove().at("remove", path)
        })
    }

    /// Closes the secret jobs of all runs but one: their output will not be asked for any more.
    ///
    /// # Errors
    /// The first failure; all other jobs are closed.
    pub fn close(&self, but: Option<&str>) -> Result<(), FileError> {
        let mut done = Ok(());
        for jid in self.all() {
            let Some(place) = self.place(&jid) else { continue };
            let Ok(Some(run)) = files::read_bounded(&place.join(SECRET), LIMIT) else { continue };
            if but.is_some_and(|but| run == but.as_bytes()) || place.join(CLOSED).exists() {
                continue;
            }
            // The mark comes first: a job that ends at this moment sees it, or its result is seen here.
            let closed = files::replace_quickly(&place.join(CLOSED), b"").and_then(|()| self.withhold(&jid));
            done = done.and(closed);
        }
        done
    }

    fn all(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes a job that does not run.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn forget(&self, jid: &str) -> Result<(), FileError> {
        let place = self.known(jid)?;
        match tree::remove_all(&place, &|| true) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Returns the jobs that run now.
    pub fn running(&self) -> Vec<String> {
        self.all().into_iter().filter(|jid| matches!(self.look(jid), Ok(Look::Running))).collect()
    }

    /// Removes jobs that do not run and are too old or too many.
    pub fn prune(&self) {
        let now = SystemTime::now();
        let mut kept: Vec<(SystemTime, String)> = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (Ok(jid), Ok(meta)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
            let Ok(modified) = meta.modified() else { continue };
            kept.push((modified, jid));
        }
        kept.sort();
        let surplus = kept.len().saturating_sub(MOST);
        for (index, (modified, jid)) in kept.into_iter().enumerate() {
            let old = now.duration_since(modified).is_ok_and(|age| age > OLDEST);
            if (old || index < surplus) && !matches!(self.look(&jid), Ok(Look::Running)) {
                let _ = self.forget(&jid);
            }
        }
    }
}

/// Creates a file exclusively: the process that succeeds owns the job's beginning.
fn once(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn private() -> Ownership {
    Ownership { mode: Some(0o600), ..Ownership::default() }
}

fn write(place: &Path, outcome: &OpOutcome) -> Result<(), FileError> {
    let path = place.join(RESULT);
    let bytes = serde_json::to_vec(outcome).map_err(|error| FileError::new("write", &path, error))?;
    files::replace(&path, &bytes, private())
}

fn result(place: &Path) -> Result<Option<Box<OpOutcome>>, FileError> {
    let path = place.join(RESULT);
    let Some(bytes) = files::read_bounded(&path, LIMIT)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| FileError::new("read", &path, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gpufleet_protocol::{NodeOp, OpStatus, RunEpoch, message::Mode, op::Exec};

    use super::*;

    fn order() -> Order {
        let open = Open {
            holder: RunEpoch { run: "run".into(), epoch: 1 },
            who: "test".into(),
            writes: true,
            guest: true,
            commands: false,
            own_commands: false,
            login_uid: None,
        };
        let request = OpRequest {
            op: NodeOp::Exec(Exec::default()),
            mode: Mode::Apply,
            permit: None,
            run_as: None,
            timeout_s: 1,
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        Order { open, request, boot_id: Some("boot".into()) }
    }

    #[test]
    fn a_job_is_prepared_begun_once_and_finished() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = Jobs::of(dir.path());
        let jid = id("run", "0/tasks.0@host");
        assert!(jid.starts_with('j') && jid.len() == 20, "{jid}");
        assert_ne!(jid, id("other", "0/tasks.0@host"));
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Missing));
        jobs.prepare(&jid, &order()).unwrap();
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Prepared));
        let held = jobs.hold(&jid).unwrap().unwrap();
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Running));
        jobs.begin(&jid).unwrap();
        jobs.prepare(&jid, &order()).unwrap();
        assert!(jobs.begin(&jid).is_err(), "never twice");
        assert_eq!(jobs.running().as_slice(), std::slice::from_ref(&jid));
        drop(held);
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Lost { boot_id: Some(boot) } if boot == "boot"));
        jobs.finish(&jid, &OpOutcome::new(OpStatus::Changed)).unwrap();
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Finished(_)));
        let mode = fs::metadata(jobs.results_file(&jid)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        jobs.forget(&jid).unwrap();
        assert!(matches!(jobs.look(&jid).unwrap(), Look::Missing));
    }

    #[test]
    fn what_a_secret_job_said_goes_when_it_was_asked_for_or_nobody_can_ask_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = Jobs::of(dir.path());
        let mut order = order();
        order.request.secret = true;
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        outcome.data.insert("stdout".into(), "hunter2".into());
        outcome.data.insert("rc".into(), 0.into());
        let holds = |jid: &str| fs::read_to_string(jobs.results_file(jid)).unwrap().contains("hunter2");
        for jid in ["j1", "j2", "j3", "j4"] {
            order.request.secret = jid != "j4";
            jobs.prepare(jid, &order).unwrap();
            jobs.begin(jid).unwrap();
        }
        for jid in ["j1", "j2", "j4"] {
            jobs.finish(jid, &outcome).unwrap();
            assert!(holds(jid));
        }
        jobs.withhold("j1").unwrap();
        assert!(!holds("j1"));
        let Look::Finished(kept) = jobs.look("j1").unwrap() else { panic!() };
        assert_eq!((&kept.status, &kept.data["rc"]), (&OpStatus::Changed, &0.into()));
        jobs.close(Some("run")).unwrap();
        assert!(holds("j2"), "its run goes on");
        jobs.close(None).unwrap();
        jobs.finish("j3", &outcome).unwrap();
        assert!(!holds("j2") && !holds("j3") && holds("j4"));
    }

    #[test]
    fn a_job_is_called_off_or_begins_and_never_both() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = Jobs::of(dir.path());
        for jid in ["j1", "j2"] {
            jobs.prepare(jid, &order()).unwrap();
        }
        assert!(jobs.revoke("j1").unwrap());
        assert!(jobs.begin("j1").is_err() && !dir.path().join("jobs/j1/order.json").exists());
        jobs.begin("j2").unwrap();
        assert!(!jobs.revoke("j2").unwrap());
    }

    #[test]
    fn no_word_leaves_the_place_of_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = Jobs::of(dir.path());
        for word in ["..", ".", "", "../spool", "/etc", "a/b", "a b", "-x"] {
            assert!(matches!(jobs.look(word).unwrap(), Look::Missing), "{word}");
            assert!(jobs.forget(word).is_err(), "{word}");
        }
    }

    #[test]
    fn jobs_are_bounded_and_one_that_runs_stays() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = Jobs::of(dir.path());
        fs::create_dir_all(dir.path().join("jobs/j0")).unwrap();
        let held = jobs.hold("j0").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        for number in 1..MOST + 5 {
            fs::create_dir_all(dir.path().join(format!("jobs/j{number}"))).unwrap();
        }
        jobs.prune();
        assert!(held.is_some() && dir.path().join("jobs/j0").exists());
        assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), MOST + 1);
    }
}
