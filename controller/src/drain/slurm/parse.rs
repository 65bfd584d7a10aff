//! What `scontrol` and `squeue` print.
//!
//! Owns reading `scontrol show node -o` (22.05 and newer), reservations and jobs. Must not know what is done about it.
//! Invariants: no text panics, flags that are not known are kept, and a text that looks like a field inside a person's
//! reason never makes a node ours.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::civil::DateTime;

/// Fields of free text; they come last, in an order that differs between versions.
const FREE_TEXT: [&str; 6] = ["Reason", "Comment", "Extra", "InstanceId", "InstanceType", "ReservationName"];

/// One node as the scheduler shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    pub name: String,
    pub state: State,
    /// When the node booted, as registered; `None` until it registered since the scheduler's start.
    pub booted: Option<Timestamp>,
    pub reason: Option<Reason>,
    pub comment: Option<String>,
    pub extra: Option<String>,
}

/// Why a node is out, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub text: String,
    /// User and time as printed.
    pub by: Option<(String, String)>,
}

/// A base state and its flags, without the marks that are appended to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub base: String,
    pub flags: BTreeSet<String>,
}

impl State {
    /// Reads `IDLE+DRAIN+NOT_RESPONDING`, also with the marks of the short forms.
    pub fn parse(text: &str) -> Self {
        let mut words = text.split('+').map(|word| {
            word.trim_end_matches(['*', '~', '#', '$', '@', '^', '!', '%', '-', '&']).to_ascii_uppercase()
        });
        let base = words.next().unwrap_or_default();
        let mut flags: BTreeSet<String> = words.filter(|word| !word.is_empty()).collect();
        if text.split('+').next().is_some_and(|word| word.ends_with('*')) {
            flags.insert("NOT_RESPONDING".to_owned());
        }
        Self { base, flags }
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }

    /// No new work starts there, by someone's request.
    pub fn is_draining(&self) -> bool {
        self.has("DRAIN")
    }

    /// The scheduler's half of "nothing runs there": COMPLETING looks idle and is not.
    pub fn is_drained(&self) -> bool {
        self.is_draining() && matches!(self.base.as_str(), "IDLE" | "DOWN") && !self.has("COMPLETING")
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.base)?;
        self.flags.iter().try_for_each(|flag| write!(formatter, "+{flag}"))
    }
}

/// One line of `scontrol show node -o`, printed with `TZ=UTC`; `None` for what is no node.
pub fn node(line: &str) -> Option<NodeRecord> {
    let line = line.trim();
    let start = FREE_TEXT.iter().filter_map(|key| line.find(&format!(" {key}="))).min();
    let (fixed, tail) = line.split_at_checked(start.unwrap_or(line.len()))?;
    let field = |key: &str| {
        fixed
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key).and_then(|rest| rest.strip_prefix('=')))
            .filter(|value| !value.is_empty())
    };
    let name = fixed.strip_prefix("NodeName=")?.split_whitespace().next()?;
    let mut record = NodeRecord {
        name: name.to_owned(),
        state: State::parse(field("State")?),
        booted: field("BootTime").and_then(time),
        reason: None,
        comment: None,
        extra: None,
    };
    let mut rest = tail;
    let mut seen: Vec<&str> = Vec::new();
    while let Some((key, value)) = FREE_TEXT.iter().find_map(|key| {
        let value = rest.trim_start().strip_prefix(key)?.strip_prefix('=')?;
        Some((*key, value))
    }) {
        seen.push(key);
        let mut end = next_field(value, &seen, 0);
        let mut reason = None;
        if key == "Reason"
            && let Some((length, found)) = stamped(value, &seen)
        {
            end = length;
            reason = Some(found);
        }
        let (value, after) = value.split_at_checked(end)?;
        rest = after;
        let text = value.trim().to_owned();
        match key {
            "Reason" => record.reason = reason.or_else(|| some(text).map(|text| Reason { text, by: None })),
            "Comment" => record.comment = some(text),
            "Extra" => record.extra = some(text),
            _ => {}
        }
    }
    record.reason = record.reason.filter(|reason| !reason.text.is_empty());
    Some(record)
}

fn some(text: String) -> Option<String> {
    (!text.is_empty() && text != "(null)").then_some(text)
}

/// Where the next field of free text begins that was not there yet.
fn next_field(text: &str, seen: &[&str], from: usize) -> usize {
    FREE_TEXT
        .iter()
        .filter(|key| !seen.contains(key))
        .filter_map(|key| text.get(from..)?.find(&format!(" {key}=")).map(|at| at + from))
        .min()
        .unwrap_or(text.len())
}

/// The reason up to its last `[user@time]` that ends the text or stands before another field.
///
/// Why the last: people copy a whole reason, stamp included, into their own.
fn stamped(text: &str, seen: &[&str]) -> Option<(usize, Reason)> {
    let mut found = None;
    for (open, _) in text.match_indices(" [") {
        let Some(stamp) = text.get(open + 2..) else { continue };
        let Some(close) = stamp.find(']') else { continue };
        let Some((user, when)) = stamp.get(..close).and_then(|inner| inner.rsplit_once('@')) else {
            continue;
        };
        if user.is_empty() || user.contains(char::is_whitespace) || !looks_like_time(when) {
            continue;
        }
        let end = open + 2 + close + 1;
        let Some(rest) = text.get(end..) else { continue };
        // Why three blanks: further lines of a reason stand behind the stamp of the first, indented.
        let more_lines = rest.starts_with("   ");
        if rest.trim().is_empty() || more_lines || next_field(text, seen, end) == end {
            let length = if more_lines { next_field(text, seen, end) } else { end };
            let text = text.get(..open).unwrap_or_default().trim().to_owned();
            found = Some((length, Reason { text, by: Some((user.to_owned(), when.to_owned())) }));
        }
    }
    found
}

fn looks_like_time(text: &str) -> bool {
    text == "Unknown" || time(text).is_some()
}

fn time(text: &str) -> Option<Timestamp> {
    let civil: DateTime = text.parse().ok()?;
    civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// One job of `squeue -o '%A|%u|%T|%j'`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: String,
    pub user: String,
    pub state: String,
    pub name: String,
}

impl std::fmt::Display for Job {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "job {} of {}", self.id, self.user)?;
        if self.state != "RUNNING" {
            write!(formatter, " ({})", self.state.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

/// All jobs; `Err` holds the first line that is none, for then the list is not known to be whole.
pub fn jobs(text: &str) -> Result<Vec<Job>, String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut parts = line.splitn(4, '|').map(str::trim);
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some(id), Some(user), Some(state), Some(name))
                    if !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()) =>
                {
                    Ok(Job { id: id.into(), user: user.into(), state: state.into(), name: name.into() })
                }
                _ => Err(line.to_owned()),
            }
        })
        .collect()
}

/// The runs that hold a reservation of ours, from `scontrol show reservation -o`.
///
/// `None` when the text is no such list.
pub fn lock_holders(text: &str) -> Option<BTreeSet<String>> {
    let mut runs = BTreeSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("No reservations in the system") {
            continue;
        }
        let name = line.strip_prefix("ReservationName=")?.split_whitespace().next()?;
        if let Some(run) = name.strip_prefix("gpufleet_") {
            runs.insert(run.to_owned());
        }
    }
    Some(runs)
}
