//! Which nodes are canaries, and what happens to nodes of unknown class.

use super::*;

const WAVES: [Batch; 2] = [Batch::Canary, Batch::Of(Amount::Percent(25.0))];

fn broken() -> WaveHost {
    WaveHost { class: None, gpus: 0, ..well() }
}

fn of_class(class: &str) -> WaveHost {
    WaveHost { class: Some(class.to_owned()), ..well() }
}

fn hosts_of(waves: &[Wave]) -> Vec<(&str, bool, Vec<usize>)> {
    waves.iter().map(|wave| (wave.label.as_str(), wave.aside, wave.hosts.clone())).collect()
}

/// Ends every node that a wave starts: broken ones badly, others well.
fn carry_out(hosts: &[WaveHost], policy: Policy) -> Play {
    let waves = plan_waves(&WAVES, hosts);
    let mut play = Play { rollout: Rollout::new(hosts.len(), waves, policy, Lost::default()), now: 0 };
    let mut todo: std::collections::VecDeque<usize> = started(&play.step(Input::Begin)).into();
    while let Some(host) = todo.pop_front() {
        let end = if hosts[host].is_known() { End::Done } else { End::Failed };
        todo.extend(started(&play.ended(host, end)));
    }
    play
}

#[test]
fn a_broken_node_is_no_canary_and_goes_last() {
    let hosts =
        [broken(), of_class("a100"), well(), broken(), well(), WaveHost { reachable: false, ..well() }];
    let waves = plan_waves(&WAVES, &hosts);
    let expected = [
        ("canary", false, vec![1, 2]),
        ("25%", false, vec![4]),
        ("25%", true, vec![0]),
        ("25%", true, vec![3]),
        ("25%", true, vec![5]),
    ];
    assert_eq!(hosts_of(&waves), expected);
    let alone = plan_waves(&[Batch::Canary], &hosts);
    assert_eq!(
        hosts_of(&alone),
        [("canary", false, vec![1, 2]), ("all", false, vec![4]), ("all", true, vec![0, 3, 5])]
    );
}

#[test]
fn without_canaries_the_order_is_as_written() {
    let hosts = [broken(), well(), broken(), well()];
    let waves = plan_waves(&[Batch::Of(Amount::Count(2))], &hosts);
    assert_eq!(hosts_of(&waves), [("2", false, vec![0, 1]), ("2", false, vec![2, 3])]);
}

/// As for machines that get their first driver: the change is still tried on one.
#[test]
fn where_nobody_is_known_one_goes_first() {
    let hosts = [WaveHost { reachable: false, ..broken() }, broken(), broken()];
    let waves = plan_waves(&WAVES, &hosts);
    assert_eq!(
        hosts_of(&waves),
        [("canary", false, vec![1]), ("25%", false, vec![0]), ("25%", false, vec![2])]
    );
    let nobody = vec![WaveHost { reachable: false, ..broken() }; 2];
    assert_eq!(hosts_of(&plan_waves(&[Batch::Canary], &nobody)), [("all", false, vec![0, 1])]);
}

#[test]
fn a_canary_has_as_many_gpus_as_most_of_its_class() {
    let lost = WaveHost { gpus: 7, ..well() };
    let flawed = WaveHost { flaws: 2, ..well() };
    let canary = |hosts: &[WaveHost]| plan_waves(&WAVES, hosts)[0].hosts.clone();
    assert_eq!(canary(&[lost.clone(), flawed.clone(), well(), well()]), [2]);
    assert_eq!(canary(&[lost.clone(), flawed.clone()]), [1], "of two counts the larger one");
    assert_eq!(canary(&[lost.clone(), lost, well()]), [0]);
}

#[test]
fn a_canary_has_something_to_do_and_what_most_of_its_class_have() {
    let works = |work: u64| WaveHost { work: Some(work), ..well() };
    let canary = |hosts: &[WaveHost]| plan_waves(&WAVES, hosts)[0].hosts.clone();
    assert_eq!(canary(&[well(), works(1), works(2), works(2)]), [2], "the most typical one");
    assert_eq!(canary(&[well(), works(2), works(1)]), [1], "the first of those that are alike");
    // A node with fewer GPUs stands for nobody, but one that is as declared for nobody at all.
    assert_eq!(canary(&[well(), well(), WaveHost { gpus: 7, ..works(1) }]), [2]);
    let of_a100 = WaveHost { class: Some("a100".to_owned()), ..well() };
    assert_eq!(canary(&[of_a100.clone(), works(1)]), [1], "nothing is to be done in the other class");
    assert_eq!(canary(&[of_a100, well()]), [0, 1], "all are as declared");
}

#[test]
fn six_broken_nodes_of_two_hundred_stop_nobody() {
    let mut hosts = all(198);
    (0..6).for_each(|broken_one| hosts[broken_one * 7] = broken());
    let bounded = |max_failures| Policy {
        thresholds: Thresholds { max_failures: Some(max_failures), ..Thresholds::default() },
        ..Policy::default()
    };
    let play = carry_out(&hosts, bounded(30));
    assert!(play.rollout.is_finished());
    assert_eq!((play.rollout.stopped(), play.rollout.lost().failed), (None, 6));
    assert!((0..198).all(|host| play.rollout.has_ended(host)));
    // The declared threshold applies to them too.
    let play = carry_out(&hosts, bounded(3));
    assert_eq!(play.rollout.stopped(), Some(&StopReason::Failures { failed: 4, allowed: 3 }));
    assert_eq!((0..198).filter(|host| hosts[*host].is_known() && !play.rollout.has_ended(*host)).count(), 0);
}

#[test]
fn a_share_counts_nodes_led_aside_among_all_of_the_play() {
    let mut hosts = all(20);
    hosts[3] = broken();
    let share = |percent| Policy {
        thresholds: Thresholds { max_fail_percentage: Some(percent), ..Thresholds::default() },
        ..Policy::default()
    };
    assert_eq!(carry_out(&hosts, share(10.0)).rollout.stopped(), None);
    let reason = StopReason::FailPercentage { wave: 5, failed: 1, of: 20 };
    assert_eq!(carry_out(&hosts, share(2.0)).rollout.stopped(), Some(&reason));
}

#[test]
fn without_a_bound_a_whole_wave_of_broken_nodes_lets_no_further_one_start() {
    let mut hosts = all(8);
    (0..4).for_each(|host| hosts[host] = broken());
    let play = carry_out(&hosts, Policy::default());
    assert!(
        matches!(play.rollout.stopped(), Some(StopReason::WholeWave { .. })),
        "{:?}",
        play.rollout.stopped()
    );
    assert!((4..8).all(|host| play.rollout.has_ended(host)));
}
