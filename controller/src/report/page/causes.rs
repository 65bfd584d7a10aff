//! Why nodes are not as they should be: equal reasons of several nodes are one cause.

use std::collections::HashMap;

use gpufleet_compliance::{Catalogue, OwnCheck};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    super::{FleetFinding, NextAction, RunModel, Verdict, digests::short, fleet_findings, fold_names},
    fragment,
    node::brief,
};
use crate::event::Verb;

/// Characters of a list of names that are shown; the list of nodes has all.
const MOST_NAMES: usize = 400;

/// One reason, and the nodes that it is of.
#[derive(Debug, Serialize)]
pub(super) struct Cause {
    /// The same in every report of this run.
    pub key: String,
    pub verdict: Verdict,
    pub action: NextAction,
    /// The id of the check or the place of the task; empty if it is about the node itself.
    pub place: String,
    pub severity: &'static str,
    pub text: String,
    /// The waiver that covers it, or the check that explains it.
    pub aside: Option<String>,
    /// Why it matters and what to do about it, as far as a check tells.
    pub why: String,
    pub remedy: String,
    pub count: usize,
    pub names: String,
    pub link: String,
    /// The control as the matrix has it.
    #[serde(skip)]
    pub control: String,
    #[serde(skip)]
    pub title: String,
    #[serde(skip)]
    pub waived: bool,
    /// Nodes by their place in the model.
    #[serde(skip)]
    pub nodes: Vec<usize>,
}

impl Cause {
    fn new(verdict: Verdict, action: NextAction, identity: &[&str], text: &str) -> Self {
        let mut digest = Sha256::new();
        for part in identity {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
        let key = digest.finalize().iter().take(5).map(|byte| format!("{byte:02x}")).collect::<String>();
        Self {
            link: fragment(&[("cause", &key)]),
            key,
            verdict,
            action,
            place: String::new(),
            severity: "",
            text: short(text.trim(), &mut Vec::new()).replace(" -> ", " → "),
            aside: None,
            why: String::new(),
            remedy: String::new(),
            count: 0,
            names: String::new(),
            control: String::new(),
            title: String::new(),
            waived: false,
            nodes: Vec::new(),
        }
    }

    fn of_finding(found: FleetFinding, places: &HashMap<&str, usize>, own: &[OwnCheck]) -> Self {
        let text = found.sentence();
        let place = found.place().unwrap_or_default().to_owned();
        let FleetFinding { finding, nodes, .. } = found;
        let asides = [finding.waived.as_deref(), finding.explained_by.as_deref()];
        let parts = [finding.verdict.word(), &finding.control.id, &finding.text].into_iter();
        let identity: Vec<&str> = parts.chain(asides.map(Option::unwrap_or_default)).collect();
        let waived = finding.waived.as_ref().map(|waiver| format!("waived: {waiver}"));
        let explained = finding.explained_by.as_ref().map(|check| format!("explained by {check}"));
        let id = &finding.control.id;
        let (why, remedy) = match (Catalogue::get().check(id), own.iter().find(|check| check.id == *id)) {
            (Some(check), _) => (Some(&check.why), Some(&check.remediation.text)),
            (None, Some(own)) => (Some(&own.why), Some(&own.remediation)),
            (None, None) => (None, None),
        };
        Self {
            place,
            severity: finding.control.severity.word(),
            aside: waived.or(explained),
            why: why.cloned().unwrap_or_default(),
            remedy: remedy.cloned().unwrap_or_default(),
            waived: finding.waived.is_some(),
            nodes: nodes.iter().filter_map(|name| places.get(name.as_str()).copied()).collect(),
            ..Self::new(finding.verdict, finding.action, &identity, &text)
        }
        .with_names(&nodes)
        .of_control(finding.control.id, finding.control.title)
    }

    /// Whether it comes from a check of the catalogue.
    pub(super) fn is_check(&self) -> bool {
        Catalogue::get().check(&self.control).is_some()
    }

    fn of_control(self, control: String, title: String) -> Self {
        Self { control, title, ..self }
    }

    fn with_names<S: AsRef<str>>(self, names: &[S]) -> Self {
        Self { count: names.len(), names: cut(fold_names(names)), ..self }
    }
}

/// Cuts a folded list between two names. What ends in `…` selects nothing as a pattern.
pub(super) fn cut(names: String) -> String {
    match names.char_indices().nth(MOST_NAMES) {
        Some((end, _)) => {
            let kept = names.get(..end).unwrap_or_default();
            let whole = kept.rfind(',').and_then(|at| kept.get(..at)).unwrap_or(kept);
            format!("{whole},…")
        }
        None => names,
    }
}

/// Returns all causes, the worst first: the findings of an audit, or the reasons of nodes that a run or plan left.
pub(super) fn of(model: &RunModel, verb: Verb) -> Vec<Cause> {
    if !verb.info().judges {
        return reasons(model, verb);
    }
    let places = model.nodes().iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let scope = model.run.as_ref().and_then(|run| run.audit.as_ref());
    let own = scope.map_or(&[][..], |scope| &scope.policy.data().own_checks);
    fleet_findings(model).into_iter().map(|found| Cause::of_finding(found, &places, own)).collect()
}

/// Groups nodes that are not as declared by action and reason.
fn reasons(model: &RunModel, verb: Verb) -> Vec<Cause> {
    let mut all: Vec<Cause> = Vec::new();
    let mut known: HashMap<(Verdict, NextAction, String), usize> = HashMap::new();
    for (place, node) in model.nodes().iter().enumerate() {
        let (verdict, action) = (node.verdict(verb), node.next_action(verb));
        if action == NextAction::None {
            continue;
        }
        let why = short(&brief(node, verb), &mut Vec::new());
        let at = *known.entry((verdict, action, why.clone())).or_insert_with(|| {
            all.push(Cause::new(verdict, action, &[verdict.word(), action.word(), &why], &why));
            all.len() - 1
        });
        if let Some(cause) = all.get_mut(at) {
            cause.nodes.push(place);
        }
    }
    all.sort_by_key(|cause| std::cmp::Reverse((cause.verdict, cause.nodes.len())));
    let named = |cause: Cause| {
        let nodes = cause.nodes.iter().filter_map(|at| model.nodes().get(*at));
        let names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
        cause.with_names(&names)
    };
    all.into_iter().map(named).collect()
}
