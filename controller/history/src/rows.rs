//! What the store answers.

use std::collections::{BTreeMap, HashMap};

use gpufleet_compliance::{Action, Verdict};
use jiff::Timestamp;
use serde::Serialize;

use crate::Found;

/// One audit, without its nodes: a point of the fleet's trend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditRow {
    pub run: String,
    pub controller: String,
    pub started: Timestamp,
    pub finished: Timestamp,
    pub playbooks: Vec<String>,
    pub baselines: Vec<String>,
    pub exit_code: u8,
    pub nodes: u32,
    pub compliant: u32,
    /// How many nodes have each verdict; verdicts without nodes are left out.
    pub verdicts: BTreeMap<Verdict, u32>,
}

/// A node as the latest audit found it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRow {
    pub node: String,
    pub groups: Vec<String>,
    pub hardware: Option<String>,
    pub driver: Option<String>,
    /// The run of the latest audit, and when the node was read.
    pub run: String,
    pub at: Timestamp,
    pub verdict: Verdict,
    /// Since when every audit gave this verdict.
    pub since: Timestamp,
    pub action: Action,
    pub compliant: bool,
    pub score: Option<u8>,
    pub judged: u32,
    pub applicable: u32,
    /// How many open findings it has that are not waived.
    pub findings: u32,
}

/// A finding that the last audit that judged it has. A later one may have left it out, or not have reached the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenFinding {
    pub node: String,
    pub found: Found,
    /// Since when every audit of the node that judged it found it, with any text and evidence.
    pub since: Timestamp,
    /// In how many audits in a row.
    pub audits: u32,
    /// When it was found last.
    pub last: Timestamp,
}

/// A finding that a later audit judged, and did not have any more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PastFinding {
    pub found: Found,
    pub from: Timestamp,
    /// The last audit that had it.
    pub until: Timestamp,
}

/// A time in which every audit gave a node the same verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    pub verdict: Verdict,
    pub from: Timestamp,
    /// The last audit with this verdict.
    pub until: Timestamp,
    pub audits: u32,
}

/// What is known of a node over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeHistory {
    pub node: NodeRow,
    /// The newest first.
    pub spans: Vec<Span>,
    /// The worst first.
    pub open: Vec<OpenFinding>,
    /// The newest first.
    pub past: Vec<PastFinding>,
}

/// What is known of a check, or of a task of a playbook, over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControlHistory {
    pub control: String,
    pub title: String,
    /// The oldest first.
    pub open: Vec<OpenFinding>,
    /// How many nodes had it, not waived, in each audit that asked for it, the oldest first.
    pub trend: Vec<(Timestamp, u32)>,
}

impl NodeHistory {
    /// Puts what is open into the node, as [`NodeRow::put_open`] does.
    #[must_use]
    pub fn with_open(mut self) -> Self {
        NodeRow::put_open(std::slice::from_mut(&mut self.node), &self.open);
        self
    }
}

impl NodeRow {
    /// Puts what is open into nodes. The latest audit of a node may have asked for less than the one that found it: a
    /// playbook of one task says nothing of a GPU that failed the night before.
    pub fn put_open<'a>(nodes: &mut [Self], open: impl IntoIterator<Item = &'a OpenFinding>) {
        let mut worst: HashMap<&str, &OpenFinding> = HashMap::new();
        for finding in open.into_iter().filter(|finding| finding.found.waived.is_none()) {
            let known = worst.entry(&finding.node).or_insert(finding);
            let rank = |it: &OpenFinding| (it.found.verdict, it.found.action);
            if rank(finding) > rank(known) {
                *known = finding;
            }
        }
        for node in nodes {
            let Some(finding) = worst.get(node.node.as_str()) else { continue };
            if finding.found.verdict > node.verdict {
                (node.verdict, node.since) = (finding.found.verdict, finding.since);
                node.action = node.action.max(finding.found.action);
            }
            node.compliant &= finding.found.verdict < Verdict::Drift;
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_compliance::Severity;

    use super::*;

    #[test]
    fn what_is_open_counts_although_a_later_audit_did_not_ask() {
        let at = Timestamp::UNIX_EPOCH;
        let node = |name: &str| NodeRow {
            node: name.to_owned(),
            groups: Vec::new(),
            hardware: None,
            driver: None,
            run: "01B".to_owned(),
            at,
            verdict: Verdict::Ok,
            since: at,
            action: Action::None,
            compliant: true,
            score: None,
            judged: 1,
            applicable: 1,
            findings: 0,
        };
        let open = |name: &str, verdict, waived: Option<&str>| OpenFinding {
            node: name.to_owned(),
            found: Found {
                control: "mem.remap_failed".to_owned(),
                title: String::new(),
                severity: Severity::Critical,
                subject: "GPU 3".to_owned(),
                verdict,
                action: Action::Replace,
                text: String::new(),
                evidence: Vec::new(),
                waived: waived.map(str::to_owned),
                explained_by: None,
            },
            since: at,
            last: at,
            audits: 1,
        };
        let mut nodes = ["a", "b", "c", "d"].map(node);
        let all = [
            open("a", Verdict::Warn, None),
            open("a", Verdict::Fail, None),
            open("b", Verdict::Fail, Some("RISER-1")),
            open("c", Verdict::Warn, None),
        ];
        NodeRow::put_open(&mut nodes, &all);
        let told: Vec<_> = nodes.iter().map(|node| (node.verdict, node.action, node.compliant)).collect();
        let well = (Verdict::Ok, Action::None, true);
        assert_eq!(
            told,
            [(Verdict::Fail, Action::Replace, false), well, (Verdict::Warn, Action::Replace, true), well]
        );
    }
}
