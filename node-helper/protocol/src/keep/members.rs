//! What a node keeps once a run has declared more: of each property of each GPU the newest declaration.
//!
//! Pure. Owns which properties a task declares of a GPU, and which of them rule each other out.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    facts::GpuFacts,
    op::{GpuMember, GpuTask},
    tasks::{
        AccountingMode, ComputeModeName, GpuClocks, GpuConfidentialCompute, GpuMig, GpuSelectorItem,
        MigConfigFile, MigMode, MpsScope, MpsState, PersistenceMode, PowerScope,
    },
};

/// What a node keeps, and what of older declarations it does not keep any more for another reason than a newer value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct United {
    pub members: Vec<GpuMember>,
    /// One sentence each.
    pub dropped: Vec<String>,
}

/// What a GPU has one value of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Persistence,
    Ecc,
    MigMode,
    MigLayout,
    GpuPower,
    ModulePower,
    GraphicsClock,
    MemoryClock,
    ComputeMode,
    Accounting,
    NodeMps,
    GpuMps,
    MigMps,
    ConfidentialMode,
    ConfidentialReady,
}

/// Values that are only compared.
type Declared = BTreeMap<Slot, String>;

/// A task without its selector, and the positions of the GPUs that it is for.
struct Part {
    task: GpuTask,
    on: BTreeSet<usize>,
    older: bool,
}

/// Returns what a node with these GPUs keeps once a run has declared more: what other playbooks declared stays, and of each
/// property of each GPU the newer value counts.
///
/// The result is the same however a playbook names the GPUs, and if the same is declared again.
pub fn united(kept: &[GpuMember], newer: &[GpuMember], gpus: &[GpuFacts]) -> United {
    let mut parts: Vec<Part> = Vec::new();
    let mut dropped = Vec::new();
    let mut unplaced = Vec::new();
    let all = kept.iter().map(|member| (member, true)).chain(newer.iter().map(|member| (member, false)));
    for (member, older) in all {
        let mut task = member.task.clone();
        let (on, gone) = selected(task.gpus(), gpus);
        if older && !gone.is_empty() {
            dropped.push(format!(
                "{} is not kept any more for {}, which this node does not have",
                task.kind(),
                gone.join(" and ")
            ));
        }
        if on.is_empty() {
            // A boot refuses it, and says why.
            unplaced.extend((!older).then(|| member.clone()));
            continue;
        }
        if let Some(selector) = task.gpus_mut() {
            selector.clear();
        }
        add(&mut parts, Part { task, on, older }, gpus, &mut dropped);
    }
    let mut members: Vec<GpuMember> = Vec::new();
    for part in grouped(parts) {
        let mut task = part.task;
        if let Some(selector) = task.gpus_mut().filter(|_| part.on.len() < gpus.len()) {
            let uuids = part.on.iter().filter_map(|at| gpus.get(*at)).map(|gpu| gpu.uuid.clone());
            *selector = uuids.map(GpuSelectorItem::Text).collect();
        }
        members.push(GpuMember { task });
    }
    members.extend(unplaced);
    United { members, dropped }
}

/// Returns the positions of the GPUs that a selector means, and its entries that mean none.
fn selected(selector: &[GpuSelectorItem], gpus: &[GpuFacts]) -> (BTreeSet<usize>, Vec<String>) {
    if selector.is_empty() {
        return ((0..gpus.len()).collect(), Vec::new());
    }
    let (mut on, mut gone) = (BTreeSet::new(), Vec::new());
    for item in selector {
        let before = on.len();
        let means = |gpu: &GpuFacts| item.means(gpu.index, &gpu.uuid, &gpu.pci, &gpu.name);
        let found: Vec<usize> = (0..).zip(gpus).filter(|(_, gpu)| means(gpu)).map(|(at, _)| at).collect();
        on.extend(&found);
        if found.is_empty() && on.len() == before {
            gone.push(match item {
                GpuSelectorItem::Index(index) => format!("GPU {index}"),
                GpuSelectorItem::Text(text) => text.clone(),
            });
        }
    }
    (on, gone)
}

/// Adds a newer declaration, and takes out of the earlier ones what it replaces.
fn add(parts: &mut Vec<Part>, mut new: Part, gpus: &[GpuFacts], dropped: &mut Vec<String>) {
    let mut rest = Vec::new();
    let mut ruled_out: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for at in new.on.clone() {
        let Some(gpu) = gpus.get(at) else { continue };
        let declared = declares(&new.task, gpu.index);
        let of_this = |part: &&mut Part| part.on.contains(&at);
        let says_all = |part: &mut Part| {
            let known = declares(&part.task, gpu.index);
            declared.iter().all(|(slot, value)| known.get(slot) == Some(value))
        };
        if !declared.is_empty() && parts.iter_mut().filter(of_this).any(says_all) {
            new.on.remove(&at);
            continue;
        }
        for part in parts.iter_mut().filter(of_this) {
            let known = declares(&part.task, gpu.index);
            let left: BTreeSet<Slot> =
                known.keys().filter(|slot| !declared.contains_key(slot)).copied().collect();
            if left.len() < known.len() {
                part.on.remove(&at);
                let task = reduced(&part.task, &left);
                rest.extend(task.map(|task| Part { task, on: [at].into(), older: part.older }));
            } else if excludes(&new.task, &declared, &part.task) {
                part.on.remove(&at);
                if part.older {
                    ruled_out.entry(part.task.kind()).or_default().insert(gpu.index);
                }
            }
        }
    }
    if !new.on.is_empty() {
        for part in parts.iter_mut().filter(|part| excludes_on_node(&new.task, &part.task)) {
            if part.older {
                let of = part.on.iter().filter_map(|at| gpus.get(*at)).map(|gpu| gpu.index);
                ruled_out.entry(part.task.kind()).or_default().extend(of);
            }
            part.on.clear();
        }
    }
    for (kind, indexes) in ruled_out {
        let indexes: Vec<String> = indexes.iter().map(u32::to_string).collect();
        dropped.push(format!(
            "{kind} is not kept any more for GPU {}, because {}, declared since, rules it out",
            indexes.join(","),
            new.task.kind()
        ));
    }
    parts.extend(rest);
    parts.push(new);
    parts.retain(|part| !part.on.is_empty());
}

/// Joins parts that declare the same.
fn grouped(parts: Vec<Part>) -> Vec<Part> {
    let mut groups: Vec<Part> = Vec::new();
    for part in parts {
        match groups.iter_mut().find(|known| known.task == part.task) {
            Some(known) => known.on.extend(part.on),
            None => groups.push(part),
        }
    }
    groups
}

/// Returns what a task declares of the GPU with this index.
fn declares(task: &GpuTask, index: u32) -> Declared {
    let one = |slot: Slot, value: String| Declared::from([(slot, value)]);
    match task {
        GpuTask::GpuPersistence(task) => one(Slot::Persistence, task.mode.to_string()),
        GpuTask::GpuEcc(task) => one(Slot::Ecc, task.mode.to_string()),
        GpuTask::GpuMig(task) => mig(task, index),
        GpuTask::GpuPower(task) => {
            let slot = match task.scope {
                PowerScope::Gpu => Slot::GpuPower,
                PowerScope::Module => Slot::ModulePower,
            };
            one(slot, format!("{:?} {:?}", task.limit_watts, task.limit_percent))
        }
        GpuTask::GpuClocks(task) => clocks(task),
        GpuTask::GpuComputeMode(task) => one(Slot::ComputeMode, task.mode.to_string()),
        GpuTask::GpuAccounting(task) => one(Slot::Accounting, task.mode.to_string()),
        GpuTask::GpuMps(task) => {
            let slot = match task.scope {
                MpsScope::Node => Slot::NodeMps,
                MpsScope::Gpu => Slot::GpuMps,
                MpsScope::Mig => Slot::MigMps,
            };
            one(slot, format!("{task:?}"))
        }
        GpuTask::GpuConfidentialCompute(task) => {
            let mode = task.mode.map(|mode| (Slot::ConfidentialMode, mode.to_string()));
            let ready = task.ready.map(|ready| (Slot::ConfidentialReady, ready.to_string()));
            mode.into_iter().chain(ready).collect()
        }
        // An act, which nothing keeps.
        GpuTask::GpuReset(_) => Declared::new(),
    }
}

fn mig(task: &GpuMig, index: u32) -> Declared {
    let on = || (Slot::MigMode, MigMode::Enabled.to_string());
    let off = || {
        // Without MIG there are no instances either.
        [(Slot::MigMode, MigMode::Disabled.to_string()), (Slot::MigLayout, "none".to_owned())]
    };
    let specs = match (&task.config_file, task.mode) {
        (Some(MigConfigFile::Read { specs, .. }), _) => specs,
        (Some(MigConfigFile::Path(_)), _) | (None, None) => return Declared::new(),
        (None, Some(MigMode::Disabled)) => return off().into(),
        (None, Some(MigMode::Enabled)) => {
            let layout = task.layout.as_ref();
            let layout = layout.map(|layout| (Slot::MigLayout, format!("{layout:?} {}", task.strategy)));
            return [on()].into_iter().chain(layout).collect();
        }
    };
    let named = specs.iter().filter(|spec| spec.devices.as_ref().is_none_or(|all| all.contains(&index)));
    let named: Vec<_> = named.collect();
    match named.last() {
        None => Declared::new(),
        // Which of them counts depends on the board, which only the node compares.
        Some(_) if named.iter().any(|spec| !spec.filters.is_empty()) => {
            let by_board = format!("{named:?} {}", task.strategy);
            [(Slot::MigMode, by_board.clone()), (Slot::MigLayout, by_board)].into()
        }
        Some(spec) if !spec.enabled => off().into(),
        Some(spec) => [on(), (Slot::MigLayout, format!("{:?} {}", spec.instances, task.strategy))].into(),
    }
}

fn clocks(task: &GpuClocks) -> Declared {
    let value = |range: Option<_>| match (range, task.reset) {
        (Some(range), _) => Some(format!("{range:?}")),
        (None, true) => Some("free".to_owned()),
        (None, false) => None,
    };
    let graphics = value(task.graphics_mhz).map(|value| (Slot::GraphicsClock, value));
    let memory = value(task.memory_mhz).map(|value| (Slot::MemoryClock, value));
    graphics.into_iter().chain(memory).collect()
}

/// Returns a task that declares only these of its properties; `None` if nothing of them outlives it.
fn reduced(task: &GpuTask, left: &BTreeSet<Slot>) -> Option<GpuTask> {
    if left.is_empty() {
        return None;
    }
    match task {
        GpuTask::GpuMig(task) if left.contains(&Slot::MigMode) => {
            Some(GpuTask::GpuMig(GpuMig { layout: None, ..task.clone() }))
        }
        GpuTask::GpuClocks(task) => {
            let graphics_mhz = task.graphics_mhz.filter(|_| left.contains(&Slot::GraphicsClock));
            let memory_mhz = task.memory_mhz.filter(|_| left.contains(&Slot::MemoryClock));
            // A boot leaves no lock, so that nothing has to free a clock.
            let has_any = graphics_mhz.is_some() || memory_mhz.is_some();
            let clocks = GpuClocks { graphics_mhz, memory_mhz, reset: false, ..task.clone() };
            has_any.then_some(GpuTask::GpuClocks(clocks))
        }
        GpuTask::GpuConfidentialCompute(task) => {
            let mode = task.mode.filter(|_| left.contains(&Slot::ConfidentialMode));
            let ready = task.ready.filter(|_| left.contains(&Slot::ConfidentialReady));
            Some(GpuTask::GpuConfidentialCompute(GpuConfidentialCompute { mode, ready }))
        }
        _ => None,
    }
}

/// Whether a GPU for which the newer task declares this cannot be as the older one declares.
fn excludes(newer: &GpuTask, declared: &Declared, older: &GpuTask) -> bool {
    let mig = declared.get(&Slot::MigMode).map(String::as_str);
    let (on, off) = (Some(MigMode::Enabled.as_str()), Some(MigMode::Disabled.as_str()));
    match older {
        GpuTask::GpuComputeMode(older) => mig == on && older.mode != ComputeModeName::Default,
        GpuTask::GpuAccounting(older) => mig == on && older.mode == AccountingMode::Enabled,
        GpuTask::GpuMps(older) if older.state == MpsState::Started => match newer {
            GpuTask::GpuMps(newer) => newer.scope != older.scope && newer.state == MpsState::Started,
            _ => older.scope == MpsScope::Gpu && mig == on || older.scope == MpsScope::Mig && mig == off,
        },
        _ => false,
    }
}

/// Whether no GPU of the node can be as the older task declares once one of them is as the newer one does.
fn excludes_on_node(newer: &GpuTask, older: &GpuTask) -> bool {
    match (newer, older) {
        (GpuTask::GpuPersistence(new), GpuTask::GpuPersistence(old)) => {
            let keeps = |mode: PersistenceMode| mode != PersistenceMode::Off;
            keeps(new.mode) && keeps(old.mode) && new.mode != old.mode
        }
        (GpuTask::GpuMps(new), GpuTask::GpuMps(old)) => {
            let node = new.scope == MpsScope::Node || old.scope == MpsScope::Node;
            let both = new.state == MpsState::Started && old.state == MpsState::Started;
            node && both && (new.scope != old.scope || new != old)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gpus(count: u32) -> Vec<GpuFacts> {
        let one = |index: u32| GpuFacts {
            index,
            uuid: format!("GPU-{index}"),
            pci: format!("0000:0{index}:00.0"),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            ..GpuFacts::default()
        };
        (0..count).map(one).collect()
    }

    fn members(tasks: &[Value]) -> Vec<GpuMember> {
        let one = |task: &Value| {
            let (kind, with) = task.as_object().unwrap().iter().next().unwrap();
            serde_json::from_value(json!({"task": {"kind": kind, "with": with}})).unwrap()
        };
        tasks.iter().map(one).collect()
    }

    /// What runs one after the other, each with these tasks, leave to be kept on a node with two GPUs.
    fn after(runs: &[&[Value]]) -> United {
        let mut last = United::default();
        for run in runs {
            last = united(&last.members, &members(run), &gpus(2));
            let again = united(&last.members, &members(run), &gpus(2));
            assert_eq!(
                (again.members, again.dropped),
                (last.members.clone(), Vec::new()),
                "the run once more"
            );
        }
        last
    }

    #[track_caller]
    fn keeps(runs: &[&[Value]], expected: &[Value]) {
        assert_eq!(after(runs).members, members(expected));
    }

    fn power(watts: u32, gpus: Value) -> Value {
        json!({"gpu_power": {"limit_watts": watts, "gpus": gpus}})
    }

    fn layout(layout: Value, gpus: Value) -> Value {
        json!({"gpu_mig": {"mode": "enabled", "layout": layout, "gpus": gpus}})
    }

    #[test]
    fn playbooks_add_to_what_a_node_keeps() {
        let mig = json!({"gpu_mig": {"mode": "enabled"}});
        keeps(&[&[power(400, json!([]))]], &[power(400, json!([]))]);
        keeps(&[std::slice::from_ref(&mig), &[power(400, json!([]))]], &[mig.clone(), power(400, json!([]))]);
        keeps(
            &[&[mig.clone(), power(400, json!([]))], &[power(300, json!([]))], std::slice::from_ref(&mig)],
            &[mig.clone(), power(300, json!([]))],
        );
    }

    #[test]
    fn of_each_gpu_the_newest_counts() {
        let seven = json!({"1g.10gb": 7});
        let two = json!({"3g.40gb": 2});
        keeps(
            &[&[layout(seven.clone(), json!([])), power(500, json!([]))], &[layout(two.clone(), json!([0]))]],
            &[layout(seven.clone(), json!(["GPU-1"])), power(500, json!([])), layout(two, json!(["GPU-0"]))],
        );
        // All for one after the other, within one run, and by index and then by product.
        let one_by_one = [power(400, json!([])), power(300, json!([0]))];
        keeps(&[&one_by_one], &[power(400, json!(["GPU-1"])), power(300, json!(["GPU-0"]))]);
        keeps(&[&[power(300, json!([0])), power(400, json!(["H100"]))]], &[power(400, json!([]))]);
        keeps(
            &[
                &[power(300, json!([0, 1]))],
                &[power(400, json!([1]))],
                &[power(300, json!(["0000:01:00.0"]))],
            ],
            &[power(300, json!([]))],
        );
        let clocks = |value: Value| json!({"gpu_clocks": value});
        keeps(
            &[
                &[clocks(json!({"graphics_mhz": 1200, "memory_mhz": 877}))],
                &[clocks(json!({"graphics_mhz": 1500, "gpus": [0]}))],
            ],
            &[
                clocks(json!({"graphics_mhz": 1200, "memory_mhz": 877, "gpus": ["GPU-1"]})),
                clocks(json!({"memory_mhz": 877, "gpus": ["GPU-0"]})),
                clocks(json!({"graphics_mhz": 1500, "gpus": ["GPU-0"]})),
            ],
        );
        // Limits of a GPU and of its module are two.
        let module = json!({"gpu_power": {"limit_watts": 900, "scope": "module"}});
        keeps(
            &[std::slice::from_ref(&module), &[power(400, json!([]))]],
            &[module.clone(), power(400, json!([]))],
        );
    }

    #[test]
    fn a_mode_without_a_layout_leaves_the_layout() {
        let two = layout(json!({"3g.40gb": 2}), json!([]));
        let on = json!({"gpu_mig": {"mode": "enabled"}});
        let off = json!({"gpu_mig": {"mode": "disabled"}});
        keeps(&[std::slice::from_ref(&two), std::slice::from_ref(&on)], std::slice::from_ref(&two));
        keeps(&[std::slice::from_ref(&two), std::slice::from_ref(&off)], std::slice::from_ref(&off));
        keeps(&[&[two], &[off], std::slice::from_ref(&on)], std::slice::from_ref(&on));
    }

    #[test]
    fn what_the_newer_rules_out_is_told() {
        let mig = json!({"gpu_mig": {"mode": "enabled", "gpus": [0]}});
        let mode = |gpus: Value| json!({"gpu_compute_mode": {"mode": "exclusive_process", "gpus": gpus}});
        let accounting = json!({"gpu_accounting": {"mode": "enabled"}});
        let before = [mode(json!([])), accounting];
        let kept = united(&members(&before), &members(std::slice::from_ref(&mig)), &gpus(2));
        assert_eq!(
            kept.members,
            members(&[
                mode(json!(["GPU-1"])),
                json!({"gpu_accounting": {"mode": "enabled", "gpus": ["GPU-1"]}}),
                json!({"gpu_mig": {"mode": "enabled", "gpus": ["GPU-0"]}}),
            ])
        );
        assert_eq!(
            kept.dropped,
            [
                "gpu_accounting is not kept any more for GPU 0, because gpu_mig, declared since, rules it out",
                "gpu_compute_mode is not kept any more for GPU 0, because gpu_mig, declared since, rules it out",
            ]
        );
        let daemon = json!({"gpu_persistence": {"mode": "daemon"}});
        let legacy = json!({"gpu_persistence": {"mode": "legacy", "gpus": ["GPU-0"]}});
        let kept = united(&members(&[daemon]), &members(std::slice::from_ref(&legacy)), &gpus(2));
        assert_eq!((kept.members, kept.dropped.len()), (members(&[legacy]), 1));
    }

    #[test]
    fn a_gpu_that_is_gone_takes_what_was_kept_for_it() {
        let before = members(&[power(400, json!(["GPU-9", "GPU-1"])), power(300, json!(["GPU-8"]))]);
        let kept = united(&before, &[], &gpus(2));
        assert_eq!(kept.members, members(&[power(400, json!(["GPU-1"]))]));
        assert_eq!(kept.dropped.len(), 2);
        // What a run declares for a GPU that is not there is for the boot's plan to refuse.
        let asked = members(&[power(300, json!(["GPU-8"]))]);
        assert_eq!(united(&[], &asked, &gpus(2)).members, asked);
    }

    #[test]
    fn the_last_spec_of_a_file_counts_for_each_gpu() {
        let spec = |devices: Value, enabled: bool, instances: Value| json!({"devices": devices, "filters": [], "enabled": enabled, "instances": instances});
        let file = |specs: Value| json!({"gpu_mig": {"config_file": {"path": "m.yaml", "specs": specs}, "config": "c"}});
        let on_one = file(json!([spec(json!([1]), true, json!({"3g.40gb": 2}))]));
        let all = layout(json!({"1g.10gb": 7}), json!([]));
        let kept = after(&[std::slice::from_ref(&all), std::slice::from_ref(&on_one)]);
        assert_eq!(kept.members, members(&[layout(json!({"1g.10gb": 7}), json!(["GPU-0"])), on_one.clone()]));
        assert_eq!(after(&[&[on_one], std::slice::from_ref(&all)]).members.last(), members(&[all]).last());
    }
}
