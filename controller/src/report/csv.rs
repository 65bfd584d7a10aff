//! A run as CSV, for spreadsheets: a line for each finding of a node, and one for each node without a finding.

use csv::{QuoteStyle, Terminator, WriterBuilder};

use super::{NodeModel, RunModel};
use crate::event::Verb;

const COLUMNS: [&str; 13] = [
    "node",
    "node_verdict",
    "next_action",
    "control",
    "title",
    "severity",
    "verdict",
    "action",
    "subject",
    "finding",
    "expected",
    "waived",
    "explained_by",
];

/// Returns the document, as RFC 4180 describes it.
///
/// # Errors
/// Those of the writer.
pub fn csv(model: &RunModel) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut writer = WriterBuilder::new()
        .quote_style(QuoteStyle::Necessary)
        .terminator(Terminator::CRLF)
        .from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for node in model.nodes() {
        for row in rows(node, model.verb()) {
            writer.write_record(row.iter().map(|cell| inert(cell)))?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn rows(node: &NodeModel, verb: Verb) -> Vec<[String; 13]> {
    let (verdict, action) = (node.verdict(verb).to_string(), node.next_action(verb).to_string());
    let findings = node.findings(verb);
    if findings.is_empty() {
        let mut row: [String; 13] = Default::default();
        (row[0], row[1], row[2]) = (node.name.clone(), verdict, action);
        return vec![row];
    }
    let row = |found: super::NodeFinding| {
        let text = found.sentence();
        [
            node.name.clone(),
            verdict.clone(),
            action.clone(),
            found.control.id,
            found.control.title,
            found.control.severity.to_string(),
            found.verdict.to_string(),
            found.action.to_string(),
            found.subject,
            text,
            found.expected.unwrap_or_default(),
            found.waived.unwrap_or_default(),
            found.explained_by.unwrap_or_default(),
        ]
    };
    findings.into_iter().map(row).collect()
}

/// Keeps a spreadsheet from taking a cell for a formula. Source: OWASP, CSV injection.
pub fn inert(cell: &str) -> String {
    let text = crate::visible::visible(cell).into_owned();
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_node_has_a_line_and_no_cell_is_a_formula() {
        let model = RunModel::of(&sample::audit(300));
        let text = csv(&model).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(reader.headers().unwrap(), COLUMNS.as_slice());
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let named: std::collections::HashSet<&str> = records.iter().map(|record| &record[0]).collect();
        assert_eq!(named.len(), 300);
        let findings: usize = model.nodes().iter().map(|node| node.findings(model.verb()).len()).sum();
        assert_eq!(records.iter().filter(|record| !record[3].is_empty()).count(), findings);
        for text in ["=1+1", "+1", "-1", "@x", "\tx"] {
            assert!(!inert(text).starts_with(['=', '+', '-', '@', '\t']), "{text}");
        }
        assert_eq!(inert("vm.swappiness 60 -> 10"), "vm.swappiness 60 -> 10");
    }
}
