//! What fails, who takes care of it, and how it is told.

use serde_json::json;

use super::OpOutcomeSketch::{Changed, Command, Failed, Held, Unreachable};
use super::fake::FakeNode;
use super::{EndState, Mode, Story, cursor, run, story};

fn on(node: &mut FakeNode, text: &str, mode: Mode) -> Story {
    run(&mut cursor(text, json!({}), mode), |action| node.answer(action))
}

#[test]
fn what_does_not_hold_is_a_failure() {
    let text = "- hosts: all\n  tasks:\n    - {name: swap, sysctl: {name: vm.swappiness, value: 10}}\n    - {name: power, gpu_power: {limit_watts: 600}}\n";
    let mut node = FakeNode { stubborn: Some("sysctl"), ..FakeNode::new() };
    let story = on(&mut node, text, Mode::Apply);
    insta::assert_snapshot!(story.lines(), @r#"
    swap: changed <vm.swappiness - -> 10 live>
    power: changed <power limit 700 W -> 600 W live>
    swap: failed (verify) "unconverged: vm.swappiness is nothing, declared 10"
    end: Failed { task: "swap", message: "unconverged: vm.swappiness is nothing, declared 10" }
    "#);
    assert_eq!(story.counts().failed, 1);
}

#[test]
fn a_command_that_failed_says_what_it_printed_last() {
    let text = "- hosts: all\n  tasks:\n    - {name: bad, command: /x, ignore_errors: true}\n    - {name: hidden, command: /y, no_log: true}\n";
    let answers = [("bad", Command(7, "begins\nno such user\n\n")), ("hidden", Command(7, "planted"))];
    insta::assert_snapshot!(story(text, &answers).lines(), @r#"
    bad: failed ignored "non-zero return code 7: no such user"
    hidden: failed "hidden by `no_log`"
    end: Failed { task: "hidden", message: "failed; `no_log` hides why" }
    "#);
}

#[test]
fn blocks_rescue_and_always() {
    let text = r#"
- hosts: all
  tasks:
    - block:
        - {name: one, command: "true"}
        - {name: two, command: "false"}
        - {name: never, command: "true"}
      rescue:
        - {name: saved, debug: {msg: "{{ ansible_failed_task.name }}: {{ ansible_failed_result.msg }}"}}
      always:
        - {name: always, command: "true"}
    - {name: after, command: "true"}
    - block:
        - {name: two, command: "false"}
      always:
        - {name: cleanup, command: "true"}
    - {name: unreached, command: "true"}
"#;
    let story = story(text, &[("two", Failed("boom"))]);
    insta::assert_snapshot!(story.lines(), @r#"
    one: ok
    two: failed rescued "boom"
    saved: ok "two: boom"
    always: ok
    after: ok
    two: failed "boom"
    cleanup: ok
    end: Failed { task: "two", message: "boom" }
    "#);
    let counts = story.counts();
    assert_eq!((counts.ok, counts.rescued, counts.failed), (5, 1, 1));
}

#[test]
fn a_failed_host_runs_no_handlers_unless_forced() {
    let text = |force: &str| {
        format!(
            "- hosts: all\n{force}  tasks:\n    - {{name: one, command: a, notify: h}}\n    - {{name: two, command: a}}\n  handlers:\n    - {{name: h, command: a}}\n"
        )
    };
    let answers = [("one", Changed), ("two", Failed("x"))];
    let tasks = |story: &Story| story.reports.iter().map(|report| report.task.clone()).collect::<Vec<_>>();
    assert_eq!(tasks(&story(&text(""), &answers)), ["one", "two"]);
    let forced = story(&text("  force_handlers: true\n"), &answers);
    assert_eq!(tasks(&forced), ["one", "two", "h"]);
    assert!(matches!(forced.end.state, EndState::Failed { .. }));
}

#[test]
fn lost_and_held_hosts_end() {
    let text = "- hosts: all\n  tasks:\n    - block:\n        - {name: one, command: a}\n      rescue:\n        - {name: no, command: a}\n";
    let lost = story(text, &[("one", Unreachable)]);
    insta::assert_snapshot!(lost.lines(), @r#"
    one: unreachable "no route"
    end: Unreachable { reason: "no route" }
    "#);
    assert_eq!(lost.counts().unreachable, 1);
    insta::assert_snapshot!(story(text, &[("one", Held)]).lines(), @r#"
    one: held "budget"
    end: Held { reason: "budget" }
    "#);
    let ignoring = "- hosts: all\n  tasks:\n    - {name: one, command: a, ignore_unreachable: true}\n    - {name: two, command: a}\n";
    let ignored = story(ignoring, &[("one", Unreachable)]);
    assert_eq!((ignored.end.state, ignored.reports.len()), (EndState::Done, 2));
}

#[test]
fn mistakes_of_the_run_name_variable_and_condition() {
    let failing = |task: &str| story(&format!("- hosts: all\n  tasks:\n    - {task}\n"), &[]).lines();
    insta::assert_snapshot!(failing("{name: t, command: a, when: nope.x == 1}"), @r#"
    t: failed "the condition `nope.x == 1`: `nope.x` is undefined"
    end: Failed { task: "t", message: "the condition `nope.x == 1`: `nope.x` is undefined" }
    "#);
    insta::assert_snapshot!(failing("{name: t, command: 'echo {{ nope }}'}"), @r#"
    t: failed "`cmd`: `nope` is undefined"
    end: Failed { task: "t", message: "`cmd`: `nope` is undefined" }
    "#);
    insta::assert_snapshot!(failing("{name: t, gpu_power: {limit_watts: \"{{ 'six' }}\"}}"), @r#"
    t: failed "`limit_watts` wants a number of watts from 1, got "six""
    end: Failed { task: "t", message: "`limit_watts` wants a number of watts from 1, got \"six\"" }
    "#);
    insta::assert_snapshot!(failing("{name: t, debug: {msg: a}, loop: '{{ 5 }}'}"), @r#"
    t: failed "`loop` wants a list, got a whole number"
    end: Failed { task: "t", message: "`loop` wants a list, got a whole number" }
    "#);
    insta::assert_snapshot!(failing("{name: t, assert: {that: [1 == 2], fail_msg: wrong}}"), @r#"
    t: failed "wrong (`1 == 2` does not hold)"
    end: Failed { task: "t", message: "wrong (`1 == 2` does not hold)" }
    "#);
    insta::assert_snapshot!(failing("{name: t, copy: {src: nope, dest: /x}}"), @r#"
    t: failed "there is no file `nope`; looked for files/nope and nope"
    end: Failed { task: "t", message: "there is no file `nope`; looked for files/nope and nope" }
    "#);
    insta::assert_snapshot!(failing("{name: t, template: {src: limits.j2, dest: /x}}"), @r#"
    t: failed "templates/limits.j2:1: `limit` is undefined"
    end: Failed { task: "t", message: "templates/limits.j2:1: `limit` is undefined" }
    "#);
    insta::assert_snapshot!(failing("{name: t, fail: {msg: hunter2}, no_log: true}"), @r#"
    t: failed "hidden by `no_log`"
    end: Failed { task: "t", message: "failed; `no_log` hides why" }
    "#);
}

#[test]
fn members_that_cannot_be_evaluated_stop_their_group() {
    let text = "- hosts: all\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: power, gpu_power: {limit_watts: '{{ nope }}'}}\n";
    let story = story(text, &[]);
    insta::assert_snapshot!(story.lines(), @r#"
    ecc: skipped "another task of the same GPU group cannot be evaluated"
    power: failed "`limit_watts`: `nope` is undefined"
    end: Failed { task: "power", message: "`limit_watts`: `nope` is undefined" }
    "#);
    assert!(story.asked.is_empty());
}
