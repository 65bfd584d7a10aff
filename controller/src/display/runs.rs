//! The list of past runs.

use jiff::{Timestamp, tz::TimeZone};

use super::{Role, Style, clean, clip};
use crate::event::Verb;

/// One run of the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    pub run_id: String,
    pub verb: Verb,
    pub started: Option<Timestamp>,
    /// `None` while it runs, or where it was cut off.
    pub exit_code: Option<u8>,
    pub nodes: usize,
    /// Its last sentence, or what is known of it.
    pub summary: String,
}

/// Runs, the newest first as given, one a line; times in `zone`.
pub fn runs_table(rows: &[RunRow], zone: &TimeZone, style: &Style) -> String {
    if rows.is_empty() {
        return "No runs yet.\n".to_owned();
    }
    let id = rows.iter().map(|row| row.run_id.chars().count()).max().unwrap_or(0).max(3);
    let mut out = format!(
        "{}\n",
        style.paint(
            Role::Strong,
            format!("{:id$}  {:16}  {:5}  {:>5}  {:4}  SUMMARY", "RUN", "STARTED", "VERB", "NODES", "EXIT")
        )
    );
    for row in rows {
        let started = row.started.map_or_else(
            || "not known".to_owned(),
            |at| at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string(),
        );
        let verb = match row.verb {
            Verb::Run => "run",
            Verb::Plan => "plan",
            Verb::Audit => "audit",
        };
        let (role, exit) = match row.exit_code {
            Some(0) => (Role::Good, "0".to_owned()),
            Some(code) => (Role::Bad, code.to_string()),
            None => (Role::Busy, "open".to_owned()),
        };
        let used = id + 2 + 16 + 2 + 5 + 2 + 5 + 2 + 4 + 2;
        let summary = clip(&clean(&row.summary), style.width.saturating_sub(used).max(20));
        let exit = style.paint(role, format!("{exit:<4}"));
        let line = format!("{:id$}  {started:16}  {verb:5}  {:>5}  {exit}  {summary}", row.run_id, row.nodes);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
