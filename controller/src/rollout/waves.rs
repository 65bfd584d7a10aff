//! Which nodes go in which wave.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Amount;

/// One entry of `waves` or `serial`; the last one repeats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batch {
    /// One node of each hardware class (GPU model, driver, firmware).
    Canary,
    Of(Amount),
}

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Canary => f.write_str("canary"),
            Self::Of(amount) => amount.fmt(f),
        }
    }
}

/// What the division into waves needs to know of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaveHost {
    /// Hardware class; nodes whose class could not be read share the empty one.
    pub class: String,
    /// Whether the node can be a canary at all: one that does not answer proves nothing.
    pub reachable: bool,
    /// Whether it has not answered yet: whoever is late goes last.
    pub late: bool,
    /// Whether an earlier play lost it: it takes no part in this one.
    pub gone: bool,
}

/// One wave: indexes into the play's hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// As written.
    pub label: String,
    pub hosts: Vec<usize>,
    pub canary: bool,
}

/// Divides the hosts that take part, in their order, into waves. No batches is one wave of all.
pub fn plan_waves(batches: &[Batch], hosts: &[WaveHost]) -> Vec<Wave> {
    let mut left: Vec<usize> =
        hosts.iter().enumerate().filter(|(_, host)| !host.gone).map(|(index, _)| index).collect();
    let taking_part = left.len();
    left.sort_by_key(|host| hosts.get(*host).is_some_and(|host| host.late));
    let mut waves = Vec::new();
    let mut entries = batches.iter();
    let mut last = None;
    while !left.is_empty() {
        let batch = match entries.next() {
            Some(batch) => Some(*batch),
            // Why: when only `canary` is written, everybody else follows in one wave.
            None => last.filter(|batch| *batch != Batch::Canary),
        };
        last = batch.or(last);
        let (label, picked) = match batch {
            None => ("all".to_owned(), left.clone()),
            Some(Batch::Canary) => ("canary".to_owned(), canaries(&left, hosts)),
            Some(Batch::Of(amount)) => {
                (amount.to_string(), left.iter().take(amount.batch(taking_part)).copied().collect())
            }
        };
        let gone: BTreeSet<usize> = picked.iter().copied().collect();
        left.retain(|host| !gone.contains(host));
        if !picked.is_empty() {
            waves.push(Wave { label, hosts: picked, canary: batch == Some(Batch::Canary) });
        }
    }
    waves
}

fn canaries(left: &[usize], hosts: &[WaveHost]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    left.iter()
        .copied()
        .filter(|host| hosts.get(*host).is_some_and(|h| h.reachable && seen.insert(h.class.clone())))
        .collect()
}
