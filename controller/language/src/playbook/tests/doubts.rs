//! Mistakes that matter only if a condition holds, and values that a host's variables decide late.

use super::*;
use crate::diagnostic::Severity;

/// Counts errors and doubts about these tasks, variables included.
fn counted(tasks: &str) -> (usize, usize) {
    let program = load(&format!("- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}"));
    let program = program.unwrap_or_else(|errors| panic!("{errors}"));
    let of = |found: &crate::diagnostic::Diagnostics, severity: Severity| {
        found.iter().filter(|found| found.severity == severity).count()
    };
    let found = program.check_variables(&Known::default());
    let doubts = of(&found, Severity::Warning) + of(&program.warnings, Severity::Warning);
    (of(&found, Severity::Error), doubts)
}

#[test]
fn what_a_condition_may_keep_from_being_asked_for_is_a_doubt() {
    let both = [
        ("    - {debug: {msg: '{{ nope }}'}, when: false}\n", (0, 1)),
        ("    - {debug: {msg: '{{ nope }}'}, when: inventory_hostname == 'a'}\n", (0, 1)),
        ("    - {debug: {msg: '{{ nope }}'}}\n", (1, 0)),
        ("    - {debug: {msg: a}, when: nope}\n", (1, 0)),
        ("    - {debug: {msg: a}, when: nope == 1}\n", (1, 0)),
        ("    - {debug: {msg: a}, when: inventory_hostname == 'a' and nope}\n", (0, 1)),
        ("    - {debug: {msg: a}, when: [inventory_hostname == 'a', nope]}\n", (0, 1)),
        ("    - {debug: {msg: '{{ item }}'}, loop: '{{ nope }}', when: false}\n", (0, 1)),
        ("    - {debug: {msg: '{{ nope }}'}, when: nope is defined}\n", (0, 0)),
        ("    - {debug: {msg: '{{ a }}'}, vars: {a: '{{ nope }}'}, when: false}\n", (0, 1)),
        ("    - {debug: {msg: a}, when: \"inventory_hostname in ['y'] and(nope)\"}\n", (0, 1)),
        (
            "    - debug: {msg: a}\n      when: |\n        inventory_hostname == 'y'\n        and nope\n",
            (0, 1),
        ),
        ("    - block: [{debug: {msg: '{{ nope }}'}}]\n      when: false\n", (0, 1)),
        ("    - block: [{debug: {msg: a}, when: nope}]\n      when: false\n", (0, 1)),
    ];
    for (tasks, wanted) in both {
        assert_eq!(counted(tasks), wanted, "{tasks}");
    }
    insta::assert_snapshot!(errors_of("- hosts: all\n  tasks:\n    - {debug: {msg: '{{ nope }}'}, when: false}\n"), @r"
    warning: the variable `nope` is not defined
      --> play.yml:3:25
       |
     3 |     - {debug: {msg: '{{ nope }}'}, when: false}
       |                         ^^^^ no inventory, play or earlier task sets it
    note: a condition may keep this from being done; where it holds, the task fails
    help: set it in the inventory or the play, give it with `-e nope=…`, or use `nope | default(…)`
    ");
}

#[test]
fn what_is_missing_under_a_condition_is_a_doubt() {
    let both = [
        ("    - {include_role: {name: gone}, when: inventory_hostname == 'a'}\n", (0, 1)),
        ("    - {include_tasks: gone.yml, when: inventory_hostname == 'a'}\n", (0, 1)),
        ("    - {include_tasks: '{{ inventory_hostname }}.yml'}\n", (0, 1)),
        ("    - {include_tasks: gone.yml, ignore_errors: true}\n", (0, 0)),
    ];
    for (tasks, wanted) in both {
        assert_eq!(counted(tasks), wanted, "{tasks}");
    }
}

#[test]
fn names_beside_the_code_of_a_template_are_text() {
    for tasks in [
        "    - {debug: {msg: 'inventory_hostname ({{ inventory_hostname }})'}}\n",
        "    - {debug: {msg: 'x_min ({{ x_min }})'}, vars: {x_min: 1}}\n",
        "    - {debug: {msg: '{% if true %}{% set x = 1 %}{% endif %}{{ x }}'}}\n",
        "    - {debug: {msg: '{% if false %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}'}}\n",
        "    - {debug: {msg: '{{ inventory_hostname | default(undefined, true) | mandatory }}'}}\n",
    ] {
        assert_eq!(counted(tasks), (0, 0), "{tasks}");
    }
    for (text, wanted) in [
        ("{% for i in [1] %}{% set q = i %}{% endfor %}{{ q }}", (1, 0)),
        ("{% for i in [1] %}{% set kept = i %}{% endfor %}{{ kept }}", (1, 0)),
        ("{% macro m(a) %}{% set kept = a %}{{ kept }}{% endmacro %}{{ m(1) }}{{ kept }}", (1, 0)),
        ("{% for i in [1] %}{% if i %}{% set kept = i %}{% endif %}{{ kept }}{% endfor %}", (0, 0)),
        ("{% if true %}{% set kept = 1 %}{% endif %}{% for i in [1] %}{{ kept }}{% endfor %}", (0, 0)),
        (
            "{% for i in [1] if i %}{{ i }}{% endfor %}{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}",
            (0, 0),
        ),
        ("{% for kept in [1] %}{{ kept }}{% endfor %}{{ q('items', [1]) }}", (0, 0)),
    ] {
        assert_eq!(counted(&format!("    - {{debug: {{msg: \"{text}\"}}}}\n")), wanted, "{text}");
    }
    assert!(
        errors_of("- hosts: all\n  tasks:\n    - {debug: {msg: 'f {{ f (1) }}'}}\n")
            .contains("unknown function `f`")
    );
}

#[test]
fn a_host_may_decide_whether_a_task_is_done_once_and_how_long_it_may_take() {
    let of = |tasks: &str| {
        let play = play(&format!("- hosts: all\n  vars: {{here: true, t: 90}}\n  tasks:\n{tasks}"));
        let task = std::sync::Arc::clone(play.tasks()[0]);
        (task.run_once, task.once_when.is_some(), task.timeout_s, task.late_timeout.is_some())
    };
    assert_eq!(
        of("    - {command: a, run_once: '{{ here }}', timeout: '{{ t }}'}\n"),
        (true, false, Some(90), false)
    );
    assert_eq!(
        of("    - {command: a, run_once: '{{ away }}', timeout: '{{ away }}'}\n"),
        (false, true, None, true)
    );
    let disturbing = "- hosts: all\n  tasks:\n    - {reboot: {}, run_once: '{{ away }}'}\n";
    assert!(errors_of(disturbing).contains("`run_once` cannot be used with `reboot`"));
}

#[test]
fn what_playbooks_of_others_say_is_understood() {
    for tasks in [
        "    - {file: {path: ~/.kube, state: directory, mode: '0o755'}}\n",
        "    - {copy: {src: /etc/a, dest: $HOME/.kube/config, remote_src: true}}\n",
        "    - {get_url: {url: 'https://a.example/b', dest: b.yaml}}\n",
        "    - {stat: {path: '~{{ inventory_hostname }}/x'}}\n",
        "    - lineinfile:\n        path: /etc/a\n        line: |\n          one\n",
        "    - {package: {name: a, cache_valid_time: 60, allow_downgrade: true, enablerepo: [x]}}\n",
        "    - {unarchive: {src: /tmp/a.tgz, dest: /opt, copy: false}}\n",
        "    - {find: {paths: /etc, contains: a, read_whole_file: true}}\n",
        "    - {dnf: {name: ['@nodejs:18', '@ruby:3.3/common']}}\n",
        "    - {command: {cmd: a, executable: /bin/bash}}\n",
        "    - {reboot: {msg: going down}}\n",
        "    - shell: \"a\n  | sed 's/b\n/c/'\"\n",
    ] {
        assert_eq!(counted(tasks), (0, 0), "{tasks}");
    }
    assert_eq!(counted("    - {command: a, become: true, become_flags: -i}\n"), (0, 1));
    let wrong = |tasks: &str| errors_of(&format!("- hosts: all\n  tasks:\n{tasks}"));
    assert!(wrong("    - lineinfile: {path: /a, line: \"a\\nb\"}\n").contains("no line break within it"));
    assert!(wrong("    - {fetch: {src: a, dest: b}}\n").contains("is not an absolute path"));
}

#[test]
fn modules_that_ansible_would_load_are_named_as_what_they_are() {
    insta::assert_snapshot!(errors_of("- hosts: all\n  tasks:\n    - community.mysql.mysql_query: {query: a}\n    - seport: {ports: 80, state: present}\n    - {debug: {msg: '{{ [1] | community.general.json_query(1) }}'}}\n"), @r"
    error: unknown task `community.mysql.mysql_query`
      --> play.yml:3:7
       |
     3 |     - community.mysql.mysql_query: {query: a}
       |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^ no task kind of this name
    note: a module of the collection community.mysql, in Python, which gpufleet does not load
    help: `command` and `script` run a program of the node; `gpufleet doc` lists all kinds
    error: unknown task `seport`
      --> play.yml:4:7
       |
     4 |     - seport: {ports: 80, state: present}
       |       ^^^^^^ no task kind of this name
    help: use `command: semanage port …` with `changed_when`
    error: unknown filter `community.general.json_query`: those of collections are plug-ins in Python, which gpufleet does not load
      --> play.yml:5:31
       |
     5 |     - {debug: {msg: '{{ [1] | community.general.json_query(1) }}'}}
       |                               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    ");
    let files: HashMap<String, String> = [
        (
            "play.yml".to_owned(),
            "- hosts: all\n  tasks:\n    - own_module: {a: 1}\n    - own_module: {a: 1}\n".to_owned(),
        ),
        ("library/own_module.py".to_owned(), String::new()),
    ]
    .into();
    let errors = Program::load(&["play.yml"], &files).unwrap_err().to_string();
    assert!(
        errors.contains("note: library/own_module.py is a module in Python, which gpufleet does not load"),
        "{errors}"
    );
}

#[test]
fn plays_and_tasks_are_called_as_ansible_calls_them() {
    let text = "- name: 'Play {{ x }}'\n  hosts: '{{ h }}'\n  vars: {x: one, h: web}\n  tasks:\n    - ansible.builtin.command: a\n    - yum: {name: a}\n    - action: ansible.legacy.command a\n";
    let named = play(text);
    assert_eq!(named.name, "Play one");
    let titles: Vec<&str> = named.tasks().iter().map(|task| task.title()).collect();
    assert_eq!(titles, ["ansible.builtin.command", "yum", "ansible.legacy.command"]);
    assert_eq!(play(&text.replacen("name: 'Play {{ x }}'\n  hosts", "hosts", 1)).name, "web");
    assert_eq!(
        play(&text.replace("{{ x }}", "{{ inventory_hostname }}")).name,
        "Play {{ inventory_hostname }}"
    );
}

/// Parses `play.yml` among these files.
fn load_of(files: &[(&str, &str)], extra: serde_json::Value) -> Result<Program, String> {
    let files: HashMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let extra = std::sync::Arc::new(crate::template::Dict::trusted(extra.as_object().expect("a mapping")));
    Program::load_knowing(&["play.yml"], &files, &std::sync::Arc::default(), &[], &extra, false)
        .map_err(|errors| errors.to_string())
}

#[test]
fn variables_of_files_may_have_any_name() {
    let play = "- hosts: all\n  gather_facts: false\n  vars_files: [v.yml]\n  roles: [r]\n";
    let files = [
        ("play.yml", play),
        ("v.yml", "v-w: 2\n"),
        ("roles/r/defaults/main.yml", "c-d: 1\n"),
        ("roles/r/vars/main.yml", "e-f: 1\n"),
        ("roles/r/tasks/main.yml", "- debug: {msg: \"{{ vars['c-d'] }} {{ vars['v-w'] }}\"}\n"),
    ];
    let program = load_of(&files, serde_json::json!({})).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(program.check_variables(&Known::default()).to_string(), "");
    for own in [
        "- hosts: all\n  vars: {p-q: 1}\n  tasks: []\n",
        "- hosts: all\n  tasks: [{debug: {msg: a}, vars: {p-q: 1}}]\n",
    ] {
        let errors = load_of(&[("play.yml", own)], serde_json::json!({})).unwrap_err();
        assert!(errors.contains("`p-q` is not the name of a variable"), "{errors}");
    }
}

#[test]
fn a_playbook_is_imported_by_a_name_that_is_known_before_any_host() {
    let other = ("other.yml", "- hosts: all\n  tasks: [{debug: {msg: '{{ pb }}'}}]\n");
    let plays = |import: &str, extra: serde_json::Value| {
        load_of(&[("play.yml", import), other], extra).map(|program| program.plays.len())
    };
    let beside = "- import_playbook: '{{ pb }}'\n  vars: {pb: '{{ a }}.yml', a: other}\n";
    assert_eq!(plays(beside, serde_json::json!({})), Ok(1));
    let open = "- import_playbook: '{{ pb }}'\n";
    assert_eq!(plays(open, serde_json::json!({"pb": "other.yml"})), Ok(1));
    assert_eq!(plays(&beside.replace("other}", "nope}"), serde_json::json!({"pb": "other.yml"})), Ok(1));
    assert!(plays(open, serde_json::json!({})).unwrap_err().contains("is read before any host is known"));
}

#[test]
fn one_mistake_in_the_name_of_an_imported_role_is_told_once() {
    let errors = errors_of("- hosts: all\n  tasks:\n    - import_role: {name: '{{ r }}'}\n");
    assert_eq!(errors.matches("error:").count(), 1, "{errors}");
}
