//! Filters for dates.
//!
//! Neither the clock nor the time zone of this machine is used: a run that is resumed elsewhere or later must get the
//! same text.

use super::order::number;
use super::{Call, Filter};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[("strftime", strftime)];

fn strftime(call: &Call) -> Result<Value, String> {
    let seconds = match call.get(0, "second") {
        None | Some(Value::Null) => {
            return Err(
                "it would give another time when a run is resumed; give the seconds, as `ansible_date_time.epoch`"
                    .to_owned(),
            );
        }
        Some(Value::Str(text)) => text.trim().parse().ok(),
        Some(value) => number(value),
    };
    let seconds = seconds.ok_or("the seconds are not a number")?;
    if !call.flag(1, "utc") {
        return Err("the time zone of this machine is not looked at; write `utc=true`".to_owned());
    }
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is refused below")]
    let time =
        jiff::Timestamp::from_second(seconds.floor() as i64).map_err(|_| "the time is out of range")?;
    jiff::fmt::strtime::format(&*call.text()?, &time.to_zoned(jiff::tz::TimeZone::UTC))
        .map(Value::from)
        .map_err(|_| "the format has a letter behind `%` that means nothing".to_owned())
}
