use std::{fs, os::unix::fs::symlink, path::PathBuf};

use gpufleet_protocol::{OpOutcome, OpStatus, facts::GpuFacts, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, changed, failure, shown, tidy},
};

/// A fake slurmd, systemctl and scontrol: slurmd counts the device files of gres.conf as the real one does.
const SLURMD: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1" in
-V) echo "slurm-wlm $(cat $d/version)";;
-C) echo "NodeName=gpu1 CPUs=8 Boards=1 RealMemory=64000"; echo UpTime=1;;
-G) c=$(dirname "$SLURM_CONF"); [ -e "$SLURM_CONF" ] || exit 1
  if grep -q Bogus $c/gres.conf $c/cgroup.conf; then echo "slurmd: error: Parsing error at unrecognized key: Bogus" >&2; exit 1; fi
  if grep -q '^NodeName=gpu1 AutoDetect=nvml' $c/gres.conf; then [ ! -e $d/nvml ] || cat $d/nvml >&2; fi
  grep '^NodeName=gpu1 .*Name=gpu' $c/gres.conf | while read -r line; do
    type=$(echo "$line" | sed 's/.*Type=\([^ ]*\).*/\1/'); file=$(echo "$line" | sed 's/.*File=\([^ ]*\).*/\1/')
    case "$file" in *-*) n=2;; *) n=1;; esac
    echo "slurmd-gpu1: Gres Name=gpu Type=$type Count=$n Index=0 ID=7696487 File=$file" >&2
  done;;
esac
"#;
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1" in
show) echo Id=slurmd.service; echo LoadState=loaded; echo "ActiveState=$(cat $d/active)"; echo UnitFileState=enabled; [ "$(cat $d/active)" = active ] && echo "MainPID=$(cat $d/pid)" || echo MainPID=0; exit 0;;
esac
shift
echo "$1" >> $d/log
[ "$1" != reload ] || [ ! -e $d/no-reload ] || exit 1
[ "$1" != reload ] || [ -e $d/deaf ] || echo 4712 > $d/pid
[ ! -e $d/after-restart ] || cp $d/after-restart $d/state
[ ! -e $d/fresh ] || cp $d/fresh $d/proc/4711/stat
[ ! -e $d/slow ] || [ ! -e $d/etc/slurm/gres.conf ] || sleep 20
"#;
const SCONTROL: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\ncat $d/state\n";
const IDLE: &str = "NodeName=gpu1 State=IDLE ThreadsPerCore=1\n";
const GRES: &str = "etc/slurm/gres.conf";

fn bench(gres_of_node: &str) -> Bench {
    let bench = Bench::new();
    bench.script("usr/sbin/slurmd", SLURMD);
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/bin/scontrol", SCONTROL);
    for (path, text) in [
        ("version", "22.05.8"),
        ("active", "active"),
        ("log", ""),
        ("pid", "4711"),
        ("state", IDLE),
        ("proc/4711/cmdline", "/usr/sbin/slurmd\0-D\0"),
        ("proc/4711/stat", "4711 (slurmd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999999999999 0\n"),
        ("proc/stat", "btime 1000000000\n"),
        ("proc/sys/kernel/hostname", "gpu1.cluster\n"),
        ("proc/1/status", "Cpus_allowed_list:\t0-7\n"),
        ("proc/cpuinfo", "processor\t: 0\n"),
        ("sys/devices/system/cpu/online", "0-7\n"),
        ("sys/devices/system/node/online", "0-1\n"),
    ] {
        bench.write(path, text);
    }
    for cpu in 0..8 {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        bench.write(&format!("{folder}/thread_siblings_list"), &format!("{cpu}\n"));
        bench.write(&format!("{folder}/physical_package_id"), &format!("{}\n", cpu / 4));
    }
    for (node, cpus) in [(0, "0-3"), (1, "4-7")] {
        let folder = format!("sys/devices/system/node/node{node}");
        bench.write(&format!("{folder}/cpulist"), cpus);
        bench.write(&format!("{folder}/meminfo"), "Node 0 MemTotal:       33554432 kB\n");
        bench.write(&format!("{folder}/distance"), "10 21\n");
        let address = format!("0000:{node}1:00.0");
        let device = format!("sys/devices/pci0000:{node}0/{address}");
        for (file, text) in [
            ("class", "0x030200"),
            ("vendor", "0x10de"),
            ("numa_node", &node.to_string()),
            ("local_cpulist", cpus),
        ] {
            bench.write(&format!("{device}/{file}"), text);
        }
        let link = bench.path(&format!("sys/bus/pci/devices/{address}"));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(format!("../../../devices/pci0000:{node}0/{address}"), link).unwrap();
    }
    bench.write(
        "etc/slurm/slurm.conf",
        &format!("TaskPlugin=task/cgroup,task/affinity\nGresTypes=gpu\nNodeName=gpu1 CPUs=8 RealMemory=60000 Gres={gres_of_node} # ours\nNodeName=gpu[2-8] CPUs=8\n"),
    );
    bench
}

fn gpus(count: u32, mig: bool) -> GpuSystem {
    let one = |index: u32| GpuFacts {
        index,
        minor: Some(index),
        pci: format!("0000:{index}1:00.0"),
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        mig_current: Some(mig),
        ..GpuFacts::default()
    };
    GpuSystem { state: GpuSystemState::Ok, gpus: (0..count).map(one).collect(), ..GpuSystem::default() }
}

fn run_with(bench: &Bench, task: Value, mode: Mode, allowed: Disruption, system: &GpuSystem) -> OpOutcome {
    let task: SlurmNode = serde_json::from_value(task).unwrap();
    let read = |_: &Deadline| Ok(system.clone());
    bench.node(|node| {
        drive(
            &Offering { task: &task, read: &read, changes: &|_| false },
            node,
            mode,
            &bench.overlay,
            allowed,
            &|_| Ok(()),
        )
    })
}

fn run(bench: &Bench, task: Value, mode: Mode, allowed: Disruption) -> OpOutcome {
    run_with(bench, task, mode, allowed, &gpus(2, false))
}

#[test]
fn lines_are_made_from_the_topology_and_a_second_run_changes_nothing() {
    let bench = bench("gpu:h100:2");
    let before = bench.snapshot();
    let task = json!({"constrain_devices": true});
    let planned = run(&bench, task.clone(), Mode::Predict, Disruption::Live);
    assert_eq!(planned.status, OpStatus::Changed, "{planned:?}");
    assert_eq!(run(&bench, task.clone(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    let held = run(&bench, task.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, task.clone(), Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &planned.changes), "{done:?}");
    assert_eq!(
        shown(&done),
        [
            "/etc/slurm/gres.conf GPUs: nothing -> 1 h100 near cores 0-3 (/dev/nvidia0), 1 h100 near cores 4-7 (/dev/nvidia1) (clients)",
            "/etc/slurm/cgroup.conf ConstrainDevices: nothing -> yes (live)"
        ]
    );
    assert_eq!(
        bench.read(GRES),
        "NodeName=gpu1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-3\n\
         NodeName=gpu1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia1 Cores=4-7\n"
    );
    assert_eq!(
        (bench.read("etc/slurm/cgroup.conf").as_str(), bench.read("log").as_str()),
        ("ConstrainDevices=yes\n", "restart\n")
    );
    let settled = bench.snapshot();
    let again = run(&bench, task, Mode::Apply, Disruption::Live);
    assert_eq!((again.status, again.warnings), (OpStatus::Ok, Vec::new()));
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    assert!(tidy(&bench.path("etc/slurm")));
}

#[test]
fn only_other_cores_are_live() {
    let bench = bench("gpu:h100:2");
    bench.write(GRES, "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-1] Cores=0-3\n");
    let done = run(&bench, json!({}), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, "restart\n"), "{done:?}");
}

#[test]
fn what_slurmctld_would_call_invalid_is_never_written() {
    let refused = |gres: &str, task: Value, system: &GpuSystem| {
        let bench = bench(gres);
        let before = bench.snapshot();
        let predicted = run_with(&bench, task.clone(), Mode::Predict, Disruption::Clients, system);
        let done = run_with(&bench, task, Mode::Apply, Disruption::Clients, system);
        // What cannot be read is unknown in a plan.
        assert!(
            predicted.status == done.status || matches!(predicted.status, OpStatus::Unknown { .. }),
            "{predicted:?}"
        );
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        failure(&done).to_owned()
    };
    let two = gpus(2, false);
    assert_eq!(
        refused("gpu:h100:8", json!({}), &two),
        "the node has 2 GPUs of type h100, and /etc/slurm/slurm.conf says Gres=gpu:h100:8: slurmctld would take the node out \
         (gres/gpu count reported lower than configured (2 < 8)); repair the node, or lower Gres there"
    );
    let other = refused("gpu:h200:2,nic:1", json!({}), &two);
    assert!(
        other.contains("(0 < 2)") && other.ends_with("of type h100: set `type: h200`, or change Gres there"),
        "{other}"
    );
    assert!(refused("nic:2", json!({}), &two).contains("set Gres=gpu:h100:2 there"));
    assert!(refused("gpu:2", json!({}), &gpus(2, true)).contains("slurmd has no gpu_nvml.so"));
    assert!(refused("gpu:2", json!({"autodetect": "off"}), &gpus(2, true)).contains("GPU 0 has MIG on"));
    assert!(refused("gpu:2", json!({"autodetect": "nvidia"}), &two).contains("came with 24.11"));
    let memory = refused("gpu:2", json!({"real_memory_mib": 65000}), &two);
    assert!(
        memory.starts_with("`real_memory_mib` is 65000 MiB, and `slurmd -C` finds 64000 MiB"),
        "{memory}"
    );
    assert!(refused("gpu:2", json!({"node": "gpu9"}), &two).contains("has no line for node gpu9"));
    assert!(
        refused(
            "gpu:2",
            json!({"node": "gpu3", "features": ["x"], "autodetect": "off"}),
            &GpuSystem::default()
        )
        .contains("cannot be read")
    );
}

#[test]
fn mig_is_left_to_slurmd_where_it_can() {
    let bench = bench("gpu:2");
    bench.write("usr/lib64/slurm/gpu_nvml.so", "");
    bench.write(GRES, "# by hand\nNodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-1]\n");
    let planned = run_with(&bench, json!({}), Mode::Predict, Disruption::Clients, &gpus(2, true));
    assert_eq!(
        shown(&planned),
        ["/etc/slurm/gres.conf GPUs: 2 h100 (/dev/nvidia0 to /dev/nvidia1) -> AutoDetect=nvml (clients)"]
    );
    // This slurmd finds nothing, which is known before anything is written.
    let before = bench.snapshot();
    let done = run_with(&bench, json!({}), Mode::Apply, Disruption::Clients, &gpus(2, true));
    assert_eq!(
        failure(&done),
        "slurmd finds no GPU with AutoDetect=nvml, and /etc/slurm/slurm.conf says Gres=gpu:2: repair the node"
    );
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
}

#[test]
fn types_that_slurmd_finds_are_compared_with_those_of_slurm_conf_before_anything_is_written() {
    let bench = bench("gpu:h100_3g.40gb:16");
    bench.write("usr/lib64/slurm/gpu_nvml.so", "");
    let finds = |kind: &str, count: u32| {
        let line = format!("slurmd-gpu1: Gres Name=gpu Type={kind} Count=1 Index=0 ID=7696487 (null)\n");
        bench.write("nvml", &line.repeat(count as usize));
    };
    let apply = || run_with(&bench, json!({}), Mode::Apply, Disruption::Clients, &gpus(2, true));
    finds("nvidia_h100_1g.10gb", 16);
    let before = bench.snapshot();
    let why = "slurmd finds Gres=gpu:nvidia_h100_1g.10gb:16 with AutoDetect=nvml, and /etc/slurm/slurm.conf says \
               Gres=gpu:h100_3g.40gb:16: slurmctld would take the node out (gres/gpu count reported lower than configured (0 < 16)); \
               give the GPUs the layout that slurm.conf names (`gpu_mig`), or write there what slurmd finds";
    assert_eq!(failure(&apply()), why);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    // Slurm takes a part of the type's name.
    finds("nvidia_H100_3g.40gb", 16);
    assert_eq!(apply().status, OpStatus::Changed);
    assert_eq!(apply().status, OpStatus::Ok);
    finds("nvidia_h100_3g.40gb", 18);
    assert!(apply().warnings[0].ends_with("Slurm ignores 2"), "{:?}", apply());
    // Somebody has given the GPUs another layout since: the plan says so already.
    finds("nvidia_h100_1g.10gb", 16);
    let planned = run_with(&bench, json!({}), Mode::Predict, Disruption::Clients, &gpus(2, true));
    assert_eq!(failure(&planned), why);
    bench.write("nvml", "slurmd-gpu1: error: NVML: Driver/library version mismatch\n");
    let unknown = "whether slurmd finds what /etc/slurm/slurm.conf says is not known: slurmd -G: NVML: Driver/library version mismatch";
    let planned = run_with(&bench, json!({}), Mode::Predict, Disruption::Clients, &gpus(2, true));
    assert_eq!(planned.status, OpStatus::Unknown { reason: unknown.to_owned() });
    assert_eq!(failure(&apply()), unknown);
    finds("nvidia_h100_1g.10gb", 16);
    bench.write("etc/slurm/slurm.conf", "NodeName=gpu1 CPUs=8\n");
    assert!(failure(&apply()).contains("set Gres=gpu:nvidia_h100_1g.10gb:16 there"), "{:?}", apply());
}

#[test]
fn what_slurmd_will_find_after_earlier_tasks_is_known_only_in_the_run() {
    let with = |gres: &str| {
        let bench = bench("gpu:h100_3g.40gb:16");
        bench.write("usr/lib64/slurm/gpu_nvml.so", "");
        bench.write(GRES, gres);
        let line = "slurmd-gpu1: Gres Name=gpu Type=nvidia_h100_1g.10gb Count=1 Index=0 ID=7696487 (null)\n";
        bench.write("nvml", &line.repeat(16));
        bench
    };
    let found = "NodeName=gpu1 AutoDetect=nvml\n";
    let predict = |bench: &Bench, task: Value, moves: bool| {
        let task: SlurmNode = serde_json::from_value(task).unwrap();
        let read = |_: &Deadline| Ok(gpus(2, true));
        let changes = |_: &Deadline| moves;
        bench.node(|node| {
            let offering = Offering { task: &task, read: &read, changes: &changes };
            drive(&offering, node, Mode::Predict, &bench.overlay, Disruption::Live, &|_| Ok(()))
        })
    };
    let open = |outcome: &OpOutcome, why: &str| {
        assert_eq!((&outcome.status, outcome.changes.len()), (&OpStatus::Ok, 0), "{outcome:?}");
        let said = "whether slurmd finds what /etc/slurm/slurm.conf says is known only in the run, because an earlier task ";
        assert_eq!(outcome.warnings, [format!("{said}{why}")]);
    };
    // `gpu_mig` gives the GPUs the layout that slurm.conf names.
    let bench = with(found);
    assert!(failure(&predict(&bench, json!({}), false)).contains("(0 < 16)"));
    open(&predict(&bench, json!({"autodetect": "nvml"}), true), "changes the layout of the GPUs");
    // It may turn MIG off as well, and then they are to have lines.
    for task in [json!({}), json!({"autodetect": "off"})] {
        let planned = predict(&bench, task, true);
        assert_eq!(planned.status, OpStatus::Possible, "{planned:?}");
        assert_eq!(planned.changes[0].certainty, gpufleet_protocol::Certainty::Possible);
        assert_eq!(
            shown(&planned),
            ["/etc/slurm/gres.conf GPUs: AutoDetect=nvml -> as the GPUs are in the run (clients)"]
        );
    }
    let bench = with(found);
    bench.node(|node| bench.overlay.activate(Disruption::Reboot, node.roots));
    open(&predict(&bench, json!({}), false), "reboots the node");
    // `copy` brings a slurm.conf for what slurmd finds.
    let bench = with("NodeName=gpu1 Name=gpu File=/dev/nvidia[0-1]\n");
    let owned = crate::world::Owned { uid: 0, gid: 0, mode: 0o644 };
    let content = crate::world::Content::Known(found.as_bytes().into());
    let entry = crate::world::Entry::File { owned, content };
    bench.overlay.assume([Effect::Path { path: bench.path(GRES), entry }]);
    open(&predict(&bench, json!({}), false), "changes files of Slurm");
}

#[test]
fn the_line_of_the_node_alone_is_written() {
    let bench = bench("gpu:2");
    bench.write(GRES, "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-3\nNodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia1 Cores=4-7\n");
    let task = json!({"features": ["h100", "ib"], "real_memory_mib": 63000});
    let done = run(&bench, task.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(
        bench.read("etc/slurm/slurm.conf").contains("\nNodeName=gpu1 CPUs=8 RealMemory=63000 Gres=gpu:2 Features=h100,ib # ours\nNodeName=gpu[2-8] CPUs=8\n"),
        "{}",
        bench.read("etc/slurm/slurm.conf")
    );
    assert!(done.warnings[0].starts_with("slurmctld reads its own slurm.conf"), "{done:?}");
    assert_eq!(run(&bench, task, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    bench.write("etc/slurm/slurm.conf", "NodeName=gpu[1-8] Gres=gpu:2\n");
    let done = run(&bench, json!({"features": ["x"]}), Mode::Apply, Disruption::Live);
    assert_eq!(
        failure(&done),
        "line 1 of /etc/slurm/slurm.conf is that of gpu[1-8], and only you can tell whether Features=x holds for all of them: write \
         it into that line in slurmctld's slurm.conf and in that of every node, or give gpu1 a line of its own there, and \
         then type `scontrol reconfigure`:\nNodeName=gpu[2-8] Gres=gpu:2\nNodeName=gpu1 Gres=gpu:2 Features=x"
    );
    bench.write("etc/slurm/slurm.conf", "NodeName=gpu[1-8] NodeAddr=10.0.0.[1-8] Gres=gpu:2\n");
    let done = run(&bench, json!({"features": ["x"]}), Mode::Apply, Disruption::Live);
    assert!(failure(&done).ends_with("`NodeName=gpu1 Features=x ...`, and gpu[1-8] without it"), "{done:?}");
    // What the line of several nodes says already is fine.
    bench.write("etc/slurm/slurm.conf", "NodeName=gpu[1-8] RealMemory=60000 Features=x Gres=gpu:2\n");
    let done = run(&bench, json!({"features": ["x"], "real_memory": "auto"}), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Ok, "{done:?}");
    assert!(done.warnings[0].contains("GresTypes in /etc/slurm/slurm.conf lacks gpu"), "{done:?}");
    bench.write("etc/slurm/slurm.conf", "NodeName=gpu[1-8] RealMemory=65000 Gres=gpu:2\n");
    let done = run(&bench, json!({"real_memory": "auto"}), Mode::Apply, Disruption::Live);
    assert!(failure(&done).contains("whether RealMemory=62464 holds"), "{done:?}");
}

/// A slurmd that starts anew at SIGHUP is not stopped for what it can read so; one that does not, and what is not known, is.
#[test]
fn small_changes_are_read_anew_where_slurmd_can() {
    let limits = json!({"constrain_cores": true});
    let ready = |version: &str, line: &str| {
        let bench = bench("gpu:2");
        run(&bench, json!({}), Mode::Apply, Disruption::Clients);
        bench.write("version", version);
        for pid in ["4711", "4712"] {
            bench.write(&format!("proc/{pid}/cmdline"), line);
            bench.write(&format!("proc/{pid}/stat"), &bench.read("proc/4711/stat"));
        }
        bench.write("log", "");
        bench
    };
    let new = ready("24.05.4", "/usr/sbin/slurmd\0--systemd\0");
    let done = run(&new, limits.clone(), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, new.read("log").as_str()), (&OpStatus::Changed, "reload\n"), "{done:?}");
    let settled = new.snapshot();
    assert_eq!(run(&new, limits.clone(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &new.snapshot()), Vec::<PathBuf>::new());
    // Other GPUs are told at a start.
    new.write("log", "");
    let typed = run(&new, json!({"type": "h200"}), Mode::Apply, Disruption::Clients);
    assert_eq!(new.read("log"), "restart\n", "{typed:?}");
    for (version, line) in [
        ("24.05.4", "/usr/sbin/slurmd\0-D\0"),
        ("23.02.7", "/usr/sbin/slurmd\0--systemd\0"),
        ("unknown", "/usr/sbin/slurmd\0--systemd\0"),
    ] {
        let bench = ready(version, line);
        run(&bench, limits.clone(), Mode::Apply, Disruption::Live);
        assert_eq!(bench.read("log"), "restart\n", "{version} {line}");
    }
    // A unit without a reload is restarted.
    let old = ready("24.05.4", "/usr/sbin/slurmd\0--systemd\0");
    old.write("no-reload", "");
    let done = run(&old, limits.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(
        (&done.status, old.read("log").as_str()),
        (&OpStatus::Changed, "reload\nrestart\n"),
        "{done:?}"
    );
    // One that waits for its work is not killed: its successor would hold the port.
    let deaf = ready("24.05.4", "/usr/sbin/slurmd\0--systemd\0");
    deaf.write("deaf", "");
    let cgroup = deaf.path("etc/slurm/cgroup.conf");
    let before = fs::read_to_string(&cgroup).ok();
    let task: SlurmNode = serde_json::from_value(limits).unwrap();
    let system = gpus(2, false);
    let read = |_: &Deadline| Ok(system.clone());
    let done = deaf.node_with(std::time::Duration::from_secs(6), &|_| {}, |node| {
        let offering = Offering { task: &task, read: &read, changes: &|_| false };
        drive(&offering, node, Mode::Apply, &deaf.overlay, Disruption::Live, &|_| Ok(()))
    });
    let why = failure(&done);
    assert!(
        why.contains("no new slurmd took over") && why.ends_with("have their old content again"),
        "{why}"
    );
    assert_eq!((deaf.read("log").as_str(), fs::read_to_string(&cgroup).ok()), ("reload\n", before));
}

#[test]
fn memory_is_set_by_what_slurmd_finds() {
    let bench = bench("gpu:2");
    run(&bench, json!({}), Mode::Apply, Disruption::Clients);
    let task = json!({"real_memory": "auto"});
    let done = run(&bench, task.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(shown(&done), ["/etc/slurm/slurm.conf RealMemory: 60000 -> 62464 (live)"]);
    assert!(bench.read("etc/slurm/slurm.conf").contains("NodeName=gpu1 CPUs=8 RealMemory=62464 Gres=gpu:2"));
    let settled = bench.snapshot();
    let again = run(&bench, task, Mode::Apply, Disruption::Live);
    assert_eq!((again.status, again.warnings), (OpStatus::Ok, Vec::new()));
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
}

#[test]
fn an_invalid_registration_is_told_and_never_resumed() {
    let bench = bench("gpu:2");
    bench.write("state", "NodeName=gpu1 State=IDLE+DRAIN+INVALID_REG X=1 Reason=gres/gpu count reported lower than configured (1 < 2) [slurm@2026-11-22T10:00:00]\n");
    bench.write("after-restart", "NodeName=gpu1 State=IDLE+DRAIN X=1 Reason=gres/gpu count reported lower than configured (1 < 2) [slurm@2026-11-22T10:00:00]\n");
    let done = run(&bench, json!({}), Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        done.warnings,
        [
            "slurmctld calls the registration of node gpu1 invalid (gres/gpu count reported lower than configured (1 < 2)): that clears \
          once slurmd has registered; the drain and its reason stay, and nobody but you ends them: `scontrol update nodename=gpu1 \
          state=resume`"
        ]
    );
    assert_eq!(done.data["drained"], "gres/gpu count reported lower than configured (1 < 2)");
    assert_eq!(bench.read("log"), "restart\n", "nothing else was asked of anybody");
}

#[test]
fn files_that_slurmd_refuses_are_never_written() {
    let bench = bench("gpu:2");
    bench.write("etc/slurm/cgroup.conf", "Bogus=1\n");
    let before = bench.snapshot();
    let done = run(&bench, json!({"constrain_cores": true}), Mode::Apply, Disruption::Clients);
    assert_eq!(failure(&done), "slurmd -G: Parsing error at unrecognized key: Bogus; nothing was written");
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
}

#[test]
fn a_slurmd_that_is_older_than_its_files_is_restarted_with_a_drain() {
    let bench = bench("gpu:2");
    run(&bench, json!({}), Mode::Apply, Disruption::Clients);
    bench.write("log", "");
    bench.write("proc/4711/stat", &format!("4711 (slurmd) S {}", "0 ".repeat(40)));
    let held = run(&bench, json!({}), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "{held:?}");
    assert_eq!(shown(&held), ["slurmd.service settings: older than its files -> as in its files (clients)"]);
    let never = run(&bench, json!({"restart": "never"}), Mode::Apply, Disruption::Live);
    assert_eq!((never.status, never.warnings.len()), (OpStatus::Ok, 1));
}

#[test]
fn a_run_that_was_killed_before_the_restart_is_taken_up_again() {
    let bench = bench("gpu:2");
    run(&bench, json!({}), Mode::Apply, Disruption::Clients);
    bench.write("log", "");
    let given = json!({"features": ["h100"]});
    let task: SlurmNode = serde_json::from_value(given.clone()).unwrap();
    let system = gpus(2, false);
    let read = |_: &Deadline| Ok(system.clone());
    bench.killed(
        &Offering { task: &task, read: &read, changes: &|_| false },
        Disruption::Live,
        "restarting slurmd",
    );
    assert!(bench.read("etc/slurm/slurm.conf").contains("Features=h100"));
    assert_eq!(bench.read("log"), "");
    let done = run(&bench, given.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(shown(&done), ["slurmd.service settings: older than its files -> as in its files (live)"]);
    assert_eq!(bench.read("log"), "restart\n");
    assert_eq!(run(&bench, given, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
}

#[test]
fn files_that_slurmd_has_not_read_need_a_drain_beside_a_live_change_too() {
    let given = json!({"features": ["h100"]});
    let waits = |bench: &Bench| {
        let before = bench.snapshot();
        let held = run(bench, given.clone(), Mode::Apply, Disruption::Live);
        assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "{held:?}");
        assert_eq!(
            shown(&held),
            [
                "/etc/slurm/slurm.conf Features: nothing -> h100 (live)",
                "slurmd.service settings: older than its files -> as in its files (clients)"
            ]
        );
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        let never = json!({"features": ["h100"], "restart": "never"});
        let planned = run(bench, never, Mode::Predict, Disruption::Live);
        assert_eq!(shown(&planned), ["/etc/slurm/slurm.conf Features: nothing -> h100 (live)"]);
        let done = run(bench, given.clone(), Mode::Apply, Disruption::Clients);
        assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, "restart\n"), "{done:?}");
    };
    // A run was killed after it wrote the lines of the GPUs.
    let bench = self::bench("gpu:2");
    let task: SlurmNode = serde_json::from_value(json!({})).unwrap();
    let system = gpus(2, false);
    let read = |_: &Deadline| Ok(system.clone());
    bench.killed(
        &Offering { task: &task, read: &read, changes: &|_| false },
        Disruption::Clients,
        "restarting slurmd",
    );
    waits(&bench);
    // Somebody has mended gres.conf since the start of slurmd.
    let bench = self::bench("gpu:2");
    run(&bench, json!({}), Mode::Apply, Disruption::Clients);
    bench.write("log", "");
    bench.write("fresh", &bench.read("proc/4711/stat"));
    bench.write("proc/4711/stat", &format!("4711 (slurmd) S {}", "0 ".repeat(40)));
    waits(&bench);
}

#[test]
fn files_from_slurmctld_are_refused() {
    let bench = bench("gpu:2");
    bench.write("proc/4711/cmdline", "/usr/sbin/slurmd\0-D\0--conf-server\0ctl:6817\0");
    assert!(failure(&run(&bench, json!({}), Mode::Apply, Disruption::Clients)).contains("(configless)"));
    bench.write("proc/4711/cmdline", "/usr/sbin/slurmd\0-D\0");
    fs::remove_file(bench.path("etc/slurm/slurm.conf")).unwrap();
    assert!(failure(&run(&bench, json!({}), Mode::Apply, Disruption::Clients)).contains("(configless)"));
}

#[test]
fn a_node_without_gpus_has_nothing_to_find() {
    let without = |gres: Option<&str>| {
        let bench = bench("nic:1");
        fs::remove_dir_all(bench.path("sys/bus/pci/devices")).unwrap();
        fs::create_dir_all(bench.path("sys/bus/pci/devices")).unwrap();
        bench.write("usr/lib64/slurm/gpu_nvml.so", "");
        if let Some(gres) = gres {
            bench.write(GRES, gres);
        }
        bench
    };
    for gres in [None, Some("AutoDetect=nvml\n"), Some("NodeName=gpu1 AutoDetect=nvml\n")] {
        for task in [json!({}), json!({"autodetect": "nvml"})] {
            let bench = without(gres);
            let before = bench.snapshot();
            let done = run_with(&bench, task, Mode::Apply, Disruption::Clients, &GpuSystem::default());
            assert_eq!(done.status, OpStatus::Ok, "{gres:?} {done:?}");
            assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        }
    }
    // GPUs of lines that are gone with them.
    let bench = without(Some("AutoDetect=nvml\nNodeName=gpu1 Name=gpu File=/dev/nvidia0\n"));
    let apply = || run_with(&bench, json!({}), Mode::Apply, Disruption::Clients, &GpuSystem::default());
    assert_eq!((apply().status, apply().status), (OpStatus::Changed, OpStatus::Ok));
}

#[test]
fn a_file_that_cannot_be_written_takes_the_others_back() {
    let bench = bench("gpu:2");
    // Nothing can be written beside it.
    symlink("/proc/version", bench.path("etc/slurm/cgroup.conf")).unwrap();
    let done = run(&bench, json!({"constrain_cores": true}), Mode::Apply, Disruption::Clients);
    assert!(failure(&done).contains("the files have their old content again"), "{done:?}");
    assert!(!bench.path(GRES).exists());
}

#[test]
fn the_way_back_has_time_of_its_own() {
    let bench = bench("gpu:2");
    bench.write("slow", "");
    let task: SlurmNode = serde_json::from_value(json!({})).unwrap();
    let system = gpus(2, false);
    let read = |_: &Deadline| Ok(system.clone());
    // Long enough for a busy machine to come as far as the restart.
    let done = bench.node_with(std::time::Duration::from_secs(6), &|_| {}, |node| {
        drive(
            &Offering { task: &task, read: &read, changes: &|_| false },
            node,
            Mode::Apply,
            &bench.overlay,
            Disruption::Clients,
            &|_| Ok(()),
        )
    });
    let why = failure(&done);
    assert!(why.ends_with("the files have their old content again, and slurmd runs with it"), "{why}");
    assert_eq!((bench.read("log").as_str(), bench.path(GRES).exists()), ("restart\nrestart\n", false));
}

/// What slurmctld says, with a start of slurmd.
fn said(state: &str, start: &str) -> String {
    format!(
        "NodeName=gpu1 State={state} SlurmdStartTime={start} X=1 Reason=why [slurm@2026-11-22T10:00:00]\n"
    )
}

#[test]
fn an_answer_from_before_the_restart_is_none() {
    let (old, new) = ("2026-11-22T10:00:00", "2026-11-22T11:00:00");
    let after = |before: String, after: Option<String>| {
        let bench = bench("gpu:2");
        bench.write("state", &before);
        if let Some(after) = after {
            bench.write("after-restart", &after);
        }
        let done = run(&bench, json!({}), Mode::Apply, Disruption::Clients);
        (done, bench.path(GRES).exists())
    };
    let (never, there) = after(said("IDLE", old), None);
    assert!(failure(&never).starts_with("slurmctld has not heard of slurmd since its restart"), "{never:?}");
    assert!(!there);
    let (silent, _) = after(said("IDLE", old), Some(said("IDLE*", old)));
    assert!(failure(&silent).starts_with("slurmctld has not heard"), "{silent:?}");
    let (down, there) = after(said("IDLE", old), Some(said("DOWN", new)));
    assert!(
        failure(&down).starts_with("slurmctld calls node gpu1 down since the restart of slurmd: why"),
        "{down:?}"
    );
    assert!(!there);
    let (invalid, _) = after(said("IDLE", old), Some(said("IDLE+INVALID_REG", new)));
    assert!(failure(&invalid).contains("invalid: why"), "{invalid:?}");
    let (fine, _) = after(said("IDLE", old), Some(said("MIXED", new)));
    assert_eq!(fine.status, OpStatus::Changed, "{fine:?}");
    // Somebody has set it down before: that is theirs to end.
    let (theirs, _) = after(said("DOWN", old), Some(said("DOWN", new)));
    assert_eq!((&theirs.status, &theirs.data["down"]), (&OpStatus::Changed, &json!("why")), "{theirs:?}");
    let (first, _) = after(said("DOWN*", "None"), Some(said("IDLE", new)));
    assert_eq!(first.status, OpStatus::Changed, "{first:?}");
}
