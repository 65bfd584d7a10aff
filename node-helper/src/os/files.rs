//! Writing files so that nobody ever sees half of one.
//!
//! Owns temporary files, their attributes, renames and syncs. A [`Fresh`] file is invisible until [`Fresh::place`]
//! renamed it; dropped before that, it is removed. Errors name the path and what was being done.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Uid, XattrFlags},
    io::Errno,
};
use sha2::{Digest, Sha256};

/// A failed access: what was tried, where, why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}{}", .path.display(), hint(.source))]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
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

/// Attaches the path and the action to an error.
pub trait At<T> {
    /// # Errors
    /// The one it had, with path and action.
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, FileError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, action: &'static str, path: impl AsRef<Path>) -> Result<T, FileError> {
        self.map_err(|source| FileError::new(action, path, source))
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// SHA-256 of bytes, as lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 and length of what a reader gives, without holding it.
///
/// # Errors
/// Those of the reader.
pub fn sha256_of(mut reader: impl Read) -> io::Result<(String, u64)> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0u8; 128 * 1024];
    let mut size = 0u64;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((hex(&digest.finalize()), size)),
            Ok(count) => {
                digest.update(buffer.get(..count).unwrap_or_default());
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads a whole file of at most `limit` bytes; `None` where there is none.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("read", path, error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).at("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(FileError::new("read", path, io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    Ok(Some(bytes))
}

/// Owner, group and permission bits; `None` leaves what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

/// A number that this process gives only once.
pub fn unique() -> u64 {
    COUNTER.fetch_add(1, Ordering::Relaxed)
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A file that is not yet at its place.
#[derive(Debug)]
pub struct Fresh {
    file: File,
    temporary: PathBuf,
    dest: PathBuf,
    placed: bool,
}

impl Fresh {
    /// A new, empty file with mode 0600 in the folder of `dest`.
    ///
    /// # Errors
    /// The folder is missing or cannot be written.
    pub fn beside(dest: &Path) -> Result<Self, FileError> {
        let (Some(folder), Some(name)) = (dest.parent(), dest.file_name()) else {
            return Err(FileError::new("write", dest, io::Error::from(io::ErrorKind::InvalidInput)));
        };
        let mut tries = 0;
        loop {
            let number = unique();
            // Why cut: a name near the limit of 255 bytes leaves no room for the suffix.
            let stem: String = name.to_string_lossy().chars().take(48).collect();
            let mut temporary = OsString::from(".");
            temporary.push(format!("{stem}.gpufleet-{}-{number}", std::process::id()));
            let temporary = folder.join(temporary);
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&temporary);
            match opened {
                Ok(file) => return Ok(Self { file, temporary, dest: dest.to_owned(), placed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(error) => return Err(FileError::new("write", dest, error)),
            }
        }
    }

    /// Where the content is until it is placed.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// # Errors
    /// The disk is full, for example.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).at("write", &self.dest)
    }

    /// Takes over owner, mode, SELinux context and access list of the file that is replaced.
    ///
    /// # Errors
    /// The old file cannot be looked at, or the mode not be set.
    pub fn adopt(&self, old: &Path) -> Result<(), FileError> {
        let meta = fs::symlink_metadata(old).at("look at", old)?;
        if !meta.is_file() {
            return Ok(());
        }
        // Why ignored: only root may give files away; a user keeps what a user can.
        let _ =
            rustix::fs::fchown(&self.file, Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
        self.file
            .set_permissions(fs::Permissions::from_mode(meta.mode() & 0o7777))
            .at("set the mode of", &self.dest)?;
        for name in ["security.selinux", "system.posix_acl_access"] {
            let mut value = vec![0u8; 4096];
            if let Ok(length) = rustix::fs::lgetxattr(old, name, value.as_mut_slice()) {
                value.truncate(length);
                let _ = rustix::fs::fsetxattr(&self.file, name, &value, XattrFlags::empty());
            }
        }
        Ok(())
    }

    /// Sets owner, group and mode.
    ///
    /// # Errors
    /// The kernel refuses, as it does when a user gives a file away.
    pub fn own(&self, ownership: Ownership) -> Result<(), FileError> {
        if ownership.uid.is_some() || ownership.gid.is_some() {
            let (uid, gid) = (ownership.uid.map(Uid::from_raw), ownership.gid.map(Gid::from_raw));
            rustix::fs::fchown(&self.file, uid, gid).at("set the owner of", &self.dest)?;
        }
        if let Some(mode) = ownership.mode {
            self.file.set_permissions(fs::Permissions::from_mode(mode)).at("set the mode of", &self.dest)?;
        }
        Ok(())
    }

    /// Writes all to the disk and puts the file in its place.
    ///
    /// # Errors
    /// The disk fails, or the place is a directory.
    pub fn place(mut self) -> Result<(), FileError> {
        self.file.sync_all().at("write", &self.dest)?;
        fs::rename(&self.temporary, &self.dest).at("replace", &self.dest)?;
        self.placed = true;
        sync_folder(&self.dest);
        Ok(())
    }
}

/// Replaces or makes a file as a whole with mode 0600, and leaves it to the kernel when it reaches the disk: after a
/// power cut the file may be old, missing or empty.
///
/// # Errors
/// Nothing was changed.
pub fn replace_quickly(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut fresh = Fresh::beside(path)?;
    fresh.write_all(bytes)?;
    fs::rename(&fresh.temporary, path).at("replace", path)?;
    fresh.placed = true;
    Ok(())
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Makes a rename in the folder of `path` last; file systems that cannot are left alone.
pub fn sync_folder(path: &Path) {
    if let Some(folder) = path.parent()
        && let Ok(folder) = File::open(folder)
    {
        let _ = folder.sync_all();
    }
}

/// Sets owner, group and mode of what is at a path, itself and not what a link there points to.
///
/// # Errors
/// The kernel refuses.
pub fn set_ownership(path: &Path, ownership: Ownership) -> Result<(), FileError> {
    // Why a descriptor: between two calls by name somebody could put a link there.
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .at("look at", path)?;
    if ownership.uid.is_some() || ownership.gid.is_some() {
        let (uid, gid) = (ownership.uid.map(Uid::from_raw), ownership.gid.map(Gid::from_raw));
        rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH).at("set the owner of", path)?;
    }
    if let Some(mode) = ownership.mode {
        let link = rustix::fs::fstat(&fd).at("look at", path)?.st_mode & libc::S_IFMT == libc::S_IFLNK;
        if !link {
            fs::set_permissions(
                format!("/proc/self/fd/{}", fd.as_raw_fd()),
                fs::Permissions::from_mode(mode),
            )
            .at("set the mode of", path)?;
        }
    }
    Ok(())
}

/// Replaces or makes a file as a whole; what is replaced gives owner, mode and context unless `ownership` says else.
/// A new file gets mode 0644.
///
/// # Errors
/// Nothing was changed.
pub fn replace(path: &Path, bytes: &[u8], ownership: Ownership) -> Result<(), FileError> {
    let target = resolve_links(path).at("follow", path)?;
    let mut fresh = Fresh::beside(&target)?;
    fresh.write_all(bytes)?;
    if fs::symlink_metadata(&target).is_ok() {
        fresh.adopt(&target)?;
        fresh.own(ownership)?;
    } else {
        fresh.own(Ownership { mode: Some(ownership.mode.unwrap_or(0o644)), ..ownership })?;
    }
    fresh.place()
}

/// Follows symbolic links at the end of a path, also to a target that does not exist yet.
///
/// # Errors
/// The links run in a circle.
pub fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    let mut current = path.to_owned();
    for _ in 0..40 {
        match fs::read_link(&current) {
            Ok(target) => {
                current = match current.parent() {
                    Some(parent) => parent.join(target),
                    None => target,
                };
            }
            Err(_) => return Ok(current),
        }
    }
    Err(Errno::LOOP.into())
}

/// Makes a copy of a file beside it, with the time in its name as Ansible does; gives its path.
///
/// # Errors
/// The copy cannot be written.
pub fn back_up(path: &Path, now: &str) -> Result<PathBuf, FileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{now}~", std::process::id()));
    let copy = path.with_file_name(name);
    let mut source = File::open(path).at("back up", path)?;
    let mut fresh = Fresh::beside(&copy)?;
    io::copy(&mut source, &mut fresh.file).at("back up", path)?;
    fresh.adopt(path)?;
    fresh.place()?;
    Ok(copy)
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
    fn circles_of_links_end() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("a")).unwrap();
        assert!(resolve_links(&dir.path().join("a")).is_err());
    }
}
