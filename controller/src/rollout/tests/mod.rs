//! The invariants of the module docs over random fleets, waves, budgets and faults.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::Disruption;
use proptest::prelude::*;

use super::*;

mod window;

/// What a simulated node will do when it is started.
#[derive(Clone, Copy, Debug)]
struct Script {
    permits: u8,
    busy: bool,
    end: End,
    others_out: bool,
}

fn scripts() -> impl Strategy<Value = Script> {
    let end = prop_oneof![8 => Just(End::Done), 1 => Just(End::Failed), 1 => Just(End::Held), 1 => Just(End::Unreachable)];
    (0u8..3, prop::bool::weighted(0.1), end, prop::bool::weighted(0.1))
        .prop_map(|(permits, busy, end, others_out)| Script { permits, busy, end, others_out })
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let batch = prop_oneof![
        Just(Batch::Canary),
        (1usize..5).prop_map(|n| Batch::Of(Amount::Count(n))),
        (1u8..=100).prop_map(|p| Batch::Of(Amount::Percent(f64::from(p)))),
    ];
    prop::collection::vec(batch, 0..4)
}

/// What is due for a node, in any order among nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Next(usize),
    Proof(usize),
}

struct Fleet {
    rollout: Rollout,
    scripts: Vec<Script>,
    permits_left: Vec<u8>,
    due: Vec<Due>,
    started: BTreeSet<usize>,
    ended: BTreeSet<usize>,
    proven: BTreeSet<usize>,
    granted: BTreeSet<usize>,
    waiting: BTreeSet<usize>,
    stopped: bool,
    finished: bool,
    budget: usize,
    starts_after_stop: usize,
}

impl Fleet {
    fn input(&mut self, input: Input) {
        let stopped_before = self.stopped;
        let actions = self.rollout.step(input).unwrap();
        for action in actions {
            match action {
                Action::Start { host } => {
                    assert!(self.started.insert(host), "host {host} started twice");
                    self.starts_after_stop += usize::from(stopped_before);
                    self.due.push(Due::Next(host));
                }
                Action::ProveIdle { host } => {
                    self.waiting.remove(&host);
                    self.starts_after_stop += usize::from(stopped_before && !self.granted.contains(&host));
                    let fresh = !self.granted.contains(&host);
                    assert!(
                        !fresh || self.rollout.out().len() <= self.budget,
                        "more nodes out than the budget"
                    );
                    self.due.push(Due::Proof(host));
                }
                Action::Grant { host, .. } => {
                    assert!(self.proven.remove(&host), "host {host} was granted a permit without proof");
                    self.granted.insert(host);
                    self.due.push(Due::Next(host));
                }
                Action::Deny { host, .. } => {
                    self.waiting.remove(&host);
                    self.granted.remove(&host);
                    self.end(host, End::Held);
                }
                Action::Stop { .. } => self.stopped = true,
                Action::Finish { never_started } => {
                    self.finished = true;
                    assert!(never_started.iter().all(|host| !self.started.contains(host)));
                }
                Action::StartWave { .. } | Action::FinishWave { .. } | Action::Waits { .. } => {}
            }
        }
    }

    fn end(&mut self, host: usize, end: End) {
        self.ended.insert(host);
        self.granted.remove(&host);
        self.input(Input::Ended { host, end });
    }

    fn advance(&mut self, due: Due) {
        match due {
            Due::Proof(host) => {
                if self.scripts[host].busy {
                    self.input(Input::Busy { host, reason: "a job".into() });
                } else {
                    self.proven.insert(host);
                    self.input(Input::Idle { host });
                }
            }
            Due::Next(host) if self.permits_left[host] > 0 => {
                self.permits_left[host] -= 1;
                self.waiting.insert(host);
                self.input(Input::WantsPermit { host, class: Disruption::Reboot });
            }
            Due::Next(host) => self.end(host, self.scripts[host].end),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold(
        scripts in prop::collection::vec(scripts(), 1..25),
        batches in batches(),
        budget in 1usize..5,
        percentage in prop::option::of(0u8..100),
        max_failures in prop::option::of(0usize..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        interrupt_at in prop::option::of(0usize..60),
    ) {
        let count = scripts.len();
        let hosts: Vec<_> = (0..count).map(|i| WaveHost { class: (i % 3).to_string(), reachable: true }).collect();
        let waves = plan_waves(&batches, &hosts);
        let mut covered: Vec<usize> = waves.iter().flat_map(|wave| wave.hosts.clone()).collect();
        covered.sort_unstable();
        prop_assert_eq!(covered, (0..count).collect::<Vec<_>>());

        let thresholds = Thresholds { max_fail_percentage: percentage.map(f64::from), max_failures, any_errors_fatal: false };
        let mut fleet = Fleet {
            rollout: Rollout::new(count, waves, budget, thresholds, 0),
            permits_left: scripts.iter().map(|script| script.permits).collect(),
            scripts, budget,
            due: Vec::new(), started: BTreeSet::new(), ended: BTreeSet::new(), proven: BTreeSet::new(),
            granted: BTreeSet::new(), waiting: BTreeSet::new(),
            stopped: false, finished: false, starts_after_stop: 0,
        };
        let others: Vec<usize> = (0..count).filter(|host| fleet.scripts[*host].others_out).collect();
        for host in others { fleet.input(Input::OthersOut { host, out: true }); }
        fleet.input(Input::Begin);
        let (mut steps, mut order) = (0usize, order.into_iter().cycle());
        while !fleet.due.is_empty() {
            if interrupt_at == Some(steps) { fleet.input(Input::Interrupt); }
            steps += 1;
            prop_assert!(steps < 10_000);
            let at = order.next().map_or(0, |index| index.index(fleet.due.len()));
            let due = fleet.due.swap_remove(at);
            fleet.advance(due);
        }
        prop_assert!(fleet.finished, "nothing is due, and the play is not over");
        prop_assert!(fleet.waiting.is_empty(), "a wish for a permit was never answered");
        prop_assert_eq!(&fleet.started, &fleet.ended);
        prop_assert_eq!(fleet.starts_after_stop, 0);
        if !fleet.stopped { prop_assert_eq!(fleet.started.len(), count); }
    }

    #[test]
    fn impossible_inputs_are_errors(inputs in prop::collection::vec((0usize..4, 0u8..6), 0..60)) {
        let hosts = vec![WaveHost { class: String::new(), reachable: true }; 3];
        let mut rollout = Rollout::new(3, plan_waves(&[], &hosts), 1, Thresholds::default(), 0);
        for (host, kind) in inputs {
            let before = rollout.out();
            let result = rollout.step(match kind {
                0 => Input::Begin,
                1 => Input::WantsPermit { host, class: Disruption::GpuReset },
                2 => Input::Idle { host },
                3 => Input::Released { host },
                4 => Input::Ended { host, end: End::Failed },
                _ => Input::Busy { host, reason: String::new() },
            });
            if result.is_err() { prop_assert_eq!(rollout.out(), before); }
        }
    }
}

fn started(actions: &[Action]) -> Vec<usize> {
    actions
        .iter()
        .filter_map(|a| match a {
            Action::Start { host } => Some(*host),
            _ => None,
        })
        .collect()
}

fn all(count: usize) -> Vec<WaveHost> {
    vec![WaveHost { class: "h100".into(), reachable: true }; count]
}

#[test]
fn the_last_batch_repeats() {
    let batches = [Batch::Canary, Batch::Of(Amount::Percent(10.0)), Batch::Of(Amount::Percent(25.0))];
    let sizes: Vec<_> =
        plan_waves(&batches, &all(20)).into_iter().map(|w| (w.label, w.hosts.len())).collect();
    let expected = [("canary", 1), ("10%", 2), ("25%", 5), ("25%", 5), ("25%", 5), ("25%", 2)];
    assert_eq!(sizes, expected.map(|(label, count)| (label.to_owned(), count)));
}

#[test]
fn a_budget_of_nothing_is_an_error() {
    assert_eq!(Amount::Percent(10.0).budget(9), Err(BudgetError::RoundsToZero { percent: 10.0, hosts: 9 }));
    assert_eq!(Amount::Percent(29.0).budget(100), Ok(29));
    assert_eq!(Amount::Count(0).budget(9), Err(BudgetError::Zero));
    assert_eq!(Amount::parse("0%"), None);
}

#[test]
fn one_node_at_a_time() {
    let mut rollout = Rollout::new(3, plan_waves(&[], &all(3)), 1, Thresholds::default(), 0);
    assert_eq!(started(&rollout.step(Input::Begin).unwrap()), [0, 1, 2]);
    let wants = |host| Input::WantsPermit { host, class: Disruption::Reboot };
    assert_eq!(rollout.step(wants(1)).unwrap(), [Action::ProveIdle { host: 1 }]);
    assert_eq!(rollout.step(wants(2)).unwrap(), [Action::Waits { host: 2, out: vec![1] }]);
    assert_eq!(
        rollout.step(Input::Idle { host: 1 }).unwrap(),
        [Action::Grant { host: 1, class: Disruption::Reboot }]
    );
    assert_eq!(
        rollout.step(Input::Ended { host: 1, end: End::Done }).unwrap(),
        [Action::ProveIdle { host: 2 }]
    );
}

#[test]
fn a_node_that_is_busy_for_a_second_act_is_still_out() {
    let mut rollout = Rollout::new(2, plan_waves(&[], &all(2)), 1, Thresholds::default(), 0);
    rollout.step(Input::Begin).unwrap();
    rollout.step(Input::WantsPermit { host: 0, class: Disruption::GpuReset }).unwrap();
    rollout.step(Input::Idle { host: 0 }).unwrap();
    rollout.step(Input::WantsPermit { host: 0, class: Disruption::Reboot }).unwrap();
    rollout.step(Input::Busy { host: 0, reason: "a job".into() }).unwrap();
    rollout.step(Input::Ended { host: 0, end: End::Held }).unwrap();
    let denied = rollout.step(Input::WantsPermit { host: 1, class: Disruption::Clients }).unwrap();
    assert_eq!(denied, [Action::Deny { host: 1, why: Denial::BudgetSpent { out: vec![0], budget: 1 } }]);
}

#[test]
fn a_proof_that_comes_after_the_stop_gives_no_permit() {
    let mut rollout = Rollout::new(2, plan_waves(&[], &all(2)), 1, Thresholds::default(), 0);
    rollout.step(Input::Begin).unwrap();
    rollout.step(Input::WantsPermit { host: 0, class: Disruption::Reboot }).unwrap();
    rollout.step(Input::Interrupt).unwrap();
    let denied = rollout.step(Input::Idle { host: 0 }).unwrap();
    assert_eq!(denied, [Action::Deny { host: 0, why: Denial::Stopped { reason: StopReason::Interrupted } }]);
    assert!(rollout.out().is_empty());
}

#[test]
fn outages_of_earlier_plays_count() {
    let mut rollout =
        Rollout::new(1, plan_waves(&[], &all(1)), 1, Thresholds::default(), 0).with_out_elsewhere(1);
    rollout.step(Input::Begin).unwrap();
    let denied = rollout.step(Input::WantsPermit { host: 0, class: Disruption::Clients }).unwrap();
    assert!(
        matches!(denied.as_slice(), [Action::Deny { why: Denial::BudgetSpent { .. }, .. }]),
        "{denied:?}"
    );
}

#[test]
fn a_node_lost_while_out_keeps_its_place() {
    let mut rollout = Rollout::new(2, plan_waves(&[], &all(2)), 1, Thresholds::default(), 0);
    rollout.step(Input::Begin).unwrap();
    rollout.step(Input::WantsPermit { host: 0, class: Disruption::Reboot }).unwrap();
    rollout.step(Input::Idle { host: 0 }).unwrap();
    rollout.step(Input::Ended { host: 0, end: End::Failed }).unwrap();
    let denied = rollout.step(Input::WantsPermit { host: 1, class: Disruption::Clients }).unwrap();
    assert_eq!(denied, [Action::Deny { host: 1, why: Denial::BudgetSpent { out: vec![0], budget: 1 } }]);
}

#[test]
fn a_play_that_ends_early_starts_no_further_wave() {
    let mut rollout =
        Rollout::new(4, plan_waves(&[Batch::Of(Amount::Count(2))], &all(4)), 1, Thresholds::default(), 0);
    rollout.step(Input::Begin).unwrap();
    rollout.step(Input::EndPlay).unwrap();
    rollout.step(Input::Ended { host: 0, end: End::Done }).unwrap();
    let actions = rollout.step(Input::Ended { host: 1, end: End::Done }).unwrap();
    assert!(actions.contains(&Action::Finish { never_started: vec![2, 3] }), "{actions:?}");
    assert_eq!(rollout.stopped(), None);
}

#[test]
fn a_fatal_task_stops_the_play() {
    let mut rollout =
        Rollout::new(2, plan_waves(&[Batch::Of(Amount::Count(1))], &all(2)), 1, Thresholds::default(), 0);
    rollout.step(Input::Begin).unwrap();
    assert_eq!(rollout.step(Input::Fatal).unwrap(), [Action::Stop { reason: StopReason::AnyError }]);
}

#[test]
fn a_failed_canary_stops_the_play() {
    let waves = plan_waves(&[Batch::Canary, Batch::Of(Amount::Count(5))], &all(4));
    let mut rollout = Rollout::new(4, waves, 1, Thresholds::default(), 0);
    assert_eq!(started(&rollout.step(Input::Begin).unwrap()), [0]);
    let actions = rollout.step(Input::Ended { host: 0, end: End::Failed }).unwrap();
    assert!(actions.contains(&Action::Stop { reason: StopReason::Canary { failed: 1 } }));
    assert!(actions.contains(&Action::Finish { never_started: vec![1, 2, 3] }));
}

#[test]
fn a_hundred_thousand_nodes_take_microseconds_a_step() {
    let count = 100_000;
    let mut rollout = Rollout::new(count, plan_waves(&[], &all(count)), count / 10, Thresholds::default(), 0);
    let begin = std::time::Instant::now();
    rollout.step(Input::Begin).unwrap();
    let mut answers = BTreeMap::<usize, u32>::new();
    for host in 0..count {
        rollout.step(Input::Ended { host, end: End::Done }).unwrap();
        *answers.entry(host).or_default() += 1;
    }
    assert!(rollout.is_finished());
    assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
}
