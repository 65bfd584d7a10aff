//! Returns nodes to their state at the fleet's start, without a restart of the fleet.
//!
//! At the start, each node's own files are copied. A restore marks the nodes, ends their first processes, and waits.
//! Each node's supervisor restores the copy and boots the node, so a node that vanished or never booted returns too.
//! A restored node has lost everything since its start, including its logs; only its name, its keys and its port
//! stay.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_sim::store::Store;

use crate::spec::NodeSpec;

/// The parts of a node's state; everything else in its directory is written at every boot.
const PARTS: [&str; 6] = ["upper", "home", "units", "sysctl.d", "grub.d", "state"];
const COPY: &str = "initial";
const MARK: &str = "restore";
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(
        "{0} is no directory of a running lab\nhelp: name the one that `gpufleet-lab up --dir` was given"
    )]
    NoLab(PathBuf),
    #[error("cannot restore {node}: {source}")]
    Node { node: String, source: io::Error },
    #[error("{0} did not come back within 60 s; its console.log may say why")]
    NotBack(String),
}

/// Copies a new node's files.
pub fn keep(dir: &Path) -> io::Result<()> {
    for part in PARTS {
        copy(&dir.join(part), &dir.join(COPY).join(part))?;
    }
    Ok(())
}

/// Whether the node is to be restored.
pub fn asked(dir: &Path) -> bool {
    dir.join(MARK).exists()
}

/// Restores the copy; the node must not run. Its next boot is its first, under a new boot id.
pub fn put_back(dir: &Path) -> io::Result<()> {
    for part in PARTS.iter().copied().chain(["work"]) {
        empty(&dir.join(part))?;
    }
    for part in PARTS {
        copy(&dir.join(COPY).join(part), &dir.join(part))?;
    }
    fs::write(dir.join("console.log"), "")?;
    Store::new(dir.join("state/node.json"))
        .update(|machine| machine.boot_id = uuid::Uuid::new_v4().to_string())
        .map_err(io::Error::other)?;
    fs::remove_file(dir.join(MARK))
}

/// Restores all nodes of a running fleet and waits until each answers.
pub fn restore(dir: &Path) -> Result<(), RestoreError> {
    let nodes = nodes(dir)?;
    for node in &nodes {
        let failed = |source| RestoreError::Node { node: name(node), source };
        fs::write(node.join(MARK), "").map_err(failed)?;
        super::fleet::kill_node(node);
    }
    let limit = Instant::now() + LIMIT;
    for node in &nodes {
        let failed = |source| RestoreError::Node { node: name(node), source };
        let port = NodeSpec::load(node).map_err(failed)?.port;
        while asked(node) || !super::fleet::speaks_ssh(port) {
            if Instant::now() > limit {
                return Err(RestoreError::NotBack(name(node)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// Returns the directories of a fleet's nodes, sorted by name.
pub fn nodes(dir: &Path) -> Result<Vec<PathBuf>, RestoreError> {
    let entries = fs::read_dir(dir.join("nodes")).map_err(|_| RestoreError::NoLab(dir.to_owned()))?;
    let mut nodes: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    nodes.sort();
    Ok(nodes)
}

pub fn name(node: &Path) -> String {
    node.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Removes the contents of a directory, but not the directory, which may be a mount source.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Copies a directory with owners, modes and links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    own(from, to)?;
    for entry in fs::read_dir(from)? {
        let (source, target) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        let kind = fs::symlink_metadata(&source)?.file_type();
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::copy(&source, &target)?;
            own(&source, &target)?;
        }
    }
    Ok(())
}

fn own(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    // Ignored, because a user namespace has one owner only.
    let _ = lchown(to, Some(meta.uid()), Some(meta.gid()));
    fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use nvml_sim::model::ModelKey;
    use nvml_sim::state::Machine;

    use super::*;

    #[test]
    fn what_was_there_comes_back_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for part in PARTS.iter().copied().chain(["work"]) {
            fs::create_dir(at(part)).unwrap();
        }
        let store = Store::new(at("state/node.json"));
        store.create(&Machine::new("gpu001", &[ModelKey::H100], "first".to_owned())).unwrap();
        fs::create_dir(at("upper/etc")).unwrap();
        fs::write(at("upper/etc/passwd"), "root").unwrap();
        fs::set_permissions(at("upper/etc/passwd"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("nowhere", at("upper/link")).unwrap();
        keep(dir.path()).unwrap();

        fs::write(at("upper/etc/passwd"), "changed").unwrap();
        fs::write(at("upper/etc/more"), "").unwrap();
        fs::write(at("state/events.jsonl"), "{}\n").unwrap();
        fs::remove_file(at("upper/link")).unwrap();
        store.update(|machine| machine.reboot("second".to_owned())).unwrap();
        fs::write(at(MARK), "").unwrap();
        assert!(asked(dir.path()));

        put_back(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(at("upper/etc/passwd")).unwrap(), "root");
        assert_eq!(fs::metadata(at("upper/etc/passwd")).unwrap().mode() & 0o777, 0o600);
        assert!(!at("upper/etc/more").exists() && !at("state/events.jsonl").exists());
        assert_eq!(fs::read_link(at("upper/link")).unwrap(), Path::new("nowhere"));
        let machine = Store::new(at("state/node.json")).read().unwrap();
        assert_eq!(machine.boots, 1);
        assert!(machine.boot_id != "first" && machine.boot_id != "second");
        assert!(!asked(dir.path()));
    }
}
