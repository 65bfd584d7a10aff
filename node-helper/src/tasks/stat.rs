//! `stat`: the attributes of a path under Ansible's names.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use gpufleet_protocol::tasks::{ChecksumAlgorithm, Stat};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        checksum,
        files::{At, FileError},
        mode, tree,
        users::Users,
    },
    world::{Content, Effect, Entry},
};

impl NodeKind for Stat {
    type State = Map<String, Value>;
    type Step = ();

    fn observe(&self, node: &Node<'_>) -> Result<Self::State, Trouble> {
        let given = node.roots.path(&self.path);
        let (path, entry) = if self.follow {
            node.world.follow_anywhere(&given)?
        } else {
            let entry = node.world.entry(&given)?;
            (given, entry)
        };
        let mut stat = Map::new();
        stat.insert("exists".to_owned(), json!(entry != Entry::Absent));
        let assumed = matches!(&entry, Entry::File { content, .. } if *content != Content::On(path.clone()));
        match fs::symlink_metadata(&path) {
            _ if entry == Entry::Absent => {}
            Ok(meta) if !assumed => describe(&mut stat, &path, &meta),
            Ok(_) => foreseen(&mut stat, &entry),
            Err(error) if error.kind() == io::ErrorKind::NotFound => foreseen(&mut stat, &entry),
            Err(error) => return Err(FileError::new("look at", &path, error).into()),
        }
        if entry != Entry::Absent {
            stat.insert("path".to_owned(), json!(self.path));
            let owned = entry.owned();
            let name = |id: Option<u32>, of: &dyn Fn(u32) -> Option<String>| id.and_then(of);
            stat.insert(
                "pw_name".to_owned(),
                json!(name(owned.map(|o| o.uid), &|id| node.users.user_name(id))),
            );
            stat.insert(
                "gr_name".to_owned(),
                json!(name(owned.map(|o| o.gid), &|id| node.users.group_name(id))),
            );
        }
        match &entry {
            Entry::Link { target, .. } => {
                stat.insert("lnk_target".to_owned(), json!(target));
                let source = node.world.follow_anywhere(&path).map(|(end, _)| end);
                stat.insert("lnk_source".to_owned(), json!(source.unwrap_or_else(|_| target.clone())));
            }
            Entry::File { content, .. } if self.get_checksum => {
                let algorithm = self.checksum_algorithm;
                let sum = match content {
                    Content::On(place) => {
                        let file = tree::open(place)?;
                        Some(checksum::of(algorithm, node.deadline.reader(file)).at("read", place)?)
                    }
                    Content::Known(bytes) => Some(checksum::of(algorithm, &**bytes).at("read", &path)?),
                    Content::Digest { sha256, .. } => {
                        (algorithm == ChecksumAlgorithm::Sha256).then(|| sha256.clone())
                    }
                };
                if let Some(sum) = sum {
                    stat.insert("checksum".to_owned(), json!(sum));
                }
            }
            _ => {}
        }
        Ok(stat)
    }

    fn plan(&self, _: &Self::State) -> Result<Plan<()>, Trouble> {
        Ok(Plan::default())
    }

    fn after(&self, _: &Self::State, _: &Plan<()>) -> Vec<Effect> {
        Vec::new()
    }

    fn apply(&self, _: &Node<'_>, _: &Self::State, _: &Plan<()>) -> Result<Map<String, Value>, Trouble> {
        Ok(Map::new())
    }

    fn data(&self, state: &Self::State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("stat".to_owned(), Value::Object(state.clone()));
        data
    }
}

/// Adds what `find` returns for a file.
pub fn brief(stat: &mut Map<String, Value>, meta: &fs::Metadata, users: &Users) {
    plain(stat, meta);
    stat.insert("pw_name".to_owned(), json!(users.user_name(meta.uid()).unwrap_or_default()));
    stat.insert("gr_name".to_owned(), json!(users.group_name(meta.gid()).unwrap_or_default()));
}

fn kinds(stat: &mut Map<String, Value>, is: [(&str, bool); 7]) {
    for (name, value) in is {
        stat.insert(name.to_owned(), json!(value));
    }
}

fn describe(stat: &mut Map<String, Value>, path: &Path, meta: &fs::Metadata) {
    plain(stat, meta);
    let access = |access| rustix::fs::access(path, access).is_ok();
    let values = [
        ("readable", json!(access(rustix::fs::Access::READ_OK))),
        ("writeable", json!(access(rustix::fs::Access::WRITE_OK))),
        ("executable", json!(access(rustix::fs::Access::EXEC_OK))),
        ("block_size", json!(meta.blksize())),
        ("blocks", json!(meta.blocks())),
        ("device_type", json!(meta.rdev())),
    ];
    for (name, value) in values {
        stat.insert(name.to_owned(), value);
    }
}

fn plain(stat: &mut Map<String, Value>, meta: &fs::Metadata) {
    let kind = meta.file_type();
    kinds(
        stat,
        [
            ("isdir", kind.is_dir()),
            ("isreg", kind.is_file()),
            ("islnk", kind.is_symlink()),
            ("isblk", kind.is_block_device()),
            ("ischr", kind.is_char_device()),
            ("isfifo", kind.is_fifo()),
            ("issock", kind.is_socket()),
        ],
    );
    let seconds = |whole: i64, nanoseconds: i64| json!(whole as f64 + nanoseconds as f64 / 1e9);
    let values = [
        ("mode", json!(mode::octal(meta.mode()))),
        ("uid", json!(meta.uid())),
        ("gid", json!(meta.gid())),
        ("size", json!(meta.size())),
        ("inode", json!(meta.ino())),
        ("dev", json!(meta.dev())),
        ("nlink", json!(meta.nlink())),
        ("atime", seconds(meta.atime(), meta.atime_nsec())),
        ("mtime", seconds(meta.mtime(), meta.mtime_nsec())),
        ("ctime", seconds(meta.ctime(), meta.ctime_nsec())),
    ];
    for (name, value) in values {
        stat.insert(name.to_owned(), value);
    }
    bits(stat, meta.mode());
}

fn bits(stat: &mut Map<String, Value>, mode: u32) {
    let names = [
        ("rusr", 0o400),
        ("wusr", 0o200),
        ("xusr", 0o100),
        ("rgrp", 0o040),
        ("wgrp", 0o020),
        ("xgrp", 0o010),
        ("roth", 0o004),
        ("woth", 0o002),
        ("xoth", 0o001),
        ("isuid", 0o4000),
        ("isgid", 0o2000),
    ];
    for (name, bit) in names {
        stat.insert(name.to_owned(), json!(mode & bit != 0));
    }
}

/// Adds what a prediction knows of a path that an earlier task creates.
fn foreseen(stat: &mut Map<String, Value>, entry: &Entry) {
    kinds(
        stat,
        [
            ("isdir", matches!(entry, Entry::Directory { .. })),
            ("isreg", matches!(entry, Entry::File { .. })),
            ("islnk", matches!(entry, Entry::Link { .. })),
            ("isblk", false),
            ("ischr", false),
            ("isfifo", false),
            ("issock", false),
        ],
    );
    if let Some(owned) = entry.owned() {
        stat.insert("mode".to_owned(), json!(mode::octal(owned.mode)));
        stat.insert("uid".to_owned(), json!(owned.uid));
        stat.insert("gid".to_owned(), json!(owned.gid));
        bits(stat, owned.mode);
    }
    let size = match entry {
        Entry::File { content: Content::Known(bytes), .. } => Some(bytes.len() as u64),
        Entry::File { content: Content::Digest { size, .. }, .. } => Some(*size),
        _ => None,
    };
    if let Some(size) = size {
        stat.insert("size".to_owned(), json!(size));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::{tasks::testing::Bench, world::Owned};

    fn stat(path: &str, follow: bool) -> Stat {
        serde_json::from_value(json!({"path": path, "follow": follow})).unwrap()
    }

    #[test]
    fn a_file_a_link_and_nothing() {
        let bench = Bench::new();
        bench.write("etc/file", "text");
        std::os::unix::fs::symlink("file", bench.path("etc/link")).unwrap();
        let done = bench.run(&stat("/etc/file", false), Mode::Apply);
        assert_eq!(done.status, OpStatus::Ok);
        let seen = &done.data["stat"];
        assert_eq!(
            (&seen["exists"], &seen["isreg"], &seen["size"], &seen["mode"]),
            (&json!(true), &json!(true), &json!(4), &json!("0644"))
        );
        assert_eq!(seen["checksum"], json!("372ea08cab33e71c02c651dbc83a474d32c676ea"));
        let long: Stat =
            serde_json::from_value(json!({"path": "/etc/file", "checksum_algorithm": "sha256"})).unwrap();
        let seen256 = bench.run(&long, Mode::Apply);
        assert_eq!(seen256.data["stat"]["checksum"], json!(crate::os::files::sha256(b"text")));
        assert_eq!(seen["pw_name"], json!("me"));
        let link = bench.run(&stat("/etc/link", false), Mode::Predict);
        assert_eq!(
            (&link.data["stat"]["islnk"], &link.data["stat"]["lnk_target"]),
            (&json!(true), &json!("file"))
        );
        let followed = bench.run(&stat("/etc/link", true), Mode::Predict);
        assert_eq!(followed.data["stat"]["isreg"], json!(true));
        let none = bench.run(&stat("/etc/none", false), Mode::Predict);
        assert_eq!(none.data["stat"], json!({"exists": false}));
    }

    #[test]
    fn what_is_foreseen_is_seen() {
        let bench = Bench::new();
        let owned = Owned { uid: 0, gid: 0, mode: 0o600 };
        let entry = Entry::File { owned, content: Content::Known(b"abc".as_slice().into()) };
        bench.overlay.assume([Effect::Path { path: bench.path("etc/new"), entry }]);
        let seen = bench.run(&stat("/etc/new", false), Mode::Predict);
        assert_eq!((&seen.data["stat"]["size"], &seen.data["stat"]["mode"]), (&json!(3), &json!("0600")));
        assert_eq!(bench.run(&stat("/etc/new", false), Mode::Apply).data["stat"], json!({"exists": false}));
    }
}
