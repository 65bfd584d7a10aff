//! The invariants of the module docs: in fixed examples here, over simulated fleets in `fleet`.

use gpufleet_protocol::Disruption;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

mod bounds;
mod drains;
mod fleet;
mod queue;
mod silence;
mod soak;
mod texts;
mod waves;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Returns this thread's CPU time, which does not depend on other work of the machine.
fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

/// A rollout with a clock.
struct Play {
    rollout: Rollout,
    now: i64,
}

impl Play {
    fn new(hosts: usize, batches: &[Batch], policy: Policy) -> Self {
        Self {
            rollout: Rollout::new(hosts, plan_waves(batches, &all(hosts)), policy, Lost::default()),
            now: 0,
        }
    }

    fn begun(hosts: usize, batches: &[Batch], policy: Policy) -> Self {
        let mut play = Self::new(hosts, batches, policy);
        play.step(Input::Begin);
        play
    }

    fn step(&mut self, input: Input) -> Vec<Action> {
        self.rollout.step(at(self.now), input).unwrap()
    }

    fn wants(&mut self, host: usize) -> Vec<Action> {
        self.step(Input::WantsPermit { host, class: Disruption::Reboot })
    }

    fn ended(&mut self, host: usize, end: End) -> Vec<Action> {
        self.step(Input::Ended { host, end })
    }

    /// Without drains, takes a host out of service.
    fn take_out(&mut self, host: usize) {
        self.wants(host);
        self.step(Input::Idle { host });
    }
}

fn budget(budget: usize) -> Policy {
    Policy { budget, ..Policy::default() }
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

fn surveyed(out: Vec<usize>, elsewhere: usize) -> Input {
    Input::Surveyed { out, elsewhere, domains: std::collections::BTreeMap::new() }
}

fn all(count: usize) -> Vec<WaveHost> {
    vec![well(); count]
}

fn well() -> WaveHost {
    WaveHost { class: Some("h100".into()), gpus: 8, reachable: true, ..WaveHost::default() }
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
fn who_is_late_goes_last() {
    let mut hosts = all(5);
    hosts[0] = WaveHost { late: true, ..WaveHost::default() };
    let waves = |batches: &[Batch]| -> Vec<Vec<usize>> {
        plan_waves(batches, &hosts).into_iter().map(|wave| wave.hosts).collect()
    };
    assert_eq!(waves(&[Batch::Canary, Batch::Of(Amount::Count(2))]), [vec![1], vec![2, 3], vec![4], vec![0]]);
    assert_eq!(waves(&[Batch::Of(Amount::Count(2))]), [vec![1, 2], vec![3, 4], vec![0]]);
}

#[test]
fn a_budget_of_nothing_is_an_error() {
    assert_eq!(
        Amount::Percent(10.0).budget(9, false),
        Err(BudgetError::RoundsToZero { percent: 10.0, hosts: 9 })
    );
    assert_eq!(Amount::Percent(10.0).budget(9, true), Ok(1), "of what a limit left");
    assert_eq!(Amount::Percent(29.0).budget(100, false), Ok(29));
    assert_eq!(Amount::Count(0).budget(9, true), Err(BudgetError::Zero));
    assert_eq!(Amount::parse("0%"), None);
}

#[test]
fn one_node_at_a_time() {
    let mut play = Play::new(3, &[], budget(1));
    assert_eq!(started(&play.step(Input::Begin)), [0, 1, 2]);
    let wants = |host| Input::WantsPermit { host, class: Disruption::Reboot };
    assert_eq!(play.step(wants(1)), [Action::ProveIdle { host: 1 }]);
    assert_eq!(play.step(wants(2)), [Action::Waits { host: 2, out: vec![1] }]);
    assert_eq!(
        play.step(Input::Idle { host: 1 }),
        [Action::Grant { host: 1, class: Disruption::Reboot, deadline: None }]
    );
    assert_eq!(play.step(Input::Ended { host: 1, end: End::Done }), [Action::ProveIdle { host: 2 }]);
}

#[test]
fn a_node_that_is_busy_for_a_second_act_is_still_out() {
    let mut play = Play::new(2, &[], budget(1));
    play.step(Input::Begin);
    play.step(Input::WantsPermit { host: 0, class: Disruption::GpuReset });
    play.step(Input::Idle { host: 0 });
    play.step(Input::WantsPermit { host: 0, class: Disruption::Reboot });
    play.step(Input::Busy { host: 0, reason: "a job".into() });
    play.step(Input::Ended { host: 0, end: End::Held });
    let denied = play.step(Input::WantsPermit { host: 1, class: Disruption::Clients });
    assert_eq!(denied, [Action::Deny { host: 1, why: Denial::BudgetSpent { out: vec![0], budget: 1 } }]);
}

#[test]
fn a_proof_that_comes_after_the_stop_gives_no_permit() {
    let mut play = Play::new(2, &[], budget(1));
    play.step(Input::Begin);
    play.step(Input::WantsPermit { host: 0, class: Disruption::Reboot });
    play.step(Input::Interrupt);
    let denied = play.step(Input::Idle { host: 0 });
    assert_eq!(denied, [Action::Deny { host: 0, why: Denial::Stopped { reason: StopReason::Interrupted } }]);
    assert!(play.rollout.out().is_empty());
}

#[test]
fn outages_of_earlier_plays_count() {
    let mut play = Play::new(1, &[], budget(1));
    play.rollout = play.rollout.with_out_elsewhere(1);
    play.step(Input::Begin);
    let denied = play.step(Input::WantsPermit { host: 0, class: Disruption::Clients });
    assert!(
        matches!(denied.as_slice(), [Action::Deny { why: Denial::BudgetSpent { .. }, .. }]),
        "{denied:?}"
    );
}

#[test]
fn a_node_lost_while_out_keeps_its_place() {
    let mut play = Play::new(2, &[], budget(1));
    play.step(Input::Begin);
    play.step(Input::WantsPermit { host: 0, class: Disruption::Reboot });
    play.step(Input::Idle { host: 0 });
    play.step(Input::Ended { host: 0, end: End::Failed });
    let denied = play.step(Input::WantsPermit { host: 1, class: Disruption::Clients });
    assert_eq!(denied, [Action::Deny { host: 1, why: Denial::BudgetSpent { out: vec![0], budget: 1 } }]);
}

#[test]
fn a_play_that_ends_early_starts_no_further_wave() {
    let mut play = Play::new(4, &[Batch::Of(Amount::Count(2))], budget(1));
    play.step(Input::Begin);
    play.step(Input::EndPlay);
    play.step(Input::Ended { host: 0, end: End::Done });
    let actions = play.step(Input::Ended { host: 1, end: End::Done });
    assert!(actions.contains(&Action::Finish { never_started: vec![2, 3] }), "{actions:?}");
    assert_eq!(play.rollout.stopped(), None);
}

#[test]
fn a_fatal_task_stops_the_play() {
    let mut play = Play::new(2, &[Batch::Of(Amount::Count(1))], budget(1));
    play.step(Input::Begin);
    assert_eq!(play.step(Input::Fatal), [Action::Stop { reason: StopReason::AnyError }]);
}

#[test]
fn a_failed_canary_stops_the_play() {
    let mut play = Play::new(4, &[Batch::Canary, Batch::Of(Amount::Count(5))], budget(1));
    assert_eq!(started(&play.step(Input::Begin)), [0]);
    let actions = play.step(Input::Ended { host: 0, end: End::Failed });
    assert!(actions.contains(&Action::Stop { reason: StopReason::Canary { failed: vec![0] } }));
    assert!(actions.contains(&Action::Finish { never_started: vec![1, 2, 3] }));
}

#[test]
fn a_fleet_of_a_hundred_thousand_takes_microseconds_a_step() {
    let count = 100_000;
    let domains = Domains {
        of: (0..count).map(|host| host / 50).collect(),
        names: (0..count / 50).map(|rack| format!("rack {rack}")).collect(),
        limit: 2,
    };
    let policy = Policy {
        budget: count / 10,
        domains: Some(domains),
        surveys: true,
        drains: true,
        ..Policy::default()
    };
    let mut rollout = Rollout::new(count, plan_waves(&[], &all(count)), policy, Lost::default());
    let (mut todo, mut now) = (std::collections::VecDeque::from([Input::Begin]), 0);
    let mut to_wish = 0..count;
    let (mut steps, mut longest) = (0u64, std::time::Duration::ZERO);
    let begin = processor_time();
    while let Some(input) = todo
        .pop_front()
        .or_else(|| to_wish.next().map(|host| Input::WantsPermit { host, class: Disruption::Reboot }))
    {
        steps += 1;
        now += 1;
        let (first, one) = (matches!(input, Input::Begin), std::time::Instant::now());
        let actions =
            rollout.step(Timestamp::from_millisecond(1_800_000_000_000 + now).unwrap(), input).unwrap();
        if !first {
            longest = longest.max(one.elapsed());
        }
        for action in actions {
            todo.extend(match action {
                Action::Survey => vec![surveyed(vec![7, 8], 3)],
                Action::Drain { host, .. } => vec![Input::Drained { host }],
                Action::ProveIdle { host } => vec![Input::Idle { host }],
                Action::Grant { host, .. } => {
                    vec![Input::Released { host }, Input::Ended { host, end: End::Done }]
                }
                Action::Deny { host, .. } => vec![Input::Ended { host, end: End::Held }],
                _ => vec![],
            });
        }
    }
    assert!(rollout.is_finished());
    let each = (processor_time() - begin) / u32::try_from(steps).unwrap();
    // A few microseconds with optimisation; the point is that it does not grow with the fleet.
    assert!(each.as_micros() < 200, "{each:?} a step, {longest:?} at most, {steps} steps");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn impossible_inputs_are_errors_and_change_nothing(
        inputs in prop::collection::vec((0usize..4, 0u8..18), 0..60),
        drains: bool, surveys: bool, soak: bool,
    ) {
        let policy = Policy { drains, surveys, soak_s: u64::from(soak), ..Policy::default() };
        let mut play = Play::new(3, &[Batch::Canary, Batch::Of(Amount::Count(1))], policy);
        for (host, kind) in inputs {
            play.now += 1;
            let before = play.rollout.clone();
            let result = play.rollout.step(at(play.now), match kind {
                0 => Input::Begin,
                1 | 2 => Input::WantsPermit { host, class: Disruption::GpuReset },
                3 => Input::Idle { host },
                4 => Input::Released { host },
                5 => Input::Ended { host, end: End::Failed },
                6 => Input::Busy { host, reason: String::new() },
                7 | 8 => Input::Drained { host },
                9 => Input::DrainRefused { host, by: String::new() },
                10 => Input::DrainFailed { host, why: String::new(), still_out: true },
                11 => surveyed(vec![host], 0),
                12 => Input::SurveyFailed { why: String::new() },
                13 => Input::SoakChecked { host, ok: true, why: String::new() },
                14 => Input::OthersOut { host, out: false },
                15 => Input::Resume,
                16 => Input::Tick,
                _ => Input::Ended { host, end: End::Done },
            });
            if result.is_err() { prop_assert_eq!(&play.rollout, &before); }
            if host == 3 { prop_assert!(result.is_err() || matches!(kind, 0 | 12 | 15 | 16)); }
        }
    }

    #[test]
    fn waves_divide_the_hosts(batches in batches(), count in 0usize..40) {
        let hosts: Vec<_> =
            (0..count).map(|i| WaveHost { class: Some((i % 3).to_string()), reachable: i % 5 != 0, ..well() }).collect();
        let waves = plan_waves(&batches, &hosts);
        let mut covered: Vec<usize> = waves.iter().flat_map(|wave| wave.hosts.clone()).collect();
        covered.sort_unstable();
        prop_assert_eq!(covered, (0..count).collect::<Vec<_>>());
    }
}

fn batches() -> impl Strategy<Value = Vec<Batch>> {
    let batch = prop_oneof![
        Just(Batch::Canary),
        (1usize..5).prop_map(|n| Batch::Of(Amount::Count(n))),
        (1u8..=100).prop_map(|p| Batch::Of(Amount::Percent(f64::from(p)))),
    ];
    prop::collection::vec(batch, 0..4)
}

#[test]
fn the_wave_that_is_on_is_told() {
    let mut play = Play::new(3, &[Batch::Of(Amount::Count(1)), Batch::Of(Amount::Count(2))], budget(1));
    assert_eq!(play.rollout.current_wave(), None);
    play.step(Input::Begin);
    assert_eq!(
        (play.rollout.current_wave(), play.rollout.wave(0), play.rollout.wave(1)),
        (Some(0), &[0][..], &[1, 2][..])
    );
    assert_eq!(play.rollout.wave(2), &[] as &[usize]);
    // A node that waits for its wave was never lost, and cannot return.
    assert!(!play.rollout.is_in_no_wave(1));
    assert!(play.rollout.step(at(0), Input::Returned { host: 1 }).is_err());
}
