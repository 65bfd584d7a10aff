//! When and how a controller is killed.

use std::fmt;
use std::time::Duration;

/// A way to kill the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// Nothing of the record with this number is written; records count from 1.
    Before(usize),
    /// The record is written, but the controller does not learn of it.
    After(usize),
    /// This many bytes of the record are written.
    Torn(usize, usize),
    /// This long after the start.
    Instant(Duration),
}

impl Kill {
    /// Returns `CRASH_AT` and `CRASH_HOW` for the crash library; `None` for an instant.
    pub fn orders(self) -> Option<(String, String)> {
        match self {
            Self::Before(at) => Some((at.to_string(), "before".to_owned())),
            Self::After(at) => Some((at.to_string(), "after".to_owned())),
            Self::Torn(at, bytes) => Some((at.to_string(), format!("torn:{bytes}"))),
            Self::Instant(_) => None,
        }
    }

    /// Returns how many complete records are left; `None` for an instant, after which it may be any number.
    pub const fn leaves(self) -> Option<usize> {
        match self {
            Self::Before(at) | Self::Torn(at, _) => Some(at - 1),
            Self::After(at) => Some(at),
            Self::Instant(_) => None,
        }
    }

    /// Parses the output of [`fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let how = parts.next()?;
        let numbers: Vec<usize> = parts.map(str::parse).collect::<Result<_, _>>().ok()?;
        match (how, numbers.as_slice()) {
            ("before", [at]) => Some(Self::Before(*at)),
            ("after", [at]) => Some(Self::After(*at)),
            ("torn", [at, bytes]) => Some(Self::Torn(*at, *bytes)),
            ("instant", [ms]) => Some(Self::Instant(Duration::from_millis(*ms as u64))),
            _ => None,
        }
    }

    /// Returns every `every`-th of the records `from` to `to`, in each of these ways (`before`, `after`, `torn`).
    pub fn at_records(from: usize, to: usize, every: usize, ways: &[&str]) -> Vec<Self> {
        let mut kills = Vec::new();
        for at in (from.max(1)..=to).step_by(every.max(1)) {
            for way in ways {
                kills.push(match *way {
                    "before" => Self::Before(at),
                    "after" => Self::After(at),
                    // Any byte: a small prime walks over the length of a record, and the crash library stops before
                    // its end.
                    _ => Self::Torn(at, 1 + at * 37 % 397),
                });
            }
        }
        kills
    }

    /// Returns instants spread over `span`, the same for the same seed.
    pub fn at_random(count: usize, span: Duration, seed: u64) -> Vec<Self> {
        let mut state = seed;
        let mut draw = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        };
        (0..count)
            .map(|_| Self::Instant(Duration::from_millis(span.mul_f64(draw()).as_millis() as u64)))
            .collect()
    }
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(at) => write!(f, "before:{at}"),
            Self::After(at) => write!(f, "after:{at}"),
            Self::Torn(at, bytes) => write!(f, "torn:{at}:{bytes}"),
            Self::Instant(time) => write!(f, "instant:{}", time.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_repeated_by_its_name() {
        for kill in
            [Kill::Before(3), Kill::After(1), Kill::Torn(9, 40), Kill::Instant(Duration::from_millis(70))]
        {
            assert_eq!(Kill::parse(&kill.to_string()), Some(kill));
        }
        assert_eq!(Kill::parse("before"), None);
        assert_eq!(Kill::parse("torn:1"), None);
    }

    #[test]
    fn kills_cover_what_was_asked_for() {
        assert_eq!(
            Kill::at_records(1, 3, 2, &["before", "after"]),
            [Kill::Before(1), Kill::After(1), Kill::Before(3), Kill::After(3)]
        );
        let random = Kill::at_random(50, Duration::from_secs(2), 7);
        assert_eq!(random, Kill::at_random(50, Duration::from_secs(2), 7));
        assert!(random.iter().all(|kill| matches!(kill, Kill::Instant(at) if *at < Duration::from_secs(2))));
    }
}
