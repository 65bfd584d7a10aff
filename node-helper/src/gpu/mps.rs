//! The CUDA MPS control daemon as a systemd unit of gpufleet.
//!
//! Owns the unit's text and the commands to the daemon. The plan decides whether it should run. Source of commands:
//! `man nvidia-cuda-mps-control`; the order of start and stop is that of NVIDIA's device plugin.

use std::{path::Path, time::Duration};

use gpufleet_protocol::tasks::{GpuMps, MpsState};

use super::state::Mps;
use crate::{deadline::Deadline, os::tree, process::Run};

pub const UNIT: &str = "gpufleet-mps.service";
pub const PROGRAM: &str = "nvidia-cuda-mps-control";
/// CUDA's default and not /run, so that clients find it without an environment variable.
pub const PIPES: &str = "/tmp/nvidia-mps";
const LOGS: &str = "/var/log/nvidia-mps";
/// The daemon's own default.
pub const DEFAULT_PERCENTAGE: u32 = 100;
/// Time limit of one command to the daemon.
const ANSWER: Duration = Duration::from_secs(5);

/// The declared state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsWant {
    Started {
        percentage: Option<u32>,
        /// Checked by [`pinned_limit`].
        pinned: Option<String>,
        /// GPUs that it serves; `None` for all.
        uuids: Option<Vec<String>>,
        /// Number of these GPUs.
        devices: usize,
    },
    Stopped,
}

impl MpsWant {
    /// # Errors
    /// If the daemon would not understand the memory limit.
    pub fn of(task: &GpuMps, uuids: Option<Vec<String>>, devices: usize) -> Result<Self, String> {
        if task.state == MpsState::Stopped {
            return Ok(Self::Stopped);
        }
        let pinned = task.default_pinned_memory_limit.as_deref().map(pinned_limit).transpose()?;
        Ok(Self::Started { percentage: task.default_active_thread_percentage, pinned, uuids, devices })
    }
}

/// Checks a limit such as `8G` or `512M`.
fn pinned_limit(text: &str) -> Result<String, String> {
    let limit = text.trim().to_ascii_uppercase();
    let digits = limit.trim_end_matches(['K', 'M', 'G', 'T']);
    let unit = limit.len() - digits.len();
    if !digits.is_empty() && unit <= 1 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(limit);
    }
    Err(format!("`{text}` is no memory limit; write it as 8G or 512M"))
}

/// Returns the unit file for a program at an absolute path; `None` if nothing is to run.
pub fn unit_text(want: &MpsWant, program: &str) -> Option<String> {
    let MpsWant::Started { percentage, pinned, uuids, devices } = want else { return None };
    let mut text = format!(
        "# Written by gpufleet.\n[Unit]\nDescription=CUDA MPS control daemon\nAfter=nvidia-persistenced.service\n\n\
         [Service]\nType=forking\nEnvironment=CUDA_MPS_PIPE_DIRECTORY={PIPES}\n\
         Environment=CUDA_MPS_LOG_DIRECTORY={LOGS}\n"
    );
    if let Some(uuids) = uuids {
        text.push_str(&format!("Environment=CUDA_VISIBLE_DEVICES={}\n", uuids.join(",")));
    }
    text.push_str(&format!(
        "ExecStartPre=/bin/sh -c 'rm -rf {PIPES} && mkdir -p -m 0755 {PIPES} {LOGS}'\nExecStart={program} -d\n"
    ));
    let mut tell = |line: String| {
        text.push_str(&format!("ExecStartPost=/bin/sh -c 'echo {line} | {program}'\n"));
    };
    if let Some(percentage) = percentage {
        tell(format!("set_default_active_thread_percentage {percentage}"));
    }
    if let Some(pinned) = pinned {
        for device in 0..*devices {
            tell(format!("set_default_device_pinned_mem_limit {device} {pinned}"));
        }
    }
    text.push_str(&format!(
        "ExecStop=/bin/sh -c 'echo quit | {program}'\nRestart=on-failure\n\n[Install]\nWantedBy=multi-user.target\n"
    ));
    Some(text)
}

/// Returns the pinned memory limit of a unit file, for a change's `from`.
pub fn pinned_of(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("set_default_device_pinned_mem_limit ")?;
    rest.split_whitespace().nth(1).map(str::to_owned)
}

/// Adds what the daemon itself reports.
pub fn observe(mps: &mut Mps, program: &Path, root: &Path, deadline: &Deadline) {
    let pipes = root.join(PIPES.trim_start_matches('/'));
    let traces = pipes.join("control").exists() || pipes.join("nvidia-cuda-mps-control.pid").exists();
    if !traces && !mps.unit.active {
        return;
    }
    let asked = Run::new(program)
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipes)
        .stdin("get_default_active_thread_percentage\n")
        .finish(&deadline.within(ANSWER));
    if let Ok(finished) = asked
        && finished.exit.success()
    {
        let first = finished.stdout();
        let number = first.split_whitespace().find_map(|word| word.parse::<f64>().ok());
        mps.answers = number.is_some();
        mps.percentage = number.map(|share| share.round() as u32);
    }
    mps.stale = traces && !mps.answers;
}

/// Ends a control daemon that gpufleet's unit does not run, and removes what it left behind.
///
/// # Errors
/// If it still runs after a moment.
pub fn quit(program: &Path, root: &Path, deadline: &Deadline) -> Result<(), String> {
    let pipes = root.join(PIPES.trim_start_matches('/'));
    let said = Run::new(program)
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipes)
        .stdin("quit\n")
        .finish(&deadline.within(Duration::from_secs(20)));
    let mut left = Mps::default();
    observe(&mut left, program, root, deadline);
    if left.answers {
        return Err(match said {
            Ok(finished) => format!("the MPS control daemon does not quit: {}", finished.complaint(PROGRAM)),
            Err(error) => format!("the MPS control daemon does not quit: {error}"),
        });
    }
    match tree::remove_all(&pipes, &|| true) {
        Err(error) if pipes.exists() => Err(error.to_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(percentage: Option<u32>, pinned: Option<&str>) -> MpsWant {
        let task = GpuMps {
            state: MpsState::Started,
            default_active_thread_percentage: percentage,
            default_pinned_memory_limit: pinned.map(str::to_owned),
            gpus: Vec::new(),
        };
        MpsWant::of(&task, None, 2).unwrap()
    }

    #[test]
    fn limits_are_told_to_the_daemon_on_every_start() {
        let text = unit_text(&want(Some(50), Some("8g")), "/usr/bin/nvidia-cuda-mps-control").unwrap();
        assert!(text.contains("Type=forking\n"));
        assert!(
            text.contains(
                "'echo set_default_active_thread_percentage 50 | /usr/bin/nvidia-cuda-mps-control'\n"
            )
        );
        assert_eq!(text.matches("set_default_device_pinned_mem_limit").count(), 2);
        assert_eq!(pinned_of(&text).as_deref(), Some("8G"));
        assert!(text.contains("ExecStop=/bin/sh -c 'echo quit | /usr/bin/nvidia-cuda-mps-control'\n"));
        assert_eq!(unit_text(&MpsWant::Stopped, "x"), None);
    }

    #[test]
    fn a_memory_limit_cannot_carry_a_command() {
        for bad in ["8G; reboot", "", "G", "8GG", "-1", "$(x)"] {
            assert!(pinned_limit(bad).is_err(), "{bad}");
        }
    }
}
