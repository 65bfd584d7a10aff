//! Hosts that are much slower than all others.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use super::{PLAYBOOK, RunDir, RunId, World, engine, events_in, hosts, started, virtual_time};
use crate::{
    engine::Recorder,
    event::{NodeState, TaskStatus, What},
    index::PlayIndex,
    journal::Journal,
    rollout::Amount,
};

/// The events of a run over twelve nodes, the second of which takes so long to answer, or never does.
fn run(slow: Duration, never: bool) -> Vec<What> {
    let hosts = hosts(12);
    let world = World::new(&hosts, false);
    world.with("gpu002", |machine| (machine.slow, machine.down) = (slow, never));
    run_in(&world, &hosts, PLAYBOOK)
}

fn run_in(world: &Arc<World>, hosts: &[String], playbook: &str) -> Vec<What> {
    virtual_time(async {
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut recorder = Recorder::new(Journal::create(&dir).unwrap(), Vec::new(), jiff::Timestamp::now);
        let (_press, mut interrupts) = mpsc::channel(1);
        let mut engine = engine(playbook, world, hosts, 1);
        engine.options.max_unavailable = Some(Amount::Count(2));
        let result = engine.run(started(hosts), &mut recorder, &mut interrupts).await.unwrap();
        recorder.finish().unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        events_in(&dir).into_iter().map(|event| event.what).collect()
    })
}

fn at(events: &[What], wanted: impl Fn(&What) -> bool) -> usize {
    events.iter().position(wanted).expect("such an event")
}

fn states(events: &[What]) -> Vec<NodeState> {
    let states = events.iter().filter_map(|what| match what {
        What::NodeFinished { outcome, .. } => Some(outcome.state),
        _ => None,
    });
    states.collect()
}

fn named(events: &[What]) -> usize {
    at(events, |what| matches!(what, What::Notice { text, .. } if text.contains("without gpu002")))
}

#[test]
fn nobody_waits_for_a_host_that_never_answers() {
    let events = run(Duration::from_secs(600), true);
    let gone = |what: &What| matches!(what, What::NodeState { host, state: NodeState::Unreachable, .. } if host == "gpu002");
    let first = at(&events, |what| matches!(what, What::WaveStarted { .. }));
    assert!(named(&events) < first && first < at(&events, gone));
    let mut expected = vec![NodeState::Done; 12];
    expected[1] = NodeState::Unreachable;
    assert_eq!(states(&events), expected);
    let last = events.iter().rev().find_map(|what| match what {
        What::WaveStarted { play: PlayIndex(0), hosts, .. } => Some(hosts.clone()),
        _ => None,
    });
    assert!(last.unwrap().contains(&"gpu002".to_owned()), "who is late goes last");
}

#[test]
fn a_late_host_joins() {
    let events = run(Duration::from_secs(30), false);
    named(&events);
    assert_eq!(states(&events), vec![NodeState::Done; 12]);
}

#[test]
fn nobody_is_late_where_all_are_slow_alike() {
    let events = run(Duration::from_millis(200), false);
    assert!(!events.iter().any(|what| matches!(what, What::Notice { .. })));
    assert_eq!(states(&events), vec![NodeState::Done; 12]);
}

/// Which host runs the task that one host runs for all, where the first of three answers so late, or never.
fn who_runs_it(slow: Duration, never: bool) -> Vec<&'static str> {
    const ONCE: &str =
        "- hosts: all\n  gather_facts: false\n  tasks: [{command: /bin/once, run_once: true}]\n";
    let hosts = hosts(3);
    let world = World::new(&hosts, false);
    world.with("gpu001", |machine| (machine.slow, machine.down) = (slow, never));
    run_in(&world, &hosts, ONCE);
    let ran = |host: &&str| world.with(host, |machine| !machine.ran.is_empty());
    ["gpu001", "gpu002", "gpu003"].into_iter().filter(ran).collect()
}

#[test]
fn the_first_host_runs_what_is_run_once_however_late_it_answers() {
    assert_eq!(who_runs_it(Duration::from_millis(200), false), ["gpu001"]);
    assert_eq!(who_runs_it(Duration::from_secs(14), false), ["gpu001"]);
    assert_eq!(who_runs_it(Duration::from_secs(15), true), ["gpu002"], "once it is known to be unreachable");
}

#[test]
fn a_play_goes_on_without_a_host_that_may_be_unreachable() {
    const FORGIVEN: &str = "- hosts: all
  gather_facts: false
  tasks:
    - {command: /bin/one, ignore_unreachable: true, register: r}
    - {command: /bin/two, when: r is not unreachable}
";
    let hosts = hosts(2);
    let world = World::new(&hosts, false);
    world.with("gpu001", |machine| machine.down = true);
    let events = run_in(&world, &hosts, FORGIVEN);
    assert_eq!(states(&events), vec![NodeState::Compliant, NodeState::Done]);
    let counts = events.iter().find_map(|what| match what {
        What::NodeFinished { host, outcome } if host == "gpu001" => Some(outcome.counts),
        _ => None,
    });
    let counts = counts.unwrap();
    assert_eq!((counts.ok, counts.ignored, counts.skipped, counts.unreachable), (1, 1, 1, 0));
}

/// Whether the task of the first host comes before the next one, which is the second host's.
fn in_order(slow: Duration, greets: bool) -> bool {
    const TURNS: &str = "- hosts: all
  gather_facts: false
  tasks:
    - {stat: {path: /one}, when: inventory_hostname == 'gpu001'}
    - {stat: {path: /two}, when: inventory_hostname == 'gpu002'}
";
    let hosts = hosts(2);
    let world = World::new(&hosts, false);
    world.with("gpu001", |machine| (machine.slow, machine.greets) = (slow, greets));
    let events = run_in(&world, &hosts, TURNS);
    let done = |name: &str| {
        at(
            &events,
            |what| matches!(what, What::TaskFinished { host, report } if host == name && report.status != TaskStatus::Skipped),
        )
    };
    done("gpu001") < done("gpu002")
}

#[test]
fn a_barrier_waits_for_a_host_that_answered_and_not_long_for_one_that_did_not() {
    assert!(in_order(Duration::from_secs(10), true));
    assert!(in_order(Duration::from_secs(2), false), "nothing is known yet of how long connecting takes");
    assert!(!in_order(Duration::from_secs(10), false));
}
