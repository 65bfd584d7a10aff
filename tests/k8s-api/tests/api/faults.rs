//! Every fault that tests can switch on, as a client sees it.

use std::time::{Duration, Instant};

use gpufleet_k8s_api::control::{Command, Control};
use gpufleet_k8s_api::faults::{Action, Fault, Reach};
use gpufleet_k8s_api::kubeconfig::Login;
use gpufleet_k8s_api::object;
use gpufleet_k8s_api::resources::PODS;
use gpufleet_k8s_api::settings::Span;
use serde_json::json;

use crate::client::Client;
use crate::cluster::{evict, start};

const ONE_POD: &str = "{pace: 0, nodes: [{name: n1}], pods: [{name: p, node: n1, grace: 30}]}";
const EVICTION: &str = "/api/v1/namespaces/default/pods/p/eviction";

fn body() -> Vec<u8> {
    json!({"metadata": {"name": "p"}}).to_string().into_bytes()
}

#[test]
fn a_connection_is_cut_before_and_after_the_server_has_acted() {
    let (server, client) = start(ONE_POD);
    let terminating = || {
        server.with(|c| object::terminating(c.store.get(&PODS, "default", "p").expect("the pod is there")))
    };
    server.fault(Fault::new(Action::CutBefore).verb("evict").times(1));
    assert!(client.ask("POST", EVICTION, "application/json", body()).is_err() && !terminating());
    server.fault(Fault::new(Action::CutAfter).verb("evict").times(1));
    assert!(client.ask("POST", EVICTION, "application/json", body()).is_err() && terminating());
    server.fault(Fault::new(Action::CutReply).verb("get").resource("pods").times(1));
    assert!(client.ask("GET", "/api/v1/namespaces/default/pods/p", "", Vec::new()).is_err());
    assert_eq!(client.get("/api/v1/namespaces/default/pods/p").code, 200);
    let log = server.log(0);
    let faults: Vec<_> =
        log.iter().filter(|e| e.detail.get("fault").is_some()).map(|e| (e.verb.as_str(), e.code)).collect();
    assert_eq!(faults, [("evict", 0), ("evict", 201), ("get", 200)]);
}

#[test]
fn refusals_on_demand_say_what_a_real_server_says() {
    let (server, client) = start(ONE_POD);
    server.fault(Fault::new(Action::Conflict).verb("evict").times(1));
    assert_eq!(evict(&client, "default", "p").body["reason"], json!("Conflict"));
    server.fault(Fault::new(Action::Internal).verb("evict").times(1));
    assert_eq!(
        evict(&client, "default", "p").body["message"],
        json!("Internal error occurred: etcdserver: request timed out")
    );
    server.fault(Fault::new(Action::Unavailable).times(1));
    assert_eq!(evict(&client, "default", "p").code, 503);
    server.fault(Fault::new(Action::Unauthorized).times(1));
    assert_eq!(evict(&client, "default", "p").body["reason"], json!("Unauthorized"));
    server.fault(Fault::new(Action::Overload { retry_after_s: 7 }).times(1));
    let overload = evict(&client, "default", "p");
    assert_eq!((overload.code, overload.header("retry-after")), (429, Some("7")));
    assert_eq!(overload.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(overload.text, "Too many requests, please try again later.\n");
    server.fault(Fault::new(Action::TimeoutAfter).times(1));
    assert_eq!(evict(&client, "default", "p").code, 504);
    assert!(
        object::terminating(&server.object(&PODS, "default", "p").expect("it is there")),
        "it had been done"
    );
}

#[test]
fn slow_replies_wait_for_the_servers_clock() {
    for (fault, done_at_once) in
        [(Action::SlowAction { by: Span(20_000) }, false), (Action::SlowReply { by: Span(20_000) }, true)]
    {
        let (server, client) = start(ONE_POD);
        // Or gone already.
        let evicted = || server.object(&PODS, "default", "p").is_none_or(|pod| object::terminating(&pod));
        server.fault(Fault::new(fault).verb("evict").times(1));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| evict(&client, "default", "p").code);
            assert!(server.wait_for_faults());
            server.advance(Duration::from_secs(19));
            let (seen, answered) = (evicted(), asked.is_finished());
            server.advance(Duration::from_secs(1));
            assert_eq!(asked.join().expect("an answer"), 201);
            assert_eq!((seen, answered), (done_at_once, false));
        });
        assert!(evicted());
    }
}

#[test]
fn a_server_that_is_gone_refuses_and_comes_back_by_itself() {
    let (server, client) = start(ONE_POD);
    let soon = |what: &dyn Fn() -> bool| {
        (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            what()
        })
    };
    server.set_reach(Reach::Refused, Some(Duration::from_secs(60)));
    // Not at once: another thread closes the socket.
    let refused = || {
        let error = client.ask("GET", "/api/v1/nodes", "", Vec::new()).err();
        let error = error.and_then(|error| error.downcast::<std::io::Error>().ok());
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    assert!(soon(&refused), "nobody listens");
    server.advance(Duration::from_secs(59));
    assert!(refused());
    server.advance(Duration::from_secs(1));
    assert!(soon(&|| client.ask("GET", "/api/v1/nodes", "", Vec::new()).is_ok()));
}

#[test]
fn a_silent_server_accepts_and_says_nothing() {
    let (server, client) = start(ONE_POD);
    server.set_reach(Reach::Silent, None);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.get("/api/v1/nodes/n1").code);
        std::thread::sleep(Duration::from_millis(150));
        assert!(!asked.is_finished());
        server.set_reach(Reach::Up, None);
        assert_eq!(asked.join().expect("an answer"), 200);
    });
    assert!(began.elapsed() >= Duration::from_millis(150));
}

#[test]
fn what_is_denied_is_forbidden_and_the_review_says_so() {
    let (server, client) = start(ONE_POD);
    let denied = gpufleet_k8s_api::access::Denied {
        user: "drainer".to_owned(),
        resource: "pods/eviction".to_owned(),
        ..Default::default()
    };
    server.command(&Command::Deny(denied)).expect("it can be denied");
    let refused = evict(&client, "default", "p");
    assert_eq!(
        (refused.code, refused.body["message"].as_str()),
        (
            403,
            Some(
                "pods \"p\" is forbidden: User \"drainer\" cannot create resource \"pods/eviction\" in API group \"\" in the namespace \"default\""
            )
        )
    );
    let attributes =
        json!({"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": "default"});
    let review = client.post(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        &json!({"spec": {"resourceAttributes": attributes}}),
    );
    assert_eq!(review.body["status"]["allowed"], json!(false));
}

#[test]
fn other_processes_move_the_server_over_its_socket() {
    let (server, _) = start(ONE_POD);
    let dir = tempfile::tempdir().expect("a directory");
    server.publish(dir.path()).expect("files and a socket");
    let mut control = Control::connect(&dir.path().join("control.sock")).expect("it listens");
    control.call(&Command::Cordon { node: "n1".to_owned(), user: "alice".to_owned() }).expect("n1 is there");
    assert_eq!(control.call_text("\"out\"").expect("a count"), json!(1));
    control.call_text("{\"advance\": {\"by\": \"5m\"}}").expect("time moves");
    let add = "{\"add\": {\"scenario\": {\"pods\": [{\"name\": \"q\", \"node\": \"n1\"}]}}}";
    control.call_text(add).expect("a pod");
    let log = control.call(&Command::Log { since: 0 }).expect("the log");
    assert!(
        log.as_array()
            .expect("entries")
            .iter()
            .any(|e| e["verb"] == "cordoned" && e["user"] == "alice" && e["out"] == 1)
    );
    assert!(control.call_text("{\"dance\": {}}").expect_err("no such command").to_string().contains("dance"));
    let missing =
        control.call(&Command::Reboot { node: "n9".to_owned(), down: Span(1) }).expect_err("no such node");
    assert_eq!(missing.to_string(), "the server refused: there is no machine behind a node `n9`");
}

#[test]
fn nobody_without_a_name_reads_objects() {
    let (server, _) = start(ONE_POD);
    let nobody = Client::new(&server, &Login::Nobody);
    let refused = nobody.get("/api/v1/nodes");
    assert_eq!(
        (refused.code, refused.body["reason"].as_str(), refused.body.get("details")),
        (401, Some("Unauthorized"), None)
    );
    assert_eq!(nobody.get("/version").body["gitVersion"], json!("v1.36.2"));
}
