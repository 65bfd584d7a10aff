//! From a task as written to what the node is asked for.

use std::sync::Mutex;

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::op::{Exec, Program as Run, PutFile};

use super::*;
use crate::template::Value;

fn play(tasks: &str) -> String {
    format!("- hosts: all\n  tasks:\n{tasks}")
}

/// What a node is asked for by these tasks.
fn asked(text: &str, context: Arc<HostContext>, mode: Mode) -> (Vec<Action>, Story) {
    let mut actions = Vec::new();
    let tags = Arc::new(TagFilter::default());
    let mut cursor =
        Cursor::new(&program(text), PlayIndex(0), context, HostVars::default(), mode, tags, files())
            .expect("a play");
    let story = run(&mut cursor, |action| {
        actions.push(action.clone());
        OpOutcomeSketch::Ok.fed(action)
    });
    (actions, story)
}

fn op(action: &Action) -> &NodeOp {
    let Work::Node { op, .. } = &action.work else { panic!("{action:?}") };
    op
}

fn exec(task: &str) -> Exec {
    let (actions, story) = asked(&play(&format!("    - {task}\n")), context(json!({})), Mode::Apply);
    let Some(NodeOp::Exec(exec)) = actions.first().map(op) else { panic!("{}", story.lines()) };
    exec.clone()
}

fn said(tasks: &str, vars: serde_json::Value) -> Vec<String> {
    let (_, story) = asked(&play(tasks), context(vars), Mode::Apply);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    story.reports.into_iter().filter_map(|report| report.message).collect()
}

#[test]
fn commands_take_their_parameters_along() {
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let common = Exec {
        chdir: Some("/d".to_owned()),
        creates: Some("/c".to_owned()),
        removes: Some("/r".to_owned()),
        ..Exec::default()
    };
    let stdin = Some("in\n".to_owned());
    assert_eq!(
        exec("command: {cmd: \"echo 'a b'\", chdir: /d, creates: /c, removes: /r, stdin: in}"),
        Exec {
            run: Run::Argv(words(&["echo", "a b"])),
            stdin: stdin.clone(),
            expand: true,
            ..common.clone()
        }
    );
    assert_eq!(exec("command: {argv: [ls, 'a b']}").run, Run::Argv(words(&["ls", "a b"])));
    let shell = |executable: &str| Run::Shell { line: "a | b".to_owned(), executable: executable.to_owned() };
    assert_eq!(
        exec("shell: {cmd: a | b, chdir: /d, creates: /c, removes: /r, stdin: in}"),
        Exec { run: shell("/bin/sh"), stdin, ..common.clone() }
    );
    assert_eq!(exec("shell: {cmd: a | b, executable: /bin/bash}").run, shell("/bin/bash"));
    let script =
        exec("script: {cmd: check.sh --fast, executable: python3, chdir: /d, creates: /c, removes: /r}");
    let blob = script.script.clone().expect("the script itself");
    assert_eq!(blob.size, 10);
    let run = Run::Script { arguments: words(&["--fast"]), executable: Some("python3".to_owned()) };
    assert_eq!(script, Exec { run, script: Some(blob), verbatim: true, ..common });
    let ends = |task: &str| {
        let exec = exec(task);
        (exec.keep_ends, exec.expand, exec.stdin)
    };
    assert_eq!(ends("command: {cmd: a, strip_empty_ends: false}"), (true, true, None));
    assert_eq!(ends("command: {cmd: a, expand_argument_vars: false}"), (false, false, None));
    assert_eq!(
        ends("command: {cmd: a, stdin: b, stdin_add_newline: false}"),
        (false, true, Some("b".to_owned()))
    );
    let raw = exec("raw: {cmd: a | b}");
    assert_eq!((raw.run, raw.verbatim), (shell("/bin/sh"), true));
}

#[test]
fn whose_rights_a_task_has() {
    let run_as = |head: &str, task: &str, vars: serde_json::Value, context_of: fn(&mut HostContext)| {
        let text = format!("- hosts: all\n{head}  tasks:\n    - {{command: a{task}}}\n");
        let mut context = HostContext::clone(&context(vars));
        context_of(&mut context);
        let (actions, story) = asked(&text, Arc::new(context), Mode::Apply);
        assert_eq!(actions.len(), 1, "{}", story.lines());
        actions[0].run_as.clone()
    };
    let nothing: fn(&mut HostContext) = |_| {};
    let minus_b: fn(&mut HostContext) = |context| context.become_default = true;
    let other: fn(&mut HostContext) = |context| {
        context.become_default = true;
        context.become_user = Some("ops".to_owned());
    };
    let user = |name: &str| RunAs::User(name.to_owned());
    assert_eq!(run_as("", "", json!({}), nothing), RunAs::Login);
    assert_eq!(run_as("", "", json!({}), minus_b), RunAs::Root);
    assert_eq!(run_as("", "", json!({}), other), user("ops"));
    assert_eq!(run_as("", ", become: false", json!({}), minus_b), RunAs::Login);
    assert_eq!(run_as("", ", become: '{{ b }}'", json!({"b": true}), nothing), RunAs::Root);
    assert_eq!(run_as("", "", json!({"ansible_become": "yes"}), nothing), RunAs::Root);
    assert_eq!(run_as("", "", json!({"ansible_become": false}), minus_b), RunAs::Login);
    assert_eq!(run_as("  become: true\n", "", json!({"ansible_become": false}), nothing), RunAs::Root);
    let vars = json!({"ansible_become_user": "{{ 'gpu' }}"});
    assert_eq!(run_as("  become: true\n", "", vars.clone(), other), user("gpu"));
    assert_eq!(run_as("  become: true\n", ", become_user: nobody", vars, other), user("nobody"));
    for root in ["root", "''"] {
        assert_eq!(
            run_as("  become: true\n", &format!(", become_user: {root}"), json!({}), other),
            RunAs::Root
        );
    }
}

#[test]
fn facts_are_gathered_with_the_rights_of_the_play() {
    let run_as = |head: &str, become_default: bool| {
        let text = format!("- hosts: all\n  gather_facts: true\n{head}  tasks: []\n");
        let context = HostContext { become_default, ..HostContext::clone(&context(json!({}))) };
        asked(&text, Arc::new(context), Mode::Apply).0[0].run_as.clone()
    };
    assert_eq!(run_as("", false), RunAs::Login);
    assert_eq!(run_as("", true), RunAs::Root);
    assert_eq!(run_as("  become: true\n", false), RunAs::Root);
    assert_eq!(run_as("  become: false\n", true), RunAs::Login);
}

fn put(task: &str, vars: serde_json::Value) -> (PutFile, usize) {
    let (actions, story) = asked(&play(&format!("    - {task}\n")), context(vars), Mode::Apply);
    let Some(Work::Node { op, blobs }) = actions.first().map(|action| action.work.clone()) else {
        panic!("{}", story.lines())
    };
    let NodeOp::PutFile(put) = *op else { panic!("{op:?}") };
    (put, blobs.len())
}

#[test]
fn content_of_the_node_itself_is_not_sent() {
    let (copied, blobs) = put("copy: {src: /opt/a/motd, dest: /etc/, remote_src: true}", json!({}));
    assert_eq!((copied.remote_src.as_deref(), copied.name.as_str()), (Some("/opt/a/motd"), "motd"));
    assert_eq!((copied.blob, copied.preview, blobs), (None, None, 0));
    let (sent, blobs) = put("copy: {src: motd, dest: /etc/, remote_src: false}", json!({}));
    assert_eq!((sent.remote_src, sent.preview.as_deref(), blobs), (None, Some("hello\n"), 1));
}

#[test]
fn text_goes_along_for_diffs_up_to_a_size_and_never_a_secret() {
    let task = "copy: {content: '{{ text }}', dest: /f}";
    let preview = |task: &str, bytes: usize| put(task, json!({"text": "x".repeat(bytes)})).0.preview;
    assert_eq!(preview(task, 64 * 1024).map(|text| text.len()), Some(64 * 1024));
    assert_eq!(preview(task, 64 * 1024 + 1), None);
    assert_eq!(preview(&format!("{{{task}, no_log: true}}"), 5), None);
}

#[test]
fn debug_speaks_as_loud_as_asked() {
    let spoken = |verbosity: u32| {
        let text = play("    - {name: d, debug: {msg: hi, verbosity: 1}}\n");
        let context = HostContext { verbosity, ..HostContext::clone(&context(json!({}))) };
        super::line(&asked(&text, Arc::new(context), Mode::Apply).1.reports[0])
    };
    assert_eq!(spoken(0), "d: skipped \"shown from 1 times -v on\"");
    assert_eq!((spoken(1), spoken(2)), ("d: ok \"hi\"".to_owned(), "d: ok \"hi\"".to_owned()));
}

#[test]
fn expressions_are_shown_as_written() {
    let vars = json!({"x": 5, "list": ["a"]});
    let tasks =
        "    - debug: {var: x}\n    - debug: {var: '{{ x }}'}\n    - debug: {var: list}\n    - debug: {}\n";
    assert_eq!(said(tasks, vars.clone()), ["x = 5", "{{ x }} = 5", "list = [\"a\"]", "Hello world!"]);
    let silent =
        "    - debug: {msg: '{{ omit }}'}\n    - debug: {msg: '{{ nothing }}'}\n    - debug: {msg: ''}\n";
    assert_eq!(said(silent, json!({"nothing": null})), ["Hello world!", "null", ""]);
    let (_, story) =
        asked(&play("    - {name: t, assert: {that: ['{{ x == 6 }}']}}\n"), context(vars), Mode::Apply);
    assert_eq!(super::line(&story.reports[0]), "t: failed \"`{{ x == 6 }}` does not hold\"");
    let unknown = "    - {command: a, register: r}\n    - {name: t, debug: {var: r.stdout}}\n    - {name: u, assert: {that: [r.rc == 0]}}\n    - {name: e, command: b, environment: {A: '{{ r.stdout }}'}}\n    - {name: b, sysctl: {name: a, value: 1}, become: '{{ r.changed }}'}\n";
    let (actions, story) = asked(&play(unknown), context(json!({})), Mode::Predict);
    let possible = story.reports.iter().all(|report| report.status == Status::Possible);
    assert!(possible && actions.is_empty(), "{}", story.lines());
}

#[test]
fn omitted_things_are_not_set() {
    let tasks = "    - set_fact: {a: 1, b: '{{ omit }}', '{{ name }}': 2}\n    - debug: {msg: '{{ a }} {{ b is defined }} {{ n }}'}\n";
    assert_eq!(said(tasks, json!({"name": "n"})), ["1 False 2"]);
    let text = "- hosts: all\n  environment: {A: '1', B: '2'}\n  tasks:\n    - {command: a, environment: {A: '{{ omit }}', C: '3'}}\n    - {command: b, environment: '{{ none }}'}\n    - {name: t, command: c, environment: '{{ x }}', ignore_errors: true}\n";
    let (actions, story) = asked(text, context(json!({"x": "words", "none": null})), Mode::Apply);
    let pairs = |index: usize| {
        let environment: &[(String, String)] = &actions[index].environment;
        environment.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((actions.len(), pairs(0), pairs(1)), (2, "B=2 C=3".to_owned(), "A=1 B=2".to_owned()));
    assert_eq!(
        story.reports.last().and_then(|report| report.message.as_deref()),
        Some("`environment` wants a mapping, got text")
    );
}

#[test]
fn a_file_that_cannot_be_read_is_not_one_that_is_missing() {
    let reads = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reads);
    let files = CachedFiles::new(move |path: &str| {
        log.lock().expect("no panic").push(path.to_owned());
        Err::<Vec<u8>, _>(std::io::Error::from(match path {
            "p/files/secret" => std::io::ErrorKind::PermissionDenied,
            _ => std::io::ErrorKind::NotFound,
        }))
    });
    let refusal = |name: &str| files.read(FileKind::File, &["p".to_owned()], name).err().unwrap_or_default();
    assert_eq!(refusal("secret"), "cannot read p/files/secret: permission denied");
    assert_eq!(refusal("x"), "there is no file `x`; looked for p/files/x and p/x");
    assert_eq!(refusal("/x"), "there is no file `/x`; looked for /x");
    let reads_so_far = reads.lock().expect("no panic").len();
    assert_eq!(refusal("secret"), "cannot read p/files/secret: permission denied");
    assert_eq!((reads_so_far, reads.lock().expect("no panic").len()), (4, 4), "read once a run");
    let content = FileContent::new("f", b"hello\n".to_vec());
    let blob = gpufleet_protocol::op::Blob { sha256: content.sha256.to_string(), size: 6 };
    let need = BlobNeed { blob, bytes: content.bytes };
    assert_eq!(
        format!("{need:?}"),
        "BlobNeed(5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03, 6 bytes)"
    );
}

#[test]
fn a_value_that_only_the_run_tells_is_copied_as_such() {
    let text = "- hosts: all\n  tasks:\n    - {set_fact: {a: 1, b: '{{ r }}'}, run_once: true, vars: {r: '{{ q.stdout }}'}}\n";
    let mut context = HostContext::clone(&context(json!({})));
    context.vars = Arc::new([("q", Value::Unknown)].into_iter().collect());
    let mut cursor = Cursor::new(
        &program(text),
        PlayIndex(0),
        Arc::new(context),
        HostVars::default(),
        Mode::Predict,
        Arc::default(),
        files(),
    )
    .expect("a play");
    while !matches!(cursor.next(), Step::Latch { .. }) {}
    cursor.feed(Fed::Latch(None));
    while !matches!(cursor.next(), Step::End(_)) {}
    let copied = cursor.latch_result().expect("a result");
    assert_eq!(copied.variables.get("a"), Some(&json!(1)));
    assert_eq!((copied.unknown, copied.failed), (vec!["b".to_owned()], false));
}

#[test]
fn what_an_assertion_says_is_text() {
    let told = |params: &str| {
        let vars = json!({"x": 5, "yes": true, "half": 0.5, "map": {"a": 1}});
        let (_, story) =
            asked(&play(&format!("    - {{name: t, assert: {{{params}}}}}\n")), context(vars), Mode::Apply);
        super::line(&story.reports[0])
    };
    let refusal = |name: &str, kind: &str| {
        format!(
            "t: failed \"argument '{name}' is of type {kind} and we were unable to convert to str_or_list_of_str: a string or list of strings is required\""
        )
    };
    for (value, kind) in [("true", "bool"), ("5", "int"), ("0.5", "float")] {
        assert_eq!(told(&format!("that: x == 5, fail_msg: {value}")), refusal("fail_msg", kind));
        assert_eq!(told(&format!("that: x == 5, success_msg: {value}")), refusal("success_msg", kind));
    }
    for (value, kind) in
        [("'{{ yes }}'", "bool"), ("'{{ x }}'", "int"), ("'{{ half }}'", "float"), ("'{{ map }}'", "dict")]
    {
        assert_eq!(told(&format!("that: x == 5, msg: {value}")), refusal("msg", kind));
    }
    assert_eq!(told("that: x == 5, success_msg: 'all {{ x }}'"), "t: ok \"all 5\"");
    assert_eq!(
        told("that: ['{{ x == 6 }}'], fail_msg: 'not {{ x }}'"),
        "t: failed \"not 5 (`{{ x == 6 }}` does not hold)\""
    );
    assert_eq!(told("that: x == 5, quiet: true"), "t: ok");
    assert_eq!(told("that: [x == 5, true], quiet: false"), "t: ok \"All assertions passed\"");
    let (_, fail) = asked(&play("    - {name: t, fail: {msg: 5}}\n"), context(json!({})), Mode::Apply);
    assert_eq!(super::line(&fail.reports[0]), "t: failed \"5\"");
}
