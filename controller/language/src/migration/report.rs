//! Renders a survey for people.

use std::fmt::Write as _;

use super::survey::{Problem, Survey, TaskReport, Verdict};

/// Returns what is to be done, file by file; with `all` also the tasks that run as they are.
pub fn report_text(survey: &Survey, all: bool) -> String {
    let mut out = String::new();
    for file in &survey.files {
        let tasks: Vec<&TaskReport> = survey
            .tasks
            .iter()
            .filter(|task| {
                task.file == *file && (all || task.verdict != Verdict::AsIs || !task.notes.is_empty())
            })
            .collect();
        let problems: Vec<&Problem> =
            survey.problems.iter().filter(|problem| problem.file.as_deref() == Some(file)).collect();
        if tasks.is_empty() && problems.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{file}");
        for problem in problems {
            tell(&mut out, problem);
        }
        for task in tasks {
            let title = task.name.as_deref().unwrap_or(&task.kind);
            let kind = if task.name.is_some() && !task.kind.is_empty() {
                format!(" ({})", task.kind)
            } else {
                String::new()
            };
            let _ = writeln!(out, "  {:>4}  {:<8}  {title}{kind}", task.line, task.verdict.as_str());
            for problem in &task.problems {
                let _ = writeln!(out, "                  {}", problem.message);
                for help in &problem.help {
                    let _ = writeln!(out, "                  -> {help}");
                }
            }
            for text in &task.replacement {
                let _ = writeln!(out, "                  - {text}");
            }
            for note in &task.notes {
                let _ = writeln!(out, "                  note: {note}");
            }
        }
        out.push('\n');
    }
    let elsewhere: Vec<&Problem> = survey
        .problems
        .iter()
        .filter(|problem| problem.file.as_ref().is_none_or(|file| !survey.files.contains(file)))
        .collect();
    for problem in &elsewhere {
        tell(&mut out, problem);
    }
    if !elsewhere.is_empty() {
        out.push('\n');
    }
    let totals = survey.totals;
    let noun = if totals.tasks == 1 { "task" } else { "tasks" };
    let _ = write!(
        out,
        "{} {noun}: {} run as they are, {} of these with a better kind; {} to replace, {} unknown",
        totals.tasks,
        totals.as_is + totals.better,
        totals.better,
        totals.replace,
        totals.unknown
    );
    if !survey.problems.is_empty() {
        let _ = write!(out, "; {} more to change outside of tasks", survey.problems.len());
    }
    out.push('\n');
    out
}

fn tell(out: &mut String, problem: &Problem) {
    let line = problem.line.map_or_else(String::new, |line| line.to_string());
    let _ = writeln!(out, "  {line:>4}  change    {}", problem.message);
    for help in &problem.help {
        let _ = writeln!(out, "                  -> {help}");
    }
}
