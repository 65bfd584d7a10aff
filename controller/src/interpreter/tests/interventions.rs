//! What the play itself does later to what it declared: named, neither failed nor passed over.

use gpufleet_protocol::{
    Awaiting, Change, Disruption, FailureKind, OpOutcome, OpStatus, Property, Subject, tasks::GpuDriver,
};

use super::*;

/// Plays these tasks. Everything changes something; of what is read again, those of these names differ.
fn played(tasks: &str, differ: &[&str]) -> Story {
    let text = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{}", tasks.trim_start_matches('\n'));
    run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
        if !matches!(action.work, Work::Node { .. }) {
            return OpOutcomeSketch::Ok.fed(action);
        }
        let differs = action.phase() == Phase::Declared || differ.contains(&action.task.as_str());
        let mut outcome = OpOutcome::new(if differs { OpStatus::Changed } else { OpStatus::Ok });
        if differs && action.phase() != Phase::Declared {
            outcome.changes.push(Change::new(
                Subject::file("it"),
                Property::TYPE,
                "there",
                "absent",
                Disruption::Live,
            ));
        }
        if let Work::Node { op, .. } = &action.work
            && let gpufleet_protocol::NodeOp::GpuGroup(group) = &**op
        {
            outcome.members = group.members.iter().map(|_| outcome.clone()).collect();
            if group
                .members
                .iter()
                .any(|member| matches!(member.task, gpufleet_protocol::op::GpuTask::GpuEcc(_)))
                && action.phase() == Phase::Declared
            {
                outcome.activated = Some(Disruption::GpuReset);
            }
        }
        Fed::Outcome(Box::new(outcome))
    })
}

fn warnings(story: &Story) -> Vec<&str> {
    story.reports.iter().flat_map(|report| &report.warnings).map(String::as_str).collect()
}

const GONE: &str = "    - {name: gone, file: {path: /swap, state: absent}}\n";
const COMMAND: &str = "    - {name: made, shell: mkswap /swap}\n";

#[test]
fn a_command_that_changed_what_was_declared_is_named_with_it() {
    let story = played(&format!("{GONE}{COMMAND}"), &["gone"]);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert_eq!(
        warnings(&story),
        [
            "it is there, declared absent; declared by \"gone\" (play.yml:4); \"made\" (play.yml:5) came after it and may \
          have done that, so it is left as it is"
        ]
    );
    assert_eq!(story.counts().failed, 0);
}

#[test]
fn without_a_command_in_between_a_difference_is_a_failure() {
    for tasks in [
        GONE.to_owned(),
        format!("{COMMAND}{GONE}"),
        format!("{GONE}    - {{name: other, sysctl: {{name: a, value: 1}}}}\n"),
    ] {
        let story = played(&tasks, &["gone"]);
        let EndState::Failed { message, .. } = &story.end.state else { panic!("{}", story.lines()) };
        assert_eq!(message, "unconverged: it is there, declared absent");
        assert_eq!(warnings(&story), NOTHING);
    }
}

const NOTHING: &[&str] = &[];

#[test]
fn a_command_that_changed_nothing_declared_is_not_mentioned() {
    let story = played(&format!("{GONE}{COMMAND}"), &[]);
    assert_eq!((story.end.state.clone(), warnings(&story).len()), (EndState::Done, 0), "{}", story.lines());
}

#[test]
fn what_a_command_changed_is_not_asserted_after_a_reboot() {
    let tasks = format!(
        "{GONE}    - {{name: kept, file: {{path: /kept, state: absent}}}}\n{COMMAND}    - reboot: {{when: always}}\n"
    );
    let story = played(&tasks, &["gone"]);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    let again: Vec<&String> = story.asked.iter().filter(|id| id.contains("+reassert")).collect();
    assert_eq!(again.len(), 1, "{:?}", story.asked);
    assert!(again[0].contains("tasks.1"), "{again:?}");
    let looked = story.asked.iter().position(|id| id.contains("tasks.0+verify")).expect("it is looked at");
    let reboot = story.asked.iter().position(|id| id.contains("tasks.3")).expect("it reboots");
    assert!(looked < reboot, "{:?}", story.asked);
    assert_eq!(warnings(&story).len(), 1, "{}", story.lines());
}

#[test]
fn what_waits_for_a_reboot_is_no_doing_of_a_command_before_it() {
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: made, \
                shell: mkswap /swap}\n    - reboot: {when: required}\n";
    let waits = || Awaiting { activation: Disruption::Reboot, reason: "GPU 0 ECC is pending".to_owned() };
    let (mut rebooted, mut lost) = (false, true);
    let mut group = |phase: Phase, rebooted: bool| {
        let differs = match phase {
            Phase::Declared => true,
            Phase::Verify => !rebooted || lost,
            Phase::Reassert => std::mem::take(&mut lost),
        };
        let mut member = OpOutcome::new(if differs { OpStatus::Changed } else { OpStatus::Ok });
        if differs {
            member.changes.push(Change::new(Subject::Mps, Property::ECC, "off", "on", Disruption::Reboot));
        }
        if phase == Phase::Declared {
            member.awaiting.push(waits());
        }
        OpOutcome { members: vec![member.clone()], ..member }
    };
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| match &action.work {
        Work::Node { op, .. } if matches!(**op, gpufleet_protocol::NodeOp::GpuGroup(_)) => {
            Fed::Outcome(Box::new(group(action.phase(), rebooted)))
        }
        Work::Reboot { .. } => {
            rebooted = true;
            OpOutcomeSketch::Ok.fed(action)
        }
        _ => OpOutcomeSketch::Changed.fed(action),
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert!(story.asked.iter().any(|id| id.contains("tasks.0+reassert")), "{:?}", story.asked);
    assert_eq!(warnings(&story), Vec::<&str>::new(), "{}", story.lines());
}

#[test]
fn a_driver_that_waits_for_a_reboot_is_not_asked_before_it() {
    let reboot = "    - reboot: {when: required}\n";
    let tasks = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: power, gpu_power: {limit_watts: 500}}\n    - {name: \
                 driver, gpu_driver: {branch: 580}}\n    - {name: drained, gpu_drain_state: {gpus: [1], state: drained}}\n";
    for (text, asked) in [
        (
            format!("{tasks}{reboot}"),
            &["0/tasks.0+reassert@n1", "0/tasks.2+reassert@n1", "0/tasks.0+verify@n1", "0/tasks.2+verify@n1"]
                [..],
        ),
        // Of a play without the reboot nothing can be said of the GPUs at its end.
        (tasks.to_owned(), &[]),
    ] {
        let mut rebooted = false;
        let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| match &action.work {
            Work::Node { op, .. } if matches!(**op, gpufleet_protocol::NodeOp::GpuGroup(_)) => {
                let mut member = OpOutcome::new(OpStatus::Ok);
                if !rebooted && action.phase() != Phase::Declared {
                    let message = "the driver was upgraded under a running kernel module".to_owned();
                    member = OpOutcome::failed(FailureKind::Unconverged, message);
                }
                Fed::Outcome(Box::new(OpOutcome { members: vec![member.clone()], ..member }))
            }
            Work::Reboot { .. } => {
                rebooted = true;
                OpOutcomeSketch::Ok.fed(action)
            }
            Work::Node { op, .. } if matches!(**op, gpufleet_protocol::NodeOp::GpuDrainState(_)) => {
                OpOutcomeSketch::Ok.fed(action)
            }
            _ if action.phase() == Phase::Declared => {
                let mut outcome = OpOutcome::new(OpStatus::Changed);
                let reason = GpuDriver::reason("580.1", Some("575.1"), "a console");
                outcome.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
                Fed::Outcome(Box::new(outcome))
            }
            _ => Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Ok))),
        });
        match (&story.end.state, rebooted) {
            (EndState::Done, true) => {}
            (EndState::PendingActivation { reasons, .. }, false) => {
                assert!(reasons.iter().any(|reason| reason.contains("was not verified")), "{reasons:?}");
            }
            (end, _) => panic!("{end:?}\n{}", story.lines()),
        }
        let of_gpus = |id: &&str| id.contains("tasks.0+") || id.contains("tasks.2+");
        let seen: Vec<&str> = story.asked.iter().map(String::as_str).filter(of_gpus).collect();
        assert_eq!(seen, asked, "{:?}", story.asked);
    }
}

#[test]
fn of_a_group_of_gpu_tasks_only_what_a_command_changed_is_given_up() {
    let tasks = "
    - {name: power, gpu_power: {limit_watts: 500}}
    - {name: other, shell: nvidia-smi -pl 400}
    - {name: ecc, gpu_ecc: {mode: enabled}}
";
    let story = played(tasks, &["power"]);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert!(!story.asked.iter().any(|id| id.contains("+reassert")), "{:?}", story.asked);
    assert_eq!(warnings(&story).len(), 1, "{}", story.lines());
}

#[test]
fn a_job_that_nobody_waits_for_may_change_what_is_declared_after_it() {
    let job = "    - {name: job, shell: mkswap /swap, async: 60, poll: 0}\n";
    let story = played(&format!("{job}{GONE}"), &["gone"]);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert!(warnings(&story)[0].contains("\"job\" (play.yml:4) came after it"), "{:?}", warnings(&story));
}

#[test]
fn tasks_of_other_kinds_count_where_they_work_at_the_same_place() {
    let later = |task: &str| {
        let story = played(&format!("{GONE}    - {task}\n"), &["gone"]);
        story.end.state == EndState::Done
    };
    assert!(later("unarchive: {src: /a.tar, dest: /swap, remote_src: true}"));
    assert!(later("apt: {name: swapd}"));
    assert!(later("service: {name: swapd, state: started}"));
    assert!(!later("copy: {content: x, dest: /other}"));
    assert!(!later("gpu_power: {limit_watts: 500}"));
    let power = "    - {name: power, gpu_power: {limit_watts: 500}}\n";
    let after =
        |task: &str| played(&format!("{power}    - {task}\n"), &["power"]).end.state == EndState::Done;
    assert!(!after("apt: {name: swapd}"), "a lie of the driver is no matter of packages");
    assert!(!after("service: {name: chronyd, state: started}"));
    assert!(after("service: {name: nvidia-persistenced, state: restarted}"));
}

#[test]
fn the_cause_of_a_difference_is_told_with_it() {
    let text =
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: power, gpu_power: {limit_watts: 500}}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |_| {
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        let gpu = Subject::Gpu { index: 0, uuid: "GPU-0".to_owned() };
        let change = Change::new(gpu, Property::POWER_LIMIT, "700 W", "500 W", Disruption::Live);
        outcome.changes.push(change.with_note("persistence is off"));
        outcome.members = vec![outcome.clone()];
        Fed::Outcome(Box::new(outcome))
    });
    let EndState::Failed { message, .. } = &story.end.state else { panic!("{}", story.lines()) };
    assert_eq!(message, "unconverged: GPU 0 power limit is 700 W, declared 500 W (persistence is off)");
}

#[test]
fn what_could_not_be_read_again_is_a_failure_whatever_came_after_it() {
    use gpufleet_protocol::FailureKind;
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: up, command: uptime}\n";
    let ended = |kind: FailureKind| {
        run(&mut cursor(text, json!({}), Mode::Apply), |action| {
            if action.phase() == Phase::Verify {
                return Fed::Outcome(Box::new(OpOutcome::failed(kind, "GPU 3 is lost")));
            }
            let mut outcome = OpOutcome::new(OpStatus::Changed);
            outcome.members = vec![outcome.clone()];
            Fed::Outcome(Box::new(outcome))
        })
    };
    for kind in [FailureKind::Nvml, FailureKind::Io, FailureKind::TimedOut, FailureKind::Cancelled] {
        let story = ended(kind);
        let EndState::Failed { message, .. } = &story.end.state else { panic!("{}", story.lines()) };
        assert_eq!((message.as_str(), warnings(&story)), ("GPU 3 is lost", NOTHING.to_vec()), "{kind:?}");
    }
    for kind in [FailureKind::Missing, FailureKind::Invalid, FailureKind::Unconverged] {
        let story = ended(kind);
        assert_eq!((story.end.state.clone(), warnings(&story).len()), (EndState::Done, 1), "{kind:?}");
    }
}

/// As an edit whose pattern matches its own result: planned again it would change more.
#[test]
fn an_act_is_not_verified_and_takes_over_what_it_replaced() {
    let text = r"- hosts: all
  gather_facts: false
  tasks:
    - {name: set, lineinfile: {path: /g, regexp: '^A=', line: 'A=1'}}
    - {name: more, lineinfile: {path: /g, regexp: '^(A=.*)', line: '\1 b', backrefs: true}}
";
    let mut asked = Vec::new();
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        if !matches!(action.work, Work::Node { .. }) {
            return OpOutcomeSketch::Ok.fed(action);
        }
        asked.push(action.task.clone());
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        outcome.act = action.task == "more";
        Fed::Outcome(Box::new(outcome))
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert_eq!(asked, ["set", "more"]);
}

/// What a reset by a command loses is set again, once for each reset of a loop, and the plan says so.
#[test]
fn what_a_command_that_resets_gpus_loses_is_asserted_again() {
    let asserted = |tasks: &str, mode: Mode| {
        let text = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}");
        let mut again = Vec::new();
        let story = run(&mut cursor(&text, json!({}), mode), |action| {
            let Work::Node { op, .. } = &action.work else { return OpOutcomeSketch::Ok.fed(action) };
            let changed = action.phase() == Phase::Declared;
            let mut outcome = OpOutcome::new(if changed { OpStatus::Changed } else { OpStatus::Ok });
            match &**op {
                gpufleet_protocol::NodeOp::Exec(exec) => {
                    let found = exec.disturbance();
                    outcome.changes = found.iter().map(|found| found.change()).collect();
                    if mode == Mode::Predict {
                        outcome.status = OpStatus::Possible;
                    } else {
                        outcome.activated = found.and_then(|found| found.activates());
                    }
                }
                gpufleet_protocol::NodeOp::GpuGroup(group) => {
                    outcome.members = group.members.iter().map(|_| outcome.clone()).collect();
                }
                _ => {}
            }
            if action.phase() == Phase::Reassert {
                again.push((action.task.clone(), action.id.to_string()));
            }
            Fed::Outcome(Box::new(outcome))
        });
        assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
        let told = warnings(&story).into_iter().map(str::to_owned).collect::<Vec<_>>();
        again.dedup_by_key(|(_, id)| id.clone());
        (again.into_iter().map(|(task, _)| task).collect::<Vec<_>>(), told)
    };
    let clocks = "    - {name: clocks, gpu_clocks: {graphics_mhz: 1200}}\n    - {name: b, sysctl: {name: a, value: 1}}\n";
    let reset = "    - command: nvidia-smi --gpu-reset -i 0\n";
    assert_eq!(asserted(&format!("{clocks}{reset}"), Mode::Apply).0, ["clocks"]);
    assert_eq!(asserted(&format!("{reset}{clocks}"), Mode::Apply).0, Vec::<String>::new());
    let switched = "    - command: nvidia-smi -mig 1\n";
    assert_eq!(asserted(&format!("{clocks}{switched}"), Mode::Apply).0, Vec::<String>::new());
    let looped =
        "    - command: nvidia-smi --gpu-reset -i {{ item }}\n      loop: \"{{ range(16) | list }}\"\n";
    assert_eq!(
        asserted(&format!("{clocks}{looped}"), Mode::Apply).0,
        vec!["clocks"; 16],
        "more GPUs than a play may activate"
    );
    let (again, told) = asserted(&format!("{clocks}{reset}"), Mode::Predict);
    assert_eq!(again, Vec::<String>::new());
    assert_eq!(
        told,
        [
            "`nvidia-smi --gpu-reset -i 0` loses what tasks before it declare of the GPUs (gpu_clocks); the run sets it again after it"
        ]
    );
    assert_eq!(asserted(&format!("{reset}{clocks}"), Mode::Predict).1, Vec::<String>::new());
}
