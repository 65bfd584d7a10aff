//! Removes what the helper keeps on the node: its state directory and its own file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    keep,
    os::{
        files::{At, FileError},
        roots::Roots,
        tree,
    },
};

/// Removes the state directory, the pushed file, other versions of it, and their folder.
///
/// # Errors
/// If something cannot be removed; the rest is removed.
pub fn clean(roots: &Roots, state_dir: &Path) -> Result<(), String> {
    // First: a unit whose state is gone would tell of it at each boot.
    let kept = keep::remove(roots);
    let state = match tree::remove_all(state_dir, &|| true) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    let file = own_file().map_or(Ok(()), |path| remove_pushed(&path));
    kept.and(state.and(file).map_err(|error| error.to_string()))
}

fn own_file() -> Option<PathBuf> {
    fs::read_link("/proc/self/exe").ok()
}

/// Whether the name holds a digest, as that of a pushed file does; no other file is ever removed.
fn is_pushed(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    name.split(|c: char| !c.is_ascii_hexdigit()).any(|part| part.len() == 64)
}

fn remove_pushed(path: &Path) -> Result<(), FileError> {
    if !is_pushed(path) {
        return Ok(());
    }
    let place = tree::spot(path.parent().unwrap_or(path))?;
    let folder = place.enter()?;
    for name in folder.names()? {
        if is_pushed(Path::new(&name)) {
            folder.spot(&name).remove().at("remove", folder.path().join(&name))?;
        }
    }
    // Ignored, because a folder with other content must stay.
    let _ = place.remove_dir();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_named_by_a_digest_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("gpufleet");
        fs::create_dir(&folder).unwrap();
        let (one, two) = (folder.join("a".repeat(64)), folder.join(format!("node-{}", "b".repeat(64))));
        let other = folder.join("notes");
        for path in [&one, &two, &other] {
            fs::write(path, "").unwrap();
        }
        remove_pushed(&other).unwrap();
        assert!(other.exists() && one.exists());
        remove_pushed(&one).unwrap();
        assert!(!one.exists() && !two.exists() && other.exists());
        fs::remove_file(&other).unwrap();
        fs::write(&one, "").unwrap();
        remove_pushed(&one).unwrap();
        assert!(!folder.exists());
    }
}
