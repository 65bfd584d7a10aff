//! What the GPU operator runs on a node, reboots, and the resources of a node before it gets its work back.

use std::time::Duration;

use gpufleet::drain::{Activity, Cordon, Drainer as _, GpuOffer, MigManager, Ownership};

use super::*;

const OPERATOR: &str = r#"{pace: 60, nodes: [{name: n1, devices: {nvidia.com/gpu: 8}, plugin: app=plugin, labels: {
        nvidia.com/gpu.deploy.device-plugin: "true", nvidia.com/gpu.deploy.dcgm-exporter: "true", nvidia.com/gpu.deploy.dcgm: "false"}}],
    daemon_sets: [
      {name: plugin, namespace: gpu-operator, node_selector: {nvidia.com/gpu.deploy.device-plugin: "true"}},
      {name: exporter, namespace: gpu-operator, node_selector: {nvidia.com/gpu.deploy.dcgm-exporter: "true"}},
      {name: logs, namespace: kube-system}]}"#;

fn label(site: &Site, name: &str) -> Value {
    site.node()["metadata"]["labels"][format!("nvidia.com/gpu.deploy.{name}")].clone()
}

fn laying_out() -> KubernetesOptions {
    KubernetesOptions { lays_out_mig: true, ..quick() }
}

/// Creates a drainer whose node is drained, with device plugin and exporter stopped.
async fn stopped(site: &Site, options: KubernetesOptions) -> KubernetesDrainer {
    let drainer = cordoned(site, options).await;
    let seen = drained(&drainer).await;
    assert!(
        seen.iter().any(|said| said.contains("what the GPU operator runs there (it is being stopped)")),
        "{seen:?}"
    );
    for name in ["device-plugin", "dcgm-exporter"] {
        assert_eq!(label(site, name), "paused-for-mig-change");
    }
    assert_eq!(label(site, "dcgm"), "false");
    assert!(site.pods().iter().all(|pod| pod.starts_with("logs-")), "{:?}", site.pods());
    drainer
}

#[track_caller]
fn assert_runs(site: &Site) {
    for name in ["device-plugin", "dcgm-exporter"] {
        assert_eq!(label(site, name), "true");
    }
    assert_eq!(label(site, "dcgm"), "false");
    assert_eq!(site.node()["metadata"]["annotations"].get("gpufleet.io/paused"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_pods_go_last_and_are_back_before_the_node_is() {
    let site = Site::new(OPERATOR);
    let drainer = stopped(&site, laying_out()).await;
    site.command(json!({"devices": {"node": "n1", "devices": {"nvidia.com/mig-1g.10gb": 56}}}));
    drainer.expect(&target(), Some(offer("1g.10gb", 56)));
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
    assert_runs(&site);
    let log = site.server.log(0);
    let uncordoned = log.iter().find(|entry| entry.verb == "uncordoned").unwrap();
    assert_eq!(site.node()["status"]["allocatable"]["nvidia.com/mig-1g.10gb"], "56");
    assert!(log.iter().any(|entry| entry.verb == "gone" && entry.seq < uncordoned.seq));
    assert_eq!(site.pods().len(), 3);
}

fn offer(profile: &str, instances: u64) -> GpuOffer {
    GpuOffer { divided: 8, instances: [(profile.to_owned(), instances)].into(), ..GpuOffer::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_plugin_has_not_seen_the_new_layout_stays_out() {
    for operator in [true, false] {
        let site = match operator {
            true => Site::new(OPERATOR),
            false => Site::new("{pace: 60, nodes: [{name: n1, devices: {nvidia.com/gpu: 8}}]}"),
        };
        let drainer = cordoned(&site, laying_out()).await;
        drained(&drainer).await;
        // The node has a new layout, but still advertises the old one.
        drainer.expect(&target(), Some(offer("1g.10gb", 56)));
        until_kept_out(&drainer, None, "it advertises").await;
        let drainer = site.drainer(looks_once(laying_out()));
        drainer.expect(&target(), Some(offer("1g.10gb", 56)));
        let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
        assert!(
            error.contains(
                "n1 stays cordoned: it advertises nvidia.com/gpu=8, and its GPUs are nvidia.com/mig-1g.10gb=56 or nvidia.com/gpu=56"
            ),
            "{error}"
        );
        assert_eq!(site.node()["spec"]["unschedulable"], true);
        // A node that was drained without a change is as before.
        let drainer = site.drainer(laying_out());
        drainer.expect(&target(), None);
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_missing_keeps_the_node_out() {
    let site = Site::new(OPERATOR);
    let drainer = stopped(&site, quick()).await;
    site.command(json!({"devices": {"node": "n1", "devices": {"nvidia.com/gpu": 7}}}));
    until_kept_out(&drainer, None, "it advertises nvidia.com/gpu=7").await;
    let drainer = site.drainer(looks_once(quick()));
    let error = drainer.resume(&target(), &marker(), None).await.unwrap_err().to_string();
    assert!(
        error.contains("n1 stays cordoned: it advertises nvidia.com/gpu=7, before it was nvidia.com/gpu=8"),
        "{error}"
    );
    assert_eq!(site.node()["spec"]["unschedulable"], true);
    drainer.explain(&target(), &marker(), "GPU 3 is gone").await.unwrap();
    assert_eq!(site.node()["metadata"]["annotations"]["gpufleet.io/why"], "GPU 3 is gone");
    for name in ["device-plugin", "dcgm-exporter"] {
        assert_eq!(label(&site, name), "true", "a node that stays out keeps its metrics");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stopped_is_brought_back_whoever_has_the_node() {
    for taken in [true, false] {
        let site = Site::new(OPERATOR);
        let drainer = stopped(&site, quick()).await;
        site.command(json!({"uncordon": {"node": "n1", "user": "alice"}}));
        if taken {
            site.command(json!({"cordon": {"node": "n1", "user": "alice"}}));
        }
        let held = drainer.resume(&target(), &marker(), None).await.unwrap();
        assert_eq!(matches!(held, Ownership::Theirs { .. }), taken, "{held:?}");
        assert_eq!(site.node()["spec"]["unschedulable"] == true, taken);
        assert_runs(&site);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_controller_stopped_is_brought_back_by_the_next() {
    let site = Site::new(OPERATOR);
    drop(stopped(&site, quick()).await);
    let next = site.drainer(quick());
    assert_eq!(next.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    site.assert_untouched();
    assert_runs(&site);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_counts_when_the_kubelet_told_of_it() {
    let site = Site::new(OPERATOR);
    let drainer = stopped(&site, quick()).await;
    let issued = Timestamp::now();
    until_kept_out(&drainer, Some(issued), "its kubelet has not registered").await;
    let drainer = site.drainer(looks_once(quick()));
    let error = drainer.resume(&target(), &marker(), Some(issued)).await.unwrap_err().to_string();
    assert!(error.contains("its kubelet has not registered since its reboot at"), "{error}");
    assert_eq!(site.node()["spec"]["unschedulable"], true);
    site.command(json!({"reboot": {"node": "n1", "down": "90s"}}));
    let patient = site.drainer(quick());
    assert_eq!(patient.resume(&target(), &marker(), Some(issued)).await, Ok(Ownership::NotDrained));
    let log = site.server.log(0);
    let ready = log.iter().rfind(|entry| entry.verb == "ready").unwrap();
    let uncordoned = log.iter().find(|entry| entry.verb == "uncordoned").unwrap();
    assert!(ready.seq < uncordoned.seq, "given back before it was ready");
}

const MANAGED: &str = r#"{pace: 60, nodes: [{name: n1, devices: {nvidia.com/gpu: 8}, mig: {},
    labels: {nvidia.com/gpu.deploy.mig-manager: "true", nvidia.com/mig.config: all-disabled}}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_of_mig_managers_is_not_ours() {
    let site = Site::new(MANAGED);
    let before = site.node();
    let drainer = site.drainer(laying_out());
    let Ok(Cordon::Refused { why }) = drainer.cordon(&target(), &marker(), "why").await else { panic!() };
    assert!(why.contains("mig-manager holds its MIG to nvidia.com/mig.config=all-disabled"), "{why}");
    let said = drainer.preflight(&target()).await.unwrap().unwrap();
    assert!(said[0].contains("mig-manager holds its MIG"), "{said:?}");
    assert_eq!(site.node()["metadata"]["labels"], before["metadata"]["labels"]);
    site.assert_untouched();
    // A play without MIG may have the node.
    ours(site.drainer(quick()).cordon(&target(), &marker(), "why").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn mig_manager_is_told_what_to_lay_out() {
    for (config, works) in [("all-1g.10gb", true), ("unheard-of", false)] {
        let layouts = r#"mig: {layouts: {all-1g.10gb: {nvidia.com/mig-1g.10gb: 56}}}"#;
        let site = Site::new(&MANAGED.replace("mig: {}", layouts));
        let options = KubernetesOptions { mig_manager: MigManager::Label(config.into()), ..laying_out() };
        let drainer = cordoned(&site, options).await;
        assert_eq!(busy(&drainer).await, format!("mig-manager (it is told to lay out its MIG as {config})"));
        let end = loop {
            match step(&drainer).await.unwrap() {
                Activity::Busy { work } => {
                    assert!(work[0].contains(&format!("lays out its MIG as {config} (")), "{work:?}")
                }
                end => break end,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(site.node()["metadata"]["labels"]["nvidia.com/mig.config"], config);
        let whose = drainer.lays_out(&target()).await.unwrap().unwrap();
        assert_eq!(whose, format!("mig-manager (nvidia.com/mig.config={config})"));
        match end {
            Activity::Stuck { why } => {
                assert!(!works && why[0].contains("could not lay out its MIG"), "{why:?}")
            }
            end => assert!(works && end == Activity::Idle, "{end:?}"),
        }
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
        site.assert_untouched();
        assert_eq!(site.node()["status"]["allocatable"].get("nvidia.com/mig-1g.10gb").is_some(), works);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_is_taken_from_mig_manager_for_good() {
    let site = Site::new(MANAGED);
    let drainer =
        cordoned(&site, KubernetesOptions { mig_manager: MigManager::Takeover, ..laying_out() }).await;
    assert_eq!(label(&site, "mig-manager"), "false");
    assert_eq!(drainer.lays_out(&target()).await, Ok(None));
    assert_eq!(step(&drainer).await, Ok(Activity::Idle));
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    assert_eq!(label(&site, "mig-manager"), "false");
    site.assert_untouched();
}
