//! Makes notifications of changes.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use gpufleet_compliance::{Action, Catalogue, Severity, Verdict};
use gpufleet_language::visible::{command_line, visible};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Cause, Change, Known, Origin, is_due};
use crate::{
    notification::{FORMAT, Kind, MOST_NAMED, NodeTold, Notification, Standing, Told},
    reading::Reading,
};

/// Causes of one audit that are told one by one to one receiver, and as many that it is reminded of.
const MOST_TOLD: usize = 25;
/// Nodes that the line for people names.
const NAMED_IN_LINE: usize = 3;
/// A cause on this many nodes, and on this share of all, is one incident of the fleet.
const FLEET_NODES: usize = 3;
const FLEET_PERCENT: usize = 5;

impl Known {
    /// Returns the notifications of these changes, equal ones of several nodes as one, the worst first.
    pub(super) fn tell(
        &mut self,
        changes: &[Change],
        reading: &Reading,
        now: Timestamp,
        origin: &Origin<'_>,
    ) -> Vec<Notification> {
        let mut groups: BTreeMap<_, Vec<&Change>> = BTreeMap::new();
        for change in changes {
            let key = (change.control.as_str(), change.kind, change.before, change.verdict);
            groups.entry(key).or_default().push(change);
        }
        let mut all = Vec::new();
        for ((control, kind, before, verdict), group) in groups {
            let Some(cause) = self.causes.get_mut(control) else { continue };
            cause.told = Some(now);
            let places = group.iter().map(|it| (it.action, told_of(it))).collect();
            let severity_before = group.iter().filter_map(|it| it.severity_before).max();
            let told = told(control, cause, (before, verdict), places, reading.nodes.len());
            let told = Told { severity_before, ..told };
            all.push(notification(kind, told, reading, now, origin, self.observed));
        }
        worst_first(&mut all);
        all
    }

    /// Returns reminders of the causes that were told so long ago that it is time, the worst first.
    pub(super) fn remind(
        &mut self,
        reading: &Reading,
        now: Timestamp,
        origin: &Origin<'_>,
    ) -> Vec<Notification> {
        let mut all = Vec::new();
        for (control, cause) in &mut self.causes {
            if !is_due(cause.told, now, origin.reminder) {
                continue;
            }
            let mut worst = None;
            let mut places = Vec::new();
            for (node, subjects) in &mut cause.nodes {
                for (subject, place) in subjects.iter_mut().filter(|(_, place)| place.told.is_some()) {
                    place.severity_told = Some(cause.severity);
                    worst = worst.max(place.told);
                    let (node, subject) = (node.clone(), subject.clone());
                    let told = NodeTold { node, subject, text: place.text.clone(), since: place.since };
                    places.push((place.action, told));
                }
            }
            if places.is_empty() {
                continue;
            }
            cause.told = Some(now);
            let told = told(control, cause, (worst, worst), places, reading.nodes.len());
            all.push(notification(Kind::Reminder, told, reading, now, origin, self.observed));
        }
        worst_first(&mut all);
        all
    }
}

fn worst_first(all: &mut [Notification]) {
    all.sort_by_key(|it| {
        let told = it.finding.as_ref();
        let verdict = told.map(|told| told.verdict.max(told.before));
        let lasting = matches!(it.kind, Kind::Recovered | Kind::Closed);
        let severity = told.map(|told| told.severity);
        (lasting, Reverse(verdict), Reverse(severity), Reverse(told.map(|told| told.nodes_total)))
    });
}

/// Returns what one receiver is told of the notifications that it wants: of many, the first ones, and what is about the
/// others in one.
pub fn bounded<'a>(wanted: impl Iterator<Item = &'a Notification>) -> Vec<Notification> {
    let (reminders, changes): (Vec<_>, Vec<_>) = wanted.partition(|it| it.kind == Kind::Reminder);
    let mut all = Vec::new();
    for part in [changes, reminders] {
        let kept = if part.len() > MOST_TOLD { MOST_TOLD - 1 } else { part.len() };
        let (first, rest) = part.split_at(kept);
        all.extend(first.iter().copied().cloned());
        all.extend(overflow(rest));
    }
    all
}

fn told_of(change: &Change) -> NodeTold {
    let Change { node, subject, text, since, .. } = change;
    NodeTold { node: node.clone(), subject: subject.clone(), text: text.clone(), since: *since }
}

fn told(
    control: &str,
    cause: &Cause,
    (before, verdict): (Option<Verdict>, Option<Verdict>),
    places: Vec<(Action, NodeTold)>,
    audited: usize,
) -> Told {
    let names: BTreeSet<&str> = places.iter().map(|(_, told)| told.node.as_str()).collect();
    let nodes_total = names.len();
    let fleet_wide = nodes_total >= FLEET_NODES && nodes_total * 100 >= audited * FLEET_PERCENT;
    let strongest = places.iter().map(|(action, _)| *action).max().unwrap_or_default();
    let next_action = match (verdict, fleet_wide) {
        (None, _) => Action::None,
        (Some(_), true) => Action::Investigate,
        (Some(_), false) => strongest,
    };
    Told {
        control: control.to_owned(),
        title: cause.title.clone(),
        severity: cause.severity,
        severity_before: None,
        verdict,
        before,
        next_action,
        fleet_wide,
        nodes_total,
        nodes: places.into_iter().map(|(_, told)| told).take(MOST_NAMED).collect(),
    }
}

/// The same for the same cause of the same schedule of the same machine.
fn incident(origin: &Origin<'_>, control: &str) -> String {
    id([origin.watcher, origin.schedule, control])
}

fn id<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The id of a notification: the same if the same audit is observed again.
fn message_id(incident: &str, kind: Kind, run: &str, detail: &str, observed: u64) -> String {
    format!("msg_{}", id([incident, kind.word(), run, detail, &observed.to_string()]))
}

fn notification(
    kind: Kind,
    told: Told,
    reading: &Reading,
    now: Timestamp,
    origin: &Origin<'_>,
    observed: u64,
) -> Notification {
    let incident = incident(origin, &told.control);
    let detail = format!("{:?} {:?}", told.before, told.verdict);
    let mut commands = vec![command_line(["gpufleet", "report", &reading.run_id])];
    if !told.control.contains(':') && told.control.contains('.') {
        commands.push(command_line(["gpufleet", "doc", &told.control]));
    }
    Notification {
        format: FORMAT,
        id: message_id(&incident, kind, &reading.run_id, &detail, observed),
        kind,
        at: reading.finished.unwrap_or(now),
        watcher: origin.watcher.to_owned(),
        schedule: origin.schedule.to_owned(),
        run_id: Some(reading.run_id.clone()),
        incident,
        summary: summary(kind, &told),
        finding: Some(told),
        fleet: Some(standing(reading)),
        commands,
    }
}

fn summary(kind: Kind, told: &Told) -> String {
    let verdict = told.verdict.or(told.before).map_or("", Verdict::word);
    let names: Vec<&str> = {
        let mut all: Vec<&str> = told.nodes.iter().map(|it| it.node.as_str()).collect();
        all.dedup();
        all
    };
    let mut who = names.iter().take(NAMED_IN_LINE).copied().collect::<Vec<_>>().join(", ");
    if told.nodes_total > NAMED_IN_LINE {
        who = format!("{} nodes: {who}, …", told.nodes_total);
    }
    let first = told.nodes.first();
    let subject = first.filter(|_| told.nodes.len() == 1).map_or("", |it| it.subject.as_str());
    let place = if subject.is_empty() { who } else { format!("{who} {subject}") };
    let text = first.map_or("", |it| it.text.as_str());
    // What holds again, and not what was found: the fault would read as if it were there.
    if kind == Kind::Recovered {
        let check = Catalogue::get().check(&told.control);
        let audits = check.map_or(1, |check| check.hysteresis.clear);
        let holds = check.map_or(&*told.title, |check| &*check.title);
        let audits = if audits > 1 { format!(", {audits} audits") } else { String::new() };
        return visible(&format!("{place} recovered: {} ({}{audits})", holds, told.control)).into_owned();
    }
    let what = match kind {
        Kind::Closed => format!("closed {verdict}"),
        Kind::Flapping => format!("{verdict}, flapping"),
        Kind::Reminder => format!("still {verdict}"),
        Kind::Changed => format!("{} -> {verdict}", told.before.map_or("", Verdict::word)),
        _ => verdict.to_owned(),
    };
    visible(&format!("{what}: {place}: {text} ({})", told.control)).into_owned()
}

fn standing(reading: &Reading) -> Standing {
    Standing {
        nodes: reading.nodes.len(),
        fail: reading.count(Verdict::Fail),
        unknown: reading.count(Verdict::Unknown),
        drift: reading.count(Verdict::Drift),
        warn: reading.count(Verdict::Warn),
        ok: reading.count(Verdict::Ok),
        na: reading.count(Verdict::Na),
    }
}

/// What is said of the causes that are too many to be told one by one.
fn overflow(rest: &[&Notification]) -> Option<Notification> {
    let (first, last) = (rest.first()?, rest.last()?);
    let found = || rest.iter().filter_map(|it| it.finding.as_ref());
    let nodes = found().flat_map(|told| &told.nodes).take(MOST_NAMED).cloned().collect();
    let told = Told {
        control: "overflow".to_owned(),
        title: "Causes that are not told one by one".to_owned(),
        severity: found().map(|told| told.severity).max().unwrap_or(Severity::Info),
        severity_before: None,
        verdict: found().filter_map(|told| told.verdict).max(),
        before: found().filter_map(|told| told.before).max(),
        next_action: Action::Investigate,
        fleet_wide: true,
        nodes_total: found().flat_map(|told| &told.nodes).map(|it| &it.node).collect::<BTreeSet<_>>().len(),
        nodes,
    };
    let happened = if first.kind == Kind::Reminder { "are still there" } else { "changed" };
    Some(Notification {
        id: format!("msg_{}", id(["overflow", &first.id, &last.id])),
        kind: Kind::Overflow,
        incident: id([first.watcher.as_str(), &first.schedule, "overflow"]),
        summary: format!("{} more causes {happened}; the report has all", rest.len()),
        finding: Some(told),
        commands: first.commands.iter().take(1).cloned().collect(),
        ..(*first).clone()
    })
}

fn about_audit(
    kind: Kind,
    origin: &Origin<'_>,
    now: Timestamp,
    summary: String,
    observed: u64,
) -> Notification {
    let incident = incident(origin, "audit");
    Notification {
        format: FORMAT,
        id: message_id(&incident, kind, "", &now.to_string(), observed),
        kind,
        at: now,
        watcher: origin.watcher.to_owned(),
        schedule: origin.schedule.to_owned(),
        run_id: None,
        incident,
        summary: visible(&summary).into_owned(),
        finding: None,
        fleet: None,
        commands: Vec::new(),
    }
}

pub(super) fn audit_failed(
    origin: &Origin<'_>,
    why: &str,
    now: Timestamp,
    since: Timestamp,
    observed: u64,
) -> Notification {
    let since = if since == now { String::new() } else { format!(", since {since:.0}") };
    let summary = format!("the audit {} cannot be made{since}: {why}", origin.schedule);
    about_audit(Kind::AuditFailed, origin, now, summary, observed)
}

pub(super) fn audit_recovered(
    origin: &Origin<'_>,
    reading: &Reading,
    now: Timestamp,
    since: Timestamp,
    observed: u64,
) -> Notification {
    let summary = format!("the audit {} can be made again; it could not since {since:.0}", origin.schedule);
    Notification {
        run_id: Some(reading.run_id.clone()),
        fleet: Some(standing(reading)),
        commands: vec![command_line(["gpufleet", "report", &reading.run_id])],
        ..about_audit(Kind::AuditRecovered, origin, now, summary, observed)
    }
}

/// A notification that says only that notifications arrive.
pub fn test(watcher: &str, channel: &str, now: Timestamp) -> Notification {
    let origin = Origin { watcher, schedule: "test", reminder: None };
    let summary = format!("a test of the channel {channel}: notifications of gpufleet watch arrive here");
    about_audit(Kind::Test, &origin, now, summary, 0)
}
