//! Nodes as they are read, for the tests of this crate.

mod screen;
mod state;
mod table;

use std::sync::Arc;

use gpufleet_protocol::{
    signal::Signal,
    status::{GpuNow, GpuStatus, Holder, MigPart, Recent},
};
use serde_json::{Value, json};

use crate::row::{Heard, NodeReading};

/// An idle H100 in good order.
pub fn gpu(index: u32) -> GpuNow {
    let readings = json!({
        "name": "NVIDIA H100 80GB HBM3", "pci": format!("0000:{index:02x}:00.0"), "lost_code": 0,
        "mig_current": 0, "mig_pending": 0, "mig_layout": [], "mig_orphans": 0, "util_gpu": 0, "util_mem": 0,
        "mem_used_mib": 0, "memory_total_mib": 81559, "temp_c": 34, "mem_temp_c": 41, "sm_mhz": 345, "pstate": 0,
        "power_limit_w": 700, "power_draw_w": 71.5, "reasons": 1, "ecc_current": 1, "ecc_unc_vol": 0,
        "ecc_cor_vol": 0, "remap_pending": 0, "remap_failed": 0, "recovery_action": 0, "compute_mode": 0,
        "persistence": 1, "drain_state": 0, "process_count": 0,
    });
    let mut now = GpuNow { index, ..GpuNow::default() };
    now.signals.id = format!("GPU-{index:08}-1c2d-4e5f-8a9b-0123456789ab");
    now.signals.label = format!("GPU {index}");
    now.signals.readings = serde_json::from_value(readings).unwrap();
    now.recent = Some(Recent { span_ms: 9800, ..Recent::default() });
    now
}

pub fn set(now: &mut GpuNow, name: &str, value: impl Into<Value>) {
    now.signals.readings.insert(name.to_owned(), Signal::from(value.into()));
}

/// One that a process works on, busy to this degree.
pub fn held(index: u32, permille: u32, peak: u32) -> GpuNow {
    let mut now = gpu(index);
    let works = permille >= 500;
    let reasons = if works { 4 } else { 0 };
    for (name, value) in
        [("mem_used_mib", 72_887), ("process_count", 1), ("util_gpu", permille / 10), ("reasons", reasons)]
    {
        set(&mut now, name, value);
    }
    set(&mut now, "power_draw_w", if works { 612.4 } else { 118.2 + f64::from(permille) / 2.0 });
    now.recent = Some(Recent { permille, halves: [permille; 2], peak, span_ms: 9800 });
    now.held_ms = Some(3_600_000);
    now.holders = vec![Holder {
        pid: 4711,
        command: "/usr/bin/python3 -u /home/alice/train.py --epochs 9".to_owned(),
        user: "alice".to_owned(),
        unit: Some("Slurm job 1812".to_owned()),
        memory_mib: Some(72_000),
        ..Holder::default()
    }];
    now
}

/// One with MIG instances, the first of which are held.
pub fn sliced(index: u32, profile: &str, all: u32, used: u32) -> GpuNow {
    let mut now = gpu(index);
    set(&mut now, "mig_current", 1);
    set(&mut now, "process_count", used);
    now.signals.readings.insert("util_gpu".to_owned(), Signal::Absent);
    now.recent = None;
    now.instances = (0..all)
        .map(|id| MigPart { id: 7 + id, profile: profile.to_owned(), ready: true, ..MigPart::default() })
        .collect();
    now.holders = (0..used)
        .map(|id| Holder {
            pid: 900 + id,
            command: "serve".to_owned(),
            user: "bob".to_owned(),
            instance: Some(7 + id),
            ..Holder::default()
        })
        .collect();
    now
}

pub fn status(gpus: Vec<GpuNow>) -> GpuStatus {
    let node = json!({"nvml_count": gpus.len(), "driver_version": "580.159.04"});
    GpuStatus { node: serde_json::from_value(node).unwrap(), gpus, ..GpuStatus::default() }
}

pub fn node(name: &str, group: &str, heard: Heard) -> NodeReading {
    NodeReading { node: name.into(), groups: Arc::new([group.to_owned()]), heard }
}

pub fn read(name: &str, group: &str, gpus: Vec<GpuNow>) -> NodeReading {
    node(name, group, Heard::Status(Box::new(status(gpus))))
}

/// A fleet with some of everything.
pub fn fleet() -> Vec<NodeReading> {
    let mut hot = held(2, 991, 100);
    set(&mut hot, "reasons", 0x68);
    set(&mut hot, "ecc_unc_vol", 2);
    let mut lost = GpuNow { index: 3, ..GpuNow::default() };
    lost.signals.id = "index 3".to_owned();
    set(&mut lost, "lost_code", 15);
    let mut shared = status(vec![gpu(0)]);
    shared.mps = true;
    vec![
        read("gpu001", "rack1", vec![gpu(0), held(1, 970, 100), hot, lost]),
        read("gpu002", "rack1", vec![held(0, 10, 30), held(1, 310, 98)]),
        read("gpu003", "rack2", vec![sliced(0, "1g.10gb", 7, 2), sliced(1, "3g.40gb", 2, 2)]),
        node("gpu004", "rack2", Heard::Status(Box::new(shared))),
        node("gpu005", "rack2", Heard::Failed("connecting took longer than 15 s".to_owned())),
    ]
}
