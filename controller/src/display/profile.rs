//! `--profile`: how long each task took.

use super::{Role, Style, clean, count};
use crate::report::Timing;

/// Largest width of a task's name.
const NAME: usize = 200;
/// Number of tasks that are shown.
const SHOWN: usize = 20;

/// Returns the slowest tasks: the time of all nodes together, and the slowest node.
pub fn profile_screen(timing: &Timing, style: &Style) -> String {
    let tasks = timing.tasks();
    let timed: Vec<_> = tasks.iter().filter(|task| task.total_ms > 0).collect();
    if timed.is_empty() {
        return "no task took time on a node\n".to_owned();
    }
    let seconds = |ms: u64| format!("{}.{:03} s", ms / 1000, ms % 1000);
    let label = |task: &crate::report::TaskTime| format!("{}  ({})", clean(&task.task), task.position);
    let shown = timed.iter().take(SHOWN);
    let most = style.width.saturating_sub(56).clamp(24, NAME);
    let width = shown.clone().map(|task| label(task).chars().count()).max().unwrap_or(0).min(most);
    let head = format!("  {:width$}  {:>12}  {:>6}  slowest node", "task", "all nodes", "nodes");
    let mut out = format!("{}\n", style.paint(Role::Strong, "TASK TIMES"));
    out.push_str(&format!("{}\n", style.paint(Role::Muted, head)));
    for task in shown {
        let name = style.cut(&label(task), width);
        let (node, longest) = &task.slowest;
        let line = format!(
            "  {name:width$}  {:>12}  {:>6}  {node} {}",
            seconds(task.total_ms),
            task.nodes,
            seconds(*longest)
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if timed.len() > SHOWN {
        out.push_str(&format!("  … and {}\n", count(timed.len() - SHOWN, "faster task")));
    }
    out
}
