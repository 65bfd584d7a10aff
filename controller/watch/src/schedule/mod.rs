//! When audits are due. Pure: the time is given, and nothing here waits.

mod planner;

use jiff::{
    SignedDuration, Span, Timestamp,
    civil::{Time, Weekday},
    tz::TimeZone,
};
use sha2::{Digest as _, Sha256};

pub use self::planner::{Planner, Step};

/// Days that are searched for the next time of day: a week, and one more on each side for time zones.
const DAYS: i64 = 9;

/// The times at which an audit is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Rhythm {
    when: When,
    /// Seconds by which an audit may be later than its time.
    jitter: u32,
    /// What the jitter is drawn from, besides the time itself: audits of the same times are spread.
    seed: String,
}

/// The times without jitter.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// Every so many seconds, counted from the beginning of 1970 in UTC. A change of the clock to or from summer time does not
    /// alter it.
    Every { seconds: u32 },
    /// At times of day. A time that a day lacks because the clock is put forward is as much later as it is put forward; of
    /// a time that a day has twice, it is the first.
    At { times: Vec<Time>, days: Vec<Weekday>, zone: TimeZone },
}

/// Why times cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RhythmError {
    #[error("an audit every 0 seconds never ends")]
    NoTime,
    #[error("the jitter is {jitter} s, and must be less than the {least} s between two audits")]
    Jitter { jitter: u32, least: u32 },
}

impl Rhythm {
    /// `seed` tells apart audits that are due at the same time.
    ///
    /// # Errors
    /// No time at all, and a jitter that is not less than the time between two audits.
    pub fn new(when: When, jitter: u32, seed: impl Into<String>) -> Result<Self, RhythmError> {
        let least = match &when {
            When::Every { seconds } => *seconds,
            When::At { times, .. } => least_gap(times),
        };
        if least == 0 {
            return Err(RhythmError::NoTime);
        }
        if jitter >= least {
            return Err(RhythmError::Jitter { jitter, least });
        }
        Ok(Self { when, jitter, seed: seed.into() })
    }

    /// Whether the first audit of all is made at once.
    pub const fn begins_at_once(&self) -> bool {
        matches!(self.when, When::Every { .. })
    }

    /// Returns the longest time between two audits, in seconds, jitter included.
    pub fn longest_gap_s(&self) -> u64 {
        let gap = match &self.when {
            When::Every { seconds } => u64::from(*seconds),
            // A day is up to 25 hours long.
            When::At { times, days, .. } if days.is_empty() => longest_gap(times) + 3600,
            When::At { .. } => 7 * 86_400 + 3600,
        };
        gap + u64::from(self.jitter)
    }

    /// Returns the first time after `after`, jitter included. It is always later than `after`.
    pub fn next(&self, after: Timestamp) -> Timestamp {
        let slots: Vec<Timestamp> = match &self.when {
            When::Every { seconds } => {
                let every = i64::from(*seconds);
                let at = after.as_second().div_euclid(every);
                [at - 1, at, at + 1]
                    .into_iter()
                    .filter_map(|slot| Timestamp::from_second(slot.checked_mul(every)?).ok())
                    .collect()
            }
            When::At { times, days, zone } => {
                let today = after.to_zoned(zone.clone()).date();
                let days = (-1..DAYS)
                    .filter_map(|day| today.checked_add(Span::new().days(day)).ok())
                    .filter(|day| days.is_empty() || days.contains(&day.weekday()));
                days.flat_map(|day| times.iter().map(move |time| day.to_datetime(*time)))
                    .filter_map(|at| Some(at.to_zoned(zone.clone()).ok()?.timestamp()))
                    .collect()
            }
        };
        let due = slots.into_iter().map(|slot| self.with_jitter(slot)).filter(|due| *due > after).min();
        // At the end of representable time there is no next one.
        due.unwrap_or(Timestamp::MAX)
    }

    /// The same for the same time and seed, and spread evenly over all of them.
    fn with_jitter(&self, slot: Timestamp) -> Timestamp {
        if self.jitter == 0 {
            return slot;
        }
        let mut hash = Sha256::new();
        hash.update(self.seed.as_bytes());
        hash.update([0]);
        hash.update(slot.as_second().to_be_bytes());
        let drawn = hash.finalize().iter().take(8).fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
        let late = drawn % (u64::from(self.jitter) + 1);
        slot.saturating_add(SignedDuration::from_secs(i64::try_from(late).unwrap_or_default()))
            .unwrap_or(slot)
    }
}

fn seconds_of(time: Time) -> u32 {
    let part = |value: i8| u32::try_from(value).unwrap_or_default();
    part(time.hour()) * 3600 + part(time.minute()) * 60 + part(time.second())
}

/// Seconds between neighbouring times, over midnight too.
fn gaps(times: &[Time]) -> Vec<u32> {
    const DAY: u32 = 86_400;
    let mut all: Vec<u32> = times.iter().copied().map(seconds_of).collect();
    all.sort_unstable();
    all.dedup();
    let again = all.iter().skip(1).copied().chain(all.first().map(|first| first + DAY));
    all.iter().zip(again).map(|(one, next)| next - one).collect()
}

fn least_gap(times: &[Time]) -> u32 {
    gaps(times).into_iter().min().unwrap_or_default()
}

fn longest_gap(times: &[Time]) -> u64 {
    gaps(times).into_iter().max().unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
