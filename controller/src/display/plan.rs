//! The screen of `plan`: what would happen, to which nodes, and with which disruption.

use std::collections::{BTreeSet, HashMap};

use gpufleet_protocol::{Blocker, Certainty, Disruption};

use super::{Role, Style, clean, count, figures::wrap, schedule::schedule, shared::Shared};
use crate::{
    event::{NodeState, TaskReport, TaskStatus},
    report::{
        Cause, ChangeGroup, NodeModel, RunModel, causes, fold_changes, fold_names, hardware_class, reasons,
        without_name,
    },
    visible::visible_lines,
};

/// How much of the plan is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanView {
    /// Nodes grouped by what happens to them.
    #[default]
    Summary,
    /// `--diff`: every change too, with equal ones grouped.
    Diff,
}

/// Width of the two left cells.
pub(super) const LABEL: usize = 11;
const NODES: usize = 10;
/// Largest width of the names, and largest number of lines of the reasons.
const NAMES: usize = 28;
const REASON_LINES: usize = 3;

/// Width of a change and of its values, and the same for a narrow screen.
const CELL: usize = 32;
const NARROW_CELL: usize = 24;
const WIDE: usize = 100;

/// The whole screen.
pub fn plan_screen(model: &RunModel, view: PlanView, style: &Style) -> String {
    let mut out = head(model, style);
    out.push('\n');
    groups(model, style, &mut out);
    let mut notes = String::new();
    for play in &model.plays {
        schedule(play, model, style, &mut notes);
    }
    for line in told(model, |node| {
        let text =
            |blocker: &Blocker| format!("{}; next step: {}", clean(&blocker.what), clean(&blocker.next));
        node.blockers().into_iter().map(text).collect()
    }) {
        note("In the way", &line, style, &mut notes);
    }
    for line in told(model, |node| node.ignored_failures().map(|task| ignored_text(node, task)).collect()) {
        note("Ignored", &line, style, &mut notes);
    }
    for line in warnings(model) {
        note("Warning", &line, style, &mut notes);
    }
    for line in not_sure(model) {
        note("Not sure", &line, style, &mut notes);
    }
    if !notes.is_empty() {
        out.push('\n');
        out.push_str(&notes);
    }
    match view {
        PlanView::Diff => {
            out.push('\n');
            diff(model, style, &mut out);
        }
        PlanView::Summary => {
            let hint = "--diff shows every change; --node HOST shows one node; --format json is the same for programs.";
            out.push_str(&format!("\n  {}\n", style.paint(Role::Muted, hint)));
        }
    }
    out
}

fn head(model: &RunModel, style: &Style) -> String {
    let names: Vec<String> = model.plays.iter().map(|play| format!("\"{}\"", clean(&play.name))).collect();
    let what = if names.is_empty() { "Plan".to_owned() } else { format!("Plan for {}", names.join(", ")) };
    let classes: BTreeSet<String> =
        model.nodes().iter().filter_map(|node| hardware_class(node.facts.as_deref()?)).collect();
    let mut parts = vec![count(model.nodes().len(), "node")];
    match classes.len() {
        0 => {}
        1 => parts.push("1 hardware class".to_owned()),
        many => parts.push(format!("{many} hardware classes")),
    }
    if let (Some(from), Some(to)) = (model.started, model.finished.or(model.latest)) {
        let tenths = (to.as_millisecond() - from.as_millisecond()).max(0) / 100;
        parts.push(format!("read in {}.{} s", tenths / 10, tenths % 10));
    }
    // Indented, because no line of foreign text may begin where gpufleet's lines do.
    let lines =
        wrap(&format!("{what}: {}. Nothing was changed.", parts.join(", ")), style.width.saturating_sub(2))
            .join("\n  ");
    match lines.strip_prefix(&what) {
        Some(rest) => format!("{}{rest}\n", style.paint(Role::Strong, what)),
        None => format!("{lines}\n"),
    }
}

/// A row of the summary before it is laid out.
struct Row {
    label: &'static str,
    painted: String,
    nodes: String,
    names: String,
    why: String,
}

impl Row {
    fn new(label: &'static str, painted: String, hosts: &[&str], why: String, style: &Style) -> Self {
        let names = style.cut(&fold_names(hosts), NAMES);
        Self { label, painted, nodes: count(hosts.len(), "node"), names, why }
    }
}

/// Writes rows in columns; a text that is too long for its column continues below.
fn lay_out(rows: &[Row], style: &Style, out: &mut String) {
    let names = rows.iter().map(|row| row.names.chars().count()).max().unwrap_or(0).min(NAMES);
    let left = 2 + LABEL + 1 + NODES;
    let used = left + names + 2;
    for Row { label, painted, nodes, names: text, why } in rows {
        let pad = " ".repeat(LABEL.saturating_sub(label.chars().count()));
        let mut lines = wrap(why, style.width.saturating_sub(used).max(24));
        if lines.len() > REASON_LINES {
            lines.truncate(REASON_LINES);
            if let Some(last) = lines.last_mut() {
                last.push('…');
            }
        }
        let first = lines.first().map_or("", String::as_str);
        let line = format!("  {painted}{pad} {nodes:NODES$}{text:names$}  {first}");
        out.push_str(line.trim_end());
        out.push('\n');
        for line in lines.iter().skip(1) {
            out.push_str(&format!("{:used$}{line}\n", ""));
        }
    }
}

fn groups(model: &RunModel, style: &Style, out: &mut String) {
    let settled = |node: &&NodeModel| !node.is_bad() && node.state != NodeState::Skipped;
    let mut rows = Vec::new();
    for class in [Disruption::Reboot, Disruption::GpuReset, Disruption::Clients, Disruption::Live] {
        let nodes: Vec<&NodeModel> =
            model.nodes().iter().filter(settled).filter(|node| node.disruption() == Some(class)).collect();
        if !nodes.is_empty() {
            let hosts: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            let why = style.without_digests(&clean(&reasons(nodes, class).join(", ")));
            rows.push(Row::new(class.as_str(), style.disruption(class, class), &hosts, why, style));
        }
    }
    let ignores = |node: &&NodeModel| node.ignored_failures().next().is_some();
    let still = || model.nodes().iter().filter(settled).filter(|node| node.disruption().is_none());
    let calm = || still().filter(|node| !ignores(node));
    let mut open: Vec<(String, Vec<&str>)> = Vec::new();
    for node in calm() {
        let judged = node.judged(model.verb());
        match open.iter_mut().find(|(known, _)| *known == judged.counts()) {
            _ if judged.is_whole() => {}
            Some((_, hosts)) => hosts.push(&node.name),
            None => open.push((judged.counts(), vec![&node.name])),
        }
    }
    for (why, hosts) in open {
        rows.push(Row::new("not judged", style.paint(Role::Warning, "not judged"), &hosts, why, style));
    }
    let whole = |node: &&NodeModel| node.judged(model.verb()).is_whole();
    let calm: Vec<&str> = calm().filter(whole).map(|node| node.name.as_str()).collect();
    if !calm.is_empty() {
        rows.push(Row::new("compliant", style.paint(Role::Good, "compliant"), &calm, String::new(), style));
    }
    let ignoring: Vec<&str> = still().filter(ignores).map(|node| node.name.as_str()).collect();
    if !ignoring.is_empty() {
        let why = "failures that are ignored: not as declared, see below".to_owned();
        rows.push(Row::new("ignored", style.paint(Role::Warning, "ignored"), &ignoring, why, style));
    }
    let skipped = model.in_state(NodeState::Skipped);
    if !skipped.is_empty() {
        rows.push(Row::new("skipped", style.paint(Role::Muted, "skipped"), &skipped, String::new(), style));
    }
    for cause in causes(model.nodes()) {
        let hosts: Vec<&str> = cause.hosts.iter().map(String::as_str).collect();
        let label = cause.state.as_str();
        rows.push(Row::new(label, style.state(cause.state, label), &hosts, cause_text(&cause), style));
    }
    lay_out(&rows, style, out);
}

/// Returns a cause with its task, and its consequence for the result.
pub(super) fn cause_text(cause: &Cause) -> String {
    let text = clean(&cause.text);
    let text = match &cause.task {
        Some((task, position)) => format!("{}: {text} ({position})", clean(task)),
        None => text,
    };
    match cause.state {
        NodeState::Unknown => format!("{text}; counted as not compliant"),
        _ => text,
    }
}

/// Writes a label and its text, wrapped.
pub(super) fn note(label: &str, text: &str, style: &Style, out: &mut String) {
    for (at, part) in wrap(&clean(text), style.width.saturating_sub(LABEL + 3)).into_iter().enumerate() {
        let label = if at == 0 { label } else { "" };
        out.push_str(&format!("  {} {part}\n", style.paint(Role::Strong, format!("{label:LABEL$}"))));
    }
}

/// Returns each text about nodes once, with the nodes that share it.
fn told(model: &RunModel, texts: impl Fn(&NodeModel) -> Vec<String>) -> Vec<String> {
    let mut all: Shared<'_, String> = Shared::default();
    for node in model.nodes() {
        for text in texts(node) {
            all.add(text, &node.name);
        }
    }
    all.in_order().into_iter().map(|(text, hosts)| format!("{}: {text}", fold_names(&hosts))).collect()
}

/// Returns a failure that the playbook ignores, with its task and its place.
pub(super) fn ignored_text(node: &NodeModel, task: &TaskReport) -> String {
    let why = clean(task.message.as_deref().unwrap_or("no reason was given"));
    format!("{}: {} ({})", clean(&task.task), without_name(&why, &node.name), task.position)
}

/// Returns the warnings of tasks.
pub(super) fn warnings(model: &RunModel) -> Vec<String> {
    told(model, |node| node.warnings().into_iter().map(clean).collect())
}

/// Returns what only the run itself can decide, each task once.
fn not_sure(model: &RunModel) -> Vec<String> {
    // Items of a loop, and a handler that is notified twice, are one task of a node.
    let mut all: Shared<'_, String> = Shared::default();
    for node in model.nodes() {
        let possible = node.tasks.iter().filter(|task| {
            task.status == TaskStatus::Possible
                || task.changes.iter().any(|change| change.certainty == Certainty::Possible)
        });
        for task in possible {
            let why = unsure(task)
                .map_or_else(|| "depends on what only the run itself can tell".to_owned(), |why| clean(&why));
            all.add(format!("task \"{}\" ({}): {why}", clean(&task.task), task.position), &node.name);
        }
    }
    let total = model.nodes().len();
    let on = |(text, hosts): (String, Vec<&str>)| match hosts.len() {
        all if all == total => text,
        some => format!("{text}; on {}", count(some, "node")),
    };
    all.in_order().into_iter().map(on).collect()
}

/// Returns what only the run can tell of a task, and why: its own words, or those about its possible changes.
pub(super) fn unsure(task: &TaskReport) -> Option<String> {
    let possible = task.changes.iter().filter(|change| change.certainty == Certainty::Possible);
    let mut notes: Vec<&str> = possible.filter_map(|change| change.note.as_deref()).collect();
    notes.dedup();
    task.message.clone().or_else(|| (!notes.is_empty()).then(|| notes.join("; ")))
}

/// Returns every change of a run, with equal ones grouped (`run --diff`); empty if nothing changed.
pub fn changes_screen(model: &RunModel, style: &Style) -> String {
    let mut changes = String::new();
    diff(model, style, &mut changes);
    if changes.is_empty() {
        return changes;
    }
    format!("{}\n{changes}", style.paint(Role::Strong, "CHANGES"))
}

/// Writes every change with the nodes that share it.
fn diff(model: &RunModel, style: &Style, out: &mut String) {
    let mut tasks: Vec<(String, Shared<'_, ChangeGroup>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for node in model.nodes() {
        for group in fold_changes(node.changes().chain(node.changes_not_made())) {
            let task = format!("{}  {}", clean(&group.task), group.position);
            let at = *places.entry(task).or_insert_with_key(|task| {
                tasks.push((task.clone(), Shared::default()));
                tasks.len() - 1
            });
            tasks[at].1.add(group, &node.name);
        }
    }
    let tasks: Vec<_> = tasks.into_iter().map(|(task, changes)| (task, changes.in_order())).collect();
    // Changes of GPUs first, as the most important ones.
    let (gpus, others): (Vec<_>, Vec<_>) =
        tasks.into_iter().partition(|(_, changes)| changes.iter().any(|(group, _)| !group.gpus.is_empty()));
    for (task, changes) in gpus.into_iter().chain(others) {
        out.push_str(&format!("  {}\n", style.paint(Role::Strong, task)));
        for (group, hosts) in changes {
            let hosts = format!("{}: {}", count(hosts.len(), "node"), fold_names(&hosts));
            let hosts = style.cut(&hosts, style.width.saturating_sub(4));
            out.push_str(&format!("    {}\n", style.paint(Role::Muted, hosts)));
            change_lines(&group, 6, style, out);
        }
    }
}

/// Writes one change, its note and its text difference.
pub(super) fn change_lines(group: &ChangeGroup, indent: usize, style: &Style, out: &mut String) {
    let what = [group.gpu_label(), clean(&group.what())].join(" ");
    let what = what.trim();
    let values = style.without_digests(&clean(&group.change.values()));
    let maybe = if group.change.certainty == Certainty::Possible { "possible, " } else { "" };
    let class = style.disruption(group.change.disruption, group.change.disruption);
    let note = group.change.note.as_deref().map_or_else(String::new, |note| format!(" ({})", clean(note)));
    let cell = if style.width < WIDE { NARROW_CELL } else { CELL };
    let line = format!("{:indent$}{what:cell$}  {values:cell$}  {maybe}", "");
    let used = line.chars().count() + group.change.disruption.as_str().len();
    out.push_str(&format!("{line}{class}"));
    if used + note.chars().count() <= style.width {
        out.push_str(&note);
    } else {
        for line in wrap(&note, style.width.saturating_sub(indent + 4)) {
            out.push_str(&format!("\n{:indent$}    {line}", ""));
        }
    }
    out.push('\n');
    let Some(diff) = &group.change.diff else { return };
    for line in visible_lines(diff).lines() {
        let role = match line.bytes().next() {
            Some(b'+') => Role::Good,
            Some(b'-') => Role::Bad,
            _ => Role::Muted,
        };
        out.push_str(&format!("{:indent$}  {}\n", "", style.paint(role, line)));
    }
}
