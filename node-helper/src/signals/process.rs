//! Signals of processes, from one pass over `/proc`.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
};

use gpufleet_protocol::signal::Signal;
use rustix::fs::{Mode, OFlags, openat};

use super::{Found, Named, Reader, rounded, signal};
use crate::gpu::clients;

/// Names of programs of the driver, by the 15 characters that the kernel keeps.
pub const FABRIC_MANAGER: &str = clients::FABRIC_MANAGER;
pub const PERSISTENCED: &str = "nvidia-persiste";
pub const MPS: &str = "nvidia-cuda-mps";
pub const DCGM: &str = "nv-hostengine";
pub const DOCKER: &str = "dockerd";
pub const CONTAINERD: &str = "containerd";
pub const CRIO: &str = "crio";
const PROGRAMS: [&str; 7] = [FABRIC_MANAGER, PERSISTENCED, MPS, DCGM, DOCKER, CONTAINERD, CRIO];
/// Accounts of the system and of its services have numbers below this one. Source: systemd, "Users, Groups, UIDs and
/// GIDs on systemd Systems".
const FIRST_PERSON: u32 = 1000;
/// Largest number of processes that are looked at.
const MOST: usize = 32_768;

/// The processes of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// Those of [`PROGRAMS`] that the system runs; a person's process of that name does not count.
    runs: HashSet<&'static str>,
    zombies: u32,
    /// Processes of the driver, or with its device files open, in a state that no signal ends; an error if some may not
    /// be looked into.
    stuck: Counted,
    /// As `stuck`, for dead processes that still have threads.
    dead: Counted,
}

/// A number, or why it is not known.
type Counted = Result<u32, String>;

impl Processes {
    pub fn runs(&self, program: &str) -> bool {
        self.runs.contains(program)
    }
}

/// Looks at every process once.
///
/// # Errors
/// If the processes cannot be listed, or only some of them.
pub fn scan(reader: &Reader<'_>) -> Result<Processes, String> {
    let proc = reader.roots.path("/proc");
    let folder = fs::File::open(&proc).map_err(|error| format!("/proc: {error}"))?;
    let mut found = Processes { runs: HashSet::new(), zombies: 0, stuck: Ok(0), dead: Ok(0) };
    let mut first = false;
    let mut count = 0;
    for entry in fs::read_dir(&proc).map_err(|error| format!("/proc: {error}"))? {
        let name = entry.map_err(|error| format!("/proc: {error}"))?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        count += 1;
        if count > MOST {
            return Err(format!("there are more than {MOST} processes"));
        }
        if let Some(stop) = reader.deadline.stop() {
            return Err(io::Error::from(stop).to_string());
        }
        first |= pid == 1;
        // Ignored, because the process has ended meanwhile.
        let Some((comm, state)) = stat(&folder, pid) else { continue };
        let path = proc.join(pid.to_string());
        if let Some(program) = PROGRAMS.iter().find(|program| **program == comm)
            && fs::metadata(&path).is_ok_and(|meta| is_system(meta.uid()))
        {
            found.runs.insert(*program);
        }
        match state {
            'D' => {
                add(&mut found.stuck, holds(&comm, || clients::devices(&path.join("fd"), &BTreeMap::new())))
            }
            'Z' => {
                found.zombies += 1;
                add(&mut found.dead, threads_hold(&path, pid));
            }
            _ => {}
        }
    }
    if first { Ok(found) } else { Err("the processes of other users are hidden".to_owned()) }
}

/// Whether it is a user of the system, or this helper's own.
fn is_system(uid: u32) -> bool {
    uid < FIRST_PERSON || uid == rustix::process::geteuid().as_raw()
}

/// Returns name and state from `/proc/PID/stat`: `12 (a name) S …`.
fn stat(proc: &fs::File, pid: u32) -> Option<(String, char)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(proc, format!("{pid}/stat"), flags, Mode::empty()).ok()?;
    let mut bytes = [0u8; 512];
    let count = rustix::io::read(file, &mut bytes).ok()?;
    parse_stat(&String::from_utf8_lossy(bytes.get(..count)?))
}

fn parse_stat(text: &str) -> Option<(String, char)> {
    // A name may have brackets itself.
    let (head, rest) = text.rsplit_once(") ")?;
    Some((head.split_once('(')?.1.to_owned(), rest.chars().next()?))
}

/// Whether a process is the driver's, or has a device file of it open.
fn holds<T>(comm: &str, devices: impl FnOnce() -> io::Result<Option<T>>) -> Result<bool, String> {
    if comm.starts_with("nvidia") {
        return Ok(true);
    }
    match devices() {
        Ok(found) => Ok(found.is_some()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err("open files of other users' processes may not be looked at; gpufleet needs root for that"
                .to_owned())
        }
        // The process has ended meanwhile.
        Err(_) => Ok(false),
    }
}

/// Whether another thread of a dead process has a device file open; the process itself has closed its files.
fn threads_hold(path: &std::path::Path, pid: u32) -> Result<bool, String> {
    let Ok(threads) = fs::read_dir(path.join("task")) else { return Ok(false) };
    for thread in threads.flatten().filter(|thread| *thread.file_name() != *pid.to_string()).take(64) {
        if holds("", || clients::devices(&thread.path().join("fd"), &BTreeMap::new()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn add(sum: &mut Counted, one: Result<bool, String>) {
    match (sum.as_mut(), one) {
        (Ok(sum), Ok(true)) => *sum += 1,
        (Ok(_), Err(why)) => *sum = Err(why),
        _ => {}
    }
}

pub fn read(reader: &Reader<'_>, processes: &Result<Processes, String>) -> Vec<Named> {
    let of = |take: fn(&Processes) -> &Counted| -> Signal {
        signal(processes.as_ref().map_err(Clone::clone).and_then(|found| take(found).clone()).map(Some))
    };
    let zombies = processes.as_ref().map(|found| Some(found.zombies)).map_err(Clone::clone);
    vec![
        ("zombies", signal(zombies)),
        ("gpu_dstate_count", of(|found| &found.stuck)),
        ("gpu_zombie_count", of(|found| &found.dead)),
        ("pid_ratio", signal(pid_ratio(reader))),
        ("file_ratio", signal(file_ratio(reader))),
    ]
}

/// Returns threads of the node by the most that it can have.
fn pid_ratio(reader: &Reader<'_>) -> Found<f64> {
    // For example `0.20 0.18 0.12 1/80 11206`.
    let threads = reader.parsed("/proc/loadavg", |text| {
        text.split_whitespace().nth(3)?.split_once('/')?.1.parse::<f64>().ok()
    })?;
    let most = reader.parsed("/proc/sys/kernel/pid_max", positive)?;
    Ok(threads.zip(most).map(|(threads, most)| rounded(threads / most)))
}

fn file_ratio(reader: &Reader<'_>) -> Found<f64> {
    reader.parsed("/proc/sys/fs/file-nr", |text| {
        let mut numbers = text.split_whitespace();
        let used: f64 = numbers.next()?.parse().ok()?;
        Some(rounded(used / positive(numbers.nth(1)?)?))
    })
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets() {
        assert_eq!(parse_stat("7 (a) D 1) Z 1 7"), Some(("a) D 1".to_owned(), 'Z')));
        for text in ["", "7", "7 (a)", "7 a) "] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }
}
