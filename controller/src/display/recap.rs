//! The end of a run: Ansible's recap, the failures by cause, the last lines.

use std::collections::{HashMap, HashSet};

use jiff::tz::TimeZone;

use super::{
    Role, Style, Verbosity, clean, clock, count, figures::wrap, moment, plan::cause_text, shared::Shared,
};
use crate::{
    event::{ABORTED, NOT_CONFIRMED, NodeState, RecapCounts},
    report::{NOT_OVER, NodeModel, RunModel, Standing, Verdict, causes, exit_code, fold_names},
    visible::command_line,
};

/// Number of nodes up to which each gets a line; in larger fleets, nodes without trouble share lines.
const ALL_LINES: usize = 100;
/// Number of lines for nodes in trouble if there are more nodes than [`ALL_LINES`].
const TROUBLE_LINES: usize = 60;
/// Largest width of the names; a longer one stays whole, and shifts only its own line.
const LABEL: usize = 60;
/// Number of causes in the list of failures.
const CAUSES: usize = 20;

/// Number of held nodes with a screen of their own; the report has them all.
const EXPLAINED: usize = 8;

pub fn explained(model: &RunModel) -> impl Iterator<Item = &NodeModel> {
    model.nodes().iter().filter(|node| node.state == NodeState::Held).take(EXPLAINED)
}

/// Whether every node gets a line.
fn has_all_lines(model: &RunModel, style: &Style) -> bool {
    model.nodes().len() <= ALL_LINES || style.verbosity >= Verbosity::Changed
}

/// Returns the nodes in trouble that get a line.
fn with_a_line<'a>(model: &'a RunModel, style: &Style) -> impl Iterator<Item = &'a NodeModel> {
    let most = if has_all_lines(model, style) { usize::MAX } else { TROUBLE_LINES };
    model.nodes().iter().filter(|node| node.is_bad()).take(most)
}

/// Where the end of a run explains why a node is in trouble, so that it is explained only once.
#[derive(Clone, Debug)]
enum Said {
    /// In its line, as no other node shares the cause.
    Line(String),
    /// In the list of causes, as others share the cause or it has no line.
    Causes,
    /// On its own screen.
    Screen,
}

fn where_said(model: &RunModel, style: &Style) -> HashMap<String, Said> {
    let named: HashSet<&str> = with_a_line(model, style).map(|node| node.name.as_str()).collect();
    let explained: HashSet<&str> = explained(model).map(|node| node.name.as_str()).collect();
    let mut all = HashMap::new();
    for cause in causes(model.nodes()) {
        for host in &cause.hosts {
            let said = match cause.hosts.as_slice() {
                _ if explained.contains(host.as_str()) => Said::Screen,
                [only] if cause.state != NodeState::Held && named.contains(only.as_str()) => {
                    let text = cause_text(&cause);
                    Said::Line(match cause.state {
                        NodeState::Unknown => format!("{}: {text}", cause.state),
                        _ => text,
                    })
                }
                _ => Said::Causes,
            };
            all.insert(host.clone(), said);
        }
    }
    all
}

/// Returns `PLAY RECAP` and a line for each node; in a large fleet, equal lines of nodes without trouble are folded.
pub fn recap(model: &RunModel, style: &Style) -> String {
    let all = has_all_lines(model, style);
    let named: HashSet<&str> = with_a_line(model, style).map(|node| node.name.as_str()).collect();
    let mut lines: Vec<(String, &NodeModel)> = Vec::new();
    let mut folded: Vec<(RecapCounts, &NodeModel, Vec<&str>)> = Vec::new();
    let mut left_out = 0;
    for node in model.nodes() {
        if style.verbosity == Verbosity::Quiet && !node.is_bad() {
            continue;
        }
        if all || named.contains(node.name.as_str()) {
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
            _ => format!("{} ({})", style.cut(&fold_names(&hosts), 40), count(hosts.len(), "node")),
        };
        lines.insert(0, (label, node));
    }
    if lines.is_empty() {
        return String::new();
    }
    let said = where_said(model, style);
    let widths = widths(lines.iter().map(|(_, node)| node.counts()));
    let plain = Style { color: false, ..*style };
    let beside =
        style.width.saturating_sub(3 + counts_text(RecapCounts::default(), widths, &plain).chars().count());
    let fitting = |label: &str| label.chars().count() <= beside;
    let labels = lines.iter().map(|(label, _)| label.as_str()).filter(|label| fitting(label));
    // Limited, because a folded label may be as long as a log is wide, and would push the columns of all others
    // aside.
    let names = labels.map(|label| label.chars().count()).max().unwrap_or(0).min(LABEL);
    let mut out = format!("{}\n", style.paint(Role::Strong, "PLAY RECAP"));
    for (label, node) in &lines {
        let pad = " ".repeat(names.saturating_sub(label.chars().count()));
        let counts = counts_text(node.counts(), widths, style);
        let width = label.chars().count().max(names) + (style.width - beside);
        let label = match fitting(label) {
            true => format!("{}{pad} : ", style.state(node.state, label)),
            false => format!("{} :\n    ", style.state(node.state, label)),
        };
        let shared = !node.is_bad() && !all;
        let why = if shared { String::new() } else { remark(node, said.get(&node.name)) };
        out.push_str(&format!("{label}{counts}"));
        if width + 3 + why.chars().count() <= style.width {
            out.push_str(format!("   {why}").trim_end());
        } else {
            for line in wrap(&why, style.width.saturating_sub(4)) {
                out.push_str(&format!("\n    {line}"));
            }
        }
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

/// Returns why a node ended as it did, unless that is explained below; for other nodes, useful details.
fn remark(node: &NodeModel, said: Option<&Said>) -> String {
    match said {
        Some(Said::Line(text)) => return text.clone(),
        Some(Said::Causes | Said::Screen) => return format!("{}, see below", node.state),
        None => {}
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

/// Returns nodes in trouble by cause, most frequent first: `38 nodes: …`. Nodes that the recap has explained are left
/// out.
pub fn failures(model: &RunModel, style: &Style) -> String {
    let said = where_said(model, style);
    let open = |host: &String| matches!(said.get(host), Some(Said::Causes));
    let mut all: Vec<_> =
        causes(model.nodes()).into_iter().filter(|cause| cause.hosts.iter().any(open)).collect();
    all.sort_by_key(|cause| std::cmp::Reverse(cause.hosts.len()));
    let mut out = String::new();
    for cause in all.iter().take(CAUSES) {
        let who = match cause.hosts.as_slice() {
            [only] => only.clone(),
            hosts => {
                format!(
                    "{}: {}",
                    count(hosts.len(), "node"),
                    style.cut(&fold_names(hosts), style.width.saturating_sub(20))
                )
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

/// Number of characters of names in a command line; with more, the command for the whole run is used, which is just
/// as safe.
const NAMED: usize = 400;

/// Returns the command for the nodes in trouble and those that were not begun; `None` if there is none, or no command is known.
pub fn again(model: &RunModel) -> Option<String> {
    let run = model.run.as_ref()?;
    let is_left = |node: &&NodeModel| {
        node.is_bad()
            || model.verb().writes() && matches!(node.state, NodeState::Pending | NodeState::Skipped)
    };
    let bad: Vec<&str> = model.nodes().iter().filter(is_left).map(|node| node.name.as_str()).collect();
    if bad.is_empty() || run.command_line.is_empty() {
        return None;
    }
    // Every run leaves nodes alone that are as declared.
    let names = fold_names(bad);
    if names.chars().count() > NAMED {
        return Some(command_line(&run.command_line));
    }
    let mut words = limited(&run.command_line, &names)?;
    let confirmed = |word: &String| word == "--yes" || word == "-y";
    if model.stopped() == Some(NOT_CONFIRMED) && !words.iter().any(confirmed) {
        words.push("--yes".to_owned());
    }
    Some(command_line(words))
}

/// Returns the words of a command line for these nodes alone; `None` where no command line is known.
pub fn limited(command_line: &[String], names: &str) -> Option<Vec<String>> {
    if command_line.is_empty() {
        return None;
    }
    let mut words = Vec::new();
    let mut skip = false;
    for word in command_line {
        let joined = word.strip_prefix("-l").is_some_and(|names| !names.is_empty());
        if std::mem::take(&mut skip) || word.starts_with("--limit=") || joined {
            continue;
        }
        if word == "--limit" || word == "-l" {
            skip = true;
            continue;
        }
        words.push(word.clone());
    }
    words.extend(["--limit".to_owned(), names.to_owned()]);
    Some(words)
}

/// Returns the line at the top for a run that has not ended; empty otherwise.
pub fn not_over(model: &RunModel, zone: &TimeZone, style: &Style) -> String {
    let standing = model.standing();
    if standing == Standing::Finished {
        return String::new();
    }
    let run = model.run_id();
    let as_of = model.latest.map_or_else(String::new, |at| format!(", as of {}", moment(at, zone)));
    let next = match standing {
        Standing::Running => format!("gpufleet report {run} shows it again"),
        _ if model.verb().writes() => format!("gpufleet resume {run} goes on with it"),
        _ => format!("it only read: begin the {} anew", model.verb().as_str()),
    };
    let what = style.paint(Role::Warning, format!("Run {run} is {}", standing.text()));
    format!("{what}{as_of}: what follows is no result. Exit {NOT_OVER}; {next}.\n\n")
}

/// Returns the last lines: the outcome, the place of the report, what to do next.
pub fn ending_lines(model: &RunModel, report: Option<&str>, style: &Style) -> String {
    let total = model.nodes().len();
    if model.is_audit_of_checks() {
        let verb = model.verb();
        let good = model.nodes().iter().filter(|node| node.is_compliant(verb)).count();
        let mut out = format!("{good} of {} compliant.", count(total, "node"));
        tail(model, report, style, &mut out);
        return out;
    }
    let open = model.not_judged().len();
    let verb = model.verb();
    let not_applicable = model.nodes().iter().filter(|node| !node.applies(verb)).count();
    let unjudged = model.nodes().iter().filter(|node| node.is_done_unjudged(verb)).count();
    let partly = model.nodes().iter().filter(|node| node.has_unjudged_work(verb)).count() - unjudged;
    let good = (model.count(NodeState::Done) + model.count(NodeState::Compliant))
        .saturating_sub(open + not_applicable + unjudged);
    let ignored = model.ignored_failures();
    let with_ignored: HashSet<&str> = ignored.iter().map(|(node, _)| node.name.as_str()).collect();
    let good = good.saturating_sub(with_ignored.len());
    let mut parts = vec![if good == total {
        format!("{} as declared", count(total, "node"))
    } else {
        format!("{good} of {} as declared", count(total, "node"))
    }];
    if unjudged > 0 {
        // Why: nothing was declared there but commands, and what a command does is not compared with anything.
        parts.push(style.state(NodeState::Unknown, format!("{unjudged} done, not judged")));
    }
    if partly > 0 {
        parts.push(format!("commands on {partly} of them not judged"));
    }
    if !with_ignored.is_empty() {
        let text = format!("{} with failures that are ignored", with_ignored.len());
        parts.push(style.paint(Role::Warning, text));
    }
    if open > 0 {
        parts.push(style.state(NodeState::Unknown, format!("{open} not judged")));
    }
    if not_applicable > 0 {
        parts.push(style.verdict(Verdict::Na, format!("{not_applicable} to which no task applies")));
    }
    for state in NodeState::ALL
        .into_iter()
        .filter(|state| model.count(*state) > 0 && !matches!(state, NodeState::Done | NodeState::Compliant))
    {
        parts.push(style.state(state, format!("{} {state}", model.count(state))));
    }
    let mut out = format!("{}.", parts.join(", "));
    let mut alike: Shared<'_, String> = Shared::default();
    for (node, task) in &ignored {
        alike.add(super::plan::ignored_text(node, task), &node.name);
    }
    let alike = alike.in_order();
    let ignored_lines = alike.iter().take(CAUSES).map(|(text, hosts)| {
        format!("{} {}  {text}\n", style.paint(Role::Warning, "ignored:"), fold_names(hosts))
    });
    let ignored_lines: String = ignored_lines.collect();
    out.insert_str(0, &ignored_lines);
    tail(model, report, style, &mut out);
    out
}

/// Where the report is, what is to be known, and how the run ended.
fn tail(model: &RunModel, report: Option<&str>, style: &Style, out: &mut String) {
    if let Some(path) = report {
        out.push_str(&format!(" Report: {path}"));
    }
    out.push('\n');
    let warnings = super::plan::warnings(model);
    for text in warnings.iter().take(CAUSES) {
        out.push_str(&format!("{} {text}\n", style.paint(Role::Warning, "warning:")));
    }
    if warnings.len() > CAUSES {
        out.push_str(&format!(
            "… and {}; the report has all\n",
            count(warnings.len() - CAUSES, "more warning")
        ));
    }
    if let Some(stopped) = model.stopped() {
        out.push_str(&format!("{} {}\n", style.paint(Role::Warning, "Stopped:"), clean(stopped)));
    }
    let code = exit_code(model);
    if code != 0 {
        let left_out = model.left_out();
        let who = if left_out.is_empty() { "none".to_owned() } else { fold_names(&left_out) };
        out.push_str(&match model.verb().info().judges {
            // An audit takes no node out of service.
            true => format!("Exit {code}.\n"),
            // An abort ends well once no node is out; what was not begun is on record.
            false if left_out.is_empty() && code == 5 && model.stopped() == Some(ABORTED) => {
                "Aborted. Still out of service: none.\n".to_owned()
            }
            false => format!("Exit {code}. Still out of service: {who}.\n"),
        });
        let left_in = model.left_in_service();
        if !left_in.is_empty() {
            out.push_str(&format!(
                "Disturbed, not proven well, and open to work, as far as this run knows, since it has no scheduler keep it away: {}.\n",
                fold_names(left_in)
            ));
        }
        if let (Some(run), true) = (&model.run, model.finish.as_ref().is_some_and(|end| end.resumable)) {
            out.push_str(&format!("Go on with it: gpufleet resume {}\n", run.run_id));
            let is_failed =
                |name: &String| model.node(name).is_some_and(|node| node.state == NodeState::Failed);
            let failed: Vec<String> = left_out.into_iter().filter(is_failed).collect();
            if let (Some(command), false) = (again(model), failed.is_empty()) {
                // Why: they take up the budget, and the run that drained them stands before them until it is over.
                out.push_str(&format!(
                    "Failed, and tried again by no resume: {}. Once that is mended, `gpufleet abort {}` ends this run, and `{command}` \
                     takes up what is left.\n",
                    fold_names(&failed),
                    run.run_id
                ));
            }
        } else if let Some(command) = again(model) {
            // Why: values of `-e` are on no record, and the sign in their place would be taken for them.
            let hidden = if command.contains('…') { " (with the values in place of …)" } else { "" };
            out.push_str(&format!("Again for those that are left: {command}{hidden}\n"));
        }
    }
}
