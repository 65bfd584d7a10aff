//! Trying again, ending loops early, and how many hosts do a task at once.

use gpufleet_protocol::{OpOutcome, OpStatus};

use super::OpOutcomeSketch::{Changed, Command, Failed, Ok};
use super::*;

fn play(task: &str) -> String {
    format!(
        "- hosts: all\n  tasks:\n    - {{name: t, {task}, register: r, ignore_errors: true}}\n    - {{name: see, debug: {{msg: '{{{{ r.attempts | default(0) }}}} {{{{ r.failed | default(false) }}}}'}}}}\n"
    )
}

/// What is asked for, and how it ends, where each try has the next of these answers, and the last one from then on.
fn tried(task: &str, mode: Mode, answers: &[OpOutcomeSketch]) -> String {
    let mut count = 0;
    let mut waits = Vec::new();
    let story = run(&mut cursor(&play(task), json!({}), mode), |action| {
        let answer = answers.get(count).or(answers.last()).expect("an answer");
        count += 1;
        waits.push(
            action.terms.wait.map_or_else(|| "-".to_owned(), |(delay, left)| format!("{delay}s/{left}")),
        );
        answer.fed(action)
    });
    let said = story.reports.last().and_then(|report| report.message.clone()).unwrap_or_default();
    let task: Vec<String> = story.reports.iter().filter(|report| report.task == "t").map(line).collect();
    format!("{}: {}; {said}", waits.join(" "), task.join(", "))
}

#[test]
fn a_task_is_tried_again_until_its_condition_holds_or_the_tries_are_over() {
    let mut told = Vec::new();
    for (task, answers) in [
        ("command: a, retries: 2, delay: 1", &[Failed("x"), Ok][..]),
        ("command: a, retries: 2, delay: 1", &[Ok]),
        ("command: a, retries: 1, delay: 0.4", &[Failed("x")]),
        ("command: a, until: r.rc == 0", &[Command(1, ""), Command(0, "")]),
        ("command: a, until: r.stdout == 'up', retries: 2", &[Command(0, "down")]),
        ("command: a, until: r.rc == 0, retries: '{{ nope }}'", &[Command(0, "")]),
        ("command: a, until: r.rc == 0, retries: many", &[Command(0, "")]),
        ("command: a, until: r.nope == 0, retries: 1", &[Command(0, "")]),
        ("command: a, until: r.rc == 0, when: false", &[Command(0, "")]),
        (
            "command: a, until: r.rc == 0, loop: [1, 2], retries: 1, delay: 3",
            &[Command(1, ""), Command(0, "")],
        ),
    ] {
        told.push(tried(task, Mode::Apply, answers));
    }
    told.push(tried("sysctl: {name: a, value: 1}, retries: 2", Mode::Predict, &[Failed("x")]));
    insta::assert_snapshot!(told.join("\n"), @r#"
    - 1s/2: t: ok; 2 False
    -: t: ok; 1 False
    - 0s/1: t: failed ignored "x"; 1 True
    - 5s/3: t: changed; 2 False
    - 5s/2 5s/1: t: failed ignored "`until` does not hold"; 2 True
    -: t: failed ignored "`retries`: `nope` is undefined"; 0 True
    -: t: failed ignored "`retries` wants a number, got text"; 0 True
    -: t: failed ignored "`until: r.nope == 0`: `nope` is undefined"; 1 True
    : t: skipped "the condition does not hold"; 0 False
    - 3s/1 -: t: changed [1], t: changed [2], t: changed; 0 False
    -: t: failed ignored "x"; 0 True
    "#);
}

#[test]
fn what_the_node_skips_is_not_tried_again() {
    let text = play("command: a, until: r.rc == 0");
    let story =
        run(&mut cursor(&text, json!({}), Mode::Apply), |_| Fed::Skipped { reason: "there".to_owned() });
    assert_eq!((story.asked.len(), story.reports[0].data.get("attempts")), (1, None), "{}", story.lines());
    let unknown = run(
        &mut cursor(
            &text.replace("command: a, until: r.rc == 0", "sysctl: {name: a, value: 1}, retries: 1"),
            json!({}),
            Mode::Apply,
        ),
        |_| Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Unknown { reason: "no answer".to_owned() }))),
    );
    assert_eq!(unknown.reports[0].data.get("attempts"), Some(&json!(1)));
}

#[test]
fn what_a_task_gave_up_with_is_registered_told_and_rescued() {
    let text = "- hosts: all\n  any_errors_fatal: true\n  tasks:\n    - block:\n        - {name: t, command: a, until: r.stdout == 'up', retries: 1, register: r}\n      rescue:\n        - {name: saved, debug: {msg: '{{ ansible_failed_result.attempts }} {{ ansible_failed_result.stdout }} {{ r.failed }}'}}\n    - {name: u, command: a, until: s.stdout == 'up', retries: 1, register: s, changed_when: false}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| Command(0, "down").fed(action));
    insta::assert_snapshot!(story.lines(), @r#"
    t: failed rescued "`until` does not hold"
    saved: ok "1 down True"
    u: failed "`until` does not hold"
    end: Failed { task: "u", message: "`until` does not hold" }
    "#);
    assert_eq!(story.reports[0].data.get("changed"), Some(&json!(true)));
    assert_eq!(story.reports[2].data.get("changed"), None);
    assert!(story.end.fatal);
}

#[test]
fn a_loop_ends_where_its_condition_says() {
    let tasks = |condition: &str| {
        format!(
            "- hosts: all\n  tasks:\n    - {{name: t, command: 'echo {{{{ item }}}}', loop: [1, 2, 3], register: r, loop_control: {{break_when: {condition}, pause: 2}}}}\n    - {{name: see, debug: {{msg: '{{{{ r.results | length }}}}'}}}}\n"
        )
    };
    let told = |condition: &str, mode: Mode| {
        let mut waits = Vec::new();
        let story = run(&mut cursor(&tasks(condition), json!({}), mode), |action| {
            waits.push(action.terms.wait);
            Command(0, if waits.len() == 2 { "stop" } else { "go" }).fed(action)
        });
        format!("{waits:?}\n{}", story.lines())
    };
    insta::assert_snapshot!(told("r.stdout == 'stop'", Mode::Apply), @r#"
    [None, Some((2, 0))]
    t: changed [1]
    t: changed [2]
    t: changed
    see: ok "2"
    end: Done
    "#);
    insta::assert_snapshot!(told("r.nope == 'stop'", Mode::Apply), @r#"
    [None]
    t: changed [1]
    t: failed "1 of 1 items: 1: `break_when: r.nope == 'stop'`: `nope` is undefined"
    end: Failed { task: "t", message: "`break_when: r.nope == 'stop'`: `nope` is undefined" }
    "#);
    insta::assert_snapshot!(told("r.stdout == 'stop'", Mode::Predict), @r#"
    []
    t: possible [1] "only a run executes it"
    t: possible [2] "only a run executes it"
    t: possible [3] "only a run executes it"
    t: possible
    see: possible "hangs on the result of a task that a prediction does not run"
    end: Done
    "#);
}

#[test]
fn a_loop_whose_end_cannot_be_told_has_failed() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, command: a, loop: [1, 2], register: r, ignore_errors: true, loop_control: {break_when: r.nope}}\n    - {name: see, debug: {msg: '{{ r.results | length }} {{ r.results[0].attempts }} {{ r.results[0].failed }}'}}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| Ok.fed(action));
    assert_eq!(
        story.reports.last().and_then(|report| report.message.as_deref()),
        Some("1 1 True"),
        "{}",
        story.lines()
    );
}

#[test]
fn a_task_says_on_how_many_hosts_it_is_done_at_once() {
    let throttle = |value: &str| {
        let text = format!("- hosts: all\n  tasks:\n    - {{name: t, command: a, throttle: {value}}}\n");
        let mut seen = Vec::new();
        let story = run(&mut cursor(&text, json!({"two": 2}), Mode::Apply), |action| {
            seen.push(action.terms.throttle);
            Changed.fed(action)
        });
        (seen.pop().flatten(), story.reports[0].message.clone().unwrap_or_default())
    };
    assert_eq!(throttle("3"), (Some(3), String::new()));
    assert_eq!(throttle("'{{ two }}'"), (Some(2), String::new()));
    assert_eq!(throttle("0"), (None, String::new()));
    assert_eq!(throttle("'{{ [two] }}'"), (None, "`throttle` wants a number, got a list".to_owned()));
}

#[test]
fn the_host_that_does_a_task_may_be_told_by_a_variable() {
    let delegate = |value: &str, mode: Mode| {
        let text = format!(
            "- hosts: all\n  tasks:\n    - {{name: ask, command: a, register: r}}\n    - {{name: t, sysctl: {{name: a, value: 1}}, delegate_to: {value}}}\n"
        );
        let mut seen = Vec::new();
        let vars = json!({"other": "n2", "nobody": "", "own": "n1"});
        let story = run(&mut cursor(&text, vars, mode), |action| {
            if action.task == "t" {
                seen.push(action.terms.delegate.clone());
            }
            Command(0, "n3").fed(action)
        });
        let told =
            story.reports.iter().find(|report| report.task == "t").and_then(|report| report.message.clone());
        (seen.first().cloned(), told)
    };
    let to = |host: Option<&str>| (Some(host.map(ToOwned::to_owned)), None);
    assert_eq!(delegate("n2", Mode::Apply), to(Some("n2")));
    assert_eq!(delegate("'{{ other }}'", Mode::Predict), to(Some("n2")));
    assert_eq!(delegate("'{{ r.stdout }}'", Mode::Apply), to(Some("n3")));
    for nobody in ["'{{ nobody }}'", "'{{ own }}'", "'{{ omit }}'", "n1"] {
        assert_eq!(delegate(nobody, Mode::Apply), to(None), "{nobody}");
    }
    let why = "is done by a host that hangs on the result of another task";
    assert_eq!(delegate("'{{ r.stdout }}'", Mode::Predict), (None, Some(why.to_owned())));
    assert_eq!(
        delegate("'{{ nope }}'", Mode::Apply).1.as_deref(),
        Some("`delegate_to`: `nope` is undefined")
    );
}

#[test]
fn a_check_runs_only_commands_that_one_try_on_one_host_tells_of() {
    for (more, runs) in
        [("", true), (", until: r.rc == 0", false), (", run_once: true", false), (", async: 9", false)]
    {
        let text = format!(
            "- hosts: all\n  tasks:\n    - {{name: t, command: a, check_mode: false, register: r{more}}}\n"
        );
        let mut cursor = cursor(&text, json!({}), Mode::Predict);
        cursor.set_runs_commands(true);
        let mut ran = false;
        run(&mut cursor, |action| {
            ran |= action.mode == Mode::Apply;
            Ok.fed(action)
        });
        assert_eq!(ran, runs, "{more}");
    }
}
