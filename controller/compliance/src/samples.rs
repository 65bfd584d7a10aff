//! Readings and policies for tests: a healthy node, to which a test adds its fault.

use std::sync::Arc;

use gpufleet_protocol::signal::{KernelRecord, RecordSort, Signal, Signals, SubjectReadings};
use serde_json::{Value, json};

use crate::baseline::{self, Choice, GroupHint};
use crate::finding::Finding;
use crate::policy::{NodePolicy, Policy};
use crate::vocabulary::{self, Kind};
use crate::{Catalogue, Scope};

/// What healthy readings are where 0, false or an empty text are not.
const HEALTHY: &str = r#"{
    "nvml_count": 2, "pci_count": 2, "log_from": "complete", "worker_state": "done", "driver_version": "580.159.04",
    "module_version": "580.159.04", "module_kind": "open", "system_state": "running", "persistenced": "running",
    "mps_state": "absent", "fm_state": "running", "thp": "madvise", "kernel": "6.8.0-45-generic", "numa_nodes": 2,
    "cpus_online": 64, "memory_gib": 1000, "uptime_s": 5000, "dcgm_state": "running", "cuda_version": 13000,
    "ecc_current": 1, "ecc_pending": 1, "ecc_default": 1, "arch": "Hopper", "pcie_width": 16, "pcie_width_max": 16,
    "pcie_gen": 5, "pcie_gen_max": 5, "nvl_active": 18, "nvl_count": 18, "nvl_speed_min": 26562,
    "nvl_speed_max": 26562, "fabric_state": 3, "margin_c": 40, "tlimit_slowdown_c": -2, "mem_temp_c": 50,
    "mem_max_c": 95, "temp_c": 40, "power_limit_w": 700, "power_default_w": 700, "power_enforced_w": 700,
    "power_draw_w": 90, "reasons": 1, "mem_mhz": 3201, "mem_mhz_max": 3201, "persistence": 1, "gsp_mode": 1,
    "gsp_default": 1, "gsp_version": "580.159.04", "name": "NVIDIA H200", "switches_present": true,
    "fm_version": "580.159.04", "installed_driver": "580.159.04", "persistenced_enabled": true, "imex_state": "READY",
    "module_draw_w": 100, "module_limit_w": 1000, "audit_cpu_ms": 90
}"#;

fn healthy(scope: Scope) -> impl Iterator<Item = (String, Signal)> {
    let values: Value = serde_json::from_str(HEALTHY).unwrap();
    vocabulary::own().filter(move |(own, _)| *own == scope).map(move |(_, name)| {
        let value = values.get(name).cloned().unwrap_or_else(|| match vocabulary::lookup(name) {
            Some((_, Kind::Text)) => json!("x"),
            Some((_, Kind::Bool)) => json!(false),
            Some((_, Kind::List)) => json!([]),
            _ => json!(0),
        });
        (name.to_owned(), Signal::Known(value))
    })
}

/// A healthy node with two GPUs and one file system.
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
    policy("checks: ['*']\n").for_node("gpu001", &[])
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
