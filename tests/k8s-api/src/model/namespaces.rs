//! The namespace controller and the garbage collector: deletions that follow from other deletions.

use serde_json::{Value, json};

use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::object::{self, terminating, text};
use crate::resources::{ALL, NAMESPACES, PODS, by_kind};

impl Cluster {
    /// Deletes what is in deleted namespaces, and removes the empty ones.
    pub(crate) fn empty_namespaces(&mut self) {
        let actor = Actor::controller_manager();
        let ending: Vec<String> = self
            .store
            .all(&NAMESPACES, "")
            .filter(|n| terminating(n))
            .map(|n| object::name(n).to_owned())
            .collect();
        for namespace in ending {
            let mut left = 0;
            for resource in ALL.into_iter().filter(|r| r.namespaced) {
                let names: Vec<(String, bool)> = self
                    .store
                    .all(resource, &namespace)
                    .map(|o| (object::name(o).to_owned(), terminating(o)))
                    .collect();
                for (name, ending) in names {
                    if !ending {
                        // What remains is counted below and tried again.
                        let _ = self.delete(&actor, resource, &namespace, &name, DeleteOptions::default());
                    }
                }
                left += self.store.all(resource, &namespace).count();
            }
            if left == 0 {
                let done = self
                    .store
                    .get(&NAMESPACES, "", &namespace)
                    .is_some_and(|n| object::list(n, "/metadata/finalizers").is_empty());
                if done {
                    self.erase(&actor, &NAMESPACES, "", &namespace);
                }
            }
        }
    }

    /// Deletes pods whose controller no longer exists.
    pub(crate) fn collect_garbage(&mut self) {
        let orphans: Vec<(String, String, String)> = self
            .store
            .all(&PODS, "")
            .filter(|pod| {
                !terminating(pod)
                    && object::controller(pod).is_some_and(|owner| !self.owner_lives(pod, owner))
            })
            .map(|pod| {
                (object::namespace(pod).to_owned(), object::name(pod).to_owned(), object::uid(pod).to_owned())
            })
            .collect();
        for (namespace, name, uid) in orphans {
            let options = DeleteOptions { uid: Some(uid), ..DeleteOptions::default() };
            // A pod that changed in between is checked again.
            let _ = self.delete(&Actor::controller_manager(), &PODS, &namespace, &name, options);
        }
    }

    fn owner_lives(&self, pod: &Value, owner: &Value) -> bool {
        // True for kinds that are not served here: the collector ignores what it cannot look up.
        let Some(resource) = by_kind(text(owner, "/apiVersion"), text(owner, "/kind")) else { return true };
        let namespace = if resource.namespaced { object::namespace(pod) } else { "" };
        self.store
            .get(resource, namespace, text(owner, "/name"))
            .is_some_and(|o| object::uid(o) == text(owner, "/uid"))
    }

    /// Marks a namespace as terminating.
    pub(crate) fn end_namespace(&mut self, actor: &Actor, namespace: &Value) -> Value {
        let mut ending = namespace.clone();
        if !terminating(&ending) {
            object::set(&mut ending, &["metadata", "deletionTimestamp"], json!(object::time(self.now_ms)));
            object::set(&mut ending, &["status", "phase"], json!("Terminating"));
        }
        self.commit(actor, &NAMESPACES, ending)
    }
}
