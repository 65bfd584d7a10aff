//! How nodes come back to their scheduler: by this run, or by people in between.

use std::{sync::Arc, time::Duration};

use super::{
    drains::{Ended, given_back_in_mid_reboot, run, world},
    world::lock,
    *,
};
use crate::{engine::Overrules, event::NodeState};

impl Ended {
    fn said(&self, text: &str) -> bool {
        self.events.iter().any(|what| matches!(what, What::Notice { text: said, .. } if said.contains(text)))
    }
}

/// What the screen showed of hosts that are given back.
fn shown(events: &[What]) -> Vec<&str> {
    let details = events.iter().filter_map(|what| match what {
        What::NodeState { state: NodeState::Resuming, detail: Some(detail), .. } => Some(detail.as_str()),
        _ => None,
    });
    details.collect()
}

#[test]
fn what_a_node_waits_for_that_is_given_back_reaches_the_screen() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.waits) =
            Some((Duration::from_secs(30), "it is not ready (KubeletReady)".to_owned()));
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(shown(&ended.events), ["waits: it is not ready (KubeletReady)"; 3]);
    });
}

#[test]
fn what_slipped_through_between_the_proof_and_the_act_is_told() {
    virtual_time(async {
        let world = world();
        lock(&world.queue.slips).insert("gpu001".to_owned());
        let ended = run(&world, Overrules::default(), None).await;
        let text = "gpu001: somebody gave it back to queue at the very moment in which it was disturbed: look what started";
        assert!(ended.said(text));
        assert!(!ended.said("gpu002: somebody"));
    });
}

#[test]
fn the_scheduler_reads_why_a_node_is_rebooted_and_which_one_it_is() {
    virtual_time(async {
        let (hosts, world, state) = (hosts(2), world(), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        let playbook = "- hosts: all\n  gather_facts: false\n  tasks: [{reboot: {when: always}}]\n";
        process_of(playbook, &world, &hosts, &dir, 1).await.unwrap();
        let reasons = lock(&world.queue.reasons).clone();
        assert_eq!(reasons["gpu001"], "reboot on gpu001");
    });
}

#[test]
fn marks_that_cannot_be_taken_off_are_kept_for_a_resume() {
    virtual_time(async {
        let (hosts, world, state) = (hosts(2), world(), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        given_back_in_mid_reboot(&world, false);
        *lock(&world.queue.keeps_marks) = true;
        let steps = |dir: &RunDir| {
            let events = events_in(dir).into_iter();
            let of = events.filter_map(|event| match event.what {
                What::Drain { host, step } if host == "gpu001" => Some(step),
                _ => None,
            });
            of.collect::<Vec<_>>()
        };
        let result = process(&world, &hosts, &dir, 1).await.unwrap();
        // Why not out of service: it takes work.
        assert_eq!((result.held, result.out_of_service), (true, Vec::new()));
        let left = steps(&dir);
        assert!(!left.contains(&DrainStep::GivenBack), "{left:?}");
        assert_eq!(left.last(), Some(&DrainStep::Stuck { why: "no answer to the patch".to_owned() }));
        *lock(&world.queue.keeps_marks) = false;
        lock(&world.queue.given_back).clear();
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!((result.stop, result.held, result.out_of_service), (None, false, Vec::new()));
        assert_eq!(steps(&dir).last(), Some(&DrainStep::GivenBack));
    });
}

#[test]
fn what_another_drain_rebooted_is_no_reason_to_work_beside_others() {
    // The first play reboots the node and gives it back; the second one takes it again, for its MIG.
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - gpu_ecc: {mode: enabled}\n    - reboot: {when: required}\n\
                    - hosts: all\n  gather_facts: false\n  rollout: {drain: {slurm: {timeout: 1h}}}\n  tasks:\n    - gpu_mig: {mode: enabled}\n    - command: /bin/late\n    - pause: {seconds: 60}\n    - \
                    gpu_mig: {mode: disabled}\n";
    virtual_time(async {
        let (hosts, world, state) = (hosts(1), world(), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        let other = Arc::clone(&world);
        tokio::spawn(async move {
            while !other.with("gpu001", |machine| !machine.ran.is_empty()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            lock(&other.queue.held).remove("gpu001");
        });
        let mut engine = engine(playbook, &world, &hosts, 1);
        let scheduler = engine.schedulers[0].clone();
        engine.schedulers.push(scheduler);
        let (_press, mut interrupts) = mpsc::channel(1);
        let result = process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
        world.with("gpu001", |machine| assert_eq!(machine.asked, 1, "the first play rebooted it"));
        assert!(result.held, "{result:?}");
    });
}
