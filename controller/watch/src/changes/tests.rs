use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const ORIGIN: Origin<'static> = Origin { watcher: "head", schedule: "nightly", reminder: None };

fn at(hour: i64) -> Timestamp {
    Timestamp::from_second(1_764_000_000 + hour * 3600).unwrap()
}

fn finding(control: &str, verdict: &str, text: &str) -> Value {
    json!({
        "control": control, "title": "All is well", "severity": "high", "verdict": verdict, "next_action": "replace",
        "subject": "GPU 3", "text": text, "evidence": [], "waived": null, "explained_by": null,
    })
}

fn node(findings: &[Value]) -> Value {
    json!({"state": "compliant", "verdict": "ok", "findings": findings, "checks": {"not_judged": []}})
}

fn reading(run: &str, nodes: &[(&str, Value)]) -> Reading {
    let nodes: serde_json::Map<String, Value> =
        nodes.iter().map(|(name, node)| ((*name).to_owned(), node.clone())).collect();
    let document =
        json!({"run_id": run, "standing": "finished", "finished": null, "exit_code": 3, "nodes": nodes});
    Reading::read(&mut document.to_string().as_bytes()).unwrap()
}

fn told(all: &[Notification]) -> Vec<(Kind, String)> {
    all.iter().map(|it| (it.kind, it.summary.clone())).collect()
}

const CONTROL: &str = "mem.remap_failed";

fn bad() -> Value {
    node(&[finding(CONTROL, "fail", "a row could not be remapped")])
}

#[test]
fn a_cause_on_several_nodes_is_one_notification_and_an_unchanged_one_is_silent() {
    let mut known = Known::default();
    let fleet = [("gpu001", bad()), ("gpu002", bad()), ("gpu003", bad()), ("gpu004", node(&[]))];
    let all = known.observe(&reading("A1", &fleet), at(0), &ORIGIN);
    assert_eq!(
        told(&all),
        [(
            Kind::Opened,
            "fail: gpu001, gpu002, gpu003: a row could not be remapped (mem.remap_failed)".to_owned()
        )]
    );
    let finding = all[0].finding.as_ref().unwrap();
    assert_eq!(
        (finding.nodes_total, finding.fleet_wide, finding.next_action),
        (3, true, Action::Investigate)
    );
    assert_eq!(all[0].commands, ["gpufleet report A1", "gpufleet doc mem.remap_failed"]);
    let schema = jsonschema::validator_for(&crate::notification::schema()).unwrap();
    assert!(schema.is_valid(&json!(all[0])));
    assert_eq!(told(&known.observe(&reading("A2", &fleet), at(1), &ORIGIN)), []);
    let healed = [("gpu001", node(&[])), ("gpu002", bad()), ("gpu003", bad()), ("gpu004", node(&[]))];
    let recovered = known.observe(&reading("A3", &healed), at(2), &ORIGIN);
    assert_eq!(
        told(&recovered),
        [(
            Kind::Recovered,
            "gpu001 GPU 3 recovered: No remapping of a row has failed (mem.remap_failed)".to_owned()
        )]
    );
    assert_eq!(recovered[0].incident, all[0].incident);
    assert_eq!(known.open(), 2);
}

/// What holds again is told, with how many audits it took.
#[test]
fn a_recovery_is_told_by_what_holds_again() {
    let mut known = Known::default();
    let mut hung = finding("err.nvml_responsive", "unknown", "the driver did not answer within the deadline");
    (hung["title"], hung["subject"]) = ("The driver answers in time".into(), "".into());
    known.observe(&reading("A1", &[("gpu004", node(&[hung.clone()]))]), at(0), &ORIGIN);
    hung["text"] = "was not so: The driver answers in time (not seen in this audit)".into();
    known.observe(&reading("A2", &[("gpu004", node(&[hung]))]), at(1), &ORIGIN);
    let all = known.observe(&reading("A3", &[("gpu004", node(&[]))]), at(2), &ORIGIN);
    let says = "gpu004 recovered: The driver answers in time (err.nvml_responsive, 2 audits)";
    assert_eq!(told(&all), [(Kind::Recovered, says.to_owned())]);
}

/// What a hung driver keeps from being judged is neither gone nor another incident.
#[test]
fn a_hung_driver_is_one_incident() {
    let mut known = Known::default();
    known.observe(&reading("A1", &[("gpu001", bad())]), at(0), &ORIGIN);
    let mut hung = finding("err.nvml_responsive", "unknown", "the driver did not answer within the deadline");
    hung["subject"] = "".into();
    let why = "not judged: the driver does not answer";
    let node = json!({
        "state": "compliant", "verdict": "unknown", "findings": [hung],
        "checks": {"not_judged": [
            {"check": CONTROL, "subject": "", "why": why},
            {"check": "sw.driver_loaded", "subject": "", "why": why},
        ]},
    });
    let all = known.observe(&reading("A2", &[("gpu001", node)]), at(1), &ORIGIN);
    assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::Opened], "{all:?}");
    assert_eq!(known.open(), 2, "the row is still as it was");
}

#[test]
fn what_was_not_read_is_not_recovered() {
    let mut known = Known::default();
    known.observe(&reading("A1", &[("gpu001", bad())]), at(0), &ORIGIN);
    let silent = json!({
        "state": "unreachable", "verdict": "unknown", "checks": null,
        "findings": [{"control": "node", "title": "The node can be judged", "severity": "critical", "verdict": "unknown",
            "next_action": "investigate", "subject": "", "text": "no answer", "waived": null, "explained_by": null}],
    });
    let all = known.observe(&reading("A2", &[("gpu001", silent)]), at(1), &ORIGIN);
    assert_eq!(told(&all), [(Kind::Opened, "unknown: gpu001: no answer (node)".to_owned())]);
    let unread = json!({
        "state": "compliant", "verdict": "unknown", "findings": [],
        "checks": {"not_judged": [{"check": CONTROL, "subject": "GPU 3", "why": "NVML said 999"}]},
    });
    let all = known.observe(&reading("A3", &[("gpu001", unread)]), at(2), &ORIGIN);
    assert_eq!(
        all.iter().map(|it| it.kind).collect::<Vec<_>>(),
        [Kind::Recovered],
        "the node alone: {all:?}"
    );
    let all = known.observe(&reading("A4", &[("gpu001", node(&[]))]), at(3), &ORIGIN);
    assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::Recovered]);
    assert_eq!(known.open(), 0);
}

#[test]
fn a_task_that_was_not_come_to_is_not_recovered() {
    let mut known = Known::default();
    let node = |state: &str, findings: &[Value]| json!({"state": state, "verdict": "drift", "findings": findings, "checks": null});
    let drift = finding("site.yaml:24", "drift", "/etc/x is missing");
    known.observe(&reading("A1", &[("gpu001", node("drift", &[drift]))]), at(0), &ORIGIN);
    for state in ["unknown", "failed", "unreachable"] {
        let all = known.observe(&reading("A2", &[("gpu001", node(state, &[]))]), at(1), &ORIGIN);
        assert_eq!(told(&all), [], "{state}");
    }
    let all = known.observe(&reading("A3", &[("gpu001", node("compliant", &[]))]), at(2), &ORIGIN);
    assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::Recovered]);
}

#[test]
fn a_waiver_and_a_node_that_left_close_a_finding_and_are_no_recovery() {
    let mut known = Known::default();
    known.observe(&reading("A1", &[("gpu001", bad()), ("gpu002", bad())]), at(0), &ORIGIN);
    let mut waived = finding(CONTROL, "fail", "a row could not be remapped");
    waived["waived"] = json!("RMA-17");
    let all = known.observe(&reading("A2", &[("gpu001", node(&[waived]))]), at(1), &ORIGIN);
    let [closed] = &all[..] else { panic!("{all:?}") };
    assert_eq!(closed.kind, Kind::Closed);
    let texts: Vec<&str> = closed.finding.as_ref().unwrap().nodes.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["the waiver RMA-17 covers it", "the node is not audited any more"]);
}

#[test]
fn symptoms_and_waived_findings_open_nothing_and_a_worse_verdict_is_a_change() {
    let mut known = Known::default();
    let mut symptom = finding("nvl.links", "fail", "links are down");
    symptom["explained_by"] = json!(CONTROL);
    assert_eq!(told(&known.observe(&reading("A1", &[("gpu001", node(&[symptom]))]), at(0), &ORIGIN)), []);
    let warn = node(&[finding(CONTROL, "warn", "few rows are left")]);
    known.observe(&reading("A2", &[("gpu001", warn)]), at(1), &ORIGIN);
    let all = known.observe(&reading("A3", &[("gpu001", bad())]), at(2), &ORIGIN);
    assert_eq!(
        told(&all),
        [(
            Kind::Changed,
            "warn -> fail: gpu001 GPU 3: a row could not be remapped (mem.remap_failed)".to_owned()
        )]
    );
}

#[test]
fn flapping_is_told_once_and_its_end_when_it_is_calm() {
    let mut known = Known::default();
    let mut kinds = Vec::new();
    for hour in 0..12 {
        let node = if hour % 2 == 0 { bad() } else { node(&[]) };
        let all = known.observe(&reading("A", &[("gpu001", node)]), at(hour), &ORIGIN);
        kinds.extend(all.iter().map(|it| it.kind));
    }
    assert_eq!(kinds, [Kind::Opened, Kind::Recovered, Kind::Opened, Kind::Flapping]);
    let calm =
        |known: &mut Known, hour| known.observe(&reading("A", &[("gpu001", node(&[]))]), at(hour), &ORIGIN);
    assert_eq!(told(&calm(&mut known, 20)), []);
    let all = calm(&mut known, 40);
    assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::Recovered]);
    calm(&mut known, 70);
    assert!(known.causes.is_empty(), "nothing is kept for ever: {known:?}");
}

#[test]
fn a_reminder_comes_after_its_time_and_names_all_nodes() {
    let origin = Origin { reminder: Some(SignedDuration::from_hours(24)), ..ORIGIN };
    let mut known = Known::default();
    let fleet = [("gpu001", bad()), ("gpu002", bad())];
    let mut told = Vec::new();
    for hour in 0..50 {
        let all = known.observe(&reading("A", &fleet), at(hour), &origin);
        told.extend(all.iter().map(|it| (hour, it.kind, it.finding.as_ref().unwrap().nodes_total)));
    }
    assert_eq!(told, [(0, Kind::Opened, 2), (24, Kind::Reminder, 2), (48, Kind::Reminder, 2)]);
}

#[test]
fn an_audit_that_fails_is_told_once_and_so_is_its_recovery() {
    let mut known = Known::default();
    let first = known.failed("exit code 1: cannot read\nhosts", at(0), &ORIGIN);
    assert_eq!(first[0].kind, Kind::AuditFailed);
    assert!(!first[0].summary.contains('\n') && first[0].summary.contains("nightly"));
    assert_eq!(told(&known.failed("exit code 1", at(1), &ORIGIN)), []);
    let all = known.observe(&reading("A", &[("gpu001", node(&[]))]), at(2), &ORIGIN);
    assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::AuditRecovered]);
    assert_ne!(known.failed("again", at(3), &ORIGIN)[0].id, first[0].id);
}

#[test]
fn a_storm_of_causes_is_bounded_and_the_worst_are_told() {
    let findings: Vec<Value> = (0..60)
        .map(|n| finding(&format!("site.check{n}"), if n == 42 { "fail" } else { "drift" }, "is off"))
        .collect();
    let all = Known::default().observe(&reading("A", &[("gpu001", node(&findings))]), at(0), &ORIGIN);
    let all = bounded(all.iter());
    assert_eq!(all.len(), 25);
    assert_eq!(all[0].finding.as_ref().unwrap().control, "site.check42");
    assert_eq!(
        (all[24].kind, all[24].summary.as_str()),
        (Kind::Overflow, "36 more causes changed; the report has all")
    );
}

#[test]
fn of_many_reminders_the_worst_come_first_and_all_are_counted() {
    let origin = Origin { reminder: Some(SignedDuration::from_hours(24)), ..ORIGIN };
    let findings: Vec<Value> = (0..60)
        .map(|n| finding(&format!("site.check{n}"), if n == 42 { "fail" } else { "drift" }, "is off"))
        .collect();
    let mut known = Known::default();
    let fleet = [("gpu001", node(&findings))];
    known.observe(&reading("A", &fleet), at(0), &origin);
    let all = known.observe(&reading("B", &fleet), at(24), &origin);
    assert_eq!(all.len(), 60);
    let all = bounded(all.iter());
    assert_eq!(all[0].finding.as_ref().unwrap().control, "site.check42");
    assert_eq!(all[24].summary, "36 more causes are still there; the report has all");
    let only = |it: &&Notification| it.finding.as_ref().is_some_and(|told| told.control == "site.check9");
    let again = known.observe(&reading("C", &fleet), at(48), &origin);
    assert_eq!(bounded(again.iter().filter(only)).len(), 1, "the bound is that of what a receiver wants");
}

#[test]
fn a_list_that_was_cut_and_an_audit_that_was_interrupted_tell_no_recovery() {
    let bad_fleet = [("gpu001", bad()), ("gpu002", bad())];
    let well = reading("B", &[("gpu001", node(&[])), ("gpu002", node(&[]))]);
    let known = {
        let mut known = Known::default();
        known.observe(&reading("A", &bad_fleet), at(0), &ORIGIN);
        known
    };
    let many: Vec<Value> = (0..2001).map(|_| finding("nvl.links", "warn", "x")).collect();
    let cut = reading("B", &[("gpu001", node(&many)), ("gpu002", bad())]);
    let told_of = |reading: &Reading| {
        let all = known.clone().observe(reading, at(1), &ORIGIN);
        all.iter().map(|it| (it.kind, it.finding.as_ref().unwrap().control.clone())).collect::<Vec<_>>()
    };
    assert_eq!(told_of(&cut), [(Kind::Opened, "nvl.links".to_owned())]);
    assert_eq!(told_of(&well), [(Kind::Recovered, CONTROL.to_owned())]);
    for mut interrupted in [well, reading("B", &[])] {
        interrupted.exit_code = 130;
        assert_eq!(told_of(&interrupted), []);
    }
    for state in ["pending", "skipped", "preflight", "odd"] {
        let mut one = node(&[]);
        one["state"] = json!(state);
        assert_eq!(told_of(&reading("B", &[("gpu001", one.clone()), ("gpu002", one)])), [], "{state}");
    }
}

#[test]
fn a_check_that_another_baseline_does_not_ask_for_is_closed() {
    let judged = |digest: Option<&str>, node: Value| {
        let baseline = digest.map(|digest| json!({"name": "x", "digest": digest}));
        let document = json!({
            "run_id": "A", "standing": "finished", "finished": null, "exit_code": 3, "nodes": {"gpu001": node},
            "provenance": {"baseline": baseline},
        });
        Reading::read(&mut document.to_string().as_bytes()).unwrap()
    };
    let silent = json!({"state": "unreachable", "verdict": "unknown", "findings": [], "checks": null});
    for (digest, next, kind) in [
        (Some("one"), node(&[]), Kind::Recovered),
        (Some("two"), node(&[]), Kind::Closed),
        (None, json!({"state": "compliant", "verdict": "ok", "findings": [], "checks": null}), Kind::Closed),
    ] {
        let mut known = Known::default();
        known.observe(&judged(Some("one"), bad()), at(0), &ORIGIN);
        let all = known.observe(&judged(digest, next), at(1), &ORIGIN);
        assert_eq!(all.iter().map(|it| it.kind).collect::<Vec<_>>(), [kind], "{digest:?}");
    }
    let mut known = Known::default();
    known.observe(&judged(Some("one"), bad()), at(0), &ORIGIN);
    assert_eq!(told(&known.observe(&judged(Some("one"), silent), at(1), &ORIGIN)), []);
}

#[test]
fn a_recovery_has_the_severity_that_was_told() {
    let mut known = Known::default();
    known.observe(&reading("A", &[("gpu001", bad())]), at(0), &ORIGIN);
    let mut mild = finding(CONTROL, "fail", "x");
    mild["severity"] = json!("low");
    assert_eq!(told(&known.observe(&reading("B", &[("gpu001", node(&[mild]))]), at(1), &ORIGIN)), []);
    let all = known.observe(&reading("C", &[("gpu001", node(&[]))]), at(2), &ORIGIN);
    let told = all[0].finding.as_ref().unwrap();
    assert_eq!((told.severity, told.severity_before), (Severity::Low, Some(Severity::High)));
}

#[test]
fn a_document_that_is_cut_off_or_not_of_an_ended_audit_is_refused() {
    let whole = json!({"run_id": "A", "standing": "finished", "finished": null, "exit_code": 0, "nodes": {}})
        .to_string();
    let read = |text: &str| Reading::read(&mut text.as_bytes()).map(|it| it.run_id);
    assert_eq!(read(&whole), Ok("A".to_owned()));
    assert!(read(&whole[..whole.len() - 1]).unwrap_err().contains("cannot be read"));
    assert!(
        read(&whole.replace("finished\",", "cut_off\",")).unwrap_err().contains("did not come to its end")
    );
    assert!(read(&whole.replace("\"A\"", "\"A; rm\"")).unwrap_err().contains("names no run"));
}

proptest! {
    /// Whatever audits say: what is told leads from one told verdict to the next, an audit that says the same as the last
    /// one is silent, and the state survives its file.
    #[test]
    fn what_is_told_is_consistent(
        audits in prop::collection::vec((0_i64..20, prop::collection::vec(0_usize..5, 3)), 1..40)
    ) {
        let words = ["", "warn", "drift", "unknown", "fail"];
        let mut known = Known::default();
        let mut believed: BTreeMap<String, Option<Verdict>> = BTreeMap::new();
        let mut ids = std::collections::BTreeSet::new();
        let mut hour = 0;
        for (wait, verdicts) in audits {
            hour += wait;
            let names = ["gpu001", "gpu002", "gpu003"];
            let nodes: Vec<(&str, Value)> = names.iter().zip(&verdicts).map(|(name, verdict)| {
                let findings = match words[*verdict] {
                    "" => Vec::new(),
                    word => vec![finding(CONTROL, word, "text")],
                };
                (*name, node(&findings))
            }).collect();
            let reading = reading("A", &nodes);
            for notification in known.observe(&reading, at(hour), &ORIGIN) {
                prop_assert!(ids.insert(notification.id.clone()), "an id is used once");
                let told = notification.finding.unwrap();
                for place in told.nodes {
                    let believed = believed.entry(place.node).or_default();
                    prop_assert_eq!(*believed, told.before);
                    if notification.kind != Kind::Flapping {
                        prop_assert_ne!(told.before, told.verdict);
                    }
                    *believed = told.verdict;
                }
            }
            let text = serde_json::to_string(&known).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Known>(&text).unwrap(), &known);
            for notification in known.clone().observe(&reading, at(hour), &ORIGIN) {
                prop_assert!(false, "told twice: {}", notification.summary);
            }
            for (name, verdict) in names.iter().zip(&verdicts) {
                let place = known.causes.get(CONTROL).and_then(|cause| cause.nodes.get(*name));
                let flapping = place.is_some_and(|places| places.values().any(|place| place.flapping));
                let holds = Verdict::of_word(words[*verdict]);
                prop_assert!(flapping || believed.get(*name).copied().flatten() == holds);
            }
        }
    }
}
