//! The live frame and the plain status line: counts, and the few nodes that take longest.

use jiff::Timestamp;

use super::{Role, Style, clean, clip, clock, count, figures::length};
use crate::{
    event::NodeState,
    report::{NodeModel, RunModel, seconds_between},
};

/// Nodes that are named at once.
const NAMED: usize = 8;
/// How much of what is in the way of a drain is in the plain status line, in characters.
const BLOCKED: usize = 200;

/// The lines of the live display.
pub fn progress_frame(model: &RunModel, now: Timestamp, style: &Style) -> Vec<String> {
    let mut lines = vec![head(model, now, style), format!("  {}", counts(model, style))];
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

/// One line for output that is not a terminal.
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
    // Why one: whose work is in the way is mostly the same for all, and the line is short.
    let blocked = active.iter().find(|node| node.state == NodeState::Draining && node.detail.is_some());
    if let Some((node, detail)) = blocked.and_then(|node| Some((node, node.detail.as_deref()?))) {
        line.push_str(&format!("  {}: {}", node.name, clip(&clean(detail), BLOCKED)));
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
            shape.label,
            shape.hosts.len()
        ))
    });
    let until = model.window_opens.map(|opens| {
        let left = seconds_between(Some(now), Some(opens));
        format!("waits for the window, which opens in {}, ", length(left))
    });
    let text = format!("{}{over} of {}", wave.or(until).unwrap_or_default(), count(total, "node"));
    format!("{}  {clock}", style.paint(Role::Strong, text))
}

/// `done 7  failed 0  applying 5`: what happened, then what is under way.
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

/// Nodes at work, those that are longest at what they do first.
fn active(model: &RunModel) -> Vec<&NodeModel> {
    // Why: who only waits for the budget is not slow, and is counted.
    let idle =
        |state: NodeState| state.is_final() || matches!(state, NodeState::Pending | NodeState::Waiting);
    let mut nodes: Vec<&NodeModel> = model.nodes().iter().filter(|node| !idle(node.state)).collect();
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
