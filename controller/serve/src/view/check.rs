//! One check, or a task of a playbook: what it is, who has it, and how that changed.

use std::collections::BTreeMap;

use gpufleet_compliance::{
    Action, Catalogue, Check, Severity, Verdict, advice::DRAIN_FIRST, catalogue::RuleVerdict,
};
use gpufleet_history::{ControlHistory, OpenFinding};
use serde::Serialize;

use super::{
    Moment, address,
    chart::{Chart, Value},
    open::Open,
};

#[derive(Debug, Serialize)]
pub(crate) struct CheckView {
    id: String,
    /// The fault, or the name of a task.
    title: String,
    /// `None` for what the catalogue of this release does not know: a task, an own check, one of another release.
    manual: Option<Manual>,
    /// The oldest first, waived ones too.
    open: Vec<Line>,
    /// How many nodes have it and no waiver for it.
    nodes: usize,
    chart: Option<Chart>,
}

/// What the catalogue says.
#[derive(Debug, Serialize)]
struct Manual {
    severity: Severity,
    scope: String,
    /// What holds where it is ok.
    holds: String,
    why: String,
    remedy: String,
    /// Only reads.
    command: Option<String>,
    /// What comes before the destructive commands.
    first: &'static str,
    /// Actions, and the commands that do them and end what runs on the node.
    destructive: Vec<(Action, String)>,
    rules: Vec<(String, String, String)>,
    params: Vec<(String, String)>,
    /// Texts, and addresses where they are ones.
    references: Vec<(String, Option<String>)>,
}

impl Manual {
    fn of(check: &Check) -> Self {
        let verdict = |verdict: &RuleVerdict| match verdict {
            RuleVerdict::Fixed(verdict) => verdict.word().to_owned(),
            RuleVerdict::Param(name) => format!("parameter {name}"),
        };
        let rules = check.rules.iter();
        let reference = |text: &String| (text.clone(), text.starts_with("https://").then(|| text.clone()));
        Self {
            severity: check.severity,
            scope: check.scope.to_string(),
            holds: check.title.clone(),
            why: check.why.clone(),
            remedy: check.remediation.text.clone(),
            command: check.remediation.reads.clone(),
            first: DRAIN_FIRST,
            destructive: check.destructive().collect(),
            rules: rules
                .map(|rule| (verdict(&rule.verdict), rule.note.to_string(), rule.text.clone()))
                .collect(),
            params: check.params.iter().map(|(name, value)| (name.clone(), value.to_string())).collect(),
            references: check.references.iter().map(reference).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Line {
    finding: OpenFinding,
    href: String,
    since: Moment,
}

impl CheckView {
    /// Returns the page of an id; `None` where neither the catalogue nor the history knows it.
    pub(crate) fn of(id: &str, history: Option<ControlHistory>) -> Option<Self> {
        let check = Catalogue::get().check(id);
        if check.is_none() && history.is_none() {
            return None;
        }
        let (title, open, trend) = match history {
            Some(history) => (history.title, history.open, history.trend),
            None => Default::default(),
        };
        let groups = Open::of(&open).groups;
        let values: Vec<Value> = trend
            .into_iter()
            .map(|(at, count)| Value {
                at,
                value: f64::from(count),
                title: format!(
                    "{}: {count} {}",
                    Moment::from(at).text,
                    if count == 1 { "node" } else { "nodes" }
                ),

                aside: false,
            })
            .collect();
        let most = values.iter().map(|value| value.value).fold(2.0, f64::max);
        Some(Self {
            id: id.to_owned(),
            title: check.map_or(title, |check| check.fault.clone()),
            manual: check.map(|check| Manual::of(check)),
            nodes: groups.iter().map(|group| group.count).sum(),
            open: open
                .into_iter()
                .map(|finding| Line {
                    href: address("nodes", &finding.node),
                    since: finding.since.into(),
                    finding,
                })
                .collect(),
            chart: Chart::of(&values, 0.0, most, "nodes", |value| format!("{value:.0}")),
        })
    }
}

/// A check in the list of all.
#[derive(Debug, Serialize)]
pub(crate) struct CheckLine {
    id: String,
    href: String,
    title: String,
    severity: Severity,
    /// The worst verdict that a node has of it now.
    verdict: Option<Verdict>,
    nodes: usize,
}

/// Returns all checks by group: what is open first, then the rest of the catalogue.
pub(crate) fn check_lines(findings: &[OpenFinding]) -> Vec<(String, Vec<CheckLine>)> {
    let open = Open::of(findings);
    let mut sections: Vec<(String, Vec<CheckLine>)> = Vec::new();
    let is_open: BTreeMap<&str, ()> = open.groups.iter().map(|group| (group.control.as_str(), ())).collect();
    let lines: Vec<CheckLine> = open
        .groups
        .iter()
        .map(|group| CheckLine {
            id: group.control.clone(),
            href: group.href.clone(),
            title: group.title.clone(),
            severity: group.severity,
            verdict: Some(group.verdict),
            nodes: group.count,
        })
        .collect();
    if !lines.is_empty() {
        sections.push(("Open".to_owned(), lines));
    }
    for (word, title) in Catalogue::groups() {
        let of_group = Catalogue::get().checks().iter().filter(|check| check.group() == word);
        let lines: Vec<CheckLine> = of_group
            .filter(|check| !is_open.contains_key(&*check.id))
            .map(|check| CheckLine {
                id: check.id.to_string(),
                href: address("checks", &check.id),
                title: check.title.clone(),
                severity: check.severity,
                verdict: None,
                nodes: 0,
            })
            .collect();
        if !lines.is_empty() {
            sections.push((title.to_owned(), lines));
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::open::tests::finding;

    #[test]
    fn a_check_without_findings_has_its_manual_and_a_task_has_its_findings() {
        let known = CheckView::of("mem.remap_failed", None).unwrap();
        let manual = known.manual.as_ref().unwrap();
        assert!(!manual.why.is_empty() && !manual.remedy.is_empty() && !manual.rules.is_empty());
        assert!(CheckView::of("no.such", None).is_none());
        let history = ControlHistory {
            control: "site.yaml:4:7".to_owned(),
            title: "set the limit".to_owned(),
            open: vec![finding("gpu1", "site.yaml:4:7", Verdict::Drift, 2)],
            trend: vec![(jiff::Timestamp::UNIX_EPOCH, 3)],
        };
        let task = CheckView::of("site.yaml:4:7", Some(history)).unwrap();
        assert!(task.manual.is_none() && task.chart.is_some());
        assert_eq!(
            (task.title.as_str(), task.nodes, task.open[0].href.as_str()),
            ("set the limit", 1, "/nodes/gpu1")
        );
    }

    #[test]
    fn what_is_open_leads_the_list_and_stands_there_once() {
        let sections = check_lines(&[finding("gpu1", "mem.remap_failed", Verdict::Fail, 1)]);
        assert_eq!((sections[0].0.as_str(), sections[0].1.len()), ("Open", 1));
        let all: Vec<&str> =
            sections.iter().flat_map(|(_, lines)| lines).map(|line| line.id.as_str()).collect();
        assert_eq!(all.iter().filter(|id| **id == "mem.remap_failed").count(), 1);
        assert_eq!(all.len(), Catalogue::get().checks().len());
    }
}
