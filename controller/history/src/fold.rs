//! Since when: what the readings of one node come to, one after the other. Pure.
//!
//! A finding is told by its control, its subject, and whether it is a judgement or says that nothing could be judged; its text
//! and evidence may differ from audit to audit. An audit that has it continues it. One that does not have it
//!
//! - ends it, if it judged the control on this node, or if the audit is of the same playbooks and baselines as the last one that
//!   found it, read the node to the end, and does not ask for the control any more;
//! - neither ends nor continues it otherwise: the control was not asked for, could not be judged, or the node was not reached.
//!
//! "Could not be read" is a finding of its own. It leaves the judgement before it open, and ends with the next judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_compliance::{Action, Verdict};
use serde::{Deserialize, Serialize};

/// What stays the same of a finding over audits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    pub control: i64,
    pub subject: String,
    /// Whether it says that nothing could be judged.
    pub unknown: bool,
}

/// What became of the controls that an audit asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ControlIds {
    pub judged: BTreeSet<i64>,
    pub not_judged: BTreeSet<i64>,
    pub complete: bool,
}

/// Ids of findings, by what stays the same of them; nodes with the same findings share it.
pub(crate) type FoundByKey = Arc<BTreeMap<Key, Vec<i64>>>;

/// What one audit found about one node.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Microseconds since 1970.
    pub at: i64,
    pub run: Arc<str>,
    /// The same for audits of the same playbooks and baselines.
    pub series: Arc<str>,
    pub summary: Summary,
    pub found: FoundByKey,
    pub controls: Arc<ControlIds>,
}

impl Reading {
    /// Where it stands in time. The id of the run decides between equal times, so that every store has the same order.
    pub fn place(&self) -> (i64, &str) {
        (self.at, &self.run)
    }
}

/// A reading without its findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub verdict: Verdict,
    pub action: Action,
    pub compliant: bool,
    pub score: Option<u8>,
    pub judged: u32,
    pub applicable: u32,
}

/// A finding in audits in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Streak {
    pub since: i64,
    pub last: i64,
    pub audits: u32,
    /// That of the last audit that found it.
    pub series: String,
    /// What that audit found.
    pub found: Vec<i64>,
}

/// A verdict in audits in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerdictStreak {
    pub verdict: Verdict,
    pub since: i64,
    pub last: i64,
    pub audits: u32,
}

impl VerdictStreak {
    /// What a reading makes of the verdict before it.
    pub fn after(before: Option<Self>, reading: &Reading) -> Self {
        let verdict = reading.summary.verdict;
        match before.filter(|before| before.verdict == verdict) {
            Some(before) => Self { last: reading.at, audits: before.audits + 1, ..before },
            None => Self { verdict, since: reading.at, last: reading.at, audits: 1 },
        }
    }
}

/// What is known of a node after its readings so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub verdict: Option<VerdictStreak>,
    pub open: BTreeMap<Key, Streak>,
}

/// What a reading ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub verdict: Option<VerdictStreak>,
    pub findings: Vec<(Key, Streak)>,
}

impl State {
    /// Takes in the next reading; readings come in the order of their places.
    pub fn step(&mut self, reading: &Reading) -> Ended {
        let mut ended = Ended::default();
        let after = VerdictStreak::after(self.verdict, reading);
        ended.verdict = self.verdict.replace(after).filter(|before| before.verdict != after.verdict);
        ended.findings = self.open.extract_if(.., |key, streak| ends(key, streak, reading)).collect();
        for (key, found) in &*reading.found {
            let streak = self.open.entry(key.clone()).or_insert_with(|| Streak {
                since: reading.at,
                last: reading.at,
                audits: 0,
                series: String::new(),
                found: Vec::new(),
            });
            streak.last = reading.at;
            streak.audits += 1;
            (*reading.series).clone_into(&mut streak.series);
            streak.found.clone_from(found);
        }
        ended
    }
}

/// Whether a reading says that an open finding is gone.
fn ends(key: &Key, streak: &Streak, reading: &Reading) -> bool {
    if reading.found.contains_key(key) {
        return false;
    }
    let other = Key { unknown: !key.unknown, ..key.clone() };
    if reading.found.contains_key(&other) {
        return key.unknown;
    }
    let controls = &reading.controls;
    if controls.judged.contains(&key.control) {
        return true;
    }
    let is_asked = controls.not_judged.contains(&key.control);
    controls.complete && !is_asked && *streak.series == *reading.series
}
