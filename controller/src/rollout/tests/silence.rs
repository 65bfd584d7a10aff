//! The invariants of `rollout::silence`.

use std::time::Duration;

use super::*;

fn evidence() -> impl Strategy<Value = Evidence> {
    let way = prop_oneof![Just(WayWord::Nothing), Just(WayWord::Works), Just(WayWord::Silent)];
    (way, any::<bool>(), 0_usize..5, 0_usize..5, any::<bool>()).prop_map(
        |(way, refuses, others_answer, others_silent, hung)| Evidence {
            way,
            refuses,
            others_answer,
            others_silent,
            hung,
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Heard(usize),
    Expects(usize),
    Lost(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let host = || 0_usize..8;
    let step = prop_oneof![
        4 => host().prop_map(Step::Heard),
        1 => host().prop_map(Step::Expects),
        4 => host().prop_map(Step::Lost),
        2 => (1_u64..200).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn no_node_is_dead_without_proof(evidence in evidence()) {
        let Evidence { way, refuses, others_answer, others_silent, hung } = evidence;
        let alone = others_silent == 0 && (refuses || way == WayWord::Works);
        let outvoted = others_silent < 2 && others_answer > others_silent;
        prop_assert_eq!(evidence.judge() == Silence::Own, hung || outvoted || alone);
    }

    #[test]
    fn silence_that_is_shared_is_the_ways(evidence in evidence()) {
        let Evidence { way, refuses, others_answer, others_silent, hung } = evidence;
        let others = others_silent >= 2 || others_silent > others_answer;
        let alone = way == WayWord::Silent && others_answer == 0 && !refuses;
        if (others || alone) && !hung {
            prop_assert_eq!(evidence.judge(), Silence::Way);
        }
    }

    #[test]
    fn only_those_bear_witness_to_whom_nothing_was_done_meanwhile(steps in steps()) {
        let (mut voices, mut now) = (Voices::default(), Duration::ZERO);
        // When each was told to reboot, and when it was lost.
        let mut told: [Option<Duration>; 8] = [None; 8];
        let mut lost: [Option<Duration>; 8] = [None; 8];
        for step in steps {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Expects(host) => {
                    voices.expects(host, now);
                    (told[host], lost[host]) = (Some(now), None);
                }
                Step::Lost(host) => {
                    if voices.witness(host, 8) == Some(Witness::Heard) {
                        lost[host] = Some(now);
                    }
                    voices.lost(host, now);
                }
                Step::Heard(host) => {
                    voices.heard(host);
                    (told[host], lost[host]) = (None, None);
                }
            }
            for (of, other) in (0..8).flat_map(|of| (0..8).map(move |other| (of, other))) {
                let since = told[of].or(lost[of]).unwrap_or_default().saturating_sub(Duration::from_secs(120));
                let witness = voices.witness(other, of);
                prop_assert_eq!(witness.is_none(), told[other].is_some());
                prop_assert_eq!(witness == Some(Witness::Lost), lost[other].is_some_and(|at| at >= since));
            }
        }
    }

    #[test]
    fn a_storm_is_most_of_them_at_once_until_one_answers(steps in steps()) {
        let (mut voices, mut now) = (Voices::default(), Duration::ZERO);
        for step in steps {
            let before = voices.storm();
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Expects(host) => voices.expects(host, now),
                Step::Lost(host) => {
                    let heard = (0..8).filter(|other| {
                        *other != host && voices.is_missed(*other) && !before.contains(other)
                    });
                    let heard = heard.count();
                    voices.lost(host, now);
                    let storm = voices.storm();
                    if before.is_empty() && !storm.is_empty() {
                        prop_assert!(storm.len() >= 3, "{storm:?}");
                    }
                    prop_assert!(!storm.is_empty() || before.is_empty(), "it ends by an answer alone, {heard} heard");
                }
                Step::Heard(host) => {
                    voices.heard(host);
                    prop_assert!(!before.contains(&host) || voices.storm().is_empty());
                }
            }
        }
    }

    #[test]
    fn no_hour_has_more_power_cycles_than_allowed(
        pauses in prop::collection::vec(0_i64..4000, 0..40),
        allowed in 0_u32..4,
        earlier in 0_usize..20,
    ) {
        let (mut cycles, mut made, mut now) = (Cycles::default(), Vec::new(), 0);
        for (number, pause) in pauses.into_iter().enumerate() {
            now += pause;
            if number == earlier {
                // Another process continues from the journal.
                cycles = Cycles::new(made.iter().map(|second| at(*second)).collect());
            }
            if cycles.take(at(now), allowed).is_ok() {
                made.push(now);
            }
        }
        for first in &made {
            let within = made.iter().filter(|other| (*first..*first + 3600).contains(*other)).count();
            prop_assert!(within <= allowed as usize, "{made:?}");
        }
    }
}

#[test]
fn two_of_two_are_no_storm_and_three_of_five_are() {
    let lost = |of: usize, hosts: &[usize], pause: u64| {
        let mut voices = Voices::default();
        (0..of).for_each(|host| voices.heard(host));
        for (host, number) in hosts.iter().zip(0..) {
            voices.lost(*host, Duration::from_secs(number * pause));
        }
        voices.storm()
    };
    assert_eq!(lost(2, &[0, 1], 1), Vec::<usize>::new());
    assert_eq!(lost(5, &[0, 1, 2], 1), [0, 1, 2]);
    assert_eq!(lost(6, &[0, 1, 2], 1), Vec::<usize>::new(), "half is not most");
    assert_eq!(lost(5, &[0, 1, 2], 100), Vec::<usize>::new(), "one after the other");
}

#[test]
fn who_was_heard_before_bears_witness_until_its_silence_is_known() {
    let mut voices = Voices::default();
    voices.heard_before(1);
    assert_eq!((voices.witness(1, 0), voices.witness(2, 0)), (Some(Witness::Heard), Some(Witness::Stranger)));
    assert!(!voices.is_missed(1), "this process never heard it");
    voices.silent(1, Duration::from_secs(1000));
    voices.silent(2, Duration::from_secs(1000));
    assert_eq!((voices.witness(1, 0), voices.witness(2, 0)), (Some(Witness::Lost), Some(Witness::Stranger)));
    voices.expects(0, Duration::from_secs(2000));
    assert_eq!(voices.witness(1, 0), Some(Witness::Stranger), "it was silent long before");
}
