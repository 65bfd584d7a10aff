//! Keys of tasks that a host's variables decide when the task's turn comes.

use super::*;

fn shown(tasks: &str, vars: serde_json::Value) -> String {
    let mut cursor = cursor(&format!("- hosts: all\n  tasks:\n{tasks}"), vars, Mode::Apply);
    run(&mut cursor, |_| Fed::Done).lines()
}

#[test]
fn a_key_that_cannot_be_told_fails_its_task_alone() {
    let tasks = "    - {name: a, command: uptime, timeout: '{{ t }}'}\n";
    assert!(!shown(tasks, serde_json::json!({"t": 30})).contains("timeout"));
    let lines = shown(tasks, serde_json::json!({"t": "soon"}));
    assert!(lines.contains("`timeout` is a duration such as 90, 90s, 20m or 2h, not text"), "{lines}");
    let tasks = "    - {name: a, command: uptime, run_once: '{{ once }}'}\n";
    assert!(!shown(tasks, serde_json::json!({"once": false})).contains("run_once"));
    let lines = shown(tasks, serde_json::json!({}));
    assert!(lines.contains("`run_once`: `once` is undefined"), "{lines}");
}

#[test]
fn a_condition_or_an_item_decides_before_a_timeout() {
    let mut times = Vec::new();
    let mut played = |tasks: &str| {
        times.clear();
        let text = format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}");
        let lines = run(&mut cursor(&text, serde_json::json!({}), Mode::Apply), |action| {
            times.push(action.timeout_s);
            OpOutcomeSketch::Ok.fed(action)
        })
        .lines();
        (lines, times.clone())
    };
    let (lines, times) =
        played("    - {name: a, command: 'true', timeout: '{{ tt }}', when: tt is defined}\n");
    assert!(lines.contains("a: skipped") && times.is_empty(), "{lines}");
    let (lines, times) = played("    - {name: a, command: 'true', timeout: '{{ item }}', loop: [30, 40]}\n");
    assert_eq!(times, [Some(30), Some(40)], "{lines}");
    let (lines, times) = played(
        "    - {name: a, command: 'true', timeout: '{{ item }}', loop: [30, soon, 40], ignore_errors: true}\n",
    );
    assert_eq!(times, [Some(30), Some(40)], "{lines}");
    assert!(lines.contains("`timeout` is a duration"), "{lines}");
}

#[test]
fn a_check_does_not_do_on_each_host_what_may_be_done_once_for_all() {
    let text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: first, command: a, register: r}\n    - {name: once, command: b, run_once: '{{ r.rc == 0 }}', check_mode: false}\n    - {name: each, command: c, run_once: '{{ false }}', check_mode: false}\n";
    let mut cursor = cursor(text, serde_json::json!({}), Mode::Predict);
    cursor.set_runs_commands(true);
    let mut done = Vec::new();
    run(&mut cursor, |action| {
        if action.mode == Mode::Apply {
            done.push(action.task.clone());
        }
        OpOutcomeSketch::Ok.fed(action)
    });
    assert_eq!(done, ["each"]);
}
