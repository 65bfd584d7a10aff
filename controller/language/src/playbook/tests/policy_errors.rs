//! What is said about every mistake in a `rollout` block.

use super::policy::with_rollout;
use super::{errors_of, load};

fn refused(block: &str) -> String {
    match load(&with_rollout(block)) {
        Err(errors) => errors.to_string(),
        Ok(_) => "nothing is wrong".to_owned(),
    }
}

#[test]
fn an_unknown_key() {
    insta::assert_snapshot!(refused("    windw: x\n"), @r#"
    error: unknown key `windw`
      --> play.yml:3:5
       |
     3 |     windw: x
       |     ^^^^^ not a key of `rollout`
    help: did you mean `window`?
    "#);
}

#[test]
fn a_key_under_another_name() {
    insta::assert_snapshot!(refused("    serial: 1\n"), @r#"
    error: unknown key `serial`
      --> play.yml:3:5
       |
     3 |     serial: 1
       |     ^^^^^^ not a key of `rollout`
    help: in `rollout` it is called `waves`
    "#);
}

#[test]
fn a_key_of_the_play() {
    insta::assert_snapshot!(refused("    strategy: linear\n"), @r#"
    error: unknown key `strategy`
      --> play.yml:3:5
       |
     3 |     strategy: linear
       |     ^^^^^^^^ not a key of `rollout`
    help: it is a key of the play: write it beside `rollout`
    "#);
}

#[test]
fn a_soak_that_is_no_time() {
    insta::assert_snapshot!(refused("    soak: a while\n"), @r#"
    error: `soak` wants a duration such as 90s, 20m or 2h, got "a while"
      --> play.yml:3:11
       |
     3 |     soak: a while
       |           ^^^^^^^
    "#);
}

#[test]
fn a_soak_beyond_reason() {
    insta::assert_snapshot!(refused("    soak: 31d\n"), @r#"
    error: `soak` wants at most 30d, got "31d"
      --> play.yml:3:11
       |
     3 |     soak: 31d
       |           ^^^
    "#);
}

#[test]
fn a_soak_of_nothing() {
    insta::assert_snapshot!(refused("    soak:\n"), @r#"
    error: `soak` wants a duration such as 90s, 20m or 2h, got nothing
      --> play.yml:3:5
       |
     3 |     soak:
       |     ^^^^
    "#);
}

#[test]
fn an_unknown_drainer() {
    insta::assert_snapshot!(refused("    drain: slrum\n"), @r#"
    error: unknown drainer `slrum`
      --> play.yml:3:12
       |
     3 |     drain: slrum
       |            ^^^^^ none, slurm, kubernetes, kubectl or command
    help: did you mean `slurm`?
    help: for example `drain: none` or `drain: {slurm: {timeout: 2h}}`
    "#);
}

#[test]
fn an_unknown_drainer_with_settings() {
    insta::assert_snapshot!(refused("    drain: {timeout: 2h}\n"), @r#"
    error: unknown drainer `timeout`
      --> play.yml:3:13
       |
     3 |     drain: {timeout: 2h}
       |             ^^^^^^^ none, slurm, kubernetes, kubectl or command
    help: for example `drain: none` or `drain: {slurm: {timeout: 2h}}`
    "#);
}

#[test]
fn kubernetes_under_another_name() {
    insta::assert_snapshot!(refused("    drain: k8s\n"), @r#"
    error: unknown drainer `k8s`
      --> play.yml:3:12
       |
     3 |     drain: k8s
       |            ^^^ none, slurm, kubernetes, kubectl or command
    help: write `drain: kubernetes`
    "#);
    let login = refused("    drain: {kubectl: {login: \"{{ l }}\"}}\n");
    assert!(login.contains("`login` cannot be a template"), "{login}");
    assert!(refused("    drain: {kubernetes: {login: l}}\n").contains("login"));
}

/// What is wrong, where, and what is said of it.
#[test]
fn what_kubernetes_cannot_be_told() {
    for (settings, said) in [
        ("grace: 5s", "grace"),
        ("timeout: 0s", "`timeout` wants a time above 0"),
        ("kubeconfig: \"{{ k }}\"", "`kubeconfig` cannot be a template"),
        ("context: [a]", "`context` wants the name of a context of the kubeconfig"),
        ("skip_namespaces: [Mon_itoring]", "`Mon_itoring` is no name of a namespace"),
        ("lock: gpufleet", "`lock` wants NAMESPACE/NAME of a Lease, got \"gpufleet\""),
        ("mig_manager: takover", "did you mean `takeover`?"),
        (
            "mig_manager: {label: all-1g.24gb+gfx}",
            "the value of the label `nvidia.com/mig.config`, which Kubernetes refuses",
        ),
        ("force: maybe", "force"),
    ] {
        let told = refused(&format!("    drain: {{kubernetes: {{{settings}}}}}\n"));
        assert!(told.contains(said) && told.contains("play.yml:3:"), "{settings}: {told}");
    }
}

#[test]
fn labels_that_are_no_failure_domain() {
    for (settings, said) in [
        ("    failure_domain: {label: pool}\n", "wants `drain: kubernetes` or `drain: kubectl`"),
        (
            "    failure_domain: {label: \"{{ x }}\"}\n    drain: kubernetes\n",
            "`label` wants the key of a label",
        ),
        ("    failure_domain: {}\n    drain: kubernetes\n", "or a `label`"),
        ("    failure_domain: {lable: a}\n    drain: kubernetes\n", "lable"),
    ] {
        let told = refused(settings);
        assert!(told.contains(said) && told.contains("play.yml:3:"), "{settings}: {told}");
    }
}

#[test]
fn no_drainer() {
    insta::assert_snapshot!(refused("    drain: no\n"), @r#"
    error: `drain` wants none, slurm, kubernetes, kubectl or command, got a boolean
      --> play.yml:3:12
       |
     3 |     drain: no
       |            ^^
    help: for example `drain: none` or `drain: {slurm: {timeout: 2h}}`
    "#);
}

#[test]
fn two_drainers() {
    insta::assert_snapshot!(refused("    drain: {slurm: {}, none: }\n"), @r#"
    error: `drain` names more than one drainer
      --> play.yml:3:24
       |
     3 |     drain: {slurm: {}, none: }
       |                        ^^^^ the second
    help: write one, with its settings below it: `drain: {slurm: {timeout: 2h}}`
    "#);
}

#[test]
fn settings_of_none() {
    insta::assert_snapshot!(refused("    drain: {none: {timeout: 1h}}\n"), @r#"
    error: `none` has no settings
      --> play.yml:3:19
       |
     3 |     drain: {none: {timeout: 1h}}
       |                   ^
    help: write `drain: none`
    "#);
}

#[test]
fn a_drain_that_takes_no_time() {
    insta::assert_snapshot!(refused("    drain: {slurm: {timeout: 0}}\n"), @r#"
    error: `timeout` wants a time above 0, got "0"
      --> play.yml:3:30
       |
     3 |     drain: {slurm: {timeout: 0}}
       |                              ^
    "#);
}

#[test]
fn an_unknown_key_of_slurm() {
    insta::assert_snapshot!(refused("    drain: {slurm: {timout: 1h}}\n"), @r#"
    error: unknown key `timout`
      --> play.yml:3:21
       |
     3 |     drain: {slurm: {timout: 1h}}
       |                     ^^^^^^ not a key of `slurm`
    help: did you mean `timeout`?
    "#);
}

#[test]
fn slurm_as_a_list() {
    insta::assert_snapshot!(refused("    drain: {slurm: [timeout]}\n"), @r#"
    error: `slurm` wants a mapping, got a list
      --> play.yml:3:20
       |
     3 |     drain: {slurm: [timeout]}
       |                    ^
    "#);
}

#[test]
fn an_empty_node_name() {
    insta::assert_snapshot!(refused("    drain: {slurm: {node: ''}}\n"), @r#"
    error: `node` is empty
      --> play.yml:3:27
       |
     3 |     drain: {slurm: {node: ''}}
       |                           ^^
    "#);
}

#[test]
fn a_login_template() {
    insta::assert_snapshot!(refused("    drain: {slurm: {login: '{{ login }}'}}\n"), @r#"
    error: `login` cannot be a template
      --> play.yml:3:28
       |
     3 |     drain: {slurm: {login: '{{ login }}'}}
       |                            ^^^^^^^^^^^^^
    help: write the name of one host of the inventory
    "#);
}

#[test]
fn a_login_number() {
    insta::assert_snapshot!(refused("    drain: {slurm: {login: 5}}\n"), @r#"
    error: `login` wants the name of a host of the inventory, got a whole number
      --> play.yml:3:28
       |
     3 |     drain: {slurm: {login: 5}}
       |                            ^
    "#);
}

#[test]
fn a_notice_without_content() {
    insta::assert_snapshot!(refused("    drain: {slurm: {notice: {deadline: 5m}}}\n"), @r#"
    error: `notice` does not say what jobs are told
      --> play.yml:3:29
       |
     3 |     drain: {slurm: {notice: {deadline: 5m}}}
       |                             ^
    help: write `{signal: USR1, deadline: 5m}` or `{requeue: true, deadline: 5m}`
    "#);
}

#[test]
fn a_notice_of_two_kinds() {
    insta::assert_snapshot!(refused("    drain: {slurm: {notice: {signal: USR1, requeue: true}}}\n"), @r#"
    error: `notice` sends a signal or requeues: give one of them
      --> play.yml:3:30
       |
     3 |     drain: {slurm: {notice: {signal: USR1, requeue: true}}}
       |                              ^^^^^^
    help: write `{signal: USR1, deadline: 5m}` or `{requeue: true, deadline: 5m}`
    "#);
}

#[test]
fn a_notice_as_a_word() {
    insta::assert_snapshot!(refused("    drain: {slurm: {notice: loud}}\n"), @r#"
    error: `notice` wants a mapping, got a string
      --> play.yml:3:29
       |
     3 |     drain: {slurm: {notice: loud}}
       |                             ^^^^
    help: write `{signal: USR1, deadline: 5m}` or `{requeue: true, deadline: 5m}`
    "#);
}

#[test]
fn an_unknown_signal() {
    insta::assert_snapshot!(refused("    drain: {slurm: {notice: {signal: SIGUSR}}}\n"), @r#"
    error: `SIGUSR` is no signal that a job could act on
      --> play.yml:3:38
       |
     3 |     drain: {slurm: {notice: {signal: SIGUSR}}}
       |                                      ^^^^^^ HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG
    help: did you mean `USR1`?
    "#);
}

#[test]
fn a_signal_by_number() {
    insta::assert_snapshot!(refused("    drain: {slurm: {notice: {signal: 10}}}\n"), @r#"
    error: `signal` wants the name of a signal, got a whole number
      --> play.yml:3:38
       |
     3 |     drain: {slurm: {notice: {signal: 10}}}
       |                                      ^^ HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG
    "#);
}

#[test]
fn command_without_commands() {
    insta::assert_snapshot!(refused("    drain: command\n"), @r#"
    error: `drain: command` needs its commands
      --> play.yml:3:12
       |
     3 |     drain: command
       |            ^^^^^^^
    help: write `drain: {command: {drain: …, is_idle: …, resume: …}}`
    "#);
}

#[test]
fn command_without_resume() {
    insta::assert_snapshot!(refused("    drain: {command: {drain: a, is_idle: b}}\n"), @r#"
    error: `drain: command` needs `resume`
      --> play.yml:3:13
       |
     3 |     drain: {command: {drain: a, is_idle: b}}
       |             ^^^^^^^ to drain, to tell whether a node is idle, and to give it back
    help: each is one line for `sh -c` on this machine, such as `drain: "cordon {{ inventory_hostname }}"`
    "#);
}

#[test]
fn a_hook_that_is_a_list() {
    insta::assert_snapshot!(refused("    drain: {command: {drain: [a, b], is_idle: b, resume: c}}\n"), @r#"
    error: `drain` wants a command as one line of text, got a list
      --> play.yml:3:30
       |
     3 |     drain: {command: {drain: [a, b], is_idle: b, resume: c}}
       |                              ^
    "#);
}

#[test]
fn a_notice_deadline_alone() {
    insta::assert_snapshot!(refused("    drain: {command: {drain: a, is_idle: b, resume: c, notice_deadline: 5m}}\n"), @r#"
    error: `notice_deadline` without `notice`
      --> play.yml:3:56
       |
     3 |     drain: {command: {drain: a, is_idle: b, resume: c, notice_deadline: 5m}}
       |                                                        ^^^^^^^^^^^^^^^
    help: add the command that tells the jobs: `notice: …`
    "#);
}

#[test]
fn a_hook_with_a_broken_template() {
    insta::assert_snapshot!(refused("    drain: {command: {drain: 'cordon {{ a', is_idle: b, resume: c}}\n"), @r"
    error: syntax error: unexpected end of input, expected end of variable block
      --> play.yml:3:41
       |
     3 |     drain: {command: {drain: 'cordon {{ a', is_idle: b, resume: c}}
       |                                         ^
    help: an expression ends with `}}`
    ");
}

#[test]
fn a_domain_as_a_template() {
    insta::assert_snapshot!(refused("    failure_domain: '{{ rack }}'\n"), @r#"
    error: `failure_domain` wants the name of a host variable, got "{{ rack }}"
      --> play.yml:3:21
       |
     3 |     failure_domain: '{{ rack }}'
       |                     ^^^^^^^^^^^^
    help: write the bare name, without braces: `failure_domain: rack`
    "#);
}

#[test]
fn a_domain_that_is_no_name() {
    insta::assert_snapshot!(refused("    failure_domain: top-rack\n"), @r#"
    error: `failure_domain` wants the name of a host variable, got "top-rack"
      --> play.yml:3:21
       |
     3 |     failure_domain: top-rack
       |                     ^^^^^^^^
    help: set the variable in the inventory, such as `rack`, and write `failure_domain: rack`
    "#);
}

#[test]
fn a_domain_as_a_list() {
    insta::assert_snapshot!(refused("    failure_domain: [rack]\n"), @r#"
    error: `failure_domain` wants the name of a host variable, got a list
      --> play.yml:3:21
       |
     3 |     failure_domain: [rack]
       |                     ^
    help: set the variable in the inventory, such as `rack`, and write `failure_domain: rack`
    "#);
}

#[test]
fn a_share_per_domain() {
    insta::assert_snapshot!(refused("    failure_domain: rack\n    max_unavailable_per_domain: 10%\n"), @r#"
    error: `max_unavailable_per_domain` wants a number from 1, got "10%"
      --> play.yml:4:33
       |
     4 |     max_unavailable_per_domain: 10%
       |                                 ^^^
    help: domains differ in size: give a number of nodes
    "#);
}

#[test]
fn none_per_domain() {
    insta::assert_snapshot!(refused("    failure_domain: rack\n    max_unavailable_per_domain: 0\n"), @r#"
    error: `max_unavailable_per_domain` wants a number from 1, got "0"
      --> play.yml:4:33
       |
     4 |     max_unavailable_per_domain: 0
       |                                 ^
    "#);
}

#[test]
fn a_number_per_no_domain() {
    insta::assert_snapshot!(refused("    max_unavailable_per_domain: 1\n"), @r#"
    error: `max_unavailable_per_domain` without `failure_domain`
      --> play.yml:3:5
       |
     3 |     max_unavailable_per_domain: 1
       |     ^^^^^^^^^^^^^^^^^^^^^^^^^^
    help: name the host variable that tells a host's domain: `failure_domain: rack`
    "#);
}

#[test]
fn unreachable_below_none() {
    insta::assert_snapshot!(refused("    max_unreachable: -1\n"), @r#"
    error: `max_unreachable` wants a whole number from 0, got "-1"
      --> play.yml:3:22
       |
     3 |     max_unreachable: -1
       |                      ^^
    "#);
}

#[test]
fn failures_as_a_share() {
    insta::assert_snapshot!(refused("    max_failures: 5%\n"), @r#"
    error: `max_failures` wants a whole number from 0, got "5%"
      --> play.yml:3:19
       |
     3 |     max_failures: 5%
       |                   ^^
    "#);
}

#[test]
fn a_budget_of_none() {
    insta::assert_snapshot!(refused("    max_unavailable: 0\n"), @r#"
    error: `max_unavailable` wants a number from 1, got "0"
      --> play.yml:3:22
       |
     3 |     max_unavailable: 0
       |                      ^
    "#);
}

#[test]
fn a_reboot_as_a_time() {
    insta::assert_snapshot!(refused("    reboot: 20m\n"), @r#"
    error: `reboot` wants a mapping, got a string
      --> play.yml:3:13
       |
     3 |     reboot: 20m
       |             ^^^
    help: for example `reboot: {timeout: 20m}`
    "#);
}

#[test]
fn a_reboot_by_slurm_without_slurm() {
    insta::assert_snapshot!(refused("    reboot: {via: slurm}\n"), @r#"
    error: `via: slurm` with `drain: none`
      --> play.yml:3:19
       |
     3 |     reboot: {via: slurm}
       |                   ^^^^^ only who drained a node may have it rebooted
    help: add `drain: slurm`, or reboot over SSH: `via: ssh`
    "#);
}

#[test]
fn a_reboot_by_something_else() {
    insta::assert_snapshot!(refused("    reboot: {via: shh}\n"), @r#"
    error: unknown way to reboot `shh`
      --> play.yml:3:19
       |
     3 |     reboot: {via: shh}
       |                   ^^^ ssh or slurm
    help: did you mean `ssh`?
    "#);
}

#[test]
fn an_unknown_key_of_reboot() {
    insta::assert_snapshot!(refused("    reboot: {timeot: 20m}\n"), @r#"
    error: unknown key `timeot`
      --> play.yml:3:14
       |
     3 |     reboot: {timeot: 20m}
       |              ^^^^^^ not a key of `reboot`
    help: did you mean `timeout`?
    "#);
}

#[test]
fn an_unknown_check() {
    insta::assert_snapshot!(refused("    health_gate: [gpu_cuont]\n"), @r#"
    error: unknown check `gpu_cuont`
      --> play.yml:3:19
       |
     3 |     health_gate: [gpu_cuont]
       |                   ^^^^^^^^^ gpu_count, mig_layout, ecc, xid, persistence, fabric_manager, system, command
    help: did you mean `gpu_count`?
    "#);
}

#[test]
fn a_check_twice() {
    insta::assert_snapshot!(refused("    health_gate: [ecc, xid, ecc]\n"), @r#"
    error: `ecc` stands twice in `health_gate`
      --> play.yml:3:29
       |
     3 |     health_gate: [ecc, xid, ecc]
       |                             ^^^
    "#);
}

#[test]
fn a_check_that_is_a_number() {
    insta::assert_snapshot!(refused("    health_gate: [1]\n"), @r#"
    error: `health_gate` wants names of checks, or `command: …`, got a whole number
      --> play.yml:3:19
       |
     3 |     health_gate: [1]
       |                   ^ gpu_count, mig_layout, ecc, xid, persistence, fabric_manager, system, command
    "#);
}

#[test]
fn a_check_without_command() {
    insta::assert_snapshot!(refused("    health_gate: [command]\n"), @r#"
    error: `command` in `health_gate` needs the command
      --> play.yml:3:19
       |
     3 |     health_gate: [command]
       |                   ^^^^^^^
    help: write `- command: "/usr/local/bin/healthy"`
    "#);
}

#[test]
fn no_list_of_checks() {
    insta::assert_snapshot!(refused("    health_gate: 5\n"), @r#"
    error: `health_gate` wants a list of checks, got a whole number
      --> play.yml:3:18
       |
     3 |     health_gate: 5
       |                  ^
    help: for example `[gpu_count, mig_layout, ecc, xid]`; `[]` checks nothing
    "#);
}

#[test]
fn a_power_cycle_without_command() {
    insta::assert_snapshot!(refused("    power_cycle: {status: a}\n"), @r#"
    error: `power_cycle` needs `command`
      --> play.yml:3:18
       |
     3 |     power_cycle: {status: a}
       |                  ^
    help: for example `power_cycle: {command: "ipmitool -H bmc-{{ inventory_hostname }} … chassis power cycle"}`
    "#);
}

#[test]
fn a_power_cycle_as_a_list() {
    insta::assert_snapshot!(refused("    power_cycle: [ipmitool]\n"), @r#"
    error: `power_cycle` wants a command, or a mapping with one, got a list
      --> play.yml:3:18
       |
     3 |     power_cycle: [ipmitool]
       |                  ^
    help: for example `power_cycle: {command: "ipmitool -H bmc-{{ inventory_hostname }} … chassis power cycle"}`
    "#);
}

#[test]
fn an_unknown_key_of_power_cycle() {
    insta::assert_snapshot!(refused("    power_cycle: {command: a, comand: b}\n"), @r#"
    error: unknown key `comand`
      --> play.yml:3:31
       |
     3 |     power_cycle: {command: a, comand: b}
       |                               ^^^^^^ not a key of `power_cycle`
    help: did you mean `command`?
    "#);
}

#[test]
fn a_window_that_is_a_list() {
    insta::assert_snapshot!(refused("    window: [Sat]\n"), @r#"
    error: `window` wants text, got a list
      --> play.yml:3:13
       |
     3 |     window: [Sat]
       |             ^
    help: for example `window: "Sat 02:00-06:00 Europe/Berlin"`
    "#);
}

#[test]
fn a_window_without_a_zone() {
    insta::assert_snapshot!(refused("    window: \"Sat 02:00-06:00\"\n"), @r#"
    error: `Sat 02:00-06:00` has no time zone
      --> play.yml:3:13
       |
     3 |     window: "Sat 02:00-06:00"
       |             ^^^^^^^^^^^^^^^^^
    help: write for example `Sat 02:00-06:00 UTC` or `Sat 02:00-06:00 Europe/Berlin`
    "#);
}

#[test]
fn a_window_of_an_unknown_day() {
    insta::assert_snapshot!(refused("    window: \"Sta 02:00-06:00 UTC\"\n"), @r#"
    error: `Sta` is no day (did you mean `Sat`?)
      --> play.yml:3:13
       |
     3 |     window: "Sta 02:00-06:00 UTC"
       |             ^^^^^^^^^^^^^^^^^^^^^
    help: write `Mon` to `Sun`, a range such as `Mon-Fri`, or `daily`
    "#);
}

#[test]
fn a_window_of_an_unknown_zone() {
    insta::assert_snapshot!(refused("    window: \"Sat 02:00-06:00 Europe/Berln\"\n"), @r#"
    error: `Europe/Berln` is no time zone (did you mean `Europe/Berlin`?)
      --> play.yml:3:13
       |
     3 |     window: "Sat 02:00-06:00 Europe/Berln"
       |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    help: write `UTC` or a name of the IANA database, for example `Europe/Berlin`
    "#);
}

#[test]
fn an_empty_window() {
    insta::assert_snapshot!(refused("    window: \"\"\n"), @r#"
    error: a window without times
      --> play.yml:3:13
       |
     3 |     window: ""
       |             ^^
    help: write for example `Sat 02:00-06:00 Europe/Berlin`
    "#);
}

#[test]
fn a_block_that_is_none() {
    insta::assert_snapshot!(errors_of("- hosts: all\n  rollout: fast\n  tasks: []\n"), @r#"
    error: `rollout` wants a mapping, got a string
      --> play.yml:2:12
       |
     2 |   rollout: fast
       |            ^^^^
    help: for example `rollout: {waves: [canary, 10%], max_unavailable: 1}`
    "#);
}

#[test]
fn waves_in_two_places() {
    let text = "- hosts: all\n  rollout:\n    waves: [1]\n    max_unavailable: 2\n  waves: [2]\n  max_unavailable: 1\n  tasks: []\n";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `waves` is given twice, in the play and in its `rollout`
      --> play.yml:5:3
       |
     5 |   waves: [2]
       |   ^^^^^ the second
    note: the first is at play.yml:3:5
    help: keep one of them
    error: `max_unavailable` is given twice, in the play and in its `rollout`
      --> play.yml:6:3
       |
     6 |   max_unavailable: 1
       |   ^^^^^^^^^^^^^^^ the second
    note: the first is at play.yml:4:5
    help: keep one of them
    "#);
}

#[test]
fn serial_and_waves() {
    let text = "- hosts: all\n  serial: 2\n  rollout: {waves: [1]}\n  tasks: []\n";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `serial` and `waves` are the same thing: give one of them
      --> play.yml:2:3
       |
     2 |   serial: 2
       |   ^^^^^^
    note: `waves` is at play.yml:3:13
    "#);
}

#[test]
fn keys_of_the_block_in_the_play() {
    let text = "- hosts: all\n  drain: slurm\n  soak: 10m\n  tasks: []\n";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown key `drain`
      --> play.yml:2:3
       |
     2 |   drain: slurm
       |   ^^^^^ not a key of a play
    help: it belongs into `rollout`: `rollout: {drain: …}`
    error: unknown key `soak`
      --> play.yml:3:3
       |
     3 |   soak: 10m
       |   ^^^^ not a key of a play
    help: it belongs into `rollout`: `rollout: {soak: …}`
    "#);
}

#[test]
fn on_interrupt_of_a_declarative_task() {
    let text = "- hosts: all\n  tasks:\n    - gpu_ecc: {mode: enabled}\n      on_interrupt: rerun\n";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `on_interrupt` cannot be used with `gpu_ecc`
      --> play.yml:4:7
       |
     4 |       on_interrupt: rerun
       |       ^^^^^^^^^^^^ a key of command, shell and script
    help: leave it out: a resumed run plans this task again and does what is left
    "#);
}

#[test]
fn on_interrupt_of_another_word() {
    let text = "- hosts: all\n  tasks:\n    - {command: a, on_interrupt: reru}\n    - {command: a, on_interrupt: true}\n";
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown `on_interrupt` "reru"
      --> play.yml:3:34
       |
     3 |     - {command: a, on_interrupt: reru}
       |                                  ^^^^ hold, rerun or fail
    help: did you mean `rerun`?
    error: `on_interrupt` wants hold, rerun or fail, got a boolean
      --> play.yml:4:34
       |
     4 |     - {command: a, on_interrupt: true}
       |                                  ^^^^
    "#);
}

#[test]
fn several_at_once() {
    let count = refused(
        "    soak: soon\n    drain: {slurm: {timout: 1h}}\n    health_gate: [gpus]\n    max_unreachable: -1\n    windw: x\n",
    );
    assert_eq!(count.matches("error: ").count(), 5, "{count}");
}
