//! The screen of `audit`: which nodes are as declared, which are not, and what to do.

use super::{Role, Style, count, figures::wrap, plan::cause_text};
use crate::report::{
    NextAction, NodeModel, RunModel, Verdict, causes, fold_changes, fold_gpus, fold_names, reasons,
};

/// Number of groups shown for each verdict; the report has all.
const MOST: usize = 20;

/// Returns the screen; the report has the details of every node.
pub fn audit_screen(model: &RunModel, style: &Style) -> String {
    let verb = model.verb();
    let mut by_verdict: Vec<(Verdict, Vec<&NodeModel>)> =
        Verdict::WORST_FIRST.iter().map(|verdict| (*verdict, Vec::new())).collect();
    for node in model.nodes() {
        let verdict = node.verdict(verb);
        if let Some((_, nodes)) = by_verdict.iter_mut().find(|(known, _)| *known == verdict) {
            nodes.push(node);
        }
    }
    let of = |wanted: Verdict| {
        by_verdict.iter().find(|(verdict, _)| *verdict == wanted).map_or(0, |(_, nodes)| nodes.len())
    };
    let total = model.nodes().len();
    let good = of(Verdict::Ok) + of(Verdict::Warn) + of(Verdict::Na);
    let mut parts = vec![style.paint(Role::Good, format!("{good} compliant"))];
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
    for (verdict, nodes) in
        by_verdict.iter().filter(|(verdict, _)| !matches!(verdict, Verdict::Ok | Verdict::Na))
    {
        let groups = group(*verdict, nodes, model);
        for (why, action, hosts) in groups.iter().take(MOST) {
            row(*verdict, hosts, why, *action, style, &mut out);
        }
        if groups.len() > MOST {
            out.push_str(&format!(
                "  … and {} more; the report has all\n",
                count(groups.len() - MOST, "group")
            ));
        }
    }
    out
}

type Group<'a> = (String, NextAction, Vec<&'a str>);

/// Groups the nodes of one verdict by reason.
fn group<'a>(verdict: Verdict, nodes: &[&'a NodeModel], model: &RunModel) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &node in nodes {
        let why = reason(verdict, node);
        let action = node.next_action(model.verb());
        match groups.iter_mut().find(|(known, next, _)| *known == why && *next == action) {
            Some((_, _, hosts)) => hosts.push(&node.name),
            None => groups.push((why, action, vec![&node.name])),
        }
    }
    groups.sort_by_key(|(_, _, hosts)| std::cmp::Reverse(hosts.len()));
    groups
}

/// Returns the reason for a node's verdict, in one sentence without its name.
fn reason(verdict: Verdict, node: &NodeModel) -> String {
    if let Some(cause) = causes([node]).first() {
        return cause_text(cause);
    }
    let drift = || {
        let class = node.disruption()?;
        let mut all = reasons([node], class);
        let others =
            fold_changes(node.changes()).iter().filter(|group| group.change.disruption != class).count();
        if others > 0 {
            all.push(count(others, "smaller change"));
        }
        Some(all.join(", "))
    };
    // All of them: any one leads to the verdict, and none causes another.
    let warning = || {
        let all = fold_gpus(node.tasks.iter().flat_map(|task| &task.warnings).map(String::as_str));
        (!all.is_empty()).then(|| all.join("; "))
    };
    let hardware = || {
        let gpu = &node.facts.as_ref()?.gpu;
        let (seen, there) = (gpu.gpus.len(), gpu.pci_count as usize);
        (seen < there).then(|| format!("the driver shows {seen} of {there} GPUs on the PCI bus"))
    };
    let found = match verdict {
        Verdict::Fail => hardware().or_else(drift),
        Verdict::Warn => warning(),
        _ => drift(),
    };
    found
        .map(|text| super::clean(&text))
        .unwrap_or_else(|| format!("{}, and nothing more is known", node.state))
}

fn row(verdict: Verdict, hosts: &[&str], why: &str, action: NextAction, style: &Style, out: &mut String) {
    const NAMES: usize = 24;
    let nodes = count(hosts.len(), "node");
    let names = style.cut(&fold_names(hosts), NAMES);
    let next = style.paint(Role::Strong, format!("-> {action:11}"));
    let left =
        format!("  {}  {nodes:10}{next}  {names:NAMES$}  ", style.verdict(verdict, format!("{verdict:7}")));
    let used = 2 + 7 + 2 + 10 + 14 + 2 + NAMES + 2;
    for (at, line) in wrap(why, style.width.saturating_sub(used).max(24)).into_iter().enumerate() {
        let start = if at == 0 { left.clone() } else { " ".repeat(used) };
        out.push_str(&format!("{start}{line}\n"));
    }
}
