//! The drainer for Kubernetes against an API server over TLS: each measured case, each fault.
//!
//! Results are read from the server's own objects and log, never from the drainer.
#![cfg(feature = "kubernetes")]

mod cases;
mod declared;
mod faults;
mod gpus;
mod kubectl;
mod people;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpufleet::drain::{
    Activity, ApiClient, Cordon, Credentials, DrainError, Drainer as _, KubernetesDrainer, KubernetesOptions,
    Marker, PodPolicy, Target,
};
use gpufleet_k8s_api::{
    control::Command,
    kubeconfig::Login,
    log::Entry,
    object,
    resources::{NODES, PODS, Resource},
    scenario::Scenario,
    server::{Options, Server},
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Time limit of one step in real time.
const LIMIT: Duration = Duration::from_secs(120);

pub struct Site {
    pub server: Server,
    folder: tempfile::TempDir,
}

impl Site {
    pub fn new(scenario: &str) -> Self {
        let scenario = Scenario::parse(scenario).unwrap();
        let server = Server::start(Options { port: 0, scenario }).unwrap();
        Self { server, folder: tempfile::tempdir().unwrap() }
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn drainer(&self, options: KubernetesOptions) -> KubernetesDrainer {
        let login = self.server.certificate("gpufleet").unwrap();
        self.drainer_as(&login, options)
    }

    pub fn drainer_as(&self, login: &Login, options: KubernetesOptions) -> KubernetesDrainer {
        let path = self.folder.path().join("kubeconfig");
        std::fs::write(&path, self.server.kubeconfig(login)).unwrap();
        let credentials = Credentials::Files { paths: vec![path], context: None };
        KubernetesDrainer::new(Arc::new(ApiClient::new(credentials)), options)
    }

    pub fn seconds(&self, seconds: u64) {
        self.server.advance(Duration::from_secs(seconds));
    }

    #[track_caller]
    pub fn command(&self, command: Value) {
        let command: Command = serde_json::from_value(command).unwrap();
        self.server.command(&command).unwrap();
    }

    pub fn add(&self, scenario: &str) {
        let scenario = Box::new(Scenario::parse(scenario).unwrap());
        self.server.command(&Command::Add { scenario }).unwrap();
    }

    pub fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Value {
        self.server.object(resource, namespace, name).unwrap_or_default()
    }

    pub fn node(&self) -> Value {
        self.object(&NODES, "", "n1")
    }

    /// Checks that the node takes work and has no marks of gpufleet.
    #[track_caller]
    pub fn assert_untouched(&self) {
        let node = self.node();
        assert_eq!(node["spec"].get("unschedulable"), None, "{node}");
        let marks = node["metadata"]["annotations"].to_string();
        assert!(!marks.contains("gpufleet"), "{marks}");
    }

    /// Returns the names of the node's pods.
    pub fn pods(&self) -> Vec<String> {
        let here = |pod: &&Value| object::text(pod, "/spec/nodeName") == "n1";
        self.server.with(|cluster| {
            let pods = cluster.store.all(&PODS, "").filter(here);
            pods.map(|pod| object::name(pod).to_owned()).collect()
        })
    }

    pub fn entries(&self, verb: &str) -> Vec<Entry> {
        let of = |entry: &Entry| entry.verb == verb && (entry.user == "gpufleet" || entry.code == 0);
        self.server.log(0).into_iter().filter(of).collect()
    }

    /// Returns the evictions that were no dry runs.
    pub fn meant(&self) -> Vec<Entry> {
        self.entries("evict").into_iter().filter(|entry| !entry.dry_run).collect()
    }

    /// Returns the codes of evictions that were no dry runs, by pod.
    pub fn evictions(&self) -> Vec<(String, u16)> {
        self.meant().into_iter().map(|entry| (entry.name, entry.code)).collect()
    }
}

pub fn target() -> Target {
    Target { host: "h1".into(), node: "n1".into() }
}

pub fn marker() -> Marker {
    Marker { run: "R1".into(), nonce: "n0nce".into() }
}

pub fn quick() -> KubernetesOptions {
    KubernetesOptions {
        poll: Duration::from_millis(50),
        ready_timeout: Duration::from_secs(60),
        ..KubernetesOptions::default()
    }
}

/// Looks once whether a node can be given back.
pub fn looks_once(options: KubernetesOptions) -> KubernetesOptions {
    KubernetesOptions { ready_timeout: Duration::ZERO, ..options }
}

pub fn takes(pods: PodPolicy) -> KubernetesOptions {
    KubernetesOptions { pods, ..quick() }
}

#[track_caller]
pub fn ours(cordon: Result<Cordon, DrainError>) {
    assert!(matches!(cordon, Ok(Cordon::Ours { .. })), "{cordon:?}");
}

pub async fn cordoned(site: &Site, options: KubernetesOptions) -> KubernetesDrainer {
    let drainer = site.drainer(options);
    let cordon = drainer.cordon(&target(), &marker(), "mig on h1").await;
    ours(cordon);
    drainer
}

pub async fn step(drainer: &KubernetesDrainer) -> Result<Activity, DrainError> {
    drainer.clear(&target(), &marker()).await
}

/// Waits until the giving back of the node waits for this, and stops it.
pub async fn until_kept_out(drainer: &KubernetesDrainer, rebooted_after: Option<Timestamp>, why: &str) {
    let (target, marker, begin) = (target(), marker(), Instant::now());
    let kept_out = async {
        while !drainer.waits_for(&target).is_some_and(|waits| waits.contains(why)) {
            assert!(begin.elapsed() < LIMIT, "{:?}", drainer.waits_for(&target));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        given = drainer.resume(&target, &marker, rebooted_after) => panic!("{given:?}"),
        () = kept_out => {}
    }
}

/// Returns the remaining work after one step that must leave some.
pub async fn busy(drainer: &KubernetesDrainer) -> String {
    match step(drainer).await {
        Ok(Activity::Busy { work }) => work.join("; "),
        other => panic!("{other:?}"),
    }
}

/// Removes the budget of `web`, which blocks the drain; then the node drains.
pub async fn drains_without_its_budget(site: &Site, drainer: &KubernetesDrainer) {
    site.command(
        json!({"delete": {"resource": "poddisruptionbudgets", "namespace": "default", "name": "web"}}),
    );
    site.seconds(1);
    assert!(busy(drainer).await.ends_with("(was asked to end)"));
    site.seconds(31);
    assert_eq!(step(drainer).await, Ok(Activity::Idle));
}

pub async fn stuck(drainer: &KubernetesDrainer) -> String {
    match step(drainer).await {
        Ok(Activity::Stuck { why }) => why.join("; "),
        other => panic!("{other:?}"),
    }
}

/// Steps until nothing is left, as the engine does; returns what blocked the drain meanwhile.
pub async fn drained(drainer: &KubernetesDrainer) -> Vec<String> {
    let begin = Instant::now();
    let mut seen: Vec<String> = Vec::new();
    loop {
        let said = match step(drainer).await {
            Ok(Activity::Idle) => return seen,
            Ok(Activity::Busy { work }) => work.join("; "),
            Ok(Activity::Stuck { why }) => panic!("stuck: {why:?}, after {seen:?}"),
            Err(error) => error.to_string(),
        };
        if seen.last() != Some(&said) {
            seen.push(said);
        }
        assert!(begin.elapsed() < LIMIT, "{seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns a pod that runs on the node.
pub fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]},
    });
    change(&mut pod);
    pod
}
