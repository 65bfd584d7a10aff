//! The screen of a held node, with all that a person needs to decide about it.

use super::{Role, Style, clean, figures::wrap};
use crate::{
    event::{DrainStep, HELD_BY_A_RUN, HELD_BY_OTHERS},
    report::{NodeModel, RunModel, fold_changes, fold_gpus, fold_numbers},
    visible::command_word,
};

/// Returns why the node is held, what was not done, and what to do next.
pub fn held_screen(model: &RunModel, node: &NodeModel, style: &Style) -> String {
    let mut out = String::new();
    let why = node.message().unwrap_or("no reason was given");
    let head = format!("{} is held: {}", style.paint(Role::Strong, &node.name), clean(why));
    for (at, line) in wrap(&head, style.width).into_iter().enumerate() {
        out.push_str(&format!("{}{line}\n", if at == 0 { "" } else { "  " }));
    }
    let mut row = |label: &str, text: &str| {
        for (at, line) in wrap(text, style.width.saturating_sub(11)).into_iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            out.push_str(&format!("  {label:8} {line}\n"));
        }
    };
    if let Some(idle) = &node.idle {
        for client in &idle.clients {
            let gpus = if client.gpus.is_empty() {
                "control".to_owned()
            } else {
                format!("GPU {}", fold_numbers(client.gpus.iter().copied()))
            };
            let unit = client.unit.as_ref().map_or_else(String::new, |unit| format!(", {}", clean(unit)));
            let command = style.cut(&clean(&client.command), 48);
            row(&gpus, &format!("pid {}  {command}  (user {}{unit})", client.pid, clean(&client.user)));
        }
        let listed = |reason: &str| {
            let says = |pid: u32| reason.starts_with(&format!("process {pid} "));
            reason == why || idle.clients.iter().any(|client| says(client.pid))
        };
        let others = idle.reasons.iter().filter(|reason| !listed(reason)).map(String::as_str);
        for reason in fold_gpus(others) {
            row("", &clean(&reason));
        }
    }
    let waiting: Vec<String> = fold_changes(node.changes_not_made())
        .iter()
        .map(|group| format!("{} {}", group.gpu_label(), group.sentence()))
        .collect();
    if !waiting.is_empty() {
        row("not done", &clean(&waiting.join(", ")));
    }
    let state = match (node.reboots.is_empty(), node.is_left_out()) {
        (true, _) if node.is_left_in_service() => {
            "The node was not rebooted; this run disturbed it, and has no scheduler keep work away from it."
        }
        (false, _) if node.is_left_in_service() => {
            "The node was rebooted by this run, which has no scheduler keep work away from it."
        }
        (true, false) => "The node was not rebooted and stays in service.",
        (true, true) => "The node was not rebooted; this run took it out of service and left it there.",
        (false, false) => "The node was rebooted by this run and is in service.",
        (false, true) => "The node was rebooted; this run took it out of service and left it there.",
    };
    // The last step only: a drain of this run that ended before somebody else's does not count.
    let theirs = why.starts_with(HELD_BY_OTHERS)
        || node
            .drains
            .last()
            .is_some_and(|(_, step)| matches!(step, DrainStep::LeftTo { .. } | DrainStep::Refused { .. }));
    let run = why.strip_prefix("run ").and_then(|rest| Some(rest.split_once(HELD_BY_A_RUN)?.0));
    let holder = run.map_or_else(|| "somebody else".to_owned(), |run| format!("run {}", clean(run)));
    let state = match (theirs || run.is_some(), node.reboots.is_empty()) {
        (true, true) => format!("The node was not rebooted, and {holder} has it out of service."),
        (true, false) => format!("The node was rebooted by this run, and {holder} has it out of service."),
        (false, _) => state.to_owned(),
    };
    row("state", &state);
    let first = match node.idle.as_ref().is_some_and(|idle| !idle.clients.is_empty()) {
        true => "end what holds it, or wait for it",
        false => "settle that",
    };
    row("next", &format!("{first}; then run again with --limit {}", command_word(&node.name)));
    if !model.run_id().is_empty() {
        row("run", model.run_id());
    }
    out
}
