//! Drains, surveys and failure domains, in fixed examples.

use super::*;

fn drains() -> Policy {
    Policy { drains: true, needs: Needs { reboot: 600, ..Needs::default() }, ..Policy::default() }
}

#[test]
fn a_drain_comes_before_the_proof() {
    let mut play = Play::begun(2, &[], drains());
    assert_eq!(play.wants(0), [Action::Drain { host: 0, deadline: at(600) }]);
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
    assert_eq!(play.step(Input::Drained { host: 0 }), [Action::ProveIdle { host: 0 }]);
    let granted = play.step(Input::Idle { host: 0 });
    assert_eq!(granted, [Action::Grant { host: 0, class: Disruption::Reboot, deadline: None }]);
    // It is out: a second operation needs a proof of idleness and no drain.
    assert_eq!(play.wants(0), [Action::ProveIdle { host: 0 }]);
    play.step(Input::Idle { host: 0 });
    assert_eq!(play.step(Input::Released { host: 0 }), [Action::Drain { host: 1, deadline: at(600) }]);
}

#[test]
fn a_drained_host_that_is_denied_keeps_its_place_until_it_is_given_back() {
    let mut play = Play::begun(2, &[], drains());
    play.wants(0);
    play.step(Input::Drained { host: 0 });
    let busy = play.step(Input::Busy { host: 0, reason: "a job".into() });
    assert_eq!(busy, [Action::Deny { host: 0, why: Denial::Busy { reason: "a job".into() } }]);
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
    assert_eq!(play.rollout.ours(), [0]);
    assert_eq!(play.step(Input::Released { host: 0 }), [Action::Drain { host: 1, deadline: at(600) }]);
}

#[test]
fn a_node_that_somebody_else_holds_is_theirs() {
    let mut play = Play::begun(2, &[], Policy { budget: 2, ..drains() });
    play.wants(0);
    let refused = play.step(Input::DrainRefused { host: 0, by: "alice".into() });
    assert_eq!(refused, [Action::Deny { host: 0, why: Denial::HeldByOthers { by: "alice".into() } }]);
    assert_eq!((play.rollout.out(), play.rollout.ours()), (vec![0], vec![]));
}

#[test]
fn a_drain_that_fails_keeps_its_place_only_while_the_node_is_out() {
    for (still_out, out) in [(true, vec![0]), (false, vec![])] {
        let mut play = Play::begun(2, &[], drains());
        play.wants(0);
        let failed = play.step(Input::DrainFailed { host: 0, why: "too long".into(), still_out });
        assert_eq!(failed, [Action::Deny { host: 0, why: Denial::NotDrained { why: "too long".into() } }]);
        play.ended(0, End::Held);
        assert_eq!(play.rollout.out(), out);
        let next = play.wants(1);
        let denied = matches!(next.as_slice(), [Action::Deny { why: Denial::BudgetSpent { .. }, .. }]);
        assert_eq!(denied, still_out, "{next:?}");
    }
}

#[test]
fn an_adopted_node_has_its_place_from_the_beginning() {
    let mut play = Play::new(3, &[], drains());
    play.step(Input::Adopted { host: 1 });
    play.step(Input::Begin);
    assert_eq!((play.rollout.out(), play.rollout.ours()), (vec![1], vec![1]));
    assert_eq!(play.wants(0), [Action::Waits { host: 0, out: vec![1] }]);
    // It has a place, so it waits for no other node.
    assert_eq!(play.wants(1), [Action::Drain { host: 1, deadline: at(600) }]);
    play.step(Input::Drained { host: 1 });
    play.step(Input::Idle { host: 1 });
    assert_eq!(play.step(Input::Released { host: 1 }), [Action::Drain { host: 0, deadline: at(600) }]);
    let late = play.rollout.step(at(1), Input::Adopted { host: 1 });
    assert!(matches!(late, Err(RolloutError::Impossible { .. })), "{late:?}");
}

#[test]
fn an_interrupt_gives_back_who_is_being_drained() {
    let mut play = Play::begun(3, &[], Policy { budget: 2, ..drains() });
    play.wants(0);
    play.wants(1);
    play.step(Input::Drained { host: 1 });
    play.step(Input::Idle { host: 1 });
    let reason = StopReason::Interrupted;
    let stopped = play.step(Input::Interrupt);
    assert_eq!(stopped, [Action::Stop { reason: reason.clone() }, Action::StopDraining { host: 0 }]);
    let given_back = play.step(Input::DrainFailed { host: 0, why: "asked to".into(), still_out: false });
    assert_eq!(given_back, [Action::Deny { host: 0, why: Denial::Stopped { reason } }]);
    assert_eq!(play.rollout.ours(), [1]);
    // The one that is out may go on to its safe point.
    assert_eq!(play.wants(1), [Action::ProveIdle { host: 1 }]);
    assert!(matches!(play.step(Input::Idle { host: 1 }).as_slice(), [Action::Grant { .. }]));
}

#[test]
fn a_full_domain_blocks_only_its_own() {
    let domains = Domains { of: vec![0, 0, 1], names: vec!["a".into(), "b".into()], limit: 1 };
    let mut play = Play::begun(3, &[], Policy { budget: 3, domains: Some(domains), ..Policy::default() });
    play.take_out(0);
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
    assert_eq!(play.wants(2), [Action::ProveIdle { host: 2 }]);
    let denied = play.ended(0, End::Failed);
    let why = Denial::DomainSpent { domain: "a".into(), out: vec![0], limit: 1 };
    assert_eq!(denied, [Action::Deny { host: 1, why }]);
}

#[test]
fn every_claim_is_decided_on_a_fresh_survey() {
    let mut play = Play::begun(4, &[], Policy { budget: 2, surveys: true, ..Policy::default() });
    let nobody = || surveyed(vec![], 0);
    assert_eq!(play.wants(0), [Action::Survey]);
    assert_eq!(play.wants(1), []);
    play.now += 5;
    // It took five seconds: enough for the request before it, too old for the one after it.
    assert_eq!(play.step(nobody()), [Action::ProveIdle { host: 0 }, Action::Survey]);
    let one = play.step(surveyed(vec![3], 0));
    assert_eq!(one, [Action::Waits { host: 1, out: vec![0, 3] }]);
    play.now += 1;
    assert_eq!(play.step(Input::Tick), []);
    play.now += 1;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert_eq!(play.step(nobody()), [Action::ProveIdle { host: 1 }]);
}

#[test]
fn a_survey_without_an_answer_denies() {
    let mut play = Play::begun(1, &[], Policy { surveys: true, ..Policy::default() });
    assert_eq!(
        play.rollout.step(at(0), Input::SurveyFailed { why: String::new() }),
        Err(RolloutError::NoSurvey)
    );
    play.wants(0);
    let denied = play.step(Input::SurveyFailed { why: "slurmctld is silent".into() });
    let why = Denial::NotSurveyed { why: "slurmctld is silent".into() };
    assert_eq!(denied, [Action::Deny { host: 0, why }]);
}

#[test]
fn a_host_that_is_out_through_others_needs_no_new_place() {
    let mut play = Play::begun(2, &[], budget(1));
    play.step(Input::OthersOut { host: 0, out: true });
    assert_eq!(play.wants(0), [Action::ProveIdle { host: 0 }]);
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
}

#[test]
fn a_new_controller_goes_on_where_the_old_one_left() {
    let mut play = Play::begun(4, &[], Policy { budget: 3, ..drains() });
    for host in 0..4 {
        play.wants(host);
    }
    play.step(Input::Drained { host: 1 });
    play.step(Input::Drained { host: 2 });
    play.step(Input::Idle { host: 2 });
    assert_eq!(play.step(Input::Resume), []);
    assert_eq!(play.rollout.in_flight(), [0, 1, 2, 3]);
    // Nodes that were being drained, drained or out keep their places; one that only waited has none.
    assert_eq!(play.rollout.ours(), [0, 1, 2]);
    assert_eq!(play.wants(3), [Action::Waits { host: 3, out: vec![0, 1, 2] }]);
    assert_eq!(play.wants(0), [Action::Drain { host: 0, deadline: at(600) }]);
    assert_eq!(play.wants(1), [Action::Drain { host: 1, deadline: at(600) }]);
    assert_eq!(play.wants(2), [Action::ProveIdle { host: 2 }]);
}

#[test]
fn a_resume_lifts_a_persons_stop_and_no_threshold() {
    let mut play = Play::begun(2, &[], budget(1));
    play.step(Input::Interrupt);
    play.step(Input::Resume);
    assert_eq!(play.rollout.stopped(), None);
    play.step(Input::Fatal);
    play.step(Input::Resume);
    assert_eq!(play.rollout.stopped(), Some(&StopReason::AnyError));
}

#[test]
fn unreachable_nodes_have_a_bound_of_their_own() {
    let thresholds = Thresholds { max_unreachable: Some(1), max_failures: Some(2), ..Thresholds::default() };
    let mut play = Play::begun(6, &[], Policy { thresholds, ..Policy::default() });
    play.ended(0, End::Failed);
    assert_eq!(play.ended(1, End::Unreachable), []);
    let unreachable = play.rollout.clone();
    let reason = StopReason::Failures { failed: 3, allowed: 2 };
    assert_eq!(play.ended(2, End::Failed), [Action::Stop { reason }]);
    let mut play = Play { rollout: unreachable, now: 0 };
    play.rollout.policy.thresholds.max_failures = None;
    let reason = StopReason::Unreachable { unreachable: 2, allowed: 1 };
    assert_eq!(play.ended(2, End::Unreachable), [Action::Stop { reason }]);
}

#[test]
fn a_full_budget_asks_nobody_who_else_is_out() {
    let mut play = Play::begun(3, &[], Policy { surveys: true, patience_s: 0, ..Policy::default() });
    play.wants(0);
    play.step(surveyed(vec![], 0));
    play.step(Input::Idle { host: 0 });
    play.step(Input::OthersOut { host: 1, out: true });
    play.now += 10;
    // It is out already and needs no new place, but the limit is exceeded.
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0] }]);
    let why = Denial::BudgetSpent { out: vec![0, 1], budget: 1 };
    assert_eq!(play.wants(2), [Action::Deny { host: 2, why }]);
}

#[test]
fn a_survey_denies_where_others_took_every_place() {
    let mut play =
        Play::begun(4, &[], Policy { budget: 2, surveys: true, patience_s: 0, ..Policy::default() });
    play.wants(0);
    let denied = play.step(surveyed(vec![3], 1));
    let why = Denial::BudgetSpent { out: vec![3], budget: 2 };
    assert_eq!(denied, [Action::Deny { host: 0, why }]);
    // Outages known before count too.
    let mut play =
        Play::begun(4, &[], Policy { budget: 2, surveys: true, patience_s: 0, ..Policy::default() });
    play.rollout = play.rollout.with_out_elsewhere(1);
    play.wants(0);
    let denied = play.step(surveyed(vec![], 1));
    let why = Denial::BudgetSpent { out: vec![], budget: 2 };
    assert_eq!(denied, [Action::Deny { host: 0, why }]);
}

/// Two racks of two nodes, and one node without a rack.
fn racks(limit: usize) -> Option<Domains> {
    Some(Domains { of: vec![0, 0, 1, 1], names: vec!["a".into(), "b".into()], limit })
}

#[test]
fn a_survey_denies_where_others_took_the_place_of_a_domain() {
    let policy = Policy { budget: 4, surveys: true, patience_s: 0, domains: racks(1), ..Policy::default() };
    let mut play = Play::begun(5, &[], policy);
    play.wants(0);
    play.wants(2);
    play.wants(4);
    let answered = play.step(surveyed(vec![1], 0));
    let why = Denial::DomainSpent { domain: "a".into(), out: vec![1], limit: 1 };
    assert_eq!(
        answered,
        [Action::Deny { host: 0, why }, Action::ProveIdle { host: 2 }, Action::ProveIdle { host: 4 }]
    );
}

#[test]
fn a_survey_that_finds_a_domain_full_of_ours_and_others_lets_wait() {
    let domains = Domains { of: vec![0, 0, 0, 1], ..racks(2).unwrap() };
    let policy =
        Policy { budget: 4, surveys: true, patience_s: 0, domains: Some(domains), ..Policy::default() };
    let mut play = Play::begun(5, &[], policy);
    play.wants(0);
    play.step(surveyed(vec![2], 0));
    play.wants(3);
    // One place of the rack is this run's and will be free again, the other is not.
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0, 2] }]);
    let next = play.ended(0, End::Done);
    assert_eq!(next, [Action::ProveIdle { host: 1 }]);
}

#[test]
fn a_node_without_a_domain_has_the_budget_alone() {
    let mut play = Play::begun(6, &[], Policy { budget: 2, domains: racks(1), ..Policy::default() });
    play.take_out(4);
    assert_eq!(play.wants(5), [Action::ProveIdle { host: 5 }]);
    let waits = play.wants(0);
    assert_eq!(waits, [Action::Waits { host: 0, out: vec![4, 5] }]);
}

#[test]
fn who_waits_for_its_domain_is_told_of_its_domain() {
    let mut play = Play::begun(4, &[], Policy { budget: 3, domains: racks(1), ..Policy::default() });
    play.take_out(2);
    play.take_out(1);
    assert_eq!(play.wants(0), [Action::Waits { host: 0, out: vec![1] }]);
    assert_eq!(play.wants(3), [Action::Waits { host: 3, out: vec![2] }]);
}

#[test]
fn a_survey_of_a_second_ago_still_decides() {
    let mut play =
        Play::begun(3, &[], Policy { budget: 3, surveys: true, patience_s: 0, ..Policy::default() });
    play.wants(0);
    play.step(surveyed(vec![], 0));
    play.now += 1;
    assert_eq!(play.wants(1), [Action::ProveIdle { host: 1 }]);
    play.now += 1;
    assert_eq!(play.wants(2), [Action::Survey]);
}

#[test]
fn a_survey_that_fails_denies_everybody_who_waits_for_it() {
    let mut play =
        Play::begun(3, &[], Policy { budget: 2, surveys: true, patience_s: 0, ..Policy::default() });
    play.wants(0);
    play.wants(2);
    let why = || Denial::NotSurveyed { why: "silence".into() };
    let denied = play.step(Input::SurveyFailed { why: "silence".into() });
    assert_eq!(denied, [Action::Deny { host: 0, why: why() }, Action::Deny { host: 2, why: why() }]);
    assert_eq!(play.wants(0), [Action::Survey]);
}

#[test]
fn a_node_that_others_take_while_it_waits_needs_no_place_any_more() {
    let mut play = Play::begun(3, &[], budget(1));
    play.take_out(0);
    play.wants(2);
    assert_eq!(play.step(Input::OthersOut { host: 2, out: true }), []);
    assert_eq!(play.step(Input::Released { host: 0 }), [Action::ProveIdle { host: 2 }]);
    // The reverse: back in service, it needs a place again.
    let mut play = Play::begun(3, &[], budget(1));
    play.take_out(0);
    play.step(Input::OthersOut { host: 2, out: true });
    assert_eq!(play.wants(2), [Action::Waits { host: 2, out: vec![0] }]);
    assert_eq!(play.step(Input::OthersOut { host: 2, out: false }), []);
    assert_eq!(play.step(Input::Released { host: 0 }), [Action::ProveIdle { host: 2 }]);
}

#[test]
fn who_waits_is_denied_once_only_others_are_out() {
    // One node of this run will come back; two, the whole budget, are out for other reasons.
    let mut play =
        Play::begun(6, &[], Policy { budget: 2, surveys: true, patience_s: 0, ..Policy::default() });
    play.wants(0);
    let claimed = play.step(surveyed(vec![3], 0));
    assert_eq!(claimed, [Action::ProveIdle { host: 0 }]);
    play.step(Input::OthersOut { host: 5, out: true });
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![0, 3, 5] }]);
    let why = Denial::BudgetSpent { out: vec![3, 5], budget: 2 };
    assert_eq!(play.ended(0, End::Done), [Action::Deny { host: 1, why }]);
}

/// Returns a survey in which this many nodes elsewhere are out.
fn elsewhere(nodes: usize) -> Input {
    surveyed(vec![], nodes)
}

fn spent(host: usize, out: Vec<usize>) -> Action {
    Action::Deny { host, why: Denial::BudgetSpent { out, budget: 1 } }
}

#[test]
fn others_outages_that_a_survey_reports_are_waited_for() {
    let mut play = Play::begun(3, &[], Policy { surveys: true, ..Policy::default() });
    assert_eq!(play.wants(0), [Action::Survey]);
    play.now = 1;
    assert_eq!(
        play.step(elsewhere(2)),
        [Action::Waits { host: 0, out: vec![] }, Action::WakeAt { at: at(11) }]
    );
    // A later request uses the same survey.
    play.now = 7;
    assert_eq!(play.wants(1), [Action::Waits { host: 1, out: vec![] }]);
    play.now = 10;
    assert_eq!(play.step(Input::Tick), [Action::WakeAt { at: at(11) }]);
    play.now = 11;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    play.now = 12;
    assert_eq!(play.step(elsewhere(0)), [Action::ProveIdle { host: 0 }]);
}

#[test]
fn others_outages_that_stay_deny_when_the_patience_is_over() {
    let mut play = Play::begun(4, &[], Policy { surveys: true, patience_s: 25, ..Policy::default() });
    let out = || surveyed(vec![3], 0);
    play.wants(0);
    play.step(out());
    play.now = 5;
    play.wants(1);
    for (now, next) in [(10, 20), (20, 25)] {
        play.now = now;
        assert_eq!(play.step(Input::Tick), [Action::Survey], "{now}");
        assert_eq!(play.step(out()), [Action::WakeAt { at: at(next) }]);
    }
    play.now = 24;
    assert_eq!(play.step(Input::Tick), [Action::WakeAt { at: at(25) }]);
    // The patience is over, and the last survey is too old to deny anything.
    play.now = 25;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert_eq!(play.step(out()), [spent(0, vec![3]), Action::WakeAt { at: at(30) }]);
    // The later request has its own patience.
    play.now = 30;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert_eq!(play.step(out()), [spent(1, vec![3])]);
    assert_eq!(play.rollout.out(), [3]);
}

#[test]
fn the_patience_begins_anew_with_each_outage() {
    let mut play =
        Play::begun(2, &[], Policy { surveys: true, budget: 2, patience_s: 25, ..Policy::default() });
    play.wants(1);
    play.step(elsewhere(0));
    play.step(Input::Idle { host: 1 });
    play.now = 100;
    assert_eq!(play.wants(0), [Action::Survey]);
    // A node of this run fills the budget, so it waits for that, however long it takes.
    assert_eq!(play.step(elsewhere(1)), [Action::Waits { host: 0, out: vec![1] }]);
    play.now = 500;
    assert_eq!(play.step(Input::Released { host: 1 }), [Action::Survey]);
    assert_eq!(play.step(elsewhere(2)), [Action::WakeAt { at: at(510) }]);
    play.now = 510;
    play.step(Input::Tick);
    assert_eq!(play.step(elsewhere(0)), [Action::ProveIdle { host: 0 }]);
}

#[test]
fn an_outage_that_was_not_asked_about_for_long_is_another_one() {
    let mut play =
        Play::begun(3, &[], Policy { surveys: true, budget: 2, patience_s: 25, ..Policy::default() });
    play.wants(0);
    play.step(elsewhere(2));
    play.now = 45;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert_eq!(play.step(elsewhere(2)), [Action::WakeAt { at: at(55) }]);
    play.now = 55;
    play.step(Input::Tick);
    assert_eq!(play.step(elsewhere(2)), [Action::WakeAt { at: at(65) }]);
    play.now = 65;
    play.step(Input::Tick);
    play.step(elsewhere(2));
    play.now = 70;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert!(matches!(play.step(elsewhere(2)).as_slice(), [Action::Deny { host: 0, .. }]));
}

#[test]
fn others_outages_in_a_domain_are_waited_for_too() {
    let domains = Domains { of: vec![0, 0, 1, 1], names: vec!["a".into(), "b".into()], limit: 1 };
    let policy =
        Policy { budget: 4, domains: Some(domains), surveys: true, patience_s: 15, ..Policy::default() };
    let mut play = Play::begun(4, &[], policy);
    let out = || surveyed(vec![1], 0);
    play.wants(0);
    assert_eq!(play.step(out()), [Action::Waits { host: 0, out: vec![1] }, Action::WakeAt { at: at(10) }]);
    // Another domain is not affected.
    assert_eq!(play.wants(2), [Action::ProveIdle { host: 2 }]);
    // Neither is the node that is out, which needs no new place.
    assert_eq!(play.wants(1), [Action::ProveIdle { host: 1 }]);
    play.step(Input::Busy { host: 1, reason: String::new() });
    play.now = 10;
    assert_eq!(play.step(Input::Tick), [Action::Survey]);
    assert_eq!(play.step(out()), [Action::WakeAt { at: at(15) }]);
    play.now = 15;
    play.step(Input::Tick);
    let why = Denial::DomainSpent { domain: "a".into(), out: vec![1], limit: 1 };
    assert_eq!(play.step(out()), [Action::Deny { host: 0, why }]);
}

#[test]
fn a_wait_for_others_ends_with_the_run() {
    let mut play = Play::begun(2, &[], Policy { surveys: true, ..Policy::default() });
    play.wants(0);
    play.step(elsewhere(1));
    let reason = StopReason::Interrupted;
    let why = Denial::Stopped { reason: reason.clone() };
    assert_eq!(play.step(Input::Interrupt), [Action::Stop { reason }, Action::Deny { host: 0, why }]);
}

#[test]
fn outages_that_are_known_need_no_patience() {
    let mut play = Play::new(2, &[], Policy { surveys: true, ..Policy::default() });
    play.step(Input::OthersOut { host: 1, out: true });
    play.step(Input::Begin);
    assert_eq!(play.wants(0), [spent(0, vec![1])]);
}

#[test]
fn outages_elsewhere_count_in_their_domain() {
    let domains = Domains { of: vec![0, 0, 1], names: vec!["r1".into(), "r2".into()], limit: 1 };
    let policy =
        Policy { budget: 3, domains: Some(domains), surveys: true, patience_s: 60, ..Policy::default() };
    let mut play = Play::begun(3, &[], policy);
    let told = |domains: &[(usize, usize)]| Input::Surveyed {
        out: vec![],
        elsewhere: 0,
        domains: domains.iter().copied().collect(),
    };
    assert!(play.wants(0).contains(&Action::Survey));
    assert!(play.wants(2).is_empty());
    let second = play.step(told(&[(0, 1)]));
    assert!(second.contains(&Action::ProveIdle { host: 2 }), "{second:?}");
    assert!(!second.contains(&Action::ProveIdle { host: 0 }), "{second:?}");
    // The others' node is back before the patience is over.
    play.now = 20;
    assert!(play.step(Input::Tick).contains(&Action::Survey));
    assert!(play.step(told(&[])).contains(&Action::ProveIdle { host: 0 }));
}

#[test]
fn who_turned_out_to_be_others_while_a_survey_was_under_way_counts_as_out() {
    let policy = Policy { budget: 2, surveys: true, patience_s: 0, ..drains() };
    let mut play = Play::begun(4, &[], policy);
    play.wants(0);
    assert!(matches!(play.step(surveyed(vec![], 0)).as_slice(), [Action::Drain { host: 0, .. }]));
    play.now = 5;
    assert_eq!(play.wants(1), [Action::Survey]);
    play.step(Input::DrainRefused { host: 0, by: "alice".into() });
    let why = Denial::BudgetSpent { out: vec![0, 2], budget: 2 };
    assert_eq!(play.step(surveyed(vec![2], 0)), [Action::Deny { host: 1, why }]);
}

/// Returns a survey of nodes elsewhere that are out, by rack.
fn neighbour(racks: &[(usize, usize)]) -> Input {
    Input::Surveyed { out: vec![], elsewhere: 0, domains: racks.iter().copied().collect() }
}

#[test]
fn the_patience_for_a_domain_begins_anew_with_each_outage() {
    let domains = Domains { of: vec![1, 1, 0], names: vec!["a".into(), "b".into()], limit: 1 };
    let policy =
        Policy { budget: 1, domains: Some(domains), surveys: true, patience_s: 15, ..Policy::default() };
    let mut play = Play::begun(3, &[], policy);
    play.wants(0);
    let hopes = [Action::Waits { host: 0, out: vec![] }, Action::WakeAt { at: at(10) }];
    assert_eq!(play.step(neighbour(&[(1, 1)])), hopes);
    // The others' node is back, but by then the only place of the fleet is taken.
    play.now = 8;
    assert_eq!(play.wants(2), [Action::Survey]);
    assert!(play.step(neighbour(&[(1, 1)])).contains(&Action::ProveIdle { host: 2 }));
    play.step(Input::Idle { host: 2 });
    play.now = 12;
    play.step(neighbour(&[]));
    play.now = 20;
    assert_eq!(play.step(Input::Released { host: 2 }), [Action::Survey]);
    assert_eq!(play.step(neighbour(&[(1, 1)])), [Action::WakeAt { at: at(30) }]);
}
