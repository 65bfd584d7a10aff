//! A run as JUnit XML, for machines that show test results: a suite a play, a case a task of a node.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::timing::{Case, Timing, is_bad};
use crate::event::{NodeState, TaskStatus};

/// The document.
///
/// # Errors
/// Those of the writer.
pub fn junit(timing: &Timing) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new("gpufleet");
    for (play, name) in &timing.plays {
        let mut suite = TestSuite::new(name.as_str());
        let cases = timing.cases.iter().filter(|case| case.play == *play);
        suite.set_time(Duration::from_millis(cases.clone().map(|case| case.ms).sum()));
        suite.add_test_cases(cases.map(case));
        for (_, host, state, message) in timing.losses.iter().filter(|(known, ..)| known == play) {
            let mut status = TestCaseStatus::non_success(match state {
                NodeState::Failed => NonSuccessKind::Failure,
                _ => NonSuccessKind::Error,
            });
            status.set_type(state.as_str()).set_message(message.as_str());
            let mut case = TestCase::new(state.as_str(), status);
            case.set_classname(host.as_str());
            suite.add_test_case(case);
        }
        report.add_test_suite(suite);
    }
    report.to_string()
}

fn case(case: &Case) -> TestCase {
    let told = &case.report;
    let message = told.message.as_deref().unwrap_or_default();
    let status = match told.status {
        TaskStatus::Skipped => {
            let mut status = TestCaseStatus::skipped();
            if !message.is_empty() {
                status.set_message(message);
            }
            status
        }
        // Why: what only the run itself can tell was not tested.
        TaskStatus::Possible => {
            let mut status = TestCaseStatus::skipped();
            status.set_message("only the run itself can tell");
            status
        }
        status if is_bad(told) => {
            let (kind, word) = match status {
                TaskStatus::Unreachable => (NonSuccessKind::Error, "unreachable"),
                TaskStatus::Unknown => (NonSuccessKind::Error, "unknown"),
                TaskStatus::Held => (NonSuccessKind::Error, "held"),
                _ => (NonSuccessKind::Failure, "failed"),
            };
            let mut status = TestCaseStatus::non_success(kind);
            let text = if message.is_empty() { "no reason was given" } else { message };
            status.set_type(word).set_message(text).set_description(format!("{text}\n{}", told.position));
            status
        }
        _ => TestCaseStatus::success(),
    };
    let mut out = TestCase::new(told.task.as_str(), status);
    out.set_classname(case.host.as_str()).set_time(Duration::from_millis(case.ms));
    let mut said: Vec<String> = told
        .changes
        .iter()
        .map(|change| format!("{} {}", change.what, super::values(change.from.as_deref(), &change.to)))
        .collect();
    if !is_bad(told) && told.status != TaskStatus::Skipped {
        said.extend(told.message.clone());
    }
    if !said.is_empty() {
        out.set_system_out(said.join("\n"));
    }
    out
}
