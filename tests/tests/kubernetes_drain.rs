//! `drain: kubernetes` with the real binary: an API server over TLS whose nodes are the lab's machines.
//!
//! What happened is read from the server's own record and the lab's, never from gpufleet's.

use std::{ops::Deref, time::Duration};

use gpufleet_k8s_api::{
    log::{Entry, foreign_uncordons, most_out},
    object,
    resources::{ALL, PODS},
};
use gpufleet_tests::{Cluster, Finished, FleetOptions, Running};
use rustix::process::Signal;
use serde_json::{Value, json};

const LABELS: [&str; 2] = ["device-plugin", "dcgm-exporter"];

struct Site {
    cluster: Cluster,
    nodes: Vec<String>,
    /// Number of the server's log entries about its own start.
    begin: u64,
}

impl Deref for Site {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Site {
    fn new(nodes: usize, workloads: &str) -> Self {
        let options = FleetOptions { nodes, gpus_per_node: 1, ..FleetOptions::default() };
        let exporter = r#"  - {name: exporter, namespace: gpu-operator, node_selector: {nvidia.com/gpu.deploy.dcgm-exporter: "true"}}"#;
        let workloads = format!("{exporter}\n{workloads}");
        let label = r#"nvidia.com/gpu.deploy.dcgm-exporter: "true""#;
        let cluster = Cluster::start(&options, label, &workloads, Duration::from_secs(300));
        let nodes = (1..=nodes).map(|number| format!("gpu{number:03}")).collect();
        let begin = cluster.server.log(0).last().map_or(0, |entry| entry.seq);
        Self { cluster, nodes, begin }
    }

    fn write_play(&self, budget: usize, drain: &str, tasks: &str) {
        let play = format!(
            "- hosts: gpu
  become: true
  rollout:
    max_unavailable: {budget}
    health_gate: []
    drain: {{kubernetes: {{kubeconfig: kubeconfig, {drain}}}}}
  tasks:
    - {tasks}
"
        );
        self.home.write("play.yaml", &play);
    }

    fn pods(&self, namespace: &str) -> Vec<Value> {
        self.server.with(|cluster| cluster.store.all(&PODS, namespace).cloned().collect())
    }

    fn is_cordoned(&self, name: &str) -> bool {
        self.node(name)["spec"]["unschedulable"] == true
    }

    fn lock(&self) -> Value {
        let leases = ALL.into_iter().find(|resource| resource.plural == "leases").unwrap();
        let lease = self.server.object(leases, "default", "gpufleet").unwrap_or_default();
        lease["spec"]["holderIdentity"].clone()
    }

    fn log(&self) -> Vec<Entry> {
        self.server.log(self.begin)
    }

    /// Waits until the server's log or objects satisfy a condition.
    #[track_caller]
    fn until(&self, what: &str, running: &Running, condition: impl Fn() -> bool) {
        let begin = std::time::Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(120), "not seen: {what}: {:?}", running.journal());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that the node accepts work, has no mark of this run, and runs all pods of the operator.
    #[track_caller]
    fn assert_back(&self, name: &str) {
        let node = self.node(name);
        assert!(!self.is_cordoned(name), "{node}");
        self.assert_no_marks(name);
    }

    #[track_caller]
    fn assert_no_marks(&self, name: &str) {
        let node = self.node(name);
        assert!(!node["metadata"]["annotations"].to_string().contains("gpufleet"), "{node}");
        for label in LABELS {
            assert_eq!(
                node["metadata"]["labels"][format!("nvidia.com/gpu.deploy.{label}")],
                "true",
                "{name}"
            );
        }
    }
}

fn waits(running: &mut Running, node: &str, why: &str) {
    running.until(&format!("{node} waits for {why}"), |events| {
        events
            .of_host("node_state", node)
            .any(|with| with["detail"].as_str().is_some_and(|text| text.contains(why)))
    });
}

const SERVICE: &str = "deployments:
  - {name: inference, namespace: serving, replicas: 12, grace: 10}
budgets:
  - {name: inference, namespace: serving, min_available: 12}
";

/// Twelve machines get a MIG layout. Meanwhile a budget has no room for a while, a person takes one node over during
/// its drain, another node is cordoned before its turn, and the controller is killed.
#[test]
fn mig_is_laid_out_on_a_fleet_that_serves() {
    let site = Site::new(12, SERVICE);
    site.write_play(4, "timeout: 5m", "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}");
    site.order(json!({"cordon": {"node": "gpu011", "user": "bob"}}));

    let plan = site.command(&["plan", "play.yaml"]).run().expect(0);
    let plan = plan.says(&[
        "gpu001 could not be drained now at kubernetes: pod serving/inference-",
        "PodDisruptionBudget inference needs 12 healthy pods and has 12 currently",
        "gpu011 could not be drained now at kubernetes: cordoned by kubectl-edit",
    ]);
    assert!(
        !site.log().iter().any(|entry| entry.user == "gpufleet" && entry.code == 201 && !entry.dry_run),
        "{plan}"
    );

    let mut running = site.run().start();
    let blocked = "PodDisruptionBudget inference needs 12 healthy pods and has 12 currently";
    let waiting = |with: &&Value| with["detail"].as_str().is_some_and(|text| text.contains(blocked));
    running.until("the budget is in the way", |events| events.named("node_state").any(|with| waiting(&with)));
    let hers =
        running.journal().named("node_state").find(waiting).unwrap()["host"].as_str().unwrap().to_owned();
    assert!(!site.log().iter().any(|entry| entry.verb == "evict" && entry.code == 201 && !entry.dry_run));
    // A person takes the node over.
    site.order(json!({"uncordon": {"node": hers, "user": "alice"}}));
    site.order(json!({"cordon": {"node": hers, "user": "alice"}}));
    running.until("the node is hers", |events| {
        events
            .of_host("drain", &hers)
            .any(|with| with["step"].to_string().contains("cordoned anew by kubectl-edit"))
    });
    // The owners of the service make room for two.
    site.order(
        json!({"delete": {"resource": "poddisruptionbudgets", "namespace": "serving", "name": "inference"}}),
    );
    let scenario: Value =
        json!({"budgets": [{"name": "inference", "namespace": "serving", "max_unavailable": 2}]});
    site.order(json!({"add": {"scenario": scenario}}));
    let uncordoned = |log: &[Entry]| {
        log.iter().filter(|entry| entry.verb == "uncordoned" && entry.user == "gpufleet").count()
    };
    let held = || {
        site.nodes
            .iter()
            .filter(|node| site.node(node)["metadata"]["annotations"]["gpufleet.io/paused"].is_string())
            .count()
    };
    site.until("some are back, and one is at work", &running, || uncordoned(&site.log()) >= 2 && held() >= 1);
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    let run = site.lock();
    assert!(run.is_string(), "the lock outlives the controller");

    let done =
        site.home.gpufleet(["resume", "--yes", "--format", "json"]).within(Duration::from_secs(300)).run();
    assert!(matches!(done.code, Some(0 | 5)), "{done}");
    let theirs = [hers.as_str(), "gpu011"];
    let document = done.document();
    for name in &site.nodes {
        if theirs.contains(&name.as_str()) {
            assert!(site.is_cordoned(name), "{name} is somebody's: {done}");
            site.assert_no_marks(name);
            assert_eq!(site.fleet.setters(name).len(), 0, "{name}: {done}");
            continue;
        }
        assert!(matches!(document.state(name), "done" | "compliant"), "{name}: {done}");
        assert_eq!(site.fleet.read(name, "nvidia-smi -L").matches("MIG 1g.10gb").count(), 7, "{name}");
        site.assert_back(name);
        assert_eq!(site.node(name)["status"]["allocatable"]["nvidia.com/mig-1g.10gb"], "7", "{name}");
    }
    let log = site.log();
    assert_eq!(
        foreign_uncordons(&log.iter().filter(|entry| entry.user != "alice").cloned().collect::<Vec<_>>()),
        []
    );
    assert!(most_out(&log) <= 4, "{}", most_out(&log));
    assert!(!log.iter().any(|entry| entry.verb == "budget-violated"), "{done}");
    assert_eq!(site.lock(), Value::Null, "the lock is given back");
    // Every pod was evicted through the eviction API with its uid.
    for entry in log.iter().filter(|entry| entry.user == "gpufleet" && entry.resource.starts_with("pods")) {
        assert_eq!(entry.verb, "evict");
        assert!(object::text(&entry.detail, "/deleteOptions/preconditions/uid").len() > 8, "{entry:?}");
    }
}

fn the_only_run(site: &Site) -> String {
    let runs: Vec<_> = std::fs::read_dir(site.home.runs()).unwrap().flatten().collect();
    let [run] = runs.as_slice() else { panic!("one run: {runs:?}") };
    run.file_name().into_string().unwrap()
}

const HELD: &str = "pods:
  - {name: held, namespace: serving, node: gpu001, finalizers: [example.com/backup]}
";

/// An abort undoes all pauses and cordons of a run, while it runs and after it was killed.
#[test]
fn an_abort_brings_back_all_that_was_stopped() {
    for killed in [false, true] {
        let site = Site::new(1, "");
        site.write_play(1, "timeout: 5m", "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}");
        // The operator's pods do not end, so that the drain waits with its labels paused.
        for mut pod in site.pods("gpu-operator") {
            pod["metadata"]["annotations"]["k8s-api.test/never-stops"] = json!("yes");
            for key in ["resourceVersion", "uid", "creationTimestamp", "managedFields"] {
                pod["metadata"].as_object_mut().unwrap().remove(key);
            }
            site.order(json!({"put": {"object": pod}}));
        }
        let running = site.run().start();
        site.until("the pause", &running, || {
            site.node("gpu001")["metadata"]["labels"]["nvidia.com/gpu.deploy.device-plugin"]
                == "paused-for-mig-change"
        });
        let mut first = Some(running);
        if killed {
            let running = first.take().unwrap();
            running.signal(Signal::KILL);
            assert_eq!(running.wait().code, None);
            assert!(site.is_cordoned("gpu001"));
        }
        // From now on the pods end normally, so that the node can be checked as a whole.
        for pod in site.pods("gpu-operator") {
            let name = object::name(&pod);
            site.order(json!({"delete": {"resource": "pods", "namespace": "gpu-operator", "name": name, "grace": 0}}));
        }
        let aborted = site.home.gpufleet(["abort", &the_only_run(&site), "--format", "json"]).run();
        if let Some(running) = first {
            assert_eq!(running.wait().code, Some(130));
        }
        assert!(aborted.code.is_some_and(|code| code != 1), "{aborted}");
        site.assert_back("gpu001");
        assert_eq!((site.fleet.setters("gpu001").len(), site.lock()), (0, Value::Null), "{aborted}");
    }
}

/// A pod that never ends keeps its node: it is given back at the deadline, with the reason.
#[test]
fn a_pod_that_never_goes_ends_the_drain() {
    let site = Site::new(1, HELD);
    site.write_play(
        1,
        "timeout: 20s, force: true, grace_period: 1s",
        "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}",
    );
    let done: Finished = site.run().run().expect(5);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "held", "{done}");
    assert!(document.message("gpu001").contains("pod serving/held (should have ended at "), "{done}");
    assert!(document.message("gpu001").contains("finalizers hold it: example.com/backup"), "{done}");
    site.assert_back("gpu001");
    assert_eq!(site.fleet.setters("gpu001").len(), 0);
}

/// If a person allows it, a node is disturbed despite a pod that cannot be evicted; all others end in order first.
#[test]
fn by_force_all_pods_go_in_order_that_can() {
    let alone = "pods:\n  - {name: alone, namespace: serving, node: gpu001}\n";
    let site = Site::new(1, &format!("{SERVICE}{alone}"));
    site.order(
        json!({"delete": {"resource": "poddisruptionbudgets", "namespace": "serving", "name": "inference"}}),
    );
    site.write_play(1, "timeout: 5m", "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}");
    let held = site.run().run().expect(5);
    let message = held.document().message("gpu001").to_owned();
    assert!(
        message.contains(
            "its scheduler did not let go of it: pod serving/alone: nothing brings it back elsewhere"
        ),
        "{held}"
    );
    let evicted = || {
        let log = site.log();
        log.iter().filter(|entry| entry.verb == "evict" && entry.code == 201 && !entry.dry_run).count()
    };
    assert_eq!(evicted(), 0);
    let done = site.command(&["run", "play.yaml", "--yes", "--force", "--format", "json"]).run().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    assert_eq!(evicted(), 12, "{done}");
    assert!(site.pods("serving").iter().any(|pod| object::name(pod) == "alone"));
    let runs = std::fs::read_dir(site.home.runs()).unwrap().flatten();
    let newest = runs.map(|entry| entry.path()).max().unwrap();
    let journal = std::fs::read_to_string(newest.join("journal.jsonl")).unwrap();
    assert!(journal.contains("it cannot be drained: pod serving/alone: nothing brings it back"), "{journal}");
    site.assert_back("gpu001");
}

/// A layout that mig-manager made for this run is not changed if the play declares another one.
#[test]
fn a_layout_that_mig_manager_was_told_to_make_stays() {
    let site = Site::new(1, "");
    let labels = json!({
        "nvidia.com/gpu.deploy.mig-manager": "true",
        "nvidia.com/mig.config": "all-3g.40gb",
        "nvidia.com/mig.config.state": "success",
    });
    site.order(json!({"label": {"node": "gpu001", "labels": labels}}));
    let declared = "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}";
    site.write_play(1, "timeout: 5m, mig_manager: {label: all-3g.40gb}", declared);
    let done = site.run().run().expect(5);
    let message = done.document().message("gpu001").to_owned();
    assert!(
        message.contains("mig-manager (nvidia.com/mig.config=all-3g.40gb) laid it out, and the play declares another layout"),
        "{done}"
    );
    assert_eq!(site.fleet.setters("gpu001").len(), 0, "{done}");
    site.assert_back("gpu001");
}

/// The server is down for a minute in the middle, which only the screen shows.
#[test]
fn a_server_that_is_gone_for_a_minute_costs_a_minute() {
    let site = Site::new(1, "deployments:\n  - {name: web, replicas: 1, grace: 10}\n");
    site.write_play(1, "timeout: 5m", "gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}");
    let mut running = site.run().start();
    waits(&mut running, "gpu001", "pod default/web-");
    site.order(json!({"reach": {"reach": "refused", "during": "60s"}}));
    waits(&mut running, "gpu001", "check that the API server answers");
    let done = running.wait().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    site.assert_back("gpu001");
}
