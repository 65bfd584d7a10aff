//! The dashboard and the alerts of docs/monitoring name only metrics that there are. tests/tests/watch.rs checks those that
//! come from audits, and `make test-systems` has promtool judge the rules.

use std::{collections::BTreeSet, fs, path::Path};

use gpufleet_language::yaml;
use gpufleet_watch::metrics::Own;
use jiff::Timestamp;
use serde_json::Value;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name);
    fs::read_to_string(path).unwrap()
}

/// Every text below a key of this name.
fn below<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => below(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| below(item, key, found)),
        _ => {}
    }
}

fn names(expressions: &[&str]) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let words = expressions.iter().flat_map(|text| text.split(word));
    words.filter(|word| word.starts_with("gpufleet_watch_")).map(str::to_owned).collect()
}

#[test]
fn the_watchers_own_metrics_in_rules_and_dashboard_are_there() {
    let own = Own::new("1", Timestamp::UNIX_EPOCH);
    own.schedule("nightly", 60);
    own.channel("oncall");
    own.last("nightly", Timestamp::UNIX_EPOCH, 1.0, 0);
    own.next("nightly", Timestamp::UNIX_EPOCH);
    let exposition = own.encode();
    let told: BTreeSet<String> = exposition
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
        .collect();
    let rules = yaml::parse("rules", &text("gpufleet.rules.yaml")).unwrap().to_json();
    let dashboard: Value = serde_json::from_str(&text("gpufleet.dashboard.json")).unwrap();
    for document in [rules, dashboard] {
        let mut expressions = Vec::new();
        below(&document, "expr", &mut expressions);
        assert!(expressions.len() > 10);
        let missing: Vec<String> = names(&expressions).difference(&told).cloned().collect();
        assert_eq!(missing, Vec::<String>::new());
        assert!(!names(&expressions).is_empty());
    }
}

#[test]
fn the_dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&text("gpufleet.dashboard.json")).unwrap();
    assert!(dashboard["uid"].is_string() && dashboard["schemaVersion"].as_u64() >= Some(36));
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is not its own");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is wider than the page");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{title} covers another panel");
            }
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            for part in expression.split('$').skip(1) {
                let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
                assert!(variables.contains(&&part[..end]), "{title}: ${}", &part[..end]);
            }
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn each_alert_says_what_is_wrong_and_what_to_do() {
    let rules = yaml::parse("rules", &text("gpufleet.rules.yaml")).unwrap().to_json();
    let groups = rules["groups"].as_array().unwrap();
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        let alert = rule["alert"].as_str().unwrap();
        let annotations = &rule["annotations"];
        assert!(annotations["summary"].is_string() && annotations["action"].is_string(), "{alert}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{alert}: {severity}");
    }
}
