//! The screen of `audit`: which nodes are as declared, what keeps the others from it, and what to do.

use gpufleet_compliance::Catalogue;

use super::{Role, Style, clean, count, figures::wrap};
use crate::{
    report::{FleetFinding, Judgements, NodeModel, RunModel, Totals, Verdict, fleet_findings, fold_names},
    visible,
};

/// Number of findings shown; the report has all.
const MOST: usize = 40;
/// Number of columns of the names of nodes.
const NAMES: usize = 24;

/// Returns the screen; the report has the details of every node.
pub fn audit_screen(model: &RunModel, style: &Style) -> String {
    let mut out = headline(model, style);
    if let Some(coverage) = coverage(model) {
        out.push_str(&format!("{coverage}\n"));
    }
    let findings = fleet_findings(model);
    let (causes, others): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.finding.is_cause());
    for finding in causes.iter().take(MOST) {
        row(finding, style, &mut out);
    }
    let mut left: Vec<String> = Vec::new();
    if causes.len() > MOST {
        left.push(format!("{} more", count(causes.len() - MOST, "finding")));
    }
    let (waived, symptoms): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|finding| finding.finding.waived.is_some());
    for (what, several) in [("waived", waived), ("explained by one above", symptoms)] {
        if !several.is_empty() {
            left.push(format!("{} {what}", count(several.len(), "finding")));
        }
    }
    if !left.is_empty() {
        out.push_str(&format!("  … and {}; the report has all\n", left.join(", ")));
    }
    let of_catalogue = |found: &&FleetFinding| Catalogue::get().check(&found.finding.control.id).is_some();
    if let Some(found) = causes.iter().take(MOST).find(of_catalogue) {
        let page = visible::command_line(["gpufleet", "doc", &found.finding.control.id]);
        out.push_str(&format!("Why it matters, and what to do: {page}\n"));
    }
    out
}

/// How many nodes have each verdict, and the share that is compliant.
fn headline(model: &RunModel, style: &Style) -> String {
    let verb = model.verb();
    let totals = Totals::of(model);
    let Totals { nodes: total, compliant: good, .. } = totals;
    let not_applicable = totals.with(Verdict::Na);
    let mut parts = vec![style.paint(Role::Good, format!("{good} compliant"))];
    // A baseline may say that a warning counts.
    let warned = |node: &&NodeModel| node.verdict(verb) == Verdict::Warn && !node.is_compliant(verb);
    let warned = model.nodes().iter().filter(warned).count();
    if warned > 0 {
        parts.push(style.verdict(Verdict::Warn, format!("{warned} warn")));
    }
    for verdict in [Verdict::Drift, Verdict::Fail, Verdict::Unknown] {
        if totals.with(verdict) > 0 {
            parts.push(style.verdict(verdict, format!("{} {verdict}", totals.with(verdict))));
        }
    }
    if not_applicable > 0 {
        parts.push(style.verdict(Verdict::Na, format!("{not_applicable} to which nothing applies")));
    }
    let mut out = format!("{}, {}", count(total, "node"), parts.join(", "));
    if let Some(share) = percent(good, total) {
        out.push_str(&format!("        {share}"));
    }
    if let Some(before) = model.earlier
        && let Some(share) = percent(before.compliant as usize, before.nodes as usize)
    {
        out.push_str(&format!(", {share} on {}", before.on));
    }
    out.push('\n');
    out
}

/// A share, rounded down, so that 100 % means all of them; `None` of nothing.
pub(super) fn percent(good: usize, total: usize) -> Option<String> {
    let tenths = (good * 1000).checked_div(total)?;
    Some(format!("{}.{} %", tenths / 10, tenths % 10))
}

/// How much of what applies to the nodes was judged; `None` where nothing applies.
fn coverage(model: &RunModel) -> Option<String> {
    let verb = model.verb();
    let Totals { judgements, unread, .. } = Totals::of(model);
    let Judgements { made, asked, not_yet, no_earlier } = judgements;
    let audit = model.run.as_ref().and_then(|run| run.audit.as_ref());
    if asked == 0 && audit.is_none() {
        return None;
    }
    let commands = model.nodes().iter().filter(|node| node.lacks_only_commands(verb)).count();
    let mut text = format!("{made} of {asked} judgements were made");
    for (number, told) in
        [(not_yet.saturating_sub(no_earlier), "more with --deep"), (no_earlier, "more with the next audit")]
    {
        if number > 0 {
            text += &format!("; {number} {told}");
        }
    }
    for (nodes, told) in [(unread, "not read"), (commands, "only lack commands, which --strict counts")] {
        if nodes > 0 {
            text += &format!("; {} {told}", count(nodes, "node"));
        }
    }
    if let Some(audit) = audit {
        text += &format!("; baseline {}", clean(&audit.policy.data().name));
    }
    Some(text)
}

fn row(found: &FleetFinding, style: &Style, out: &mut String) {
    let finding = &found.finding;
    let nodes = count(found.nodes.len(), "node");
    let hosts: Vec<&str> = found.nodes.iter().map(String::as_str).collect();
    let names = style.cut(&fold_names(&hosts), NAMES);
    let next = style.paint(Role::Strong, format!("-> {:11}", finding.action));
    let verdict = style.verdict(finding.verdict, format!("{:7}", finding.verdict));
    let left = format!("  {verdict}  {nodes:10}{next}  {names:NAMES$}  ");
    let used = 2 + 7 + 2 + 10 + 14 + 2 + NAMES + 2;
    let place = found.place().map(|place| format!(" ({place})")).unwrap_or_default();
    let why = style.without_digests(&clean(&(found.sentence() + &place)));
    for (at, line) in wrap(&why, style.width.saturating_sub(used).max(24)).into_iter().enumerate() {
        let start = if at == 0 { left.clone() } else { " ".repeat(used) };
        out.push_str(&format!("{start}{line}\n"));
    }
}
