//! The live frame and the plain status line: counts, and the few slowest nodes.

use jiff::Timestamp;

use super::{Role, Style, clean, clip, clock, count, figures::length};
use crate::{
    event::{NodeState, READ},
    report::{NodeModel, RunModel, seconds_between},
};

/// Number of nodes that are named at once.
const NAMED: usize = 8;
/// Columns of the bar.
const BAR: usize = 20;
/// Number of characters about what blocks a drain in the plain status line.
const BLOCKED: usize = 200;

/// Returns the lines of the live display.
pub fn progress_frame(model: &RunModel, now: Timestamp, style: &Style) -> Vec<String> {
    let mut lines = vec![
        fitting(style, |style| head(model, now, style)),
        fitting(style, |style| format!("  {}  {}", bar(model), counts(model, style))),
    ];
    let active = active(model);
    let widest = active.iter().take(NAMED).map(|node| node.name.chars().count()).max().unwrap_or(0).min(32);
    for node in active.iter().take(NAMED) {
        let name = clip(&node.name, 32);
        let for_s = clock(seconds_between(node.since, Some(now)));
        let state = style.state(node.state, format!("{:10}", node.state));
        let doing = clip(&doing(node), style.width.saturating_sub(2 + widest + 2 + 10 + 2 + 8 + 2));
        lines.push(format!("  {name:widest$}  {state}  {for_s:>8}  {doing}").trim_end().to_owned());
    }
    if active.len() > NAMED {
        lines.push(style.paint(Role::Muted, format!("  … and {} more at work", active.len() - NAMED)));
    }
    lines
}

/// Returns a line of a frame, cut and without colours if it is too long for the terminal.
///
/// A terminal would break it into two lines, and the next frame would overwrite the wrong ones.
fn fitting(style: &Style, line: impl Fn(&Style) -> String) -> String {
    let plain = line(&Style { color: false, ..*style });
    if plain.chars().count() < style.width {
        line(style)
    } else {
        clip(&plain, style.width.saturating_sub(1))
    }
}

/// Draws how much of the fleet is done: `[=====     ]`.
fn bar(model: &RunModel) -> String {
    let total = model.nodes().len().max(1);
    let over = model.nodes().iter().filter(|node| node.state.is_final()).count();
    let filled = BAR * over / total;
    format!("[{}{}]", "=".repeat(filled), " ".repeat(BAR - filled))
}

/// Estimates the remaining time at the current rate; `None` while too few nodes are done.
fn estimate(model: &RunModel, now: Timestamp) -> Option<String> {
    let total = model.nodes().len();
    let over = model.nodes().iter().filter(|node| node.state.is_final()).count();
    let took = seconds_between(model.started, Some(now));
    if over < 3 || over * 10 < total || over == total || took < 30 {
        return None;
    }
    let left = took.saturating_mul((total - over) as u64) / over as u64;
    Some(format!("at this pace {} left", length(left.div_ceil(60) * 60)))
}

/// Whether a node was read and waits for the others.
fn is_read(node: &NodeModel) -> bool {
    node.state == NodeState::Preflight && node.detail.as_deref() == Some(READ)
}

/// Returns `196 of 197 read` and the nodes that the others wait for, as long as nodes are only being read.
fn reading(model: &RunModel) -> Option<String> {
    let nodes = model.nodes();
    let read = nodes.iter().filter(|node| is_read(node)).count();
    let mut open: Vec<&NodeModel> =
        nodes.iter().filter(|node| node.state == NodeState::Preflight && !is_read(node)).collect();
    if model.current_wave.is_some() || read == 0 || open.is_empty() {
        return None;
    }
    open.sort_by_key(|node| node.since);
    let first = open.first().map_or("", |node| node.name.as_str());
    let more = if open.len() > 1 { format!(" and {} more", open.len() - 1) } else { String::new() };
    Some(format!("{read} read, waiting for {first}{more}, "))
}

/// Returns one line for output that is not a terminal.
pub fn plain_status(model: &RunModel, now: Timestamp, style: &Style) -> String {
    let mut line = format!("{}  {}", head(model, now, style), counts(model, style));
    let active = active(model);
    let waiting: Vec<String> = active
        .iter()
        .take(3)
        .map(|node| format!("{} ({} {} s)", node.name, node.state, seconds_between(node.since, Some(now))))
        .collect();
    if !waiting.is_empty() {
        let more = active.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line.push_str(&format!("  waiting for: {}{more}", waiting.join(", ")));
    }
    // One is enough: usually the same work blocks all drains, and the line is short.
    let says_why = [NodeState::Draining, NodeState::Resuming];
    let blocked = active.iter().copied().find(|node| says_why.contains(&node.state) && node.detail.is_some());
    // Why only then: elsewhere those that are at work are what it waits for.
    let waits = || model.nodes().iter().find(|node| node.state == NodeState::Waiting);
    let blocked = blocked.or_else(|| waits().filter(|_| active.is_empty()));
    if let Some((node, detail)) = blocked.and_then(|node| Some((node, node.detail.as_deref()?))) {
        line.push_str(&format!("  {}: {}", node.name, style.cut(&clean(detail), BLOCKED)));
    }
    line
}

fn head(model: &RunModel, now: Timestamp, style: &Style) -> String {
    let total = model.nodes().len();
    let over = model.nodes().iter().filter(|node| node.state.is_final()).count();
    let clock = clock(seconds_between(model.started, Some(now)));
    let wave = model.current_wave.and_then(|(play, wave)| {
        let plan = model.plays.iter().find(|known| known.play == play)?;
        let shape = plan.waves.get(wave)?;
        if plan.waves.len() < 2 {
            return None;
        }
        let done = shape
            .hosts
            .iter()
            .filter(|host| model.node(host).is_some_and(|node| node.state.is_final()))
            .count();
        Some(format!(
            "wave {}/{} {}: {done} of {}, ",
            wave + 1,
            plan.waves.len(),
            clean(&shape.label),
            shape.hosts.len()
        ))
    });
    let until = model.window_opens.map(|opens| {
        let left = seconds_between(Some(now), Some(opens));
        format!("waits for the window, which opens in {}, ", length(left))
    });
    let before = wave.or(until).or_else(|| reading(model)).unwrap_or_default();
    let text = format!("{before}{over} of {}", count(total, "node"));
    let left = estimate(model, now).map(|left| format!("  {left}")).unwrap_or_default();
    format!("{}  {clock}{left}", style.paint(Role::Strong, text))
}

/// Returns `done 7  failed 0  applying 5`: what has ended, then what is in progress.
fn counts(model: &RunModel, style: &Style) -> String {
    let always = |state: NodeState| state == NodeState::Failed;
    let parts: Vec<String> = NodeState::ALL
        .into_iter()
        .filter(|state| always(*state) || model.count(*state) > 0)
        .map(|state| {
            let text = format!("{state} {}", model.count(state));
            if model.count(state) > 0 { style.state(state, text) } else { text }
        })
        .collect();
    parts.join("  ")
}

/// Returns the nodes at work, those that take longest first.
fn active(model: &RunModel) -> Vec<&NodeModel> {
    // A node that only waits for the budget is not slow, and is counted elsewhere.
    let idle =
        |state: NodeState| state.is_final() || matches!(state, NodeState::Pending | NodeState::Waiting);
    let mut nodes: Vec<&NodeModel> =
        model.nodes().iter().filter(|node| !idle(node.state) && !is_read(node)).collect();
    nodes.sort_by_key(|node| node.since);
    nodes
}

fn doing(node: &NodeModel) -> String {
    let task = node.running.as_ref().map(|running| clean(&running.task));
    let word = node.progress.as_deref().map(clean);
    match (task, word) {
        (Some(task), Some(word)) => format!("{task}: {word}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => node.detail.as_deref().map_or_else(String::new, clean),
    }
}
