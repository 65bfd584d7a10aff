//! A run as SARIF 2.1.0, for programs that collect findings of many tools.
//!
//! Source: OASIS, Static Analysis Results Interchange Format 2.1.0. A node is a logical location. A fingerprint has no
//! values, so that a finding stays the same while its numbers change.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Control, NodeFinding, RunModel, Verdict};

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
    let rules: Vec<Value> = rules
        .into_values()
        .map(|control| {
            json!({
                "id": control.id,
                "shortDescription": {"text": control.title},
                "properties": {"severity": control.severity},
            })
        })
        .collect();
    serde_json::to_string_pretty(&json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "gpufleet",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "automationDetails": {"id": format!("gpufleet/{}/{}", verb.as_str(), model.run_id())},
            "invocations": [{"executionSuccessful": model.stopped().is_none()}],
            "results": results,
        }],
    }))
}

fn location(node: &str) -> Value {
    json!([{"logicalLocations": [{"name": node, "kind": "resource"}]}])
}

fn result(node: &str, found: &NodeFinding) -> Value {
    let (kind, level) = match found.verdict {
        Verdict::Fail => ("fail", "error"),
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
        result["suppressions"] = json!([{"kind": "external", "justification": waiver}]);
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
        assert_eq!(of("error"), count(&[Verdict::Fail]));
        assert_eq!(of("warning"), count(&[Verdict::Drift, Verdict::Warn]));
    }
}
