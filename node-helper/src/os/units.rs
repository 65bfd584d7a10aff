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
    /// Whether a boot starts it.
    pub enabled: bool,
    /// Its main process, or 0.
    pub main_pid: u32,
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
        .args(["show", "--property=Id,LoadState,ActiveState,UnitFileState,MainPID"])
        .args(names)
        .finish(&deadline.within(ANSWER));
    run.map(|finished| parse(&finished.stdout()))
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
            enabled: value("UnitFileState").starts_with("enabled"),
            main_pid: value("MainPID").parse().unwrap_or(0),
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
        let text = "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=71\n\n\
                    Id=dcgm.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n\n\
                    Id=nvsm.service\nLoadState=loaded\nActiveState=failed\nUnitFileState=disabled\n";
        let units = parse(text);
        let runs = UnitStatus { exists: true, active: true, failed: false, enabled: true, main_pid: 71 };
        assert_eq!(units["nvidia-persistenced.service"], runs);
        assert_eq!(units["dcgm.service"], UnitStatus::default());
        assert_eq!(units["nvsm.service"], UnitStatus { exists: true, failed: true, ..UnitStatus::default() });
    }
}
