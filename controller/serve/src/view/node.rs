//! One node: how it is, since when, and what was.

use gpufleet_compliance::{Catalogue, Verdict};
use gpufleet_history::{Found, NodeHistory, NodeRow, OpenFinding};
use serde::Serialize;

use super::{Moment, address, timeline::Timeline};

#[derive(Debug, Serialize)]
pub(crate) struct NodeView {
    node: NodeRow,
    at: Moment,
    since: Moment,
    run_href: String,
    groups: Vec<(String, String)>,
    timeline: Option<Timeline>,
    /// The newest first.
    spans: Vec<SpanLine>,
    /// The worst first; those that a waiver or another finding covers last.
    open: Vec<Line>,
    past: Vec<PastLine>,
    /// Past findings that are not shown.
    past_left_out: usize,
}

#[derive(Debug, Serialize)]
struct SpanLine {
    verdict: Verdict,
    from: Moment,
    until: Moment,
    audits: u32,
}

#[derive(Debug, Serialize)]
struct Line {
    found: Found,
    href: String,
    since: Moment,
    audits: u32,
    /// What to do about it.
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct PastLine {
    found: Found,
    href: String,
    from: Moment,
    until: Moment,
}

/// Past findings that a page shows.
const PAST: usize = 200;

impl NodeView {
    pub(crate) fn of(history: NodeHistory) -> Self {
        let NodeHistory { node, spans, mut open, past } = history;
        open.sort_by_key(|finding| finding.found.waived.is_some() || finding.found.explained_by.is_some());
        let line = |finding: OpenFinding| Line {
            href: address("checks", &finding.found.control),
            since: finding.since.into(),
            audits: finding.audits,
            remedy: Catalogue::get()
                .check(&finding.found.control)
                .map(|check| check.remediation.text.clone()),
            found: finding.found,
        };
        let group =
            |name: &String| (name.clone(), format!("/?group={}", address("", name).trim_start_matches('/')));
        Self {
            at: node.at.into(),
            since: node.since.into(),
            // The report opens what its fragment names.
            run_href: format!(
                "{}#open={}",
                address("runs", &node.run),
                address("", &node.node).trim_start_matches('/')
            ),
            groups: node.groups.iter().map(group).collect(),
            timeline: Timeline::of(&spans),
            spans: spans
                .iter()
                .map(|span| SpanLine {
                    verdict: span.verdict,
                    from: span.from.into(),
                    until: span.until.into(),
                    audits: span.audits,
                })
                .collect(),
            open: open.into_iter().map(line).collect(),
            past_left_out: past.len().saturating_sub(PAST),
            past: past
                .into_iter()
                .take(PAST)
                .map(|finding| PastLine {
                    href: address("checks", &finding.found.control),
                    from: finding.from.into(),
                    until: finding.until.into(),
                    found: finding.found,
                })
                .collect(),
            node,
        }
    }
}
