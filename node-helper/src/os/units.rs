//! What systemd says about units, in one question for all of them.

use std::{collections::BTreeMap, ffi::OsStr, time::Duration};

use crate::{
    deadline::Deadline,
    process::{ProcessError, Run},
};

/// Time limit for the answer.
const ANSWER: Duration = Duration::from_secs(20);

/// One unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitStatus {
    pub exists: bool,
    /// Whether it runs, or is about to.
    pub active: bool,
    pub failed: bool,
    /// Whether it ended and systemd waits to start it again, as in a loop of failures. It counts as active then, too.
    pub restarting: bool,
    /// Whether a boot starts it; not where that is only for the present boot (`enabled-runtime`).
    pub enabled: bool,
    /// Its main process, or 0.
    pub main_pid: u32,
    /// When it last began to run, in microseconds since the boot, or 0.
    pub entered_us: u64,
}

impl UnitStatus {
    /// Whether it runs: it is active, and not between two starts of a loop of failures.
    pub const fn runs(&self) -> bool {
        self.active && !self.restarting
    }
}

/// Asks for the state of these units, by name; those that systemd does not know are included.
///
/// # Errors
/// If the program cannot be run, or not before the deadline.
pub fn show(
    program: impl AsRef<OsStr>,
    names: &[&str],
    deadline: &Deadline,
) -> Result<BTreeMap<String, UnitStatus>, ProcessError> {
    let run = Run::new(program)
        .args([
            "show",
            "--property=Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,ActiveEnterTimestampMonotonic",
        ])
        .args(names)
        .finish(&deadline.within(ANSWER));
    run.map(|finished| parse(&finished.stdout()))
}

/// Returns the words of the commands that start a unit, programs included, with all its drop-ins; variables are left as they stand.
///
/// # Errors
/// If the program cannot be run, or not before the deadline.
pub fn start_words(
    program: impl AsRef<OsStr>,
    name: &str,
    deadline: &Deadline,
) -> Result<Vec<String>, ProcessError> {
    let asked = Run::new(program)
        .args(["show", "--property=ExecStart", "--", name])
        .finish(&deadline.within(ANSWER))?;
    Ok(commands(&asked.stdout()))
}

/// `ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet --v=2 ; ignore_errors=no ; … }`
fn commands(text: &str) -> Vec<String> {
    let starts = text.lines().filter_map(|line| line.strip_prefix("ExecStart=")?.split_once("argv[]="));
    starts
        .flat_map(|(_, rest)| rest.split(" ;").next().unwrap_or_default().split_whitespace())
        .map(str::to_owned)
        .collect()
}

/// Parses the blocks of `systemctl show`, one for each unit.
fn parse(text: &str) -> BTreeMap<String, UnitStatus> {
    let mut units = BTreeMap::new();
    for block in text.split("\n\n") {
        let value = |name: &str| {
            block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
        };
        let id = value("Id");
        if id.is_empty() {
            continue;
        }
        let unit = UnitStatus {
            exists: matches!(value("LoadState"), "loaded" | "masked"),
            active: matches!(value("ActiveState"), "active" | "activating" | "reloading"),
            failed: value("ActiveState") == "failed",
            restarting: value("SubState").starts_with("auto-restart"),
            enabled: value("UnitFileState") == "enabled",
            main_pid: value("MainPID").parse().unwrap_or(0),
            entered_us: value("ActiveEnterTimestampMonotonic").parse().unwrap_or(0),
        };
        units.insert(id.to_owned(), unit);
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_from_one_answer() {
        let text = "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=71\nActiveEnterTimestampMonotonic=9\n\n\
                    Id=dcgm.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n\n\
                    Id=nvsm.service\nLoadState=loaded\nActiveState=failed\nUnitFileState=disabled\n\n\
                    Id=imex.service\nLoadState=loaded\nActiveState=activating\nSubState=auto-restart\n";
        let units = parse(text);
        let runs = UnitStatus {
            exists: true,
            active: true,
            failed: false,
            restarting: false,
            enabled: true,
            main_pid: 71,
            entered_us: 9,
        };
        assert_eq!(units["nvidia-persistenced.service"], runs);
        assert_eq!(units["dcgm.service"], UnitStatus::default());
        let loops = UnitStatus { exists: true, active: true, restarting: true, ..UnitStatus::default() };
        assert_eq!(units["imex.service"], loops);
        assert!(!loops.runs() && runs.runs());
        assert_eq!(units["nvsm.service"], UnitStatus { exists: true, failed: true, ..UnitStatus::default() });
        // Its link is in /run, and gone after a boot.
        let text = "Id=a.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled-runtime\n";
        assert!(!parse(text)["a.service"].enabled);
    }

    #[test]
    fn commands_are_taken_out_of_what_systemd_shows() {
        let text = "ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $ARGS --v=2 ; ignore_errors=no ; pid=0 }\n";
        assert_eq!(commands(text), ["/usr/bin/kubelet", "$ARGS", "--v=2"]);
        assert_eq!(commands("ExecStart=\n"), [""; 0]);
    }
}
