//! What becomes of answers: odd ones, those of groups, and what an activation brings with it.

use gpufleet_protocol::facts::{Facts, OsFacts};
use gpufleet_protocol::{
    Awaiting, Blocker, Change, Disruption, FailureKind, NodeOp, OpOutcome, OpStatus, Property, Subject,
    change,
};

use super::OpOutcomeSketch::{Changed, Command, Failed, Ok};
use super::*;

fn play(tasks: &str) -> String {
    format!("- hosts: all\n  tasks:\n{tasks}")
}

fn outcome(status: OpStatus) -> OpOutcome {
    OpOutcome::new(status)
}

fn set_to_1(from: change::Value) -> Change {
    Change::new(Subject::kernel_setting("a"), Property::VALUE, from, "1", Disruption::Live)
}

fn fed(outcome: OpOutcome) -> Fed {
    Fed::Outcome(Box::new(outcome))
}

fn awaiting(reason: &str) -> Awaiting {
    Awaiting { activation: Disruption::Reboot, reason: reason.to_owned() }
}

/// Each member of a group gets this status.
fn members(action: &Action, status: &OpStatus) -> OpOutcome {
    let mut whole = outcome(status.clone());
    if let Work::Node { op, .. } = &action.work
        && let NodeOp::GpuGroup(group) = &**op
    {
        whole.members = group.members.iter().map(|_| outcome(status.clone())).collect();
    }
    whole
}

/// Runs tasks; `special` answers some operations, all others find everything in order.
fn told(mode: Mode, text: &str, mut special: impl FnMut(&Action) -> Option<Fed>) -> Story {
    run(&mut cursor(text, json!({}), mode), |action| {
        special(action).unwrap_or_else(|| match &action.work {
            Work::Node { .. } => fed(members(action, &OpStatus::Ok)),
            _ => Ok.fed(action),
        })
    })
}

fn applied(text: &str, special: impl FnMut(&Action) -> Option<Fed>) -> Story {
    told(Mode::Apply, text, special)
}

#[test]
fn answers_that_do_not_fit_are_failures() {
    let command = play("    - {name: one, command: a}\n    - {name: two, command: a}\n");
    for odd in [Fed::Rebooted, Fed::Done] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(applied(&command, |_| Some(odd.clone())).lines(), @r#"
            one: failed "the session gave an answer that does not fit"
            end: Failed { task: "one", message: "the session gave an answer that does not fit" }
            "#);
        }
    }
    let mut permit = outcome(OpStatus::NeedsPermit { class: Disruption::GpuReset });
    permit.blockers = vec![Blocker::new("process 41 (train.py, user ana) holds GPU 0", "wait for it")];
    let held = applied(&command, |_| Some(fed(permit.clone())));
    let named = held.reports.iter().find(|report| report.task == "one").map(|report| &report.blockers);
    assert_eq!(named, Some(&permit.blockers), "who is in the way is told with it");
    let by_rollout = applied(&command, |_| Some(Fed::held("budget").naming(permit.blockers.clone())));
    let named = by_rollout.reports.iter().find(|report| report.task == "one").map(|report| &report.blockers);
    assert_eq!(named, Some(&permit.blockers));
    insta::assert_snapshot!(applied(&command, |_| Some(fed(permit.clone()))).lines(), @r#"
    one: held "it needs a permit for gpu-reset, and none was given"
    end: Held { reason: "it needs a permit for gpu-reset, and none was given" }
    "#);
    let refused = Fed::Refused { reason: "a newer run holds it".to_owned() };
    insta::assert_snapshot!(applied(&command, |_| Some(refused.clone())).lines(), @r#"
    one: failed "a newer run holds it"
    end: Failed { task: "one", message: "a newer run holds it" }
    "#);
    let mut idle = cursor(&command, json!({}), Mode::Apply);
    assert!(idle.feed(Fed::Done).is_empty(), "nothing was asked");
    assert!(idle.feed(Fed::Latch(Some(Copied { failed: true, ..Copied::default() }))).is_empty());
    assert_eq!(run(&mut idle, |action| Ok.fed(action)).end.state, EndState::Done);
}

#[test]
fn waiting_and_reconnecting_are_things_of_a_run() {
    let text = play(
        "    - {name: wait, wait_for_connection: {timeout: 5}}\n    - {name: again, meta: reset_connection}\n    - {name: after, command: a}\n",
    );
    let story = applied(&text, |_| None);
    insta::assert_snapshot!(story.lines(), @"
    wait: ok
    after: ok
    end: Done
    ");
    assert_eq!(story.asked, ["0/tasks.0@n1", "0/tasks.1@n1", "0/tasks.2@n1"]);
    let predicted = told(Mode::Predict, &text, |_| None);
    assert_eq!((predicted.asked.len(), predicted.reports.len()), (0, 2), "{}", predicted.lines());
    let refused =
        applied(&text, |action| (action.task == "again").then(|| Fed::Refused { reason: "no".to_owned() }));
    assert_eq!(refused.end.state, EndState::Failed { task: "again".to_owned(), message: "no".to_owned() });
    let lost = applied(&text, |action| {
        (action.task == "wait").then(|| Fed::Unreachable { reason: "silence".to_owned() })
    });
    assert_eq!(lost.end.state, EndState::Unreachable { reason: "silence".to_owned() });
}

#[test]
fn what_a_secret_task_waits_for_is_hidden() {
    let text = play(
        "    - {name: line, kernel_cmdline: {add: [netkey=s3cret]}, no_log: true}\n    - {name: boot, reboot: {when: required}}\n",
    );
    let mut waits = outcome(OpStatus::Ok);
    waits.awaiting.push(awaiting("booted without `netkey=s3cret`"));
    let mut asked_for = Vec::new();
    let story = applied(&text, |action| {
        if let Work::Reboot { reasons, .. } = &action.work {
            asked_for.clone_from(reasons);
        }
        (action.task == "line" && action.phase() == Phase::Declared).then(|| fed(waits.clone()))
    });
    assert_eq!(asked_for, ["(hidden)"]);
    let told = serde_json::to_string(&story.reports).unwrap();
    assert!(told.contains("(hidden)") && !told.contains("s3cret"), "{told}");
}

#[test]
fn a_reboot_says_why_and_is_followed_by_a_verification() {
    let text = play(
        "    - {name: line, kernel_cmdline: {add: [quiet]}}\n    - {name: boot, reboot: {when: always}, register: r}\n    - {name: sure, assert: {that: [r.rebooted, r is changed]}}\n",
    );
    let mut waits = outcome(OpStatus::Ok);
    waits.awaiting.push(awaiting("the command line"));
    let mut asked_for = Vec::new();
    let story = applied(&text, |action| {
        if let Work::Reboot { reasons, .. } = &action.work {
            asked_for.clone_from(reasons);
        }
        (action.task == "line" && action.phase() == Phase::Declared).then(|| fed(waits.clone()))
    });
    assert_eq!((asked_for, story.end.state.clone()), (vec!["the command line".to_owned()], EndState::Done));
    let boot = story.reports.iter().find(|report| report.task == "boot").expect("a report");
    assert_eq!(boot.changes[0].note.as_deref(), Some("the command line"));
    // Nothing else was changed: what the reboot lost is verified all the same.
    assert_eq!(story.asked.last().map(String::as_str), Some("0/tasks.0+verify@n1"));
    let plain =
        play("    - {name: swap, sysctl: {name: a, value: 1}}\n    - {name: boot, reboot: {when: always}}\n");
    let story = applied(&plain, |_| None);
    assert_eq!(story.reports[1].changes[0].note, None);
    assert_eq!(story.asked.len(), 4, "{:?}", story.asked);
    assert_eq!(told(Mode::Predict, &plain, |_| None).asked.len(), 3, "a prediction verifies nothing");
    let failed = applied(&plain, |action| {
        matches!(action.work, Work::Reboot { .. }).then(|| Fed::Refused { reason: "inhibited".to_owned() })
    });
    assert_eq!(
        failed.end.state,
        EndState::Failed { task: "boot".to_owned(), message: "inhibited".to_owned() }
    );
    let ignored = play(
        "    - {name: boot, reboot: {when: always}, ignore_unreachable: true}\n    - {name: after, command: a}\n",
    );
    let story = applied(&ignored, |action| {
        matches!(action.work, Work::Reboot { .. }).then(|| Fed::Unreachable { reason: "gone".to_owned() })
    });
    insta::assert_snapshot!(story.lines(), @r#"
    boot: unreachable ignored "gone"
    after: ok
    end: Done
    "#);
}

#[test]
fn a_node_without_facts_goes_no_further() {
    let text = "- hosts: all\n  gather_facts: true\n  any_errors_fatal: true\n  tasks:\n    - {command: a}\n";
    insta::assert_snapshot!(applied(text, |_| Some(fed(outcome(OpStatus::Ok)))).lines(), @r#"
    gathering facts: failed "the node gave no facts"
    end: Failed { task: "Gathering Facts", message: "the node gave no facts" }
    "#);
    let failed = applied(text, |_| Some(fed(OpOutcome::failed(FailureKind::Io, "no NVML"))));
    insta::assert_snapshot!(failed.lines(), @r#"
    gathering facts: failed "no NVML"
    end: Failed { task: "Gathering Facts", message: "no NVML" }
    "#);
    assert!(failed.end.fatal);
}

#[test]
fn families_of_distributions() {
    let facts = |id: &str, like: &[&str]| {
        let like = like.iter().map(ToString::to_string).collect();
        let os = OsFacts { id: id.to_owned(), like, version: "9.4".to_owned(), ..OsFacts::default() };
        let facts = Facts { os, hostname: "n1.example.org".to_owned(), ..Facts::default() };
        let text = "- hosts: all\n  gather_facts: true\n  tasks:\n    - debug: {msg: '{{ ansible_os_family }} {{ ansible_distribution }} {{ ansible_distribution_major_version }} {{ ansible_hostname }}'}\n";
        let story = applied(text, |_| {
            let mut answer = outcome(OpStatus::Ok);
            answer.facts = Some(Box::new(facts.clone()));
            Some(fed(answer))
        });
        story.reports[1].message.clone().unwrap_or_default().replace(" 9 n1", "")
    };
    for (id, expected) in [
        ("ubuntu", "Debian Ubuntu"),
        ("debian", "Debian Debian"),
        ("rhel", "RedHat RedHat"),
        ("rocky", "RedHat Rocky"),
        ("amzn", "RedHat Amazon"),
        ("sles", "Suse SLES"),
        ("opensuse-leap", "Suse openSUSE Leap"),
        ("arch", "Linux arch"),
    ] {
        assert_eq!(facts(id, &[]), expected);
    }
    assert_eq!(facts("dgx", &["unheard", "ubuntu", "rhel"]), "Debian dgx");
    assert_eq!(facts("void", &["unheard"]), "Linux void");
}

const GROUP: &str =
    "    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: power, gpu_power: {limit_watts: 600}}\n";

#[test]
fn a_group_that_fails_as_a_whole_is_borne_by_one() {
    let whole = |action: &Action, phase: Phase| {
        (action.phase() == phase && action.kind == "gpu_ecc")
            .then(|| fed(OpOutcome::failed(FailureKind::Io, "no NVML")))
    };
    let text = play(GROUP);
    insta::assert_snapshot!(applied(&text, |action| whole(action, Phase::Declared)).lines(), @r#"
    ecc: failed "no NVML"
    power: skipped "not done: the GPU group failed"
    end: Failed { task: "ecc", message: "no NVML" }
    "#);
    let text = play(&format!("{GROUP}    - {{name: boot, reboot: {{when: always}}}}\n"));
    insta::assert_snapshot!(applied(&text, |action| whole(action, Phase::Reassert)).lines(), @r#"
    ecc: ok
    power: ok
    boot: changed <node running -> rebooted reboot>
    ecc: failed (reassert) "no NVML"
    end: Failed { task: "ecc", message: "it does not hold after the reset or reboot: no NVML" }
    "#);
    insta::assert_snapshot!(applied(&text, |action| whole(action, Phase::Verify)).lines(), @r#"
    ecc: ok
    power: ok
    boot: changed <node running -> rebooted reboot>
    ecc: failed (verify) "no NVML"
    end: Failed { task: "ecc", message: "no NVML" }
    "#);
}

#[test]
fn a_verification_tells_what_it_cannot_read() {
    let text =
        play("    - {name: a, sysctl: {name: a, value: 1}}\n    - {name: b, sysctl: {name: b, value: 1}}\n");
    let story = applied(&text, |action| match (action.phase(), action.task.as_str()) {
        (Phase::Declared, _) => Some(fed(outcome(OpStatus::Changed))),
        (_, "a") => Some(fed(outcome(OpStatus::Unknown { reason: "no answer".to_owned() }))),
        _ => None,
    });
    insta::assert_snapshot!(story.lines(), @r#"
    a: changed
    b: changed
    a: unknown (verify) "no answer"
    end: Done
    "#);
    assert_eq!(story.end.unknown, ["a: no answer"]);
    let again = applied(&text, |_| Some(fed(outcome(OpStatus::Changed))));
    insta::assert_snapshot!(again.lines(), @r#"
    a: changed
    b: changed
    a: failed (verify) "unconverged: it would change again"
    end: Failed { task: "a", message: "unconverged: it would change again" }
    "#);
    // The state decides, not the word: a difference is one, whatever the status says.
    let differs = applied(&text, |action| match action.phase() {
        Phase::Declared => Some(fed(outcome(OpStatus::Changed))),
        _ => {
            let mut answer = outcome(OpStatus::Ok);
            answer.changes.push(set_to_1("0".into()));
            Some(fed(answer))
        }
    });
    assert!(differs.lines().contains("a: failed (verify) \"unconverged: a is 0, declared 1\""));
    assert!(differs.reports.iter().all(|report| report.changes.is_empty()));
}

#[test]
fn what_is_asserted_again_may_be_unknown_or_fail_and_be_rescued() {
    let tasks = "    - {name: swap, sysctl: {name: a, value: '{{ item }}'}, loop: [1]}\n    - block:\n        - {name: boot, reboot: {when: always}}\n        - {name: never, command: a}\n      rescue:\n        - {name: saved, command: a}\n";
    let text = play(tasks);
    let answers = |status: OpStatus| {
        applied(&text, move |action| {
            (action.phase() == Phase::Reassert).then(|| fed(outcome(status.clone())))
        })
    };
    let failed = OpStatus::Failed { kind: FailureKind::Io, message: "lost".to_owned() };
    insta::assert_snapshot!(answers(failed).lines(), @r#"
    swap: ok [1]
    swap: ok
    boot: changed <node running -> rebooted reboot>
    swap: failed (reassert) rescued "lost"
    saved: ok
    end: Done
    "#);
    let unknown = answers(OpStatus::Unknown { reason: "no answer".to_owned() });
    assert_eq!(unknown.end.unknown, ["swap: no answer"]);
    assert!(unknown.lines().contains("swap: unknown [1] (reassert) \"no answer\"\nnever: ok"));
    let skipped = answers(OpStatus::NotApplicable { reason: "no such knob".to_owned() });
    assert_eq!(skipped.reports.len(), 4, "nothing to tell: {}", skipped.lines());
    assert!(skipped.asked.contains(&"0/tasks.0[0]+reassert@n1".to_owned()), "{:?}", skipped.asked);
    assert!(skipped.asked.contains(&"0/tasks.0[0]+verify@n1".to_owned()), "{:?}", skipped.asked);
}

/// Whoever reads `changed=0` takes the node for untouched.
#[test]
fn a_task_that_failed_after_a_part_counts_as_changed_and_one_that_did_nothing_does_not() {
    let text = play(
        "    - block:\n        - {name: a, sysctl: {name: a, value: 1}, register: seen}\n      rescue:\n        - {name: told, debug: {var: seen.changed}}\n    - {name: b, sysctl: {name: b, value: 1}, ignore_errors: true}\n    - {name: c, sysctl: {name: c, value: 1}}\n",
    );
    let counts = |in_part: bool| {
        let story = applied(&text, move |_| {
            let status = OpStatus::Failed { kind: FailureKind::Io, message: "the third of eight".to_owned() };
            let mut answer = outcome(status);
            answer.changes.extend(in_part.then(|| set_to_1("0".into())));
            Some(fed(answer))
        });
        let counts = story.counts();
        (counts.changed, counts.ignored, counts.rescued, counts.failed)
    };
    assert_eq!((counts(true), counts(false)), ((3, 1, 1, 1), (0, 1, 1, 1)));
}

#[test]
fn a_loop_that_cannot_go_on_tells_what_it_did() {
    let text = play(
        "    - {name: swap, sysctl: {name: a, value: 1}}\n    - {name: boot, reboot: {when: always}, loop: [1, 2]}\n",
    );
    let story = applied(&text, |action| {
        (action.phase() == Phase::Reassert).then(|| fed(OpOutcome::failed(FailureKind::Io, "lost")))
    });
    insta::assert_snapshot!(story.lines(), @r#"
    swap: ok
    boot: changed [1] <node running -> rebooted reboot>
    swap: failed (reassert) "lost"
    boot: changed
    end: Failed { task: "swap", message: "it does not hold after the reset or reboot: lost" }
    "#);
}

#[test]
fn a_group_that_does_not_answer_ends_the_host_unless_all_of_it_may_be_lost() {
    let group = |second: &str| {
        play(&format!(
            "    - {{name: ecc, gpu_ecc: {{mode: enabled}}, ignore_unreachable: true}}\n    - {{name: power, gpu_power: {{limit_watts: 5}}{second}}}\n    - {{name: after, command: a}}\n"
        ))
    };
    let lost = |text: &str| {
        applied(text, |action| {
            (action.kind == "gpu_ecc").then(|| Fed::Unreachable { reason: "silence".to_owned() })
        })
    };
    assert_eq!(lost(&group("")).end.state, EndState::Unreachable { reason: "silence".to_owned() });
    let ignored = lost(&group(", ignore_unreachable: true"));
    insta::assert_snapshot!(ignored.lines(), @r#"
    ecc: unreachable ignored "silence"
    power: unreachable ignored "silence"
    after: ok
    end: Done
    "#);
    assert_eq!(ignored.asked.len(), 2, "nothing of it is declared: {:?}", ignored.asked);
}

#[test]
fn a_member_that_may_fail_does_not_stop_its_group() {
    let text = play(
        "    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: power, gpu_power: {limit_watts: '{{ nope }}'}, ignore_errors: true}\n",
    );
    insta::assert_snapshot!(applied(&text, |_| None).lines(), @r#"
    ecc: ok
    power: failed ignored "`limit_watts`: `nope` is undefined"
    end: Done
    "#);
}

#[test]
fn members_that_hang_on_a_command_are_possible_in_a_prediction_and_a_mistake_in_a_run() {
    let text = play(
        "    - {name: ask, command: a, register: r}\n    - {name: power, gpu_power: {limit_watts: '{{ r.stdout }}'}}\n    - {name: clocks, gpu_power: {limit_watts: '{{ item }}'}, loop: '{{ r.stdout_lines }}'}\n",
    );
    let story = told(Mode::Predict, &text, |_| None);
    assert!(story.reports.iter().all(|report| report.status == Status::Possible), "{}", story.lines());
    let known = applied(&text, |action| match action.kind {
        "command" => Some(Command(0, "500").fed(action)),
        _ => None,
    });
    assert_eq!(known.end.state, EndState::Done, "{}", known.lines());
}

/// `count` groups, each of which resets the GPUs.
fn resets(count: usize) -> (String, impl FnMut(&Action) -> Option<Fed>) {
    let tasks: String = (0..count)
        .map(|index| {
            format!("    - {{name: g{index}, gpu_mig: {{mode: enabled, gpus: [{index}]}}}}\n    - {{debug: {{msg: between}}}}\n")
        })
        .collect();
    (play(&tasks), |action| {
        let mut answer = members(action, &OpStatus::Ok);
        answer.activated = (action.phase() == Phase::Declared).then_some(Disruption::GpuReset);
        Some(fed(answer))
    })
}

#[test]
fn a_node_that_never_settles_is_given_up() {
    let (text, answer) = resets(8);
    let story = applied(&text, answer);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    let asked_again = |round: &str| story.asked.iter().filter(|id| id.contains(round)).count();
    assert_eq!((asked_again("+reassert"), asked_again("+reassert#7")), (28, 7), "{:?}", story.asked);
    let (text, answer) = resets(9);
    let EndState::Failed { task, message } = applied(&text, answer).end.state else { panic!("it settled") };
    insta::assert_snapshot!(format!("{task}: {message}"), @"assert again: the node was reset or rebooted 9 times in this play and still needs more");
}

#[test]
fn who_was_interrupted_by_a_reset_is_not_asserted_twice() {
    let text = play(
        "    - {name: a, gpu_mig: {mode: enabled, gpus: [0]}}\n    - {debug: {}}\n    - {name: b, gpu_mig: {mode: enabled, gpus: [1]}}\n    - {debug: {}}\n    - {name: swap, sysctl: {name: a, value: 1}}\n    - {name: c, gpu_mig: {mode: enabled, gpus: [2]}}\n",
    );
    let story = applied(&text, |action| {
        let resets = match action.phase() {
            Phase::Declared => action.task == "c",
            Phase::Reassert => action.task == "a" && action.id.round == 0,
            Phase::Verify => false,
        };
        let mut answer = members(action, &OpStatus::Ok);
        answer.activated = resets.then_some(Disruption::GpuReset);
        Some(fed(answer))
    });
    let again: Vec<&str> =
        story.asked.iter().map(String::as_str).filter(|id| id.contains("+reassert")).collect();
    // A sysctl outlives a reset of the GPUs, and the group that reset them ends as declared.
    assert_eq!(again, ["0/tasks.0+reassert@n1", "0/tasks.2+reassert#1@n1", "0/tasks.5+reassert#1@n1"]);
}

#[test]
fn stopping_clients_loses_nothing() {
    let text = play(
        "    - {name: a, gpu_mig: {mode: enabled, gpus: [0]}}\n    - {debug: {}}\n    - {name: b, gpu_mig: {mode: enabled, gpus: [1]}}\n",
    );
    let story = applied(&text, |action| {
        let mut answer = members(action, &OpStatus::Ok);
        answer.activated = (action.task == "b").then_some(Disruption::Clients);
        Some(fed(answer))
    });
    assert_eq!(story.asked.len(), 2, "{:?}", story.asked);
}

#[test]
fn a_reset_of_a_member_that_failed_is_followed_by_a_rescue_alone_where_there_is_one() {
    let tasks = |indent: &str| {
        format!(
            "    - {{name: a, gpu_mig: {{mode: enabled, gpus: [0]}}}}\n    - {{debug: {{}}}}\n{indent}- {{name: b, gpu_ecc: {{mode: enabled}}}}\n"
        )
    };
    let failing = |action: &Action| {
        (action.task == "b").then(|| {
            let mut answer = members(action, &OpStatus::Ok);
            answer.members = vec![OpOutcome::failed(FailureKind::Io, "stuck")];
            answer.activated = Some(Disruption::GpuReset);
            fed(answer)
        })
    };
    let failed = applied(&play(&tasks("    ")), failing);
    assert_eq!(failed.asked, ["0/tasks.0@n1", "0/tasks.2@n1"], "nobody touches a node that failed");
    let rescued = play(&format!(
        "{}      rescue:\n        - {{name: saved, command: a}}\n",
        tasks("    - block:\n        ")
    ));
    let rescued = applied(&rescued, failing);
    assert_eq!(rescued.end.state, EndState::Done, "{}", rescued.lines());
    assert_eq!(rescued.asked[2], "0/tasks.0+reassert@n1");
}

#[test]
fn a_gpu_handler_waits_and_resets_like_a_group() {
    let text = "- hosts: all\n  tasks:\n    - {name: mig, gpu_mig: {mode: enabled}}\n    - {name: swap, sysctl: {name: a, value: 1}, notify: ecc}\n  handlers:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n";
    let answer = |whole: bool| {
        move |action: &Action| match (action.task.as_str(), action.phase()) {
            ("swap", Phase::Declared) => Some(fed(outcome(OpStatus::Changed))),
            ("ecc", Phase::Declared) => {
                let mut answer = members(action, &OpStatus::Changed);
                let (one, other) = (&mut answer.members[0], awaiting("the group"));
                one.awaiting.push(awaiting("the member"));
                if whole {
                    answer.activated = Some(Disruption::GpuReset);
                } else {
                    one.activated = Some(Disruption::GpuReset);
                }
                answer.awaiting.push(other);
                Some(fed(answer))
            }
            _ => None,
        }
    };
    for whole in [false, true] {
        let story = applied(text, answer(whole));
        assert!(story.asked.contains(&"0/tasks.0+reassert@n1".to_owned()), "{:?}", story.asked);
        let EndState::PendingActivation { class, reasons, .. } = &story.end.state else {
            panic!("{:?}", story.end.state)
        };
        assert_eq!((*class, reasons.join(", ").as_str()), (Disruption::Reboot, "the group, the member"));
    }
}

#[test]
fn what_waits_for_a_reset_alone_is_over_with_it() {
    let text = play(
        "    - {name: a, gpu_mig: {mode: enabled, gpus: [0]}}\n    - {debug: {}}\n    - {name: b, gpu_mig: {mode: enabled, gpus: [1]}}\n",
    );
    let mut cursor = cursor(&text, json!({}), Mode::Apply);
    let left = |class: Disruption, cursor: &mut Cursor| {
        let story = run(cursor, |action| {
            let mut answer = members(action, &OpStatus::Ok);
            match (action.task.as_str(), action.phase()) {
                ("a", Phase::Declared) => {
                    answer.awaiting = [Disruption::GpuReset, Disruption::Reboot]
                        .map(|activation| Awaiting { activation, reason: activation.to_string() })
                        .to_vec();
                }
                ("b", Phase::Declared) => answer.activated = Some(class),
                // Lost or not, it has not become current.
                ("a", Phase::Reassert) => answer.awaiting.push(awaiting("still")),
                _ => {}
            }
            fed(answer)
        });
        let EndState::PendingActivation { reasons, .. } = story.end.state else { panic!("{:?}", story.end) };
        reasons
    };
    assert_eq!(left(Disruption::GpuReset, &mut cursor), ["still"]);
    assert_eq!(cursor.awaiting(), [awaiting("still")]);
    let mut other = super::cursor(&text, json!({}), Mode::Apply);
    assert_eq!(left(Disruption::Clients, &mut other), ["gpu-reset", "reboot"]);
    assert_eq!(other.awaiting().len(), 2);
}

#[test]
fn verdicts_on_failures() {
    let judged = |task: &str, status: OpStatus, changes: bool| {
        let text = play(&format!("    - {{name: t, {task}}}\n"));
        let story = applied(&text, |action| {
            (action.phase() == Phase::Declared).then(|| {
                let mut answer = outcome(status.clone());
                if changes {
                    answer.changes.push(set_to_1(change::Value::Absent));
                }
                fed(answer)
            })
        });
        story.reports[0].status
    };
    let failed = || OpStatus::Failed { kind: FailureKind::Io, message: "x".to_owned() };
    let sysctl = "sysctl: {name: a, value: 1}, ";
    assert_eq!(judged(&format!("{sysctl}failed_when: false"), failed(), false), Status::Ok);
    assert_eq!(judged(&format!("{sysctl}failed_when: false"), failed(), true), Status::Changed);
    assert_eq!(judged("command: a, failed_when: false", failed(), false), Status::Changed);
    assert_eq!(judged(&format!("{sysctl}changed_when: false"), failed(), true), Status::Failed);
    assert_eq!(judged(&format!("{sysctl}changed_when: true"), OpStatus::Ok, false), Status::Changed);
    assert_eq!(judged(&format!("{sysctl}failed_when: true"), OpStatus::Ok, false), Status::Failed);
    assert_eq!(judged(&format!("{sysctl}failed_when: nope"), OpStatus::Ok, false), Status::Failed);
    let unknown = OpStatus::Unknown { reason: "x".to_owned() };
    assert_eq!(judged(&format!("{sysctl}changed_when: true"), unknown, false), Status::Unknown);
    let skipped = OpStatus::Skipped { reason: "x".to_owned() };
    assert_eq!(judged(&format!("{sysctl}failed_when: true"), skipped, false), Status::Skipped);
}

#[test]
fn verdicts_that_hang_on_a_command_are_possible() {
    let text = play(
        "    - {name: ask, command: a, register: r, changed_when: true, failed_when: false}\n    - {name: swap, sysctl: {name: a, value: 1}, changed_when: r.rc == 0}\n    - {name: swop, sysctl: {name: a, value: 1}, failed_when: r.rc == 0}\n",
    );
    let story = told(Mode::Predict, &text, |_| None);
    assert!(story.reports.iter().all(|report| report.status == Status::Possible), "{}", story.lines());
}

#[test]
fn loops_sum_up_their_items() {
    let text = play(
        "    - {name: some, command: '{{ item }}', loop: [a, b, c], register: s, ignore_errors: true}\n    - {name: shape, assert: {that: [s is failed, s.results | length == 3, 's.msg == ''One or more items failed''']}}\n    - {name: none, command: a, loop: [1, 2], when: false, register: n}\n    - {name: none shape, assert: {that: [n is skipped, not n.changed, 'n.msg == ''All items skipped''']}}\n    - {name: guarded, command: a, loop: '{{ nope }}', when: false}\n    - {name: one, debug: {msg: '{{ item }}'}, with_items: '{{ 5 }}'}\n    - {name: flat, debug: {msg: '{{ item }}'}, with_items: [[1, 2], 3]}\n    - {name: indexed, debug: {msg: '{{ i }}{{ item }}'}, loop: [x], loop_control: {index_var: i}}\n    - {name: last, command: '{{ item }}', loop: [a, b, c]}\n",
    );
    let story = applied(&text, |action| match (&action.work, action.kind) {
        (Work::Node { op, .. }, "command") => {
            let bad = matches!(&**op, NodeOp::Exec(exec) if exec.run == gpufleet_protocol::op::Program::Argv(vec!["b".to_owned()]));
            Some(if bad { Failed("boom") } else { Changed }.fed(action))
        }
        _ => None,
    });
    insta::assert_snapshot!(story.lines(), @r#"
    some: changed [a]
    some: failed [b] ignored "boom"
    some: changed [c]
    some: failed ignored "1 of 3 items: b: boom"
    shape: ok "All assertions passed"
    none: skipped [1] "the condition does not hold"
    none: skipped [2] "the condition does not hold"
    none: skipped
    none shape: ok "All assertions passed"
    guarded: skipped "the condition does not hold"
    one: ok [5] "5"
    one: ok
    flat: ok [1] "1"
    flat: ok [2] "2"
    flat: ok [3] "3"
    flat: ok
    indexed: ok [x] "0x"
    indexed: ok
    last: changed [a]
    last: failed [b] "boom"
    last: changed [c]
    last: failed "1 of 3 items: b: boom"
    end: Failed { task: "last", message: "boom" }
    "#);
}

#[test]
fn a_loop_with_a_failure_has_failed_although_another_item_may_be_lost() {
    let text = play(
        "    - block:\n        - {name: t, command: '{{ item }}', loop: [a, b], ignore_unreachable: true}\n      rescue:\n        - {name: saved, command: c}\n",
    );
    let mut first = true;
    let story = applied(&text, |action| {
        (action.task == "t").then(|| match std::mem::take(&mut first) {
            true => Failed("boom").fed(action),
            false => Fed::Unreachable { reason: "silence".to_owned() },
        })
    });
    insta::assert_snapshot!(story.lines(), @r#"
    t: failed [a] rescued "boom"
    t: unreachable [b] ignored "silence"
    t: failed rescued "1 of 2 items: a: boom"
    saved: ok
    end: Done
    "#);
}

#[test]
fn results_of_lost_tasks_and_of_data() {
    let text = play(
        "    - {name: t, command: a, ignore_unreachable: true, register: r}\n    - {name: lost, assert: {that: [r is unreachable, r.unreachable, r.msg == 'silence', not r.changed]}}\n    - {name: u, command: a, register: d}\n    - {name: own, assert: {that: [d.msg == 'its own', 'd.stdout_lines == [''own'']', d.failed == false]}}\n    - {name: v, command: a, register: p, failed_when: p.rc == 0, ignore_errors: true}\n    - {name: failed, assert: {that: [p.failed, p is failed, 'p.msg == ''failed_when holds''']}}\n",
    );
    let story = applied(&text, |action| match action.task.as_str() {
        "t" => Some(Fed::Unreachable { reason: "silence".to_owned() }),
        "u" => {
            let mut answer = outcome(OpStatus::Changed);
            answer.data = json!({"msg": "its own", "stdout": "a\nb", "stdout_lines": ["own"]})
                .as_object()
                .expect("a map")
                .clone();
            Some(fed(answer))
        }
        "v" => Some(Command(0, "").fed(action)),
        _ => None,
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
}

#[test]
fn handlers_are_found_by_their_rendered_name() {
    let text = "- hosts: all\n  vars: {x: 5}\n  tasks:\n    - {name: t, command: a, notify: ['h 5', plain]}\n  handlers:\n    - {name: 'h {{ x }}', command: a}\n    - {name: 'g {{ x }}', command: a}\n    - {name: plain, command: a}\n";
    let story = story(text, &[("t", Changed)]);
    let names: Vec<&str> = story.reports.iter().map(|report| report.task.as_str()).collect();
    assert_eq!(names, ["t", "h 5", "plain"]);
    let wrong = "- hosts: all\n  vars: {x: 5}\n  tasks:\n    - {name: t, command: a, notify: '{{ ''h'' }} 6'}\n  handlers:\n    - {name: 'h {{ x }}', command: a}\n";
    let story = super::story(wrong, &[("t", Changed)]);
    assert!(story.lines().contains("no handler is called `h 6`"), "{}", story.lines());
}

#[test]
fn flushes_and_verifications_are_numbered() {
    let text = "- hosts: all\n  pre_tasks:\n    - {name: one, sysctl: {name: a, value: 1}, notify: h}\n    - meta: flush_handlers\n    - meta: flush_handlers\n  tasks:\n    - {name: two, sysctl: {name: b, value: 1}, notify: h}\n  handlers:\n    - {name: h, command: a}\n";
    let story = applied(text, |action| match action.phase() {
        Phase::Declared => Some(fed(outcome(OpStatus::Changed))),
        _ => None,
    });
    let numbered: Vec<&str> = story.asked.iter().map(|id| id.trim_end_matches("@n1")).collect();
    assert_eq!(
        numbered,
        [
            "0/pre_tasks.0",
            "0/handlers.0",
            "0/pre_tasks.0+verify",
            "0/tasks.0",
            "0/handlers.0#1",
            "0/pre_tasks.0+verify#1",
            "0/tasks.0+verify#1"
        ]
    );
}

#[test]
fn a_free_play_waits_for_nobody() {
    let text = |strategy: &str| {
        format!(
            "- hosts: all\n  strategy: {strategy}\n  tasks:\n    - {{name: one, debug: {{}}}}\n    - {{name: two, gpu_mig: {{mode: enabled}}}}\n"
        )
    };
    let barriers = |strategy: &str| {
        let mut cursor = cursor(&text(strategy), json!({}), Mode::Apply);
        let mut seen = Vec::new();
        loop {
            match cursor.next() {
                Step::Barrier { task, .. } => seen.push(task.to_string()),
                Step::Run(action) => {
                    cursor.feed(fed(members(&action, &OpStatus::Ok)));
                }
                Step::End(_) => return seen,
                _ => {}
            }
        }
    };
    assert_eq!(barriers("linear"), ["tasks.0", "tasks.1"]);
    assert_eq!(barriers("free"), Vec::<String>::new());
}

#[test]
fn forced_handlers_run_once_although_they_fail() {
    let text = "- hosts: all\n  force_handlers: true\n  tasks:\n    - {name: one, command: a, notify: [h, i]}\n    - {name: two, command: a}\n  handlers:\n    - {name: h, command: a}\n    - {name: i, command: a}\n";
    let story = story(text, &[("one", Changed), ("two", Failed("x")), ("h", Failed("y"))]);
    let names: Vec<&str> = story.reports.iter().map(|report| report.task.as_str()).collect();
    assert_eq!(names, ["one", "two", "h"]);
    assert_eq!(story.end.state, EndState::Failed { task: "two".to_owned(), message: "x".to_owned() });
}

#[test]
fn a_failure_inside_a_rescue_is_not_rescued_by_it() {
    let text = play(
        "    - block:\n        - {name: a, command: a}\n      rescue:\n        - {name: b, command: b}\n      always:\n        - {name: c, command: c}\n",
    );
    let story = story(&text, &[("a", Failed("x")), ("b", Failed("y")), ("c", Failed("z"))]);
    insta::assert_snapshot!(story.lines(), @r#"
    a: failed rescued "x"
    b: failed "y"
    c: failed "z"
    end: Failed { task: "c", message: "z" }
    "#);
}

#[test]
fn listed_packages_are_a_fact_and_a_variable() {
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: list, package_facts: {manager: auto}}\n    - {name: read, setup: {}}\n    - {name: use, debug: {msg: \"{{ packages['a'][0].version }} {{ ansible_facts.packages.a[0].version }} {{ 'b' in packages }}\"}}\n";
    let listed = |mode, status: &OpStatus| {
        told(mode, text, |action| match action.task.as_str() {
            "list" => {
                let mut answer = outcome(status.clone());
                if *status == OpStatus::Ok {
                    let facts = json!({"ansible_facts": {"packages": {"a": [{"version": "{{ 1 }}"}]}}});
                    answer.data = facts.as_object().expect("a map").clone();
                }
                Some(fed(answer))
            }
            "read" => {
                let mut answer = outcome(OpStatus::Ok);
                answer.facts = Some(Box::default());
                Some(fed(answer))
            }
            _ => None,
        })
    };
    // What a node says is no template, and other facts leave it alone.
    let known = listed(Mode::Apply, &OpStatus::Ok);
    assert!(known.lines().contains("use: ok \"{{ 1 }} {{ 1 }} False\""), "{}", known.lines());
    let open = listed(Mode::Predict, &OpStatus::Possible);
    assert!(open.lines().contains("use: possible"), "{}", open.lines());
}

#[test]
fn facts_that_an_earlier_task_changes_are_not_known_yet() {
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: read, setup: {filter: ansible_local}, register: r}\n    - {name: use, command: 'a {{ ansible_local.own.name }}'}\n    - {name: other, debug: {msg: '{{ r.foreseen_facts is defined }}'}}\n";
    let story = told(Mode::Predict, text, |action| {
        (action.task == "read").then(|| {
            let mut answer = outcome(OpStatus::Ok);
            answer.facts = Some(Box::default());
            answer.data.insert("foreseen_facts".to_owned(), json!(["local"]));
            fed(answer)
        })
    });
    assert!(story.lines().contains("use: possible"), "{}", story.lines());
    assert!(story.lines().contains("other: ok \"false\""), "{}", story.lines());
}
