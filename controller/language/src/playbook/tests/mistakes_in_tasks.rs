//! Messages for mistakes in tasks that are common in playbooks written for Ansible.

use super::errors_of;

#[test]
fn a_loop_over_text_again() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      loop: a,b
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `loop` wants a list or a template that gives one, got a string
      --> play.yml:4:13
       |
     4 |       loop: a,b
       |             ^^^
    help: write a list, or `loop: "{{ name }}"`
    "#);
}

#[test]
fn a_loop_over_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      loop: {a: 1}
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `loop` wants a list or a template that gives one, got a mapping
      --> play.yml:4:13
       |
     4 |       loop: {a: 1}
       |             ^
    help: write a list, or `loop: "{{ name }}"`
    "#);
}

#[test]
fn a_loop_of_no_known_form() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      with_foo: [a]
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown lookup `foo`
      --> play.yml:4:7
       |
     4 |       with_foo: [a]
       |       ^^^^^^^^
    help: use `loop` with a list
    ");
}

#[test]
fn a_module_that_ansible_does_not_have() {
    let text = r"- hosts: all
  tasks:
    - ansible.builtin.foo: {a: 1}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown task `ansible.builtin.foo`
      --> play.yml:3:7
       |
     3 |     - ansible.builtin.foo: {a: 1}
       |       ^^^^^^^^^^^^^^^^^^^ no task kind of this name
    help: `gpufleet doc` lists all kinds
    ");
}

#[test]
fn a_misspelt_module_with_its_namespace() {
    let text = r"- hosts: all
  tasks:
    - ansible.builtin.comand: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown task `ansible.builtin.comand`
      --> play.yml:3:7
       |
     3 |     - ansible.builtin.comand: uptime
       |       ^^^^^^^^^^^^^^^^^^^^^^ no task kind of this name
    help: did you mean `command`? `gpufleet doc` lists all kinds
    ");
}

#[test]
fn a_module_of_a_collection() {
    let text = r"- hosts: all
  tasks:
    - community.general.ufw: {state: enabled}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown task `community.general.ufw`
      --> play.yml:3:7
       |
     3 |     - community.general.ufw: {state: enabled}
       |       ^^^^^^^^^^^^^^^^^^^^^ no task kind of this name
    help: use `command: ufw …` with `changed_when`
    ");
}

#[test]
fn a_module_for_windows() {
    let text = r"- hosts: all
  tasks:
    - win_service: {name: x}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown task `win_service`
      --> play.yml:3:7
       |
     3 |     - win_service: {name: x}
       |       ^^^^^^^^^^^ no task kind of this name
    help: leave it out: gpufleet manages Linux nodes only
    ");
}

#[test]
fn sudo_as_a_key() {
    let text = r"- hosts: all
  sudo: yes
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `sudo` is not available yet
      --> play.yml:2:3
       |
     2 |   sudo: yes
       |   ^^^^
    help: write `become: true`
    ");
}

#[test]
fn include_of_old() {
    let text = r"- hosts: all
  tasks:
    - include: a.yml
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `include` is not available yet
      --> play.yml:3:7
       |
     3 |     - include: a.yml
       |       ^^^^^^^
    help: use `import_tasks` or `include_tasks`
    ");
}

#[test]
fn a_fact_with_a_dash() {
    let text = r"- hosts: all
  tasks:
    - set_fact: {my-var: 1}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `my-var`: `my-var` is not the name of a variable
      --> play.yml:3:26
       |
     3 |     - set_fact: {my-var: 1}
       |                          ^
    help: for example `set_fact: {rack_ready: true}`
    ");
}

#[test]
fn become_with_a_user() {
    let text = r"- hosts: all
  become: root
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `become` wants true or false, got a string
      --> play.yml:2:11
       |
     2 |   become: root
       |           ^^^^
    help: write `become: true` and `become_user: root`
    ");
}

#[test]
fn become_with_a_word() {
    let text = r"- hosts: all
  become: maybe
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `become` wants true or false, got a string
      --> play.yml:2:11
       |
     2 |   become: maybe
       |           ^^^^^
    help: write `become: true` and `become_user: maybe`
    ");
}

#[test]
fn parameters_beside_their_kind() {
    let text = r"- hosts: all
  tasks:
    - copy:
      src: a
      dest: /b
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `copy` needs `dest`
      --> play.yml:3:7
       |
     3 |     - copy:
       |       ^^^^
    help: for example `copy: {content: 'hello', dest: /etc/motd, mode: '0644'}`
    error: unknown key `src`
      --> play.yml:4:7
       |
     4 |       src: a
       |       ^^^ not a key of a task
    help: it is a parameter: indent it below `copy`
    error: unknown key `dest`
      --> play.yml:5:7
       |
     5 |       dest: /b
       |       ^^^^ not a key of a task
    help: it is a parameter: indent it below `copy`
    ");
}

#[test]
fn a_parameter_written_out() {
    let text = r"- hosts: all
  tasks:
    - copy: {source: a, dest: /tmp/a}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `copy` has no parameter `source`
      --> play.yml:3:14
       |
     3 |     - copy: {source: a, dest: /tmp/a}
       |              ^^^^^^
    help: did you mean `src`?
    ");
}

#[test]
fn two_mistakes_in_one_task() {
    let text = r"- hosts: all
  tasks:
    - file:
        pth: /tmp/a
        state: directoy
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `file` has no parameter `pth`
      --> play.yml:4:9
       |
     4 |         pth: /tmp/a
       |         ^^^
    help: did you mean `path`?
    error: `state` wants one of file, directory, absent, touch, link, hard, got "directoy"
      --> play.yml:5:16
       |
     5 |         state: directoy
       |                ^^^^^^^^
    help: did you mean `directory`?
    "#);
}

#[test]
fn a_state_of_another_tool() {
    let text = r"- hosts: all
  tasks:
    - service: {name: x, state: running}
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `state` wants one of started, stopped, restarted, reloaded, got "running"
      --> play.yml:3:33
       |
     3 |     - service: {name: x, state: running}
       |                                 ^^^^^^^
    "#);
}

#[test]
fn parameters_that_exclude_each_other() {
    let text = r"- hosts: all
  tasks:
    - debug: {msg: a, var: b}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `var`: `msg` and `var` exclude each other
      --> play.yml:3:28
       |
     3 |     - debug: {msg: a, var: b}
       |                            ^
    help: for example `debug: {msg: 'hello'}`
    ");
}

#[test]
fn a_word_in_place_of_a_boolean() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      ignore_errors: sure
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `ignore_errors` wants true or false, got a string
      --> play.yml:4:22
       |
     4 |       ignore_errors: sure
       |                      ^^^^
    ");
}

#[test]
fn tags_as_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      tags: {a: b}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `tags` wants text, got a mapping
      --> play.yml:4:13
       |
     4 |       tags: {a: b}
       |             ^
    ");
}

#[test]
fn an_environment_as_a_list() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      environment: [a]
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `environment` wants a mapping, got a list
      --> play.yml:4:20
       |
     4 |       environment: [a]
       |                    ^
    ");
}

#[test]
fn a_handler_that_nobody_can_notify() {
    let text = r"- hosts: all
  tasks: []
  handlers:
    - service: {name: x, state: restarted}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a handler without `name` and `listen` can never be notified
      --> play.yml:4:7
       |
     4 |     - service: {name: x, state: restarted}
       |       ^^^^^^^
    ");
}

#[test]
fn a_handler_in_a_block_that_nobody_can_notify_is_told_once() {
    let text = r"- hosts: all
  tasks: []
  handlers:
    - block:
        - service: {name: x, state: restarted}
      rescue:
        - debug: {msg: x}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a handler without `name` and `listen` can never be notified
      --> play.yml:5:11
       |
     5 |         - service: {name: x, state: restarted}
       |           ^^^^^^^
    ");
}

#[test]
fn a_parameter_as_text_and_as_a_word() {
    let text = "- hosts: all\n  tasks:\n    - debug: msg={{ a }} {{ b }}\n";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `debug` has `msg` twice
      --> play.yml:3:14
       |
     3 |     - debug: msg={{ a }} {{ b }}
       |              ^^^^^^^^^^^^^^^^^^^ as `msg=…`, and as the text `{{ b }}`
    help: put quotes around the value: `msg='…'`, or write a mapping: `debug: {msg: 'hello'}`
    ");
}

#[test]
fn a_module_that_is_left_out_on_purpose_says_what_to_do() {
    for (module, instead) in [
        (
            "add_host",
            "put the host into the inventory: who takes part is settled before the first node is touched",
        ),
        (
            "group_by",
            "make the groups in the inventory with `plugin: constructed`, and take a part of them with `--limit`",
        ),
        (
            "getent",
            "use `command: getent passwd NAME` with `register`, `changed_when: false` and `check_mode: false`",
        ),
        ("uri", "use `command: curl …` with `register`, `changed_when: false` and `check_mode: false`"),
    ] {
        for name in [module.to_owned(), format!("ansible.builtin.{module}")] {
            let told = errors_of(&format!("- hosts: all\n  tasks:\n    - {name}: {{name: x}}\n"));
            assert!(told.contains(&format!("unknown task `{name}`")), "{told}");
            assert!(told.contains(&format!("help: {instead}")), "{told}");
        }
    }
}

#[test]
fn a_block_that_is_no_list() {
    let text = r"- hosts: all
  tasks:
    - block:
        command: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `block` wants a list of tasks, got a mapping
      --> play.yml:4:9
       |
     4 |         command: uptime
       |         ^^^^^^^
    help: begin each task with `- `
    ");
}

#[test]
fn a_block_with_a_kind() {
    let text = r"- hosts: all
  tasks:
    - block:
        - command: a
      command: b
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a block has no kind of its own, got `command`
      --> play.yml:5:7
       |
     5 |       command: b
       |       ^^^^^^^
    help: put it into the list: `- command: …`
    ");
}

#[test]
fn a_rescue_without_its_block() {
    let text = r"- hosts: all
  tasks:
    - rescue:
        - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `rescue` and `always` need a `block`
      --> play.yml:3:7
       |
     3 |     - rescue:
       |       ^^^^^^
    help: put the tasks before into `block:`
    ");
}

#[test]
fn a_misspelt_loop_control() {
    let text = r"- hosts: all
  tasks:
    - command: echo
      loop: [1]
      loop_control: {loopvar: x}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown key `loopvar`
      --> play.yml:5:22
       |
     5 |       loop_control: {loopvar: x}
       |                      ^^^^^^^ not a key of `loop_control`
    help: did you mean `loop_var`?
    ");
}

#[test]
fn a_timeout_in_words() {
    let text = r"- hosts: all
  tasks:
    - command: a
      timeout: soon
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `timeout` wants a duration such as 90, 90s, 20m or 2h, got a string
      --> play.yml:4:16
       |
     4 |       timeout: soon
       |                ^^^^
    ");
}

#[test]
fn a_variable_file_that_is_not_there() {
    let text = r"- hosts: all
  vars_files: [nothere.yml]
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: cannot read nothere.yml: no such file
      --> play.yml:2:16
       |
     2 |   vars_files: [nothere.yml]
       |                ^^^^^^^^^^^
    ");
}

#[test]
fn a_task_file_that_is_not_there() {
    let text = r"- hosts: all
  tasks:
    - import_tasks: nothere.yml
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: cannot read nothere.yml: no such file
      --> play.yml:3:21
       |
     3 |     - import_tasks: nothere.yml
       |                     ^^^^^^^^^^^
    ");
}

#[test]
fn a_playbook_that_is_not_there() {
    let text = r"- import_playbook: nothere.yml
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: cannot read nothere.yml: no such file
      --> play.yml:1:20
       |
     1 | - import_playbook: nothere.yml
       |                    ^^^^^^^^^^^
    ");
}

#[test]
fn an_alias_of_nothing() {
    let text = r"- hosts: all
  tasks:
    - command: *foo
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: an alias names no value above it
      --> play.yml:3:16
       |
     3 |     - command: *foo
       |                ^ nothing is marked with this name
    help: quote the text if it is meant to begin with `*`
    ");
}

#[test]
fn a_value_that_begins_with_a_percent_sign() {
    let text = r"- hosts: all
  tasks:
    - command: %foo
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a value cannot begin with `%`
      --> play.yml:3:16
       |
     3 |     - command: %foo
       |                ^
    help: put the value in quotes
    ");
}

#[test]
fn a_value_that_begins_with_an_at_sign() {
    let text = r"- hosts: all
  tasks:
    - command: @foo
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a value cannot begin with `@`
      --> play.yml:3:16
       |
     3 |     - command: @foo
       |                ^
    help: put the value in quotes
    ");
}

#[test]
fn a_vault_string_without_a_password() {
    let text = r"- hosts: all
  vars:
    x: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      3334
  tasks:
    - command: echo {{ x }}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: this is encrypted with ansible-vault, and no vault password is given
      --> play.yml:4:7
    help: give it with `--vault-password-file FILE`, or let gpufleet ask with `--ask-vault-pass`
    ");
}

#[test]
fn an_unknown_yaml_tag() {
    let text = r"- hosts: all
  vars:
    x: !foo bar
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown tag `!foo`
      --> play.yml:3:8
       |
     3 |     x: !foo bar
       |        ^^^^
    note: known tags: !vault, !vault-encrypted, !unsafe
    help: put a text that begins with `!` in quotes
    ");
}

#[test]
fn a_misspelt_strategy() {
    let text = r"- hosts: all
  strategy: fre
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown strategy `fre`
      --> play.yml:2:13
       |
     2 |   strategy: fre
       |             ^^^ linear, host_pinned or free
    help: did you mean `free`?
    ");
}

#[test]
fn several_mistakes_at_once() {
    let text = r#"- hosts: all
  seriall: 2
  tasks:
    - comand: a
    - copy: {dst: /a}
      whn: x
    - debug: {msg: "{{ a | foo }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `seriall`
      --> play.yml:2:3
       |
     2 |   seriall: 2
       |   ^^^^^^^ not a key of a play
    help: did you mean `serial`?
    error: unknown task `comand`
      --> play.yml:4:7
       |
     4 |     - comand: a
       |       ^^^^^^ no task kind of this name
    help: did you mean `command`? `gpufleet doc` lists all kinds
    error: `copy` has no parameter `dst`
      --> play.yml:5:14
       |
     5 |     - copy: {dst: /a}
       |              ^^^
    help: did you mean `dest`?
    error: unknown key `whn`
      --> play.yml:6:7
       |
     6 |       whn: x
       |       ^^^ not a key of a task
    help: did you mean `when`?
    error: unknown filter `foo`
      --> play.yml:7:28
       |
     7 |     - debug: {msg: "{{ a | foo }}"}
       |                            ^^^
    "#);
}

#[test]
fn facts_gathered_maybe() {
    let text = r"- hosts: all
  gather_facts: maybe
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `gather_facts` wants true or false, got a string
      --> play.yml:2:17
       |
     2 |   gather_facts: maybe
       |                 ^^^^^
    ");
}

#[test]
fn a_second_document() {
    let text = r"- hosts: all
  tasks: []
---
- hosts: all
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a second YAML document begins here
      --> play.yml:3:1
       |
     3 | ---
       | ^^^ one file holds one document
    help: remove this `---` or put the document into a file of its own
    ");
}
