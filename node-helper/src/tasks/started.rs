//! Whether a daemon was started before its files were changed, so that it runs with older settings.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    declare::{Node, Trouble},
    os::files,
};

/// Clock ticks a second in /proc. Source: proc(5); the kernel's `USER_HZ` is 100 on all machines with GPUs.
const TICKS: u64 = 100;
/// Largest file of /proc that is read, in bytes; that of a machine has a line for each processor.
const STAT: u64 = 4 * 1024 * 1024;

/// Whether one of these files is newer than a process.
///
/// # Errors
/// If the start of the process cannot be read.
pub fn before(node: &Node<'_>, pid: u32, paths: &[PathBuf]) -> Result<bool, Trouble> {
    Ok(started(node, pid)?.is_some_and(|at| paths.iter().any(|path| is_newer(path, at))))
}

/// Returns those of these processes that were started before a file was changed; none if nobody knows when that was.
///
/// # Errors
/// If the start of a process cannot be read.
pub fn older(node: &Node<'_>, pids: &[u32], path: &Path) -> Result<Vec<u32>, Trouble> {
    let Some(booted) = booted(node)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for pid in pids {
        if ticks(node, *pid)?.is_some_and(|ticks| is_newer(path, booted + Duration::from_secs(ticks / TICKS)))
        {
            found.push(*pid);
        }
    }
    Ok(found)
}

/// Whether these files were there as they are when the node booted; not if nobody knows when that was.
///
/// # Errors
/// If the start of process 1 cannot be read.
pub fn precede_boot(node: &Node<'_>, paths: &[PathBuf]) -> Result<bool, Trouble> {
    Ok(started(node, 1)?.is_some_and(|at| !paths.iter().any(|path| is_newer(path, at))))
}

/// Whether one of these files is newer than a unit that last began to run so many microseconds after the boot; not if nobody
/// knows when that was.
///
/// # Errors
/// If the time of the boot cannot be read.
pub fn unit_before(node: &Node<'_>, entered_us: u64, paths: &[PathBuf]) -> Result<bool, Trouble> {
    let booted = booted(node)?.filter(|_| entered_us > 0);
    let at = booted.map(|at| at + Duration::from_micros(entered_us));
    Ok(at.is_some_and(|at| paths.iter().any(|path| is_newer(path, at))))
}

fn is_newer(path: &Path, than: SystemTime) -> bool {
    // By the change of the file, because a package keeps the time of its content. Within the second the start is known.
    let changed = fs::metadata(path).ok().and_then(|meta| {
        use std::os::unix::fs::MetadataExt as _;
        Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(meta.ctime()).ok()?))
    });
    changed.is_some_and(|time| time > than + Duration::from_secs(1))
}

fn read(node: &Node<'_>, name: &str) -> Result<String, Trouble> {
    let bytes = files::read_bounded(&node.roots.proc(name), STAT)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns when the node was booted; `None` if the kernel does not tell.
fn booted(node: &Node<'_>) -> Result<Option<SystemTime>, Trouble> {
    let text = read(node, "stat")?;
    let boot = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    Ok(boot.map(|boot| UNIX_EPOCH + Duration::from_secs(boot)))
}

/// Returns when a process was started; `None` if it is gone.
fn started(node: &Node<'_>, pid: u32) -> Result<Option<SystemTime>, Trouble> {
    let ticks = ticks(node, pid)?;
    Ok(ticks.zip(booted(node)?).map(|(ticks, boot)| boot + Duration::from_secs(ticks / TICKS)))
}

/// Returns the ticks after the boot at which a process was started; `None` if it is gone.
fn ticks(node: &Node<'_>, pid: u32) -> Result<Option<u64>, Trouble> {
    let stat = read(node, &format!("{pid}/stat"))?;
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    Ok(rest.and_then(|rest| rest.split_ascii_whitespace().nth(19)?.parse::<u64>().ok()))
}
