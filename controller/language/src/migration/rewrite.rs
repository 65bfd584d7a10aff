//! Writes a playbook with the replacements that are sure to mean the same, and remarks where a person has to look.

use super::survey::{Survey, TaskReport, Verdict};

/// A task whose command becomes kinds: the line of its key, and what stands there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    pub tasks: Vec<String>,
}

/// A file of the survey as it would be with its replacements.
#[derive(Debug, PartialEq, Eq)]
pub struct Rewritten {
    pub text: String,
    /// Tasks whose command was replaced.
    pub replaced: usize,
    /// Tasks above which a remark stands.
    pub marked: usize,
}

/// What stands before each remark.
const MARK: &str = "# gpufleet: ";

/// Returns the file with what was found about its tasks.
pub fn rewritten(text: &str, file: &str, survey: &Survey) -> Rewritten {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (mut replaced, mut marked) = (0, 0);
    let mut tasks: Vec<&TaskReport> = survey.tasks.iter().filter(|task| task.file == file).collect();
    // From the end: what stands above keeps its line.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.line));
    for task in tasks {
        let edit = task.edit.as_ref().filter(|edit| edited(&mut lines, edit));
        let remarks: Vec<String> = match (task.verdict, edit) {
            (Verdict::AsIs, _) => continue,
            (_, Some(_)) => {
                replaced += 1;
                task.notes.clone()
            }
            (_, None) => {
                marked += 1;
                remarks(task)
            }
        };
        let at = usize::try_from(task.line).unwrap_or(1).saturating_sub(1).min(lines.len());
        let indent: String =
            lines.get(at).map(|line| line.chars().take_while(|c| *c == ' ').collect()).unwrap_or_default();
        let remarks =
            remarks.iter().flat_map(|remark| remark.lines()).map(|line| format!("{indent}{MARK}{line}"));
        lines.splice(at..at, remarks.collect::<Vec<_>>());
    }
    Rewritten { text: lines.join("\n") + "\n", replaced, marked }
}

/// What a person has to know of a task that stays as it is.
fn remarks(task: &TaskReport) -> Vec<String> {
    let problems = task.problems.iter().flat_map(|problem| {
        std::iter::once(problem.message.clone()).chain(problem.help.iter().map(|help| format!("-> {help}")))
    });
    let replacement = task.replacement.iter().map(|text| format!("- {text}"));
    let mut all: Vec<String> = problems.chain(replacement).chain(task.notes.iter().cloned()).collect();
    if all.is_empty() {
        all.push("no replacement is known".to_owned());
    }
    all
}

/// Replaces the line of the key, if it is the whole value; says whether it did.
fn edited(lines: &mut Vec<String>, edit: &Edit) -> bool {
    let (Ok(line), Ok(column)) = (usize::try_from(edit.line), usize::try_from(edit.column)) else {
        return false;
    };
    let (Some(line), Some(column)) = (line.checked_sub(1), column.checked_sub(1)) else { return false };
    let Some(before) = lines.get(line).map(|text| text.chars().take(column).collect::<String>()) else {
        return false;
    };
    if !before.chars().all(|c| matches!(c, ' ' | '-')) {
        return false;
    }
    // A line below that stands further in belongs to the value.
    let deeper = |text: &String| {
        let inner = text.trim_start();
        !inner.is_empty() && !inner.starts_with('#') && text.chars().count() - inner.chars().count() > column
    };
    if lines.get(line + 1).is_some_and(deeper) {
        return false;
    }
    let written: Vec<String> = match edit.tasks.as_slice() {
        [] => return false,
        [one] => vec![format!("{before}{one}")],
        several => {
            let inner = " ".repeat(column + 2);
            std::iter::once(format!("{before}block:"))
                .chain(several.iter().map(|task| format!("{inner}- {task}")))
                .collect()
        }
    };
    lines.splice(line..=line, written);
    true
}
