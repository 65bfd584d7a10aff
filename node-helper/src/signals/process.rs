//! Signals of processes, from one pass over `/proc`.

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _};

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
pub const KUBELET: &str = "kubelet";
const PROGRAMS: [&str; 8] = [FABRIC_MANAGER, PERSISTENCED, MPS, DCGM, DOCKER, CONTAINERD, CRIO, KUBELET];
/// Programs whose command line names files that are read here.
const NODES_OWN: [&str; 2] = [DOCKER, KUBELET];
/// Daemons whose limits the processes of jobs and containers inherit.
const DAEMONS: [&str; 2] = ["slurmd", CONTAINERD];
/// Largest number of daemons, and of processes, that are named.
const MOST_NAMED: usize = 16;
/// Accounts of the system and of its services have numbers below this one. Source: systemd, "Users, Groups, UIDs and
/// GIDs on systemd Systems".
const FIRST_PERSON: u32 = 1000;
/// Largest number of processes that are looked at.
const MOST: usize = 32_768;

/// The processes of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processes {
    /// Those of [`PROGRAMS`] that the system runs; a person's process of that name does not count.
    /// Each with one of its processes.
    runs: BTreeMap<&'static str, u32>,
    /// Why a process may be a daemon of the node or of a container.
    unclear: Option<String>,
    zombies: u32,
    /// Processes of the driver, or with its device files open, in a state that no signal ends; an error if some may not
    /// be looked into.
    stuck: Counted,
    /// As `stuck`, for dead processes that still have threads.
    dead: Counted,
    /// Some of both: `4711 (python) D`.
    holders: Vec<String>,
    /// The oldest of `stuck`; an error if one does not tell how often it gave a CPU up.
    oldest: Result<Option<Waiting>, String>,
    /// Name of each of [`DAEMONS`] that runs, and the bytes that it may lock in memory; `None` for all of it.
    locked: Result<Vec<(&'static str, Option<u64>)>, String>,
}

/// A process that waits where no signal reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    /// In ticks since the boot.
    pub(super) started: u64,
    /// How often it gave a CPU up.
    switches: u64,
}

/// A number, or why it is not known.
type Counted = Result<u32, String>;

impl Processes {
    pub fn runs(&self, program: &str) -> bool {
        self.runs.contains_key(program)
    }

    /// Returns the process of one of [`NODES_OWN`] that runs.
    ///
    /// # Errors
    /// If one has its name, and nobody knows whether it is a container's.
    pub fn pid(&self, program: &str) -> Found<u32> {
        match (self.runs.get(program), &self.unclear) {
            (None, Some(why)) => Err(why.clone()),
            (pid, _) => Ok(pid.copied()),
        }
    }
}

/// Whether a process sees the processes and the files that process 1 sees, and so is none of a container, where root
/// names files as it likes.
fn is_nodes_own(reader: &Reader<'_>, pid: u32) -> Result<bool, String> {
    for kind in ["pid", "mnt"] {
        let first = format!("/proc/1/ns/{kind}");
        let read = |path: &str| fs::read_link(reader.roots.path(path));
        let nodes = read(&first).map_err(|error| format!("{first}: {error}"))?;
        match read(&format!("/proc/{pid}/ns/{kind}")) {
            Ok(own) if own == nodes => {}
            Ok(_) => return Ok(false),
            // It has ended meanwhile.
            Err(error) if super::is_missing(&error) => return Ok(false),
            Err(error) => return Err(format!("/proc/{pid}/ns/{kind}: {error}")),
        }
    }
    Ok(true)
}

/// Finds the process of one of [`NODES_OWN`], as [`scan`] does.
///
/// # Errors
/// As [`Processes::pid`], and if the processes cannot be listed.
pub fn find(reader: &Reader<'_>, program: &str) -> Found<u32> {
    let mut pids: Vec<u32> =
        reader.names("/proc")?.unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        let place = reader.roots.path(format!("/proc/{pid}"));
        if fs::read_to_string(place.join("comm")).is_ok_and(|comm| comm.trim() == program)
            && fs::metadata(&place).is_ok_and(|meta| is_system(meta.uid()))
            && is_nodes_own(reader, pid)?
        {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Looks at every process once.
///
/// # Errors
/// If the processes cannot be listed, or only some of them.
pub fn scan(reader: &Reader<'_>) -> Result<Processes, String> {
    let proc = reader.roots.path("/proc");
    let folder = fs::File::open(&proc).map_err(|error| format!("/proc: {error}"))?;
    let mut found = Processes {
        runs: BTreeMap::new(),
        unclear: None,
        zombies: 0,
        stuck: Ok(0),
        dead: Ok(0),
        holders: Vec::new(),
        oldest: Ok(None),
        locked: Ok(Vec::new()),
    };
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
        let Some(Stat { comm, state, parent, started }) = stat(&folder, pid) else { continue };
        let path = proc.join(pid.to_string());
        if let Some(daemon) = DAEMONS.iter().find(|daemon| **daemon == comm)
            && parent == 1
            && state != 'Z'
            && fs::metadata(&path).is_ok_and(|meta| is_system(meta.uid()))
        {
            lock(&mut found.locked, daemon, reader.parsed(&format!("/proc/{pid}/limits"), lockable));
        }
        if let Some(program) = PROGRAMS.iter().find(|program| **program == comm)
            && fs::metadata(&path).is_ok_and(|meta| is_system(meta.uid()))
        {
            match if NODES_OWN.contains(program) { is_nodes_own(reader, pid) } else { Ok(true) } {
                Ok(false) => {}
                // The oldest one, which is the daemon and no child of it.
                Ok(true) => {
                    found.runs.entry(program).and_modify(|known| *known = pid.min(*known)).or_insert(pid);
                }
                Err(why) => found.unclear = Some(why),
            }
        }
        let (sum, held) = match state {
            'D' => {
                let devices = || clients::devices(&path.join("fd"), &BTreeMap::new());
                let is_drivers =
                    comm.starts_with("nvidia") && fs::metadata(&path).is_ok_and(|meta| is_system(meta.uid()));
                (&mut found.stuck, if is_drivers { Ok(true) } else { holds(devices) })
            }
            'Z' => {
                found.zombies += 1;
                (&mut found.dead, threads_hold(&path, pid))
            }
            _ => continue,
        };
        if held == Ok(true) && state == 'D' {
            let status = reader.parsed(&format!("/proc/{pid}/status"), switches);
            older(&mut found.oldest, status.map(|told| told.map(|switches| Waiting { started, switches })));
        }
        if held == Ok(true) && found.holders.len() < MOST_NAMED {
            found.holders.push(format!("{pid} ({}) {state}", comm.replace(char::is_control, "?")));
        }
        add(sum, held);
    }
    if first { Ok(found) } else { Err("the processes of other users are hidden".to_owned()) }
}

/// Whether it is a user of the system, or this helper's own.
pub fn is_system(uid: u32) -> bool {
    uid < FIRST_PERSON || uid == rustix::process::geteuid().as_raw()
}

/// What `/proc/PID/stat` begins with: `12 (a name) S 1 …`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    comm: String,
    state: char,
    parent: u32,
    /// In ticks since the boot.
    pub(super) started: u64,
}

fn stat(proc: &fs::File, pid: u32) -> Option<Stat> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(proc, format!("{pid}/stat"), flags, Mode::empty()).ok()?;
    let mut bytes = [0u8; 512];
    let count = rustix::io::read(file, &mut bytes).ok()?;
    parse_stat(&String::from_utf8_lossy(bytes.get(..count)?))
}

pub(super) fn parse_stat(text: &str) -> Option<Stat> {
    // A name may have brackets itself.
    let (head, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?.chars().next()?;
    let parent = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    // Field 22 of proc_pid_stat(5); the parent is field 4.
    let started = words.nth(17).and_then(|word| word.trim_end().parse().ok()).unwrap_or(0);
    Some(Stat { comm: head.split_once('(')?.1.to_owned(), state, parent, started })
}

/// Returns how often a process gave a CPU up, by the two lines of its `status`.
fn switches(text: &str) -> Option<u64> {
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    of("voluntary_ctxt_switches:")?.checked_add(of("nonvoluntary_ctxt_switches:")?)
}

/// Returns the soft limit of locked memory in bytes, from `Max locked memory  65536  65536  bytes`.
fn lockable(text: &str) -> Option<Option<u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

fn lock(
    all: &mut Result<Vec<(&'static str, Option<u64>)>, String>,
    daemon: &'static str,
    found: Found<Option<u64>>,
) {
    match (all.as_mut(), found) {
        (Ok(all), Ok(Some(limit))) if all.len() < MOST_NAMED => all.push((daemon, limit)),
        (Ok(_), Err(why)) => *all = Err(why),
        // It has ended meanwhile, or there is enough of it.
        _ => {}
    }
}

/// Whether a process has a device file of the driver open.
fn holds<T>(devices: impl FnOnce() -> io::Result<Option<T>>) -> Result<bool, String> {
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
        if holds(|| clients::devices(&thread.path().join("fd"), &BTreeMap::new()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Keeps the older of two processes. One that is gone meanwhile is none.
fn older(oldest: &mut Result<Option<Waiting>, String>, one: Found<Waiting>) {
    match (oldest.as_mut(), one) {
        (Ok(known), Ok(Some(one))) => *known = Some(known.map_or(one, |known| known.min(one))),
        (Ok(_), Err(why)) => *oldest = Err(why),
        _ => {}
    }
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
    let scanned = || processes.as_ref().map_err(Clone::clone);
    let locked = scanned().and_then(|found| found.locked.clone());
    let running = locked.map(|daemons| Some(daemons).filter(|daemons| !daemons.is_empty()));
    let limited =
        |daemons: Vec<(&str, Option<u64>)>| daemons.iter().filter(|(_, limit)| limit.is_some()).count();
    vec![
        ("zombies", signal(scanned().map(|found| Some(found.zombies)))),
        ("gpu_dstate_count", of(|found| &found.stuck)),
        ("gpu_zombie_count", of(|found| &found.dead)),
        ("gpu_stuck_processes", signal(scanned().map(|found| Some(found.holders.clone())))),
        ("gpu_stuck_mark", signal(scanned().and_then(|found| found.oldest.clone()).map(mark))),
        ("memlock_limited", signal(running.clone().map(|daemons| daemons.map(limited)))),
        ("memlock_limits", signal(running.map(|daemons| daemons.map(limits)))),
        ("pid_ratio", signal(pid_ratio(reader))),
        ("file_ratio", signal(file_ratio(reader))),
    ]
}

fn mark(oldest: Option<Waiting>) -> Option<u64> {
    oldest.map(|Waiting { started, switches }| started.saturating_add(switches))
}

/// Returns each daemon and its limit once.
fn limits(daemons: Vec<(&str, Option<u64>)>) -> Vec<String> {
    let text = |(daemon, limit): (&str, Option<u64>)| match limit {
        Some(bytes) => format!("{daemon}={} KiB", bytes / 1024),
        None => format!("{daemon}=unlimited"),
    };
    let mut told: Vec<String> = daemons.into_iter().map(text).collect();
    told.sort_unstable();
    told.dedup();
    told
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
    fn a_limit_is_the_soft_one() {
        let line = |soft: &str| {
            format!("Limit  Soft\nMax locked memory         {soft}    9999    bytes\nMax x 1 1 y\n")
        };
        assert_eq!(lockable(&line("unlimited")), Some(None));
        assert_eq!(lockable(&line("65536")), Some(Some(65536)));
        for text in [line("x"), line("-1"), String::new()] {
            assert_eq!(lockable(&text), None, "{text}");
        }
    }

    #[test]
    fn switches_are_those_of_both_sorts() {
        let text = "State:\tD\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(text), Some(42));
        assert_eq!(switches("voluntary_ctxt_switches:\t40\n"), None);
    }

    #[test]
    fn a_name_may_have_brackets() {
        let stat = |started| Stat { comm: "a) D 1".to_owned(), state: 'Z', parent: 1, started };
        assert_eq!(parse_stat("7 (a) D 1) Z 1 7"), Some(stat(0)));
        let whole = "7 (a) D 1) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_stat(whole), Some(stat(4242)));
        for text in ["", "7", "7 (a)", "7 a) "] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }
}
