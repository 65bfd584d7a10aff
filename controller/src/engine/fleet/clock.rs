//! The time of a rollout: the wall clock's, which never goes back and never stands still.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// A wall clock that may be set while it runs. Set forward, it is followed, as windows are about its time; set back, time goes
/// on from where it was, so that no soak and no wait takes hours longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    at: Timestamp,
    seen: Instant,
    /// When the rollout wants to be told that time passed.
    pub(crate) alarm: Option<Timestamp>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { at: Timestamp::now(), seen: Instant::now(), alarm: None }
    }

    pub(crate) fn now(&mut self) -> Timestamp {
        self.follow(Timestamp::now(), Instant::now())
    }

    fn follow(&mut self, wall: Timestamp, now: Instant) -> Timestamp {
        let passed = SignedDuration::try_from(now.saturating_duration_since(self.seen)).unwrap_or_default();
        self.at = wall.max(self.at.checked_add(passed).unwrap_or(self.at));
        self.seen = now;
        self.at
    }

    /// How long it is until the alarm, if one is set.
    pub(crate) fn left(&mut self) -> Option<Duration> {
        let at = self.alarm?;
        Some(Duration::try_from(at.duration_since(self.now())).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_while_the_wall_clock_is_set() {
        let (wall, seen) = (Timestamp::UNIX_EPOCH + SignedDuration::from_hours(10), Instant::now());
        let mut clock = Clock { at: wall, seen, alarm: None };
        let minute = |minutes: i64| SignedDuration::from_mins(minutes);
        let later = |minutes: u64| seen + Duration::from_secs(60 * minutes);
        assert_eq!(clock.follow(wall + minute(1), later(1)), wall + minute(1));
        // Set back by three hours: a soak of ten minutes still takes ten minutes.
        assert_eq!(clock.follow(wall - minute(179), later(2)), wall + minute(2));
        assert_eq!(clock.follow(wall - minute(170), later(11)), wall + minute(11));
        // Set forward: windows are about its time.
        assert_eq!(clock.follow(wall + minute(120), later(12)), wall + minute(120));
    }
}
