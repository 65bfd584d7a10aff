//! What to do next: nodes by the action that they need, the strongest first.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_compliance::{Action, Verdict};
use gpufleet_history::{AuditRow, NodeRow, OpenFinding};
use gpufleet_language::{names::fold_names, visible::command_line};
use serde::Serialize;

use super::{address, order::natural};

/// Causes that a step names.
const CAUSES: usize = 4;

#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub action: Action,
    /// The worst verdict among its nodes.
    pub verdict: Verdict,
    pub count: usize,
    /// The nodes in short, as a host pattern reads them.
    pub names: String,
    pub causes: Vec<Cause>,
    /// How many causes are not named.
    pub more: usize,
    pub advice: &'static str,
    /// To be pasted; `None` where a person has to look first.
    pub command: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Cause {
    pub control: String,
    pub href: String,
    pub title: String,
    pub nodes: usize,
}

const fn advice(action: Action) -> &'static str {
    match action {
        Action::None => "",
        Action::Apply => "A run sets what differs; work on the nodes goes on.",
        Action::Reset => "Drain the nodes; a run resets the GPUs when nothing uses them.",
        Action::Reboot => "Drain the nodes; a run reboots them in waves.",
        Action::Investigate => "A person has to look; the page of each check says where.",
        Action::Drain => "Give these nodes no new work, then look.",
        Action::Replace => "Give these nodes no new work, run field diagnostics, and ask the vendor.",
    }
}

/// Returns the steps for these nodes. `newest` is the latest audit: its playbooks are what a run would apply.
pub(crate) fn steps(nodes: &[&NodeRow], open: &[&OpenFinding], newest: Option<&AuditRow>) -> Vec<Step> {
    let mut actions: BTreeMap<Action, Vec<&NodeRow>> = BTreeMap::new();
    for &node in nodes.iter().filter(|node| node.action != Action::None) {
        actions.entry(node.action).or_default().push(node);
    }
    let mut by_node: BTreeMap<&str, Vec<&OpenFinding>> = BTreeMap::new();
    for &finding in open.iter().filter(|one| one.found.waived.is_none() && one.found.explained_by.is_none()) {
        by_node.entry(&finding.node).or_default().push(finding);
    }
    let step = |(action, mut nodes): (Action, Vec<&NodeRow>)| {
        nodes.sort_by(|a, b| natural(&a.node, &b.node));
        let mut controls: BTreeMap<&str, (&str, BTreeSet<&str>)> = BTreeMap::new();
        for node in &nodes {
            let findings = by_node.get(node.node.as_str()).into_iter().flatten();
            for finding in findings.filter(|finding| finding.found.action == action) {
                let entry = controls.entry(&finding.found.control);
                let (_, nodes) = entry.or_insert_with(|| (&finding.found.title, BTreeSet::new()));
                nodes.insert(&finding.node);
            }
        }
        let mut causes: Vec<Cause> = controls
            .into_iter()
            .map(|(control, (title, nodes))| Cause {
                control: control.to_owned(),
                href: address("checks", control),
                title: title.to_owned(),
                nodes: nodes.len(),
            })
            .collect();
        causes.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.control.cmp(&b.control)));
        let more = causes.len().saturating_sub(CAUSES);
        causes.truncate(CAUSES);
        let names = fold_names(nodes.iter().map(|node| &node.node));
        Step {
            action,
            verdict: nodes.iter().map(|node| node.verdict).max().unwrap_or(Verdict::Unknown),
            count: nodes.len(),
            command: command(action, &names, newest),
            names,
            causes,
            more,
            advice: advice(action),
        }
    };
    let mut steps: Vec<Step> = actions.into_iter().map(step).collect();
    steps.reverse();
    steps
}

fn command(action: Action, names: &str, newest: Option<&AuditRow>) -> Option<String> {
    let playbooks = &newest?.playbooks;
    let acts = matches!(action, Action::Apply | Action::Reset | Action::Reboot);
    if !acts || playbooks.is_empty() {
        return None;
    }
    let words = ["gpufleet", "plan"].into_iter().chain(playbooks.iter().map(String::as_str));
    Some(command_line(words.chain(["--limit", names])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{
        fleet::tests::{audit, node},
        open::tests::finding,
    };

    #[test]
    fn the_strongest_action_comes_first_with_its_causes_and_a_command() {
        let mut nodes: Vec<NodeRow> = ["gpu001", "gpu002", "gpu003", "gpu004"].map(node).into();
        nodes[0].action = Action::Apply;
        nodes[2].action = Action::Apply;
        nodes[3].action = Action::Replace;
        let mut findings = [
            finding("gpu001", "os.swap", Verdict::Drift, 1),
            finding("gpu003", "os.swap", Verdict::Drift, 1),
            finding("gpu003", "pcie.width", Verdict::Warn, 1),
        ];
        findings[0].found.action = Action::Apply;
        findings[1].found.action = Action::Apply;
        let mut newest = audit("01A", 100, 4, 2);
        newest.playbooks = vec!["site it.yaml".to_owned()];
        let steps =
            steps(&nodes.iter().collect::<Vec<_>>(), &findings.iter().collect::<Vec<_>>(), Some(&newest));
        assert_eq!(
            steps.iter().map(|step| step.action).collect::<Vec<_>>(),
            [Action::Replace, Action::Apply]
        );
        assert_eq!(steps[0].command, None);
        assert_eq!(steps[1].command.as_deref(), Some("gpufleet plan 'site it.yaml' --limit 'gpu[001,003]'"));
        let causes: Vec<_> =
            steps[1].causes.iter().map(|cause| (cause.control.as_str(), cause.nodes)).collect();
        assert_eq!(causes, [("os.swap", 2)], "what needs another action is no cause of this one");
    }
}
