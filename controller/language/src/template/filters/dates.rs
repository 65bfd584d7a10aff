//! Dates and durations, as Python's `datetime` and `timedelta`. They exist inside one expression; a variable keeps a
//! date as text.
//!
//! The time zone of this machine is never used: a run that is resumed elsewhere must get the same values. A date
//! without a zone counts as UTC where seconds since 1970 are asked for.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use jiff::civil::DateTime;
use jiff::fmt::strtime::{self, BrokenDownTime};
use jiff::tz::{Offset, TimeZone};
use minijinja::value::{DynObject, Object, ObjectRepr};
use minijinja::{Environment, Error, ErrorKind, State};

use super::super::frame::{is_missing, missing};
use super::super::rewrite::MINUS;
use super::{names, refusal};

type Engine = minijinja::Value;

const FORMAT: &str = "%Y-%m-%d %H:%M:%S";
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

pub(super) fn register(environment: &mut Environment<'static>) {
    for name in names("to_datetime") {
        environment.add_filter(name, to_datetime);
    }
    environment.add_filter(MINUS, minus);
}

/// A date with a time of day and an optional offset from UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Date {
    time: DateTime,
    offset: Option<Offset>,
}

/// Microseconds between two dates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span(i64);

impl Date {
    fn parse(format: &str, text: &str) -> Option<Self> {
        if format.contains("%Z") {
            // As in Python, the name of a zone is read and ignored.
            return ["GMT", "UTC"].iter().find_map(|zone| Self::parse(&format.replace("%Z", zone), text));
        }
        let read = BrokenDownTime::parse(format, text).ok()?;
        Some(Self { time: read.to_datetime().ok()?, offset: read.offset() })
    }

    /// Parses a date that a variable keeps as text.
    fn kept(text: &str) -> Option<Self> {
        ["%Y-%m-%dT%H:%M:%S%.f%:z", "%Y-%m-%dT%H:%M:%S%.f"]
            .iter()
            .find_map(|format| Self::parse(format, text))
    }

    /// Microseconds since 1970, as if it were UTC if it has no zone.
    fn micros(self) -> Option<i64> {
        let zone = TimeZone::fixed(self.offset.unwrap_or(Offset::UTC));
        Some(self.time.to_zoned(zone).ok()?.timestamp().as_microsecond())
    }

    fn text(self, between: char) -> String {
        let micros = self.time.subsec_nanosecond() / 1000;
        let mut text = self.time.strftime("%Y-%m-%d").to_string();
        text.push(between);
        text.push_str(&self.time.strftime("%H:%M:%S").to_string());
        if micros > 0 {
            text.push_str(&format!(".{micros:06}"));
        }
        if let Some(offset) = self.offset {
            let minutes = offset.seconds() / 60;
            let sign = if minutes < 0 { '-' } else { '+' };
            text.push_str(&format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60));
        }
        text
    }

    fn formatted(self, format: &str) -> Result<String, Error> {
        let zone = TimeZone::fixed(self.offset.unwrap_or(Offset::UTC));
        let text = self.time.to_zoned(zone).and_then(|time| strtime::format(format, &time));
        text.map_err(|_| refusal("strftime", "the format has a letter behind `%` that means nothing"))
    }
}

/// Returns the text that a variable keeps of a date; `None` for any other value.
pub(in super::super) fn kept_text(value: &Engine) -> Option<String> {
    value.downcast_object_ref::<Date>().map(|date| date.text('T'))
}

/// Returns a date or duration as Python writes it in a text.
pub(in super::super) fn written(value: &Engine) -> Option<String> {
    let date = value.downcast_object_ref::<Date>().map(|date| date.text(' '));
    date.or_else(|| value.downcast_object_ref::<Span>().map(ToString::to_string))
}

pub(in super::super) fn is_span(value: &Engine) -> bool {
    value.downcast_object_ref::<Span>().is_some()
}

/// Names what kind of a date a value is, if it is one.
pub(super) fn kind(value: &Engine) -> Option<&'static str> {
    let date = value.downcast_object_ref::<Date>().map(|_| "a date");
    date.or_else(|| is_span(value).then_some("a span of time"))
}

fn to_datetime(value: &Engine, format: Option<&str>) -> Result<Engine, Error> {
    if value.downcast_object_ref::<Date>().is_some() || is_missing(value) {
        return Ok(value.clone());
    }
    let format = format.unwrap_or(FORMAT);
    let text = value.to_string();
    match Date::parse(format, text.trim()) {
        Some(date) => Ok(Engine::from_object(date)),
        None => Err(refusal("to_datetime", format!("the text is no date of the form `{format}`"))),
    }
}

/// Returns `a - b` for dates, durations and numbers.
fn minus(left: &Engine, right: &Engine) -> Result<Engine, Error> {
    for value in [left, right] {
        if is_missing(value) {
            return Ok(value.clone());
        }
    }
    let date = |value: &Engine| match value.downcast_object_ref::<Date>() {
        Some(date) => Some(*date),
        None => value.as_str().and_then(Date::kept),
    };
    let span = |value: &Engine| value.downcast_object_ref::<Span>().copied();
    let wrong = || Error::new(ErrorKind::InvalidOperation, "the result of the subtraction is out of range");
    match (date(left), date(right), span(left), span(right)) {
        (Some(left), Some(right), ..) => {
            if left.offset.is_some() != right.offset.is_some() {
                return Err(refusal("-", "one of the dates has a time zone, the other has none"));
            }
            let micros = left.micros().zip(right.micros()).and_then(|(left, right)| left.checked_sub(right));
            return micros.map(|micros| Engine::from_object(Span(micros))).ok_or_else(wrong);
        }
        (Some(left), None, _, Some(Span(micros))) => {
            let time = left.time.checked_sub(jiff::SignedDuration::from_micros(micros));
            return time.map(|time| Engine::from_object(Date { time, ..left })).map_err(|_| wrong());
        }
        (None, None, Some(left), Some(right)) => {
            let micros = left.0.checked_sub(right.0).ok_or_else(wrong)?;
            return Ok(Engine::from_object(Span(micros)));
        }
        _ => {}
    }
    if left.is_integer() && right.is_integer() {
        let pair = left.as_i64().zip(right.as_i64());
        return pair.and_then(|(left, right)| left.checked_sub(right)).map(Engine::from).ok_or_else(wrong);
    }
    match (left.is_number(), right.is_number()) {
        (true, true) => Ok(Engine::from(f64::try_from(left.clone())? - f64::try_from(right.clone())?)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tried to use - operator on unsupported types {} and {}", left.kind(), right.kind()),
        )),
    }
}

/// Returns the text argument of a method.
fn text_argument<'a>(method: &str, args: &'a [Engine]) -> Result<&'a str, Error> {
    args.first().and_then(Engine::as_str).ok_or_else(|| refusal(method, "it wants a format"))
}

impl Object for Date {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        let time = self.time;
        Some(match key.as_str()? {
            "year" => Engine::from(time.year()),
            "month" => Engine::from(time.month()),
            "day" => Engine::from(time.day()),
            "hour" => Engine::from(time.hour()),
            "minute" => Engine::from(time.minute()),
            "second" => Engine::from(time.second()),
            "microsecond" => Engine::from(time.subsec_nanosecond() / 1000),
            other => missing(other.to_owned()),
        })
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Engine],
    ) -> Result<Engine, Error> {
        #[expect(clippy::cast_precision_loss, reason = "as in Python: a float of the seconds")]
        let seconds = || self.micros().map(|micros| micros as f64 / SECOND as f64);
        match method {
            "strftime" => self.formatted(text_argument(method, args)?).map(Engine::from),
            "isoformat" => Ok(Engine::from(self.text('T'))),
            "timestamp" => Ok(Engine::from(seconds())),
            "weekday" => Ok(Engine::from(self.time.weekday().to_monday_zero_offset())),
            "isoweekday" => Ok(Engine::from(self.time.weekday().to_monday_one_offset())),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        Some(self.micros()?.cmp(&other.micros()?))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(' '))
    }
}

impl fmt::Display for Span {
    /// Formats as Python does for `timedelta`: days may be negative, the rest is added to them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.0.div_euclid(DAY), self.0.rem_euclid(DAY));
        if days != 0 {
            let noun = if days.abs() == 1 { "day" } else { "days" };
            write!(f, "{days} {noun}, ")?;
        }
        let seconds = rest / SECOND;
        write!(f, "{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        if rest % SECOND > 0 {
            write!(f, ".{:06}", rest % SECOND)?;
        }
        Ok(())
    }
}

impl Object for Span {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        Some(match key.as_str()? {
            "days" => Engine::from(self.0.div_euclid(DAY)),
            "seconds" => Engine::from(self.0.rem_euclid(DAY) / SECOND),
            "microseconds" => Engine::from(self.0.rem_euclid(SECOND)),
            other => missing(other.to_owned()),
        })
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        _: &[Engine],
    ) -> Result<Engine, Error> {
        #[expect(clippy::cast_precision_loss, reason = "as in Python: a float of the seconds")]
        match method {
            "total_seconds" => Ok(Engine::from(self.0 as f64 / SECOND as f64)),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.0 != 0
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some((**self).cmp(other.downcast_ref::<Self>()?))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", **self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Scope, Value, render};

    fn given(template: &str) -> Result<Value, String> {
        let variables = serde_json::json!({
            "a": "2024-01-03 12:00:10", "b": "2024-01-01 12:00:00", "da": "{{ a | to_datetime }}", "n": 7,
            "uptime": {"days": 3},
        });
        let variables = variables.as_object().cloned().unwrap_or_default();
        let scope = Scope::new(vec![std::sync::Arc::new(super::super::super::Dict::trusted(&variables))]);
        render(template, &scope).map_err(|error| error.message().to_owned())
    }

    /// The expected values come from ansible-core 2.19 with the time zone UTC.
    #[test]
    fn dates_are_as_with_ansible() {
        for (template, wanted) in [
            ("{{ (a|to_datetime - b|to_datetime).total_seconds() }}", "172810.0"),
            ("{{ ((a|to_datetime) - (b|to_datetime)).days }}", "2"),
            ("{{ ((b|to_datetime) - (a|to_datetime)).seconds }}", "86390"),
            ("{{ ((b|to_datetime) - (a|to_datetime)).days }}", "-3"),
            (
                "x {{ (b|to_datetime) - (a|to_datetime) }} {{ a | to_datetime }}",
                "x -3 days, 23:59:50 2024-01-03 12:00:10",
            ),
            ("{{ a | to_datetime }}", "2024-01-03T12:00:10"),
            ("{{ (da - b|to_datetime).days }}", "2"),
            ("{{ (a|to_datetime).strftime('%d/%m') }} {{ (a|to_datetime).year }}", "03/01 2024"),
            ("{{ (a|to_datetime).isoformat() }} {{ (a|to_datetime).weekday() }}", "2024-01-03T12:00:10 2"),
            (
                "{{ '2024-01-01T10:00:00.250Z' | to_datetime('%Y-%m-%dT%H:%M:%S.%fZ') }}",
                "2024-01-01T10:00:00.250000",
            ),
            (
                "{{ '2024-01-01T10:00:00+0200' | to_datetime('%Y-%m-%dT%H:%M:%S%z') }}",
                "2024-01-01T10:00:00+02:00",
            ),
            ("{{ (a|to_datetime) > (b|to_datetime) }}", "True"),
            ("x {{ '2024-02-01'|ansible.builtin.to_datetime('%Y-%m-%d') }}", "x 2024-02-01 00:00:00"),
            ("{{ (('2024-02-01'|to_datetime('%Y-%m-%d')) - (b|to_datetime)).days + 1 }}", "31"),
            ("{{ (a|to_datetime - b|to_datetime).total_seconds() | int }}", "172810"),
            ("{{ (a|to_datetime).timestamp() }}", "1704283210.0"),
            ("{% if (a|to_datetime - b|to_datetime).days > 1 %}old{% endif %}", "old"),
            ("{{ uptime.days - 1 }} {{ n - uptime.days - 1.5 }}", "2 2.5"),
        ] {
            assert_eq!(given(template).map(|value| value.to_text()), Ok(wanted.to_owned()), "{template}");
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for (template, wanted) in [
            ("{{ 'x' | to_datetime }}", "no date of the form"),
            ("{{ (a|to_datetime) - (b|to_datetime) }}", "total_seconds"),
            ("{{ (a|to_datetime - nope|to_datetime).days }}", "nope"),
            ("{{ (a|to_datetime).yeer }}", "yeer"),
            ("{{ (a|to_datetime) - n }}", "unsupported types"),
            ("{{ uptime.days - 'x' }}", "unsupported types"),
            (
                "{{ (a|to_datetime - '2024-01-01T10:00:00+0200'|to_datetime('%Y-%m-%dT%H:%M:%S%z')).days }}",
                "time zone",
            ),
        ] {
            let error = given(template).map(|value| value.to_text()).unwrap_err();
            assert!(error.contains(wanted), "{template}: {error}");
        }
    }
}
