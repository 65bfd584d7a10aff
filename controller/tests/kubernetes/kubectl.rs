//! The drainer through a real `kubectl`, which `make test` installs.

use std::sync::Arc;

use gpufleet::drain::{Drainer as _, KubectlApi, LocalRunner, Ownership};

use super::*;

fn by_kubectl(site: &Site) -> KubernetesDrainer {
    let kubeconfig = site.folder().join("by-kubectl");
    std::fs::write(&kubeconfig, site.server.kubeconfig(&site.server.certificate("gpufleet").unwrap()))
        .unwrap();
    let api = KubectlApi::new(Arc::new(LocalRunner), Some(kubeconfig.display().to_string()), None);
    KubernetesDrainer::new(Arc::new(api), quick())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_there_and_back() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}, {name: n2}], deployments: [{name: web, replicas: 2, grace: 30}],
        budgets: [{name: web, min_available: 2}]}",
    );
    let drainer = by_kubectl(&site);
    assert_eq!(drainer.lock("R1").await, Ok(None));
    assert_eq!(site.drainer(quick()).lock("R2").await, Ok(Some("R1".to_owned())));
    ours(drainer.cordon(&target(), &marker(), "mig on h1").await);
    assert_eq!(drainer.ownership(&target(), &marker()).await, Ok(Ownership::Ours));
    let blocked = "(PodDisruptionBudget web needs 2 healthy pods and has 2 currently)";
    let said = busy(&drainer).await;
    assert!(said.ends_with(blocked), "{said}");
    let said = drainer.preflight(&target()).await.unwrap().unwrap().join("; ");
    assert!(said.contains(blocked), "{said}");
    drains_without_its_budget(&site, &drainer).await;
    for entry in site.entries("evict") {
        assert!(entry.detail["deleteOptions"]["preconditions"]["uid"].is_string(), "{entry:?}");
    }
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
    drainer.unlock("R1").await.unwrap();
    assert_eq!(drainer.holders().await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_do_is_seen() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}], deployments: [{name: web}]}");
    let drainer = by_kubectl(&site);
    ours(drainer.cordon(&target(), &marker(), "why").await);
    site.command(json!({"annotate": {"node": "n1", "annotations": {"gpufleet.io/owner": "alice"}}}));
    assert!(matches!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::Theirs { .. })));
    assert_eq!(site.node()["spec"]["unschedulable"], true);
    let nobody = Target { host: "h9".into(), node: "n9".into() };
    let error = drainer.cordon(&nobody, &marker(), "why").await.unwrap_err().to_string();
    assert!(error.contains("by kubectl has no node `n9`"), "{error}");
    site.server.set_reach(gpufleet_k8s_api::faults::Reach::Refused, None);
    let error = drainer.ownership(&target(), &marker()).await.unwrap_err().to_string();
    assert!(error.contains("`GET /api/v1/nodes/n1` by kubectl: `kubectl` says: "), "{error}");
}
