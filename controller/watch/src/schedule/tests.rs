use std::collections::BTreeSet;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Weekday, time},
    tz::TimeZone,
};
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn every(seconds: u32, jitter: u32) -> Rhythm {
    Rhythm::new(When::Every { seconds }, jitter, "nightly").unwrap()
}

fn daily(hours: &[(i8, i8)], zone: &str, jitter: u32) -> Rhythm {
    let times = hours.iter().map(|(hour, minute)| time(*hour, *minute, 0, 0)).collect();
    let zone = TimeZone::get(zone).unwrap();
    Rhythm::new(When::At { times, days: Vec::new(), zone }, jitter, "nightly").unwrap()
}

fn following(rhythm: &Rhythm, from: &str, count: usize) -> Vec<String> {
    let mut now = at(from);
    let mut all = Vec::new();
    for _ in 0..count {
        now = rhythm.next(now);
        all.push(now.to_string());
    }
    all
}

#[test]
fn a_time_that_the_day_lacks_is_an_hour_later_and_one_that_it_has_twice_is_once() {
    let rhythm = daily(&[(2, 30)], "Europe/Berlin", 0);
    let spring = following(&rhythm, "2026-03-28T00:00:00Z", 3);
    assert_eq!(spring, ["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]);
    let autumn = following(&rhythm, "2026-10-24T00:00:00Z", 3);
    assert_eq!(autumn, ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
}

#[test]
fn days_of_the_week_are_those_of_the_time_zone() {
    let zone = TimeZone::get("Asia/Tokyo").unwrap();
    let when = When::At { times: vec![time(6, 0, 0, 0)], days: vec![Weekday::Monday], zone };
    let rhythm = Rhythm::new(when, 0, "").unwrap();
    assert_eq!(
        following(&rhythm, "2026-11-22T20:00:00Z", 2),
        ["2026-11-22T21:00:00Z", "2026-11-29T21:00:00Z"]
    );
}

#[test]
fn a_jitter_as_long_as_the_time_between_two_audits_is_refused() {
    let error = Rhythm::new(When::Every { seconds: 60 }, 60, "").unwrap_err();
    assert_eq!(error, RhythmError::Jitter { jitter: 60, least: 60 });
    let times = vec![time(23, 50, 0, 0), time(0, 10, 0, 0)];
    let when = When::At { times, days: Vec::new(), zone: TimeZone::UTC };
    assert_eq!(Rhythm::new(when, 1200, ""), Err(RhythmError::Jitter { jitter: 1200, least: 1200 }));
    assert_eq!(Rhythm::new(When::Every { seconds: 0 }, 0, ""), Err(RhythmError::NoTime));
}

#[test]
fn jitter_differs_by_day_and_by_seed_and_is_the_same_when_asked_again() {
    let drawn = |seed: &str| {
        let rhythm = Rhythm::new(When::Every { seconds: 86_400 }, 3600, seed).unwrap();
        let mut now = at("2026-01-01T12:00:00Z");
        let mut late = Vec::new();
        for _ in 0..100 {
            now = rhythm.next(now);
            late.push(now.as_second().rem_euclid(86_400));
        }
        late
    };
    let (one, other) = (drawn("one"), drawn("other"));
    assert_eq!(one, drawn("one"));
    assert_ne!(one, other);
    assert!(one.iter().all(|late| (0..=3600).contains(late)));
    assert!(one.iter().collect::<BTreeSet<_>>().len() > 80, "they are spread: {one:?}");
}

#[test]
fn the_first_audit_is_at_once_by_interval_and_waits_for_its_time_otherwise() {
    let now = at("2026-11-22T15:00:07Z");
    assert_eq!(Planner::new(every(3600, 0), now, None).poll(now), Step::Start { missed: 0 });
    let mut planner = Planner::new(daily(&[(2, 0)], "UTC", 0), now, None);
    assert_eq!(planner.poll(now), Step::Wait(at("2026-11-23T02:00:00Z")));
}

#[test]
fn after_a_restart_what_was_missed_is_made_up_for_once() {
    let now = at("2026-11-22T15:00:07Z");
    let mut planner = Planner::new(every(3600, 0), now, Some(at("2026-11-22T10:30:00Z")));
    assert_eq!(planner.poll(now), Step::Start { missed: 4 });
    planner.finished();
    assert_eq!(planner.poll(now), Step::Wait(at("2026-11-22T16:00:00Z")));
    let mut planner = Planner::new(every(3600, 0), now, Some(at("2026-11-22T15:00:01Z")));
    assert_eq!(planner.poll(now), Step::Wait(at("2026-11-22T16:00:00Z")));
}

#[test]
fn a_clock_that_was_wrong_by_years_does_not_stop_audits() {
    let mut planner = Planner::new(every(3600, 0), at("2031-01-01T00:00:00Z"), None);
    assert_eq!(planner.poll(at("2031-01-01T00:00:00Z")), Step::Start { missed: 0 });
    planner.finished();
    assert_eq!(planner.poll(at("2026-01-01T00:30:00Z")), Step::Wait(at("2026-01-01T01:00:00Z")));
    // Nor one that is in the file of state.
    let now = at("2026-01-01T00:30:00Z");
    let mut planner = Planner::new(every(3600, 0), now, Some(at("2031-01-01T00:00:00Z")));
    assert_eq!(planner.poll(now), Step::Wait(at("2026-01-01T01:00:00Z")));
}

#[test]
fn a_clock_that_is_adjusted_by_seconds_does_not_repeat_an_audit() {
    let mut planner =
        Planner::new(every(3600, 0), at("2026-01-01T00:30:00Z"), Some(at("2026-01-01T00:10:00Z")));
    assert_eq!(planner.poll(at("2026-01-01T01:00:00Z")), Step::Start { missed: 0 });
    planner.finished();
    assert_eq!(planner.poll(at("2026-01-01T00:59:58Z")), Step::Wait(at("2026-01-01T02:00:00Z")));
}

fn zones() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
    ])
}

fn rhythms() -> impl Strategy<Value = Rhythm> {
    let intervals = (1_u32..200_000).prop_flat_map(|seconds| {
        (0..seconds).prop_map(move |jitter| Rhythm::new(When::Every { seconds }, jitter, "a").unwrap())
    });
    let times = prop::collection::btree_set(0_i8..24, 1..5);
    let days = (times, zones(), 0_u32..1800).prop_map(|(hours, zone, jitter)| {
        let hours: Vec<(i8, i8)> = hours.into_iter().map(|hour| (hour, 30)).collect();
        daily(&hours, zone, jitter)
    });
    prop_oneof![intervals, days]
}

proptest! {
    /// The next time is later, within bounds, and there is no other one before it.
    #[test]
    fn the_next_time_is_the_first(rhythm in rhythms(), second in 1_700_000_000_i64..1_900_000_000, share in 0.0..1.0_f64) {
        let now = Timestamp::from_second(second).unwrap();
        let next = rhythm.next(now);
        prop_assert!(next > now);
        let gap = next.duration_since(now).as_secs();
        prop_assert!(u64::try_from(gap).unwrap() <= rhythm.longest_gap_s(), "{gap}");
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a share of a gap")]
        let between = now + SignedDuration::from_secs((gap as f64 * share) as i64);
        prop_assert!(between == next || rhythm.next(between) == next);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Each day has each of its times exactly once, whatever the clock does.
    #[test]
    fn every_day_has_its_time_once(zone in zones(), hour in 0_i8..24, second in 1_700_000_000_i64..1_900_000_000) {
        let rhythm = daily(&[(hour, 30)], zone, 600);
        let zone = TimeZone::get(zone).unwrap();
        let mut now = Timestamp::from_second(second).unwrap();
        let mut last = None;
        for _ in 0..400 {
            now = rhythm.next(now);
            let date = (now - SignedDuration::from_secs(600)).to_zoned(zone.clone()).date();
            if let Some(last) = last {
                let days = date.since(last).unwrap().get_days();
                prop_assert!((0..=2).contains(&days), "{last} {date}");
            }
            last = Some(date);
        }
        let days = last.unwrap().since(Timestamp::from_second(second).unwrap().to_zoned(zone).date()).unwrap().get_days();
        prop_assert!((398..=401).contains(&days), "400 times in {days} days");
    }

}

proptest! {
    /// However time passes: no audit begins while another one runs, each was due, and a long gap gives one audit.
    #[test]
    fn audits_never_overlap(
        rhythm in rhythms(),
        steps in prop::collection::vec((0_i64..400_000, any::<bool>()), 1..60),
    ) {
        let mut now = Timestamp::from_second(1_764_000_000).unwrap();
        let mut planner = Planner::new(rhythm.clone(), now, None);
        let mut running = false;
        for (wait, ends) in steps {
            now += SignedDuration::from_secs(wait);
            if ends && running {
                planner.finished();
                running = false;
            }
            let due = planner.due();
            match planner.poll(now) {
                Step::Start { .. } => {
                    prop_assert!(!running && due <= now);
                    running = true;
                }
                Step::Skip(slot) => prop_assert!(running && slot == due && due <= now),
                Step::Wait(until) => prop_assert!(now < until && until == due),
            }
            prop_assert_eq!(planner.is_running(), running);
            prop_assert_eq!(planner.poll(now), Step::Wait(rhythm.next(now)));
        }
    }
}
