//! The state of the operating system: boot id, systemd's state, and whether it is about to shut down.

use std::time::Duration;

use gpufleet_protocol::health::{SystemState, Verdict};

use super::Found;
use crate::{deadline::Deadline, os::roots::Roots, process::Run, tasks::reboot};

/// Time limit for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(10);
/// Largest number of waiting units that are named.
const NAMED: usize = 6;

/// Reads the state. Never fails: what cannot be read is missing in the result.
pub fn read(roots: &Roots, deadline: &Deadline) -> SystemState {
    let systemd = roots.path("/run/systemd/system").is_dir();
    let state = systemd.then(|| ask(roots, deadline)).flatten();
    let starting = matches!(state.as_deref(), Some("initializing" | "starting"));
    // Not while it starts: the file keeps users out until the boot is done. Source: systemd-user-sessions(8).
    let nologin = !starting && roots.path("/run/nologin").exists();
    let shutdown_scheduled = roots.path("/run/systemd/shutdown/scheduled").exists()
        || nologin
        || state.as_deref() == Some("stopping");
    let under_way = matches!(state.as_deref(), Some("initializing" | "starting" | "stopping"));
    let jobs = if under_way { jobs(roots, deadline) } else { Vec::new() };
    SystemState { boot_id: reboot::boot_id(roots), state, systemd, shutdown_scheduled, jobs }
}

/// Returns systemd's waiting jobs. They are for people only, so none are better than an error.
fn jobs(roots: &Roots, deadline: &Deadline) -> Vec<String> {
    let Some(program) = roots.tool("systemctl") else { return Vec::new() };
    let asked =
        Run::new(program).args(["list-jobs", "--plain", "--no-legend"]).finish(&deadline.within(ANSWER));
    asked.map(|done| named(&done.stdout())).unwrap_or_default()
}

/// Parses `systemctl list-jobs`, whose columns are job, unit, type and state. Running jobs come first, because the
/// others wait for them.
fn named(text: &str) -> Vec<String> {
    let mut waiting = Vec::new();
    let mut running = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(job), Some(unit)) = (words.next(), words.next()) else { continue };
        if !job.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let list = if words.nth(1) == Some("running") { &mut running } else { &mut waiting };
        list.push(unit.chars().filter(|c| !c.is_control()).take(80).collect::<String>());
    }
    running.append(&mut waiting);
    running.truncate(NAMED);
    running
}

/// Returns the word that systemd prints; the exit status says less and is ignored.
fn ask(roots: &Roots, deadline: &Deadline) -> Option<String> {
    let program = roots.tool("systemctl")?;
    let done = Run::new(program).arg("is-system-running").finish(&deadline.within(ANSWER)).ok()?;
    let word = done.stdout().split_whitespace().next()?.to_owned();
    Some(word).filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()))
}

pub fn check(roots: &Roots, deadline: &Deadline) -> Found {
    judge(&read(roots, deadline))
}

fn judge(system: &SystemState) -> Found {
    if system.shutdown_scheduled {
        return (Verdict::Fail, "the system is about to go down, or a shutdown is scheduled".to_owned());
    }
    match system.state.as_deref() {
        None if !system.systemd => (Verdict::NotApplicable, "systemd does not run this node".to_owned()),
        None | Some("unknown" | "offline") => (Verdict::Unknown, "systemd does not answer".to_owned()),
        Some("running") => (Verdict::Ok, "running".to_owned()),
        Some("degraded") => (Verdict::Ok, "degraded: units have failed, see `systemctl --failed`".to_owned()),
        Some(state) => (Verdict::Fail, format!("the system is {state}, and neither running nor degraded")),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn node(word: Option<&str>) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        if let Some(word) = word {
            fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
            fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
            let path = dir.path().join("usr/bin/systemctl");
            fs::write(&path, format!("#!/bin/sh\n[ \"$1\" = is-system-running ] || exit 9\n{word}\n"))
                .unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let roots = Roots::below(dir.path());
        (dir, roots)
    }

    fn verdict(roots: &Roots) -> Verdict {
        check(roots, &Deadline::after(Duration::from_secs(10))).0
    }

    #[test]
    fn the_word_counts_and_not_the_exit_status() {
        for (word, expected) in [
            ("echo running", Verdict::Ok),
            ("echo degraded; exit 1", Verdict::Ok),
            ("echo starting; exit 1", Verdict::Fail),
            ("echo maintenance; exit 1", Verdict::Fail),
            ("echo stopping; exit 1", Verdict::Fail),
            ("echo offline; exit 1", Verdict::Unknown),
            ("echo Failed to connect to bus >&2; exit 1", Verdict::Unknown),
            ("echo 'Failed to connect'; exit 1", Verdict::Unknown),
        ] {
            assert_eq!(verdict(&node(Some(word)).1), expected, "{word}");
        }
        assert_eq!(verdict(&node(None).1), Verdict::NotApplicable);
    }

    #[test]
    fn units_that_run_are_named_before_those_that_wait() {
        let text =
            "  2 multi-user.target start waiting\n 34 slow.service start running\n\nNo jobs running.\n";
        assert_eq!(named(text), ["slow.service", "multi-user.target"]);
        let many: String = (0..20).map(|job| format!("{job} u{job}.service start waiting\n")).collect();
        assert_eq!(named(&many).len(), NAMED);
        let word = "echo starting; exit 1";
        let (dir, roots) = node(Some(word));
        let script = "#!/bin/sh\ncase $1 in list-jobs) echo 7 slow.service start running;; *) echo starting; exit 1;; esac\n";
        fs::write(dir.path().join("usr/bin/systemctl"), script).unwrap();
        let system = read(&roots, &Deadline::after(Duration::from_secs(10)));
        assert_eq!(system.jobs, ["slow.service"]);
    }

    #[test]
    fn a_shutdown_that_is_due_is_seen_before_systemd_stops() {
        let (dir, roots) = node(Some("echo running"));
        fs::create_dir_all(dir.path().join("run/systemd/shutdown")).unwrap();
        fs::write(dir.path().join("run/systemd/shutdown/scheduled"), "MODE=reboot\n").unwrap();
        let system = read(&roots, &Deadline::after(Duration::from_secs(10)));
        assert!(system.shutdown_scheduled && !system.is_up());
        let (dir, roots) = node(Some("echo running"));
        fs::write(dir.path().join("run/nologin"), "").unwrap();
        assert_eq!(verdict(&roots), Verdict::Fail);
        let (dir, roots) = node(Some("echo starting; exit 1"));
        fs::write(dir.path().join("run/nologin"), "").unwrap();
        let system = read(&roots, &Deadline::after(Duration::from_secs(10)));
        assert!(!system.shutdown_scheduled && !system.is_up(), "the file belongs to the boot");
    }
}
