//! Nodes beside nodes: which differ from others like them.
//!
//! Each node is judged by itself first, and gives the few values that are compared ([`peers`]); when all are there,
//! [`compare`] finds those that differ. Nodes are alike if they have the same GPUs, the same groups of the policy, and
//! the same values of what a comparison names. Fewer than five values are compared with nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use gpufleet_protocol::signal::{Readings, Signal, Signals, SubjectReadings};
use serde_json::Value;

use crate::catalogue::{Catalogue, Check};
use crate::finding::{Finding, Subject};
use crate::policy::NodePolicy;
use crate::rule::{Code, NoOthers, Scene};
use crate::verdict::{Action, Scope, Verdict};

/// Values that are needed to say what is usual.
const LEAST_MEMBERS: usize = 5;
/// The share that must agree on a word, in hundredths.
const MAJORITY: usize = 80;
/// How far from the median a number is odd, in median deviations.
const FAR: f64 = 4.0;
/// What makes of a median deviation the standard deviation of a normal distribution.
const NORMAL: f64 = 1.4826;
/// Subjects of one node, and characters of a word.
const MOST_SUBJECTS: usize = 64;
const MOST_WORD: usize = 80;
/// The check that says whether all GPUs are there.
const GPU_COUNT: &str = "inv.gpu_count";
/// Values of a mixed group that are named.
const MOST_NAMED: usize = 3;

/// A comparison of a check.
#[derive(Debug)]
pub struct Outlier {
    /// The signal that is compared.
    pub of: (Scope, Arc<str>),
    /// Of whom; everyone without it.
    pub when: Option<Code>,
    /// Signals in which those must agree that are compared.
    pub alike: Vec<(Scope, Arc<str>)>,
    /// Whether only GPUs, or ports, at the same place of their nodes are compared.
    pub same_place: bool,
    pub measure: Measure,
    pub action: Action,
    /// What an odd one is, in words.
    pub note: Arc<str>,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Odd is what most others do not have.
    Same,
    /// Odd is what differs from the median by more than this share of it.
    Near(f64),
    /// Odd is what exceeds the median by more than this.
    High(f64),
    /// Odd is what is less than this share of the median.
    Low(f64),
}

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Number(f64),
    Word(Arc<str>),
}

impl Cell {
    fn of(signal: Option<&Signal>) -> Option<Self> {
        match signal?.known()? {
            Value::Number(number) => number.as_f64().map(Self::Number),
            Value::String(text) => Some(Self::Word(text.chars().take(MOST_WORD).collect::<String>().into())),
            Value::Bool(value) => Some(Self::Number(f64::from(u8::from(*value)))),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Word(word) => word.to_string(),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Word(_) => None,
        }
    }
}

/// The values of one node that are compared with those of others.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    values: Vec<Entry>,
    /// How many GPUs driver or PCI bus show; `None` where that is not known, or the policy declares a number.
    gpus: Option<u64>,
}

/// Where the check stands in the catalogue, and the comparison among those of the check.
type Place = (usize, usize);

#[derive(Clone, Debug)]
struct Entry {
    place: Place,
    /// Of everything in which those that are compared are alike.
    key: u64,
    cell: Cell,
    subjects: Vec<Subject>,
}

/// Returns the values of a node that are compared. `groups` are those of the inventory by which the policy tells nodes
/// apart.
pub fn peers(policy: &NodePolicy, signals: &Signals, groups: &[&str]) -> Peers {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &signals.gpus {
        let name = gpu.readings.get("name").and_then(Signal::known).and_then(Value::as_str);
        *names.entry(name.unwrap_or_default()).or_default() += 1;
    }
    let mut class = DefaultHasher::new();
    (names, groups).hash(&mut class);
    let mut peers = Peers { gpus: gpus(policy, signals), ..Peers::default() };
    for entry in &policy.checks {
        let Some(position) = Catalogue::get().position(&entry.check.id) else { continue };
        for (at, outlier) in entry.check.outliers.iter().enumerate() {
            let subjects: Vec<(Subject, Option<&SubjectReadings>)> = match entry.check.scope {
                Scope::Node => vec![(Subject::Node, None)],
                Scope::Gpu => {
                    let gpus = signals.gpus.iter().take(MOST_SUBJECTS);
                    gpus.map(|gpu| (Subject::gpu(gpu), Some(gpu))).collect()
                }
                Scope::Port => {
                    let ports = signals.ports.iter().take(MOST_SUBJECTS);
                    ports.map(|port| (Subject::port(port), Some(port))).collect()
                }
                Scope::Disk => Vec::new(),
            };
            for (subject, readings) in subjects {
                let scene = Scene::of(signals, readings, &policy.declared, &entry.params, &NoOthers);
                if outlier.when.as_ref().is_some_and(|when| !when.holds(&scene).holds()) {
                    continue;
                }
                let of = |(scope, name): &(Scope, Arc<str>)| {
                    let readings: Option<&Readings> = match scope {
                        Scope::Node => Some(&signals.node),
                        Scope::Gpu | Scope::Disk | Scope::Port => readings.map(|it| &it.readings),
                    };
                    readings.and_then(|readings| readings.get(&**name))
                };
                let Some(cell) = Cell::of(of(&outlier.of)) else { continue };
                let mut key = class.clone();
                for name in &outlier.alike {
                    Cell::of(of(name)).map(|cell| cell.text()).hash(&mut key);
                }
                if outlier.same_place {
                    subject.label().hash(&mut key);
                }
                peers.add((position, at), key.finish(), cell, subject);
            }
        }
    }
    peers
}

/// Returns how many GPUs a node shows, where its number is judged and not declared.
fn gpus(policy: &NodePolicy, signals: &Signals) -> Option<u64> {
    let asked = policy.checks.iter().any(|entry| &*entry.check.id == GPU_COUNT);
    let declared = policy.declared.get("gpu_count").is_some_and(|value| !value.is_null());
    if !asked || declared {
        return None;
    }
    let count = |name: &str| signals.node.get(name).and_then(Signal::known).and_then(Value::as_u64);
    let listed = match signals.node.get("nvml_count") {
        Some(Signal::Absent) => Some(0),
        _ => count("nvml_count"),
    };
    match (listed, count("pci_count")) {
        // What could not be read shows no node without GPUs.
        (Some(listed), Some(on_bus)) => Some(listed.max(on_bus)),
        (Some(some @ 1..), None) | (None, Some(some @ 1..)) => Some(some),
        _ => None,
    }
}

/// Finds nodes without any GPU in groups of which most other nodes have some. `nodes` have a name each; `groups` are
/// those of the inventory, by their members. Findings stand by the place of their node.
pub fn bare<'a>(
    nodes: &[(&str, &Peers)],
    groups: impl Iterator<Item = (&'a str, &'a BTreeSet<String>)>,
) -> BTreeMap<usize, Vec<Finding>> {
    let mut found = BTreeMap::new();
    let Some(check) = Catalogue::get().check(GPU_COUNT) else { return found };
    if nodes.iter().all(|(_, peers)| peers.gpus != Some(0)) {
        return found;
    }
    for (group, members) in groups {
        let known = || nodes.iter().enumerate().filter(|(_, (name, _))| members.contains(*name));
        let some = known().filter(|(_, (_, peers))| peers.gpus > Some(0)).count();
        let none: Vec<usize> =
            known().filter(|(_, (_, peers))| peers.gpus == Some(0)).map(|(place, _)| place).collect();
        // Of the others, so that one of two is told.
        if none.is_empty() || some < none.len() {
            continue;
        }
        let others = some + none.len() - 1;
        for place in none {
            found.entry(place).or_insert_with(|| {
                let note = format!(
                    "neither the driver nor the PCI bus shows a GPU, and {some} of the {others} other nodes of the group \
                     `{group}` have some; declare `gpu_count: 0` if that is meant"
                );
                vec![Finding {
                    check: Arc::clone(check),
                    subject: Subject::Node,
                    verdict: Verdict::Fail,
                    action: Action::Investigate,
                    note: note.into(),
                    expected: None,
                    evidence: vec![("pci_count".into(), Signal::from(0_u32))],
                    na: None,
                    waived: None,
                    explained_by: None,
                    standing: None,
                    watch: None,
                }]
            });
        }
    }
    found
}

impl Peers {
    fn add(&mut self, place: Place, key: u64, cell: Cell, subject: Subject) {
        let same = |it: &&mut Entry| it.place == place && it.key == key && it.cell == cell;
        match self.values.iter_mut().find(same) {
            Some(entry) => entry.subjects.push(subject),
            None => self.values.push(Entry { place, key, cell, subjects: vec![subject] }),
        }
    }
}

/// What a comparison of nodes found.
#[derive(Debug, Default)]
pub struct Compared {
    /// By the place of the node among those that were compared.
    pub findings: BTreeMap<usize, Vec<Finding>>,
    pub mixed: Vec<Mixed>,
}

/// Nodes that are alike and have no majority for a value: a finding about all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixed {
    pub check: Arc<str>,
    /// The first of the nodes, by its place.
    pub first: usize,
    /// In one sentence.
    pub text: String,
}

/// Compares nodes with each other.
pub fn compare<'a>(nodes: impl IntoIterator<Item = &'a Peers>) -> Compared {
    let mut groups: HashMap<(Place, u64), Vec<(usize, &Entry)>> = HashMap::new();
    for (node, peers) in nodes.into_iter().enumerate() {
        for entry in &peers.values {
            groups.entry((entry.place, entry.key)).or_default().push((node, entry));
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // In one order each time: by check, then by the first node.
    groups.sort_by_key(|((place, _), members)| (*place, members.first().map(|(node, _)| *node)));
    let mut compared = Compared::default();
    for (((check, at), _), members) in groups {
        let count: usize = members.iter().map(|(_, entry)| entry.subjects.len()).sum();
        let Some(check) = Catalogue::get().checks().get(check) else { continue };
        let Some(outlier) = check.outliers.get(at).filter(|_| count >= LEAST_MEMBERS) else { continue };
        match outlier.measure {
            Measure::Same => same(check, outlier, &members, count, &mut compared),
            measure => numbers(check, outlier, measure, &members, count, &mut compared),
        }
    }
    compared
}

type Members<'a> = [(usize, &'a Entry)];

fn same(check: &Arc<Check>, outlier: &Outlier, members: &Members<'_>, count: usize, into: &mut Compared) {
    let mut by_text: BTreeMap<String, (&Cell, usize)> = BTreeMap::new();
    for (_, entry) in members {
        by_text.entry(entry.cell.text()).or_insert((&entry.cell, 0)).1 += entry.subjects.len();
    }
    let mut counts: Vec<(&Cell, usize)> = by_text.into_values().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let Some((usual, most)) = counts.first().copied() else { return };
    if most * 100 < count * MAJORITY {
        let nodes: std::collections::BTreeSet<usize> = members.iter().map(|(node, _)| *node).collect();
        let named =
            counts.iter().take(MOST_NAMED).map(|(cell, count)| format!("{count} have {}", cell.text()));
        let named: Vec<String> = named.collect();
        let rest = if counts.len() > MOST_NAMED { ", …" } else { "" };
        into.mixed.push(Mixed {
            check: Arc::clone(&check.id),
            first: nodes.first().copied().unwrap_or_default(),
            text: format!(
                "{} nodes that are alike differ in `{}`: {}{rest}",
                nodes.len(),
                outlier.of.1,
                named.join(", ")
            ),
        });
        return;
    }
    for (node, entry) in members.iter().filter(|(_, entry)| entry.cell != *usual) {
        let said = format!("{}; {most} of {count} have {}", outlier.note, usual.text());
        into.add(*node, check, outlier, entry, &said);
    }
}

fn numbers(
    check: &Arc<Check>,
    outlier: &Outlier,
    measure: Measure,
    members: &Members<'_>,
    count: usize,
    into: &mut Compared,
) {
    let all = members.iter().flat_map(|(_, entry)| {
        entry.cell.number().into_iter().flat_map(|number| std::iter::repeat_n(number, entry.subjects.len()))
    });
    let mut values: Vec<f64> = all.collect();
    let Some(median) = median(&mut values) else { return };
    let mut off: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    let Some(deviation) = self::median(&mut off) else { return };
    let far = FAR * NORMAL * deviation;
    let odd = |value: f64| match measure {
        Measure::Same => false,
        Measure::Near(share) => (value - median).abs() > far.max(share * median.abs()),
        Measure::High(least) => value - median > far.max(least),
        Measure::Low(ratio) => value < median * ratio && median - value > far,
    };
    for (node, entry) in members.iter().filter(|(_, entry)| entry.cell.number().is_some_and(odd)) {
        let said = format!("{}; the median of {count} is {median}", outlier.note);
        into.add(*node, check, outlier, entry, &said);
    }
}

/// The middle of values, which it sorts.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let high = *values.get(values.len() / 2)?;
    let low = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(low, high))
}

impl Compared {
    fn add(&mut self, node: usize, check: &Arc<Check>, outlier: &Outlier, entry: &Entry, said: &str) {
        let value = match &entry.cell {
            Cell::Number(number) => Signal::from(*number),
            Cell::Word(word) => Signal::from(&**word),
        };
        let found = entry.subjects.iter().map(|subject| Finding {
            check: Arc::clone(check),
            subject: subject.clone(),
            verdict: Verdict::Warn,
            action: outlier.action,
            note: said.into(),
            expected: None,
            evidence: vec![(Arc::clone(&outlier.of.1), value.clone())],
            na: None,
            waived: None,
            explained_by: None,
            standing: None,
            watch: None,
        });
        self.findings.entry(node).or_default().extend(found);
    }
}

/// Puts what a comparison found beside what a node's own readings say. What is not ok already stays as it is.
pub fn merge(findings: &mut Vec<Finding>, found: Vec<Finding>) {
    for finding in found {
        let same = |it: &&mut Finding| it.check.id == finding.check.id && it.subject == finding.subject;
        match findings.iter_mut().find(same) {
            Some(known) if known.verdict.is_not_ok() => {}
            Some(known) => *known = finding,
            None => findings.push(finding),
        }
    }
}
