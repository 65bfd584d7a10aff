//! `history`: what audits of simulated nodes found over time, from the store and again from the journals.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;

struct Ward {
    fleet: Fleet,
    home: Home,
}

impl Ward {
    fn new() -> Self {
        let options = FleetOptions { nodes: 2, gpus_per_node: 2, ..FleetOptions::default() };
        Self { fleet: Fleet::start(&options), home: Home::new() }
    }

    fn audit(&self, arguments: &[&str]) -> Finished {
        let inventory = self.fleet.inventory();
        self.home.gpufleet(["audit", "--health", "-i", &inventory]).args(arguments).run()
    }

    fn history(&self, arguments: &[&str]) -> Finished {
        self.home.gpufleet(["history"]).args(arguments).run().expect(0)
    }

    fn document(&self, arguments: &[&str]) -> Value {
        let done = self.history(&[arguments, &["--format", "json"]].concat());
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"))
    }

    fn forget(&self) {
        let folder = self.home.runs().parent().unwrap().to_owned();
        for name in ["history.db", "history.db-wal", "history.db-shm"] {
            let _ = std::fs::remove_file(folder.join(name));
        }
    }
}

/// The open findings of a check: node, subject, since when, in how many audits.
fn open(document: &Value, check: &str) -> Vec<(String, String, String, u64)> {
    let all = document["open"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_check = all.iter().filter(|open| open["found"]["control"] == check);
    of_check
        .map(|open| {
            let audits = open["audits"].as_u64().unwrap_or_default();
            (text(&open["node"]), text(&open["found"]["subject"]), text(&open["since"]), audits)
        })
        .collect()
}

#[test]
fn a_defect_is_known_since_the_audit_that_found_it_and_rebuilding_tells_the_same() {
    const CHECK: &str = "mem.remap_failed";
    let ward = Ward::new();
    let first = ward.audit(&[]);
    assert!(!first.stderr.contains("history"), "there is none yet, which is no fault: {first}");
    assert_eq!(open(&ward.document(&[]), CHECK), []);
    ward.fleet.control("gpu002", &["set", "1", "remap_failed", "on"]);
    let second = ward.audit(&[]).expect(3);
    let third = ward.audit(&[]).expect(3);
    for done in [&second, &third] {
        let headline = done.stdout.lines().next().unwrap_or_default();
        let share = headline.split_once(" %, ").map(|(_, before)| before).unwrap_or_default();
        assert!(share.contains(" % on 20"), "the headline has the earlier share: {done}");
    }
    let document = ward.document(&[]);
    let found = open(&document, CHECK);
    assert_eq!(found.len(), 1, "{document:#}");
    let began = document["audits"][1]["started"].as_str().unwrap();
    assert!(found[0].0 == "gpu002" && found[0].1 == "GPU 1" && found[0].3 == 2, "{found:?}");
    assert!(found[0].2.as_str() > began, "since the second audit, {began}: {found:?}");

    let fleet = ward.history(&[]);
    assert!(fleet.stdout.contains("3 audits since") && fleet.stdout.contains(CHECK), "{fleet}");
    assert!(fleet.stdout.contains(", 2 audits: GPU 1"), "{fleet}");
    let node = ward.history(&["gpu002"]);
    assert!(node.stdout.contains("gpu002: fail since 20"), "{node}");
    let trend = ward.document(&[CHECK])["trend"].clone();
    let counts: Vec<u64> = trend.as_array().unwrap().iter().filter_map(|point| point[1].as_u64()).collect();
    assert_eq!(counts, [0, 1, 1], "{trend}");

    ward.fleet.control("gpu002", &["set", "1", "remap_failed", "off"]);
    ward.audit(&[]);
    assert_eq!(open(&ward.document(&[]), CHECK), []);
    let node = ward.document(&["gpu002"]);
    assert!(
        node["past"].as_array().unwrap().iter().any(|past| past["found"]["control"] == CHECK),
        "{node:#}"
    );

    let before = [ward.document(&[]), node, ward.document(&[CHECK])];
    ward.forget();
    assert!(ward.history(&[]).stdout.contains("No audits yet"));
    let rebuilt = ward.history(&["rebuild"]);
    assert!(rebuilt.stderr.contains("recorded 4 audits of this machine"), "{rebuilt}");
    assert_eq!(before, [ward.document(&[]), ward.document(&["gpu002"]), ward.document(&[CHECK])]);
    // Once more: what is recorded takes the place of itself.
    ward.history(&["rebuild"]);
    assert_eq!(before[0], ward.document(&[]));
    let pruned = ward.history(&["prune", "--keep", "400d"]);
    assert!(pruned.stderr.contains("removed 0 audits"), "{pruned}");
}

#[test]
fn a_trial_is_forgotten_with_what_it_found() {
    let ward = Ward::new();
    ward.audit(&[]);
    let own =
        "{id: site.trial, title: It is a trial, severity: high, when: uptime_s >= 0, why: x, remediation: x}";
    ward.home.write("trial.yaml", &format!("name: trial\nown_checks: [{own}]\n"));
    let trial = ward.audit(&["--baseline", "trial.yaml"]).expect(3);
    assert!(trial.stdout.contains("not so: It is a trial"), "{trial}");
    ward.audit(&[]);
    let document = ward.document(&[]);
    assert_eq!(open(&document, "site.trial").len(), 2, "nothing else closes it: {document:#}");
    let run = document["audits"][1]["run"].as_str().unwrap();
    ward.history(&["forget", run]);
    let document = ward.document(&[]);
    assert_eq!(open(&document, "site.trial"), [], "{document:#}");
    assert_eq!(document["audits"].as_array().map(Vec::len), Some(2));
    let again = ward.home.gpufleet(["history", "forget", run]).run().expect(1);
    assert!(again.stderr.contains("no audit in"), "{again}");
}

#[test]
fn an_audit_has_its_result_whatever_becomes_of_its_history() {
    let ward = Ward::new();
    let usual = ward.audit(&["--format", "json"]);
    let url = "postgres://ops:s3cret@127.0.0.1:1/fleet";
    let done = ward.audit(&["--format", "json", "--store", url]);
    assert_eq!(usual.code, done.code, "{done}");
    assert!(done.stderr.contains("this audit is not in the history"), "{done}");
    assert!(done.stderr.contains("gpufleet history rebuild"), "{done}");
    assert!(!done.stderr.contains("s3cret") && !done.stdout.contains("s3cret"), "{done}");
    let journals = ward.home.runs().read_dir().unwrap().flatten();
    for run in journals {
        let text = std::fs::read_to_string(run.path().join("journal.jsonl")).unwrap();
        assert!(!text.contains("s3cret"), "{}", run.path().display());
    }
    ward.home.write("gpufleet.toml", &format!("store = \"{url}\"\n"));
    let shown = ward.home.gpufleet(["config", "--only-changed"]).run().expect(0);
    assert!(shown.stdout.contains("postgres://ops:***@127.0.0.1:1/fleet"), "{shown}");
    std::fs::remove_file(ward.home.work().join("gpufleet.toml")).unwrap();
    ward.history(&["rebuild"]);
    assert_eq!(ward.document(&[])["audits"].as_array().map(Vec::len), Some(2));
    let done = ward.home.gpufleet(["history", "gpu02"]).run();
    assert!(done.code == Some(1) && done.stderr.contains("did you mean `gpu00"), "{done}");
}
