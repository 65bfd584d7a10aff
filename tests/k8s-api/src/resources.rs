//! The resources of the server, and the special rules of each.
//!
//! Owns the table that discovery, paths and storage read. Resources that a drain does not use are left out.

/// One kind of object.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    /// Whether `/status` is a subresource, so that the main path ignores the status.
    pub status: bool,
    /// Whether a PUT creates a missing object.
    pub create_on_update: bool,
    /// Whether a PUT may leave `resourceVersion` out.
    pub unconditional: bool,
    /// Whether `metadata.generation` counts the changes of the spec.
    pub generation: bool,
    pub short: &'static [&'static str],
}

impl Resource {
    /// Returns `pods`, `leases.coordination.k8s.io`.
    pub fn dotted(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns `v1`, `policy/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns `PodList`.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }
}

const fn object(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource {
        group,
        version: "v1",
        plural,
        singular,
        kind,
        namespaced: true,
        status: true,
        create_on_update: false,
        unconditional: true,
        generation: true,
        short: &[],
    }
}

pub static NODES: Resource =
    Resource { namespaced: false, generation: false, short: &["no"], ..object("", "nodes", "node", "Node") };
pub static PODS: Resource = Resource { short: &["po"], ..object("", "pods", "pod", "Pod") };
pub static NAMESPACES: Resource = Resource {
    namespaced: false,
    generation: false,
    short: &["ns"],
    ..object("", "namespaces", "namespace", "Namespace")
};
pub static CORE_EVENTS: Resource = Resource {
    status: false,
    generation: false,
    create_on_update: true,
    short: &["ev"],
    ..object("", "events", "event", "Event")
};
pub static EVENTS: Resource = Resource {
    status: false,
    generation: false,
    create_on_update: true,
    short: &["ev"],
    ..object("events.k8s.io", "events", "event", "Event")
};
pub static CONFIG_MAPS: Resource = Resource {
    status: false,
    generation: false,
    short: &["cm"],
    ..object("", "configmaps", "configmap", "ConfigMap")
};
pub static BUDGETS: Resource = Resource {
    unconditional: false,
    short: &["pdb"],
    ..object("policy", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget")
};
pub static LEASES: Resource = Resource {
    status: false,
    create_on_update: true,
    unconditional: false,
    generation: false,
    ..object("coordination.k8s.io", "leases", "lease", "Lease")
};
pub static DAEMON_SETS: Resource =
    Resource { short: &["ds"], ..object("apps", "daemonsets", "daemonset", "DaemonSet") };
pub static REPLICA_SETS: Resource =
    Resource { short: &["rs"], ..object("apps", "replicasets", "replicaset", "ReplicaSet") };
pub static STATEFUL_SETS: Resource =
    Resource { short: &["sts"], ..object("apps", "statefulsets", "statefulset", "StatefulSet") };
pub static DEPLOYMENTS: Resource =
    Resource { short: &["deploy"], ..object("apps", "deployments", "deployment", "Deployment") };
pub static JOBS: Resource = object("batch", "jobs", "job", "Job");

/// Every resource, in the order of discovery.
pub static ALL: [&Resource; 13] = [
    &NAMESPACES,
    &NODES,
    &PODS,
    &CORE_EVENTS,
    &CONFIG_MAPS,
    &DAEMON_SETS,
    &DEPLOYMENTS,
    &REPLICA_SETS,
    &STATEFUL_SETS,
    &JOBS,
    &LEASES,
    &EVENTS,
    &BUDGETS,
];

/// Finds a resource by its group and plural name.
pub fn by_plural(group: &str, plural: &str) -> Option<&'static Resource> {
    ALL.iter().copied().find(|r| r.group == group && r.plural == plural)
}

/// Finds a resource by the API version and kind of one of its objects.
pub fn by_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    ALL.iter().copied().find(|r| r.kind == kind && r.api_version() == api_version)
}
