//! Kinds that Ansible's playbooks bring along: what they ask for, and what `register` gets.

use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus};

use super::*;
use crate::template::Value;

fn story(tasks: &str, mode: Mode) -> (Vec<Action>, Story) {
    let text = format!("- hosts: all\n  tasks:\n{tasks}");
    let map: HashMap<String, String> = [
        ("files/tree/one", "1\n"),
        ("files/tree/sub/two", "2\n"),
        ("files/app.tar", "archive"),
        ("templates/marks.j2", "[% if true %]\n<< inventory_hostname >> {{ kept }}\n[% endif %]\n"),
        ("templates/header.j2", "#jinja2: trim_blocks: False\n{% if true %}\nx\n{% endif %}\n"),
        ("templates/managed.j2", "# {{ ansible_managed }}: {{ template_path }}\n"),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .collect();
    let files: Arc<dyn Files> = Arc::new(CachedFiles::new(map));
    let tags = Arc::new(TagFilter::default());
    let context = HostContext {
        magic: Arc::new([(Arc::from("inventory_hostname"), Value::str("n1"))].into_iter().collect()),
        ..HostContext::clone(&context(json!({})))
    };
    let mut cursor =
        Cursor::new(&program(&text), PlayIndex(0), Arc::new(context), HostVars::default(), mode, tags, files)
            .expect("a play");
    let mut actions = Vec::new();
    let story = run(&mut cursor, |action| {
        actions.push(action.clone());
        match &action.work {
            Work::Fetch(_) | Work::Pause(_) => Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Ok))),
            _ => OpOutcomeSketch::Ok.fed(action),
        }
    });
    (actions, story)
}

fn op(task: &str) -> NodeOp {
    let (actions, story) = story(&format!("    - {task}\n"), Mode::Apply);
    match actions.first().map(|action| action.work.clone()) {
        Some(Work::Node { op, .. }) => *op,
        _ => panic!("{}", story.lines()),
    }
}

/// The text of the file that a task puts.
fn text(task: &str) -> String {
    match op(task) {
        NodeOp::PutFile(put) => put.preview.expect("text"),
        other => panic!("{other:?}"),
    }
}

fn holds(tasks: &str) {
    let (_, story) = story(tasks, Mode::Apply);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
}

#[test]
fn a_directory_goes_as_a_tree() {
    let paths = |task: &str| {
        let NodeOp::PutTree(tree) = op(task) else { panic!("no tree") };
        let entries = tree.entries.iter().map(|entry| {
            let end = if entry.blob.is_some() { "" } else { "/" };
            format!("{}{end}", entry.path)
        });
        (tree.dest.clone(), entries.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(paths("copy: {src: tree, dest: /srv}"), ("/srv/tree".into(), "one sub/ sub/two".into()));
    assert_eq!(paths("copy: {src: tree/, dest: /srv/}"), ("/srv".into(), "one sub/ sub/two".into()));
}

#[test]
fn content_may_be_data() {
    assert_eq!(text("copy: {content: {a: 1, b: [x]}, dest: /f}"), r#"{"a": 1, "b": ["x"]}"#);
    assert_eq!(text("copy: {content: \"{{ {'a': [1, 2]} }}\", dest: /f}"), r#"{"a": [1, 2]}"#);
}

#[test]
fn templates_are_written_in_several_ways() {
    let marks = "template: {src: marks.j2, dest: /f, variable_start_string: '<<', variable_end_string: '>>', block_start_string: '[%', block_end_string: '%]'}";
    assert_eq!(text(marks), "n1 {{ kept }}\n");
    assert_eq!(text("template: {src: header.j2, dest: /f}"), "\nx\n");
    assert_eq!(text("template: {src: managed.j2, dest: /f}"), "# Ansible managed: templates/managed.j2\n");
    let own = "{template: {src: managed.j2, dest: /f}, vars: {ansible_managed: ours, template_path: mine}}";
    assert_eq!(text(own), "# ours: templates/managed.j2\n");
    let windows = "template: {src: managed.j2, dest: /f, newline_sequence: \"\\r\\n\"}";
    assert_eq!(text(windows), "# Ansible managed: templates/managed.j2\r\n");
}

#[test]
fn an_archive_of_the_controller_is_sent_and_one_of_the_node_is_not() {
    let (actions, _) = story("    - unarchive: {src: app.tar, dest: /opt}\n", Mode::Apply);
    assert!(matches!(&actions[0].work, Work::Node { blobs, .. } if blobs.len() == 1));
    let (actions, _) =
        story("    - unarchive: {src: /srv/app.tar, dest: /opt, remote_src: true}\n", Mode::Apply);
    assert!(matches!(&actions[0].work, Work::Node { blobs, .. } if blobs.is_empty()));
}

#[test]
fn fetched_files_have_ansibles_places() {
    let dest = |task: &str| {
        let (actions, story) = story(&format!("    - {task}\n"), Mode::Apply);
        match actions.first().map(|action| &action.work) {
            Some(Work::Fetch(fetch)) => fetch.dest.clone(),
            _ => panic!("{}", story.lines()),
        }
    };
    assert_eq!(dest("fetch: {src: /etc/x, dest: out}"), "out/n1/etc/x");
    assert_eq!(dest("fetch: {src: /etc/x, dest: /o/, flat: true}"), "/o/x");
    assert_eq!(dest("fetch: {src: /etc/x, dest: y, flat: true}"), "y");
    let (actions, story) = story("    - {name: f, fetch: {src: /etc/x, dest: out}}\n", Mode::Predict);
    assert!(actions.is_empty());
    assert_eq!(line(&story.reports[0]), "f: possible \"brings files only in a run\"");
}

#[test]
fn a_pause_is_one_for_all_hosts_and_nothing_in_a_prediction() {
    let text = "    - {name: p, pause: {seconds: 3}}\n    - {name: q, pause: {prompt: go?}}\n";
    let (actions, _) = story(text, Mode::Apply);
    assert_eq!(actions.len(), 2);
    assert!(
        program(&format!("- hosts: all\n  tasks:\n{text}")).plays[0].tasks().iter().all(|task| task.run_once)
    );
    let (actions, story) = story(text, Mode::Predict);
    assert!(actions.is_empty());
    let lines: Vec<String> = story.reports.iter().map(line).collect();
    assert_eq!(lines, ["p: possible \"waits only in a run\"", "q: possible \"asks only in a run\""]);
}

#[test]
fn what_waits_has_the_time_that_it_asks_for() {
    let (actions, _) = story("    - wait_for: {port: 80, timeout: 1000, delay: 5}\n", Mode::Apply);
    assert_eq!(actions[0].timeout_s, Some(1040));
}

#[test]
fn results_of_the_controllers_kinds_are_ansibles() {
    holds(
        "    - {debug: {msg: {a: 1}}, register: d}\n\
         \x20   - {set_fact: {x: 2, cacheable: true}, register: s}\n\
         \x20   - {assert: {that: x == 2}, register: a}\n\
         \x20   - {assert: {that: [x == 3], fail_msg: nope}, register: b, ignore_errors: true}\n\
         \x20   - {assert: {that: [true], success_msg: fine}, register: c}\n\
         \x20   - {debug: {var: x}, register: v}\n\
         \x20   - assert: {that: ['d.msg.a == 1', 's.ansible_facts == {\"x\": 2}', 'cacheable is not defined', \"a.msg == 'All assertions passed'\"]}\n\
         \x20   - assert: {that: ['b.msg == \"nope\"', 'b.assertion == \"x == 3\"', 'not b.evaluated_to', 'c.msg == \"fine\"', 'v.x == 2']}\n",
    );
}

#[test]
fn each_result_of_a_loop_names_its_item() {
    holds(
        "    - {ping: {data: '{{ item }}'}, loop: [a, b], loop_control: {index_var: i}, when: item == 'a', register: r}\n\
         \x20   - assert: {that: ['r.results | map(attribute=\"item\") | list == [\"a\", \"b\"]', 'r.results[0].ansible_loop_var == \"item\"', 'r.results[1].i == 1']}\n\
         \x20   - assert: {that: ['r.results[1] is skipped', 'r.results[1].skip_reason == \"Conditional result was False\"']}\n",
    );
}

#[test]
fn facts_may_be_asked_for_in_the_middle() {
    let NodeOp::Facts(request) = op("setup: {filter: 'kernel,ansible_dist*', gather_subset: '!all'}") else {
        panic!()
    };
    assert_eq!(request.filter, ["kernel", "ansible_dist*"]);
}
