//! Drains against a real server, one test for each measured case.

use std::{sync::Arc, time::Duration};

use gpufleet::drain::{Activity, Drainer as _, Ownership};
use gpufleet_k8s_api::{
    faults::{Action, Fault},
    resources::PODS,
    settings::Span,
};

use super::*;

/// Two nodes, and a service whose pods take ten seconds to end.
const SERVICE: &str = "{pace: 0, nodes: [{name: n1}, {name: n2}],
    deployments: [{name: web, replicas: 2, grace: 30, annotations: {k8s-api.test/stop: 10s}}]}";
const BUDGETED: &str =
    "{pace: 0, nodes: [{name: n1}, {name: n2}], deployments: [{name: web, replicas: 2, grace: 30}],
    budgets: [{name: web, min_available: 2}]}";

fn forced() -> KubernetesOptions {
    takes(PodPolicy { force: true, ..PodPolicy::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_that_is_accepted_is_waited_for() {
    let site = Site::new(SERVICE);
    let drainer = cordoned(&site, quick()).await;
    let [pod] = &site.pods()[..] else { panic!("{:?}", site.pods()) };
    assert_eq!(busy(&drainer).await, format!("pod default/{pod} (was asked to end)"));
    // The pod is still there, and was evicted only once.
    for _ in 0..3 {
        assert!(busy(&drainer).await.starts_with(&format!("pod default/{pod} (ends by ")));
    }
    assert_eq!((site.pods(), site.evictions()), (vec![pod.clone()], vec![(pod.clone(), 201)]));
    let uid = site.object(&PODS, "default", pod)["metadata"]["uid"].clone();
    site.seconds(11);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    let [asked] = &site.meant()[..] else { panic!() };
    assert_eq!(asked.detail["deleteOptions"]["preconditions"]["uid"], uid);
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_told_before_they_are_evicted() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}], deployments: [{name: web, replicas: 2, grace: 30}], budgets: [{name: web, min_available: 2}]}",
    );
    // Long enough for a busy machine to look before it is over.
    let notice = Duration::from_secs(10);
    let drainer = cordoned(&site, KubernetesOptions { notice: Some(notice), ..quick() }).await;
    let who = drainer.notify(&target(), &marker()).await.unwrap();
    assert_eq!(who.len(), 2, "{who:?}");
    let told = || {
        let pods = site.server.with(|cluster| cluster.store.all(&PODS, "").cloned().collect::<Vec<_>>());
        let notice = |pod: &Value| pod["metadata"]["annotations"]["gpufleet.io/drain-notice"].is_string();
        pods.iter().filter(|pod| notice(pod)).count()
    };
    assert_eq!(told(), 2);
    let said = busy(&drainer).await;
    assert!(said.contains("(has until 20") && site.evictions().is_empty(), "{said}");
    tokio::time::sleep(notice + Duration::from_secs(1)).await;
    let said = busy(&drainer).await;
    assert!(said.contains("PodDisruptionBudget web"), "{said}");
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
    assert_eq!(told(), 0, "a drain that is over tells nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_grace_is_an_end_at_once() {
    let site = Site::new(SERVICE);
    let options = KubernetesOptions { grace_period: Some(Duration::ZERO), ..quick() };
    let drainer = cordoned(&site, options).await;
    assert!(busy(&drainer).await.ends_with("(was asked to end)"));
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    assert_eq!(site.evictions().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_went_away_by_itself_is_gone() {
    let site = Site::new(SERVICE);
    let drainer = Arc::new(cordoned(&site, quick()).await);
    let pod = site.pods().remove(0);
    // Not the first eviction, which is a dry run.
    site.server.fault(Fault::new(Action::SlowAction { by: Span::seconds(5) }).verb("evict").skip(1).times(1));
    let stepping = tokio::spawn({
        let drainer = Arc::clone(&drainer);
        async move { step(&drainer).await }
    });
    assert!(site.server.wait_for_faults(), "the eviction is under way");
    site.command(json!({"delete": {"resource": "pods", "namespace": "default", "name": pod, "grace": 0}}));
    site.seconds(6);
    assert_eq!(stepping.await.unwrap(), Ok(Activity::Idle));
    assert_eq!(site.evictions(), [(pod, 404)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_without_room_is_named_and_waited_for() {
    let site = Site::new(BUDGETED);
    let drainer = cordoned(&site, quick()).await;
    let pod = site.pods().remove(0);
    for _ in 0..3 {
        assert_eq!(
            busy(&drainer).await,
            format!("pod default/{pod} (PodDisruptionBudget web needs 2 healthy pods and has 2 currently)")
        );
    }
    assert_eq!(site.evictions(), vec![(pod.clone(), 429); 3]);
    drains_without_its_budget(&site, &drainer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_nobody_has_looked_at_says_when_to_ask_again() {
    let site =
        Site::new(&SERVICE.replace("pace: 0", "pace: 0, settings: {controllers: {disruption: false}}"));
    site.add("{budgets: [{name: late, selector: {app: web}, min_available: 1}]}");
    let drainer = cordoned(&site, quick()).await;
    for _ in 0..3 {
        let said = busy(&drainer).await;
        assert!(
            said.ends_with("(PodDisruptionBudget late is still being processed by the server)"),
            "{said}"
        );
    }
    assert_eq!(site.evictions().len(), 1, "asked again within ten seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_is_no_budget() {
    let overloaded = async |retry_after_s| {
        let site = Site::new(SERVICE);
        site.server.fault(Fault::new(Action::Overload { retry_after_s }).verb("evict").skip(1).times(1));
        let drainer = cordoned(&site, quick()).await;
        assert!(busy(&drainer).await.ends_with("(the API server has too much to do)"));
        (site, drainer)
    };
    let (_site, drainer) = overloaded(600).await;
    for _ in 0..3 {
        assert!(
            busy(&drainer).await.ends_with("(the API server has too much to do)"),
            "it is not asked again"
        );
    }
    let (_site, drainer) = overloaded(1).await;
    let begin = Instant::now();
    while !busy(&drainer).await.ends_with("(was asked to end)") {
        assert!(begin.elapsed() < LIMIT, "it is asked again when that time is over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_budgets_for_one_pod_are_never_waited_for() {
    let site = Site::new(BUDGETED);
    site.add("{budgets: [{name: other, selector: {app: web}, min_available: 0}]}");
    site.seconds(1);
    let drainer = cordoned(&site, quick()).await;
    let said = stuck(&drainer).await;
    assert!(
        said.ends_with("more than one PodDisruptionBudget selects it, which evictions do not support"),
        "{said}"
    );
    assert_eq!(site.evictions(), [], "what the dry run says is enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_well_is_kept_unless_its_budget_lets_it_go() {
    let site = Site::new(BUDGETED);
    let pod = site.pods().remove(0);
    site.command(json!({"pod_ready": {"namespace": "default", "name": pod, "ready": false}}));
    site.seconds(1);
    let drainer = cordoned(&site, quick()).await;
    let said = busy(&drainer).await;
    assert!(
        said.contains("needs 2 healthy pods and has 1 currently; the pod is not ready itself")
            && said.contains("unhealthyPodEvictionPolicy: AlwaysAllow"),
        "{said}"
    );
    site.command(
        json!({"delete": {"resource": "poddisruptionbudgets", "namespace": "default", "name": "web"}}),
    );
    site.add("{budgets: [{name: web, min_available: 2, unhealthy_pod_eviction_policy: AlwaysAllow}]}");
    site.seconds(1);
    assert!(busy(&drainer).await.ends_with("(was asked to end)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_not_begun_goes_past_its_budget() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}, {name: n2}], budgets: [{name: web, min_available: 5}],
        deployments: [{name: web, replicas: 2, annotations: {k8s-api.test/start: 24h}}]}",
    );
    let drainer = cordoned(&site, quick()).await;
    let pod = site.pods().remove(0);
    assert_eq!(site.object(&PODS, "default", &pod)["status"]["phase"], "Pending");
    assert!(busy(&drainer).await.ends_with("(was asked to end)"));
    site.seconds(60);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_over_are_no_work() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}]}");
    for (name, phase) in [("done", "Succeeded"), ("broken", "Failed")] {
        let mut over = pod(name, |_| {});
        over["status"] = json!({"phase": phase});
        site.command(json!({"put": {"object": over}}));
    }
    let drainer = cordoned(&site, quick()).await;
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    assert_eq!((site.evictions().len(), site.pods().len()), (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_that_hold_a_pod_are_named() {
    let site = Site::new(
        "{pace: 1, nodes: [{name: n1}], pods: [{name: held, node: n1, finalizers: [example.com/backup]}]}",
    );
    let options = KubernetesOptions { grace_period: Some(Duration::ZERO), ..forced() };
    let drainer = cordoned(&site, options).await;
    assert!(busy(&drainer).await.ends_with("(was asked to end)"));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let said = busy(&drainer).await;
    assert!(
        said.starts_with("pod default/held (should have ended at ")
            && said.ends_with(", and finalizers hold it: example.com/backup)"),
        "{said}"
    );
    assert_eq!(site.pods(), ["held"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn static_pods_stay() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}], pods: [{name: etcd-n1, node: n1, mirror: true}]}");
    let drainer = cordoned(&site, forced()).await;
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    assert_eq!((site.pods(), site.evictions().len()), (vec!["etcd-n1".to_owned()], 0));
    let uid = site.object(&PODS, "default", "etcd-n1")["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(drainer.staying(&target()).await.unwrap(), [uid]);
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_stay_and_their_orphans_go() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}], daemon_sets: [{name: exporter}],
        settings: {controllers: {garbage: false}}}",
    );
    let orphan = pod("orphan", |pod| {
        pod["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gone", "uid": "u", "controller": true}]);
    });
    site.command(json!({"put": {"object": orphan}}));
    site.seconds(60);
    let drainer = cordoned(&site, quick()).await;
    assert_eq!(busy(&drainer).await, "pod default/orphan (was asked to end)");
    site.seconds(60);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    let [daemon] = &site.pods()[..] else { panic!("{:?}", site.pods()) };
    assert!(daemon.starts_with("exporter-"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_lost_is_refused_before_anybody_is_evicted() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}], pods: [{name: alone, node: n1}],
        deployments: [{name: web}, {name: cache, empty_dir: true}]}",
    );
    let drainer = cordoned(&site, quick()).await;
    let said = stuck(&drainer).await;
    assert!(said.contains("pod default/alone: nothing brings it back elsewhere; `force: true`"), "{said}");
    assert!(said.contains("pod default/cache-") && said.contains("`delete_emptydir_data: true`"), "{said}");
    assert_eq!((site.evictions().len(), site.pods().len()), (0, 3));
    let all = PodPolicy { force: true, delete_emptydir_data: true, ..PodPolicy::default() };
    let drainer = site.drainer(takes(all));
    assert!(busy(&drainer).await.contains("pod default/alone (was asked to end)"));
    site.seconds(60);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_ends_takes_its_pods_along() {
    let site = Site::new(
        "{pace: 0, nodes: [{name: n1}], settings: {controllers: {namespaces: false}},
        deployments: [{name: web, namespace: old, grace: 30, annotations: {k8s-api.test/stop: 10s}}]}",
    );
    site.command(json!({"delete": {"resource": "namespaces", "name": "old"}}));
    let drainer = cordoned(&site, quick()).await;
    assert_eq!(site.pods().len(), 1, "{:?}", site.server.log(0));
    let said = busy(&drainer).await;
    assert!(said.ends_with("(its namespace is being deleted)"), "{said}");
    assert_eq!(site.evictions().first().map(|(_, code)| *code), Some(403));
    let all = json!({"disruption": true, "workloads": true, "scheduler": true, "nodes": true, "namespaces": true, "garbage": true});
    site.command(json!({"controllers": all}));
    site.seconds(1);
    let said = busy(&drainer).await;
    assert!(said.contains("(ends by "), "{said}");
    site.seconds(60);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_pod_that_came_back_elsewhere_is_left_alone() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}], stateful_sets: [{name: db, replicas: 1}]}");
    let drainer = Arc::new(cordoned(&site, quick()).await);
    site.add("{nodes: [{name: n2}]}");
    let before = site.object(&PODS, "default", "db-0")["metadata"]["uid"].clone();
    site.server
        .fault(Fault::new(Action::SlowAction { by: Span::seconds(20) }).verb("evict").skip(1).times(1));
    let stepping = tokio::spawn({
        let drainer = Arc::clone(&drainer);
        async move { step(&drainer).await }
    });
    assert!(site.server.wait_for_faults(), "the eviction is under way");
    site.command(json!({"delete": {"resource": "pods", "namespace": "default", "name": "db-0", "grace": 0}}));
    for _ in 0..60 {
        site.seconds(1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Ok(Activity::Busy { work }) = stepping.await.unwrap() else { panic!() };
    assert_eq!(work, ["pod default/db-0 (changed at the same moment)"]);
    assert_eq!(site.evictions(), [("db-0".to_owned(), 409)]);
    let after = site.object(&PODS, "default", "db-0");
    assert_eq!(
        (&after["spec"]["nodeName"], &after["metadata"]["deletionTimestamp"]),
        (&json!("n2"), &Value::Null)
    );
    assert_ne!(after["metadata"]["uid"], before);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_says_what_is_in_the_way_and_changes_nothing() {
    let site = Site::new(BUDGETED);
    let drainer = site.drainer(quick());
    let pod = site.pods().remove(0);
    let version = site.node()["metadata"]["resourceVersion"].clone();
    assert_eq!(
        drainer.preflight(&target()).await.unwrap().unwrap(),
        [format!("pod default/{pod} (PodDisruptionBudget web needs 2 healthy pods and has 2 currently)")]
    );
    site.command(
        json!({"delete": {"resource": "poddisruptionbudgets", "namespace": "default", "name": "web"}}),
    );
    assert_eq!(drainer.preflight(&target()).await.unwrap().unwrap(), Vec::<String>::new());
    site.seconds(120);
    assert_eq!((site.evictions().len(), site.pods()), (0, vec![pod]));
    assert_eq!(site.node()["metadata"]["resourceVersion"], version);
    site.command(json!({"cordon": {"node": "n1", "user": "alice"}}));
    let said = drainer.preflight(&target()).await.unwrap().unwrap();
    assert!(said[0].starts_with("cordoned by "), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_somebody_binds_to_the_cordoned_node_is_seen() {
    let site = Site::new("{pace: 0, nodes: [{name: n1}]}");
    let drainer = cordoned(&site, forced()).await;
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    site.command(json!({"put": {"object": pod("late", |_| {})}}));
    assert_eq!(
        drainer.activity(&target()).await.unwrap(),
        Activity::Busy { work: vec!["pod default/late".into()] }
    );
    assert_eq!(busy(&drainer).await, "pod default/late (was asked to end)");
    site.seconds(60);
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_dead_kubelet_never_count_as_gone() {
    let site =
        Site::new("{pace: 1, nodes: [{name: n1}, {name: n2}], deployments: [{name: web, replicas: 2}]}");
    let options = KubernetesOptions { grace_period: Some(Duration::from_secs(1)), ..quick() };
    let drainer = cordoned(&site, options).await;
    site.command(json!({"kubelet": {"node": "n1", "state": "dead"}}));
    assert!(busy(&drainer).await.ends_with("(was asked to end)"));
    site.seconds(60);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let said = busy(&drainer).await;
    assert!(
        said.contains("(should have ended at ") && said.contains("the kubelet of its node does not answer"),
        "{said}"
    );
    assert_eq!(site.pods().len(), 1);
}
