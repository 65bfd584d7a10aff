//! Windows: texts, days, midnight, and the two days a year on which the clock changes.

use jiff::Timestamp;
use proptest::prelude::*;

use super::{Window, WindowError};

fn window(text: &str) -> Window {
    Window::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The opening around or after a moment, as text.
fn opening(text: &str, moment: &str) -> String {
    let opening = window(text).now_or_next(at(moment));
    format!("{} {}", opening.opens, opening.closes)
}

fn refusal(text: &str) -> String {
    let error = Window::parse(text).unwrap_err();
    format!("{error}; {}", error.hint())
}

#[test]
fn a_window_opens_on_its_day() {
    let text = "Sat 02:00-06:00 Europe/Berlin";
    let saturday = "2027-01-16T01:00:00Z 2027-01-16T05:00:00Z";
    assert_eq!(opening(text, "2027-01-13T12:00:00Z"), saturday);
    assert_eq!(opening(text, "2027-01-16T00:59:59Z"), saturday);
    assert_eq!(opening(text, "2027-01-16T01:00:00Z"), saturday);
    assert_eq!(opening(text, "2027-01-16T04:59:59Z"), saturday);
    assert_eq!(opening(text, "2027-01-16T05:00:00Z"), "2027-01-23T01:00:00Z 2027-01-23T05:00:00Z");
    assert_eq!(opening(text, "2027-07-14T12:00:00Z"), "2027-07-17T00:00:00Z 2027-07-17T04:00:00Z");
}

#[test]
fn a_window_past_midnight_belongs_to_the_day_on_which_it_opens() {
    let text = "Mon-Fri 22:00-04:00 UTC";
    // Saturday 03:00 belongs to Friday's window; Monday 03:00 belongs to none.
    assert_eq!(opening(text, "2027-01-16T03:00:00Z"), "2027-01-15T22:00:00Z 2027-01-16T04:00:00Z");
    assert_eq!(opening(text, "2027-01-18T03:00:00Z"), "2027-01-18T22:00:00Z 2027-01-19T04:00:00Z");
    assert_eq!(
        opening("Sat-Mon 1:00-02:00 UTC", "2027-01-18T02:00:00Z"),
        "2027-01-23T01:00:00Z 2027-01-23T02:00:00Z"
    );
}

#[test]
fn several_windows_each_have_their_zone() {
    let text = "Sat 02:00-06:00 Europe/Berlin, Sun 01:00-03:00 UTC";
    assert_eq!(opening(text, "2027-01-16T05:00:00Z"), "2027-01-17T01:00:00Z 2027-01-17T03:00:00Z");
}

#[test]
fn windows_that_touch_are_one() {
    let text = "Sat 22:00-24:00 UTC, Sun 00:00-04:00 UTC";
    assert_eq!(opening(text, "2027-01-16T22:30:00Z"), "2027-01-16T22:00:00Z 2027-01-17T04:00:00Z");
    assert_eq!(window(text).longest().as_hours(), 6);
    assert!(window("daily 00:00-24:00 UTC").longest().as_hours() > 24 * 7);
    assert_eq!(window("daily 01:00-05:30 Asia/Kolkata").longest().as_mins(), 270);
    assert_eq!(window("Mon-Fri 22:00-04:00 UTC").longest().as_hours(), 6);
}

#[test]
fn the_clock_skips_an_hour() {
    // In Berlin 02:00 becomes 03:00 at 01:00 UTC.
    let day = "2027-03-27T20:00:00Z";
    assert_eq!(opening("Sun 01:00-06:00 Europe/Berlin", day), "2027-03-28T00:00:00Z 2027-03-28T04:00:00Z");
    assert_eq!(opening("Sun 02:30-06:00 Europe/Berlin", day), "2027-03-28T01:00:00Z 2027-03-28T04:00:00Z");
    assert_eq!(opening("Sun 01:30-02:30 Europe/Berlin", day), "2027-03-28T00:30:00Z 2027-03-28T01:00:00Z");
    assert_eq!(opening("Sat 22:00-04:00 Europe/Berlin", day), "2027-03-27T21:00:00Z 2027-03-28T02:00:00Z");
    // All of it is skipped: it opens a week later.
    assert_eq!(opening("Sun 02:10-02:40 Europe/Berlin", day), "2027-04-04T00:10:00Z 2027-04-04T00:40:00Z");
}

#[test]
fn an_hour_comes_twice() {
    // In Berlin 03:00 becomes 02:00 at 01:00 UTC.
    let day = "2027-10-30T20:00:00Z";
    assert_eq!(opening("Sun 02:00-06:00 Europe/Berlin", day), "2027-10-31T00:00:00Z 2027-10-31T05:00:00Z");
    assert_eq!(opening("Sun 01:00-02:30 Europe/Berlin", day), "2027-10-30T23:00:00Z 2027-10-31T00:30:00Z");
    assert_eq!(opening("Sun 02:10-02:40 Europe/Berlin", day), "2027-10-31T00:10:00Z 2027-10-31T00:40:00Z");
    assert_eq!(opening("Sat 22:00-04:00 Europe/Berlin", day), "2027-10-30T20:00:00Z 2027-10-31T03:00:00Z");
}

#[test]
fn a_window_without_a_zone_is_told_what_to_write() {
    insta::assert_snapshot!(refusal("Sat 02:00-06:00"), @"`Sat 02:00-06:00` has no time zone; write for example `Sat 02:00-06:00 UTC` or `Sat 02:00-06:00 Europe/Berlin`");
    insta::assert_snapshot!(refusal("Sat 02:00-06:00, Sun 02:00-06:00 UTC"), @"`Sat 02:00-06:00` has no time zone; write for example `Sat 02:00-06:00 UTC` or `Sat 02:00-06:00 Europe/Berlin`");
    insta::assert_snapshot!(refusal("Sat 02:00-06:00 Europe/Berlim"), @"`Europe/Berlim` is no time zone (did you mean `Europe/Berlin`?); write `UTC` or a name of the IANA database, for example `Europe/Berlin`");
}

#[test]
fn bad_texts_say_what_to_write() {
    insta::assert_snapshot!(refusal(" "), @"a window without times; write for example `Sat 02:00-06:00 Europe/Berlin`");
    insta::assert_snapshot!(refusal("always"), @"`always` is no window; write days, times and time zone, for example `Sat 02:00-06:00 Europe/Berlin`, `Mon-Fri 22:00-04:00 UTC` or `daily 01:00-05:00 UTC`");
    let two_words = Window::parse("Sat Europe/Berlin").unwrap_err();
    assert!(matches!(two_words, WindowError::Shape { .. }), "{two_words}");
    insta::assert_snapshot!(refusal("Sat 02:00-06:00 UTC,"), @"`` is no window; write days, times and time zone, for example `Sat 02:00-06:00 Europe/Berlin`, `Mon-Fri 22:00-04:00 UTC` or `daily 01:00-05:00 UTC`");
    insta::assert_snapshot!(refusal("Sta 02:00-06:00 UTC"), @"`Sta` is no day (did you mean `Sat`?); write `Mon` to `Sun`, a range such as `Mon-Fri`, or `daily`");
    insta::assert_snapshot!(refusal("Sat 02:00-02:00 UTC"), @"`02:00-02:00` opens and closes at once; the whole day is `00:00-24:00`");
    for hours in ["02:00", "25:00-26:00", "02:60-03:00", "2-4", "+2:00-04:00", "02:0-04:00", "24:00-02:00"] {
        let error = Window::parse(&format!("Sat {hours} UTC")).unwrap_err();
        assert!(matches!(error, WindowError::Time { .. }), "{hours}: {error}");
    }
}

#[test]
fn a_window_is_written_as_it_was_read() {
    let text = "monday 02:00-06:00 europe/berlin, daily 01:00-02:00 UTC";
    assert_eq!(window(text).to_string(), text);
    let json = serde_json::to_string(&window(text)).unwrap();
    assert_eq!(json, format!("{text:?}"));
    assert_eq!(serde_json::from_str::<Window>(&json).unwrap(), window(text));
    assert!(serde_json::from_str::<Window>("\"Sat 02:00-06:00\"").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn openings_hold_what_they_say(
        seconds in 1_600_000_000_i64..2_000_000_000,
        day in prop::sample::select(vec!["Mon", "Sun", "Fri-Mon", "daily", "Wed-Thu"]),
        opens in 0u8..24, closes in 0u8..=24, minute in 0u8..60,
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"]),
    ) {
        prop_assume!(opens != closes || minute != 0);
        // Open at all times: it has no next opening.
        prop_assume!((opens, minute, closes) != (0, 0, 24));
        let text = format!("{day} {opens:02}:{minute:02}-{closes:02}:00 {zone}");
        let window = window(&text);
        let now = Timestamp::from_second(seconds).unwrap();
        let opening = window.now_or_next(now);
        prop_assert!(opening.opens < opening.closes && now < opening.closes);
        // The same answer at any moment of it and before it; another one at its end.
        prop_assert_eq!(window.now_or_next(opening.opens), opening);
        let next = window.now_or_next(opening.closes);
        prop_assert!(next.opens > opening.closes);
        if now < opening.opens {
            let between = now.as_second() + (opening.opens.as_second() - now.as_second()) / 2;
            prop_assert_eq!(window.now_or_next(Timestamp::from_second(between).unwrap()), opening);
        }
        prop_assert!(window.longest().as_secs() >= 60);
    }

    #[test]
    fn no_text_panics(text in "[A-Za-z0-9:, /-]{0,40}") {
        if let Ok(window) = Window::parse(&text) {
            window.now_or_next(Timestamp::UNIX_EPOCH);
            window.now_or_next(Timestamp::MAX);
            window.now_or_next(Timestamp::MIN);
        }
    }
}
