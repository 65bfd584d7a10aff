//! What is said about mistakes that people bring along from Ansible, as they would meet them.

use super::errors_of;

#[test]
fn a_list_item_that_fits_nothing() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
   - command: uname
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: the indentation of this line fits nothing above it
      --> play.yml:4:4
       |
     4 |    - command: uname
       |    ^ a key of the mapping above was expected
    help: align it with the line it belongs to
    ");
}

#[test]
fn a_colon_that_is_missing() {
    let text = r"- hosts: all
  tasks:
    - name a
      command: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a key is not allowed here
      --> play.yml:4:14
       |
     4 |       command: uptime
       |              ^ the line above already has a value, and this one is indented below it
    help: align it with the keys it belongs to, or add the `:` that the line above lacks
    ");
}

#[test]
fn a_space_that_is_missing_behind_a_colon() {
    let text = r"- hosts: all
  tasks:
    - command:uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a task wants a mapping such as `command: uname -r`, got a string
      --> play.yml:3:7
       |
     3 |     - command:uptime
       |       ^^^^^^^^^^^^^^
    help: a space is missing behind the `:`: `command: uptime`
    ");
}

#[test]
fn a_template_without_quotes_in_front_of_text() {
    let text = r"- hosts: all
  tasks:
    - file:
        path: {{ dir }}/x
        state: touch
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a value that begins with `{{` must stand in quotes
      --> play.yml:4:15
       |
     4 |         path: {{ dir }}/x
       |               ^^^^^^^^^ YAML reads a brace as the start of a mapping
    help: write "{{ … }}"
    "#);
}

#[test]
fn a_colon_in_a_value() {
    let text = r"- hosts: all
  tasks:
    - debug:
        msg: error: something
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a `:` is not allowed here
      --> play.yml:4:19
       |
     4 |         msg: error: something
       |                   ^ this value already belongs to a key on this line
    help: put a value that holds `: ` in quotes
    ");
}

#[test]
fn a_colon_in_a_command() {
    let text = r#"- hosts: all
  tasks:
    - shell: echo "a: b" foo: bar
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a `:` is not allowed here
      --> play.yml:3:21
       |
     3 |     - shell: echo "a: b" foo: bar
       |                     ^ this value already belongs to a key on this line
    help: put a value that holds `: ` in quotes
    "#);
}

#[test]
fn a_colon_in_a_name() {
    let text = r"- hosts: all
  tasks:
    - name: Install: driver
      command: a
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a `:` is not allowed here
      --> play.yml:3:20
       |
     3 |     - name: Install: driver
       |                    ^ this value already belongs to a key on this line
    help: put a value that holds `: ` in quotes
    ");
}

#[test]
fn a_quote_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug:
        msg: "hello
    - command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @r"
    error: a quoted text goes on here without being indented
      --> play.yml:5:5
       |
     5 |     - command: uptime
       |     ^
    help: is a quote above never closed?
    ");
}

#[test]
fn text_behind_a_closing_quote() {
    let text = r#"- hosts: all
  tasks:
    - shell: "echo hi" > /tmp/x
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: text follows the closing quote
      --> play.yml:3:24
       |
     3 |     - shell: "echo hi" > /tmp/x
       |                        ^
    help: put the whole value in quotes, or use the other kind of quotes around it
    "#);
}

#[test]
fn one_brace_too_few() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ inventory_hostname }"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected `}`, expected end of variable block
      --> play.yml:3:43
       |
     3 |     - debug: {msg: "{{ inventory_hostname }"}
       |                                           ^
    help: an expression ends with `}}`
    "#);
}

#[test]
fn a_bracket_in_a_template_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ (inventory_hostname }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected `}`, expected `)`
      --> play.yml:3:44
       |
     3 |     - debug: {msg: "{{ (inventory_hostname }}"}
       |                                            ^
    help: a bracket is opened and never closed
    "#);
}

#[test]
fn a_quote_in_a_template_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ 'a }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of string
      --> play.yml:3:20
       |
     3 |     - debug: {msg: "{{ 'a }}"}
       |                    ^^^^^^^^^^
    help: a quote is opened and never closed
    "#);
}

#[test]
fn an_if_without_its_end() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{% if true %}a"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of input, expected end of block
      --> play.yml:3:34
       |
     3 |     - debug: {msg: "{% if true %}a"}
       |                                  ^
    help: each `{% if %}` ends with `{% endif %}`, each `{% for %}` with `{% endfor %}`
    "#);
}

#[test]
fn a_list_comprehension() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ [x for x in range(3)] }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected identifier, expected `,`
      --> play.yml:3:27
       |
     3 |     - debug: {msg: "{{ [x for x in range(3)] }}"}
       |                           ^^^
    help: there are no list comprehensions: use the filters `map`, `select` and `selectattr`
    "#);
}

#[test]
fn one_equals_sign_in_a_condition() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: inventory_hostname = 'a'
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: syntax error: unexpected input after expression
      --> play.yml:4:32
       |
     4 |       when: inventory_hostname = 'a'
       |                                ^
    help: compare with `==`
    ");
}

#[test]
fn a_condition_that_begins_with_an_exclamation_mark() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: !inventory_hostname
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown tag `!inventory_hostname`
      --> play.yml:4:13
       |
     4 |       when: !inventory_hostname
       |             ^^^^^^^^^^^^^^^^^^^
    note: known tags: !vault, !vault-encrypted, !unsafe
    help: in a condition write `not inventory_hostname`
    ");
}

#[test]
fn a_condition_that_is_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: {a: b}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `when` wants an expression, a boolean or a list of them, got a mapping
      --> play.yml:4:13
       |
     4 |       when: {a: b}
       |             ^
    ");
}

#[test]
fn serial_in_words() {
    let text = r"- hosts: all
  serial: abc
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `serial` wants a number or a percentage such as 10%, got "abc"
      --> play.yml:2:11
       |
     2 |   serial: abc
       |           ^^^
    "#);
}

#[test]
fn serial_of_none() {
    let text = r"- hosts: all
  serial: 0
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `serial` wants a number from 1, got "0"
      --> play.yml:2:11
       |
     2 |   serial: 0
       |           ^
    "#);
}

#[test]
fn a_playbook_that_is_text() {
    let text = r"just text
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a playbook wants a list of plays, got a string
      --> play.yml:1:1
       |
     1 | just text
       | ^^^^^^^^^
    help: begin each play with `- hosts: …`
    ");
}

#[test]
fn a_list_of_tasks_in_place_of_a_playbook() {
    let text = r"- name: a
  command: uptime
- name: b
  command: uname
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: this is a list of tasks, not a playbook
      --> play.yml:1:3
       |
     1 | - name: a
       |   ^^^^ a play begins with `hosts`
    help: put it below a play: `- hosts: all` and `tasks:`, or name it there with `import_tasks`
    ");
}

#[test]
fn an_ini_inventory_in_place_of_a_playbook() {
    let text = r"[gpu]
n1
n2
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: not valid YAML: did not find expected <document start>
      --> play.yml:2:1
       |
     2 | n1
       | ^
    help: is this an inventory of the INI form? give it with `-i`
    ");
}

#[test]
fn a_yaml_inventory_in_place_of_a_playbook() {
    let text = r"all:
  hosts:
    n1:
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a playbook wants a list of plays, got a mapping
      --> play.yml:1:1
       |
     1 | all:
       | ^^^
    help: this looks like an inventory: give it with `-i`
    ");
}

#[test]
fn tasks_that_are_text() {
    let text = r"- hosts: all
  tasks: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `tasks` wants a list of tasks, got a string
      --> play.yml:2:10
       |
     2 |   tasks: uptime
       |          ^^^^^^
    ");
}

#[test]
fn a_task_without_its_colon() {
    let text = r"- hosts: all
  tasks:
    - command uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: a task wants a mapping such as `command: uname -r`, got a string
      --> play.yml:3:7
       |
     3 |     - command uptime
       |       ^^^^^^^^^^^^^^
    help: a `:` is missing: `command: uptime`
    ");
}

#[test]
fn variables_as_a_list() {
    let text = r"- hosts: all
  vars:
    - a: 1
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `vars` wants a mapping of names to values, got a list
      --> play.yml:3:7
       |
     3 |     - a: 1
       |       ^
    help: leave out the `- ` in front of the names
    ");
}

#[test]
fn variables_as_text() {
    let text = r"- hosts: all
  vars: hello
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `vars` wants a mapping of names to values, got a string
      --> play.yml:2:9
       |
     2 |   vars: hello
       |         ^^^^^
    ");
}

#[test]
fn hosts_misspelt() {
    let text = r"- host: all
  tasks:
    - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown key `host`
      --> play.yml:1:3
       |
     1 | - host: all
       |   ^^^^ not a key of a play
    help: did you mean `hosts`?
    ");
}

#[test]
fn hosts_without_a_value() {
    let text = r"- hosts:
  tasks:
    - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `hosts` wants a host pattern or a list of them, got nothing
      --> play.yml:1:3
       |
     1 | - hosts:
       |   ^^^^^
    ");
}

#[test]
fn a_broken_template_in_hosts() {
    let text = r#"- hosts: "{{ target"
  tasks:
    - command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of input, expected end of variable block
      --> play.yml:1:14
       |
     1 | - hosts: "{{ target"
       |              ^^^^^^
    help: an expression ends with `}}`
    "#);
}

#[test]
fn a_handler_of_other_letters() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      notify: restart sshd
  handlers:
    - name: Restart sshd
      service: {name: sshd, state: restarted}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: no handler is called `restart sshd`
      --> play.yml:4:15
       |
     4 |       notify: restart sshd
       |               ^^^^^^^^^^^^ neither a name nor a `listen` topic of the play's handlers
    help: did you mean `Restart sshd`?
    ");
}

#[test]
fn a_result_with_a_blank_in_its_name() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      register: my result
";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `register` wants the name of a variable, got "my result"
      --> play.yml:4:17
       |
     4 |       register: my result
       |                 ^^^^^^^^^
    help: names have letters, digits and `_`, and begin with no digit: `my_result`
    "#);
}

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
    error: `with_foo` is not available yet
      --> play.yml:4:7
       |
     4 |       with_foo: [a]
       |       ^^^^^^^^
    help: use `loop`
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
    error: unknown task `include`
      --> play.yml:3:7
       |
     3 |     - include: a.yml
       |       ^^^^^^^ no task kind of this name
    help: write `include_tasks` or `import_tasks`: `include` was taken out of Ansible too
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
