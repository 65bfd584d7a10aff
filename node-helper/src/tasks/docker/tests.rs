use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, changed, failure, shown, tidy},
};

const FILE: &str = "etc/docker/daemon.json";

/// A fake `systemctl` and `docker` of a daemon that reads its file as the real one does: what is in force is in
/// `force.json`, which a reload or a restart makes anew.
const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1" in
show) cat $d/start 2> /dev/null; echo Id=docker.service; echo LoadState=loaded; echo "ActiveState=$(cat $d/active)"; echo UnitFileState=enabled; echo MainPID=4711; exit 0;;
esac
shift
echo "$1" >> $d/log
case "$1" in
restart) if grep -q broken $d/etc/docker/daemon.json; then echo 'Job for docker.service failed.' >&2; exit 1; fi; cp $d/next.json $d/force.json;;
reload) cp $d/next.json $d/force.json;;
esac
"#;
const DOCKER: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\ncat $d/force.json; [ ! -e $d/deaf ] || exit 1\n";
const DOCKERD: &str = r#"#!/bin/sh
[ "$1" = --validate ] || exit 9
if grep -q no-such-key "$3"; then
  echo "unable to configure the Docker daemon with file $3: the following directives don't match any configuration option: no-such-key" >&2
  exit 1
fi
echo 'configuration OK'
"#;

fn bench(force: Value, next: Value) -> Bench {
    let bench = Bench::new();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/bin/docker", DOCKER);
    bench.script("usr/bin/dockerd", DOCKERD);
    bench.write("active", "active");
    bench.write("log", "");
    bench.write("force.json", &force.to_string());
    bench.write("next.json", &next.to_string());
    bench.write("proc/4711/cmdline", "/usr/bin/dockerd\0-H\0fd://\0");
    bench
}

fn plain() -> Bench {
    let bench = bench(
        json!({"LiveRestoreEnabled": false, "LoggingDriver": "json-file"}),
        json!({"LiveRestoreEnabled": true, "LoggingDriver": "journald"}),
    );
    bench.write(FILE, "{\n  \"bip\": \"10.0.0.1/24\",\n  \"log-opts\": {\"max-size\": \"10m\"}\n}\n");
    bench
}

fn task(value: Value) -> DockerDaemon {
    serde_json::from_value(value).unwrap()
}

fn run(bench: &Bench, task: &DockerDaemon, mode: Mode, allowed: Disruption) -> OpOutcome {
    bench.node(|node| drive(task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

#[test]
fn reloaded_settings_are_live_and_in_force_afterwards() {
    let bench = plain();
    let declared = task(json!({"settings": {"live-restore": true}}));
    let before = bench.snapshot();
    let predicted = run(&bench, &declared, Mode::Predict, Disruption::Live);
    assert_eq!(run(&bench, &declared, Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
    assert_eq!(shown(&done), ["/etc/docker/daemon.json live-restore: nothing -> enabled (live)"]);
    assert_eq!(bench.read("log"), "reload\n");
    assert_eq!(
        bench.read(FILE),
        "{\n  \"bip\": \"10.0.0.1/24\",\n  \"log-opts\": {\"max-size\": \"10m\"},\n  \"live-restore\": true\n}\n"
    );
    let settled = bench.snapshot();
    assert_eq!(run(&bench, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    assert!(tidy(&bench.path("etc/docker")));
}

#[test]
fn a_restart_needs_a_permit_unless_live_restore_is_in_force() {
    let bench = plain();
    let declared = task(json!({"settings": {"log-driver": "journald"}}));
    let held = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    assert_eq!(bench.read("log"), "");
    assert_eq!(shown(&held), ["/etc/docker/daemon.json log-driver: nothing -> journald (clients)"]);
    // In the file alone it does not count.
    bench.write(FILE, "{\"live-restore\": true}");
    let held = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    bench.write("force.json", r#"{"LiveRestoreEnabled": true, "LoggingDriver": "json-file"}"#);
    let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert_eq!(bench.read("log"), "restart\n");
    // The daemon that starts decides by the new file, and would stop them.
    for leaving in [
        json!({"remove": ["live-restore"]}),
        json!({"settings": {"live-restore": false, "log-driver": "local"}}),
        json!({"settings": {"log-driver": "local"}, "remove": ["live-restore"]}),
    ] {
        let held = run(&bench, &task(leaving.clone()), Mode::Apply, Disruption::Live);
        assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "{leaving}: {held:?}");
    }
    // What lies under the containers moves away from them whatever live-restore says.
    let moved = task(json!({"settings": {"data-root": "/data/docker"}}));
    let held = run(&bench, &moved, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
}

#[test]
fn cdi_is_registered_by_a_restart_and_a_kubelet_is_heard() {
    let info = json!({"LiveRestoreEnabled": false, "CDISpecDirs": null});
    let bench = bench(info, json!({"CDISpecDirs": ["/etc/cdi"]}));
    let cdi = task(json!({"settings": {"features": {"cdi": true}}}));
    let held = run(&bench, &cdi, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    // In the file alone it is not in force.
    bench.write(FILE, r#"{"features": {"cdi": true}}"#);
    bench.forget();
    let held = run(&bench, &cdi, Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients }, "{held:?}");
    assert_eq!(run(&bench, &cdi, Mode::Apply, Disruption::Clients).status, OpStatus::Changed);
    assert_eq!(bench.read("log"), "restart\n");
    assert_eq!(run(&bench, &cdi, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    bench.daemon(
        9,
        "kubelet",
        "/usr/bin/kubelet\0--config=/var/lib/kubelet/config.yaml\0\
         --container-runtime-endpoint=unix:///run/cri-dockerd.sock\0",
    );
    bench.write("var/lib/kubelet/config.yaml", "cgroupDriver: systemd\n");
    let driver = |name: &str| {
        let options = json!({"settings": {"exec-opts": [format!("native.cgroupdriver={name}")]}});
        run(&bench, &task(options), Mode::Predict, Disruption::Clients)
    };
    let differs = |name: &str| {
        let done = driver(name);
        assert_eq!(done.status, OpStatus::Changed, "one of both has to be the first: {done:?}");
        bench.forget();
        let what = "the driver of control groups systemd, and cgroupfs is declared";
        done.warnings.iter().any(|one| one.contains(what))
    };
    assert!(differs("cgroupfs") && !differs("systemd"));
}

#[test]
fn another_store_of_images_needs_a_drain_whatever_live_restore_says() {
    let info = json!({"LiveRestoreEnabled": true});
    let bench = bench(info.clone(), info);
    bench.write(FILE, r#"{"live-restore": true}"#);
    let features = |name: &str| task(json!({"settings": {"features": {name: true}}}));
    let held = run(&bench, &features("containerd-snapshotter"), Mode::Predict, Disruption::Live);
    assert_eq!(held.changes[0].disruption, Disruption::Clients, "{held:?}");
    bench.forget();
    let done = run(&bench, &features("buildkit"), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, "reload\n"), "{done:?}");
}

/// A run that was killed between the file and the restart left CDI on; and without a folder no restart turns it on.
#[test]
fn cdi_in_force_is_compared_both_ways() {
    let bench = bench(json!({"CDISpecDirs": ["/etc/cdi"]}), json!({"CDISpecDirs": null}));
    bench.write(FILE, r#"{"features": {"cdi": false}}"#);
    let off = task(json!({"settings": {"features": {"cdi": false}}}));
    let done = run(&bench, &off, Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, "restart\n"), "{done:?}");
    assert_eq!(run(&bench, &off, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    bench.write(FILE, r#"{"features": {"cdi": true}, "cdi-spec-dirs": [""]}"#);
    let on = task(json!({"settings": {"features": {"cdi": true}}}));
    bench.forget();
    let done = run(&bench, &on, Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Ok, "{done:?}");
    assert!(done.warnings.iter().any(|one| one.contains("turns CDI off")), "{done:?}");
}

#[test]
fn an_earlier_task_of_the_play_counts_in_the_prediction() {
    let bench = plain();
    let first = task(json!({"settings": {"live-restore": true}}));
    let second = task(json!({"settings": {"log-driver": "journald"}}));
    let planned: Vec<_> =
        [&first, &second].map(|task| shown(&run(&bench, task, Mode::Predict, Disruption::Live))).concat();
    let done: Vec<_> =
        [&first, &second].map(|task| shown(&run(&bench, task, Mode::Apply, Disruption::Live))).concat();
    assert_eq!(planned, done);
    assert_eq!(done[1], "/etc/docker/daemon.json log-driver: nothing -> journald (live)");
}

#[test]
fn a_file_that_dockerd_did_not_read_is_a_difference() {
    let bench = plain();
    bench.write(FILE, "{\"log-driver\": \"journald\"}");
    let declared = task(json!({"settings": {"log-driver": "journald"}}));
    let planned = run(&bench, &declared, Mode::Predict, Disruption::Live);
    assert_eq!(shown(&planned), ["docker.service log-driver: json-file -> journald (clients)"]);
    let never = task(json!({"settings": {"log-driver": "journald"}, "restart": "never"}));
    bench.forget();
    let waits = run(&bench, &never, Mode::Apply, Disruption::Live);
    assert_eq!((&waits.status, bench.read("log").as_str()), (&OpStatus::Ok, ""));
    assert!(waits.warnings[0].starts_with("log-driver: dockerd runs without it until"), "{waits:?}");
    let done = run(&bench, &declared, Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, "restart\n"));
}

#[test]
fn a_reload_that_dockerd_ignores_is_not_taken_for_success() {
    let bench = plain();
    bench.write("next.json", &bench.read("force.json"));
    let done = run(&bench, &task(json!({"settings": {"live-restore": true}})), Mode::Apply, Disruption::Live);
    assert_eq!(
        failure(&done),
        "docker.service live-restore was set to enabled, but reads disabled afterwards"
    );
}

#[test]
fn without_a_restart_the_file_changes_and_says_what_waits() {
    let bench = plain();
    let declared =
        task(json!({"settings": {"mtu": 9000}, "remove": ["log-opts.max-size"], "restart": "never"}));
    let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!(
        shown(&done),
        [
            "/etc/docker/daemon.json log-opts.max-size: 10m -> absent (live)",
            "/etc/docker/daemon.json mtu: nothing -> 9000 (live)"
        ]
    );
    assert_eq!(
        done.warnings,
        [
            "log-opts.max-size, mtu: dockerd runs without it until docker.service restarts, which `restart: never` leaves to you"
        ]
    );
    assert_eq!(bench.read("log"), "");
}

#[test]
fn what_dockerd_refuses_never_reaches_the_file() {
    let bench = plain();
    let before = bench.snapshot();
    for mode in [Mode::Predict, Mode::Apply] {
        let done = run(&bench, &task(json!({"settings": {"no-such-key": 1}})), mode, Disruption::Clients);
        assert_eq!(
            failure(&done),
            "/etc/docker/daemon.json was left as it is: dockerd --validate: exit status 1: unable to configure the Docker \
             daemon with file the new content: the following directives don't match any configuration option: no-such-key"
        );
    }
    let done =
        run(&bench, &task(json!({"settings": {"hosts": ["fd://"]}})), Mode::Apply, Disruption::Clients);
    assert!(failure(&done).starts_with("dockerd runs with the flag `-H`, and does not start if"), "{done:?}");
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    bench.write(FILE, "{\n  \"a\": 1,\n}\n");
    let done = run(&bench, &task(json!({"settings": {"mtu": 1}})), Mode::Apply, Disruption::Clients);
    assert_eq!(
        failure(&done),
        "/etc/docker/daemon.json: it is no valid JSON: trailing comma at line 3 column 1; it was left as it is"
    );
}

/// The running daemon has no flag, and its next start has one: a drop-in without it was taken out since.
#[test]
fn flags_of_the_next_start_are_heard() {
    let bench = plain();
    bench.write("proc/4711/cmdline", "/usr/bin/dockerd\0");
    bench.write(
        "start",
        "ExecStart={ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// ; ignore_errors=no ; pid=0 }\n",
    );
    bench.write(FILE, "{\n\t\"hosts\": [\"tcp://127.0.0.1:2375\"]\n}\n");
    let told = "docker.service starts dockerd with the flag `-H`, which does not start if /etc/docker/daemon.json sets `hosts` too; \
                take the flag out of docker.service first, with a drop-in that sets ExecStart";
    let before = bench.snapshot();
    let of = |settings: Value| task(json!({ "settings": settings }));
    let declared = run(&bench, &of(json!({"hosts": ["fd://"]})), Mode::Predict, Disruption::Clients);
    assert_eq!(failure(&declared), told);
    let restarted = run(&bench, &of(json!({"mtu": 9000})), Mode::Apply, Disruption::Clients);
    assert_eq!(failure(&restarted), format!("{told}; the restart that the other settings need would end it"));
    assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
    let reloaded = run(&bench, &of(json!({"live-restore": true})), Mode::Apply, Disruption::Live);
    assert_eq!((reloaded.status, reloaded.warnings), (OpStatus::Changed, vec![told.to_owned()]));
    assert_eq!(
        bench.read(FILE),
        "{\n\t\"hosts\": [\"tcp://127.0.0.1:2375\"],\n\t\"live-restore\": true\n}\n"
    );
    // An earlier task of the play takes the flag out again.
    let drop_in = bench.path("etc/systemd/system/docker.service.d/hosts.conf");
    let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
    let entry = Entry::File { owned, content: Content::Known(b"[Service]\n".as_slice().into()) };
    bench.overlay.assume([Effect::Path { path: drop_in, entry }]);
    let after = run(&bench, &of(json!({"hosts": ["fd://"]})), Mode::Predict, Disruption::Clients);
    assert_eq!(after.status, OpStatus::Changed, "{after:?}");
}

#[test]
fn a_daemon_that_does_not_come_back_gets_its_old_file_back() {
    let bench = plain();
    let old = bench.read(FILE);
    let done =
        run(&bench, &task(json!({"settings": {"mtu": 1, "x": "broken"}})), Mode::Apply, Disruption::Clients);
    assert_eq!(
        failure(&done),
        "systemctl restart docker.service: exit status 1: Job for docker.service failed.; /etc/docker/daemon.json has its old \
         content again, and dockerd runs with its old settings; `journalctl -u docker.service` on the node tells why"
    );
    assert_eq!(bench.read(FILE), old);
}

#[test]
fn a_daemon_that_does_not_answer_is_unknown() {
    let bench = plain();
    bench.write("deaf", "");
    bench.write("force.json", r#"{"ServerErrors": ["Cannot connect to the Docker daemon"]}"#);
    let done = run(&bench, &task(json!({"settings": {"mtu": 1}})), Mode::Predict, Disruption::Live);
    assert_eq!(
        done.status,
        OpStatus::Unknown { reason: "docker info: Cannot connect to the Docker daemon".to_owned() }
    );
}

#[test]
fn without_a_daemon_only_the_file_is_written() {
    let bench = plain();
    bench.write("active", "inactive");
    let done = run(&bench, &task(json!({"settings": {"data-root": "/data"}})), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, bench.read("log").as_str()), (&OpStatus::Changed, ""));
    let bare = Bench::new();
    let declared = task(json!({"settings": {"data-root": "/data"}}));
    let done = run(&bare, &declared, Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed);
    assert_eq!(done.warnings, ["there is no dockerd on this node, which would check the new content"]);
    assert_eq!(bare.read(FILE), "{\n    \"data-root\": \"/data\"\n}\n");
    assert_eq!(run(&bare, &declared, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    // A package of an earlier task starts a daemon, and nobody knows with what.
    let package = Effect::Package { name: "docker.io".to_owned(), version: Some(String::new()) };
    bare.script("usr/bin/systemctl", "#!/bin/sh\necho Id=docker.service; echo LoadState=not-found\n");
    bare.overlay.assume([package]);
    assert_eq!(run(&bare, &declared, Mode::Predict, Disruption::Live).status, OpStatus::Possible);
}

#[test]
fn what_dockerd_does_not_tell_is_not_called_in_force() {
    let bench = plain();
    let declared = task(json!({"settings": {"log-opts": {"max-size": "10m"}}}));
    let known = run(&bench, &declared, Mode::Apply, Disruption::Live);
    assert_eq!((known.status, known.warnings), (OpStatus::Ok, Vec::new()));
    // The daemon is older than its file.
    bench.write("proc/stat", "btime 1000000000\n");
    bench.write("proc/4711/stat", &format!("4711 (dockerd) S {}", "0 ".repeat(40)));
    let done = run(&bench, &declared, Mode::Apply, Disruption::Live);
    let [warning] = done.warnings.as_slice() else { panic!("{done:?}") };
    assert!(warning.starts_with("whether dockerd runs with log-opts is not known"), "{warning}");
}
