//! What a node's record says: whose drain it is under, whether it is out, and what is shown of that.
//!
//! Owns the judgement alone; nothing here asks Slurm. Invariant: what is not certainly ours belongs to someone else.

use jiff::Timestamp;

use super::parse::NodeRecord;
use super::{Marker, Ownership};

/// States and flags that keep work away, whatever caused them.
const OUT: [&str; 18] = [
    "DRAIN",
    "DOWN",
    "FAIL",
    "MAINTENANCE",
    "MAINT",
    "REBOOT_REQUESTED",
    "REBOOT_ISSUED",
    "REBOOT",
    "POWER_DOWN",
    "POWERING_DOWN",
    "POWERED_DOWN",
    "POWERING_UP",
    "POWER_UP",
    "INVALID_REG",
    "INVAL",
    "FUTURE",
    "UNKNOWN",
    "ERROR",
];
/// The marker of the drain that a node is under, if it is one of ours.
pub(super) fn held_by(record: &NodeRecord) -> Option<Marker> {
    Marker::parse(&record.reason.as_ref()?.text)
}

/// What the marks on a node say.
pub(super) fn standing(record: &NodeRecord, marker: &Marker) -> Ownership {
    let out = record.state.is_draining() || record.state.base == "DOWN" || record.state.has("FAIL");
    if !out && record.reason.is_none() {
        return Ownership::NotDrained;
    }
    let theirs = || Ownership::Theirs { by: shown(record) };
    if held_by(record).as_ref() != Some(marker) {
        return theirs();
    }
    if !out {
        return Ownership::Theirs { by: format!("our reason without our drain (State={})", record.state) };
    }
    if record.state.has("FAIL") || record.state.base == "FAIL" {
        return theirs();
    }
    let own = marker.to_string();
    let marks = [record.extra.as_deref(), record.comment.as_deref()];
    let second = marks.contains(&Some(own.as_str()));
    let somebody = |mark: &Option<&str>| mark.is_some_and(|mark| Marker::parse(mark).is_none());
    if second || marks.iter().all(somebody) {
        return Ownership::Ours;
    }
    Ownership::Theirs { by: "our reason without our mark in Extra or Comment".to_owned() }
}

/// Which of the fields that Slurm leaves alone is free for the second marker.
pub(super) fn second_place(record: &NodeRecord) -> Option<&'static str> {
    let free = |value: &Option<String>| value.as_deref().is_none_or(|text| Marker::parse(text).is_some());
    if free(&record.extra) {
        Some("extra")
    } else if free(&record.comment) {
        Some("comment")
    } else {
        None
    }
}

/// Which states and flags keep work away from a node.
pub(super) fn marks(record: &NodeRecord) -> Vec<&'static str> {
    OUT.into_iter().filter(|mark| record.state.base == *mark || record.state.has(mark)).collect()
}

/// Why a node is out, ready to show; `None` when it is not.
pub(super) fn outage(record: &NodeRecord) -> Option<String> {
    (!marks(record).is_empty() || record.state.has("NOT_RESPONDING")).then(|| shown(record))
}

/// Whether nothing but silence keeps work away.
pub(super) fn is_silent(record: &NodeRecord) -> bool {
    let silence = record.state.has("NOT_RESPONDING") || record.state.base == "UNKNOWN";
    silence && marks(record).iter().all(|mark| *mark == "UNKNOWN")
}

/// What is on a node, and by whom.
pub(super) fn shown(record: &NodeRecord) -> String {
    let marks = marks(record);
    let verb = if record.state.is_draining() {
        "drained".to_owned()
    } else if !marks.is_empty() {
        marks.join("+").to_ascii_lowercase().replace('_', " ")
    } else if record.state.has("NOT_RESPONDING") {
        "not responding".to_owned()
    } else {
        "marked".to_owned()
    };
    let Some(reason) = &record.reason else { return verb };
    let who = match (held_by(record), &reason.by) {
        (Some(marker), _) => format!("gpufleet run {}", marker.run),
        (None, Some((user, _))) => user.clone(),
        (None, None) => "somebody".to_owned(),
    };
    format!("{verb} by {who}: {}", reason.text)
}

/// Why a node must not be resumed yet.
pub(super) fn away(record: &NodeRecord, rebooted_after: Option<Timestamp>) -> Option<String> {
    let state = &record.state;
    if state.has("NOT_RESPONDING") || state.base == "UNKNOWN" {
        return Some(format!("it does not answer Slurm (State={state})"));
    }
    if state.has("REBOOT_ISSUED") || state.has("REBOOT_REQUESTED") {
        return Some(format!("Slurm's own reboot of it is not done (State={state})"));
    }
    let after = rebooted_after?;
    match record.booted {
        Some(booted) if booted > after => None,
        Some(booted) => {
            Some(format!("it has not registered since its reboot at {after} (BootTime={booted})"))
        }
        None => Some(format!("it has not registered since its reboot at {after}")),
    }
}

pub(super) fn evidence(record: &NodeRecord) -> String {
    let mut text = format!("State={}", record.state);
    if let Some(reason) = &record.reason {
        text.push_str(&format!(" Reason={}", reason.text));
        if let Some((user, when)) = &reason.by {
            text.push_str(&format!(" [{user}@{when}Z]"));
        }
    }
    if let Some(extra) = &record.extra {
        text.push_str(&format!(" Extra={extra}"));
    }
    text
}
