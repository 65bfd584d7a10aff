//! What is open: the findings of all nodes, one line for each check.

use std::collections::BTreeMap;

use gpufleet_compliance::{Action, Severity, Verdict};
use gpufleet_history::OpenFinding;
use gpufleet_language::names::fold_names;
use jiff::Timestamp;
use serde::Serialize;

use super::{Moment, address, beginning, order::natural};

/// How much of the names of nodes a line shows, in characters.
const NAMES: usize = 240;

/// One check or task, and the nodes that have it.
#[derive(Debug, Serialize)]
pub(crate) struct OpenGroup {
    pub control: String,
    pub href: String,
    pub title: String,
    pub severity: Severity,
    pub verdict: Verdict,
    pub action: Action,
    /// What is the case, in the words of most of the nodes.
    pub text: String,
    /// How many nodes say something else.
    pub others: usize,
    pub count: usize,
    /// The nodes in short; cut where there are many.
    pub names: String,
    /// The name of the node, where it is one.
    pub only: Option<String>,
    /// Since when the first of them has it.
    pub since: Moment,
    #[serde(skip)]
    oldest: Timestamp,
}

/// All that is open.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Open {
    /// The worst first.
    pub groups: Vec<OpenGroup>,
    /// Findings that a waiver covers, which no group counts.
    pub waived: usize,
    /// Findings that others explain, which no group counts.
    pub explained: usize,
}

impl Open {
    pub(crate) fn of<'a>(findings: impl IntoIterator<Item = &'a OpenFinding>) -> Self {
        let mut open = Self::default();
        let mut controls: BTreeMap<&str, Vec<&OpenFinding>> = BTreeMap::new();
        for finding in findings {
            if finding.found.waived.is_some() {
                open.waived += 1;
            } else if finding.found.explained_by.is_some() {
                open.explained += 1;
            } else {
                controls.entry(&finding.found.control).or_default().push(finding);
            }
        }
        open.groups = controls.into_values().filter_map(|findings| group(&findings)).collect();
        open.groups.sort_by(|a, b| {
            (b.verdict, b.severity, b.count)
                .cmp(&(a.verdict, a.severity, a.count))
                .then(a.oldest.cmp(&b.oldest))
                .then_with(|| a.control.cmp(&b.control))
        });
        open
    }
}

fn group(findings: &[&OpenFinding]) -> Option<OpenGroup> {
    let worst = findings.iter().max_by_key(|finding| (finding.found.verdict, finding.found.severity))?;
    let mut nodes: Vec<&str> = findings.iter().map(|finding| finding.node.as_str()).collect();
    nodes.sort_by(|a, b| natural(a, b));
    nodes.dedup();
    let mut texts: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings {
        *texts.entry(&finding.found.text).or_default() += 1;
    }
    let (text, _) = texts.iter().max_by_key(|(text, count)| (**count, std::cmp::Reverse(**text)))?;
    let oldest = findings.iter().map(|finding| finding.since).min()?;
    Some(OpenGroup {
        control: worst.found.control.clone(),
        href: address("checks", &worst.found.control),
        title: worst.found.title.clone(),
        severity: worst.found.severity,
        verdict: worst.found.verdict,
        action: findings.iter().map(|finding| finding.found.action).max().unwrap_or_default(),
        text: (*text).to_owned(),
        others: texts.len() - 1,
        count: nodes.len(),
        names: beginning(&fold_names(&nodes), NAMES),
        only: match nodes.as_slice() {
            [one] => Some((*one).to_owned()),
            _ => None,
        },
        since: oldest.into(),
        oldest,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use gpufleet_history::Found;

    use super::*;

    pub(crate) fn finding(node: &str, control: &str, verdict: Verdict, day: i64) -> OpenFinding {
        OpenFinding {
            node: node.to_owned(),
            found: Found {
                control: control.to_owned(),
                title: format!("Title of {control}"),
                severity: Severity::High,
                subject: "GPU 0".to_owned(),
                verdict,
                action: Action::Investigate,
                text: "it is so".to_owned(),
                evidence: vec!["width 8".to_owned()],
                waived: None,
                explained_by: None,
            },
            since: Timestamp::from_second(86_400 * day).unwrap(),
            audits: 3,
            last: Timestamp::from_second(86_400 * day).unwrap(),
        }
    }

    #[test]
    fn the_worst_comes_first_and_each_cause_once() {
        let mut findings = vec![
            finding("gpu3", "pcie.width", Verdict::Warn, 1),
            finding("gpu10", "mem.remap_failed", Verdict::Fail, 9),
            finding("gpu2", "mem.remap_failed", Verdict::Fail, 4),
            finding("gpu2", "mem.remap_failed", Verdict::Fail, 5),
            finding("gpu1", "os.swap", Verdict::Fail, 2),
        ];
        findings[3].found.text = "other words".to_owned();
        findings.push(finding("gpu7", "os.swap", Verdict::Fail, 2));
        findings[5].found.waived = Some("alice: until May".to_owned());
        findings.push(finding("gpu7", "err.xid", Verdict::Fail, 2));
        findings[6].found.explained_by = Some("mem.remap_failed".to_owned());
        let open = Open::of(&findings);
        let lines: Vec<_> = open
            .groups
            .iter()
            .map(|group| (group.control.as_str(), group.count, group.names.as_str(), group.others))
            .collect();
        assert_eq!(
            lines,
            [
                ("mem.remap_failed", 2, "gpu[2,10]", 1),
                ("os.swap", 1, "gpu1", 0),
                ("pcie.width", 1, "gpu3", 0)
            ]
        );
        assert_eq!((open.waived, open.explained), (1, 1));
        assert_eq!(open.groups[0].since.text, "1970-01-05 00:00 UTC");
        assert_eq!(open.groups[1].only.as_deref(), Some("gpu1"));
    }
}
