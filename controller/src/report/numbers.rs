//! The numbers of every format, recomputed from the events of random audits.
//!
//! The expectation comes from the events and from the judge of `gpufleet-compliance` alone, and from no code of this
//! module; the documents are read back with readers of their own.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use gpufleet_compliance::{
    Finding, Policy, Verdict,
    baseline::{self, Choice, GroupHint},
    outlier,
};
use gpufleet_language::diagnostic::SourceFile;
use gpufleet_protocol::signal::{KernelRecord, RecordSort, Signal, Signals, SubjectReadings};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    RENDERERS, RunModel,
    sample::{self, Stream},
};
use crate::event::{
    AuditScope, Event, HEALTH, Judgement, NodeState, Position, TaskReport, TaskStatus, Verb, What,
};

/// Names that each format has to quote or escape in its own way.
const NAMES: [&str; 8] = ["gpu001", "gpu002", "a b", "c|d", "e\\f", "g\"h'", "<i>&j", "k,l;m=n"];

const BASELINE: &str = "
checks: [mem.remap_failed, mem.remap_pending, pcie.width, err.xid_reset, cfg.persistence, sw.driver_loaded, thermal.margin]
min_coverage: 0.5
";
const WAIVERS: &str = "
- id: W-1
  check: pcie.width
  match: {nodes: ['*']}
  reason: the riser is on order
  owner: ops
  created: 2026-11-01
  expires: 2026-12-15
";

fn policy() -> Policy {
    let file = SourceFile::new("site.yaml", BASELINE);
    baseline::load(&[Choice::File(file)], &|_| GroupHint::Known)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .policy
}

fn scope(with_waivers: bool) -> AuditScope {
    let waivers = if with_waivers { WAIVERS.to_owned() } else { String::new() };
    AuditScope::new(policy(), BTreeMap::new(), BTreeSet::new(), waivers, "2026-11-21".parse().unwrap())
}

/// One task of a node, by what comes of it.
#[derive(Clone, Copy, Debug)]
enum Part {
    Ok,
    Skipped,
    Differs,
    DiffersOnGpus,
    Warns,
    NotJudged,
}

/// How a node ends after its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Read,
    Unreachable,
    Failed,
    Unknown,
    /// Read, but its signals are missing.
    WithoutSignals,
}

#[derive(Clone, Debug)]
struct Node {
    parts: Vec<Part>,
    end: End,
    signals: Signals,
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        6 => (0_u64..3).prop_map(Signal::from),
        2 => Just(Signal::from(16_u64)),
        1 => Just(Signal::Absent),
        1 => Just(Signal::Unknown("no permission".to_owned())),
    ]
}

fn readings(names: &'static [&'static str]) -> impl Strategy<Value = BTreeMap<String, Signal>> {
    prop::collection::vec(prop::option::weighted(0.8, signal()), names.len()).prop_map(move |values| {
        let named = names.iter().zip(values);
        named.filter_map(|(name, value)| Some(((*name).to_owned(), value?))).collect()
    })
}

fn signals() -> impl Strategy<Value = Signals> {
    const GPU: &[&str] = &[
        "remap_failed",
        "remap_pending",
        "remap_unc",
        "hist_none",
        "pcie_width",
        "pcie_width_max",
        "persistence",
        "margin_c",
        "power_draw_w",
        "ecc_cor_vol",
        "lost_code",
        "reasons",
        "idle",
    ];
    const NODE: &[&str] = &["driver_version", "nvml_init_code", "persistenced", "module_version", "log_from"];
    let xid = (prop::sample::select(vec![13_u32, 48, 79, 119]), 0..3_usize, any::<bool>());
    (readings(NODE), prop::collection::vec(readings(GPU), 0..4), prop::collection::vec(xid, 0..3)).prop_map(
        |(node, gpus, xids)| {
            let gpus = gpus.into_iter().enumerate().map(|(at, mut readings)| {
                readings.insert("pci".to_owned(), format!("0000:5{at}:00.0").into());
                SubjectReadings { id: format!("GPU-{at}"), label: format!("GPU {at}"), readings }
            });
            let record = |(code, gpu, settled): (u32, usize, bool)| KernelRecord {
                at_us: Some(1),
                sort: RecordSort::Xid,
                code: Some(code),
                pci: Some(format!("0000:5{gpu}:00.0")),
                settled,
                text: format!("NVRM: Xid {code}"),
            };
            let records = xids.into_iter().map(record).collect();
            Signals { node, gpus: gpus.collect(), records, cpu_ms: 12, ..Signals::default() }
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let part = prop_oneof![
        4 => Just(Part::Ok),
        1 => Just(Part::Skipped),
        1 => Just(Part::Differs),
        1 => Just(Part::DiffersOnGpus),
        1 => Just(Part::Warns),
        1 => Just(Part::NotJudged),
    ];
    let end = prop_oneof![
        8 => Just(End::Read),
        1 => Just(End::Unreachable),
        1 => Just(End::Failed),
        1 => Just(End::Unknown),
        1 => Just(End::WithoutSignals),
    ];
    (prop::collection::vec(part, 0..5), end, signals()).prop_map(|(parts, end, signals)| Node {
        parts,
        end,
        signals,
    })
}

/// What a node has to come to in every format.
#[derive(Debug, PartialEq)]
struct Expected {
    verdict: Verdict,
    compliant: bool,
    findings: usize,
    judged: usize,
    applicable: usize,
}

impl Expected {
    /// Whether checks were asked for, and what they judged of this node.
    fn of(node: &Node, has_checks: bool, judgement: Option<&Judgement>) -> Self {
        let mut worst = match node.end {
            End::Failed => Verdict::Fail,
            End::Unreachable | End::Unknown => Verdict::Unknown,
            End::Read | End::WithoutSignals => Verdict::Ok,
        };
        let (mut findings, mut judged, mut applicable) = (0, 0, 0);
        let mut open = false;
        let reads = node.end != End::Unreachable;
        for part in node.parts.iter().filter(|_| reads) {
            applicable += usize::from(!matches!(part, Part::Skipped));
            judged += usize::from(!matches!(part, Part::Skipped | Part::NotJudged));
            findings += usize::from(!matches!(part, Part::Ok | Part::Skipped));
            match part {
                Part::Differs | Part::DiffersOnGpus => worst = worst.max(Verdict::Drift),
                Part::Warns => worst = worst.max(Verdict::Warn),
                Part::NotJudged => open = true,
                Part::Ok | Part::Skipped => {}
            }
        }
        match node.end {
            End::Failed | End::Unknown => {
                applicable += 1;
                findings += 1;
                judged += usize::from(node.end == End::Failed);
            }
            End::Unreachable => findings += 1,
            End::Read | End::WithoutSignals => {}
        }
        if open && worst < Verdict::Drift {
            worst = Verdict::Unknown;
        }
        let only_skipped = reads
            && worst == Verdict::Ok
            && !has_checks
            && node.parts.iter().all(|part| matches!(part, Part::Skipped));
        if only_skipped {
            worst = Verdict::Na;
        }
        let mut compliant = worst < Verdict::Drift;
        if has_checks {
            if let Some(Judgement { findings: found, verdict, .. }) = judgement {
                let told = |it: &&Finding| it.verdict.is_not_ok() && !it.is_of_silent_driver();
                findings += found.iter().filter(told).count();
                let unknown =
                    |id: &str| found.iter().any(|it| &*it.check.id == id && it.verdict == Verdict::Unknown);
                let missing = verdict.coverage.critical_not_judged.iter().filter(|id| !unknown(id)).count();
                let any_unknown = found.iter().any(|it| it.verdict == Verdict::Unknown);
                findings += missing;
                findings += usize::from(
                    verdict.coverage.judged == 0
                        || (missing == 0 && verdict.verdict == Verdict::Unknown && !any_unknown),
                );
                judged += verdict.coverage.judged;
                applicable += verdict.coverage.asked();
                worst = worst.max(verdict.verdict);
                compliant &= verdict.compliant;
            } else {
                // Neither was it read, nor is there another finding that says so.
                findings += usize::from(node.end == End::WithoutSignals);
                worst = worst.max(Verdict::Unknown);
                compliant = false;
            }
        }
        compliant &= worst != Verdict::Na;
        Self { verdict: worst, compliant, findings, judged, applicable }
    }
}

/// What the checks judge of these nodes: each by itself, and then beside the others. `None` for those that were not read.
fn judge(nodes: &[Node], scope: &AuditScope) -> Vec<Option<Judgement>> {
    // The time matters where an earlier audit is remembered only.
    let at = jiff::Timestamp::UNIX_EPOCH;
    let by_itself = |(node, host): (&Node, &&str)| {
        (node.end == End::Read).then(|| scope.judge(host, &node.signals, None, at, &|_| false))
    };
    let mut judged: Vec<Option<Judgement>> = nodes.iter().zip(&NAMES).map(by_itself).collect();
    let read: Vec<usize> = (0..judged.len()).filter(|node| judged[*node].is_some()).collect();
    let compared = outlier::compare(judged.iter().flatten().map(|of| &of.peers));
    for (place, found) in compared.findings {
        let node = read[place];
        let of = judged[node].as_mut().unwrap();
        of.verdict = scope.beside_others(NAMES[node], &mut of.findings, found);
    }
    judged
}

/// The events of an audit of these nodes.
fn events(nodes: &[Node], scope: Option<&AuditScope>) -> Vec<Event> {
    let hosts: Vec<String> = NAMES.iter().take(nodes.len()).map(|name| (*name).to_owned()).collect();
    let mut s = Stream::new();
    s.started(Verb::Audit, &hosts);
    if let What::RunStarted(started) = &mut s.events[0].what {
        started.audit = scope.cloned().map(Box::new);
    }
    s.play(&hosts, &[("100%", hosts.len())]);
    for (host, node) in hosts.iter().zip(nodes) {
        s.wait_ms(1500);
        if node.end == End::Unreachable {
            s.end(host, NodeState::Unreachable, Some("no route to the host | x"));
            continue;
        }
        let mut state = NodeState::Compliant;
        for (line, part) in (10..).step_by(10).zip(&node.parts) {
            let plain = |status| sample::report("sysctl", line, status);
            let report = match part {
                Part::Ok => plain(TaskStatus::Ok),
                Part::Skipped => plain(TaskStatus::Skipped),
                Part::Differs => sample::swappiness(line),
                Part::DiffersOnGpus => sample::on_gpus(
                    "gpu_power",
                    line,
                    "power limit",
                    "700 W",
                    "600 W",
                    gpufleet_protocol::Disruption::Live,
                ),
                Part::Warns => {
                    TaskReport { warnings: vec!["old, \"x\" <b>".to_owned()], ..plain(TaskStatus::Ok) }
                }
                Part::NotJudged => sample::report("command", line, TaskStatus::Possible),
            };
            if matches!(part, Part::Differs | Part::DiffersOnGpus) {
                state = NodeState::Drift;
            }
            s.task(host, report);
        }
        if scope.is_some() && node.end == End::Read {
            let mut data = Map::new();
            data.insert("signals".to_owned(), json!(node.signals));
            let position = Position { file: HEALTH.into(), line: 7, column: 1 };
            s.task(host, TaskReport { position, data, ..sample::report("health_info", 7, TaskStatus::Ok) });
        }
        match node.end {
            End::Failed => {
                s.task(host, sample::failed("sysctl", 500, "exit 3"));
                s.end(host, NodeState::Failed, Some("exit 3"));
            }
            End::Unknown => {
                let message = Some("no answer".to_owned());
                s.task(host, TaskReport { message, ..sample::report("sysctl", 500, TaskStatus::Unknown) });
                s.end(host, NodeState::Unknown, None);
            }
            _ => {
                s.end(host, state, None);
            }
        }
    }
    s.finished(3, "not every node is as declared");
    s.events
}

/// What was read back from a document. `None` where the format does not have it.
#[derive(Debug, Default)]
struct ReadBack {
    /// By node: verdict and number of findings.
    verdicts: Option<BTreeMap<String, String>>,
    findings: Option<BTreeMap<String, usize>>,
    /// Nodes by verdict.
    fleet: Option<BTreeMap<String, usize>>,
    compliant: Option<usize>,
    judged: Option<(usize, usize)>,
    /// Share of each node that was judged.
    shares: Option<BTreeMap<String, f64>>,
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn counts(value: &Value) -> BTreeMap<String, usize> {
    value.as_object().unwrap().iter().map(|(name, count)| (name.clone(), number(count))).collect()
}

fn of_json(text: &str) -> ReadBack {
    let document: Value = serde_json::from_str(text).unwrap();
    let nodes = document["nodes"].as_object().unwrap();
    let each = |judged: &str, checks: &str| -> usize {
        nodes
            .values()
            .map(|node| {
                let of_checks = if node["checks"].is_null() { 0 } else { number(&node["checks"][checks]) };
                number(&node["judged"][judged]) + of_checks
            })
            .sum()
    };
    ReadBack {
        verdicts: Some(
            nodes
                .iter()
                .map(|(name, node)| (name.clone(), node["verdict"].as_str().unwrap().to_owned()))
                .collect(),
        ),
        findings: Some(
            nodes
                .iter()
                .map(|(name, node)| (name.clone(), node["findings"].as_array().unwrap().len()))
                .collect(),
        ),
        fleet: Some(counts(&document["verdicts"])),
        compliant: Some(number(&document["compliant"])),
        judged: Some((each("judged", "judged"), each("tasks", "applicable"))),
        shares: None,
    }
}

fn of_csv(text: &str) -> ReadBack {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let (mut verdicts, mut findings) = (BTreeMap::new(), BTreeMap::new());
    for record in reader.records().map(Result::unwrap) {
        verdicts.insert(record[0].to_owned(), record[1].to_owned());
        *findings.entry(record[0].to_owned()).or_default() += usize::from(!record[3].is_empty());
    }
    ReadBack { verdicts: Some(verdicts), findings: Some(findings), ..ReadBack::default() }
}

fn of_junit(text: &str) -> ReadBack {
    let report = quick_junit::Report::deserialize_from_str(text).unwrap();
    let suite = report.test_suites.iter().find(|suite| suite.name.as_str() == "findings").unwrap();
    let sums: BTreeMap<&str, usize> = suite
        .properties
        .iter()
        .map(|property| (property.name.as_str(), property.value.as_str().parse().unwrap()))
        .collect();
    let mut findings = BTreeMap::new();
    for case in &suite.test_cases {
        let is_finding = !case.name.as_str().starts_with("verdict on ");
        *findings.entry(case.classname.as_ref().unwrap().to_string()).or_default() += usize::from(is_finding);
    }
    let fleet =
        sums.iter().filter_map(|(name, count)| Some((name.strip_prefix("nodes.")?.to_owned(), *count)));
    ReadBack {
        findings: Some(findings),
        fleet: Some(fleet.collect()),
        compliant: Some(sums["compliant"]),
        judged: Some((sums["judged"], sums["applicable"])),
        ..ReadBack::default()
    }
}

fn of_sarif(text: &str) -> ReadBack {
    serde_json::from_str::<serde_sarif::sarif::Sarif>(text).unwrap();
    let document: Value = serde_json::from_str(text).unwrap();
    let run = &document["runs"][0];
    let mut findings = BTreeMap::new();
    for result in run["results"].as_array().unwrap() {
        let node = result["locations"][0]["logicalLocations"][0]["name"].as_str().unwrap();
        *findings.entry(node.to_owned()).or_default() += usize::from(!result["properties"].is_null());
    }
    let sums = &run["properties"];
    ReadBack {
        findings: Some(findings),
        fleet: Some(counts(&sums["verdicts"])),
        compliant: Some(number(&sums["compliant"])),
        judged: Some((number(&sums["judged"]), number(&sums["applicable"]))),
        ..ReadBack::default()
    }
}

fn of_markdown(text: &str) -> ReadBack {
    let numbers =
        |line: &str| -> Vec<usize> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let sums = numbers(text.lines().nth(2).unwrap());
    let table = text.split_once("| node | verdict | next |\n|---|---|---|\n").unwrap().1;
    let mut verdicts = BTreeMap::new();
    for line in table.lines() {
        let mut cells: Vec<String> = vec![String::new()];
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => cells.last_mut().unwrap().push(chars.next().unwrap()),
                '|' => cells.push(String::new()),
                c => cells.last_mut().unwrap().push(c),
            }
        }
        let cell = |at: usize| cells[at][1..cells[at].len() - 1].to_owned();
        verdicts.insert(cell(1), cell(2));
    }
    ReadBack {
        verdicts: Some(verdicts),
        compliant: Some(sums[0]),
        judged: Some((sums.get(2).copied().unwrap_or(0), sums.get(3).copied().unwrap_or(0))),
        ..ReadBack::default()
    }
}

/// A sample's name, labels and value.
fn metric(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
    let (mut labels, mut key, mut value) = (BTreeMap::new(), String::new(), None::<String>);
    let mut chars = rest.chars();
    if rest.starts_with('{') {
        chars.next();
        while let Some(c) = chars.next() {
            match (&mut value, c) {
                (None, '=') => {
                    assert_eq!(chars.next(), Some('"'));
                    value = Some(String::new());
                }
                (None, '}') => break,
                (None, ',') => {}
                (None, c) => key.push(c),
                (Some(text), '\\') => text.push(match chars.next().unwrap() {
                    'n' => '\n',
                    c => c,
                }),
                (Some(_), '"') => {
                    labels.insert(std::mem::take(&mut key), value.take().unwrap());
                }
                (Some(text), c) => text.push(c),
            }
        }
    }
    (name.to_owned(), labels, chars.as_str().trim().parse().unwrap())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts")]
fn of_metrics(text: &str) -> ReadBack {
    let mut back = ReadBack { verdicts: Some(BTreeMap::new()), ..ReadBack::default() };
    let (mut findings, mut fleet, mut shares) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut seen = HashSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels, value) = metric(line);
        assert!(seen.insert((name.clone(), labels.clone())), "twice: {line}");
        let node = labels.get("node").cloned().unwrap_or_default();
        match name.as_str() {
            "gpufleet_node_verdict" => {
                findings.entry(node.clone()).or_insert(0);
                if value == 1.0 {
                    let verdict = labels["gpufleet_node_verdict"].clone();
                    assert_eq!(back.verdicts.as_mut().unwrap().insert(node, verdict), None, "two states");
                }
            }
            "gpufleet_check_findings" => *findings.entry(node).or_default() += value as usize,
            "gpufleet_fleet_nodes" => {
                fleet.insert(labels["verdict"].clone(), value as usize);
            }
            "gpufleet_node_coverage_ratio" => {
                shares.insert(node, value);
            }
            "gpufleet_fleet_compliant_ratio" => {
                let nodes = back.verdicts.as_ref().unwrap().len();
                back.compliant = Some((value * nodes as f64).round() as usize);
            }
            _ => {}
        }
    }
    ReadBack { findings: Some(findings), fleet: Some(fleet), shares: Some(shares), ..back }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_format_has_the_numbers_of_the_journal(
        nodes in prop::collection::vec(node(), 1..=NAMES.len()),
        checks in prop::option::weighted(0.8, any::<bool>()),
    ) {
        let scope = checks.map(scope);
        let written = events(&nodes, scope.as_ref());
        // As a journal keeps them.
        let lines: Vec<String> = written.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let events: Vec<Event> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let judged = scope.as_ref().map(|scope| judge(&nodes, scope)).unwrap_or_default();
        let expected: BTreeMap<String, Expected> = NAMES
            .iter()
            .zip(&nodes)
            .enumerate()
            .map(|(at, (name, node))| {
                let judgement = judged.get(at).and_then(Option::as_ref);
                ((*name).to_owned(), Expected::of(node, scope.is_some(), judgement))
            })
            .collect();
        let by = |of: fn(&Expected) -> usize| expected.values().map(of).sum::<usize>();
        let model = RunModel::of(&events);
        for renderer in RENDERERS {
            let text = renderer.render(&model, &events).unwrap();
            let back = match renderer.name {
                "json" => of_json(&text),
                "csv" => of_csv(&text),
                "junit" => of_junit(&text),
                "sarif" => of_sarif(&text),
                "md" => of_markdown(&text),
                "openmetrics" | "prometheus" => of_metrics(&text),
                _ => continue,
            };
            let name = renderer.name;
            if let Some(verdicts) = back.verdicts {
                let wanted: BTreeMap<String, String> =
                    expected.iter().map(|(name, of)| (name.clone(), of.verdict.to_string())).collect();
                prop_assert_eq!(verdicts, wanted, "{}", name);
            }
            if let Some(findings) = back.findings {
                let wanted: BTreeMap<String, usize> =
                    expected.iter().map(|(name, of)| (name.clone(), of.findings)).collect();
                prop_assert_eq!(findings, wanted, "{}", name);
            }
            if let Some(fleet) = back.fleet {
                let mut wanted: BTreeMap<String, usize> =
                    Verdict::ALL.iter().map(|verdict| (verdict.to_string(), 0)).collect();
                for of in expected.values() {
                    *wanted.get_mut(of.verdict.word()).unwrap() += 1;
                }
                prop_assert_eq!(fleet, wanted, "{}", name);
            }
            if let Some(compliant) = back.compliant {
                prop_assert_eq!(compliant, by(|of| usize::from(of.compliant)), "{}", name);
            }
            if let Some(judged) = back.judged {
                prop_assert_eq!(judged, (by(|of| of.judged), by(|of| of.applicable)), "{}", name);
            }
            for (node, share) in back.shares.unwrap_or_default() {
                let of = &expected[&node];
                #[expect(clippy::cast_precision_loss, reason = "counts")]
                let wanted = if of.applicable == 0 { 0.0 } else { of.judged as f64 / of.applicable as f64 };
                prop_assert!((share - wanted).abs() < 1e-9, "{}: {} {}", node, share, wanted);
            }
        }
    }
}
