//! `copy` of a directory: its directories and files in order, each planned, applied and verified by its own kind.

use std::path::Path;

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    op::{PutFile, PutTree, TreeEntry},
    tasks::{File, FileMode, FileState},
};
use serde_json::json;

use crate::{
    declare::{Node, Trouble},
    world::Entry,
};

/// Largest number of paths below one directory; more are refused.
const MOST_PATHS: usize = 100_000;

/// One entry of the tree.
pub enum Part {
    Directory(Box<File>),
    File(Box<PutFile>),
}

fn file(path: String, state: FileState) -> File {
    File {
        path,
        state: Some(state),
        src: None,
        owner: None,
        group: None,
        mode: None,
        recurse: false,
        force: true,
        follow: true,
        modification_time: None,
        access_time: None,
    }
}

/// Returns the tree for a source that is a directory on the node.
///
/// # Errors
/// If the source cannot be read.
pub fn of_directory(task: &PutFile, node: &Node<'_>) -> Result<Option<PutTree>, Trouble> {
    let Some(source) = &task.remote_src else { return Ok(None) };
    if !matches!(node.world.follow(&node.roots.path(source))?.1, Entry::Directory { .. }) {
        return Ok(None);
    }
    let dest = task.dest.trim_end_matches('/');
    let dest = if source.ends_with('/') { dest.to_owned() } else { format!("{dest}/{}", task.name) };
    Ok(Some(PutTree {
        dest,
        told: Some((source.clone(), task.dest.clone())),
        entries: Vec::new(),
        remote_src: Some(source.clone()),
        owner: task.owner.clone(),
        group: task.group.clone(),
        mode: task.mode.clone(),
        directory_mode: task.directory_mode.clone(),
        backup: task.backup,
        force: task.force,
        follow: task.follow,
        secret: task.secret,
    }))
}

/// Lists a directory of the node, as the controller lists its own.
fn listed(source: &str, node: &Node<'_>) -> Result<Vec<TreeEntry>, Trouble> {
    let root = node.roots.path(source);
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        node.check_time()?;
        for name in node.world.names(&root.join(&folder))? {
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if found.len() >= MOST_PATHS {
                return Err(Trouble::invalid(format!("more than {MOST_PATHS} paths are below {source}")));
            }
            let mut entry =
                TreeEntry { path: path.clone(), blob: None, link: None, mode: None, preview: None };
            match node.world.entry(&root.join(&path))? {
                Entry::Directory { .. } => folders.push(path),
                Entry::Link { target, .. } => entry.link = Some(target.to_string_lossy().into_owned()),
                Entry::File { .. } => entry.mode = Some(FileMode("preserve".to_owned())),
                Entry::Absent | Entry::Other { .. } => continue,
            }
            found.push(entry);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Returns all parts in the order of their creation.
///
/// # Errors
/// If a directory of the node cannot be read, or a path leads out of the tree.
pub fn parts(task: &PutTree, node: &Node<'_>) -> Result<Vec<Part>, Trouble> {
    let root = task.dest.trim_end_matches('/');
    let directory = |path: String| File {
        owner: task.owner.clone(),
        group: task.group.clone(),
        mode: task.directory_mode.clone(),
        ..file(path, FileState::Directory)
    };
    let mut parts = vec![Part::Directory(Box::new(directory(root.to_owned())))];
    let on_node = match &task.remote_src {
        Some(source) => listed(source, node)?,
        None => Vec::new(),
    };
    for entry in task.entries.iter().chain(&on_node) {
        if entry.path.starts_with('/') || entry.path.split('/').any(|part| part == ".." || part.is_empty()) {
            return Err(Trouble::invalid(format!("`{}` leads out of {}", entry.path, task.dest)));
        }
        let dest = format!("{root}/{}", entry.path);
        if let Some(target) = &entry.link {
            let link = File { src: Some(target.clone()), follow: false, ..file(dest, FileState::Link) };
            parts.push(Part::Directory(Box::new(link)));
            continue;
        }
        if entry.blob.is_none() && entry.mode.is_none() {
            parts.push(Part::Directory(Box::new(directory(dest))));
            continue;
        }
        let name = Path::new(&entry.path).file_name().map(|name| name.to_string_lossy().into_owned());
        let preserve = task.mode.as_ref().is_some_and(FileMode::is_preserve);
        let source =
            task.remote_src.as_ref().map(|source| format!("{}/{}", source.trim_end_matches('/'), entry.path));
        let new_mode =
            if preserve || source.is_some() && task.mode.is_none() { &entry.mode } else { &task.mode };
        parts.push(Part::File(Box::new(PutFile {
            dest,
            name: name.unwrap_or_default(),
            blob: entry.blob.clone(),
            remote_src: source,
            preview: entry.preview.clone(),
            owner: task.owner.clone(),
            group: task.group.clone(),
            mode: new_mode.clone(),
            backup: task.backup,
            force: task.force,
            validate: None,
            secret: task.secret,
            follow: task.follow,
            checksum: None,
            directory_mode: None,
            source: None,
            tells_diff: false,
        })));
    }
    Ok(parts)
}

/// Runs the parts and combines their outcomes; returns early if one of them ends the task.
///
/// # Errors
/// Those of a part.
pub fn run(
    task: &PutTree,
    node: &Node<'_>,
    mut one: impl FnMut(&Part) -> Result<OpOutcome, Trouble>,
) -> Result<OpOutcome, Trouble> {
    let mut whole = OpOutcome::new(OpStatus::Ok);
    for part in parts(task, node)? {
        node.check_time()?;
        let outcome = one(&part)?;
        whole.changes.extend(outcome.changes);
        whole.warnings.extend(outcome.warnings);
        match outcome.status {
            OpStatus::Ok => {}
            OpStatus::Changed => whole.status = OpStatus::Changed,
            status => {
                whole.status = status;
                break;
            }
        }
    }
    let (src, dest) = match &task.told {
        Some((src, dest)) => (Some(src), dest),
        None => (task.remote_src.as_ref(), &task.dest),
    };
    whole.data.insert("dest".to_owned(), json!(dest));
    if let Some(src) = src {
        whole.data.insert("src".to_owned(), json!(src));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use gpufleet_protocol::message::Mode;

    use super::*;
    use crate::tasks::testing::{Bench, changed};

    fn all(bench: &Bench, task: &PutTree, mode: Mode) -> OpOutcome {
        let run = |part: &Part| match part {
            Part::Directory(file) => Ok(bench.run(&**file, mode)),
            Part::File(file) => Ok(bench.run(&**file, mode)),
        };
        bench.node(|node| super::run(task, node, run).unwrap_or_else(Trouble::outcome))
    }

    fn tree(entries: Vec<TreeEntry>) -> PutTree {
        PutTree {
            dest: "/srv/new/tree/".into(),
            told: Some(("/files/tree".into(), "/srv/new/".into())),
            entries,
            remote_src: None,
            owner: None,
            group: None,
            mode: None,
            directory_mode: Some(FileMode("0750".into())),
            backup: false,
            force: true,
            follow: false,
            secret: false,
        }
    }

    #[test]
    fn a_tree_is_put_once_and_looks_as_predicted() {
        use std::os::unix::fs::PermissionsExt;
        let mut bench = Bench::new();
        bench.write("srv/keep", "");
        let entry =
            |path: &str, blob| TreeEntry { path: path.into(), blob, link: None, mode: None, preview: None };
        let (one, two) = (bench.put("one"), bench.put("two"));
        let task = tree(vec![entry("a", Some(one)), entry("sub", None), entry("sub/b", Some(two))]);
        let before = bench.snapshot();
        let predicted = all(&bench, &task, Mode::Predict);
        assert_eq!((&predicted.status, predicted.changes.len()), (&OpStatus::Changed, 4), "{predicted:?}");
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        assert_eq!(all(&bench, &task, Mode::Predict).status, OpStatus::Ok);
        let done = all(&bench, &task, Mode::Apply);
        assert_eq!(done.changes, predicted.changes);
        assert_eq!(
            (bench.read("srv/new/tree/a"), bench.read("srv/new/tree/sub/b")),
            ("one".into(), "two".into())
        );
        assert_eq!(
            fs::metadata(bench.path("srv/new/tree/sub")).unwrap().permissions().mode() & 0o7777,
            0o750
        );
        assert_eq!(all(&bench, &task, Mode::Apply).status, OpStatus::Ok);
        let file = serde_json::json!({"dest": "/srv/copies", "name": "tree", "blob": null, "remote_src": "/srv/new/tree",
            "preview": null, "owner": null, "group": null, "mode": null, "backup": false, "force": true,
            "validate": null, "secret": false});
        let file: PutFile = serde_json::from_value(file).unwrap();
        let again = bench.node(|node| of_directory(&file, node)).unwrap().expect("a directory");
        assert_eq!(again.dest, "/srv/copies/tree");
        let again = PutTree { dest: "/srv/copy".into(), ..again };
        assert_eq!(all(&bench, &again, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("srv/copy/sub/b"), "two");
        assert_eq!(all(&bench, &again, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        let bench = Bench::new();
        let entry = TreeEntry { path: "../x".into(), blob: None, link: None, mode: None, preview: None };
        assert!(matches!(all(&bench, &tree(vec![entry]), Mode::Apply).status, OpStatus::Failed { .. }));
    }
}
