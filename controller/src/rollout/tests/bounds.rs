//! What stops a play, what counts as a failure, and which nodes take part again.

use std::collections::BTreeSet;

use super::*;

fn of(count: usize) -> [Batch; 1] {
    [Batch::Of(Amount::Count(count))]
}

fn bounds(thresholds: Thresholds) -> Policy {
    Policy { thresholds, ..Policy::default() }
}

fn stops(actions: &[Action]) -> Vec<StopReason> {
    let stop = |action: &Action| match action {
        Action::Stop { reason } => Some(reason.clone()),
        _ => None,
    };
    actions.iter().filter_map(stop).collect()
}

#[test]
fn a_share_of_a_wave_may_fail_and_one_more_may_not() {
    let thresholds = Thresholds { max_fail_percentage: Some(50.0), ..Thresholds::default() };
    let mut play = Play::begun(12, &of(4), bounds(thresholds));
    // Half of the first wave: each wave is counted by itself.
    for (host, end) in [(0, End::Failed), (1, End::Unreachable), (2, End::Done), (3, End::Done)] {
        assert_eq!(stops(&play.ended(host, end)), []);
    }
    for host in [4, 5] {
        assert_eq!(stops(&play.ended(host, End::Failed)), []);
    }
    let reason = StopReason::FailPercentage { wave: 1, failed: 3, of: 4 };
    assert_eq!(play.ended(6, End::Failed), [Action::Stop { reason: reason.clone() }]);
    let over = play.ended(7, End::Done);
    assert_eq!(over, [Action::FinishWave { wave: 1 }, Action::Finish { never_started: vec![8, 9, 10, 11] }]);
    assert_eq!(play.rollout.stopped(), Some(&reason));
}

#[test]
fn no_share_at_all_is_the_first_failure() {
    let thresholds = Thresholds { max_fail_percentage: Some(0.0), ..Thresholds::default() };
    let mut play = Play::begun(4, &[], bounds(thresholds));
    assert_eq!(play.ended(0, End::Held), []);
    let reason = StopReason::FailPercentage { wave: 0, failed: 1, of: 4 };
    assert_eq!(play.ended(1, End::Failed), [Action::Stop { reason }]);
}

#[test]
fn one_failure_is_enough_where_any_is_fatal() {
    let thresholds = Thresholds { any_errors_fatal: true, ..Thresholds::default() };
    let mut play = Play::begun(3, &[], bounds(thresholds));
    assert_eq!(play.ended(0, End::Held), []);
    assert_eq!(play.ended(1, End::Unreachable), [Action::Stop { reason: StopReason::AnyError }]);
    assert_eq!(play.step(Input::Fatal), [], "it is stopped already");
}

#[test]
fn a_wave_of_failures_alone_lets_no_other_start() {
    let mut play = Play::begun(6, &of(2), Policy::default());
    play.ended(0, End::Failed);
    play.ended(1, End::Done);
    play.ended(2, End::Failed);
    let reason = StopReason::WholeWave { wave: 1 };
    assert_eq!(stops(&play.ended(3, End::Unreachable)), [reason]);
    assert!(play.rollout.is_finished());
    // After the last wave there is nothing to stop.
    let mut play = Play::begun(4, &of(2), Policy::default());
    play.ended(0, End::Done);
    play.ended(1, End::Done);
    play.ended(2, End::Failed);
    assert_eq!(stops(&play.ended(3, End::Failed)), []);
    assert_eq!(play.rollout.stopped(), None);
}

#[test]
fn earlier_plays_count_for_the_run() {
    let thresholds = Thresholds { max_failures: Some(2), max_unreachable: Some(3), ..Thresholds::default() };
    let rollout =
        Rollout::new(4, plan_waves(&[], &all(4)), bounds(thresholds), Lost { failed: 2, unreachable: 3 });
    let mut play = Play { rollout, now: 0 };
    play.step(Input::Begin);
    let reason = StopReason::Failures { failed: 3, allowed: 2 };
    assert_eq!(play.ended(0, End::Unreachable), [Action::Stop { reason }]);
    assert_eq!(play.rollout.lost(), Lost { failed: 3, unreachable: 4 });
}

#[test]
fn a_held_node_is_no_failure() {
    let mut play = Play::begun(3, &of(1), Policy::default());
    assert!(!play.rollout.has_ended(0));
    play.ended(0, End::Held);
    assert!(play.rollout.has_ended(0) && !play.rollout.has_ended(1) && !play.rollout.has_ended(7));
    assert_eq!((play.rollout.lost(), play.rollout.stopped()), (Lost::default(), None));
    assert_eq!((play.rollout.in_flight(), play.rollout.is_finished()), (vec![1], false));
}

#[test]
fn a_play_begins_once() {
    let mut play = Play::new(2, &of(1), Policy::default());
    assert_eq!(play.step(Input::Tick), []);
    assert_eq!(started(&play.step(Input::Begin)), [0]);
    assert_eq!(play.step(Input::Begin), []);
    assert_eq!(started(&play.ended(0, End::Done)), [1]);
}

#[test]
fn an_interrupt_before_the_beginning_is_the_end() {
    let mut play = Play::new(2, &of(1), Policy::default());
    let reason = StopReason::Interrupted;
    let over = play.step(Input::Interrupt);
    assert_eq!(over, [Action::Stop { reason }, Action::Finish { never_started: vec![0, 1] }]);
    for late in [Input::Begin, Input::Interrupt, Input::Fatal] {
        assert_eq!(play.step(late), []);
    }
    assert_eq!(play.rollout.stopped(), Some(&StopReason::Interrupted));
    // A new controller starts from the beginning, as no node had started.
    assert_eq!(started(&play.step(Input::Resume)), [0]);
}

#[test]
fn who_was_lost_takes_part_again() {
    let thresholds = Thresholds { max_unreachable: Some(1), ..Thresholds::default() };
    let mut play = Play::begun(3, &[], bounds(thresholds));
    play.ended(1, End::Unreachable);
    assert_eq!(play.rollout.out(), [1], "nobody knows how it is");
    play.ended(2, End::Done);
    play.step(Input::Reopen { host: 1 });
    play.step(Input::Resume);
    assert_eq!(play.rollout.lost(), Lost::default());
    assert_eq!((play.rollout.out(), play.rollout.in_flight()), (vec![], vec![0, 1]));
    // It needs a place like any other node, and the wave does not end without it.
    assert_eq!(play.wants(1), [Action::ProveIdle { host: 1 }]);
    assert_eq!(play.ended(0, End::Unreachable), [], "the bound counts it no more");
    let over = play.ended(1, End::Done);
    assert_eq!(over, [Action::FinishWave { wave: 0 }, Action::Finish { never_started: vec![] }]);
}

#[test]
fn who_was_held_while_it_was_out_is_still_out() {
    let mut play = Play::begun(3, &[], budget(1));
    play.take_out(0);
    play.ended(0, End::Held);
    play.step(Input::Reopen { host: 0 });
    assert_eq!(play.rollout.ours(), [0]);
    // It will come back in this play, so others wait for it.
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
    assert_eq!(play.wants(0), [Action::ProveIdle { host: 0 }]);
    play.step(Input::Idle { host: 0 });
    assert_eq!(play.step(Input::Released { host: 0 }), [Action::ProveIdle { host: 1 }]);
    assert_eq!(play.rollout.lost(), Lost::default());
}

#[test]
fn a_held_canary_that_takes_part_again_lifts_its_stop() {
    let mut play = Play::begun(3, &[Batch::Canary, Batch::Of(Amount::Count(5))], budget(1));
    play.ended(0, End::Held);
    assert!(play.rollout.is_finished());
    play.step(Input::Reopen { host: 0 });
    play.step(Input::Resume);
    assert_eq!(play.rollout.stopped(), None);
    let ended = play.ended(0, End::Done);
    assert_eq!((&ended[0], started(&ended)), (&Action::FinishWave { wave: 0 }, vec![1, 2]));
}

#[test]
fn a_threshold_stays_reached_for_who_takes_part_again() {
    let thresholds = Thresholds { max_failures: Some(0), ..Thresholds::default() };
    let mut play = Play::begun(3, &of(2), bounds(thresholds));
    play.ended(0, End::Failed);
    play.ended(1, End::Held);
    let failed = play.rollout.step(at(0), Input::Reopen { host: 0 }).unwrap_err();
    insta::assert_snapshot!(failed, @"host 0 is finished, where another try makes no sense");
    play.step(Input::Reopen { host: 1 });
    play.step(Input::Resume);
    let stopped = Denial::Stopped { reason: StopReason::Failures { failed: 1, allowed: 0 } };
    assert_eq!(play.wants(1), [Action::Deny { host: 1, why: stopped }]);
    assert_eq!(started(&play.ended(1, End::Done)), Vec::<usize>::new());
}

#[test]
fn a_node_that_others_took_and_that_is_lost_then_is_still_out() {
    let mut play = Play::begun(2, &[], budget(1));
    play.step(Input::OthersOut { host: 0, out: true });
    play.ended(0, End::Unreachable);
    assert_eq!(play.rollout.out(), [0]);
    let why = Denial::BudgetSpent { out: vec![0], budget: 1 };
    assert_eq!(play.wants(1), [Action::Deny { host: 1, why }]);
}

#[test]
fn a_wave_without_a_node_done_needs_no_soak() {
    let mut play = Play::begun(2, &of(1), Policy { soak_s: 60, ..Policy::default() });
    let next = play.ended(0, End::Held);
    assert_eq!(
        next,
        [Action::FinishWave { wave: 0 }, Action::StartWave { wave: 1 }, Action::Start { host: 1 }]
    );
}

#[test]
fn a_node_of_an_earlier_wave_counts_for_no_later_one() {
    // The second wave has one failure before a node of the first takes part again.
    let again = |end: End| {
        let mut play = Play::begun(6, &of(2), Policy::default());
        play.ended(0, end);
        play.ended(1, End::Done);
        play.ended(2, End::Failed);
        play.step(Input::Reopen { host: 0 });
        play.step(Input::Resume);
        play
    };
    let reason = StopReason::WholeWave { wave: 1 };
    let mut lost = again(End::Unreachable);
    lost.ended(0, End::Done);
    assert_eq!(stops(&lost.ended(3, End::Failed)), [reason], "all of the second wave failed");
    let mut held = again(End::Held);
    assert_eq!(stops(&held.ended(0, End::Failed)), [], "one of the second wave is on its way");
    assert_eq!(started(&held.ended(3, End::Done)), [4, 5]);
}

#[test]
fn held_canaries_are_counted() {
    let hosts: Vec<WaveHost> =
        ["a", "b", "c"].map(|class| WaveHost { class: Some(class.to_owned()), ..well() }).to_vec();
    let waves = plan_waves(&[Batch::Canary, Batch::Of(Amount::Count(5))], &[hosts.clone(), hosts].concat());
    let mut play = Play { rollout: Rollout::new(6, waves, Policy::default(), Lost::default()), now: 0 };
    play.step(Input::Begin);
    play.ended(0, End::Done);
    play.ended(1, End::Held);
    let reason = StopReason::CanaryHeld { held: vec![1] };
    assert_eq!(stops(&play.ended(2, End::Done)), [reason]);
}

#[test]
fn canaries_alone_need_no_next_wave() {
    let mut play = Play::begun(1, &[Batch::Canary], Policy::default());
    let over = play.ended(0, End::Held);
    assert_eq!(over, [Action::FinishWave { wave: 0 }, Action::Finish { never_started: vec![] }]);
    assert_eq!(play.rollout.stopped(), None);
}

#[test]
fn a_node_lost_while_it_is_checked_keeps_its_place_where_something_was_done_to_it() {
    // Out for one operation, while idleness is being proven for a second one.
    let mut play = Play::begun(2, &[], budget(1));
    play.take_out(0);
    play.wants(0);
    play.ended(0, End::Failed);
    assert_eq!(play.rollout.out(), [0]);
    // Only drained.
    let mut play = Play::begun(2, &[], Policy { drains: true, ..Policy::default() });
    play.wants(0);
    play.step(Input::Drained { host: 0 });
    play.ended(0, End::Held);
    assert_eq!(play.rollout.out(), [0]);
    // Neither: a claim alone changes nothing on the node.
    let mut play = Play::begun(2, &[], budget(1));
    play.wants(0);
    play.ended(0, End::Failed);
    assert_eq!(play.rollout.out(), Vec::<usize>::new());
}

#[test]
fn who_an_earlier_play_lost_takes_no_part_and_joins_the_last_wave() {
    let hosts = |gone: [bool; 4]| gone.map(|gone| WaveHost { gone, ..well() }).to_vec();
    let play = |gone| {
        let waves = plan_waves(&[Batch::Canary, Batch::Of(Amount::Percent(100.0))], &hosts(gone));
        Play { rollout: Rollout::new(4, waves, Policy::default(), Lost::default()), now: 0 }
    };
    let mut one = play([true, false, false, false]);
    assert_eq!(started(&one.step(Input::Begin)), [1], "a lost node is no canary");
    assert_eq!(started(&one.ended(1, End::Done)), [2, 3]);
    // It is back, and the current wave takes it.
    let running = one.rollout.step(at(0), Input::Returned { host: 2 }).unwrap_err();
    insta::assert_snapshot!(running, @"host 2 is running, where a return makes no sense");
    assert_eq!(one.step(Input::Returned { host: 0 }), []);
    assert!(one.rollout.step(at(0), Input::Returned { host: 0 }).is_err());
    assert_eq!(one.rollout.in_flight(), [0, 2, 3]);
    // An earlier wave is current, so it has to wait for the last.
    let mut early = play([true, false, false, false]);
    early.step(Input::Begin);
    early.step(Input::Returned { host: 0 });
    assert_eq!(early.rollout.in_flight(), [1]);
    assert_eq!(started(&early.ended(1, End::Done)), [2, 3, 0]);
    // A play without any host left ends at once, and continues with the host that is back.
    let mut all_gone = play([true; 4]);
    assert_eq!(all_gone.step(Input::Begin), [Action::Finish { never_started: vec![0, 1, 2, 3] }]);
    assert_eq!(all_gone.step(Input::Returned { host: 3 }), []);
    let back = all_gone.step(Input::Resume);
    assert_eq!(back, [Action::StartWave { wave: 0 }, Action::Start { host: 3 }]);
    assert_eq!(
        all_gone.ended(3, End::Done),
        [Action::FinishWave { wave: 0 }, Action::Finish { never_started: vec![0, 1, 2] }]
    );
}

#[test]
fn what_other_plays_leave_behind_counts_from_the_moment_it_is_told() {
    let thresholds = Thresholds { max_failures: Some(1), ..Thresholds::default() };
    let mut play = Play::begun(3, &[], Policy { budget: 2, ..bounds(thresholds) });
    play.take_out(0);
    play.ended(2, End::Failed);
    let nobody = BTreeSet::new();
    assert_eq!(play.rollout.news(SoFar::default(), &nobody), None);
    let so_far = SoFar { lost: Lost::default(), out_elsewhere: 1 };
    let news = play.rollout.news(so_far, &nobody).unwrap();
    assert_eq!(play.step(news), []);
    assert_eq!(play.rollout.news(so_far, &nobody), None, "it is told once");
    play.step(Input::Resume);
    assert_eq!(
        play.wants(1),
        [Action::Waits { host: 1, out: vec![0] }],
        "one of the play and one elsewhere are out"
    );
    play.step(Input::Released { host: 0 });
    assert!(matches!(play.rollout.state(1), Ok(crate::rollout::host::Host::Proving { .. })));

    let more = SoFar { lost: Lost { failed: 1, unreachable: 1 }, out_elsewhere: 1 };
    let news = play.rollout.news(more, &nobody).unwrap();
    let reason = StopReason::Failures { failed: 2, allowed: 1 };
    assert_eq!(play.step(news), [Action::Stop { reason }]);
    let news = play.rollout.news(SoFar::default(), &nobody).unwrap();
    assert_eq!(play.step(news), []);
    assert_eq!(play.rollout.lost(), Lost { failed: 1, unreachable: 0 });
}

#[test]
fn a_node_that_another_play_has_out_takes_up_the_budget() {
    let mut play = Play::begun(2, &[], Policy::default());
    play.ended(0, End::Done);
    // Not the other one, which is at work in this play.
    let out = BTreeSet::from([0, 1]);
    let news = play.rollout.news(SoFar::default(), &out).unwrap();
    assert_eq!(news, Input::Beside { so_far: SoFar::default(), out: vec![0] });
    play.step(news);
    assert_eq!(play.rollout.news(SoFar::default(), &out), None);
    let why = Denial::BudgetSpent { out: vec![0], budget: 1 };
    assert!(play.wants(1).contains(&Action::Deny { host: 1, why }));
    let unknown = Input::Beside { so_far: SoFar::default(), out: vec![7] };
    assert_eq!(play.rollout.step(at(0), unknown), Err(RolloutError::NoSuchHost { host: 7 }));
}
