use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, failure, shown},
};

/// A systemd with one service: what its process has is made at a restart from the drop-in that was read before it.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
drop_ins=$(echo $d/etc/systemd/system/slurmd.service.d/*.conf)
case "$1" in
show)
  for last; do :; done
  if [ "$last" != slurmd.service ]; then echo "Id=$last"; echo LoadState=not-found; echo ActiveState=inactive; exit 0; fi
  echo Id=slurmd.service; echo Names=slurmd.service; echo "LoadState=$(cat $d/load)"; echo "ActiveState=$(cat $d/active)"
  echo NeedDaemonReload=no; echo "FragmentPath=/usr/lib/systemd/system/slurmd.service"
  echo "DropInPaths=$(cat $d/loaded)"; echo MainPID=700; echo ControlGroup=/system.slice/slurmd.service; exit 0;;
list-unit-files) echo 'slurmd.service enabled enabled'; exit 0;;
esac
for last; do :; done
echo "$1" >> $d/log
case "$1" in
daemon-reload) echo "$drop_ins" > $d/loaded; cat $drop_ins > $d/read 2>/dev/null || : > $d/read;;
restart)
  if grep -q 'Nice=7' $d/read; then echo 'Job for slurmd.service failed.' >&2; exit 1; fi
  [ -e $d/deaf ] && exit 0
  memlock=$(sed -n 's/^LimitMEMLOCK=//p' $d/read | tail -1)
  [ "$memlock" = infinity ] && memlock=unlimited
  $d/usr/bin/have "${memlock:-8388608}" "$(sed -n 's/^CPUAffinity=//p' $d/read | tail -1)" "$(sed -n 's/^OOMScoreAdjust=//p' $d/read)" 9999999;;
esac
"#;

/// Writes what the process of the service has: locked memory, CPUs, score, and the tick of its start.
const HAVE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
p=$d/proc/700; mkdir -p $p
printf 'Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         8388608              %s              bytes     \n' "$1" > $p/limits
printf 'Name:\tslurmd\nCpus_allowed_list:\t%s\n' "${2:-0-31}" > $p/status
echo "${3:-0}" > $p/oom_score_adj
echo "700 (a b) x) S 1 700 700 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 $4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 0 0 0 0 0" > $p/stat
"#;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/bin/have", HAVE);
    for (name, value) in [("load", "loaded"), ("active", "active"), ("loaded", ""), ("read", ""), ("log", "")]
    {
        bench.write(name, value);
    }
    bench.write(
        "usr/lib/systemd/system/slurmd.service",
        "[Service]\nExecStart=/usr/sbin/slurmd\nLimitMEMLOCK=8M\n",
    );
    bench.write("sys/devices/system/cpu/online", "0-31\n");
    // The node booted long ago, and the process a moment after it.
    let ago = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() - 90_000;
    bench.write("proc/stat", &format!("btime {ago}\n"));
    have(&bench, &["8388608", "", "", "100"]);
    bench
}

fn have(bench: &Bench, arguments: &[&str]) {
    let done = std::process::Command::new(bench.path("usr/bin/have")).args(arguments).status().unwrap();
    assert!(done.success());
}

fn task(value: Value) -> UnitSettings {
    let task: UnitSettings = serde_json::from_value(value).unwrap();
    gpufleet_protocol::tasks::Kind::check(&task).unwrap();
    task
}

fn run(bench: &Bench, task: &UnitSettings, mode: Mode, allowed: Disruption) -> OpOutcome {
    bench.node(|node| drive(task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

const DROP_IN: &str = "etc/systemd/system/slurmd.service.d/gpufleet.conf";

fn memlock() -> UnitSettings {
    task(
        json!({"unit": "slurmd", "settings": {"Service": {"LimitMEMLOCK": "infinity", "CPUAffinity": ["0-15"]}},
                "reset": "CPUAffinity"}),
    )
}

#[test]
fn the_process_is_judged_and_restarted_behind_a_drain() {
    let bench = bench();
    let before = bench.snapshot();
    let predicted = run(&bench, &memlock(), Mode::Predict, Disruption::Live);
    assert_eq!(
        shown(&predicted),
        [
            "/etc/systemd/system/slurmd.service.d/gpufleet.conf Service.CPUAffinity: nothing -> (emptied), 0-15 (live)",
            "/etc/systemd/system/slurmd.service.d/gpufleet.conf Service.LimitMEMLOCK: nothing -> infinity (live)",
            "slurmd.service Service.LimitMEMLOCK: 8388608 -> infinity (clients)",
            "slurmd.service Service.CPUAffinity: 0-31 -> 0-15 (clients)",
        ]
    );
    assert_eq!(run(&bench, &memlock(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, &memlock(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    assert_eq!(bench.snapshot(), before);
    let refused = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, &memlock(), Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(bench.read("log"), "daemon-reload\nrestart\n");
    assert_eq!(
        bench.read(DROP_IN),
        "# Written by gpufleet: `unit_settings`.\n[Service]\nLimitMEMLOCK=infinity\nCPUAffinity=\nCPUAffinity=0-15\n"
    );
    assert_eq!(done.data["in_force"], json!(["Service.CPUAffinity", "Service.LimitMEMLOCK"]));
    let settled = bench.snapshot();
    assert_eq!(run(&bench, &memlock(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(bench.snapshot(), settled);
}

#[test]
fn what_a_crash_left_is_repaired() {
    let bench = bench();
    // After the write: systemd has not read it, and the process is older.
    bench.write(DROP_IN, &text::drop_in(&memlock().entries()));
    let repaired = run(&bench, &memlock(), Mode::Apply, Disruption::Clients);
    assert_eq!(repaired.status, OpStatus::Changed, "{repaired:?}");
    assert_eq!(bench.read("log"), "daemon-reload\nrestart\n");
    // After the reload: only the restart is left.
    bench.write("log", "");
    have(&bench, &["8388608", "", "", "100"]);
    let repaired = run(&bench, &memlock(), Mode::Apply, Disruption::Clients);
    assert_eq!((repaired.changes.len(), bench.read("log").as_str()), (2, "restart\n"), "{repaired:?}");
}

#[test]
fn without_a_restart_it_waits_for_the_next_start() {
    let bench = bench();
    let never = UnitSettings { restart: DaemonRestart::Never, ..memlock() };
    let done = run(&bench, &never, Mode::Apply, Disruption::Live);
    assert_eq!((done.status, done.changes.len()), (OpStatus::Changed, 2));
    assert_eq!(done.warnings, ["slurmd.service takes it at its next start"]);
    let again = run(&bench, &never, Mode::Apply, Disruption::Live);
    assert_eq!((again.status, again.warnings.len()), (OpStatus::Ok, 1));
    bench.write("active", "inactive");
    let stopped = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!((stopped.status, stopped.warnings), (OpStatus::Ok, Vec::new()));
}

#[test]
fn a_process_that_does_not_get_them_is_told_and_not_restarted_again() {
    let bench = bench();
    bench.write("deaf", "");
    have(&bench, &["8388608", "", "", "9999999"]);
    let failed = run(&bench, &memlock(), Mode::Apply, Disruption::Clients);
    assert!(failure(&failed).contains("Service.LimitMEMLOCK is 8388608: a container"), "{failed:?}");
    bench.write("log", "");
    let again = run(&bench, &memlock(), Mode::Apply, Disruption::Clients);
    assert!(failure(&again).contains("was started after its settings were written"), "{again:?}");
    assert_eq!(bench.read("log"), "");
    // Bounded by the control group is in force.
    have(&bench, &["unlimited", "0-7", "", "9999999"]);
    bench.write("sys/fs/cgroup/system.slice/slurmd.service/cpuset.cpus.effective", "0-7\n");
    let bounded = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!((&bounded.status, bounded.warnings.len()), (&OpStatus::Ok, 1), "{bounded:?}");
}

#[test]
fn drop_ins_that_win_are_named() {
    let bench = bench();
    bench.write("etc/systemd/system/slurmd.service.d/override.conf", "[Service]\nLimitMEMLOCK=64M\n");
    let beaten = run(&bench, &memlock(), Mode::Predict, Disruption::Live);
    assert!(
        failure(&beaten).contains("override.conf comes after") && failure(&beaten).contains("64M"),
        "{beaten:?}"
    );
    let later = UnitSettings { name: "zz-gpufleet".to_owned(), ..memlock() };
    assert_eq!(run(&bench, &later, Mode::Predict, Disruption::Live).status, OpStatus::Changed);
    let control = "etc/systemd/system.control/slurmd.service.d";
    bench.write(&format!("{control}/50-CPUAffinity.conf"), "[Service]\nCPUAffinity=3\n");
    let told = run(&bench, &later, Mode::Predict, Disruption::Live);
    assert!(told.warnings.iter().any(|line| line.contains("set-property")), "{told:?}");
    bench.write(&format!("{control}/zz-gpufleet.conf"), "");
    assert!(failure(&run(&bench, &later, Mode::Predict, Disruption::Live)).contains("has the same name"));
}

#[test]
fn a_unit_that_does_not_start_gets_its_old_settings_back() {
    let bench = bench();
    bench.write(DROP_IN, "[Service]\nNice=1\n");
    let wrong = task(json!({"unit": "slurmd.service", "settings": {"Service": {"Nice": 7}}}));
    let failed = run(&bench, &wrong, Mode::Apply, Disruption::Clients);
    assert!(failure(&failed).contains("is as before, and the unit runs with it"), "{failed:?}");
    assert_eq!(bench.read(DROP_IN), "[Service]\nNice=1\n");
    assert_eq!(bench.read("log"), "daemon-reload\nrestart\ndaemon-reload\nrestart\n");
}

#[test]
fn it_goes_with_a_restart_and_says_nothing_of_what_cannot_be_read() {
    let bench = bench();
    let both = task(
        json!({"unit": "slurmd", "settings": {"Service": {"OOMScoreAdjust": -500, "Environment": "A=1"}}}),
    );
    let done = run(&bench, &both, Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(done.data["unknown"], json!(["Service.Environment"]));
    assert_eq!(run(&bench, &both, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    let absent = task(json!({"unit": "slurmd", "state": "absent"}));
    bench.write("log", "");
    let gone = run(&bench, &absent, Mode::Apply, Disruption::Clients);
    assert_eq!((&gone.status, gone.changes.len()), (&OpStatus::Changed, 2), "{gone:?}");
    assert_eq!(bench.read("log"), "daemon-reload\nrestart\ndaemon-reload\n");
    assert!(!bench.path(DROP_IN).exists());
    assert_eq!(run(&bench, &absent, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    // A crash after the file was emptied, and another one before it was removed.
    bench.write(DROP_IN, text::HEADER);
    have(&bench, &["8388608", "", "", "100"]);
    assert_eq!(run(&bench, &absent, Mode::Predict, Disruption::Live).changes.len(), 2);
    have(&bench, &["8388608", "", "", "9999999"]);
    assert_eq!(run(&bench, &absent, Mode::Apply, Disruption::Live).changes.len(), 1);
}

#[test]
fn a_unit_that_may_hold_a_gpu_is_not_restarted_under_its_clients() {
    let bench = bench();
    let disturbs = || bench.node(|node| process::may_use_gpus(node, 700, "/system.slice/a.service").unwrap());
    let group = "sys/fs/cgroup/system.slice/a.service";
    let link = |target: &str, name: &str| {
        std::fs::create_dir_all(bench.path("proc/700/fd")).unwrap();
        std::os::unix::fs::symlink(target, bench.path("proc/700/fd").join(name)).unwrap();
    };
    link("/dev/null", "0");
    assert!(disturbs(), "nobody lists its processes, as with cgroup v1");
    bench.write(&format!("{group}/cgroup.procs"), "700\n");
    // A process that has ended since.
    bench.write(&format!("{group}/sub/cgroup.procs"), "701\n");
    assert!(!disturbs());
    std::fs::create_dir_all(bench.path("proc/701")).unwrap();
    assert!(disturbs(), "its files cannot be read");
    std::fs::create_dir_all(bench.path("proc/701/fd")).unwrap();
    assert!(!disturbs());
    link("/dev/nvidia3", "5");
    assert!(disturbs());
    std::fs::remove_file(bench.path("proc/700/fd/5")).unwrap();
    (6..4200).for_each(|number| link("/dev/null", &number.to_string()));
    assert!(disturbs(), "more files than are read");
}

#[test]
fn a_unit_is_known_by_its_other_names_too() {
    let bench = bench();
    let script = SYSTEMCTL.replace(
        "Id=slurmd.service; echo Names=slurmd.service",
        "Id=other.service; echo Names='crio.service other.service'",
    );
    bench.script("usr/bin/systemctl", &script.replace("slurmd.service", "other.service"));
    bench.write("sys/fs/cgroup/system.slice/other.service/cgroup.procs", "700\n");
    std::fs::create_dir_all(bench.path("proc/700/fd")).unwrap();
    let score = task(json!({"unit": "other", "settings": {"Service": {"OOMScoreAdjust": -500}}}));
    let class = || run(&bench, &score, Mode::Predict, Disruption::Live).changes.last().unwrap().disruption;
    assert_eq!(class(), Disruption::Clients);
    bench.forget();
    bench.script("usr/bin/systemctl", &SYSTEMCTL.replace("slurmd.service", "other.service"));
    assert_eq!(class(), Disruption::Live);
}

#[test]
fn numa_policies_are_read_from_the_first_mapping() {
    let bench = bench();
    let wanted = |mask: &str, policy: &str| {
        let all: BTreeMap<String, Vec<String>> = [("NUMAMask".to_owned(), vec![mask.to_owned()])].into();
        bench.node(|node| Process::read(node, 700, "").judge("NUMAPolicy", &[policy.to_owned()], &all))
    };
    assert_eq!(wanted("0", "bind"), Verdict::Unknown);
    bench.write("proc/700/numa_maps", "55d0 bind:0-1 file=/usr/sbin/slurmd mapped=9\n55e0 default\n");
    assert_eq!(wanted("0-1", "bind"), Verdict::Same);
    assert_eq!(wanted("0", "bind"), Verdict::Other("bind:0-1".to_owned()));
    assert_eq!(wanted("0", "interleave"), Verdict::Other("bind:0-1".to_owned()));
}

#[test]
fn a_unit_that_is_not_there_is_missing() {
    let bench = bench();
    let other = task(json!({"unit": "slurmdx", "settings": {"Service": {"Nice": 1}}}));
    assert!(
        failure(&run(&bench, &other, Mode::Apply, Disruption::Live))
            .contains("did you mean `slurmd.service`")
    );
    bench.write("load", "masked");
    assert!(failure(&run(&bench, &memlock(), Mode::Apply, Disruption::Live)).contains("masked"));
}

#[test]
fn more_open_files_than_the_kernel_gives_are_refused() {
    let bench = bench();
    bench.write("proc/sys/fs/nr_open", "1048576\n");
    let files =
        |value: Value| task(json!({"unit": "slurmd", "settings": {"Service": {"LimitNOFILE": value}}}));
    let before = bench.snapshot();
    for value in [json!("infinity"), json!("1024:2000000")] {
        let refused = run(&bench, &files(value), Mode::Apply, Disruption::Clients);
        assert!(failure(&refused).contains("above fs.nr_open, 1048576"), "{refused:?}");
        assert!(failure(&refused).contains("`sysctl: {name: fs.nr_open}`"), "{refused:?}");
    }
    assert_eq!(bench.snapshot(), before);
    let most = run(&bench, &files(json!(1_048_576)), Mode::Predict, Disruption::Live);
    assert_eq!(most.status, OpStatus::Changed, "{most:?}");
    let sysctl: gpufleet_protocol::tasks::Sysctl =
        serde_json::from_value(json!({"name": "fs.nr_open", "value": 4_000_000})).unwrap();
    assert_eq!(bench.run(&sysctl, Mode::Predict).status, OpStatus::Changed);
    let raised = run(&bench, &files(json!(2_000_000)), Mode::Predict, Disruption::Live);
    assert_eq!(raised.status, OpStatus::Changed, "{raised:?}");
}

#[test]
fn a_restart_after_an_assumed_boot_or_restart_is_planned_as_in_the_run() {
    let bench = bench();
    let restart = "slurmd.service Service.LimitMEMLOCK: 8388608 -> infinity (clients)".to_owned();
    bench.activate(Disruption::Reboot);
    let rebooted = run(&bench, &memlock(), Mode::Predict, Disruption::Live);
    assert!(shown(&rebooted).contains(&restart), "{rebooted:?}");
    assert_eq!(run(&bench, &memlock(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    // Two drop-ins, each with a restart of its own.
    let score = task(
        json!({"unit": "slurmd", "name": "aa-score", "settings": {"Service": {"OOMScoreAdjust": -500}}}),
    );
    let tasks = [score, memlock()];
    let predicted = tasks.each_ref().map(|task| shown(&run(&bench, task, Mode::Predict, Disruption::Live)));
    assert!(predicted[1].contains(&restart), "{predicted:?}");
    let done = tasks.each_ref().map(|task| shown(&run(&bench, task, Mode::Apply, Disruption::Clients)));
    assert_eq!(done, predicted);
    bench.activate(Disruption::Reboot);
    let absent = task(json!({"unit": "slurmd", "state": "absent"}));
    let gone = run(&bench, &absent, Mode::Predict, Disruption::Live);
    assert_eq!(gone.changes.len(), 2, "{gone:?}");
}

#[test]
fn a_unit_without_a_main_process_that_is_older_than_its_settings_is_told_at_every_run() {
    let bench = bench();
    let since = |microseconds: u64| {
        let more = format!("echo MainPID=0; echo ActiveEnterTimestampMonotonic={microseconds}");
        bench.script("usr/bin/systemctl", &SYSTEMCTL.replace("echo MainPID=700", &more));
    };
    since(1_000_000);
    let predicted = run(&bench, &memlock(), Mode::Predict, Disruption::Live);
    assert_eq!((predicted.changes.len(), predicted.warnings.len()), (2, 1), "{predicted:?}");
    let again = run(&bench, &memlock(), Mode::Predict, Disruption::Live);
    assert_eq!((&again.status, again.warnings.len()), (&OpStatus::Ok, 1), "{again:?}");
    let done = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.warnings), (&OpStatus::Changed, &predicted.warnings), "{done:?}");
    let again = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!((&again.status, &again.warnings), (&OpStatus::Ok, &predicted.warnings), "{again:?}");
    assert_eq!(again.data["unknown"], json!(["Service.CPUAffinity", "Service.LimitMEMLOCK"]));
    // Started after the drop-in was written.
    since(90_100_000_000);
    let started = run(&bench, &memlock(), Mode::Apply, Disruption::Live);
    assert_eq!((&started.status, &started.warnings), (&OpStatus::Ok, &Vec::new()), "{started:?}");
    // A slice gets its settings without a start.
    let script = SYSTEMCTL.replace("echo MainPID=700", "echo MainPID=0").replace("slurmd.service", "a.slice");
    bench.script("usr/bin/systemctl", &script);
    let slice = task(json!({"unit": "a.slice", "settings": {"Slice": {"AllowedCPUs": "0-3"}}}));
    let done = run(&bench, &slice, Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.warnings), (&OpStatus::Changed, &Vec::new()), "{done:?}");
    assert_eq!(done.data["unknown"], json!(["Slice.AllowedCPUs"]));
}
