//! Divides nodes into waves.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

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

/// The properties of a node that decide its wave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaveHost {
    /// Hardware class; `None` if it could not be read, or the node is not healthy: its driver does not answer, or
    /// does not show all GPUs.
    pub class: Option<String>,
    /// Number of GPUs found.
    pub gpus: usize,
    /// Number of its GPUs' readings that failed.
    pub flaws: usize,
    /// Stands for what is to be done there, the same for nodes that need the same; `None` if all is as declared, or
    /// nobody knows.
    pub work: Option<u64>,
    /// Whether the node answers; one that does not is no canary.
    pub reachable: bool,
    /// Whether it has not answered yet; such nodes go last.
    pub late: bool,
    /// Whether an earlier play lost it, so that it takes no part in this one.
    pub gone: bool,
}

impl WaveHost {
    /// Whether others of its class can be judged by it.
    pub const fn is_known(&self) -> bool {
        self.reachable && !self.late && self.class.is_some()
    }
}

/// One wave: indexes into the play's hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// The label as written.
    pub label: String,
    pub hosts: Vec<usize>,
    pub canary: bool,
    /// Whether its nodes have an unknown class, so that no canary stands for them.
    #[serde(default)]
    pub aside: bool,
}

/// Divides the hosts that take part into waves, in their order. Without batches, all are one wave.
///
/// With canaries, nodes of unknown class are no canaries and go last: what is broken already proves nothing about the
/// change. Only if the class of no node is known, the first that answers is the canary.
pub fn plan_waves(batches: &[Batch], hosts: &[WaveHost]) -> Vec<Wave> {
    let get = |host: &usize| hosts.get(*host);
    let mut left: Vec<usize> =
        hosts.iter().enumerate().filter(|(_, host)| !host.gone).map(|(index, _)| index).collect();
    let taking_part = left.len();
    let known = |host: &usize| get(host).is_some_and(WaveHost::is_known);
    let divides = batches.contains(&Batch::Canary) && left.iter().any(known);
    let is_aside = |host: &usize| divides && !known(host);
    left.sort_by_key(|host| (is_aside(host), get(host).is_some_and(|host| host.late)));
    let mut waves = Vec::new();
    let mut entries = batches.iter();
    let mut last = None;
    while let Some(first) = left.first() {
        let aside = is_aside(first);
        let alike = left.iter().copied().filter(|host| is_aside(host) == aside);
        let batch = match entries.next() {
            Some(batch) => Some(*batch),
            // If only `canary` is written, all others follow in one wave.
            None => last.filter(|batch| *batch != Batch::Canary),
        };
        last = batch.or(last);
        let (label, picked) = match batch {
            None => ("all".to_owned(), alike.collect()),
            Some(Batch::Canary) if aside => continue,
            Some(Batch::Canary) => ("canary".to_owned(), canaries(&left, hosts)),
            Some(Batch::Of(amount)) => {
                (amount.to_string(), alike.take(amount.batch(taking_part)).collect::<Vec<usize>>())
            }
        };
        let gone: BTreeSet<usize> = picked.iter().copied().collect();
        left.retain(|host| !gone.contains(host));
        if !picked.is_empty() {
            waves.push(Wave { label, hosts: picked, canary: batch == Some(Batch::Canary), aside });
        }
    }
    waves
}

/// Returns one node of each known class in which something is to be done: the first of those with as many GPUs as most of
/// the class, as one that lost some represents no other, with the fewest failed readings, and with the work that most of
/// the class have. A node that is as declared proves nothing; only if all are, one of each class goes first.
fn canaries(left: &[usize], hosts: &[WaveHost]) -> Vec<usize> {
    let here = || left.iter().filter_map(|host| Some((*host, hosts.get(*host)?)));
    let mut classes: BTreeMap<&str, Vec<(usize, &WaveHost)>> = BTreeMap::new();
    for (index, host) in here().filter(|(_, host)| host.is_known()) {
        classes.entry(host.class.as_deref().unwrap_or_default()).or_default().push((index, host));
    }
    if classes.is_empty() {
        return here()
            .find(|(_, host)| host.reachable && !host.late)
            .map(|(index, _)| index)
            .into_iter()
            .collect();
    }
    let works = here().any(|(_, host)| host.is_known() && host.work.is_some());
    let best = |of: Vec<(usize, &WaveHost)>| {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        of.iter().for_each(|(_, host)| *counts.entry(host.gpus).or_default() += 1);
        let usual = counts.into_iter().max_by_key(|(gpus, nodes)| (*nodes, *gpus)).map(|(gpus, _)| gpus);
        let alike = |work: Option<u64>| of.iter().filter(|(_, host)| host.work == work).count();
        let candidates = of.iter().filter(|(_, host)| !works || host.work.is_some());
        candidates
            .min_by_key(|(_, host)| (Some(host.gpus) != usual, host.flaws, Reverse(alike(host.work))))
            .map(|(index, _)| *index)
    };
    let chosen: BTreeSet<usize> = classes.into_values().filter_map(best).collect();
    left.iter().copied().filter(|host| chosen.contains(host)).collect()
}
