//! The screens of `history`: the fleet over time, one node, one check.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use gpufleet_history::{AuditRow, ControlHistory, NodeHistory, NodeRow, OpenFinding};
use jiff::{Timestamp, tz::TimeZone};

use super::{Role, Style, audit::percent, clean, count, figures::wrap};
use crate::report::{fold_gpus, fold_names};

/// Number of audits shown; the documents for programs have all.
const MOST_AUDITS: usize = 14;
/// Number of causes shown.
const MOST: usize = 40;
/// Number of columns of the names of nodes.
const NAMES: usize = 24;

/// Returns the fleet over time: `audits` the oldest first, `open` the worst first.
pub fn fleet_history(
    audits: &[AuditRow],
    nodes: &[NodeRow],
    open: &[OpenFinding],
    zone: &TimeZone,
    style: &Style,
) -> String {
    let (Some(first), Some(latest)) = (audits.first(), audits.last()) else {
        return "No audits yet: `gpufleet audit --health` records the first.\n".to_owned();
    };
    let good = nodes.iter().filter(|node| node.compliant).count();
    let share = percent(good, nodes.len()).unwrap_or_default();
    let good = style.paint(Role::Good, format!("{good} compliant"));
    let mut out = format!("{}, {good}        {share}\n", count(nodes.len(), "node"));
    out.push_str(&format!(
        "{} since {}, the latest {} by {}\n",
        count(audits.len(), "audit"),
        moment(first.started, zone),
        moment(latest.started, zone),
        clean(&latest.controller)
    ));
    heading("Audits", style, &mut out);
    let hidden = audits.len().saturating_sub(MOST_AUDITS);
    if hidden > 0 {
        out.push_str(&format!("  … {} before these; --format json has all\n", count(hidden, "audit")));
    }
    for audit in audits.iter().skip(hidden) {
        let share = percent(audit.compliant as usize, audit.nodes as usize).unwrap_or_default();
        let verdicts = audit.verdicts.iter().rev().map(|(verdict, nodes)| format!("{nodes} {verdict}"));
        let asked: Vec<String> =
            audit.playbooks.iter().chain(&audit.baselines).map(|name| clean(name)).collect();
        let line = format!(
            "  {}  {:12}  {share:>7}  {:30}  {}",
            moment(audit.started, zone),
            count(audit.nodes as usize, "node"),
            verdicts.collect::<Vec<_>>().join(", "),
            asked.join(", ")
        );
        out.push_str(&format!("{}\n", style.cut(line.trim_end(), style.width)));
    }
    heading("Open", style, &mut out);
    findings(open, zone, style, &mut out);
    out
}

/// Returns one node over time.
pub fn node_history(history: &NodeHistory, zone: &TimeZone, style: &Style) -> String {
    let node = &history.node;
    let name = style.paint(Role::Strong, clean(&node.node));
    let verdict = style.verdict(node.verdict, node.verdict);
    let parts = [node.hardware.as_deref(), node.driver.as_deref()].into_iter().flatten().map(clean);
    let what = parts.chain(node.groups.iter().map(|group| clean(group))).collect::<Vec<_>>().join(", ");
    let mut out = format!("{name}: {verdict} since {}  -> {}\n", moment(node.since, zone), node.action);
    out.push_str(&format!(
        "read {}, {} of {} judgements were made{}\n",
        moment(node.at, zone),
        node.judged,
        node.applicable,
        if what.is_empty() { String::new() } else { format!("; {what}") }
    ));
    heading("Verdicts", style, &mut out);
    for (at, span) in history.spans.iter().take(MOST_AUDITS).enumerate() {
        let verdict = style.verdict(span.verdict, format!("{:7}", span.verdict));
        let audits = count(span.audits as usize, "audit");
        // The newest one has no end: it is as the last audit found it.
        let when = match at {
            0 => format!("{:DAYS$}", format!("since {}", moment(span.from, zone))),
            _ => days(span.from, span.until, zone),
        };
        out.push_str(&format!("  {verdict}  {when}  {audits}\n"));
    }
    more(history.spans.len(), MOST_AUDITS, "verdict", &mut out);
    heading("Open", style, &mut out);
    findings(&history.open, zone, style, &mut out);
    if history.past.is_empty() {
        return out;
    }
    heading("Gone", style, &mut out);
    for past in history.past.iter().take(MOST) {
        let found = &past.found;
        let verdict = style.verdict(found.verdict, format!("{:7}", found.verdict));
        let left = format!("  {verdict}  {}  ", days(past.from, past.until, zone));
        let text = format!("{} {} ({})", found.subject, found.text, found.control);
        wrapped(&left, 2 + 7 + 2 + DAYS + 2, &text, style, &mut out);
    }
    more(history.past.len(), MOST, "finding", &mut out);
    out
}

/// Returns a check, or a task of a playbook, over time.
pub fn control_history(history: &ControlHistory, zone: &TimeZone, style: &Style) -> String {
    let name = style.paint(Role::Strong, clean(&history.control));
    let mut out = format!("{name}: {}\n", clean(&history.title));
    heading("Nodes with a finding, by audit", style, &mut out);
    let hidden = history.trend.len().saturating_sub(MOST_AUDITS);
    if hidden > 0 {
        out.push_str(&format!("  … {} before these; --format json has all\n", count(hidden, "audit")));
    }
    for (at, nodes) in history.trend.iter().skip(hidden) {
        out.push_str(&format!("  {}  {nodes:>6}\n", moment(*at, zone)));
    }
    heading("Open", style, &mut out);
    findings(&history.open, zone, style, &mut out);
    out
}

fn heading(text: &str, style: &Style, out: &mut String) {
    out.push_str(&format!("\n{}\n", style.paint(Role::Strong, text)));
}

fn more(all: usize, most: usize, noun: &str, out: &mut String) {
    if all > most {
        out.push_str(&format!("  … and {} before these; --format json has all\n", count(all - most, noun)));
    }
}

fn day(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%d").to_string()
}

fn moment(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string()
}

/// Columns of [`days`].
const DAYS: usize = 36;

/// `2026-11-20 02:00 to 2026-11-23 02:00`, the second day only where it is another; in [`DAYS`] columns.
fn days(from: Timestamp, until: Timestamp, zone: &TimeZone) -> String {
    let (first, last) = (moment(from, zone), moment(until, zone));
    let text = if first == last {
        first
    } else if day(from, zone) == day(until, zone) {
        format!("{first} to {}", until.to_zoned(zone.clone()).strftime("%H:%M"))
    } else {
        format!("{first} to {last}")
    };
    format!("{text:DAYS$}")
}

/// Equal findings of several nodes.
struct OpenCause<'a> {
    first: &'a OpenFinding,
    nodes: BTreeSet<&'a str>,
    subjects: Vec<&'a str>,
    since: Timestamp,
    audits: u32,
    last: Timestamp,
}

impl<'a> OpenCause<'a> {
    /// Equal findings as one, the worst first, then the most severe, then the oldest.
    fn of(open: &'a [OpenFinding]) -> Vec<Self> {
        let mut causes: Vec<Self> = Vec::new();
        let mut places = HashMap::new();
        for one in open {
            let found = &one.found;
            let key = (&found.control, found.verdict, &found.text, &found.waived, &found.explained_by);
            let at = *places.entry(key).or_insert_with(|| {
                let (since, audits, last) = (one.since, one.audits, one.last);
                causes.push(Self {
                    first: one,
                    nodes: BTreeSet::new(),
                    subjects: Vec::new(),
                    since,
                    audits,
                    last,
                });
                causes.len() - 1
            });
            let Some(cause) = causes.get_mut(at) else { continue };
            cause.nodes.insert(&one.node);
            if !found.subject.is_empty() && !cause.subjects.contains(&found.subject.as_str()) {
                cause.subjects.push(&found.subject);
            }
            if one.since < cause.since {
                (cause.since, cause.audits) = (one.since, one.audits);
            }
            cause.last = cause.last.max(one.last);
        }
        causes.sort_by_key(|cause| {
            (Reverse(cause.first.found.verdict), Reverse(cause.first.found.severity), cause.since)
        });
        causes
    }

    /// Whether it makes a verdict: not waived, and not explained by another one.
    const fn counts(&self) -> bool {
        self.first.found.waived.is_none() && self.first.found.explained_by.is_none()
    }

    fn sentence(&self) -> String {
        let found = &self.first.found;
        let evidence = match (found.evidence.as_slice(), self.nodes.len()) {
            ([], _) | (_, 2..) => String::new(),
            (evidence, _) => format!(" ({})", evidence.join(", ")),
        };
        let subjects = fold_gpus(self.subjects.iter().copied()).join(", ");
        let place = if found.control == "node" { String::new() } else { format!(" ({})", found.control) };
        format!("{subjects} {}{evidence}{place}", found.text)
    }
}

/// A line for each cause: verdict, nodes, action, names, since when, what.
fn findings(open: &[OpenFinding], zone: &TimeZone, style: &Style, out: &mut String) {
    let (causes, others): (Vec<_>, Vec<_>) = OpenCause::of(open).into_iter().partition(OpenCause::counts);
    if causes.is_empty() {
        out.push_str("  nothing\n");
    }
    let latest = open.iter().map(|one| one.last).max();
    for cause in causes.iter().take(MOST) {
        let found = &cause.first.found;
        let names: Vec<&str> = cause.nodes.iter().copied().collect();
        let names = style.cut(&fold_names(&names), NAMES);
        let next = style.paint(Role::Strong, format!("-> {:11}", found.action));
        let verdict = style.verdict(found.verdict, format!("{:7}", found.verdict));
        let nodes = count(cause.nodes.len(), "node");
        let left = format!("  {verdict}  {nodes:10}{next}  {names:NAMES$}  ");
        let audits = count(cause.audits as usize, "audit");
        // A day later than it was found last, somebody has to know that nobody looked since.
        let stale = latest.is_some_and(|latest| latest.as_second() - cause.last.as_second() > 24 * 3600);
        let last =
            if stale { format!(", not judged since {}", moment(cause.last, zone)) } else { String::new() };
        let since = format!("since {}, {audits}{last}: ", moment(cause.since, zone));
        wrapped(&left, 2 + 7 + 2 + 10 + 14 + 2 + NAMES + 2, &(since + &cause.sentence()), style, out);
    }
    let mut left: Vec<String> = Vec::new();
    if causes.len() > MOST {
        left.push(format!("{} more", count(causes.len() - MOST, "finding")));
    }
    let waived = others.iter().filter(|cause| cause.first.found.waived.is_some()).count();
    for (what, several) in [("waived", waived), ("explained by others", others.len() - waived)] {
        if several > 0 {
            left.push(format!("{} {what}", count(several, "finding")));
        }
    }
    if !left.is_empty() {
        out.push_str(&format!("  … and {}; --format json has all\n", left.join(", ")));
    }
}

/// Writes a text right of `left`, which has `used` columns.
fn wrapped(left: &str, used: usize, text: &str, style: &Style, out: &mut String) {
    let text = style.without_digests(&clean(text));
    for (at, line) in wrap(&text, style.width.saturating_sub(used).max(24)).into_iter().enumerate() {
        let start = if at == 0 { left.to_owned() } else { " ".repeat(used) };
        out.push_str(&format!("{start}{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_compliance::{Action, Severity};
    use gpufleet_history::Found;

    use super::*;
    use crate::report::Verdict;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + day * 86_400).unwrap()
    }

    fn open(node: &str, verdict: Verdict, text: &str, since: i64, last: i64) -> OpenFinding {
        let found = Found {
            control: "mem.remap_failed".to_owned(),
            title: "No row failed to be remapped".to_owned(),
            severity: Severity::Critical,
            subject: "GPU 3".to_owned(),
            verdict,
            action: Action::Replace,
            text: text.to_owned(),
            evidence: vec!["remap_failed 1".to_owned()],
            waived: None,
            explained_by: None,
        };
        let audits = u32::try_from(last - since + 1).unwrap();
        OpenFinding { node: node.to_owned(), found, since: at(since), audits, last: at(last) }
    }

    #[test]
    fn a_span_has_its_times_and_its_end() {
        let text = |from: i64, until: i64| {
            let at = |minutes: i64| Timestamp::from_second(1_795_000_000 + minutes * 60).unwrap();
            days(at(from), at(until), &TimeZone::UTC).trim_end().to_owned()
        };
        assert_eq!(text(0, 0), at(0).strftime("%Y-%m-%d %H:%M").to_string());
        insta::assert_snapshot!(text(0, 90), @"2026-11-18 11:06 to 12:36");
        insta::assert_snapshot!(text(0, 2880), @"2026-11-18 11:06 to 2026-11-20 11:06");
    }

    #[test]
    fn equal_findings_are_one_line_with_the_oldest_since() {
        let all = [
            open("gpu002", Verdict::Fail, "a row could not be remapped", 3, 5),
            open("gpu001", Verdict::Fail, "a row could not be remapped", 1, 5),
            open("gpu009", Verdict::Warn, "\u{1b}[31mhot", 0, 2),
        ];
        let mut out = String::new();
        findings(&all, &TimeZone::UTC, &Style::default(), &mut out);
        assert_eq!(out.matches("-> replace").count(), 2, "{out}");
        let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "fail 2 nodes",
            "since 2026-11-19 11:06, 5 audits: GPU 3 a row could not be remapped (mem.remap_failed)",
            "since 2026-11-18 11:06, 3 audits, not judged since 2026-11-20 11:06: GPU 3",
            "(remap_failed 1) (mem.remap_failed)",
        ] {
            assert!(words.contains(text), "{text}: {out}");
        }
        assert!(!out.contains('\u{1b}'), "{out:?}");
    }
}
