//! What is said about mistakes that people bring along from Ansible, as they would meet them.

use super::errors_of;

#[test]
fn a_list_item_that_fits_nothing() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
   - command: uname
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_colon_that_is_missing() {
    let text = r"- hosts: all
  tasks:
    - name a
      command: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_space_that_is_missing_behind_a_colon() {
    let text = r"- hosts: all
  tasks:
    - command:uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_template_without_quotes_in_front_of_text() {
    let text = r"- hosts: all
  tasks:
    - file:
        path: {{ dir }}/x
        state: touch
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_colon_in_a_value() {
    let text = r"- hosts: all
  tasks:
    - debug:
        msg: error: something
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_colon_in_a_command() {
    let text = r#"- hosts: all
  tasks:
    - shell: echo "a: b" foo: bar
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_colon_in_a_name() {
    let text = r"- hosts: all
  tasks:
    - name: Install: driver
      command: a
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_quote_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug:
        msg: "hello
    - command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn text_behind_a_closing_quote() {
    let text = r#"- hosts: all
  tasks:
    - shell: "echo hi" > /tmp/x
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn one_brace_too_few() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ inventory_hostname }"}
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_bracket_in_a_template_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ (inventory_hostname }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_quote_in_a_template_that_is_never_closed() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ 'a }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn an_if_without_its_end() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{% if true %}a"}
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_list_comprehension() {
    let text = r#"- hosts: all
  tasks:
    - debug: {msg: "{{ [x for x in range(3)] }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn one_equals_sign_in_a_condition() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: inventory_hostname = 'a'
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_condition_that_begins_with_an_exclamation_mark() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: !inventory_hostname
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_condition_that_is_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      when: {a: b}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn serial_in_words() {
    let text = r"- hosts: all
  serial: abc
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn serial_of_none() {
    let text = r"- hosts: all
  serial: 0
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_playbook_that_is_text() {
    let text = r"just text
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_list_of_tasks_in_place_of_a_playbook() {
    let text = r"- name: a
  command: uptime
- name: b
  command: uname
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn an_ini_inventory_in_place_of_a_playbook() {
    let text = r"[gpu]
n1
n2
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_yaml_inventory_in_place_of_a_playbook() {
    let text = r"all:
  hosts:
    n1:
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn tasks_that_are_text() {
    let text = r"- hosts: all
  tasks: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_task_without_its_colon() {
    let text = r"- hosts: all
  tasks:
    - command uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn variables_as_a_list() {
    let text = r"- hosts: all
  vars:
    - a: 1
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn variables_as_text() {
    let text = r"- hosts: all
  vars: hello
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn hosts_misspelt() {
    let text = r"- host: all
  tasks:
    - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn hosts_without_a_value() {
    let text = r"- hosts:
  tasks:
    - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_broken_template_in_hosts() {
    let text = r#"- hosts: "{{ target"
  tasks:
    - command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @"");
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
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_result_with_a_blank_in_its_name() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      register: my result
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_loop_over_text_again() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      loop: a,b
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_loop_over_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      loop: {a: 1}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_loop_of_no_known_form() {
    let text = r"- hosts: all
  tasks:
    - command: echo {{ item }}
      with_foo: [a]
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_module_that_ansible_does_not_have() {
    let text = r"- hosts: all
  tasks:
    - ansible.builtin.foo: {a: 1}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_misspelt_module_with_its_namespace() {
    let text = r"- hosts: all
  tasks:
    - ansible.builtin.comand: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_module_of_a_collection() {
    let text = r"- hosts: all
  tasks:
    - community.general.ufw: {state: enabled}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_module_of_a_collection_with_a_kind_of_its_name() {
    let text = r"- hosts: all
  tasks:
    - community.general.modprobe: {name: nvidia}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_module_for_windows() {
    let text = r"- hosts: all
  tasks:
    - win_service: {name: x}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn yum() {
    let text = r"- hosts: all
  tasks:
    - yum: {name: x}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn sudo_as_a_key() {
    let text = r"- hosts: all
  sudo: yes
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn include_of_old() {
    let text = r"- hosts: all
  tasks:
    - include: a.yml
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_fact_with_a_dash() {
    let text = r"- hosts: all
  tasks:
    - set_fact: {my-var: 1}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn become_with_a_user() {
    let text = r"- hosts: all
  become: root
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn become_with_a_word() {
    let text = r"- hosts: all
  become: maybe
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn parameters_beside_their_kind() {
    let text = r"- hosts: all
  tasks:
    - copy:
      src: a
      dest: /b
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_parameter_written_out() {
    let text = r"- hosts: all
  tasks:
    - copy: {source: a, dest: /tmp/a}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn two_mistakes_in_one_task() {
    let text = r"- hosts: all
  tasks:
    - file:
        pth: /tmp/a
        state: directoy
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_state_of_another_tool() {
    let text = r"- hosts: all
  tasks:
    - service: {name: x, state: running}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn parameters_that_exclude_each_other() {
    let text = r"- hosts: all
  tasks:
    - debug: {msg: a, var: b}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_word_in_place_of_a_boolean() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      ignore_errors: sure
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn tags_as_a_mapping() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      tags: {a: b}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn an_environment_as_a_list() {
    let text = r"- hosts: all
  tasks:
    - command: uptime
      environment: [a]
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_misspelt_meta_action() {
    let text = r"- hosts: all
  tasks:
    - meta: flush_handler
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_handler_that_nobody_can_notify() {
    let text = r"- hosts: all
  tasks: []
  handlers:
    - service: {name: x, state: restarted}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_block_that_is_no_list() {
    let text = r"- hosts: all
  tasks:
    - block:
        command: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_block_with_a_kind() {
    let text = r"- hosts: all
  tasks:
    - block:
        - command: a
      command: b
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_rescue_without_its_block() {
    let text = r"- hosts: all
  tasks:
    - rescue:
        - command: uptime
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_misspelt_loop_control() {
    let text = r"- hosts: all
  tasks:
    - command: echo
      loop: [1]
      loop_control: {loopvar: x}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_timeout_in_words() {
    let text = r"- hosts: all
  tasks:
    - command: a
      timeout: soon
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_variable_file_that_is_not_there() {
    let text = r"- hosts: all
  vars_files: [nothere.yml]
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_task_file_that_is_not_there() {
    let text = r"- hosts: all
  tasks:
    - import_tasks: nothere.yml
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_playbook_that_is_not_there() {
    let text = r"- import_playbook: nothere.yml
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn an_alias_of_nothing() {
    let text = r"- hosts: all
  tasks:
    - command: *foo
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_value_that_begins_with_a_percent_sign() {
    let text = r"- hosts: all
  tasks:
    - command: %foo
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_value_that_begins_with_an_at_sign() {
    let text = r"- hosts: all
  tasks:
    - command: @foo
";
    insta::assert_snapshot!(errors_of(text), @"");
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
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn an_unknown_yaml_tag() {
    let text = r"- hosts: all
  vars:
    x: !foo bar
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_misspelt_strategy() {
    let text = r"- hosts: all
  strategy: fre
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
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
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn facts_gathered_maybe() {
    let text = r"- hosts: all
  gather_facts: maybe
  tasks: []
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn a_second_document() {
    let text = r"- hosts: all
  tasks: []
---
- hosts: all
";
    insta::assert_snapshot!(errors_of(text), @"");
}
