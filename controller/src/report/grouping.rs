//! Combines similar items: changes of several GPUs, reasons of several nodes, failures with one cause.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use gpufleet_protocol::{Awaiting, Change, Disruption, Layer, Property, Subject, facts::Facts};

use super::{NodeModel, fold_names, fold_numbers};
use crate::{
    event::{NodeState, Position, TaskReport, TaskStatus},
    visible::command_word,
};

/// Changes that are equal except for the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChangeGroup {
    pub task: String,
    pub kind: String,
    pub position: Position,
    /// The changed host, if it is another one.
    pub delegated_to: Option<String>,
    /// Empty if the change is not about a GPU.
    pub gpus: Vec<u32>,
    /// What is common to all of them: see [`Change::of_any_gpu`].
    pub change: Change,
}

impl ChangeGroup {
    /// Returns `GPU 0-7`, or an empty text.
    pub fn gpu_label(&self) -> String {
        if self.gpus.is_empty() {
            return String::new();
        }
        format!("GPU {}", fold_numbers(self.gpus.iter().copied()))
    }

    /// Returns `/etc/motd`, or `/etc/motd on login1` if another host was changed.
    pub fn what(&self) -> String {
        let what = self.change.what_of_gpu();
        match &self.delegated_to {
            Some(other) => format!("{what} on {other}"),
            None => what,
        }
    }

    /// `power limit 700 -> 600 W`: what goes behind [`Self::gpu_label`].
    pub fn sentence(&self) -> String {
        format!("{} {}", self.change.what_of_gpu(), self.change.values())
    }
}

/// What a change is about, whichever GPU it is of.
fn about(change: &Change) -> (Option<&Subject>, &Property, Layer) {
    let (subject, property, layer) = change.about();
    (subject.gpu_index().is_none().then_some(subject), property, layer)
}

/// Splits `GPU 3 ECC is pending` into 3 and `ECC is pending`.
fn split_gpu(what: &str) -> (Option<u32>, &str) {
    let split = || {
        let (index, label) = what.strip_prefix("GPU ")?.split_once(' ')?;
        Some((index.trim_end_matches(':').parse().ok()?, label))
    };
    match split() {
        Some((index, label)) => (Some(index), label),
        None => (None, what),
    }
}

/// Combines texts that are equal except for the GPU that they name: `GPU 0-7 ECC enabled is pending`. Equal texts are
/// listed once.
pub fn fold_gpus<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut groups: Vec<(Vec<u32>, (&str, &str))> = Vec::new();
    let mut places: HashMap<_, usize> = HashMap::new();
    for text in texts {
        let (gpu, around) = find_gpu(text);
        match places.entry((around, gpu.is_some())) {
            Entry::Occupied(place) => groups[*place.get()].0.extend(gpu),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push((gpu.into_iter().collect(), around));
            }
        }
    }
    let told = |(gpus, (before, after)): (Vec<u32>, (&str, &str))| match gpus.is_empty() {
        true => before.to_owned(),
        false => format!("{before}GPU {}{after}", fold_numbers(gpus)),
    };
    groups.into_iter().map(told).collect()
}

/// Returns the first GPU that a text names, and the text around it.
fn find_gpu(text: &str) -> (Option<u32>, (&str, &str)) {
    for (at, found) in text.match_indices("GPU ") {
        let rest = &text[at + found.len()..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let whole =
            !text[..at].ends_with(char::is_alphanumeric) && !rest[digits..].starts_with(['-', ',', '.']);
        if let (Ok(index), true) = (rest[..digits].parse(), whole) {
            return (Some(index), (&text[..at], &rest[digits..]));
        }
    }
    (None, (text, ""))
}

/// Combines one node's changes of several GPUs, in order of first appearance.
pub fn fold_changes<'a>(changes: impl Iterator<Item = (&'a TaskReport, &'a Change)>) -> Vec<ChangeGroup> {
    let mut groups: Vec<ChangeGroup> = Vec::new();
    // For changes that are equal except for the GPU: their groups in order, and for each GPU the number of groups that
    // contain it. These are always the first ones, since each change goes to the first group that lacks its GPU.
    let mut alike: HashMap<_, (Vec<usize>, HashMap<u32, usize>)> = HashMap::new();
    for (task, change) in changes {
        let gpu = change.subject.gpu_index();
        let rest =
            (&change.from, &change.to, change.disruption, change.certainty, &change.note, &change.diff);
        let key = (&task.task, &task.position, &task.delegated_to, about(change), rest);
        let same = gpu.and_then(|gpu| {
            let (places, named) = alike.entry(key).or_default();
            let nth = named.entry(gpu).or_default();
            *nth += 1;
            let place = places.get(*nth - 1).copied();
            if place.is_none() {
                places.push(groups.len());
            }
            place
        });
        match (same, gpu) {
            (Some(place), Some(gpu)) => groups[place].gpus.push(gpu),
            _ => groups.push(ChangeGroup {
                task: task.task.clone(),
                kind: task.kind.clone(),
                position: task.position.clone(),
                delegated_to: task.delegated_to.clone(),
                gpus: gpu.into_iter().collect(),
                change: change.of_any_gpu(),
            }),
        }
    }
    groups
}

/// Number of different MIG layouts that one reason names.
const LAYOUTS: usize = 3;

/// Returns why these nodes are disturbed that much: the changes of that class, each listed once, those of GPUs and the
/// most frequent first; with values if all nodes share them.
///
/// A change of the MIG mode tells neither which instances are destroyed nor which are made, so that the layouts stand
/// beside it, whatever they disturb.
pub fn reasons<'a>(nodes: impl IntoIterator<Item = &'a NodeModel>, class: Disruption) -> Vec<String> {
    let mut seen: HashMap<About<'a>, Seen<'a>> = HashMap::new();
    for node in nodes {
        let all = || node.changes().chain(node.changes_not_made()).map(|(_, change)| change);
        let of_class = |change: &&Change| change.disruption == class;
        let switches = all().filter(of_class).any(|change| change.property == Property::MIG_MODE);
        let told = |change: &&Change| of_class(change) || switches && change.property == Property::MIG_LAYOUT;
        let changes = all().filter(told).map(Reason::of_change);
        let waits = node.awaiting().into_iter().filter(|waits| waits.activation == class);
        let mut here: Vec<Reason<'a>> = changes.chain(waits.map(Reason::of_waiting)).collect();
        here.sort_by(|one, other| one.label.cmp(&other.label));
        let mut counted: HashSet<About<'a>> = HashSet::new();
        for reason in here {
            let first = seen.len();
            let known = seen.entry(reason.about).or_insert_with(|| Seen {
                first,
                nodes: 0,
                gpu: false,
                label: reason.label,
                values: Vec::new(),
            });
            known.gpu |= reason.gpu;
            known.nodes += usize::from(counted.insert(reason.about));
            let is_new = |change: &&Change| {
                let same = |known: &&Change| (&known.from, &known.to) == (&change.from, &change.to);
                known.values.len() <= LAYOUTS && !known.values.iter().any(same)
            };
            let value = reason.change.filter(is_new);
            known.values.extend(value);
        }
    }
    let mut all: Vec<Seen<'a>> = seen.into_values().collect();
    all.sort_by_key(|seen| (!seen.gpu, std::cmp::Reverse(seen.nodes), seen.first));
    let text = |seen: Seen<'a>| match seen.values.as_slice() {
        [one] => format!("{} {}", seen.label, one.values()),
        [first, ..] if first.property == Property::MIG_LAYOUT => {
            let layouts: Vec<String> =
                seen.values.iter().take(LAYOUTS).map(|change| change.values()).collect();
            let more = if seen.values.len() > LAYOUTS { " or another" } else { "" };
            format!("{} {}{more}", seen.label, layouts.join(" or "))
        }
        _ => seen.label,
    };
    let mut told: Vec<String> = Vec::with_capacity(all.len());
    for reason in all.into_iter().map(text) {
        // Kernel parameters, for example, share one label.
        if !told.contains(&reason) {
            told.push(reason);
        }
    }
    told
}

/// What a reason is about, whichever GPU and node it is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum About<'a> {
    Change(Option<&'a Subject>, &'a Property, Layer),
    Waits(&'a str),
}

/// One thing that makes a node disturbed.
struct Reason<'a> {
    about: About<'a>,
    gpu: bool,
    label: String,
    change: Option<&'a Change>,
}

impl<'a> Reason<'a> {
    fn of_change(change: &'a Change) -> Self {
        let (subject, property, layer) = about(change);
        Self {
            about: About::Change(subject, property, layer),
            gpu: subject.is_none(),
            label: change.what_of_gpu(),
            change: Some(change),
        }
    }

    fn of_waiting(waits: &'a Awaiting) -> Self {
        let (gpu, text) = split_gpu(&waits.reason);
        Self { about: About::Waits(text), gpu: gpu.is_some(), label: text.to_owned(), change: None }
    }
}

/// The reasons that are about the same, of all nodes.
struct Seen<'a> {
    first: usize,
    nodes: usize,
    gpu: bool,
    label: String,
    /// Those with different values, up to one more than are told.
    values: Vec<&'a Change>,
}

/// Nodes that failed for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub state: NodeState,
    /// The task and its place, if one task is the cause.
    pub task: Option<(String, Position)>,
    pub text: String,
    pub hosts: Vec<String>,
}

/// Returns the task that decided the state of a bad node.
pub(crate) fn culprit(node: &NodeModel) -> Option<&TaskReport> {
    let bad = [TaskStatus::Failed, TaskStatus::Unreachable, TaskStatus::Held, TaskStatus::Unknown];
    bad.into_iter().find_map(|status| node.tasks_in(status).next())
}

/// Stands for a node's own name in commands of a cause's text.
const IN_COMMAND: &str = "NODE";

/// Removes the node's own name from a cause's text, so that equal causes compare equal.
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
                // Not in commands, because people copy them.
                let in_command = text[..at].matches('`').count() % 2 == 1;
                out.push_str(if in_command { IN_COMMAND } else { "the node" });
                rest = at + host.len();
            }
        }
    }
    out.push_str(&text[rest..]);
    out
}

/// Returns the bad nodes by cause, in the order of the inventory.
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
    for cause in &mut all {
        cause.text = with_names_in_commands(&cause.text, &cause.hosts);
    }
    all
}

/// Puts the names that [`without_name`] took out of commands back where the command works with them: one name in any, several
/// in those of gpufleet, which take patterns of hosts.
pub(crate) fn with_names_in_commands(text: &str, hosts: &[String]) -> String {
    let names = command_word(&fold_names(hosts));
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let works = at % 2 == 1 && (hosts.len() == 1 || part.starts_with("gpufleet "));
        if works { part.replace(IN_COMMAND, &names) } else { part.to_owned() }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Returns a node's hardware, such as `8x H100 80GB HBM3`; `None` if no GPU could be read.
pub fn hardware_class(facts: &Facts) -> Option<String> {
    class_of(facts.gpu.gpus.iter().map(|gpu| gpu.name.as_str()))
}

/// Returns the hardware that GPUs of these names are.
pub(super) fn class_of<'a>(gpus: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for name in gpus {
        *names.entry(name.strip_prefix("NVIDIA ").unwrap_or(name)).or_default() += 1;
    }
    let parts: Vec<String> = names.into_iter().map(|(name, count)| format!("{count}x {name}")).collect();
    if parts.is_empty() { None } else { Some(parts.join(" + ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_does_not_name_its_node() {
        assert_eq!(without_name("gpu1: connection refused", "gpu1"), "connection refused");
        assert_eq!(without_name("no route to gpu1 by gpu12", "gpu1"), "no route to the node by gpu12");
        let command = "gpu1 stays cordoned (`kubectl describe node gpu1`)";
        assert_eq!(without_name(command, "gpu1"), "the node stays cordoned (`kubectl describe node NODE`)");
    }

    #[test]
    fn commands_of_a_cause_can_be_pasted() {
        let named = |text: &str, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            with_names_in_commands(&without_name(text, &hosts[0]), &hosts)
        };
        let own = "gpu1 is out: `gpufleet run p.yaml --limit gpu1`";
        assert_eq!(named(own, &["gpu1"]), "the node is out: `gpufleet run p.yaml --limit gpu1`");
        assert_eq!(
            named(own, &["gpu1", "gpu2"]),
            "the node is out: `gpufleet run p.yaml --limit 'gpu[1,2]'`"
        );
        let foreign = "see `kubectl describe node gpu1`";
        assert_eq!(named(foreign, &["gpu1"]), foreign);
        assert_eq!(named(foreign, &["gpu1", "gpu2"]), "see `kubectl describe node NODE`");
    }

    #[test]
    fn texts_that_differ_in_the_gpu_are_one() {
        let each = |of: &dyn Fn(u32) -> String| (0..8).map(of).collect::<Vec<_>>();
        let folded = |texts: Vec<String>| fold_gpus(texts.iter().map(String::as_str)).join("\n");
        assert_eq!(
            folded(each(&|gpu| format!("GPU {gpu} ECC enabled is pending"))),
            "GPU 0-7 ECC enabled is pending"
        );
        assert_eq!(folded(each(&|gpu| format!("the limit of GPU {gpu}: no"))), "the limit of GPU 0-7: no");
        let mixed = ["GPU 1 a", "GPU 3 a", "GPU 2 b", "no GPU", "no GPU", "GPU 0-7 a", "7 GPUs"];
        assert_eq!(fold_gpus(mixed), ["GPU 1,3 a", "GPU 2 b", "no GPU", "GPU 0-7 a", "7 GPUs"]);
    }

    #[test]
    fn the_gpu_is_split_off() {
        assert_eq!(split_gpu("GPU 12 ECC is pending"), (Some(12), "ECC is pending"));
        assert_eq!(split_gpu("vm.swappiness"), (None, "vm.swappiness"));
        assert_eq!(split_gpu("GPU x"), (None, "GPU x"));
    }
}
