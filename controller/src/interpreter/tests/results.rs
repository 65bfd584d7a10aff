//! What reports and `register` keep of a node's answer.

use gpufleet_protocol::facts::{Facts, OsFacts};
use gpufleet_protocol::{
    Awaiting, Change, Disruption, FailureKind, OpOutcome, OpStatus, Property, Subject, change,
};

use super::OpOutcomeSketch::{Changed, Command, Ok};
use super::*;

fn play(tasks: &str) -> String {
    format!("- hosts: all\n  tasks:\n{}", tasks.trim_start_matches('\n'))
}

fn fed(outcome: OpOutcome) -> Fed {
    Fed::Outcome(Box::new(outcome))
}

fn with_data(status: OpStatus, data: serde_json::Value) -> OpOutcome {
    OpOutcome { data: data.as_object().expect("a mapping").clone(), ..OpOutcome::new(status) }
}

/// Each report with its data.
fn data(story: &Story) -> String {
    let lines = story.reports.iter().map(|report| {
        let data = serde_json::Value::Object(report.data.clone());
        format!("{}: {:?} {data}", report.task, report.status).to_lowercase()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_only_the_run_can_tell_is_said_with_its_reason() {
    let text = play("    - {name: open, sysctl: {name: a, value: 1}}\n");
    let story =
        run(&mut cursor(&text, json!({}), Mode::Predict), |_| fed(OpOutcome::possible("a task writes it")));
    let open = &story.reports[0];
    assert_eq!((open.status, open.message.as_deref()), (Status::Possible, Some("a task writes it")));
}

#[test]
fn reports_keep_all_that_a_node_said() {
    let text = play(
        "    - {name: open, sysctl: {name: a, value: 1}, register: r}\n    - {name: hidden, sysctl: {name: a, value: 1}, no_log: true}\n    - {name: see, debug: {msg: '{{ r.told }}'}}\n",
    );
    let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
        if action.phase() != Phase::Declared {
            return Ok.fed(action);
        }
        let mut answer = with_data(OpStatus::Changed, json!({"told": "by the node"}));
        answer.warnings.push("careful".to_owned());
        let a = Subject::kernel_setting("a");
        let change = Change::new(a, Property::VALUE, "0", "1", Disruption::Live);
        answer.changes.push(change.with_note("soon"));
        answer.awaiting.push(Awaiting { activation: Disruption::Reboot, reason: "a is set".to_owned() });
        fed(answer)
    });
    let [open, hidden, see, ..] = &story.reports[..] else { panic!("{}", story.lines()) };
    assert_eq!((&open.warnings[..], open.awaiting.len()), (&["careful".to_owned()][..], 1));
    assert_eq!(
        (open.data.get("told"), &see.message),
        (Some(&json!("by the node")), &Some("by the node".to_owned()))
    );
    assert_eq!(open.changes[0].note.as_deref(), Some("soon"));
    assert_eq!((hidden.warnings.len(), hidden.data.len()), (0, 0));
    let change = &hidden.changes[0];
    assert_eq!(
        (&change.from, &change.to, change.to_string().as_str(), &change.note),
        (&change::Value::Hidden, &change::Value::Hidden, "a (hidden) -> (hidden)", &None)
    );
}

#[test]
fn conditions_on_results_are_told_with_them() {
    let text = play(
        "
    - {name: plain, command: a}
    - {name: accepted, command: a, failed_when: false}
    - {name: refused, command: a, failed_when: true, ignore_errors: true, register: refused}
    - {name: quiet, command: a, failed_when: true, changed_when: false, ignore_errors: true}
    - {name: same, sysctl: {name: a, value: 1}, failed_when: true, ignore_errors: true}
    - {name: unread, sysctl: {name: a, value: 1}, failed_when: nope, ignore_errors: true}
    - {name: own word, command: b, register: r}
    - {name: see, debug: {msg: '{{ r.changed }} {{ r.failed }} {{ refused.changed }} {{ refused.failed }}'}}
",
    );
    let answer = |action: &Action| match action.task.as_str() {
        "plain" | "refused" | "quiet" => Command(0, "").fed(action),
        "accepted" => Command(7, "").fed(action),
        "own word" => fed(with_data(OpStatus::Ok, json!({"changed": true}))),
        _ => Ok.fed(action),
    };
    let story = run(&mut cursor(&text, json!({}), Mode::Apply), answer);
    insta::assert_snapshot!(data(&story), @r#"
    plain: changed {"rc":0,"stdout":"","stdout_lines":[],"stderr":"","stderr_lines":[]}
    accepted: changed {"rc":7,"stdout":"","stdout_lines":[],"stderr":"","stderr_lines":[],"failed_when_result":false}
    refused: failed {"rc":0,"stdout":"","stdout_lines":[],"stderr":"","stderr_lines":[],"failed_when_result":true,"changed":true}
    quiet: failed {"rc":0,"stdout":"","stdout_lines":[],"stderr":"","stderr_lines":[],"failed_when_result":true}
    same: failed {"failed_when_result":true}
    unread: failed {"failed_when_result":true}
    own word: ok {}
    see: ok {"msg":"false false true true"}
    "#);
    let predicted = run(&mut cursor(&text, json!({}), Mode::Predict), answer);
    insta::assert_snapshot!(data(&predicted), @r#"
    plain: possible {}
    accepted: possible {}
    refused: possible {}
    quiet: possible {}
    same: failed {"failed_when_result":true}
    unread: failed {"failed_when_result":true}
    own word: possible {}
    see: possible {}
    "#);
}

#[test]
fn the_last_line_that_a_command_printed_says_why_it_failed() {
    let message = |task: &str, rc: i64, data: serde_json::Value| {
        let text = play(&format!("    - {{name: t, {task}}}\n"));
        let story = run(&mut cursor(&text, json!({}), Mode::Apply), |_| {
            fed(OpOutcome {
                data: data.as_object().expect("a mapping").clone(),
                ..OpOutcome::failed(FailureKind::Exit, format!("exit code {rc}"))
            })
        });
        story.reports[0].message.clone().unwrap_or_default()
    };
    assert_eq!(
        message("command: a", 1, json!({"stdout": "out", "stderr": "one\n two \n\n"})),
        "exit code 1: two"
    );
    assert_eq!(message("command: a", 1, json!({"stdout": "out", "stderr": "\n"})), "exit code 1: out");
    assert_eq!(message("command: a", 1, json!({})), "exit code 1");
    assert_eq!(message("command: a", 1, json!({"stdout": "code 1"})), "exit code 1");
    assert_eq!(message("sysctl: {name: a, value: 1}", 1, json!({"stdout": "out"})), "exit code 1");
    let long = message("shell: a", 1, json!({"stderr": "x".repeat(300)}));
    assert_eq!(long.len(), "exit code 1: ".len() + 200);
}

#[test]
fn a_rescue_sees_what_failed_unless_it_is_hidden() {
    let said = |more: &str| {
        let text = play(&format!(
            "    - block:\n        - {{name: bad, command: a{more}}}\n      rescue:\n        - {{debug: {{msg: '{{{{ ansible_failed_result.rc | default(\"none\") }}}} {{{{ ansible_failed_result.changed }}}}'}}}}\n"
        ));
        let story = super::story(&text, &[("bad", Command(7, ""))]);
        story.reports.last().and_then(|report| report.message.clone()).unwrap_or_default()
    };
    assert_eq!((said(""), said(", no_log: true")), ("7 False".to_owned(), "none False".to_owned()));
    assert_eq!(said(", changed_when: true"), "7 True");
    assert_eq!(said(", loop: [1], changed_when: true"), "none True", "of a loop it is the sum");
    assert_eq!(said(", loop: [1], changed_when: true, no_log: true"), "none False");
}

#[test]
fn what_a_command_may_bring_is_no_mistake_of_a_prediction() {
    let service = "    - {name: unit, service: {name: x, state: started}}\n";
    let status = |mode: Mode, before: &str, kind: FailureKind| {
        let text = play(&format!("{before}{service}"));
        let story = run(&mut cursor(&text, json!({}), mode), |action| match action.task.as_str() {
            "unit" => fed(OpOutcome::failed(kind, "there is no unit x")),
            _ => Ok.fed(action),
        });
        story.reports.last().expect("a report").status
    };
    let install = "    - {command: install}\n";
    let missing = FailureKind::Missing;
    assert_eq!(status(Mode::Predict, install, missing), Status::Possible);
    assert_eq!(status(Mode::Predict, install, FailureKind::Io), Status::Failed);
    assert_eq!(status(Mode::Predict, "", missing), Status::Failed);
    assert_eq!(status(Mode::Apply, install, missing), Status::Failed);
    assert_eq!(status(Mode::Apply, "    - {command: install, check_mode: true}\n", missing), Status::Failed);
}

#[test]
fn only_what_is_done_here_and_now_is_verified_here() {
    let text = play(
        "
    - {name: here, sysctl: {name: a, value: 1}}
    - {name: itself, sysctl: {name: b, value: 1}, delegate_to: n1}
    - {name: other, sysctl: {name: c, value: 1}, delegate_to: n2}
    - {name: predicted, sysctl: {name: d, value: 1}, check_mode: true}
    - {name: waited, file: {path: /e, state: directory}, async: 45}
    - {name: begun, file: {path: /f, state: directory}, async: 45, poll: 0}
    - {name: act, command: a}
",
    );
    let mut terms = Vec::new();
    let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| {
        if action.phase() == Phase::Declared {
            terms.push(format!("{} {:?} {:?}", action.task, action.mode, action.terms.delegate));
            return Changed.fed(action);
        }
        Ok.fed(action)
    });
    let verified: Vec<&str> = story.asked.iter().filter_map(|id| id.strip_suffix("+verify@n1")).collect();
    assert_eq!(verified, ["0/tasks.0", "0/tasks.1", "0/tasks.4"], "{}", story.lines());
    let elsewhere = story.reports.iter().filter_map(|report| report.delegated_to.as_deref());
    assert_eq!(elsewhere.collect::<Vec<_>>(), ["n2"]);
    assert_eq!(terms[1..4], ["itself Apply None", "other Apply Some(\"n2\")", "predicted Predict None"]);
}

#[test]
fn facts_that_a_task_asks_for_are_registered_as_chosen() {
    let text = |filter: &str| {
        format!(
            "- hosts: all\n  gather_facts: false\n  tasks:\n    - {{setup: {{filter: '{filter}'}}, register: r}}\n    - {{debug: {{msg: '{{{{ ansible_distribution }}}} {{{{ r.ansible_facts | dict2items | map(attribute=\"key\") | sort | join(\" \") }}}}'}}}}\n"
        )
    };
    let said = |filter: &str| {
        let story = run(&mut cursor(&text(filter), json!({}), Mode::Apply), |_| {
            let os = OsFacts { id: "debian".to_owned(), ..OsFacts::default() };
            fed(OpOutcome {
                facts: Some(Box::new(Facts { os, ..Facts::default() })),
                ..OpOutcome::new(OpStatus::Ok)
            })
        });
        story.reports[1].message.clone().unwrap_or_else(|| story.lines())
    };
    assert_eq!(said("distribution_v*"), "Debian ansible_distribution_version");
    assert_eq!(said("ansible_kern*"), "Debian ansible_kernel ansible_kernel_version");
    assert_eq!(said("kernel,fips"), "Debian ansible_fips ansible_kernel");
    assert_eq!(said("nope"), "Debian ");
    let all = said("*");
    assert!(
        all.contains("ansible_date_time") && !all.contains("ansible_facts") && !all.contains("gpufleet"),
        "{all}"
    );
}

#[test]
fn a_play_may_go_on_without_facts_of_a_host_that_is_not_there() {
    let text = |more: &str| {
        format!("- hosts: all\n  gather_facts: true\n{more}  tasks:\n    - {{name: after, command: a}}\n")
    };
    let lost = |text: &str| {
        run(&mut cursor(text, json!({}), Mode::Apply), |action| match action.kind {
            "gather_facts" => Fed::Unreachable { reason: "silence".to_owned() },
            _ => Ok.fed(action),
        })
    };
    assert_eq!(lost(&text("")).end.state, EndState::Unreachable { reason: "silence".to_owned() });
    insta::assert_snapshot!(lost(&text("  ignore_unreachable: true\n")).lines(), @r#"
    gathering facts: unreachable ignored "silence"
    after: ok
    end: Done
    "#);
    let group = play(
        "    - {name: ecc, gpu_ecc: {mode: enabled}, ignore_unreachable: true}\n    - {name: power, gpu_power: {limit_watts: 5}, ignore_unreachable: true}\n    - {name: after, command: a}\n",
    );
    let story = run(&mut cursor(&group, json!({}), Mode::Apply), |action| match action.kind {
        "gpu_ecc" => Fed::Unreachable { reason: "silence".to_owned() },
        _ => Ok.fed(action),
    });
    insta::assert_snapshot!(story.lines(), @r#"
    ecc: unreachable ignored "silence"
    power: unreachable ignored "silence"
    after: ok
    end: Done
    "#);
}

#[test]
fn members_of_a_group_may_be_hidden_and_looped() {
    let text = play(
        "
    - {name: power, gpu_power: {limit_watts: '{{ item.w }}', gpus: '{{ item.g }}'}, loop: '{{ limits }}', register: p, changed_when: item.w > 400, loop_control: {index_var: i, label: 'gpu {{ item.g }} {{ i }}'}}
    - {name: veiled, gpu_ecc: {mode: enabled}, no_log: '{{ quiet }}'}
    - {name: open, gpu_mig: {mode: enabled}, no_log: '{{ not quiet }}'}
    - {name: see, debug: {msg: '{{ p.results | map(attribute=\"changed\") | list }}'}}
",
    );
    let vars = json!({"limits": [{"g": 0, "w": 500}, {"g": 1, "w": 400}], "quiet": true});
    let mut hidden = Vec::new();
    let story = run(&mut cursor(&text, vars, Mode::Apply), |action| {
        hidden.push((action.phase(), action.no_log));
        let Work::Node { op, .. } = &action.work else { panic!("{action:?}") };
        let gpufleet_protocol::NodeOp::GpuGroup(group) = &**op else { panic!("{action:?}") };
        let mut answer = OpOutcome::new(OpStatus::Ok);
        answer.members = group.members.iter().map(|_| with_data(OpStatus::Ok, json!({"a": 1}))).collect();
        fed(answer)
    });
    assert_eq!(hidden, [(Phase::Declared, true)]);
    insta::assert_snapshot!(data(&story), @r#"
    power: changed {"a":1}
    power: ok {"a":1}
    power: changed {}
    veiled: ok {}
    open: ok {"a":1}
    see: ok {"msg":[true,false]}
    "#);
    insta::assert_snapshot!(story.lines(), @r#"
    power: changed [gpu 0 0]
    power: ok [gpu 1 1]
    power: changed
    veiled: ok
    open: ok
    see: ok "[true,false]"
    end: Done
    "#);
}

#[test]
fn what_a_prediction_foretells_may_have_more_in_the_run() {
    let text = play(
        "    - {name: t, sysctl: {name: a, value: 1}, register: r}\n    - {name: see, debug: {msg: '{{ r.more.deep }}'}}\n",
    );
    let seen = |mode: Mode, found: OpOutcomeSketch| {
        let story = run(&mut cursor(&text, json!({}), mode), |action| found.fed(action));
        story.reports[1].status
    };
    assert_eq!(seen(Mode::Predict, Changed), Status::Possible);
    assert_eq!(seen(Mode::Predict, Ok), Status::Failed);
    assert_eq!(seen(Mode::Apply, Changed), Status::Failed);
}

#[test]
fn what_was_skipped_says_why() {
    let text = play(
        "
    - {name: done, command: a, register: done}
    - {name: unmet, command: a, when: 1 == 2, register: unmet}
    - {name: empty, command: a, loop: [], register: empty}
    - {name: see, debug: {msg: '{{ done.skip_reason }}; {{ unmet.skip_reason }}, {{ unmet.false_condition }}; {{ empty.skip_reason is defined }} {{ empty.skipped_reason }}'}}
    - {name: fields, debug: {msg: '{{ done.failed is defined }} {{ done.msg is defined }} {{ done.changed }}'}}
",
    );
    let story = run(&mut cursor(&text, json!({}), Mode::Apply), |_| Fed::Skipped {
        reason: "/x is there".to_owned(),
    });
    let said: Vec<&str> =
        story.reports.iter().skip(3).filter_map(|report| report.message.as_deref()).collect();
    assert_eq!(
        said,
        [
            "/x is there; Conditional result was False, 1 == 2; False No items in the list",
            "False False False"
        ]
    );
}

#[test]
fn a_loop_that_fails_says_whether_it_changed_something() {
    let text = play(
        "    - {name: t, command: '{{ item }}', loop: [a, b], ignore_errors: true, register: r}\n    - {name: see, debug: {msg: '{{ r.changed }} {{ r.failed | default(\"-\") }} {{ r.skipped }} {{ r.msg }}'}}\n",
    );
    let sums = |first: OpOutcomeSketch, second: OpOutcomeSketch| {
        let mut answers = [first, second].into_iter();
        let story = run(&mut cursor(&text, json!({}), Mode::Apply), |action| match action.task.as_str() {
            "t" => answers.next().expect("two").fed(action),
            _ => Ok.fed(action),
        });
        let sum = &story.reports[2];
        let said = story.reports[3].message.clone().unwrap_or_default();
        format!("{:?} {} {:?}: {said}", sum.status, sum.ignored, sum.data.get("changed"))
    };
    use OpOutcomeSketch::Failed;
    insta::assert_snapshot!([
        sums(Changed, Failed("x")),
        sums(Ok, Failed("x")),
        sums(Changed, Ok),
        sums(Ok, Ok),
    ].join("\n"), @r"
    Failed true Some(Bool(true)): True True False One or more items failed
    Failed true None: False True False One or more items failed
    Changed false None: True - False All items completed
    Ok false None: False - False All items completed
    ");
}

#[test]
fn a_notification_of_nobody_is_as_fatal_as_its_task() {
    let end = |fatal: bool| {
        let text = format!(
            "- hosts: all\n  vars: {{name: nobody}}\n  tasks:\n    - {{name: t, command: a, notify: '{{{{ name }}}}', any_errors_fatal: {fatal}}}\n"
        );
        super::story(&text, &[("t", Changed)]).end
    };
    let (fatal, mild) = (end(true), end(false));
    assert_eq!((fatal.fatal, mild.fatal, &fatal.state), (true, false, &mild.state));
    assert!(
        matches!(mild.state, EndState::Failed { message, .. } if message == "no handler is called `nobody`")
    );
}
