//! Ownership of a node: people, other runs and the lock, and what a drainer does once the node is not its own any more.

use gpufleet::drain::{Activity, Cordon, Drainer as _, Lock, Ownership, Scheduler};
use gpufleet_k8s_api::{log::foreign_uncordons, resources::Resource};

use super::*;

const NODE: &str =
    "{pace: 0, nodes: [{name: n1}, {name: n2}], deployments: [{name: web, replicas: 2, grace: 30}]}";

fn lease() -> &'static Resource {
    gpufleet_k8s_api::resources::ALL.into_iter().find(|resource| resource.plural == "leases").unwrap()
}

fn cordons(site: &Site, user: &str, on: bool) {
    let word = if on { "cordon" } else { "uncordon" };
    site.command(json!({word: {"node": "n1", "user": user}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_somebody_cordoned_is_theirs() {
    let site = Site::new(NODE);
    cordons(&site, "alice", true);
    let drainer = site.drainer(quick());
    let before = site.node();
    let Ok(Cordon::HeldByOthers { by }) = drainer.cordon(&target(), &marker(), "why").await else { panic!() };
    assert!(by.starts_with("cordoned by kubectl-edit at "), "{by}");
    let outages = drainer.survey(&[target()]).await.unwrap();
    assert_eq!(outages[0].why, by);
    assert!(matches!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::Theirs { .. })));
    assert!(step(&drainer).await.unwrap_err().to_string().contains("is not this run's; nobody was evicted"));
    assert_eq!(site.node(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_given_back_only_to_the_byte() {
    let site = Site::new(NODE);
    let drainer = cordoned(&site, quick()).await;
    for owner in ["gpufleet:R1:n0nce ", "gpufleet:R1:other", "gpufleet:R2:n0nce", "alice"] {
        site.command(json!({"annotate": {"node": "n1", "annotations": {"gpufleet.io/owner": owner}}}));
        let held = drainer.resume(&target(), &marker(), None).await.unwrap();
        assert!(matches!(held, Ownership::Theirs { .. }), "{owner}: {held:?}");
        assert_eq!(site.node()["spec"]["unschedulable"], true);
    }
    site.command(
        json!({"annotate": {"node": "n1", "annotations": {"gpufleet.io/owner": "gpufleet:R1:n0nce"}}}),
    );
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
    assert_eq!(foreign_uncordons(&site.server.log(0)), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_uncordons_ends_the_drain() {
    let site = Site::new(NODE);
    let drainer = cordoned(&site, quick()).await;
    cordons(&site, "alice", false);
    assert_eq!(drainer.ownership(&target(), &marker()).await, Ok(Ownership::NotDrained));
    assert!(step(&drainer).await.is_err());
    assert_eq!(site.evictions(), []);
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_cordons_in_mid_drain_keeps_the_node() {
    let site = Site::new(NODE);
    let drainer = cordoned(&site, quick()).await;
    cordons(&site, "alice", false);
    cordons(&site, "alice", true);
    let Ok(Ownership::Theirs { by }) = drainer.ownership(&target(), &marker()).await else { panic!() };
    assert!(by.starts_with("cordoned anew by kubectl-edit at "), "{by}");
    assert!(step(&drainer).await.is_err());
    assert!(matches!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::Theirs { .. })));
    assert_eq!(site.node()["spec"]["unschedulable"], true);
    assert_eq!(site.evictions(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn everybodys_outages_are_told() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}, {name: n2}, {name: n3}, {name: n4}]}");
    let other = Target { host: "h3".into(), node: "n3".into() };
    let theirs = Marker { run: "R7".into(), nonce: "x".into() };
    let drainer = cordoned(&site, quick()).await;
    ours(drainer.cordon(&other, &theirs, "their work").await);
    site.command(json!({"kubelet": {"node": "n4", "state": "dead"}}));
    site.seconds(60);
    let targets: Vec<Target> = ["n1", "n2", "n3", "n4", "n9"]
        .map(|node| Target { host: node.replace('n', "h"), node: node.into() })
        .to_vec();
    let outages = drainer.survey(&targets).await.unwrap();
    let told: Vec<(&str, bool)> = outages.iter().map(|outage| (outage.node.as_str(), outage.known)).collect();
    assert_eq!(told, [("n1", true), ("n3", true), ("n4", true), ("n9", false)]);
    assert_eq!(outages[0].marker, Some(marker()));
    assert_eq!(outages[1].why, "cordoned by gpufleet run R7: their work");
    assert!(
        outages[2].why.starts_with("not ready since ") && outages[2].why.ends_with("(NodeStatusUnknown)")
    );
    let Ok(Cordon::HeldByOthers { by }) = drainer.cordon(&targets[3], &marker(), "why").await else {
        panic!()
    };
    assert_eq!(by, outages[2].why, "a node that is not ready is nobody's to drain");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pools_of_nodes_are_told() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1, labels: {pool: a}}, {name: n2, labels: {pool: b}}, {name: n3}, {name: n4, labels: {pool: a}}]}",
    );
    let mut scheduler = Scheduler::new(std::sync::Arc::new(site.drainer(quick())), Duration::from_secs(60));
    scheduler.nodes = ["1", "2", "3", "9"].map(|n| (format!("h{n}"), format!("n{n}"))).into();
    let pools = scheduler.labels(&["h1", "h2", "h3", "h9"].map(str::to_owned), "pool").await.unwrap();
    let text = |list: [(&str, &str); 2]| list.map(|(name, pool)| (name.to_owned(), pool.to_owned()));
    assert_eq!(pools.hosts, text([("h1", "a"), ("h2", "b")]).into());
    assert_eq!(pools.others, [("n4".to_owned(), "a".to_owned())].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_run_holds_the_lock() {
    let site = Site::new(NODE);
    let (first, second) = (site.drainer(quick()), site.drainer(quick()));
    assert_eq!(first.lock("R1").await, Ok(None));
    assert_eq!(second.lock("R2").await, Ok(Some("R1".to_owned())));
    assert_eq!(first.holders().await, Ok(vec!["R1".to_owned()]));
    // A controller that was killed and restarted still holds it.
    assert_eq!(site.drainer(quick()).lock("R1").await, Ok(None));
    assert_eq!((first.locked("R1").await, first.locked("R2").await), (Ok(true), Ok(false)));
    second.unlock("R2").await.unwrap();
    assert_eq!(first.locked("R1").await, Ok(true));
    first.unlock("R1").await.unwrap();
    first.unlock("R1").await.unwrap();
    assert_eq!(second.lock("R2").await, Ok(None));
    assert_eq!(site.object(lease(), "default", "gpufleet")["spec"]["holderIdentity"], "R2");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_ask_for_the_lock_at_once_find_one_winner() {
    let site = Site::new(NODE);
    let drainers: Vec<_> = (0..12).map(|_| site.drainer(quick())).collect();
    let asked = drainers
        .iter()
        .zip(0..)
        .map(|(drainer, number)| async move { drainer.lock(&format!("R{number}")).await });
    let answers = futures::future::join_all(asked).await;
    let won: Vec<usize> = answers
        .iter()
        .zip(0..)
        .filter(|(answer, _)| **answer == Ok(None))
        .map(|(_, number)| number)
        .collect();
    let [winner] = won[..] else { panic!("{answers:?}") };
    for answer in answers.iter().filter(|answer| **answer != Ok(None)) {
        assert_eq!(*answer, Ok(Some(format!("R{winner}"))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lost_the_lock_changes_nothing_more() {
    let site = Site::new(NODE);
    let (loser, thief) = (site.drainer(quick()), site.drainer(quick()));
    assert_eq!(loser.lock("R1").await, Ok(None));
    ours(loser.cordon(&target(), &marker(), "why").await);
    thief.unlock("R1").await.unwrap();
    assert_eq!(thief.lock("R2").await, Ok(None));
    let version = site.node()["metadata"]["resourceVersion"].clone();
    let other = Target { host: "h2".into(), node: "n2".into() };
    for refused in [
        step(&loser).await.map(|_| ()).unwrap_err(),
        loser.cordon(&other, &marker(), "why").await.map(|_| ()).unwrap_err(),
        loser.resume(&target(), &marker(), None).await.map(|_| ()).unwrap_err(),
    ] {
        assert!(refused.to_string().contains("is held by run R2 now; nothing was changed"), "{refused}");
    }
    assert_eq!(site.node()["metadata"]["resourceVersion"], version);
    assert_eq!(site.evictions(), []);
    thief.unlock("R2").await.unwrap();
    assert!(step(&loser).await.unwrap_err().to_string().contains("is nobody's any more"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_a_namespace_that_is_not_there() {
    let site = Site::new(NODE);
    let lock = Lock { namespace: "nowhere".into(), name: "gpufleet".into() };
    let error = site.drainer(KubernetesOptions { lock, ..quick() }).lock("R1").await.unwrap_err();
    assert!(error.to_string().contains("is there a namespace `nowhere`?"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_the_cluster_does_not_have() {
    let site = Site::new(NODE);
    let drainer = site.drainer(quick());
    let nobody = Target { host: "h9".into(), node: "n9".into() };
    let error = drainer.cordon(&nobody, &marker(), "why").await.unwrap_err().to_string();
    assert!(
        error.contains("has no node `n9`; check the name that Kubernetes has for the host `h9`"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_is_told_what_is_missing() {
    let site = Site::new(NODE);
    site.command(json!({"deny": {"user": "gpufleet", "resource": "pods/eviction"}}));
    let drainer = cordoned(&site, quick()).await;
    let said = stuck(&drainer).await;
    assert!(said.contains("cannot create resource \"pods/eviction\""), "{said}");
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.command(json!({"deny": {"user": "gpufleet", "resource": "nodes", "verb": "patch"}}));
    let error = drainer.cordon(&target(), &marker(), "why").await.unwrap_err().to_string();
    assert!(error.contains("docs/guide/kubernetes.md lists the rights"), "{error}");
    site.assert_untouched();
    assert_eq!(drainer.activity(&target()).await.map(|activity| activity != Activity::Idle), Ok(true));
}
