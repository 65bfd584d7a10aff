use std::path::PathBuf;

use gpufleet_protocol::{
    Disruption, OpOutcome, OpStatus,
    message::Mode,
    tasks::{Dcgm, FabricManager, NvidiaImex},
};
use serde_json::{Value, json};

use crate::{
    declare::{NodeKind, drive},
    tasks::testing::{Bench, changed, failure, shown},
    world::Effect,
};

/// A fake systemd that knows the units of the folder `units`, each a file with the state and whether it is enabled.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
verb=$1
shift
if [ "$verb" = show ]; then
  shift
  for unit; do
    [ "$unit" = -- ] && continue
    echo "Id=$unit"
    if [ -e "$d/units/$unit" ]; then
      read active enabled < "$d/units/$unit"
      echo LoadState=loaded; echo "ActiveState=$active"; echo "UnitFileState=$enabled"; echo Type=simple; echo MainPID=77
    else
      echo LoadState=not-found; echo ActiveState=inactive
    fi
    echo
  done
  exit 0
fi
[ "$1" = -- ] && shift
[ -e "$d/units/$1" ] || exit 1
echo "$verb $1" >> "$d/log"
read active enabled < "$d/units/$1"
case "$verb" in
start|restart) active=active; : > "$d/proc/77/stat"; rm -f "$d/proc/77/exe"; ln -s /usr/bin/daemon "$d/proc/77/exe";;
stop) active=inactive;;
enable) enabled=enabled;;
esac
echo "$active $enabled" > "$d/units/$1"
"#;
/// Installs a package: its unit, and the program in the version of the package.
const APT: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$(basename "$0")" in
dpkg-query) [ ! -e $d/db ] || cat $d/db; exit 0;;
apt-cache) cat $d/pool; exit 0;;
esac
simulate=
for word; do
  case "$word" in
  -s) simulate=1;;
  nvidia-fabricmanager-580=580.159.04-*|datacenter-gpu-manager-4-cuda13) spec=$word;;
  esac
done
name=${spec%%=*}
if [ -n "$simulate" ]; then echo "Inst $name (580.159.04-1 NVIDIA:x [amd64])"; exit 0; fi
echo "install $spec" >> $d/log
printf '%s\tamd64\tinstalled\t580.159.04-1\t\n' $name > $d/db
case "$name" in
nvidia-fabricmanager*) echo 580.159.04 > $d/fm-version; cp $d/fm $d/usr/bin/nv-fabricmanager; unit=nvidia-fabricmanager.service;;
*) unit=nvidia-dcgm.service;;
esac
mkdir -p $d/units
[ -e $d/units/$unit ] || echo "inactive disabled" > $d/units/$unit
"#;
const FM: &str =
    "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho \"Fabric Manager version is : $(cat $d/fm-version)\"\n";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    for tool in ["apt-get", "apt-cache", "dpkg-query", "dpkg"] {
        bench.script(&format!("usr/bin/{tool}"), APT);
    }
    bench.script("fm", FM);
    bench.write("pool", "nvidia-fabricmanager-580\n");
    bench.write("log", "");
    bench.write("sys/module/nvidia/version", "580.159.04\n");
    bench.write("sys/bus/pci/devices/0000:05:00.0/vendor", "0x10de\n");
    bench.write("sys/bus/pci/devices/0000:05:00.0/class", "0x068000\n");
    bench.write("dev/null", "");
    bench.write("proc/77/stat", "");
    std::os::unix::fs::symlink("/usr/bin/daemon", bench.path("proc/77/exe")).unwrap();
    bench
}

fn with_fm(version: &str, unit: &str) -> Bench {
    let bench = bench();
    bench.write("fm-version", version);
    bench.script("usr/bin/nv-fabricmanager", FM);
    bench.write("units/nvidia-fabricmanager.service", &format!("{unit}\n"));
    bench
}

fn run<D: NodeKind>(bench: &Bench, task: &D, mode: Mode, allowed: Disruption) -> OpOutcome {
    bench.node(|node| drive(task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

#[track_caller]
fn converges<D: NodeKind>(bench: &Bench, task: &D, allowed: Disruption) -> OpOutcome {
    let before = bench.snapshot();
    let predicted = run(bench, task, Mode::Predict, allowed);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    bench.forget();
    let done = run(bench, task, Mode::Apply, allowed);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    let settled = bench.snapshot();
    assert_eq!(run(bench, task, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    done
}

fn fm(value: Value) -> FabricManager {
    serde_json::from_value(value).unwrap()
}

fn dcgm(value: Value) -> Dcgm {
    serde_json::from_value(value).unwrap()
}

#[test]
fn without_a_switch_there_is_nothing_to_declare() {
    let bench = bench();
    bench.write("sys/bus/pci/devices/0000:05:00.0/class", "0x030200\n");
    let done = run(&bench, &fm(json!({"install": true})), Mode::Apply, Disruption::Live);
    assert_eq!(
        done.status,
        OpStatus::NotApplicable { reason: "there is no NVSwitch on this node".to_owned() }
    );
    // A bus that cannot be listed is no bus without a switch.
    std::fs::remove_dir_all(bench.path("sys/bus")).unwrap();
    let done = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert!(matches!(done.status, OpStatus::Unknown { .. }), "{done:?}");
}

#[test]
fn the_fabric_manager_is_enabled_and_started() {
    let bench = with_fm("580.159.04", "inactive disabled");
    let done = converges(&bench, &fm(json!({})), Disruption::Live);
    assert_eq!(
        shown(&done),
        [
            "nvidia-fabricmanager.service at boot: disabled -> enabled (live)",
            "nvidia-fabricmanager.service: stopped -> started (live)"
        ]
    );
    let stop = fm(json!({"state": "stopped"}));
    let held = run(&bench, &stop, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    converges(&bench, &stop, Disruption::Clients);
}

#[test]
fn another_version_fails_or_is_replaced() {
    let bench = with_fm("570.86.15", "active enabled");
    let done = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert_eq!(
        failure(&done),
        "the fabric manager is 570.86.15 and the driver that runs is 580.159.04: it ends at once unless they are equal; \
         `install: true` installs the right one"
    );
    let task = fm(json!({"install": true}));
    let held = run(&bench, &task, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = converges(&bench, &task, Disruption::Clients);
    assert_eq!(
        shown(&done),
        [
            "package nvidia-fabricmanager-580: nothing -> 580.159.04-1 (live)",
            "nvidia-fabricmanager.service: running in another version -> restarted (clients)"
        ]
    );
    assert!(done.warnings.is_empty(), "{done:?}");
    assert_eq!(
        bench.read("log"),
        "install nvidia-fabricmanager-580=580.159.04-*\nrestart nvidia-fabricmanager.service\n"
    );
}

#[test]
fn a_missing_one_is_installed_enabled_and_started() {
    let bench = bench();
    let without = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert!(failure(&without).contains("there is no unit `nvidia-fabricmanager.service`"), "{without:?}");
    let done = converges(&bench, &fm(json!({"install": true})), Disruption::Live);
    assert_eq!(done.changes.len(), 3);
    assert_eq!(bench.read("units/nvidia-fabricmanager.service"), "active enabled\n");
}

#[test]
fn a_process_of_a_program_that_is_gone_is_restarted() {
    let bench = with_fm("580.159.04", "active enabled");
    assert_eq!(run(&bench, &fm(json!({})), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    std::fs::remove_file(bench.path("proc/77/exe")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/nv-fabricmanager (deleted)", bench.path("proc/77/exe")).unwrap();
    let done = converges(&bench, &fm(json!({})), Disruption::Clients);
    assert_eq!(
        shown(&done),
        ["nvidia-fabricmanager.service: running in another version -> restarted (clients)"]
    );
}

#[test]
fn switches_behind_a_network_card_need_ib_umad() {
    let bench = with_fm("580.159.04", "active enabled");
    bench.write("sys/bus/pci/devices/0000:05:00.0/class", "0x030200\n");
    bench.write("sys/class/infiniband/mlx5_0/device/vpd", "\u{1}PN 1 V0 SW_MNG x");
    let done = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert!(failure(&done).contains("needs the kernel module ib_umad"), "{done:?}");
    bench.write("sys/module/ib_umad/refcnt", "0");
    let done = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert!(failure(&done).contains("`package: {name: nvlsm}` before this task"), "{done:?}");
    // An earlier task brings it.
    bench
        .overlay
        .assume([Effect::Package { name: "nvlsm".to_owned(), version: Some("2025.10.14-1".to_owned()) }]);
    assert_eq!(run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    bench.script("opt/nvidia/nvlsm/sbin/nvlsm", "#!/bin/sh\n");
    let done = run(&bench, &fm(json!({})), Mode::Apply, Disruption::Live);
    assert!(done.status == OpStatus::Ok && done.warnings[0].contains("nvlsm"), "{done:?}");
    bench.write("proc/78/stat", "78 (nvlsm) S 1 1");
    let done = run(&bench, &fm(json!({})), Mode::Apply, Disruption::Live);
    // Any person can give a process this name, so that those of the test's own account may not count.
    let counts = rustix::process::geteuid().as_raw() < 1000;
    assert_eq!((done.status, done.warnings.is_empty()), (OpStatus::Ok, counts));
    // A start brings it, and a stopped one needs none.
    std::fs::remove_file(bench.path("proc/78/stat")).unwrap();
    bench.write("units/nvidia-fabricmanager.service", "inactive enabled\n");
    let done = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert_eq!((done.status, done.warnings), (OpStatus::Changed, Vec::new()));
}

#[test]
fn dcgm_is_installed_and_runs() {
    let bench = bench();
    let done = run(&bench, &dcgm(json!({})), Mode::Predict, Disruption::Live);
    assert!(
        failure(&done).starts_with("there is no DCGM on this node: systemd knows no nvidia-dcgm.service")
    );
    let task = dcgm(json!({"install": true, "package": "datacenter-gpu-manager-4-cuda13"}));
    let done = converges(&bench, &task, Disruption::Live);
    assert_eq!(
        shown(&done),
        [
            "package datacenter-gpu-manager-4-cuda13: nothing -> 580.159.04-1 (live)",
            "nvidia-dcgm.service at boot: without a unit file -> enabled (live)",
            "nvidia-dcgm.service: nothing -> started (live)"
        ]
    );
    // The older name of the unit counts.
    let old = self::bench();
    old.write("units/dcgm.service", "inactive enabled\n");
    let done = converges(&old, &dcgm(json!({})), Disruption::Live);
    assert_eq!(shown(&done), ["dcgm.service: stopped -> started (live)"]);
}

#[test]
fn a_diagnostic_runs_every_time_and_names_what_failed() {
    let bench = bench();
    bench.write("units/nvidia-dcgm.service", "active enabled\n");
    bench.script("usr/bin/dcgmi", "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho \"$*\" >> $d/log\ncat $d/answer\n[ ! -e $d/fails ] || exit 226\n");
    let answer = |status: &str| {
        json!({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
            {"name": "memory", "results": [{"entity_id": 1, "status": status, "warnings": [{"warning": "bad row"}]}]}]}]}})
        .to_string()
    };
    bench.write("answer", &answer("Pass"));
    let quick = dcgm(json!({"diag": 1}));
    for _ in 0..2 {
        let planned = run(&bench, &quick, Mode::Predict, Disruption::Live);
        let done = run(&bench, &quick, Mode::Apply, Disruption::Live);
        assert_eq!(shown(&done), ["DCGM diagnostic: nothing -> run at level 1 (live)"]);
        assert_eq!(done.changes, planned.changes);
        assert_eq!(done.data["diag"]["tests"][0]["status"], "Pass");
    }
    assert_eq!(bench.read("log"), "diag -r 1 -j\ndiag -r 1 -j\n", "a plan runs none");
    let load = dcgm(json!({"diag": 2}));
    with_job(&bench);
    let held = run(&bench, &load, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let planned = run(&bench, &load, Mode::Predict, Disruption::Live);
    assert_eq!((in_the_way(&held), in_the_way(&planned)), (vec![JOB], vec![JOB]), "it takes the GPUs");
    bench.write("answer", &answer("Fail"));
    bench.write("fails", "");
    let done = run(&bench, &load, Mode::Apply, Disruption::Clients);
    assert_eq!(failure(&done), "dcgmi diag -r 2: failed: memory on GPU 1 (bad row)");
    bench.write("answer", "Error: unable to connect to the host engine\n");
    let done = run(&bench, &quick, Mode::Apply, Disruption::Live);
    assert_eq!(
        failure(&done),
        "dcgmi diag -r 1: exit status 226: Error: unable to connect to the host engine"
    );
    std::fs::remove_file(bench.path("fails")).unwrap();
    let done = run(&bench, &quick, Mode::Apply, Disruption::Live);
    assert!(failure(&done).contains("names no test that passed"), "{done:?}");
}

/// A process of a Slurm job on GPU 0.
fn with_job(bench: &Bench) {
    for (file, text) in [
        ("comm", "train.py\n"),
        ("cmdline", "train.py\0"),
        ("cgroup", "0::/system.slice/slurmstepd.scope/job_77/step_0\n"),
        ("status", "Uid:\t4711\t4711\n"),
    ] {
        bench.write(&format!("proc/41/{file}"), text);
    }
    std::fs::create_dir_all(bench.path("proc/41/fd")).unwrap();
    std::os::unix::fs::symlink("/dev/nvidia3", bench.path("proc/41/fd/5")).unwrap();
    // The driver's numbers are not those of the GPUs.
    for (pci, minor) in [("0000:1b:00.0", 3), ("0000:43:00.0", 0)] {
        let text = format!("Model: \t NVIDIA H100\nDevice Minor: \t {minor}\n");
        bench.write(&format!("proc/driver/nvidia/gpus/{pci}/information"), &text);
    }
}

/// What is in the way of an outcome.
fn in_the_way(outcome: &OpOutcome) -> Vec<&str> {
    outcome.blockers.iter().map(|blocker| blocker.what.as_str()).collect()
}

const JOB: &str = "process 41 (train.py, user ann) in Slurm job 77 holds GPU 0";

#[test]
fn a_plan_that_ends_cuda_jobs_names_them() {
    let bench = with_fm("580.159.04", "active enabled");
    with_job(&bench);
    let planned = run(&bench, &fm(json!({"state": "stopped"})), Mode::Predict, Disruption::Live);
    assert_eq!(in_the_way(&planned), [JOB]);
    assert!(planned.blockers[0].next.ends_with("`scancel 77`"), "{planned:?}");
    bench.forget();
    // The run asks for a permit, and says the same.
    let held = run(&bench, &fm(json!({"state": "stopped"})), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    assert_eq!(held.blockers, planned.blockers);
    // What disturbs nobody names nobody.
    bench.write("units/nvidia-fabricmanager.service", "inactive disabled\n");
    let planned = run(&bench, &fm(json!({})), Mode::Predict, Disruption::Live);
    assert_eq!((planned.status, planned.blockers), (OpStatus::Changed, Vec::new()));
}

#[test]
fn an_imex_daemon_of_another_version_than_the_driver_is_told() {
    let bench = bench();
    bench.write("units/nvidia-imex.service", "active enabled\n");
    let task: NvidiaImex = serde_json::from_value(json!({})).unwrap();
    for (version, told) in [("570.86.15", 1), ("580.159.04", 0)] {
        bench.script("usr/bin/nvidia-imex", &format!("#!/bin/sh\necho IMEX version is: {version}\n"));
        let done = run(&bench, &task, Mode::Apply, Disruption::Live);
        assert_eq!((&done.status, done.warnings.len()), (&OpStatus::Ok, told), "{done:?}");
        assert!(
            done.warnings.iter().all(|why| why.contains("install the package nvidia-imex of 580.159.04"))
        );
    }
}

#[test]
fn an_imex_daemon_that_tells_no_version_fails_nothing() {
    let bench = bench();
    bench.write("units/nvidia-imex.service", "active enabled\n");
    let run = |task: Value| {
        let task: NvidiaImex = serde_json::from_value(task).unwrap();
        run(&bench, &task, Mode::Apply, Disruption::Clients)
    };
    for script in ["echo IMEX", "echo no >&2; exit 3"] {
        bench.script("usr/bin/nvidia-imex", &format!("#!/bin/sh\n{script}\n"));
        let done = run(json!({}));
        assert_eq!(done.status, OpStatus::Ok, "{done:?}");
        let [told] = done.warnings.as_slice() else { panic!("{done:?}") };
        assert!(
            told.starts_with("the version of nvidia-imex is not known (nvidia-imex --version: ")
                && told.ends_with("580.159.04"),
            "{told}"
        );
    }
    // What is to be stopped may be of any version.
    assert_eq!(run(json!({"state": "stopped"})).warnings, Vec::<String>::new());
}

#[test]
fn the_members_of_an_imex_domain_are_read_by_a_restart() {
    let bench = bench();
    bench.write("units/nvidia-imex.service", "active enabled\n");
    bench.write("etc/nvidia-imex/nodes_config.cfg", "# ours\n10.0.0.1\n");
    let imex = |value| -> NvidiaImex { serde_json::from_value(value).unwrap() };
    assert_eq!(
        run(&bench, &imex(json!({"nodes": "10.0.0.1"})), Mode::Apply, Disruption::Live).status,
        OpStatus::Ok,
        "comments do not count"
    );
    let task = imex(json!({"nodes": ["10.0.0.1", "10.0.0.2"]}));
    let held = run(&bench, &task, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    converges(&bench, &task, Disruption::Clients);
    assert_eq!(bench.read("etc/nvidia-imex/nodes_config.cfg"), "10.0.0.1\n10.0.0.2\n");
    assert_eq!(bench.read("log"), "restart nvidia-imex.service\n");
    // A run that was cut off between the file and the restart is taken up again.
    bench.write("proc/stat", "btime 1000000000\n");
    bench.write("proc/77/stat", &format!("77 (nvidia-imex) S {}", "0 ".repeat(40)));
    let done = converges(&bench, &task, Disruption::Clients);
    assert_eq!(shown(&done), ["nvidia-imex.service: with older members -> restarted (clients)"]);
    assert_eq!(bench.read("log"), "restart nvidia-imex.service\nrestart nvidia-imex.service\n");
}
