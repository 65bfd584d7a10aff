//! Whole files that a kind writes or removes: reading them, what a plan shows of them, and doing it.

use std::path::{Path, PathBuf};

use gpufleet_protocol::{Change, Disruption, Property, Subject, change::Value as Typed};

use crate::{
    declare::{Node, Plan, Trouble},
    os::{
        diff,
        files::{self, FileError, Ownership},
        tree,
    },
    tasks::ownership,
    world::{Content, Effect, Entry, Owned},
};

/// Largest text for a diff, in bytes.
const DIFF_LIMIT: usize = 64 * 1024;

/// A file as it is.
#[derive(Clone, Debug)]
pub struct Present {
    /// As a task or a manual names it.
    pub shown: String,
    /// On the node, links not followed.
    pub place: PathBuf,
    /// `None` if there is no file.
    pub bytes: Option<Vec<u8>>,
    pub owned: Option<Owned>,
    /// Its folder, if that is missing.
    folder: Option<PathBuf>,
}

impl Present {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn read(node: &Node<'_>, shown: &str) -> Result<Self, Trouble> {
        let place = node.roots.path(shown);
        let (_, entry) = node.world.follow(&place)?;
        if let Entry::Directory { .. } | Entry::Other { .. } = entry {
            return Err(Trouble::invalid(format!("{shown} is a {}, not a file", entry.what())));
        }
        let bytes = node.world.read(&place)?;
        let folder = match place.parent() {
            Some(folder) if node.world.entry(folder)? == Entry::Absent => Some(folder.to_owned()),
            _ => None,
        };
        Ok(Self { shown: shown.to_owned(), place, bytes, owned: entry.owned(), folder })
    }

    /// Reads the files of a folder with one of these endings, sorted by name.
    ///
    /// # Errors
    /// As [`Present::read`].
    pub fn all(node: &Node<'_>, folder: &str, endings: &[&str]) -> Result<Vec<Self>, Trouble> {
        let mut all = Vec::new();
        for name in node.world.names(&node.roots.path(folder))? {
            if !name.starts_with('.') && endings.iter().any(|ending| name.ends_with(ending)) {
                all.push(Self::read(node, &format!("{folder}/{name}"))?);
            }
        }
        all.retain(|file| file.bytes.is_some());
        Ok(all)
    }

    /// Returns its text; empty if there is no file.
    ///
    /// # Errors
    /// If it is not UTF-8: what could not be read could not be written back either.
    pub fn text(&self) -> Result<&str, Trouble> {
        std::str::from_utf8(self.bytes.as_deref().unwrap_or_default())
            .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", self.shown)))
    }

    /// Returns the steps that give it new content.
    pub fn written(&self, bytes: impl Into<Vec<u8>>, own: Ownership) -> impl Iterator<Item = Step> {
        let write = Step::Write {
            place: self.place.clone(),
            bytes: bytes.into(),
            old: self.bytes.clone(),
            owned: self.owned,
            own,
        };
        self.folder.clone().map(Step::Folder).into_iter().chain([write])
    }

    /// Returns the step that removes it.
    pub fn removed(&self) -> Step {
        Step::Remove { place: self.place.clone(), old: self.bytes.clone(), owned: self.owned }
    }

    /// Returns the difference of its text, if people may see it.
    pub fn diff(&self, new: &str, secret: bool) -> Option<String> {
        let old = self.text().ok()?;
        (!secret && old.len().max(new.len()) <= DIFF_LIMIT).then(|| diff::unified(&self.shown, old, new))
    }

    /// Returns the change of its whole content.
    pub fn change(&self, new: Option<&[u8]>) -> Change {
        let digest = |bytes: &[u8]| Typed::Digest {
            algorithm: "sha256".to_owned(),
            value: files::sha256(bytes),
            bytes: Some(bytes.len() as u64),
        };
        let value = |bytes: Option<&[u8]>| bytes.map_or(Typed::Absent, digest);
        let from = value(self.bytes.as_deref());
        Change::new(Subject::file(&self.shown), Property::CONTENT, from, value(new), Disruption::Live)
    }

    /// Plans owner, group and mode of a file that is there and stays.
    ///
    /// # Errors
    /// If the text is no mode.
    pub fn plan_ownership(&self, wanted: &ownership::Wanted, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let Some(owned) = self.owned else { return Ok(()) };
        let (set, changes) = ownership::differences(&self.shown, owned, wanted, false)?;
        if !changes.is_empty() {
            plan.steps.push(Step::Own { place: self.place.clone(), owned, set });
            plan.changes.extend(changes);
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Makes a folder with mode 0755, and those above it.
    Folder(PathBuf),
    Write {
        place: PathBuf,
        bytes: Vec<u8>,
        old: Option<Vec<u8>>,
        owned: Option<Owned>,
        own: Ownership,
    },
    Remove {
        place: PathBuf,
        old: Option<Vec<u8>>,
        owned: Option<Owned>,
    },
    Own {
        place: PathBuf,
        owned: Owned,
        set: Ownership,
    },
}

fn with(owned: Owned, set: Ownership) -> Owned {
    Owned {
        uid: set.uid.unwrap_or(owned.uid),
        gid: set.gid.unwrap_or(owned.gid),
        mode: set.mode.unwrap_or(owned.mode),
    }
}

fn new_file() -> Owned {
    Owned { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), mode: 0o644 }
}

fn unlink(place: &Path) -> Result<(), Trouble> {
    let removed = tree::spot(place)?.remove();
    removed.map_err(|error| FileError::new("remove", place, error).into())
}

impl Step {
    pub fn effect(&self) -> Effect {
        let (path, entry) = match self {
            Self::Folder(place) => (place, Entry::Directory { owned: Owned { mode: 0o755, ..new_file() } }),
            Self::Write { place, bytes, owned, own, .. } => {
                let owned = with(owned.unwrap_or_else(new_file), *own);
                (place, Entry::File { owned, content: Content::Known(bytes.as_slice().into()) })
            }
            Self::Remove { place, .. } => (place, Entry::Absent),
            Self::Own { place, owned, set } => {
                let content = Content::On(place.clone());
                (place, Entry::File { owned: with(*owned, *set), content })
            }
        };
        Effect::Path { path: path.clone(), entry }
    }

    /// # Errors
    /// If the file cannot be written or removed; then nothing of this step has changed.
    pub fn apply(&self) -> Result<(), Trouble> {
        match self {
            Self::Folder(place) => tree::make_dirs(place).map(drop)?,
            Self::Write { place, bytes, own, .. } => files::replace(place, bytes, *own)?,
            Self::Remove { place, .. } => unlink(place)?,
            Self::Own { place, set, .. } => tree::own(place, *set)?,
        }
        Ok(())
    }

    /// Brings back what a step wrote over or removed.
    ///
    /// # Errors
    /// As [`Step::apply`].
    pub fn undo(&self) -> Result<(), Trouble> {
        match self {
            // It may never have been made.
            Self::Write { place, old: None, .. } if !place.exists() => {}
            Self::Write { place, old: None, .. } => unlink(place)?,
            Self::Write { place, old: Some(old), owned, .. }
            | Self::Remove { place, old: Some(old), owned } => {
                let own = owned.map(|owned| Ownership {
                    uid: Some(owned.uid),
                    gid: Some(owned.gid),
                    mode: Some(owned.mode),
                });
                files::replace(place, old, own.unwrap_or_default())?;
            }
            Self::Folder(_) | Self::Own { .. } | Self::Remove { old: None, .. } => {}
        }
        Ok(())
    }
}

/// Implements the last methods of [`crate::declare::NodeKind`] for a kind whose steps are all of these.
macro_rules! by_steps {
    () => {
        fn after(
            &self,
            _: &Self::State,
            plan: &$crate::declare::Plan<$crate::tasks::edits::Step>,
        ) -> Vec<$crate::world::Effect> {
            plan.steps.iter().map($crate::tasks::edits::Step::effect).collect()
        }

        fn apply(
            &self,
            _: &$crate::declare::Node<'_>,
            _: &Self::State,
            plan: &$crate::declare::Plan<$crate::tasks::edits::Step>,
        ) -> Result<serde_json::Map<String, serde_json::Value>, $crate::declare::Trouble> {
            plan.steps.iter().try_for_each($crate::tasks::edits::Step::apply)?;
            Ok(serde_json::Map::new())
        }
    };
}
pub(super) use by_steps;
