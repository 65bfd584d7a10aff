//! Races between a user and the helper: the user swaps a directory and a link in a tight loop while the helper, as
//! root, works on that user's tree. Nothing that the link leads to may be changed or read.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use gpufleet_protocol::op::{PutTree, UnpackArchive};
use rustix::{
    fs::{CWD, Gid, RenameFlags, Uid, renameat_with},
    thread::{set_thread_res_gid, set_thread_res_uid},
};
use serde_json::json;

use super::*;

/// A user without any rights; no account is needed.
const NOBODY: u32 = 65_534;
const ROUNDS: usize = 12;
/// Number of swaps before the helper is asked.
const AT_FIRST: u64 = 16;
const SECRET: &str = "root:$6$secret:20000::::::\n";

/// The two names below `home` that the attacker swaps.
type Swapped = (&'static str, &'static str);

/// The files of a race. `home` belongs to the attacker and holds `tree/a/shadow` and other files. `bait` leads to
/// root's `vault`, and so does root's own link `roots`. `closed` is root's, looks like `tree`, and is closed to the
/// attacker.
struct Field {
    place: Place,
    swapped: Swapped,
}

/// Returns kind, owner, mode and content of each path below a folder.
fn picture(folder: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let meta = std::fs::symlink_metadata(&folder).unwrap();
        seen.push(format!("{} {:o} {}:{}", folder.display(), meta.mode(), meta.uid(), meta.gid()));
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let content = std::fs::read(entry.path()).unwrap_or_default();
            seen.push(format!(
                "{} {:o} {}:{} {content:?}",
                entry.path().display(),
                meta.mode(),
                meta.uid(),
                meta.gid()
            ));
        }
    }
    seen.sort();
    seen
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

impl Field {
    fn new() -> Self {
        let place = Place::new();
        mode(place.dir.path(), 0o755);
        let vault = place.path("vault");
        std::fs::create_dir_all(vault.join("state/spool")).unwrap();
        for file in ["shadow", "state/precious", "state/spool/precious"] {
            std::fs::write(vault.join(file), SECRET).unwrap();
            mode(&vault.join(file), 0o600);
        }
        mode(&vault, 0o755);
        Self { place, swapped: ("tree/a", "bait") }
    }

    fn vault(&self) -> PathBuf {
        self.place.path("vault")
    }

    fn home(&self) -> PathBuf {
        self.place.path("home")
    }

    /// Creates the attacker's files anew.
    fn plant(&self) {
        let home = self.home();
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(home.join("tree/a/state")).unwrap();
        std::fs::create_dir_all(home.join("tree/b")).unwrap();
        for number in 0..60 {
            std::fs::write(home.join(format!("tree/b/{number}")), "x").unwrap();
        }
        for name in ["shadow", "state/precious"] {
            std::fs::write(home.join("tree/a").join(name), "mine\n").unwrap();
        }
        symlink(self.vault(), home.join("bait")).unwrap();
        let mut folders = vec![home.clone()];
        while let Some(folder) = folders.pop() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
            for entry in std::fs::read_dir(&folder).unwrap().flatten() {
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => folders.push(entry.path()),
                    _ => std::os::unix::fs::lchown(entry.path(), Some(NOBODY), Some(NOBODY)).unwrap(),
                }
            }
        }
        symlink(self.vault(), home.join("roots")).unwrap();
        std::fs::create_dir_all(home.join("closed/a/state")).unwrap();
        for name in ["shadow", "state/precious"] {
            std::fs::write(home.join("closed/a").join(name), SECRET).unwrap();
        }
        mode(&home.join("closed"), 0o700);
    }

    /// Returns the content of root's closed directory, under its present name, without that name.
    fn closed(&self) -> Vec<String> {
        let of_root = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == 0);
        let names = ["closed", "tree"].map(|name| self.home().join(name));
        let path = names.iter().find(|path| of_root(path)).expect("it is root's still");
        picture(path).iter().map(|line| line.replace(&path.display().to_string(), "")).collect()
    }

    /// Runs `work` repeatedly while the attacker swaps; `judge` checks each result.
    fn attack<T>(&self, mut work: impl FnMut(&Self) -> T, mut judge: impl FnMut(&Self, T)) {
        assert!(rustix::process::geteuid().is_root(), "only root can be misled here: run the tests as root");
        let before = picture(&self.vault());
        let mut swaps = 0;
        for round in 0..ROUNDS {
            self.plant();
            let attacker = Attacker::start(&self.home(), self.swapped);
            let done = work(self);
            swaps += attacker.stop();
            assert_eq!(picture(&self.vault()), before, "round {round}");
            judge(self, done);
        }
        assert!(swaps > 100, "the attacker swapped {swaps} times only");
    }
}

/// A thread with the rights of `NOBODY`.
struct Attacker {
    ending: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
    swaps: Arc<AtomicU64>,
}

impl Attacker {
    fn start(home: &Path, swapped: Swapped) -> Self {
        let (ending, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (there, bait) = (home.join(swapped.0), home.join(swapped.1));
        let (over, count) = (Arc::clone(&ending), Arc::clone(&swaps));
        let thread = std::thread::spawn(move || {
            rustix::thread::set_thread_groups(&[]).unwrap();
            set_thread_res_gid(Gid::from_raw(NOBODY), Gid::from_raw(NOBODY), Gid::from_raw(NOBODY)).unwrap();
            set_thread_res_uid(Uid::from_raw(NOBODY), Uid::from_raw(NOBODY), Uid::from_raw(NOBODY)).unwrap();
            let mut pause = 1u64;
            while !over.load(Ordering::Relaxed) {
                if renameat_with(CWD, &there, CWD, &bait, RenameFlags::EXCHANGE).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                // Uneven pauses, because a fixed rhythm may miss the gap.
                pause = pause.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                for _ in 0..(pause >> 55) {
                    std::hint::spin_loop();
                }
            }
        });
        // So that it is under way before the helper begins, however busy the machine is.
        wait_for("the attack", || swaps.load(Ordering::Relaxed) >= AT_FIRST);
        Self { ending, thread, swaps }
    }

    fn stop(self) -> u64 {
        self.ending.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.swaps.load(Ordering::Relaxed)
    }
}

fn file(value: serde_json::Value) -> NodeOp {
    NodeOp::File(serde_json::from_value(value).unwrap())
}

/// Runs an operation to its end, and skips other messages.
fn done(helper: &mut Helper, op: NodeOp) -> OpOutcome {
    let id = helper.begin(op, Mode::Apply, 20);
    loop {
        match helper.reply(id) {
            Reply::Outcome(outcome) => return *outcome,
            Reply::Progress { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn raced(op: impl Fn(&Field) -> NodeOp, judge: impl FnMut(&Field, OpOutcome)) {
    raced_by(("tree/a", "bait"), op, judge);
}

fn raced_by(swapped: Swapped, op: impl Fn(&Field) -> NodeOp, mut judge: impl FnMut(&Field, OpOutcome)) {
    let field = Field { swapped, ..Field::new() };
    let mut helper = Helper::opened(&field.place.state(), "run", 1);
    field.plant();
    let before = picture(&field.vault());
    let calm = done(&mut helper, op(&field));
    assert!(matches!(calm.status, OpStatus::Changed | OpStatus::Ok), "where nobody attacks: {calm:?}");
    assert_eq!(picture(&field.vault()), before);
    judge(&field, calm);
    field.attack(|field| done(&mut helper, op(field)), |field, outcome| judge(field, outcome));
}

#[test]
fn a_recursive_mode_and_owner_stay_in_the_tree() {
    raced(
        |field| {
            file(json!({"path": field.home().join("tree"), "state": "directory", "recurse": true,
                "mode": "u=rwX,go=rwX", "owner": "4711", "group": "4711"}))
        },
        |_, _| {},
    );
}

/// Renames in a directory need no right on the renamed entry.
#[test]
fn what_root_keeps_closed_is_not_given_away_under_the_name_of_the_tree() {
    let field = Field::new();
    field.plant();
    let closed = field.closed();
    raced_by(
        ("tree", "closed"),
        |field| {
            file(json!({"path": field.home().join("tree"), "state": "directory", "recurse": true,
                "mode": "u=rwX,go=rwX", "owner": "4711", "group": "4711"}))
        },
        |field, _| assert_eq!(field.closed(), closed),
    );
}

#[test]
fn a_link_of_roots_in_a_users_directory_leads_nowhere_else() {
    raced_by(
        ("tree/a", "roots"),
        |field| {
            file(json!({"path": field.home().join("tree/a"), "state": "directory", "recurse": true,
                "mode": "u=rwX,go=rwX", "owner": "4711", "group": "4711"}))
        },
        |_, _| {},
    );
    for below in ["tree/a/state", "tree/a/shadow"] {
        raced_by(
            ("tree/a", "roots"),
            |field| file(json!({"path": field.home().join(below), "state": "absent"})),
            |_, _| {},
        );
    }
}

#[test]
fn a_recursive_removal_stays_in_the_tree() {
    raced(|field| file(json!({"path": field.home().join("tree"), "state": "absent"})), |_, _| {});
}

#[test]
fn what_is_removed_touched_or_made_by_name_stays_in_the_tree() {
    for below in ["tree/a/state", "tree/a/shadow"] {
        raced(|field| file(json!({"path": field.home().join(below), "state": "absent"})), |_, _| {});
    }
    raced(
        |field| {
            file(json!({"path": field.home().join("tree/a/shadow"), "state": "touch", "mode": "0666",
                "modification_time": "200001010000.00"}))
        },
        |_, _| {},
    );
    raced(
        |field| {
            file(json!({"path": field.home().join("tree/a/new/newer"), "state": "directory", "mode": "0777"}))
        },
        |_, _| {},
    );
    raced(
        |field| {
            file(
                json!({"path": field.home().join("tree/a/shadow"), "state": "link", "src": "/etc/hosts", "force": true}),
            )
        },
        |_, _| {},
    );
}

#[test]
fn files_are_put_and_edited_in_the_tree_only() {
    raced(
        |field| {
            let source = field.place.path("source");
            std::fs::write(&source, "root::0:0::::\n").unwrap();
            let NodeOp::PutFile(put) = put(&field.home().join("tree/a/shadow"), b"") else { panic!() };
            NodeOp::PutFile(PutFile { blob: None, remote_src: Some(source.display().to_string()), ..put })
        },
        |_, _| {},
    );
    raced(
        |field| {
            NodeOp::LineInFile(
                serde_json::from_value(
                    json!({"path": field.home().join("tree/a/shadow"), "line": "root::0:0:::"}),
                )
                .unwrap(),
            )
        },
        |_, _| {},
    );
}

fn tree(from: &Path, dest: &Path) -> NodeOp {
    let value = json!({"dest": dest, "told": null, "entries": [], "remote_src": from, "owner": "4711", "group": null,
        "mode": "0666", "directory_mode": "0777", "backup": false, "force": true, "follow": false, "secret": false});
    NodeOp::PutTree(serde_json::from_value::<PutTree>(value).unwrap())
}

#[test]
fn a_copied_tree_stays_where_it_is_put() {
    raced(
        |field| {
            let from = field.place.path("from");
            std::fs::create_dir_all(from.join("a")).unwrap();
            for number in 0..20 {
                std::fs::write(from.join(format!("a/f{number}")), "other").unwrap();
            }
            std::fs::write(from.join("a/shadow"), "root::0:0::::\n").unwrap();
            tree(&from, &field.home().join("tree"))
        },
        |_, _| {},
    );
}

#[test]
fn a_copied_tree_brings_nothing_from_elsewhere() {
    raced(
        |field| {
            let _ = std::fs::remove_dir_all(field.place.path("out"));
            tree(&field.home().join("tree"), &field.place.path("out"))
        },
        |field, _| {
            let out = field.place.path("out");
            let text = if out.exists() { picture(&out).concat() } else { String::new() };
            assert!(!text.contains(&format!("{:?}", SECRET.as_bytes())), "{text}");
        },
    );
}

#[test]
fn an_archive_is_unpacked_into_the_tree_only() {
    raced(
        |field| {
            let from = field.place.path("archive");
            std::fs::create_dir_all(from.join("a/state")).unwrap();
            for name in ["a/shadow", "a/state/precious", "a/one", "a/two", "a/three"] {
                std::fs::write(from.join(name), "root::0:0::::\n").unwrap();
            }
            let packed = field.place.path("a.tgz");
            let done =
                Command::new("tar").arg("czf").arg(&packed).arg("-C").arg(&from).arg("a").status().unwrap();
            assert!(done.success());
            let task = json!({"src": packed, "dest": field.home().join("tree"), "remote_src": true, "owner": "4711",
                "mode": "0666"});
            NodeOp::Unarchive(UnpackArchive { task: serde_json::from_value(task).unwrap(), blob: None })
        },
        |_, _| {},
    );
}

#[test]
fn nothing_is_found_outside_of_the_tree() {
    raced(
        |field| {
            let task =
                json!({"paths": [field.home().join("tree")], "recurse": true, "contains": "root:.*secret"});
            NodeOp::Find(serde_json::from_value(task).unwrap())
        },
        |_, outcome| {
            let found = outcome.data.get("matched").cloned().unwrap_or(json!(0));
            assert_eq!(found, json!(0), "{outcome:?}");
        },
    );
}

#[test]
fn cleaning_removes_our_state_only() {
    let field = Field::new();
    field.attack(
        |field| {
            let state = field.home().join("tree/a/state");
            std::fs::create_dir_all(&state).ok();
            let (mut helper, _) = Helper::start(command(&state));
            helper.ask(Request::Clean)
        },
        |_, _| {},
    );
}

/// A core file would hold every secret that the helper was given; a debugger of the same user could read them.
#[test]
fn nothing_of_the_helper_is_dumped_or_traced() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::os::unix::process::CommandExt;

    let given = Rlimit { current: Some(4096 * 512), maximum: Some(4096 * 1024) };
    setrlimit(Resource::Core, given).unwrap();
    let place = Place::new();
    mode(place.dir.path(), 0o755);
    let (program, home) = (place.path("gpufleet-node"), place.path("home"));
    std::fs::copy(env!("CARGO_BIN_EXE_gpufleet-node"), &program).unwrap();
    mode(&program, 0o755);
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(&program);
    command.arg("serve").arg("--state-dir").arg(home.join("state")).env("HOME", &home).current_dir(&home);
    command.uid(NOBODY).gid(NOBODY);
    let (mut helper, hello) = Helper::start(command);
    assert_eq!(hello.uid, NOBODY);
    assert!(matches!(helper.open("run", 1, true), Reply::Opened(_)));
    let proc = PathBuf::from(format!("/proc/{}", helper.child.id()));
    assert_eq!(
        std::fs::metadata(proc.join("environ")).unwrap().uid(),
        0,
        "its own user may not look into it"
    );
    let limits = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        line.split_whitespace().nth(4).unwrap().to_owned()
    };
    assert_eq!(limits(&std::fs::read_to_string(proc.join("limits")).unwrap()), "0");
    // Its children have the limit that the helper was started with, and can be read by their user.
    let done = helper.run(
        shell("cat /proc/self/limits; head -c 1 /proc/self/environ >/dev/null && echo own"),
        Mode::Apply,
    );
    let said = done.data["stdout"].as_str().unwrap();
    assert_eq!(limits(said), "2097152", "{said}");
    assert!(said.ends_with("own"), "{said}");
    // The helper itself can still do everything.
    let file = home.join("file");
    assert_eq!(helper.run(put(&file, b""), Mode::Predict).status, OpStatus::Changed);
    let touched = json!({"path": file, "state": "touch", "mode": "0640"});
    assert_eq!(helper.run(self::file(touched), Mode::Apply).status, OpStatus::Changed);
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    let job = NodeOp::JobStart(gpufleet_protocol::op::JobStart { op: Box::new(shell("true")), limit_s: 20 });
    let id = helper.run_as_op(job, "job", |_| {});
    assert_eq!(helper.outcome(id).status, OpStatus::Changed, "it finds its own file");
}
