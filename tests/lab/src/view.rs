//! The state and history of a fleet as seen from outside, for tests that must not trust gpufleet's own record.
//!
//! [`describe`] returns all that a playbook can declare for a node, and nothing that may differ between two ways to
//! the same state: no boot ids, MIG identities, process ids, times. [`outages`] reads the nodes' own logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nvml_sim::state::{Gpu, Machine, name_hash};
use nvml_sim::store::Store;
use serde::Serialize;
use serde_json::{Value, json};

/// Directories of a node with declared state, and their paths inside the node.
const FILES: [(&str, &str); 6] = [
    ("upper/etc", "/etc"),
    ("upper/boot", "/boot"),
    ("upper/srv", "/srv"),
    ("units", "/etc/systemd/system"),
    ("sysctl.d", "/etc/sysctl.d"),
    ("grub.d", "/etc/default/grub.d"),
];

/// Returns everything declared on one node, one item in each line.
pub fn describe(node: &Path) -> Result<String, String> {
    let machine = Store::new(node.join("state/node.json")).read().map_err(|e| e.to_string())?;
    let mut lines = vec![machine_line(&machine)];
    lines.extend(machine.gpus.iter().map(gpu_line));
    for (dir, inside) in FILES {
        files(&node.join(dir), inside, &mut lines);
    }
    lines.extend(running(node));
    Ok(lines.join("\n") + "\n")
}

/// Returns the digest of a description.
pub fn digest(description: &str) -> String {
    format!("{:032x}", name_hash(description))
}

fn machine_line(machine: &Machine) -> String {
    format!(
        "machine driver={} library={} module={} gpus={}",
        machine.driver_loaded,
        machine.library_version,
        machine.module_version,
        machine.gpus.len()
    )
}

fn gpu_line(gpu: &Gpu) -> String {
    let mut layout: Vec<Value> = gpu
        .instances
        .iter()
        .map(|gi| {
            let mut parts: Vec<_> = gi.compute_instances.iter().map(|ci| (ci.profile_id, ci.start)).collect();
            parts.sort_unstable();
            json!([gi.profile_id, gi.start, gi.size, parts])
        })
        .collect();
    layout.sort_by_key(Value::to_string);
    let staged = |mode: nvml_sim::state::Staged| json!([mode.current, mode.pending]);
    let shown = json!({
        "uuid": gpu.uuid, "ecc": staged(gpu.ecc), "mig": staged(gpu.mig), "layout": layout,
        "persistence": gpu.persistence, "power_limit_mw": gpu.power_limit_mw, "graphics": gpu.locked_graphics_mhz,
        "memory": gpu.locked_memory_mhz, "application": gpu.application_mhz, "compute_mode": gpu.compute_mode,
        "accounting": gpu.accounting, "draining": gpu.draining, "lost": gpu.lost,
    });
    format!("gpu {} {shown}", gpu.minor)
}

fn files(dir: &Path, inside: &str, lines: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let (path, shown) = (dir.join(&name), format!("{inside}/{}", name.to_string_lossy()));
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let kind = meta.file_type();
        if kind.is_dir() {
            files(&path, &shown, lines);
        } else if kind.is_symlink() {
            lines.push(format!("link {shown} {}", fs::read_link(&path).unwrap_or_default().display()));
        } else if kind.is_file() {
            let text = fs::read(&path).unwrap_or_default();
            let hash = name_hash(&String::from_utf8_lossy(&text));
            lines.push(format!(
                "file {shown} {:o} {} {hash:032x}",
                meta.permissions().mode() & 0o7777,
                text.len()
            ));
        } else {
            // An overlay's mark for a file of the host that the node removed.
            lines.push(format!("gone {shown}"));
        }
    }
}

/// Returns running services and processes that use GPUs, in the process namespace of the node's first process.
fn running(node: &Path) -> Vec<String> {
    let Some(init) = fs::read_to_string(node.join("init.pid")).ok() else {
        return vec!["not running".to_owned()];
    };
    let space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = space(init.trim()) else { return vec!["not running".to_owned()] };
    let mut services = BTreeSet::new();
    let mut clients = 0;
    for pid in nvml_sim::holders::processes().iter().map(u32::to_string) {
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        if space(&pid).as_ref() != Some(&own) {
            continue;
        }
        if read("cmdline").split(|byte| *byte == 0).any(|word| word == b"__client") {
            clients += 1;
        }
        let environment = read("environ");
        let unit = environment.split(|byte| *byte == 0).find_map(|item| item.strip_prefix(b"LAB_UNIT="));
        // Transient units depend on the tool that started them.
        if let Some(unit) = unit.map(|unit| String::from_utf8_lossy(unit).into_owned())
            && !unit.starts_with("run-")
            && !unit.starts_with("gpufleet")
        {
            services.insert(unit);
        }
    }
    let mut lines: Vec<String> = services.into_iter().map(|unit| format!("running {unit}")).collect();
    lines.push(format!("gpu clients {clients}"));
    lines
}

/// The history of a fleet, from its nodes' own logs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outages {
    /// Largest number of nodes at once between a shutdown and the next boot.
    pub most_down: usize,
    /// Largest number of nodes at once between their first and their last disruptive action: a stopped service, a MIG
    /// change, a GPU reset, a reboot. A node that was left half done counts until it is finished.
    pub most_disturbed: usize,
    pub nodes: BTreeMap<String, History>,
}

/// The history of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct History {
    pub reboots: usize,
    pub resets: usize,
    /// Seconds since the epoch; no end if the node is still down.
    pub down: Vec<(f64, Option<f64>)>,
    /// First and last disruptive action.
    pub disturbed: Option<(f64, f64)>,
    /// The times of all of them, in order.
    pub acts: Vec<f64>,
    /// Services that were stopped and not started again.
    pub left_stopped: Vec<String>,
}

/// Derives the history from the logs of all nodes.
pub fn outages(nodes: &[std::path::PathBuf]) -> Outages {
    let mut result = Outages::default();
    for node in nodes {
        let log = |file: &str| -> Vec<Value> {
            let text = fs::read_to_string(node.join(file)).unwrap_or_default();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        let history = history(&log("events.jsonl"), &log("setters.jsonl"));
        result.nodes.insert(crate::restore::name(node), history);
    }
    let open = |until: &Option<f64>| until.unwrap_or(f64::INFINITY);
    result.most_down =
        peak(result.nodes.values().flat_map(|h| h.down.iter().map(|(from, to)| (*from, open(to)))));
    result.most_disturbed = peak(result.nodes.values().filter_map(|h| h.disturbed));
    result
}

fn history(events: &[Value], setters: &[Value]) -> History {
    let mut history = History::default();
    let mut acts: Vec<f64> = Vec::new();
    let mut stopped: BTreeSet<String> = BTreeSet::new();
    let mut booted = false;
    for event in events {
        let at = event["time"].as_f64().unwrap_or_default();
        match event["what"].as_str().unwrap_or_default() {
            "shutdown" | "power-cut" | "vanish" | "freeze" => {
                history.down.push((at, None));
                acts.push(at);
            }
            "boot" => {
                if booted {
                    history.reboots += 1;
                    acts.push(at);
                    stopped.clear();
                }
                booted = true;
                if let Some((_, end @ None)) = history.down.last_mut() {
                    *end = Some(at);
                }
            }
            "gpu-reset" if event["detail"]["refused"].is_null() => {
                history.resets += 1;
                acts.push(at);
            }
            "systemctl" => {
                let words: Vec<&str> = event["detail"]["args"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .filter(|word| !word.starts_with('-'))
                    .collect();
                let Some((verb, units)) = words.split_first() else { continue };
                for unit in units.iter().map(|unit| crate::node::units::full_name(unit)) {
                    match *verb {
                        "stop" => stopped.insert(unit),
                        "start" | "restart" => stopped.remove(&unit),
                        _ => continue,
                    };
                    acts.push(at);
                }
            }
            _ => {}
        }
    }
    for setter in setters.iter().filter(|setter| setter["rc"] == 0) {
        let function = setter["function"].as_str().unwrap_or_default();
        if ["SetMigMode", "CreateGpuInstance", "GpuInstanceDestroy", "ComputeInstance"]
            .iter()
            .any(|part| function.contains(part))
        {
            acts.push(setter["time"].as_f64().unwrap_or_default());
        }
    }
    acts.sort_by(f64::total_cmp);
    history.disturbed = acts.first().copied().zip(acts.last().copied());
    history.acts = acts;
    history.left_stopped = stopped.into_iter().collect();
    history
}

/// Returns the largest number of spans at one instant; a span that ends when another begins does not overlap it.
fn peak(spans: impl Iterator<Item = (f64, f64)>) -> usize {
    let mut steps: Vec<(f64, i32)> = spans.flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut most) = (0_i32, 0_i32);
    for (_, step) in steps {
        now += step;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use nvml_sim::model::ModelKey;

    use super::*;

    #[test]
    fn spans_overlap_where_they_share_an_instant() {
        assert_eq!(peak([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)].into_iter()), 2);
        assert_eq!(peak([(0.0, 1.0), (1.0, 2.0)].into_iter()), 1);
        assert_eq!(peak([(0.0, f64::INFINITY), (5.0, 6.0)].into_iter()), 2);
        assert_eq!(peak(std::iter::empty()), 0);
    }

    #[test]
    fn a_history_reads_reboots_resets_and_what_was_left_stopped() {
        let event =
            |time: f64, what: &str, detail: Value| json!({"time": time, "what": what, "detail": detail});
        let events = [
            event(1.0, "boot", json!({})),
            event(2.0, "systemctl", json!({"args": ["stop", "nvidia-dcgm"]})),
            event(2.1, "systemctl", json!({"args": ["stop", "--no-block", "nvsm"]})),
            event(3.0, "gpu-reset", json!({"refused": "in use"})),
            event(4.0, "gpu-reset", json!({"refused": null})),
            event(5.0, "systemctl", json!({"args": ["start", "nvidia-dcgm.service"]})),
        ];
        let setters = [json!({"time": 6.0, "function": "nvmlDeviceSetMigMode", "rc": 0})];
        let seen = history(&events, &setters);
        assert_eq!((seen.reboots, seen.resets, seen.disturbed), (0, 1, Some((2.0, 6.0))));
        assert_eq!(seen.acts, [2.0, 2.1, 4.0, 5.0, 6.0]);
        assert_eq!(seen.left_stopped, ["nvsm.service"]);
        let more =
            [&events[..], &[event(7.0, "shutdown", json!({})), event(9.0, "boot", json!({}))]].concat();
        let seen = history(&more, &[]);
        assert_eq!((seen.reboots, seen.down.as_slice()), (1, [(7.0, Some(9.0))].as_slice()));
        assert!(seen.left_stopped.is_empty(), "a boot starts what is enabled");
    }

    #[test]
    fn a_description_knows_what_was_declared_and_not_how_it_came_about() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("state")).unwrap();
        fs::create_dir_all(dir.path().join("upper/etc")).unwrap();
        let store = Store::new(dir.path().join("state/node.json"));
        store.create(&Machine::new("gpu001", &[ModelKey::H100], "one".to_owned())).unwrap();
        let digest = || digest(&describe(dir.path()).unwrap());
        let before = digest();
        store
            .update(|machine| {
                machine.boot_id = "two".to_owned();
                machine.boots += 1;
                machine.gpus[0].resets += 1;
            })
            .unwrap();
        assert_eq!(digest(), before);
        store.update(|machine| machine.gpus[0].mig.pending = true).unwrap();
        let pending = digest();
        assert_ne!(pending, before);
        fs::write(dir.path().join("upper/etc/more"), "x").unwrap();
        assert_ne!(digest(), pending);
    }
}
