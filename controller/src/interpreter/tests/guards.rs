//! What nodes said acts neither on the controller nor, through a delegated task, on another node.

use gpufleet_protocol::OpOutcome;
use gpufleet_protocol::OpStatus;

use super::*;
use crate::template::{Dict, Value};

/// What the tasks of a host with this fact come to, one line each.
fn told(play: &str, fact: &str) -> String {
    let vars = HostVars {
        facts: Arc::new([("said", Value::str(fact))].into_iter().collect::<Dict>()),
        ..HostVars::default()
    };
    let map: HashMap<String, String> = [
        ("files/keys/a".to_owned(), "key\n".to_owned()),
        ("vars/a.yml".to_owned(), "x: 1\n".to_owned()),
        ("secrets.yml".to_owned(), "password: hunter2\n".to_owned()),
        ("got/n1/site.yml".to_owned(), "a: \"{{ lookup('pipe', 'id') }}\"\n".to_owned()),
    ]
    .into();
    let files: Arc<dyn Files> = Arc::new(CachedFiles::new(map));
    let program = program(play);
    let reached = |index: usize| {
        let context = context(
            json!({"ansible_connection": program.plays[index].connection.as_ref().map(Value::to_text)}),
        );
        let tags = Arc::new(TagFilter::default());
        let index = PlayIndex(u32::try_from(index).expect("few plays"));
        let mut cursor =
            Cursor::new(&program, index, context, vars.clone(), Mode::Apply, tags, Arc::clone(&files))
                .expect("a play");
        let other = Value::map([("said", Value::str(fact))]);
        let peers: Dict = [("hostvars", Value::map([("n2", other)]))].into_iter().collect();
        cursor.set_peers(Arc::new(peers), None);
        cursor
    };
    let lines = (0..program.plays.len()).map(|index| {
        run(&mut reached(index), |action| match action.work {
            Work::Node { .. } | Work::Fetch(_) => Fed::Outcome(Box::new(OpOutcome::new(OpStatus::Ok))),
            _ => Fed::Done,
        })
        .lines()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn tasks(tasks: &[&str]) -> String {
    let lines: String =
        tasks.iter().map(|task| format!("    - {{name: t, {task}, ignore_errors: true}}\n")).collect();
    format!("- hosts: all\n  gather_facts: false\n  tasks:\n{lines}")
}

#[test]
fn a_shell_elsewhere_interprets_nothing_of_it() {
    for task in [
        "shell: 'echo {{ said }}', delegate_to: localhost",
        "shell: 'echo \"{{ said }}\"', delegate_to: n2",
        "raw: 'echo {{ said }}', delegate_to: localhost",
        "command: 'echo {{ said }}', delegate_to: localhost",
        "local_action: {module: shell, cmd: 'echo {{ said }}'}",
    ] {
        let lines = told(&tasks(&[task]), "x; id");
        assert!(lines.contains("t: failed") && lines.contains("put `| quote` behind it"), "{task}: {lines}");
        assert!(told(&tasks(&[task]), "gpu001.example.com").contains("t: ok"), "{task}");
    }
    for task in [
        "shell: 'echo {{ said | quote }}', delegate_to: localhost",
        "shell: 'cat', args: {stdin: '{{ said }}'}, delegate_to: localhost",
        "command: {argv: [echo, '{{ said }}']}, delegate_to: localhost",
        "shell: 'echo {{ said }}'",
        "shell: 'echo {{ said }}', delegate_to: n1",
    ] {
        let lines = told(&tasks(&[task]), "x; id");
        assert!(lines.contains("t: ok"), "{task}: {lines}");
    }
}

/// On the controller, whatever its connection is called; on a node, a play may hand on what another one printed.
#[test]
fn a_shell_of_the_controller_interprets_nothing_of_other_nodes() {
    let join = tasks(&["shell: 'echo {{ hostvars.n2.said }}'"]);
    for (connection, refused) in [("local", true), ("ansible.builtin.local", true), ("ssh", false)] {
        let play = join.replacen("gather_facts", &format!("connection: {connection}\n  gather_facts"), 1);
        let lines = told(&play, "x; id");
        assert_eq!(lines.contains("put `| quote` behind it"), refused, "{connection}: {lines}");
        assert_eq!(lines.contains("t: ok"), !refused, "{connection}: {lines}");
    }
}

#[test]
fn it_chooses_no_file_outside_of_a_folder() {
    for task in [
        "copy: {src: 'keys/{{ said }}', dest: /k}",
        "copy: {src: 'keys/{{ said }}', dest: /k, remote_src: 'no'}",
        "copy: {src: 'keys/{{ said }}', dest: /k, remote_src: '{{ nowhere | default(false) }}'}",
        "template: {src: 'keys/{{ said }}', dest: /k}",
        "script: 'keys/{{ said }}'",
        "include_vars: 'vars/{{ said }}.yml'",
        "include_vars: {dir: '{{ said }}'}",
        "unarchive: {src: '{{ said }}', dest: /k}",
        "fetch: {src: /etc/motd, dest: 'got/{{ said }}'}",
    ] {
        let lines = told(&tasks(&[task]), "../../secrets");
        assert!(lines.contains("t: failed") && lines.contains("leads to another folder"), "{task}: {lines}");
    }
    for (task, fact) in [
        ("copy: {src: 'keys/{{ said }}', dest: /k}", "a"),
        ("copy: {src: 'keys/{{ said | basename }}', dest: /k}", "../../x/a"),
        ("copy: {src: '/{{ said }}', dest: /k, remote_src: true}", "../etc/motd"),
        ("copy: {src: '/{{ said }}', dest: /k, remote_src: '{{ nowhere | default(true) }}'}", "../etc/motd"),
        ("include_vars: '{{ said }}.yml'", "a"),
    ] {
        let lines = told(&tasks(&[task]), fact);
        assert!(lines.contains("t: ok"), "{task}: {lines}");
    }
}

#[test]
fn it_does_not_send_a_task_to_the_controller() {
    let asks = "shell: 'hostname', delegate_to: '{{ said }}'";
    let lines = told(&tasks(&[asks]), "localhost");
    assert!(lines.contains("`delegate_to`: a node chose the controller"), "{lines}");
    assert!(told(&tasks(&[asks]), "n2").contains("t: ok"));
    let chosen = "shell: 'hostname', delegate_to: \"{{ 'localhost' if said else 'n2' }}\"";
    assert!(told(&tasks(&[chosen]), "x").contains("t: ok"));
}

/// Templates in what a node sent would run with the rights of whoever uses the controller.
#[test]
fn a_fetched_file_is_text_and_no_template() {
    let fetch = "fetch: {src: /site.yml, dest: got/}";
    for (task, why) in [
        ("include_vars: got/n1/site.yml", "a node sent it"),
        ("template: {src: got/n1/site.yml, dest: /k}", "a node sent it"),
        ("debug: {msg: \"{{ lookup('template', 'got/n1/site.yml') }}\"}", "a node sent it"),
        (
            "debug: {msg: \"{{ lookup('pipe', lookup('file', 'got/n1/site.yml')) }}\"}",
            "put `| quote` behind it",
        ),
    ] {
        let lines = told(&tasks(&[fetch, task]), "x");
        assert!(lines.contains("t: failed") && lines.contains(why), "{task}: {lines}");
    }
    let again = format!(
        "{}- hosts: all\n  vars_files: [\"{{{{ nowhere | default('got') }}}}/n1/site.yml\"]\n  tasks: [{{debug: {{msg: '{{{{ a }}}}'}}}}]\n",
        tasks(&[fetch])
    );
    let lines = told(&again, "x");
    assert!(lines.contains("a node sent it"), "{lines}");
    let lines = told(&tasks(&[fetch, "copy: {src: got/n1/site.yml, dest: /k}"]), "x");
    assert_eq!(lines.matches("t: ok").count(), 2, "{lines}");
}
