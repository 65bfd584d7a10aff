//! Hosts that are much slower than all others.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{PLAYBOOK, RunDir, RunId, World, engine, hosts, read_for_resume, started, virtual_time};
use crate::{
    engine::Recorder,
    event::{NodeState, What},
    journal::Journal,
    rollout::Amount,
};

/// The events of a run over twelve nodes, one of which takes so long to answer, or never does.
fn run(slow: Duration, never: bool) -> Vec<What> {
    virtual_time(async {
        let (hosts, state) = (hosts(12), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with("gpu002", |machine| (machine.slow, machine.down) = (slow, never));
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut recorder = Recorder::new(Journal::create(&dir).unwrap(), Vec::new(), jiff::Timestamp::now);
        let (_press, mut interrupts) = mpsc::channel(1);
        let mut engine = engine(PLAYBOOK, &world, &hosts, 1);
        engine.options.max_unavailable = Some(Amount::Count(2));
        let result = engine.run(started(&hosts), &mut recorder, &mut interrupts).await.unwrap();
        recorder.finish().unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        read_for_resume(&dir).unwrap().into_iter().map(|event| event.what).collect()
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
        What::WaveStarted { play: 0, hosts, .. } => Some(hosts.clone()),
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
