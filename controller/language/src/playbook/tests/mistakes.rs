//! Messages for mistakes that are common in playbooks written for Ansible.

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
fn an_expression_that_no_node_could_compile() {
    let text = r"- hosts: all
  vars: {key: x}
  tasks:
    - lineinfile: {path: /etc/x, regexp: '^(a', line: a}
    - lineinfile: {path: /etc/x, regexp: '^({{ key }}', line: a}
    - replace: {path: /etc/x, regexp: 'a(?=b)(?<!c)', replace: c}
    - replace: {path: /etc/x, regexp: 'a(?=b', replace: c}
    - find: {paths: /etc, patterns: '*.conf'}
    - find: {paths: /etc, patterns: '*.conf', use_regex: true}
    - wait_for: {path: /etc/x, search_regex: '[a'}
    - blockinfile: {path: /etc/x, block: a, insertafter: EOF}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `regexp`: `^(a` is not a regular expression that gpufleet reads: unclosed group
      --> play.yml:4:42
       |
     4 |     - lineinfile: {path: /etc/x, regexp: '^(a', line: a}
       |                                          ^^^^^
    help: for example `lineinfile: {path: /etc/hosts, line: '127.0.0.1 localhost'}`
    error: `regexp`: `a(?=b` is not a regular expression that gpufleet reads: opening parenthesis without closing parenthesis
      --> play.yml:7:39
       |
     7 |     - replace: {path: /etc/x, regexp: 'a(?=b', replace: c}
       |                                       ^^^^^^^
    help: for example `replace: {path: /etc/hosts, regexp: 'old', replace: 'new'}`
    error: `patterns`: `*.conf` is not a regular expression that gpufleet reads: repetition operator missing expression
      --> play.yml:9:37
       |
     9 |     - find: {paths: /etc, patterns: '*.conf', use_regex: true}
       |                                     ^^^^^^^^
    help: for example `find: {paths: /var/log, patterns: '*.log'}`
    error: `search_regex`: `[a` is not a regular expression that gpufleet reads: unclosed character class
      --> play.yml:10:46
        |
     10 |     - wait_for: {path: /etc/x, search_regex: '[a'}
        |                                              ^^^^
    help: for example `wait_for: {port: 22, timeout: 60}`
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
