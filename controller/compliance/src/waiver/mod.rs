//! Findings that somebody accepted for a time.
//!
//! Owns the file of waivers and what a waiver does to findings. Invariants: what could not be judged is never waived;
//! a waiver ends at most 90 days after it was made; an ended one makes a finding of its own.

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_protocol::glob::Glob;
use gpufleet_protocol::signal::{Signal, Signals};
use jiff::civil::Date;
use serde::Serialize;

use crate::catalogue::Catalogue;
use crate::finding::{Finding, Subject};
use crate::policy::NodePolicy;
use crate::rule::{Code, NoOthers, Scene};
use crate::texts;
use crate::verdict::{Action, Verdict};

/// The longest time from the making of a waiver to its end.
pub const MOST_DAYS: i32 = 90;
/// From how many days before its end a waiver makes a warning.
pub const WARNING_DAYS: i32 = 7;

/// One entry of the file.
#[derive(Debug, Serialize)]
pub struct Waiver {
    #[serde(serialize_with = "texts::one")]
    pub id: Arc<str>,
    /// The id of a check, or a glob.
    pub check: String,
    #[serde(rename = "match")]
    pub matches: Match,
    pub reason: String,
    pub owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket: Option<String>,
    pub created: Date,
    /// The last day on which it holds.
    pub expires: Date,
    /// A rule on the readings; where it does not hold, the finding counts again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
    /// Whether it holds for the health gate of a run too.
    pub gate: bool,
    #[serde(skip)]
    code: Option<Code>,
}

/// Where a waiver holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Match {
    /// Globs over the names of hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Groups of the inventory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// A glob over the id or the label of a subject: `GPU-…`, `GPU 3`, `/scratch*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// All waivers of a fleet.
#[derive(Debug, Default)]
pub struct Waivers {
    list: Vec<Waiver>,
}

/// The node whose findings are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub host: &'a str,
    pub groups: &'a [&'a str],
    /// The day on the controller.
    pub today: Date,
    /// Whether the health gate of a run asks.
    pub gate: bool,
}

impl Waiver {
    fn is_for(&self, asked: &Asked<'_>) -> bool {
        self.matches.nodes.iter().any(|glob| Glob::new(glob).matches(asked.host))
            || self.matches.groups.iter().any(|group| asked.groups.contains(&group.as_str()))
    }

    fn names(&self, finding: &Finding) -> bool {
        let subject = |glob: &String| {
            let glob = Glob::new(glob);
            glob.matches(finding.subject.id()) || glob.matches(finding.subject.label())
        };
        Glob::new(&self.check).matches(&finding.check.id) && self.matches.subject.as_ref().is_none_or(subject)
    }

    /// Whether the readings are no worse than was accepted. What cannot be told is worse.
    fn is_below_ceiling(&self, finding: &Finding, policy: &NodePolicy, signals: &Signals) -> bool {
        let Some(code) = &self.code else { return true };
        let subject = match &finding.subject {
            Subject::Node => None,
            Subject::Gpu { uuid, .. } => signals.gpus.iter().find(|gpu| *gpu.id == **uuid),
            Subject::Disk { id, .. } => signals.disks.iter().find(|disk| *disk.id == **id),
            Subject::Port { id, .. } => signals.ports.iter().find(|port| *port.id == **id),
        };
        let params = BTreeMap::new();
        let scene = Scene::of(signals, subject, &policy.declared, &params, &NoOthers);
        code.holds(&scene).holds()
    }
}

impl Waivers {
    /// Returns them in the order of the file.
    pub fn list(&self) -> &[Waiver] {
        &self.list
    }

    /// Marks the findings of a node that a waiver covers, and adds the finding of `audit.waiver` where a waiver names
    /// this node.
    ///
    /// Only warn, drift and fail of checks that can be waived are covered. A waiver that has ended covers nothing.
    pub fn apply(
        &self,
        policy: &NodePolicy,
        signals: &Signals,
        asked: &Asked<'_>,
        findings: &mut Vec<Finding>,
    ) {
        let mut ended = Vec::new();
        let mut ending = Vec::new();
        let mut any = false;
        for waiver in self.list.iter().filter(|waiver| waiver.is_for(asked) && (waiver.gate || !asked.gate)) {
            any = true;
            if waiver.expires < asked.today {
                ended.push(waiver);
                continue;
            }
            if waiver.created > asked.today {
                continue;
            }
            if days(asked.today, waiver.expires) <= WARNING_DAYS {
                ending.push(waiver);
            }
            for finding in findings.iter_mut() {
                let can = matches!(finding.verdict, Verdict::Warn | Verdict::Drift | Verdict::Fail)
                    && finding.check.waivable
                    && finding.waived.is_none();
                if can && waiver.names(finding) && waiver.is_below_ceiling(finding, policy, signals) {
                    finding.waived = Some(Arc::clone(&waiver.id));
                }
            }
        }
        if any {
            findings.extend(own_finding(&ended, &ending));
        }
    }
}

/// Returns the days from one date to another.
fn days(from: Date, to: Date) -> i32 {
    from.until(to).map_or(i32::MAX, |span| span.get_days())
}

fn own_finding(ended: &[&Waiver], ending: &[&Waiver]) -> Option<Finding> {
    let check = Catalogue::get().check("audit.waiver")?;
    let list = |waivers: &[&Waiver]| {
        let one = |waiver: &&Waiver| format!("{} of {} ({})", waiver.id, waiver.owner, waiver.expires);
        waivers.iter().map(one).collect::<Vec<_>>()
    };
    let (verdict, action, note, shown) = match (ended, ending) {
        ([], []) => (Verdict::Ok, Action::None, String::new(), Vec::new()),
        ([], ending) => {
            let note = format!("ends within {WARNING_DAYS} days: {}", list(ending).join(", "));
            (Verdict::Warn, Action::None, note, list(ending))
        }
        // Never worse: what it excused counts by itself again, and without that the node is well.
        (ended, _) => (
            Verdict::Warn,
            Action::Investigate,
            format!("has ended: {}", list(ended).join(", ")),
            list(ended),
        ),
    };
    Some(Finding {
        check: Arc::clone(check),
        subject: Subject::Node,
        verdict,
        action,
        note: note.into(),
        expected: None,
        evidence: if shown.is_empty() { Vec::new() } else { vec![("waivers".into(), Signal::from(shown))] },
        na: None,
        waived: None,
        explained_by: None,
        standing: None,
        watch: None,
    })
}
