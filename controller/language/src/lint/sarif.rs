//! Writes findings as SARIF 2.1.0, which code hosts show beside the lines.

use serde_json::{Map, Value as Json, json};

use super::rules::RULES;
use super::run::{Finding, Report};
use crate::sarif::{Run, document};

/// Returns the SARIF document of a report.
pub fn sarif(report: &Report) -> Json {
    let rules: Vec<Json> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.name,
                "shortDescription": {"text": rule.summary},
                "fullDescription": {"text": rule.help},
                "help": {"text": format!("{}\n\n{}", rule.help, rule.example)},
                "defaultConfiguration": {"level": rule.severity.as_str()},
            })
        })
        .collect();
    let results = report.findings.iter().map(result).collect();
    document(Run { rules, results, successful: true, more: Map::new() })
}

fn result(finding: &Finding) -> Json {
    let diagnostic = &finding.diagnostic;
    let mut text = diagnostic.message.clone();
    for line in diagnostic.notes.iter().chain(&diagnostic.help) {
        text.push('\n');
        text.push_str(line);
    }
    let mut result = json!({
        "ruleId": finding.rule,
        "level": finding.severity.as_str(),
        "message": {"text": text},
    });
    if let Some(index) = RULES.iter().position(|rule| rule.name == finding.rule) {
        result["ruleIndex"] = json!(index);
    }
    if let Some(span) = &diagnostic.span {
        result["locations"] = json!([{"physicalLocation": {
            "artifactLocation": {"uri": uri(span.file())},
            "region": {
                "startLine": span.line.max(1),
                "startColumn": span.column.max(1),
                "endColumn": span.column.max(1).saturating_add(span.length.max(1)),
            },
        }}]);
    }
    result
}

/// Returns a file name as a URI reference.
fn uri(name: &str) -> String {
    let mut out = String::new();
    if name.starts_with('/') {
        out.push_str("file://");
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_uris() {
        assert_eq!(uri("a b/ü.yml"), "a%20b/%C3%BC.yml");
        assert_eq!(uri("/etc/x.yml"), "file:///etc/x.yml");
    }
}
