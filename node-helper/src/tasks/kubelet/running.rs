//! The kubelet that runs: its unit, its flags, and whether it stays up after a start.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use gpufleet_protocol::{FailureKind, tasks::Kubelet};
use serde::{Deserialize, Serialize};

use crate::{
    declare::{Node, Trouble},
    os::{files, tree, units},
    tasks::{docker::daemon::command_line, knobs, started, tool},
};

/// Where flags come from. Source: kubeadm's drop-in `10-kubeadm.conf`.
const FLAG_FILES: [&str; 5] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
    "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
];
pub const KUBEADM_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";
/// Largest file of flags, in bytes.
const LARGEST: u64 = 1024 * 1024;
/// Says that a run has stopped the kubelet and not started it again. In memory, because a boot starts the kubelet.
const STOPPED: &str = "/run/gpufleet/kubelet-stopped";
/// How long the same process has to run before it counts as started: one that does not like its state ends after it has
/// found the container runtime, and systemd starts it again after 10 s.
const STEADY: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(8) };
/// Time limit for that.
const UP: Duration = if cfg!(test) { Duration::from_secs(5) } else { Duration::from_secs(60) };

/// What is noted of a kubelet before it is stopped.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stopped {
    /// When it had begun to run, in microseconds since the boot.
    entered_us: u64,
    /// Its command line, without the program.
    words: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Without dashes.
    pub name: String,
    pub value: String,
    /// The file that has it, or the command line.
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub systemctl: PathBuf,
    /// Whether systemd runs it, or tries to.
    pub active: bool,
    /// Whether a file is newer than its start.
    pub unread: bool,
    /// Whether it does not stay up.
    pub crashes: bool,
    /// Whether a run that did not come to its end has stopped it.
    pub left_stopped: bool,
    /// Whether its flags are those of a process that is the kubelet itself, and not a shell or another program around it.
    pub has_own_flags: bool,
    words: Vec<String>,
    pub flags: Vec<Flag>,
    pub has_kubeadm: bool,
}

/// Reads the unit and the flags.
///
/// # Errors
/// If there is no kubelet, or systemd does not answer.
pub fn observe(node: &Node<'_>) -> Result<(Daemon, u32), Trouble> {
    let systemctl = tool::find(node, "systemctl", "does systemd run this node?")?;
    let shown = units::show(&systemctl, &[Kubelet::UNIT], node.deadline)?;
    let unit = shown.get(Kubelet::UNIT).cloned().unwrap_or_default();
    if !unit.exists {
        return Err(Trouble::missing(format!(
            "systemd knows no {}; k3s, RKE2 and MicroShift have the kubelet inside of another program, with settings of their own",
            Kubelet::UNIT
        )));
    }
    let mut sources = Vec::new();
    for path in FLAG_FILES {
        if let Some(bytes) = files::read_bounded(&node.roots.path(path), LARGEST)? {
            sources.push((path, String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    let active = unit.active || unit.failed;
    let stopped = node.world.read(&node.roots.path(STOPPED))?;
    let stopped: Option<Stopped> = stopped.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    // Somebody has started it since if it began to run later; then it is theirs.
    let stopped = stopped.filter(|stopped| !active && unit.entered_us <= stopped.entered_us);
    let mut has_own_flags = false;
    let words: Vec<String> = if let Some(stopped) = &stopped {
        stopped.words.clone()
    } else if unit.main_pid > 0 {
        let line = command_line(node, unit.main_pid)?;
        let mut words = line.split('\0').map(str::to_owned);
        let program = words.next().unwrap_or_default();
        has_own_flags = program.rsplit('/').next() == Some("kubelet");
        words.collect()
    } else {
        let split = |c: char| c.is_whitespace() || c == '"' || c == '\'';
        let texts = sources
            .iter()
            .flat_map(|(_, text)| text.lines().filter(|line| !line.trim_start().starts_with('#')));
        let of_files = texts
            .flat_map(|line| line.split(split))
            .map(|word| word.rsplit_once("=--").map_or(word.to_owned(), |(_, rest)| format!("--{rest}")));
        // Those of files last, because kubeadm's unit has their variables at its end.
        let of_unit = units::start_words(&systemctl, Kubelet::UNIT, node.deadline)?;
        of_unit.into_iter().skip(1).chain(of_files).collect()
    };
    let flags = flags(&words, &sources);
    let has_kubeadm = sources.iter().any(|(path, _)| *path == KUBEADM_FLAGS);
    let crashes = unit.failed || (unit.active && unit.main_pid == 0);
    Ok((
        Daemon {
            systemctl,
            active,
            unread: false,
            crashes,
            left_stopped: stopped.is_some(),
            has_own_flags,
            words,
            flags,
            has_kubeadm,
        },
        unit.main_pid,
    ))
}

fn flags(words: &[String], sources: &[(&str, String)]) -> Vec<Flag> {
    let mut all = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match words.next_if(|next| !next.starts_with('-')) {
                Some(value) => (flag, value.clone()),
                None => (flag, "true".to_owned()),
            },
        };
        let dashed = format!("--{name}");
        let source = sources
            .iter()
            .find(|(_, text)| text.contains(&dashed))
            .map_or("its command line", |(path, _)| path);
        all.push(Flag { name: name.to_owned(), value, source: source.to_owned() });
    }
    all
}

impl Daemon {
    pub fn flag(&self, name: &str) -> Option<&Flag> {
        self.flags.iter().rev().find(|flag| flag.name == name)
    }

    /// Notes whether its files are newer than it.
    ///
    /// # Errors
    /// As [`started::before`].
    pub fn compare(&mut self, node: &Node<'_>, pid: u32, files: &[PathBuf]) -> Result<(), Trouble> {
        if pid > 0 {
            self.unread |= started::before(node, pid, files)?;
        }
        Ok(())
    }

    /// Stops it, and notes that first, so that the next run starts it if this one cannot.
    ///
    /// # Errors
    /// If that cannot be noted, or systemd cannot stop it.
    pub fn stop(&self, node: &Node<'_>) -> Result<(), Trouble> {
        // Asked again, because a start that failed is later than what was observed.
        let shown = units::show(&self.systemctl, &[Kubelet::UNIT], node.deadline)?;
        let entered_us = shown.get(Kubelet::UNIT).map_or(0, |unit| unit.entered_us);
        let note = Stopped { entered_us, words: self.words.clone() };
        let text = serde_json::to_string(&note).map_err(|error| Trouble::io(error.to_string()))?;
        knobs::put(&node.roots.path(STOPPED), &text)?;
        self.act(node, "stop")
    }

    /// Starts it after [`Daemon::stop`].
    ///
    /// # Errors
    /// If systemd cannot, or the note cannot be removed.
    pub fn start(&self, node: &Node<'_>) -> Result<(), Trouble> {
        self.act(node, "start")?;
        let place = node.roots.path(STOPPED);
        match tree::spot(&place)?.remove() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(files::FileError::new("remove", place, error).into())
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// If systemd cannot.
    pub fn restart(&self, node: &Node<'_>) -> Result<(), Trouble> {
        self.act(node, "restart")
    }

    fn act(&self, node: &Node<'_>, verb: &str) -> Result<(), Trouble> {
        let run = tool::run(node, &self.systemctl).args(["--no-ask-password", verb, Kubelet::UNIT]);
        tool::act(node, &run, &format!("systemctl {verb} {}", Kubelet::UNIT)).map(drop)
    }

    /// Waits until it stays up.
    ///
    /// # Errors
    /// If it does not, with its last words where the journal has them.
    pub fn steady(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let until = Instant::now() + UP.min(node.deadline.remaining());
        let (mut pid, mut since, mut ends) = (0, Instant::now(), 0);
        while Instant::now() < until {
            let shown = units::show(&self.systemctl, &[Kubelet::UNIT], node.deadline)?;
            let unit = shown.get(Kubelet::UNIT).cloned().unwrap_or_default();
            if unit.main_pid != pid || pid == 0 {
                ends += u32::from(pid != 0);
                (pid, since) = (unit.main_pid, Instant::now());
            }
            if pid > 0 && unit.active && since.elapsed() >= STEADY {
                return Ok(());
            }
            if unit.failed || ends >= 2 {
                break;
            }
            std::thread::sleep(STEADY / 10);
        }
        let said = last_words(node).map(|text| format!(": {text}")).unwrap_or_default();
        Err(Trouble::failed(FailureKind::Exit, format!("the kubelet does not stay up{said}")))
    }
}

/// Returns the last error that the journal has of it.
fn last_words(node: &Node<'_>) -> Option<String> {
    let journal = node.roots.tool("journalctl")?;
    let run = tool::run(node, journal).args(["--no-pager", "-o", "cat", "-n", "40", "-u", Kubelet::UNIT]);
    let text = run.finish(&node.deadline.within(Duration::from_secs(10))).ok()?.stdout();
    let line = text
        .lines()
        .rev()
        .find(|line| line.contains("err=") || line.contains("Error:") || line.contains("failed"))?;
    Some(line.trim().chars().take(400).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_told_with_their_file() {
        let words: Vec<String> =
            ["--config=/a", "--reserved-cpus", "0-3", "--fail-swap-on", "--v=2"].map(str::to_owned).to_vec();
        let sources = [("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--reserved-cpus 0-3".to_owned())];
        let told: Vec<_> = flags(&words, &sources)
            .into_iter()
            .map(|flag| format!("{}={} {}", flag.name, flag.value, flag.source))
            .collect();
        assert_eq!(
            told,
            [
                "config=/a its command line",
                "reserved-cpus=0-3 /etc/default/kubelet",
                "fail-swap-on=true its command line",
                "v=2 its command line"
            ]
        );
    }
}
