//! A run as JUnit XML, for programs that show test results: a suite for each play, a case for each task of a node.
//!
//! An audit has a suite of its findings besides. Without it a node that differs, or that no check could judge, would
//! look as if all its tests had passed: its tasks did.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{
    Judgements, NodeFinding, RunModel, Totals, Verdict,
    timing::{Case, Timing, is_bad},
};
use crate::{
    event::{NodeState, TaskStatus},
    visible::visible_lines,
};

/// Returns the document. `timing` and `model` are of the same events.
///
/// # Errors
/// Those of the writer.
pub fn junit(timing: &Timing, model: &RunModel) -> Result<String, quick_junit::SerializeError> {
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
    if model.verb().info().judges {
        report.add_test_suite(findings(model));
    } else {
        report.add_test_suites(results(model));
    }
    // Of the whole document: names, messages and outputs are all of nodes, and markup has no hidden character.
    report.to_string().map(|text| visible_lines(&text).into_owned())
}

/// A case for each node of which all tasks passed, and which is not as declared all the same; `None` without any.
fn results(model: &RunModel) -> Option<TestSuite> {
    let verb = model.verb();
    let mut suite = TestSuite::new("results");
    for node in model.nodes() {
        let Some(caveat) = node.result(verb).caveat() else { continue };
        let tasks: Vec<String> = node
            .ignored_failures()
            .map(|task| {
                format!("{}: {}", task.task, task.message.as_deref().unwrap_or("no reason was given"))
            })
            .collect();
        let what = if tasks.is_empty() { String::new() } else { format!(": {}", tasks.join("; ")) };
        let mut status = TestCaseStatus::skipped();
        status.set_message(format!("{caveat}{what}"));
        let mut case = TestCase::new(format!("result on {}", node.name), status);
        case.set_classname(node.name.as_str());
        suite.add_test_case(case);
    }
    for (result, count) in model.results() {
        suite.add_property((format!("nodes.{}", result.word()), count.to_string()));
    }
    (!suite.test_cases.is_empty()).then_some(suite)
}

/// A case for each finding of a node, and one for each node without any.
fn findings(model: &RunModel) -> TestSuite {
    let verb = model.verb();
    let mut suite = TestSuite::new("findings");
    let totals = Totals::of(model);
    let Totals { nodes, compliant, judgements: Judgements { made, asked, .. }, .. } = totals;
    let sums = [("nodes", nodes), ("compliant", compliant), ("judged", made), ("applicable", asked)];
    for (name, count) in sums {
        suite.add_property((name.to_owned(), count.to_string()));
    }
    for (verdict, count) in totals.verdicts() {
        suite.add_property((format!("nodes.{verdict}"), count.to_string()));
    }
    for node in model.nodes() {
        let found = node.findings(verb);
        if found.is_empty() {
            let status = match node.verdict(verb) {
                Verdict::Ok => TestCaseStatus::success(),
                Verdict::Na => TestCaseStatus::skipped(),
                _ => TestCaseStatus::non_success(NonSuccessKind::Error),
            };
            let mut case = TestCase::new(format!("verdict on {}", node.name), status);
            case.set_classname(node.name.as_str());
            suite.add_test_case(case);
        }
        suite.add_test_cases(found.iter().map(|found| finding(&node.name, found)));
    }
    suite
}

fn finding(node: &str, found: &NodeFinding) -> TestCase {
    let text = found.sentence();
    let mut status = match found.verdict {
        _ if found.waived.is_some() => TestCaseStatus::skipped(),
        Verdict::Fail | Verdict::Drift => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Unknown => TestCaseStatus::non_success(NonSuccessKind::Error),
        Verdict::Warn | Verdict::Ok | Verdict::Na => TestCaseStatus::success(),
    };
    if let Some(waiver) = &found.waived {
        status.set_message(format!("waived: {waiver}"));
    } else if found.verdict >= Verdict::Drift {
        status.set_type(found.control.severity.word()).set_message(text.as_str());
    }
    let subject = if found.subject.is_empty() { String::new() } else { format!(" [{}]", found.subject) };
    let mut case = TestCase::new(format!("{}{subject} on {node}", found.control.id), status);
    case.set_classname(node);
    if found.verdict == Verdict::Warn {
        case.set_system_out(text);
    }
    case
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
        // Skipped: what only the run itself can tell was not tested.
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
    let mut said: Vec<String> = told.changes.iter().map(ToString::to_string).collect();
    if !is_bad(told) && told.status != TaskStatus::Skipped {
        said.extend(told.message.clone());
    }
    if !said.is_empty() {
        out.set_system_out(said.join("\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        display::{Style, profile_screen},
        event::{Event, OpId, TaskReport, Verb, What},
        index::PlayIndex,
        report::sample::{self, Stream},
    };

    fn events() -> Vec<Event> {
        let hosts = ["gpu001", "gpu002"].map(str::to_owned);
        let mut s = Stream::new();
        s.started(Verb::Run, &hosts).play(&hosts, &[("2", 2)]);
        let mut task = |host: &str, report: TaskReport, ms: i64| {
            let (host, kind) = (host.to_owned(), report.kind.clone());
            let op_id = OpId::new(PlayIndex(0), "tasks.0", host.as_str());
            s.push(What::TaskStarted { host: host.clone(), op_id, task: kind.clone(), kind });
            s.wait_ms(ms);
            s.task(&host, report);
        };
        task("gpu001", sample::swappiness(4), 1200);
        task("gpu002", sample::swappiness(4), 300);
        task(
            "gpu001",
            TaskReport { item: Some("1".into()), ..sample::report("command", 7, TaskStatus::Changed) },
            40,
        );
        task(
            "gpu001",
            TaskReport { item: Some("2".into()), ..sample::report("command", 7, TaskStatus::Changed) },
            2000,
        );
        task("gpu001", sample::report("command", 7, TaskStatus::Changed), 0);
        task("gpu002", sample::failed("command", 7, "exit \u{1b}[31m<3>"), 5);
        s.task("gpu001", sample::report("debug", 9, TaskStatus::Skipped));
        s.end("gpu001", NodeState::Done, None).end("gpu002", NodeState::Failed, Some("exit 3"));
        s.end("gpu003", NodeState::Unreachable, Some("no route"));
        s.events
    }

    fn timing() -> Timing {
        Timing::of(&events())
    }

    #[test]
    fn what_an_audit_finds_is_no_success() {
        let events = sample::audit(300);
        let model = RunModel::of(&events);
        let text = junit(&Timing::of(&events), &model).unwrap();
        let report = Report::deserialize_from_str(&text).unwrap();
        let suite = report.test_suites.iter().find(|suite| suite.name.as_str() == "findings").unwrap();
        let bad = |case: &&TestCase| matches!(case.status, TestCaseStatus::NonSuccess { .. });
        let red: std::collections::BTreeSet<&str> =
            suite.test_cases.iter().filter(bad).map(|case| case.classname.as_deref().unwrap()).collect();
        let verb = model.verb();
        let not: Vec<&str> = model
            .nodes()
            .iter()
            .filter(|node| !node.is_compliant(verb))
            .map(|node| node.name.as_str())
            .collect();
        assert_eq!(red.into_iter().collect::<Vec<_>>(), not);
        assert!(!not.is_empty());
    }

    #[test]
    fn a_run_is_a_junit_document() {
        insta::assert_snapshot!(junit(&timing(), &RunModel::of(&events())).unwrap(), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="gpufleet" tests="6" skipped="1" failures="1" errors="1">
            <testsuite name="Bring up training nodes" tests="6" skipped="1" errors="1" failures="1" time="3.545">
                <testcase name="sysctl" classname="gpu001" time="1.200">
                    <system-out>vm.swappiness 60 -&gt; 10</system-out>
                </testcase>
                <testcase name="sysctl" classname="gpu002" time="0.300">
                    <system-out>vm.swappiness 60 -&gt; 10</system-out>
                </testcase>
                <testcase name="command" classname="gpu001" time="2.040"/>
                <testcase name="command" classname="gpu002" time="0.005">
                    <failure message="exit &lt;3&gt;" type="failed">exit &lt;3&gt;
        playbooks/bringup.yaml:7</failure>
                </testcase>
                <testcase name="debug" classname="gpu001" time="0.000">
                    <skipped/>
                </testcase>
                <testcase name="unreachable" classname="gpu003">
                    <error message="no route" type="unreachable"/>
                </testcase>
            </testsuite>
        </testsuites>
        "#);
    }

    /// One of these characters would make a reader refuse the whole document, or show another text.
    #[test]
    fn what_no_xml_may_have_is_escaped() {
        let mut s = Stream::new();
        let hosts = ["gpu001".to_owned()];
        s.started(Verb::Audit, &hosts).play(&hosts, &[("1", 1)]);
        s.task("gpu001", sample::failed("command", 7, "a\u{fffe}b\u{ffff}c\u{202e}d"));
        s.end("gpu001", NodeState::Failed, None);
        let text = junit(&Timing::of(&s.events), &RunModel::of(&s.events)).unwrap();
        assert!(text.contains("a\\ufffeb\\uffffc\\u202ed"), "{text}");
        assert!(!text.contains(|c| crate::visible::is_hidden(c) && c != '\n'), "{text}");
    }

    #[test]
    fn tasks_are_timed_the_slowest_first() {
        insta::assert_snapshot!(profile_screen(&timing(), &Style::default()), @r"
        TASK TIMES
          task                                    all nodes   nodes  slowest node
          command  (playbooks/bringup.yaml:7)       2.045 s       2  gpu001 2.040 s
          sysctl  (playbooks/bringup.yaml:4)        1.500 s       2  gpu001 1.200 s
        ");
        assert_eq!(profile_screen(&Timing::default(), &Style::default()), "no task took time on a node\n");
    }
}
