//! Linear plays whose budget turns out to be smaller than their batch: those who are out make place for the others.

use std::time::Duration;

use super::{world::Fault, *};
use crate::{event::NodeState, rollout::Amount};

const LINEAR: &str = "- hosts: all\n  gather_facts: false\n  strategy: linear\n  max_unavailable: 2\n  waves: [2]\n  tasks:\n    \
                      - gpu_ecc: {mode: enabled}\n    - reboot: {when: required, timeout: 20m}\n    \
                      - {command: /bin/once, run_once: true}\n    - command: /bin/after\n";

/// Ends, or waits for itself for ever.
async fn ends(engine: Engine, world: &Arc<World>, hosts: &[String], dir: &RunDir) -> RunResult {
    let (_press, mut interrupts) = mpsc::channel(1);
    let run = process_with(engine, world, hosts, dir, &mut interrupts);
    tokio::time::timeout(Duration::from_secs(100_000), run).await.expect("it waits for itself").unwrap()
}

fn state_of(dir: &RunDir, host: &str) -> NodeState {
    let events = events_in(dir);
    let mut ends = events.iter().filter_map(|event| match &event.what {
        What::NodeFinished { host: name, outcome } if name == host => Some(outcome.state),
        _ => None,
    });
    ends.next_back().unwrap()
}

#[test]
fn one_that_stays_out_leaves_a_place_for_one_at_a_time() {
    virtual_time(async {
        let (hosts, state) = (hosts(6), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with("gpu001", |machine| machine.fault = Fault::NeverBack);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let result = ends(engine(LINEAR, &world, &hosts, 1), &world, &hosts, &dir).await;
        assert_eq!(result.out_of_service, ["gpu001"]);
        for host in &hosts[1..] {
            assert_eq!(state_of(&dir, host), NodeState::Done, "{host}");
        }
        assert_eq!(*world::lock(&world.most_down), 2, "the budget holds");
        let once =
            |host: &String| world.with(host, |it| it.ran.iter().filter(|line| line.contains("once")).count());
        assert_eq!(hosts.iter().map(once).collect::<Vec<_>>(), [0, 1, 1, 0, 1, 0], "once a wave");
    });
}

#[test]
fn a_budget_that_only_the_command_line_makes_smaller_is_kept() {
    virtual_time(async {
        let (hosts, state) = (hosts(4), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut engine = engine(LINEAR, &world, &hosts, 1);
        engine.options.max_unavailable = Some(Amount::Count(1));
        assert_eq!(ends(engine, &world, &hosts, &dir).await.out_of_service, Vec::<String>::new());
        assert_eq!(*world::lock(&world.most_down), 1);
    });
}
