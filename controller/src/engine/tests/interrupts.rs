//! Ctrl-C, and what the report says after the resumes that follow it.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::{
    PLAYBOOK, RunDir, RunId, RunResult, World, engine, events_in, hosts, process_with, virtual_time,
    world::lock,
};
use crate::{
    engine::{Confirm, Forecast, Refusal, Stop},
    event::{NodeState, RecapCounts, TaskStatus, What},
    report::RunModel,
};

/// One process, with Ctrl-C after so many calls.
async fn pressed(world: &Arc<World>, dir: &RunDir, epoch: u64, after: Option<u32>) -> RunResult {
    pressed_in(PLAYBOOK, world, dir, epoch, after).await
}

async fn pressed_in(
    playbook: &str,
    world: &Arc<World>,
    dir: &RunDir,
    epoch: u64,
    after: Option<u32>,
) -> RunResult {
    let hosts = hosts(COUNT);
    let (press, mut interrupts) = mpsc::channel(1);
    *lock(&world.press_in) = after.map(|after| (after, press.clone()));
    // Why failures: a play that a threshold stops takes nobody up again.
    let playbook = playbook.replace("  max_unavailable: 1\n", "  max_unavailable: 1\n  max_failures: 2\n");
    let engine = engine(&playbook, world, &hosts, epoch);
    let result = process_with(engine, world, &hosts, dir, &mut interrupts).await.expect("nobody kills it");
    drop(press);
    *lock(&world.press_in) = None;
    result
}

const COUNT: usize = 3;

fn model(dir: &RunDir) -> RunModel {
    RunModel::of(&events_in(dir))
}

/// What a report says of the nodes.
fn ends(dir: &RunDir) -> Vec<(String, NodeState, RecapCounts, usize)> {
    let model = model(dir);
    let end = |node: &crate::report::NodeModel| {
        let not_made = node.changes_not_made().count();
        (node.name.clone(), node.state, node.counts(), not_made)
    };
    model.nodes().iter().map(end).collect()
}

fn undisturbed() -> Vec<(String, NodeState, RecapCounts, usize)> {
    virtual_time(async {
        let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        pressed(&world, &dir, 1, None).await;
        ends(&dir)
    })
}

#[test]
fn the_report_after_two_interrupts_is_that_of_a_run_that_was_not_interrupted() {
    let expected = undisturbed();
    for first in (0..90).step_by(5) {
        for second in (1..60).step_by(17) {
            virtual_time(async {
                let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
                let dir = RunDir::new(state.path(), &RunId::generate());
                pressed(&world, &dir, 1, Some(first)).await;
                pressed(&world, &dir, 2, Some(second)).await;
                let result = pressed(&world, &dir, 3, None).await;
                assert_eq!((result.stop, result.out_of_service), (None, vec![]), "{first}, {second}");
                assert_eq!(ends(&dir), expected, "{first}, {second}");
                for host in hosts(COUNT) {
                    world.with(&host, |machine| assert_eq!(machine.node.reboots, 1, "{first}, {second}"));
                }
            });
        }
    }
}

#[test]
fn two_interrupts_of_two_plays_leave_nobody_behind() {
    let play = |name: &str, rest: &str| {
        format!(
            "- name: {name}\n  hosts: all\n  gather_facts: false\n{rest}  tasks:\n    - command: /bin/{name}\n    \
             - gpu_power: {{limit_watts: 500}}\n    - command: /bin/{name}-last\n"
        )
    };
    let two = format!("{}{}", play("rolling", "  waves: [1, 2]\n  max_unavailable: 1\n"), play("later", ""));
    let expected = virtual_time(async {
        let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        pressed_in(&two, &world, &dir, 1, None).await;
        ends(&dir)
    });
    assert!(expected.iter().all(|(_, state, ..)| *state == NodeState::Done), "{expected:?}");
    for first in (0..24).step_by(3) {
        for second in (0..24).step_by(3) {
            virtual_time(async {
                let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
                let dir = RunDir::new(state.path(), &RunId::generate());
                pressed_in(&two, &world, &dir, 1, Some(first)).await;
                pressed_in(&two, &world, &dir, 2, Some(second)).await;
                let result = pressed_in(&two, &world, &dir, 3, None).await;
                assert_eq!((result.stop, result.out_of_service), (None, vec![]), "{first}, {second}");
                assert_eq!(ends(&dir), expected, "{first}, {second}");
            });
        }
    }
}

/// Silent at first; done by a second process that is interrupted; looked at by a third.
fn put_right(begin: fn(&World), mend: fn(&World)) {
    let expected = undisturbed();
    for after in (0..90).step_by(7) {
        virtual_time(async {
            let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
            let dir = RunDir::new(state.path(), &RunId::generate());
            begin(&world);
            pressed(&world, &dir, 1, None).await;
            assert_ne!(ends(&dir), expected);
            mend(&world);
            pressed(&world, &dir, 2, Some(after)).await;
            let result = pressed(&world, &dir, 3, None).await;
            assert_eq!((result.stop, result.out_of_service), (None, vec![]), "{after}");
            assert_eq!(ends(&dir), expected, "{after}");
            // A process that finds nothing left to do says the same.
            let result = pressed(&world, &dir, 4, None).await;
            assert_eq!((result.stop, result.out_of_service), (None, vec![]), "{after}");
            assert_eq!(ends(&dir), expected, "{after}");
        });
    }
}

#[test]
fn a_node_that_did_not_answer_and_is_done_is_done_for_every_later_process() {
    put_right(
        |world| world.with("gpu002", |machine| machine.down = true),
        |world| world.with("gpu002", |machine| machine.down = false),
    );
}

#[test]
fn who_was_about_to_be_disturbed_is_stopped_and_not_held() {
    let mut stopped = 0;
    for after in (0..90).step_by(2) {
        virtual_time(async {
            let (world, state) = (World::new(&hosts(COUNT), true), tempfile::tempdir().unwrap());
            let dir = RunDir::new(state.path(), &RunId::generate());
            let result = pressed(&world, &dir, 1, Some(after)).await;
            if result.stop != Some(Stop::Interrupted) {
                return;
            }
            assert_eq!((result.held, result.out_of_service), (false, vec![]), "{after}");
            let model = model(&dir);
            for node in model.nodes() {
                assert!(matches!(node.state, NodeState::Done | NodeState::Skipped), "{after}: {node:?}");
                assert_eq!(node.counts().failed, 0, "{after}: {node:?}");
                assert_eq!(node.tasks_in(TaskStatus::Held).count(), 0, "{after}: {node:?}");
            }
            stopped += model.count(NodeState::Skipped);
            let events = events_in(&dir);
            assert!(!events.iter().any(
                |event| matches!(&event.what, What::NodeState { state, .. } if *state == NodeState::Held)
            ));
            let result = pressed(&world, &dir, 2, None).await;
            assert_eq!((result.stop, result.out_of_service), (None, vec![]), "{after}");
        });
    }
    assert!(stopped > 0);
}

/// A person who does not answer.
struct Silent;

impl Confirm for Silent {
    fn confirm<'a>(&'a self, _: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(std::future::pending())
    }

    fn is_blanket(&self) -> bool {
        false
    }
}

#[test]
fn an_interrupt_at_the_question_leaves_everything_as_it_is() {
    virtual_time(async {
        let (world, state) = (World::new(&hosts(COUNT), false), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        let (press, mut interrupts) = mpsc::channel(1);
        let mut engine = engine(PLAYBOOK, &world, &hosts(COUNT), 1);
        engine.confirm = Arc::new(Silent);
        tokio::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_secs(600)).await;
            let _ = press.send(()).await;
        });
        let result = process_with(engine, &world, &hosts(COUNT), &dir, &mut interrupts).await.unwrap();
        assert_eq!(result.stop, Some(Stop::Declined(Refusal::Interrupted)));
        let last = crate::engine::finished(130, String::new(), &result, false);
        assert_eq!((last.stopped.as_deref(), last.resumable), (Some("interrupted"), false));
        for host in hosts(COUNT) {
            world.with(&host, |machine| assert_eq!((machine.node.reboots, machine.ran.len()), (0, 0)));
        }
    });
}
