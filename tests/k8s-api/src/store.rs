//! The store, like etcd: objects by resource and name, one version counter for all, and the history for watches.
//!
//! Owns versions and the order of changes. Must not know validation, finalizers or controllers.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use crate::object;
use crate::resources::Resource;

/// Number of changes in the history.
const HISTORY: usize = 20_000;
/// Number of partly read lists that are kept.
const SNAPSHOTS: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One write.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub resource: &'static Resource,
    pub kind: ChangeKind,
    /// The new object, or the last state of a deleted one under the version of its deletion.
    pub object: Value,
    pub before: Option<Value>,
}

/// The rest of a list that a client reads page by page.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub version: u64,
    pub rest: Vec<Value>,
    /// Where an inconsistent continuation starts: after this namespace and name.
    pub after: (String, String),
}

type Objects = BTreeMap<(String, String), Value>;

#[derive(Debug)]
pub struct Store {
    version: u64,
    objects: BTreeMap<(&'static str, &'static str), Objects>,
    history: VecDeque<Change>,
    /// The newest version that is no longer in the history.
    compacted: u64,
    snapshots: VecDeque<(String, Snapshot)>,
    pages: u64,
}

impl Default for Store {
    fn default() -> Self {
        // Not 0, which clients take for "any version".
        let (version, compacted) = (100, 100);
        Self {
            version,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted,
            snapshots: VecDeque::new(),
            pages: 0,
        }
    }
}

fn key(resource: &Resource) -> (&'static str, &'static str) {
    (resource.group, resource.plural)
}

impl Store {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&key(resource))?.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns all objects of a resource by namespace and name, or those of one namespace.
    pub fn all<'a>(
        &'a self,
        resource: &Resource,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.objects
            .get(&key(resource))
            .into_iter()
            .flatten()
            .filter(move |((of, _), _)| namespace.is_empty() || of == namespace)
            .map(|(_, object)| object)
    }

    /// Writes an object with a new version.
    pub fn put(&mut self, resource: &'static Resource, mut object: Value) -> &Change {
        self.version += 1;
        object::set(&mut object, &["metadata", "resourceVersion"], json!(self.version.to_string()));
        let place = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        let before = self.objects.entry(key(resource)).or_default().insert(place, object.clone());
        let kind = if before.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.record(Change { version: self.version, resource, kind, object, before })
    }

    /// Removes an object.
    pub fn remove(&mut self, resource: &'static Resource, namespace: &str, name: &str) -> Option<&Change> {
        let before =
            self.objects.get_mut(&key(resource))?.remove(&(namespace.to_owned(), name.to_owned()))?;
        self.version += 1;
        let mut object = before.clone();
        object::set(&mut object, &["metadata", "resourceVersion"], json!(self.version.to_string()));
        let version = self.version;
        Some(self.record(Change {
            version,
            resource,
            kind: ChangeKind::Deleted,
            object,
            before: Some(before),
        }))
    }

    fn record(&mut self, change: Change) -> &Change {
        if self.history.len() >= HISTORY
            && let Some(old) = self.history.pop_front()
        {
            self.compacted = old.version;
        }
        self.history.push_back(change);
        &self.history[self.history.len() - 1]
    }

    /// Returns the changes of one resource after a version, oldest first.
    pub fn since(&self, resource: &'static Resource, version: u64) -> impl Iterator<Item = &Change> {
        let from = self.history.partition_point(|c| c.version <= version);
        self.history.range(from..).filter(move |c| std::ptr::eq(c.resource, resource))
    }

    /// Clears the history and all partly read lists, like etcd's compaction every five minutes.
    pub fn compact(&mut self) {
        self.history.clear();
        self.snapshots.clear();
        self.compacted = self.version;
    }

    /// Keeps the rest of a list, and returns the token's number.
    pub fn keep(&mut self, snapshot: Snapshot) -> String {
        self.pages += 1;
        let token = self.pages.to_string();
        if self.snapshots.len() >= SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back((token.clone(), snapshot));
        token
    }

    /// Returns the rest of a list, as often as needed.
    pub fn kept(&self, token: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|(t, _)| t == token).map(|(_, snapshot)| snapshot)
    }
}
