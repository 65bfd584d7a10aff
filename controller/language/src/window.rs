//! Maintenance windows: when a run may take nodes out of service.
//!
//! Owns the text (`Sat 02:00-06:00 Europe/Berlin`) and when it opens. Reads no clock: callers pass the time. Time
//! zone rules are those bundled with the program, so that a text means the same on every host.
//!
//! Invariants: an opening is never empty, and openings that touch or overlap are one.

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, Time, Weekday},
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};
use serde::{Deserialize, Serialize};

use crate::diagnostic::suggest;

/// How many days are searched before and after a moment: a week, and one more in case the clock skips the only
/// opening.
const DAYS_BACK: i64 = 8;
const DAYS_AHEAD: i64 = 15;

const DAY_NAMES: [(&str, &str, Weekday); 7] = [
    ("Mon", "Monday", Weekday::Monday),
    ("Tue", "Tuesday", Weekday::Tuesday),
    ("Wed", "Wednesday", Weekday::Wednesday),
    ("Thu", "Thursday", Weekday::Thursday),
    ("Fri", "Friday", Weekday::Friday),
    ("Sat", "Saturday", Weekday::Saturday),
    ("Sun", "Sunday", Weekday::Sunday),
];

/// Recurring times at which nodes may be taken out of service.
///
/// A time that the clock skips when summer begins counts as the moment of the jump; one that comes twice when summer
/// ends counts the first time. A window past midnight belongs to the day on which it opens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    text: String,
    spans: Vec<Span>,
}

/// From when to when a window is open: `opens` belongs to it, `closes` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Opening {
    pub opens: Timestamp,
    pub closes: Timestamp,
}

impl Opening {
    pub fn contains(&self, at: Timestamp) -> bool {
        self.opens <= at && at < self.closes
    }

    pub fn length(&self) -> SignedDuration {
        self.closes.duration_since(self.opens)
    }
}

/// One entry of the text.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    days: Vec<Weekday>,
    opens: Time,
    /// 24:00 is midnight of the next day.
    closes: Time,
    zone: TimeZone,
}

/// What is wrong with the text of a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("a window without times")]
    Empty,
    #[error("`{entry}` is no window")]
    Shape { entry: String },
    #[error("`{day}` is no day{}", suggestion(near))]
    Day { day: String, near: Option<String> },
    #[error("`{time}` is no time of day")]
    Time { time: String },
    #[error("`{hours}` opens and closes at once")]
    NoTime { hours: String },
    #[error("`{entry}` has no time zone")]
    NoZone { entry: String },
    #[error("`{zone}` is no time zone{}", suggestion(near))]
    Zone { zone: String, near: Option<String> },
}

impl WindowError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Empty => "write for example `Sat 02:00-06:00 Europe/Berlin`".to_owned(),
            Self::Shape { .. } => {
                "write days, times and time zone, for example `Sat 02:00-06:00 Europe/Berlin`, \
                                   `Mon-Fri 22:00-04:00 UTC` or `daily 01:00-05:00 UTC`"
                    .to_owned()
            }
            Self::Day { .. } => "write `Mon` to `Sun`, a range such as `Mon-Fri`, or `daily`".to_owned(),
            Self::Time { .. } => "write hours and minutes, for example `02:00-06:00`".to_owned(),
            Self::NoTime { .. } => "the whole day is `00:00-24:00`".to_owned(),
            Self::NoZone { entry } => format!("write for example `{entry} UTC` or `{entry} Europe/Berlin`"),
            Self::Zone { .. } => {
                "write `UTC` or a name of the IANA database, for example `Europe/Berlin`".to_owned()
            }
        }
    }
}

fn suggestion(known: &Option<String>) -> String {
    known.as_ref().map(|known| format!(" (did you mean `{known}`?)")).unwrap_or_default()
}

impl Window {
    /// Parses `Sat 02:00-06:00 Europe/Berlin`. Several windows are joined by `, `, each with its own time zone.
    ///
    /// # Errors
    /// If the text is no window. The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, WindowError> {
        if text.trim().is_empty() {
            return Err(WindowError::Empty);
        }
        let spans = text.split(',').map(|entry| Span::parse(entry.trim())).collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), spans })
    }

    /// Returns the opening that contains `at`, or the next one.
    pub fn now_or_next(&self, at: Timestamp) -> Opening {
        self.openings(at).into_iter().find(|opening| at < opening.closes).unwrap_or(Opening {
            // Only the last days of the year 9999 have no next opening.
            opens: Timestamp::MAX,
            closes: Timestamp::MAX,
        })
    }

    /// Returns the length of the longest opening in a week without a change of clocks.
    pub fn longest(&self) -> SignedDuration {
        // No zone changes its clock in early January.
        let monday = Timestamp::constant(1_767_571_200, 0);
        self.openings(monday).iter().map(Opening::length).max().unwrap_or_default()
    }

    /// Returns the openings around a moment in order, with those that touch joined.
    fn openings(&self, around: Timestamp) -> Vec<Opening> {
        let mut single: Vec<Opening> = self.spans.iter().flat_map(|span| span.openings(around)).collect();
        single.sort_unstable();
        let mut joined: Vec<Opening> = Vec::new();
        for opening in single {
            match joined.last_mut() {
                Some(last) if opening.opens <= last.closes => last.closes = last.closes.max(opening.closes),
                _ => joined.push(opening),
            }
        }
        joined
    }
}

impl Span {
    fn parse(entry: &str) -> Result<Self, WindowError> {
        let words: Vec<&str> = entry.split_whitespace().collect();
        let (days, hours, zone) = match words.as_slice() {
            [days, hours, zone] => (*days, *hours, *zone),
            [days, hours] if hours.contains(':') => {
                parse_days(days)?;
                parse_hours(hours)?;
                return Err(WindowError::NoZone { entry: entry.to_owned() });
            }
            _ => return Err(WindowError::Shape { entry: entry.to_owned() }),
        };
        let days = parse_days(days)?;
        let (opens, closes) = parse_hours(hours)?;
        Ok(Self { days, opens, closes, zone: parse_zone(zone)? })
    }

    fn openings(&self, around: Timestamp) -> Vec<Opening> {
        let today = around.to_zoned(self.zone.clone()).date();
        (-DAYS_BACK..=DAYS_AHEAD)
            .filter_map(|days| today.checked_add(jiff::Span::new().days(days)).ok())
            .filter(|date| self.days.contains(&date.weekday()))
            .filter_map(|date| self.opening_on(date))
            .collect()
    }

    /// Returns the opening of a day; `None` if the clock skips all of it.
    fn opening_on(&self, date: Date) -> Option<Opening> {
        let last = if self.closes <= self.opens { date.tomorrow().ok()? } else { date };
        let (opens, closes) = (self.moment(date, self.opens)?, self.moment(last, self.closes)?);
        (opens < closes).then_some(Opening { opens, closes })
    }

    fn moment(&self, date: Date, time: Time) -> Option<Timestamp> {
        let local = date.to_datetime(time);
        let reading = |offset: jiff::tz::Offset| offset.to_timestamp(local).ok();
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => reading(offset),
            AmbiguousOffset::Fold { before, .. } => reading(before),
            AmbiguousOffset::Gap { after, .. } => {
                // Read with the later offset, a skipped time lies before the jump.
                self.zone.following(reading(after)?).next().map(|jump| jump.timestamp())
            }
        }
    }
}

fn parse_days(text: &str) -> Result<Vec<Weekday>, WindowError> {
    if text.eq_ignore_ascii_case("daily") {
        return Ok(DAY_NAMES.map(|(_, _, day)| day).to_vec());
    }
    let Some((first, last)) = text.split_once('-') else { return Ok(vec![parse_day(text)?]) };
    let (first, last) = (parse_day(first)?, parse_day(last)?);
    let mut days = vec![first];
    let mut day = first;
    while day != last {
        day = day.next();
        days.push(day);
    }
    Ok(days)
}

fn parse_day(text: &str) -> Result<Weekday, WindowError> {
    let named = DAY_NAMES
        .iter()
        .find(|(short, long, _)| short.eq_ignore_ascii_case(text) || long.eq_ignore_ascii_case(text));
    if let Some((_, _, day)) = named {
        return Ok(*day);
    }
    let names = DAY_NAMES.iter().flat_map(|(short, long, _)| [*short, *long]).chain(["daily"]);
    Err(WindowError::Day { day: text.to_owned(), near: suggest(text, names).map(str::to_owned) })
}

fn parse_hours(text: &str) -> Result<(Time, Time), WindowError> {
    let (opens, closes) = text.split_once('-').ok_or_else(|| WindowError::Time { time: text.to_owned() })?;
    let opens = parse_time(opens)?;
    let closes = if closes == "24:00" { Time::midnight() } else { parse_time(closes)? };
    if opens == closes && !text.ends_with("24:00") {
        return Err(WindowError::NoTime { hours: text.to_owned() });
    }
    Ok((opens, closes))
}

fn parse_time(text: &str) -> Result<Time, WindowError> {
    let number = |digits: &str| match digits.len() {
        1 | 2 if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<i8>().ok(),
        _ => None,
    };
    text.split_once(':')
        .filter(|(_, minutes)| minutes.len() == 2)
        .and_then(|(hours, minutes)| Time::new(number(hours)?, number(minutes)?, 0, 0).ok())
        .ok_or_else(|| WindowError::Time { time: text.to_owned() })
}

fn parse_zone(name: &str) -> Result<TimeZone, WindowError> {
    let known = TimeZoneDatabase::bundled();
    known.get(name).map_err(|_| {
        let names: Vec<String> = known.available().map(|name| name.to_string()).collect();
        let near = suggest(name, names.iter().map(String::as_str)).map(str::to_owned);
        WindowError::Zone { zone: name.to_owned(), near }
    })
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Window {
    type Error = WindowError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.text
    }
}

#[cfg(test)]
mod tests;
