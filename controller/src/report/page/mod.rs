//! The data of the HTML page, ready for its template and its script, which compute nothing.
//!
//! Owns what the page says, and in which order: the verdict of the fleet, the matrix of controls by groups, what to do
//! next, the causes, the nodes. Invariant: what is not ok is in the causes, of which the page shows the worst, and with
//! every node it is of.

mod causes;
mod columns;
mod island;
mod matrix;
mod next;
mod node;
mod plain;
mod trend;

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use super::{NodeModel, NodeResult, RunModel, Standing, Verdict, exit_code, fold_names};
use crate::event::{EarlierAudit, Level, NOTHING_NEW, NodeState, TaskStatus, Verb};
use causes::Cause;
use columns::Groups;
use matrix::Matrix;
use next::Next;
use plain::Plain;
use trend::Trend;

/// Causes that are shown at once; further ones are folded, up to [`MOST_CAUSES`].
const MOST_OPEN_CAUSES: usize = 25;
const MOST_CAUSES: usize = 150;

#[derive(Debug, Serialize)]
pub(super) struct Page {
    title: String,
    verb: &'static str,
    writes: bool,
    run_id: String,
    gpufleet: String,
    command: String,
    started: String,
    finished: String,
    took: String,
    exit_code: u8,
    headline: String,
    /// A note for a run that is not over; `as_of` is the time of the page's data.
    not_over: Option<&'static str>,
    as_of: String,
    /// Hardware classes and their number of nodes, the most frequent first.
    hardware: Vec<(String, usize)>,
    /// Nodes that are unknown because something could not be read; `unjudged`: because not everything was judged;
    /// `not_begun`: because the run ended before.
    unread: usize,
    unjudged: usize,
    not_begun: usize,
    percent: String,
    summary: Option<String>,
    stopped: Option<String>,
    out_of_service: String,
    tiles: Vec<Tile>,
    rebooted: usize,
    changed: usize,
    notices: Vec<(Level, String)>,
    /// What the checks of an audit are, and how much of them was judged; `None` without checks.
    checks: Option<String>,
    /// How it went on since earlier audits.
    trend: Option<Trend>,
    matrix: Option<Matrix>,
    next: Vec<Next>,
    /// Those that are shown at once, those that are folded, and the number of those that are left out.
    causes: Vec<Cause>,
    more_causes: Vec<Cause>,
    left_out: usize,
    /// The number of nodes, and what the page has of them without its script.
    total: usize,
    plain: Plain,
    /// The document that the script reads.
    #[serde(skip)]
    pub(super) island: String,
}

#[derive(Debug, Serialize)]
struct Tile {
    verdict: Verdict,
    label: &'static str,
    count: usize,
    /// Start and length of its part of the bar, in percent.
    from: f64,
    share: f64,
}

fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(
        || "not known".to_owned(),
        |at| at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

fn nodes_text(count: usize) -> String {
    if count == 1 { "the node".to_owned() } else { format!("all {count} nodes") }
}

const fn label(verdict: Verdict, verb: Verb, by_checks: bool) -> &'static str {
    match verdict {
        Verdict::Ok if by_checks => "ok",
        Verdict::Ok => "as declared",
        Verdict::Warn => "with a warning",
        Verdict::Drift if verb.writes() => "not yet as declared",
        Verdict::Drift => "drift",
        Verdict::Unknown => "unknown",
        Verdict::Fail => "failed",
        Verdict::Na => "not applicable",
    }
}

/// Returns how many nodes are well and have a result that takes that back: these are not as declared.
fn caveats(model: &RunModel) -> Vec<(&'static str, usize)> {
    let verb = model.verb();
    let ok = || model.nodes().iter().filter(|node| node.verdict(verb) == Verdict::Ok);
    let with = |result: &NodeResult| ok().filter(|node| node.result(verb) == *result).count();
    let named = NodeResult::ALL.iter().filter_map(|result| Some((result.caveat()?, with(result))));
    named.filter(|(_, count)| *count > 0).collect()
}

impl Page {
    pub(super) fn of(model: &RunModel) -> Self {
        let verb = model.verb();
        let run = model.run.as_ref();
        let total = model.nodes().len();
        let verdicts: Vec<Verdict> = model.nodes().iter().map(|node| node.verdict(verb)).collect();
        let counts =
            Verdict::WORST_FIRST.map(|verdict| verdicts.iter().filter(|known| **known == verdict).count());
        let done_unjudged = model.nodes().iter().filter(|node| node.is_done_unjudged(verb)).count();
        let caveats = caveats(model);
        let taken_back: usize = caveats.iter().map(|(_, count)| count).sum();
        let mut before = 0;
        let share = |count: usize| if total == 0 { 0.0 } else { count as f64 * 100.0 / total as f64 };
        let tiles: Vec<Tile> = Verdict::WORST_FIRST
            .into_iter()
            .zip(counts)
            .flat_map(|(verdict, count)| {
                let own = label(verdict, verb, model.is_audit_of_checks());
                match verdict {
                    Verdict::Ok => std::iter::once((verdict, own, count - taken_back))
                        .chain(caveats.iter().map(|(label, count)| (Verdict::Ok, *label, *count)))
                        .collect(),
                    _ => vec![(verdict, own, count)],
                }
            })
            .map(|(verdict, label, count)| {
                let from = share(before);
                before += count;
                Tile { verdict, label, count, from, share: share(count) }
            })
            .collect();
        let standing = model.standing();
        let so_far = if standing == Standing::Finished { "" } else { " so far" };
        let unknown = || model.nodes().iter().filter(|node| node.verdict(verb) == Verdict::Unknown);
        let unjudged = unknown().filter(|node| is_unjudged(node, verb)).count();
        let not_begun =
            unknown().filter(|node| matches!(node.state, NodeState::Pending | NodeState::Skipped)).count();
        let unread = unknown().count() - unjudged - not_begun;
        let good = model.nodes().iter().filter(|node| node.is_compliant(verb)).count();
        let nothing_applies = total > 0 && !model.nodes().iter().any(|node| node.applies(verb));
        let good_word = if model.is_audit_of_checks() { "compliant" } else { "as declared" };
        // Rounded down, so that 100 % means all of them.
        let tenths = (good * 1000).checked_div(total).unwrap_or(0);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let trend = run.zip(model.finished).and_then(|(run, at)| {
            Trend::of(&run.trend, EarlierAudit { at, nodes: number(total), compliant: number(good) })
        });
        let groups = Groups::of(model);
        let causes = causes::of(model, verb);
        let next = next::of(model, verb, &causes);
        let matrix = verb.info().judges.then(|| Matrix::of(model, &causes, &verdicts, &groups));
        let island = island::island(model, &verdicts, &groups, &causes);
        let mut causes = causes;
        let left_out = causes.len().saturating_sub(MOST_CAUSES);
        causes.truncate(MOST_CAUSES);
        let more_causes = causes.split_off(causes.len().min(MOST_OPEN_CAUSES));
        let plays: Vec<&str> = model.plays.iter().map(|play| play.name.as_str()).collect();
        Self {
            title: if plays.is_empty() { "gpufleet".to_owned() } else { plays.join(", ") },
            verb: verb.as_str(),
            writes: verb.writes(),
            run_id: model.run_id().to_owned(),
            gpufleet: run.map_or_else(String::new, |run| run.gpufleet.clone()),
            command: run.map_or_else(String::new, |run| crate::visible::command_line(&run.command_line)),
            started: time(model.started),
            finished: model.finished.map_or_else(|| standing.text().to_owned(), |at| time(Some(at))),
            took: seconds_text(super::seconds_between(model.started, model.finished.or(model.latest))),
            exit_code: exit_code(model),
            headline: match (good == total, total) {
                (_, 0) => "No node was selected".to_owned(),
                (_, 1) if nothing_applies => "Nothing that is declared applies to the node".to_owned(),
                _ if nothing_applies => {
                    format!("Nothing that is declared applies to any of the {total} nodes")
                }
                _ if done_unjudged == total => {
                    format!("Commands ran on {}; what they did was not judged{so_far}", nodes_text(total))
                }
                (true, 1) => format!("The node is {good_word}{so_far}"),
                (false, 1) => format!("The node is not {good_word}{so_far}"),
                (true, _) => format!("All {total} nodes are {good_word}{so_far}"),
                (false, _) => format!("{good} of {total} nodes are {good_word}{so_far}"),
            },
            not_over: (standing != Standing::Finished).then(|| standing.text()),
            as_of: time(model.latest),
            hardware: hardware(model),
            unread,
            unjudged,
            not_begun,
            percent: format!("{}.{}", tenths / 10, tenths % 10),
            summary: model.finish.as_ref().map(|finish| finish.summary.clone()),
            stopped: model.stopped().map(str::to_owned),
            out_of_service: fold_names(model.left_out()),
            tiles,
            rebooted: model.nodes().iter().filter(|node| !node.reboots.is_empty()).count(),
            changed: model.nodes().iter().filter(|node| node.changes().next().is_some()).count(),
            notices: notices(model),
            checks: checks(model, matrix.as_ref()),
            trend,
            matrix,
            next,
            causes,
            more_causes,
            left_out,
            total,
            plain: Plain::of(model, &verdicts),
            island,
        }
    }
}

/// Says what judged the nodes, and how much was judged.
fn checks(model: &RunModel, matrix: Option<&Matrix>) -> Option<String> {
    let scope = model.run.as_ref()?.audit.as_ref()?;
    let coverage = || model.nodes().iter().filter_map(|node| Some(&node.health.as_ref()?.verdict.coverage));
    let judged: usize = coverage().map(|coverage| coverage.judged).sum();
    let asked: usize = coverage().map(|coverage| coverage.asked()).sum();
    let later: usize = coverage().map(|coverage| coverage.not_yet).sum();
    let (controls, calm) = matrix?.counts();
    let more = match later {
        0 => String::new(),
        _ => format!("; {later} more need --deep or an earlier audit"),
    };
    let name = &scope.policy.data().name;
    Some(format!(
        "{calm} of {controls} controls are ok wherever they were judged. {judged} of {asked} judgements were made{more}. Baseline {name}."
    ))
}

/// Returns the fragment of the page's address that selects nodes.
fn fragment(pairs: &[(&str, &str)]) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for (name, value) in pairs {
        let _ = write!(out, "{}{name}=", if out.is_empty() { '#' } else { '&' });
        for byte in crate::visible::visible_lines(value).bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(char::from(byte)),
                // Infallible: a `String` takes all that is written to it.
                _ => {
                    let _ = write!(out, "%{byte:02X}");
                }
            }
        }
    }
    out
}

/// Whether the node is unknown only because not everything was judged.
fn is_unjudged(node: &NodeModel, verb: Verb) -> bool {
    let unread = node.tasks_in(TaskStatus::Unknown).next().is_some();
    !unread
        && matches!(node.state, NodeState::Compliant | NodeState::Unknown)
        && !node.judged(verb).is_whole()
}

fn hardware(model: &RunModel) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for node in model.nodes() {
        let Some(class) = node.hardware() else { continue };
        let what = match node.driver_version() {
            Some(driver) => format!("{class}, driver {driver}"),
            None => class,
        };
        match all.iter_mut().find(|(known, _)| *known == what) {
            Some((_, nodes)) => *nodes += 1,
            None => all.push((what, 1)),
        }
    }
    all.sort_by_key(|(_, nodes)| std::cmp::Reverse(*nodes));
    all.truncate(12);
    all
}

/// Returns the messages about the whole run without duplicates, and without those that repeat why it stopped.
fn notices(model: &RunModel) -> Vec<(Level, String)> {
    let mut all: Vec<(Level, String)> = Vec::new();
    for notice in &model.notices {
        let again =
            model.stopped().is_some_and(|stopped| notice.text.strip_suffix(NOTHING_NEW) == Some(stopped));
        if !again && !all.iter().any(|(_, text)| *text == notice.text) {
            all.push((notice.level, notice.text.clone()));
        }
    }
    all
}

fn seconds_text(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}
