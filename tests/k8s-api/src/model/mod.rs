//! All active parts of the cluster: controllers, kubelets, machines.
//!
//! No part calls another: each write makes [`Cluster::react`] schedule the parts that it concerns, after their own
//! lag.

pub mod disruption;
pub mod kubelet;
pub mod mig;
pub mod namespaces;
pub mod nodes;
pub mod scheduler;
pub mod timers;
pub mod workloads;

use crate::cluster::{Actor, Cluster};
use crate::object;
use crate::store::Change;
use timers::Due;

impl Cluster {
    /// Runs everything that is due until a time.
    pub fn settle(&mut self, now_ms: i64) {
        while let Some((at_ms, due)) = self.timers.take(now_ms) {
            self.now_ms = self.now_ms.max(at_ms);
            self.happen(due);
        }
        self.now_ms = self.now_ms.max(now_ms);
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Reconcile => self.reconcile(),
            Due::Budget { namespace, name } => self.sync_budget(&namespace, &name),
            Due::PodStarted { namespace, name, uid } => self.pod_started(&namespace, &name, &uid),
            Due::PodStopped { namespace, name, uid } => self.pod_stopped(&namespace, &name, &uid),
            Due::PodSucceeded { namespace, name, uid } => self.pod_succeeded(&namespace, &name, &uid),
            Due::TaintEviction { namespace, name, uid } => self.taint_eviction(&namespace, &name, &uid),
            Due::Mirror { pod } => self.mirror_again(pod),
            Due::Boot { node, since_ms } => self.booted(&node, since_ms),
            Due::KubeletReady { node, since_ms } => self.kubelet_ready(&node, since_ms),
            Due::NodeMissed { node, since_ms } => self.node_missed(&node, since_ms),
            Due::Heartbeat { node } => self.heartbeat(&node),
            Due::PluginReady { node, since_ms } => self.plugin_ready(&node, since_ms),
            Due::MigApplied { node, layout } => self.mig_applied(&node, &layout),
        }
    }

    /// Schedules all parts that a change concerns.
    pub(crate) fn react(&mut self, _actor: &Actor, change: &Change) {
        let namespace = object::namespace(&change.object).to_owned();
        match change.resource.plural {
            "pods" => {
                self.kubelet_sees(change);
                self.budgets_of(&namespace);
                self.reconcile_soon();
            }
            "nodes" => {
                self.mig_manager_sees(change);
                self.reconcile_soon();
            }
            "poddisruptionbudgets" => {
                let name = object::name(&change.object).to_owned();
                self.timers
                    .once(self.now_ms + self.settings.disruption_lag.0, Due::Budget { namespace, name });
            }
            "events" | "leases" | "configmaps" => {}
            _ => {
                self.budgets_of(&namespace);
                self.reconcile_soon();
            }
        }
    }

    /// Schedules all controllers to check everything after their lag.
    pub(crate) fn reconcile_soon(&mut self) {
        self.timers.once(self.now_ms + self.settings.controller_lag.0, Due::Reconcile);
    }

    fn reconcile(&mut self) {
        let on = self.settings.controllers;
        if on.nodes {
            self.keep_taints();
        }
        if on.namespaces {
            self.empty_namespaces();
        }
        if on.workloads {
            self.keep_workloads();
        }
        if on.garbage {
            self.collect_garbage();
        }
        if on.scheduler {
            self.schedule_pods();
        }
    }
}
