//! Which runs of this machine are at work now: a journal is locked as long as its process lives.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use rustix::process::Pid;

use super::{RunDir, RunId};
use crate::event::{Event, What};

/// A run that is at work on some of the same hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtWork {
    pub run: RunId,
    pub shared: BTreeSet<String>,
}

/// The right to begin a run; given back when dropped.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "its lock lives as long as it")] File);

/// Waits until no other process of this machine is just beginning a run.
///
/// # Errors
/// The state directory cannot be used.
pub fn take_turn(state_dir: &Path) -> io::Result<Turn> {
    // Why for us alone: what lies here says what a resume does.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(state_dir.join("lock"))?;
    file.lock()?;
    Ok(Turn(file))
}

fn is_locked(dir: &RunDir) -> bool {
    File::open(dir.journal()).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// The first run found that is at work on one of these hosts and may change them.
pub fn at_work(state_dir: &Path, hosts: &[String]) -> Option<AtWork> {
    let wanted: BTreeSet<&String> = hosts.iter().collect();
    let entries = fs::read_dir(state_dir.join("runs")).ok()?;
    entries.flatten().find_map(|entry| {
        let run = RunId::parse(entry.file_name().to_str()?)?;
        let dir = RunDir::new(state_dir, &run);
        if !is_locked(&dir) {
            return None;
        }
        let mut line = String::new();
        BufReader::new(File::open(dir.journal()).ok()?).read_line(&mut line).ok()?;
        let What::RunStarted(started) = serde_json::from_str::<Event>(&line).ok()?.what else { return None };
        let shared: BTreeSet<String> =
            started.hosts.into_iter().filter(|host| wanted.contains(host)).collect();
        (started.verb.writes() && !shared.is_empty()).then_some(AtWork { run, shared })
    })
}

/// The process that is at work on a run, if one is.
pub fn process_of(dir: &RunDir) -> Option<Pid> {
    let pid = fs::read_to_string(dir.process()).ok()?.trim().parse().ok()?;
    is_locked(dir).then(|| Pid::from_raw(pid)).flatten()
}
