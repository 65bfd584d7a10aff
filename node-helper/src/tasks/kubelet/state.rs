//! States of the kubelet's managers of CPUs and memory: why the kubelet would not start with one. Pure.
//!
//! Source: Kubernetes, `pkg/kubelet/cm/cpumanager/policy_static.go` (`validateState`) and
//! `pkg/kubelet/cm/memorymanager/policy_static.go` (`validateState`, `getDefaultMachineState`). What a state gives to pods of
//! memory is not added up here.

use std::collections::BTreeMap;

use gpufleet_protocol::cpus::CpuList;
use serde_json::{Map, Value};

use super::config;
use crate::tasks::numa_memory::NumaMemory;

/// What a state of CPUs has. Source: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`.
const KEYS: [&str; 4] = ["policyName", "defaultCpuSet", "entries", "checksum"];

fn set(value: &Value) -> Option<CpuList> {
    value.as_str()?.parse().ok()
}

/// Returns why a state of static CPUs does not fit, if so; `online` is empty if nobody knows.
pub fn cpu_fault(state: &Value, config: &Map<String, Value>, online: &CpuList) -> Option<String> {
    let unreadable = || Some("its CPUs cannot be read".to_owned());
    let Some(shared) = state.get("defaultCpuSet").map_or(Some(CpuList::default()), set) else {
        return unreadable();
    };
    let mut pods = Vec::new();
    let entries = state.get("entries").and_then(Value::as_object);
    for (_, pod) in entries.into_iter().flatten() {
        // Before Kubernetes 1.18, containers stand there without their pods.
        let containers = pod.as_object().map_or_else(|| vec![pod], |pod| pod.values().collect());
        for container in containers {
            let Some(cpus) = set(container) else { return unreadable() };
            pods.push(cpus);
        }
    }
    if shared.is_empty() {
        // The kubelet fills an empty one at its start.
        return (!pods.is_empty()).then(|| "it leaves no CPUs for other pods".to_owned());
    }
    let reserved: CpuList = config::word(config, "reservedSystemCPUs", "").parse().unwrap_or_default();
    let options = config.get("cpuManagerPolicyOptions").and_then(Value::as_object);
    let strict = options.and_then(|options| options.get("strict-cpu-reservation")?.as_str()) == Some("true");
    let given = if strict { reserved.common(&shared) } else { reserved.without(&shared) };
    // A reserved CPU that is not online is another matter.
    let given = if online.is_empty() { given } else { given.common(online) };
    if !given.is_empty() {
        return Some(format!("it gives reserved CPUs to pods: {given}"));
    }
    if let Some(both) = pods.iter().map(|cpus| cpus.common(&shared)).find(|both| !both.is_empty()) {
        return Some(format!("it gives CPUs {both} to a pod and to all others too"));
    }
    if online.is_empty() {
        return None;
    }
    let known: CpuList = pods.iter().flat_map(CpuList::iter).chain(shared.iter()).collect();
    // A newer kubelet may give CPUs in ways that are not known here.
    let is_whole =
        state.as_object().is_some_and(|state| state.keys().all(|key| KEYS.contains(&key.as_str())));
    if !is_whole && known.is_subset(online) {
        return None;
    }
    if strict && reserved.is_empty() {
        // The kubelet itself picks which CPUs it reserves; only their number is known.
        let count = online.len().saturating_sub(config::reserved_cpus(config));
        let fits = known.is_subset(online) && known.len() == count;
        return (!fits).then(|| format!("it knows CPUs {known}, and the kubelet finds {count} of {online}"));
    }
    let found = if strict { online.without(&reserved) } else { online.clone() };
    (known != found).then(|| format!("it knows CPUs {known}, and the kubelet finds {found}"))
}

/// Returns the name of huge pages as a resource: `hugepages-2Mi`.
fn resource(kib: u64) -> String {
    let units = [(30, "Ti"), (20, "Gi"), (10, "Mi"), (0, "Ki")];
    let (shift, unit) =
        units.into_iter().find(|(shift, _)| kib.trailing_zeros() >= *shift).unwrap_or((0, "Ki"));
    format!("hugepages-{}{unit}", kib >> shift)
}

fn list<'n>(nodes: impl Iterator<Item = &'n u32>) -> String {
    nodes.copied().collect::<CpuList>().to_string()
}

fn bytes(kib: u64) -> Option<u64> {
    kib.checked_mul(1024)
}

fn mebibytes(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

/// Returns why a state of static memory does not fit, if so; `nodes` is empty if nobody knows.
pub fn memory_fault(
    state: &Value,
    config: &Map<String, Value>,
    nodes: &BTreeMap<u32, NumaMemory>,
) -> Option<String> {
    let machine = state.get("machineState").and_then(Value::as_object).filter(|machine| !machine.is_empty());
    let Some(machine) = machine else {
        let entries = state.get("entries").and_then(Value::as_object);
        // The kubelet fills an empty one at its start.
        let gives = entries.is_some_and(|entries| !entries.is_empty());
        return gives.then(|| "it gives memory to pods and knows no NUMA nodes".to_owned());
    };
    if nodes.is_empty() {
        return None;
    }
    let known: Option<BTreeMap<u32, &Value>> =
        machine.iter().map(|(id, node)| Some((id.parse().ok()?, node))).collect();
    let Some(known) = known else { return Some("its NUMA nodes cannot be read".to_owned()) };
    if !known.keys().eq(nodes.keys()) {
        return Some(format!(
            "it has NUMA nodes {}, and the node has {}",
            list(known.keys()),
            list(nodes.keys())
        ));
    }
    known.into_iter().zip(nodes.values()).find_map(|((id, known), found)| {
        let table = known.get("memoryMap").and_then(Value::as_object);
        let Some(table) = table else { return Some("its memory cannot be read".to_owned()) };
        let mut wanted: BTreeMap<String, Option<u64>> = found
            .pages
            .iter()
            .map(|(kib, count)| (resource(*kib), bytes(kib.saturating_mul(*count))))
            .collect();
        wanted.insert("memory".to_owned(), found.total_kib.and_then(bytes));
        if let Some(name) = table.keys().find(|name| !wanted.contains_key(*name)) {
            return Some(format!("it has {name} on NUMA node {id}, which the kubelet does not find"));
        }
        wanted.into_iter().find_map(|(name, found)| {
            let Some(entry) = table.get(&name) else {
                return Some(format!("it has no {name} on NUMA node {id}, which the kubelet finds"));
            };
            let number = |key: &str| entry.get(key).and_then(Value::as_u64);
            let (Some(total), Some(aside)) = (number("total"), number("systemReserved")) else {
                return Some("its memory cannot be read".to_owned());
            };
            if let Some(found) = found.filter(|found| *found != total) {
                let (total, found) = (mebibytes(total), mebibytes(found));
                return Some(format!(
                    "it has {total} of {name} on NUMA node {id}, and the kubelet finds {found}"
                ));
            }
            let reserved = config::reserved_memory(config, id, &name)?;
            (reserved != aside).then(|| {
                format!(
                    "it sets {} of {name} on NUMA node {id} aside, and `reservedMemory` says {}",
                    mebibytes(aside),
                    mebibytes(reserved)
                )
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_named_as_kubernetes_does() {
        let names: Vec<String> = [64, 2048, 32_768, 1 << 20, 16 << 20].map(resource).to_vec();
        assert_eq!(
            names,
            ["hugepages-64Ki", "hugepages-2Mi", "hugepages-32Mi", "hugepages-1Gi", "hugepages-16Gi"]
        );
    }
}
