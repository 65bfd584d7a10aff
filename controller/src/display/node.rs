//! The screen of one node: `plan --node HOST`.

use super::{Role, Style, clean, figures::wrap, plan::change_lines};
use crate::{
    event::{NodeState, TaskStatus},
    report::{
        ChangeGroup, NodeModel, fold_changes, hardware_class,
        mig::{blocks_of, drawing, layout_in},
    },
};

/// Everything that a plan or a run knows about one node.
pub fn node_screen(node: &NodeModel, style: &Style) -> String {
    let mut out = style.paint(Role::Strong, &node.name);
    let facts = node.facts.as_deref();
    let driver = facts.and_then(|facts| facts.gpu.driver_version.as_deref());
    let parts = [facts.and_then(hardware_class), driver.map(|version| format!("driver {version}"))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        out.push_str(&format!("  {}", parts.join(", ")));
    }
    out.push_str(&format!("  {}\n", style.state(node.state, node.state)));
    if let Some(message) = node.message() {
        for line in wrap(&clean(message), style.width.saturating_sub(2)) {
            out.push_str(&format!("  {line}\n"));
        }
    }
    let mut task = None;
    for group in fold_changes(node.changes().chain(node.changes_not_made())) {
        let this = (group.task.clone(), group.position.clone());
        if task.as_ref() != Some(&this) {
            out.push_str(&format!("  {}  {}\n", style.paint(Role::Strong, clean(&this.0)), this.1));
            task = Some(this);
        }
        change_lines(&group, 4, style, &mut out);
        draw(node, &group, style, &mut out);
    }
    for waits in node.awaiting() {
        let class = style.disruption(waits.activation, waits.activation);
        out.push_str(&format!("  waits for {class}: {}\n", clean(&waits.reason)));
    }
    for (status, word) in [(TaskStatus::Unknown, "unknown"), (TaskStatus::Possible, "possible")] {
        for task in node.tasks_in(status) {
            let why =
                task.message.as_deref().map_or_else(|| "only the run itself can tell".to_owned(), clean);
            out.push_str(&format!("  {word}  {} ({}): {why}\n", clean(&task.task), task.position));
        }
    }
    if node.state == NodeState::Compliant {
        out.push_str("  As declared: nothing to do.\n");
    }
    out
}

/// The MIG layout before and after, where both are known by place.
fn draw(node: &NodeModel, group: &ChangeGroup, style: &Style, out: &mut String) {
    let Some(facts) = node.facts.as_deref().filter(|_| group.what.to_ascii_lowercase().contains("layout"))
    else {
        return;
    };
    let Some(gpu) = facts.gpu.gpus.iter().find(|gpu| group.gpus.contains(&gpu.index)) else { return };
    let there = blocks_of(&gpu.mig_layout);
    let next = gpu.memory_mib.and_then(|memory| layout_in(&group.to, memory, &there));
    let before = drawing(&there).map(|text| ("before", text, ""));
    let after = next.and_then(|layout| {
        let places = if layout.exact { "" } else { "  (or other places)" };
        Some(("after", drawing(&layout.blocks)?, places))
    });
    for (label, text, places) in before.into_iter().chain(after) {
        out.push_str(&format!("      {label:7} {}{places}\n", style.paint(Role::Busy, text)));
    }
}
