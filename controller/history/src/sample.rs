//! Audits made up for tests: the same for the same seed.

use std::collections::BTreeSet;

use gpufleet_compliance::{Action, Severity, Verdict};
use jiff::{SignedDuration, Timestamp};

use crate::{Audit, Controls, Found, NodeReading, Store, StoreError};

/// When the first audit of all begins: 2026-01-01, in seconds since 1970.
const BEGIN: i64 = 1_767_225_600;
const HOUR: i64 = 3600;

/// Numbers that look random (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Whether something happens that does so once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap_or_default();
            all.swap(at, other);
        }
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

/// A finding with what most of them have.
pub fn found(control: &str, subject: &str, verdict: Verdict, text: &str) -> Found {
    Found {
        control: control.to_owned(),
        title: format!("{control} is as it should be"),
        severity: Severity::High,
        subject: subject.to_owned(),
        verdict,
        action: Action::Investigate,
        text: text.to_owned(),
        evidence: Vec::new(),
        waived: None,
        explained_by: None,
    }
}

/// A node that was read to the end and has these findings.
pub fn reading(node: &str, at: Timestamp, findings: Vec<Found>, judged: &[&str]) -> NodeReading {
    let counting = || findings.iter().filter(|found| found.waived.is_none());
    let verdict = counting().map(|found| found.verdict).max().unwrap_or(Verdict::Ok);
    NodeReading {
        node: node.to_owned(),
        at,
        verdict,
        action: counting().map(|found| found.action).max().unwrap_or(Action::None),
        compliant: verdict < Verdict::Drift,
        score: Some(if verdict < Verdict::Drift { 100 } else { 40 }),
        judged: u32::try_from(judged.len()).unwrap_or(u32::MAX),
        applicable: u32::try_from(judged.len()).unwrap_or(u32::MAX),
        groups: vec!["gpu".to_owned()],
        hardware: Some("8x H100 80GB HBM3".to_owned()),
        driver: Some("580.159".to_owned()),
        findings,
        controls: Controls {
            judged: judged.iter().map(|id| (*id).to_owned()).collect(),
            not_judged: Vec::new(),
            complete: true,
        },
        memory: None,
    }
}

/// An audit of these nodes by the baseline `core`, `hours` after the first of all.
pub fn audit(run: &str, hours: i64, nodes: Vec<NodeReading>) -> Audit {
    let code = if nodes.iter().all(|node| node.compliant) { 0 } else { 3 };
    Audit {
        run: run.to_owned(),
        controller: "controller1".to_owned(),
        started: time(BEGIN + hours * HOUR),
        finished: time(BEGIN + hours * HOUR + 60),
        playbooks: Vec::new(),
        baselines: vec!["core".to_owned()],
        exit_code: code,
        nodes,
    }
}

/// When such an audit reads its nodes.
pub fn read_at(hours: i64) -> Timestamp {
    time(BEGIN + hours * HOUR + 30)
}

/// Random audits of few nodes and checks, so that everything happens that can: in the order of time.
pub fn random(seed: u64, audits: u64) -> Vec<Audit> {
    const CONTROLS: [&str; 4] = ["mem.remap_failed", "os.swap", "site.yaml:7", "node"];
    const SUBJECTS: [&str; 2] = ["", "/var\0'"];
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for number in 0..audits {
        let hours = i64::try_from(number).unwrap_or_default();
        let mut nodes = Vec::new();
        for name in ["gpu001", "gpu002", "gpu003"] {
            if random.once_in(5) {
                continue;
            }
            // Some nodes are read at the same moment by two audits.
            let at = read_at(hours - i64::from(random.once_in(6)));
            let (mut findings, mut judged, mut missed) = (Vec::new(), Vec::new(), Vec::new());
            for control in CONTROLS {
                match random.below(4) {
                    0 => {}
                    1 => missed.push(control.to_owned()),
                    _ => judged.push(control),
                }
                for subject in SUBJECTS {
                    if !random.once_in(3) {
                        continue;
                    }
                    let verdict = [Verdict::Warn, Verdict::Unknown, Verdict::Fail, Verdict::Fail];
                    let verdict = verdict.get(usize::try_from(random.below(4)).unwrap_or_default()).copied();
                    // What a node says may be anything.
                    let text = format!("it is {}\0'; DROP TABLE nodes; --é", random.below(3));
                    let mut one = found(control, subject, verdict.unwrap_or(Verdict::Fail), &text);
                    one.waived = random.once_in(6).then(|| "RISER-1".to_owned());
                    if random.once_in(4) {
                        findings.push(Found { text: "and more".to_owned(), ..one.clone() });
                    }
                    findings.push(one);
                }
            }
            let mut node = reading(name, at, findings, &judged);
            node.controls.not_judged = missed;
            node.controls.complete = !random.once_in(4);
            node.hardware = (!random.once_in(4)).then(|| "2x H200\0".to_owned());
            node.score = (!random.once_in(4)).then_some(70);
            node.memory = random.once_in(2).then(|| serde_json::json!({ "errors": number, "name": "é" }));
            nodes.push(node);
        }
        random.shuffle(&mut nodes);
        let mut one = audit(&format!("{:04X}", random.below(0xFFFF) * 64 + number), hours, nodes);
        if random.once_in(3) {
            one.baselines.clear();
            one.playbooks = vec!["site.yaml".to_owned()];
        }
        all.push(one);
    }
    all
}

/// The same audits in another order.
pub fn shuffled(audits: &[Audit], seed: u64) -> Vec<Audit> {
    let mut audits = audits.to_vec();
    Random::new(seed).shuffle(&mut audits);
    audits
}

/// Checks of [`night`].
const CHECKS: usize = 96;

/// The audit of one night of a fleet with few faults: `night` counts from 0. A fault lasts some nights, some nodes do not answer
/// for a night, and each hot GPU has evidence of its own every night.
pub fn night(night: u32, nodes: u32) -> Audit {
    let names: Vec<String> = (0..CHECKS).map(|number| format!("check.number_{number:02}")).collect();
    let mut judged: Vec<&str> = names.iter().map(String::as_str).collect();
    judged.push("node");
    let hours = i64::from(night) * 24;
    let node = |number: u32| {
        let at = read_at(hours);
        let name = format!("gpu{number:05}");
        let mut own = Random::new(u64::from(number) << 32 | u64::from(night));
        if own.once_in(500) {
            let mut node =
                reading(&name, at, vec![found("node", "", Verdict::Unknown, "it does not answer")], &[]);
            node.controls.complete = false;
            return node;
        }
        let mut findings = Vec::new();
        // A fault begins and ends at nights that only the node decides.
        let mut fate = Random::new(u64::from(number));
        for _ in 0..fate.below(5) {
            let (check, begin) = (fate.below(CHECKS as u64), fate.below(365));
            let end = begin + 1 + fate.below(60);
            if (begin..end).contains(&u64::from(night)) {
                let control = format!("check.number_{check:02}");
                findings.push(found(&control, "GPU 3", Verdict::Drift, "the value is 60, wants 10"));
            }
        }
        if fate.once_in(25) {
            let mut hot = found("check.number_00", "GPU 5", Verdict::Warn, "the GPU is hot");
            hot.evidence = vec![format!("margin_c {}", own.below(9))];
            findings.push(hot);
        }
        let mut node = reading(&name, at, findings, &judged);
        node.memory = Some(serde_json::json!({ "corrected": own.below(1000), "at": night }));
        node
    };
    let mut one = audit(&format!("01NIGHT{night:05}"), hours, (0..nodes).map(node).collect());
    one.baselines = vec!["training".to_owned()];
    one
}

/// Everything that a store answers about these audits, as text.
///
/// # Errors
/// Those of the store.
pub async fn answers(store: &Store, audits: &[Audit]) -> Result<String, StoreError> {
    let nodes = || audits.iter().flat_map(|audit| &audit.nodes);
    let names: BTreeSet<String> = nodes().map(|node| node.node.clone()).collect();
    let controls: BTreeSet<&str> =
        nodes().flat_map(|node| &node.findings).map(|found| found.control.as_str()).collect();
    let mut all = format!("{:#?}\n{:#?}\n", store.audits(None).await?, store.nodes().await?);
    for name in &names {
        all.push_str(&format!("{:#?}\n", store.node(name).await?));
    }
    for control in controls {
        all.push_str(&format!("{:#?}\n", store.control(control).await?));
    }
    let names: Vec<String> = names.into_iter().collect();
    let memories = store.memories(&names).await?;
    Ok(format!("{all}{:#?}\n{memories:#?}\n", store.open_findings().await?))
}
