//! What is said about every mistake.

use super::errors_of;

#[test]
fn an_unknown_task() {
    let text = r#"- hosts: all
  tasks:
    - gpu_powr:
        limit_watts: 600
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown task `gpu_powr`
      --> play.yml:3:7
       |
     3 |     - gpu_powr:
       |       ^^^^^^^^ no task kind of this name
    help: did you mean `gpu_power`? `gpufleet doc` lists all kinds
    "#);
}

#[test]
fn a_value_of_the_wrong_type() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power:
        limit_watts: 6oo
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `limit_watts` wants a number of watts, got "6oo"
      --> play.yml:4:22
       |
     4 |         limit_watts: 6oo
       |                      ^^^
    "#);
}

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
fn two_kinds_in_one_task() {
    let text = r#"- hosts: all
  tasks:
    - command: true
      shell: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: one task has two kinds: `command` and `shell`
      --> play.yml:4:7
       |
     4 |       shell: true
       |       ^^^^^ the second
    help: begin another task with `- `
    "#);
}

#[test]
fn no_kind_at_all() {
    let text = r#"- hosts: all
  tasks:
    - name: nothing
      when: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a task without a kind
      --> play.yml:3:7
       |
     3 |     - name: nothing
       |       ^^^^ nothing here says what to do
    help: add one, such as `command: uname -r`; `gpufleet doc` lists all kinds
    "#);
}

#[test]
fn an_unknown_parameter() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power: {limit_wats: 600}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `gpu_power` has no parameter `limit_wats`
      --> play.yml:3:19
       |
     3 |     - gpu_power: {limit_wats: 600}
       |                   ^^^^^^^^^^
    help: did you mean `limit_watts`?
    "#);
}

#[test]
fn an_unknown_parameter_beside_a_template() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power: {limit_wats: "{{ inventory_hostname }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `gpu_power` has no parameter `limit_wats`
      --> play.yml:3:19
       |
     3 |     - gpu_power: {limit_wats: "{{ inventory_hostname }}"}
       |                   ^^^^^^^^^^
    help: did you mean `limit_watts`?
    "#);
}

#[test]
fn a_parameter_of_ansible_that_is_refused() {
    let text = r#"- hosts: all
  tasks:
    - user: {name: ann, generate_ssh_key: true}
    - apt: {name: "{{ inventory_hostname }}", force: true, force_apt_get: true}
    - ansible.posix.mount: {path: /m, src: s, fstype: xfs, state: mounted, opts_no_log: true}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `user` does not support `generate_ssh_key`
      --> play.yml:3:25
       |
     3 |     - user: {name: ann, generate_ssh_key: ********
       |                         ^^^^^^^^^^^^^^^^
    help: let a task run `ssh-keygen` with `creates`, or bring the key with `copy`
    error: `apt` does not support `force`
      --> play.yml:4:47
       |
     4 |     - apt: {name: "{{ inventory_hostname }}", force: true, force_apt_get: true}
       |                                               ^^^^^
    help: say what is meant: `allow_downgrade`, `allow_unauthenticated` or `allow_change_held_packages`
    error: `mount` does not support `opts_no_log`
      --> play.yml:5:76
       |
     5 |     - ansible.posix.mount: {path: /m, src: s, fstype: xfs, state: mounted, opts_no_log: …
       |                                                                            ^^^^^^^^^^^
    help: `no_log: true` on the task hides the options; credentials belong in a file that `credentials=` names
    "#);
}

#[test]
fn what_is_wrong_with_the_kinds_of_a_machine() {
    let text = r#"- hosts: all
  tasks:
    - user: {name: ann, password: hunter2}
    - group: {name: "a:b"}
    - apt: {name: a, upgrade: dist}
    - dnf: {name: "@development"}
    - package: {}
    - mount: {path: /m, state: mounted, src: s}
    - cron: {name: a, job: x, special_time: daily, hour: 3}
    - cron: {name: a, job: x, cron_file: y}
    - modprobe: {name: a b}
    - hostname: {name: a_b}
"#;
    let all = errors_of(text);
    assert!(!all.contains("hunter2"), "{all}");
    let heads: Vec<&str> = all.lines().filter(|line| line.starts_with("error")).collect();
    insta::assert_snapshot!(heads.join("\n"), @r#"
    error: `password`: a hash is needed, such as `password_hash` makes it; nobody could log in with this text
    error: `name`: `a:b` cannot be the name of a group
    error: `name`: only one of `name`, `deb` and `upgrade` can be given
    error: `name`: `@development` is a group; name its packages instead
    error: `package` needs `name`
    error: `fstype`: `state: mounted` wants it
    error: `special_time`: it cannot be combined with `hour`
    error: `user`: `cron_file` wants it: whom the job runs as
    error: `name`: `a b` is not the name of a module
    error: `name`: `a_b` cannot be the name of a node
    "#);
}

#[test]
fn a_missing_parameter() {
    let text = r#"- hosts: all
  tasks:
    - gpu_ecc: {gpus: 0}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `gpu_ecc` needs `mode`
      --> play.yml:3:7
       |
     3 |     - gpu_ecc: {gpus: 0}
       |       ^^^^^^^
    help: for example `gpu_ecc: {mode: enabled}`
    "#);
}

#[test]
fn a_word_that_is_not_one_of_those() {
    let text = r#"- hosts: all
  tasks:
    - gpu_ecc: {mode: enabeld}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `mode` wants one of enabled, disabled, got "enabeld"
      --> play.yml:3:23
       |
     3 |     - gpu_ecc: {mode: enabeld}
       |                       ^^^^^^^
    help: did you mean `enabled`?
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
fn a_rule_between_parameters() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power: {limit_watts: 600, limit_percent: 90}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `limit_percent`: `limit_watts` and `limit_percent` exclude each other
      --> play.yml:3:52
       |
     3 |     - gpu_power: {limit_watts: 600, limit_percent: 90}
       |                                                    ^^
    help: for example `gpu_power: {limit_watts: 600}`
    "#);
}

#[test]
fn a_mig_profile_that_is_none() {
    let text = r#"- hosts: all
  tasks:
    - gpu_mig: {mode: enabled, layout: {3g40gb: 2}}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `layout`: `3g40gb` is not a MIG profile; profiles look like `3g.40gb` or `1g.10gb+me`
      --> play.yml:3:40
       |
     3 |     - gpu_mig: {mode: enabled, layout: {3g40gb: 2}}
       |                                        ^
    help: for example `gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}`
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
fn an_unknown_key_of_a_play() {
    let text = r#"- hosts: all
  seriall: 10
  tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `seriall`
      --> play.yml:2:3
       |
     2 |   seriall: 10
       |   ^^^^^^^ not a key of a play
    help: did you mean `serial`?
    "#);
}

#[test]
fn a_key_that_is_not_there_yet() {
    let text = r#"- hosts: all
  vars_prompt: [common]
  tasks:
    - command: uptime
      debugger: always
"#;
    insta::assert_snapshot!(errors_of(text), @r"
    error: `vars_prompt` is not available yet
      --> play.yml:2:3
       |
     2 |   vars_prompt: [common]
       |   ^^^^^^^^^^^
    help: give the variables with `-e`
    error: `debugger` is not available yet
      --> play.yml:5:7
       |
     5 |       debugger: always
       |       ^^^^^^^^
    help: leave it out
    ");
}

#[test]
fn a_play_without_hosts() {
    let text = r#"- name: nobody
  tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a play needs `hosts`
      --> play.yml:1:3
       |
     1 | - name: nobody
       |   ^^^^
    help: name a group, a host or a pattern: `hosts: all`
    "#);
}

#[test]
fn serial_and_waves() {
    let text = r#"- hosts: all
  serial: 1
  waves: [1]
  tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `serial` and `waves` are the same thing: give one of them
      --> play.yml:2:3
       |
     2 |   serial: 1
       |   ^^^^^^
    note: `waves` is at play.yml:3:3
    "#);
}

#[test]
fn a_budget_that_is_nothing() {
    let text = r#"- hosts: all
  max_unavailable: 0
  waves: [canary, ten]
  max_fail_percentage: 101
  tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `max_unavailable` wants a number from 1, got "0"
      --> play.yml:2:20
       |
     2 |   max_unavailable: 0
       |                    ^
    error: `waves` wants a number or a percentage such as 10%, got "ten"
      --> play.yml:3:19
       |
     3 |   waves: [canary, ten]
       |                   ^^^
    error: `max_fail_percentage` wants a number from 0 to 100, got 101
      --> play.yml:4:24
       |
     4 |   max_fail_percentage: 101
       |                        ^^^
    "#);
}

#[test]
fn an_unknown_strategy() {
    let text = r#"- hosts: all
  strategy: linaer
  tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown strategy `linaer`
      --> play.yml:2:13
       |
     2 |   strategy: linaer
       |             ^^^^^^ linear, host_pinned or free
    help: did you mean `linear`?
    "#);
}

#[test]
fn a_handler_that_is_not_there() {
    let text = r#"- hosts: all
  tasks:
    - command: uptime
      notify: restart crony
  handlers:
    - name: restart chrony
      service: {name: chrony, state: restarted}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: no handler is called `restart crony`
      --> play.yml:4:15
       |
     4 |       notify: restart crony
       |               ^^^^^^^^^^^^^ neither a name nor a `listen` topic of the play's handlers
    help: did you mean `restart chrony`?
    "#);
}

#[test]
fn a_task_that_is_text() {
    let text = r#"- hosts: all
  tasks:
    - command=uptime
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: a task wants a mapping such as `command: uname -r`, got a string
      --> play.yml:3:7
       |
     3 |     - command=uptime
       |       ^^^^^^^^^^^^^^
    help: write the kind as a key: `kind: …`
    "#);
}

#[test]
fn tasks_that_are_no_list() {
    let text = r#"- hosts: all
  tasks:
    command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @r"
    error: `tasks` wants a list of tasks, got a mapping
      --> play.yml:3:5
       |
     3 |     command: uptime
       |     ^^^^^^^
    help: begin each task with `- `
    ");
}

#[test]
fn a_playbook_that_is_no_list() {
    let text = r#"hosts: all
tasks: []
"#;
    insta::assert_snapshot!(errors_of(text), @r"
    error: a playbook wants a list of plays, got a mapping
      --> play.yml:1:1
       |
     1 | hosts: all
       | ^^^^^
    help: put `- ` in front of `hosts`, and two spaces in front of each line below
    ");
}

#[test]
fn a_key_written_twice() {
    let text = r#"- hosts: all
  tasks:
    - command: uptime
      when: true
      when: false
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: the key `when` is written twice
      --> play.yml:5:7
       |
     5 |       when: false
       |       ^^^^ first on line 4
    help: remove one of the two: only one of them could count
    "#);
}

#[test]
fn a_parameter_at_the_task() {
    let text = r#"- hosts: all
  tasks:
    - service: {name: chrony, state: started}
      enabled: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `enabled`
      --> play.yml:4:7
       |
     4 |       enabled: true
       |       ^^^^^^^ not a key of a task
    help: it is a parameter: indent it below `service`
    "#);
}

#[test]
fn text_where_a_mapping_belongs() {
    let text = r#"- hosts: all
  tasks:
    - gpu_ecc: enabled
    - sysctl: name=vm.swappiness valu=10
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `gpu_ecc` wants a mapping of parameters, got text
      --> play.yml:3:16
       |
     3 |     - gpu_ecc: enabled
       |                ^^^^^^^
    help: for example `gpu_ecc: {mode: enabled}`
    error: `sysctl` has no parameter `valu`
      --> play.yml:4:34
       |
     4 |     - sysctl: name=vm.swappiness valu=10
       |                                  ^^^^
    help: for example `sysctl: {name: vm.swappiness, value: 10}`
    "#);
}

#[test]
fn a_secret_is_not_shown() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power: {limit_watts: hunter2}
      no_log: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `limit_watts` wants a number of watts
      --> play.yml:3:32
    "#);
}

#[test]
fn a_rescue_without_a_block() {
    let text = r#"- hosts: all
  tasks:
    - rescue:
        - command: uptime
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `rescue` and `always` need a `block`
      --> play.yml:3:7
       |
     3 |     - rescue:
       |       ^^^^^^
    help: put the tasks before into `block:`
    "#);
}

#[test]
fn an_unknown_key_of_a_block() {
    let text = r#"- hosts: all
  tasks:
    - block:
        - command: uptime
      loop: [1]
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `loop`
      --> play.yml:5:7
       |
     5 |       loop: [1]
       |       ^^^^ not a key of a block
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
fn run_once_for_what_disturbs() {
    let text = r#"- hosts: all
  tasks:
    - reboot: {}
      run_once: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `run_once` cannot be used with `reboot`
      --> play.yml:3:7
       |
     3 |     - reboot: {}
       |       ^^^^^^ it may disturb the node
    help: give the play a pattern that names the one host
    "#);
}

#[test]
fn a_file_that_is_not_there() {
    let text = r#"- hosts: all
  vars_files: [secrets.yml]
  tasks:
    - import_tasks: nope.yml
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: cannot read secrets.yml: no such file
      --> play.yml:2:16
       |
     2 |   vars_files: [secrets.yml]
       |                ^^^^^^^^^^^
    error: cannot read nope.yml: no such file
      --> play.yml:4:21
       |
     4 |     - import_tasks: nope.yml
       |                     ^^^^^^^^
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

#[test]
fn everything_is_told_at_once() {
    let text = r#"- hosts: all
  tasks:
    - gpu_powr: {limit_watts: 1}
    - gpu_power: {limit_watts: 6oo}
    - command: uptime
      whne: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown task `gpu_powr`
      --> play.yml:3:7
       |
     3 |     - gpu_powr: {limit_watts: 1}
       |       ^^^^^^^^ no task kind of this name
    help: did you mean `gpu_power`? `gpufleet doc` lists all kinds
    error: `limit_watts` wants a number of watts, got "6oo"
      --> play.yml:4:32
       |
     4 |     - gpu_power: {limit_watts: 6oo}
       |                                ^^^
    error: unknown key `whne`
      --> play.yml:6:7
       |
     6 |       whne: true
       |       ^^^^ not a key of a task
    help: did you mean `when`?
    "#);
}
