//! What is different in a report from an earlier one: verdicts, findings, waivers, what judged, and the nodes.
//!
//! Works on the JSON documents, so that reports of other machines and of other versions can be compared. A finding is
//! the same one if node, control and subject are; it has changed if its verdict or its text has. What another finding
//! explains is left out. Readings alone, such
//! as a temperature, make no change. What cannot be judged any more is not gone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DOCUMENT_FORMAT, NextAction, Verdict, document::schema_of};
use gpufleet_compliance::Severity;

/// Version of the document.
const FORMAT: u32 = 1;

/// Why a document cannot be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("it is a report of format {0}, and this version of gpufleet reads format {DOCUMENT_FORMAT}")]
    Format(u64),
    #[error("it is no report of gpufleet: {0}")]
    Else(String),
}

/// What of a report's JSON document is compared.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    pub run_id: String,
    pub verb: String,
    pub as_of: Option<Timestamp>,
    #[serde(default)]
    provenance: Option<Rests>,
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Rests {
    #[serde(default)]
    inputs: BTreeMap<String, String>,
    #[serde(default)]
    baseline: Option<Baseline>,
    #[serde(default)]
    waivers: Option<String>,
}

/// A baseline by its name and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Baseline {
    pub name: String,
    pub digest: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Node {
    state: String,
    verdict: Verdict,
    next_action: NextAction,
    #[serde(default)]
    checks: Option<Checks>,
    findings: Vec<Found>,
}

#[derive(Clone, Debug, Deserialize)]
struct Checks {
    not_judged: Vec<NotJudged>,
}

#[derive(Clone, Debug, Deserialize)]
struct NotJudged {
    check: String,
    subject: String,
}

/// A finding of a node, as reports have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// Not in a report, where the node has its findings.
    #[serde(default)]
    pub node: String,
    /// The id of a check, the place of a task (`site.yaml:24`), or `node`.
    pub control: String,
    /// `GPU 3`, `/var`; empty for the node as a whole.
    pub subject: String,
    pub severity: Severity,
    pub verdict: Verdict,
    pub next_action: NextAction,
    /// What was found, in one sentence.
    pub text: String,
    pub waived: Option<String>,
    /// In a report: the check whose finding explains this one.
    #[serde(default, skip_serializing)]
    #[schemars(skip)]
    explained_by: Option<String>,
}

/// A finding that the later report does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gone {
    #[serde(flatten)]
    pub finding: Found,
    /// Whether it was judged again; otherwise nobody knows whether it is gone.
    pub judged: bool,
}

/// A finding of both reports whose verdict or text differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Changed {
    pub before: Found,
    pub after: Found,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct VerdictChange {
    pub node: String,
    pub before: Verdict,
    pub after: Verdict,
    /// What to do now.
    pub next_action: NextAction,
}

/// A finding that another waiver covers, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct WaiverChange {
    pub node: String,
    pub control: String,
    pub subject: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// One of the two reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Side {
    pub run_id: String,
    pub verb: String,
    /// RFC 3339.
    #[schemars(with = "Option<String>")]
    pub as_of: Option<Timestamp>,
    pub nodes: usize,
    pub baseline: Option<Baseline>,
    /// SHA-256 of the file of waivers.
    pub waivers: Option<String>,
}

/// The document of `gpufleet report diff --format json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(title = "gpufleet report diff", deny_unknown_fields)]
pub struct Difference {
    /// Version of this shape.
    format: u32,
    pub before: Side,
    pub after: Side,
    /// Whether other checks judge, or by other limits.
    pub baseline_changed: bool,
    /// Whether the file of waivers differs.
    pub waivers_changed: bool,
    /// Files and variables that differ, or that only one of the runs was given.
    pub inputs_changed: Vec<String>,
    pub verdicts: Vec<VerdictChange>,
    pub new: Vec<Found>,
    pub gone: Vec<Gone>,
    pub changed: Vec<Changed>,
    pub waivers: Vec<WaiverChange>,
    /// Nodes of the earlier report alone.
    pub only_before: Vec<String>,
    /// Nodes of the later report alone.
    pub only_after: Vec<String>,
}

/// The schema of the document.
pub fn difference_schema() -> Value {
    schema_of::<Difference>("report-diff")
}

impl Snapshot {
    /// Reads a report's JSON document.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn of(document: Value) -> Result<Self, ShapeError> {
        match document.get("format").and_then(Value::as_u64) {
            Some(format) if format == u64::from(DOCUMENT_FORMAT) => {
                serde_json::from_value(document).map_err(|error| ShapeError::Else(error.to_string()))
            }
            Some(format) => Err(ShapeError::Format(format)),
            None => Err(ShapeError::Else("`format` is missing".to_owned())),
        }
    }

    fn rests(&self) -> Rests {
        self.provenance.clone().unwrap_or_default()
    }

    fn side(&self) -> Side {
        let Rests { baseline, waivers, .. } = self.rests();
        let Self { run_id, verb, as_of, nodes, .. } = self.clone();
        Side { run_id, verb, as_of, nodes: nodes.len(), baseline, waivers }
    }
}

impl Node {
    /// Whether the control was judged on the node, if the report asked for it.
    fn judged(&self, control: &str, subject: &str) -> bool {
        let read = ["done", "compliant", "drift"].contains(&self.state.as_str());
        // A report without checks says nothing of one; a task has a place, with a line.
        let asked = self.checks.is_some() || control.contains(':') || control == "node";
        let left_out = |checks: &Checks| {
            checks
                .not_judged
                .iter()
                .any(|it| it.check == control && (it.subject == subject || it.subject.is_empty()))
        };
        let unknown = self.findings.iter().any(|it| it.control == control && it.verdict == Verdict::Unknown);
        read && asked && !unknown && !self.checks.as_ref().is_some_and(left_out)
    }

    /// Returns its findings by what they are about.
    fn by_place(&self, name: &str) -> BTreeMap<(&str, &str), Vec<Found>> {
        let mut places: BTreeMap<(&str, &str), Vec<Found>> = BTreeMap::new();
        // A GPU that is lost makes fifty readings unknown: its own finding says so once.
        for found in self.findings.iter().filter(|found| found.explained_by.is_none()) {
            let own = Found { node: name.to_owned(), ..found.clone() };
            places.entry((&found.control, &found.subject)).or_default().push(own);
        }
        places
    }
}

impl Difference {
    pub fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let (sides, rests) = ((before.side(), after.side()), (before.rests(), after.rests()));
        let inputs: BTreeSet<&String> = rests.0.inputs.keys().chain(rests.1.inputs.keys()).collect();
        let only = |one: &Snapshot, other: &Snapshot| {
            one.nodes.keys().filter(|name| !other.nodes.contains_key(*name)).cloned().collect()
        };
        let mut all = Self {
            format: FORMAT,
            baseline_changed: sides.0.baseline != sides.1.baseline,
            waivers_changed: sides.0.waivers != sides.1.waivers,
            inputs_changed: inputs
                .into_iter()
                .filter(|name| rests.0.inputs.get(*name) != rests.1.inputs.get(*name))
                .cloned()
                .collect(),
            before: sides.0,
            after: sides.1,
            verdicts: Vec::new(),
            new: Vec::new(),
            gone: Vec::new(),
            changed: Vec::new(),
            waivers: Vec::new(),
            only_before: only(before, after),
            only_after: only(after, before),
        };
        for (name, node) in &before.nodes {
            if let Some(now) = after.nodes.get(name) {
                all.node(name, node, now);
            }
        }
        all
    }

    /// Whether nodes, verdicts, findings and waivers are the same.
    pub fn is_empty(&self) -> bool {
        let lists = [self.verdicts.len(), self.new.len(), self.gone.len(), self.changed.len()];
        let others = [self.waivers.len(), self.only_before.len(), self.only_after.len()];
        lists.iter().chain(&others).all(|length| *length == 0)
    }

    fn node(&mut self, name: &str, before: &Node, after: &Node) {
        if before.verdict != after.verdict {
            let (node, next_action) = (name.to_owned(), after.next_action);
            let (before, after) = (before.verdict, after.verdict);
            self.verdicts.push(VerdictChange { node, before, after, next_action });
        }
        let mut then = before.by_place(name);
        for (place, now) in after.by_place(name) {
            self.place(then.remove(&place).unwrap_or_default(), now, after);
        }
        for (_, old) in then {
            self.place(old, Vec::new(), after);
        }
    }

    /// Compares findings of one node about the same: equal texts first, then in their order.
    fn place(&mut self, mut old: Vec<Found>, mut new: Vec<Found>, node: &Node) {
        new.retain(|now| match old.iter().position(|then| then.text == now.text) {
            Some(at) => {
                let then = old.remove(at);
                self.pair(&then, now);
                false
            }
            None => true,
        });
        let pairs = old.len().min(new.len());
        for (then, now) in old.drain(..pairs).zip(new.drain(..pairs)).collect::<Vec<_>>() {
            self.pair(&then, &now);
        }
        self.new.append(&mut new);
        self.gone.extend(old.into_iter().map(|finding| {
            // Another baseline may not ask for the check at all.
            let same = !self.baseline_changed || finding.control.contains(':');
            let judged = same && node.judged(&finding.control, &finding.subject);
            Gone { finding, judged }
        }));
    }

    fn pair(&mut self, then: &Found, now: &Found) {
        if (then.verdict, &then.text) != (now.verdict, &now.text) {
            self.changed.push(Changed { before: then.clone(), after: now.clone() });
        }
        if then.waived != now.waived {
            self.waivers.push(WaiverChange {
                node: now.node.clone(),
                control: now.control.clone(),
                subject: now.subject.clone(),
                before: then.waived.clone(),
                after: now.waived.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        display::{Style, difference_screen},
        report::{RunModel, document, sample},
    };

    fn snapshot(nodes: &Value) -> Snapshot {
        let document = json!({
            "format": DOCUMENT_FORMAT, "run_id": "01A", "verb": "audit", "as_of": "2026-11-21T09:00:00Z",
            "nodes": nodes,
        });
        Snapshot::of(document).unwrap()
    }

    fn node(verdict: &str, findings: &[(&str, &str, &str, &str, Option<&str>)]) -> Value {
        let findings: Vec<Value> = findings
            .iter()
            .map(|(control, subject, verdict, text, waived)| {
                json!({
                    "control": control, "subject": subject, "verdict": verdict, "text": text, "waived": waived,
                    "severity": "high", "next_action": "investigate", "title": "x", "evidence": [],
                })
            })
            .collect();
        let state = if verdict == "unknown" { "unreachable" } else { "compliant" };
        json!({
            "state": state, "verdict": verdict, "next_action": "none", "findings": findings,
            "checks": {"not_judged": []},
        })
    }

    #[test]
    fn what_a_report_did_not_ask_for_is_not_gone() {
        let fail = ("mem.remap_failed", "GPU 3", "fail", "a row could not be remapped", None);
        let task = ("site.yaml:4", "", "drift", "vm.swappiness 60 -> 10", None);
        let before = json!({"gpu001": node("fail", &[fail, task])});
        let gone = |after: &Value| {
            let found = Difference::between(&snapshot(&before), &snapshot(&json!({"gpu001": after}))).gone;
            found.iter().map(|gone| (gone.finding.control.clone(), gone.judged)).collect::<Vec<_>>()
        };
        let told = |check: bool, task: bool| {
            vec![("mem.remap_failed".to_owned(), check), ("site.yaml:4".to_owned(), task)]
        };
        let mut after = node("ok", &[]);
        assert_eq!(gone(&after), told(true, true));
        // An audit of playbooks only.
        after["checks"] = Value::Null;
        assert_eq!(gone(&after), told(false, true));
        // A task failed: those behind it were not read.
        after["state"] = "failed".into();
        assert_eq!(gone(&after), told(false, false));
    }

    #[test]
    fn what_another_finding_explains_is_left_out() {
        let remap = ("mem.remap_failed", "GPU 3", "fail", "a row could not be remapped", None);
        let lost = ("inv.gpu_lost", "GPU 3", "fail", "the GPU is lost", None);
        let unread = ("mem.remap_failed", "GPU 3", "unknown", "the GPU is lost", None);
        let mut after = node("fail", &[lost, unread]);
        after["findings"][1]["explained_by"] = "inv.gpu_lost".into();
        let before = json!({"gpu001": node("fail", &[remap])});
        let found = Difference::between(&snapshot(&before), &snapshot(&json!({"gpu001": after})));
        let new: Vec<&str> = found.new.iter().map(|found| found.control.as_str()).collect();
        assert_eq!((new, found.changed.len()), (vec!["inv.gpu_lost"], 0));
        assert_eq!(found.gone.iter().map(|gone| gone.judged).collect::<Vec<_>>(), [false], "nobody knows");
    }

    /// Eight nodes that changed in the same way, one that is away, and one of each other kind.
    fn two() -> (Snapshot, Snapshot) {
        let (mut before, mut after) = (serde_json::Map::new(), serde_json::Map::new());
        for at in 1..=8 {
            let name = format!("gpu{at:03}");
            before.insert(name.clone(), node("ok", &[]));
            let found = [("os.swap", "", "drift", "vm.swappiness 60 -> 10", None)];
            after.insert(name, node("drift", &found));
        }
        let remap = ("mem.remap_failed", "GPU 3", "fail", "a row could not be remapped", None);
        let width = |text, waived| ("pcie.width", "GPU 1", "warn", text, waived);
        before.insert("gpu009".into(), node("fail", &[remap]));
        after.insert("gpu009".into(), node("unknown", &[("node", "", "unknown", "no route", None)]));
        before.insert("gpu010".into(), node("fail", &[remap, width("8 lanes", None)]));
        after.insert("gpu010".into(), node("ok", &[width("4 lanes", Some("RISER-1"))]));
        before.insert("gpu011".into(), node("ok", &[]));
        after.insert("gpu012".into(), node("ok", &[]));
        (snapshot(&before.into()), snapshot(&after.into()))
    }

    fn fits(difference: &Difference) -> Value {
        let value = serde_json::to_value(difference).unwrap();
        let validator = jsonschema::validator_for(&difference_schema()).unwrap();
        let wrong: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        value
    }

    #[test]
    fn causes_are_one_line_and_what_nobody_judged_is_not_gone() {
        let (before, after) = two();
        let difference = Difference::between(&before, &after);
        let value = fits(&difference);
        let gone: Vec<(&str, bool)> = value["gone"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["node"].as_str().unwrap(), it["judged"].as_bool().unwrap()))
            .collect();
        assert_eq!(gone, [("gpu009", false), ("gpu010", true)]);
        insta::assert_snapshot!(difference_screen(&difference, &jiff::tz::TimeZone::UTC, &Style::default()), @r"
        before  audit 01A as of 2026-11-21 09:00 +00:00, 11 nodes
        after   audit 01A as of 2026-11-21 09:00 +00:00, 11 nodes

        VERDICTS
          fail -> unknown   1 node: gpu009
          ok -> drift       8 nodes: gpu[001-008]
          fail -> ok        1 node: gpu010

        NEW
          unknown           no route [node] (1 node: gpu009)
          drift             vm.swappiness 60 -> 10 [os.swap] (8 nodes: gpu[001-008])

        CHANGED
          warn              GPU 1 4 lanes [pcie.width, waived by RISER-1]; before: 8 lanes (1 node: gpu010)

        GONE
          fail              GPU 3 a row could not be remapped [mem.remap_failed] (1 node: gpu010)

        NOT JUDGED ANY MORE
          fail              GPU 3 a row could not be remapped [mem.remap_failed] (1 node: gpu009)

        WAIVERS
          GPU 1 pcie.width is waived now by RISER-1 (1 node: gpu010)

        NODES
          only after (1 node: gpu012)
          only before (1 node: gpu011)
        ");
    }

    #[test]
    fn a_report_is_the_same_as_itself_and_what_was_is_what_is_the_other_way_round() {
        let snapshot = |count| Snapshot::of(document(&RunModel::of(&sample::audit(count)))).unwrap();
        let (small, large) = (snapshot(40), snapshot(300));
        let none = Difference::between(&large, &large);
        assert!(none.is_empty(), "{none:?}");
        fits(&none);
        let (there, back) = (Difference::between(&small, &large), Difference::between(&large, &small));
        assert_eq!(there.only_after, back.only_before);
        assert_eq!(there.only_after.len(), 260);
        let (before, after) = two();
        let (there, back) = (Difference::between(&before, &after), Difference::between(&after, &before));
        assert_eq!(there.new.len(), back.gone.len());
        assert_eq!(there.gone.len(), back.new.len());
        assert_eq!((there.changed.len(), there.waivers.len()), (back.changed.len(), back.waivers.len()));
    }

    #[test]
    fn another_document_is_none() {
        assert_eq!(Snapshot::of(json!({"format": 1})).unwrap_err(), ShapeError::Format(1));
        assert!(matches!(Snapshot::of(json!([])), Err(ShapeError::Else(_))));
        assert!(matches!(Snapshot::of(json!({"format": DOCUMENT_FORMAT})), Err(ShapeError::Else(_))));
    }
}
