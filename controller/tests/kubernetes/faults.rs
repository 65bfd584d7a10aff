//! Failures on the way to the server: no act is lost, none is done twice, and no failure counts as a "yes".

use std::time::Duration;

use gpufleet::drain::{Activity, Cordon, Drainer as _, Ownership};
use gpufleet_k8s_api::{
    faults::{Action, Fault, Reach},
    settings::Span,
};

use super::*;

/// One second takes a simulated minute.
const BRISK: &str = "{pace: 60, nodes: [{name: n1}, {name: n2}],
    deployments: [{name: web, replicas: 4, grace: 60, annotations: {k8s-api.test/stop: 20s}}]}";

/// Drains and resumes a node, whatever happens in between; returns what was reported.
async fn there_and_back(site: &Site, drainer: &KubernetesDrainer) -> Vec<String> {
    let begin = Instant::now();
    let mut seen = Vec::new();
    loop {
        match drainer.cordon(&target(), &marker(), "why").await {
            Ok(Cordon::Ours { .. }) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => seen.push(error.to_string()),
        }
        assert!(begin.elapsed() < LIMIT, "{seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    seen.extend(drained(drainer).await);
    assert_eq!(site.pods(), Vec::<String>::new());
    loop {
        match drainer.resume(&target(), &marker(), None).await {
            Ok(Ownership::NotDrained) => break,
            Ok(other) => panic!("{other:?}"),
            Err(error) => seen.push(error.to_string()),
        }
        assert!(begin.elapsed() < LIMIT, "{seen:?}");
    }
    site.assert_untouched();
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_mid_eviction() {
    for action in [Action::CutBefore, Action::CutAfter, Action::CutReply] {
        let site = Site::new(BRISK);
        // Not the first two evictions, which are dry runs.
        site.server.fault(Fault::new(action.clone()).verb("evict").skip(2).times(2));
        let drainer = site.drainer(quick());
        let seen = there_and_back(&site, &drainer).await;
        let cut = seen
            .iter()
            .find(|said| said.contains("its effect is unknown"))
            .unwrap_or_else(|| panic!("{seen:?}"));
        assert!(cut.contains("`POST /api/v1/namespaces/default/pods/web-"), "{cut}");
        // An accepted eviction whose reply was lost is not repeated: the pod shows that it ends.
        let accepted = site.evictions().into_iter().filter(|(_, code)| *code == 201).count();
        assert_eq!(accepted, 2, "{action:?}: {:?}", site.evictions());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_which_no_answer_comes() {
    for action in [
        Action::CutBefore,
        Action::CutAfter,
        Action::CutReply,
        Action::TimeoutAfter,
        Action::Conflict,
        Action::Internal,
    ] {
        let site = Site::new(BRISK);
        site.server.fault(Fault::new(action.clone()).verb("patch").times(1));
        site.server.fault(Fault::new(action.clone()).verb("patch").skip(1).times(1));
        let drainer = site.drainer(quick());
        there_and_back(&site, &drainer).await;
        let log = site.server.log(0);
        let cordons = log.iter().filter(|entry| entry.verb == "cordoned").count();
        let uncordons = log.iter().filter(|entry| entry.verb == "uncordoned").count();
        assert_eq!((cordons, uncordons), (1, 1), "{action:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_that_pass() {
    for action in [
        Action::Conflict,
        Action::Internal,
        Action::TimeoutAfter,
        Action::Unavailable,
        Action::Overload { retry_after_s: 1 },
        Action::SlowReply { by: Span::seconds(20) },
        Action::SlowAction { by: Span::seconds(20) },
    ] {
        let site = Site::new(BRISK);
        site.server.fault(Fault::new(action.clone()).verb("evict").times(3));
        site.server.fault(Fault::new(action).verb("list").times(2));
        let drainer = site.drainer(quick());
        there_and_back(&site, &drainer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_end_are_got_anew() {
    let site = Site::new(BRISK);
    // Why an hour, ended by hand: a token that ends by the clock may end before a busy machine has used it. Its plugin
    // gives no expiry, so that only the server's 401 shows it.
    let life = Duration::from_secs(3600);
    let plugin = site.server.exec_plugin(&site.folder().join("plugin"), "gpufleet", life, false).unwrap();
    let drainer = site.drainer_as(&Login::Exec(plugin.script()), quick());
    ours(drainer.cordon(&target(), &marker(), "why").await);
    assert_eq!(plugin.calls(), 1);
    site.server.advance(life);
    let seen = drained(&drainer).await;
    assert!(!seen.iter().any(|said| said.contains("401")), "{seen:?}");
    assert_eq!(plugin.calls(), 2);
    site.server.advance(life);
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
    assert_eq!(plugin.calls(), 3);
    site.assert_untouched();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_nobody_renews_is_told() {
    let site = Site::new(BRISK);
    let token = site.server.token("gpufleet", None);
    let drainer = site.drainer_as(&Login::Token(token.clone()), looks_once(quick()));
    ours(drainer.cordon(&target(), &marker(), "why").await);
    site.command(json!({"expire_token": {"token": token}}));
    let error = drainer.ownership(&target(), &marker()).await.unwrap_err().to_string();
    assert!(error.contains("(status 401); check the credentials of the kubeconfig"), "{error}");
    assert!(step(&drainer).await.is_err());
    assert!(drainer.resume(&target(), &marker(), None).await.is_err());
    assert_eq!(site.evictions(), []);
    site.command(json!({"token": {"token": token, "user": "gpufleet"}}));
    let drainer = site.drainer_as(&Login::Token(token), quick());
    drained(&drainer).await;
    assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_for_a_minute() {
    for reach in [Reach::Refused, Reach::Silent] {
        let site = Site::new(BRISK);
        let drainer = site.drainer(KubernetesOptions { ready_timeout: Duration::from_secs(90), ..quick() });
        ours(drainer.cordon(&target(), &marker(), "why").await);
        assert!(matches!(step(&drainer).await, Ok(Activity::Busy { .. })));
        if reach == Reach::Refused {
            // Until it was seen: on a busy machine, its minute could be over before anybody asks.
            site.server.set_reach(reach, None);
            let begin = Instant::now();
            let gone = loop {
                let said = step(&drainer).await.map_or_else(|error| error.to_string(), |_| String::new());
                if said.contains("check that the API server answers") {
                    break said;
                }
                assert!(begin.elapsed() < LIMIT, "{said}");
            };
            assert!(!gone.contains("its effect is unknown"), "only asked: {gone}");
        }
        site.server.set_reach(reach, Some(Duration::from_secs(60)));
        drained(&drainer).await;
        site.server.set_reach(reach, Some(Duration::from_secs(60)));
        assert_eq!(drainer.resume(&target(), &marker(), None).await, Ok(Ownership::NotDrained));
        site.assert_untouched();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_ever_watched() {
    // Reading only the store cannot be late.
    let site = Site::new(BRISK);
    site.command(json!({"log_reads": {"on": true}}));
    site.server.fault(Fault::new(Action::SlowWatch { by: Span::seconds(3600) }));
    let drainer = site.drainer(quick());
    there_and_back(&site, &drainer).await;
    assert!(site.entries("list").len() > 2);
    assert_eq!(site.entries("watch").len(), 0);
}
