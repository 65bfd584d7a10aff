//! The initial cluster: a short YAML form, with raw objects beside it.
//!
//! Everything is created by the server's own writes, so a scenario cannot contain an impossible state.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::access::{Denied, Token};
use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::faults::Fault;
use crate::model::mig::MigManager;
use crate::model::nodes::{Kubelet, Machine};
use crate::object::{self, set, unset};
use crate::resources::{self, BUDGETS, NODES, PODS, Resource, by_kind};
use crate::settings::{Settings, Span};

/// Why a scenario is refused.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("cannot read the scenario: {0}")]
    Yaml(String),
    #[error("cannot make {what}: {why}")]
    Refused { what: String, why: String },
}

/// An initial cluster, or an addition to a running one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Speed of the server's clock; 0 for one that is moved by hand.
    pub pace: f64,
    /// How long the cluster has been running, so that its pods run already.
    pub age: Span,
    pub settings: Settings,
    pub nodes: Vec<NodeSpec>,
    pub namespaces: Vec<String>,
    pub deployments: Vec<Workload>,
    pub stateful_sets: Vec<Workload>,
    pub daemon_sets: Vec<Workload>,
    pub jobs: Vec<Workload>,
    pub pods: Vec<Workload>,
    pub budgets: Vec<Budget>,
    /// Objects in Kubernetes' own form.
    pub objects: Vec<Value>,
    pub tokens: Vec<TokenSpec>,
    pub denied: Vec<Denied>,
    pub faults: Vec<Fault>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            pace: 1.0,
            age: Span::seconds(120),
            settings: Settings::default(),
            nodes: Vec::new(),
            namespaces: Vec::new(),
            deployments: Vec::new(),
            stateful_sets: Vec::new(),
            daemon_sets: Vec::new(),
            jobs: Vec::new(),
            pods: Vec::new(),
            budgets: Vec::new(),
            objects: Vec::new(),
            tokens: Vec::new(),
            denied: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// A node, or several: `{}` in the name is a number from 1, with as many digits as `count` and at least two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSpec {
    pub name: String,
    pub count: Option<u32>,
    /// Number of digits, if not that of `count`.
    pub digits: Option<u8>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub unschedulable: bool,
    pub taints: Vec<Value>,
    pub boot_id: Option<String>,
    /// Resource name to count.
    pub devices: BTreeMap<String, i64>,
    /// The label (`key=value`) of the device plugin's pods; without one it starts with the kubelet.
    pub plugin: Option<String>,
    pub mig: Option<MigManager>,
    /// Without a machine nothing on it ever starts or ends, as on a node that only exists in the API.
    pub no_machine: bool,
    /// The state file of a simulated machine of the lab (`nodes/NAME/state/node.json`), whose boots and GPUs this
    /// node takes over; `{}` as in the name.
    pub lab: Option<PathBuf>,
}

/// An owner of pods, or a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    /// `default` by default.
    pub namespace: String,
    pub replicas: Option<i64>,
    /// Labels of the pods; `app: NAME` by default.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods, such as `k8s-api.test/…`.
    pub annotations: BTreeMap<String, String>,
    pub node: Option<String>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
    /// Limits, for example `nvidia.com/gpu: 8`.
    pub resources: BTreeMap<String, Value>,
    /// In seconds.
    pub grace: Option<i64>,
    pub empty_dir: bool,
    pub finalizers: Vec<String>,
    pub parallel: bool,
    /// Whether it is the mirror of a static pod.
    pub mirror: bool,
}

/// A disruption budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    pub name: String,
    pub namespace: String,
    /// Labels of the pods; `app: NAME` by default.
    pub selector: BTreeMap<String, String>,
    pub min_available: Option<Value>,
    pub max_unavailable: Option<Value>,
    pub unhealthy_pod_eviction_policy: Option<String>,
}

/// A bearer token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenSpec {
    pub token: String,
    pub user: String,
    pub life: Option<Span>,
}

/// The user who set the cluster up.
pub fn operator() -> Actor {
    Actor::new("cluster-admin", "kubectl-create")
}

impl Scenario {
    pub fn parse(yaml: &str) -> Result<Self, ScenarioError> {
        serde_saphyr::from_str(yaml).map_err(|e| ScenarioError::Yaml(e.to_string()))
    }

    /// Builds the cluster at a time, after it has run for its age.
    pub fn build(&self, now_ms: i64) -> Result<Cluster, ScenarioError> {
        let mut cluster = Cluster::new(now_ms - self.age.0, self.settings);
        self.add_to(&mut cluster)?;
        cluster.settle(now_ms);
        Ok(cluster)
    }

    /// Adds everything to a running cluster, except for pace, age and settings.
    pub fn add_to(&self, cluster: &mut Cluster) -> Result<(), ScenarioError> {
        for node in &self.nodes {
            for (number, name) in node.names() {
                node.add(cluster, &name, &number)?;
            }
        }
        for namespace in &self.namespaces {
            cluster.ensure_namespace(namespace);
        }
        for budget in &self.budgets {
            make(cluster, &BUDGETS, budget.object())?;
        }
        for deployment in &self.deployments {
            let made = make(cluster, &resources::DEPLOYMENTS, deployment.controller("Deployment"))?;
            let mut set_object = deployment.controller("ReplicaSet");
            let name = format!("{}-{}", deployment.name, cluster.suffix());
            set(&mut set_object, &["metadata", "name"], json!(name));
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name, "uid": object::uid(&made),
                "controller": true, "blockOwnerDeletion": true,
            }]);
            set(&mut set_object, &["metadata", "ownerReferences"], owner);
            make(cluster, &resources::REPLICA_SETS, set_object)?;
        }
        for (workloads, resource) in [
            (&self.stateful_sets, &resources::STATEFUL_SETS),
            (&self.daemon_sets, &resources::DAEMON_SETS),
            (&self.jobs, &resources::JOBS),
        ] {
            for workload in workloads {
                make(cluster, resource, workload.controller(resource.kind))?;
            }
        }
        for pod in &self.pods {
            make(cluster, &PODS, pod.pod())?;
        }
        for object in &self.objects {
            put_object(cluster, object.clone())?;
        }
        for token in &self.tokens {
            let expires_ms = token.life.map(|life| cluster.now_ms + self.age.0 + life.0);
            cluster.access.tokens.insert(token.token.clone(), Token { user: token.user.clone(), expires_ms });
        }
        cluster.access.denied.extend(self.denied.iter().cloned());
        cluster.faults.rules.extend(self.faults.iter().cloned());
        Ok(())
    }
}

/// Creates an object, and its namespace first.
fn make(cluster: &mut Cluster, resource: &'static Resource, object: Value) -> Result<Value, ScenarioError> {
    let namespace = if resource.namespaced {
        Some(object::namespace(&object)).filter(|n| !n.is_empty()).unwrap_or("default")
    } else {
        ""
    }
    .to_owned();
    if resource.namespaced {
        cluster.ensure_namespace(&namespace);
    }
    let what = format!("{} {namespace}/{}", resource.kind, object::name(&object));
    let made = cluster.create(&operator(), resource, &namespace, object, false);
    made.map_err(|failure| ScenarioError::Refused { what, why: failure.message })
}

/// Creates or replaces an object in Kubernetes' own form, with its status.
pub fn put_object(cluster: &mut Cluster, mut object: Value) -> Result<Value, ScenarioError> {
    let (version, kind) =
        (object::text(&object, "/apiVersion").to_owned(), object::text(&object, "/kind").to_owned());
    let refuse =
        |why: &str| ScenarioError::Refused { what: format!("{kind} of {version}"), why: why.to_owned() };
    let resource = by_kind(&version, &kind).ok_or_else(|| refuse("the server has no such kind"))?;
    if resource.namespaced && object::namespace(&object).is_empty() {
        set(&mut object, &["metadata", "namespace"], json!("default"));
    }
    let (namespace, name) = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
    if cluster.store.get(resource, &namespace, &name).is_some() {
        let options = DeleteOptions { grace_s: Some(0), ..DeleteOptions::default() };
        cluster.delete(&operator(), resource, &namespace, &name, options).map_err(|f| refuse(&f.message))?;
    }
    let status = unset(&mut object, &["status"]);
    let made = make(cluster, resource, object)?;
    if let Some(status) = status {
        cluster.amend(&operator(), resource, &made, "status", |o| {
            let merged = crate::patch::merge(o.get("status").unwrap_or(&Value::Null), &status);
            set(o, &["status"], merged);
        });
    }
    cluster.store.get(resource, &namespace, &name).cloned().ok_or_else(|| refuse("it is gone again"))
}

impl NodeSpec {
    /// Returns the numbers and names of all nodes.
    pub fn names(&self) -> Vec<(String, String)> {
        let Some(count) = self.count else { return vec![(String::new(), self.name.clone())] };
        let width = self.digits.map_or(count.to_string().len().max(2), |d| d as usize);
        (1..=count)
            .map(|n| {
                let number = format!("{n:0width$}");
                let name = self.name.replace("{}", &number);
                (number, name)
            })
            .collect()
    }

    fn add(&self, cluster: &mut Cluster, name: &str, number: &str) -> Result<(), ScenarioError> {
        let mut labels = self.labels.clone();
        for (key, value) in
            [("kubernetes.io/hostname", name), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")]
        {
            labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
        let mut object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}, "spec": {}});
        if !self.annotations.is_empty() {
            set(&mut object, &["metadata", "annotations"], json!(self.annotations));
        }
        if self.unschedulable {
            set(&mut object, &["spec", "unschedulable"], json!(true));
        }
        if !self.taints.is_empty() {
            set(&mut object, &["spec", "taints"], json!(self.taints));
        }
        make(cluster, &NODES, object)?;
        if self.no_machine {
            return Ok(());
        }
        let plugin = match &self.plugin {
            None => None,
            Some(label) => {
                let (key, value) = label.split_once('=').ok_or_else(|| ScenarioError::Refused {
                    what: format!("node {name}"),
                    why: format!("`plugin: {label}` is not `key=value`"),
                })?;
                Some((key.to_owned(), value.to_owned()))
            }
        };
        let mig = self.mig.clone().map(|mut mig| {
            mig.seen = self.labels.get(crate::model::mig::CONFIG).cloned().unwrap_or_default();
            mig
        });
        let lab =
            self.lab.as_ref().map(|path| PathBuf::from(path.display().to_string().replace("{}", number)));
        let seen = lab.as_deref().and_then(crate::lab::read);
        let machine = Machine {
            kubelet: Kubelet::Running,
            since_ms: cluster.now_ms,
            boot_id: match (&seen, &self.boot_id) {
                (Some(seen), _) => seen.boot_id.clone(),
                (None, Some(boot_id)) => boot_id.clone(),
                (None, None) => Uuid::new_v4().to_string(),
            },
            devices: seen.map_or_else(|| self.devices.clone(), |seen| seen.devices),
            plugin,
            plugin_since_ms: 0,
            mig,
            lab,
        };
        cluster.add_machine(name, machine);
        Ok(())
    }
}

impl Workload {
    fn namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        if self.labels.is_empty() {
            BTreeMap::from([("app".to_owned(), self.name.clone())])
        } else {
            self.labels.clone()
        }
    }

    fn template(&self) -> Value {
        let mut container = json!({"name": "main", "image": "registry.test/work:1"});
        if !self.resources.is_empty() {
            let limits: Map<String, Value> = self
                .resources
                .iter()
                .map(|(k, v)| (k.clone(), json!(v.to_string().trim_matches('"'))))
                .collect();
            set(&mut container, &["resources"], json!({"limits": limits, "requests": limits}));
        }
        let mut spec = json!({"containers": [container]});
        if let Some(node) = &self.node {
            set(&mut spec, &["nodeName"], json!(node));
        }
        if let Some(grace) = self.grace {
            set(&mut spec, &["terminationGracePeriodSeconds"], json!(grace));
        }
        if !self.node_selector.is_empty() {
            set(&mut spec, &["nodeSelector"], json!(self.node_selector));
        }
        if !self.tolerations.is_empty() {
            set(&mut spec, &["tolerations"], json!(self.tolerations));
        }
        if self.empty_dir {
            set(&mut spec, &["volumes"], json!([{"name": "scratch", "emptyDir": {}}]));
        }
        let mut metadata = json!({"labels": self.labels()});
        let mut annotations = self.annotations.clone();
        if self.mirror {
            annotations
                .entry(crate::model::kubelet::MIRROR.to_owned())
                .or_insert_with(|| Uuid::new_v4().simple().to_string());
        }
        if !annotations.is_empty() {
            set(&mut metadata, &["annotations"], json!(annotations));
        }
        if !self.finalizers.is_empty() {
            set(&mut metadata, &["finalizers"], json!(self.finalizers));
        }
        json!({"metadata": metadata, "spec": spec})
    }

    fn pod(&self) -> Value {
        let mut pod = self.template();
        set(&mut pod, &["metadata", "name"], json!(self.name));
        set(&mut pod, &["metadata", "namespace"], json!(self.namespace()));
        pod
    }

    fn controller(&self, kind: &str) -> Value {
        let mut spec = json!({"selector": {"matchLabels": self.labels()}, "template": self.template()});
        match kind {
            "Job" => {
                unset(&mut spec, &["selector"]);
                set(&mut spec, &["template", "spec", "restartPolicy"], json!("Never"));
                for key in ["completions", "parallelism"] {
                    set(&mut spec, &[key], json!(self.replicas.unwrap_or(1)));
                }
            }
            "DaemonSet" => {}
            _ => set(&mut spec, &["replicas"], json!(self.replicas.unwrap_or(1))),
        }
        if kind == "StatefulSet" {
            set(&mut spec, &["serviceName"], json!(self.name));
            set(
                &mut spec,
                &["podManagementPolicy"],
                json!(if self.parallel { "Parallel" } else { "OrderedReady" }),
            );
        }
        json!({"metadata": {"name": self.name, "namespace": self.namespace(), "labels": self.labels()}, "spec": spec})
    }
}

impl Budget {
    fn object(&self) -> Value {
        let namespace = if self.namespace.is_empty() { "default" } else { &self.namespace };
        let selector = if self.selector.is_empty() {
            BTreeMap::from([("app".to_owned(), self.name.clone())])
        } else {
            self.selector.clone()
        };
        let mut spec = json!({"selector": {"matchLabels": selector}});
        for (key, value) in [("minAvailable", &self.min_available), ("maxUnavailable", &self.max_unavailable)]
        {
            if let Some(value) = value {
                set(&mut spec, &[key], value.clone());
            }
        }
        if let Some(policy) = &self.unhealthy_pod_eviction_policy {
            set(&mut spec, &["unhealthyPodEvictionPolicy"], json!(policy));
        }
        json!({"metadata": {"name": self.name, "namespace": namespace}, "spec": spec})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::is_true;

    #[test]
    fn a_scenario_runs_when_it_is_read() {
        let scenario = Scenario::parse(
            "nodes: [{name: 'gpu{}', count: 3, devices: {nvidia.com/gpu: 8}}]\n\
             deployments: [{name: web, replicas: 3, resources: {nvidia.com/gpu: 4}}]\n\
             stateful_sets: [{name: db, namespace: data, replicas: 2}]\n\
             daemon_sets: [{name: agent, namespace: kube-system}]\n\
             budgets: [{name: web, max_unavailable: 1}]\n",
        )
        .expect("it is a scenario");
        let cluster = scenario.build(1_000_000_000_000).expect("it can be built");
        let ready =
            |namespace: &str| cluster.store.all(&PODS, namespace).filter(|p| is_true(p, "Ready")).count();
        assert_eq!((ready("default"), ready("data"), ready("kube-system")), (3, 2, 3));
        let budget = cluster.store.get(&BUDGETS, "default", "web").expect("it was made");
        assert_eq!(budget["status"]["disruptionsAllowed"], json!(1));
        assert_eq!(cluster.out_of_service(), 0);
    }

    #[test]
    fn an_unknown_word_is_refused() {
        let refused = Scenario::parse("nodez: []").expect_err("no such word");
        assert!(refused.to_string().contains("nodez"), "{refused}");
    }
}
