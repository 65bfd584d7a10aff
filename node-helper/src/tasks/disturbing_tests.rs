//! Kinds for many purposes where they name what work on the node needs.

use gpufleet_protocol::{
    Disruption, OpOutcome, OpStatus,
    message::Mode,
    tasks::{File, Modprobe, Service},
};
use serde_json::{Value, json};

use crate::{
    declare::{NodeKind, drive},
    tasks::testing::{Bench, failure},
};

const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
if [ "$1" = show ]; then
  for last; do :; done
  echo "Id=$last"; echo LoadState=loaded; echo "ActiveState=$(cat $d/active)"; echo UnitFileState=enabled
  echo Type=notify; echo Result=success; exit 0
fi
case $1 in stop) echo inactive > $d/active;; start|restart) echo active > $d/active;; esac
echo "$1 $3" >> $d/log
"#;
const MODPROBE: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho \"$@\" >> $d/log\n: > $d/proc/modules\n";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/sbin/modprobe", MODPROBE);
    bench.write("active", "active");
    bench.write("log", "");
    bench.write("proc/modules", "nvidia_uvm 16384 0 - Live 0x0\n");
    bench.write("proc/sys/kernel/osrelease", "6.1\n");
    bench
}

fn run<K: NodeKind>(bench: &Bench, task: &K, mode: Mode, allowed: Disruption) -> OpOutcome {
    bench.node(|node| drive(task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

/// Asks for a permit, shows the class in a plan, acts once it has one, and is free where it is so already.
fn waits_for_a_permit<K: NodeKind>(bench: &Bench, task: &K, class: Disruption) {
    let before = bench.snapshot();
    let planned = run(bench, task, Mode::Predict, Disruption::Live);
    assert_eq!(planned.changes.iter().map(|change| change.disruption).max(), Some(class));
    bench.forget();
    let asked = run(bench, task, Mode::Apply, Disruption::Live);
    assert_eq!(asked.status, OpStatus::NeedsPermit { class });
    assert_eq!(bench.snapshot(), before);
    assert_eq!(run(bench, task, Mode::Apply, class).status, OpStatus::Changed);
    assert_eq!(run(bench, task, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
}

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_service_that_work_needs_is_stopped_under_a_permit() {
    let bench = bench();
    let stop = service(json!({"name": "kubelet", "state": "stopped"}));
    waits_for_a_permit(&bench, &stop, Disruption::Clients);
    // The restart of a unit that does not run ends nothing.
    for free in [
        json!({"name": "docker", "state": "restarted"}),
        json!({"name": "kubelet", "state": "restarted"}),
        json!({"name": "chrony", "state": "stopped"}),
        json!({"name": "kubelet", "state": "started"}),
    ] {
        let done = run(&bench, &service(free.clone()), Mode::Apply, Disruption::Live);
        assert_eq!(done.status, OpStatus::Changed, "{free}");
    }
    bench.write("active", "active");
    let restart = service(json!({"name": "docker", "state": "restarted"}));
    let asked = run(&bench, &restart, Mode::Apply, Disruption::Live);
    assert_eq!(asked.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "its containers end");
    let down = service(json!({"name": "reboot.target", "state": "started"}));
    let refused = run(&bench, &down, Mode::Apply, Disruption::Reboot);
    assert!(failure(&refused).contains("write `reboot:`"), "{refused:?}");
}

#[test]
fn a_module_of_the_driver_is_unloaded_under_a_permit() {
    let bench = bench();
    let task: Modprobe = serde_json::from_value(json!({"name": "nvidia-uvm", "state": "absent"})).unwrap();
    waits_for_a_permit(&bench, &task, Disruption::GpuReset);
    bench.write("proc/modules", "floppy 16384 0 - Live 0x0\n");
    let task: Modprobe = serde_json::from_value(json!({"name": "floppy", "state": "absent"})).unwrap();
    assert_eq!(run(&bench, &task, Mode::Apply, Disruption::Live).status, OpStatus::Changed);
}

#[test]
fn device_files_of_gpus_are_removed_under_a_permit() {
    let bench = bench();
    bench.write("dev/nvidia0", "");
    let task: File = serde_json::from_value(json!({"path": "/dev/nvidia0", "state": "absent"})).unwrap();
    waits_for_a_permit(&bench, &task, Disruption::Clients);
}
