//! Nodes that their scheduler does not take back, or that somebody took over while their drain is to be undone.

use std::sync::Arc;
use std::time::Duration;

use super::{Holder, RunDir, RunId, World, events_in, hosts, process, process_of, virtual_time, world::lock};
use crate::event::{DrainStep, What};

fn steps(dir: &RunDir, host: &str) -> Vec<DrainStep> {
    let of = events_in(dir).into_iter().filter_map(|event| match event.what {
        What::Drain { host: name, step } if name == host => Some(step),
        _ => None,
    });
    of.collect()
}

#[test]
fn a_node_is_given_back_once_and_the_reason_is_told_once() {
    virtual_time(async {
        let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, true);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let falls_silent = Arc::clone(&world);
        tokio::spawn(async move {
            while falls_silent.with("gpu001", |machine| machine.asked) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            *lock(&falls_silent.queue.silent) = u32::MAX;
        });
        let playbook = "- hosts: all\n  gather_facts: false\n  tasks: [{reboot: {when: always}}]\n";
        let result = process_of(playbook, &world, &hosts, &dir, 1).await.unwrap();
        assert_eq!((result.held, result.out_of_service), (true, vec!["gpu001".to_owned()]));
        let steps = steps(&dir, "gpu001");
        let stuck = steps.iter().filter(|step| matches!(step, DrainStep::Stuck { .. })).count();
        assert_eq!(stuck, 1, "{steps:?}");
        let message = events_in(&dir).into_iter().find_map(|event| match event.what {
            What::NodeFinished { outcome, .. } => outcome.message,
            _ => None,
        });
        let message = message.unwrap_or_default();
        assert_eq!(message.matches("could not be given back").count(), 1, "{message}");
    });
}

#[test]
fn marks_on_a_node_that_somebody_took_over_in_its_drain_are_taken_off_by_a_resume() {
    virtual_time(async {
        let (hosts, state) = (hosts(1), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, true);
        let dir = RunDir::new(state.path(), &RunId::generate());
        lock(&world.queue.held).insert("gpu001".to_owned(), Holder::Person("alice"));
        *lock(&world.queue.keeps_marks) = true;
        let result = process(&world, &hosts, &dir, 1).await.unwrap();
        assert!(result.held);
        let first = steps(&dir, "gpu001");
        assert!(matches!(first.last(), Some(DrainStep::Stuck { why }) if why.contains("alice")), "{first:?}");
        *lock(&world.queue.keeps_marks) = false;
        process(&world, &hosts, &dir, 2).await.unwrap();
        let last = steps(&dir, "gpu001");
        let is_over = matches!(last.last(), Some(DrainStep::Refused { .. } | DrainStep::LeftTo { .. }));
        assert!(is_over, "{last:?}");
        assert_eq!(world.queue.holder("gpu001"), Some(Holder::Person("alice")));
    });
}
