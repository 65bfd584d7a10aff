//! The guard of paths: what it refuses, and that no other module bypasses it.

use std::{
    fs,
    os::unix::fs::{lchown, symlink},
};

use super::*;

const ANN: u32 = 4711;

/// Creates `vault/secret` of root, and `home` of ann with `mine`, a link `out` to the vault and a link `in` to her own.
fn ground() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = |below: &str| dir.path().join(below);
    fs::create_dir_all(path("vault/deep")).unwrap();
    fs::write(path("vault/secret"), "secret").unwrap();
    fs::create_dir_all(path("home/mine")).unwrap();
    fs::write(path("home/mine/file"), "x").unwrap();
    symlink(path("vault"), path("home/out")).unwrap();
    symlink("mine", path("home/in")).unwrap();
    symlink("home/mine", path("roots")).unwrap();
    for below in ["home", "home/mine", "home/mine/file", "home/out", "home/in"] {
        lchown(path(below), Some(ANN), Some(ANN)).unwrap();
    }
    dir
}

fn said<T>(done: Result<T, FileError>) -> String {
    done.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn links_of_a_user_lead_root_to_that_users_files_only() {
    let dir = ground();
    let path = |below: &str| dir.path().join(below);
    for below in ["home/out/secret", "home/out/deep", "home/out/new"] {
        let refused = said(spot(&path(below)));
        assert!(refused.contains("/home/out belongs to uid 4711, who may point it anywhere"), "{refused}");
        assert!(refused.contains("become_user"), "{refused}");
    }
    assert!(said(followed(&path("home/out"))).contains("belongs to root"));
    assert!(said(make_dirs(&path("home/out/new/er"))).contains("may point it anywhere"));
    assert!(!path("vault/new").exists());
    assert!(said(remove_all(&path("home/out/deep"), &|| true)).contains("may point it anywhere"));
    for below in ["home/in/file", "roots/file", "home/mine/file"] {
        let mut text = String::new();
        io::Read::read_to_string(&mut open(&path(below)).unwrap(), &mut text).unwrap();
        assert_eq!(text, "x", "{below}");
    }
    spot(&path("home/out")).unwrap().remove().unwrap();
    assert!(path("vault/secret").exists());
}

#[test]
fn nothing_below_a_directory_is_reached_through_a_link() {
    let dir = ground();
    let home = super::dir(&dir.path().join("home")).unwrap();
    for below in ["in", "out", "out/deep", "../vault", "mine/../../vault"] {
        assert!(home.beneath(Path::new(below)).is_err(), "{below}");
        assert!(home.step_by_step(Path::new(below)).is_err(), "{below}");
    }
    assert_eq!(home.beneath(Path::new("mine")).unwrap().names().unwrap(), ["file"]);
    assert!(home.step_by_step(Path::new("mine")).is_ok());
    let found = home.all(100, &|| true).unwrap();
    let found: Vec<_> = found.iter().map(|found| found.below.to_str().unwrap()).collect();
    assert_eq!(found, ["in", "mine", "out", "mine/file"]);
    assert!(home.all(2, &|| true).is_err() && home.all(100, &|| false).is_err());
}

#[test]
fn removing_removes_links_and_not_what_they_lead_to() {
    let dir = ground();
    let home = dir.path().join("home");
    fs::create_dir_all(home.join("a/b/c/d")).unwrap();
    fs::write(home.join("a/b/file"), "").unwrap();
    remove_all(&home, &|| true).unwrap();
    assert!(!home.exists() && dir.path().join("vault/secret").exists());
    assert_eq!(remove_all(&home, &|| true).unwrap_err().source.kind(), io::ErrorKind::NotFound);
}

#[test]
fn more_nested_directories_than_files_may_be_open_are_removed() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let dir = tempfile::tempdir().unwrap();
    let mut here: OwnedFd = File::open(dir.path()).unwrap().into();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
        rustix::fs::mkdirat(&here, "e", Mode::RWXU).unwrap();
        here = open_name(&here, OsStr::new("d"), OFlags::PATH | OFlags::DIRECTORY).unwrap();
    }
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(400), ..before }).unwrap();
    let done = remove_all(&dir.path().join("d"), &|| true);
    setrlimit(Resource::Nofile, before).unwrap();
    done.unwrap();
    assert!(!dir.path().join("d").exists() && dir.path().join("e").exists());
}

#[test]
fn directories_are_made_as_deep_as_they_are_missing_and_links_may_stand_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    make_dirs(&dir.path().join("a/b/../c")).unwrap();
    assert!(dir.path().join("a/c").is_dir() && dir.path().join("a/b").is_dir());
    symlink("c", dir.path().join("a/l")).unwrap();
    make_dirs(&dir.path().join("a/l")).unwrap();
    assert_eq!(followed(&dir.path().join("a/l/new")).unwrap().path(), dir.path().join("a/c/new"));
    symlink("none", dir.path().join("dangling")).unwrap();
    assert_eq!(followed(&dir.path().join("dangling")).unwrap().path(), dir.path().join("none"));
    assert!(make_dirs(&dir.path().join("a/l/new/../../../x")).is_ok());
    assert!(dir.path().join("x").is_dir());
}

#[test]
fn what_became_something_else_keeps_its_owner() {
    let dir = ground();
    let spot = spot(&dir.path().join("home/mine")).unwrap();
    let set = Ownership { uid: Some(1), ..Ownership::default() };
    assert!(said(spot.own_as(false, false, set)).contains("became something else"));
    spot.own_as(true, false, set).unwrap();
    assert_eq!(fs::metadata(dir.path().join("home/mine")).unwrap().uid(), 1);
}

#[test]
fn pipes_are_not_waited_for_and_links_not_opened() {
    let dir = ground();
    rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
        .unwrap();
    assert!(said(open(&dir.path().join("pipe"))).contains("no regular file"));
    assert!(said(spot(&dir.path().join("roots")).and_then(|spot| spot.open())).contains("not followed"));
}

/// Calls that change what a path names, or read a file by its path, and the places that may.
const CALLS: [&str; 14] = [
    "fs::write(",
    "fs::remove_",
    "fs::rename(",
    "fs::create_dir",
    "DirBuilder",
    "fs::set_permissions(",
    "fs::copy(",
    "fs::hard_link(",
    "unix::fs::symlink(",
    "unix::fs::chown(",
    "temp_dir().join",
    "File::create(",
    "utimensat(",
    "std::process::id(), files::unique",
];

/// File and call; each with the reason why a path is safe there.
const ALLOWED: [(&str, &str); 7] = [
    ("os/tree.rs", ""),
    // The kernel owns what they write, below /proc.
    ("tasks/hostname.rs", "fs::write("),
    // gpufleet's own state directory, which only its user can write and which is checked when it is opened.
    ("state/jobs.rs", "fs::remove_"),
    ("state/spool.rs", "fs::remove_"),
    ("state/record.rs", "fs::remove_"),
    ("state/lock.rs", "fs::remove_"),
    // Used by tests only.
    ("tasks/testing.rs", ""),
];

#[test]
fn nothing_else_changes_anything_by_its_path() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![source.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&source).unwrap().display().to_string();
            if name.contains("tests") || name.ends_with("tasks/real.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            for call in CALLS.iter().filter(|call| code.contains(**call)) {
                if !ALLOWED.iter().any(|(file, allowed)| *file == name && call.starts_with(allowed)) {
                    found.push(format!("{name}: {call}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "these go by a path, and have to go through `os::tree`: {found:#?}");
}
