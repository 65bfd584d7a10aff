//! Which pods of a node stay, which have to go, and which are only taken if the play says so.
//!
//! Owns the policy alone, as `kubectl drain` has it; nothing here asks a server. Invariants: a pod is evicted only if
//! something brings it back elsewhere or a person said that it may be lost; what this file does not know is work.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::objects::{DaemonSet, Owner, Pod};

/// Marks a pod that the kubelet reads from its own files.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How many finalizers are named.
const NAMED: usize = 4;

/// What may be lost in a drain, and what is left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPolicy {
    /// Pods with an emptyDir go, and what is in it with them.
    pub delete_emptydir_data: bool,
    /// Pods that nothing brings back go for good.
    pub force: bool,
    /// Pods in these namespaces stay, and do not count as work.
    pub skip_namespaces: BTreeSet<String>,
}

/// DaemonSets by namespace and name; `None` for one that is not there any more.
pub(super) type Daemons = HashMap<(String, String), Option<DaemonSet>>;

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It belongs to the node, is over, or is left alone.
    Stays,
    /// Its DaemonSet does not want it there any more; it goes by itself.
    Leaves,
    /// It was asked to end; ready to show is what it waits for.
    Ends(String),
    Evict,
    /// Why it is not evicted, ready to show behind its name.
    Refused(&'static str),
}

/// The DaemonSet that a pod belongs to, by namespace and name.
pub(super) fn daemon(pod: &Pod) -> Option<(String, String)> {
    let owner = pod.controller().filter(|owner| owner.kind == "DaemonSet" && !is_foreign(owner))?;
    Some((pod.metadata.namespace.clone(), owner.name.clone()))
}

/// Whether its kind is one of another API group than Kubernetes' own controllers.
fn is_foreign(owner: &Owner) -> bool {
    !owner.api_version.is_empty() && !owner.api_version.starts_with("apps/")
}

/// What becomes of this pod. `labels` are the node's; `silent` says that its kubelet does not answer.
pub(super) fn part(
    pod: &Pod,
    policy: &PodPolicy,
    daemons: &Daemons,
    labels: &BTreeMap<String, String>,
    silent: bool,
    now: Timestamp,
) -> Part {
    if pod.metadata.annotations.contains_key(MIRROR) {
        return Part::Stays;
    }
    let over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    let owner = daemon(pod).and_then(|key| daemons.get(&key)?.as_ref()).filter(|daemon| {
        pod.controller().is_some_and(|owner| owner.uid.is_empty() || owner.uid == daemon.metadata.uid)
    });
    if let Some(daemon) = owner {
        let wanted = &daemon.spec.template.spec.node_selector;
        let fits = wanted.iter().all(|(key, value)| labels.get(key) == Some(value));
        return if fits || over { Part::Stays } else { Part::Leaves };
    }
    if over || policy.skip_namespaces.contains(&pod.metadata.namespace) {
        return Part::Stays;
    }
    if let Some(until) = pod.metadata.deletion_timestamp {
        return Part::Ends(ending(pod, until, silent, now));
    }
    // Why an orphan of a DaemonSet goes: nothing is left that it belongs to, and the cluster would delete it, too.
    if pod.controller().is_some_and(|owner| owner.kind == "DaemonSet" && is_foreign(owner)) {
        return Part::Refused(
            "its DaemonSet is of another API group and would bring it back here; `skip_namespaces` leaves it alone",
        );
    }
    if pod.controller().is_none() && !policy.force {
        return Part::Refused("nothing brings it back elsewhere; `force: true` lets it go for good");
    }
    if !policy.delete_emptydir_data && pod.spec.volumes.iter().any(|volume| volume.empty_dir.is_some()) {
        return Part::Refused(
            "it has an emptyDir, whose data would be lost; `delete_emptydir_data: true` lets it go",
        );
    }
    Part::Evict
}

fn ending(pod: &Pod, until: Timestamp, silent: bool, now: Timestamp) -> String {
    let overdue = now > until;
    let finalizers = &pod.metadata.finalizers;
    let mut text = if overdue { format!("should have ended at {until}") } else { format!("ends by {until}") };
    if overdue && silent {
        text.push_str(", but the kubelet of its node does not answer");
    }
    if overdue && !finalizers.is_empty() {
        let named: Vec<&str> = finalizers.iter().take(NAMED).map(String::as_str).collect();
        text.push_str(&format!(", and finalizers hold it: {}", named.join(", ")));
    }
    text
}

/// What keeps a pod from ending once it is asked to, where nothing in Kubernetes itself takes it off, ready to show.
pub(super) fn held_by_finalizers(pod: &Pod) -> Option<String> {
    // Why not those: Kubernetes' own controllers take them off when the pod ends, as of every Job.
    let own = |name: &&str| name.split('/').next().is_some_and(|domain| domain.ends_with("kubernetes.io"));
    let finalizers = pod.metadata.finalizers.iter().map(String::as_str).filter(|name| !own(name));
    let named_ones: Vec<&str> = finalizers.take(NAMED).collect();
    (!named_ones.is_empty()).then(|| {
        format!("{} ends only when its finalizers are taken off: {}", named(pod), named_ones.join(", "))
    })
}

/// The controller whose template makes a pod: namespace, plural of its kind, name.
pub(super) fn template_of(pod: &Pod) -> Option<(&str, &'static str, &str)> {
    let owner = pod.controller().filter(|owner| !is_foreign(owner))?;
    let kind = match owner.kind.as_str() {
        "ReplicaSet" => "replicasets",
        "StatefulSet" => "statefulsets",
        _ => return None,
    };
    Some((&pod.metadata.namespace, kind, &owner.name))
}

/// `pod default/web-0`.
pub(super) fn named(pod: &Pod) -> String {
    format!("pod {}/{}", pod.metadata.namespace, pod.metadata.name)
}
