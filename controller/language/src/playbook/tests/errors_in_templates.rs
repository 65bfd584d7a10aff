//! Messages for mistakes in templates, conditions and names of variables.

use super::errors_of;

#[test]
fn a_misspelt_when() {
    let text = r#"- hosts: all
  tasks:
    - gpu_ecc: {mode: enabled}
      whne: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `whne`
      --> play.yml:4:7
       |
     4 |       whne: true
       |       ^^^^ not a key of a task
    help: did you mean `when`?
    "#);
}

#[test]
fn a_wrong_literal_beside_a_template() {
    let text = r#"- hosts: all
  tasks:
    - gpu_clocks: {graphics_mhz: fast, reset: "{{ inventory_hostname }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `graphics_mhz` wants a clock in MHz or a list of two, got "fast"
      --> play.yml:3:34
       |
     3 |     - gpu_clocks: {graphics_mhz: fast, reset: "{{ inventory_hostname }}"}
       |                                  ^^^^
    "#);
}

#[test]
fn a_syntax_error_in_a_template() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ inventory_hostname | }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of input, expected identifier
      --> play.yml:3:43
       |
     3 |     - debug: {msg: "{{ inventory_hostname | }}"}
       |                                           ^
    "#);
}

#[test]
fn a_template_that_never_ends() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ inventory_hostname"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of input, expected end of variable block
      --> play.yml:3:24
       |
     3 |     - debug: {msg: "{{ inventory_hostname"}
       |                        ^^^^^^^^^^^^^^^^^^
    help: an expression ends with `}}`
    "#);
}

#[test]
fn a_syntax_error_in_a_condition() {
    let text = r#"- hosts: all
  tasks:
    - command: uptime
      when: inventory_hostname ==
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: syntax error: unexpected end of input, expected expression
      --> play.yml:4:32
       |
     4 |       when: inventory_hostname ==
       |                                ^^
    "#);
}

#[test]
fn an_unknown_filter() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ inventory_hostname | regex_replac('a', 'b') }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown filter `regex_replac`
      --> play.yml:3:45
       |
     3 |     - debug: {msg: "{{ inventory_hostname | regex_replac('a', 'b') }}"}
       |                                             ^^^^^^^^^^^^
    help: did you mean `regex_replace`?
    "#);
}

#[test]
fn an_unknown_test() {
    let text = r#"- hosts: all
  tasks:
    - command: uptime
      when: inventory_hostname is serch('gpu')
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown test `serch`
      --> play.yml:4:35
       |
     4 |       when: inventory_hostname is serch('gpu')
       |                                   ^^^^^
    help: did you mean `search`?
    "#);
}

#[test]
fn an_undefined_variable() {
    let text = r#"- hosts: all
  vars: {power_limit: 600}
  tasks:
    - gpu_power: {limit_watts: "{{ power_limt }}"}
    - command: uptime
      when: rack == 'r1'
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: the variable `power_limt` is not defined
      --> play.yml:4:36
       |
     4 |     - gpu_power: {limit_watts: "{{ power_limt }}"}
       |                                    ^^^^^^^^^^ no inventory, play or earlier task sets it
    help: did you mean `power_limit`?
    error: the variable `rack` is not defined
      --> play.yml:6:13
       |
     6 |       when: rack == 'r1'
       |             ^^^^ no inventory, play or earlier task sets it
    help: set it in the inventory or the play, give it with `-e rack=…`, or use `rack | default(…)`
    "#);
}

#[test]
fn facts_that_were_not_gathered() {
    let text = r#"- hosts: all
  gather_facts: false
  tasks:
    - command: uptime
      when: ansible_distribution == 'Ubuntu'
"#;
    insta::assert_snapshot!(errors_of(text), @r"
    error: the variable `ansible_distribution` is not defined
      --> play.yml:5:13
       |
     5 |       when: ansible_distribution == 'Ubuntu'
       |             ^^^^^^^^^^^^^^^^^^^^ no inventory, play or earlier task sets it
    help: set `gather_facts: true` in the play
    ");
}

#[test]
fn facts_that_a_task_reads() {
    for task in
        ["setup:", "{gather_facts: {}, when: ansible_kernel is not defined}", "ansible.builtin.setup:"]
    {
        let text = format!(
            "- hosts: all\n  gather_facts: false\n  pre_tasks:\n    - {task}\n- hosts: all\n  gather_facts: false\n  \
             tasks:\n    - debug: {{msg: '{{{{ ansible_os_family }}}}'}}\n"
        );
        assert_eq!(errors_of(&text), "", "{task}");
    }
}

#[test]
fn a_variable_that_asks_for_another() {
    let text = r#"- hosts: all
  vars: {unused: "{{ nobody }}", url: "http://{{ host }}", deep: "{{ url }}/x", guarded: "{{ host }}"}
  tasks:
    - debug: {msg: "{{ deep }} {{ guarded | default('') }}"}
    - debug: {msg: "{{ url }}"}
      when: host is defined
    - debug: {msg: "{{ own }}"}
      vars: {own: "{{ gone }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: the variable `host` is not defined
      --> play.yml:4:24
       |
     4 |     - debug: {msg: "{{ deep }} {{ guarded | default('') }}"}
       |                        ^^^^ `deep` needs it
    note: play.yml:2:34 gives `url` a value with `host` in it
    help: set it in the inventory or the play, give it with `-e host=…`, or use `host | default(…)`
    error: the variable `gone` is not defined
      --> play.yml:7:24
       |
     7 |     - debug: {msg: "{{ own }}"}
       |                        ^^^ `own` needs it
    note: play.yml:8:14 gives `own` a value with `gone` in it
    help: set it in the inventory or the play, give it with `-e gone=…`, or use `gone | default(…)`
    "#);
    let elsewhere = format!("{text}    - debug: {{msg: x}}\n      vars: {{url: here, own: here}}\n");
    assert_eq!(errors_of(&elsewhere), "", "another value may be the one that counts");
}

#[test]
fn item_without_a_loop() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ item }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: the variable `item` is not defined
      --> play.yml:3:24
       |
     3 |     - debug: {msg: "{{ item }}"}
       |                        ^^^^ no inventory, play or earlier task sets it
    help: `item` exists in a task with `loop`
    "#);
}

#[test]
fn a_condition_in_braces_and_text() {
    let text = r#"- hosts: all
  tasks:
    - command: uptime
      when: "{{ inventory_hostname }} == 'a'"
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a condition is an expression already: write it without `{{ }}`
      --> play.yml:4:13
       |
     4 |       when: "{{ inventory_hostname }} == 'a'"
       |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
}

#[test]
fn a_loop_over_text() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: a}
      loop: abc
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `loop` wants a list or a template that gives one, got a string
      --> play.yml:4:13
       |
     4 |       loop: abc
       |             ^^^
    help: write a list, or `loop: "{{ name }}"`
    "#);
}

#[test]
fn a_name_that_is_no_variable() {
    let text = r#"- hosts: all
  vars: {my-var: 1}
  tasks:
    - command: uptime
      register: my-result
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `my-var` is not the name of a variable
      --> play.yml:2:10
       |
     2 |   vars: {my-var: 1}
       |          ^^^^^^
    help: names have letters, digits and `_`, and begin with no digit: `my_var`
    error: `register` wants the name of a variable, got "my-result"
      --> play.yml:5:17
       |
     5 |       register: my-result
       |                 ^^^^^^^^^
    help: names have letters, digits and `_`, and begin with no digit: `my_result`
    "#);
}
