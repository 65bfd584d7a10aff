//! The screen of one node: `plan --node HOST`.

use gpufleet_protocol::Property;

use super::{
    Role, Style, clean,
    figures::wrap,
    plan::{change_lines, unsure},
};
use crate::{
    event::{NodeState, TaskStatus, UNMET},
    report::{
        ChangeGroup, NodeModel, fold_changes, fold_gpus, hardware_class,
        mig::{blocks_of, drawing, layout_of},
    },
};

/// Returns everything that a plan or a run knows about one node.
pub fn node_screen(node: &NodeModel, style: &Style) -> String {
    let mut out = style.paint(Role::Strong, &node.name);
    let facts = node.facts.as_deref();
    let driver = facts.and_then(|facts| facts.gpu.driver_version.as_deref());
    let parts = [facts.and_then(hardware_class), driver.map(|version| format!("driver {version}"))];
    let parts: Vec<String> = parts.into_iter().flatten().map(|part| clean(&part)).collect();
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
    let changes = fold_changes(node.changes().chain(node.changes_not_made()));
    // Changes of GPUs first, as the most important ones.
    let (gpus, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(|group| !group.gpus.is_empty());
    for group in gpus.into_iter().chain(others) {
        let this = (group.task.clone(), group.position.clone());
        if task.as_ref() != Some(&this) {
            out.push_str(&format!("  {}  {}\n", style.paint(Role::Strong, clean(&this.0)), this.1));
            task = Some(this);
        }
        change_lines(&group, 4, style, &mut out);
        draw(node, &group, style, &mut out);
    }
    let awaiting = node.awaiting();
    let mut classes: Vec<_> = awaiting.iter().map(|waits| waits.activation).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes.into_iter().rev() {
        let of_class = awaiting.iter().filter(|waits| waits.activation == class);
        for reason in fold_gpus(of_class.map(|waits| waits.reason.as_str())) {
            let class = style.disruption(class, class);
            out.push_str(&format!("  waits for {class}: {}\n", clean(&reason)));
        }
    }
    for blocker in node.blockers() {
        out.push_str(&format!("  {}  {}\n", style.paint(Role::Bad, "in the way"), clean(&blocker.what)));
        out.push_str(&format!("      next step: {}\n", clean(&blocker.next)));
    }
    for text in node.warnings() {
        out.push_str(&format!("  {}  {}\n", style.paint(Role::Warning, "warning"), clean(text)));
    }
    for (status, word) in [(TaskStatus::Unknown, "unknown"), (TaskStatus::Possible, "possible")] {
        for task in node.tasks_in(status) {
            let why =
                unsure(task).map_or_else(|| "only the run itself can tell".to_owned(), |why| clean(&why));
            out.push_str(&format!("  {word}  {} ({}): {why}\n", clean(&task.task), task.position));
        }
    }
    for task in node.tasks_in(TaskStatus::Skipped) {
        if let Some(why) = task.message.as_ref().filter(|why| *why != UNMET) {
            out.push_str(&format!("  skipped  {} ({}): {}\n", clean(&task.task), task.position, clean(why)));
        }
    }
    if node.state == NodeState::Compliant {
        out.push_str("  As declared: nothing to do.\n");
    }
    out
}

/// Draws the MIG layout before and after, if the placements are known for both.
fn draw(node: &NodeModel, group: &ChangeGroup, style: &Style, out: &mut String) {
    let is_layout = group.change.property == Property::MIG_LAYOUT;
    let Some(facts) = node.facts.as_deref().filter(|_| is_layout) else { return };
    let Some(gpu) = facts.gpu.gpus.iter().find(|gpu| group.gpus.contains(&gpu.index)) else { return };
    let there = blocks_of(&gpu.mig_layout);
    let next = gpu.memory_mib.and_then(|memory| layout_of(&group.change.to, memory, &there));
    let before = drawing(&there).map(|text| ("before", text, ""));
    let after = next.and_then(|layout| {
        let places = if layout.exact { "" } else { "  (or other places)" };
        Some(("after", drawing(&layout.blocks)?, places))
    });
    for (label, text, places) in before.into_iter().chain(after) {
        out.push_str(&format!("      {label:7} {}{places}\n", style.paint(Role::Busy, text)));
    }
}
