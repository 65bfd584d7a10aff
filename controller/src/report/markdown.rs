//! A run as Markdown, for tickets and merge requests: what was found, and every node with its verdict.

use std::fmt::Write as _;

use super::{Judgements, RunModel, Totals, Verdict, fleet_findings, fold_names};

/// Returns the document, as GitHub and GitLab show it.
pub fn markdown(model: &RunModel) -> String {
    let verb = model.verb();
    let totals = Totals::of(model);
    let Totals { nodes, compliant, judgements: Judgements { made, asked, .. }, .. } = totals;
    let mut out = format!("# gpufleet {} {}\n\n", verb.as_str(), cell(model.run_id()));
    // Infallible: a `String` takes all that is written to it.
    let _ = write!(
        out,
        "{compliant} of {nodes} {}",
        if nodes == 1 { "node is compliant" } else { "nodes are compliant" }
    );
    match totals.with(Verdict::Na) {
        0 => {}
        not_applicable => {
            let _ = write!(out, ", and nothing applies to {not_applicable}");
        }
    }
    for (result, count) in model.results().filter(|(_, count)| *count > 0) {
        if let Some(caveat) = result.caveat() {
            let _ = write!(out, ", {count} {caveat}");
        }
    }
    if asked > 0 {
        let _ = write!(out, "; {made} of {asked} judgements were made");
    }
    out.push_str(".\n\n");
    let findings = fleet_findings(model);
    if !findings.is_empty() {
        out.push_str(
            "| verdict | severity | nodes | finding | control | next |\n|---|---|---|---|---|---|\n",
        );
    }
    for found in &findings {
        let finding = &found.finding;
        let hosts: Vec<&str> = found.nodes.iter().map(String::as_str).collect();
        let text = found.sentence();
        let aside = match (&finding.waived, &finding.explained_by) {
            (Some(waiver), _) => format!(" (waived: {waiver})"),
            (None, Some(cause)) => format!(" (explained by {cause})"),
            (None, None) => String::new(),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {}: {} | {}{} | {} | {} |",
            finding.verdict,
            finding.control.severity,
            hosts.len(),
            cell(&fold_names(&hosts)),
            cell(&text),
            cell(&aside),
            cell(&finding.control.id),
            finding.action,
        );
    }
    out.push_str("\n| node | verdict | next |\n|---|---|---|\n");
    for node in model.nodes() {
        let _ =
            writeln!(out, "| {} | {} | {} |", cell(&node.name), node.verdict(verb), node.next_action(verb));
    }
    out
}

/// Returns a text that Markdown shows as it is, in a cell of a table.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::visible::visible(text).chars() {
        if "\\`*_{}[]<>#|~!&@".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn an_audit_is_two_tables() {
        let text = markdown(&RunModel::of(&sample::audit(12)));
        insta::assert_snapshot!(text, @r"
        # gpufleet audit 01JD8Q4T9X

        8 of 12 nodes are compliant; 15 of 15 judgements were made.

        | verdict | severity | nodes | finding | control | next |
        |---|---|---|---|---|---|
        | fail | critical | 1: gpu006 | the driver shows 7 of 8 GPUs on the PCI bus | node | investigate |
        | drift | medium | 1: gpu003 | GPU 0-7 power limit 700 -\> 600 W | playbooks/bringup.yaml:18 | apply |
        | drift | medium | 1: gpu004 | GPU 0-7 ECC disabled -\> enabled | playbooks/bringup.yaml:12 | reboot |
        | drift | medium | 1: gpu004 | vm.swappiness 60 -\> 10 | playbooks/bringup.yaml:24 | apply |
        | drift | medium | 1: gpu008 | GPU 0-7 MIG layout 7x 1g.10gb -\> 2x 3g.40gb | playbooks/bringup.yaml:14 | reset |

        | node | verdict | next |
        |---|---|---|
        | gpu001 | ok | none |
        | gpu002 | ok | none |
        | gpu003 | drift | apply |
        | gpu004 | drift | reboot |
        | gpu005 | ok | none |
        | gpu006 | fail | investigate |
        | gpu007 | ok | none |
        | gpu008 | drift | reset |
        | gpu009 | ok | none |
        | gpu010 | ok | none |
        | gpu011 | ok | none |
        | gpu012 | ok | none |
        ");
    }

    #[test]
    fn a_text_from_a_node_is_no_markup() {
        assert_eq!(cell("a|b <img src=x> [x](y) `c`\n# d"), r"a\|b \<img src=x\> \[x\](y) \`c\`\\u000a\# d");
    }
}
