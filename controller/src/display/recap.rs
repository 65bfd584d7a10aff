//! The end of a run: Ansible's recap, the failures by cause, the last lines.

use super::{Role, Style, Verbosity, clean, clip, clock, count, figures::wrap, plan::cause_text};
use crate::{
    event::{NodeState, RecapCounts},
    report::{NodeModel, RunModel, causes, exit_code, fold_names, without_name},
};

/// With more nodes than this, those without trouble share lines.
const ALL_LINES: usize = 100;
/// Lines of nodes in trouble that are shown when there are more nodes than [`ALL_LINES`].
const TROUBLE_LINES: usize = 60;
/// Causes that the list of failures shows.
const CAUSES: usize = 20;

/// `PLAY RECAP` and a line a node; in a large fleet, equal lines of nodes without trouble are folded.
pub fn recap(model: &RunModel, style: &Style) -> String {
    let all = model.nodes().len() <= ALL_LINES || style.verbosity >= Verbosity::Changed;
    let mut lines: Vec<(String, &NodeModel)> = Vec::new();
    let mut folded: Vec<(RecapCounts, &NodeModel, Vec<&str>)> = Vec::new();
    let mut trouble = 0;
    let mut left_out = 0;
    for node in model.nodes() {
        if style.verbosity == Verbosity::Quiet && !node.is_bad() {
            continue;
        }
        if all || (node.is_bad() && trouble < TROUBLE_LINES) {
            trouble += usize::from(node.is_bad());
            lines.push((node.name.clone(), node));
        } else if node.is_bad() {
            left_out += 1;
        } else {
            let counts = node.counts();
            let same = |(known, first, _): &&mut (RecapCounts, &NodeModel, _)| {
                *known == counts && first.state == node.state
            };
            match folded.iter_mut().find(same) {
                Some((_, _, hosts)) => hosts.push(&node.name),
                None => folded.push((counts, node, vec![&node.name])),
            }
        }
    }
    for (_, node, hosts) in folded.into_iter().rev() {
        let label = match hosts.as_slice() {
            [only] => (*only).to_owned(),
            _ => format!("{} ({})", clip(&fold_names(&hosts), 40), count(hosts.len(), "node")),
        };
        lines.insert(0, (label, node));
    }
    if lines.is_empty() {
        return String::new();
    }
    let names = lines.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let widths = widths(lines.iter().map(|(_, node)| node.counts()));
    let mut out = format!("{}\n", style.paint(Role::Strong, "PLAY RECAP"));
    for (label, node) in &lines {
        let pad = " ".repeat(names - label.chars().count());
        let label = style.state(node.state, label);
        let counts = counts_text(node.counts(), widths, style);
        let shared = !node.is_bad() && !all;
        let why = if shared { String::new() } else { remark(node) };
        out.push_str(format!("{label}{pad} : {counts}   {why}").trim_end());
        out.push('\n');
    }
    if left_out > 0 {
        out.push_str(&format!("… and {} in trouble, by cause below\n", count(left_out, "more node")));
    }
    out
}

const FIELDS: [&str; 7] = ["ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored"];

const fn numbers(counts: RecapCounts) -> [u32; 7] {
    let RecapCounts { ok, changed, unreachable, failed, skipped, rescued, ignored } = counts;
    [ok, changed, unreachable, failed, skipped, rescued, ignored]
}

fn widths(all: impl Iterator<Item = RecapCounts>) -> [usize; 7] {
    let mut widths = [1; 7];
    for counts in all {
        for (width, number) in widths.iter_mut().zip(numbers(counts)) {
            *width = (*width).max(number.to_string().len());
        }
    }
    widths
}

fn counts_text(counts: RecapCounts, widths: [usize; 7], style: &Style) -> String {
    let cell = |((name, number), width): ((&str, u32), usize)| {
        let text = format!("{name}={number:<width$}");
        let role = match name {
            "ok" => Role::Good,
            "changed" | "ignored" | "rescued" => Role::Changed,
            "unreachable" | "failed" => Role::Bad,
            _ => Role::Busy,
        };
        if number > 0 { style.paint(role, text) } else { text }
    };
    let cells: Vec<String> = FIELDS.into_iter().zip(numbers(counts)).zip(widths).map(cell).collect();
    cells.join(" ")
}

/// Why a node ended as it did; for the others, what a person wants to know.
fn remark(node: &NodeModel) -> String {
    if node.is_bad() {
        let text = node
            .message()
            .map_or_else(|| node.state.to_string(), |text| without_name(&clean(text), &node.name));
        return match node.state {
            NodeState::Held | NodeState::Unknown => format!("{}: {text}", node.state),
            _ => text,
        };
    }
    let took: u64 =
        node.reboots.iter().filter_map(|reboot| reboot.after.as_ref()).map(|(_, seconds)| seconds).sum();
    let rebooted = node.outcome.as_ref().is_some_and(|outcome| outcome.rebooted);
    match node.state {
        NodeState::Done if rebooted && took > 0 => format!("reboot {}, verified", clock(took)),
        NodeState::Done if rebooted => "rebooted, verified".to_owned(),
        NodeState::Skipped => match node.message() {
            Some(text) if text.starts_with("stopped") => clean(text),
            _ => "never begun".to_owned(),
        },
        _ => node.message().map_or_else(String::new, clean),
    }
}

/// Nodes in trouble by cause, most frequent first: `38 nodes: …`.
pub fn failures(model: &RunModel, style: &Style) -> String {
    let mut all = causes(model.nodes());
    all.sort_by_key(|cause| std::cmp::Reverse(cause.hosts.len()));
    let mut out = String::new();
    for cause in all.iter().take(CAUSES) {
        let who = match cause.hosts.as_slice() {
            [only] => only.clone(),
            hosts => {
                format!("{}: {}", count(hosts.len(), "node"), clip(&fold_names(hosts), style.width - 20))
            }
        };
        let state = style.state(cause.state, cause.state);
        out.push_str(&format!("{state}  {who}\n"));
        for line in wrap(&cause_text(cause), style.width.saturating_sub(4)) {
            out.push_str(&format!("    {line}\n"));
        }
    }
    if all.len() > CAUSES {
        out.push_str(&format!("… and {}; the report has all\n", count(all.len() - CAUSES, "more cause")));
    }
    out
}

/// Nodes that a command line may name; with more of them the whole command is shorter, and as safe.
const NAMED: usize = 40;

/// The command that takes up the nodes in trouble again; `None` where none is, or no command is known.
pub fn again(model: &RunModel) -> Option<String> {
    let run = model.run.as_ref()?;
    let bad: Vec<&str> =
        model.nodes().iter().filter(|node| node.is_bad()).map(|node| node.name.as_str()).collect();
    if bad.is_empty() || run.command_line.is_empty() {
        return None;
    }
    // Why: nodes that are as declared are left alone by any run.
    if bad.len() > NAMED {
        return Some(shell_words::join(&run.command_line));
    }
    let mut words = Vec::new();
    let mut skip = false;
    for word in &run.command_line {
        if std::mem::take(&mut skip) || word.starts_with("--limit=") {
            continue;
        }
        if word == "--limit" || word == "-l" {
            skip = true;
            continue;
        }
        words.push(word.as_str());
    }
    let mut command = shell_words::join(words);
    command.push_str(" --limit ");
    command.push_str(&bad.join(","));
    Some(command)
}

/// The last lines: how it went, where the report lies, what to do next.
pub fn ending_lines(model: &RunModel, report: Option<&str>, style: &Style) -> String {
    let total = model.nodes().len();
    let good = model.count(NodeState::Done) + model.count(NodeState::Compliant);
    let mut parts = vec![if good == total {
        format!("{} as declared", count(total, "node"))
    } else {
        format!("{good} of {} as declared", count(total, "node"))
    }];
    for state in NodeState::ALL
        .into_iter()
        .filter(|state| model.count(*state) > 0 && !matches!(state, NodeState::Done | NodeState::Compliant))
    {
        parts.push(style.state(state, format!("{} {state}", model.count(state))));
    }
    let mut out = format!("{}.", parts.join(", "));
    if let Some(path) = report {
        out.push_str(&format!(" Report: {path}"));
    }
    out.push('\n');
    if let Some(stopped) = model.stopped() {
        out.push_str(&format!("{} {}\n", style.paint(Role::Warning, "Stopped:"), clean(stopped)));
    }
    let code = exit_code(model);
    if code != 0 {
        let out_of_service = model.out_of_service();
        let who = if out_of_service.is_empty() { "none".to_owned() } else { fold_names(&out_of_service) };
        out.push_str(&format!("Exit {code}. Still out of service: {who}.\n"));
        if let (Some(run), true) = (&model.run, model.finish.as_ref().is_some_and(|end| end.resumable)) {
            out.push_str(&format!("Go on with it: gpufleet resume {}\n", run.run_id));
        } else if let Some(command) = again(model) {
            out.push_str(&format!("Again for those in trouble: {command}\n"));
        }
    }
    out
}
