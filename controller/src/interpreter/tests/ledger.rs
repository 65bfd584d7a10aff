//! What stays declared after later tasks, and with it what is asserted again and verified.

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::tasks::{FileState, GpuClocks, ServiceState};

use super::*;

/// The operations that are verified at the end of a play of these tasks, in order.
fn declared(tasks: &str) -> Vec<NodeOp> {
    let text = format!("- hosts: all\n  tasks:\n{}", tasks.trim_start_matches('\n'));
    let mut ops = Vec::new();
    let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
        if let (Work::Node { op, .. }, Phase::Verify) = (&action.work, action.phase()) {
            ops.push((**op).clone());
            return OpOutcomeSketch::Ok.fed(action);
        }
        changed(action)
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    ops
}

/// A change, of each member where there are some.
fn changed(action: &Action) -> Fed {
    let mut outcome = gpufleet_protocol::OpOutcome::new(gpufleet_protocol::OpStatus::Changed);
    if let Work::Node { op, .. } = &action.work
        && let NodeOp::GpuGroup(group) = &**op
    {
        outcome.members = group.members.iter().map(|_| outcome.clone()).collect();
    }
    Fed::Outcome(Box::new(outcome))
}

/// What an operation says, in a few words.
fn words(op: &NodeOp) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match op {
        NodeOp::Sysctl(op) => format!("sysctl {}={}", op.name, text(&op.value)),
        NodeOp::Service(op) => format!("service {} {:?} {:?} {:?}", op.name, op.state, op.enabled, op.masked),
        NodeOp::PutFile(op) => format!(
            "put {} {:?} {} {} {}",
            op.dest,
            text(&op.preview),
            text(&op.owner),
            text(&op.group),
            op.mode.as_ref().map_or("", |mode| &mode.0)
        ),
        NodeOp::File(op) => format!(
            "file {} {:?} {} {} {}",
            op.path,
            op.state,
            text(&op.owner),
            text(&op.group),
            op.mode.as_ref().map_or("", |mode| &mode.0)
        ),
        NodeOp::LineInFile(op) => format!("line {} {}", op.path, text(&op.line)),
        NodeOp::KernelCmdline(op) => format!("cmdline +{} -{}", op.add.join(","), op.remove.join(",")),
        NodeOp::GpuGroup(group) => {
            let members: Vec<&str> = group
                .members
                .iter()
                .map(|member| match &member.task {
                    GpuTask::GpuPersistence(_) => "persistence",
                    GpuTask::GpuEcc(_) => "ecc",
                    GpuTask::GpuMig(_) => "mig",
                    GpuTask::GpuPower(_) => "power",
                    GpuTask::GpuClocks(_) => "clocks",
                    GpuTask::GpuComputeMode(_) => "compute mode",
                    GpuTask::GpuMps(_) => "mps",
                    GpuTask::GpuAccounting(_) => "accounting",
                    GpuTask::GpuReset(_) => "reset",
                    GpuTask::GpuConfidentialCompute(_) => "confidential",
                })
                .collect();
            format!("group {}", members.join(","))
        }
        other => format!("{other:?}"),
    }
}

fn left(tasks: &str) -> Vec<String> {
    declared(tasks).iter().map(|op| words(op).trim_end().to_owned()).collect()
}

#[test]
fn a_value_replaces_that_of_the_same_name_alone() {
    let tasks = "
    - sysctl: {name: a.b, value: 1}
    - sysctl: {name: a.c, value: 2}
    - sysctl: {name: a.b, value: 3}
";
    assert_eq!(left(tasks), ["sysctl a.c=2", "sysctl a.b=3"]);
}

#[test]
fn acts_are_not_declared() {
    let tasks = "
    - service: {name: one, state: restarted}
    - service: {name: two, state: reloaded}
    - service: {name: three, state: reloaded, enabled: true}
    - service: {name: four, masked: true}
    - service: {daemon_reload: true}
    - file: {path: /t, state: touch, owner: o}
    - stat: {path: /s}
    - command: a
    - shell: b
";
    assert_eq!(
        left(tasks),
        [
            "service one Some(Started) None None",
            "service three None Some(true) None",
            "service four None None Some(true)",
            "file /t None o",
        ]
    );
    let reload = declared("    - service: {name: one, state: started, daemon_reload: true}\n");
    let NodeOp::Service(service) = &reload[0] else { panic!("{reload:?}") };
    assert_eq!((service.state, service.daemon_reload), (Some(ServiceState::Started), false));
}

/// What the kinds that Ansible has too leave to be verified, in a few words.
fn summary(tasks: &str) -> Vec<String> {
    let one = |op: &NodeOp| match op {
        NodeOp::Apt(op) => format!("apt {} {}", op.name.join(","), op.state),
        NodeOp::Dnf(op) => format!("dnf {} {}", op.name.join(","), op.state),
        NodeOp::Package(op) => format!("package {} {}", op.name.join(","), op.state),
        NodeOp::User(op) => format!("user {} {} {:?} {:?}", op.name, op.state, op.uid, op.shell.as_deref()),
        NodeOp::Group(op) => format!("group {} {} {:?}", op.name, op.state, op.gid),
        NodeOp::Cron(op) => format!("cron {} {}", op.name, op.state),
        NodeOp::Hostname(op) => format!("hostname {}", op.name),
        NodeOp::Modprobe(op) => format!("modprobe {} {} {}", op.name, op.state, op.persistent),
        NodeOp::Mount(op) => format!("mount {} {}", op.path, op.state),
        other => words(other),
    };
    declared(tasks).iter().map(one).collect()
}

#[test]
fn packages_are_declared_one_by_one_and_never_as_the_latest() {
    let tasks = "
    - apt: {name: [a=1, b, c], state: latest, update_cache: true}
    - apt: {update_cache: true}
    - apt: {upgrade: dist}
    - apt: {name: '*', state: latest}
    - package: {name: a, state: absent}
    - dnf: {name: [c, d], update_cache: true}
";
    assert_eq!(summary(tasks), ["apt b present", "package a absent", "dnf c,d present"]);
}

#[test]
fn what_a_later_task_says_of_a_machine_replaces_the_earlier_word() {
    let tasks = "
    - group: {name: g, gid: 5}
    - group: {name: g}
    - user: {name: u, uid: 7, shell: /bin/a}
    - user: {name: u, shell: /bin/b}
    - user: {name: v}
    - user: {name: v, state: absent}
    - hostname: {name: one}
    - hostname: {name: two}
    - cron: {name: c, job: x}
    - cron: {name: c, state: absent}
    - modprobe: {name: a-b, persistent: present}
    - modprobe: {name: a_b, state: absent}
    - mount: {path: /m, src: s, fstype: tmpfs, state: mounted}
    - mount: {path: /m, state: unmounted}
    - mount: {path: /n, state: remounted}
";
    assert_eq!(
        summary(tasks),
        [
            "group g present Some(5)",
            "group g present None",
            "user u present Some(7) None",
            "user u present None Some(\"/bin/b\")",
            "user v absent None None",
            "hostname two",
            "cron c absent",
            "modprobe a-b absent present",
            "modprobe a_b absent disabled",
            "mount /m present",
            "mount /m unmounted",
        ]
    );
}

#[test]
fn a_service_keeps_what_a_later_task_does_not_name() {
    let tasks = |later: &str| {
        format!(
            "    - service: {{name: x.service, state: started, enabled: true, masked: false}}\n    - service: {{name: y, state: started}}\n    - service: {later}\n"
        )
    };
    assert_eq!(
        left(&tasks("{name: x, state: stopped}")),
        [
            "service x.service None Some(true) Some(false)",
            "service y Some(Started) None None",
            "service x Some(Stopped) None None"
        ]
    );
    assert_eq!(
        left(&tasks("{name: x, enabled: false}"))[0],
        "service x.service Some(Started) None Some(false)"
    );
    assert_eq!(left(&tasks("{name: x, masked: true}"))[0], "service x.service Some(Started) Some(true) None");
    assert_eq!(
        left(&tasks("{name: x.service, state: stopped, enabled: false, masked: true}")),
        ["service y Some(Started) None None", "service x.service Some(Stopped) Some(false) Some(true)"]
    );
    // What each single knob leaves is still something.
    for (knob, word) in [
        ("state: started", "Some(Started) None None"),
        ("enabled: true", "None Some(true) None"),
        ("masked: true", "None None Some(true)"),
    ] {
        let tasks = format!("    - service: {{name: x, {knob}}}\n    - sysctl: {{name: a, value: 1}}\n");
        assert_eq!(left(&tasks), [format!("service x {word}"), "sysctl a=1".to_owned()]);
    }
}

#[test]
fn content_replaces_content_at_the_same_place() {
    let tasks = "
    - copy: {content: one, dest: /f}
    - copy: {content: other, dest: /g}
    - copy: {content: two, dest: /f}
";
    assert_eq!(left(tasks), ["put /g \"other\"", "put /f \"two\""]);
    // Two files that go into one directory.
    let tasks = "
    - copy: {src: motd, dest: /etc/}
    - copy: {src: check.sh, dest: /etc/}
";
    assert_eq!(left(tasks), ["put /etc/ \"hello\\n\"", "put /etc/ \"#!/bin/sh\\n\""]);
}

#[test]
fn a_later_owner_leaves_the_content() {
    let first = "    - copy: {content: one, dest: /f, owner: a, group: b, mode: '0600'}\n    - copy: {content: other, dest: /g, owner: a}\n";
    let then = |later: &str| left(&format!("{first}    - file: {later}\n"));
    let other = "put /g \"other\" a";
    assert_eq!(
        then("{path: /f, owner: x}"),
        ["put /f \"one\"  b 0600", other, "file /f None x"].map(str::to_owned)
    );
    assert_eq!(then("{path: /f, group: x}")[0], "put /f \"one\" a  0600");
    assert_eq!(then("{path: /f, mode: '0644', state: file}")[0], "put /f \"one\" a b");
    assert_eq!(then("{path: /f, state: absent}"), [other, "file /f Some(Absent)"]);
    assert_eq!(then("{path: /h, state: absent}").len(), 3);
}

#[test]
fn a_state_of_a_file_replaces_what_was_said_of_it() {
    let first =
        "    - file: {path: /f, owner: a, group: b, mode: '0600'}\n    - file: {path: /g, owner: a}\n";
    let then = |later: &str| left(&format!("{first}    - {later}\n"));
    let other = "file /g None a";
    assert_eq!(then("file: {path: /f, owner: x}"), ["file /f None  b 0600", other, "file /f None x"]);
    assert_eq!(then("file: {path: /f, group: x}")[0], "file /f None a  0600");
    assert_eq!(then("file: {path: /f, mode: '0644'}")[0], "file /f None a b");
    assert_eq!(then("file: {path: /f, state: directory}"), [other, "file /f Some(Directory)"]);
    assert_eq!(then("copy: {content: x, dest: /f}"), [other, "put /f \"x\""]);
    assert_eq!(then("copy: {content: x, dest: /h}").len(), 3);
    // A directory that something is copied into stays one.
    let directory = "    - file: {path: /d, state: directory}\n    - copy: {src: motd, dest: /d}\n";
    assert_eq!(left(directory), ["file /d Some(Directory)", "put /d \"hello\\n\""]);
    assert!(
        matches!(&declared(directory)[0], NodeOp::File(file) if file.state == Some(FileState::Directory))
    );
}

#[test]
fn lines_replace_lines_that_mean_the_same() {
    let first = "    - lineinfile: {path: /f, regexp: '^a', line: a=1}\n    - lineinfile: {path: /f, line: b}\n    - lineinfile: {path: /g, line: b}\n";
    let then = |later: &str| left(&format!("{first}    - {later}\n"));
    assert_eq!(
        then("lineinfile: {path: /f, regexp: '^a', line: a=2}"),
        ["line /f b", "line /g b", "line /f a=2"]
    );
    assert_eq!(
        then("lineinfile: {path: /f, regexp: '^b', line: b}"),
        ["line /f a=1", "line /g b", "line /f b"]
    );
    assert_eq!(
        then("lineinfile: {path: /f, line: c}"),
        ["line /f a=1", "line /f b", "line /g b", "line /f c"]
    );
    // As on the node, letters are those of ASCII.
    let umlaut = left(
        "    - lineinfile: {path: /f, line: n\u{e4}me=1}\n    - lineinfile: {path: /f, regexp: '^\\w+=', line: a=2}\n",
    );
    assert_eq!(umlaut, ["line /f n\u{e4}me=1", "line /f a=2"]);
    assert_eq!(then("copy: {content: x, dest: /f}"), ["line /g b", "put /f \"x\""]);
    let file = "    - copy: {content: x, dest: /f}\n    - copy: {content: x, dest: /g}\n    - lineinfile: {path: /f, line: c}\n";
    assert_eq!(left(file), ["put /g \"x\"", "line /f c"]);
}

#[test]
fn words_of_the_command_line_are_replaced_by_their_key() {
    let tasks = "
    - kernel_cmdline: {add: [iommu=pt, quiet], remove: [nomodeset]}
    - kernel_cmdline: {add: [iommu=off, nomodeset]}
";
    assert_eq!(left(tasks), ["cmdline +quiet -", "cmdline +iommu=off,nomodeset -"]);
    let tasks = "
    - kernel_cmdline: {add: [iommu=pt]}
    - kernel_cmdline: {remove: [quiet]}
    - kernel_cmdline: {remove: [iommu]}
";
    assert_eq!(left(tasks), ["cmdline + -quiet", "cmdline + -iommu"]);
}

/// Two GPU groups, and what is left of them.
fn groups(first: &str, second: &str) -> Vec<String> {
    let tasks = |text: &str| text.split("; ").map(|task| format!("    - {task}\n")).collect::<String>();
    left(&format!("{}    - sysctl: {{name: a, value: 1}}\n{}", tasks(first), tasks(second)))
}

#[test]
fn members_of_later_groups_replace_those_of_their_kind() {
    let sysctl = "sysctl a=1";
    let power = |gpus: &str| format!("gpu_power: {{limit_watts: 500{gpus}}}");
    assert_eq!(groups(&power(""), &power("")), [sysctl, "group power"]);
    assert_eq!(groups(&power(", gpus: [0]"), &power("")), [sysctl, "group power"]);
    assert_eq!(groups(&power(", gpus: [0]"), &power(", gpus: [0]")), [sysctl, "group power"]);
    assert_eq!(groups(&power(""), &power(", gpus: [0]")), ["group power", sysctl, "group power"]);
    assert_eq!(groups(&power(", gpus: [1]"), &power(", gpus: [0]")), ["group power", sysctl, "group power"]);
    for (task, word) in [
        ("gpu_persistence: {mode: daemon}", "persistence"),
        ("gpu_ecc: {mode: enabled}", "ecc"),
        ("gpu_mig: {mode: enabled}", "mig"),
        ("gpu_compute_mode: {mode: default}", "compute mode"),
        ("gpu_mps: {state: started}", "mps"),
        ("gpu_accounting: {mode: enabled}", "accounting"),
        ("gpu_reset: {when: required}", "reset"),
        ("gpu_confidential_compute: {ready: true}", "confidential"),
    ] {
        assert_eq!(groups(task, task), [sysctl, &format!("group {word}")], "{task}");
        let both = groups(task, &power(""));
        assert_eq!(both, [&format!("group {word}"), sysctl, "group power"], "{task}");
    }
}

/// A reset that is asked for is made once, so that nothing asserts or verifies it again.
#[test]
fn a_reset_of_its_own_is_never_asserted_again() {
    assert_eq!(left("    - gpu_reset: {when: always}\n"), [""; 0]);
    assert_eq!(left("    - gpu_reset: {when: always}\n    - gpu_ecc: {mode: enabled}\n"), ["group ecc"]);
}

#[test]
fn owners_go_with_their_members() {
    let text = "- hosts: all\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: power, gpu_power: {limit_watts: 5}}\n    - {name: mig, gpu_mig: {mode: enabled}}\n    - {name: between, sysctl: {name: a, value: 1}}\n    - {name: less, gpu_power: {limit_watts: 4}}\n";
    let mut verified = Vec::new();
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        if action.phase() == Phase::Verify {
            let Work::Node { op, .. } = &action.work else { panic!("{action:?}") };
            verified.push(words(op));
        }
        changed(action)
    });
    assert_eq!(verified, ["group ecc,mig"], "the first that does not hold is enough");
    // Everything would change again: each is told under its own name.
    let failed: Vec<&str> = story
        .reports
        .iter()
        .filter(|report| report.phase == Phase::Verify)
        .map(|report| report.task.as_str())
        .collect();
    assert_eq!(failed, ["ecc", "mig"], "{}", story.lines());
}

#[test]
fn the_two_clocks_are_two_knobs() {
    let sysctl = "sysctl a=1".to_owned();
    let replaced = |first: &str, second: &str| {
        let left = groups(&format!("gpu_clocks: {{{first}}}"), &format!("gpu_clocks: {{{second}}}"));
        assert!(left.contains(&sysctl) && left.last().is_some_and(|last| last == "group clocks"), "{left:?}");
        left.len() == 2
    };
    let (graphics, memory) = ("graphics_mhz: 1000", "memory_mhz: 2000");
    let both = format!("{graphics}, {memory}");
    assert!(replaced(graphics, graphics) && replaced(memory, memory));
    assert!(!replaced(graphics, memory) && !replaced(memory, graphics));
    assert!(replaced(graphics, &both) && replaced(memory, &both) && replaced(&both, &both));
    assert!(!replaced(&both, graphics) && !replaced(&both, memory));
    assert!(replaced(&both, "reset: true") && replaced(graphics, "reset: true"));
    assert!(!replaced(graphics, &format!("{both}, gpus: [0]")));
    assert!(!replaced(graphics, "reset: true, gpus: [0]"));
    assert!(replaced(&format!("{graphics}, gpus: [0]"), &format!("{graphics}, gpus: [0]")));
    assert!(!replaced(&format!("{graphics}, gpus: [1]"), &format!("{graphics}, gpus: [0]")));
    assert!(replaced(&format!("{graphics}, gpus: [1]"), "reset: true"));
    let clocks = declared("    - gpu_clocks: {graphics_mhz: 5}\n");
    assert!(
        matches!(&clocks[0], NodeOp::GpuGroup(group) if matches!(&group.members[0].task, GpuTask::GpuClocks(GpuClocks { reset: false, .. })))
    );
}

#[test]
fn a_file_that_is_edited_is_no_longer_what_it_was_given() {
    let ops = |tasks: &str| declared(tasks).iter().map(words).collect::<Vec<_>>().join("\n");
    let edited = ops("
    - copy: {dest: /etc/a, content: x}
    - blockinfile: {path: /etc/a, block: y}
    - replace: {path: /etc/b, regexp: x, replace: y}
    - copy: {dest: /etc/b, content: x}
");
    assert!(!edited.contains("put /etc/a") && edited.contains("put /etc/b"), "{edited}");
    let gone = ops("
    - copy: {dest: /opt/a/b, content: x}
    - copy: {dest: /opt/ab, content: x}
    - file: {path: /opt/a, state: absent}
");
    assert!(!gone.contains("put /opt/a/b") && gone.contains("put /opt/ab"), "{gone}");
}

#[test]
fn the_latest_and_everything_are_no_state_that_lasts() {
    let tasks = "
    - dnf: {name: [a, b], state: latest, autoremove: true}
    - package: {name: c, state: latest}
    - package: {name: [d, e]}
    - sysctl: {name: x.y, value: 1}
    - apt: {deb: /srv/x.deb}
    - apt: {name: f, clean: true, autoclean: true, autoremove: true, cache_valid_time: 5}
    - package: {name: 'd>=2', state: absent}
    - package: {name: [g, h]}
    - apt: {name: g, state: absent}
    - package: {name: b, state: absent}
    - dnf: {name: '*', state: latest}
";
    assert_eq!(
        summary(tasks),
        [
            "dnf a present",
            "package c present",
            "package e present",
            "sysctl x.y=1",
            "apt  present",
            "apt f present",
            "package d>=2 absent",
            "package h present",
            "apt g absent",
            "package b absent"
        ]
    );
    let ops = declared(tasks);
    let (NodeOp::Dnf(dnf), NodeOp::Apt(apt)) = (&ops[0], &ops[5]) else { panic!("{ops:?}") };
    assert!(!dnf.update_cache && !dnf.autoremove);
    assert_eq!((apt.update_cache, apt.cache_valid_time), (None, 0));
    assert!(!apt.clean && !apt.autoclean && !apt.autoremove);
}

#[test]
fn an_operation_whose_last_package_is_replaced_is_gone() {
    for first in ["apt", "dnf", "package"] {
        let tasks =
            format!("    - {first}: {{name: [k, l]}}\n    - package: {{name: [l, k], state: absent}}\n");
        assert_eq!(summary(&tasks), ["package l,k absent"], "{first}");
    }
    let file = "    - apt: {deb: /srv/k.deb}\n    - package: {name: k, state: absent}\n";
    assert_eq!(summary(file), ["apt  present", "package k absent"]);
}

#[test]
fn a_mount_is_replaced_by_one_at_the_same_place() {
    let after = |later: &str| {
        let tasks = format!(
            "    - mount: {{path: /a, src: s, fstype: ext4, state: mounted}}\n    - mount: {{path: /b, src: t, fstype: ext4, state: present}}\n    - mount: {later}\n"
        );
        summary(&tasks).join(", ")
    };
    let other = "mount /b present";
    for (later, left) in [
        ("{path: /a, src: s, fstype: ext4, state: mounted}", format!("{other}, mount /a mounted")),
        ("{path: /a, src: u, fstype: ext4, state: mounted}", format!("{other}, mount /a mounted")),
        ("{path: /a, src: u, fstype: ext4, state: present}", format!("{other}, mount /a present")),
        ("{path: /a, state: absent}", format!("{other}, mount /a absent")),
        ("{path: /a, state: unmounted}", format!("mount /a present, {other}, mount /a unmounted")),
        ("{path: /b, state: unmounted}", "mount /a mounted, mount /b unmounted".to_owned()),
        ("{path: /a, state: remounted}", format!("mount /a mounted, {other}")),
        (
            "{path: /c, src: s, fstype: ext4, state: mounted}",
            format!("mount /a mounted, {other}, mount /c mounted"),
        ),
    ] {
        assert_eq!(after(later), left, "{later}");
    }
    // Places to swap to have no path of their own.
    let swap = |src: &str| format!("    - mount: {{path: none, src: {src}, fstype: swap, state: present}}\n");
    assert_eq!(summary(&format!("{}{}", swap("/x"), swap("/y"))).len(), 2);
    assert_eq!(summary(&format!("{}{}", swap("/x"), swap("/x"))).len(), 1);
}

#[test]
fn people_and_their_crontabs_are_told_apart() {
    let tasks = "
    - user: {name: u, create_home: false, comment: c}
    - user: {name: w, uid: 8}
    - user: {name: u, home: /srv/u}
    - group: {name: g}
    - group: {name: h, gid: 6}
    - group: {name: g, gid: 5}
    - group: {name: h, state: absent}
    - cron: {name: c, job: x, user: root}
    - cron: {name: c, job: x, user: other}
    - cron: {name: d, job: x, user: root}
    - cron: {name: c, job: y, user: root}
    - modprobe: {name: m}
    - modprobe: {name: n, persistent: present}
    - modprobe: {name: m, persistent: present}
    - user: {name: gone, state: absent}
    - user: {name: gone, state: absent, remove: true}
";
    assert_eq!(
        summary(tasks),
        [
            "user u present None None",
            "user w present Some(8) None",
            "user u present None None",
            "group g present Some(5)",
            "group h absent None",
            "cron c present",
            "cron d present",
            "cron c present",
            "modprobe n present present",
            "modprobe m present present",
            "user gone absent None None",
        ]
    );
    let ops = declared(tasks);
    let (NodeOp::User(first), NodeOp::User(later)) = (&ops[0], &ops[2]) else { panic!("{ops:?}") };
    assert!(!first.create_home && later.create_home);
    assert_eq!((first.comment.as_deref(), later.home.as_deref()), (Some("c"), Some("/srv/u")));
}

#[test]
fn edits_of_a_file_stand_beside_each_other_where_they_mean_different_parts() {
    let words = |op: &NodeOp| match op {
        NodeOp::BlockInFile(op) => format!("block {} {}", op.path, op.block),
        NodeOp::Replace(op) => format!("replace {} {}", op.path, op.regexp),
        NodeOp::GetUrl(op) => format!("get {}", op.dest),
        other => words(other).trim_end().to_owned(),
    };
    let left = |tasks: &[&str]| {
        let tasks: String = tasks.iter().map(|task| format!("    - {task}\n")).collect();
        declared(&tasks).iter().map(words).collect::<Vec<_>>().join(", ")
    };
    let (block, line) = ("blockinfile: {path: /f, block: a}", "lineinfile: {path: /f, line: l}");
    let replace = "replace: {path: /f, regexp: r, replace: s}";
    assert_eq!(left(&[block, "blockinfile: {path: /f, block: b}"]), "block /f b");
    let marked = "blockinfile: {path: /f, block: b, marker: '# {mark} other'}";
    assert_eq!(left(&[block, marked]), "block /f a, block /f b");
    assert_eq!(left(&[block, "blockinfile: {path: /g, block: b}"]), "block /f a, block /g b");
    assert_eq!(left(&[block, line]), "block /f a, line /f l");
    assert_eq!(left(&[line, block]), "line /f l, block /f a");
    assert_eq!(left(&[block, line, replace]), "replace /f r");
    assert_eq!(left(&[replace, line]), "line /f l");
    assert_eq!(left(&[replace, block]), "block /f a");
    assert_eq!(left(&[replace, "file: {path: /f, owner: o}"]), "replace /f r, file /f None o");
    assert_eq!(left(&["file: {path: /f, owner: o}", replace]), "file /f None o, replace /f r");
    let get = "get_url: {url: 'http://h/x', dest: /f}";
    assert_eq!(left(&[get, line]), "line /f l");
    assert_eq!(left(&[line, get]), "get /f");
    // What a file of a directory is called.
    let motd = "copy: {src: motd, dest: /etc/}";
    assert_eq!(left(&[motd, "lineinfile: {path: /etc/motd, line: l}"]), "line /etc/motd l");
    assert_eq!(left(&[motd, "lineinfile: {path: /etc/other, line: l}"]).matches(", ").count(), 1);
    // A directory that goes takes along what is in it, and nothing beside it.
    let gone = "file: {path: /d/, state: absent}";
    assert_eq!(left(&["lineinfile: {path: /d/e/f, line: l}", gone]), "file /d/ Some(Absent)");
    assert_eq!(left(&["lineinfile: {path: /da, line: l}", gone]), "line /da l, file /d/ Some(Absent)");
    assert_eq!(left(&[motd, "file: {path: /etc, state: directory}"]).matches(", ").count(), 1);
}

#[test]
fn what_waits_for_an_activation_goes_with_what_is_replaced_and_with_the_activation() {
    use gpufleet_protocol::{Awaiting, Disruption, OpOutcome};
    let waiting = |tasks: &str, class: Disruption, resets: &str| {
        let text = format!("- hosts: all\n  tasks:\n{tasks}");
        let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
            let Fed::Outcome(mut outcome) = changed(action) else { panic!("{action:?}") };
            outcome.status = gpufleet_protocol::OpStatus::Ok;
            outcome.members.iter_mut().for_each(|member| *member = OpOutcome::new(outcome.status.clone()));
            if action.task == "first" {
                outcome.awaiting.push(Awaiting { activation: class, reason: "first".to_owned() });
            }
            if action.task == resets {
                outcome.activated = Some(Disruption::GpuReset);
            }
            Fed::Outcome(outcome)
        });
        matches!(story.end.state, EndState::PendingActivation { .. })
    };
    let (first, between) = ("    - {name: first, gpu_power: {limit_watts: 5}}\n", "    - debug: {}\n");
    let then =
        |watts: u32, gpus: &str| format!("{first}{between}    - gpu_power: {{limit_watts: {watts}{gpus}}}\n");
    assert!(waiting(first, Disruption::Reboot, ""));
    assert!(!waiting(&then(6, ""), Disruption::Reboot, ""), "nobody asks for it any more");
    assert!(waiting(&then(6, ", gpus: [0]"), Disruption::Reboot, ""));
    // A reset of the GPUs is not asserted again of what is no GPU's.
    let module = "    - {name: first, modprobe: {name: m}}\n    - {name: mig, gpu_mig: {mode: enabled}}\n";
    assert!(!waiting(module, Disruption::GpuReset, "mig"));
    assert!(waiting(module, Disruption::Reboot, "mig"));
    assert!(waiting(module, Disruption::GpuReset, ""));
}

#[test]
fn a_reboot_is_done_for_what_runs_from_the_next_boot_on_and_nothing_waits_without_one() {
    use gpufleet_protocol::OpOutcome;
    let kernel = "    - name: kernel\n      package: {name: kernel}\n";
    let reboots = |tasks: &str, mode: Mode| {
        let text = format!("- hosts: all\n  tasks:\n{tasks}");
        let mut reasons = Vec::new();
        let story = run(&mut cursor(&text, json!({}), mode), |action| match &action.work {
            Work::Reboot { reasons: told, .. } => {
                reasons.push(told.join(", "));
                Fed::Rebooted
            }
            _ if action.task == "kernel" && action.phase() == Phase::Declared => {
                let mut outcome = OpOutcome::new(gpufleet_protocol::OpStatus::Changed);
                outcome.for_next_boot = vec!["kernel 6".to_owned()];
                Fed::Outcome(Box::new(outcome))
            }
            _ => OpOutcomeSketch::Ok.fed(action),
        });
        assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
        reasons
    };
    for mode in [Mode::Apply, Mode::Predict] {
        assert!(reboots(kernel, mode).is_empty(), "{mode:?}");
        assert!(reboots("    - package: {name: other}\n    - reboot:\n", mode).is_empty(), "{mode:?}");
        let once = reboots(&format!("{kernel}    - reboot:\n    - reboot:\n"), mode);
        assert_eq!(once, ["kernel 6"], "{mode:?}");
        // Also of a task that declares nothing that lasts, and whose place a newer one takes.
        let upgrade = "    - {name: kernel, apt: {upgrade: dist}}\n    - reboot:\n";
        assert_eq!(reboots(upgrade, mode), ["kernel 6"], "{mode:?}");
        let newer = format!("{kernel}    - package: {{name: kernel}}\n    - reboot:\n");
        assert_eq!(reboots(&newer, mode), ["kernel 6"], "{mode:?}");
        let hidden = reboots(&format!("{kernel}      no_log: true\n    - reboot:\n"), mode);
        assert!(hidden.len() == 1 && !hidden[0].contains("kernel"), "{hidden:?}");
    }
}

#[test]
fn a_reboot_that_the_play_decides_on_is_not_left_out_in_silence() {
    let warned = |tasks: &str| {
        let text = format!("- hosts: all\n  tasks:\n{tasks}");
        let story = run(&mut cursor(&text, json!({"ask": true}), Mode::Apply), changed);
        assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
        story
            .reports
            .iter()
            .flat_map(|report| &report.warnings)
            .filter(|text| text.contains("when: always"))
            .count()
    };
    assert_eq!(warned("    - reboot:\n"), 0);
    assert_eq!(warned("    - {reboot: , when: ask}\n"), 1);
    assert_eq!(warned("    - {reboot: {when: required}, when: ask}\n"), 0);
    assert_eq!(warned("    - {command: a, notify: again}\n  handlers:\n    - {name: again, reboot: }\n"), 1);
}

/// What the operations of `gpu_keep` keep, in order, with plays one after the other.
fn kept(text: &str, skips: &[&str]) -> Vec<Vec<String>> {
    let program = program(text);
    let mut vars = HostVars::default();
    let mut kept = Vec::new();
    for play in (0..).take(program.plays.len()) {
        let (index, tags) = (PlayIndex(play), Arc::new(TagFilter::default()));
        let cursor = Cursor::new(&program, index, context(json!({})), vars, Mode::Apply, tags, files());
        let mut cursor = cursor.expect("a play");
        let story = run(&mut cursor, |action| {
            if let (Work::Node { op, .. }, Phase::Declared | Phase::Reassert) = (&action.work, action.phase())
                && let NodeOp::KeepState(asked) = &**op
            {
                let kinds = asked.members.iter().map(|member| match &member.task {
                    GpuTask::GpuPower(task) => format!("power {}", task.limit_watts.unwrap_or_default()),
                    GpuTask::GpuMig(task) => {
                        format!("mig {}", task.mode.map_or("of a file", |mode| mode.as_str()))
                    }
                    other => format!("{other:?}"),
                });
                kept.push(kinds.collect());
            }
            match action.phase() {
                Phase::Verify => OpOutcomeSketch::Ok.fed(action),
                _ if skips.iter().any(|name| *action.task == **name) => {
                    OpOutcomeSketch::Failed("no").fed(action)
                }
                _ => changed(action),
            }
        });
        vars = story.end.vars;
    }
    kept
}

#[test]
fn a_node_keeps_what_the_run_declared_of_its_gpus() {
    let text = "
- hosts: all
  keep: true
  tasks:
    - gpu_power: {limit_watts: 500}
    - sysctl: {name: a.b, value: 1}
    - gpu_mig: {mode: disabled}
      when: false
    - {name: fails, gpu_mig: {mode: enabled}, ignore_errors: true}
- hosts: all
  keep: {on_failure: hold}
  tasks:
    - gpu_mig: {mode: enabled}
    - gpu_power: {limit_watts: 400}
- hosts: all
  tasks:
    - gpu_keep: {state: absent}
";
    let told: Vec<String> = kept(text, &["fails"]).iter().map(|members| members.join(", ")).collect();
    assert_eq!(told, ["power 500", "mig enabled, power 400", ""]);
}

#[test]
fn a_node_keeps_what_the_play_declared_at_its_end() {
    let told = |text: &str, fails: &[&str]| -> Vec<String> {
        kept(text, fails).iter().map(|members| members.join(", ")).collect()
    };
    let rescued = "
- hosts: all
  tasks:
    - block:
        - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}
        - gpu_keep: {}
        - {name: smoke, command: \"false\"}
      rescue:
        - gpu_mig: {mode: disabled}
";
    assert_eq!(
        told(rescued, &["smoke"]),
        ["mig enabled", "mig disabled"],
        "what the rescue undid is not kept"
    );
    let behind = "
- hosts: all
  keep: true
  tasks:
    - {name: change, command: a, notify: limit}
    - gpu_power: {limit_watts: 500}
    - gpu_keep: {}
    - sysctl: {name: a.b, value: 1}
    - gpu_power: {limit_watts: 400}
  handlers:
    - {name: limit, gpu_mig: {mode: enabled}}
";
    assert_eq!(
        told(behind, &[]),
        ["power 500", "power 400, mig enabled", "power 400, mig enabled"],
        "tasks and handlers behind it, and then the task that `keep` adds"
    );
}

/// The driver forgets what was set before persistence came on, so that it is set again right after; only then, and only that.
#[test]
fn what_was_declared_before_persistence_comes_on_is_asserted_again() {
    let asked = |tasks: &str, answer: fn(&Action) -> Fed| {
        let text = format!("- hosts: all\n  tasks:\n{}", tasks.trim_start_matches('\n'));
        let mut again = Vec::new();
        run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
            if let (Work::Node { op, .. }, Phase::Reassert) = (&action.work, action.phase()) {
                again.push(words(op));
            }
            answer(action)
        });
        again
    };
    let tasks = "
    - gpu_power: {limit_watts: 350}
    - sysctl: {name: vm.swappiness, value: 10}
    - gpu_persistence: {mode: daemon}
    - sysctl: {name: vm.swappiness, value: 11}
    - gpu_clocks: {graphics_mhz: 1200}
";
    assert_eq!(asked(tasks, changed), ["group power"]);
    assert_eq!(asked(tasks, |action| OpOutcomeSketch::Ok.fed(action)), Vec::<String>::new(), "it was on");
}
