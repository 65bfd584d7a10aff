//! Many alike things said once: changes of several GPUs, reasons of several nodes, failures of one cause.

use std::collections::{BTreeMap, HashMap};

use gpufleet_protocol::{Certainty, Change, Disruption, facts::Facts};

use super::{NodeModel, fold_numbers};
use crate::event::{NodeState, Position, TaskReport, TaskStatus};

/// Changes that are the same but for the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeGroup {
    pub task: String,
    pub kind: String,
    pub position: Position,
    /// Empty where the change is not about a GPU.
    pub gpus: Vec<u32>,
    /// What differs, without the GPU.
    pub what: String,
    pub from: Option<String>,
    pub to: String,
    pub disruption: Disruption,
    pub certainty: Certainty,
    pub note: Option<String>,
    pub diff: Option<String>,
    /// The host that was changed, where it is another one.
    pub delegated_to: Option<String>,
}

impl ChangeGroup {
    /// `GPU 0-7`, or nothing.
    pub fn gpu_label(&self) -> String {
        if self.gpus.is_empty() {
            return String::new();
        }
        format!("GPU {}", fold_numbers(self.gpus.iter().copied()))
    }

    /// `/etc/motd`, or `/etc/motd on login1` where another host was changed.
    pub fn what(&self) -> String {
        match &self.delegated_to {
            Some(other) => format!("{} on {other}", self.what),
            None => self.what.clone(),
        }
    }

    /// `700 -> 600 W`.
    pub fn values(&self) -> String {
        values(self.from.as_deref(), &self.to)
    }
}

/// From and to in one text, a shared unit written once.
pub(crate) fn values(from: Option<&str>, to: &str) -> String {
    let Some(from) = from else { return format!("-> {to}") };
    let unit = |text: &str| text.split_once(' ').map(|(number, unit)| (number.to_owned(), unit.to_owned()));
    match (unit(from), unit(to)) {
        (Some((before, unit)), Some((after, same)))
            if unit == same && before.parse::<f64>().is_ok() && after.parse::<f64>().is_ok() =>
        {
            format!("{before} -> {after} {unit}")
        }
        _ => format!("{from} -> {to}"),
    }
}

/// Splits `GPU 3 power limit` into 3 and `power limit`.
pub(crate) fn split_gpu(what: &str) -> (Option<u32>, &str) {
    let split = || {
        let (index, label) = what.strip_prefix("GPU ")?.split_once(' ')?;
        Some((index.trim_end_matches(':').parse().ok()?, label))
    };
    match split() {
        Some((index, label)) => (Some(index), label),
        None => (None, what),
    }
}

/// Folds one node's changes over its GPUs, in the order in which they first appear.
pub fn fold_changes<'a>(changes: impl Iterator<Item = (&'a TaskReport, &'a Change)>) -> Vec<ChangeGroup> {
    let mut groups: Vec<ChangeGroup> = Vec::new();
    for (task, change) in changes {
        let (gpu, what) = split_gpu(&change.what);
        let same = groups.iter_mut().find(|group| {
            gpu.is_some_and(|gpu| !group.gpus.is_empty() && !group.gpus.contains(&gpu))
                && group.task == task.task
                && group.position == task.position
                && group.what == what
                && group.from == change.from
                && group.to == change.to
                && group.disruption == change.disruption
                && group.certainty == change.certainty
                && group.note == change.note
                && group.diff == change.diff
                && group.delegated_to == task.delegated_to
        });
        match (same, gpu) {
            (Some(group), Some(gpu)) => group.gpus.push(gpu),
            _ => groups.push(ChangeGroup {
                task: task.task.clone(),
                kind: task.kind.clone(),
                position: task.position.clone(),
                gpus: gpu.into_iter().collect(),
                what: what.to_owned(),
                from: change.from.clone(),
                to: change.to.clone(),
                disruption: change.disruption,
                certainty: change.certainty,
                note: change.note.clone(),
                diff: change.diff.clone(),
                delegated_to: task.delegated_to.clone(),
            }),
        }
    }
    groups
}

/// Why these nodes are disturbed as much as they are: the changes of that class, each said once, the most frequent
/// first; values are named where all nodes share them.
pub fn reasons<'a>(nodes: impl IntoIterator<Item = &'a NodeModel>, class: Disruption) -> Vec<String> {
    struct Seen {
        first: usize,
        nodes: usize,
        values: Option<String>,
    }
    let mut seen: HashMap<String, Seen> = HashMap::new();
    for node in nodes {
        let mut here: BTreeMap<String, Option<String>> = BTreeMap::new();
        let mut add = |label: String, values: Option<String>| {
            here.entry(label)
                .and_modify(|known| {
                    if *known != values {
                        *known = None;
                    }
                })
                .or_insert(values);
        };
        for (_, change) in node.changes().chain(node.changes_not_made()) {
            if change.disruption == class {
                let (_, what) = split_gpu(&change.what);
                add(what.to_owned(), Some(values(change.from.as_deref(), &change.to)));
            }
        }
        for waits in node.awaiting() {
            if waits.activation == class {
                let (_, reason) = split_gpu(&waits.reason);
                add(reason.to_owned(), None);
            }
        }
        for (label, values) in here {
            let first = seen.len();
            let entry = seen.entry(label).or_insert(Seen { first, nodes: 0, values: values.clone() });
            entry.nodes += 1;
            if entry.values != values {
                entry.values = None;
            }
        }
    }
    let mut all: Vec<(String, Seen)> = seen.into_iter().collect();
    all.sort_by_key(|(_, seen)| (std::cmp::Reverse(seen.nodes), seen.first));
    all.into_iter()
        .map(|(label, seen)| match seen.values {
            Some(values) => format!("{label} {values}"),
            None => label,
        })
        .collect()
}

/// Nodes that went wrong for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub state: NodeState,
    /// Task and its place, where one task is at fault.
    pub task: Option<(String, Position)>,
    pub text: String,
    pub hosts: Vec<String>,
}

/// The task that decided a bad node's fate.
pub(crate) fn culprit(node: &NodeModel) -> Option<&TaskReport> {
    let bad = [TaskStatus::Failed, TaskStatus::Unreachable, TaskStatus::Held, TaskStatus::Unknown];
    bad.into_iter().find_map(|status| node.tasks_in(status).next())
}

/// Text of a cause with the node's own name taken out, so that equal causes compare equal.
pub(crate) fn without_name(text: &str, host: &str) -> String {
    let text = text.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text);
    let whole = |text: &str, at: usize| {
        let inside = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        !text[..at].ends_with(inside) && !text[at + host.len()..].starts_with(inside)
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = 0;
    if !host.is_empty() {
        for (at, _) in text.match_indices(host) {
            if at >= rest && whole(text, at) {
                out.push_str(&text[rest..at]);
                out.push_str("the node");
                rest = at + host.len();
            }
        }
    }
    out.push_str(&text[rest..]);
    out
}

/// The bad nodes by cause, in the order of the inventory.
pub fn causes<'a>(nodes: impl IntoIterator<Item = &'a NodeModel>) -> Vec<Cause> {
    let mut all: Vec<Cause> = Vec::new();
    let mut index: HashMap<(NodeState, Option<Position>, String), usize> = HashMap::new();
    for node in nodes.into_iter().filter(|node| node.is_bad()) {
        let task = culprit(node).map(|task| (task.task.clone(), task.position.clone()));
        let message = node.message().unwrap_or("no reason was given");
        let text = without_name(message, &node.name);
        let key = (node.state, task.as_ref().map(|(_, position)| position.clone()), text.clone());
        match index.get(&key) {
            Some(at) => all[*at].hosts.push(node.name.clone()),
            None => {
                index.insert(key, all.len());
                all.push(Cause { state: node.state, task, text, hosts: vec![node.name.clone()] });
            }
        }
    }
    all
}

/// `8x H100 80GB HBM3`: what tells nodes of one kind from those of another; `None` where no GPU could be read.
pub fn hardware_class(facts: &Facts) -> Option<String> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &facts.gpu.gpus {
        *names.entry(gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name)).or_default() += 1;
    }
    let parts: Vec<String> = names.into_iter().map(|(name, count)| format!("{count}x {name}")).collect();
    if parts.is_empty() { None } else { Some(parts.join(" + ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_unit_is_written_once() {
        assert_eq!(values(Some("700 W"), "600 W"), "700 -> 600 W");
        assert_eq!(values(Some("60"), "10"), "60 -> 10");
        assert_eq!(values(None, "enabled"), "-> enabled");
        assert_eq!(values(Some("7x 1g.10gb"), "2x 3g.40gb"), "7x 1g.10gb -> 2x 3g.40gb");
    }

    #[test]
    fn a_cause_does_not_name_its_node() {
        assert_eq!(without_name("gpu1: connection refused", "gpu1"), "connection refused");
        assert_eq!(without_name("no route to gpu1 by gpu12", "gpu1"), "no route to the node by gpu12");
    }

    #[test]
    fn the_gpu_is_split_off() {
        assert_eq!(split_gpu("GPU 12 power limit"), (Some(12), "power limit"));
        assert_eq!(split_gpu("vm.swappiness"), (None, "vm.swappiness"));
        assert_eq!(split_gpu("GPU x"), (None, "GPU x"));
    }
}
