//! CUDA MPS control daemons as systemd units of gpufleet: one for the node, or one for each GPU or MIG instance.
//!
//! Owns the units' texts and the commands to the daemons. The plan decides which should run. Source of commands: `man
//! nvidia-cuda-mps-control`; the order of start and stop is that of NVIDIA's device plugin. Invariant: the folders of a
//! device's daemon are made by systemd, below folders that only root can write.

use std::{path::Path, time::Duration};

use gpufleet_protocol::tasks::{GpuMps, MpsState};

use super::state::Daemon;
use crate::{
    deadline::Deadline,
    os::{tree, users::Users},
    process::Run,
};

/// The unit of the node's daemon.
pub const UNIT: &str = "gpufleet-mps.service";
/// What the names of the units of devices' daemons begin with; the UUID follows.
const DEVICE_UNITS: &str = "gpufleet-mps@";
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// CUDA's default and not /run, so that clients find it without an environment variable.
pub const PIPES: &str = "/tmp/nvidia-mps";
const LOGS: &str = "/var/log/nvidia-mps";
/// Below /run and /var/log.
const DEVICE_FOLDER: &str = "nvidia-mps";
/// The daemon's own default.
pub const DEFAULT_PERCENTAGE: u32 = 100;
/// Time limit of one command to the daemon.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest UUID of a GPU or MIG device, with room.
const LONGEST_UUID: usize = 64;
const PERCENTAGE: &str = "set_default_active_thread_percentage";
const PINNED: &str = "set_default_device_pinned_mem_limit";

/// What a daemon of gpufleet is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    Node,
    /// The UUID of a GPU, or of a MIG device, which goes with its compute instance.
    Device(String),
}

impl Seat {
    pub fn unit(&self) -> String {
        match self {
            Self::Node => UNIT.to_owned(),
            Self::Device(uuid) => format!("{DEVICE_UNITS}{uuid}.service"),
        }
    }

    /// Returns the seat of a unit of gpufleet.
    pub fn of_unit(unit: &str) -> Option<Self> {
        if unit == UNIT {
            return Some(Self::Node);
        }
        let uuid = unit.strip_prefix(DEVICE_UNITS)?.strip_suffix(".service")?;
        let plain = uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let known = (uuid.starts_with("GPU-") || Self::is_mig_uuid(uuid)) && uuid.len() <= LONGEST_UUID;
        (plain && known).then(|| Self::Device(uuid.to_owned()))
    }

    fn is_mig_uuid(uuid: &str) -> bool {
        uuid.starts_with("MIG-")
    }

    /// Whether it goes with a MIG instance, so that no boot can start it.
    pub fn is_mig(&self) -> bool {
        matches!(self, Self::Device(uuid) if Self::is_mig_uuid(uuid))
    }

    pub fn pipes(&self) -> String {
        match self {
            Self::Node => PIPES.to_owned(),
            Self::Device(uuid) => format!("/run/{DEVICE_FOLDER}/{uuid}"),
        }
    }

    fn logs(&self) -> String {
        match self {
            Self::Node => LOGS.to_owned(),
            Self::Device(uuid) => format!("/var/log/{DEVICE_FOLDER}/{uuid}"),
        }
    }
}

/// Whether a unit runs an MPS daemon, which other processes may work through.
pub fn is_unit(unit: &str) -> bool {
    unit == "nvidia-mps.service" || Seat::of_unit(unit).is_some()
}

/// The declared state of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsWant {
    Started(Serving),
    Stopped,
}

/// How a daemon serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub percentage: Option<u32>,
    /// Checked by [`GpuMps::memory_limit`].
    pub pinned: Option<String>,
    /// The only user of the daemon.
    pub user: Option<String>,
    /// GPUs that the node's daemon serves; `None` for all.
    pub uuids: Option<Vec<String>>,
    /// Number of GPUs or MIG devices that it serves.
    pub devices: usize,
}

impl MpsWant {
    /// # Errors
    /// If the daemon would not understand the memory limit.
    pub fn of(task: &GpuMps, uuids: Option<Vec<String>>, devices: usize) -> Result<Self, String> {
        if task.state == MpsState::Stopped {
            return Ok(Self::Stopped);
        }
        let pinned = task.default_pinned_memory_limit.as_deref().map(GpuMps::memory_limit).transpose()?;
        let percentage = task.default_active_thread_percentage;
        Ok(Self::Started(Serving { percentage, pinned, user: task.user.clone(), uuids, devices }))
    }
}

impl Serving {
    /// Returns the commands that tell a daemon its limits.
    pub fn limits(&self) -> Vec<String> {
        let percentage = self.percentage.map(|percentage| format!("{PERCENTAGE} {percentage}"));
        let pinned = self
            .pinned
            .iter()
            .flat_map(|pinned| (0..self.devices).map(move |device| format!("{PINNED} {device} {pinned}")));
        percentage.into_iter().chain(pinned).collect()
    }

    /// Returns the unit file for a program at an absolute path.
    pub fn unit_text(&self, seat: &Seat, program: &str) -> String {
        let (pipes, logs) = (seat.pipes(), seat.logs());
        let (about, visible, after) = match seat {
            Seat::Node => (String::new(), self.uuids.as_ref().map(|uuids| uuids.join(",")), ""),
            // Not for MIG: the unit that asserts kept state waits for what it starts there.
            Seat::Device(uuid) if seat.is_mig() => (format!(" of {uuid}"), Some(uuid.clone()), ""),
            Seat::Device(uuid) => (format!(" of {uuid}"), Some(uuid.clone()), " gpufleet-keep.service"),
        };
        let mut text = format!(
            "# Written by gpufleet.\n[Unit]\nDescription=CUDA MPS control daemon{about}\n\
             After=nvidia-persistenced.service{after}\n\n[Service]\nType=forking\n\
             Environment=CUDA_MPS_PIPE_DIRECTORY={pipes}\nEnvironment=CUDA_MPS_LOG_DIRECTORY={logs}\n"
        );
        if let Some(visible) = visible {
            text.push_str(&format!("Environment=CUDA_VISIBLE_DEVICES={visible}\n"));
        }
        match seat {
            // Why `mkdir` without `-p`: whoever makes the folder in between does not get root's pipes.
            Seat::Node => text.push_str(&format!(
                "ExecStartPre=/bin/sh -c 'rm -rf {pipes} && mkdir -m 0755 {pipes} && mkdir -p -m 0755 {logs}'\n"
            )),
            Seat::Device(uuid) => {
                let mode = if self.user.is_some() { "0700" } else { "0755" };
                if let Some(user) = &self.user {
                    text.push_str(&format!("User={user}\n"));
                }
                text.push_str(&format!(
                    "PIDFile={pipes}/nvidia-cuda-mps-control.pid\n\
                     RuntimeDirectory={DEVICE_FOLDER}/{uuid}\nRuntimeDirectoryMode={mode}\n\
                     LogsDirectory={DEVICE_FOLDER}/{uuid}\nLogsDirectoryMode={mode}\n"
                ));
            }
        }
        text.push_str(&format!("ExecStart={program} -d\n"));
        for line in self.limits() {
            text.push_str(&format!("ExecStartPost=/bin/sh -c 'echo {line} | {program}'\n"));
        }
        text.push_str(&format!("ExecStop=/bin/sh -c 'echo quit | {program}'\nRestart=on-failure\n"));
        if !seat.is_mig() {
            text.push_str("\n[Install]\nWantedBy=multi-user.target\n");
        }
        text
    }
}

/// Whether two unit files differ in limits only, and the newer one has every limit that the other has, so that the
/// daemon can be told.
pub fn tells_limits(old: &str, new: &str) -> bool {
    let rest = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.contains("'echo set_default_")).map(str::to_owned).collect()
    };
    let keeps = |limit: &str| !old.contains(limit) || new.contains(limit);
    rest(old) == rest(new) && keeps(PERCENTAGE) && keeps(PINNED)
}

/// Returns the pinned memory limit of a unit file, for a change's `from`.
pub fn pinned_of(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(PINNED)?;
    rest.split_whitespace().nth(1).map(str::to_owned)
}

/// Returns the share of threads that a unit file gives its daemon.
pub fn percentage_of(text: Option<&str>) -> u32 {
    text.and_then(|text| text.split_once(PERCENTAGE))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(DEFAULT_PERCENTAGE)
}

/// Returns the user of a unit file.
pub fn user_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("User="))
}

/// A control program that talks to the daemon of a seat.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    pub program: &'a Path,
    pub root: &'a Path,
    pub seat: &'a Seat,
    /// The user of the daemon, who can write its pipes; root does not go there.
    pub user: Option<&'a str>,
}

impl Control<'_> {
    fn pipes(&self) -> std::path::PathBuf {
        self.root.join(self.seat.pipes().trim_start_matches('/'))
    }

    fn ask(&self, lines: &str, time: Duration, deadline: &Deadline) -> Result<String, String> {
        let run = Run::new(self.program).env("CUDA_MPS_PIPE_DIRECTORY", self.pipes()).stdin(lines);
        let run = match self.user {
            None => run,
            Some(user) => {
                let identity = Users::of(&self.root.join("etc")).identity(user);
                run.user(Some(identity.map_err(|error| error.to_string())?))
            }
        };
        match run.finish(&deadline.within(time)) {
            Ok(finished) if finished.exit.success() => Ok(finished.stdout()),
            Ok(finished) => Err(finished.complaint(PROGRAM)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Adds what the daemon itself reports.
    pub fn observe(&self, daemon: &mut Daemon, deadline: &Deadline) {
        let pipes = self.pipes();
        let traces = pipes.join("control").exists() || pipes.join("nvidia-cuda-mps-control.pid").exists();
        if !traces && !daemon.unit.active {
            return;
        }
        if let Ok(said) = self.ask("get_default_active_thread_percentage\n", ANSWER, deadline) {
            let number = said.split_whitespace().find_map(|word| word.parse::<f64>().ok());
            daemon.answers = number.is_some();
            daemon.percentage = number.map(|share| share.round() as u32);
        }
        if daemon.answers
            && let Ok(said) = self.ask("get_server_list\n", ANSWER, deadline)
        {
            daemon.servers = said.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).count();
        }
        daemon.stale = traces && !daemon.answers;
    }

    /// Ends a control daemon that gpufleet's unit does not run, and removes what it left behind.
    ///
    /// # Errors
    /// If it still runs after a moment.
    pub fn quit(&self, deadline: &Deadline) -> Result<(), String> {
        let said = self.ask("quit\n", Duration::from_secs(20), deadline);
        let mut left = Daemon::default();
        self.observe(&mut left, deadline);
        if left.answers {
            let why = said.err().unwrap_or_else(|| "it still answers".to_owned());
            return Err(format!("the MPS control daemon does not quit: {why}"));
        }
        let pipes = self.pipes();
        match tree::remove_all(&pipes, &|| true) {
            Err(error) if pipes.exists() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Tells it its limits, which count for the servers that it starts from now on.
    ///
    /// # Errors
    /// If it cannot be told.
    pub fn tell(&self, limits: &[String], deadline: &Deadline) -> Result<(), String> {
        for line in limits {
            let said = self.ask(&format!("{line}\n"), ANSWER, deadline)?;
            // The program succeeds whatever the daemon answers.
            if let Some(wrong) =
                said.lines().find(|line| line.starts_with("Invalid") || line.starts_with("Unknown"))
            {
                return Err(format!("the MPS control daemon refuses `{line}`: {}", wrong.trim()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(fields: serde_json::Value) -> Serving {
        let mut all = serde_json::json!({"state": "started"});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let MpsWant::Started(serving) = MpsWant::of(&serde_json::from_value(all).unwrap(), None, 2).unwrap()
        else {
            panic!("stopped")
        };
        serving
    }

    const LIMITED: (u32, &str) = (50, "8g");

    fn limited() -> Serving {
        want(serde_json::json!({"active_thread_percentage": LIMITED.0, "pinned_device_memory": LIMITED.1}))
    }

    #[test]
    fn limits_are_told_to_the_daemon_on_every_start() {
        let text = limited().unit_text(&Seat::Node, "/usr/bin/nvidia-cuda-mps-control");
        assert!(text.contains("Type=forking\n"));
        assert!(
            text.contains(
                "'echo set_default_active_thread_percentage 50 | /usr/bin/nvidia-cuda-mps-control'\n"
            )
        );
        assert_eq!(text.matches("set_default_device_pinned_mem_limit").count(), 2);
        assert_eq!((pinned_of(&text).as_deref(), percentage_of(Some(&text))), (Some("8G"), 50));
        assert!(text.contains("ExecStop=/bin/sh -c 'echo quit | /usr/bin/nvidia-cuda-mps-control'\n"));
        assert_eq!((pinned_of(""), percentage_of(None)), (None, 100));
    }

    #[test]
    fn the_daemon_of_a_device_has_folders_that_systemd_makes_for_its_user() {
        let seat = Seat::Device("GPU-1".to_owned());
        let text = want(serde_json::json!({"scope": "gpu", "user": "triton"})).unit_text(&seat, "/p");
        for line in [
            "After=nvidia-persistenced.service gpufleet-keep.service",
            "Environment=CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/GPU-1",
            "Environment=CUDA_MPS_LOG_DIRECTORY=/var/log/nvidia-mps/GPU-1",
            "Environment=CUDA_VISIBLE_DEVICES=GPU-1",
            "User=triton",
            "PIDFile=/run/nvidia-mps/GPU-1/nvidia-cuda-mps-control.pid",
            "RuntimeDirectory=nvidia-mps/GPU-1",
            "RuntimeDirectoryMode=0700",
            "LogsDirectory=nvidia-mps/GPU-1",
            "WantedBy=multi-user.target",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(!text.contains("rm -rf"));
        assert_eq!(user_of(&text), Some("triton"));
        let mig = limited().unit_text(&Seat::Device("MIG-1".to_owned()), "/p");
        assert!(!mig.contains("WantedBy") && !mig.contains("gpufleet-keep"), "{mig}");
        assert!(mig.contains("RuntimeDirectoryMode=0755\n") && user_of(&mig).is_none());
    }

    #[test]
    fn units_and_seats_are_each_others_names() {
        for seat in [Seat::Node, Seat::Device("GPU-5a-1".to_owned()), Seat::Device("MIG-1".to_owned())] {
            assert_eq!(Seat::of_unit(&seat.unit()).as_ref(), Some(&seat));
            assert!(is_unit(&seat.unit()));
        }
        assert!(is_unit("nvidia-mps.service"));
        for other in [
            "gpufleet-mps@.service",
            "gpufleet-mps@../x.service",
            "gpufleet-mps@GPU-1 x.service",
            "x.service",
        ] {
            assert!(!is_unit(other), "{other}");
        }
    }

    #[test]
    fn a_daemon_is_told_of_new_limits_and_restarted_for_all_else() {
        let text = |fields| want(fields).unit_text(&Seat::Node, "/p");
        let (none, half) =
            (serde_json::json!({}), serde_json::json!({"default_active_thread_percentage": 50}));
        let less =
            serde_json::json!({"default_active_thread_percentage": 25, "default_pinned_memory_limit": "1G"});
        assert!(tells_limits(&text(none.clone()), &text(half.clone())));
        assert!(tells_limits(&text(half.clone()), &text(less.clone())));
        assert!(!tells_limits(&text(less), &text(half.clone())), "no command takes a memory limit away");
        assert!(!tells_limits(&text(half.clone()), &text(none)));
        assert!(!tells_limits(&text(half.clone()).replace("/tmp", "/run"), &text(half)));
    }

    #[test]
    fn a_memory_limit_cannot_carry_a_command() {
        for bad in ["8G; reboot", "", "G", "8GG", "-1", "$(x)"] {
            assert!(GpuMps::memory_limit(bad).is_err(), "{bad}");
        }
    }
}
