//! Silence that is not the node's: jump hosts that freeze, and a network that is gone.

use std::time::Duration;

use tokio::time::sleep;

use super::{world::Fault, *};
use crate::event::{NodeOutcome, NodeState};

const MINUTE: Duration = Duration::from_secs(60);

fn rebooting(out: usize, power: &str) -> String {
    format!(
        "- hosts: all\n  gather_facts: false\n  rollout:\n    max_unavailable: {out}\n    power_cycle: {{command: power cycle, \
         status: power status{power}}}\n  tasks:\n    - gpu_ecc: {{mode: enabled}}\n    - reboot: {{when: required, timeout: \
         20m}}\n"
    )
}

/// Only these are rebooted.
fn rebooting_only(hosts: &str, out: usize) -> String {
    rebooting(out, "").replace(
        "- gpu_ecc: {mode: enabled}",
        &format!("- {{gpu_ecc: {{mode: enabled}}, when: \"inventory_hostname in {hosts}\"}}"),
    )
}

struct Fleet {
    hosts: Vec<String>,
    world: Arc<World>,
    dir: RunDir,
    _state: tempfile::TempDir,
}

impl Fleet {
    fn new(count: usize, jump_host: bool) -> Self {
        let (hosts, state) = (hosts(count), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world::lock(&world.network).jump_host = jump_host;
        let dir = RunDir::new(state.path(), &RunId::generate());
        Self { hosts, world, dir, _state: state }
    }

    async fn run(&self, playbook: &str, epoch: u64) -> RunResult {
        process_of(playbook, &self.world, &self.hosts, &self.dir, epoch).await.unwrap()
    }

    /// Does something as soon as so many machines are down, and something else a while later.
    fn when_down(
        &self,
        count: usize,
        act: impl FnOnce(&World) + Send + 'static,
        later: Duration,
        then: impl FnOnce(&World) + Send + 'static,
    ) {
        let (world, hosts) = (Arc::clone(&self.world), self.hosts.clone());
        tokio::spawn(async move {
            while hosts.iter().filter(|host| world.with(host, |machine| machine.down)).count() < count {
                sleep(Duration::from_secs(1)).await;
            }
            act(&world);
            sleep(later).await;
            then(&world);
        });
    }

    fn events(&self) -> Vec<Event> {
        events_in(&self.dir)
    }

    fn outcomes(&self) -> Vec<NodeOutcome> {
        let events = self.events();
        let of = |host: &String| {
            let ends = events.iter().rev().find_map(|event| match &event.what {
                What::NodeFinished { host: name, outcome } if name == host => Some(outcome.clone()),
                _ => None,
            });
            ends.unwrap()
        };
        self.hosts.iter().map(of).collect()
    }

    fn states(&self) -> Vec<NodeState> {
        self.outcomes().into_iter().map(|outcome| outcome.state).collect()
    }

    /// How many ended neither changed nor as they were.
    fn unwell(&self) -> usize {
        let well = |state: &NodeState| matches!(state, NodeState::Done | NodeState::Compliant);
        self.states().iter().filter(|state| !well(state)).count()
    }

    fn messages(&self) -> String {
        let messages = self.outcomes().into_iter().filter_map(|outcome| outcome.message);
        messages.collect::<Vec<_>>().join("\n")
    }

    fn notices(&self) -> String {
        let events = self.events();
        let texts = events.iter().filter_map(|event| match &event.what {
            What::Notice { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    fn sum(&self, of: impl Fn(&mut world::Machine) -> u32) -> u32 {
        self.hosts.iter().map(|host| self.world.with(host, &of)).sum()
    }
}

#[test]
fn a_jump_host_that_freezes_in_mid_reboot_costs_no_node_its_power() {
    let fleet = virtual_time(async {
        let fleet = Fleet::new(6, true);
        fleet.when_down(2, |world| world.freeze(true), 40 * MINUTE, |world| world.freeze(false));
        let result = fleet.run(&rebooting(2, ""), 1).await;
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        fleet
    });
    assert_eq!(fleet.states(), [NodeState::Done; 6], "{}", fleet.messages());
    assert_eq!((fleet.sum(|machine| machine.cycled), fleet.sum(|machine| machine.asked)), (0, 6));
    let notices = fleet.notices();
    assert!(notices.contains("the jump host bastion1 does not answer; 6 nodes are behind it"), "{notices}");
    assert_eq!(notices.matches("does not answer").count(), 1, "told once: {notices}");
    assert!(notices.contains("the jump host bastion1 works again"), "{notices}");
}

#[test]
fn a_jump_host_that_stays_frozen_leaves_its_nodes_held_and_a_resume_ends_it() {
    let (fleet, held, result) = virtual_time(async {
        let fleet = Fleet::new(4, true);
        fleet.when_down(2, |world| world.freeze(true), MINUTE, |_| {});
        let result = fleet.run(&rebooting(2, ""), 1).await;
        assert!(result.held && result.out_of_service.len() == 2, "{result:?}");
        let held = fleet.messages();
        assert_eq!(fleet.sum(|machine| machine.cycled), 0);
        fleet.world.freeze(false);
        let result = fleet.run(&rebooting(2, ""), 2).await;
        (fleet, held, result)
    });
    assert!(held.contains("nobody can tell how it stands: the jump host bastion1 does not answer"), "{held}");
    assert!(held.contains("`gpufleet resume`"), "{held}");
    assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
    assert_eq!(fleet.states(), [NodeState::Done; 4], "{}", fleet.messages());
    assert_eq!((fleet.sum(|machine| machine.cycled), fleet.sum(|machine| machine.asked)), (0, 4));
}

#[test]
fn a_dead_node_beside_living_ones_is_still_power_cycled() {
    for jump_host in [true, false] {
        let fleet = virtual_time(async {
            let fleet = Fleet::new(4, jump_host);
            fleet.world.with("gpu002", |machine| {
                machine.fault = Fault::NeverBack;
                machine.refuses = false;
            });
            fleet.run(&rebooting(2, ""), 1).await;
            fleet
        });
        assert_eq!(fleet.states(), [NodeState::Done; 4], "{}", fleet.messages());
        assert_eq!(fleet.sum(|machine| machine.cycled), 1);
        fleet.world.with("gpu002", |machine| assert_eq!(machine.cycled, 1));
    }
}

#[test]
fn a_node_that_shares_its_way_with_nobody_is_power_cycled_at_the_word_of_its_bmc_alone() {
    let told = |power: &str, hung: bool| {
        let fleet = virtual_time(async {
            let fleet = Fleet::new(1, false);
            fleet.world.with("gpu001", |machine| {
                machine.fault = Fault::NeverBack;
                (machine.refuses, machine.hung) = (false, hung);
            });
            fleet.run(&rebooting(1, power), 1).await;
            fleet
        });
        (fleet.states()[0], fleet.sum(|machine| machine.cycled), fleet.messages())
    };
    let (state, cycled, message) = told("", true);
    assert_eq!((state, cycled), (NodeState::Held, 0));
    assert!(message.contains("was not power cycled: nothing shows that the way to it works"), "{message}");
    assert_eq!(told(", hung: power hung", true).1, 1);
    assert_eq!(told(", hung: power hung", false).1, 0);
}

#[test]
fn no_more_are_power_cycled_in_an_hour_than_allowed_whichever_process_does_it() {
    let (fleet, first) = virtual_time(async {
        let fleet = Fleet::new(4, false);
        for host in &fleet.hosts {
            fleet.world.with(host, |machine| machine.fault = Fault::NeverBack);
        }
        fleet.run(&rebooting(4, ""), 1).await;
        let first = (fleet.sum(|machine| machine.cycled), fleet.messages());
        fleet.run(&rebooting(4, ""), 2).await;
        (fleet, first)
    });
    assert_eq!(first.0, 2);
    assert!(first.1.contains("this run has power cycled 2 in the last hour"), "{}", first.1);
    assert_eq!(fleet.sum(|machine| machine.cycled), 2, "a resume counts what the journal has");
    assert_eq!(fleet.states().iter().filter(|state| **state == NodeState::Held).count(), 2);
}

#[test]
fn a_fleet_that_falls_silent_at_once_is_no_fleet_that_died() {
    for returns in [true, false] {
        let fleet = virtual_time(async {
            let fleet = Fleet::new(6, false);
            let all = fleet.hosts.clone();
            let back = move |world: &World| {
                if returns {
                    world.cut(&[])
                }
            };
            fleet.when_down(2, move |world| world.cut(&all), 40 * MINUTE, back);
            fleet.run(&rebooting(2, ""), 1).await;
            fleet
        });
        assert_eq!(fleet.sum(|machine| machine.cycled), 0);
        let (states, notices) = (fleet.states(), fleet.notices());
        assert!(notices.contains("the network of the machine that gpufleet runs on"), "{notices}");
        match returns {
            true => assert_eq!(states, [NodeState::Done; 6], "{}", fleet.messages()),
            false => assert!(!states.contains(&NodeState::Done), "{states:?}"),
        }
    }
}

#[test]
fn nobody_is_disturbed_while_most_of_the_fleet_is_silent() {
    for returns in [true, false] {
        let (fleet, meanwhile) = virtual_time(async {
            let fleet = Fleet::new(6, false);
            let (lost, world) = (fleet.hosts[2..].to_vec(), Arc::clone(&fleet.world));
            let meanwhile = Arc::new(std::sync::Mutex::new(0));
            let (seen, hosts) = (Arc::clone(&meanwhile), fleet.hosts.clone());
            let back = move |_: &World| {
                *seen.lock().unwrap() =
                    hosts.iter().map(|host| world.with(host, |machine| machine.asked)).sum();
                if returns {
                    world.cut(&[]);
                }
            };
            fleet.when_down(1, move |world| world.cut(&lost), 20 * MINUTE, back);
            fleet.run(&rebooting(1, ""), 1).await;
            (fleet, Arc::try_unwrap(meanwhile).unwrap().into_inner().unwrap())
        });
        assert_eq!(meanwhile, 1, "the one that was down by then, and nobody else");
        let (states, notices) = (fleet.states(), fleet.notices());
        assert!(notices.contains("fell silent at once (gpu[003-006])"), "{notices}");
        assert_eq!(fleet.sum(|machine| machine.cycled), 0);
        match returns {
            true => assert_eq!(states, [NodeState::Done; 6], "{}", fleet.messages()),
            false => {
                assert_eq!(states, [NodeState::Held; 6], "{}", fleet.messages());
                assert_eq!(fleet.sum(|machine| machine.asked), 1);
            }
        }
    }
}

/// Cuts off the second half of twelve nodes while the first two of them reboot.
async fn dead_switch(jump_host: bool, rejects: bool, returns: bool) -> Fleet {
    let fleet = Fleet::new(12, jump_host);
    world::lock(&fleet.world.network).rejects = rejects;
    let half = fleet.hosts[6..].to_vec();
    let back = move |world: &World| {
        if returns {
            world.cut(&[])
        }
    };
    fleet.when_down(2, move |world| world.cut(&half), 40 * MINUTE, back);
    fleet.run(&rebooting_only("['gpu007', 'gpu008']", 2), 1).await;
    fleet
}

#[test]
fn a_dead_switch_before_a_part_of_the_fleet_costs_no_node_its_power() {
    for (jump_host, rejects) in [(false, false), (true, false), (false, true)] {
        for returns in [true, false] {
            let fleet = virtual_time(dead_switch(jump_host, rejects, returns));
            assert_eq!(fleet.sum(|machine| machine.cycled), 0, "{jump_host} {rejects} {returns}");
            let (notices, messages) = (fleet.notices(), fleet.messages());
            assert!(
                notices.contains("fell silent, too, while others") && notices.contains("a switch or a rack"),
                "{notices}"
            );
            match returns {
                true => {
                    let done = fleet.states().iter().filter(|state| **state == NodeState::Done).count();
                    assert_eq!((done, fleet.unwell()), (2, 0), "{messages}");
                }
                false => {
                    assert_eq!(fleet.states()[6..8], [NodeState::Held; 2], "{messages}");
                    assert!(messages.contains("nobody can tell how it stands"), "{messages}");
                }
            }
        }
    }
}

#[test]
fn a_resume_remembers_who_was_heard_behind_a_dead_switch() {
    let fleet = virtual_time(async {
        let fleet = dead_switch(false, false, false).await;
        fleet.run(&rebooting_only("['gpu007', 'gpu008']", 2), 2).await;
        fleet
    });
    assert_eq!(fleet.sum(|machine| machine.cycled), 0, "{}", fleet.messages());
}

#[test]
fn nodes_that_died_long_before_say_nothing_of_another_one() {
    let fleet = virtual_time(async {
        let fleet = Fleet::new(8, false);
        fleet.world.with("gpu001", |machine| machine.fault = Fault::Starts(10 * MINUTE));
        fleet.world.with("gpu002", |machine| {
            machine.fault = Fault::NeverBack;
            machine.refuses = false;
        });
        let dead = fleet.hosts[5..].to_vec();
        fleet.when_down(1, move |world| world.cut(&dead), MINUTE, |_| {});
        fleet.run(&rebooting_only("['gpu001', 'gpu002']", 1), 1).await;
        fleet
    });
    fleet.world.with("gpu002", |machine| assert_eq!(machine.cycled, 1));
    assert_eq!(fleet.states()[..2], [NodeState::Done; 2], "{}", fleet.messages());
}

#[test]
fn many_silent_nodes_ask_the_others_no_more_often_than_one() {
    let asked = |nodes: &'static str, out: usize| {
        let fleet = virtual_time(async move {
            let fleet = Fleet::new(12, true);
            fleet.when_down(out, |world| world.freeze(true), 60 * MINUTE, |_| {});
            fleet.run(&rebooting_only(nodes, out), 1).await;
            fleet
        });
        fleet.sum(|machine| machine.cycled * 1000 + machine.tried)
    };
    let one = asked("['gpu006']", 1);
    let six = asked("['gpu004', 'gpu005', 'gpu006', 'gpu007', 'gpu008', 'gpu009']", 6);
    assert!(six < 3 * one, "{six} connections for six, {one} for one");
}

#[test]
fn nodes_that_wait_for_a_silent_way_leave_their_places_to_others() {
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: /bin/first\n    - pause: {seconds: 120}\n    - command: \
                    /bin/second\n";
    let (fleet, took) = virtual_time(async {
        let fleet = Fleet::new(6, false);
        let world = Arc::clone(&fleet.world);
        let took = tokio::spawn(async move {
            let ran = async |host: &str, count: usize| {
                while world.with(host, |machine| machine.ran.len()) < count {
                    sleep(Duration::from_millis(100)).await;
                }
            };
            ran("gpu006", 1).await;
            let begin = tokio::time::Instant::now();
            world.cut(&hosts(3));
            for host in ["gpu004", "gpu005", "gpu006"] {
                ran(host, 2).await;
            }
            begin.elapsed()
        });
        let mut engine = engine(playbook, &fleet.world, &fleet.hosts, 1);
        engine.options.forks = 2;
        let (_press, mut interrupts) = mpsc::channel(1);
        process_with(engine, &fleet.world, &fleet.hosts, &fleet.dir, &mut interrupts).await.unwrap();
        (fleet, took.await.unwrap())
    });
    assert!(took < 10 * MINUTE, "{took:?}");
    assert_eq!(fleet.states()[3..], [NodeState::Done; 3], "{}", fleet.messages());
}

#[test]
fn a_node_that_comes_back_while_the_others_are_asked_is_looked_at_once_more() {
    let fleet = virtual_time(async {
        let fleet = Fleet::new(5, false);
        // Why one that is cut off: asking it takes a minute, in which the node comes back.
        let lost = fleet.hosts[4..].to_vec();
        fleet.when_down(1, move |world| world.cut(&lost), MINUTE, |_| {});
        let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {gpu_ecc: {mode: enabled}, when: \"inventory_hostname == \
                        'gpu001'\"}\n    - reboot: {when: required, timeout: 70s}\n";
        fleet.run(playbook, 1).await;
        fleet
    });
    assert_eq!(fleet.states()[0], NodeState::Done, "{}", fleet.messages());
}
