//! The screen of `--watch`: all nodes, what was last heard of each, and what a person looks for.
//!
//! Pure: readings, keys and the time come from outside. Invariant: what is older than it should be is dimmed, has its
//! age beside it, and counts as unknown.

mod draw;

use std::{sync::Arc, time::Duration};

use gpufleet_protocol::{signal::Signal, status::GpuStatus};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::{
    column::{Cell, Chosen, Column},
    line::Line,
    row::{Heard, NodeReading, Row, line, rows},
    state::State,
    table::{Measure, measure, widen},
    totals::Totals,
};

/// A reading is old after this many intervals and [`GRACE`].
const INTERVALS: u32 = 2;
const GRACE: Duration = Duration::from_secs(5);
/// Longest filter, in characters.
const FILTER: usize = 60;

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    Stay,
    Leave,
}

/// What a person chose before the screen began.
pub struct Wanted<R: Line> {
    /// Columns; the usual ones unless some are chosen.
    pub columns: Option<Chosen<R>>,
    pub wide: bool,
    pub sort_by: Option<&'static Column<R>>,
    pub reverse: bool,
    pub interval: Duration,
    pub color: bool,
}

/// Which lines are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Only {
    #[default]
    All,
    Free,
    Held,
}

/// What the keyboard is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Table,
    Filter,
    Help,
}

/// A line with all that is computed of it when a node is heard.
struct Entry<R> {
    line: R,
    /// One for each column that there is.
    cells: Vec<Cell>,
    /// What a filter looks in.
    words: String,
}

struct Node<R> {
    reading: NodeReading,
    /// When its reading came.
    heard: Option<Duration>,
    /// Why the latest attempt failed.
    trouble: Option<String>,
    old: bool,
    rows: Vec<Row>,
    entries: Vec<Entry<R>>,
}

/// The state of the screen.
pub struct Screen<R: Line> {
    wanted: Wanted<R>,
    nodes: Vec<Node<R>>,
    sort: Option<&'static Column<R>>,
    reverse: bool,
    filter: String,
    only: Only,
    mode: Mode,
    /// First line that is shown.
    top: usize,
    /// Lines of the table on the screen, as last drawn.
    page: usize,
    view: View,
    dirty: bool,
}

/// What is computed of all lines, when something changed.
#[derive(Default)]
struct View {
    /// Which columns are shown, as places in [`Line::COLUMNS`].
    columns: Vec<usize>,
    measures: Vec<Measure>,
    /// Node and line.
    order: Vec<(usize, usize)>,
    totals: Totals,
    lines: usize,
}

impl<R: Line> Screen<R> {
    pub fn new(wanted: Wanted<R>, nodes: impl IntoIterator<Item = (Arc<str>, Arc<[String]>)>) -> Self {
        let node = |(node, groups)| NodeReading { node, groups, heard: Heard::Nothing };
        let mut screen = Self {
            sort: wanted.sort_by,
            reverse: wanted.reverse,
            wanted,
            nodes: Vec::new(),
            filter: String::new(),
            only: Only::All,
            mode: Mode::Table,
            top: 0,
            page: 1,
            view: View::default(),
            dirty: true,
        };
        screen.nodes = nodes.into_iter().map(|of| Node::new(node(of))).collect();
        screen
    }

    /// Takes what was heard of the node at this place, at this time since the screen began.
    pub fn hear(&mut self, at: usize, now: Duration, heard: Heard) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        match heard {
            Heard::Failed(why) => node.trouble = Some(line(&why)),
            Heard::Status(status) if node.lacks_what_it_had(&status) => {
                let now = NodeReading { heard: Heard::Status(status), ..node.reading.clone() };
                node.trouble = rows(&now).first().map(|row| row.why.clone());
            }
            heard => {
                node.reading.heard = heard;
                node.heard = Some(now);
                node.trouble = None;
            }
        }
        node.old = node.trouble.is_some();
        node.make();
        self.dirty = true;
    }

    /// Marks readings that became old.
    pub fn tick(&mut self, now: Duration) {
        let limit = self.wanted.interval * INTERVALS + GRACE;
        for node in &mut self.nodes {
            let old =
                node.trouble.is_some() || node.heard.is_some_and(|heard| now.saturating_sub(heard) > limit);
            if old != node.old {
                node.old = old;
                node.make();
                self.dirty = true;
            }
        }
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Do {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Do::Leave,
                _ => Do::Stay,
            };
        }
        match self.mode {
            Mode::Filter => self.filter_key(key.code),
            Mode::Help => self.mode = Mode::Table,
            Mode::Table => return self.table_key(key.code),
        }
        Do::Stay
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => {
                self.filter.push(c)
            }
            _ => return,
        }
        (self.top, self.dirty) = (0, true);
    }

    fn table_key(&mut self, code: KeyCode) -> Do {
        match code {
            KeyCode::Char('q') => return Do::Leave,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('S') => (self.reverse, self.dirty) = (!self.reverse, true),
            KeyCode::Char('f') => self.show_only(Only::Free),
            KeyCode::Char('b') => self.show_only(Only::Held),
            KeyCode::Esc => {
                self.filter.clear();
                (self.only, self.top, self.dirty) = (Only::All, 0, true);
            }
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.top += 1,
            KeyCode::PageUp => self.top = self.top.saturating_sub(self.page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top += self.page,
            KeyCode::Home | KeyCode::Char('g') => self.top = 0,
            // Drawing bounds it.
            KeyCode::End | KeyCode::Char('G') => self.top = usize::MAX / 2,
            _ => {}
        }
        Do::Stay
    }

    fn show_only(&mut self, only: Only) {
        self.only = if self.only == only { Only::All } else { only };
        (self.top, self.dirty) = (0, true);
    }

    /// Sorts by the next column that is shown; after the last one in the order of the inventory.
    fn sort_by_next(&mut self) {
        let shown = || self.view.columns.iter().filter_map(|at| R::COLUMNS.get(*at));
        let next = match self.sort {
            None => shown().next(),
            Some(now) => shown().skip_while(|column| column.name != now.name).nth(1),
        };
        (self.sort, self.top, self.dirty) = (next, 0, true);
    }

    /// Computes what is shown, if anything changed.
    fn arrange(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let entries = || self.nodes.iter().flat_map(|node| &node.entries);
        let columns: Chosen<R> = match &self.wanted.columns {
            Some(columns) => columns.clone(),
            None => {
                let lines: Vec<&R> = entries().map(|entry| &entry.line).collect();
                Column::usual(R::COLUMNS, &lines, self.wanted.wide)
            }
        };
        let place =
            |column: &&'static Column<R>| R::COLUMNS.iter().position(|known| known.name == column.name);
        let shown: Vec<usize> = columns.iter().filter_map(place).collect();
        let words: Vec<String> = self.filter.to_lowercase().split_whitespace().map(str::to_owned).collect();
        let is_wanted = |entry: &Entry<R>| {
            let kept = match self.only {
                Only::All => true,
                Only::Free => entry.line.has_room(),
                Only::Held => entry.line.is_held(),
            };
            kept && words.iter().all(|word| entry.words.contains(word))
        };
        let mut order: Vec<(usize, usize)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let wanted = node.entries.iter().enumerate().filter(|(_, entry)| is_wanted(entry));
            order.extend(wanted.map(|(line, _)| (at, line)));
        }
        if let Some(column) = self.sort {
            let key = |place: &(usize, usize)| self.entry(*place).map(|entry| (column.key)(&entry.line));
            let mut keyed: Vec<_> =
                order.into_iter().filter_map(|place| Some((key(&place)?, place))).collect();
            keyed.sort_by(|(one, _), (other, _)| one.order(other, self.reverse));
            order = keyed.into_iter().map(|(_, place)| place).collect();
        }
        // Of all lines, so that columns keep their widths while somebody scrolls and filters.
        let mut measures: Vec<Measure> = R::COLUMNS.iter().map(measure).collect();
        for entry in entries() {
            widen(&mut measures, &entry.cells);
        }
        let mut measures: Vec<Option<Measure>> = measures.into_iter().map(Some).collect();
        let measures = shown.iter().filter_map(|at| measures.get_mut(*at)?.take()).collect();
        let totals = Totals::of(self.nodes.iter().flat_map(|node| &node.rows), self.nodes.len());
        let lines = entries().count();
        self.view = View { columns: shown, measures, order, totals, lines };
    }

    fn entry(&self, (node, line): (usize, usize)) -> Option<&Entry<R>> {
        self.nodes.get(node)?.entries.get(line)
    }
}

impl<R: Line> Node<R> {
    fn new(reading: NodeReading) -> Self {
        let mut node =
            Self { reading, heard: None, trouble: None, old: false, rows: Vec::new(), entries: Vec::new() };
        node.make();
        node
    }

    /// Whether the driver does not tell any more of the GPUs that it told of.
    fn lacks_what_it_had(&self, status: &GpuStatus) -> bool {
        let had = matches!(&self.reading.heard, Heard::Status(before) if !before.gpus.is_empty());
        had && status.gpus.is_empty() && !matches!(status.node.get("nvml_count"), Some(Signal::Known(_)))
    }

    /// Makes the lines from the last reading.
    fn make(&mut self) {
        let mut rows = match (&self.reading.heard, &self.trouble) {
            // Nothing was ever read.
            (Heard::Nothing, Some(why)) => {
                rows(&NodeReading { heard: Heard::Failed(why.clone()), ..self.reading.clone() })
            }
            _ => rows(&self.reading),
        };
        if self.old {
            for row in &mut rows {
                row.state = State::Unknown;
                row.why = self.trouble.clone().unwrap_or_else(|| "silent".to_owned());
            }
        }
        self.entries = R::of(&rows).into_iter().map(|line| Entry::new(line, &self.reading.groups)).collect();
        self.rows = rows;
    }
}

impl<R: Line> Entry<R> {
    fn new(line: R, groups: &[String]) -> Self {
        let cells: Vec<Cell> = R::COLUMNS.iter().map(|column| (column.cell)(&line)).collect();
        let mut words = String::new();
        for text in cells.iter().map(|cell| &cell.text).chain(groups) {
            words.push_str(&text.to_lowercase());
            words.push(' ');
        }
        Self { line, cells, words }
    }
}
