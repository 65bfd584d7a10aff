//! Users and groups of a node in a directory, changed by fake tools that support what these tests need.

use gpufleet_protocol::{
    FailureKind, OpOutcome, OpStatus,
    message::Mode,
    tasks::{File, Group, User},
};
use serde_json::{Value, json};

use crate::tasks::testing::{Bench, Told, told};

/// All the tools in one: they edit the files and log their arguments.
const TOOL: &str = include_str!("stand_in.py");

const HASH: &str = "$6$salt$hashhashhash";

fn bench() -> Bench {
    let bench = Bench::new();
    let tools = ["useradd", "usermod", "userdel", "groupadd", "groupmod", "groupdel", "chage", "chpasswd"];
    for tool in tools {
        bench.script(&format!("usr/sbin/{tool}"), TOOL);
    }
    bench.write("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nann:x:4711:4711:Ann:/home/ann:/bin/sh\n");
    bench.write("etc/group", "root:x:0:\nann:x:4711:\nvideo:x:44:ann\nrender:x:45:\n");
    bench.write("etc/shadow", "root:*:1:0:99999:7:::\nann:!$5$a$b:1:0:99999:7:::\n");
    bench.write("etc/skel/.profile", "# profile\n");
    bench.write("log", "");
    std::fs::create_dir_all(bench.path("home/ann")).unwrap();
    bench
}

fn user(value: Value) -> User {
    serde_json::from_value(value).unwrap()
}

fn group(value: Value) -> Group {
    serde_json::from_value(value).unwrap()
}

fn shown(outcome: &OpOutcome) -> Vec<String> {
    let line = |(what, from, to): Told| format!("{what}: {} -> {to}", from.unwrap_or("-"));
    outcome.changes.iter().map(told).map(line).collect()
}

fn message(outcome: &OpOutcome) -> &str {
    match &outcome.status {
        OpStatus::Failed { kind: FailureKind::Invalid | FailureKind::Missing, message } => message,
        other => panic!("{other:?}"),
    }
}

/// Checks that a prediction writes nothing and predicts no further change once assumed, that an apply does what was
/// predicted, and that a second apply changes nothing.
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
fn the_own_primary_group_lists_its_user_when_it_is_named() {
    let bench = bench();
    let done = converges!(&bench, user(json!({"name": "ann", "groups": "ann,video"})));
    assert_eq!(shown(&done), ["user ann groups: video -> ann, video"]);
    assert_eq!(bench.read("etc/group"), "root:x:0:\nann:x:4711:ann\nvideo:x:44:ann\nrender:x:45:\n");
    converges!(&bench, user(json!({"name": "ann", "groups": "video"})));
    converges!(&bench, user(json!({"name": "ann", "groups": "ann", "append": true})));
    converges!(&bench, user(json!({"name": "eve", "group": "video", "groups": "video"})));
}

#[test]
fn a_group_comes_changes_and_goes() {
    let bench = bench();
    let done = converges!(&bench, group(json!({"name": "slurm", "gid": 981, "system": true})));
    assert_eq!(shown(&done), ["group slurm: - -> gid 981"]);
    assert_eq!(done.data["gid"], 981);
    let done = converges!(&bench, group(json!({"name": "slurm", "gid": "982"})));
    assert_eq!(shown(&done), ["group slurm gid: 981 -> 982"]);
    converges!(&bench, group(json!({"name": "slurm", "state": "absent"})));
    assert_eq!(bench.read("log"), "groupadd -g 981 -r slurm\ngroupmod -g 982 slurm\ngroupdel slurm\n");
    let taken = bench.run(&group(json!({"name": "x", "gid": 44})), Mode::Predict);
    assert_eq!(message(&taken), "the group number 44 belongs to `video`");
}

#[test]
fn a_user_is_made_with_everything() {
    let bench = bench();
    let task = user(json!({
        "name": "slurm", "uid": 981, "group": "render", "groups": "video,root", "shell": "/usr/sbin/nologin",
        "home": "/srv/home/slurm", "system": true, "comment": "Slurm", "password": HASH, "expires": 86400 * 3,
        "password_expire_max": 90,
    }));
    let done = converges!(&bench, task);
    assert_eq!(
        shown(&done),
        [
            "user slurm: - -> uid 981, group render, groups root, video, home /srv/home/slurm, shell /usr/sbin/nologin"
        ]
    );
    assert_eq!(
        bench.read("log"),
        "useradd -u 981 -g 45 -G root,video -c Slurm -d /srv/home/slurm -s /usr/sbin/nologin -e 1970-01-04 -m -r slurm\n\
         chpasswd -e\nchage -M 90 slurm\n"
    );
    assert!(bench.read("etc/shadow").contains(&format!("slurm:{HASH}:20000:0:90:7::3:")));
    assert_eq!(done.data["password"], "NOT_LOGGING_PASSWORD");
    assert_eq!((&done.data["uid"], &done.data["group"]), (&json!(981), &json!(45)));
    assert!(!format!("{done:?}").contains(HASH), "no outcome shows a hash");
}

#[test]
fn what_differs_of_a_user_is_changed_and_nothing_else() {
    let bench = bench();
    let task = user(json!({"name": "ann", "shell": "/bin/zsh", "groups": ["render"], "append": true}));
    let done = converges!(&bench, task);
    assert_eq!(
        shown(&done),
        ["user ann groups: video -> render, video", "user ann shell: /bin/sh -> /bin/zsh"]
    );
    assert_eq!(bench.read("log"), "usermod -G render,video -s /bin/zsh ann\n");
    let done = converges!(&bench, user(json!({"name": "ann", "groups": []})));
    assert_eq!(shown(&done), ["user ann groups: render, video -> none"]);
    let same =
        user(json!({"name": "ann", "uid": 4711, "comment": "Ann", "home": "/home/ann", "group": "ann"}));
    assert_eq!(bench.run(&same, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn passwords_are_set_locked_and_never_shown() {
    let bench = bench();
    let task = user(json!({"name": "ann", "password": HASH}));
    let done = converges!(&bench, task);
    assert_eq!(shown(&done), ["user ann password: another one -> the declared one"]);
    let keep = user(json!({"name": "ann", "password": "$6$x$other", "update_password": "on_create"}));
    assert_eq!(bench.run(&keep, Mode::Apply).status, OpStatus::Ok);
    let done = converges!(&bench, user(json!({"name": "ann", "password_lock": true})));
    assert_eq!(shown(&done), ["user ann password: unlocked -> locked"]);
    converges!(&bench, user(json!({"name": "ann", "password_lock": false})));
    converges!(&bench, user(json!({"name": "ann", "password": "$6$x$y", "password_lock": true})));
    assert!(bench.read("etc/shadow").contains("ann:!$6$x$y:"));
    assert!(!bench.read("log").contains('$'), "no list of processes shows a hash");
    assert!(!format!("{:?}", user(json!({"name": "ann", "password": HASH}))).contains(HASH));
}

#[test]
fn accounts_end_and_go_on() {
    let bench = bench();
    let done = converges!(&bench, user(json!({"name": "ann", "expires": 1_893_456_000.0})));
    assert_eq!(shown(&done), ["user ann account ends: never -> 2030-01-01"]);
    converges!(&bench, user(json!({"name": "ann", "expires": -1})));
    assert_eq!(bench.read("log"), "usermod -e 2030-01-01 ann\nusermod -e  ann\n");
}

#[test]
fn a_missing_home_is_made_with_the_skeleton() {
    let bench = bench();
    assert!(
        rustix::process::geteuid().is_root(),
        "only root can give a home to its user: run the tests as root"
    );
    std::fs::remove_dir(bench.path("home/ann")).unwrap();
    let done = converges!(&bench, user(json!({"name": "ann", "umask": "077"})));
    assert_eq!(done.changes[0].what(), "user ann home directory");
    assert_eq!(bench.read("home/ann/.profile"), "# profile\n");
    let without = user(json!({"name": "ann", "create_home": false}));
    std::fs::remove_dir_all(bench.path("home/ann")).unwrap();
    assert_eq!(bench.run(&without, Mode::Apply).status, OpStatus::Ok);
}

#[test]
fn a_user_goes_even_where_the_home_is_gone() {
    let bench = bench();
    let done = converges!(&bench, user(json!({"name": "ann", "state": "absent", "remove": true})));
    assert_eq!(shown(&done), ["user ann: uid 4711 -> absent, /home/ann too"]);
    assert_eq!(bench.read("log"), "userdel -r ann\n");
}

#[test]
fn predictions_see_users_and_groups_that_earlier_tasks_make() {
    let bench = bench();
    let gpu = user(json!({"name": "gpu", "groups": "gpu-users"}));
    assert_eq!(
        message(&bench.run(&gpu, Mode::Predict)),
        "there is no group `gpu-users` on this node; a `group` task before this one would make it"
    );
    bench.run(&group(json!({"name": "gpu-users"})), Mode::Predict);
    assert_eq!(bench.run(&gpu, Mode::Predict).status, OpStatus::Changed);
    let file: File =
        serde_json::from_value(json!({"path": "/srv", "state": "directory", "owner": "gpu"})).unwrap();
    assert_eq!(bench.run(&file, Mode::Predict).status, OpStatus::Changed);
    bench.forget();
    assert_eq!(message(&bench.run(&file, Mode::Predict)), "there is no user `gpu` on this node");
}

#[test]
fn numbers_of_others_and_unreadable_shadows_are_told() {
    let bench = bench();
    assert_eq!(
        message(&bench.run(&user(json!({"name": "bob", "uid": 4711})), Mode::Predict)),
        "the user number 4711 belongs to `ann`"
    );
    std::fs::remove_file(bench.path("etc/shadow")).unwrap();
    let task = user(json!({"name": "ann", "password": HASH}));
    assert!(matches!(bench.run(&task, Mode::Predict).status, OpStatus::Unknown { .. }));
    assert_eq!(bench.run(&user(json!({"name": "ann"})), Mode::Predict).status, OpStatus::Ok);
}
