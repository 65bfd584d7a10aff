//! The node as a prediction sees it: its real state, overlaid by what earlier predictions of the session assumed.
//!
//! Owns the overlay: paths, kernel parameters, units, packages, and whether a reboot is assumed. All reading goes
//! through [`World`]; a world without an overlay is the node itself. Must not know task kinds, and writes nothing to
//! the node.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpufleet_protocol::{Disruption, glob::Glob, message::Mode};

use crate::deadline::Deadline;
use crate::os::{
    checksum::{self, Digests},
    files::{self, FileError},
    glob,
    reload::Refusal,
    roots::Roots,
    trail::{self, Met, Trail},
    tree,
};

/// Largest text file that is read as a whole, in bytes.
pub const TEXT_LIMIT: u64 = 16 * 1024 * 1024;

/// Owner and permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    pub uid: u32,
    pub gid: u32,
    /// The lowest twelve bits.
    pub mode: u32,
}

impl Owned {
    pub const fn met(self) -> Met {
        Met { uid: self.uid, gid: self.gid, mode: self.mode }
    }
}

/// The content of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The content of this path on the node.
    On(PathBuf),
    Known(Arc<[u8]>),
    /// Only the digest is known before the run.
    Digest {
        sha256: String,
        size: u64,
    },
}

/// What is at a path, without following a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Absent,
    File {
        owned: Owned,
        content: Content,
    },
    Directory {
        owned: Owned,
    },
    Link {
        owned: Owned,
        target: PathBuf,
    },
    /// A device, socket or pipe.
    Other {
        owned: Owned,
        what: &'static str,
    },
}

impl Entry {
    /// Returns the word for it in messages.
    pub const fn what(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::File { .. } => "file",
            Self::Directory { .. } => "directory",
            Self::Link { .. } => "link",
            Self::Other { what, .. } => what,
        }
    }

    pub const fn owned(&self) -> Option<Owned> {
        match self {
            Self::Absent => None,
            Self::File { owned, .. }
            | Self::Directory { owned }
            | Self::Link { owned, .. }
            | Self::Other { owned, .. } => Some(*owned),
        }
    }
}

/// The state of a unit after a prediction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitView {
    /// Whether it runs; `None` if only the run can tell.
    pub active: Option<bool>,
    /// `UnitFileState`, such as `enabled`.
    pub file_state: String,
    pub boot: BootView,
}

/// What decides, beside the state of its file, whether a unit runs after a boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootView {
    /// It runs once and is inactive afterwards.
    pub once: bool,
    /// Another unit starts it: a socket, a timer, or one that wants it.
    pub pulled: bool,
    /// A start failed, or its condition does not hold.
    pub fails: bool,
}

impl UnitView {
    /// Returns the unit's state right after a boot.
    ///
    /// Source: systemctl(1) on `UnitFileState`, systemd.unit(5): links below /run are gone, and enabled units are
    /// started. A unit without links of its own (`static`, `indirect`) is started if another one wants it, which cannot
    /// be known before.
    #[must_use]
    pub fn booted(mut self) -> Self {
        match self.file_state.as_str() {
            "enabled-runtime" | "linked-runtime" => "disabled".clone_into(&mut self.file_state),
            // Unknown, because the mask below /run hid what the unit's file says.
            "masked-runtime" => "unknown".clone_into(&mut self.file_state),
            _ => {}
        }
        self.active = match self.file_state.as_str() {
            "enabled" if self.boot.fails => None,
            "enabled" => Some(!self.boot.once),
            "masked" => Some(false),
            "disabled" | "linked" if self.boot.once => Some(false),
            "disabled" | "linked" => (!self.boot.pulled).then_some(false),
            _ => None,
        };
        self
    }
}

/// Why content cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    File(#[from] FileError),
    /// An earlier task of the prediction puts content there that is known only in the run.
    #[error("what {} will hold is known only in the run", .0.display())]
    Foreseen(PathBuf),
}

/// One consequence of a predicted task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Path {
        path: PathBuf,
        entry: Entry,
    },
    /// The value of a kernel parameter, by its name with dots.
    Parameter {
        name: String,
        value: String,
    },
    Unit {
        name: String,
        view: UnitView,
    },
    /// The version of a package; `None` once it is removed.
    Package {
        name: String,
        version: Option<String>,
    },
    /// systemd read its unit files, by this verb of `systemctl`.
    UnitFilesRead(&'static str),
    /// What a kind wrote into a database that is kept over a boot, by a name that it chooses.
    Noted {
        name: String,
        value: String,
    },
}

/// What predictions have assumed so far.
#[derive(Debug, Default)]
struct Assumed {
    paths: BTreeMap<PathBuf, Entry>,
    parameters: HashMap<String, String>,
    units: HashMap<String, UnitView>,
    packages: HashMap<String, Option<String>>,
    noted: BTreeMap<String, String>,
    declared: BTreeMap<String, String>,
    rebooted: bool,
    /// Folders in memory, which are empty after a boot; none before a boot is assumed.
    emptied: Vec<PathBuf>,
    /// The assumed paths at the last assumed reload of systemd; `None` if there was none.
    units_read: Option<BTreeMap<PathBuf, Entry>>,
    /// Why systemd may not read its units as the node is, if that was asked.
    reload: Option<Option<Refusal>>,
}

/// The assumptions of one session, shared by clones.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    assumed: Arc<Mutex<Assumed>>,
    /// What tasks of this session have declared and applied.
    applied: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Overlay {
    fn lock(&self) -> MutexGuard<'_, Assumed> {
        self.assumed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn applied(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first of these values that a task of the session has declared otherwise: its name, and the other value.
    ///
    /// An apply does not look at predictions, which may be of later tasks.
    pub fn contradicted(&self, mode: Mode, values: &[(String, String)]) -> Option<(String, String)> {
        let applied = self.applied();
        let assumed = (mode == Mode::Predict).then(|| self.lock());
        let known = |name: &String| {
            assumed.as_ref().and_then(|assumed| assumed.declared.get(name)).or_else(|| applied.get(name))
        };
        values.iter().find_map(|(name, value)| {
            let other = known(name).filter(|other| *other != value)?;
            Some((name.clone(), other.clone()))
        })
    }

    /// Notes what a task has declared.
    pub fn declare(&self, mode: Mode, values: Vec<(String, String)>) {
        match mode {
            Mode::Predict => self.lock().declared.extend(values),
            Mode::Apply => self.applied().extend(values),
        }
    }

    /// Drops all assumptions; what was applied stays.
    pub fn forget(&self) {
        *self.lock() = Assumed::default();
    }

    /// Returns why systemd may not read its units; asks once for all tasks of a prediction, because that reads what all
    /// processes have open.
    pub fn reload_refused(&self, ask: impl FnOnce() -> Option<Refusal>) -> Option<Refusal> {
        self.lock().reload.get_or_insert_with(ask).clone()
    }

    /// Assumes a reset or reboot.
    pub fn activate(&self, class: Disruption, roots: &Roots) {
        if class == Disruption::Reboot {
            let mut assumed = self.lock();
            assumed.rebooted = true;
            assumed.units_read = Some(assumed.paths.clone());
            assumed.parameters.clear();
            for view in assumed.units.values_mut() {
                *view = std::mem::take(view).booted();
            }
            // Content of these folders is in memory and does not outlive a boot.
            let memory = ["/run", "/dev/shm", "/proc"].map(|path| roots.path(path));
            assumed.paths.retain(|path, _| !memory.iter().any(|memory| path.starts_with(memory)));
            // Without /proc, which has the same files after the boot.
            assumed.emptied = memory.into_iter().take(2).collect();
        }
    }

    pub fn assume(&self, effects: impl IntoIterator<Item = Effect>) {
        let mut assumed = self.lock();
        for effect in effects {
            match effect {
                Effect::Path { path, entry } => {
                    if !matches!(entry, Entry::Directory { .. }) {
                        assumed.paths.retain(|known, _| !known.starts_with(&path));
                    }
                    assumed.paths.insert(path, entry);
                }
                Effect::Parameter { name, value } => {
                    assumed.parameters.insert(name, value);
                }
                Effect::Unit { name, view } => {
                    assumed.units.insert(name, view);
                }
                Effect::Package { name, version } => {
                    assumed.packages.insert(name, version);
                }
                Effect::UnitFilesRead(_) => assumed.units_read = Some(assumed.paths.clone()),
                Effect::Noted { name, value } => {
                    assumed.noted.insert(name, value);
                }
            }
        }
    }
}

/// The node as kinds read it.
#[derive(Clone, Debug, Default)]
pub struct World {
    overlay: Option<Overlay>,
}

impl World {
    /// Returns the node as it is.
    pub fn real() -> Self {
        Self::default()
    }

    pub fn overlaid(overlay: &Overlay) -> Self {
        Self { overlay: Some(overlay.clone()) }
    }

    fn assumed(&self) -> Option<MutexGuard<'_, Assumed>> {
        self.overlay.as_ref().map(Overlay::lock)
    }

    /// Whether it is part of a prediction, and not the node itself.
    pub fn predicts(&self) -> bool {
        self.overlay.is_some()
    }

    /// Whether a reboot is assumed to have happened.
    pub fn rebooted(&self) -> bool {
        self.assumed().is_some_and(|assumed| assumed.rebooted)
    }

    pub fn parameter(&self, name: &str) -> Option<String> {
        self.assumed()?.parameters.get(name).cloned()
    }

    /// Whether a kernel parameter with a name that begins with `prefix`, and that `is_it` takes, is assumed to have a value.
    pub fn has_parameter(&self, prefix: &str, value: &str, is_it: impl Fn(&str) -> bool) -> bool {
        let Some(assumed) = self.assumed() else { return false };
        assumed
            .parameters
            .iter()
            .any(|(name, known)| known == value && name.strip_prefix(prefix).is_some_and(&is_it))
    }

    /// Returns what is assumed to be noted under names that begin with `prefix`, without it.
    pub fn noted(&self, prefix: &str) -> Vec<(String, String)> {
        let Some(assumed) = self.assumed() else { return Vec::new() };
        let rest =
            |(name, value): (&String, &String)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()));
        assumed.noted.iter().filter_map(rest).collect()
    }

    pub fn unit(&self, name: &str) -> Option<UnitView> {
        self.assumed()?.units.get(name).cloned()
    }

    /// Whether systemd is assumed to have reloaded its unit files since the node was read.
    pub fn has_read_units(&self) -> bool {
        self.assumed().is_some_and(|assumed| assumed.units_read.is_some())
    }

    /// Whether a path is assumed to differ from what systemd has loaded.
    pub fn is_unread(&self, path: &Path) -> bool {
        let Some(assumed) = self.assumed() else { return false };
        let read = assumed.units_read.as_ref().and_then(|read| read.get(path));
        assumed.paths.get(path).is_some_and(|entry| Some(entry) != read)
    }

    /// Whether anything is assumed to change below a folder.
    pub fn assumes_below(&self, folder: &Path) -> bool {
        self.assumed().is_some_and(|assumed| assumed.paths.keys().any(|path| path.starts_with(folder)))
    }

    /// Returns packages that are assumed to be installed in a version, or removed.
    pub fn packages(&self) -> HashMap<String, Option<String>> {
        self.assumed().map_or_else(HashMap::new, |assumed| assumed.packages.clone())
    }

    /// Whether an earlier task installs a package, which may bring what is missing.
    pub fn brings_packages(&self) -> bool {
        self.assumed().is_some_and(|assumed| assumed.packages.values().any(Option::is_some))
    }

    fn assumed_entry(&self, path: &Path) -> Option<Entry> {
        let assumed = self.assumed()?;
        if let Some(entry) = assumed.paths.get(path) {
            return Some(entry.clone());
        }
        // There is nothing below a path that is assumed not to be a directory.
        let assumed_above = path.ancestors().skip(1).find_map(|folder| match assumed.paths.get(folder) {
            Some(Entry::Directory { .. } | Entry::Link { .. }) | None => None,
            Some(_) => Some(Entry::Absent),
        });
        let emptied = |folder: &PathBuf| path != folder && path.starts_with(folder);
        assumed_above.or_else(|| assumed.emptied.iter().any(emptied).then_some(Entry::Absent))
    }

    /// Returns what is at a path, without following a link at its end.
    ///
    /// # Errors
    /// If it cannot be read, for example because a folder above may not be searched.
    pub fn entry(&self, path: &Path) -> Result<Entry, FileError> {
        if let Some(entry) = self.assumed_entry(path) {
            return Ok(entry);
        }
        let meta = match fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Entry::Absent);
            }
            Err(error) => return Err(FileError::new("look at", path, error)),
        };
        let owned = Owned { uid: meta.uid(), gid: meta.gid(), mode: meta.mode() & 0o7777 };
        let kind = meta.file_type();
        Ok(if kind.is_file() {
            Entry::File { owned, content: Content::On(path.to_owned()) }
        } else if kind.is_dir() {
            Entry::Directory { owned }
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(|error| FileError::new("follow", path, error))?;
            Entry::Link { owned, target }
        } else {
            use std::os::unix::fs::FileTypeExt;
            let what = if kind.is_block_device() || kind.is_char_device() {
                "device"
            } else if kind.is_socket() {
                "socket"
            } else {
                "pipe"
            };
            Entry::Other { owned, what }
        })
    }

    /// Follows links at the end of a path; returns the final path and what is there.
    ///
    /// # Errors
    /// As [`World::entry`], and if the links run in a circle, or another user may redirect them.
    pub fn follow(&self, path: &Path) -> Result<(PathBuf, Entry), FileError> {
        self.along(path, Some(Trail::of(rustix::process::geteuid().as_raw())))
    }

    /// As [`World::follow`], for callers that only report what is there, whoever owns the links.
    ///
    /// # Errors
    /// As [`World::entry`], and if the links run in a circle.
    pub fn follow_anywhere(&self, path: &Path) -> Result<(PathBuf, Entry), FileError> {
        self.along(path, None)
    }

    /// Returns the owner of a path's folder if neither root nor this user, or else of the nearest such folder above.
    pub fn other_owner(&self, path: &Path) -> Option<u32> {
        let me = rustix::process::geteuid().as_raw();
        let owner = |folder: &Path| match self.assumed_entry(folder) {
            Some(entry) => entry.owned().map(|owned| owned.uid),
            None => fs::metadata(folder).ok().map(|meta| meta.uid()),
        };
        path.ancestors().skip(1).filter_map(owner).find(|uid| !trail::trusts(me, *uid))
    }

    fn along(&self, path: &Path, mut trail: Option<Trail>) -> Result<(PathBuf, Entry), FileError> {
        let refused = |path: &Path, error| FileError::new("follow", path, io::Error::from(error));
        let folder = |path: &Path| {
            let meta = path.parent().and_then(|folder| fs::metadata(folder).ok())?;
            Some(Met { uid: meta.uid(), gid: meta.gid(), mode: meta.mode() & 0o7777 })
        };
        let mut path = path.to_owned();
        for _ in 0..40 {
            match self.entry(&path)? {
                Entry::Link { target, owned } => {
                    if let (Some(trail), Some(folder)) = (&mut trail, folder(&path)) {
                        let other = self.other_owner(&path);
                        trail
                            .link(folder, other, owned.met(), &path)
                            .map_err(|error| refused(&path, error))?;
                    }
                    path = normal(&path.parent().unwrap_or(Path::new("/")).join(target));
                }
                entry => {
                    let end = entry.owned().map(Owned::met);
                    if let (Some(trail), Some(end)) = (&trail, end.or_else(|| folder(&path))) {
                        trail.end(end).map_err(|error| refused(&path, error))?;
                    }
                    return Ok((path, entry));
                }
            }
        }
        Err(FileError::new("follow", path, rustix::io::Errno::LOOP))
    }

    /// Reads a file, and follows links; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read, is too large or no regular file, or its content is known only in the run.
    pub fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, ReadError> {
        let (path, entry) = self.follow(path)?;
        match entry {
            Entry::Absent => Ok(None),
            Entry::File { content: Content::On(place), .. } => {
                Ok(Some(files::read_bounded(&place, TEXT_LIMIT)?.unwrap_or_default()))
            }
            Entry::File { content: Content::Known(bytes), .. } => Ok(Some(bytes.to_vec())),
            Entry::File { content: Content::Digest { .. }, .. } => Err(ReadError::Foreseen(path)),
            Entry::Directory { .. } => {
                Err(FileError::new("read", path, io::Error::from(io::ErrorKind::IsADirectory)).into())
            }
            Entry::Link { .. } | Entry::Other { .. } => {
                Err(FileError::new("read", path, io::Error::other("it is no regular file")).into())
            }
        }
    }

    /// Returns the SHA-256 and the size in bytes of a file's content.
    ///
    /// # Errors
    /// If it cannot be read, or not before the deadline.
    pub fn digest(&self, content: &Content, deadline: &Deadline) -> Result<(String, u64), FileError> {
        match content {
            Content::On(path) => {
                let file = deadline.reader(tree::open(path)?);
                files::sha256_of(file).map_err(|error| FileError::new("read", path, error))
            }
            Content::Known(bytes) => Ok((files::sha256(bytes), bytes.len() as u64)),
            Content::Digest { sha256, size } => Ok((sha256.clone(), *size)),
        }
    }

    /// Returns the digests and the size of a file's content.
    ///
    /// # Errors
    /// If it cannot be read, or not before the deadline.
    pub fn digests(&self, content: &Content, deadline: &Deadline) -> Result<Digests, FileError> {
        match content {
            Content::On(path) => {
                let file = deadline.reader(tree::open(path)?);
                checksum::digests(file).map_err(|error| FileError::new("read", path, error))
            }
            Content::Known(bytes) => {
                checksum::digests(&**bytes).map_err(|error| FileError::new("read", Path::new(""), error))
            }
            Content::Digest { sha256, size } => {
                Ok(Digests { sha256: sha256.clone(), sha1: None, md5: None, size: *size })
            }
        }
    }

    /// Returns the names of the files in a folder, including assumed ones, sorted; empty if there is no such folder.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn names(&self, folder: &Path) -> Result<Vec<String>, FileError> {
        let mut names: Vec<String> = match fs::read_dir(folder) {
            Ok(entries) => {
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Vec::new()
            }
            Err(error) => return Err(FileError::new("read", folder, error)),
        };
        if let Some(assumed) = self.assumed() {
            let children = assumed.paths.keys().filter(|path| path.parent() == Some(folder));
            names.extend(children.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)));
        }
        names.sort();
        names.dedup();
        let mut there = Vec::with_capacity(names.len());
        for name in names {
            if self.assumed_entry(&folder.join(&name)) != Some(Entry::Absent) {
                there.push(name);
            }
        }
        Ok(there)
    }

    /// Whether a path or glob matches anything.
    pub fn any_match(&self, pattern: &Path) -> bool {
        let real = glob::expand(pattern, Glob::new);
        if real.iter().any(|path| self.assumed_entry(path) != Some(Entry::Absent)) {
            return true;
        }
        self.assumed().is_some_and(|assumed| {
            assumed
                .paths
                .iter()
                .any(|(path, entry)| *entry != Entry::Absent && glob::path_matches(pattern, path, Glob::new))
        })
    }
}

/// Returns a path without `.` and `..`, as the kernel would walk it if no folder on it were a link.
pub fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNED: Owned = Owned { uid: 0, gid: 0, mode: 0o755 };

    fn file(text: &str) -> Entry {
        Entry::File { owned: OWNED, content: Content::Known(text.as_bytes().into()) }
    }

    #[test]
    fn assumptions_hide_the_node_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        fs::write(&path, "real").unwrap();
        let overlay = Overlay::default();
        let world = World::overlaid(&overlay);
        assert_eq!(world.read(&path).unwrap().unwrap(), b"real");
        overlay.assume([Effect::Path { path: path.clone(), entry: file("assumed") }]);
        assert_eq!(world.read(&path).unwrap().unwrap(), b"assumed");
        assert_eq!(World::real().read(&path).unwrap().unwrap(), b"real");
        overlay.assume([Effect::Path { path: dir.path().into(), entry: Entry::Absent }]);
        assert_eq!(world.read(&path).unwrap(), None);
        assert!(!world.any_match(&dir.path().join("co*")));
        assert!(world.names(dir.path()).unwrap().is_empty());
        overlay.forget();
        assert_eq!(world.read(&path).unwrap().unwrap(), b"real");
    }

    #[test]
    fn a_new_directory_keeps_what_is_put_into_it() {
        let overlay = Overlay::default();
        let world = World::overlaid(&overlay);
        let folder = PathBuf::from("/no/such/folder");
        overlay.assume([
            Effect::Path { path: folder.clone(), entry: Entry::Directory { owned: OWNED } },
            Effect::Path { path: folder.join("x"), entry: file("x") },
            Effect::Path {
                path: folder.join("l"),
                entry: Entry::Link { owned: OWNED, target: "./x".into() },
            },
        ]);
        assert_eq!(world.read(&folder.join("l")).unwrap().unwrap(), b"x");
        assert_eq!(world.names(&folder).unwrap(), ["l", "x"]);
        assert!(world.any_match(Path::new("/no/*/folder/?")));
    }

    #[test]
    fn content_that_only_the_run_has_is_foreseen() {
        let overlay = Overlay::default();
        let path = PathBuf::from("/no/such/file");
        let content = Content::Digest { sha256: "00".into(), size: 3 };
        overlay.assume([Effect::Path { path: path.clone(), entry: Entry::File { owned: OWNED, content } }]);
        assert!(matches!(World::overlaid(&overlay).read(&path), Err(ReadError::Foreseen(_))));
    }
}
