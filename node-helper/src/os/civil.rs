//! Dates as text, in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Splits a time into year, month, day, hour, minute, second and microsecond.
///
/// Source of the calendar arithmetic: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn fields(time: SystemTime) -> (i64, u64, u64, u64, u64, u64, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = i64::try_from(year_of_era + era * 400).unwrap_or(i64::MAX) + i64::from(month <= 2);
    (year, month, day, seconds / 3600, seconds / 60 % 60, seconds % 60, since.subsec_micros())
}

/// Formats a time as `2026-11-21 10:01:24.000123`, like Ansible's `start` and `end`.
pub fn timestamp(time: SystemTime) -> String {
    let (year, month, day, hour, minute, second, micros) = fields(time);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// Formats a time as `2026-11-21@10:01:24`, for names of backups.
pub fn stamp(time: SystemTime) -> String {
    let (year, month, day, hour, minute, second, _) = fields(time);
    format!("{year:04}-{month:02}-{day:02}@{hour:02}:{minute:02}:{second:02}")
}

/// Formats a duration as `0:00:01.500000`, like Ansible's `delta`.
pub fn delta(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}.{:06}", seconds / 3600, seconds / 60 % 60, seconds % 60, time.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_right() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(timestamp(at(0)), "1970-01-01 00:00:00.000000");
        assert_eq!(stamp(at(1_709_164_800)), "2024-02-29@00:00:00");
        assert_eq!(stamp(at(1_795_255_284)), "2026-11-21@10:01:24");
        assert_eq!(delta(Duration::from_millis(3_661_500)), "1:01:01.500000");
    }
}
