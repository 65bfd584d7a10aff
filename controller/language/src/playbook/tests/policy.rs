//! The `rollout` block: what it means, and what is checked with the hosts known.

use std::collections::BTreeSet;

use gpufleet_protocol::health::HealthCheck;
use proptest::prelude::*;

use super::{errors_of, load, play};
use crate::playbook::{
    Amount, CommandDrain, Drain, Gate, HookSpans, Known, NoDrain, Notice, NoticeHow, OnInterrupt, Overrides,
    Policy, PowerCycle, RebootPolicy, RebootVia, SlurmDrain, Wave,
};
use crate::template::Value;
use crate::window::Window;

/// A play with this block, indented as it stands.
pub(super) fn with_rollout(block: &str) -> String {
    format!("- hosts: all\n  rollout:\n{block}  tasks:\n    - gpu_ecc: {{mode: enabled}}\n")
}

fn policy(block: &str) -> Policy {
    Policy::clone(&play(&with_rollout(block)).policy)
}

fn slurm(block: &str) -> SlurmDrain {
    match policy(block).drain {
        Drain::Slurm(slurm) => slurm,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_written_is_careful() {
    let play = play("- hosts: all\n  tasks:\n    - debug: {msg: a}\n");
    let policy = &play.policy;
    assert_eq!(**policy, Policy::default());
    assert_eq!(policy.drain, Drain::None(NoDrain));
    assert_eq!(
        policy.health_gate,
        [
            Gate::Check(HealthCheck::GpuCount),
            Gate::Check(HealthCheck::MigLayout),
            Gate::Check(HealthCheck::Ecc)
        ]
    );
    assert!(policy.gate_is_default);
    assert_eq!(policy.reboot, RebootPolicy { timeout_s: 1200, via: RebootVia::Ssh });
    assert_eq!((policy.soak_s, policy.max_unavailable_per_domain), (0, None));
    assert_eq!((&policy.power_cycle, &policy.window), (&None, &None));
}

#[test]
fn an_empty_block_says_nothing() {
    let play = play("- hosts: all\n  rollout:\n  tasks: []\n");
    assert_eq!(*play.policy, Policy::default());
}

#[test]
fn the_whole_block() {
    let play = play(&with_rollout(
        r#"    waves: [canary, 5%, 25%]
    max_unavailable: 10%
    failure_domain: rack
    max_unavailable_per_domain: 2
    max_failures: 2
    max_unreachable: 3
    max_fail_percentage: 20
    soak: 10m
    window: "Sat 02:00-06:00 Europe/Berlin"
    drain: {slurm: {timeout: 2h}}
    reboot: {timeout: 25m, via: slurm}
    health_gate: [gpu_count, persistence, fabric_manager, command: "/opt/ok {{ inventory_hostname }}"]
    power_cycle: {command: "cycle {{ bmc }}", status: "status {{ bmc }}", hung: "hung {{ bmc }}", max_per_hour: 3, timeout: 15m}
"#,
    ));
    assert_eq!(play.waves, [Wave::Canary, Wave::Percent(5.0), Wave::Percent(25.0)]);
    assert_eq!(play.max_unavailable, Amount::Percent(10.0));
    assert_eq!((play.max_failures, play.max_fail_percentage), (Some(2), Some(20.0)));
    let policy = &play.policy;
    assert_eq!(policy.failure_domain.as_deref(), Some("rack"));
    assert_eq!(policy.max_unavailable_per_domain, Some(Amount::Count(2)));
    assert_eq!((policy.max_unreachable, policy.soak_s), (Some(3), 600));
    assert_eq!(policy.window, Window::parse("Sat 02:00-06:00 Europe/Berlin").ok());
    assert_eq!(policy.drain, Drain::Slurm(SlurmDrain { timeout_s: 7200, ..SlurmDrain::default() }));
    assert_eq!(policy.reboot, RebootPolicy { timeout_s: 1500, via: RebootVia::Scheduler });
    assert_eq!(
        policy.health_gate,
        [
            Gate::Check(HealthCheck::GpuCount),
            Gate::Check(HealthCheck::Persistence),
            Gate::Check(HealthCheck::FabricManager),
            Gate::Command(Value::text("/opt/ok {{ inventory_hostname }}")),
        ]
    );
    assert!(!policy.gate_is_default);
    let cycle = PowerCycle {
        command: Value::text("cycle {{ bmc }}"),
        status: Some(Value::text("status {{ bmc }}")),
        hung: Some(Value::text("hung {{ bmc }}")),
        max_per_hour: 3,
        timeout_s: 900,
    };
    assert_eq!(policy.power_cycle, Some(cycle));
}

#[test]
fn a_gate_takes_every_check_there_is() {
    let words: Vec<&str> = HealthCheck::ALL.iter().map(|check| check.word()).collect();
    let written = policy(&format!("    health_gate: [{}, command: /opt/ok]\n", words.join(", ")));
    assert_eq!(written.checks(), HealthCheck::ALL);
    assert_eq!(written.gate_commands(), [Value::text("/opt/ok")]);
}

#[test]
fn the_command_line_wins() {
    let written = policy("    window: daily 01:00-02:00 UTC\n    soak: 10m\n");
    assert_eq!(written.overridden(&Overrides::default()), written);
    let window = Window::parse("Sat 02:00-06:00 UTC").ok();
    let said = Overrides { window: window.clone(), soak_s: Some(0), ..Overrides::default() };
    assert_eq!(written.overridden(&said), Policy { window, soak_s: 0, ..written });
}

#[test]
fn the_examples_of_the_guide() {
    let guide = [
        include_str!("../../../../../docs/guide/rollout.md"),
        include_str!("../../../../../docs/guide/drains.md"),
        include_str!("../../../../../docs/guide/reboots.md"),
    ]
    .concat();
    let mut read = 0;
    for block in guide.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap_or_default();
        let whole = text.starts_with("- ");
        let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
        let text = if whole { text.to_owned() } else { with_rollout(&indented) };
        if let Err(errors) = load(&text) {
            panic!("{errors}");
        }
        read += 1;
    }
    assert_eq!(read, 7);
}

#[test]
fn a_domain_lets_one_go_unless_it_says_more() {
    assert_eq!(policy("    failure_domain: rack\n").max_unavailable_per_domain, Some(Amount::Count(1)));
}

#[test]
fn slurm_in_all_forms() {
    for block in ["    drain: slurm\n", "    drain: {slurm: }\n", "    drain:\n      slurm: {}\n"] {
        assert_eq!(slurm(block), SlurmDrain::default(), "{block}");
    }
    assert_eq!(SlurmDrain::default().node, Value::text("{{ inventory_hostname }}"));
    let full = slurm(
        "    drain:\n      slurm: {timeout: 90m, node: \"{{ slurm_name }}\", login: login1, notice: {signal: sigusr1, deadline: 10m}}\n",
    );
    assert_eq!((full.timeout_s, full.node), (5400, Value::text("{{ slurm_name }}")));
    assert_eq!(full.login.map(|login| login.host).as_deref(), Some("login1"));
    assert_eq!(full.notice, Some(Notice { how: NoticeHow::Signal("USR1".to_owned()), deadline_s: 600 }));
    for block in ["notice: requeue", "notice: {requeue: true, deadline: 300}"] {
        let notice = slurm(&format!("    drain: {{slurm: {{{block}}}}}\n")).notice;
        assert_eq!(notice, Some(Notice { how: NoticeHow::Requeue, deadline_s: 300 }), "{block}");
    }
    assert_eq!(policy("    drain: none\n").drain, Drain::None(NoDrain));
    assert_eq!(policy("    drain: {none: }\n").drain, Drain::None(NoDrain));
}

#[test]
fn commands_that_drain() {
    let drain = policy(
        r#"    drain:
      command:
        drain: "kubectl cordon {{ inventory_hostname }}"
        is_idle: "test -z $(pods {{ inventory_hostname }})"
        resume: "kubectl uncordon {{ inventory_hostname }}"
        notice: "warn {{ inventory_hostname }}"
"#,
    )
    .drain;
    let expected = CommandDrain {
        drain: Value::text("kubectl cordon {{ inventory_hostname }}"),
        is_idle: Value::text("test -z $(pods {{ inventory_hostname }})"),
        resume: Value::text("kubectl uncordon {{ inventory_hostname }}"),
        still_ours: None,
        out: None,
        notice: Some(Value::text("warn {{ inventory_hostname }}")),
        timeout_s: 1800,
        notice_deadline_s: 300,
        spans: HookSpans::default(),
    };
    assert_eq!(drain.worst_case_s(), 2100);
    assert_eq!(drain, Drain::Command(expected));
}

#[test]
fn a_reboot_task_takes_the_timeout_of_the_block() {
    let reboot = |task: &str| {
        let text = format!("- hosts: all\n  rollout: {{reboot: {{timeout: 25m}}}}\n  tasks:\n    - {task}\n");
        let play = play(&text);
        format!("{:?}", play.tasks()[0].params.fixed)
    };
    assert!(reboot("reboot:").contains("timeout: 1500"), "{}", reboot("reboot:"));
    assert!(reboot("reboot: {timeout: 5m}").contains("timeout: 300"));
    assert!(reboot("reboot: {reboot_timeout: 600}").contains("timeout: 600"));
}

#[test]
fn an_interrupted_command() {
    let task = |text: &str| {
        let play = play(&format!("- hosts: all\n  tasks:\n    - {text}\n"));
        play.tasks()[0].on_interrupt
    };
    assert_eq!(task("command: make"), OnInterrupt::Hold);
    assert_eq!(task("{shell: make, on_interrupt: rerun}"), OnInterrupt::Rerun);
    assert_eq!(task("{script: a.sh, on_interrupt: fail}"), OnInterrupt::Fail);
}

#[test]
fn the_variables_of_hooks_are_checked() {
    let text = with_rollout("    power_cycle: \"cycle {{ bmc_adress }}\"\n");
    insta::assert_snapshot!(errors_of(&text), @r#"
    error: the variable `bmc_adress` is not defined
      --> play.yml:3:28
       |
     3 |     power_cycle: "cycle {{ bmc_adress }}"
       |                            ^^^^^^^^^^ no inventory, play or earlier task sets it
    help: set it in the inventory or the play, give it with `-e bmc_adress=…`, or use `bmc_adress | default(…)`
    "#);
}

#[test]
fn a_failure_domain_that_nobody_has() {
    let program = load(&with_rollout("    failure_domain: rak\n")).unwrap();
    let known = Known { variables: ["rack", "row"].map(str::to_owned).into() };
    insta::assert_snapshot!(program.check_variables(&known).to_string(), @r#"
    error: no host of the play has the variable `rak`
      --> play.yml:3:21
       |
     3 |     failure_domain: rak
       |                     ^^^ hosts without it have no failure domain
    help: did you mean `rack`?
    "#);
    let known = Known { variables: BTreeSet::from(["rak".to_owned()]) };
    assert!(program.check_variables(&known).is_empty());
    insta::assert_snapshot!(program.check_variables(&Known::default()).to_string(), @r#"
    error: no host of the play has the variable `rak`
      --> play.yml:3:21
       |
     3 |     failure_domain: rak
       |                     ^^^ hosts without it have no failure domain
    help: set `rak` for hosts or groups in the inventory
    "#);
}

#[test]
fn a_login_host_that_is_not_there() {
    let program = load(&with_rollout("    drain: {slurm: {login: login9}}\n")).unwrap();
    assert!(program.check_logins(|host| host == "login9").is_empty());
    insta::assert_snapshot!(program.check_logins(|_| false).to_string(), @r#"
    error: the inventory has no host `login9`
      --> play.yml:3:28
       |
     3 |     drain: {slurm: {login: login9}}
       |                            ^^^^^^ `scontrol` is to run there
    help: add it to the inventory, or leave `login` out to run `scontrol` on this machine
    "#);
}

#[test]
fn a_budget_of_nobody() {
    let play = play(&with_rollout("    max_unavailable: 10%\n"));
    assert_eq!(play.budget(10, false).unwrap(), 1);
    assert_eq!(play.budget(1, true).unwrap(), 1, "a share of what a limit leaves is at least one");
    insta::assert_snapshot!(play.budget(9, false).unwrap_err().to_string(), @r#"
    error: `max_unavailable: 10%` of 9 hosts is none: no node could ever be disturbed
      --> play.yml:3:22
       |
     3 |     max_unavailable: 10%
       |                      ^^^
    help: give a number such as `1`, or a larger percentage
    "#);
}

/// Text that is near to a `rollout` block.
fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9%: {}\\[\\],\"'.-]{0,16}",
        proptest::sample::select(vec![
            "none",
            "slurm",
            "command",
            "kubernetes",
            "10m",
            "0",
            "-1",
            "1",
            "150%",
            "10%",
            "null",
            "[]",
            "{}",
            "true",
            "{slurm: {timeout: 2h}}",
            "{kubernetes: {kubeconfig: ~/.kube/prod, grace_period: 0s, skip_namespaces: a}}",
            "{kubernetes: {mig_manager: {label: all-1g.10gb}}}",
            "{kubectl: {login: l, kubeconfig: a}}",
            "{kubernetes: {lock: a/b, mig_manager: takeover, force: yes}}",
            "{slurm: {notice: {signal: USR1}}}",
            "{slurm: {notice: {requeue: yes, signal: 9}}}",
            "{command: {drain: a, is_idle: b, resume: c}}",
            "{command: {drain: [a]}}",
            "{none: 1}",
            "{slurm: 1, none: 2}",
            "[gpu_count, ecc, ecc]",
            "[command: x]",
            "[command]",
            "{timeout: 99999999999999999999}",
            "{via: slurm}",
            "\"{{ a\"",
            "\"{{ a }}\"",
            "rack",
            "99999d",
            "Sat 02:00-06:00 UTC",
            "!vault x",
            "1.5",
            "2026-01-01",
        ])
        .prop_map(ToOwned::to_owned),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(vec![
            "waves", "max_unavailable", "max_failures", "max_fail_percentage", "failure_domain",
            "max_unavailable_per_domain", "max_unreachable", "soak", "window", "drain", "reboot", "health_gate",
            "power_cycle",
        ])
        .prop_map(ToOwned::to_owned),
        1 => "[a-z_]{1,10}",
    ]
}

proptest! {
    #[test]
    fn no_block_makes_it_panic(entries in proptest::collection::vec((key(), scalar()), 0..8)) {
        let block: String = entries.iter().map(|(key, value)| format!("    {key}: {value}\n")).collect();
        let text = with_rollout(&block);
        match load(&text) {
            Ok(program) => {
                let _ = program.check_variables(&Known::default()).to_string();
                let policy = &program.plays[0].policy;
                prop_assert!(policy.soak_s <= 30 * 86_400);
                prop_assert!(policy.drain.worst_case_s() <= 60 * 86_400);
            }
            Err(errors) => prop_assert!(errors.to_string().contains("play.yml:")),
        }
    }
}
