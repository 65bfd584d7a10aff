//! apt on a node in a directory, with a fake dpkg and apt-get that know five packages.

use gpufleet_protocol::{
    Certainty, Disruption, FailureKind, OpOutcome, OpStatus,
    message::Mode,
    tasks::{Apt, Package, Service},
};
use serde_json::{Value, json};

use super::{
    super::{Action, Loaded, Order, for_next_boot},
    output,
};
use crate::{
    declare::drive,
    tasks::{
        keys::tests::curl,
        testing::{Bench, Told, told},
    },
    world::{Effect, Entry},
};

/// Fake dpkg-query, dpkg, dpkg-deb, apt-cache and apt-get in one. `pool` has the lists' packages, `db` the installed
/// ones.
const TOOL: &str = include_str!("stand_in.py");

fn bench() -> Bench {
    let bench = Bench::new();
    for tool in ["dpkg-query", "dpkg", "dpkg-deb", "apt-cache", "apt-get"] {
        bench.script(&format!("usr/bin/{tool}"), TOOL);
    }
    bench.write("db", "postfix 3.7\nhello 2.1\nold-lib 1\ngone -\n");
    bench.write("pool", "hello 2.1\nchrony 4.3\nchrony-doc 4.3\nnvidia-driver-570 570.86\n");
    bench.write("var/lib/apt/lists/lock", "");
    bench.write("log", "");
    bench
}

fn apt(value: Value) -> Apt {
    serde_json::from_value(value).unwrap()
}

fn shown(outcome: &OpOutcome) -> Vec<String> {
    let line = |(what, from, to): Told| format!("{what}: {} -> {to}", from.unwrap_or("-"));
    outcome.changes.iter().map(told).map(line).collect()
}

fn message(outcome: &OpOutcome) -> &str {
    match &outcome.status {
        OpStatus::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

macro_rules! converges {
    ($bench:expr, $task:expr) => {{
        let (bench, task) = ($bench, $task);
        bench.forget();
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before, "a prediction writes nothing");
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok, "predicted twice");
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled, "the second time nothing is set");
        done
    }};
}

#[test]
fn packages_come_and_go() {
    let bench = bench();
    let done = converges!(&bench, apt(json!({"name": ["chrony", "hello"]})));
    assert_eq!(shown(&done), ["package chrony: - -> 4.3"]);
    assert_eq!(done.data["stdout"], "Setting up chrony\n");
    assert_eq!(done.data["stdout_lines"], serde_json::json!(["Setting up chrony"]));
    assert_eq!(done.data["cache_updated"], false);
    let done = converges!(&bench, apt(json!({"pkg": "chrony,hello", "state": "absent"})));
    assert_eq!(shown(&done), ["package chrony: 4.3 -> absent", "package hello: 2.1 -> absent"]);
    converges!(&bench, apt(json!({"name": "hello", "state": "absent", "purge": true})));
    assert!(!bench.read("db").contains("hello"));
    assert_eq!(bench.read("log"), "install chrony\nremove chrony hello\nremove hello\n");
}

#[test]
fn versions_patterns_and_virtual_packages() {
    let bench = bench();
    let settled = |value: Value| assert_eq!(bench.run(&apt(value), Mode::Apply).status, OpStatus::Ok);
    settled(json!({"name": ["hello=2.*", "hello>=2.0", "mail-agent"]}));
    settled(json!({"name": "chrony", "only_upgrade": true}));
    settled(json!({"name": "nosuch*", "state": "absent"}));
    let done = converges!(&bench, apt(json!({"name": "chrony*"})));
    assert_eq!(shown(&done), ["package chrony: - -> 4.3", "package chrony-doc: - -> 4.3"]);
    bench.forget();
    assert_eq!(
        message(&bench.run(&apt(json!({"name": "hello=9"})), Mode::Predict)),
        "Version '9' for 'hello' was not found; `update_cache: true` would update the package lists first"
    );
    converges!(&bench, apt(json!({"name": "chrony*", "state": "absent"})));
}

#[test]
fn newer_packages_are_taken_when_asked_for() {
    let bench = bench();
    bench.write("pool", "hello 2.2\npostfix 3.7\n");
    let plain = apt(json!({"name": "hello"}));
    assert_eq!(bench.run(&plain, Mode::Apply).status, OpStatus::Ok);
    let done = converges!(&bench, apt(json!({"name": "hello", "state": "latest"})));
    assert_eq!(shown(&done), ["package hello: 2.1 -> 2.2"]);
    bench.write("pool", "hello 2.3\npostfix 3.8\n");
    converges!(&bench, apt(json!({"upgrade": "dist"})));
    converges!(&bench, apt(json!({"autoremove": true, "purge": true})));
    assert_eq!(bench.read("log"), "install hello\ndist-upgrade\nautoremove\n");
}

#[test]
fn lists_are_updated_before_the_plan_counts() {
    let bench = bench();
    bench.write("newpool", "hello 2.2\nfresh 1\n");
    let task = apt(json!({"name": "fresh", "update_cache": true}));
    let predicted = bench.run(&task, Mode::Predict);
    assert_eq!(predicted.changes[0].certainty, Certainty::Possible);
    assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
    bench.forget();
    let done = bench.run(&task, Mode::Apply);
    assert_eq!((&done.status, shown(&done)), (&OpStatus::Changed, vec!["package fresh: - -> 1".to_owned()]));
    assert_eq!(done.data["cache_updated"], true);
    let again = bench.run(&task, Mode::Apply);
    assert_eq!((&again.status, &again.data["cache_updated"]), (&OpStatus::Ok, &json!(true)));
    let young = apt(json!({"name": "fresh", "cache_valid_time": 3600}));
    assert_eq!(bench.run(&young, Mode::Apply).data["cache_updated"], false);
    let alone = apt(json!({"update_cache": true}));
    assert_eq!(bench.run(&alone, Mode::Apply).changes[0].what(), "package lists");
    let alone = apt(json!({"update_cache": true, "cache_valid_time": 3600}));
    assert_eq!(bench.run(&alone, Mode::Apply).status, OpStatus::Ok);
    assert_eq!(bench.read("log"), "update\ninstall fresh\nupdate\nupdate\n");
    bench.write("offline", "");
    let task = apt(json!({"name": "fresh", "update_cache": true, "update_cache_retries": 1}));
    assert_eq!(
        message(&bench.run(&task, Mode::Apply)),
        "apt-get update: Failed to fetch http://mirror/InRelease"
    );
}

#[test]
fn package_files_are_compared_with_what_is_installed() {
    let bench = bench();
    assert_eq!(
        message(&bench.run(&apt(json!({"deb": "/tmp/hello.deb"})), Mode::Predict)),
        "there is no file /tmp/hello.deb on this node"
    );
    bench.write("tmp/hello.deb", "");
    let done = converges!(&bench, apt(json!({"deb": "/tmp/hello.deb"})));
    assert_eq!(shown(&done), ["package hello: 2.1 -> 3.0"]);
}

#[test]
fn a_package_file_may_come_from_an_address() {
    let bench = bench();
    curl(&bench, "a package");
    let by_address = apt(json!({"deb": "https://me:pw@a.example/x/hello_3.0.deb?token=1"}));
    let predicted = bench.run(&by_address, Mode::Predict);
    assert_eq!(shown(&predicted), ["package hello: 2.1 -> 3.0"], "{predicted:?}");
    assert_eq!(bench.read("log").lines().count(), 1, "a plan downloads and installs nothing");
    bench.forget();
    assert_eq!(bench.run(&by_address, Mode::Apply).changes, predicted.changes);
    let log = bench.read("log");
    let installed: Vec<&str> = log.lines().filter(|line| line.starts_with("install")).collect();
    assert!(matches!(installed[..], [one] if one.ends_with("/hello_3.0.deb")), "{log}");
    assert_eq!(log.lines().count(), 3, "the run downloads once: {log}");
    let left = installed[0].trim_start_matches("install ");
    assert!(!std::path::Path::new(left).exists(), "{left} is left behind");
    assert_eq!(bench.run(&by_address, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn packages_are_possible_while_a_plan_changes_the_sources() {
    let bench = bench();
    let path = bench.path("etc/apt/sources.list.d/new.list");
    bench.overlay.assume([Effect::Path { path, entry: Entry::Absent }]);
    for (name, change) in [("chrony", "package chrony: - -> 4.3"), ("fresh", "package fresh: - -> installed")]
    {
        let predicted = bench.run(&apt(json!({"name": name})), Mode::Predict);
        assert_eq!((&predicted.status, shown(&predicted)), (&OpStatus::Possible, vec![change.to_owned()]));
        assert_eq!(bench.run(&apt(json!({"name": name})), Mode::Predict).status, OpStatus::Ok);
    }
    let newest = bench.run(&apt(json!({"name": "hello", "state": "latest"})), Mode::Predict);
    assert_eq!(newest.status, OpStatus::Possible, "{newest:?}");
    assert_eq!(bench.run(&apt(json!({"name": "hello"})), Mode::Predict).status, OpStatus::Ok);
    assert_eq!(
        bench.run(&apt(json!({"name": "postfix", "state": "absent"})), Mode::Predict).status,
        OpStatus::Changed
    );
}

#[test]
fn drivers_wait_for_a_reboot_and_say_so() {
    let bench = bench();
    let driver = apt(json!({"name": "nvidia-driver-570"}));
    let planned = bench.run(&driver, Mode::Predict);
    let done = bench.run(&driver, Mode::Apply);
    assert_eq!(
        done.for_next_boot,
        ["nvidia-driver-570 570.86: the kernel and the driver that run now stay until the node reboots"]
    );
    assert_eq!((&done.for_next_boot, &done.warnings), (&planned.for_next_boot, &done.for_next_boot));
    assert!(bench.run(&driver, Mode::Apply).for_next_boot.is_empty(), "what was there may run already");
    bench.write("sys/module/nvidia/version", "570.86\n");
    let gone = apt(json!({"name": "nvidia-driver-570", "state": "absent"}));
    let permit = Disruption::Clients;
    let gone = bench.node(|node| drive(&gone, node, Mode::Apply, &bench.overlay, permit, &|_| Ok(())));
    assert!(gone.for_next_boot[0].starts_with("nvidia-driver-570 (removed): "), "{gone:?}");
    assert!(bench.run(&apt(json!({"name": "chrony"})), Mode::Apply).for_next_boot.is_empty());
}

#[test]
fn of_many_packages_some_are_named_that_wait_for_a_reboot() {
    let action = |name: &str, to: Option<&str>| Action {
        name: name.to_owned(),
        from: None,
        to: to.map(str::to_owned),
    };
    let said = |actions| for_next_boot(&Order { actions, ..Order::default() }, &Loaded::None);
    let many =
        ["linux-image-6.1", "cuda-drivers-580", "kmod-nvidia-open-dkms", "nvidia-open", "nvidia-dkms-580"];
    let text = said(many.iter().map(|name| action(name, Some("1"))).collect()).unwrap();
    assert!(text.contains("nvidia-open 1, 1 more: the kernel"), "{text}");
    assert_eq!(
        said(vec![action("linux-image-5.10", None), action("nvidia-driver-pinning-580", Some("1"))]),
        None
    );
    let unknown = Order { unknown: vec!["nvidia-headless-515-server=515.1".to_owned()], ..Order::default() };
    assert!(for_next_boot(&unknown, &Loaded::None).is_some());
}

#[test]
fn what_nothing_runs_needs_no_reboot() {
    let said = |name: &str, from: Option<&str>, to: Option<&str>, driver: &Loaded| {
        let [from, to] = [from, to].map(|version| version.map(str::to_owned));
        let actions = vec![Action { name: name.to_owned(), from, to }];
        for_next_boot(&Order { actions, ..Order::default() }, driver).is_some()
    };
    let runs = Loaded::Version("580.95.05".to_owned());
    // A repository in a package.
    let repository = "nvidia-driver-local-repo-ubuntu2404-580.95.05";
    assert!(!said(repository, None, Some("1.0-1"), &runs));
    // What autoremove takes after an update, and the driver that runs.
    let (old, own) = (Some("570.172.08-0ubuntu1"), Some("1:580.95.05-0ubuntu1"));
    for (name, from, driver, wanted) in [
        ("libnvidia-compute-570", old, &runs, false),
        ("libnvidia-compute-580:amd64", own, &runs, true),
        ("nvidia-dkms-580", None, &runs, true),
        ("nvidia-dkms-580", own, &Loaded::None, false),
        ("libnvidia-compute-570", old, &Loaded::Unknown, true),
    ] {
        assert_eq!(said(name, from, None, driver), wanted, "{name} {from:?} {driver:?}");
    }
    // What comes does in any case.
    assert!(said("nvidia-dkms-580", old, own, &Loaded::None));
}

#[test]
fn a_prediction_leaves_to_the_run_what_a_package_may_bring() {
    let bench = bench();
    bench.script("usr/bin/systemctl", "#!/bin/sh\necho LoadState=not-found\n");
    let service: Service = serde_json::from_value(json!({"name": "chrony", "state": "started"})).unwrap();
    let failed = bench.run(&service, Mode::Predict);
    assert!(matches!(failed.status, OpStatus::Failed { kind: FailureKind::Missing, .. }), "{failed:?}");
    bench.run(&apt(json!({"name": "chrony"})), Mode::Predict);
    assert_eq!(bench.run(&service, Mode::Predict).status, OpStatus::Possible);
}

#[test]
fn a_database_that_cannot_be_read_is_unknown_and_a_missing_package_is_named() {
    let bench = bench();
    assert_eq!(
        message(&bench.run(&apt(json!({"name": "nosuch"})), Mode::Predict)),
        "Unable to locate package nosuch; `update_cache: true` would update the package lists first"
    );
    bench.write("broken", "");
    let unknown = bench.run(&apt(json!({"name": "hello"})), Mode::Predict);
    let OpStatus::Unknown { reason } = unknown.status else { panic!("{unknown:?}") };
    assert_eq!(reason, "dpkg-query: exit status 1: dpkg-query: error: the database is locked");
}

#[test]
fn a_package_task_takes_the_manager_of_the_node() {
    let package = |value: Value| -> Package { serde_json::from_value(value).unwrap() };
    let bench = bench();
    let done = converges!(&bench, package(json!({"name": "chrony"})));
    assert_eq!(shown(&done), ["package chrony: - -> 4.3"]);
    let none = Bench::new().run(&package(json!({"name": "chrony"})), Mode::Predict);
    assert_eq!(message(&none), "this node has neither apt nor dnf, and no other package manager is known");
}

#[test]
fn what_apt_prints_is_read() {
    let text = "NOTE: This is only a simulation!\n\
                Remv mawk [1.3-3] [gawk:amd64 ]\n\
                Purg mawk [1.3-3]\n\
                Inst libc6:i386 [2.36-9] (2.36-10 Debian:12.5/stable [i386]) []\n\
                Inst gawk (1:5.2.1-2 Debian:12.5/stable [amd64])\n\
                Conf gawk (1:5.2.1-2 Debian:12.5/stable [amd64])\n";
    let read: Vec<_> =
        output::actions(text).into_iter().map(|action| (action.name, action.from, action.to)).collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        read,
        [
            ("mawk".to_owned(), some("1.3-3"), None),
            ("libc6:i386".to_owned(), some("2.36-9"), some("2.36-10")),
            ("gawk".to_owned(), None, some("1:5.2.1-2")),
        ]
    );
}

#[test]
fn packages_that_do_not_fit_each_other_are_read() {
    let text = "Reading state information...\nThe following packages have unmet dependencies:\n nvidia-open-575 : Depends: \
                libnvidia-ml1 (= 575.57.08-1) but 580.173.02-1 is installed\n                   Depends: libcuda1 but it is not \
                installed or\n                            libcuda-390 but it is not installable\nrest : no\n";
    let names: Vec<&str> = output::unmatched(text).collect();
    assert_eq!(names, ["nvidia-open-575", "libnvidia-ml1", "libcuda1", "libcuda-390"]);
    assert_eq!(output::unmatched("Reading package lists...\n").count(), 0);
}

#[test]
fn packages_warn_where_their_scripts_would_take_gpus_from_a_container_and_stay_live() {
    let bench = bench();
    // Docker in the legacy mode: systemd was never told of the GPUs.
    bench.write(
        "run/systemd/transient/docker-ab.scope",
        "[Scope]\nDevicePolicy=strict\nDeviceAllow=\nDeviceAllow=char-136 rwm\n",
    );
    bench.write(
        "proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n  8 sd\n",
    );
    bench.write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
    bench.write(
        "proc/77/mountinfo",
        "841 814 0:6 /nvidia0 /dev/nvidia0 ro,nosuid,noexec master:2 - devtmpfs udev rw,mode=755\n",
    );
    let task = apt(json!({"name": "chrony"}));
    let planned = bench.run(&task, Mode::Predict);
    // What the kind declares, because the controller asks for no drain and no proof by anything else.
    assert!(planned.changes.iter().all(|change| change.disruption == Disruption::Live), "{planned:?}");
    let [warning] = planned.warnings.as_slice() else { panic!("{planned:?}") };
    assert!(warning.contains("would take /dev/char/195:0 from what runs in docker-ab.scope"), "{warning}");
    assert!(!warning.contains("drained"), "{warning}");
    bench.forget();
    let live = |bench: &Bench| {
        bench.node(|node| drive(&task, node, Mode::Apply, &bench.overlay, Disruption::Live, &|_| Ok(())))
    };
    let done = live(&bench);
    assert_eq!((&done.status, &done.warnings), (&OpStatus::Changed, &planned.warnings));
    // Lists alone have no scripts, and what is there already neither.
    assert_eq!(bench.run(&apt(json!({"name": "hello"})), Mode::Predict).warnings, Vec::<String>::new());
}

#[test]
fn what_work_needs_is_removed_under_a_permit() {
    let bench = bench();
    bench.write("db", "hello 2.1\ndocker-ce 27.0\n");
    let run = |name: &str, allowed| {
        let task = apt(json!({"name": name, "state": "absent"}));
        bench.node(|node| drive(&task, node, Mode::Apply, &bench.overlay, allowed, &|_| Ok(())))
    };
    let asked = run("docker-ce", Disruption::Live);
    assert_eq!(asked.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    assert_eq!(run("hello", Disruption::Live).status, OpStatus::Changed);
    assert_eq!(run("docker-ce", Disruption::Clients).status, OpStatus::Changed);
    assert_eq!(run("docker-ce", Disruption::Live).status, OpStatus::Ok);
}
