//! Watches and lists in pages.

use std::time::Duration;

use gpufleet_k8s_api::control::Command;
use gpufleet_k8s_api::faults::{Action, Fault};
use gpufleet_k8s_api::settings::Span;
use serde_json::{Value, json};

use crate::cluster::{cordon, start};

fn kinds(events: &[Value]) -> Vec<String> {
    events
        .iter()
        .map(|e| {
            format!(
                "{} {}",
                e["type"].as_str().unwrap_or_default(),
                e["object"]["metadata"]["name"].as_str().unwrap_or("-")
            )
        })
        .collect()
}

const NODES: &str =
    "{pace: 0, settings: {heartbeat: 1h, controllers: {nodes: false}}, nodes: [{name: n1}, {name: n2}]}";

#[test]
fn a_watch_begins_with_what_is_there_and_shows_what_changes() {
    let (server, client) = start(NODES);
    let (events, _) = client.watch("/api/v1/nodes?watch=true", |events| {
        if events.len() == 2 {
            for name in ["n1", "n2"] {
                server
                    .command(&Command::Cordon { node: name.to_owned(), user: "alice".to_owned() })
                    .expect("it is there");
            }
        }
        events.len() >= 4
    });
    assert_eq!(kinds(&events), ["ADDED n1", "ADDED n2", "MODIFIED n1", "MODIFIED n2"]);
}

#[test]
fn a_watch_goes_on_from_a_version_and_a_selector_turns_changes_into_comings_and_goings() {
    let (_server, client) = start(NODES);
    let version = client.get("/api/v1/nodes").body["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version")
        .to_owned();
    cordon(&client, "n1", true);
    cordon(&client, "n1", false);
    let (events, _) = client.watch(
        &format!("/api/v1/nodes?watch=1&resourceVersion={version}&fieldSelector=spec.unschedulable%3Dtrue"),
        |e| e.len() >= 2,
    );
    assert_eq!(kinds(&events), ["ADDED n1", "DELETED n1"]);
}

#[test]
fn bookmarks_ends_and_expired_versions() {
    let (server, client) = start(NODES);
    let path = "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds=150&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let (events, broken) = client.watch(path, |events| {
        if events.len() >= 3 {
            server.advance(Duration::from_secs(61));
        }
        false
    });
    assert_eq!(
        kinds(&events),
        ["ADDED n1", "ADDED n2", "BOOKMARK -", "BOOKMARK -", "BOOKMARK -", "BOOKMARK -"]
    );
    assert_eq!(events[2]["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert!(!broken, "it ended");
    server.command(&Command::Compact).expect("history can be forgotten");
    cordon(&client, "n1", true);
    let (events, _) = client.watch("/api/v1/nodes?watch=true&resourceVersion=101", |e| !e.is_empty());
    assert_eq!(
        (&events[0]["type"], &events[0]["object"]["code"], &events[0]["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
}

#[test]
fn watches_that_are_silent_slow_or_broken() {
    let (server, client) = start(NODES);
    server.set_pace(100.0);
    server.fault(Fault::new(Action::SilentWatch).times(1));
    let (events, _) = client.watch("/api/v1/nodes?watch=true&timeoutSeconds=20", |_| false);
    assert_eq!(events, Vec::<Value>::new());
    server.fault(Fault::new(Action::SlowWatch { by: Span(20_000) }).times(1));
    let began = std::time::Instant::now();
    let (events, _) = client.watch("/api/v1/nodes?watch=true", |e| e.len() >= 2);
    assert_eq!(events.len(), 2);
    assert!(began.elapsed() >= Duration::from_millis(190));
    server.fault(Fault::new(Action::BrokenWatch { after: Span(10_000) }).times(1));
    let (events, broken) = client.watch("/api/v1/nodes?watch=true", |_| false);
    assert!(broken && events.len() == 2);
}

#[test]
fn pages_show_the_list_as_it_was_when_it_began() {
    let (server, client) = start("{pace: 0, nodes: [{name: 'n{}', count: 5}]}");
    let first = client.get("/api/v1/nodes?limit=2").body;
    assert_eq!(first["metadata"]["remainingItemCount"], json!(3));
    let token = first["metadata"]["continue"].as_str().expect("a token").to_owned();
    assert_eq!(client.delete("/api/v1/nodes/n04").code, 200);
    let second = client.get(&format!("/api/v1/nodes?limit=10&continue={token}")).body;
    let names: Vec<&str> = second["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|i| i["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["n03", "n04", "n05"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    server.command(&Command::Compact).expect("history can be forgotten");
    let late = client.get(&format!("/api/v1/nodes?limit=10&continue={token}"));
    assert_eq!((late.code, late.body["reason"].as_str()), (410, Some("Expired")));
    let token = late.body["metadata"]["continue"].as_str().expect("another token").to_owned();
    let rest = client.get(&format!("/api/v1/nodes?continue={token}")).body;
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(2), "what is there now: n03 and n05");
}
