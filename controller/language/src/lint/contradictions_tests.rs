//! Tasks that contradict each other, and tasks that only look like it.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Report, check};

fn report_of(text: &str) -> Report {
    let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
    check(&["play.yml".to_owned()], &files, &Arc::default(), &[], &Arc::default())
}

/// Returns the messages of the rule for a play with these tasks; they begin on line 4.
fn found(tasks: &[&str]) -> Vec<String> {
    let tasks: String = tasks.iter().map(|task| format!("    - {task}\n")).collect();
    found_in(&format!("- hosts: all\n  become: true\n  tasks:\n{tasks}"))
}

fn found_in(text: &str) -> Vec<String> {
    found_among(text, &[])
}

/// As [`found_in`], with other files.
fn found_among(text: &str, others: &[(&str, &str)]) -> Vec<String> {
    let files: HashMap<String, String> = [("play.yml", text)]
        .iter()
        .chain(others)
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    let report = check(&["play.yml".to_owned()], &files, &Arc::default(), &[], &Arc::default());
    assert!(report.program.is_some(), "{}", report.text(false));
    let ours = report.findings.iter().filter(|finding| finding.rule == "contradicting-tasks");
    ours.map(|finding| finding.diagnostic.message.clone()).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_second_value_of_a_setting_is_found() {
    let pair = |first: &str, second: &str| found(&[first, "debug: {msg: between}", second]);
    assert_eq!(
        pair("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.swappiness, value: '30'}"),
        ["`sysctl` contradicts an earlier task: `vm.swappiness` is 20 at play.yml:4:7, and 30 at :6:7"]
    );
    for (first, second, said) in [
        (
            "thp: {enabled: never}",
            "thp: {enabled: always}",
            "`enabled` is never at play.yml:4:7, and always at :6:7",
        ),
        (
            "thp: {khugepaged: {pages_to_scan: 10, defrag: true}}",
            "thp: {khugepaged: {pages_to_scan: 20}}",
            "`khugepaged.pages_to_scan` is 10 at",
        ),
        (
            "cpu_frequency: {governor: performance}",
            "cpu_frequency: {governor: powersave}",
            "`governor` is performance",
        ),
        ("smt: {state: 'off'}", "smt: {state: 'on'}", "`state` is off"),
        ("hugepages: {size: 2M, count: 10}", "hugepages: {size: 2M, count: 20}", "`count` of 2M is 10"),
        (
            "irq_affinity: {devices: [eth0]}",
            "irq_affinity: {devices: [eth1, eth0], cpus: 0-3}",
            "`cpus` of eth0 is local",
        ),
        (
            "irq_affinity: {devices: [eth1, eth0], cpus: 0-3}",
            "irq_affinity: {devices: [eth0], cpus: 4-7}",
            "`cpus` of eth1, eth0 is 0-3",
        ),
        (
            "network_interface: {name: [eth0, eth1], mtu: 9000}",
            "network_interface: {name: [eth1], mtu: 1500}",
            "`mtu` of eth0, eth1 is 9000 at play.yml:4:7, and 1500 at :6:7",
        ),
        (
            "disk_queue: {device: [sda, sdb], scheduler: none}",
            "disk_queue: {device: sda, scheduler: mq-deadline}",
            "`scheduler` of sda, sdb is none",
        ),
        ("gpu_clocks: {graphics_mhz: 1980}", "gpu_clocks: {graphics_mhz: 1410}", "`graphics_mhz` is 1980 at"),
        (
            "gpu_clocks: {graphics_mhz: 1980}",
            "gpu_clocks: {reset: true}",
            "`graphics_mhz` is 1980 at play.yml:4:7, and given back to the driver (`reset: true`) at :6:7",
        ),
        (
            "gpu_mig: {mode: disabled}",
            "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}, gpus: [0]}",
            "`mode` is disabled at play.yml:4:7, and enabled at :6:7",
        ),
        (
            "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}, gpus: [0]}",
            "gpu_mig: {mode: enabled, layout: {3g.40gb: 2}, gpus: [0, 1]}",
            "`layout` of GPU 0 is {1g.10gb: 7} at",
        ),
        (
            "kernel_cmdline: {add: [iommu=pt]}",
            "kernel_cmdline: {remove: [iommu]}",
            "`iommu=pt` is added at play.yml:4:7, and removed at :6:7",
        ),
        (
            "kernel_cmdline: {add: [nohz-full=1-3, quiet]}",
            "kernel_cmdline: {add: [nohz_full=1-7]}",
            "`nohz-full=1-3` is added at play.yml:4:7, and replaced by `nohz_full=1-7` at :6:7",
        ),
        (
            "kernel_cmdline: {remove: [iommu]}",
            "kernel_cmdline: {add: [iommu=pt]}",
            "`iommu=pt` is removed at play.yml:4:7, and added at :6:7",
        ),
    ] {
        let messages = pair(first, second);
        assert!(messages.len() == 1 && messages[0].contains(said), "{first} and {second}: {messages:?}");
    }
}

#[test]
fn a_group_of_gpu_tasks_is_told_that_the_node_refuses_it() {
    let text = "- hosts: all\n  become: true\n  tasks:\n    - gpu_power: {limit_watts: 600}\n    - gpu_power: {limit_watts: 500}\n";
    let report = report_of(text);
    let finding = report.findings.iter().find(|finding| finding.rule == "contradicting-tasks").unwrap();
    assert!(finding.diagnostic.notes.iter().any(|note| note.contains("the node refuses")), "{finding:?}");
}

#[test]
fn what_may_be_meant_is_left_alone() {
    let pair = |first: &str, second: &str| found(&[first, "debug: {msg: between}", second]);
    for (first, second) in [
        ("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.swappiness, value: 20}"),
        ("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.overcommit_memory, value: 1}"),
        (
            "sysctl: {name: vm.swappiness, value: '{{ x | default(1) }}'}",
            "sysctl: {name: vm.swappiness, value: 30}",
        ),
        ("service: {name: slurmd, state: stopped}", "service: {name: slurmd, state: started}"),
        ("package: {name: a, state: absent}", "package: {name: a, state: present}"),
        ("copy: {dest: /etc/x, content: a}", "file: {path: /etc/x, state: absent}"),
        ("copy: {dest: /etc/x, content: a}", "lineinfile: {path: /etc/x, line: b}"),
        ("modprobe: {name: a, state: absent}", "modprobe: {name: a, state: present}"),
        ("package_hold: {name: a, state: absent}", "package_hold: {name: a}"),
        ("gpu_drain_state: {state: drained, gpus: [0]}", "gpu_drain_state: {state: active, gpus: [0]}"),
        ("thp: {enabled: never}", "thp: {defrag: always}"),
        ("hugepages: {size: 2M, count: 10}", "hugepages: {size: 1G, count: 20}"),
        ("irq_affinity: {devices: [eth0], cpus: 0-3}", "irq_affinity: {devices: [eth1], cpus: 4-7}"),
        (
            "network_interface: {name: [eth0], mtu: 9000}",
            "network_interface: {name: [eth0], driver: mlx5_core, mtu: 1500}",
        ),
        ("disk_queue: {device: [sda], scheduler: none}", "disk_queue: {device: sdb, scheduler: mq-deadline}"),
        ("kernel_cmdline: {add: [iommu=pt]}", "kernel_cmdline: {add: [quiet], remove: [iommu=off]}"),
        ("kernel_cmdline: {add: [console=tty0]}", "kernel_cmdline: {add: [console=ttyS0]}"),
        ("kernel_cmdline: {add: [iommu=pt]}", "kernel_cmdline: {add: [iommu=noagp]}"),
        ("kernel_cmdline: {add: [iommu=pt]}", "kernel_cmdline: {remove: [iommu], add: [iommu=pt]}"),
        ("gpu_power: {limit_watts: 500, gpus: [0]}", "gpu_power: {limit_watts: 600, gpus: [1]}"),
        ("gpu_power: {limit_watts: 500, gpus: [0]}", "gpu_power: {limit_watts: 600, gpus: [H100]}"),
        ("gpu_power: {limit_watts: 500}", "gpu_power: {limit_watts: 900, scope: module}"),
        ("gpu_clocks: {graphics_mhz: 1980}", "gpu_clocks: {memory_mhz: 2619}"),
        ("gpu_reset: {when: always}", "gpu_reset: {when: required}"),
    ] {
        assert_eq!(pair(first, second), NOTHING, "{first} and {second}");
    }
}

#[test]
fn only_tasks_that_are_certain_to_run_count() {
    let (a, b) = ("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.swappiness, value: 30}");
    for key in [
        "when: x is defined",
        "loop: [1]",
        "tags: [b]",
        "run_once: true",
        "delegate_to: localhost",
        "no_log: true",
    ] {
        assert_eq!(found(&[a, &format!("{b}\n      {key}")]), NOTHING, "{key}");
    }
    assert_eq!(found(&[&format!("{a}\n      tags: [x, y]"), &format!("{b}\n      tags: [y, x]")]).len(), 1);
    assert_eq!(found(&[a, "meta: end_host\n      when: x is defined", b]), NOTHING);
    assert_eq!(
        found(&[a, &format!("block:\n        - debug: {{msg: a}}\n      rescue:\n        - {b}")]),
        NOTHING
    );
    assert_eq!(found(&[a, &format!("when: x is defined\n      block:\n        - {b}")]), NOTHING);
    assert_eq!(found(&[a, &format!("block:\n        - {b}")]).len(), 1);
    assert_eq!(found(&[a, b, a]).len(), 2, "each with the one before it");
}

#[test]
fn sections_count_in_their_order_and_handlers_and_other_plays_do_not() {
    let (a, b) = ("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.swappiness, value: 30}");
    let play = |first: &str, second: &str| {
        found_in(&format!("- hosts: all\n  become: true\n  {first}:\n    - {a}\n  {second}:\n    - {b}\n"))
    };
    assert_eq!(
        play("post_tasks", "pre_tasks"),
        ["`sysctl` contradicts an earlier task: `vm.swappiness` is 30 at play.yml:6:7, and 20 at :4:7"]
    );
    let handler = format!("- hosts: all\n  tasks:\n    - {a}\n  handlers:\n    - name: b\n      {b}\n");
    assert_eq!(found_in(&handler), NOTHING);
    let plays = format!("- hosts: a\n  tasks:\n    - {a}\n- hosts: b\n  tasks:\n    - {b}\n");
    assert_eq!(found_in(&plays), NOTHING);
}

#[test]
fn a_comment_silences_it() {
    let (a, b) = ("sysctl: {name: vm.swappiness, value: 20}", "sysctl: {name: vm.swappiness, value: 30}");
    assert_eq!(found(&[a, &format!("{b}   # noqa: contradicting-tasks")]), NOTHING);
    assert_eq!(found(&[a, &format!("name: X   # noqa: contradicting-tasks\n      {b}")]), NOTHING);
    assert_eq!(found(&[a, &format!("{b}   # noqa: no-changed-when")]).len(), 1);
}

#[test]
fn roles_come_before_tasks_and_are_named_by_their_file() {
    let play = "- hosts: all\n  become: true\n  roles: [tuned]\n  tasks:\n    - sysctl: {name: vm.swappiness, value: 30}\n";
    let role = |task: &str| {
        let files: HashMap<String, String> = [
            ("play.yml".to_owned(), play.to_owned()),
            ("roles/tuned/tasks/main.yml".to_owned(), format!("- name: X\n  {task}\n")),
            ("roles/tuned/defaults/main.yml".to_owned(), "swappiness: 20\n".to_owned()),
        ]
        .into();
        let report = check(&["play.yml".to_owned()], &files, &Arc::default(), &[], &Arc::default());
        assert!(report.program.is_some(), "{}", report.text(false));
        let ours = report.findings.iter().filter(|finding| finding.rule == "contradicting-tasks");
        ours.map(|finding| finding.diagnostic.message.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        role("sysctl: {name: vm.swappiness, value: 20}"),
        [
            "`sysctl` contradicts an earlier task: `vm.swappiness` is 20 at roles/tuned/tasks/main.yml:2:3, and 30 at play.yml:5:7"
        ]
    );
    assert_eq!(role("sysctl: {name: vm.swappiness, value: '{{ swappiness }}'}"), NOTHING);
}

#[test]
fn files_that_are_certain_to_be_included_count() {
    let play = |statement: &str| {
        format!(
            "- hosts: all\n  become: true\n  tasks:\n    - sysctl: {{name: vm.swappiness, value: 10}}\n    - {statement}\n"
        )
    };
    let file = ("more.yml", "- sysctl: {name: vm.swappiness, value: 20}\n");
    let nested = ("nested.yml", "- include_tasks: more.yml\n");
    let said =
        "`sysctl` contradicts an earlier task: `vm.swappiness` is 10 at play.yml:4:7, and 20 at more.yml:1:3";
    for statement in [
        "include_tasks: more.yml",
        "import_tasks: more.yml",
        "include_tasks: {file: more.yml}",
        "include_tasks: nested.yml",
        "block: [{include_tasks: more.yml}]",
    ] {
        assert_eq!(found_among(&play(statement), &[file, nested]), [said], "{statement}");
    }
    for statement in [
        "{include_tasks: more.yml, when: inventory_hostname == 'a'}",
        "{include_tasks: more.yml, loop: [1]}",
        "{include_tasks: more.yml, tags: more}",
        "{include_tasks: more.yml, run_once: true}",
        "include_tasks: '{{ inventory_hostname }}.yml'",
    ] {
        assert_eq!(found_among(&play(statement), &[file]), NOTHING, "{statement}");
    }
    // Twice the same is no contradiction.
    let twice = "- hosts: all\n  become: true\n  tasks:\n    - include_tasks: own.yml\n    - include_tasks: own.yml\n";
    let own = ("own.yml", "- sysctl: {name: a.b, value: 1}\n- sysctl: {name: a.c, value: 1}\n");
    assert_eq!(found_among(twice, &[own]), NOTHING);
    let after = "- hosts: all\n  become: true\n  tasks:\n    - include_tasks: more.yml\n    - sysctl: {name: vm.swappiness, value: 30}\n";
    assert_eq!(found_among(after, &[file]).len(), 1);
    let silenced = ("more.yml", "- sysctl: {name: vm.swappiness, value: 20} # noqa: contradicting-tasks\n");
    assert_eq!(found_among(&play("include_tasks: more.yml"), &[silenced]), NOTHING);
}
