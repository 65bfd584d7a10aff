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

fn is_newer(path: &Path, than: SystemTime) -> bool {
    // By the change of the file, because a package keeps the time of its content. Within the second the start is known.
    let changed = fs::metadata(path).ok().and_then(|meta| {
        use std::os::unix::fs::MetadataExt as _;
        Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(meta.ctime()).ok()?))
    });
    changed.is_some_and(|time| time > than + Duration::from_secs(1))
}

/// Returns when a process was started; `None` if it is gone.
fn started(node: &Node<'_>, pid: u32) -> Result<Option<SystemTime>, Trouble> {
    let read = |name: String| -> Result<String, Trouble> {
        let bytes = files::read_bounded(&node.roots.proc(&name), STAT)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let stat = read(format!("{pid}/stat"))?;
    let ticks = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse::<u64>().ok());
    let boot = read("stat".to_owned())?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
    Ok(ticks.zip(boot).map(|(ticks, boot)| UNIX_EPOCH + Duration::from_secs(boot + ticks / TICKS)))
}
