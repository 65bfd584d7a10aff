//! Commands whose text says that they disturb, and commands that take their node down without saying so.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{
    Program, RunDir, RunId, World,
    drains::Ended,
    engine, events_in, hosts, process_with, virtual_time,
    world::{Fault, boot_id, lock},
};
use crate::{
    engine::{Engine, RunResult},
    event::{NodeState, Verb, What},
};

/// A run of this playbook over three nodes.
async fn run_of(playbook: &str, world: &Arc<World>, set: impl Fn(&mut Engine)) -> Ended {
    let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
    let dir = RunDir::new(state.path(), &RunId::generate());
    let mut engine = engine(playbook, world, &hosts, 1);
    set(&mut engine);
    let (_keep, mut interrupts) = mpsc::channel(1);
    let result: RunResult = process_with(engine, world, &hosts, &dir, &mut interrupts).await.unwrap();
    let events = events_in(&dir).into_iter().map(|event| event.what).collect();
    Ended { result, events, log: lock(&world.queue.log).clone() }
}

fn world() -> Arc<World> {
    World::new(&hosts(3), false)
}

fn ran(world: &World, host: &str) -> usize {
    world.with(host, |machine| machine.ran.len())
}

const RESET: &str = "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: nvidia-smi --gpu-reset\n";

/// Nodes in the order in which they were taken out of service and came back.
fn outages(ended: &Ended) -> Vec<String> {
    let step = |what: &What| match what {
        What::PermitGranted { host, class } => Some(format!("{host} {class}")),
        What::NodeState { host, state: NodeState::Done, .. } => Some(format!("{host} back")),
        _ => None,
    };
    ended.events.iter().filter_map(step).collect()
}

#[test]
fn a_command_that_resets_gpus_goes_node_by_node_under_a_permit() {
    virtual_time(async {
        let world = world();
        let ended = run_of(RESET, &world, |_| {}).await;
        let all: Vec<String> = hosts(3).iter().map(|host| format!("{:?}", ended.state(host).0)).collect();
        assert_eq!(all, ["Done", "Done", "Done"]);
        let order = outages(&ended);
        let one_at_a_time =
            order.chunks(2).all(|pair| pair[0].ends_with("gpu-reset") && pair[1].ends_with("back"));
        assert!(order.len() == 6 && one_at_a_time, "{order:?}");

        let world = self::world();
        world.with("gpu002", |machine| machine.works = true);
        let ended = run_of(RESET, &world, |_| {}).await;
        assert_eq!(ended.state("gpu002").0, NodeState::Held, "somebody works there");
        assert_eq!([ran(&world, "gpu001"), ran(&world, "gpu002"), ran(&world, "gpu003")], [1, 0, 1]);
    });
}

#[test]
fn a_plan_shows_what_a_command_disturbs_and_runs_nothing() {
    virtual_time(async {
        let world = world();
        let ended = run_of(RESET, &world, |engine| engine.options.verb = Verb::Plan).await;
        let told = ended.events.iter().find_map(|what| match what {
            What::TaskFinished { report, .. } => report.changes.first().map(ToString::to_string),
            _ => None,
        });
        insta::assert_snapshot!(told.unwrap(), @"node running -> GPUs reset");
        assert_eq!(ran(&world, "gpu001"), 0);
        let drifts = ended.events.iter().any(|what| matches!(what, What::PermitWanted { .. }));
        assert!(!drifts, "a plan asks for no permit");
    });
}

#[test]
fn a_command_whose_variables_make_it_disturb_is_not_run_where_nobody_could_see_it() {
    virtual_time(async {
        let hidden = "- hosts: all\n  gather_facts: false\n  vars: {what: --gpu-reset}\n  tasks:\n    - command: \"nvidia-smi {{ what }}\"\n";
        let world = world();
        let ended = run_of(hidden, &world, |_| {}).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!((state, ran(&world, "gpu001")), (NodeState::Failed, 0));
        insta::assert_snapshot!(message, @"`nvidia-smi --gpu-reset` resets GPUs, which the play's text did not show before its variables were known, so that nobody could plan and agree to it; write the command out, or use the kind that does the same");
    });
}

#[test]
fn a_kind_that_stops_what_work_needs_goes_node_by_node_and_is_free_where_it_is_so() {
    virtual_time(async {
        let play = |task: &str| format!("- hosts: all\n  gather_facts: false\n  tasks:\n    - {task}\n");
        for task in [
            "service: {name: kubelet, state: stopped}",
            "{service: {name: '{{ item }}', state: stopped}, loop: [cups, kubelet]}",
        ] {
            let world = world();
            let ended = run_of(&play(task), &world, |_| {}).await;
            let order = outages(&ended);
            let one_at_a_time =
                order.chunks(2).all(|pair| pair[0].ends_with("clients") && pair[1].ends_with("back"));
            assert!(order.len() == 6 && one_at_a_time, "{task}: {order:?}");
            assert!(
                outages(&run_of(&play(task), &world, |_| {}).await).iter().all(|step| step.ends_with("back"))
            );
        }
        let hidden = "- hosts: all\n  gather_facts: false\n  vars: {unit: kubelet}\n  tasks:\n    - service: {name: '{{ unit }}', state: stopped}\n";
        let world = world();
        let plan = run_of(hidden, &world, |engine| engine.options.verb = Verb::Plan).await;
        let told = plan.events.iter().find_map(|what| match what {
            What::TaskFinished { report, .. } => report.blockers.first().cloned(),
            _ => None,
        });
        assert!(told.is_some_and(|blocker| blocker.what.contains("a run refuses it")));
        let (state, message) = run_of(hidden, &world, |_| {}).await.state("gpu001");
        assert_eq!(state, NodeState::Failed);
        insta::assert_snapshot!(message, @"`systemctl stop kubelet` stops a service that work needs, which the play's text did not show before its variables were known, so that nobody could plan and agree to it; write the name out, or the items of the loop");
        world.with("gpu001", |machine| machine.node.real.stopped.insert("kubelet".to_owned()));
        assert_eq!(run_of(hidden, &world, |_| {}).await.state("gpu001").0, NodeState::Compliant);
    });
}

const LONG: &str = "- hosts: all\n  gather_facts: false\n  max_unavailable: 1\n  strategy: free\n  tasks:\n    - command: /opt/update\n    - gpu_ecc: {mode: enabled}\n";

#[test]
fn a_node_that_a_command_took_down_counts_as_out_and_the_rest_waits_for_it() {
    virtual_time(async {
        let world = world();
        for host in ["gpu001", "gpu002"] {
            world.with(host, |machine| machine.fault = Fault::PowerCut);
        }
        // One after the other, so that the others have not begun the command when the first one goes away in it.
        let ended = run_of(LONG, &world, |engine| engine.options.forks = 1).await;
        for host in ["gpu001", "gpu002"] {
            let (state, message) = ended.state(host);
            assert_eq!(state, NodeState::Failed);
            assert!(
                message.contains("rebooted unexpectedly") && message.contains("write `reboot:`"),
                "{message}"
            );
        }
        let (state, message) = ended.state("gpu003");
        assert_eq!((state, ran(&world, "gpu003")), (NodeState::Held, 0), "{message}");
        assert!(message.contains("gpu[001,002] rebooted in this command"), "{message}");
        let granted = ended.events.iter().any(|what| matches!(what, What::PermitGranted { .. }));
        assert!(!granted, "the budget is one, and gpu001 has it");
    });
}

#[test]
fn a_plan_says_that_the_machine_of_gpufleet_itself_would_be_disturbed() {
    virtual_time(async {
        for tasks in [
            "kernel_cmdline: {add: [iommu=pt]}\n    - reboot: {when: required}",
            "command: nvidia-smi --gpu-reset",
        ] {
            let playbook = format!("- hosts: all\n  gather_facts: false\n  tasks:\n    - {tasks}\n");
            for verb in [Verb::Plan, Verb::Run] {
                let world = world();
                *lock(&world.own_boot) = Some(boot_id("gpu001", 1));
                let before = world.with("gpu001", |machine| format!("{:?}", machine.node.real));
                let ended = run_of(&playbook, &world, |engine| engine.options.verb = verb).await;
                let (state, message) = ended.state("gpu001");
                assert_eq!(state, NodeState::Held, "{message}");
                assert!(message.contains("gpufleet itself runs on this node"), "{message}");
                let after = world.with("gpu001", |machine| format!("{:?}", machine.node.real));
                assert_eq!(after, before, "nothing was changed before");
                assert_ne!(ended.state("gpu002").0, NodeState::Held);
            }
        }
    });
}

#[test]
fn a_plan_asks_the_scheduler_what_a_run_will_ask() {
    virtual_time(async {
        let world = World::new(&hosts(3), true);
        let plan = |engine: &mut Engine| engine.options.verb = Verb::Plan;
        assert_ne!(run_of(RESET, &world, plan).await.state("gpu001").0, NodeState::Held);
        *lock(&world.queue.silent) = 1000;
        let (state, message) = run_of(RESET, &world, plan).await.state("gpu001");
        assert_eq!(state, NodeState::Held, "{message}");
        assert!(message.contains("a run would hold it: queue cannot be asked: "), "{message}");
    });
}

#[test]
fn commands_that_no_permit_makes_safe_are_refused_when_the_playbook_is_read() {
    let errors = |task: &str| {
        let text = format!("- hosts: all\n  tasks:\n    - {task}\n");
        let files = std::collections::HashMap::from([
            ("play.yml".to_owned(), text),
            ("files/down.sh".to_owned(), "#!/bin/sh\nsync\npoweroff\n".to_owned()),
        ]);
        Program::load(&["play.yml"], &files).err().map(|errors| errors.to_string())
    };
    insta::assert_snapshot!(errors("command: reboot").unwrap(), @r"
    error: `reboot` reboots the node, and is not run as a command
      --> play.yml:3:16
       |
     3 |     - command: reboot
       |                ^^^^^^
    note: neither budget nor drain nor a check of the node would be around it
    help: write `reboot:` (`reboot: {when: always}` reboots in any case): it takes the node out within the budget, waits for the new boot and checks the node before it is given back
    ");
    for task in [
        "shell: sleep 2 && shutdown -r now",
        "raw: init 6",
        "command: {argv: [systemctl, reboot]}",
        "script: down.sh",
        "{shell: 'sleep {{ n }}; reboot', async: 1, poll: 0}",
        "shell: scontrol update nodename={{ inventory_hostname }} state=down reason=x",
    ] {
        assert!(errors(task).is_some_and(|text| text.contains("is not run as a command")), "{task}");
    }
    let text = errors("service: {name: poweroff.target, state: started}").unwrap();
    assert!(text.contains("takes the node down for good"), "{text}");
    let text = errors("{service: {name: kubelet, state: stopped}, run_once: true}").unwrap();
    assert!(text.contains("`run_once` cannot be used"), "{text}");
    let text = errors("{command: nvidia-smi --gpu-reset, async: 60, poll: 5}").unwrap();
    assert!(text.contains("cannot go on by itself"), "{text}");
    let text = errors("{command: nvidia-smi --gpu-reset, run_once: true}").unwrap();
    assert!(text.contains("`run_once` cannot be used"), "{text}");
    assert_eq!(errors("command: grep reboot /etc/motd"), None);
    assert_eq!(errors("command: nvidia-smi --gpu-reset"), None);
}
