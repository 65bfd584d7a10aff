//! A node in a temporary directory, for the tests of kinds.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use gpufleet_protocol::{Change, Disruption, OpOutcome, OpStatus, message::Mode, op::Blob};

use crate::{
    deadline::Deadline,
    declare::{Fetch, Node, NodeKind, Trouble, drive},
    os::{files, roots::Roots, users::Users},
    tasks::download::Downloads,
    world::{Overlay, World},
};

/// Content by digest, as the controller would have it.
#[derive(Default)]
pub struct Store(pub BTreeMap<String, Vec<u8>>);

impl Fetch for Store {
    fn fetch(
        &self,
        blob: &Blob,
        _: &Deadline,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let bytes = self.0.get(&blob.sha256).ok_or_else(|| Trouble::io("no such content"))?;
        bytes.chunks(7).try_for_each(sink)
    }
}

/// What differs, from what and to what, as people read it.
pub type Told = (&'static str, Option<&'static str>, &'static str);

/// The texts of a change. They are leaked, so that tests can compare them with literals.
pub fn told(change: &Change) -> Told {
    let leak = |text: String| &*text.leak();
    (leak(change.what()), change.from_text().map(leak), leak(change.to_text()))
}

/// The changes of an outcome, a line each.
pub fn shown(outcome: &OpOutcome) -> Vec<String> {
    let line = |change: &Change| {
        let (what, from, to) = told(change);
        format!("{what}: {} -> {to} ({})", from.unwrap_or("nothing"), change.disruption)
    };
    outcome.changes.iter().map(line).collect()
}

/// The message of a failed outcome.
#[track_caller]
pub fn failure(outcome: &OpOutcome) -> &str {
    match &outcome.status {
        OpStatus::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

pub struct Bench {
    dir: tempfile::TempDir,
    pub roots: Roots,
    pub users: Users,
    pub overlay: Overlay,
    pub store: Store,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let users = Users::of(&roots.path("/etc"));
        let bench = Self { dir, roots, users, overlay: Overlay::default(), store: Store::default() };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        bench.write(
            "etc/passwd",
            &format!("me:x:{uid}:{gid}::/home/me:/bin/sh\nann:x:4711:4711::/home/ann:/bin/sh\n"),
        );
        bench.write("etc/group", &format!("mine:x:{gid}:\nann:x:4711:\n"));
        bench
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A daemon of the node, in the namespaces of process 1.
    pub fn daemon(&self, pid: u32, comm: &str, words: &str) {
        for (pid, comm) in [(1, "systemd"), (pid, comm)] {
            self.write(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
            self.write(&format!("proc/{pid}/stat"), &format!("{pid} ({comm}) S 1 0 0 0\n"));
            for kind in ["pid", "mnt"] {
                let link = self.path(&format!("proc/{pid}/ns/{kind}"));
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                let _ = fs::remove_file(&link);
                std::os::unix::fs::symlink(format!("{kind}:[1]"), link).unwrap();
            }
        }
        self.write(&format!("proc/{pid}/cmdline"), words);
    }

    pub fn script(&self, below: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.write(below, text);
        fs::set_permissions(self.path(below), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap()
    }

    pub fn put(&mut self, text: &str) -> Blob {
        let blob = Blob { sha256: files::sha256(text.as_bytes()), size: text.len() as u64 };
        self.store.0.insert(blob.sha256.clone(), text.as_bytes().to_vec());
        blob
    }

    /// Assumes an activation in later predictions.
    pub fn activate(&self, class: Disruption) {
        self.overlay.activate(class, &self.roots);
    }

    pub fn forget(&self) {
        self.overlay.forget();
    }

    pub fn node<R>(&self, work: impl FnOnce(&Node<'_>) -> R) -> R {
        self.node_with(Duration::from_secs(30), &|_| {}, work)
    }

    /// As [`Bench::node`], with so much time, and somebody who hears what is being done.
    pub fn node_with<R>(
        &self,
        time: Duration,
        progress: &(dyn Fn(String) + Sync),
        work: impl FnOnce(&Node<'_>) -> R,
    ) -> R {
        let deadline = Deadline::after(time);
        work(&Node {
            roots: &self.roots,
            users: &self.users,
            world: World::real(),
            user: None,
            environment: &[],
            deadline: &deadline,
            fetch: &self.store,
            progress,
            downloads: Downloads::default(),
        })
    }

    /// Applies a declaration with a helper that is killed right before what begins with `at`.
    pub fn killed<D: NodeKind>(&self, declaration: &D, allowed: Disruption, at: &str) {
        let progress = |what: String| assert!(!what.starts_with(at), "killed");
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.node_with(Duration::from_secs(30), &progress, |node| {
                drive(declaration, node, Mode::Apply, &self.overlay, allowed, &|_| Ok(()))
            })
        }));
        assert!(killed.is_err(), "it came to its end: {:?}", killed.map(|outcome| outcome.status).ok());
    }

    pub fn run<D: NodeKind>(&self, declaration: &D, mode: Mode) -> OpOutcome {
        self.node(|node| drive(declaration, node, mode, &self.overlay, Disruption::Live, &|_| Ok(())))
    }

    /// Returns type, mode, inode, change time and content of each path below the directory.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        let mut folders = vec![self.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let meta = fs::symlink_metadata(entry.path()).unwrap();
                let content = if meta.is_file() { fs::read(entry.path()).unwrap() } else { Vec::new() };
                let target = fs::read_link(entry.path()).unwrap_or_default();
                let (inode, time) = (meta.ino(), (meta.ctime(), meta.ctime_nsec()));
                all.insert(
                    entry.path(),
                    format!("{:o} {inode} {time:?} {target:?} {content:?}", meta.mode()),
                );
                if meta.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        all
    }
}

/// Returns the paths that differ between two snapshots, for messages.
pub fn changed(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<PathBuf> {
    let paths: std::collections::BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

/// Whether a folder holds no leftover temporary file.
pub fn tidy(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().flatten().all(|e| !e.file_name().to_string_lossy().contains(".gpufleet-"))
}
