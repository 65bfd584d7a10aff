//! The cluster: stored objects, the time, pending timers, and the only way to write.
//!
//! Every write goes through [`Cluster::commit`] or [`Cluster::erase`], so that the log, the watches and the
//! controllers see all of them. No networking here; `server` calls [`Cluster::handle`](crate::api) under a lock.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::access::Access;
use crate::faults::Faults;
use crate::log::{Entry, Log};
use crate::model::nodes::Machine;
use crate::model::timers::Timers;
use crate::object::{self, flag, is_true};
use crate::resources::{NAMESPACES, NODES, Resource};
use crate::settings::Settings;
use crate::store::{Change, ChangeKind, Store};

/// The author of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: String,
    /// The first part of the user agent, which `managedFields` names.
    pub manager: String,
}

impl Actor {
    pub fn new(user: impl Into<String>, manager: impl Into<String>) -> Self {
        Self { user: user.into(), manager: manager.into() }
    }

    pub(crate) fn controller_manager() -> Self {
        Self::new("system:kube-controller-manager", "kube-controller-manager")
    }

    pub(crate) fn kubelet(node: &str) -> Self {
        Self::new(format!("system:node:{node}"), "kubelet")
    }
}

/// A whole cluster.
#[derive(Debug)]
pub struct Cluster {
    pub store: Store,
    pub now_ms: i64,
    pub settings: Settings,
    /// The machines behind nodes. A node without one has no kubelet: nothing on it ever starts or ends.
    pub machines: BTreeMap<String, Machine>,
    pub log: Log,
    pub faults: Faults,
    pub access: Access,
    pub(crate) timers: Timers,
    names: u64,
    /// Whether reads are logged too.
    pub log_reads: bool,
}

impl Cluster {
    pub fn new(now_ms: i64, settings: Settings) -> Self {
        let mut cluster = Self {
            store: Store::default(),
            now_ms,
            settings,
            machines: BTreeMap::new(),
            log: Log::default(),
            faults: Faults::default(),
            access: Access::default(),
            timers: Timers::default(),
            names: 0,
            log_reads: false,
        };
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            cluster.ensure_namespace(name);
        }
        cluster
    }

    /// Creates a namespace unless it exists.
    pub fn ensure_namespace(&mut self, name: &str) {
        if self.store.get(&NAMESPACES, "", name).is_some() {
            return;
        }
        let actor = Actor::new("system:apiserver", "kube-apiserver");
        let mut object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
        self.stamp(&NAMESPACES, &mut object);
        crate::defaults::admit(&NAMESPACES, &mut object);
        self.commit(&actor, &NAMESPACES, object);
    }

    /// Sets a new object's uid, creation time and first generation.
    pub(crate) fn stamp(&mut self, resource: &Resource, object: &mut Value) {
        object::set(object, &["metadata", "uid"], json!(Uuid::new_v4().to_string()));
        object::set(object, &["metadata", "creationTimestamp"], json!(object::time(self.now_ms)));
        if resource.generation {
            object::set(object, &["metadata", "generation"], json!(1));
        }
    }

    /// Returns five characters that no other generated name has.
    pub(crate) fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        self.names += 1;
        // Multiplied, so that consecutive names do not look alike.
        let mut number = self.names.wrapping_mul(7_368_787) % 14_348_907;
        let mut text = String::new();
        for _ in 0..5 {
            text.push(char::from(LETTERS[usize::try_from(number % 27).unwrap_or_default()]));
            number /= 27;
        }
        text
    }

    /// Writes an object; an unchanged one keeps its version, as in the real server.
    pub(crate) fn commit(&mut self, actor: &Actor, resource: &'static Resource, object: Value) -> Value {
        let (namespace, name) = (object::namespace(&object), object::name(&object));
        if let Some(old) = self.store.get(resource, namespace, name) {
            let mut same = object.clone();
            object::set(
                &mut same,
                &["metadata", "resourceVersion"],
                old["metadata"]["resourceVersion"].clone(),
            );
            if same == *old {
                return same;
            }
        }
        let change = self.store.put(resource, object).clone();
        self.note_change(actor, &change);
        self.react(actor, &change);
        change.object
    }

    /// Removes an object for good.
    pub(crate) fn erase(&mut self, actor: &Actor, resource: &'static Resource, namespace: &str, name: &str) {
        let Some(change) = self.store.remove(resource, namespace, name).cloned() else { return };
        self.note_change(actor, &change);
        self.react(actor, &change);
    }

    /// Changes an object as a controller, which then owns the changed fields.
    pub(crate) fn amend(
        &mut self,
        actor: &Actor,
        resource: &'static Resource,
        object: &Value,
        sub: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let Some(old) = self.store.get(resource, object::namespace(object), object::name(object)).cloned()
        else {
            return;
        };
        let mut new = old.clone();
        change(&mut new);
        if new == old {
            return;
        }
        crate::patch::normalise(&mut new);
        if resource.generation && old.get("spec") != new.get("spec") {
            let generation = object::int(&old, "/metadata/generation").unwrap_or(1) + 1;
            object::set(&mut new, &["metadata", "generation"], json!(generation));
        }
        let writer = crate::managed::Writer { manager: &actor.manager, subresource: sub };
        crate::managed::track(resource, writer, Some(&old), &mut new, self.now_ms);
        self.commit(actor, resource, new);
    }

    /// Returns how many nodes are cordoned or not ready.
    pub fn out_of_service(&self) -> u32 {
        let out = self
            .store
            .all(&NODES, "")
            .filter(|n| flag(n, "/spec/unschedulable") || !is_true(n, "Ready"))
            .count();
        u32::try_from(out).unwrap_or(u32::MAX)
    }

    /// Returns a log entry with the current time; the caller fills in the rest.
    pub(crate) fn entry(
        &self,
        actor: &Actor,
        verb: &str,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Entry {
        Entry {
            seq: 0,
            at_ms: self.now_ms,
            at: object::fine_time(self.now_ms),
            user: actor.user.clone(),
            agent: actor.manager.clone(),
            verb: verb.to_owned(),
            resource: resource.plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            code: 0,
            reason: String::new(),
            message: String::new(),
            dry_run: false,
            detail: Value::Null,
            out: self.out_of_service(),
        }
    }

    /// Logs the events that follow from a change.
    fn note_change(&mut self, actor: &Actor, change: &Change) {
        let (namespace, name) = (object::namespace(&change.object), object::name(&change.object));
        let mut entries = Vec::new();
        match (change.resource.plural, change.kind) {
            ("nodes", ChangeKind::Added | ChangeKind::Modified) => {
                let before = change.before.as_ref();
                let was_out = before.is_some_and(|b| flag(b, "/spec/unschedulable"));
                let is_out = flag(&change.object, "/spec/unschedulable");
                if was_out != is_out {
                    let mut entry = self.entry(
                        actor,
                        if is_out { "cordoned" } else { "uncordoned" },
                        change.resource,
                        "",
                        name,
                    );
                    let annotations = |object: Option<&Value>| {
                        object.and_then(|o| o.pointer("/metadata/annotations")).cloned().unwrap_or(json!({}))
                    };
                    entry.detail = json!({"annotations": annotations(Some(&change.object)), "before": annotations(before)});
                    entries.push(entry);
                }
                let (was, is) =
                    (before.is_some_and(|b| is_true(b, "Ready")), is_true(&change.object, "Ready"));
                if was != is {
                    let mut entry =
                        self.entry(actor, if is { "ready" } else { "not-ready" }, change.resource, "", name);
                    entry.detail = json!({"bootID": object::text(&change.object, "/status/nodeInfo/bootID")});
                    entries.push(entry);
                }
            }
            ("pods", ChangeKind::Deleted) => {
                let mut entry = self.entry(actor, "gone", change.resource, namespace, name);
                entry.detail = json!({"uid": object::uid(&change.object), "node": object::text(&change.object, "/spec/nodeName")});
                entries.push(entry);
            }
            _ => {}
        }
        for entry in entries {
            self.log.push(entry);
        }
    }
}
