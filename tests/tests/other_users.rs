//! Other users of the controller: nothing that they could write has an effect, and they cannot read what a run
//! leaves.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

use gpufleet_tests::{Fleet, FleetOptions, Home};

const PLAY: &str = "- hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n    - command: echo planted-secret\n      no_log: true\n      register: kept\n";
const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn passwords_settings_and_state_that_others_can_write_are_refused() {
    let home = Home::new();
    let play = home.write("p.yml", PLAY);
    let run = |more: &[&str]| home.gpufleet(["run", &play, "-i", "n1,", "--yes"]).args(more).run().expect(1);

    let password = home.work().join(home.write("password", "hunter2\n"));
    let shown = password.display().to_string();
    set_mode(&password, 0o602);
    let refused = run(&["--vault-password-file", &shown]);
    let remedy = format!("then `chmod o-w {shown}`");
    refused.says(&["the vault password in", "can be written by everybody (mode 0602)", &remedy]);
    set_mode(&password, 0o600);
    chown(&password, Some(NOBODY), None).unwrap();
    run(&["--become-password-file", &shown]).says(&["belongs to user 65534", "chown 0 "]);

    let settings = home.work().join(home.write("other.toml", "forks = 7\n"));
    set_mode(&settings, 0o666);
    let done = home.gpufleet(["config", "--config", "other.toml"]).run().expect(1);
    done.says(&["the settings in other.toml could be another user's doing", "chmod o-w "]);

    let state = home.runs().parent().unwrap().to_owned();
    fs::create_dir_all(&state).unwrap();
    set_mode(&state, 0o777);
    let local = ["run", &play, "-i", "localhost,", "-c", "local", "--yes"];
    home.gpufleet(local).run().expect(1).says(&["the record of runs in", "chmod o-w"]);
    home.gpufleet(["resume"]).run().expect(1).says(&["the record of runs in"]);
    assert!(!home.runs().exists(), "nothing was begun");
}

/// Each of these acts without anybody who looks on: a watcher runs programs, and a baseline commands of root on nodes.
#[test]
fn what_acts_by_itself_is_refused_if_others_could_have_written_it() {
    let home = Home::new();
    let watch = "audits:\n  - {name: nightly, every: 1h, inventory: hosts.ini, health: true}\n";
    home.write("hosts.ini", "n1\n");
    home.write("page.sh", "#!/bin/sh\n");
    home.write("watch.yaml", &format!("{watch}notifications:\n  - {{command: [sh, page.sh]}}\n"));
    home.write(
        "own.yaml",
        "own_checks:\n  - {id: site.a, title: A, severity: low, read: {command: [id]}, when: 'value == \"x\"'}\n",
    );
    home.write("waivers.yaml", "waivers: []\n");
    let audit = ["audit", "-i", "hosts.ini", "--baseline", "./own.yaml", "--waivers", "waivers.yaml"];
    let check = ["watch", "watch.yaml", "--check"];
    for (file, command, what) in [
        ("watch.yaml", &check[..], "what is watched, and who is told,"),
        ("page.sh", &check, "the program of a channel"),
        ("own.yaml", &audit, "what is judged"),
        ("waivers.yaml", &audit, "what is judged"),
    ] {
        let path = home.work().join(file);
        for (mode, owner) in [(0o666, 0), (0o644, NOBODY)] {
            set_mode(&path, mode);
            chown(&path, Some(owner), None).unwrap();
            let refused = home.gpufleet(command).run().expect(1);
            refused.says(&[what, file, "could be another user's doing, so it is not used"]);
        }
        set_mode(&path, 0o644);
        chown(&path, Some(0), None).unwrap();
    }
    let state = home.work().join("state");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o777);
    home.gpufleet(["watch", "watch.yaml", "--state", "state"])
        .run()
        .expect(1)
        .says(&["the record of runs in", "state"]);
}

#[test]
fn variables_that_others_can_write_are_named_in_one_warning() {
    let home = Home::new();
    home.write("hosts.ini", "n1\n");
    fs::create_dir(home.work().join("group_vars")).unwrap();
    home.write("group_vars/all.yml", "a: 1\n");
    let list = || home.gpufleet(["hosts", "all", "-i", "hosts.ini"]).run().expect(0);
    assert_eq!(list().stderr, "");
    let file = home.work().join("group_vars/all.yml");
    set_mode(&file, 0o666);
    let told = list();
    let warnings = told.stderr.lines().filter(|line| line.starts_with("warning: ")).count();
    assert_eq!(warnings, 1, "{told}");
    told.says(&["other users of this machine decide", "all.yml can be written by everybody (mode 0666)"]);
    set_mode(&file, 0o664);
    assert_eq!(list().stderr, "", "a team that shares its files means to");
}

#[test]
fn what_a_run_leaves_is_for_its_owner_alone_and_holds_no_secret() {
    let fleet = Fleet::start(&FleetOptions::default());
    let home = Home::new();
    let play = home.write("p.yml", PLAY);
    let run =
        || home.gpufleet(["run", &play, "-i", &fleet.inventory(), "-l", "gpu001", "--yes"]).run().expect(0);
    run();
    let folders = || -> Vec<_> {
        let mut all: Vec<_> = fs::read_dir(home.runs()).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    };
    let first = folders().pop().unwrap();
    assert_eq!(mode(home.runs().parent().unwrap()), 0o700);
    for name in ["report.json", "report.html", "journal.jsonl"] {
        assert_eq!(mode(&first.join(name)), 0o600, "{name}");
    }
    for entry in fs::read_dir(&first).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(!bytes.windows(14).any(|part| part == b"planted-secret"), "{}", path.display());
    }
    // As if the process was killed between its last event and the removal: the next run completes it.
    fs::write(first.join("sealed.jsonl"), "{}\n").unwrap();
    fs::write(first.join("inputs.json"), "{}\n").unwrap();
    run();
    assert!(!first.join("sealed.jsonl").exists() && !first.join("inputs.json").exists());
    assert_eq!(folders().len(), 2);
}

#[test]
fn a_controller_leaves_no_core() {
    let home = Home::new();
    let play =
        home.write("p.yml", "- hosts: all\n  gather_facts: false\n  tasks:\n    - pause: {seconds: 20}\n");
    let mut running = home.gpufleet(["run", &play, "-i", "localhost,", "-c", "local", "--yes"]).start();
    running.until("the run begins", |events| events.has("run_started"));
    let proc = format!("/proc/{}", running.pid());
    let limits = fs::read_to_string(format!("{proc}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    running.signal(rustix::process::Signal::INT);
    running.wait();
}
