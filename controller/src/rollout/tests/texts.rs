//! Texts about a rollout for people.

use super::*;

#[test]
fn every_reason_to_stop_says_which_bound_it_was() {
    let closes = at(0);
    let reasons = [
        StopReason::FailPercentage { wave: 1, failed: 3, of: 4 },
        StopReason::Failures { failed: 3, allowed: 2 },
        StopReason::Unreachable { unreachable: 2, allowed: 1 },
        StopReason::Canary { failed: vec![4] },
        StopReason::Canary { failed: vec![4, 5] },
        StopReason::CanaryHeld { held: vec![4] },
        StopReason::CanaryHeld { held: vec![4, 5] },
        StopReason::AnyError,
        StopReason::WholeWave { wave: 1 },
        StopReason::WindowClosed { closes },
        StopReason::Interrupted,
    ];
    let texts: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(texts.join("\n"), @"
    3 of 4 nodes failed, more than `max_fail_percentage` allows
    3 nodes failed, more than the 2 that `max_failures` allows
    2 nodes do not answer, more than the 1 that `max_unreachable` allows
    a canary failed
    2 canaries failed
    a canary was held: it proves nothing
    2 canaries were held: they prove nothing
    a node failed, and `any_errors_fatal` is set
    every node of the wave failed
    the window closed at 2027-01-15T08:00:00Z
    interrupted
    ");
}

#[test]
fn an_impossible_input_says_where_the_node_stands() {
    let policy = Policy { drains: true, ..Policy::default() };
    let mut play = Play::begun(3, &[Batch::Of(Amount::Count(2))], policy);
    let mut lines = Vec::new();
    let mut refused = |play: &mut Play, input: Input| {
        let error = play.rollout.step(at(0), input).unwrap_err();
        lines.push(error.to_string());
    };
    refused(&mut play, Input::Idle { host: 3 });
    refused(&mut play, Input::Idle { host: 2 });
    refused(&mut play, Input::Drained { host: 0 });
    play.wants(0);
    refused(&mut play, Input::Busy { host: 0, reason: String::new() });
    play.wants(1);
    refused(&mut play, Input::DrainRefused { host: 1, by: String::new() });
    play.step(Input::Drained { host: 0 });
    refused(&mut play, Input::DrainFailed { host: 0, why: String::new(), still_out: false });
    play.step(Input::Idle { host: 0 });
    refused(&mut play, Input::Reopen { host: 0 });
    play.ended(0, End::Done);
    refused(&mut play, Input::Released { host: 0 });
    refused(&mut play, Input::WantsPermit { host: 0, class: Disruption::Reboot });
    refused(&mut play, Input::Ended { host: 0, end: End::Done });
    refused(&mut play, Input::SoakChecked { host: 0, ok: true, why: String::new() });
    insta::assert_snapshot!(lines.join("\n"), @"
    no host 3 in this play
    host 2 is pending, where a proof of idleness makes no sense
    host 0 is running, where a drain that succeeded makes no sense
    host 0 is being drained, where a proof of work makes no sense
    host 1 is waiting for the budget, where a drain that was refused makes no sense
    host 0 is being checked for work, where a drain that failed makes no sense
    host 0 is out of service, where another try makes no sense
    host 0 is finished, where a release makes no sense
    host 0 is finished, where a wish for a permit makes no sense
    host 0 is finished, where an end makes no sense
    host 0 is finished, where a check after the soak makes no sense
    ");
}

#[test]
fn amounts_and_batches_are_written_as_they_are_read() {
    for text in ["1", "40", "100%", "0.5%", "29%"] {
        assert_eq!(Amount::parse(text).map(|amount| amount.to_string()).as_deref(), Some(text));
    }
    for text in ["", "%", "0%", "-1%", "100.1%", "-1", "1.5", "many", "NaN%"] {
        assert_eq!(Amount::parse(text), None, "{text}");
    }
    assert_eq!(Amount::parse(" 10 % "), Some(Amount::Percent(10.0)));
    assert_eq!(Batch::Canary.to_string(), "canary");
    assert_eq!(Batch::Of(Amount::Percent(25.0)).to_string(), "25%");
}

#[test]
fn a_batch_is_never_empty_and_never_rounded_up() {
    assert_eq!([0, 1, 7].map(|count| Amount::Count(count).batch(100)), [1, 1, 7]);
    assert_eq!([1, 9, 19, 100].map(|hosts| Amount::Percent(10.0).batch(hosts)), [1, 1, 1, 10]);
    // Percentages that binary numbers do not hold exactly.
    for percent in 1..=100 {
        assert_eq!(Amount::Percent(f64::from(percent)).batch(100), usize::try_from(percent).unwrap());
    }
    assert_eq!(Amount::Count(3).budget(2, false), Ok(3));
}
