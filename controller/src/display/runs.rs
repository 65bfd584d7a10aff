//! The list of past runs.

use jiff::{Timestamp, tz::TimeZone};

use super::{Role, Style, clean, clip, moment};
use crate::event::Verb;

/// Width of the playbooks.
const PLAYBOOKS: usize = 28;

/// One run in the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    pub run_id: String,
    pub verb: Verb,
    /// Its playbook files; empty for tasks of a command line.
    pub playbooks: Vec<String>,
    /// Whether `gpufleet resume` can continue it.
    pub resumable: bool,
    pub started: Option<Timestamp>,
    /// `None` while it runs, or if it was cut off.
    pub exit_code: Option<u8>,
    pub nodes: usize,
    /// Its last sentence, or what is known about it.
    pub summary: String,
}

impl RunRow {
    const fn verb(&self) -> &'static str {
        if self.verb.writes() && self.playbooks.is_empty() { "exec" } else { self.verb.as_str() }
    }

    /// Returns the playbooks without their folders.
    fn playbooks(&self) -> String {
        let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
        clip(&clean(&self.playbooks.iter().map(name).collect::<Vec<_>>().join(" ")), PLAYBOOKS)
    }
}

/// Returns one line for each run, in the given order (newest first); times in `zone`.
pub fn runs_table(rows: &[RunRow], zone: &TimeZone, style: &Style) -> String {
    if rows.is_empty() {
        return "No runs yet.\n".to_owned();
    }
    let id = rows.iter().map(|row| row.run_id.chars().count()).max().unwrap_or(0).max(3);
    let playbooks = rows.iter().map(|row| row.playbooks().chars().count()).max().unwrap_or(0).max(8);
    let head = format!(
        "{:id$}  {:23}  {:5}  {:playbooks$}  {:>5}  {:4}  SUMMARY",
        "RUN", "STARTED", "VERB", "PLAYBOOK", "NODES", "EXIT"
    );
    let used = head.chars().count() - "SUMMARY".len();
    let mut out = format!("{}\n", style.paint(Role::Strong, head));
    for row in rows {
        let started = row.started.map_or_else(|| "not known".to_owned(), |at| moment(at, zone));
        let (role, exit) = match row.exit_code {
            Some(0) => (Role::Good, "0".to_owned()),
            Some(code) => (Role::Bad, code.to_string()),
            None => (Role::Busy, "open".to_owned()),
        };
        let summary = match row.resumable {
            true => format!("can be resumed: {}", row.summary),
            false => row.summary.clone(),
        };
        let summary = style.cut(&clean(&summary), style.width.saturating_sub(used).max(20));
        let exit = style.paint(role, format!("{exit:<4}"));
        let line = format!(
            "{:id$}  {started:23}  {:5}  {:playbooks$}  {:>5}  {exit}  {summary}",
            row.run_id,
            row.verb(),
            row.playbooks(),
            row.nodes
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
