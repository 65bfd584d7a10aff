//! Names in open directories: the only way in which the helper changes files on the node.
//!
//! A path is only text: between two calls that use it, anyone who may write to a folder on it can put a link there. So
//! a path is walked once, name by name, through descriptors that follow no link ([`Trail`] decides which links the walk
//! itself follows). From then on, a [`Spot`], a name in an open directory, is what is read, created, changed, renamed
//! and removed. Below a [`Dir`] no link is followed at all. A test at the end of this file keeps other modules from
//! changing anything by path.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Metadata, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStringExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid},
    io::Errno,
};

use super::{
    files::{At, FileError, Ownership},
    trail::{Met, Trail, Unsafe, Way, other_owner, trusts},
};

mod removal;

/// The kernel's own limit.
const MOST_LINKS: usize = 40;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Returns random letters.
///
/// # Errors
/// If the kernel gives no random bytes.
pub fn random_letters<const N: usize>() -> io::Result<String> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let letter = |byte: &u8| LETTERS.get(usize::from(byte & 31)).copied().unwrap_or(b'a');
    Ok(bytes.iter().map(letter).map(char::from).collect())
}

/// An open directory.
#[derive(Clone, Debug)]
pub struct Dir {
    fd: Arc<OwnedFd>,
    met: Met,
    /// Device and inode number.
    inode: (u64, u64),
    /// The nearest owner above who is neither root nor this user.
    above: Option<u32>,
    path: PathBuf,
}

/// A name in an open directory; anything or nothing may be there.
#[derive(Clone, Debug)]
pub struct Spot {
    dir: Dir,
    name: OsString,
}

/// A path below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Relative to the directory.
    pub below: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub directory: bool,
    pub link: bool,
    /// The directory that contains it.
    pub place: Place,
}

/// A directory on the way of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    inode: (u64, u64),
    pub way: Way,
}

/// Whether the walk continues; `false` stops it, for example after a deadline.
pub type GoOn<'a> = &'a dyn Fn() -> bool;

fn stopped() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

fn open_name(dir: &OwnedFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn met(fd: &OwnedFd) -> rustix::io::Result<(Met, u32)> {
    let stat = rustix::fs::fstat(fd)?;
    let met = Met { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777 };
    Ok((met, stat.st_mode & libc::S_IFMT))
}

/// Opens a directory by name; `None` if something else is there.
fn enter(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Option<OwnedFd>> {
    // Only with `DIRECTORY` does the kernel mount an automount point.
    match open_name(dir, name, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How the last name of a path is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// As a name; anything or nothing may be there.
    Name,
    /// Links are followed; the result is a name.
    Follow,
    /// As a directory.
    Open,
    /// As a directory, which is created with its parents if missing.
    Make,
}

enum Walked {
    Spot(Spot),
    Dir(Dir),
}

struct Walk {
    trail: Trail,
    /// The directories from the first to the current one.
    stack: Vec<Dir>,
    /// The names still to walk, the next one last.
    todo: Vec<OsString>,
    links: usize,
}

impl Walk {
    fn push(&mut self, path: &Path) {
        for component in path.components().rev() {
            match component {
                Component::RootDir => self.todo.push("/".into()),
                Component::ParentDir => self.todo.push("..".into()),
                Component::Normal(name) => self.todo.push(name.to_owned()),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    fn here(&self) -> io::Result<&Dir> {
        self.stack.last().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn ended(&self) -> io::Result<Dir> {
        let here = self.here()?;
        self.trail.end(here.met)?;
        Ok(here.clone())
    }

    fn walk(mut self, last: Last) -> io::Result<Walked> {
        while let Some(name) = self.todo.pop() {
            if name == "/" {
                self.stack.truncate(1);
                continue;
            }
            if name == ".." {
                if self.stack.len() > 1 {
                    self.stack.pop();
                }
                continue;
            }
            let at_end = self.todo.is_empty();
            let here = self.here()?.clone();
            let path = here.path.join(&name);
            if at_end && last == Last::Name {
                return Ok(Walked::Spot(Spot { dir: self.ended()?, name }));
            }
            if !at_end || last != Last::Follow {
                let mut entered = enter(&here.fd, &name);
                if last == Last::Make && matches!(entered, Err(Errno::NOENT)) {
                    // Checked before the directory is created, because nothing may be created where the walk may not
                    // end.
                    self.trail.end(here.met)?;
                    match rustix::fs::mkdirat(&*here.fd, &name, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => entered = enter(&here.fd, &name),
                        Err(error) => return Err(error.into()),
                    }
                }
                if let Some(fd) = entered? {
                    let next = Dir::of(fd, here.other_owner(), path)?;
                    self.trail.enter(next.met)?;
                    self.stack.push(next);
                    continue;
                }
            }
            let fd = match open_name(&here.fd, &name, OFlags::PATH) {
                Err(Errno::NOENT) if at_end && last == Last::Follow => {
                    return Ok(Walked::Spot(Spot { dir: self.ended()?, name }));
                }
                opened => opened?,
            };
            let (link, kind) = met(&fd)?;
            if kind != libc::S_IFLNK {
                if at_end && last == Last::Follow {
                    self.trail.end(link)?;
                    return Ok(Walked::Spot(Spot { dir: here, name }));
                }
                return Err(Errno::NOTDIR.into());
            }
            self.links += 1;
            if self.links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = rustix::fs::readlinkat(&fd, "", Vec::new())?;
            self.trail.link(here.met, here.other_owner(), link, &path)?;
            self.push(Path::new(&OsString::from_vec(target.into_bytes())));
        }
        let dir = self.ended()?;
        Ok(match last {
            Last::Name | Last::Follow => Walked::Spot(Spot { dir, name: ".".into() }),
            Last::Open | Last::Make => Walked::Dir(dir),
        })
    }
}

fn walk(path: &Path, last: Last) -> io::Result<Walked> {
    let first = if path.is_absolute() { "/" } else { "." };
    let fd = rustix::fs::open(first, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let shown = if first == "/" { "/".into() } else { PathBuf::new() };
    let mut walk =
        Walk { trail: Trail::of(me()), stack: vec![Dir::of(fd, None, shown)?], todo: Vec::new(), links: 0 };
    walk.push(path);
    walk.walk(last)
}

/// Returns the last name of a path, in its directory.
///
/// # Errors
/// If a folder on the way is missing, is no folder, or is reached through a link that another user can change.
pub fn spot(path: &Path) -> Result<Spot, FileError> {
    match walk(path, Last::Name).at("reach", path)? {
        Walked::Spot(spot) => Ok(spot),
        Walked::Dir(dir) => Ok(Spot { dir, name: ".".into() }),
    }
}

/// As [`spot`], but follows links at the end, including dangling ones.
///
/// # Errors
/// As [`spot`].
pub fn followed(path: &Path) -> Result<Spot, FileError> {
    match walk(path, Last::Follow).at("follow", path)? {
        Walked::Spot(spot) => Ok(spot),
        Walked::Dir(dir) => Ok(Spot { dir, name: ".".into() }),
    }
}

/// Opens the directory at a path, and follows links.
///
/// # Errors
/// As [`spot`], and if there is no directory.
pub fn dir(path: &Path) -> Result<Dir, FileError> {
    match walk(path, Last::Open).at("open", path)? {
        Walked::Dir(dir) => Ok(dir),
        Walked::Spot(spot) => Ok(spot.dir),
    }
}

/// As [`dir`], but `None` if nothing is there.
///
/// # Errors
/// As [`dir`].
pub fn dir_if_any(path: &Path) -> Result<Option<Dir>, FileError> {
    match dir(path) {
        Err(error) if matches!(error.source.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        found => found.map(Some),
    }
}

/// Opens the directory at a path, and creates it and its parents if missing.
///
/// # Errors
/// As [`dir`], and if it cannot be created.
pub fn make_dirs(path: &Path) -> Result<Dir, FileError> {
    match walk(path, Last::Make).at("make", path)? {
        Walked::Dir(dir) => Ok(dir),
        Walked::Spot(spot) => Ok(spot.dir),
    }
}

/// Opens a regular file for reading, and follows links.
///
/// # Errors
/// As [`spot`], and if there is no regular file, or it may not be read.
pub fn open(path: &Path) -> Result<File, FileError> {
    followed(path)?.open()
}

/// Sets owner, group and mode of what is at a path, without following a link there.
///
/// # Errors
/// As [`spot`], and if the kernel refuses.
pub fn own(path: &Path, ownership: Ownership) -> Result<(), FileError> {
    spot(path)?.own(ownership)
}

/// Removes what is at a path, recursively.
///
/// # Errors
/// As [`spot`], and if something cannot be removed.
pub fn remove_all(path: &Path, go_on: GoOn<'_>) -> Result<(), FileError> {
    spot(path)?.remove_all(go_on)
}

impl Dir {
    fn of(fd: OwnedFd, above: Option<u32>, path: PathBuf) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let (met, _) = met(&fd)?;
        Ok(Self { fd: Arc::new(fd), met, inode: (stat.st_dev, stat.st_ino), above, path })
    }

    /// Its owner if neither root nor this user, or else the nearest such owner above.
    fn other_owner(&self) -> Option<u32> {
        other_owner(me(), self.above, self.met)
    }

    /// The place of this directory in a recursive change.
    pub fn place(&self) -> Place {
        Place { inode: self.inode, way: Way::into(me(), self.above, self.met) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path through this process's descriptors, which stays valid if the directory is renamed.
    pub fn held_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Whether only root and the acting user can write to it.
    pub fn is_ours(&self) -> bool {
        trusts(me(), self.met.uid) && self.met.mode & 0o022 == 0
    }

    /// Returns a name in it.
    pub fn spot(&self, name: impl AsRef<OsStr>) -> Spot {
        Spot { dir: self.clone(), name: name.as_ref().to_owned() }
    }

    /// Opens a directory below it without following any link.
    ///
    /// # Errors
    /// If there is none.
    pub fn beneath(&self, below: &Path) -> Result<Self, FileError> {
        let shown = self.path.join(below);
        if below.as_os_str().is_empty() {
            return Ok(self.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = match rustix::fs::openat2(&*self.fd, below, flags, Mode::empty(), resolve) {
            // Kernels before 5.6 lack the call, and some sandboxes refuse it.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => self.step_by_step(below),
            opened => opened.map_err(Into::into),
        };
        let opened = opened.at("open", &shown)?;
        // The owners in between are unknown here and do not matter, because no link was followed.
        Self::of(opened, self.other_owner(), shown.clone()).at("look at", &shown)
    }

    fn step_by_step(&self, below: &Path) -> io::Result<OwnedFd> {
        let mut here: Option<OwnedFd> = None;
        for component in below.components() {
            let Component::Normal(name) = component else { return Err(Errno::XDEV.into()) };
            here = Some(enter(here.as_ref().unwrap_or(&self.fd), name)?.ok_or(Errno::NOTDIR)?);
        }
        here.ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns the names in it, sorted.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn names(&self) -> Result<Vec<OsString>, FileError> {
        names(&self.fd).at("read", &self.path)
    }

    /// Returns everything below it, without following links.
    ///
    /// # Errors
    /// If a directory cannot be read, there are more than `most` paths, or `go_on` stops it.
    pub fn all(&self, most: usize, go_on: GoOn<'_>) -> Result<Vec<Found>, FileError> {
        let mut found = Vec::new();
        let mut folders = vec![(PathBuf::new(), self.place())];
        while let Some((below, place)) = folders.pop() {
            if !go_on() {
                return Err(FileError::new("read", &self.path, stopped()));
            }
            let folder = match self.beneath(&below) {
                Err(error) if changed(&error.source) => continue,
                folder => folder?,
            };
            // Another directory was put there, whose path has not been checked.
            if folder.inode != place.inode {
                continue;
            }
            for name in folder.names()? {
                let spot = folder.spot(&name);
                let Some(meta) = spot.look()? else { continue };
                let path = below.join(&name);
                if meta.is_dir() {
                    // Opened from its folder, so that it is certainly in there and is what was checked.
                    match spot.enter() {
                        Err(error) if changed(&error.source) => continue,
                        deeper => {
                            let deeper = deeper?;
                            let way = place.way.deeper(deeper.met);
                            folders.push((path.clone(), Place { inode: deeper.inode, way }));
                        }
                    }
                }
                found.push(Found {
                    below: path,
                    uid: meta.uid(),
                    gid: meta.gid(),
                    mode: meta.mode() & 0o7777,
                    directory: meta.is_dir(),
                    link: meta.is_symlink(),
                    place,
                });
                if found.len() > most {
                    let what = format!("more than {most} paths are below it");
                    return Err(FileError::new("take", &self.path, io::Error::other(what)));
                }
            }
        }
        Ok(found)
    }

    /// Syncs its entries to disk; ignores file systems that do not support it.
    pub fn sync(&self) {
        if let Ok(fd) = open_name(&self.fd, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY) {
            let _ = rustix::fs::fsync(fd);
        }
    }

    /// Creates a file with an unpredictable name that contains `stem`, and with mode 0600.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn temporary(&self, stem: &str) -> io::Result<(Spot, File)> {
        let mut tries = 0;
        loop {
            // A name near the limit of 255 bytes leaves no room for the rest.
            let stem: String = stem.chars().take(48).collect();
            let spot = self.spot(format!(".{stem}.gpufleet-{}", random_letters::<12>()?));
            match spot.create(0o600) {
                Ok(file) => return Ok((spot, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a directory with an unpredictable name that begins with `stem`, and with mode 0700.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn private(&self, stem: &str) -> Result<(Spot, Self), FileError> {
        let name = random_letters::<12>().at("make", &self.path)?;
        let spot = self.spot(format!("{stem}-{name}"));
        rustix::fs::mkdirat(&*self.fd, &spot.name, Mode::from_raw_mode(0o700)).at("make", spot.path())?;
        let made = self.beneath(Path::new(&spot.name))?;
        if made.met.uid != me() || made.met.mode & 0o077 != 0 {
            let error = io::Error::other("somebody put another directory in its place");
            return Err(FileError::new("make", spot.path(), error));
        }
        Ok((spot, made))
    }
}

/// Whether the error means that the file was changed since it was last read.
fn changed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV))
}

fn names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let fd = open_name(dir, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(fd)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Whether the kernel lets users create hard links to files of other users.
fn anybody_may_link() -> bool {
    std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.trim() == "0")
}

impl Spot {
    /// Returns the path, for messages and for programs.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    fn held(&self) -> rustix::io::Result<OwnedFd> {
        open_name(&self.dir.fd, &self.name, OFlags::PATH)
    }

    /// Returns the metadata of what is there, without following a link.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub fn look(&self) -> Result<Option<Metadata>, FileError> {
        match self.held() {
            Ok(fd) => File::from(fd).metadata().map(Some).at("look at", self.path()),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(FileError::new("look at", self.path(), error)),
        }
    }

    /// Opens what is there with `O_PATH`, without following a link.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn held_file(&self) -> Result<Option<File>, FileError> {
        match self.held() {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(FileError::new("look at", self.path(), error)),
        }
    }

    /// Whether the name still refers to an open file.
    pub fn is(&self, file: &File) -> bool {
        match (self.look(), file.metadata()) {
            (Ok(Some(one)), Ok(two)) => one.ino() == two.ino() && one.dev() == two.dev(),
            _ => false,
        }
    }

    /// Opens the regular file there for reading, without following a link.
    ///
    /// # Errors
    /// If there is none, or it may not be read.
    pub fn open(&self) -> Result<File, FileError> {
        // Non-blocking, because opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match open_name(&self.dir.fd, &self.name, flags) {
            Err(Errno::LOOP) => {
                let what = io::Error::other("it became a link while it was worked on, so it is not followed");
                return Err(FileError::new("read", self.path(), what));
            }
            Err(Errno::NXIO) => {
                return Err(FileError::new("read", self.path(), io::Error::other("it is no regular file")));
            }
            opened => File::from(opened.at("read", self.path())?),
        };
        let meta = file.metadata().at("look at", self.path())?;
        if meta.is_dir() {
            return Err(FileError::new("read", self.path(), io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if !meta.is_file() {
            return Err(FileError::new("read", self.path(), io::Error::other("it is no regular file")));
        }
        Ok(file)
    }

    /// Returns the target of the link there.
    ///
    /// # Errors
    /// If there is none.
    pub fn target(&self) -> Result<PathBuf, FileError> {
        let target =
            rustix::fs::readlinkat(&*self.dir.fd, &self.name, Vec::new()).at("follow", self.path())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Creates a file, open for reading and writing.
    ///
    /// # Errors
    /// If something is there, or it cannot be created.
    pub fn create(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.dir.fd, &self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Creates a directory; an existing directory stays as it is.
    ///
    /// # Errors
    /// If something else is there, or it cannot be created.
    pub fn make_dir(&self, mode: u32) -> io::Result<()> {
        match rustix::fs::mkdirat(&*self.dir.fd, &self.name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) if enter(&self.dir.fd, &self.name)?.is_some() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Creates a new directory.
    ///
    /// # Errors
    /// If something is there, or it cannot be created.
    pub fn make_new_dir(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&*self.dir.fd, &self.name, Mode::from_raw_mode(mode))?)
    }

    /// Opens the directory there, without following a link.
    ///
    /// # Errors
    /// If there is none.
    pub fn enter(&self) -> Result<Dir, FileError> {
        self.dir.beneath(Path::new(&self.name))
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// If something is there, or it cannot be created.
    pub fn link_to(&self, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &*self.dir.fd, &self.name)?)
    }

    /// Creates a hard link to `source`.
    ///
    /// # Errors
    /// If something is there, or it cannot be created.
    pub fn name_also(&self, source: &Self) -> io::Result<()> {
        let flags = AtFlags::empty();
        Ok(rustix::fs::linkat(&*source.dir.fd, &source.name, &*self.dir.fd, &self.name, flags)?)
    }

    /// Renames it, and replaces what is at the new name.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn rename(&self, to: &Self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&*self.dir.fd, &self.name, &*to.dir.fd, &to.name)?)
    }

    /// Sets the times of access and change of what is there, without following a link.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn touch(&self, times: &Timestamps) -> Result<(), FileError> {
        rustix::fs::utimensat(&*self.dir.fd, &self.name, times, AtFlags::SYMLINK_NOFOLLOW)
            .at("touch", self.path())
    }

    /// Sets owner, group and mode of what is there, without following a link.
    ///
    /// # Errors
    /// If the kernel refuses, or the file has other hard links and any user may have created them.
    pub fn own(&self, ownership: Ownership) -> Result<(), FileError> {
        let fd = self.held().at("look at", self.path())?;
        self.own_held(fd, ownership)
    }

    /// As [`Spot::own`], if what is there still has the given type.
    ///
    /// # Errors
    /// As [`Spot::own`], and if the type has changed.
    pub fn own_as(&self, directory: bool, link: bool, ownership: Ownership) -> Result<(), FileError> {
        let (fd, _) = self.held_as(directory, link)?;
        self.own_held(fd, ownership)
    }

    /// As [`Spot::own_as`], for what [`Dir::all`] found in `place`; `opens` is whether the change grants further
    /// rights.
    ///
    /// # Errors
    /// As [`Spot::own_as`], and if that directory was replaced, or a user who cannot look into it may have put it
    /// there.
    pub fn own_found(
        &self,
        place: Place,
        (directory, link): (bool, bool),
        ownership: Ownership,
        opens: impl FnOnce(u32) -> bool,
    ) -> Result<(), FileError> {
        let act = "set the owner and mode of";
        let (fd, met) = self.held_as(directory, link)?;
        if self.dir.inode != place.inode {
            let error = io::Error::other("its directory became another one while it was worked on");
            return Err(FileError::new(act, self.path(), error));
        }
        if let Some(owner) = place.way.shuts(met, directory).filter(|_| !link && opens(met.mode)) {
            let closed = Unsafe::Closed { path: self.path(), owner };
            return Err(FileError::new(act, self.path(), closed));
        }
        self.own_held(fd, ownership)
    }

    fn held_as(&self, directory: bool, link: bool) -> Result<(OwnedFd, Met), FileError> {
        let fd = self.held().at("look at", self.path())?;
        let (met, kind) = met(&fd).at("look at", self.path())?;
        if (kind == libc::S_IFDIR, kind == libc::S_IFLNK) != (directory, link) {
            let error = io::Error::other("it became something else while it was worked on");
            return Err(FileError::new("set the owner and mode of", self.path(), error));
        }
        Ok((fd, met))
    }

    fn own_held(&self, fd: OwnedFd, ownership: Ownership) -> Result<(), FileError> {
        let file = File::from(fd);
        let meta = file.metadata().at("look at", self.path())?;
        let foreign = self.dir.met.uid != 0 || self.dir.met.mode & 0o002 != 0;
        if me() == 0 && meta.is_file() && meta.nlink() > 1 && foreign && anybody_may_link() {
            let error = io::Error::other(format!(
                "it has {} names, and anybody may name another's file, because the kernel parameter \
                 fs.protected_hardlinks is 0; set it to 1",
                meta.nlink()
            ));
            return Err(FileError::new("set the owner and mode of", self.path(), error));
        }
        if ownership.uid.is_some() || ownership.gid.is_some() {
            let (uid, gid) = (ownership.uid.map(Uid::from_raw), ownership.gid.map(Gid::from_raw));
            rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH)
                .at("set the owner of", self.path())?;
        }
        if let Some(mode) = ownership.mode
            && !meta.is_symlink()
        {
            // By this path, because older kernels cannot change the mode of an `O_PATH` descriptor.
            let held = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::set_permissions(held, Permissions::from_mode(mode))
                .at("set the mode of", self.path())?;
        }
        Ok(())
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// If there is none, or it is a directory.
    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.dir.fd, &self.name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If there is none, or it is not empty.
    pub fn remove_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.dir.fd, &self.name, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
