//! Entering a running node from outside, through the namespaces of its process 1.

use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::ThreadNameSpaceType;

use crate::out;

/// Runs `gpusimctl` inside a node.
pub fn ctl(dir: &Path, node: &str, arguments: &[String]) -> ExitCode {
    match run(dir, node, arguments) {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            out::error(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &Path, node: &str, arguments: &[String]) -> Result<i32, String> {
    let home = dir.join("nodes").join(node);
    if !home.is_dir() {
        let mut names: Vec<String> = std::fs::read_dir(dir.join("nodes"))
            .map_err(|_| format!("{} is no directory of a lab", dir.display()))?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        return Err(format!("there is no node `{node}` (there are {})", names.join(", ")));
    }
    let pid = std::fs::read_to_string(home.join("init.pid"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| format!("{node} is not running"))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| format!("{node} is not running: {e}"))?;
    let mut spaces = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    if !rustix::process::geteuid().is_root() {
        spaces |= ThreadNameSpaceType::USER;
    }
    rustix::thread::move_into_thread_name_spaces(std::os::fd::AsFd::as_fd(&process), spaces)
        .map_err(|e| format!("cannot enter {node}: {e}"))?;
    let status = Command::new("/usr/bin/gpusimctl")
        .args(arguments)
        .current_dir("/")
        .status()
        .map_err(|e| format!("cannot run gpusimctl in {node}: {e}"))?;
    // What ends the node may end the program too, before it can say that it did.
    let ends_node = arguments.first().is_some_and(|word| matches!(word.as_str(), "vanish" | "power-cut"));
    Ok(status.code().unwrap_or(if ends_node { 0 } else { 1 }))
}
