//! Messages for mistakes in plays, blocks and files.

use super::errors_of;

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
    error: there is no `debugger` here; only `never` is understood
      --> play.yml:5:17
       |
     5 |       debugger: always
       |                 ^^^^^^
    help: `gpufleet run --step` asks before each task
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
fn a_secret_is_not_shown() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power: {limit_watts: hunter2}
      no_log: true
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `limit_watts` wants a number of watts from 1
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
    error: `limit_watts` wants a number of watts from 1, got "6oo"
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

#[test]
fn the_cluster_of_a_kubernetes_node_has_to_be_named() {
    let text = r"- hosts: all
  rollout: {drain: slurm}
  tasks:
    - kubernetes_node: {labels: {pool: training}}
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `kubernetes_node` needs a play with `drain: kubernetes`
      --> play.yml:4:7
       |
     4 |     - kubernetes_node: {labels: {pool: training}}
       |       ^^^^^^^^^^^^^^^ the play has `drain: slurm`
    help: write `rollout: {drain: {kubernetes: {kubeconfig: ~/.kube/config}}}` in the play; the task itself drains nothing
    ");
    let text = text.replace("  rollout: {drain: slurm}\n", "");
    assert!(errors_of(&text).contains("it writes through the cluster of the play's `drain`"));
}

#[test]
fn a_key_of_others_at_kubernetes_is_refused_where_it_is_written() {
    let text = r"- hosts: all
  rollout: {drain: kubernetes}
  tasks:
    - kubernetes_node:
        labels:
          nvidia.com/gpu.product: H100
";
    insta::assert_snapshot!(errors_of(text), @r"
    error: `labels`: `nvidia.com/gpu.product` belongs to NVIDIA's GPU feature discovery
      --> play.yml:6:11
       |
     6 |           nvidia.com/gpu.product: H100
       |           ^^^^^^^^^^^^^^^^^^^^^^
    help: for example `kubernetes_node: {labels: {pool: training}, taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}], allocatable: {nvidia.com/gpu: 8}}`
    ");
}
