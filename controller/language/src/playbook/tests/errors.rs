//! Messages for mistakes in tasks: their kinds and parameters.

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
fn a_quote_that_is_not_closed() {
    insta::assert_snapshot!(errors_of(
        "- hosts: all\n  tasks:\n    - debug: msg=\"open\n    - shell: cat <<E\n    - shell: it's done\n"
    ), @r#"
    error: a quote is opened and never closed
      --> play.yml:3:18
       |
     3 |     - debug: msg="open
       |                  ^
    help: close it, or write the parameters as a mapping: `debug: {msg: 'hello'}`
    "#);
}

#[test]
fn an_unknown_parameter_among_words() {
    insta::assert_snapshot!(errors_of("- hosts: all\n  tasks:\n    - apt: name=a stat=present\n"), @r"
    error: `apt` has no parameter `stat`
      --> play.yml:3:19
       |
     3 |     - apt: name=a stat=present
       |                   ^^^^
    help: did you mean `state`?
    ");
}

#[test]
fn a_template_that_ends_a_mapping_in_braces() {
    insta::assert_snapshot!(errors_of("- hosts: all\n  tasks:\n    - copy: {src: a, dest: /b/{{ c }}}\n"), @r"
    error: `,` or `}` was expected
      --> play.yml:3:31
       |
     3 |     - copy: {src: a, dest: /b/{{ c }}}
       |                               ^
    help: between braces and brackets, a value with `{{ … }}` in it must stand in quotes
    ");
}

#[test]
fn a_value_of_the_wrong_type() {
    let text = r#"- hosts: all
  tasks:
    - gpu_power:
        limit_watts: 6oo
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `limit_watts` wants a number of watts from 1, got "6oo"
      --> play.yml:4:22
       |
     4 |         limit_watts: 6oo
       |                      ^^^
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
    error: `layout`: `3g40gb` is not a MIG profile; profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`
      --> play.yml:3:40
       |
     3 |     - gpu_mig: {mode: enabled, layout: {3g40gb: 2}}
       |                                        ^
    help: for example `gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}`
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
fn a_message_beside_its_task() {
    let text = "- hosts: all\n  tasks:\n    - debug:\n      msg: hello\n";
    insta::assert_snapshot!(errors_of(text), @r"
    error: unknown key `msg`
      --> play.yml:4:7
       |
     4 |       msg: hello
       |       ^^^ not a key of a task
    help: it is a parameter: indent it below `debug`
    ");
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
    insta::assert_snapshot!(errors_of(text), @r"
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
    help: did you mean `value`?
    ");
}

/// One line for each mistake, without place and help.
fn told(tasks: &str) -> String {
    let told = errors_of(&format!("- hosts: all\n  tasks:\n{tasks}"));
    told.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_wrong_value_inside_a_parameter_is_named_and_shown() {
    let tasks = r#"
    - thp: {khugepaged: {pages_to_scan: 0}}
    - thp: {khugepaged: {pages_to_scan: many}}
    - thp: {khugepaged: {scan_sleep_millisecs: 1.5}}
    - thp: {khugepaged: {pages: 1}}
    - gpu_clocks: {graphics_mhz: [0, 1980]}
    - gpu_clocks: {graphics_mhz: [a, 1980]}
"#;
    insta::assert_snapshot!(told(tasks), @r#"
    error: `khugepaged.pages_to_scan` wants a number from 1, got 0
    error: `khugepaged.pages_to_scan` wants a number from 1, got "many"
    error: `khugepaged.scan_sleep_millisecs` wants a whole number of milliseconds from 0, got 1.5
    error: `khugepaged` has no parameter `pages`
    error: `graphics_mhz` wants a number of megahertz from 1, got 0
    error: `graphics_mhz` wants a clock in MHz or a list of two, got a list
    "#);
}

#[test]
fn what_is_wrong_inside_a_parameter_is_marked_though_the_rest_is_a_template() {
    let text = r#"
- hosts: all
  tasks:
    - kubelet:
        settings:
          reservedSystemCPUs: "{{ cpus }}"
          maxPod: 64
    - kubelet:
        settings:
          kubeReserved: {cpu: "{{ cpus }}", memory: 1}
    - kubelet:
        settings: {maxPods: "64", serializeImagePulls: sometimes}
    - kubelet:
        settings: {kubeReserved: {cpu: "{{ cpus }}"}, podMaximum: 64}
"#;
    insta::assert_snapshot!(errors_of(text.trim_start()), @r#"
    error: `settings` has no parameter `maxPod`
      --> play.yml:6:11
       |
     6 |           maxPod: 64
       |           ^^^^^^
    help: did you mean `maxPods`?
    error: `settings.kubeReserved.memory` wants text: put quotes around its value, got 1
      --> play.yml:9:53
       |
     9 |           kubeReserved: {cpu: "{{ cpus }}", memory: 1}
       |                                                     ^
    error: `settings.serializeImagePulls` wants true or false, got "sometimes"
      --> play.yml:11:56
        |
     11 |         settings: {maxPods: "64", serializeImagePulls: sometimes}
        |                                                        ^^^^^^^^^
    "#);
}

#[test]
fn what_is_wanted_is_told_in_words_that_fit() {
    let tasks = r#"
    - cpu_isolation: {cpus: 8..63, words: [isolcpus]}
    - cpu_isolation: {cpus: 8-63, words: [nohz_full, isolcpu]}
    - irq_affinity: {devices: [nics]}
    - gpu_mps: {state: started, default_pinned_memory_limit: 16GiB}
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 3}}
    - kernel_cmdline: {add: [iommu=pt, iommu=off]}
"#;
    insta::assert_snapshot!(told(tasks), @r#"
    error: `cpus` wants a list of CPUs such as `0-3,8`, got "8..63"
    error: `words` wants one of isolcpus, nohz_full, rcu_nocbs, got "isolcpu"
    error: `devices`: `nics` is no device; write `nic` for all of them
    error: `default_pinned_memory_limit`: `16GiB` is no memory limit; write it as 8G or 512M
    error: `layout`: it needs 9 slices, and no GPU has more than 8
    error: `add`: `iommu=pt` and `iommu=off` cannot both count on one line; keep one of them
    "#);
}

#[test]
fn a_program_of_nvidia_is_no_kind() {
    for name in ["nvidia_smi", "nvidia-smi"] {
        let told = errors_of(&format!("- hosts: all\n  tasks:\n    - {name}: {{a: 1}}\n"));
        assert!(told.contains("declare what it sets: `gpu_persistence`"), "{told}");
        assert!(!told.contains("nvidia_imex"), "{told}");
    }
}

#[test]
fn a_number_that_must_be_whole_says_so() {
    let tasks = r#"
    - gpu_power: {limit_watts: 5.5}
    - gpu_power: {limit_watts: -5}
    - gpu_power: {limit_watts: 0}
    - gpu_power: {limit_percent: "250"}
    - user: {name: a, expires: soon}
"#;
    insta::assert_snapshot!(told(tasks), @r#"
    error: `limit_watts` wants a whole number of watts from 1, got 5.5
    error: `limit_watts` wants a whole number of watts from 1, got -5
    error: `limit_watts` wants a number of watts from 1, got 0
    error: `limit_percent` wants a percentage from 1 to 200, got "250"
    error: `expires` wants a number of seconds, got "soon"
    "#);
}

#[test]
fn what_a_secret_holds_is_not_shown() {
    let tasks = "    - thp: {khugepaged: {pages_to_scan: 0}}\n      no_log: true\n";
    insta::assert_snapshot!(told(tasks), @"error: `khugepaged.pages_to_scan` wants a number from 1");
}
