//! The screen of `audit`: which nodes are as declared, what keeps the others from it, and what to do.

use super::{Role, Style, clean, count, figures::wrap};
use crate::report::{FleetFinding, NodeModel, RunModel, Verdict, fleet_findings, fold_names};

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
    out
}

/// How many nodes have each verdict, and the share that is compliant.
fn headline(model: &RunModel, style: &Style) -> String {
    let verb = model.verb();
    let verdicts: Vec<Verdict> = model.nodes().iter().map(|node| node.verdict(verb)).collect();
    let of = |wanted: Verdict| verdicts.iter().filter(|verdict| **verdict == wanted).count();
    let total = verdicts.len();
    let good = model.nodes().iter().filter(|node| node.is_compliant(verb)).count();
    let mut parts = vec![style.paint(Role::Good, format!("{good} compliant"))];
    // A baseline may say that a warning counts.
    let warned = |node: &&NodeModel| node.verdict(verb) == Verdict::Warn && !node.is_compliant(verb);
    let warned = model.nodes().iter().filter(warned).count();
    if warned > 0 {
        parts.push(style.verdict(Verdict::Warn, format!("{warned} warn")));
    }
    for verdict in [Verdict::Drift, Verdict::Fail, Verdict::Unknown] {
        if of(verdict) > 0 {
            parts.push(style.verdict(verdict, format!("{} {verdict}", of(verdict))));
        }
    }
    let mut out = format!("{}, {}", count(total, "node"), parts.join(", "));
    // Rounded down, so that 100 % means all of them.
    if let Some(tenths) = (good * 1000).checked_div(total) {
        out.push_str(&format!("        {}.{} %", tenths / 10, tenths % 10));
    }
    out.push('\n');
    out
}

/// How much of what applies to the nodes was judged; `None` where no check was asked for.
fn coverage(model: &RunModel) -> Option<String> {
    let audit = model.run.as_ref()?.audit.as_ref()?;
    let (mut judged, mut applicable, mut not_asked) = (0, 0, 0);
    for node in model.nodes() {
        let tasks = node.judged(model.verb());
        let checks = node.health.as_ref().map(|health| &health.verdict.coverage);
        judged += tasks.judged() + checks.map_or(0, |checks| checks.judged);
        not_asked += checks.map_or(0, |checks| checks.not_yet);
        applicable += tasks.tasks() + checks.map_or(0, |checks| checks.asked());
    }
    let unread = match model.nodes().iter().filter(|node| node.awaits_health && node.health.is_none()).count()
    {
        0 => String::new(),
        nodes => format!("; {} not read", count(nodes, "node")),
    };
    let name = clean(&audit.policy.data().name);
    let deep = match not_asked {
        0 => String::new(),
        more => format!("; {more} more with --deep"),
    };
    Some(format!("{judged} of {applicable} judgements were made{deep}{unread}; baseline {name}"))
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
