//! Kinds of the operating system on real machines of Debian 12 and 13: a real systemd, its files and processes, through a
//! real boot. Of what a container may not set, each kind has to say so.

use std::path::Path;
use std::time::Duration;

use gpufleet_systems_tests::{Machines, Release, unit};
use gpufleet_tests::{Document, Home};
use rustix::fs::XattrFlags;

const LIMIT: Duration = Duration::from_secs(240);
const DROP_IN: &str = "etc/systemd/system/worker.service.d/gpufleet.conf";

/// What acts on such a machine.
const ACTS: &str = "
- hosts: fleet
  rollout: {health_gate: []}
  tasks:
    - limits: {limits: [{domain: '*', item: memlock, value: unlimited}]}
    - unit_settings:
        unit: worker
        settings:
          Service: {LimitNOFILE: 4096, OOMScoreAdjust: 300, CPUAffinity: [0], MemoryHigh: 1G}
    - package_hold: {name: [openssh-server, 'libpam-*']}
    - kernel_blacklist: {name: nouveau}
    - swap: {state: off}
";
/// What Debian 13 has daemons for.
const DAEMONS: &str = "
- hosts: node2
  rollout: {health_gate: []}
  tasks:
    - tuned: {profile: throughput-performance}
";
/// What belongs to the machine's host.
const OF_THE_HOST: [(&str, &str); 8] = [
    ("sysctl: {name: vm.swappiness, value: 7}", "vm.swappiness"),
    ("thp: {enabled: madvise}", "transparent_hugepage/enabled cannot be changed"),
    ("smt: {state: 'off'}", ""),
    ("cpu_frequency: {governor: performance}", "policies"),
    ("cpu_idle: {latency_us: 10}", "pm_qos_resume_latency_us cannot be changed"),
    ("pci_settings: {devices: [nic], max_read_request: 4096}", "virtual machine or container"),
    ("disk_queue: {type: ssd, scheduler: none}", ""),
    ("irq_affinity: {devices: [nic]}", ""),
];

fn prepare(disk: &Path) {
    unit(disk, "worker", "[Service]\nExecStart=/bin/sleep infinity\n");
    let file = disk.join(DROP_IN);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(&file, "[Service]\nNice=5\n").expect("a file");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("a mode");
    std::os::unix::fs::chown(&file, Some(0), Some(4)).expect("a group");
    rustix::fs::setxattr(&file, "user.note", b"kept", XattrFlags::empty()).expect("an attribute");
}

fn ask(home: &Home, machines: &Machines, verb: &str, play: &str, code: i32) -> Document {
    home.write("play.yaml", play);
    let inventory = machines.inventory();
    let mut words = vec![verb, "play.yaml", "-i", &inventory, "--format", "json"];
    words.extend((verb == "run").then_some("--yes"));
    machines.gpufleet(home, &words).within(LIMIT).run().expect(code).document()
}

/// Plans it, runs it, and runs it again.
#[track_caller]
fn converges(home: &Home, machines: &Machines, play: &str) -> Document {
    let planned = ask(home, machines, "plan", play, 0);
    let done = ask(home, machines, "run", play, 0);
    for name in machines.names().iter().filter(|name| planned.value()["nodes"].get(name.as_str()).is_some()) {
        assert_eq!(done.state(name), "done", "{}", done.message(name));
        assert_eq!(done.stat(name, "changed"), planned.stat(name, "changed"), "{name}: {:#}", done.value());
    }
    let again = ask(home, machines, "run", play, 0);
    assert_eq!((again.total("changed"), again.total("failed")), (0, 0), "{:#}", again.value());
    done
}

/// What the kernel says of the machine's own settings.
#[track_caller]
fn is_as_declared(machines: &Machines, name: &str) {
    let process = machines.read(
        name,
        "p=$(systemctl show -P MainPID worker); grep 'Max open files' /proc/$p/limits; cat /proc/$p/oom_score_adj; \
         grep Cpus_allowed_list /proc/$p/status",
    );
    let words: Vec<&str> = process.split_whitespace().collect();
    assert_eq!(
        words,
        ["Max", "open", "files", "4096", "4096", "files", "300", "Cpus_allowed_list:", "0"],
        "{name}"
    );
    assert!(machines.read(name, "apt-mark showhold").contains("openssh-server"), "{name}");
    assert_eq!(machines.read(name, &format!("stat -c '%a %U %G' /{DROP_IN}")), "640 root adm", "{name}");
}

#[test]
fn kinds_act_once_and_their_settings_survive_a_boot() {
    let machines = Machines::start_of(&[Release::Bookworm, Release::Trixie], prepare);
    let home = Home::new();
    converges(&home, &machines, ACTS);
    for name in machines.names() {
        is_as_declared(&machines, &name);
        let mut note = [0; 16];
        let length = rustix::fs::getxattr(machines.disk(&name).join(DROP_IN), "user.note", &mut note);
        assert_eq!(length.map(|length| note[..length].to_vec()), Ok(b"kept".to_vec()), "{name}");
    }
    converges(&home, &machines, DAEMONS);
    assert_eq!(machines.read("node2", "cat /etc/tuned/active_profile"), "throughput-performance");

    ask(
        &home,
        &machines,
        "run",
        "- hosts: fleet\n  rollout: {health_gate: []}\n  tasks:\n    - reboot: {when: always}\n",
        0,
    );
    for play in [ACTS, DAEMONS] {
        let audited = ask(&home, &machines, "audit", play, 0);
        assert_eq!(audited.total("changed"), 0, "{:#}", audited.value());
    }
    for name in machines.names() {
        is_as_declared(&machines, &name);
    }
}

#[test]
fn what_is_the_hosts_is_not_applicable_with_the_reason() {
    let machines = Machines::start_of(&[Release::Bookworm, Release::Trixie], |_| {});
    let home = Home::new();
    let mut play = "- hosts: fleet\n  rollout: {health_gate: []}\n  tasks:\n".to_owned();
    for (task, _) in OF_THE_HOST {
        play += &format!("    - {task}\n");
    }
    home.write("play.yaml", &play);
    let inventory = machines.inventory();
    let shown = machines
        .gpufleet(&home, &["plan", "play.yaml", "-i", &inventory, "--node", "node1"])
        .within(LIMIT)
        .run();
    for (task, reason) in OF_THE_HOST {
        assert!(shown.stdout.contains(reason), "{task}: {shown}");
    }
    for verb in ["plan", "run"] {
        let told = ask(&home, &machines, verb, &play, 0);
        for name in machines.names() {
            assert_eq!(
                (told.stat(&name, "changed"), told.stat(&name, "failed")),
                (0, 0),
                "{:#}",
                told.value()
            );
        }
    }
}
