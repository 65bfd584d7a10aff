//! What an audit found, as the history keeps it.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_compliance::NaReason;
use gpufleet_history::{Audit, Controls, Found, NodeReading};
use jiff::{Timestamp, civil::Date};

use super::{Control, NodeFinding, NodeModel, RunModel};
use crate::{
    event::{HEALTH, NodeState, Phase, RunStarted, TaskStatus, Verb},
    visible::visible,
};

/// The share of an earlier audit, which no event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierShare {
    pub on: Date,
    pub nodes: u32,
    pub compliant: u32,
}

/// Returns what an audit found. `None` where the run is no audit, or did not come to its end: what it did not reach would look
/// like something that it found.
pub fn observation(model: &RunModel, controller: &str) -> Option<Audit> {
    let (run, finish) = (model.run.as_ref()?, model.finish.as_ref()?);
    let (started, finished) = (model.started?, model.finished?);
    let is_whole = finish.stopped.is_none() && finish.exit_code != 130;
    if !run.verb.info().judges || !is_whole {
        return None;
    }
    let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (group, hosts) in &run.groups {
        for host in hosts {
            groups.entry(host).or_default().push(group.clone());
        }
    }
    let nodes = model.nodes().iter().map(|node| {
        let groups = groups.remove(node.name.as_str()).unwrap_or_default();
        reading(node, run.verb, groups, finished)
    });
    let nodes = nodes.collect();
    let (playbooks, baselines) = series_of(run);
    Some(Audit {
        run: run.run_id.clone(),
        controller: controller.to_owned(),
        started,
        finished,
        playbooks,
        baselines,
        exit_code: finish.exit_code,
        nodes,
    })
}

/// The playbooks and baselines of a run, by which an audit is of the same series as another.
pub fn series_of(run: &RunStarted) -> (Vec<String>, Vec<String>) {
    let playbooks = run.playbooks.iter().filter(|name| *name != HEALTH).cloned().collect();
    let name = run.audit.as_ref().map(|scope| scope.policy.data().name.as_str()).unwrap_or_default();
    (playbooks, name.split('+').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Characters of a text that the history keeps.
const MOST_TEXT: usize = 400;

fn reading(node: &NodeModel, verb: Verb, groups: Vec<String>, finished: Timestamp) -> NodeReading {
    let tasks = node.judged(verb);
    let checks = node.health.as_ref().map(|health| &health.verdict.coverage);
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let controls = controls(node);
    NodeReading {
        node: node.name.clone(),
        at: node.since.filter(|_| controls.complete).unwrap_or(finished),
        verdict: node.verdict(verb),
        action: node.next_action(verb),
        compliant: node.is_compliant(verb),
        score: node.health.as_ref().map(|health| health.verdict.score),
        judged: number(tasks.judged() + checks.map_or(0, |checks| checks.judged)),
        applicable: number(tasks.tasks() + checks.map_or(0, |checks| checks.asked())),
        groups,
        hardware: node.hardware().map(|text| bounded(&text)),
        driver: node.driver_version().map(bounded),
        findings: node.findings(verb).into_iter().map(found).collect(),
        controls,
        // One that stands for a history that could not be read must not take its place.
        memory: node
            .health
            .as_ref()
            .filter(|health| health.memory.is_whole())
            .and_then(|health| serde_json::to_value(&health.memory).ok()),
    }
}

fn found(finding: NodeFinding) -> Found {
    let NodeFinding { control, verdict, action, subject, text, expected: _, evidence, waived, explained_by } =
        finding;
    let Control { id, title, severity } = control;
    Found {
        control: id,
        title: bounded(&title),
        severity,
        subject: bounded(&subject),
        verdict,
        action,
        text: bounded(&text),
        evidence: evidence.iter().map(|read| bounded(read)).collect(),
        waived,
        explained_by,
    }
}

/// Returns a text as a database takes it: nodes may say anything, and PostgreSQL refuses U+0000 and long keys.
fn bounded(text: &str) -> String {
    let visible = visible(text);
    match visible.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}…", &visible[..end]),
        None => visible.into_owned(),
    }
}

/// What became of the tasks and checks that were asked of a node.
fn controls(node: &NodeModel) -> Controls {
    let is_read = matches!(node.state, NodeState::Done | NodeState::Compliant | NodeState::Drift)
        && (node.health.is_some() || !node.awaits_health);
    // Of each control: whether all of it was judged. One of which a part was not judged may still have what was found before.
    let mut all: BTreeMap<String, bool> = BTreeMap::new();
    let mut take = |id: String, judged: bool| *all.entry(id).or_insert(true) &= judged;
    for report in node.tasks.iter().filter(|report| report.phase != Phase::Verify) {
        let judged = matches!(report.status, TaskStatus::Ok | TaskStatus::Changed | TaskStatus::Skipped);
        take(report.position.to_string(), judged);
    }
    take(Control::node().id, is_read);
    let findings = node.health.as_ref().map(|health| health.findings.as_slice()).unwrap_or_default();
    let mut judged: BTreeSet<&str> = BTreeSet::new();
    for finding in findings {
        let no_more = finding.na == Some(NaReason::NotApplicable);
        if finding.verdict.is_judged() || no_more {
            judged.insert(&finding.check.id);
        }
        if finding.na == Some(NaReason::NotYet) {
            take(finding.check.id.to_string(), false);
        }
    }
    for finding in findings {
        // Where one subject is unknown and others are judged, the unknown one has a finding that says so.
        take(finding.check.id.to_string(), judged.contains(&*finding.check.id));
    }
    let (judged, not_judged): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, judged)| *judged);
    let ids = |all: Vec<(String, bool)>| all.into_iter().map(|(id, _)| id).collect();
    Controls { judged: ids(judged), not_judged: ids(not_judged), complete: is_read }
}

#[cfg(test)]
mod tests {
    use gpufleet_compliance::Verdict;

    use super::*;
    use crate::{
        event::{RunFinished, What},
        report::sample,
    };

    #[test]
    fn texts_of_nodes_are_bounded_and_have_no_control_characters() {
        let hostile = format!("a\u{0}b\n{}", "é".repeat(100_000));
        let kept = bounded(&hostile);
        assert!(kept.chars().count() <= MOST_TEXT + 1 && !kept.contains(char::is_control), "{}", kept.len());
        assert_eq!(bounded("GPU 3"), "GPU 3");
    }

    #[test]
    fn an_observation_has_what_the_report_has() {
        let model = RunModel::of(&sample::audit(1000));
        let audit = observation(&model, "controller1").unwrap();
        let verb = model.verb();
        assert_eq!((audit.run.as_str(), audit.nodes.len()), (model.run_id(), model.nodes().len()));
        for (reading, node) in audit.nodes.iter().zip(model.nodes()) {
            assert_eq!((reading.verdict, reading.compliant), (node.verdict(verb), node.is_compliant(verb)));
            let texts: Vec<&str> = reading.findings.iter().map(|found| found.text.as_str()).collect();
            let wanted: Vec<String> = node.findings(verb).into_iter().map(|finding| finding.text).collect();
            assert_eq!(texts, wanted);
            if reading.verdict == Verdict::Ok {
                assert!(reading.controls.complete && reading.controls.not_judged.is_empty(), "{reading:?}");
            }
            for found in reading.findings.iter().filter(|found| found.verdict == Verdict::Unknown) {
                let is_ok = reading.controls.complete && reading.controls.judged.contains(&found.control);
                assert!(!is_ok || found.control == "node", "{found:?}");
            }
        }
    }

    #[test]
    fn what_did_not_come_to_its_end_is_no_observation() {
        let mut events = sample::audit(3);
        assert!(observation(&RunModel::of(&sample::run()), "c").is_none(), "a run");
        for event in &mut events {
            if let What::RunFinished(RunFinished { exit_code, .. }) = &mut event.what {
                *exit_code = 130;
            }
        }
        assert!(observation(&RunModel::of(&events), "c").is_none(), "interrupted");
        events.pop();
        assert!(observation(&RunModel::of(&events), "c").is_none(), "cut off");
    }
}
