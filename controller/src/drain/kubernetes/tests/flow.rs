//! Whole drains on the stage: what is asked, in which order, and what is left alone.

use serde_json::{Value, json};

use super::super::{
    notice::NOTICE,
    standing::{OWNER, PAUSED, WHY},
    *,
};
use super::{marker, stage::Stage};
use crate::drain::{DrainError, Drainer as _};

const PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";

fn target() -> Target {
    Target { host: "h1".into(), node: "n1".into() }
}

fn options() -> KubernetesOptions {
    KubernetesOptions { ready_timeout: Duration::from_secs(20), ..KubernetesOptions::default() }
}

fn drainer(stage: &Stage, options: KubernetesOptions) -> KubernetesDrainer {
    KubernetesDrainer::new(Arc::new(stage.clone()), options)
}

fn staged() -> (Stage, KubernetesDrainer) {
    let stage = Stage::default();
    stage.state().add_node("n1");
    let drainer = drainer(&stage, options());
    (stage, drainer)
}

async fn cordoned(drainer: &KubernetesDrainer) {
    let cordon = drainer.cordon(&target(), &marker(), "mig on h1").await.unwrap();
    assert!(matches!(cordon, Cordon::Ours { .. }), "{cordon:?}");
}

fn busy(activity: Result<Activity, DrainError>) -> String {
    match activity.unwrap() {
        Activity::Busy { work } => work.join("; "),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_drain_leaves_no_trace() {
    let (stage, drainer) = staged();
    let before = stage.node("n1");
    stage.state().add_pod("n1", "ns", "web-1");
    stage.state().add_pod("n2", "ns", "elsewhere");
    stage.state().add_daemon("n1", "kube-system", "proxy", json!({}));
    cordoned(&drainer).await;
    assert_eq!(stage.node("n1")["metadata"]["annotations"][OWNER], "gpufleet:R1:n1");
    assert_eq!(stage.node("n1")["metadata"]["annotations"][WHY], "mig on h1");
    assert_eq!(drainer.ownership(&target(), &marker()).await, Ok(Ownership::Ours));
    cordoned(&drainer).await;
    assert_eq!(busy(drainer.activity(&target()).await), "pod ns/web-1");
    assert_eq!(busy(drainer.clear(&target(), &marker()).await), "pod ns/web-1 (was asked to end)");
    assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
    assert_eq!(drainer.staying(&target()).await, Ok(vec!["uid-proxy-x".to_owned()]));
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    let after = stage.node("n1");
    assert_eq!((&after["spec"], &after["metadata"]["annotations"]), (&before["spec"], &json!({})));
    let asked = stage.state().asked.clone();
    assert_eq!(
        asked,
        [
            "PATCH /api/v1/nodes/n1",
            "POST /api/v1/namespaces/ns/pods/web-1/eviction",
            "PATCH /api/v1/nodes/n1"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_others_cordoned_is_left_alone() {
    let (stage, drainer) = staged();
    stage.state().add_node("n1")["spec"] = json!({"unschedulable": true});
    let cordon = drainer.cordon(&target(), &marker(), "x").await;
    assert_eq!(cordon, Ok(Cordon::HeldByOthers { by: "cordoned by somebody else".into() }));
    assert!(drainer.clear(&target(), &marker()).await.is_err());
    assert!(matches!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::Theirs { .. })));
    assert_eq!(stage.state().asked, Vec::<String>::new());
    let out = drainer.survey(&[target(), Target { host: "h9".into(), node: "n9".into() }]).await.unwrap();
    let told: Vec<_> = out.iter().map(|outage| (outage.why.as_str(), outage.known)).collect();
    assert_eq!(told, [("cordoned by somebody else", true), ("not known to Kubernetes", false)]);
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_comes_in_between_wins() {
    let (stage, drainer) = staged();
    stage.state().meddle = Some(|state| {
        let node = state.add_node("n1");
        node["spec"] = json!({"unschedulable": true});
        node["metadata"]["resourceVersion"] = json!("2");
    });
    let cordon = drainer.cordon(&target(), &marker(), "x").await.unwrap();
    assert!(matches!(cordon, Cordon::HeldByOthers { .. }), "{cordon:?}");
    assert_eq!(stage.node("n1")["metadata"].get("annotations"), None);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_comes_in_between_does_no_harm() {
    let (stage, drainer) = staged();
    stage.state().meddle = Some(|state| state.add_node("n1")["metadata"]["resourceVersion"] = json!("2"));
    cordoned(&drainer).await;
}

#[tokio::test(start_paused = true)]
async fn people_may_take_a_node_over_in_three_ways() {
    let uncordon = |node: &mut Value| node["spec"] = json!({});
    let anew = |node: &mut Value| {
        node["metadata"]["managedFields"] =
            json!([{"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]);
    };
    let claim = |node: &mut Value| node["metadata"]["annotations"][OWNER] = json!("alice");
    type Way = (fn(&mut Value), &'static str);
    let ways: [Way; 3] = [(uncordon, "free"), (anew, "theirs"), (claim, "theirs")];
    for (way, outcome) in ways {
        let (stage, drainer) = staged();
        cordoned(&drainer).await;
        way(stage.state().add_node("n1"));
        let held = drainer.ownership(&target(), &marker()).await.unwrap();
        assert_eq!(matches!(held, Ownership::NotDrained), outcome == "free", "{held:?}");
        assert!(drainer.clear(&target(), &marker()).await.is_err());
        let spec = stage.node("n1")["spec"].clone();
        assert_eq!(drainer.resume(&target(), &marker(), None).await.unwrap(), held);
        assert_eq!(stage.node("n1")["spec"], spec);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_evicted_where_one_may_not_be() {
    let (stage, drainer) = staged();
    stage.state().add_pod("n1", "ns", "web-1");
    stage.state().add_pod("n1", "ns", "alone")["metadata"]["ownerReferences"] = json!([]);
    cordoned(&drainer).await;
    let Activity::Stuck { why } = drainer.clear(&target(), &marker()).await.unwrap() else { panic!() };
    assert_eq!(why, ["pod ns/alone: nothing brings it back elsewhere; `force: true` lets it go for good"]);
    assert_eq!(stage.state().pods.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn by_force_all_go_in_order_that_can() {
    let (stage, _) = staged();
    let drainer = drainer(&stage, KubernetesOptions { forced: true, ..options() });
    stage.state().add_node("n1")["metadata"]["labels"] = json!({PLUGIN: "true"});
    stage.state().add_pod("n1", "ns", "web-1");
    stage.state().add_pod("n1", "ns", "web-2");
    stage.state().add_pod("n1", "ns", "alone")["metadata"]["ownerReferences"] = json!([]);
    let two = include_str!("../replies/08-evict-two-pdbs-500.json");
    stage.state().evictions.insert("ns/web-2".into(), (500, two.into()));
    cordoned(&drainer).await;
    let never = [
        "pod ns/alone: nothing brings it back elsewhere; `force: true` lets it go for good",
        "pod ns/web-2: more than one PodDisruptionBudget selects it, which evictions do not support",
    ];
    let said = busy(drainer.clear(&target(), &marker()).await);
    assert!(said.contains("pod ns/web-1 (was asked to end)") && said.ends_with(&never.join("; ")), "{said}");
    assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "paused-for-mig-change");
    // Only what never goes is left: for a person's word, not for the clock.
    let left = drainer.clear(&target(), &marker()).await;
    assert_eq!(left, Ok(Activity::Stuck { why: never.map(str::to_owned).to_vec() }));
    assert_eq!(stage.state().pods.keys().collect::<Vec<_>>(), ["ns/alone", "ns/web-2"]);
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_and_have_their_time() {
    let (stage, _) = staged();
    let hour = KubernetesOptions { notice: Some(Duration::from_secs(3600)), ..options() };
    let drainer = drainer(&stage, hour);
    for name in ["web-1", "web-2", "web-3"] {
        stage.state().add_pod("n1", "ns", name);
    }
    stage.state().add_daemon("n1", "kube-system", "proxy", json!({}));
    let old = "evicted from 2026-11-22T01:00:00Z by gpufleet:R0:n9: x";
    stage.state().add_pod("n1", "ns", "web-2")["metadata"]["annotations"] = json!({NOTICE: old, "a": "b"});
    cordoned(&drainer).await;
    let who = drainer.notify(&target(), &marker()).await.unwrap();
    assert!(who.len() == 3 && who[0].starts_with("pod ns/web-1 (has until 20"), "{who:?}");
    let notice = |name: &str| {
        let pod = stage.state().pods[&format!("ns/{name}")].clone();
        pod["metadata"]["annotations"][NOTICE].as_str().unwrap_or_default().to_owned()
    };
    let told = notice("web-1");
    assert!(
        told.starts_with("evicted from 20") && told.ends_with("Z by gpufleet:R1:n1: mig on h1"),
        "{told}"
    );
    assert_eq!(notice("web-2"), told, "what another drain said does not count");
    let asked = stage.state().asked.len();
    assert_eq!(busy(drainer.clear(&target(), &marker()).await), who.join("; "));
    assert_eq!(stage.state().asked.len(), asked, "nobody is told twice, and nobody evicted");
    // Their time is over, as the next process of the run finds it; one is kept by its budget.
    let over = "evicted from 2026-11-22T01:00:00Z by gpufleet:R1:n1: mig on h1";
    for name in ["web-1", "web-2", "web-3"] {
        stage.state().pods.get_mut(&format!("ns/{name}")).unwrap()["metadata"]["annotations"][NOTICE] =
            json!(over);
    }
    let blocked = include_str!("../replies/06-evict-pdb-429.json");
    stage.state().evictions.insert("ns/web-2".into(), (429, blocked.into()));
    let said = busy(drainer.clear(&target(), &marker()).await);
    assert!(
        said.contains("web-1 (was asked to end)") && said.contains("web-2 (PodDisruptionBudget"),
        "{said}"
    );
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    assert_eq!(stage.state().pods["ns/web-2"]["metadata"]["annotations"], json!({"a": "b"}));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_where_one_may_not_be_evicted() {
    let (stage, _) = staged();
    let drainer = drainer(&stage, KubernetesOptions { notice: Some(Duration::from_secs(60)), ..options() });
    stage.state().add_pod("n1", "ns", "web-1");
    stage.state().add_pod("n1", "ns", "alone")["metadata"]["ownerReferences"] = json!([]);
    cordoned(&drainer).await;
    assert_eq!(drainer.notify(&target(), &marker()).await, Ok(Vec::new()));
    assert!(matches!(drainer.clear(&target(), &marker()).await, Ok(Activity::Stuck { .. })));
    assert_eq!(stage.state().asked, ["PATCH /api/v1/nodes/n1"]);
}

#[tokio::test(start_paused = true)]
async fn budgets_are_waited_for_and_two_of_them_are_not() {
    let (stage, drainer) = staged();
    stage.state().add_pod("n1", "ns", "web-1");
    cordoned(&drainer).await;
    let blocked = include_str!("../replies/06-evict-pdb-429.json");
    stage.state().evictions.insert("ns/web-1".into(), (429, blocked.into()));
    let says = "pod ns/web-1 (PodDisruptionBudget p1 needs 2 healthy pods and has 2 currently)";
    assert_eq!(busy(drainer.clear(&target(), &marker()).await), says);
    assert_eq!(drainer.preflight(&target()).await.unwrap().unwrap()[1], says);
    stage.state().pods.get_mut("ns/web-1").unwrap()["status"]["conditions"] = json!([]);
    assert!(
        busy(drainer.clear(&target(), &marker()).await).contains("unhealthyPodEvictionPolicy: AlwaysAllow")
    );
    let two = include_str!("../replies/08-evict-two-pdbs-500.json");
    stage.state().evictions.insert("ns/web-1".into(), (500, two.into()));
    let Activity::Stuck { why } = drainer.clear(&target(), &marker()).await.unwrap() else { panic!() };
    assert_eq!(
        why,
        ["pod ns/web-1: more than one PodDisruptionBudget selects it, which evictions do not support"]
    );
    stage.state().evictions.clear();
    assert!(busy(drainer.clear(&target(), &marker()).await).contains("was asked to end"));
    assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_never_lets_go_is_known_before_the_first_eviction() {
    for notice in [None, Some(Duration::from_secs(60))] {
        let (stage, _) = staged();
        let drainer = drainer(&stage, KubernetesOptions { notice, ..options() });
        for number in 0..30 {
            stage.state().add_pod("n1", "ns", &format!("web-{number}"));
        }
        let two = include_str!("../replies/08-evict-two-pdbs-500.json");
        stage.state().evictions.insert("ns/web-29".into(), (500, two.into()));
        cordoned(&drainer).await;
        assert_eq!(drainer.notify(&target(), &marker()).await, Ok(Vec::new()));
        let Activity::Stuck { why } = drainer.clear(&target(), &marker()).await.unwrap() else { panic!() };
        assert_eq!(
            why,
            ["pod ns/web-29: more than one PodDisruptionBudget selects it, which evictions do not support"]
        );
        assert_eq!(stage.state().asked, ["PATCH /api/v1/nodes/n1"], "nobody was evicted, and nobody told");
        assert_eq!(stage.state().pods.len(), 30);
        stage.state().evictions.clear();
        stage.state().tried = 0;
        busy(drainer.clear(&target(), &marker()).await);
        assert_eq!(stage.state().tried, 1, "what was tried out just now is not tried out again");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_while_the_server_cannot_say_who_never_does() {
    for (status, body) in [(429, "slow down"), (503, ""), (401, ""), (408, "")] {
        let (stage, _) = staged();
        let hour = KubernetesOptions { notice: Some(Duration::from_secs(3600)), ..options() };
        let telling = drainer(&stage, hour);
        let drainer = drainer(&stage, options());
        for name in ["web-1", "web-2"] {
            stage.state().add_pod("n1", "ns", name);
        }
        stage.state().evictions.insert("ns/web-2".into(), (status, body.into()));
        cordoned(&drainer).await;
        assert!(telling.notify(&target(), &marker()).await.is_err(), "{status}");
        for _ in 0..4 {
            let said = busy(drainer.clear(&target(), &marker()).await);
            assert!(said.starts_with("pod ns/web-2 (") && !said.contains("web-1"), "{status}: {said}");
            tokio::time::sleep(OVERLOAD / 4).await;
        }
        assert_eq!(stage.state().asked, ["PATCH /api/v1/nodes/n1"], "{status}: nobody was told or evicted");
        // The server can say it again: this one never goes.
        let two = include_str!("../replies/08-evict-two-pdbs-500.json");
        stage.state().evictions.insert("ns/web-2".into(), (500, two.into()));
        let stuck = drainer.clear(&target(), &marker()).await;
        assert!(matches!(stuck, Ok(Activity::Stuck { .. })), "{status}: {stuck:?}");
        assert_eq!(stage.state().pods.len(), 2, "{status}");
        stage.state().evictions.clear();
        assert!(busy(drainer.clear(&target(), &marker()).await).contains("web-1 (was asked to end)"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_says_no_for_now_keeps_nobody_else() {
    let (stage, drainer) = staged();
    for name in ["web-1", "web-2"] {
        stage.state().add_pod("n1", "ns", name);
    }
    let webhook =
        json!({"message": "admission webhook \"v.example.com\" denied the request: it moves first"});
    stage.state().evictions.insert("ns/web-2".into(), (403, webhook.to_string()));
    cordoned(&drainer).await;
    let said = busy(drainer.clear(&target(), &marker()).await);
    assert!(said.contains("web-1 (was asked to end)") && said.contains("it moves first"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_errs_has_the_declared_time_too_and_is_named_meanwhile() {
    let (stage, drainer) = staged();
    cordoned(&drainer).await;
    stage.state().gone = true;
    let begin = Instant::now();
    let (target, marker) = (target(), marker());
    let (answer, told) = futures::join!(drainer.resume(&target, &marker, None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drainer.waits_for(&target)
    });
    assert!(answer.unwrap_err().to_string().contains("connection refused"));
    assert!(told.is_some_and(|why| why.contains("connection refused")));
    assert_eq!(begin.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_plan_foresees_finalizers_and_pods_that_come_back_by_name() {
    let (stage, drainer) = staged();
    for name in ["job-1", "held-1"] {
        stage.state().add_pod("n1", "ns", name);
    }
    stage.state().pods.get_mut("ns/job-1").unwrap()["metadata"]["finalizers"] =
        json!(["batch.kubernetes.io/job-tracking"]);
    stage.state().pods.get_mut("ns/held-1").unwrap()["metadata"]["finalizers"] = json!(["example.com/flush"]);
    let template = json!({"spec": {"template": {"spec": {"nodeName": "n1"}}}});
    stage.state().replica_sets.insert("ns/web".into(), template);
    assert_eq!(
        drainer.preflight(&target()).await.unwrap().unwrap(),
        [
            "pod ns/held-1 ends only when its finalizers are taken off: example.com/flush",
            "pods of ns/web come back to it at once: `nodeName: n1` in its template goes past every cordon",
        ]
    );
    assert_eq!(stage.state().asked, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn one_deadline_ends_the_wait_for_a_node_and_its_cause_is_told_meanwhile() {
    let (stage, drainer) = staged();
    cordoned(&drainer).await;
    stage.state().add_node("n1")["status"]["conditions"][0]["status"] = json!("False");
    let begin = Instant::now();
    let (target, marker) = (target(), marker());
    let (answer, told) = futures::join!(drainer.resume(&target, &marker, None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drainer.waits_for(&target)
    });
    assert_eq!(told.as_deref(), Some("it is not ready (KubeletReady)"));
    let error = answer.unwrap_err().to_string();
    assert!(error.starts_with("n1 stays cordoned: it is not ready (KubeletReady), 20 s long"), "{error}");
    assert_eq!((begin.elapsed().as_secs(), drainer.waits_for(&target)), (20, None));
    assert_eq!(drainer.patience(), Some(Duration::from_secs(20)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_when_is_not_asked_before() {
    let (stage, drainer) = staged();
    stage.state().add_pod("n1", "ns", "web-1");
    cordoned(&drainer).await;
    let later = json!({"details": {"retryAfterSeconds": 10, "causes": [{"reason": "DisruptionBudget", "message": "x"}]}});
    stage.state().evictions.insert("ns/web-1".into(), (429, later.to_string()));
    let count = || stage.state().asked.len();
    busy(drainer.clear(&target(), &marker()).await);
    let asked = count();
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(busy(drainer.clear(&target(), &marker()).await), "pod ns/web-1 (PodDisruptionBudget x)");
    assert_eq!(count(), asked);
    tokio::time::advance(Duration::from_secs(6)).await;
    busy(drainer.clear(&target(), &marker()).await);
    assert_eq!(count(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_rehearsal_waits_for_a_server_that_has_too_much_to_do() {
    let (stage, drainer) = staged();
    stage.state().add_pod("n1", "ns", "web-1");
    stage.state().evictions.insert("ns/web-1".into(), (429, "slow down".into()));
    let begin = Instant::now();
    let said = drainer.preflight(&target()).await.unwrap().unwrap();
    assert_eq!(said, ["pod ns/web-1 (the API server has too much to do)"]);
    assert_eq!((stage.state().tried, begin.elapsed().as_secs()), (4, 15));
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_anew_under_the_same_name_is_another_pod() {
    let (stage, drainer) = staged();
    stage.state().lingers = true;
    stage.state().add_pod("n1", "ns", "db-0");
    cordoned(&drainer).await;
    busy(drainer.clear(&target(), &marker()).await);
    let left = busy(drainer.clear(&target(), &marker()).await);
    assert!(left.starts_with("pod ns/db-0 (should have ended at 2026-11-21T08:28:23Z"), "{left}");
    // Elsewhere: this node is empty.
    let again = json!({"metadata": {"name": "db-0", "namespace": "ns", "uid": "another"}, "spec": {"nodeName": "n2"}});
    stage.state().pods.insert("ns/db-0".into(), again);
    assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
    // Here, in spite of the cordon: it goes, too, under its own uid.
    stage.state().pods.clear();
    stage.state().add_pod("n1", "ns", "db-0")["metadata"]["uid"] = json!("third");
    assert_eq!(busy(drainer.clear(&target(), &marker()).await), "pod ns/db-0 (was asked to end)");
}

#[tokio::test(start_paused = true)]
async fn operands_are_stopped_last_and_seen_running_before_the_node_is_given_back() {
    let (stage, drainer) = staged();
    stage.state().add_node("n1")["metadata"]["labels"] = json!({PLUGIN: "true", "pool": "gpu"});
    stage.state().add_daemon("n1", "gpu-operator", "plugin", json!({PLUGIN: "true"}));
    stage.state().add_pod("n1", "ns", "web-1");
    cordoned(&drainer).await;
    busy(drainer.clear(&target(), &marker()).await);
    assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "true");
    assert!(busy(drainer.clear(&target(), &marker()).await).contains("GPU operator"));
    assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "paused-for-mig-change");
    assert_eq!(
        busy(drainer.clear(&target(), &marker()).await),
        "pod gpu-operator/plugin-x (stopped for the change)"
    );
    let pod = stage.state().pods.remove("gpu-operator/plugin-x").unwrap();
    assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
    let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
    assert!(error.contains("the pod of gpu-operator/plugin is not ready there"), "{error}");
    assert_eq!(stage.node("n1")["metadata"]["labels"], json!({PLUGIN: "true", "pool": "gpu"}));
    assert_eq!(stage.node("n1")["spec"]["unschedulable"], true);
    stage.state().pods.insert("gpu-operator/plugin-x".into(), pod);
    stage.state().add_node("n1")["status"]["allocatable"]["nvidia.com/gpu"] = json!("7");
    let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
    assert!(error.contains("it advertises nvidia.com/gpu=7, before it was nvidia.com/gpu=8"), "{error}");
    stage.state().add_node("n1")["status"]["allocatable"]["nvidia.com/gpu"] = json!("8");
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    assert_eq!(stage.node("n1")["metadata"]["annotations"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn operands_come_back_on_every_way_out() {
    let ways: [fn(&mut Value); 3] = [
        |_| {},
        |node| node["spec"] = json!({}),
        |node| node["metadata"]["annotations"][OWNER] = json!("alice"),
    ];
    for (index, (way, lets_go)) in ways.iter().flat_map(|way| [(way, false), (way, true)]).enumerate() {
        let index = index / 2;
        let (stage, drainer) = staged();
        stage.state().add_node("n1")["metadata"]["labels"] = json!({PLUGIN: "true"});
        cordoned(&drainer).await;
        busy(drainer.clear(&target(), &marker()).await);
        way(stage.state().add_node("n1"));
        match index {
            0 => drainer.explain(&target(), &marker(), "it failed").await.unwrap(),
            _ if lets_go => drainer.let_go(&target(), &marker()).await.unwrap(),
            _ => _ = drainer.resume(&target(), &marker(), None).await.unwrap(),
        }
        assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "true", "{index}");
        let paused = stage.node("n1")["metadata"]["annotations"].get(PAUSED).is_some();
        assert_eq!(paused, index == 0, "{index}");
        if index == 0 {
            // It stayed out, and is taken up again.
            busy(drainer.clear(&target(), &marker()).await);
            assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "paused-for-mig-change");
            assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
            assert_eq!(stage.node("n1")["metadata"]["labels"][PLUGIN], "true");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_run_stopped_is_brought_back_by_who_comes_next() {
    for pauses_operands in [true, false] {
        let stage = Stage::default();
        let drainer = drainer(&stage, KubernetesOptions { pauses_operands, ..options() });
        let node = stage.state().add_node("n1").clone();
        let mut lost = node;
        lost["metadata"]["labels"] = json!({PLUGIN: "paused-for-mig-change"});
        let record = json!({"by": "gpufleet:LOST:1", "labels": {PLUGIN: "true"}, "daemons": []});
        lost["metadata"]["annotations"] = json!({PAUSED: record.to_string()});
        stage.state().nodes.insert("n1".into(), lost);
        cordoned(&drainer).await;
        assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
        assert_eq!(stage.node("n1")["metadata"]["labels"], json!({PLUGIN: "true"}));
        assert_eq!(stage.node("n1")["metadata"]["annotations"], json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn gpus_that_a_lost_run_stopped_are_waited_for() {
    for offer in [None, Some(GpuOffer { whole: 4, ..GpuOffer::default() })] {
        let (stage, drainer) = staged();
        let record = json!({"by": "gpufleet:LOST:1", "labels": {PLUGIN: "true"}, "daemons": []});
        {
            let mut state = stage.state();
            let lost = state.add_node("n1");
            lost["metadata"]["labels"] = json!({PLUGIN: "paused-for-mig-change"});
            lost["metadata"]["annotations"] = json!({PAUSED: record.to_string()});
            lost["status"]["allocatable"] = json!({"cpu": "8", "nvidia.com/gpu": "0"});
        }
        cordoned(&drainer).await;
        assert_eq!(drainer.clear(&target(), &marker()).await, Ok(Activity::Idle));
        drainer.expect(&target(), offer.clone());
        let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
        assert!(error.contains("n1 stays cordoned: it advertises no GPUs, and "), "{error}");
        assert_eq!(stage.node("n1")["metadata"]["labels"], json!({PLUGIN: "true"}));
        stage.state().add_node("n1")["status"]["allocatable"]["nvidia.com/gpu"] = json!("2");
        if offer.is_some() {
            let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
            assert!(
                error.contains("it advertises nvidia.com/gpu=2, and its GPUs are nvidia.com/gpu=4"),
                "{error}"
            );
            stage.state().add_node("n1")["status"]["allocatable"]["nvidia.com/gpu"] = json!("4");
        }
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
        assert_eq!(stage.node("n1")["metadata"]["annotations"], json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn another_machine_is_never_cordoned() {
    let (stage, drainer) = staged();
    stage.state().add_pod("n1", "ns", "web-1");
    drainer.tell_boot(&target(), Some("boot-9".into()));
    let Ok(Cordon::Refused { why }) = drainer.cordon(&target(), &marker(), "x").await else { panic!() };
    assert!(
        why.starts_with("the cluster's node n1 is in boot boot-1, and h1 in boot boot-9: `node` names"),
        "{why}"
    );
    stage.state().add_node("n1")["status"]["nodeInfo"]["bootID"] = json!("");
    let Ok(Cordon::Refused { why }) = drainer.cordon(&target(), &marker(), "x").await else { panic!() };
    assert!(why.starts_with("the cluster does not tell the boot of its node n1"), "{why}");
    assert_eq!(stage.state().asked, Vec::<String>::new());
    stage.state().add_node("n1")["status"]["nodeInfo"]["bootID"] = json!("boot-9");
    cordoned(&drainer).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_tells_of_an_earlier_boot_counts_for_nothing() {
    let (stage, drainer) = staged();
    cordoned(&drainer).await;
    // Cordoned in boot-1 by a run that is lost, which rebooted it; or rebooted twice since.
    stage.state().add_node("n1")["status"]["nodeInfo"]["bootID"] = json!("boot-2");
    drainer.tell_boot(&target(), Some("boot-3".into()));
    stage.state().add_pod("n1", "ns", "web-1");
    let error = drainer.clear(&target(), &marker()).await.unwrap_err().to_string();
    assert!(error.starts_with("nobody was evicted: the cluster's node n1 is in boot boot-2"), "{error}");
    for after in [None, Some("2026-11-22T01:00:00Z".parse().unwrap())] {
        let error = drainer.resume(&target(), &marker(), after).await.unwrap_err().to_string();
        assert!(
            error.contains(
                "n1 stays cordoned: the cluster's node n1 is in boot boot-2, and h1 in boot boot-3"
            ),
            "{error}"
        );
    }
    assert_eq!(stage.state().pods.len(), 1);
    assert_eq!(stage.node("n1")["spec"]["unschedulable"], true);
    stage.state().add_node("n1")["status"]["nodeInfo"]["bootID"] = json!("boot-3");
    busy(drainer.clear(&target(), &marker()).await);
    let after = Some("2026-11-22T01:00:00Z".parse().unwrap());
    assert_eq!(drainer.resume(&target(), &marker(), after).await, Ok(Ownership::NotDrained));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_could_bring_back_is_told_with_how_to() {
    let (stage, drainer) = staged();
    let exporter = "nvidia.com/gpu.deploy.dcgm-exporter";
    stage.state().add_node("n1")["metadata"]["labels"] = json!({PLUGIN: "true", exporter: "true"});
    cordoned(&drainer).await;
    stage.state().gone = true;
    let error = drainer.explain(&target(), &marker(), "x").await.unwrap_err().to_string();
    assert!(!error.contains("kubectl label"), "nothing is stopped yet: {error}");
    stage.state().gone = false;
    busy(drainer.clear(&target(), &marker()).await);
    stage.state().gone = true;
    let error = drainer.explain(&target(), &marker(), "x").await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"`GET /api/v1/nodes/n1` at https://stage: connection refused; check that the API server answers (`kubectl get --raw /readyz`); labels of node n1 are still paused-for-mig-change: `kubectl label node n1 --overwrite nvidia.com/gpu.deploy.dcgm-exporter=true nvidia.com/gpu.deploy.device-plugin=true` brings back what they stopped");
    assert_eq!(drainer.let_go(&target(), &marker()).await.unwrap_err().to_string(), error);
    // A process that never read the node, as one that takes the run up.
    let next = super::flow::drainer(&stage, options());
    let error = next.explain(&target(), &marker(), "x").await.unwrap_err().to_string();
    assert!(error.contains("labels of node n1 may still be paused-for-mig-change"), "{error}");
    stage.state().gone = false;
    drainer.explain(&target(), &marker(), "x").await.unwrap();
    assert_eq!(stage.node("n1")["metadata"]["labels"], json!({PLUGIN: "true", exporter: "true"}));
}

#[tokio::test(start_paused = true)]
async fn a_reboot_has_to_be_heard_from_the_kubelet() {
    let (stage, drainer) = staged();
    cordoned(&drainer).await;
    let after = Some("2026-11-22T01:00:00Z".parse().unwrap());
    let error = drainer.resume(&target(), &marker(), after).await.unwrap_err().to_string();
    assert!(
        error.contains("its kubelet has not registered since its reboot") && error.contains("boot-1"),
        "{error}"
    );
    stage.state().add_node("n1")["status"]["nodeInfo"]["bootID"] = json!("boot-2");
    stage.state().add_node("n1")["status"]["conditions"][0]["status"] = json!("Unknown");
    let error = drainer.resume(&target(), &marker(), after).await.unwrap_err().to_string();
    assert!(error.contains("it is not ready"), "{error}");
    stage.state().add_node("n1")["status"]["conditions"][0]["status"] = json!("True");
    assert_eq!(drainer.resume(&target(), &marker(), after).await, Ok(Ownership::NotDrained));
}

#[tokio::test(start_paused = true)]
async fn one_run_holds_the_lock_and_who_lost_it_changes_nothing() {
    let (stage, one) = staged();
    let two = drainer(&stage, options());
    assert_eq!(one.holders().await, Ok(vec![]));
    assert_eq!(one.lock("R1").await, Ok(None));
    assert_eq!(two.lock("R2").await, Ok(Some("R1".into())));
    assert_eq!((one.locked("R1").await, two.locked("R2").await), (Ok(true), Ok(false)));
    cordoned(&one).await;
    stage.state().add_pod("n1", "ns", "web-1");
    // As `--steal` does it.
    two.unlock("R1").await.unwrap();
    assert_eq!(two.lock("R2").await, Ok(None));
    let asked = stage.state().asked.len();
    let error = one.clear(&target(), &marker()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the Lease default/gpufleet at https://stage is held by run R2 now; nothing was changed"
    );
    assert!(one.resume(&target(), &marker(), None).await.is_err());
    assert_eq!(one.explain(&target(), &marker(), "x").await, Ok(()));
    assert_eq!(one.let_go(&target(), &marker()).await, Ok(()));
    assert_eq!(stage.state().asked.len(), asked);
    // Somebody gave the Lease back: nobody has it, and it is not this process's any more.
    for released in [json!(null), json!("")] {
        stage.state().lease.as_mut().unwrap()["spec"]["holderIdentity"] = released;
        assert_eq!((one.holders().await, two.locked("R2").await), (Ok(vec![]), Ok(false)));
        let error = one.clear(&target(), &marker()).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "the Lease default/gpufleet at https://stage is nobody's any more; nothing was changed"
        );
        assert_eq!(one.explain(&target(), &marker(), "x").await, Ok(()));
        assert_eq!(stage.state().asked.len(), asked);
    }
    assert_eq!(two.lock("R2").await, Ok(None));
    one.unlock("R1").await.unwrap();
    assert_eq!(two.holders().await, Ok(vec!["R2".to_owned()]));
    two.unlock("R2").await.unwrap();
    assert_eq!(two.holders().await, Ok(vec![]));
}

#[tokio::test(start_paused = true)]
async fn mig_manager_keeps_its_layout_unless_told_otherwise() {
    let owned = json!({"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/gpu.deploy.mig-manager": "true"});
    let take = |labels: Value, changed: KubernetesOptions| async move {
        let stage = Stage::default();
        stage.state().add_node("n1")["metadata"]["labels"] = labels;
        let cordon = drainer(&stage, changed).cordon(&target(), &marker(), "x").await.unwrap();
        (cordon, stage.node("n1")["metadata"]["labels"]["nvidia.com/gpu.deploy.mig-manager"].clone())
    };
    let lays_out = KubernetesOptions { lays_out_mig: true, ..options() };
    let (cordon, _) = take(owned.clone(), options()).await;
    assert!(matches!(cordon, Cordon::Ours { .. }), "{cordon:?}");
    let (cordon, _) = take(owned.clone(), lays_out.clone()).await;
    let Cordon::Refused { why } = cordon else { panic!("{cordon:?}") };
    assert!(why.contains("nvidia.com/mig.config=all-1g.10gb"), "{why}");
    let takes = KubernetesOptions { mig_manager: MigManager::Takeover, ..lays_out };
    let (cordon, label) = take(owned.clone(), takes).await;
    assert!(matches!(cordon, Cordon::Ours { .. }) && label == "false", "{cordon:?} {label}");
    let (cordon, _) = take(json!({"nvidia.com/mig.config.state": "pending"}), options()).await;
    assert_eq!(cordon, Cordon::HeldByOthers { by: "mig-manager lays out its MIG now (pending)".into() });
}

#[tokio::test(start_paused = true)]
async fn silence_is_neither_yes_nor_no() {
    let (stage, drainer) = staged();
    cordoned(&drainer).await;
    stage.state().gone = true;
    let error = drainer.ownership(&target(), &marker()).await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"`GET /api/v1/nodes/n1` at https://stage: connection refused; check that the API server answers (`kubectl get --raw /readyz`)");
    assert!(drainer.activity(&target()).await.is_err() && drainer.survey(&[target()]).await.is_err());
    assert!(drainer.lock("R1").await.is_err() && drainer.locked("R1").await.is_err());
}
