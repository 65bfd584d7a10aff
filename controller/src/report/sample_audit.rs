//! A sample audit of many nodes by checks, for the tests of the page here and in a browser.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_compliance::baseline::{self, Choice, GroupHint};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::sample::{Stream, names};
use crate::{
    diagnostic::SourceFile,
    event::{
        AuditScope, EarlierAudit, Event, HEALTH, NodeState, OpId, Position, TaskReport, TaskStatus, Verb,
        What,
    },
    index::PlayIndex,
};

/// All checks of the catalogue, and own ones: 121 controls.
fn policy() -> String {
    let own = (1..=20).map(|n| {
        let id = format!("site.rule{n:02}");
        format!("  - {{id: {id}, title: Rule {n} of the site, when: zombies > {n}, verdict: warn, severity: low}}\n")
    });
    let own: String = own.collect();
    format!(
        "name: fleet\nextends: [training, slurm]\nchecks: ['*']\nmin_coverage: 0.5\nrequire: []\nown_checks:\n{own}"
    )
}

const WAIVERS: &str = "
- id: RISER-17
  check: pcie.width
  match: {groups: [inference]}
  reason: the risers are on order
  owner: hardware@example.com
  created: 2026-11-01
  expires: 2026-12-15
";

/// Of which nodes a reading is what: of each one whose place has this remainder, divided by this.
const FAULTS: &[(usize, usize, &str, &str, &str)] = &[
    (97, 40, "gpu", "remap_failed", "1"),
    (211, 9, "gpu", "remap_pending", "1"),
    (131, 5, "gpu", "pcie_width", "8"),
    (53, 11, "node", "swappiness", "60"),
    (89, 17, "node", "thp", "\"always\""),
    (61, 30, "gpu", "persistence", "0"),
    (307, 21, "gpu", "margin_c", "-2"),
    (149, 60, "node", "reboot_required", "true"),
    (401, 3, "node", "fm_state", "\"failed\""),
    (173, 8, "gpu", "nvl_active", "17"),
    (113, 50, "node", "zombies", "9"),
    (229, 70, "gpu", "ecc_pending", "0"),
    (83, 25, "gpu", "sram_unc_vol", "{\"unknown\": \"NVML_ERROR_UNKNOWN\"}"),
    (23, 7, "node", "numa_balancing", "1"),
];

/// Returns an audit of `count` nodes with `gpus` GPUs each, in racks of 32 and in the groups `training`, `inference` and
/// `debug`. Some have faults, and some do not answer.
pub(crate) fn checked(count: usize, gpus: usize) -> Vec<Event> {
    let hosts = names(count);
    let choice = Choice::File(SourceFile::new("fleet.yaml", policy()));
    let policy =
        baseline::load(&[choice], &|_| GroupHint::Known).unwrap_or_else(|errors| panic!("{errors}")).policy;
    let part = |from: usize, to: usize| hosts[count * from / 20..count * to / 20].to_vec();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::from([
        ("gpu".to_owned(), hosts.clone()),
        ("training".to_owned(), part(0, 13)),
        ("inference".to_owned(), part(13, 19)),
        ("debug".to_owned(), part(19, 20)),
    ]);
    for (rack, members) in hosts.chunks(32).enumerate() {
        groups.insert(format!("rack{:03}", rack + 1), members.to_vec());
    }
    let named = BTreeMap::from([("inference".to_owned(), part(13, 19).into_iter().collect())]);
    let today = "2026-11-21".parse().unwrap();
    let scope = AuditScope::new(policy, named, BTreeSet::new(), WAIVERS.to_owned(), today);
    let mut s = Stream::new();
    s.started(Verb::Audit, &hosts);
    let Some(Event { what: What::RunStarted(run), .. }) = s.events.last_mut() else {
        panic!("it has started")
    };
    run.playbooks = vec![HEALTH.to_owned()];
    run.command_line =
        ["gpufleet", "audit", "--baseline", "fleet.yaml", "-i", "inventory/"].map(str::to_owned).to_vec();
    run.groups = groups;
    run.trend = (0..30_u32)
        .map(|day| EarlierAudit {
            at: "2026-10-20T02:00:00Z".parse::<Timestamp>().unwrap()
                + SignedDuration::from_hours(24 * i64::from(day)),
            nodes: count as u32,
            compliant: count as u32 * (70 + day * 7 % 13 + day / 3) / 100,
        })
        .collect();
    run.audit = Some(Box::new(scope));
    s.play(&hosts, &[("100%", count)]);
    if let Some(Event { what: What::PlayStarted(play), .. }) = s.events.last_mut() {
        play.name = "Health".to_owned();
    }
    let healthy: Value = serde_json::from_str(include_str!("../../compliance/src/healthy.json")).unwrap();
    for (at, host) in hosts.iter().enumerate() {
        s.wait_ms(2);
        if at % 467 == 55 {
            s.end(host, NodeState::Unreachable, Some("no answer to SSH in 10 s"));
            continue;
        }
        let mut report = TaskReport::new(
            OpId::new(PlayIndex(0), "tasks.0", host.as_str()),
            "signals",
            "health_info",
            Position { file: HEALTH.into(), line: 6, column: 7 },
            TaskStatus::Ok,
        );
        report.data.insert("signals".to_owned(), signals(&healthy, at, gpus));
        s.task(host, report);
        s.end(host, NodeState::Compliant, None);
    }
    s.finished(3, "not every node is compliant");
    s.events
}

fn signals(healthy: &Value, at: usize, gpus: usize) -> Value {
    let mut node = healthy["node"].clone();
    node["swappiness"] = json!(10);
    node["nvml_count"] = json!(gpus);
    node["pci_count"] = json!(gpus);
    let mut gpu = healthy["gpu"].clone();
    gpu["serial"] = json!(format!("16522{at:06}"));
    gpu["name"] = json!(if at % 5 < 2 { "NVIDIA H200" } else { "NVIDIA H100 80GB HBM3" });
    let mut all: Vec<Value> = (0..gpus)
        .map(|index| {
            let mut readings = gpu.clone();
            readings["uuid"] = json!(format!("GPU-{at:08x}-{index:04x}"));
            readings["pci"] = json!(format!("0000:{:02x}:00.0", 0x19 + index));
            json!({"id": readings["uuid"], "label": format!("GPU {index}"), "readings": readings})
        })
        .collect();
    for (every, rest, scope, signal, value) in FAULTS {
        if at % every != *rest {
            continue;
        }
        let value: Value = serde_json::from_str(value).unwrap();
        match *scope {
            "node" => node[*signal] = value,
            _ => all[at % gpus]["readings"][*signal] = value,
        }
    }
    let disk = json!({"id": "/", "label": "/", "readings": healthy["disk"]});
    let port = json!({"id": "mlx5_0/1", "label": "mlx5_0/1", "readings": healthy["port"]});
    json!({"boot_id": "b", "uptime_s": 5000, "node": node, "gpus": all, "disks": [disk], "ports": [port]})
}
