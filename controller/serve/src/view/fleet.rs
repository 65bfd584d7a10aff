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

/// Nodes that a page shows one by one; of more it shows racks, each with a link to its nodes.
const ONE_BY_ONE: usize = 128;
/// Cells that a page has at most: a node stands in each of its groups.
const CELLS: usize = 2_000;
/// Trials that a page names.
const TRIALS: usize = 3;
/// Racks that a page has at most.
const CARDS: usize = 2_000;
/// Nodes of one rack that are drawn; of more the shares are.
const DRAWN: usize = 144;
/// Nodes side by side in the drawing of a rack.
const ABREAST: usize = 16;
/// How old a node's reading is before its cell says so.
const OLD: SignedDuration = SignedDuration::from_hours(48);

/// The order of racks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// By the share of nodes that are not well, the worst first.
    #[default]
    Worst,
    Name,
    /// By the number of nodes, the largest first.
    Size,
}

impl Order {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Worst, "worst", "worst first"),
        (Self::Name, "name", "by name"),
        (Self::Size, "size", "largest first"),
    ];

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == word).map(|(order, ..)| *order)
    }

    fn word(self) -> Option<&'static str> {
        Self::ALL.iter().find(|(order, ..)| *order == self).map(|(_, word, _)| *word)
    }
}

/// What a reader chose; the address of the page says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The word of an axis.
    pub by: Option<String>,
    /// Only nodes of this group.
    pub group: Option<String>,
    /// Only nodes of this row of the axis; empty for those without one.
    pub row: Option<String>,
    /// Only nodes with this verdict.
    pub verdict: Option<Verdict>,
    /// Only nodes with this in their name.
    pub find: Option<String>,
    pub order: Order,
}

impl Asked {
    fn address(&self) -> String {
        let verdict = self.verdict.map(|verdict| verdict.word().to_owned());
        let order = self.order.word().filter(|_| self.order != Order::default()).map(str::to_owned);
        let (by, group, row) = (self.by.clone(), self.group.clone(), self.row.clone());
        let find = self.find.clone();
        let parts = [
            ("by", by),
            ("group", group),
            ("row", row),
            ("verdict", verdict),
            ("find", find),
            ("sort", order),
        ];
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

    const fn narrows(&self) -> bool {
        self.group.is_some() || self.row.is_some() || self.verdict.is_some() || self.find.is_some()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct FleetView {
    nodes: usize,
    compliant: usize,
    /// The share of compliant nodes, such as `97.5`.
    percent: String,
    newest: Option<Newest>,
    /// Audits that nothing here is of.
    trials: Vec<Trial>,
    /// Nodes that were not read for long.
    old: usize,
    tiles: Vec<Tile>,
    axes: Vec<Choice>,
    orders: Vec<Choice>,
    groups: Vec<Choice>,
    /// What narrows the page, each with the page without it.
    narrowed: Vec<Choice>,
    /// Hidden fields of the search, so that it keeps the other choices.
    kept: Vec<(&'static str, String)>,
    find: String,
    filtered: bool,
    /// Nodes one by one, where they are few.
    rows: Vec<Row>,
    /// Racks, where nodes are many.
    cards: Vec<Card>,
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

/// An audit that stands alone, with what it came to.
#[derive(Debug, Serialize)]
struct Trial {
    run: String,
    names: String,
    href: String,
    finished: Moment,
    nodes: u32,
    compliant: u32,
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

/// A rack or group as a whole.
#[derive(Debug, Serialize)]
struct Card {
    name: String,
    href: String,
    count: usize,
    compliant: usize,
    /// How much of it is not compliant: 0 for nothing, 4 for half and more.
    heat: u8,
    /// Verdicts that are not ok, the worst first, and how many nodes have them.
    bad: Vec<(Verdict, usize)>,
    /// The bar of its verdicts: start and length of each, in percent.
    shares: Vec<(Verdict, f64, f64)>,
    /// The outlines of its nodes, by verdict, as paths; none where they are many.
    drawn: Vec<(Verdict, String)>,
    /// Lines of the drawing.
    lines: usize,
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
        let axes = Axis::of(nodes);
        let axis = asked.by.as_ref().and_then(|by| axes.iter().find(|axis| axis.word() == *by));
        let axis = axis.or_else(|| axes.first());
        let find = asked.find.as_ref().map(|find| find.to_lowercase());
        let is_member = |node: &&NodeRow| {
            let in_row = |row: &String| {
                axis.map(|axis| axis.rows(node)).is_some_and(|rows| match row.as_str() {
                    "" => rows.is_empty(),
                    row => rows.contains(&row),
                })
            };
            asked.group.as_ref().is_none_or(|group| node.groups.contains(group))
                && asked.row.as_ref().is_none_or(in_row)
                && find.as_ref().is_none_or(|find| node.node.to_lowercase().contains(find))
        };
        let members: Vec<&NodeRow> = nodes.iter().filter(is_member).collect();
        let shown: Vec<&NodeRow> = members
            .iter()
            .copied()
            .filter(|node| asked.verdict.is_none_or(|one| node.verdict == one))
            .collect();
        let names: BTreeSet<&str> = shown.iter().map(|node| node.node.as_str()).collect();
        let findings: Vec<&OpenFinding> =
            findings.iter().filter(|finding| names.contains(finding.node.as_str())).collect();
        let link = Asked { by: axis.map(Axis::word), ..asked.clone() };
        // Against the clock too: where nobody audits any more, all readings are as old as the latest audit.
        let latest = newest.map_or(now, |one| one.finished.max(now));
        let is_old = |node: &NodeRow| latest.duration_since(node.at) > OLD;
        let parts = axis.map(|axis| parts(axis, &shown, asked.order)).unwrap_or_default();
        let all = parts.len();
        let (mut rows, mut cards) = (Vec::new(), Vec::new());
        if shown.len() <= ONE_BY_ONE {
            let mut cells = 0;
            for part in parts {
                cells += part.nodes.len();
                if cells > CELLS {
                    break;
                }
                rows.push(part.row(axis, &is_old));
            }
        } else {
            cards = parts.into_iter().take(CARDS).map(|part| part.card(axis, &link)).collect();
        }
        let rows_left_out = all - rows.len() - cards.len();
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
            trials: Vec::new(),
            old: members.iter().filter(|node| is_old(node)).count(),
            tiles: tiles(&members, &link),
            orders: Order::ALL
                .iter()
                .map(|(order, _, label)| Choice {
                    label: (*label).to_owned(),
                    href: Asked { order: *order, ..link.clone() }.address(),
                    chosen: *order == asked.order,
                })
                .collect(),
            narrowed: narrowed(&link),
            kept: kept(&link),
            find: asked.find.clone().unwrap_or_default(),
            axes: axes
                .iter()
                .map(|one| Choice {
                    label: one.label(),
                    href: Asked { by: Some(one.word()), row: None, ..link.clone() }.address(),
                    chosen: Some(one) == axis,
                })
                .collect(),
            groups: groups(nodes, &link),
            filtered: asked.narrows(),
            rows,
            cards,
            rows_left_out,
            chart: trend(audits),
            open: Open::of(findings.iter().copied()),
            steps: steps(&shown, &findings, newest),
        }
    }
}

impl FleetView {
    /// Names audits that the page is not of, the newest first.
    #[must_use]
    pub(crate) fn beside(mut self, trials: &[AuditRow]) -> Self {
        let named = |audit: &AuditRow| {
            let names = audit.playbooks.iter().chain(&audit.baselines);
            names.cloned().collect::<Vec<_>>().join(", ")
        };
        self.trials = trials
            .iter()
            .take(TRIALS)
            .map(|audit| Trial {
                run: audit.run.clone(),
                names: named(audit),
                href: address("runs", &audit.run),
                finished: audit.finished.into(),
                nodes: audit.nodes,
                compliant: audit.compliant,
            })
            .collect();
        self
    }
}

/// What narrows the page, each with the address without it.
fn narrowed(link: &Asked) -> Vec<Choice> {
    let without = |label: String, other: Asked| Choice { label, href: other.address(), chosen: true };
    let mut all = Vec::new();
    if let Some(group) = &link.group {
        all.push(without(format!("group {group}"), Asked { group: None, ..link.clone() }));
    }
    if let Some(row) = &link.row {
        let label = if row.is_empty() { "the others".to_owned() } else { row.clone() };
        all.push(without(label, Asked { row: None, ..link.clone() }));
    }
    if let Some(verdict) = link.verdict {
        all.push(without(label(verdict).to_owned(), Asked { verdict: None, ..link.clone() }));
    }
    if let Some(find) = &link.find {
        all.push(without(format!("names with {find}"), Asked { find: None, ..link.clone() }));
    }
    all
}

fn kept(link: &Asked) -> Vec<(&'static str, String)> {
    let verdict = link.verdict.map(|verdict| verdict.word().to_owned());
    let all = [
        ("by", link.by.clone()),
        ("group", link.group.clone()),
        ("row", link.row.clone()),
        ("verdict", verdict),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
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
fn tiles(nodes: &[&NodeRow], link: &Asked) -> Vec<Tile> {
    let mut from = 0.0;
    let whole = nodes.len().max(1) as f64;
    Verdict::WORST_FIRST
        .into_iter()
        .map(|verdict| {
            let count = nodes.iter().filter(|node| node.verdict == verdict).count();
            let share = count as f64 * 100.0 / whole;
            let chosen = link.verdict == Some(verdict);
            // A click on the chosen one takes the choice back.
            let href = Asked { verdict: (!chosen).then_some(verdict), ..link.clone() }.address();
            let tile = Tile { verdict, label: label(verdict), count, from, share, href, chosen };
            from += share;
            tile
        })
        .filter(|tile| tile.count > 0 || tile.chosen || !matches!(tile.verdict, Verdict::Na | Verdict::Warn))
        .collect()
}

/// All groups, to choose the nodes of one.
fn groups(nodes: &[NodeRow], link: &Asked) -> Vec<Choice> {
    let mut names: Vec<&str> = nodes.iter().flat_map(|node| &node.groups).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.sort_by(|a, b| natural(a, b));
    let choice = |name: &str| {
        let chosen = link.group.as_deref() == Some(name);
        let href = Asked { group: (!chosen).then(|| name.to_owned()), ..link.clone() };
        Choice { label: name.to_owned(), href: href.address(), chosen }
    };
    names.into_iter().map(choice).collect()
}

/// The nodes of one row, in the order of their names.
struct Part<'a> {
    /// Empty for the nodes without a row.
    name: &'a str,
    nodes: Vec<&'a NodeRow>,
}

impl Part<'_> {
    fn label(&self, axis: Option<&Axis>) -> String {
        match self.name {
            "" => format!("no {}", axis.map(Axis::label).unwrap_or_default()),
            name => name.to_owned(),
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.nodes.iter().filter(|node| node.verdict == verdict).count()
    }

    fn bad(&self) -> Vec<(Verdict, usize)> {
        let bad = Verdict::WORST_FIRST.into_iter().filter(|verdict| verdict.is_not_ok());
        bad.map(|verdict| (verdict, self.count(verdict))).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns how much of it is how bad, the worst verdict first, in parts of a million.
    fn badness(&self) -> [usize; 4] {
        [Verdict::Fail, Verdict::Unknown, Verdict::Drift, Verdict::Warn]
            .map(|verdict| self.count(verdict) * 1_000_000 / self.nodes.len().max(1))
    }

    fn row(&self, axis: Option<&Axis>, is_old: &impl Fn(&NodeRow) -> bool) -> Row {
        let cell = |node: &&NodeRow| Cell {
            name: node.node.clone(),
            href: address("nodes", &node.node),
            verdict: node.verdict,
            old: is_old(node),
        };
        Row {
            name: self.label(axis),
            count: self.nodes.len(),
            bad: self.bad(),
            cells: self.nodes.iter().map(cell).collect(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of nodes, in a drawing")]
    fn card(&self, axis: Option<&Axis>, link: &Asked) -> Card {
        let count = self.nodes.len();
        let compliant = self.nodes.iter().filter(|node| node.compliant).count();
        let mut from = 0.0;
        let mut shares = Vec::new();
        for verdict in Verdict::WORST_FIRST {
            let share = self.count(verdict) as f64 * 100.0 / count.max(1) as f64;
            if share > 0.0 {
                shares.push((verdict, from, share));
                from += share;
            }
        }
        let mut drawn: BTreeMap<Verdict, String> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate().take(if count <= DRAWN { count } else { 0 }) {
            let (x, y) = (at % ABREAST * 8, at / ABREAST * 8);
            drawn.entry(node.verdict).or_default().push_str(&format!("M{x} {y}h7v7h-7z"));
        }
        Card {
            name: self.label(axis),
            href: Asked { row: Some(self.name.to_owned()), ..link.clone() }.address(),
            count,
            compliant,
            heat: heat(count - compliant, count),
            bad: self.bad(),
            shares,
            lines: if drawn.is_empty() { 0 } else { count.div_ceil(ABREAST) },
            drawn: drawn.into_iter().collect(),
        }
    }
}

/// The colour of a share: 0 for nothing, then up to a tenth, a quarter, a half, and more.
const fn heat(part: usize, whole: usize) -> u8 {
    match part {
        0 => 0,
        part if part * 10 <= whole => 1,
        part if part * 4 <= whole => 2,
        part if part * 2 <= whole => 3,
        _ => 4,
    }
}

fn parts<'a>(axis: &Axis, nodes: &[&'a NodeRow], order: Order) -> Vec<Part<'a>> {
    let mut members: BTreeMap<&str, Vec<&NodeRow>> = BTreeMap::new();
    for &node in nodes {
        let names = axis.rows(node);
        for name in if names.is_empty() { vec![""] } else { names } {
            members.entry(name).or_default().push(node);
        }
    }
    let mut parts: Vec<Part<'_>> = members.into_iter().map(|(name, nodes)| Part { name, nodes }).collect();
    for part in &mut parts {
        part.nodes.sort_by(|a, b| natural(&a.node, &b.node));
    }
    parts.sort_by(|a, b| {
        let first = match order {
            Order::Worst => b.badness().cmp(&a.badness()),
            Order::Size => b.nodes.len().cmp(&a.nodes.len()),
            Order::Name => std::cmp::Ordering::Equal,
        };
        // Those without a row come last.
        first.then_with(|| a.name.is_empty().cmp(&b.name.is_empty())).then_with(|| natural(a.name, b.name))
    });
    parts
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
            aside: audit.nodes < most.div_ceil(2),
        })
        .collect();
    let lowest = values.iter().map(|value| value.value).fold(100.0, f64::min);
    // In steps, so that the scale does not change with every audit.
    let low = (lowest / 10.0).floor() * 10.0;
    Chart::of(&values, low.min(90.0), 100.0, "compliant", |value| format!("{value:.0} %"))
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
pub(crate) mod tests;
