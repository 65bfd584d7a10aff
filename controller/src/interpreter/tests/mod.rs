mod ansible_kinds;
mod answers;
mod arguments;
mod failures;
pub(crate) mod fake;
mod files;
mod files_of_tasks;
mod guards;
mod interventions;
mod jobs;
mod late_keys;
mod ledger;
mod looping;
mod node_objects;
mod order;
mod others;
mod parameters;
mod properties;
mod results;
mod retries;
mod scenarios;
mod secrets;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::event::{RecapCounts, TaskReport, TaskStatus as Status};
use crate::index::PlayIndex;
use crate::playbook::{Program, TagFilter};
use crate::template::Dict;

/// Reads a playbook.
fn program(text: &str) -> Arc<Program> {
    let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
    Arc::new(Program::load(&["play.yml"], &files).unwrap_or_else(|errors| panic!("{errors}")))
}

fn context(vars: serde_json::Value) -> Arc<HostContext> {
    Arc::new(HostContext {
        host: Arc::from("n1"),
        vars: Arc::new(Dict::trusted(vars.as_object().expect("a mapping"))),
        ..HostContext::default()
    })
}

fn files() -> Arc<dyn Files> {
    let map: HashMap<String, String> = [
        ("files/motd".to_owned(), "hello\n".to_owned()),
        ("templates/limits.j2".to_owned(), "limit={{ limit }}\n".to_owned()),
        ("files/check.sh".to_owned(), "#!/bin/sh\n".to_owned()),
    ]
    .into();
    Arc::new(CachedFiles::new(map))
}

fn cursor(text: &str, vars: serde_json::Value, mode: Mode) -> Cursor {
    let tags = Arc::new(TagFilter::default());
    Cursor::new(&program(text), PlayIndex(0), context(vars), HostVars::default(), mode, tags, files())
        .expect("a play")
}

/// Everything that happened to one host.
struct Story {
    reports: Vec<TaskReport>,
    /// The operations asked for, in order.
    asked: Vec<String>,
    end: End,
}

impl Story {
    /// One line a report.
    fn lines(&self) -> String {
        let mut lines: Vec<String> = self.reports.iter().map(line).collect();
        lines.push(format!("end: {:?}", self.end.state));
        lines.join("\n")
    }

    fn counts(&self) -> RecapCounts {
        let mut counts = RecapCounts::default();
        for report in &self.reports {
            counts.count(report);
        }
        counts
    }
}

fn line(report: &TaskReport) -> String {
    let mut line = format!("{}: {:?}", report.task, report.status).to_lowercase();
    if let Some(item) = &report.item {
        line.push_str(&format!(" [{item}]"));
    }
    if report.phase != Phase::Declared {
        line.push_str(&format!(" ({:?})", report.phase).to_lowercase());
    }
    for (flag, word) in [(report.ignored, "ignored"), (report.rescued, "rescued")] {
        if flag {
            line.push_str(&format!(" {word}"));
        }
    }
    for change in &report.changes {
        // Why without the GPU: the fake node has only one.
        let (what, to) = (change.what_of_gpu(), change.to_text());
        let from = change.from_text().unwrap_or_else(|| "-".to_owned());
        line.push_str(&format!(" <{what} {from} -> {to} {}>", change.disruption));
    }
    if let Some(message) = &report.message {
        line.push_str(&format!(" \"{message}\""));
    }
    line
}

/// Runs a cursor to its end.
fn run(cursor: &mut Cursor, mut answer: impl FnMut(&Action) -> Fed) -> Story {
    let mut reports = Vec::new();
    let mut asked = Vec::new();
    for _ in 0..100_000 {
        match cursor.next() {
            Step::Run(action) => {
                asked.push(action.id.to_string());
                let fed = answer(&action);
                reports.extend(cursor.feed(fed));
            }
            Step::Report(more) => reports.extend(more),
            Step::Barrier { .. } | Step::SectionEnd { .. } => {}
            Step::Latch { .. } => {
                reports.extend(cursor.feed(Fed::Latch(None)));
            }
            Step::Ask { .. } => {
                reports.extend(cursor.feed(Fed::Asked { run: true }));
            }
            Step::End(end) => return Story { reports, asked, end },
        }
    }
    panic!("the cursor never ends");
}

/// Answers every operation by the name of its task.
fn scripted(answers: &[(&str, OpOutcomeSketch)]) -> impl FnMut(&Action) -> Fed {
    let answers: Vec<(String, OpOutcomeSketch)> =
        answers.iter().map(|(task, sketch)| ((*task).to_owned(), sketch.clone())).collect();
    move |action| {
        let sketch = answers.iter().find(|(task, _)| *task == action.task).map(|(_, sketch)| sketch.clone());
        sketch.unwrap_or(OpOutcomeSketch::Ok).fed(action)
    }
}

#[derive(Clone, Debug)]
enum OpOutcomeSketch {
    Ok,
    Changed,
    Failed(&'static str),
    /// Exit code and standard output of a command.
    Command(i64, &'static str),
    Unreachable,
    Held,
}

impl OpOutcomeSketch {
    fn fed(&self, action: &Action) -> Fed {
        use gpufleet_protocol::{FailureKind, OpOutcome, OpStatus, message::streams};
        let outcome = |status| Fed::Outcome(Box::new(OpOutcome::new(status)));
        if !matches!(action.work, Work::Node { .. }) {
            return match (&action.work, self) {
                (_, Self::Unreachable) => Fed::Unreachable { reason: "no route".to_owned() },
                (Work::Reboot { .. }, _) => Fed::Rebooted,
                _ => Fed::Done,
            };
        }
        match self {
            Self::Ok => outcome(OpStatus::Ok),
            Self::Changed => outcome(OpStatus::Changed),
            Self::Failed(message) => Fed::Outcome(Box::new(OpOutcome::failed(FailureKind::Io, *message))),
            Self::Command(rc, stdout) => {
                let mut result = match rc {
                    0 => OpOutcome::new(OpStatus::Changed),
                    rc => OpOutcome::failed(FailureKind::Exit, format!("non-zero return code {rc}")),
                };
                result.data = json!({"rc": rc}).as_object().expect("map").clone();
                result.data.extend(streams(stdout, ""));
                Fed::Outcome(Box::new(result))
            }
            Self::Unreachable => Fed::Unreachable { reason: "no route".to_owned() },
            Self::Held => Fed::held("budget"),
        }
    }
}

fn story(text: &str, answers: &[(&str, OpOutcomeSketch)]) -> Story {
    run(&mut cursor(text, json!({}), Mode::Apply), scripted(answers))
}
