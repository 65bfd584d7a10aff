//! The machine that gpufleet runs on, for the lookups of templates.

use std::{
    fs, io,
    io::Read as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use gpufleet::{interpreter::Machine, inventory::Inventory, template::PathKind};

/// How long a program of the lookups `pipe` and `lines` may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// How much it may print.
const MAX_OUTPUT: u64 = 16 * 1024 * 1024;

/// This machine, and the inventory of the run.
pub struct ThisMachine {
    pub inventory: Arc<Inventory>,
}

impl Machine for ThisMachine {
    fn kind(&self, path: &str) -> Option<PathKind> {
        let found = fs::metadata(if path.is_empty() { "." } else { path }).ok()?;
        Some(if found.is_dir() { PathKind::Folder } else { PathKind::File })
    }

    fn files_of(&self, folder: &str) -> Result<Vec<String>, String> {
        listed(folder)
    }

    fn absolute(&self, path: &str) -> String {
        let found = std::path::absolute(if path.is_empty() { "." } else { path });
        found
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok())
            .unwrap_or_else(|| path.to_owned())
    }

    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Ok(None);
        }
        match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("the variable {name} is not UTF-8 text")),
        }
    }

    fn output(&self, line: &str, folder: &str) -> Result<String, String> {
        printed(line, folder, DEADLINE)
    }

    fn hosts(&self, patterns: &[String]) -> Result<Vec<String>, String> {
        let parts: Vec<_> = patterns.iter().map(|pattern| (pattern.as_str(), None)).collect();
        match self.inventory.select_parts(&parts, None) {
            Ok(hosts) => Ok(hosts.iter().map(|host| host.to_string()).collect()),
            Err(errors) => Err(errors
                .iter()
                .next()
                .map_or_else(|| "the pattern is wrong".to_owned(), |error| error.message.clone())),
        }
    }

    fn waiting(&self, act: &mut dyn FnMut()) {
        use tokio::runtime::{Handle, RuntimeFlavor};
        match Handle::try_current() {
            Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
                tokio::task::block_in_place(act)
            }
            _ => act(),
        }
    }
}

fn listed(folder: &str) -> Result<Vec<String>, String> {
    let folder = if folder.is_empty() { "." } else { folder };
    let problem = |error: io::Error| format!("cannot list {folder}: {error}");
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(problem(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(problem)?;
        // Why not the entry's own type: a link to a file is a file here, as in Ansible.
        let is_file = fs::metadata(entry.path()).is_ok_and(|found| found.is_file());
        names.extend(entry.file_name().into_string().ok().filter(|_| is_file));
    }
    Ok(names)
}

fn printed(line: &str, folder: &str, deadline: Duration) -> Result<String, String> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", line])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if !folder.is_empty() {
        command.current_dir(folder);
    }
    let mut child = command.spawn().map_err(|error| format!("the command cannot be started: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err("the command has no output".to_owned()) };
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
        let _ = send.send(read.map(|_| bytes));
    });
    let read = receive.recv_timeout(deadline);
    if !matches!(&read, Ok(Ok(bytes)) if bytes.len() as u64 <= MAX_OUTPUT)
        && let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let status = child.wait().map_err(|error| format!("the command is lost: {error}"))?;
    let bytes = match read {
        Err(_) => return Err(format!("the command took longer than {} s", deadline.as_secs())),
        Ok(Err(error)) => return Err(format!("the output of the command cannot be read: {error}")),
        Ok(Ok(bytes)) if bytes.len() as u64 > MAX_OUTPUT => {
            return Err(format!("the command prints more than {} MiB", MAX_OUTPUT >> 20));
        }
        Ok(Ok(bytes)) => bytes,
    };
    match status.code() {
        Some(0) => {
            String::from_utf8(bytes).map_err(|_| "what the command prints is not UTF-8 text".to_owned())
        }
        Some(code) => Err(format!("the command ended with exit code {code}")),
        None => Err("the command was ended by a signal".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_in_their_folder_and_end_at_the_deadline() {
        let folder = tempfile::tempdir().expect("a folder");
        let within = |line: &str, seconds: u64| {
            printed(line, folder.path().to_str().expect("UTF-8"), Duration::from_secs(seconds))
        };
        let run = |line: &str| within(line, 60);
        fs::write(folder.path().join("a"), "").expect("written");
        std::os::unix::fs::symlink("a", folder.path().join("b")).expect("a link");
        fs::create_dir(folder.path().join("c")).expect("a folder");
        assert_eq!(run("ls; cat"), Ok("a\nb\nc\n".to_owned()));
        assert_eq!(run("echo secret; exit 3"), Err("the command ended with exit code 3".to_owned()));
        assert_eq!(within("sleep 300 & sleep 300", 1), Err("the command took longer than 1 s".to_owned()));
        let mut names = listed(folder.path().to_str().expect("UTF-8")).expect("a folder");
        names.sort();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(listed("/nowhere"), Ok(Vec::new()));
    }
}
