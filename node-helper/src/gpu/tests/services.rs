//! Services and sessions around a reset.

use super::*;

fn ecc_on() -> GpuGroup {
    group(&[json!({"gpu_ecc": {"mode": "enabled"}})])
}

#[test]
fn a_service_that_does_not_start_again_fails_the_run_and_is_started_by_the_next() {
    let unit = "nvidia-dcgm.service";
    let mut node =
        Node::new(Sim { will_not_start: Some(unit.to_owned()), ..Sim::new(vec![without_ecc(true)]) });
    let failed = node.apply(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Io, message } = &failed.status else { panic!("{failed:?}") };
    assert!(message.starts_with("nvidia-dcgm.service could not be started again"), "{message}");
    assert_eq!(failed.activated, Some(Disruption::GpuReset), "and the reset is told all the same");
    assert!(node.gpus.has_leftovers());
    let deadline = Deadline::after(Duration::from_secs(5));
    assert_eq!(node.gpus.put_back(&deadline).len(), 1);
    assert!(node.gpus.has_leftovers(), "what was not started stays recorded");
    node.machine.get().will_not_start = None;
    node.new_session();
    assert_eq!(node.gpus.put_back(&deadline), Vec::<String>::new());
    assert!(node.machine.get().units[unit] && !node.gpus.has_leftovers());
}

#[test]
fn services_run_again_when_a_newer_controller_comes_whatever_was_under_way() {
    let mut clean = Node::new(eventful(true));
    clean.fence.set(Some(1000));
    clean.apply(&ecc_on());
    let acts = 1000 - clean.fence.get().unwrap();
    assert!(acts > 4, "{acts}");
    for after in 0..acts {
        let mut node = Node::new(eventful(true));
        node.fence.set(Some(after));
        let failed = node.apply(&ecc_on());
        assert!(
            matches!(failed.status, OpStatus::Failed { kind: FailureKind::Refused, .. }),
            "{after}: {failed:?}"
        );
        let effects = node.effects();
        assert!(!effects.iter().any(|effect| effect.starts_with("reset")), "{after}: {effects:?}");
        let sim = node.machine.get();
        assert!(sim.units["nvidia-dcgm.service"] && sim.gpus[0].persistence, "{after}: {effects:?}");
    }
}

#[test]
fn services_run_again_when_time_is_up_or_the_operation_is_cancelled() {
    for cancel in [true, false] {
        let mut node = Node::new(eventful(true));
        // A reader that does not end: the reset waits for it until the cancellation or the deadline.
        node.machine.get().reader = Some(u32::MAX);
        // Long enough for a busy machine to come as far as the reset.
        let deadline = Deadline::after(Duration::from_secs(if cancel { 60 } else { 6 }));
        let (machine, over) = (node.machine.clone(), deadline.clone());
        let thread = std::thread::spawn(move || {
            // All that is left is the reset; the services were stopped before.
            let waits = || {
                let sim = machine.get();
                sim.gpus[0].ecc.current != sim.gpus[0].ecc.pending
            };
            while cancel && !waits() && over.stop().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            if cancel {
                over.canceller().store(true, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let failed =
            node.gpus.run(&ecc_on(), Mode::Apply, Disruption::Reboot, &deadline, &|_| {}, &|| Ok(()));
        thread.join().unwrap();
        assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
        let effects = node.effects();
        assert!(effects.iter().any(|effect| effect == "stop nvidia-dcgm.service"), "{effects:?}");
        let sim = node.machine.get();
        assert!(sim.units["nvidia-dcgm.service"] && sim.gpus[0].persistence, "{effects:?}");
        assert!(sim.gpus[0].ecc.current != sim.gpus[0].ecc.pending, "no reset: {effects:?}");
    }
}

#[test]
fn a_reset_waits_for_a_session_that_only_reads() {
    let mut node = Node::new(Sim { reader: Some(6), ..Sim::new(vec![without_ecc(true)]) });
    let done = node.apply(&ecc_on());
    assert_eq!((done.status, done.activated), (OpStatus::Changed, Some(Disruption::GpuReset)));
}

#[test]
fn nothing_is_stopped_that_cannot_be_recorded() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true)]));
    node.gpus = Gpus::with_machine(Box::new(node.machine.clone()), Record::of(None));
    let failed = node.apply(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Io, message } = &failed.status else { panic!("{failed:?}") };
    assert!(message.starts_with("nothing was stopped, because it cannot be recorded"), "{message}");
    assert_eq!(node.effects(), Vec::<String>::new());
}

#[test]
fn a_module_that_is_in_use_is_named_where_the_reset_is_refused() {
    let mut node = Node::new(Sim { drm: 3, ..Sim::new(vec![without_ecc(true)]) });
    // A client that no list shows, for example one in a container.
    node.machine.get().mps.running = Some(100);
    node.machine.get().mps.unit.active = false;
    let failed = node.apply(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Busy, message } = &failed.status else { panic!("{failed:?}") };
    assert!(message.contains("the kernel module nvidia_drm is in use (use count 3)"), "{message}");
}

#[test]
fn a_job_that_holds_a_module_is_drained_away_and_no_failure() {
    let mut node = Node::new(Sim { peermem: 2, ..Sim::new(vec![without_ecc(false)]) });
    node.machine.get().gpus[0].client = Some(77);
    let planned = node.predict(&ecc_on());
    let module =
        planned.blockers.iter().find(|blocker| blocker.what.contains("nvidia_peermem (use count 2)"));
    assert!(module.unwrap().next.starts_with("if it is used by what works on these GPUs now"), "{planned:?}");
    let first = node.run(&ecc_on(), Mode::Apply, Disruption::Live);
    assert_eq!(first.status, OpStatus::NeedsPermit { class: Disruption::GpuReset });
    assert_eq!(node.effects(), Vec::<String>::new());
    // The drain ended the job, but something else still uses the module.
    node.machine.get().gpus[0].client = None;
    let stays = node.apply(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Busy, message } = &stays.status else { panic!("{stays:?}") };
    assert!(message.starts_with("the kernel module nvidia_peermem (use count 2) holds GPU 0"), "{message}");
    assert_eq!(node.effects(), Vec::<String>::new(), "nothing is begun");
    node.machine.get().peermem = 0;
    assert_eq!(node.apply(&ecc_on()).activated, Some(Disruption::GpuReset));
}

#[test]
fn what_the_kernel_logs_during_a_reset_counts() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true)]));
    node.apply(&ecc_on());
    let ends = crate::gpu::observe::resets(&node.record, "boot-1");
    assert_eq!(ends.values().copied().collect::<Vec<_>>(), [1_000_000]);
    assert_eq!(node.machine.get().log, 1_500_000);
}

#[test]
fn who_holds_gpus_is_looked_up_only_where_something_changes() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true)]));
    node.apply(&ecc_on());
    let looks = std::mem::take(&mut node.machine.get().scans);
    assert!(looks > 0);
    assert_eq!(node.apply(&ecc_on()).status, OpStatus::Ok);
    assert_eq!(node.machine.get().scans, 0);
}

#[test]
fn whoever_may_work_through_mps_is_in_the_way_of_a_reset_of_another_gpu() {
    let mut node = Node::new(Sim::new(vec![without_ecc(true), SimGpu::new(1, true)]));
    {
        let mut sim = node.machine.get();
        sim.gpus[1].client = Some(77);
        sim.mps.unit = crate::gpu::state::Unit { exists: true, active: true, enabled: true };
        sim.mps.running = Some(100);
    }
    let planned = node.predict(&ecc_on());
    let held = "process 77 (train, user ana) holds GPU 1";
    assert_eq!(planned.blockers.iter().map(|blocker| &*blocker.what).collect::<Vec<_>>(), [held]);
    let OpStatus::Failed { kind: FailureKind::Busy, message } = node.apply(&ecc_on()).status else {
        panic!("not refused")
    };
    assert!(message.contains(held), "{message}");
}

#[test]
fn without_root_plan_and_run_fail_with_the_same_words() {
    let mut node = Node::new(Sim { not_root: Some(1000), ..Sim::new(vec![without_ecc(true)]) });
    let planned = node.predict(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Refused, message } = &planned.status else {
        panic!("{planned:?}")
    };
    assert_eq!(
        message,
        "only root may change GPUs, and gpufleet works as uid 1000 on this node; next step: declare `become: true` for the \
         task or the play"
    );
    for allowed in [Disruption::Live, Disruption::Reboot] {
        assert_eq!(node.run(&ecc_on(), Mode::Apply, allowed).status, planned.status);
    }
    assert_eq!(node.effects(), Vec::<String>::new());
    node.machine.get().gpus[0].ecc = Staged::settled(true);
    node.new_session();
    assert_eq!(node.predict(&ecc_on()).status, OpStatus::Ok, "who changes nothing needs no rights");
    assert_eq!(node.apply(&ecc_on()).status, OpStatus::Ok);
}
