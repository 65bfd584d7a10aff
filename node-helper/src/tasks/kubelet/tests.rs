use std::{path::PathBuf, time::Duration};

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, changed, failure, shown as lines, tidy},
};

/// A fake systemd with a kubelet that ends over the state of another policy, and over an unknown field, as the real one.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
k=$d/var/lib/kubelet
case "$1" in
show) [ "$2" = --property=ExecStart ] && { cat $d/start 2> /dev/null; exit 0; }; echo Id=kubelet.service; echo LoadState=loaded; s=$(cat $d/active); echo "ActiveState=$s"; echo UnitFileState=enabled; [ "$s" = active ] && echo MainPID=4711 || echo MainPID=0; echo "ActiveEnterTimestampMonotonic=$(cat $d/entered)"; exit 0;;
esac
shift
echo "$1" >> $d/log
case "$1" in
stop) echo inactive > $d/active;;
start|restart)
  want=$(cat $k/config.yaml $d/etc/kubernetes/kubelet.conf.d/*.conf 2>/dev/null | sed -n 's/^cpuManagerPolicy: //p' | tail -n 1)
  echo active > $d/active; echo $(($(cat $d/entered) + 1)) > $d/entered
  if [ -e $k/cpu_manager_state ] && ! grep -q "\"policyName\":\"${want:-none}\"" $k/cpu_manager_state; then echo failed > $d/active; fi
  if cat $k/config.yaml $d/etc/kubernetes/kubelet.conf.d/*.conf 2>/dev/null | grep -q noSuchField; then echo failed > $d/active; fi
  [ "$(cat $d/active)" = failed ] || echo "{\"policyName\":\"${want:-none}\",\"defaultCpuSet\":\"0-7\"}" > $k/cpu_manager_state;;
esac
"#;
const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\nkind: KubeletConfiguration\nmaxPods: 110\n";
const DROP_IN: &str = "etc/kubernetes/kubelet.conf.d/90-gpufleet.conf";
const STATE: &str = "var/lib/kubelet/cpu_manager_state";

fn bench(flags: &str) -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    for (path, text) in [
        ("active", "active"),
        ("entered", "7000"),
        ("log", ""),
        ("var/lib/kubelet/config.yaml", CONFIG),
        (STATE, "{\"policyName\":\"none\",\"defaultCpuSet\":\"\"}"),
        (
            "var/lib/kubelet/kubeadm-flags.env",
            "KUBELET_KUBEADM_ARGS=\"--pod-infra-container-image=x --reserved-cpus=0-1\"\n",
        ),
        ("proc/4711/stat", "4711 (kubelet) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999999999999 0\n"),
        ("proc/stat", "btime 1000000000\n"),
        ("proc/meminfo", "MemTotal:       67108864 kB\n"),
        ("proc/1/status", "Cpus_allowed_list:\t0-7\n"),
        ("sys/devices/system/cpu/online", "0-7\n"),
        ("sys/devices/system/node/online", "0-1\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node1/cpulist", "4-7\n"),
    ] {
        bench.write(path, text);
    }
    let line = format!("/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0{flags}");
    bench.write("proc/4711/cmdline", &line);
    std::fs::create_dir_all(bench.path("etc/kubernetes/kubelet.conf.d")).unwrap();
    bench
}

const FLAGS: &str = "KUBELET_KUBEADM_ARGS=\"--config-dir=/etc/kubernetes/kubelet.conf.d\"\n";
const WITH_FOLDER: &str = "--config-dir=/etc/kubernetes/kubelet.conf.d\0";

fn run(bench: &Bench, task: Value, mode: Mode, allowed: Disruption) -> OpOutcome {
    let task: Kubelet = serde_json::from_value(task).unwrap();
    bench.node(|node| drive(&task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

#[test]
fn a_driver_of_control_groups_that_the_runtime_does_not_have_is_refused() {
    let bench = bench(WITH_FOLDER);
    let dump = "[grpc]\naddress = \"/run/containerd/containerd.sock\"\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = SYSTEMD\n";
    let (dump, own) = (dump.replace("SYSTEMD", "true"), dump.replace("SYSTEMD", "false"));
    bench.write("dump", &own);
    bench.script(
        "usr/bin/containerd",
        "#!/bin/sh\nd=$(dirname \"$0\")/../..\n[ \"$1\" = --version ] && echo containerd c 1.7.24 x || cat $d/dump\n",
    );
    let before = bench.snapshot();
    // It has none set, which is cgroupfs.
    let right = json!({"settings": {"cgroupDriver": "systemd"}});
    for mode in [Mode::Predict, Mode::Apply] {
        let done = run(&bench, right.clone(), mode, Disruption::Clients);
        let why = failure(&done);
        assert!(why.contains("is systemd and that of containerd is cgroupfs"), "{why}");
        assert!(why.ends_with("nothing was changed"), "{why}");
    }
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    // One that was there before keeps no task about something else from its work, and is told.
    bench.write("dump", &dump);
    let other = json!({"settings": {"containerLogMaxSize": "100Mi"}});
    let done = run(&bench, other.clone(), Mode::Predict, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let told =
        |done: &OpOutcome| done.warnings.iter().any(|one| one.contains("that of containerd is systemd"));
    assert!(told(&done), "{done:?}");
    bench.forget();
    // What an earlier task of the play writes is read in the run.
    let written =
        Effect::Path { path: bench.path("etc/containerd/config.toml"), entry: crate::world::Entry::Absent };
    bench.overlay.assume([written]);
    assert!(!told(&run(&bench, other, Mode::Predict, Disruption::Live)));
    bench.forget();
    let held = run(&bench, right.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    assert_eq!(run(&bench, right.clone(), Mode::Apply, Disruption::Clients).status, OpStatus::Changed);
    bench.write("dump", "[grpc]\naddress = \"/run/containerd/containerd.sock\"\n");
    let unknown = run(&bench, right, Mode::Apply, Disruption::Live);
    assert_eq!(unknown.status, OpStatus::Ok, "{unknown:?}");
    assert!(
        unknown.warnings.iter().any(|one| one.contains("is not known: containerd config dump")),
        "{unknown:?}"
    );
}

#[test]
fn a_policy_changes_with_its_state_behind_a_drain() {
    let bench = bench(WITH_FOLDER);
    let task = json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}});
    let before = bench.snapshot();
    let planned = run(&bench, task.clone(), Mode::Predict, Disruption::Live);
    assert_eq!(planned.status, OpStatus::Changed, "{planned:?}");
    assert_eq!(run(&bench, task.clone(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    let held = run(&bench, task.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, task.clone(), Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &planned.changes), "{done:?}");
    assert_eq!(
        lines(&done),
        [
            "/etc/kubernetes/kubelet.conf.d/90-gpufleet.conf cpuManagerPolicy: nothing -> static (clients)",
            "/etc/kubernetes/kubelet.conf.d/90-gpufleet.conf reservedSystemCPUs: nothing -> 0-1 (clients)",
            "/var/lib/kubelet/cpu_manager_state policy: none -> absent (clients)"
        ]
    );
    assert_eq!(bench.read("log"), "stop\nstart\n");
    assert_eq!(
        bench.read(DROP_IN),
        "apiVersion: \"kubelet.config.k8s.io/v1beta1\"\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0-1\"\n"
            .replace('"', "")
            .replace("0-1", "\"0-1\"")
    );
    assert_eq!(bench.read("var/lib/kubelet/config.yaml"), CONFIG);
    assert!(bench.read(STATE).contains("static"));
    let settled = bench.snapshot();
    assert_eq!(run(&bench, task, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    assert!(tidy(&bench.path("etc/kubernetes/kubelet.conf.d")));
    // Other reserved CPUs: the state was made with the old ones.
    let other = json!({"settings": {"reservedSystemCPUs": "0-2"}});
    let held = run(&bench, other, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    // Of the topology manager there is no state; pods that run may be rejected all the same.
    let topology = json!({"settings": {"topologyManagerPolicy": "restricted"}});
    let held = run(&bench, topology.clone(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, topology, Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(bench.read("log").ends_with("restart\n"));
}

#[test]
fn what_can_end_pods_waits_for_a_drain_and_the_rest_is_live() {
    for settings in [
        json!({"topologyManagerScope": "pod"}),
        json!({"maxPods": 64}),
        json!({"systemReserved": {"cpu": "1"}}),
        json!({"kubeReserved": {"memory": "1Gi"}}),
        json!({"reservedSystemCPUs": "0-1"}),
        json!({"evictionHard": {"memory.available": "1Gi"}}),
        json!({"evictionSoft": {"memory.available": "2Gi"}}),
    ] {
        let bench = bench(WITH_FOLDER);
        let held = run(&bench, json!({"settings": settings}), Mode::Apply, Disruption::Live);
        assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "{settings}");
        assert_eq!(bench.read("log"), "");
    }
    let bench = bench(WITH_FOLDER);
    let live =
        run(&bench, json!({"settings": {"imageGCHighThresholdPercent": 80}}), Mode::Apply, Disruption::Live);
    assert_eq!((&live.status, bench.read("log").as_str()), (&OpStatus::Changed, "restart\n"), "{live:?}");
    // Which of the settings a kubelet that is older than its files missed, nobody knows.
    bench.write("proc/4711/stat", &format!("4711 (kubelet) S {}", "0 ".repeat(40)));
    let older =
        run(&bench, json!({"settings": {"imageGCHighThresholdPercent": 80}}), Mode::Apply, Disruption::Live);
    assert_eq!(older.status, OpStatus::NeedsPermit { class: Disruption::Clients });
}

#[test]
fn a_kubelet_that_a_killed_helper_left_stopped_is_started_again() {
    let bench = bench(WITH_FOLDER);
    let value = json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}});
    let task: Kubelet = serde_json::from_value(value.clone()).unwrap();
    bench.killed(&task, Disruption::Clients, "systemctl start");
    assert_eq!((bench.read("log").as_str(), bench.read("active").trim()), ("stop\n", "inactive"));
    let planned = run(&bench, value.clone(), Mode::Predict, Disruption::Live);
    assert_eq!(lines(&planned), ["kubelet.service: stopped -> started (live)"]);
    assert_eq!(run(&bench, value.clone(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    let done = run(&bench, value.clone(), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &planned.changes), "{done:?}");
    assert_eq!(bench.read("active").trim(), "active");
    // Somebody stops it later: that is not ours to end.
    bench.write("var/lib/kubelet/kubeadm-flags.env", FLAGS);
    bench.write("active", "inactive");
    assert_eq!(run(&bench, value, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
}

#[test]
fn a_kubelet_that_somebody_stopped_after_it_ran_again_stays_stopped() {
    let bench = bench(WITH_FOLDER);
    let value = json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}});
    let task: Kubelet = serde_json::from_value(value.clone()).unwrap();
    bench.killed(&task, Disruption::Clients, "systemctl start");
    // A person started it, and stopped it later.
    bench.write("entered", "9000");
    bench.write("var/lib/kubelet/kubeadm-flags.env", FLAGS);
    assert_eq!(run(&bench, value, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(bench.read("log"), "stop\n");
}

#[test]
fn the_way_back_has_time_of_its_own() {
    let bench = bench(WITH_FOLDER);
    let slow = format!("start) [ ! -e \"{}\" ] || sleep 20;;\n", bench.path(DROP_IN).display());
    bench.script(
        "usr/bin/systemctl",
        &SYSTEMCTL.replacen(
            "case \"$1\" in\nstop)",
            &format!("case \"$1\" in {slow} esac\ncase \"$1\" in\nstop)"),
            1,
        ),
    );
    let task: Kubelet = serde_json::from_value(
        json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}}),
    )
    .unwrap();
    // Long enough for a busy machine to come as far as the start.
    let done = bench.node_with(Duration::from_secs(6), &|_| {}, |node| {
        drive(&task, node, Mode::Apply, &bench.overlay, Disruption::Clients, &|_| Ok(()))
    });
    assert!(
        failure(&done).ends_with("its files have their old content again, and it runs with it"),
        "{done:?}"
    );
    assert_eq!(bench.read("active").trim(), "active");
    assert!(!bench.path(DROP_IN).exists() && bench.read(STATE).contains("none"));
}

/// A node whose kubelet runs with static CPUs and this state of them.
fn with_cpus(more: &str, state: &Value) -> Bench {
    let bench = bench(WITH_FOLDER);
    bench.write(
        "var/lib/kubelet/config.yaml",
        &format!("{CONFIG}cpuManagerPolicy: static\nreservedSystemCPUs: \"0-1\"\n{more}"),
    );
    bench.write(STATE, &state.to_string());
    bench
}

#[test]
fn the_cpus_of_a_state_are_those_of_the_node_and_no_fewer() {
    let strict = "cpuManagerPolicyOptions:\n  strict-cpu-reservation: \"true\"\n";
    let all = |default: &str, pods: Value| json!({"policyName": "static", "defaultCpuSet": default, "entries": pods, "checksum": 1});
    let task = || json!({"settings": {"cpuManagerPolicy": "static"}});
    for (more, state, why) in [
        ("", all("0-7", json!({})), None),
        ("", all("", json!({})), None),
        ("", all("0-1,4-7", json!({"pod": {"one": "2-3"}})), None),
        ("", all("0-5", json!({})), Some("it knows CPUs 0-5, and the kubelet finds 0-7")),
        (
            "",
            all("0-5", json!({"pod": {"one": "8-9"}})),
            Some("it knows CPUs 0-5,8-9, and the kubelet finds 0-7"),
        ),
        ("", all("0,2-7", json!({"pod": {"one": "1"}})), Some("it gives reserved CPUs to pods: 1")),
        (
            "",
            all("0-7", json!({"pod": {"one": "2"}})),
            Some("it gives CPUs 2 to a pod and to all others too"),
        ),
        ("", all("", json!({"pod": {"one": "2"}})), Some("it leaves no CPUs for other pods")),
        ("", all("x", json!({})), Some("its CPUs cannot be read")),
        // Older kubelets have no pods there, and newer ones may have more than is known here.
        ("", all("0-1,4-7", json!({"container": "2-3"})), None),
        ("", json!({"policyName": "static", "defaultCpuSet": "0-5", "podEntries": {"pod": "6-7"}}), None),
        (
            "",
            json!({"policyName": "static", "defaultCpuSet": "0-5,9", "podEntries": {"pod": "6-7"}}),
            Some("it knows CPUs 0-5,9, and the kubelet finds 0-7"),
        ),
        (strict, all("2-7", json!({})), None),
        (strict, all("0-7", json!({})), Some("it gives reserved CPUs to pods: 0-1")),
        (strict, all("2-6", json!({})), Some("it knows CPUs 2-6, and the kubelet finds 2-7")),
    ] {
        let bench = with_cpus(more, &state);
        let planned = run(&bench, task(), Mode::Predict, Disruption::Live);
        let changes: Vec<_> = planned.changes.iter().filter(|change| change.what().contains(STATE)).collect();
        let note = changes.first().and_then(|change| change.note.clone());
        assert_eq!(note.as_deref(), why, "{state} {planned:?}");
    }
}

#[test]
fn the_state_of_memory_has_the_pages_and_the_memory_of_the_node() {
    let file = "var/lib/kubelet/memory_manager_state";
    let pages = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    let config = format!(
        "{CONFIG}memoryManagerPolicy: Static\nkubeReserved:\n  memory: 1Gi\nreservedMemory:\n- numaNode: 0\n  limits:\n    memory: 1124Mi\n"
    );
    let memory = |total: u64, reserved: u64| json!({"total": total, "systemReserved": reserved, "allocatable": 1, "reserved": 0, "free": 1});
    let state = |first: Value, second: Value| {
        json!({"policyName": "Static", "checksum": 1, "machineState": {
            "0": {"numberOfAssignments": 0, "memoryMap": first, "cells": [0]},
            "1": {"numberOfAssignments": 0, "memoryMap": second, "cells": [1]}}})
    };
    let (all, reserved) = (32_u64 << 30, 1124_u64 << 20);
    let right = state(
        json!({"memory": memory(all, reserved), "hugepages-2Mi": memory(8 << 21, 0)}),
        json!({"memory": memory(all, 0), "hugepages-2Mi": memory(0, 0)}),
    );
    let bench = || {
        let bench = bench(WITH_FOLDER);
        bench.write("var/lib/kubelet/config.yaml", &config);
        for node in 0..2 {
            let folder = format!("sys/devices/system/node/node{node}");
            bench.write(&format!("{folder}/meminfo"), &format!("Node {node} MemTotal:       33554432 kB\n"));
            bench.write(&format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"), "0\n");
        }
        bench.write(pages, "8\n");
        bench.write(file, &right.to_string());
        bench
    };
    let task = || json!({"settings": {"memoryManagerPolicy": "Static"}});
    let why = |bench: &Bench| {
        let planned = run(bench, task(), Mode::Predict, Disruption::Live);
        let change = planned.changes.iter().find(|change| change.what().contains(file));
        change.and_then(|change| change.note.clone())
    };
    assert_eq!(why(&bench()), None);
    let more = bench();
    more.write(pages, "16\n");
    let said = "it has 16 MiB of hugepages-2Mi on NUMA node 0, and the kubelet finds 32 MiB";
    assert_eq!(why(&more).as_deref(), Some(said));
    let held = run(&more, task(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let grown = bench();
    grown.write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       67108864 kB\n");
    let said = "it has 32768 MiB of memory on NUMA node 1, and the kubelet finds 65536 MiB";
    assert_eq!(why(&grown).as_deref(), Some(said));
    let new_size = bench();
    new_size.write("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
    let said = "it has no hugepages-1Gi on NUMA node 0, which the kubelet finds";
    assert_eq!(why(&new_size).as_deref(), Some(said));
    let one = bench();
    one.write(
        file,
        &json!({"policyName": "Static", "machineState": {"0": right["machineState"]["0"]}}).to_string(),
    );
    assert_eq!(why(&one).as_deref(), Some("it has NUMA nodes 0, and the node has 0-1"));
    let reserve = bench();
    reserve.write(
        "var/lib/kubelet/config.yaml",
        &config.replace("1124Mi", "1Gi").replace("1Gi\nreserved", "924Mi\nreserved"),
    );
    let said = "it sets 1124 MiB of memory on NUMA node 0 aside, and `reservedMemory` says 1024 MiB";
    assert_eq!(why(&reserve).as_deref(), Some(said));
    let empty = bench();
    empty.write(file, "{\"policyName\":\"Static\"}");
    assert_eq!(why(&empty), None, "the kubelet fills it at its start");
}

#[test]
fn a_policy_that_a_flag_sets_is_that_of_the_state() {
    let bench = bench(&format!("{WITH_FOLDER}--cpu-manager-policy=static\0--reserved-cpus=0\0"));
    bench.write(STATE, "{\"policyName\":\"static\",\"defaultCpuSet\":\"0-7\"}");
    let planned = run(
        &bench,
        json!({"settings": {"imageGCHighThresholdPercent": 80}}),
        Mode::Predict,
        Disruption::Live,
    );
    assert_eq!(planned.changes.len(), 1, "{planned:?}");
}

#[test]
fn without_a_folder_of_drop_ins_the_configuration_file_is_merged() {
    let bench = bench("");
    let done = run(
        &bench,
        json!({"settings": {"maxPods": 64, "topologyManagerScope": "pod"}}),
        Mode::Apply,
        Disruption::Clients,
    );
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(
        bench.read("var/lib/kubelet/config.yaml"),
        CONFIG.replace("110", "64") + "topologyManagerScope: pod\n"
    );
    assert!(
        done.warnings[0].starts_with("`kubeadm upgrade node` writes /var/lib/kubelet/config.yaml anew"),
        "{done:?}"
    );
    let gone = run(&bench, json!({"remove": ["topologyManagerScope"]}), Mode::Apply, Disruption::Clients);
    assert_eq!(gone.status, OpStatus::Changed);
    assert_eq!(bench.read("var/lib/kubelet/config.yaml"), CONFIG.replace("110", "64"));
}

#[test]
fn what_would_not_start_is_refused_before_anything_is_touched() {
    let bench = bench(&format!("{WITH_FOLDER}--reserved-cpus=0-1\0"));
    bench.write("etc/kubernetes/kubelet.conf.d/95-site.conf", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 50\nevictionHard:\n  memory.available: 1Gi\n");
    let before = bench.snapshot();
    let why = |settings: Value| {
        let done = run(&bench, json!({"settings": settings}), Mode::Apply, Disruption::Clients);
        failure(&done).to_owned()
    };
    assert_eq!(
        why(json!({"reservedSystemCPUs": "0-3"})),
        "the kubelet runs with --reserved-cpus=0-1, which wins over its files; take the flag out of \
         /var/lib/kubelet/kubeadm-flags.env (kubeadm wrote it at its join) first"
    );
    assert_eq!(
        why(json!({"maxPods": 64})),
        "/etc/kubernetes/kubelet.conf.d/95-site.conf comes after /etc/kubernetes/kubelet.conf.d/90-gpufleet.conf and sets `maxPods` \
         to 50, which wins; take it out there"
    );
    let memory = why(
        json!({"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}], "kubeReserved": {"memory": "1Gi"}}),
    );
    assert!(
        memory.contains("is 1024Mi, and has to be 2048Mi") && memory.ends_with("nothing was changed"),
        "{memory}"
    );
    bench.write("etc/kubernetes/kubelet.conf.d/10-bad.conf", "maxPods: 50\n");
    assert!(why(json!({"imageGCHighThresholdPercent": 80})).contains("10-bad.conf: it has no apiVersion"));
    std::fs::remove_file(bench.path("etc/kubernetes/kubelet.conf.d/10-bad.conf")).unwrap();
    let touched = changed(&before, &bench.snapshot());
    assert!(touched.iter().all(|path| path.ends_with("kubelet.conf.d")), "{touched:?}");
}

#[test]
fn static_cpus_need_some_that_pods_do_not_get() {
    let done = run(
        &bench(WITH_FOLDER),
        json!({"settings": {"cpuManagerPolicy": "static"}}),
        Mode::Apply,
        Disruption::Clients,
    );
    assert!(failure(&done).contains("needs CPUs that pods do not get"), "{done:?}");
}

#[test]
fn a_kubelet_that_does_not_stay_up_gets_everything_back() {
    let bench = bench(WITH_FOLDER);
    bench.script("usr/bin/journalctl", "#!/bin/sh\necho 'E1122 run.go:72] \"command failed\" err=\"strict decoding error: unknown field \\\"noSuchField\\\"\"'\n");
    let task =
        json!({"settings": {"noSuchField": 1, "cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}});
    let done = run(&bench, task, Mode::Apply, Disruption::Clients);
    let why = failure(&done);
    assert!(
        why.starts_with(
            "the kubelet does not stay up: E1122 run.go:72] \"command failed\" err=\"strict decoding error"
        ),
        "{why}"
    );
    assert!(why.ends_with("; its files have their old content again, and it runs with it"), "{why}");
    assert!(!bench.path(DROP_IN).exists() && bench.read(STATE).contains("none"));
    assert_eq!(bench.read("active").trim(), "active");
}

#[test]
fn a_kubelet_that_cannot_be_stopped_keeps_its_files_untouched() {
    let bench = bench(WITH_FOLDER);
    bench.script(
        "usr/bin/systemctl",
        &SYSTEMCTL.replacen("\nstop)", "\nstop) echo 'Job failed' >&2; exit 1;;\nhalt)", 1),
    );
    let before = bench.snapshot();
    let task = json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}});
    let done = run(&bench, task, Mode::Apply, Disruption::Clients);
    assert!(failure(&done).contains("Job failed"), "{done:?}");
    assert_eq!(bench.read("active").trim(), "active");
    let touched = changed(&before, &bench.snapshot());
    let is_setting =
        |path: &PathBuf| path.ends_with("config.yaml") || path.to_string_lossy().contains("conf.d");
    assert!(!touched.iter().any(is_setting), "{touched:?}");
}

#[test]
fn a_crash_loop_over_an_old_state_is_ended() {
    let bench = bench(WITH_FOLDER);
    bench.write(
        "var/lib/kubelet/config.yaml",
        &format!("{CONFIG}cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n"),
    );
    bench.write("active", "activating");
    bench.write(
        "var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"--config-dir=/etc/kubernetes/kubelet.conf.d --v=2\"\n",
    );
    let task = json!({"settings": {"cpuManagerPolicy": "static"}});
    let done = run(&bench, task, Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(bench.read("log"), "stop\nstart\n");
    assert_eq!(bench.read("active").trim(), "active");
}

#[test]
fn flags_of_a_stopped_kubelet_are_those_of_its_unit() {
    let bench = bench(WITH_FOLDER);
    bench.write("active", "inactive");
    bench.write(
        "start",
        "ExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml \
         --config-dir=/etc/kubernetes/kubelet.conf.d ; ignore_errors=no ; pid=0 }\n",
    );
    let done = run(&bench, json!({"settings": {"maxPods": 64}}), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(bench.read(DROP_IN).contains("maxPods: 64"));
    assert_eq!(bench.read("var/lib/kubelet/config.yaml"), CONFIG);
}

#[test]
fn a_stopped_kubelet_is_not_started() {
    let bench = bench(WITH_FOLDER);
    bench.write("active", "inactive");
    bench.write(
        "var/lib/kubelet/kubeadm-flags.env",
        "KUBELET_KUBEADM_ARGS=\"--config-dir=/etc/kubernetes/kubelet.conf.d\"\n",
    );
    let task = json!({"settings": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}});
    let done = run(&bench, task, Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, ""), "{done:?}");
    assert!(!bench.path(STATE).exists());
    let never =
        run(&bench, json!({"settings": {"maxPods": 1}, "restart": "never"}), Mode::Apply, Disruption::Live);
    assert_eq!(never.status, OpStatus::Changed);
}

#[test]
fn a_file_that_the_kubelet_does_not_read_is_not_written() {
    let bench = bench("");
    let task = || json!({"settings": {"containerLogMaxSize": "100Mi"}});
    let flagged = |flags: &str| bench.write("proc/4711/cmdline", &format!("/usr/bin/kubelet\0{flags}"));
    flagged("--v=2\0");
    let before = bench.snapshot();
    for mode in [Mode::Predict, Mode::Apply] {
        let done = run(&bench, task(), mode, Disruption::Clients);
        let why = failure(&done);
        assert!(why.contains("neither --config nor --config-dir"), "{why}");
        bench.forget();
    }
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    // Drop-ins count without a file before them.
    flagged(WITH_FOLDER);
    bench.write("var/lib/kubelet/config.yaml", "maxPods: [\n");
    let done = run(&bench, task(), Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(bench.read(DROP_IN).contains("containerLogMaxSize: \"100Mi\""));
    // A shell around it may give it any flags.
    bench.write("var/lib/kubelet/config.yaml", CONFIG);
    bench.write("proc/4711/cmdline", "/bin/bash\0-c\0kubelet --config=$CONFIG\0");
    let done = run(&bench, json!({"settings": {"maxOpenFiles": 7}}), Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    // One that does not run may get its flags from elsewhere.
    bench.write("var/lib/kubelet/config.yaml", CONFIG);
    bench.write("active", "inactive");
    let done = run(&bench, task(), Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(bench.read("var/lib/kubelet/config.yaml").contains("containerLogMaxSize: \"100Mi\""));
}

#[test]
fn a_setting_of_another_release_is_told() {
    let bench = bench(WITH_FOLDER);
    let done = run(&bench, json!({"settings": {"podMaximum": 64}}), Mode::Predict, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(done.warnings.iter().any(|told| told.contains("`podMaximum` is no field")), "{done:?}");
}
