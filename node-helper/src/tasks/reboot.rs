//! Reboots the node: the answer comes first, and half a second later a process that outlives the helper reboots.

use std::{fs, path::Path};

use gpufleet_protocol::{Disruption, FailureKind, OpOutcome, OpStatus, message::Mode, op::Reboot};
use serde_json::json;

use crate::{
    declare::{Gate, Node, Trouble},
    os::{paths, roots::Roots},
    process::Run,
};

/// Returns the job whose cgroup this process is in; pam_slurm_adopt puts logins there.
pub fn job(roots: &Roots) -> Option<String> {
    let text = fs::read_to_string(roots.proc("self/cgroup")).ok()?;
    text.lines().find_map(job_of)
}

fn job_of(line: &str) -> Option<String> {
    // `0::/system.slice/slurmstepd.scope/job_7/…`, or in the older hierarchy `4:memory:/slurm/uid_0/job_7/…`.
    let path = line.splitn(3, ':').nth(2)?;
    if !path.contains("slurm") {
        return None;
    }
    path.split('/').find(|part| part.starts_with("job_")).map(str::to_owned)
}

/// Refuses if this session is part of a job: processes that it starts would end with the job, and a reboot would kill
/// it.
///
/// # Errors
/// If it is.
pub fn refuse_inside_job(roots: &Roots) -> Result<(), Trouble> {
    match job(roots) {
        None => Ok(()),
        Some(job) => Err(Trouble::failed(
            FailureKind::Refused,
            format!(
                "this login was put into the cgroup of the scheduler's {job} (pam_slurm_adopt), from where the node \
                 must not be disturbed; drain the node, or log in as a user that the scheduler does not adopt"
            ),
        )),
    }
}

pub fn boot_id(roots: &Roots) -> Option<String> {
    let text = fs::read_to_string(roots.proc("sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Reboots the node, or predicts it.
///
/// # Errors
/// If it is not allowed, or no program on the node can reboot.
pub fn run(
    how: Reboot,
    node: &Node<'_>,
    mode: Mode,
    allowed: Disruption,
    gate: Gate<'_>,
) -> Result<OpOutcome, Trouble> {
    let mut outcome = OpOutcome::new(OpStatus::Changed);
    outcome.activated = Some(Disruption::Reboot);
    if mode == Mode::Predict {
        return Ok(outcome);
    }
    if allowed < Disruption::Reboot {
        return Ok(OpOutcome::new(OpStatus::NeedsPermit { class: Disruption::Reboot }));
    }
    refuse_inside_job(node.roots)?;
    let systemd = node.roots.path("/run/systemd/system").is_dir();
    let command = |name: &str, arguments: &str| {
        let path = node.roots.tool(name)?;
        Some(format!("exec {} {arguments}", paths::quoted(&path)))
    };
    let forced = how == Reboot::Forced;
    let systemctl =
        systemd.then(|| command("systemctl", if forced { "reboot --force" } else { "reboot" })).flatten();
    let found = systemctl
        .or_else(|| command("shutdown", "-r now").filter(|_| !forced))
        .or_else(|| command("reboot", if forced { "-f" } else { "" }));
    let Some(line) = found else {
        return Err(Trouble::invalid("neither systemctl, shutdown nor reboot is on this node"));
    };
    if let Some(scheduled) = scheduled(&node.roots.path("/run/systemd/shutdown/scheduled")) {
        outcome.warnings.push(scheduled);
    }
    node.check_time()?;
    gate(Disruption::Reboot)?;
    outcome.data.insert("boot_id".to_owned(), json!(boot_id(node.roots)));
    Run::new("/bin/sh").args(["-c", &format!("sleep 0.5; {line}")]).directory("/").detach()?;
    Ok(outcome)
}

/// Returns what was scheduled already, from systemd-logind's file.
fn scheduled(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mode = text.lines().find_map(|line| line.strip_prefix("MODE=")).unwrap_or("shutdown");
    Some(format!("somebody had scheduled a {mode} of this node already"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use super::*;
    use crate::tasks::testing::Bench;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("proc/sys/kernel/random/boot_id", "b-1\n");
        // It says so only once it may, because a busy machine may look after any time.
        bench.script(
            "sbin/reboot",
            &format!(
                "#!/bin/sh\n: > {}\nuntil [ -e {} ]; do sleep 0.02; done\necho \"reboot $*\" >> {}\n",
                bench.path("begun").display(),
                bench.path("may").display(),
                bench.path("said").display()
            ),
        );
        bench
    }

    fn reboot(bench: &Bench, mode: Mode, allowed: Disruption) -> OpOutcome {
        bench.node(|node| {
            run(Reboot::Orderly, node, mode, allowed, &|_| Ok(())).unwrap_or_else(Trouble::outcome)
        })
    }

    #[test]
    fn it_answers_first_and_then_reboots() {
        let bench = bench();
        assert_eq!(reboot(&bench, Mode::Predict, Disruption::Live).activated, Some(Disruption::Reboot));
        let refused = reboot(&bench, Mode::Apply, Disruption::GpuReset);
        assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Reboot });
        assert!(!bench.path("said").exists());
        let asked = SystemTime::now();
        let done = reboot(&bench, Mode::Apply, Disruption::Reboot);
        assert_eq!((&done.status, &done.data["boot_id"]), (&OpStatus::Changed, &json!("b-1")));
        assert!(!bench.path("said").exists(), "the answer waits for no reboot");
        bench.write("may", "");
        let until = Instant::now() + Duration::from_secs(30);
        let said = || std::fs::read_to_string(bench.path("said")).unwrap_or_default();
        while said().is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(said(), "reboot \n");
        let begun = std::fs::metadata(bench.path("begun")).unwrap().modified().unwrap();
        let after = begun.duration_since(asked).unwrap();
        assert!(after > Duration::from_millis(400), "the answer has {after:?} to arrive");
    }

    #[test]
    fn a_job_is_not_disturbed() {
        let bench = bench();
        bench.write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_77/step_extern/user/task_0\n");
        let done = reboot(&bench, Mode::Apply, Disruption::Reboot);
        let OpStatus::Failed { kind: FailureKind::Refused, message } = done.status else {
            panic!("{done:?}")
        };
        assert!(message.contains("scheduler's job_77"), "{message}");
        assert_eq!(job_of("4:memory:/slurm/uid_0/job_7/step_0"), Some("job_7".into()));
        assert_eq!(job_of("0::/user.slice/user-0.slice/session-1.scope"), None);
    }

    #[test]
    fn what_was_scheduled_is_told() {
        let bench = bench();
        bench.write("run/systemd/shutdown/scheduled", "USEC=1\nWARN_WALL=1\nMODE=poweroff\n");
        let done = reboot(&bench, Mode::Apply, Disruption::Reboot);
        assert_eq!(done.warnings, ["somebody had scheduled a poweroff of this node already"]);
    }
}
