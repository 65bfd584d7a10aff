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
        // Why a long-lived client that reads: the reset waits for it, and meanwhile the end comes.
        node.machine.get().reader = Some(u32::MAX);
        let time = Duration::from_millis(if cancel { 30_000 } else { 600 });
        let deadline = Deadline::after(time);
        let canceller = deadline.canceller();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            if cancel {
                canceller.store(true, std::sync::atomic::Ordering::Relaxed);
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
    // A client that no list shows, as a container's may be.
    node.machine.get().mps.running = Some(100);
    node.machine.get().mps.unit.active = false;
    let failed = node.apply(&ecc_on());
    let OpStatus::Failed { kind: FailureKind::Busy, message } = &failed.status else { panic!("{failed:?}") };
    assert!(message.contains("the kernel module nvidia_drm is in use (use count 3)"), "{message}");
}
