//! Writing files so that no reader ever sees an incomplete one.
//!
//! Owns temporary files, their attributes, renames and syncs. A [`Fresh`] file has no place until [`Fresh::place`]
//! renames it; if dropped before, it is removed. Errors name the path and the action.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

pub use gpufleet_protocol::hex;
use rustix::fs::{Gid, Uid, XattrFlags};
use sha2::{Digest, Sha256};

use super::tree::{self, Spot};
use crate::deadline::Deadline;

/// A failed access: the action, the path and the cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}{}", .path.display(), hint(.path, .source))]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

fn hint(path: &Path, error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EROFS) if path.starts_with("/proc") || path.starts_with("/sys") => {
            " (closed in this container)"
        }
        Some(libc::EROFS) => " (mounted read-only, often after a disk error)",
        Some(libc::ENOSPC) => " (the disk is full)",
        Some(libc::EACCES | libc::EPERM) if !rustix::process::geteuid().is_root() => {
            " (does the task lack `become: true`?)"
        }
        Some(libc::EPERM) => " (immutable, or refused by a security module)",
        _ => "",
    }
}

impl FileError {
    pub fn new(action: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self { action, path: path.as_ref().to_owned(), source: source.into() }
    }
}

/// Adds the path and the action to an error.
pub trait At<T> {
    /// # Errors
    /// The original error, with path and action.
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, FileError> {
        self.map_err(|source| FileError::new(action, path, source))
    }
}

/// Returns the SHA-256 of bytes, in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// Returns the SHA-256 and the length in bytes of a reader's content, without holding it in memory.
///
/// # Errors
/// Those of the reader.
pub fn sha256_of(mut reader: impl Read) -> io::Result<(String, u64)> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0u8; 128 * 1024];
    let mut size = 0u64;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((hex(digest.finalize()), size)),
            Ok(count) => {
                digest.update(buffer.get(..count).unwrap_or_default());
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether an extended attribute is the file's rather than its content's: capabilities and signatures belong to what was
/// written, and overlays keep notes of their own.
fn outlives_content(name: &[u8]) -> bool {
    let ours = [&b"user."[..], b"trusted.", b"security.selinux", b"system.posix_acl_access"];
    ours.iter().any(|prefix| name.starts_with(prefix)) && !name.starts_with(b"trusted.overlay.")
}

/// Whether a file is on a file system that nobody may write, such as `/sys` of a container.
pub fn is_read_only(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK) == Err(rustix::io::Errno::ROFS)
}

/// What keeps everybody, root included, from changing a path, and what ends that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub what: String,
    pub next: String,
}

/// Returns the obstacle to putting another file at a path, or to removing it. Attributes that the file system does not tell
/// are none.
pub fn obstacle(path: &Path) -> Option<Obstacle> {
    obstacle_of(path, |path| rustix::fs::lstat(path).is_ok(), is_read_only, is_fixed)
}

fn obstacle_of(
    path: &Path,
    exists: impl Fn(&Path) -> bool,
    is_read_only: impl Fn(&Path) -> bool,
    is_fixed: impl Fn(&Path) -> bool,
) -> Option<Obstacle> {
    let folder = path.ancestors().skip(1).find(|folder| exists(folder))?;
    if is_read_only(folder) {
        return Some(Obstacle {
            what: format!("{} is on a file system mounted read-only", folder.display()),
            next: format!(
                "mount it for writing (`findmnt -T {}`); the kernel does that after a disk error too, which `dmesg` tells",
                super::paths::quoted(folder)
            ),
        });
    }
    let fixed = [path, folder].into_iter().find(|path| exists(path) && is_fixed(path))?;
    Some(Obstacle {
        what: format!("{} is immutable or append-only (lsattr)", fixed.display()),
        next: format!("`chattr -i -a {}` on the node ends that", super::paths::quoted(fixed)),
    })
}

/// Whether a file or folder is immutable, or may only be appended to (chattr(1)).
fn is_fixed(path: &Path) -> bool {
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let asked = rustix::fs::statx(rustix::fs::CWD, path, flags, rustix::fs::StatxFlags::empty());
    let fixed = rustix::fs::StatxAttributes::IMMUTABLE | rustix::fs::StatxAttributes::APPEND;
    asked.is_ok_and(|stat| (stat.stx_attributes & stat.stx_attributes_mask).intersects(fixed))
}

/// Reads a whole file of at most `limit` bytes; `None` if there is no file.
///
/// # Errors
/// If it cannot be read, or is larger.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let file = match tree::open(path) {
        Ok(file) => file,
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).at("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::new("read", path, io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    Ok(Some(bytes))
}

/// Owner, group and permission bits; `None` keeps the present value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

/// A new file that has not been renamed to its place yet.
#[derive(Debug)]
pub struct Fresh {
    file: File,
    temporary: Spot,
    path: PathBuf,
    dest: Spot,
    placed: bool,
}

impl Fresh {
    /// Creates an empty file with mode 0600 in the folder of `dest`.
    ///
    /// # Errors
    /// If the folder is missing or not writable.
    pub fn beside(dest: &Path) -> Result<Self, FileError> {
        Self::at(tree::spot(dest)?)
    }

    /// As [`Fresh::beside`], for a place in an open directory.
    ///
    /// # Errors
    /// If the directory is not writable.
    pub fn at(dest: Spot) -> Result<Self, FileError> {
        let stem = dest.name().to_string_lossy();
        let (temporary, file) = dest.dir().temporary(&stem).at("write", dest.path())?;
        let path = temporary.path();
        Ok(Self { file, temporary, path, dest, placed: false })
    }

    /// The path of the content until it is placed, for programs. Whoever may write the folder can replace the file
    /// there.
    pub fn temporary(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, positioned at its end.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the content, positioned at its start; nothing may be written while it is read.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn content(&self) -> Result<File, FileError> {
        let mut file = self.file.try_clone().at("read", &self.path)?;
        file.rewind().at("read", &self.path)?;
        Ok(file)
    }

    /// # Errors
    /// If the write fails, for example on a full disk.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).at("write", self.dest.path())
    }

    /// Copies owner, mode, SELinux context and access list from the file that is replaced.
    ///
    /// # Errors
    /// If the old file cannot be read, or the mode cannot be set.
    pub fn adopt(&self) -> Result<(), FileError> {
        self.adopt_from(&self.dest)
    }

    fn adopt_from(&self, old: &Spot) -> Result<(), FileError> {
        let Some(held) = old.held_file()? else { return Ok(()) };
        let meta = held.metadata().at("look at", old.path())?;
        if !meta.is_file() {
            return Ok(());
        }
        // Ignored, because only root may give files away.
        let _ =
            rustix::fs::fchown(&self.file, Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
        self.file
            .set_permissions(fs::Permissions::from_mode(meta.mode() & 0o7777))
            .at("set the mode of", self.dest.path())?;
        let held = format!("/proc/self/fd/{}", held.as_raw_fd());
        let mut names = vec![0u8; 64 * 1024];
        let length = rustix::fs::listxattr(&held, names.as_mut_slice()).unwrap_or_default();
        names.truncate(length);
        for name in names.split(|byte| *byte == 0).filter(|name| outlives_content(name)) {
            let mut value = vec![0u8; 64 * 1024];
            if let Ok(length) = rustix::fs::getxattr(&held, name, value.as_mut_slice()) {
                value.truncate(length);
                let _ = rustix::fs::fsetxattr(&self.file, name, &value, XattrFlags::empty());
            }
        }
        Ok(())
    }

    /// Sets owner, group and mode.
    ///
    /// # Errors
    /// If the kernel refuses, for example when a user gives a file away.
    pub fn own(&self, ownership: Ownership) -> Result<(), FileError> {
        if ownership.uid.is_some() || ownership.gid.is_some() {
            let (uid, gid) = (ownership.uid.map(Uid::from_raw), ownership.gid.map(Gid::from_raw));
            rustix::fs::fchown(&self.file, uid, gid).at("set the owner of", self.dest.path())?;
        }
        if let Some(mode) = ownership.mode {
            self.file
                .set_permissions(fs::Permissions::from_mode(mode))
                .at("set the mode of", self.dest.path())?;
        }
        Ok(())
    }

    /// Writes everything to disk and renames the file to its place.
    ///
    /// # Errors
    /// If the disk fails, or the place is a directory.
    pub fn place(mut self) -> Result<(), FileError> {
        self.file.sync_all().at("write", self.dest.path())?;
        self.rename()?;
        self.dest.dir().sync();
        Ok(())
    }

    fn rename(&mut self) -> Result<(), FileError> {
        if !self.temporary.is(&self.file) {
            let error = io::Error::other("somebody put something else in the place of its new content");
            return Err(FileError::new("replace", self.dest.path(), error));
        }
        self.temporary.rename(&self.dest).at("replace", self.dest.path())?;
        self.placed = true;
        Ok(())
    }
}

/// Replaces or creates a whole file with mode 0600, without a sync: after a power cut it may be old, missing or empty.
///
/// # Errors
/// If it cannot be written; then nothing has changed.
pub fn replace_quickly(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut fresh = Fresh::beside(path)?;
    fresh.write_all(bytes)?;
    fresh.rename()
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.placed {
            let _ = self.temporary.remove();
        }
    }
}

/// Syncs the folder of `path`, so that a rename survives a power cut; ignores file systems that do not support it.
pub fn sync_folder(path: &Path) {
    if let Some(folder) = path.parent()
        && let Ok(folder) = tree::dir(folder)
    {
        folder.sync();
    }
}

/// Replaces or creates a whole file, and follows links at the end of its path. It keeps owner, mode and context of the
/// old file unless `ownership` says otherwise; a new file gets mode 0644.
///
/// # Errors
/// If it cannot be written; then nothing has changed.
pub fn replace(path: &Path, bytes: &[u8], ownership: Ownership) -> Result<(), FileError> {
    let target = tree::followed(path)?;
    let exists = target.look()?.is_some();
    let mut fresh = Fresh::at(target)?;
    fresh.write_all(bytes)?;
    if exists {
        fresh.adopt()?;
        fresh.own(ownership)?;
    } else {
        fresh.own(Ownership { mode: Some(ownership.mode.unwrap_or(0o644)), ..ownership })?;
    }
    fresh.place()
}

/// Copies a file within its folder, with the time in the new name as Ansible does; returns the path of the copy.
///
/// # Errors
/// If the copy cannot be written, or not before the deadline.
pub fn back_up(path: &Path, now: &str, deadline: &Deadline) -> Result<PathBuf, FileError> {
    let original = tree::spot(path)?;
    let mut name = original.name().to_owned();
    name.push(format!(".{}.{now}~", std::process::id()));
    let source = original.open()?;
    let size = source.metadata().at("look at", path)?.len();
    let mut fresh = Fresh::at(original.dir().spot(&name))?;
    // Checked before the copy: a user's sparse file may be larger than the disk, and its copy would fill it.
    let room = rustix::fs::fstatvfs(&fresh.file).at("look at the disk of", path)?;
    let room = room.f_bavail.saturating_mul(room.f_frsize);
    if size > room {
        let why = format!("it has {size} bytes, and the disk has room for {room}");
        return Err(FileError::new("back up", path, io::Error::other(why)));
    }
    io::copy(&mut deadline.reader(source), &mut fresh.file).at("back up", path)?;
    fresh.adopt_from(&original)?;
    fresh.place()?;
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"new", Ownership::default()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_followed_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink("target", &link).unwrap();
        replace(&link, b"new", Ownership::default()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn a_dropped_file_is_gone_and_errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = Fresh::beside(&dir.path().join("file")).unwrap();
        drop(fresh);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = replace(&dir.path().join("no/such/file"), b"", Ownership::default()).unwrap_err();
        assert!(error.to_string().contains("no/such/file: No such file"), "{error}");
    }

    #[test]
    fn a_backup_needs_room_and_ends_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        let within = |seconds| {
            let deadline = Deadline::after(std::time::Duration::from_secs(seconds));
            let done = back_up(&path, "now", &deadline);
            assert!(done.is_ok() || fs::read_dir(dir.path()).unwrap().count() == 1, "nothing is left behind");
            done.map_err(|error| error.to_string())
        };
        file.set_len(1 << 43).unwrap();
        let full = within(60).unwrap_err();
        assert!(full.contains("it has 8796093022208 bytes, and the disk has room for"), "{full}");
        file.set_len(4096).unwrap();
        assert!(within(0).unwrap_err().contains("did not end within the time"));
        assert_eq!(fs::read(within(60).unwrap()).unwrap(), vec![0; 4096]);
    }

    #[test]
    fn what_nobody_may_change_is_told_before() {
        let there = |path: &Path| !path.starts_with("/etc/new");
        let said = |path: &str, read_only: &str, fixed: &str| {
            let found = obstacle_of(
                Path::new(path),
                there,
                |path| path == Path::new(read_only),
                |path| path == Path::new(fixed),
            );
            found.map_or(String::new(), |obstacle| obstacle.what)
        };
        assert_eq!(said("/etc/new/x.conf", "/etc", ""), "/etc is on a file system mounted read-only");
        assert_eq!(
            said("/etc/x.conf", "", "/etc/x.conf"),
            "/etc/x.conf is immutable or append-only (lsattr)"
        );
        assert_eq!(said("/etc/new/x", "", "/etc"), "/etc is immutable or append-only (lsattr)");
        assert_eq!(said("/etc/x.conf", "/usr", "/usr"), "");
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(obstacle(&dir.path().join("new/file")), None);
    }

    #[test]
    fn circles_of_links_end() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("a")).unwrap();
        assert!(tree::followed(&dir.path().join("a")).is_err());
    }

    #[test]
    fn content_that_was_swapped_is_not_put_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut fresh = Fresh::beside(&dir.path().join("file")).unwrap();
        fresh.write_all(b"ours").unwrap();
        fs::remove_file(fresh.temporary()).unwrap();
        fs::write(fresh.temporary(), "theirs").unwrap();
        assert!(fresh.place().unwrap_err().to_string().contains("somebody put something else"));
        assert!(!dir.path().join("file").exists());
    }
}
