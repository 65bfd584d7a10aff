//! Readings and policies for tests: a healthy node, to which a test adds its fault.

use std::sync::{Arc, LazyLock};

use gpufleet_protocol::signal::{KernelRecord, RecordSort, Signal, Signals, SubjectReadings};
use serde_json::{Value, json};

use crate::baseline::{self, Choice, GroupHint};
use crate::finding::Finding;
use crate::policy::{NodePolicy, Policy};
use crate::vocabulary::{self, Kind};
use crate::{Catalogue, Scope};

/// What healthy readings are, by scope. The sample of an audit of many nodes has them too.
const HEALTHY: &str = include_str!("healthy.json");

fn healthy(scope: Scope) -> impl Iterator<Item = (String, Signal)> {
    let values: Value = serde_json::from_str(HEALTHY).unwrap();
    vocabulary::own().filter(move |(own, _)| *own == scope).map(move |(_, name)| {
        // What is new and not in the file is 0, false or empty.
        let value =
            values[scope.word()].get(name).cloned().unwrap_or_else(|| match vocabulary::lookup(name) {
                Some((_, Kind::Text)) => json!("x"),
                Some((_, Kind::Bool)) => json!(false),
                Some((_, Kind::List)) => json!([]),
                _ => json!(0),
            });
        (name.to_owned(), Signal::Known(value))
    })
}

/// A healthy node with two GPUs, one file system and one RDMA port.
pub(crate) fn node() -> Signals {
    let gpu = |index: usize| {
        let mut readings: std::collections::BTreeMap<_, _> = healthy(Scope::Gpu).collect();
        readings.insert("uuid".to_owned(), format!("GPU-{index}").into());
        readings.insert("pci".to_owned(), format!("0000:5{index}:00.0").into());
        SubjectReadings { id: format!("GPU-{index}"), label: format!("GPU {index}"), readings }
    };
    Signals {
        boot_id: Some("b".to_owned()),
        uptime_s: 5000,
        node: healthy(Scope::Node).collect(),
        gpus: vec![gpu(0), gpu(1)],
        disks: vec![SubjectReadings {
            id: "/".to_owned(),
            label: "/".to_owned(),
            readings: healthy(Scope::Disk).collect(),
        }],
        ports: vec![SubjectReadings {
            id: "mlx5_0/1".to_owned(),
            label: "mlx5_0/1".to_owned(),
            readings: healthy(Scope::Port).collect(),
        }],
        records: Vec::new(),
        cpu_ms: 90,
    }
}

/// An Xid of the GPU at an address.
pub(crate) fn xid(code: u32, pci: &str) -> KernelRecord {
    KernelRecord {
        at_us: Some(1),
        sort: RecordSort::Xid,
        code: Some(code),
        pci: Some(pci.to_owned()),
        settled: false,
        text: format!("NVRM: Xid (PCI:{pci}): {code}, pid='<unknown>'"),
    }
}

/// The policy of a file, or of a built-in baseline if it is one word.
pub(crate) fn policy(text: &str) -> Policy {
    let choice = match text.contains(':') {
        true => Choice::File(gpufleet_language::diagnostic::SourceFile::new("site.yaml", text)),
        false => Choice::BuiltIn(text.to_owned()),
    };
    baseline::load(&[choice], &|_| GroupHint::Known).unwrap_or_else(|errors| panic!("{errors}")).policy
}

/// A policy with every check of the catalogue.
pub(crate) fn everything() -> Arc<NodePolicy> {
    static EVERYTHING: LazyLock<Arc<NodePolicy>> =
        LazyLock::new(|| policy("checks: ['*']\n").for_node("gpu001", &[]));
    Arc::clone(&EVERYTHING)
}

/// The findings that are not ok, one a line.
pub(crate) fn told(findings: &[Finding]) -> String {
    let mut out = Vec::new();
    for finding in findings.iter().filter(|finding| finding.verdict.is_not_ok()) {
        let (check, subject) = (&finding.check.id, finding.subject.label());
        let explained = finding.explained_by.as_ref().map(|by| format!(" <- {by}")).unwrap_or_default();
        let waived = finding.waived.as_ref().map(|by| format!(" (waived: {by})")).unwrap_or_default();
        out.push(format!(
            "{check} [{subject}] {} {}: {}{explained}{waived}",
            finding.verdict, finding.action, finding.note
        ));
    }
    assert!(Catalogue::get().checks().len() > 1);
    out.join("\n")
}
