//! Findings: everything that keeps a node from being compliant, each with what it is about and what to do.
//!
//! A finding comes from a task of a playbook, from a check of the catalogue, or from the node itself, which may not
//! answer. Equal findings of several nodes are one [`FleetFinding`].

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use gpufleet_compliance::{Finding, Severity};
use gpufleet_protocol::Disruption;

use super::{NextAction, NodeHealth, NodeModel, RunModel, Verdict, causes, fold_changes, fold_gpus};
use crate::event::{NodeState, Position, Verb};

/// The id of what is about the node itself.
const NODE: &str = "node";
/// Characters of a reading that are shown.
const MOST_EVIDENCE: usize = 200;

/// What was judged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// The id of a check (`mem.remap_failed`), the place of a task (`site.yaml:24`), or `node`.
    pub id: String,
    /// The fault, what holds where it is ok, or the name of the task.
    pub title: String,
    pub severity: Severity,
}

impl Control {
    /// Whether the node can be judged at all.
    pub(super) fn node() -> Self {
        Self { id: NODE.to_owned(), title: "The node itself".to_owned(), severity: Severity::Critical }
    }

    fn task(name: &str, position: &Position) -> Self {
        Self { id: position.to_string(), title: name.to_owned(), severity: Severity::Medium }
    }

    fn check(finding: &Finding) -> Self {
        Self {
            id: finding.check.id.to_string(),
            title: finding.headline().into_owned(),
            severity: finding.check.severity,
        }
    }
}

/// One finding of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFinding {
    pub control: Control,
    pub verdict: Verdict,
    pub action: NextAction,
    /// `GPU 3`, `/var`; empty for the node as a whole.
    pub subject: String,
    /// What was found, in one sentence without the name of the node.
    pub text: String,
    /// What was declared, or the limits, as far as it is compared with them: `power_w 600`.
    pub expected: Option<String>,
    /// What was read, by the name of the signal: `margin_c 4`.
    pub evidence: Vec<String>,
    /// The waiver that covers it; then it does not count.
    pub waived: Option<String>,
    /// The check whose finding is the cause of this one; then its action does not count.
    pub explained_by: Option<String>,
}

impl NodeFinding {
    fn new(control: Control, verdict: Verdict, action: NextAction, text: String) -> Self {
        Self {
            control,
            verdict,
            action,
            subject: String::new(),
            text,
            expected: None,
            evidence: Vec::new(),
            waived: None,
            explained_by: None,
        }
    }

    /// The finding of a check; `None` where it found nothing.
    pub fn of_check(finding: &Finding) -> Option<Self> {
        if !finding.verdict.is_not_ok() {
            return None;
        }
        let text = if finding.note.is_empty() { &finding.check.title } else { &*finding.note };
        let evidence = finding
            .evidence
            .iter()
            .filter_map(|(name, signal)| Some(format!("{name} {}", plain(signal.known()?))))
            .collect();
        Some(Self {
            subject: finding.subject.label().to_owned(),
            waived: finding.waived.as_deref().map(str::to_owned),
            explained_by: finding.explained_by.as_deref().map(str::to_owned),
            expected: finding.expected.as_deref().map(str::to_owned),
            evidence,
            ..Self::new(Control::check(finding), finding.verdict, finding.action, text.to_owned())
        })
    }

    /// Returns the text with what was read: `the GPU is hot (margin_c 4)`.
    pub fn sentence(&self) -> String {
        match self.evidence.is_empty() {
            true => self.text.clone(),
            false => format!("{} ({})", self.text, self.evidence.join(", ")),
        }
    }

    /// Whether it is what makes the node's verdict: not waived, and not explained by another one.
    pub const fn is_cause(&self) -> bool {
        self.waived.is_none() && self.explained_by.is_none()
    }
}

/// What makes a node unknown although no finding is: checks that had to be judged, and were not.
fn of_coverage(health: &NodeHealth) -> Vec<NodeFinding> {
    let coverage = &health.verdict.coverage;
    let told =
        |id: &str| health.findings.iter().any(|it| &*it.check.id == id && it.verdict == Verdict::Unknown);
    let mut all = Vec::new();
    let unknown = |control, text| NodeFinding::new(control, Verdict::Unknown, NextAction::Investigate, text);
    for id in coverage.critical_not_judged.iter().filter(|id| !told(id)) {
        let why = coverage.not_judged.iter().find(|it| it.check == *id).map(|it| it.why.to_string());
        let why = why.unwrap_or_else(|| "this release does not know it, or it was left out".to_owned());
        let control = Control {
            id: id.to_string(),
            title: "Required, and not judged".to_owned(),
            severity: Severity::Critical,
        };
        all.push(unknown(control, format!("required by the baseline, and not judged: {why}")));
    }
    if coverage.judged == 0 {
        all.push(unknown(Control::node(), "no check could judge it".to_owned()));
    } else if all.is_empty() && health.verdict.verdict == Verdict::Unknown && !health.has(Verdict::Unknown) {
        let (judged, asked) = (coverage.judged, coverage.asked());
        all.push(unknown(Control::node(), format!("only {judged} of {asked} judgements were made")));
    }
    all
}

impl NodeHealth {
    /// Returns what the checks found. What is not judged because the driver does not answer stands in the finding about that,
    /// and nowhere else.
    pub(super) fn told(&self) -> Vec<(&Finding, NodeFinding)> {
        let silent: BTreeSet<&str> =
            self.findings.iter().filter(|it| it.is_of_silent_driver()).map(|it| &*it.check.id).collect();
        let told = self.findings.iter().filter(|it| !it.is_of_silent_driver()).filter_map(|finding| {
            let mut told = NodeFinding::of_check(finding)?;
            if finding.tells_silent_driver() && !silent.is_empty() {
                let checks = match silent.len() {
                    1 => "1 check that needs it is".to_owned(),
                    several => format!("{several} checks that need it are"),
                };
                told.text = format!("{}; {checks} not judged: the driver does not answer", told.text);
            }
            Some((finding, told))
        });
        told.collect()
    }
}

/// Returns a value as a person writes it.
fn plain(value: &serde_json::Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.char_indices().nth(MOST_EVIDENCE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Equal findings of several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetFinding {
    /// That of the first node, with the evidence that all of them share.
    pub finding: NodeFinding,
    /// Names, in the order of the inventory, each once.
    pub nodes: Vec<String>,
    /// Subjects, folded: `GPU 0-7`; empty if it is about the nodes themselves.
    pub subjects: String,
}

/// Returns what a run of this disruption is.
pub(super) const fn action_of(class: Disruption) -> NextAction {
    match class {
        Disruption::Reboot => NextAction::Reboot,
        Disruption::GpuReset | Disruption::Clients => NextAction::Reset,
        Disruption::Live => NextAction::Apply,
    }
}

impl FleetFinding {
    /// Returns what was found, with its subjects: `GPU 0-7 persistence is off (persistence 0)`.
    pub fn sentence(&self) -> String {
        let text = self.finding.sentence();
        if self.subjects.is_empty() { text } else { format!("{} {text}", self.subjects) }
    }

    /// Returns the id of the check or the place of the task; `None` if it is about the node itself.
    pub fn place(&self) -> Option<&str> {
        Some(self.finding.control.id.as_str()).filter(|id| *id != NODE)
    }
}

impl NodeModel {
    /// Returns what keeps it from being compliant, the worst first.
    pub fn findings(&self, verb: Verb) -> Vec<NodeFinding> {
        let mut all: Vec<NodeFinding> = Vec::new();
        // What was not judged has findings of its own below.
        for cause in causes([self]).into_iter().filter(|_| !self.is_as_declared_so_far(verb)) {
            let control = match &cause.task {
                Some((task, position)) => Control::task(task, position),
                None => Control::node(),
            };
            let verdict = match self.state {
                NodeState::Failed => Verdict::Fail,
                NodeState::Held => Verdict::Drift,
                _ => Verdict::Unknown,
            };
            all.push(NodeFinding::new(control, verdict, NextAction::Investigate, cause.text));
        }
        if let Some(text) = self.missing_gpus() {
            all.push(NodeFinding::new(Control::node(), Verdict::Fail, NextAction::Investigate, text));
        }
        for group in fold_changes(self.changes()).into_iter().filter(|_| !verb.writes()) {
            let control = Control::task(&group.task, &group.position);
            let finding = NodeFinding::new(
                control,
                Verdict::Drift,
                action_of(group.change.disruption),
                group.sentence(),
            );
            all.push(NodeFinding { subject: group.gpu_label(), ..finding });
        }
        let silent =
            self.health.iter().flat_map(|health| &health.findings).find(|it| it.tells_silent_driver());
        for (task, position, why) in self.judged(verb).not_judged() {
            let control =
                Control { id: position.to_owned(), title: task.to_owned(), severity: Severity::Medium };
            let (action, cause) = match self.is_of_hung_driver(why) {
                true => (NextAction::Reboot, silent.map(|finding| finding.check.id.to_string())),
                false => (NextAction::Investigate, None),
            };
            let finding = NodeFinding::new(control, Verdict::Unknown, action, why.to_owned());
            all.push(NodeFinding { explained_by: cause, ..finding });
        }
        for report in self.tasks.iter().filter(|report| !report.warnings.is_empty()) {
            for text in fold_gpus(report.warnings.iter().map(String::as_str)) {
                let control = Control::task(&report.task, &report.position);
                all.push(NodeFinding::new(control, Verdict::Warn, NextAction::Investigate, text));
            }
        }
        match &self.health {
            Some(health) => {
                all.extend(health.told().into_iter().map(|(_, told)| told));
                all.extend(of_coverage(health));
            }
            None if self.awaits_health && !self.is_bad() => {
                let text = "its signals were not read, so that no check could judge it".to_owned();
                all.push(NodeFinding::new(Control::node(), Verdict::Unknown, NextAction::Investigate, text));
            }
            None => {}
        }
        let mut seen = BTreeSet::new();
        all.retain(|it| seen.insert((it.control.id.clone(), it.subject.clone(), it.text.clone())));
        all.sort_by_key(|it| (it.waived.is_some(), Reverse(it.verdict), Reverse(it.control.severity)));
        all
    }
}

/// Returns the findings of all nodes, equal ones as one: the worst first, then the most severe, then the most frequent.
pub fn fleet_findings(model: &RunModel) -> Vec<FleetFinding> {
    findings_of(model.nodes(), model.verb())
}

/// Returns the findings of some nodes as [`fleet_findings`] does.
pub(super) fn findings_of<'a>(
    nodes: impl IntoIterator<Item = &'a NodeModel>,
    verb: Verb,
) -> Vec<FleetFinding> {
    let mut all: Vec<(NodeFinding, Vec<String>, Vec<String>)> = Vec::new();
    let mut places: HashMap<_, usize> = HashMap::new();
    for node in nodes {
        for finding in node.findings(verb) {
            let key = (
                finding.control.clone(),
                finding.verdict,
                finding.text.clone(),
                finding.waived.clone(),
                finding.explained_by.clone(),
            );
            let at = *places.entry(key).or_insert_with(|| {
                all.push((finding.clone(), Vec::new(), Vec::new()));
                all.len() - 1
            });
            let Some((first, nodes, subjects)) = all.get_mut(at) else { continue };
            first.evidence.retain(|read| finding.evidence.contains(read));
            if nodes.last() != Some(&node.name) {
                nodes.push(node.name.clone());
            }
            if !finding.subject.is_empty() && !subjects.contains(&finding.subject) {
                subjects.push(finding.subject);
            }
        }
    }
    all.sort_by_key(|(finding, nodes, _)| {
        (
            !finding.is_cause(),
            Reverse(finding.verdict),
            Reverse(finding.control.severity),
            Reverse(nodes.len()),
        )
    });
    all.into_iter()
        .map(|(finding, nodes, subjects)| {
            let subjects = fold_gpus(subjects.iter().map(String::as_str)).join(", ");
            FleetFinding { finding, nodes, subjects }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn what_is_not_compliant_has_a_finding_as_bad_as_its_verdict() {
        for events in [sample::audit(1000), sample::plan(), sample::run()] {
            let model = RunModel::of(&events);
            let verb = model.verb();
            for node in model.nodes() {
                let worst = node.findings(verb).first().map(|finding| finding.verdict);
                let verdict = node.verdict(verb);
                // Worse where a task was not judged: a known difference decides, and the task is listed.
                assert!(verdict <= Verdict::Ok || worst >= Some(verdict), "{}: {worst:?}", node.name);
            }
        }
    }

    #[test]
    fn each_finding_leads_to_its_nodes_and_each_node_to_its_findings() {
        let model = RunModel::of(&sample::audit(1000));
        let verb = model.verb();
        let fleet = fleet_findings(&model);
        for node in model.nodes() {
            let own: BTreeSet<String> = node.findings(verb).into_iter().map(|it| it.text).collect();
            let led: BTreeSet<String> = fleet
                .iter()
                .filter(|found| found.nodes.contains(&node.name))
                .map(|found| found.finding.text.clone())
                .collect();
            assert_eq!(own, led, "{}", node.name);
        }
        let ranks: Vec<Verdict> = fleet.iter().map(|found| found.finding.verdict).collect();
        assert!(ranks.is_sorted_by(|one, other| one >= other), "the worst first");
    }
}
