//! Notifications that are not delivered yet. Pure; [`crate::state`] keeps them on the disk.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    changes,
    config::{Channel, Filter},
    notification::{Kind, Notification},
};

/// Notifications that wait for one channel; of more, the oldest are dropped.
pub const MOST_WAITING: usize = 200;
/// After this time a notification that could not be delivered is given up.
pub const GIVE_UP: SignedDuration = SignedDuration::from_hours(24);
/// Time before the second try; it doubles with each further one, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(2);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(15);

/// The queue of all channels, in the order in which notifications were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outbox {
    waiting: Vec<Entry>,
}

/// One notification for one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub channel: String,
    pub notification: Notification,
    pub tries: u32,
    since: Timestamp,
    /// No try before this time.
    next: Timestamp,
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    Done,
    /// It may be possible later; `after` is what the receiver asked for.
    Failed {
        why: String,
        after: Option<SignedDuration>,
    },
    /// The receiver will never take it.
    Refused {
        why: String,
    },
}

/// What follows from a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Sent,
    Again { at: Timestamp, why: String },
    GivenUp { why: String },
}

impl Outbox {
    /// Adds for each channel those notifications that it wants. Returns the channels of which an older one was dropped.
    pub fn add(&mut self, all: &[Notification], channels: &[Channel], now: Timestamp) -> Vec<String> {
        let mut dropped = Vec::new();
        for channel in channels {
            for notification in changes::bounded(all.iter().filter(|it| channel.filter.wants(it))) {
                if self.push(channel, notification, now) {
                    dropped.push(channel.name.clone());
                }
            }
        }
        dropped
    }

    /// Adds one, and returns whether an older one was dropped for it.
    fn push(&mut self, channel: &Channel, notification: Notification, now: Timestamp) -> bool {
        let mine = |entry: &Entry| entry.channel == channel.name;
        if self.waiting.iter().any(|entry| mine(entry) && entry.notification.id == notification.id) {
            return false;
        }
        let is_full = self.waiting.iter().filter(|entry| mine(entry)).count() >= MOST_WAITING;
        let oldest = self.waiting.iter().position(mine).filter(|_| is_full);
        if let Some(oldest) = oldest {
            self.waiting.remove(oldest);
        }
        let channel = channel.name.clone();
        self.waiting.push(Entry { channel, notification, tries: 0, since: now, next: now });
        oldest.is_some()
    }

    /// Returns the next notification of a channel, if its time has come. A channel gets them in order.
    pub fn next(&self, channel: &str, now: Timestamp) -> Option<&Entry> {
        let first = self.waiting.iter().find(|entry| entry.channel == channel)?;
        // A clock that was set back must not hold notifications back.
        let due = first.next <= now || first.next.duration_since(now) > LONGEST_PAUSE * 4;
        due.then_some(first)
    }

    /// When the next notification is due.
    pub fn due(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|entry| entry.next).min()
    }

    pub fn waiting(&self, channel: &str) -> usize {
        self.waiting.iter().filter(|entry| entry.channel == channel).count()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes how a delivery ended; `None` if that notification does not wait any more.
    pub fn delivered(
        &mut self,
        channel: &str,
        id: &str,
        delivery: Delivery,
        now: Timestamp,
    ) -> Option<Outcome> {
        let at = self.waiting.iter().position(|it| it.channel == channel && it.notification.id == id)?;
        let entry = self.waiting.get_mut(at)?;
        let (why, after) = match delivery {
            Delivery::Done => {
                self.waiting.remove(at);
                return Some(Outcome::Sent);
            }
            Delivery::Refused { why } => {
                self.waiting.remove(at);
                return Some(Outcome::GivenUp { why });
            }
            Delivery::Failed { why, after } => (why, after),
        };
        if now.duration_since(entry.since) >= GIVE_UP {
            self.waiting.remove(at);
            return Some(Outcome::GivenUp { why });
        }
        let pause = pause(entry.tries).max(after.unwrap_or_default()).min(LONGEST_PAUSE * 4);
        entry.tries = entry.tries.saturating_add(1);
        entry.next = now.saturating_add(pause).unwrap_or(now);
        Some(Outcome::Again { at: entry.next, why })
    }

    /// Drops what waits for channels that there are no more. Returns how many that were.
    pub fn keep(&mut self, channels: &[Channel]) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|entry| channels.iter().any(|channel| channel.name == entry.channel));
        before - self.waiting.len()
    }
}

fn pause(tries: u32) -> SignedDuration {
    FIRST_PAUSE.checked_mul(1 << tries.min(16)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
}

impl Filter {
    /// Whether a channel gets a notification. What it was told, it is also told the end of.
    pub fn wants(&self, notification: &Notification) -> bool {
        if notification.kind != Kind::Test
            && !self.audits.is_empty()
            && !self.audits.contains(&notification.schedule)
        {
            return false;
        }
        let Some(told) = &notification.finding else { return true };
        let verdicts = [told.verdict, told.before];
        let severity = told.severity_before.max(Some(told.severity));
        severity >= Some(self.severity) && verdicts.iter().flatten().any(|it| self.verdicts.contains(it))
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_compliance::{Action, Severity, Verdict};

    use super::*;
    use crate::{
        config::{DELIVERY_TIME, Means},
        notification::Told,
    };

    fn channel(name: &str, filter: Filter) -> Channel {
        Channel {
            name: name.into(),
            means: Means::Command(vec!["true".into()]),
            timeout: DELIVERY_TIME,
            filter,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_764_000_000 + second).unwrap()
    }

    fn note(id: usize) -> Notification {
        Notification { id: format!("msg_{id}"), ..changes::test("host", "any", at(0)) }
    }

    fn failed() -> Delivery {
        Delivery::Failed { why: "down".into(), after: None }
    }

    #[test]
    fn each_channel_gets_what_it_wants_once_and_in_order() {
        let channels = [channel("a", Filter::default()), channel("b", Filter::default())];
        let mut outbox = Outbox::default();
        for id in [1, 2, 1] {
            assert_eq!(outbox.add(&[note(id)], &channels, at(0)), Vec::<String>::new());
        }
        assert_eq!((outbox.waiting("a"), outbox.waiting("b")), (2, 2));
        assert_eq!(outbox.next("a", at(0)).unwrap().notification.id, "msg_1");
        assert!(matches!(outbox.delivered("a", "msg_1", failed(), at(0)), Some(Outcome::Again { .. })));
        assert_eq!(outbox.next("a", at(1)), None, "the second waits for the first");
        assert_eq!(outbox.next("b", at(1)).unwrap().notification.id, "msg_1");
        assert_eq!(outbox.next("a", at(2)).unwrap().tries, 1);
        assert_eq!(outbox.delivered("a", "msg_1", Delivery::Done, at(2)), Some(Outcome::Sent));
        assert_eq!(outbox.delivered("a", "msg_1", Delivery::Done, at(2)), None);
        assert_eq!(outbox.next("a", at(2)).unwrap().notification.id, "msg_2");
        assert_eq!(outbox.keep(&channels[..1]), 2);
        assert_eq!(outbox.waiting("b"), 0);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_a_day_of_failures_is_given_up() {
        let channels = [channel("a", Filter::default())];
        let mut outbox = Outbox::default();
        outbox.add(&[note(1)], &channels, at(0));
        let mut now = at(0);
        let mut pauses = Vec::new();
        loop {
            match outbox.delivered("a", "msg_1", failed(), now).unwrap() {
                Outcome::Again { at, .. } => {
                    pauses.push(at.duration_since(now).as_secs());
                    now = at;
                }
                other => break assert_eq!(other, Outcome::GivenUp { why: "down".into() }),
            }
        }
        assert_eq!(&pauses[..10], &[2, 4, 8, 16, 32, 64, 128, 256, 512, 900]);
        assert!(now.duration_since(at(0)) >= GIVE_UP && outbox.is_empty());
        outbox.add(&[note(2)], &channels, now);
        let asked = Delivery::Failed { why: "busy".into(), after: Some(SignedDuration::from_hours(9)) };
        outbox.delivered("a", "msg_2", asked, now);
        assert_eq!(outbox.due().unwrap().duration_since(now), SignedDuration::from_hours(1));
    }

    #[test]
    fn of_too_many_the_oldest_is_dropped() {
        let channels = [channel("a", Filter::default())];
        let mut outbox = Outbox::default();
        let dropped: usize =
            (0..MOST_WAITING + 3).map(|id| outbox.add(&[note(id)], &channels, at(0)).len()).sum();
        assert_eq!((dropped, outbox.waiting("a")), (3, MOST_WAITING));
        assert_eq!(outbox.next("a", at(0)).unwrap().notification.id, "msg_3");
    }

    #[test]
    fn a_recovery_goes_where_its_finding_went() {
        let told = |before, verdict, severity| {
            let finding = Told {
                control: "mem.remap_failed".into(),
                title: String::new(),
                severity,
                severity_before: None,
                verdict,
                before,
                next_action: Action::None,
                fleet_wide: false,
                nodes_total: 0,
                nodes: Vec::new(),
            };
            Notification { finding: Some(finding), kind: Kind::Opened, ..note(1) }
        };
        let filter =
            Filter { verdicts: vec![Verdict::Fail], severity: Severity::High, audits: vec!["test".into()] };
        assert!(filter.wants(&told(None, Some(Verdict::Fail), Severity::Critical)));
        assert!(filter.wants(&told(Some(Verdict::Fail), None, Severity::High)));
        assert!(!filter.wants(&told(None, Some(Verdict::Fail), Severity::Medium)));
        assert!(!filter.wants(&told(None, Some(Verdict::Drift), Severity::High)));
        let mut milder = told(Some(Verdict::Fail), None, Severity::Low);
        assert!(!filter.wants(&milder));
        milder.finding.as_mut().unwrap().severity_before = Some(Severity::High);
        assert!(filter.wants(&milder), "it was told with another severity");
        assert!(!filter.wants(&Notification { schedule: "other".into(), kind: Kind::Opened, ..note(1) }));
    }
}
