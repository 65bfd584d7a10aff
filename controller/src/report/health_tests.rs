use std::collections::BTreeMap;

use gpufleet_compliance::{
    Verdict, Waivers,
    baseline::{self, Choice, GroupHint},
};
use gpufleet_language::diagnostic::SourceFile;
use gpufleet_protocol::signal::Signals;
use serde_json::{Value, json};

use super::*;
use crate::event::{Event, HEALTH, NodeState, OpId, Position, TaskReport, TaskStatus, Verb, What};
use crate::index::PlayIndex;
use crate::report::{RunModel, sample::Stream};

/// What a real node with one H200 said.
const H200: &str = include_str!("../../../tests/fuzz/corpus/signals/h200");
const CHECKS: &str = "checks: [mem.uncorrected_aggregate, os.kernel_version, pcie.width]\n";

fn signals() -> Signals {
    serde_json::from_str(H200).unwrap()
}

fn scope(baseline: &str, waivers: &str) -> AuditScope {
    let source = SourceFile::new("site.yaml", baseline);
    let policy = baseline::load(&[Choice::File(source)], &|_| GroupHint::Known).unwrap().policy;
    let _ = Waivers::read(&SourceFile::new("waivers", waivers), &policy).unwrap();
    AuditScope::new(policy, BTreeMap::new(), [].into(), waivers.to_owned(), "2026-11-23".parse().unwrap())
}

/// An audit of nodes that say this of themselves, after what was remembered of them.
fn audit(
    nodes: &[(&str, Signals)],
    earlier: &[(String, Value)],
    hours: i64,
    scope: AuditScope,
) -> Vec<Event> {
    let hosts: Vec<String> = nodes.iter().map(|(host, _)| (*host).to_owned()).collect();
    let mut s = Stream::new();
    s.wait_ms(hours * 3_600_000);
    s.started(Verb::Audit, &hosts);
    let What::RunStarted(run) = &mut s.events[0].what else { unreachable!() };
    run.audit = Some(Box::new(scope));
    for (host, memory) in earlier {
        s.push(What::Remembered { host: host.clone(), memory: memory.clone() });
    }
    for (host, signals) in nodes {
        let position = Position { file: HEALTH.into(), line: 1, column: 1 };
        let op_id = OpId::new(PlayIndex(0), "tasks.0".to_owned(), *host);
        let mut report = TaskReport::new(op_id, "signals", KIND, position, TaskStatus::Ok);
        report.data.insert(SIGNALS.to_owned(), serde_json::to_value(signals).unwrap());
        s.task(host, report);
    }
    for (host, _) in nodes {
        s.end(host, NodeState::Compliant, None);
    }
    s.events
}

fn memories(model: &RunModel) -> Vec<(String, Value)> {
    let of = |node: &crate::report::NodeModel| {
        Some((node.name.clone(), serde_json::to_value(&node.health.as_ref()?.memory).unwrap()))
    };
    model.nodes().iter().filter_map(of).collect()
}

fn told(model: &RunModel) -> Vec<String> {
    let findings = crate::report::fleet_findings(model);
    findings
        .iter()
        .map(|it| format!("{} {}: {}", it.finding.verdict, it.nodes.join(","), it.sentence()))
        .collect()
}

#[test]
fn an_audit_goes_on_from_what_the_last_one_remembers() {
    let mut node = signals();
    node.uptime_s = 5_000;
    let first = RunModel::of(&audit(&[("gpu001", node.clone())], &[], 0, scope(CHECKS, "")));
    assert_eq!(told(&first), [] as [&str; 0]);
    let coverage = &first.node("gpu001").unwrap().health.as_ref().unwrap().verdict.coverage;
    assert_eq!((coverage.not_yet, coverage.no_earlier), (1, 1));
    node.uptime_s += 86_400;
    node.gpus[0].readings.insert("ecc_unc_agg".to_owned(), 12.into());
    let events = audit(&[("gpu001", node)], &memories(&first), 24, scope(CHECKS, ""));
    let second = RunModel::of(&events);
    insta::assert_debug_snapshot!(told(&second), @r#"
    [
        "warn gpu001: GPU 0 the board had a new uncorrected error (ecc_unc_agg 12, serial 1653724060654, ecc_unc_agg_growth 12 in 24 h, since 2026-11-21 09:00 UTC)",
    ]
    "#);
    // From the record the same report is made again.
    let text: Vec<String> = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    let read: Vec<Event> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let again = RunModel::of(&read);
    assert_eq!(told(&again), told(&second));
    assert_eq!(memories(&again), memories(&second));
}

/// Two clusters with a gpu001 each share a history, or all boards of a node were replaced.
#[test]
fn nothing_is_compared_with_another_machine_of_the_same_name() {
    let mut node = signals();
    node.uptime_s = 5_000;
    let first = RunModel::of(&audit(&[("gpu001", node.clone())], &[], 0, scope(CHECKS, "")));
    node.uptime_s += 86_400;
    node.gpus[0].readings.insert("ecc_unc_agg".to_owned(), 12.into());
    for (at, gpu) in node.gpus.iter_mut().enumerate() {
        gpu.id = format!("GPU-other-{at}");
    }
    let later = |node: &Signals| {
        RunModel::of(&audit(&[("gpu001", node.clone())], &memories(&first), 24, scope(CHECKS, "")))
    };
    let model = later(&node);
    assert_eq!(told(&model), [] as [&str; 0], "no growth between two machines");
    assert_eq!(model.node("gpu001").unwrap().health.as_ref().unwrap().verdict.coverage.no_earlier, 1);
    let notices: Vec<&str> = model.notices.iter().map(|notice| notice.text.as_str()).collect();
    assert!(
        matches!(notices[..], [one] if one.starts_with("gpu001: none of its GPUs was there")),
        "{notices:?}"
    );
    // Of a node without readable GPUs nobody knows that it is another one.
    node.gpus.clear();
    assert!(later(&node).notices.is_empty());
}

#[test]
fn what_is_no_memory_is_passed_over() {
    let node = [("gpu001", signals())];
    let earlier = [("gpu001".to_owned(), json!({"shape": 99})), ("other".to_owned(), json!("x"))];
    let model = RunModel::of(&audit(&node, &earlier, 0, scope(CHECKS, "")));
    let health = model.node("gpu001").unwrap().health.as_ref().unwrap();
    assert_eq!((health.verdict.verdict, health.verdict.coverage.no_earlier), (Verdict::Ok, 1));
}

#[test]
fn a_node_that_differs_from_its_peers_is_found_when_all_are_read() {
    let mut nodes: Vec<(&str, Signals)> =
        ["gpu001", "gpu002", "gpu003", "gpu004", "gpu005", "gpu006"].map(|host| (host, signals())).into();
    nodes[3].1.node.insert("kernel".to_owned(), "5.15.0".into());
    let events = audit(&nodes, &[], 0, scope(CHECKS, ""));
    let ends = events.iter().position(|event| matches!(event.what, What::NodeFinished { .. })).unwrap();
    assert_eq!(told(&RunModel::of(&events[..ends])), [] as [&str; 0]);
    let model = RunModel::of(&events);
    let found = told(&model);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("warn gpu004: another kernel than its peers run; 5 of 6 have"), "{found:?}");
    assert_eq!(model.node("gpu004").unwrap().health.as_ref().unwrap().verdict.verdict, Verdict::Warn);
    // A waiver covers it as any other finding.
    let waiver = "- id: OLD\n  check: os.kernel_version\n  match: {nodes: [gpu004]}\n  reason: it is on its way\n  \
                  owner: a@example.com\n  created: 2026-11-01\n  expires: 2026-12-15\n";
    let model = RunModel::of(&audit(&nodes, &[], 0, scope(CHECKS, waiver)));
    let health = model.node("gpu004").unwrap().health.as_ref().unwrap();
    let waived: Vec<_> = health.findings.iter().filter_map(|it| it.waived.as_deref()).collect();
    assert_eq!((waived, health.verdict.verdict), (vec!["OLD"], Verdict::Ok));
}

#[test]
fn a_mixed_group_is_told_of_once() {
    let mut nodes: Vec<(&str, Signals)> =
        ["gpu001", "gpu002", "gpu003", "gpu004", "gpu005", "gpu006"].map(|host| (host, signals())).into();
    for (_, signals) in &mut nodes[3..] {
        signals.node.insert("kernel".to_owned(), "5.15.0".into());
    }
    let model = RunModel::of(&audit(&nodes, &[], 0, scope(CHECKS, "")));
    assert_eq!(told(&model), [] as [&str; 0]);
    let notices: Vec<&str> = model.notices.iter().map(|notice| notice.text.as_str()).collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].starts_with("6 nodes that are alike differ in `kernel`: 3 have 5.15.0"),
        "{notices:?}"
    );
}

/// A badge `fail` stood beside "All NVLinks are up".
#[test]
fn a_finding_is_called_by_its_fault_in_every_format() {
    use crate::report::{
        csv::csv, document::document, html::html, junit::junit, markdown::markdown, sarif::sarif,
        timing::Timing,
    };
    let mut node = signals();
    for (name, value) in [("nvl_active", 16), ("nvl_count", 18), ("recovery_action", 2)] {
        node.gpus[0].readings.insert(name.to_owned(), value.into());
    }
    let checks = "checks: [nvl.links, err.recovery_action]\n";
    let events = audit(&[("gpu001", node)], &[], 0, scope(checks, ""));
    let model = RunModel::of(&events);
    let texts = [
        ("csv", csv(&model).unwrap()),
        ("html", html(&model).unwrap()),
        ("junit", junit(&Timing::of(&events), &model).unwrap()),
        ("markdown", markdown(&model)),
        ("sarif", sarif(&model).unwrap()),
        ("findings", document(&model)["nodes"]["gpu001"]["findings"].to_string()),
    ];
    for (format, text) in &texts {
        assert!(text.contains("NVLinks are down") || text.contains("a link is down"), "{format}: {text}");
        // What would be ok stands in the page once, behind "ok where", and in no other document.
        for holds in ["All NVLinks are up", "The driver asks for no recovery"] {
            assert!(!text.contains(holds), "{format} says: {holds}");
        }
    }
    let control = document(&model)["controls"][0].clone();
    assert_eq!(control["id"], "err.recovery_action");
    assert_eq!(control["command"], "nvidia-smi -q -i {gpu} | grep -A2 -i 'recovery action'");
    let destructive: Vec<(&str, &str)> = control["destructive"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["action"].as_str().unwrap(), one["command"].as_str().unwrap()))
        .collect();
    assert_eq!(
        destructive,
        [
            ("reset", "gpufleet exec NODE -b -m gpu_reset -a 'when=always gpus=UUID'"),
            ("reboot", "gpufleet exec NODE -b -m reboot -a 'when=always'"),
        ]
    );
    let html = &texts[1].1;
    let command = html.find("gpufleet exec gpu001 -b -m reboot").expect("the finding's own command");
    assert!(html.contains("Drain first: "), "{command}");
}

/// One silence, one line, in every format; what needs the driver is listed as not judged, and is nothing to act on by itself.
#[test]
fn a_hung_driver_is_one_finding() {
    let mut node = signals();
    let unknown = || Signal::Unknown("NVML did not answer in 10 s (worker killed)".to_owned());
    node.gpus.clear();
    node.node.insert("worker_state".to_owned(), "hung".into());
    for name in
        ["nvml_init_code", "nvml_count", "driver_version", "cuda_version", "excluded_count", "cc_ready"]
    {
        node.node.insert(name.to_owned(), unknown());
    }
    let checks = "checks: ['err.*', 'mem.*', 'inv.gpu_*', 'cfg.mig_*', 'thermal.*', sw.driver_loaded, sw.module_match]\nwithout: ['err.xid_*']\n";
    let model = RunModel::of(&audit(&[("gpu001", node)], &[], 0, scope(checks, "")));
    let lines = told(&model);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("unknown gpu001: the driver did not answer within the deadline; "),
        "{lines:?}"
    );
    assert!(
        lines[0]
            .contains(" checks that need it are not judged: the driver does not answer (worker_state hung)"),
        "{lines:?}"
    );
    let gpu001 = &model.nodes()[0];
    assert_eq!(gpu001.next_action(Verb::Audit), gpufleet_compliance::Action::Reboot);
    let not_judged = &gpu001.health.as_ref().unwrap().verdict.coverage.not_judged;
    let silent = not_judged.iter().filter(|it| &*it.why == "not judged: the driver does not answer");
    assert!(silent.count() >= 25, "{not_judged:?}");
}

/// A store that is down makes nothing worse than it is.
#[test]
fn what_is_provisional_stays_so_without_the_history() {
    let mut node = signals();
    node.uptime_s = 5_000;
    node.gpus[0].readings.insert("pcie_width".to_owned(), 8.into());
    let unread = [("gpu001".to_owned(), Value::Null)];
    let model = RunModel::of(&audit(&[("gpu001", node.clone())], &unread, 0, scope(CHECKS, "")));
    assert!(
        told(&model)[0].starts_with("warn gpu001: GPU 0 the link runs with fewer lanes"),
        "{:?}",
        told(&model)
    );
    assert_eq!(model.nodes()[0].verdict(Verb::Audit), Verdict::Warn);
    let first = RunModel::of(&audit(&[("gpu001", node)], &[], 0, scope(CHECKS, "")));
    assert_eq!(first.nodes()[0].verdict(Verb::Audit), Verdict::Fail, "a first audit does not wait");
}

/// What a playbook of the audit declares is judged by it, and not compared with a default.
#[test]
fn a_power_limit_that_a_task_declares_is_not_compared_with_the_default() {
    let mut node = signals();
    node.gpus[0].readings.insert("power_limit_w".to_owned(), 600.into());
    let of = |kind: &str, status: TaskStatus, checks: &str| {
        let events = audit(&[("gpu001", node.clone())], &[], 0, scope(checks, ""));
        let at = events.iter().position(|event| matches!(event.what, What::TaskFinished { .. })).unwrap();
        let mut s = Stream::new();
        let position = Position { file: "site.yaml".into(), line: 4, column: 7 };
        let op_id = OpId::new(PlayIndex(0), "tasks.0".to_owned(), "gpu001");
        s.task("gpu001", TaskReport::new(op_id, "power", kind, position, status));
        let all: Vec<Event> = [&events[..at], &s.events[..], &events[at..]].concat();
        told(&RunModel::of(&all))
    };
    let checks = "checks: [power.limit, mem.remap_failed]\n";
    let default = of("sysctl", TaskStatus::Ok, checks);
    assert!(default[0].contains("the power limit is not the default, and none is declared"), "{default:?}");
    assert_eq!(of("gpu_power", TaskStatus::Ok, checks), [] as [&str; 0]);
    assert_eq!(of("gpu_power", TaskStatus::Skipped, checks), default);
    // A baseline that declares a limit judges by it.
    let declared = format!("{checks}declared: {{power_w: 700}}\n");
    assert!(of("gpu_power", TaskStatus::Ok, &declared)[0].contains("not the declared one"));
}
