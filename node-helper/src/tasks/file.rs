//! `file`: a path is a file, directory, link or absent, with owner and mode.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    disturbing::{class_of, kinds},
    tasks::{File, FileState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{At, FileError, Ownership},
        trail::{Unsafe, Way},
        tree::{self, Dir, GoOn, Place, Spot},
    },
    process::Run,
    tasks::ownership::{self, Wanted},
    world::{Content, Effect, Entry, Owned, World},
};

/// Largest number of paths below one directory; more are refused.
const MOST_PATHS: usize = 500_000;

/// A path below a directory that is declared recursively.
#[derive(Clone, Debug)]
pub struct Below {
    /// Relative to the directory.
    path: PathBuf,
    owned: Owned,
    directory: bool,
    link: bool,
    /// The directory that contains it; `None` in a prediction.
    place: Option<Place>,
    /// The user who could not look into it, and may have led the walk there.
    closed: Option<u32>,
}

/// A directory that is declared recursively.
#[derive(Debug, Default)]
struct Tree {
    /// As [`Below::place`], for the directory itself.
    place: Option<Place>,
    /// As [`Below::closed`], for the directory itself.
    closed: Option<u32>,
    below: Vec<Below>,
}

/// The declaration of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Keep,
    Now,
    /// Seconds since 1970.
    At(i64),
}

impl When {
    fn read(text: Option<&str>, default: Self, node: &Node<'_>) -> Result<Self, Trouble> {
        match text {
            None => Ok(default),
            Some("preserve") => Ok(Self::Keep),
            Some("now") => Ok(Self::Now),
            Some(text) => local_time(text, node).map(Self::At),
        }
    }

    /// Whether the declared time differs from `has`.
    fn differs(self, has: i64, touches: bool) -> bool {
        match self {
            Self::Keep => false,
            Self::Now => touches,
            Self::At(wanted) => wanted != has,
        }
    }

    const fn stamp(self) -> rustix::fs::Timespec {
        match self {
            Self::Keep => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            Self::Now => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            Self::At(seconds) => rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 },
        }
    }
}

/// Parses `YYYYMMDDhhmm.ss` in the node's time zone, with the node's own `date`.
fn local_time(text: &str, node: &Node<'_>) -> Result<i64, Trouble> {
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let given = format!(
        "{}-{}-{} {}:{}:{}",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 12),
        part(13, 15)
    );
    let done = Run::new("date").args(["-d", &given, "+%s"]).finish(node.deadline)?;
    let seconds = done.stdout().trim().parse().ok().filter(|_| done.exit.success());
    seconds.ok_or_else(|| Trouble::invalid(format!("`{text}` is no time on this node")))
}

#[derive(Debug)]
pub struct State {
    /// Times of access and change, in seconds since 1970.
    times: (i64, i64),
    access: When,
    modified: When,
    /// The path itself.
    path: PathBuf,
    entry: Entry,
    /// The path with links at its end resolved.
    place: PathBuf,
    there: Entry,
    /// Whether the path is an empty directory.
    empty: bool,
    /// Missing parent folders, the outermost first.
    folders: Vec<PathBuf>,
    tree: Tree,
    /// The target of a link that is to be created.
    target: Entry,
    /// Whether the path is a hard link to the source already.
    linked: bool,
    wanted: Wanted,
}

#[derive(Debug)]
pub enum Step {
    Directory(PathBuf),
    Create(PathBuf),
    Touch {
        path: PathBuf,
        access: When,
        modified: When,
    },
    Remove {
        path: PathBuf,
        directory: bool,
    },
    Link {
        path: PathBuf,
        target: PathBuf,
        replaces: bool,
    },
    Hard {
        path: PathBuf,
        source: PathBuf,
        replaces: bool,
    },
    Own {
        path: PathBuf,
        ownership: Ownership,
    },
    /// Owner and mode of a path below a recursively declared directory.
    OwnBelow {
        below: Below,
        ownership: Ownership,
    },
}

fn missing_folders(world: &World, path: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let mut missing = Vec::new();
    let mut next = path.parent();
    while let Some(folder) = next {
        match world.follow(folder)?.1 {
            Entry::Absent => missing.insert(0, folder.to_owned()),
            Entry::Directory { .. } => break,
            other => {
                return Err(Trouble::invalid(format!(
                    "{} is a {}, not a directory",
                    folder.display(),
                    other.what()
                )));
            }
        }
        next = folder.parent();
    }
    Ok(missing)
}

fn walk(node: &Node<'_>, root: &Path) -> Result<Tree, Trouble> {
    if !node.world.predicts() {
        let root = tree::dir(root)?;
        let all = root.all(MOST_PATHS, &|| node.deadline.stop().is_none());
        node.check_time()?;
        let below = |found: tree::Found| {
            let owned = Owned { uid: found.uid, gid: found.gid, mode: found.mode };
            Below {
                path: found.below,
                owned,
                directory: found.directory,
                link: found.link,
                place: Some(found.place),
                closed: found.place.way.shuts(owned.met(), found.directory),
            }
        };
        let place = root.place();
        let below = all?.into_iter().map(below).collect();
        return Ok(Tree { place: Some(place), closed: place.way.closed(), below });
    }
    let Some(top) = node.world.entry(root)?.owned() else { return Ok(Tree::default()) };
    let top = Way::into(rustix::process::geteuid().as_raw(), node.world.other_owner(root), top.met());
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::new(), top)];
    while let Some((folder, way)) = folders.pop() {
        node.check_time()?;
        for name in node.world.names(&root.join(&folder))? {
            let path = folder.join(name);
            let entry = node.world.entry(&root.join(&path))?;
            let Some(owned) = entry.owned() else { continue };
            let directory = matches!(entry, Entry::Directory { .. });
            if directory {
                folders.push((path.clone(), way.deeper(owned.met())));
            }
            let link = matches!(entry, Entry::Link { .. });
            let closed = way.shuts(owned.met(), directory);
            found.push(Below { path, owned, directory, link, place: None, closed });
            if found.len() > MOST_PATHS {
                return Err(Trouble::invalid(format!(
                    "more than {MOST_PATHS} paths are below {}",
                    root.display()
                )));
            }
        }
    }
    Ok(Tree { place: None, closed: top.closed(), below: found })
}

/// Whether it grants anyone but root more rights than these bits.
fn opens(set: &Ownership, mode: u32) -> bool {
    let given = |id: Option<u32>| id.is_some_and(|id| id != 0);
    given(set.uid) || given(set.gid) || set.mode.is_some_and(|wanted| wanted & !mode & 0o077 != 0)
}

/// Refuses to give away what a user could not look into, and may have put on the walk's path.
fn guard(path: &Path, closed: Option<u32>, set: &Ownership, now: Owned) -> Result<(), Trouble> {
    match closed.filter(|_| opens(set, now.mode)) {
        Some(owner) => Err(Trouble::invalid(Unsafe::Closed { path: path.to_owned(), owner }.to_string())),
        None => Ok(()),
    }
}

/// Whether the task needs the target of a link that could not be followed.
fn needs_target(task: &File, error: &FileError) -> bool {
    let circle = error.source.raw_os_error() == Some(libc::ELOOP);
    let itself = matches!(task.state, Some(FileState::Absent | FileState::Link | FileState::Hard));
    task.follow && !circle && !itself
}

impl State {
    /// Returns the declared state, or the present one, by Ansible's rules.
    fn meant(&self, task: &File) -> FileState {
        task.state.unwrap_or(match (&self.entry, &self.there) {
            (Entry::Link { .. }, Entry::Directory { .. }) if task.follow => FileState::Directory,
            (Entry::Directory { .. }, _) => FileState::Directory,
            (Entry::Link { .. }, _) if !task.follow => FileState::Link,
            _ => FileState::File,
        })
    }

    /// Returns the path that owner and mode apply to, and what is there.
    fn subject(&self, task: &File) -> (&Path, &Entry) {
        if task.follow { (&self.place, &self.there) } else { (&self.path, &self.entry) }
    }
}

fn own(
    wanted: &Wanted,
    path: &Path,
    shown: &str,
    now: Owned,
    directory: bool,
    plan: &mut Plan<Step>,
) -> Result<(), Trouble> {
    let (set, changes) = ownership::differences(shown, now, wanted, directory)?;
    if !changes.is_empty() {
        plan.steps.push(Step::Own { path: path.to_owned(), ownership: set });
        plan.changes.extend(changes);
    }
    Ok(())
}

/// Sets owner and mode of what the plan creates, as part of the same change.
fn own_new(
    wanted: &Wanted,
    path: &Path,
    default: u32,
    directory: bool,
    plan: &mut Plan<Step>,
) -> Result<(), Trouble> {
    let mode = wanted.bits(default, directory)?;
    if mode.is_some() || wanted.uid.is_some() || wanted.gid.is_some() {
        let ownership = Ownership { uid: wanted.uid, gid: wanted.gid, mode };
        plan.steps.push(Step::Own { path: path.to_owned(), ownership });
    }
    Ok(())
}

/// Plans times of an existing path.
fn times(task: &File, state: &State, path: &Path, entry: &Entry, touches: bool, plan: &mut Plan<Step>) {
    let access = state.access.differs(state.times.0, touches);
    let modified = state.modified.differs(state.times.1, touches);
    if !access && !modified {
        return;
    }
    let step = Step::Touch {
        path: path.to_owned(),
        access: if access { state.access } else { When::Keep },
        modified: if modified { state.modified } else { When::Keep },
    };
    let path = Subject::file(&task.path);
    plan.push(step, Change::new(path, Property::TIMES, entry.what(), "touched", Disruption::Live));
}

fn plan_as(task: &File, state: &State, touches: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = plan_kind(task, state, touches)?;
    // Only for existing paths; a created one has the time of its creation.
    if !matches!(state.meant(task), FileState::Absent | FileState::Touch) {
        let (path, entry) = state.subject(task);
        if *entry != Entry::Absent {
            times(task, state, path, entry, touches, &mut plan);
        }
    }
    Ok(plan)
}

fn plan_kind(task: &File, state: &State, touches: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let shown = task.path.as_str();
    let change = |from: Typed, to: Typed| becomes(shown, from, to);
    let no_folder = || {
        let folder = Path::new(shown).parent().unwrap_or(Path::new("/"));
        Trouble::invalid(format!("the directory {} for {shown} does not exist", folder.display()))
    };
    match state.meant(task) {
        FileState::Absent => match &state.entry {
            Entry::Absent => {}
            entry => {
                let directory = matches!(entry, Entry::Directory { .. });
                let step = Step::Remove { path: state.path.clone(), directory };
                plan.needs = class_of(kinds::of_removal(shown));
                plan.push(step, change(entry.what().into(), Typed::Absent).needing(plan.needs));
            }
        },
        FileState::File => match state.subject(task) {
            (path, Entry::File { owned, .. } | Entry::Other { owned, .. }) => {
                own(&state.wanted, path, shown, *owned, false, &mut plan)?;
            }
            (_, Entry::Absent) => {
                return Err(Trouble::invalid(format!(
                    "there is no {shown}, and `state: file` does not make one; `state: touch` or a `copy` task does"
                )));
            }
            (_, other) => return Err(Trouble::invalid(format!("{shown} is a {}, not a file", other.what()))),
        },
        FileState::Touch => match state.subject(task) {
            (path, Entry::Absent) => {
                if !state.folders.is_empty() {
                    return Err(no_folder());
                }
                plan.push(Step::Create(path.to_owned()), change(Typed::Absent, "file".into()));
                own_new(&state.wanted, path, 0o644, false, &mut plan)?;
                if matches!(state.access, When::At(_)) || matches!(state.modified, When::At(_)) {
                    let (access, modified) = (state.access, state.modified);
                    plan.steps.push(Step::Touch { path: path.to_owned(), access, modified });
                }
            }
            (path, entry) => {
                times(task, state, path, entry, touches, &mut plan);
                if let Some(owned) = entry.owned() {
                    let directory = matches!(entry, Entry::Directory { .. });
                    own(&state.wanted, path, shown, owned, directory, &mut plan)?;
                }
            }
        },
        FileState::Directory => match state.subject(task) {
            (path, Entry::Absent) => {
                for folder in state.folders.iter().map(PathBuf::as_path).chain([path]) {
                    plan.steps.push(Step::Directory(folder.to_owned()));
                    own_new(&state.wanted, folder, 0o755, true, &mut plan)?;
                }
                plan.changes.push(change(Typed::Absent, "directory".into()));
            }
            (path, Entry::Directory { owned }) => {
                let (set, _) = ownership::differences(shown, *owned, &state.wanted, true)?;
                guard(path, state.tree.closed, &set, *owned)?;
                own(&state.wanted, path, shown, *owned, true, &mut plan)?;
                let mut changed = 0;
                for below in &state.tree.below {
                    let wanted = if below.link {
                        Wanted { mode: None, ..state.wanted.clone() }
                    } else {
                        state.wanted.clone()
                    };
                    let (set, changes) = ownership::differences("", below.owned, &wanted, below.directory)?;
                    if !changes.is_empty() {
                        let closed = below.closed.filter(|_| !below.link);
                        guard(&path.join(&below.path), closed, &set, below.owned)?;
                        plan.steps.push(Step::OwnBelow { below: below.clone(), ownership: set });
                        changed += 1;
                    }
                }
                if changed > 0 {
                    let paths = if changed == 1 { "1 path".to_owned() } else { format!("{changed} paths") };
                    plan.changes.push(Change::new(
                        Subject::tree(shown),
                        Property::STATE,
                        format!("{paths} with another owner or mode"),
                        "as declared",
                        Disruption::Live,
                    ));
                }
            }
            (_, other) => {
                return Err(Trouble::invalid(format!("{shown} is a {}, not a directory", other.what())));
            }
        },
        FileState::Link => plan_link(task, state, &mut plan)?,
        FileState::Hard => plan_hard(task, state, &mut plan)?,
    }
    Ok(plan)
}

/// A path becomes something else.
fn becomes(path: &str, from: impl Into<Typed>, to: impl Into<Typed>) -> Change {
    Change::new(Subject::file(path), Property::TYPE, from, to, Disruption::Live)
}

fn replaceable(task: &File, state: &State) -> Result<bool, Trouble> {
    let refuse =
        |why: &str| Err(Trouble::invalid(format!("{} is a {}; {why}", task.path, state.entry.what())));
    match &state.entry {
        Entry::Absent => Ok(false),
        Entry::Directory { .. } if !state.empty => refuse("it is not empty, so no link replaces it"),
        Entry::Link { .. } => Ok(true),
        _ if !task.force => refuse("`force: true` would replace it by the link"),
        _ => Ok(true),
    }
}

fn plan_link(task: &File, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
    let Some(src) = &task.src else {
        // Only an existing link with a declared owner can lack a target here.
        if let Some(owned) = state.entry.owned() {
            own(&Wanted { mode: None, ..state.wanted.clone() }, &state.path, &task.path, owned, false, plan)?;
        }
        return Ok(());
    };
    let now = match &state.entry {
        Entry::Link { target, .. } => Some(format!("link to {}", target.display())),
        Entry::Absent => None,
        other => Some(other.what().to_owned()),
    };
    let right = matches!(&state.entry, Entry::Link { target, .. } if target == Path::new(src));
    if !right {
        if state.target == Entry::Absent && !task.force {
            return Err(Trouble::invalid(format!(
                "the target {src} does not exist; `force: true` makes the link all the same"
            )));
        }
        if !state.folders.is_empty() {
            return Err(Trouble::invalid(format!("the directory for {} does not exist", task.path)));
        }
        let replaces = replaceable(task, state)?;
        let step = Step::Link { path: state.path.clone(), target: src.into(), replaces };
        plan.push(step, becomes(&task.path, now, format!("link to {src}")));
    }
    if let (true, Entry::Link { owned, .. }) = (right, &state.entry) {
        let (path, owned, wanted) = match state.there.owned() {
            Some(there) if task.follow => (&state.place, there, state.wanted.clone()),
            _ => (&state.path, *owned, Wanted { mode: None, ..state.wanted.clone() }),
        };
        let directory = matches!(state.there, Entry::Directory { .. });
        own(&wanted, path, &task.path, owned, directory, plan)?;
    }
    Ok(())
}

fn plan_hard(task: &File, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
    let src = task.src.as_deref().unwrap_or_default();
    if state.linked {
        if let Some(owned) = state.entry.owned() {
            own(&state.wanted, &state.path, &task.path, owned, false, plan)?;
        }
        return Ok(());
    }
    if !matches!(state.target, Entry::File { .. }) {
        return Err(Trouble::invalid(format!(
            "{src} is {}, so no hard link to it can be made",
            state.target.what()
        )));
    }
    if !state.folders.is_empty() {
        return Err(Trouble::invalid(format!("the directory for {} does not exist", task.path)));
    }
    let replaces = replaceable(task, state)?;
    let from = (state.entry != Entry::Absent).then(|| state.entry.what());
    let step = Step::Hard { path: state.path.clone(), source: state.place.clone(), replaces };
    plan.push(step, becomes(&task.path, from, format!("hard link to {src}")));
    Ok(())
}

impl NodeKind for File {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let path = node.roots.path(self.path.trim_end_matches('/'));
        let path = if path.as_os_str().is_empty() { PathBuf::from("/") } else { path };
        let world = &node.world;
        let entry = world.entry(&path)?;
        let (place, there) = match world.follow(&path) {
            Ok(found) => found,
            // A circular link, or one that may not be followed, can still be removed or replaced.
            Err(error) if matches!(entry, Entry::Link { .. }) && !needs_target(self, &error) => {
                (path.clone(), Entry::Absent)
            }
            Err(error) => return Err(error.into()),
        };
        let folders = if entry == Entry::Absent { missing_folders(world, &path)? } else { Vec::new() };
        let empty = matches!(entry, Entry::Directory { .. }) && world.names(&path)?.is_empty();
        let tree = if self.recurse && matches!(there, Entry::Directory { .. }) {
            walk(node, &place)?
        } else {
            Tree::default()
        };
        let (mut target, mut linked, mut source) = (Entry::Absent, false, None);
        if let Some(src) = &self.src {
            let given = if src.starts_with('/') {
                node.roots.path(src)
            } else {
                path.parent().unwrap_or(Path::new("/")).join(src)
            };
            let (end, found) = world.follow(&given)?;
            if let (Ok(one), Ok(two)) = (fs::symlink_metadata(&end), fs::symlink_metadata(&path)) {
                linked = one.ino() == two.ino() && one.dev() == two.dev();
            }
            // A predicted hard link is a file with its source's content.
            if let (Entry::File { content: Content::On(on), .. }, false) = (&entry, linked) {
                linked = *on == end && *on != path;
            }
            target = found;
            source = Some(end);
        }
        let wanted =
            Wanted::resolve(node.users, self.owner.as_deref(), self.group.as_deref(), self.mode.as_ref())?;
        let place = if self.state == Some(FileState::Hard) { source.unwrap_or(place) } else { place };
        let default = if self.state == Some(FileState::Touch) { When::Now } else { When::Keep };
        let access = When::read(self.access_time.as_deref(), default, node)?;
        let modified = When::read(self.modification_time.as_deref(), default, node)?;
        let subject = if self.follow { &place } else { &path };
        let times = fs::symlink_metadata(subject).map_or((0, 0), |meta| (meta.atime(), meta.mtime()));
        Ok(State {
            times,
            access,
            modified,
            path,
            entry,
            place,
            there,
            empty,
            folders,
            tree,
            target,
            linked,
            wanted,
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, true)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, false)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let me = |mode| Owned {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode,
        };
        let mut effects: Vec<Effect> = Vec::new();
        let known = |path: &Path| -> Option<Entry> {
            if path == state.path {
                return Some(state.entry.clone());
            }
            if path == state.place {
                return Some(state.there.clone());
            }
            None
        };
        let owned_so = |mut owned: Owned, set: &Ownership| {
            owned.uid = set.uid.unwrap_or(owned.uid);
            owned.gid = set.gid.unwrap_or(owned.gid);
            owned.mode = set.mode.unwrap_or(owned.mode);
            owned
        };
        for step in &plan.steps {
            let (path, entry) = match step {
                Step::Directory(path) => (path, Entry::Directory { owned: me(0o755) }),
                Step::Create(path) => {
                    (path, Entry::File { owned: me(0o644), content: Content::Known([].as_slice().into()) })
                }
                Step::Touch { .. } => continue,
                Step::Remove { path, .. } => (path, Entry::Absent),
                Step::Link { path, target, .. } => {
                    (path, Entry::Link { owned: me(0o777), target: target.clone() })
                }
                Step::Hard { path, source, .. } => {
                    let owned = state.target.owned().unwrap_or(me(0o644));
                    (path, Entry::File { owned, content: Content::On(source.clone()) })
                }
                Step::Own { path, ownership } => {
                    let made = effects.iter().rev().find_map(|effect| match effect {
                        Effect::Path { path: known, entry } if known == path => Some(entry.clone()),
                        _ => None,
                    });
                    let Some(mut entry) = made.or_else(|| known(path)) else { continue };
                    if let Entry::File { owned, .. }
                    | Entry::Directory { owned }
                    | Entry::Link { owned, .. }
                    | Entry::Other { owned, .. } = &mut entry
                    {
                        *owned = owned_so(*owned, ownership);
                    }
                    (path, entry)
                }
                Step::OwnBelow { below, ownership } => {
                    let path = state.place.join(&below.path);
                    let owned = owned_so(below.owned, ownership);
                    let entry = if below.directory {
                        Entry::Directory { owned }
                    } else if below.link {
                        let Ok(Entry::Link { target, .. }) = World::real().entry(&path) else { continue };
                        Entry::Link { owned, target }
                    } else {
                        Entry::File { owned, content: Content::On(path.clone()) }
                    };
                    effects.push(Effect::Path { path, entry });
                    continue;
                }
            };
            effects.push(Effect::Path { path: path.clone(), entry });
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let go_on = || node.deadline.stop().is_none();
        let mut deep = Deep { path: &state.place, root: None, at: None };
        for step in &plan.steps {
            node.check_time()?;
            let done = match step {
                Step::OwnBelow { below, ownership } => deep.own(below, *ownership),
                Step::Own { path, ownership } if self.recurse && *path == state.place => {
                    deep.own_itself(state.tree.place, *ownership)
                }
                step => perform(step, &go_on),
            };
            if done.is_err() {
                node.check_time()?;
            }
            done?;
        }
        Ok(Map::new())
    }

    fn subject(&self, state: &State) -> Option<PathBuf> {
        let links = matches!(self.state, Some(FileState::Link | FileState::Hard));
        let follows = self.follow && !links && state.entry != Entry::Absent;
        Some(if follows { state.place.clone() } else { state.path.clone() })
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        // Two names, as in Ansible's results.
        let name = match self.state {
            Some(FileState::Touch | FileState::Link | FileState::Hard) => "dest",
            _ => "path",
        };
        data.insert(name.to_owned(), json!(self.path));
        data.insert("path".to_owned(), json!(self.path));
        if let Some(src) = &self.src {
            data.insert("src".to_owned(), json!(src));
        }
        if state.entry == Entry::Absent {
            data.insert("state".to_owned(), json!("absent"));
        }
        data
    }
}

/// What is below a recursively declared directory. The folder of the last path stays open, because paths come folder by
/// folder.
struct Deep<'a> {
    path: &'a Path,
    root: Option<Dir>,
    at: Option<(PathBuf, Dir)>,
}

/// Ignores missing paths: a removed path needs no owner, and a new one is found by the next observation.
fn still(done: Result<(), FileError>) -> Result<(), FileError> {
    match done {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

impl Deep<'_> {
    fn open(&mut self) -> Result<Dir, FileError> {
        let root = self.root.take().map_or_else(|| tree::dir(self.path), Ok)?;
        Ok(self.root.insert(root).clone())
    }

    /// Sets the owner of the directory itself; a new one has nothing below it.
    fn own_itself(&mut self, place: Option<Place>, ownership: Ownership) -> Result<(), FileError> {
        let Some(place) = place else { return tree::own(self.path, ownership) };
        let opens = |mode| opens(&ownership, mode);
        self.open()?.spot(".").own_found(place, (true, false), ownership, opens)
    }

    fn own(&mut self, below: &Below, ownership: Ownership) -> Result<(), FileError> {
        let (Some(folder), Some(name)) = (below.path.parent(), below.path.file_name()) else { return Ok(()) };
        let root = self.open()?;
        if self.at.as_ref().is_none_or(|(at, _)| at != folder) {
            // Dropped first, because this folder may be gone, and the next path is in another one.
            self.at = None;
            match root.beneath(folder) {
                Ok(dir) => self.at = Some((folder.to_owned(), dir)),
                Err(error) => return still(Err(error)),
            }
        }
        let (Some((_, dir)), Some(place)) = (&self.at, below.place) else { return Ok(()) };
        let opens = |mode| opens(&ownership, mode);
        still(dir.spot(name).own_found(place, (below.directory, below.link), ownership, opens))
    }
}

fn perform(step: &Step, go_on: GoOn<'_>) -> Result<(), FileError> {
    match step {
        Step::Directory(path) => tree::spot(path)?.make_dir(0o777).at("make", path),
        Step::Create(path) => tree::spot(path)?.create(0o666).map(drop).at("make", path),
        Step::Touch { path, access, modified } => {
            let times =
                rustix::fs::Timestamps { last_access: access.stamp(), last_modification: modified.stamp() };
            tree::spot(path)?.touch(&times)
        }
        Step::Remove { path, directory: true } => tree::remove_all(path, go_on),
        Step::Remove { path, directory: false } => tree::spot(path)?.remove().at("remove", path),
        Step::Link { path, target, replaces } => {
            place(&tree::spot(path)?, *replaces, |temporary| temporary.link_to(target))
        }
        Step::Hard { path, source, replaces } => {
            let source = tree::spot(source)?;
            place(&tree::spot(path)?, *replaces, |temporary| temporary.name_also(&source))
        }
        Step::Own { path, ownership } => tree::own(path, *ownership),
        // Done by `Deep`, below an open directory.
        Step::OwnBelow { .. } => Ok(()),
    }
}

/// Creates a link with a temporary name and renames it, so that the path is never missing.
fn place(spot: &Spot, replaces: bool, make: impl FnOnce(&Spot) -> io::Result<()>) -> Result<(), FileError> {
    if !replaces {
        return make(spot).at("make", spot.path());
    }
    let letters = tree::random_letters::<12>().at("make", spot.path())?;
    let temporary = spot.dir().spot(format!(".{}.gpufleet-{letters}", spot.name().to_string_lossy()));
    make(&temporary).at("make", spot.path())?;
    // A link cannot be renamed over a directory; only an empty one is possible here.
    if spot.look()?.is_some_and(|meta| meta.is_dir())
        && let Err(error) = spot.remove_dir()
    {
        let _ = temporary.remove();
        return Err(FileError::new("replace", spot.path(), error));
    }
    let renamed = temporary.rename(spot).at("replace", spot.path());
    // Renaming onto a hard link of the same file does nothing and leaves the temporary name.
    let _ = temporary.remove();
    renamed
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
