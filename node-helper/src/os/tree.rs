//! Names in open directories: the one way in which the helper changes what is on the node.
//!
//! A path is only text: between two calls that use it, whoever may write a folder on it can put a link there. So a path
//! is walked once, name by name, each step a descriptor that follows no link ([`Trail`] says which links are followed
//! by the walk itself); from then on a [`Spot`], a name in a directory held open, is what is looked at, made, changed,
//! renamed and removed. Below a [`Dir`] no link is followed at all. A test at the end of this file keeps other modules
//! from changing anything by its path.

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

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Letters that nobody can foresee.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn random_letters<const N: usize>() -> io::Result<String> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let letter = |byte: &u8| LETTERS.get(usize::from(byte & 31)).copied().unwrap_or(b'a');
    Ok(bytes.iter().map(letter).map(char::from).collect())
}

/// A directory held open.
#[derive(Clone, Debug)]
pub struct Dir {
    fd: Arc<OwnedFd>,
    met: Met,
    /// Device and number, which no other directory has.
    inode: (u64, u64),
    /// Who beside root and this user owns the nearest such directory above.
    above: Option<u32>,
    path: PathBuf,
}

/// A name in a directory held open, whatever is there.
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
    /// The directory in which it lies.
    pub place: Place,
}

/// A directory that a walk came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    inode: (u64, u64),
    pub way: Way,
}

/// Whether the walk has to go on; the answer may be that time is up.
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

/// Opens a directory by its name; none where something else is there.
fn enter(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Option<OwnedFd>> {
    // Why `DIRECTORY`: only so does the kernel mount what is to be mounted there on demand.
    match open_name(dir, name, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is done with the last name of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It is a name, whatever is there.
    Name,
    /// Links there are followed; then it is a name.
    Follow,
    /// It is a directory.
    Open,
    /// It is a directory, made where it is missing with those above it.
    Make,
}

enum Walked {
    Spot(Spot),
    Dir(Dir),
}

struct Walk {
    trail: Trail,
    /// The directories from the first to the one reached.
    stack: Vec<Dir>,
    /// What is still to be walked, the next at the end.
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
                    // Why before it is made: nothing may be made where it is not allowed to go.
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

/// The name at the end of a path, in its directory.
///
/// # Errors
/// A folder on the way is missing, is none, or is reached by a way that somebody else can bend.
pub fn spot(path: &Path) -> Result<Spot, FileError> {
    match walk(path, Last::Name).at("reach", path)? {
        Walked::Spot(spot) => Ok(spot),
        Walked::Dir(dir) => Ok(Spot { dir, name: ".".into() }),
    }
}

/// The same, with links at the end followed, also to what is not there yet.
///
/// # Errors
/// As [`spot`].
pub fn followed(path: &Path) -> Result<Spot, FileError> {
    match walk(path, Last::Follow).at("follow", path)? {
        Walked::Spot(spot) => Ok(spot),
        Walked::Dir(dir) => Ok(Spot { dir, name: ".".into() }),
    }
}

/// The directory at a path, links followed.
///
/// # Errors
/// As [`spot`]; or there is no directory.
pub fn dir(path: &Path) -> Result<Dir, FileError> {
    match walk(path, Last::Open).at("open", path)? {
        Walked::Dir(dir) => Ok(dir),
        Walked::Spot(spot) => Ok(spot.dir),
    }
}

/// The same; none where nothing is there.
///
/// # Errors
/// As [`dir`].
pub fn dir_if_any(path: &Path) -> Result<Option<Dir>, FileError> {
    match dir(path) {
        Err(error) if matches!(error.source.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        found => found.map(Some),
    }
}

/// The directory at a path, made where it is missing, with those above it.
///
/// # Errors
/// As [`dir`]; or it cannot be made.
pub fn make_dirs(path: &Path) -> Result<Dir, FileError> {
    match walk(path, Last::Make).at("make", path)? {
        Walked::Dir(dir) => Ok(dir),
        Walked::Spot(spot) => Ok(spot.dir),
    }
}

/// A regular file for reading, links followed.
///
/// # Errors
/// As [`spot`]; or there is no regular file, or it may not be read.
pub fn open(path: &Path) -> Result<File, FileError> {
    followed(path)?.open()
}

/// Sets owner, group and mode of what is at a path, itself and not what a link there points to.
///
/// # Errors
/// As [`spot`]; or the kernel refuses.
pub fn own(path: &Path, ownership: Ownership) -> Result<(), FileError> {
    spot(path)?.own(ownership)
}

/// Removes what is at a path with all that is below it.
///
/// # Errors
/// As [`spot`]; or something cannot be removed.
pub fn remove_all(path: &Path, go_on: GoOn<'_>) -> Result<(), FileError> {
    spot(path)?.remove_all(go_on)
}

impl Dir {
    fn of(fd: OwnedFd, above: Option<u32>, path: PathBuf) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let (met, _) = met(&fd)?;
        Ok(Self { fd: Arc::new(fd), met, inode: (stat.st_dev, stat.st_ino), above, path })
    }

    /// Who beside root and this user owns it, or the nearest one above it.
    fn other_owner(&self) -> Option<u32> {
        other_owner(me(), self.above, self.met)
    }

    /// What it is to one that works on everything below it.
    pub fn place(&self) -> Place {
        Place { inode: self.inode, way: Way::into(me(), self.above, self.met) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory under a name that it keeps whatever becomes of its path, for processes of this one's own.
    pub fn held_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Whether only root and the user that acts can put something into it.
    pub fn is_ours(&self) -> bool {
        trusts(me(), self.met.uid) && self.met.mode & 0o022 == 0
    }

    /// A name in it.
    pub fn spot(&self, name: impl AsRef<OsStr>) -> Spot {
        Spot { dir: self.clone(), name: name.as_ref().to_owned() }
    }

    /// A directory below it that is reached without any link.
    ///
    /// # Errors
    /// There is none.
    pub fn beneath(&self, below: &Path) -> Result<Self, FileError> {
        let shown = self.path.join(below);
        if below.as_os_str().is_empty() {
            return Ok(self.clone());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = match rustix::fs::openat2(&*self.fd, below, flags, Mode::empty(), resolve) {
            // Why step by step then: kernels before 5.6 do not know the call, and some sandboxes refuse it.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => self.step_by_step(below),
            opened => opened.map_err(Into::into),
        };
        let opened = opened.at("open", &shown)?;
        // What is between the two is not known here, and counts for nothing: no link is followed on the way.
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

    /// The names in it, sorted.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> Result<Vec<OsString>, FileError> {
        names(&self.fd).at("read", &self.path)
    }

    /// Everything below it; no link is followed.
    ///
    /// # Errors
    /// A directory cannot be read, there are more than `most` paths, or time is up.
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
            // Why left out: another one was put there, by a way that nobody has judged.
            if folder.inode != place.inode {
                continue;
            }
            for name in folder.names()? {
                let spot = folder.spot(&name);
                let Some(meta) = spot.look()? else { continue };
                let path = below.join(&name);
                if meta.is_dir() {
                    // Why from its folder: so it is known to lie there, and to be what was judged.
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

    /// Makes its entries last; file systems that cannot are left alone.
    pub fn sync(&self) {
        if let Ok(fd) = open_name(&self.fd, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY) {
            let _ = rustix::fs::fsync(fd);
        }
    }

    /// Makes a file that nobody can foresee the name of, with mode 0600; `stem` is in the name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn temporary(&self, stem: &str) -> io::Result<(Spot, File)> {
        let mut tries = 0;
        loop {
            // Why cut: a name near the limit of 255 bytes leaves no room for the rest.
            let stem: String = stem.chars().take(48).collect();
            let spot = self.spot(format!(".{stem}.gpufleet-{}", random_letters::<12>()?));
            match spot.create(0o600) {
                Ok(file) => return Ok((spot, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a directory that nobody can foresee the name of, with mode 0700.
    ///
    /// # Errors
    /// It cannot be made.
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

/// Whether somebody changed what was there since it was looked at.
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

/// Whether anybody may make further names for files of others.
fn anybody_may_link() -> bool {
    std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.trim() == "0")
}

impl Spot {
    /// For messages, and for programs that want a path.
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

    /// What is there, itself and not what a link points to.
    ///
    /// # Errors
    /// The node does not tell.
    pub fn look(&self) -> Result<Option<Metadata>, FileError> {
        match self.held() {
            Ok(fd) => File::from(fd).metadata().map(Some).at("look at", self.path()),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(FileError::new("look at", self.path(), error)),
        }
    }

    /// A descriptor that only stands for what is there, itself and not what a link points to.
    ///
    /// # Errors
    /// The node does not tell.
    pub fn held_file(&self) -> Result<Option<File>, FileError> {
        match self.held() {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(FileError::new("look at", self.path(), error)),
        }
    }

    /// Whether the name still is that of an open file.
    pub fn is(&self, file: &File) -> bool {
        match (self.look(), file.metadata()) {
            (Ok(Some(one)), Ok(two)) => one.ino() == two.ino() && one.dev() == two.dev(),
            _ => false,
        }
    }

    /// The regular file there, for reading; no link is followed.
    ///
    /// # Errors
    /// There is none, or it may not be read.
    pub fn open(&self) -> Result<File, FileError> {
        // Why without blocking: a pipe in its place would be waited for.
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

    /// The target of the link there.
    ///
    /// # Errors
    /// There is none.
    pub fn target(&self) -> Result<PathBuf, FileError> {
        let target =
            rustix::fs::readlinkat(&*self.dir.fd, &self.name, Vec::new()).at("follow", self.path())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Makes a file, open for reading and writing.
    ///
    /// # Errors
    /// Something is there, or it cannot be made.
    pub fn create(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.dir.fd, &self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Makes a directory; a directory that is there is left as it is.
    ///
    /// # Errors
    /// Something else is there, or it cannot be made.
    pub fn make_dir(&self, mode: u32) -> io::Result<()> {
        match rustix::fs::mkdirat(&*self.dir.fd, &self.name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) if enter(&self.dir.fd, &self.name)?.is_some() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Makes a directory that was not there.
    ///
    /// # Errors
    /// Something is there, or it cannot be made.
    pub fn make_new_dir(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&*self.dir.fd, &self.name, Mode::from_raw_mode(mode))?)
    }

    /// The directory there, itself and not what a link points to.
    ///
    /// # Errors
    /// There is none.
    pub fn enter(&self) -> Result<Dir, FileError> {
        self.dir.beneath(Path::new(&self.name))
    }

    /// # Errors
    /// Something is there, or it cannot be made.
    pub fn link_to(&self, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &*self.dir.fd, &self.name)?)
    }

    /// Makes a further name of a file.
    ///
    /// # Errors
    /// Something is there, or it cannot be made.
    pub fn name_also(&self, source: &Self) -> io::Result<()> {
        let flags = AtFlags::empty();
        Ok(rustix::fs::linkat(&*source.dir.fd, &source.name, &*self.dir.fd, &self.name, flags)?)
    }

    /// Renames it onto another name.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn rename(&self, to: &Self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&*self.dir.fd, &self.name, &*to.dir.fd, &to.name)?)
    }

    /// Sets times of access and change of what is there, itself and not what a link points to.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn touch(&self, times: &Timestamps) -> Result<(), FileError> {
        rustix::fs::utimensat(&*self.dir.fd, &self.name, times, AtFlags::SYMLINK_NOFOLLOW)
            .at("touch", self.path())
    }

    /// Sets owner, group and mode of what is there, itself and not what a link points to.
    ///
    /// # Errors
    /// The kernel refuses, or the file has names elsewhere and anybody may have made them.
    pub fn own(&self, ownership: Ownership) -> Result<(), FileError> {
        let fd = self.held().at("look at", self.path())?;
        self.own_held(fd, ownership)
    }

    /// The same, where what is there still is of the kind that it was.
    ///
    /// # Errors
    /// As [`Spot::own`]; or it became something else.
    pub fn own_as(&self, directory: bool, link: bool, ownership: Ownership) -> Result<(), FileError> {
        let (fd, _) = self.held_as(directory, link)?;
        self.own_held(fd, ownership)
    }

    /// The same for what [`Dir::all`] found in `place`; `opens` tells whether it gives anybody more rights.
    ///
    /// # Errors
    /// As [`Spot::own_as`]; or another directory is in the place of that one, or it is closed to who may have put it
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
            // Why by this name: no older kernel changes the mode of a descriptor that only stands for a path.
            let held = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::set_permissions(held, Permissions::from_mode(mode))
                .at("set the mode of", self.path())?;
        }
        Ok(())
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// There is none, or it is a directory.
    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.dir.fd, &self.name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is none, or it is not empty.
    pub fn remove_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&*self.dir.fd, &self.name, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
