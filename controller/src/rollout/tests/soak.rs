//! Windows and soaks in a rollout, in fixed examples.

use super::*;

const TWO: [Batch; 2] = [Batch::Canary, Batch::Of(Amount::Count(5))];

fn soak() -> Policy {
    Policy { soak_s: 60, ..Policy::default() }
}

/// `at(0)` is 2027-01-15 08:00 UTC, a Friday.
fn window(text: &str) -> Policy {
    let needs = Needs { live: 60, clients: 600, gpu_reset: 1200, reboot: 3600 };
    Policy { window: Some(Window::parse(text).unwrap()), needs, budget: 2, ..Policy::default() }
}

#[test]
fn the_next_wave_waits_for_the_soak_and_its_check() {
    let mut play = Play::begun(3, &TWO, soak());
    let ended = play.ended(0, End::Done);
    let until = at(60);
    assert_eq!(
        ended,
        [Action::FinishWave { wave: 0 }, Action::Soak { wave: 0, until }, Action::WakeAt { at: until }]
    );
    play.now = 59;
    assert_eq!(play.step(Input::Tick), [Action::WakeAt { at: until }]);
    play.now = 60;
    assert_eq!(play.step(Input::Tick), [Action::CheckSoak { wave: 0, hosts: vec![0] }]);
    assert_eq!(play.step(Input::Resume), [Action::CheckSoak { wave: 0, hosts: vec![0] }]);
    let checked = play.step(Input::SoakChecked { host: 0, ok: true, why: String::new() });
    assert_eq!(started(&checked), [1, 2]);
    play.ended(1, End::Done);
    // No soak after the last wave.
    let last = play.ended(2, End::Done);
    assert_eq!(last, [Action::FinishWave { wave: 1 }, Action::Finish { never_started: vec![] }]);
}

#[test]
fn a_canary_whose_gate_fails_after_the_soak_stops_the_play() {
    let mut play = Play::begun(3, &TWO, soak());
    play.ended(0, End::Done);
    play.now = 61;
    play.step(Input::Tick);
    let failed = play.step(Input::SoakChecked { host: 0, ok: false, why: "xid 79".into() });
    let reason = StopReason::Canary { failed: vec![0] };
    assert_eq!(failed, [Action::Stop { reason }, Action::Finish { never_started: vec![1, 2] }]);
    assert_eq!(play.rollout.lost().failed, 1);
}

#[test]
fn a_canary_that_was_held_proves_nothing() {
    let mut play = Play::begun(3, &TWO, budget(1));
    let held = play.ended(0, End::Held);
    let reason = StopReason::CanaryHeld { held: vec![0] };
    let stop = [Action::FinishWave { wave: 0 }, Action::Stop { reason }];
    assert_eq!(held[..2], stop);
}

#[test]
fn an_answer_of_a_gate_may_come_after_the_end() {
    let mut play = Play::begun(3, &TWO, soak());
    play.ended(0, End::Done);
    play.now = 61;
    play.step(Input::Tick);
    play.step(Input::Interrupt);
    assert!(play.rollout.is_finished());
    assert_eq!(play.step(Input::SoakChecked { host: 0, ok: true, why: String::new() }), []);
}

#[test]
fn nothing_starts_before_the_window_opens() {
    let mut play = Play::new(2, &[], window("Fri 10:00-12:00 UTC"));
    let opens = at(7200);
    let waits = play.step(Input::Begin);
    assert_eq!(waits, [Action::WaitsForWindow { opens }, Action::WakeAt { at: opens }]);
    play.now = 7199;
    assert_eq!(play.step(Input::Tick), [Action::WakeAt { at: opens }]);
    play.now = 7200;
    let open = play.step(Input::Tick);
    assert_eq!(started(&open), [0, 1]);
    assert_eq!(open.last(), Some(&Action::WakeAt { at: at(14_400) }));
    play.now = 10_800;
    assert_eq!(play.wants(0), [Action::ProveIdle { host: 0 }]);
    let granted = play.step(Input::Idle { host: 0 });
    let deadline = Some(at(14_400));
    assert_eq!(granted, [Action::Grant { host: 0, class: Disruption::Reboot, deadline }]);
    play.now = 10_801;
    let why = Denial::WindowTooShort { needs_s: 3600, closes: at(14_400) };
    assert_eq!(play.wants(1), [Action::Deny { host: 1, why }]);
    let shorter = play.step(Input::WantsPermit { host: 1, class: Disruption::GpuReset });
    assert_eq!(shorter, [Action::ProveIdle { host: 1 }]);
    // A claim in time gets no permit after the end; a node that is out goes on.
    play.now = 14_400;
    let late = play.step(Input::Idle { host: 1 });
    let why = Denial::WindowTooShort { needs_s: 1200, closes: at(14_400) };
    assert_eq!(late, [Action::Deny { host: 1, why }]);
    play.wants(0);
    let granted = play.step(Input::Idle { host: 0 });
    assert_eq!(granted, [Action::Grant { host: 0, class: Disruption::Reboot, deadline: None }]);
    assert_eq!(play.rollout.stopped(), None);
}

#[test]
fn who_waits_is_told_when_its_class_does_not_fit_any_more() {
    let mut play = Play::begun(3, &[], Policy { budget: 1, ..window("Fri 08:00-12:00 UTC") });
    play.take_out(0);
    assert_eq!(
        play.wants(1),
        [
            Action::Waits { host: 1, out: vec![0] },
            Action::WakeAt { at: Timestamp::from_millisecond(at(10_800).as_millisecond() + 1).unwrap() }
        ]
    );
    play.now = 10_801;
    let why = Denial::WindowTooShort { needs_s: 3600, closes: at(14_400) };
    assert_eq!(play.step(Input::Tick), [Action::Deny { host: 1, why }, Action::WakeAt { at: at(14_400) }]);
}

#[test]
fn the_end_of_the_window_gives_back_who_is_being_drained() {
    let drain_needs = Needs { reboot: 2400, ..Needs::default() };
    let mut play = Play::begun(3, &[], Policy { drains: true, drain_needs, ..window("Fri 08:00-09:30 UTC") });
    assert_eq!(play.wants(0), [Action::Drain { host: 0, deadline: at(4200) }], "the rest takes 20 minutes");
    play.now = 1800;
    assert_eq!(play.wants(1), [Action::Drain { host: 1, deadline: at(4200) }]);
    play.now = 5400;
    let reason = StopReason::WindowClosed { closes: at(5400) };
    assert_eq!(
        play.step(Input::Tick),
        [Action::Stop { reason }, Action::StopDraining { host: 0 }, Action::StopDraining { host: 1 }]
    );
}

#[test]
fn no_wave_starts_where_nothing_fits() {
    let mut play = Play::begun(3, &TWO, window("Fri 08:00-09:00 UTC"));
    play.now = 3541;
    let ended = play.ended(0, End::Done);
    let reason = StopReason::WindowClosed { closes: at(3600) };
    assert_eq!(
        ended,
        [
            Action::FinishWave { wave: 0 },
            Action::Stop { reason },
            Action::Finish { never_started: vec![1, 2] }
        ]
    );
}

#[test]
fn a_resume_waits_for_the_next_opening() {
    let mut play = Play::begun(2, &[], window("Fri 08:00-09:00 UTC"));
    play.now = 7200;
    let opens = at(7 * 86_400);
    assert_eq!(play.step(Input::Resume), [Action::WaitsForWindow { opens }, Action::WakeAt { at: opens }]);
    assert_eq!(play.wants(0), []);
    play.now = 7 * 86_400;
    assert_eq!(play.step(Input::Tick)[0], Action::ProveIdle { host: 0 });
}

#[test]
fn time_that_goes_back_stands_still() {
    let mut play = Play::begun(2, &[], window("Fri 08:00-09:00 UTC"));
    play.now = 3599;
    play.step(Input::Tick);
    play.now = 0;
    assert!(matches!(play.wants(0).as_slice(), [Action::Deny { why: Denial::WindowTooShort { .. }, .. }]));
}

#[test]
fn a_window_that_never_closes_stops_nothing() {
    let mut play = Play::begun(3, &[Batch::Of(Amount::Count(1))], window("daily 00:00-24:00 UTC"));
    for host in 0..3 {
        // Weeks later, but never at the end of an opening, as there is none.
        play.now += 20 * 86_400;
        assert_eq!(play.wants(host)[0], Action::ProveIdle { host });
        play.step(Input::Idle { host });
        play.ended(host, End::Done);
    }
    assert_eq!((play.rollout.stopped(), play.rollout.is_finished()), (None, true));
}

#[test]
fn the_end_of_the_window_denies_who_still_waits() {
    let policy = Policy { needs: Needs::default(), budget: 1, ..window("Fri 08:00-09:00 UTC") };
    let mut play = Play::begun(2, &[], policy);
    play.take_out(0);
    play.wants(1);
    play.now = 3600;
    let reason = StopReason::WindowClosed { closes: at(3600) };
    let denied = Action::Deny { host: 1, why: Denial::Stopped { reason: reason.clone() } };
    assert_eq!(play.step(Input::Tick), [Action::Stop { reason }, denied]);
}

#[test]
fn the_end_of_the_window_stops_the_waves_to_come() {
    let mut play = Play::begun(2, &[Batch::Of(Amount::Count(1))], window("Fri 08:00-09:00 UTC"));
    play.now = 3600;
    let reason = StopReason::WindowClosed { closes: at(3600) };
    assert_eq!(play.step(Input::Tick), [Action::Stop { reason }]);
    let over = play.ended(0, End::Done);
    assert_eq!(over, [Action::FinishWave { wave: 0 }, Action::Finish { never_started: vec![1] }]);
}

#[test]
fn nobody_is_woken_after_a_stop() {
    let mut play = Play::begun(2, &[], window("Fri 08:00-09:00 UTC"));
    play.step(Input::Interrupt);
    assert_eq!(play.step(Input::Tick), []);
    play.now = 1800;
    assert_eq!(play.step(Input::Tick), []);
}

#[test]
fn a_new_controller_goes_on_with_the_soak() {
    let mut play = Play::begun(3, &TWO, soak());
    play.ended(0, End::Done);
    play.now = 30;
    let until = at(60);
    assert_eq!(play.step(Input::Resume), [Action::Soak { wave: 0, until }, Action::WakeAt { at: until }]);
    play.now = 60;
    assert_eq!(play.step(Input::Tick), [Action::CheckSoak { wave: 0, hosts: vec![0] }]);
}

#[test]
fn a_new_controller_goes_on_with_the_next_wave() {
    let mut play = Play::begun(2, &[Batch::Of(Amount::Count(1))], Policy::default());
    play.step(Input::Interrupt);
    play.ended(0, End::Done);
    assert!(play.rollout.is_finished());
    assert_eq!(started(&play.step(Input::Resume)), [1]);
    play.ended(1, End::Done);
    assert_eq!(play.step(Input::Resume), [], "there is nothing to go on with");
    for late in [Input::Interrupt, Input::Fatal, Input::EndPlay] {
        assert_eq!(play.step(late), []);
    }
    assert_eq!(play.rollout.stopped(), None);
}
