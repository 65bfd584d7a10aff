//! The fleet: who is how, where, since when, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_compliance::Verdict;
use gpufleet_history::{AuditRow, NodeRow, OpenFinding};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    Axis, Moment, address,
    chart::{Chart, Value},
    next::{Step, steps},
    open::Open,
    order::natural,
};

/// Cells that a page has at most: a node stands in each of its groups.
const CELLS: usize = 20_000;
/// How old a node's reading is before its cell says so.
const OLD: SignedDuration = SignedDuration::from_hours(48);

/// What a reader chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The word of an axis.
    pub by: Option<String>,
    /// Only nodes of this group.
    pub group: Option<String>,
    /// Only nodes with this verdict.
    pub verdict: Option<Verdict>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FleetView {
    nodes: usize,
    compliant: usize,
    /// The share of compliant nodes, such as `97.5`.
    percent: String,
    newest: Option<Newest>,
    /// Nodes that were not read for long.
    old: usize,
    tiles: Vec<Tile>,
    axes: Vec<Choice>,
    groups: Vec<Choice>,
    filtered: bool,
    rows: Vec<Row>,
    /// Rows that the page leaves out.
    rows_left_out: usize,
    chart: Option<Chart>,
    open: Open,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Newest {
    run: String,
    href: String,
    finished: Moment,
    nodes: u32,
    controller: String,
    baselines: Vec<String>,
    playbooks: Vec<String>,
    /// Days since then, where they are many.
    days: Option<i64>,
}

/// A verdict, and how many nodes have it.
#[derive(Debug, Serialize)]
struct Tile {
    verdict: Verdict,
    label: &'static str,
    count: usize,
    /// Start and length of its part of the bar, in percent.
    from: f64,
    share: f64,
    href: String,
    chosen: bool,
}

#[derive(Debug, Serialize)]
struct Choice {
    label: String,
    href: String,
    chosen: bool,
}

/// A rack or group with its nodes.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    count: usize,
    /// Verdicts that are not ok, the worst first, and how many nodes have them.
    bad: Vec<(Verdict, usize)>,
    cells: Vec<Cell>,
}

/// A node.
#[derive(Debug, Serialize)]
struct Cell {
    name: String,
    href: String,
    verdict: Verdict,
    old: bool,
}

impl FleetView {
    /// `audits` come the newest first.
    pub(crate) fn of(
        audits: &[AuditRow],
        nodes: &[NodeRow],
        findings: &[OpenFinding],
        asked: &Asked,
        now: Timestamp,
    ) -> Self {
        let newest = audits.first();
        let in_group = |node: &&NodeRow| asked.group.as_ref().is_none_or(|group| node.groups.contains(group));
        let members: Vec<&NodeRow> = nodes.iter().filter(in_group).collect();
        let shown: Vec<&NodeRow> = members
            .iter()
            .copied()
            .filter(|node| asked.verdict.is_none_or(|one| node.verdict == one))
            .collect();
        let filtered = asked.group.is_some() || asked.verdict.is_some();
        let names: BTreeSet<&str> = shown.iter().map(|node| node.node.as_str()).collect();
        let findings: Vec<&OpenFinding> =
            findings.iter().filter(|finding| names.contains(finding.node.as_str())).collect();
        let axes = Axis::of(nodes);
        let axis = asked.by.as_ref().and_then(|by| axes.iter().find(|axis| axis.word() == *by));
        let axis = axis.or_else(|| axes.first());
        let link = Link { by: axis.map(Axis::word), group: asked.group.as_deref(), verdict: asked.verdict };
        // Against the clock too: where nobody audits any more, all readings are as old as the latest audit.
        let latest = newest.map_or(now, |one| one.finished.max(now));
        let is_old = |node: &NodeRow| latest.duration_since(node.at) > OLD;
        let mut rows = axis.map(|axis| rows(axis, &shown, &is_old)).unwrap_or_default();
        let mut cells = 0;
        let kept = rows
            .iter()
            .take_while(|row| {
                cells += row.cells.len();
                cells <= CELLS
            })
            .count();
        let rows_left_out = rows.len() - kept;
        rows.truncate(kept);
        let compliant = members.iter().filter(|node| node.compliant).count();
        Self {
            nodes: members.len(),
            compliant,
            percent: percent(compliant, members.len()),
            newest: newest.map(|audit| Newest {
                run: audit.run.clone(),
                href: address("runs", &audit.run),
                finished: audit.finished.into(),
                nodes: audit.nodes,
                controller: audit.controller.clone(),
                baselines: audit.baselines.clone(),
                playbooks: audit.playbooks.clone(),
                days: Some(now.duration_since(audit.finished))
                    .filter(|age| *age > OLD)
                    .map(|age| age.as_hours() / 24),
            }),
            old: members.iter().filter(|node| is_old(node)).count(),
            tiles: tiles(&members, &link),
            axes: axes
                .iter()
                .map(|one| Choice {
                    label: one.label(),
                    href: Link { by: Some(one.word()), ..link.clone() }.address(),
                    chosen: Some(one) == axis,
                })
                .collect(),
            groups: groups(nodes, &link),
            filtered,
            rows,
            rows_left_out,
            chart: trend(audits),
            open: Open::of(findings.iter().copied()),
            steps: steps(&shown, &findings, newest),
        }
    }
}

/// What the address of the page says.
#[derive(Clone, Debug)]
struct Link<'a> {
    by: Option<String>,
    group: Option<&'a str>,
    verdict: Option<Verdict>,
}

impl Link<'_> {
    fn address(&self) -> String {
        let group = self.group.map(str::to_owned);
        let verdict = self.verdict.map(|verdict| verdict.word().to_owned());
        let parts = [("by", self.by.clone()), ("group", group), ("verdict", verdict)];
        let parts: Vec<String> = parts
            .into_iter()
            .filter_map(|(name, value)| {
                // Why through an address: it is quoted the same way there.
                let quoted = address("", &value?);
                Some(format!("{name}={}", quoted.trim_start_matches('/')))
            })
            .collect();
        if parts.is_empty() { "/".to_owned() } else { format!("/?{}", parts.join("&")) }
    }
}

/// Returns a share in percent, with one decimal; never 100.0 where one is missing.
fn percent(part: usize, whole: usize) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "numbers of nodes")]
    let share = part as f64 * 100.0 / whole as f64;
    let share = if part < whole { share.min(99.9) } else { share };
    format!("{share:.1}")
}

const fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fail => "failed",
        Verdict::Unknown => "unknown",
        Verdict::Drift => "drift",
        Verdict::Warn => "warn",
        Verdict::Ok => "ok",
        Verdict::Na => "not applicable",
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of nodes, in a drawing")]
fn tiles(nodes: &[&NodeRow], link: &Link<'_>) -> Vec<Tile> {
    let mut from = 0.0;
    let whole = nodes.len().max(1) as f64;
    Verdict::WORST_FIRST
        .into_iter()
        .map(|verdict| {
            let count = nodes.iter().filter(|node| node.verdict == verdict).count();
            let share = count as f64 * 100.0 / whole;
            let chosen = link.verdict == Some(verdict);
            // A click on the chosen one takes the choice back.
            let href = Link { verdict: (!chosen).then_some(verdict), ..link.clone() }.address();
            let tile = Tile { verdict, label: label(verdict), count, from, share, href, chosen };
            from += share;
            tile
        })
        .filter(|tile| tile.count > 0 || tile.chosen || !matches!(tile.verdict, Verdict::Na | Verdict::Warn))
        .collect()
}

/// All groups, to choose the nodes of one.
fn groups(nodes: &[NodeRow], link: &Link<'_>) -> Vec<Choice> {
    let mut names: Vec<&str> = nodes.iter().flat_map(|node| &node.groups).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.sort_by(|a, b| natural(a, b));
    let choice = |name: &str| {
        let chosen = link.group == Some(name);
        let href = Link { by: link.by.clone(), group: (!chosen).then_some(name), verdict: link.verdict };
        Choice { label: name.to_owned(), href: href.address(), chosen }
    };
    names.into_iter().map(choice).collect()
}

/// Rows, the worst first.
fn rows(axis: &Axis, nodes: &[&NodeRow], is_old: &impl Fn(&NodeRow) -> bool) -> Vec<Row> {
    let mut members: BTreeMap<&str, Vec<&NodeRow>> = BTreeMap::new();
    let mut without: Vec<&NodeRow> = Vec::new();
    for &node in nodes {
        let names = axis.rows(node);
        if names.is_empty() {
            without.push(node);
        }
        for name in names {
            members.entry(name).or_default().push(node);
        }
    }
    let row = |(name, mut nodes): (String, Vec<&NodeRow>)| {
        nodes.sort_by(|a, b| natural(&a.node, &b.node));
        let count = |verdict: Verdict| nodes.iter().filter(|node| node.verdict == verdict).count();
        let bad = Verdict::WORST_FIRST.into_iter().filter(|verdict| verdict.is_not_ok());
        Row {
            name,
            count: nodes.len(),
            bad: bad.map(|verdict| (verdict, count(verdict))).filter(|(_, count)| *count > 0).collect(),
            cells: nodes
                .iter()
                .map(|node| Cell {
                    name: node.node.clone(),
                    href: address("nodes", &node.node),
                    verdict: node.verdict,
                    old: is_old(node),
                })
                .collect(),
        }
    };
    let named = members.into_iter().map(|(name, nodes)| (name.to_owned(), nodes));
    let rest = (!without.is_empty()).then(|| (format!("no {}", axis.label()), without));
    let mut rows: Vec<Row> = named.chain(rest).map(row).collect();
    let badness = |row: &Row| {
        let of =
            |wanted| row.bad.iter().find(|(verdict, _)| *verdict == wanted).map_or(0, |(_, count)| *count);
        [Verdict::Fail, Verdict::Unknown, Verdict::Drift, Verdict::Warn].map(of)
    };
    rows.sort_by(|a, b| badness(b).cmp(&badness(a)).then_with(|| natural(&a.name, &b.name)));
    rows
}

/// The share of compliant nodes over time. An audit of less than half of the fleet says nothing about the fleet.
fn trend(audits: &[AuditRow]) -> Option<Chart> {
    let most = audits.iter().map(|audit| audit.nodes).max()?;
    let share = |audit: &AuditRow| f64::from(audit.compliant) * 100.0 / f64::from(audit.nodes.max(1));
    let values: Vec<Value> = audits
        .iter()
        .rev()
        .filter(|audit| audit.nodes > 0)
        .map(|audit| Value {
            at: audit.finished,
            value: share(audit),
            title: format!(
                "{}: {} of {} compliant ({} %)",
                Moment::from(audit.finished).text,
                audit.compliant,
                audit.nodes,
                percent(audit.compliant as usize, audit.nodes as usize)
            ),
            href: Some(address("runs", &audit.run)),
            aside: audit.nodes < most.div_ceil(2),
        })
        .collect();
    let lowest = values.iter().map(|value| value.value).fold(100.0, f64::min);
    // In steps, so that the scale does not change with every audit.
    let low = (lowest / 10.0).floor() * 10.0;
    Chart::of(&values, low.min(90.0), 100.0, |value| format!("{value:.0} %"))
}

#[cfg(test)]
pub(crate) mod tests {
    use gpufleet_compliance::Action;

    use super::*;

    pub(crate) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    pub(crate) fn node(name: &str) -> NodeRow {
        NodeRow {
            node: name.to_owned(),
            groups: Vec::new(),
            hardware: Some("8x H100 80GB HBM3".to_owned()),
            driver: None,
            run: "01A".to_owned(),
            at: at(0),
            verdict: Verdict::Ok,
            since: at(-86_400),
            action: Action::None,
            compliant: true,
            score: Some(100),
            judged: 60,
            applicable: 60,
            findings: 0,
        }
    }

    pub(crate) fn audit(run: &str, second: i64, nodes: u32, compliant: u32) -> AuditRow {
        AuditRow {
            run: run.to_owned(),
            controller: "login1".to_owned(),
            started: at(second - 60),
            finished: at(second),
            playbooks: Vec::new(),
            baselines: vec!["training".to_owned()],
            exit_code: 3,
            nodes,
            compliant,
            verdicts: BTreeMap::new(),
        }
    }

    fn fleet() -> Vec<NodeRow> {
        let mut nodes: Vec<NodeRow> = (1..=12).map(|at| node(&format!("gpu{at}"))).collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            node.groups = vec![format!("rack{}", at / 4 + 1), "training".to_owned()];
        }
        nodes[10].verdict = Verdict::Fail;
        nodes[10].compliant = false;
        nodes[1].verdict = Verdict::Warn;
        nodes[9].groups.clear();
        nodes
    }

    fn names(view: &FleetView) -> Vec<(&str, Vec<&str>)> {
        view.rows
            .iter()
            .map(|row| (row.name.as_str(), row.cells.iter().map(|cell| cell.name.as_str()).collect()))
            .collect()
    }

    #[test]
    fn the_worst_rack_comes_first_and_nodes_keep_their_order() {
        let nodes = fleet();
        let view = FleetView::of(&[audit("01A", 0, 12, 11)], &nodes, &[], &Asked::default(), now());
        assert_eq!(
            names(&view),
            [
                ("rack3", vec!["gpu9", "gpu11", "gpu12"]),
                ("rack1", vec!["gpu1", "gpu2", "gpu3", "gpu4"]),
                ("no rack", vec!["gpu10"]),
                ("rack2", vec!["gpu5", "gpu6", "gpu7", "gpu8"]),
            ]
        );
        assert_eq!((view.nodes, view.compliant, view.percent.as_str()), (12, 11, "91.7"));
        let tiles: Vec<_> = view.tiles.iter().map(|tile| (tile.verdict.word(), tile.count)).collect();
        assert_eq!(tiles, [("fail", 1), ("unknown", 0), ("drift", 0), ("warn", 1), ("ok", 10)]);
        assert_eq!(view.tiles[0].href, "/?by=groups%3Arack&verdict=fail");
    }

    #[test]
    fn a_choice_of_group_and_verdict_narrows_everything() {
        let nodes = fleet();
        let asked = Asked {
            by: Some("group".to_owned()),
            group: Some("rack3".to_owned()),
            verdict: Some(Verdict::Fail),
        };
        let view = FleetView::of(&[], &nodes, &[], &asked, now());
        assert_eq!(names(&view), [("rack3", vec!["gpu11"]), ("training", vec!["gpu11"])]);
        assert_eq!((view.nodes, view.percent.as_str()), (3, "66.7"), "of the group, whatever the verdict");
        let fail = &view.tiles[0];
        assert!(fail.chosen && fail.href == "/?by=group&group=rack3", "{fail:?}");
        let rack3 = view.groups.iter().find(|group| group.label == "rack3").unwrap();
        assert_eq!(rack3.href, "/?by=group&verdict=fail", "a second click takes it back");
        let odd = Asked { by: Some("no such axis".to_owned()), ..Asked::default() };
        assert_eq!(FleetView::of(&[], &nodes, &[], &odd, now()).rows[0].name, "rack3");
    }

    fn now() -> Timestamp {
        at(120)
    }

    #[test]
    fn where_nobody_audits_any_more_everything_is_old() {
        let nodes = [node("gpu1")];
        let audits = [audit("01A", 0, 1, 1)];
        let view = FleetView::of(&audits, &nodes, &[], &Asked::default(), at(12 * 86_400));
        assert_eq!((view.old, view.newest.and_then(|newest| newest.days)), (1, Some(12)));
        let view = FleetView::of(&audits, &nodes, &[], &Asked::default(), now());
        assert_eq!((view.old, view.newest.and_then(|newest| newest.days)), (0, None));
    }

    #[test]
    fn a_reading_much_older_than_the_latest_audit_says_so() {
        let mut nodes = vec![node("fresh"), node("stale")];
        nodes[1].at = at(-3 * 86_400);
        let view = FleetView::of(&[audit("01A", 60, 1, 1)], &nodes, &[], &Asked::default(), now());
        let cells: Vec<_> = view.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.old).collect();
        assert_eq!((view.old, cells), (1, vec![false, true]));
    }

    #[test]
    fn nearly_all_is_not_all_and_nothing_is_no_share() {
        assert_eq!(percent(4999, 5000), "99.9");
        assert_eq!(percent(5000, 5000), "100.0");
        assert_eq!(percent(0, 0), "–");
        let view = FleetView::of(&[], &[], &[], &Asked::default(), now());
        assert!(view.rows.is_empty() && view.chart.is_none() && view.newest.is_none());
    }

    #[test]
    fn an_audit_of_a_few_nodes_is_no_part_of_the_trend() {
        let audits = [audit("01C", 300, 3, 0), audit("01B", 200, 100, 97), audit("01A", 100, 98, 98)];
        let chart = serde_json::to_value(trend(&audits).unwrap()).unwrap();
        let points = chart["points"].as_array().unwrap();
        assert_eq!(
            points.iter().map(|point| point["aside"] == true).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(chart["line"].as_str().unwrap().split(' ').count(), 2);
        assert_eq!(points[0]["href"], "/runs/01A");
    }
}
