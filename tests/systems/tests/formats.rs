//! Reports read by programs that know nothing of gpufleet: Python's csv, junitparser, sarif-tools with the schema of
//! OASIS, the parser of prometheus_client, and a real Prometheus that scrapes the document.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use gpufleet::{
    event::{
        EVENT_VERSION, Event, NodeOutcome, NodeState, OpId, PlayStarted, Position, RecapCounts, RunFinished,
        RunStarted, TaskReport, TaskStatus, Verb, What,
    },
    index::PlayIndex,
    report::{RENDERERS, RunModel},
};
use gpufleet_protocol::{Change, Disruption, Property, Subject};
use gpufleet_tests::{Fleet, FleetOptions, Home};

/// What ends a cell, an element, an attribute, a label or a line in one of the formats, and a formula.
const EVIL: &str =
    "=1+1 \"'|`*_ ]]></failure><!-- \\\" {a=\"b\"} ,;\t\n# EOF\r\n\u{1b}[31m\u{202e}\u{0}\u{fffe}";

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is not set: run `make test-systems`")).into()
}

/// Has foreign programs read `report.*` of a folder.
fn validate(folder: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new(variable("GPUFLEET_FORMATS_PYTHON"))
        .arg(here.join("formats/validate.py"))
        .arg(folder)
        .arg(here.join("../../docs/schema/report.schema.json"))
        .arg(variable("GPUFLEET_SARIF_SCHEMA"))
        .output()
        .expect("python");
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(done.status.success(), "{text}");
    assert!(text.contains("prometheus: scraped"), "{text}");
}

#[test]
fn foreign_programs_read_the_reports_of_a_fleet() {
    let faults = "- {nodes: gpu002, function: nvmlDeviceGetRemappedRows, effect: {return: 999}}\n";
    let options = FleetOptions { nodes: 4, faults: faults.to_owned(), ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    fleet.control("gpu003", &["set", "1", "remap_failed", "on"]);
    fleet.control("gpu003", &["set", "0", "pcie_width", "8"]);
    let inventory = fleet.inventory();
    let done = home.gpufleet(["audit", "--health", "-i", &inventory]).run();
    assert_eq!(done.code, Some(3), "{done}");
    for renderer in RENDERERS {
        let file = format!("report.{}", renderer.endings[0]);
        home.gpufleet(["report", "latest", "--format", renderer.name, "-o", &file]).run().expect(0);
    }
    validate(&home.work());
}

#[test]
fn foreign_programs_read_what_hostile_nodes_say() {
    // Names without what a table or a spreadsheet has to replace: the formats are compared by them.
    let hosts: Vec<String> =
        ["gpu001", "a b", "c|d", "e\\f", "g\"h'", "<i>&j", "k,l;m={n}"].map(str::to_owned).into();
    let mut whats = vec![
        What::RunStarted(RunStarted {
            version: EVENT_VERSION,
            run_id: EVIL.to_owned(),
            verb: Verb::Audit,
            gpufleet: EVIL.to_owned(),
            playbooks: vec![EVIL.to_owned()],
            inventories: Vec::new(),
            hosts: hosts.clone(),
            command_line: vec![EVIL.to_owned()],
            digest: String::new(),
            inputs: [(EVIL.to_owned(), EVIL.to_owned())].into(),
            programs: Default::default(),
            groups: Default::default(),
            audit: None,
            trend: Vec::new(),
        }),
        What::PlayStarted(PlayStarted {
            play: PlayIndex(0),
            name: EVIL.to_owned(),
            hosts: hosts.clone(),
            waves: Vec::new(),
            max_unavailable: 1,
            policy: None,
            work: None,
        }),
    ];
    let endings = [NodeState::Failed, NodeState::Unknown, NodeState::Unreachable, NodeState::Drift];
    for (host, state) in hosts.iter().zip(endings.into_iter().cycle()) {
        let status = match state {
            NodeState::Failed => TaskStatus::Failed,
            NodeState::Unknown => TaskStatus::Unknown,
            _ => TaskStatus::Changed,
        };
        let op_id = OpId::new(PlayIndex(0), "tasks.1", host.as_str());
        let position = Position { file: EVIL.into(), line: 3, column: 1 };
        let mut report = TaskReport::new(op_id, EVIL, "file", position, status);
        report.message = Some(EVIL.to_owned());
        report.warnings = vec![EVIL.to_owned(), "x".repeat(100_000)];
        if status == TaskStatus::Changed {
            let property = Property::from(EVIL.to_owned());
            report.changes = vec![Change::new(Subject::file(EVIL), property, EVIL, EVIL, Disruption::Live)];
        }
        if state != NodeState::Unreachable {
            whats.push(What::TaskFinished { host: host.clone(), report });
        }
        let outcome = NodeOutcome {
            state,
            message: Some(EVIL.to_owned()),
            counts: RecapCounts::default(),
            seconds: 1,
            rebooted: false,
            out_of_service: false,
        };
        whats.push(What::NodeFinished { host: host.clone(), outcome });
    }
    whats.push(What::RunFinished(RunFinished {
        exit_code: 3,
        summary: EVIL.to_owned(),
        out_of_service: Vec::new(),
        stopped: Some(EVIL.to_owned()),
        resumable: false,
    }));
    let at = "2026-11-21T09:00:00Z".parse().expect("a time");
    let events: Vec<Event> = (0..).zip(whats).map(|(seq, what)| Event { seq, at, what }).collect();
    let model = RunModel::of(&events);
    let folder = tempfile::tempdir().expect("a folder");
    for renderer in RENDERERS {
        let text = renderer.render(&model, &events).expect("a document");
        fs::write(folder.path().join(format!("report.{}", renderer.endings[0])), text).expect("written");
    }
    validate(folder.path());
}
