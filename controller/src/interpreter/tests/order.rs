//! In which order things are done: handlers, loops, questions, and what goes before the first task.

use super::OpOutcomeSketch::{Changed, Ok};
use super::*;

fn names(story: &Story) -> Vec<&str> {
    story.reports.iter().filter(|report| report.item.is_none()).map(|report| report.task.as_str()).collect()
}

#[test]
fn a_handler_that_an_earlier_one_notifies_has_its_turn_and_one_behind_waits() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, command: a, notify: h1}\n  handlers:\n    - {name: h0, command: a}\n    - {name: h1, command: a, notify: [h0, h3, h2]}\n    - {name: h2, command: a, notify: h1}\n    - {name: h3, command: a}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| Changed.fed(action));
    assert_eq!(names(&story), ["t", "h1", "h2", "h3", "h0"]);
}

#[test]
fn a_handler_is_meant_by_its_name_and_by_what_it_listens_to() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, command: a, notify: [again, topic, other]}\n  handlers:\n    - {name: again, command: first}\n    - {name: again, command: second}\n    - {name: twice, listen: [topic, other], command: a}\n    - {name: twice, listen: topic, command: b}\n    - {listen: topic, command: c}\n    - {listen: topic, command: d}\n    - {name: never, listen: nothing, command: e}\n";
    let mut lines = Vec::new();
    run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        let Work::Node { op, .. } = &action.work else { panic!("{action:?}") };
        let gpufleet_protocol::NodeOp::Exec(exec) = &**op else { panic!("{op:?}") };
        lines.push(format!("{} {:?}", action.id, exec.run));
        Changed.fed(action)
    });
    insta::assert_snapshot!(lines.join("\n"), @r#"
    0/tasks.0@n1 Argv(["a"])
    0/handlers.0@n1 Argv(["first"])
    0/handlers.2@n1 Argv(["a"])
    0/handlers.4@n1 Argv(["c"])
    0/handlers.5@n1 Argv(["d"])
    "#);
}

#[test]
fn a_loop_knows_where_it_stands() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, debug: {msg: '{{ ansible_loop.index }}/{{ ansible_loop.length }} {{ ansible_loop.index0 }} {{ ansible_loop.first }} {{ ansible_loop.last }} {{ ansible_loop.revindex }} {{ ansible_loop.revindex0 }} {{ ansible_loop.previtem | default(\"-\") }} {{ ansible_loop.nextitem | default(\"-\") }} {{ ansible_loop.allitems | join }} {{ ansible_loop_var }}'}, loop: [a, b, c], loop_control: {extended: true}}\n    - {name: plain, debug: {msg: '{{ ansible_loop is defined }}'}, loop: [a]}\n";
    let story = super::story(text, &[]);
    let said: Vec<&str> = story.reports.iter().filter_map(|report| report.message.as_deref()).collect();
    assert_eq!(
        said,
        [
            "1/3 0 True False 3 2 - b abc item",
            "2/3 1 False False 2 1 a c abc item",
            "3/3 2 False True 1 0 b - abc item",
            "false"
        ]
    );
}

#[test]
fn a_person_may_want_a_group_to_run() {
    let text = "- hosts: all\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: mig, gpu_mig: {mode: enabled}}\n    - {name: two, command: a}\n";
    let mut cursor = cursor(text, json!({}), Mode::Apply);
    cursor.set_stepping(true);
    let (mut asked, mut ran) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        match cursor.next() {
            Step::Ask { title, .. } => {
                asked.push(title);
                cursor.feed(Fed::Asked { run: true });
            }
            Step::Run(action) => {
                ran.push(action.id.to_string());
                cursor.feed(Ok.fed(&action));
            }
            Step::End(end) => {
                assert_eq!(end.state, EndState::Done);
                assert_eq!(asked, ["ecc, mig", "two"]);
                assert_eq!(ran, ["0/tasks.0@n1", "0/tasks.2@n1"]);
                return;
            }
            _ => {}
        }
    }
    panic!("it never ends: {asked:?} {ran:?}");
}

#[test]
fn files_of_variables_that_are_not_there_fail_the_host_first() {
    let text = "- hosts: all\n  vars_files: [['{{ site }}.yml', '{{ nope }}.yml'], '{{ site }}-more.yml']\n  tasks:\n    - {name: t, command: a}\n";
    insta::assert_snapshot!(
        run(&mut cursor(text, json!({"site": "b"}), Mode::Apply), |action| panic!("{action:?}")).lines(),
        @r#"end: Failed { task: "vars_files", message: "play.yml:2: `vars_files`: there is no file `b.yml`; looked for vars/b.yml and b.yml; `nope` is undefined" }"#
    );
}

#[test]
fn conditions_of_what_steers_count_nowhere() {
    let text = "- hosts: all\n  tasks:\n    - {meta: end_host, when: false}\n    - {meta: noop, when: [true, 1 == 2]}\n    - {meta: clear_facts}\n    - {name: t, command: a}\n";
    assert_eq!(names(&super::story(text, &[])), ["t"]);
}

#[test]
fn a_template_may_say_that_a_task_is_hidden() {
    let shown = |flag: &str| {
        let text = format!(
            "- hosts: all\n  tasks:\n    - {{name: t, debug: {{msg: word}}, no_log: '{{{{ {flag} }}}}'}}\n"
        );
        let story = run(&mut cursor(&text, json!({"quiet": true}), Mode::Apply), |action| Ok.fed(action));
        story.reports[0].message.clone().unwrap_or_default()
    };
    assert_eq!((shown("quiet").as_str(), shown("not quiet").as_str()), ("hidden by `no_log`", "word"));
    assert_eq!(shown("nope"), "hidden by `no_log`", "what cannot be told is hidden");
}

#[test]
fn flushing_within_handlers_begins_nothing_anew() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, command: a, notify: [h, f]}\n  handlers:\n    - {name: f, meta: flush_handlers}\n    - {name: h, command: a}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| Changed.fed(action));
    assert_eq!(names(&story), ["t", "h"]);
}

#[test]
fn tags_choose_tasks_members_and_blocks() {
    let text = "- hosts: all\n  strategy: linear\n  tasks:\n    - {name: one, command: a, tags: x}\n    - {name: two, command: a}\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: mig, gpu_mig: {mode: enabled}, tags: x}\n    - {name: power, gpu_power: {limit_watts: 5}, tags: y}\n    - block:\n      - {name: in block, command: a}\n      tags: x\n    - {name: none, gpu_ecc: {mode: enabled}, tags: y}\n";
    let tags = Arc::new(TagFilter { only: vec!["x".to_owned()], skip: Vec::new() });
    let mut cursor = Cursor::new(
        &program(text),
        PlayIndex(0),
        context(json!({})),
        HostVars::default(),
        Mode::Apply,
        tags,
        files(),
    )
    .expect("a play");
    let mut barriers = Vec::new();
    loop {
        match cursor.next() {
            Step::Barrier { task, .. } => barriers.push(task.to_string()),
            Step::Run(action) => drop(cursor.feed(Ok.fed(&action))),
            Step::End(end) => break assert_eq!(end.state, EndState::Done),
            _ => {}
        }
    }
    assert_eq!(barriers, ["tasks.0", "tasks.3", "tasks.5.0"]);
}
