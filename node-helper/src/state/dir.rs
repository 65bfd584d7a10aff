//! The state directory: its path, and the check that no other user can write it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::os::{
    files::{At, FileError, Ownership},
    roots::Roots,
    tree,
};

#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the state directory {} is {what}; remove it, or make it a directory of uid {uid} with mode 0700", .path.display())]
    NotOurs { path: PathBuf, what: String, uid: u32 },
    #[error(
        "there is no place for the state directory: HOME is not set and /var/lib/gpufleet belongs to root"
    )]
    NoPlace,
}

/// What the command line says about the state directory.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Replaces the usual path.
    pub given: Option<PathBuf>,
    /// The host name that the controller's own machine is used under.
    pub local: Option<String>,
}

/// Returns the path of this user's state directory, which need not exist.
///
/// Root's is `/var/lib/gpufleet`; another user's is in that user's home, unless `/var/lib/gpufleet` is theirs. On the
/// controller's own machine, each host has its own directory below it, as several hosts may stand for that machine;
/// `localhost` is the machine itself. There `XDG_STATE_HOME` counts, as for the controller.
///
/// # Errors
/// If the user has no home.
pub fn locate(roots: &Roots, place: &Place) -> Result<PathBuf, StateDirError> {
    if let Some(path) = &place.given {
        return Ok(path.clone());
    }
    let Some(local) = &place.local else { return of_user(roots) };
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let base = match state.filter(|state| state.is_absolute() && roots.is_real()) {
        Some(state) => state.join("gpufleet-node"),
        None => of_user(roots)?,
    };
    Ok(if local == "localhost" { base } else { base.join("local").join(local) })
}

fn of_user(roots: &Roots) -> Result<PathBuf, StateDirError> {
    let system = roots.path("/var/lib/gpufleet");
    let uid = rustix::process::geteuid();
    let theirs = fs::symlink_metadata(&system).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid.as_raw());
    if uid.is_root() || theirs || !roots.is_real() {
        return Ok(system);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    Ok(of_home(&home.ok_or(StateDirError::NoPlace)?))
}

/// Returns the state directory of a user who is not root.
pub fn of_home(home: &Path) -> PathBuf {
    home.join(".local/state/gpufleet-node")
}

/// Whether the directory exists and is safe to use.
///
/// # Errors
/// If something else is there, or others can write to it.
pub fn check(path: &Path) -> Result<bool, StateDirError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(FileError::new("look at", path, error).into()),
    };
    let uid = rustix::process::geteuid().as_raw();
    let not_ours = |what: String| StateDirError::NotOurs { path: path.to_owned(), what, uid };
    if meta.is_symlink() {
        return Err(not_ours("a link".to_owned()));
    }
    if !meta.is_dir() {
        return Err(not_ours("no directory".to_owned()));
    }
    if meta.uid() != uid {
        return Err(not_ours(format!("owned by uid {}", meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(not_ours(format!("writable by others (mode {:04o})", meta.mode() & 0o7777)));
    }
    Ok(true)
}

/// Creates the directory with mode 0700, or checks the existing one.
///
/// # Errors
/// As [`check`], and if the disk is full or read-only.
pub fn make(path: &Path) -> Result<(), StateDirError> {
    if check(path)? {
        let private = Ownership { mode: Some(0o700), ..Ownership::default() };
        return Ok(tree::spot(path)?.own_as(true, false, private)?);
    }
    let parent = tree::make_dirs(path.parent().unwrap_or(Path::new("/")))?;
    let name = path.file_name().unwrap_or_default();
    Ok(parent.spot(name).make_new_dir(0o700).at("make", path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_made_private_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/state");
        make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        make(&path).unwrap();
    }

    #[test]
    fn links_files_and_open_doors_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(make(&link).unwrap_err().to_string().contains("is a link"));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(make(&file).unwrap_err().to_string().contains("is no directory"));
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make(&open).unwrap_err().to_string().contains("writable by others (mode 0777)"));
    }
}
