//! The matrix of an audit: controls by groups of nodes, the worst first.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
};

use gpufleet_compliance::{Catalogue, Finding, NaReason};
use serde::Serialize;

use super::{
    super::{Control, NodeModel, RunModel, Verdict, health},
    causes::Cause,
    columns::{Group, Groups},
    fragment,
};
use crate::{
    event::{Phase, TaskReport, TaskStatus},
    names,
};

/// Rows that are shown at once; the others are folded.
const MOST_OPEN: usize = 15;

#[derive(Debug, Serialize)]
pub(super) struct Matrix {
    columns: Vec<Column>,
    sections: Vec<Section>,
    /// Rows after [`MOST_OPEN`].
    more: Vec<Section>,
    more_rows: usize,
    /// Controls that are ok on every node on which they were judged: id and title.
    calm: Vec<(String, String)>,
    /// Controls that were judged on no node, but apply.
    open: Vec<(String, String)>,
    /// Controls that apply to no node.
    idle: Vec<(String, String)>,
    /// A square for each group, where there are more groups than columns.
    strip: Option<Strip>,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    count: usize,
    link: String,
}

/// Controls of one group of the catalogue.
#[derive(Debug, Serialize)]
struct Section {
    title: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    id: String,
    title: String,
    severity: &'static str,
    worst: Verdict,
    /// Nodes on which it is not ok, and the address of their list.
    count: usize,
    link: String,
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Cell {
    verdict: Verdict,
    /// What is not ok, the worst first; empty if nothing is.
    parts: Vec<(Verdict, usize)>,
    waived: usize,
    ok: usize,
    link: String,
}

#[derive(Debug, Serialize)]
struct Strip {
    squares: Vec<Square>,
    width: usize,
    height: usize,
    /// In words, for who does not see it.
    label: String,
}

#[derive(Debug, Serialize)]
struct Square {
    x: usize,
    y: usize,
    verdict: Verdict,
    count: usize,
    name: String,
    /// As much of the name as fits, and what stands below it.
    short: String,
    text: String,
    title: String,
}

/// What one control is on the nodes of one column.
#[derive(Clone, Debug, Default)]
struct Tally {
    by_verdict: [usize; Verdict::WORST_FIRST.len()],
    waived: usize,
    ok: usize,
}

impl Tally {
    fn parts(&self) -> Vec<(Verdict, usize)> {
        let each = Verdict::WORST_FIRST.into_iter().zip(self.by_verdict);
        each.filter(|(verdict, count)| verdict.is_not_ok() && *count > 0).collect()
    }
}

/// What is known of a control where no finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Calm {
    #[default]
    DoesNotApply,
    NotJudged,
    Ok,
}

/// The controls of a node without a finding, with id and title.
fn calm_of(node: &NodeModel) -> Vec<(Cow<'_, str>, Cow<'_, str>, Calm)> {
    let of_check = |finding: &'_ Finding| match (finding.verdict, finding.na) {
        (Verdict::Ok, _) => Some(Calm::Ok),
        (Verdict::Na, Some(NaReason::NotYet)) => Some(Calm::NotJudged),
        _ if finding.is_of_silent_driver() => Some(Calm::NotJudged),
        (Verdict::Na, _) => Some(Calm::DoesNotApply),
        _ => None,
    };
    let checks = node.health.iter().flat_map(|health| &health.findings).filter_map(|finding| {
        let calm = of_check(finding)?;
        Some((Cow::Borrowed(&*finding.check.id), Cow::Borrowed(finding.check.title.as_str()), calm))
    });
    let own = |task: &&TaskReport| task.phase == Phase::Declared && task.kind != health::KIND;
    let tasks = node.tasks.iter().filter(own).map(|task| {
        let calm = match task.status {
            TaskStatus::Ok => Calm::Ok,
            TaskStatus::Skipped => Calm::DoesNotApply,
            _ => Calm::NotJudged,
        };
        (Cow::Owned(task.position.to_string()), Cow::Borrowed(task.task.as_str()), calm)
    });
    let itself = Control::node();
    // Only where nothing was found about it, which the caller knows.
    checks.chain(tasks).chain([(itself.id.into(), itself.title.into(), Calm::Ok)]).collect()
}

/// The rows while they are counted.
struct Counting<'a> {
    column_of: HashMap<usize, usize>,
    columns: usize,
    rows: Vec<(Row, Vec<Tally>)>,
    places: HashMap<&'a str, usize>,
    /// Row and node of each finding.
    found: HashSet<(usize, usize)>,
    /// Controls without a row, with their titles.
    calm: BTreeMap<String, (String, Calm)>,
}

impl<'a> Counting<'a> {
    /// Counts the worst of each control on each node: causes come worst first, and waived ones last.
    fn add_cause(&mut self, cause: &'a Cause) {
        let at = *self.places.entry(&cause.control).or_insert_with(|| {
            self.rows.push((Row::of(cause), vec![Tally::default(); self.columns]));
            self.rows.len() - 1
        });
        let Some((row, tallies)) = self.rows.get_mut(at) else { return };
        for node in cause.nodes.iter().filter(|node| self.found.insert((at, **node))) {
            let tally = self.column_of.get(node).and_then(|column| tallies.get_mut(*column));
            let Some(tally) = tally else { continue };
            if cause.waived {
                tally.waived += 1;
                continue;
            }
            row.count += 1;
            row.worst = row.worst.max(cause.verdict);
            let slot = Verdict::WORST_FIRST.iter().position(|known| *known == cause.verdict);
            if let Some(count) = slot.and_then(|slot| tally.by_verdict.get_mut(slot)) {
                *count += 1;
            }
        }
    }

    fn add_calm(&mut self, at: usize, node: &NodeModel) {
        let mut counted: HashSet<usize> = HashSet::new();
        for (id, title, calm) in calm_of(node) {
            let Some(row) = self.places.get(&*id).copied() else {
                match self.calm.get_mut(&*id) {
                    Some((_, known)) => *known = (*known).max(calm),
                    None => {
                        self.calm.insert(id.into_owned(), (title.into_owned(), calm));
                    }
                }
                continue;
            };
            if calm == Calm::Ok && !self.found.contains(&(row, at)) && counted.insert(row) {
                let tallies = self.rows.get_mut(row).map(|(_, tallies)| tallies);
                let column = self.column_of.get(&at);
                if let Some(tally) =
                    tallies.zip(column).and_then(|(tallies, column)| tallies.get_mut(*column))
                {
                    tally.ok += 1;
                }
            }
        }
    }

    fn in_calm(&self, wanted: Calm) -> Vec<(String, String)> {
        let these = self.calm.iter().filter(|(_, (_, calm))| *calm == wanted);
        these.map(|(id, (title, _))| (id.clone(), title.clone())).collect()
    }
}

impl Matrix {
    pub(super) fn of(model: &RunModel, causes: &[Cause], verdicts: &[Verdict], groups: &Groups) -> Self {
        let mut counting = Counting {
            column_of: groups.column_of(),
            columns: groups.columns.len(),
            rows: Vec::new(),
            places: HashMap::new(),
            found: HashSet::new(),
            calm: BTreeMap::new(),
        };
        for cause in causes {
            counting.add_cause(cause);
        }
        for (at, node) in model.nodes().iter().enumerate() {
            counting.add_calm(at, node);
        }
        let (calm, open, idle) = (
            counting.in_calm(Calm::Ok),
            counting.in_calm(Calm::NotJudged),
            counting.in_calm(Calm::DoesNotApply),
        );
        let rows = counting.rows.into_iter().map(|(row, tallies)| row.with_cells(&tallies, groups));
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_by_key(|row| Reverse((row.worst, row.count)));
        let rest = rows.split_off(rows.len().min(MOST_OPEN));
        let column = |group: &Group| Column {
            name: group.name.clone(),
            count: group.nodes.len(),
            link: fragment(&[("group", &group.name)]),
        };
        Self {
            columns: groups.columns.iter().map(column).collect(),
            more_rows: rest.len(),
            sections: sections(rows),
            more: sections(rest),
            calm,
            open,
            idle,
            strip: Strip::of(groups, verdicts),
        }
    }

    /// Returns the number of controls, and of those that are ok wherever they were judged.
    pub(super) fn counts(&self) -> (usize, usize) {
        let rows = |sections: &[Section]| sections.iter().map(|section| section.rows.len()).sum::<usize>();
        let calm = self.calm.len();
        (rows(&self.sections) + rows(&self.more) + calm + self.open.len(), calm)
    }
}

/// Puts rows below the titles of their groups, in the order of each group's first row.
fn sections(rows: Vec<Row>) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for row in rows {
        let title = section_of(&row.id);
        match all.iter_mut().find(|section| section.title == title) {
            Some(section) => section.rows.push(row),
            None => all.push(Section { title: title.to_owned(), rows: vec![row] }),
        }
    }
    all
}

fn section_of(id: &str) -> &'static str {
    let group = || {
        let (word, _) = id.split_once('.')?;
        Catalogue::groups().find(|(known, _)| *known == word).map(|(_, title)| title)
    };
    match id {
        _ if id == Control::node().id => "Nodes",
        _ if id.contains(':') => "Tasks of playbooks",
        _ => group().unwrap_or("Other checks"),
    }
}

impl Row {
    fn of(cause: &Cause) -> Self {
        Self {
            id: cause.control.clone(),
            title: cause.title.clone(),
            severity: cause.severity,
            worst: Verdict::Na,
            count: 0,
            link: fragment(&[("control", &cause.control)]),
            cells: Vec::new(),
        }
    }

    fn with_cells(mut self, tallies: &[Tally], groups: &Groups) -> Self {
        let alone = groups.columns.len() == 1;
        let cells = tallies.iter().zip(&groups.columns).map(|(tally, group)| {
            let parts = tally.parts();
            let calm = if tally.ok > 0 { Verdict::Ok } else { Verdict::Na };
            Cell {
                verdict: parts.first().map_or(calm, |(verdict, _)| *verdict),
                parts,
                waived: tally.waived,
                ok: tally.ok,
                link: match alone {
                    true => self.link.clone(),
                    false => fragment(&[("control", &self.id), ("group", &group.name)]),
                },
            }
        });
        self.cells = cells.collect();
        self
    }
}

impl Strip {
    const ACROSS: usize = 12;
    const STEP: (usize, usize) = (98, 40);
    /// Characters of a name that fit.
    const MOST_NAME: usize = 12;

    /// Draws each group by its worst node; `None` where the columns show all of them.
    fn of(groups: &Groups, verdicts: &[Verdict]) -> Option<Self> {
        if groups.all.len() <= groups.columns.len() {
            return None;
        }
        let mut bad_groups = 0;
        let squares: Vec<Square> = groups
            .all
            .iter()
            .enumerate()
            .map(|(at, group)| {
                let of = |node: &usize| verdicts.get(*node).copied();
                let bad = group.nodes.iter().filter_map(of).filter(|verdict| verdict.is_not_ok());
                let (count, total) = (bad.clone().count(), group.nodes.len());
                let worst = bad.max().unwrap_or(Verdict::Ok);
                bad_groups += usize::from(count > 0);
                Square {
                    x: at % Self::ACROSS * Self::STEP.0,
                    y: at / Self::ACROSS * Self::STEP.1,
                    verdict: worst,
                    count,
                    name: group.name.clone(),
                    short: match group.name.char_indices().nth(Self::MOST_NAME) {
                        Some((end, _)) => format!("{}…", group.name.get(..end).unwrap_or_default()),
                        None => group.name.clone(),
                    },
                    text: if count == 0 { "ok".to_owned() } else { format!("{count} of {total}") },
                    title: match count {
                        0 => format!("{}: {}, all ok", group.name, names::count(total, "node")),
                        _ => format!("{}: {count} of {total} not ok, the worst is {worst}", group.name),
                    },
                }
            })
            .collect();
        Some(Self {
            width: squares.len().min(Self::ACROSS) * Self::STEP.0,
            height: squares.len().div_ceil(Self::ACROSS) * Self::STEP.1,
            label: format!("{} groups of nodes; {bad_groups} have nodes that are not ok", squares.len()),
            squares,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::causes;
    use super::*;
    use crate::report::sample_audit;

    #[test]
    fn a_row_counts_the_nodes_on_which_its_control_is_not_ok() {
        let model = RunModel::of(&sample_audit::checked(200, 2));
        let verb = model.verb();
        let mut expected: BTreeMap<String, HashSet<&str>> = BTreeMap::new();
        for node in model.nodes() {
            for found in node.findings(verb).into_iter().filter(|found| found.waived.is_none()) {
                expected.entry(found.control.id).or_default().insert(&node.name);
            }
        }
        let verdicts: Vec<Verdict> = model.nodes().iter().map(|node| node.verdict(verb)).collect();
        let groups = Groups::of(&model);
        let names: Vec<&str> = groups.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["debug", "inference", "training"]);
        let matrix = Matrix::of(&model, &causes::of(&model, verb), &verdicts, &groups);
        let sections = matrix.sections.iter().chain(&matrix.more);
        let rows: Vec<&Row> = sections.flat_map(|section| &section.rows).collect();
        assert!(rows.len() > 15, "{rows:?}");
        for row in &rows {
            let wanted = expected.remove(&row.id).map_or(0, |nodes| nodes.len());
            let counted: usize = row.cells.iter().flat_map(|cell| &cell.parts).map(|(_, count)| count).sum();
            assert_eq!((row.count, counted), (wanted, wanted), "{row:?}");
            let others: usize = row.cells.iter().map(|cell| cell.ok + cell.waived).sum();
            assert!(counted + others <= 200, "{row:?}");
        }
        assert!(expected.is_empty(), "{expected:?}");
        let calm: HashSet<&str> = matrix.calm.iter().map(|(id, _)| id.as_str()).collect();
        assert!(calm.len() > 60 && rows.iter().all(|row| !calm.contains(row.id.as_str())));
        let worst: Vec<Verdict> = matrix.sections.iter().map(|section| section.rows[0].worst).collect();
        assert!(worst.is_sorted_by(|one, other| one >= other), "{worst:?}");
    }

    #[test]
    fn what_was_not_read_is_not_ok() {
        let model = RunModel::of(&sample_audit::checked(56, 1));
        let groups = Groups::of(&model);
        let causes = causes::of(&model, model.verb());
        let matrix = Matrix::of(&model, &causes, &[], &groups);
        let sections = matrix.sections.iter().chain(&matrix.more);
        let rows: Vec<&Row> = sections.flat_map(|section| &section.rows).collect();
        let row = |id: &str| *rows.iter().find(|row| row.id == id).unwrap();
        // One of the 56 nodes does not answer.
        let ok = |row: &Row| row.cells.iter().map(|cell| cell.ok).sum::<usize>();
        assert_eq!((row("node").count, ok(row("node"))), (1, 55));
        assert_eq!(row("os.swap").count + ok(row("os.swap")), 55);
    }
}
