//! A run as SARIF 2.1.0, for programs that collect findings of many tools.
//!
//! A node is a logical location. A fingerprint has no values, so that a finding stays the same while its numbers change.

use std::collections::BTreeMap;

use gpufleet_compliance::Severity;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Control, Judgements, NodeFinding, RunModel, Totals, Verdict};
use crate::sarif::{Run, document};

/// Returns the document.
///
/// # Errors
/// Those of the writer.
pub fn sarif(model: &RunModel) -> Result<String, serde_json::Error> {
    let verb = model.verb();
    let mut rules: BTreeMap<String, Control> = BTreeMap::new();
    let mut results: Vec<Value> = Vec::new();
    for node in model.nodes() {
        let findings = node.findings(verb);
        if findings.is_empty() {
            rules.entry("node".to_owned()).or_insert_with(Control::node);
            results.push(json!({
                "ruleId": "node",
                "kind": match node.verdict(verb) {
                    Verdict::Ok => "pass",
                    Verdict::Na => "notApplicable",
                    _ => "open",
                },
                "level": "none",
                "message": {"text": format!("{}: {}", node.name, node.verdict(verb))},
                "locations": location(&node.name),
            }));
        }
        for found in findings {
            results.push(result(&node.name, &found));
            rules.entry(found.control.id.clone()).or_insert(found.control);
        }
    }
    let rules = rules.into_values().map(|control| rule(&control, model)).collect();
    let mut more = Map::new();
    let id = format!("gpufleet/{}/{}", verb.as_str(), model.run_id());
    more.insert("automationDetails".to_owned(), json!({"id": id}));
    more.insert("properties".to_owned(), sums(model));
    let successful = model.stopped().is_none();
    crate::visible::json_document(&document(Run { rules, results, successful, more }))
}

/// What is judged, with what is to be done about it where it is a check.
fn rule(control: &Control, model: &RunModel) -> Value {
    let mut rule = json!({
        "id": control.id,
        "shortDescription": {"text": control.title},
        "properties": {"severity": control.severity},
    });
    let audit = model.run.as_ref().and_then(|run| run.audit.as_deref());
    if let Some(check) = audit.and_then(|audit| audit.policy.check(&control.id)) {
        rule["shortDescription"] = json!({"text": check.fault});
        if !check.why.is_empty() {
            rule["fullDescription"] = json!({"text": check.why});
        }
        if !check.remediation.text.is_empty() {
            rule["help"] = json!({"text": check.remediation.text});
        }
        if let Some((group, _)) = check.id.split_once('.') {
            rule["properties"]["tags"] = json!([group]);
        }
    }
    rule
}

/// The sums that every format has.
fn sums(model: &RunModel) -> Value {
    let totals = Totals::of(model);
    let Totals { nodes, compliant, judgements: Judgements { made, asked, .. }, .. } = totals;
    let verdicts: Map<String, Value> =
        totals.verdicts().map(|(verdict, count)| (verdict.to_string(), count.into())).collect();
    json!({"nodes": nodes, "compliant": compliant, "verdicts": verdicts, "judged": made, "applicable": asked})
}

fn location(node: &str) -> Value {
    json!([{"logicalLocations": [{"name": node, "kind": "resource"}]}])
}

fn result(node: &str, found: &NodeFinding) -> Value {
    let (kind, level) = match found.verdict {
        Verdict::Fail => ("fail", "error"),
        Verdict::Drift if found.control.severity >= Severity::High => ("fail", "error"),
        Verdict::Drift | Verdict::Warn => ("fail", "warning"),
        // `open`: it could not be decided.
        Verdict::Unknown => ("open", "none"),
        Verdict::Ok | Verdict::Na => ("pass", "none"),
    };
    let text = [found.subject.as_str(), &found.sentence()].join(" ");
    let mut result = json!({
        "ruleId": found.control.id,
        "kind": kind,
        "level": level,
        "message": {"text": text.trim()},
        "locations": location(node),
        "partialFingerprints": {"gpufleet/1": fingerprint(node, found)},
        "properties": {"verdict": found.verdict, "action": found.action},
    });
    if let Some(waiver) = &found.waived {
        result["suppressions"] = json!([{"kind": "external", "status": "accepted", "justification": waiver}]);
    }
    result
}

fn fingerprint(node: &str, found: &NodeFinding) -> String {
    let mut hash = Sha256::new();
    for part in [node, &found.control.id, &found.subject] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn an_audit_is_a_sarif_document() {
        let model = RunModel::of(&sample::audit(300));
        let text = sarif(&model).unwrap();
        let read: serde_sarif::sarif::Sarif = serde_json::from_str(&text).unwrap();
        let results = read.runs[0].results.as_ref().unwrap();
        let of = |level: &str| results.iter().filter(|result| json!(result.level) == level).count();
        let findings: Vec<NodeFinding> =
            model.nodes().iter().flat_map(|node| node.findings(model.verb())).collect();
        let count = |wanted: &[Verdict]| findings.iter().filter(|it| wanted.contains(&it.verdict)).count();
        assert_eq!(of("error"), count(&[Verdict::Fail]), "tasks that differ are of medium severity");
        assert_eq!(of("warning"), count(&[Verdict::Drift, Verdict::Warn]));
    }
}
