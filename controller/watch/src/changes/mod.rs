//! What changed between two audits, and what of it is told. Pure.
//!
//! Every place where a cause was found (node and subject) has the verdict that holds and the one that was told last.
//! Whatever differs is told, equal differences of several nodes as one, unless the verdict of the place flaps.

mod tell;

use std::collections::{BTreeMap, HashMap};

use gpufleet_compliance::{Action, Severity, Verdict};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    notification::{Kind, Notification},
    reading::{Finding, NodeReading, Reading, is_check},
};

pub use self::tell::{bounded, test};

/// A verdict that changes this often within [`FLAPPING_TIME`] flaps.
const FLAPPING_CHANGES: usize = 4;
const FLAPPING_TIME: SignedDuration = SignedDuration::from_hours(24);

/// What is known of the nodes of one schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// By control.
    causes: BTreeMap<String, Cause>,
    /// Since when audits themselves fail, and when that was told last.
    failing: Option<Failing>,
    /// How many audits were observed, so that ids differ.
    observed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Failing {
    since: Timestamp,
    told: Timestamp,
}

/// One control, wherever it is not ok.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cause {
    title: String,
    severity: Severity,
    /// When it was told last.
    told: Option<Timestamp>,
    /// The baseline that found it last; `None` where that is not known.
    #[serde(default)]
    baseline: Option<String>,
    /// By node, then by subject.
    nodes: BTreeMap<String, BTreeMap<String, Place>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Place {
    /// What holds; `None` if it is gone.
    verdict: Option<Verdict>,
    /// What was told last; `None` for nothing, and for a recovery.
    told: Option<Verdict>,
    /// The severity with which that was told.
    #[serde(default)]
    severity_told: Option<Severity>,
    since: Timestamp,
    text: String,
    action: Action,
    /// When the verdict changed, for as long as that counts.
    changes: Vec<Timestamp>,
    #[serde(default)]
    flapping: bool,
}

/// Where notifications come from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub watcher: &'a str,
    pub schedule: &'a str,
    pub reminder: Option<SignedDuration>,
}

/// One thing to tell about a place.
#[derive(Clone, Debug)]
struct Change {
    control: String,
    kind: Kind,
    before: Option<Verdict>,
    severity_before: Option<Severity>,
    verdict: Option<Verdict>,
    node: String,
    subject: String,
    text: String,
    since: Timestamp,
    action: Action,
}

/// What an audit says of a place.
enum Seen<'a> {
    Found(&'a Finding),
    Gone,
    /// Not gone, but nothing that is told.
    Closed(String),
    /// It was not read.
    NotRead,
}

impl Known {
    /// Takes in an audit and returns what is to be told, the worst first.
    pub fn observe(&mut self, reading: &Reading, now: Timestamp, origin: &Origin<'_>) -> Vec<Notification> {
        self.observed += 1;
        let mut changes = Vec::new();
        let by_name: HashMap<&str, &NodeReading> =
            reading.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        self.look_again(reading, &by_name, now, &mut changes);
        for node in &reading.nodes {
            for finding in node.findings.items.iter().filter(|it| counts(it)) {
                self.take_in(reading, node, finding, now, &mut changes);
            }
        }
        let mut all = self.tell(&changes, reading, now, origin);
        if let Some(failing) = self.failing.take() {
            all.insert(0, tell::audit_recovered(origin, reading, now, failing.since, self.observed));
        }
        all.extend(self.remind(reading, now, origin));
        self.forget(now);
        all
    }

    /// Takes in that an audit could not be made. It is told once, and again after the reminder's time.
    pub fn failed(&mut self, why: &str, now: Timestamp, origin: &Origin<'_>) -> Vec<Notification> {
        self.observed += 1;
        let (since, due) = match &self.failing {
            None => (now, true),
            Some(failing) => (failing.since, is_due(Some(failing.told), now, origin.reminder)),
        };
        if !due {
            return Vec::new();
        }
        self.failing = Some(Failing { since, told: now });
        vec![tell::audit_failed(origin, why, now, since, self.observed)]
    }

    /// Whether the last audit could not be made.
    pub const fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// How many places are not ok.
    pub fn open(&self) -> usize {
        let places = self.causes.values().flat_map(|cause| cause.nodes.values()).flat_map(BTreeMap::values);
        places.filter(|place| place.verdict.is_some()).count()
    }

    /// Updates the places that are known.
    fn look_again(
        &mut self,
        reading: &Reading,
        nodes: &HashMap<&str, &NodeReading>,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        for (control, cause) in &mut self.causes {
            let is_asked = cause.is_asked(control, reading, nodes);
            for (name, places) in &mut cause.nodes {
                for (subject, place) in places {
                    let seen = match nodes.get(name.as_str()) {
                        Some(node) => match see(node, control, subject) {
                            Seen::Gone if !reading.is_whole() => Seen::NotRead,
                            Seen::Gone | Seen::NotRead if !is_asked && node.was_read() => Seen::Closed(
                                "the baseline changed, and the check is not asked for".to_owned(),
                            ),
                            seen => seen,
                        },
                        None if !reading.is_whole() => Seen::NotRead,
                        None => Seen::Closed("the node is not audited any more".to_owned()),
                    };
                    let (verdict, closed) = match seen {
                        Seen::NotRead => continue,
                        Seen::Found(finding) => {
                            place.text.clone_from(&finding.text);
                            place.action = finding.next_action;
                            cause.severity = finding.severity;
                            (Some(finding.verdict), None)
                        }
                        Seen::Gone => (None, None),
                        Seen::Closed(why) => (None, Some(why)),
                    };
                    let Some((kind, before)) = place.become_verdict(verdict, now) else { continue };
                    let severity_before = place.severity_told;
                    place.severity_told = place.told.map(|_| cause.severity);
                    let kind = if closed.is_some() && kind == Kind::Recovered { Kind::Closed } else { kind };
                    changes.push(Change {
                        control: control.clone(),
                        kind,
                        before,
                        severity_before,
                        verdict: place.told,
                        node: name.clone(),
                        subject: subject.clone(),
                        text: closed.unwrap_or_else(|| place.text.clone()),
                        since: place.since,
                        action: place.action,
                    });
                }
            }
        }
    }

    /// Adds a place that is not known yet.
    fn take_in(
        &mut self,
        reading: &Reading,
        node: &NodeReading,
        finding: &Finding,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) {
        let cause = self.causes.entry(finding.control.clone()).or_insert_with(|| Cause {
            title: finding.title.clone(),
            severity: finding.severity,
            told: None,
            baseline: None,
            nodes: BTreeMap::new(),
        });
        if reading.baseline() != cause.baseline.as_deref() {
            cause.baseline = reading.baseline().map(str::to_owned);
        }
        let places = cause.nodes.entry(node.name.clone()).or_default();
        if places.contains_key(&finding.subject) {
            return;
        }
        let place = Place {
            verdict: Some(finding.verdict),
            told: Some(finding.verdict),
            severity_told: Some(cause.severity),
            since: now,
            text: finding.text.clone(),
            action: finding.next_action,
            changes: vec![now],
            flapping: false,
        };
        changes.push(Change {
            control: finding.control.clone(),
            kind: Kind::Opened,
            before: None,
            severity_before: None,
            verdict: place.told,
            node: node.name.clone(),
            subject: finding.subject.clone(),
            text: place.text.clone(),
            since: now,
            action: place.action,
        });
        places.insert(finding.subject.clone(), place);
    }

    /// Drops places that are gone, and told so, and that do not count for flapping any more.
    fn forget(&mut self, now: Timestamp) {
        for cause in self.causes.values_mut() {
            for places in cause.nodes.values_mut() {
                places.retain(|_, place| {
                    place.verdict.is_some() || place.told.is_some() || place.recent(now).next().is_some()
                });
            }
            cause.nodes.retain(|_, places| !places.is_empty());
        }
        self.causes.retain(|_, cause| !cause.nodes.is_empty());
    }
}

/// Whether a finding makes the verdict of its node.
const fn counts(finding: &Finding) -> bool {
    finding.verdict.is_not_ok() && finding.waived.is_none() && finding.explained_by.is_none()
}

/// What an audit says of a place where something was found before.
fn see<'a>(node: &'a NodeReading, control: &str, subject: &str) -> Seen<'a> {
    let here = || node.findings.items.iter().filter(|it| it.control == control && it.subject == subject);
    // Several of one place: the worst holds.
    let counting = here().filter(|it| it.verdict.is_not_ok() && it.waived.is_none());
    if let Some(worst) = counting.max_by_key(|it| it.verdict) {
        return Seen::Found(worst);
    }
    if let Some(waiver) = here().find_map(|it| it.waived.as_ref()) {
        return Seen::Closed(format!("the waiver {waiver} covers it"));
    }
    if node.could_tell(control, subject) { Seen::Gone } else { Seen::NotRead }
}

fn is_due(told: Option<Timestamp>, now: Timestamp, reminder: Option<SignedDuration>) -> bool {
    match (told, reminder) {
        (Some(told), Some(reminder)) => now.duration_since(told) >= reminder,
        _ => false,
    }
}

impl Cause {
    /// Whether an audit asked for the control. Only what another baseline found may be asked for no more.
    fn is_asked(&self, control: &str, reading: &Reading, nodes: &HashMap<&str, &NodeReading>) -> bool {
        let (Some(then), Some(now)) = (self.baseline.as_deref(), reading.baseline()) else { return true };
        then == now
            || !is_check(control)
            || self
                .nodes
                .keys()
                .filter_map(|name| nodes.get(name.as_str()))
                .flat_map(|node| &node.findings.items)
                .any(|it| it.control == control)
    }
}

impl Place {
    fn recent(&self, now: Timestamp) -> impl Iterator<Item = &Timestamp> {
        self.changes.iter().filter(move |at| now.duration_since(**at) < FLAPPING_TIME)
    }

    /// Sets what holds. Returns what is to be told of it, with what was told before.
    fn become_verdict(
        &mut self,
        verdict: Option<Verdict>,
        now: Timestamp,
    ) -> Option<(Kind, Option<Verdict>)> {
        if verdict != self.verdict {
            self.changes.push(now);
            self.since = now;
        }
        self.changes = self.recent(now).copied().collect();
        let excess = self.changes.len().saturating_sub(FLAPPING_CHANGES);
        self.changes.drain(..excess);
        let held = std::mem::replace(&mut self.verdict, verdict);
        let was_flapping = std::mem::replace(&mut self.flapping, self.changes.len() >= FLAPPING_CHANGES);
        let before = self.told;
        if self.flapping {
            // The worst of what was seen lately stands.
            self.told = self.told.max(verdict).max(held);
            return (!was_flapping || self.told > before).then_some((Kind::Flapping, before));
        }
        if self.told == verdict {
            return None;
        }
        self.told = verdict;
        let kind = match (before, verdict) {
            (None, _) => Kind::Opened,
            (Some(_), Some(_)) => Kind::Changed,
            (Some(_), None) => Kind::Recovered,
        };
        Some((kind, before))
    }
}

#[cfg(test)]
mod tests;
