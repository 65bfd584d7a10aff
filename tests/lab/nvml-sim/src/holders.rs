//! Finds the processes that hold a GPU's device file open by a scan of `/proc/*/fd`, like `fuser`.

use std::path::{Path, PathBuf};

/// Returns the other processes that hold `device` open. A process that may not be inspected does not count.
pub fn holders(device: &Path) -> Vec<u32> {
    let me = std::process::id();
    let mut found: Vec<u32> =
        processes().into_iter().filter(|pid| *pid != me && holds(*pid, device)).collect();
    found.sort_unstable();
    found
}

/// Returns the file of a GPU under `device_dir`.
pub fn device_file(device_dir: &str, minor: u32) -> PathBuf {
    Path::new(device_dir).join(format!("nvidia{minor}"))
}

/// Returns all processes of this process namespace.
pub fn processes() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn holds(pid: u32, device: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == device))
}

/// Whether the process is alive (a zombie is not).
pub fn alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !matches!(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()), Some('Z' | 'X') | None)
}
