//! Rows as text of a given width.
//!
//! Invariant: every line has the same width, and none is wider than asked for, unless the columns that stay are.

use std::collections::BTreeMap;

use gpufleet_language::names::{fold_names, fold_numbers};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    column::{Cell, Column, Tone},
    row::Row,
    state::State,
};

/// Columns of the screen between two columns of the table.
const GAP: usize = 2;

/// How wide a column of the table is where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which one, in the order of the chosen columns.
    pub column: usize,
    pub width: usize,
}

/// The columns of a table: what decides on their widths.
pub struct Measure {
    pub drop: u8,
    pub least: usize,
    pub most: usize,
    /// Widest cell or title.
    pub natural: usize,
}

/// Returns the columns that have room, and how wide they are.
///
/// Columns are narrowed to the least that they bear, then left out, those first that matter least.
pub fn fit(columns: &[Measure], room: usize) -> Vec<Place> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    loop {
        let of = |place: &usize| columns.get(*place);
        let sum = |width: fn(&Measure) -> usize| -> usize {
            let widths: usize = kept.iter().filter_map(of).map(width).sum();
            widths + kept.len().saturating_sub(1) * GAP
        };
        let wanted = |column: &Measure| column.natural.min(column.most.max(column.least));
        let least = |column: &Measure| column.natural.min(column.least);
        let last = kept.iter().filter_map(of).all(|column| column.drop == 0);
        if sum(least) <= room || last {
            let mut over = sum(wanted).saturating_sub(room);
            let mut places: Vec<Place> = kept
                .iter()
                .filter_map(|column| Some(Place { column: *column, width: wanted(of(column)?) }))
                .collect();
            // The widest is narrowed first, so that none is narrowed more than it must be.
            while over > 0 {
                let narrowed = places
                    .iter_mut()
                    .filter(|place| of(&place.column).is_some_and(|column| place.width > least(column)))
                    .max_by_key(|place| place.width);
                let Some(place) = narrowed else { break };
                place.width -= 1;
                over -= 1;
            }
            return places;
        }
        let first =
            kept.iter().enumerate().max_by_key(|(_, place)| of(place).map_or(0, |column| column.drop));
        let Some((at, _)) = first else { return Vec::new() };
        kept.remove(at);
    }
}

/// Cuts or pads a text to exactly `width` columns of the screen.
pub fn padded(text: &str, width: usize, right: bool) -> String {
    let mut out = clipped(text, width);
    let missing = width - out.width();
    match right {
        true => out.insert_str(0, &" ".repeat(missing)),
        false => out.push_str(&" ".repeat(missing)),
    }
    out
}

fn clipped(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide > width {
            break;
        }
        out.push(c);
        used += wide;
    }
    if width > 0 {
        out.push('…');
    }
    // A sequence may be wider or narrower than its characters one by one.
    while out.width() > width {
        out.pop();
    }
    out
}

/// A table: titles, and cells row by row.
pub struct Table {
    titles: Vec<(&'static str, bool)>,
    measures: Vec<Measure>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new<R>(columns: &[&'static Column<R>], rows: impl IntoIterator<Item = R>) -> Self
    where
        R: 'static,
    {
        let rows: Vec<Vec<Cell>> =
            rows.into_iter().map(|row| columns.iter().map(|column| (column.cell)(&row)).collect()).collect();
        let titles: Vec<(&'static str, bool)> =
            columns.iter().map(|column| (column.title, column.right)).collect();
        let mut measures: Vec<Measure> = columns.iter().map(|column| measure(column)).collect();
        for row in &rows {
            widen(&mut measures, row);
        }
        Self { titles, measures, rows }
    }

    /// Returns the lines of the table, the titles first; pieces that join to lines of one width, with their tone.
    pub fn lines(&self, width: usize) -> Vec<Vec<(String, Tone)>> {
        let places = fit(&self.measures, width);
        let titles: Vec<Cell> = self.titles.iter().map(|(title, _)| Cell::plain(*title)).collect();
        let right: Vec<bool> = self.titles.iter().map(|(_, right)| *right).collect();
        std::iter::once(&titles).chain(&self.rows).map(|cells| pieces(&places, &right, cells)).collect()
    }

    /// Returns the names of columns that do not fit, by their titles.
    pub fn left_out(&self, width: usize) -> Vec<&'static str> {
        let places = fit(&self.measures, width);
        let shown = |at: usize| places.iter().any(|place| place.column == at);
        self.titles.iter().enumerate().filter(|(at, _)| !shown(*at)).map(|(_, (title, _))| *title).collect()
    }

    /// Returns the table as text; `paint` colours a piece.
    pub fn text(&self, width: usize, paint: impl Fn(Tone, &str) -> String) -> String {
        let mut out = String::new();
        for line in self.lines(width) {
            let mut line = line.into_iter().peekable();
            while let Some((piece, tone)) = line.next() {
                let end = line.peek().is_none();
                let piece = if end { piece.trim_end() } else { &piece };
                // Blanks outside of the colour, which may underline or invert them.
                let (word, blanks) = piece.split_at(piece.trim_end().len());
                match word.is_empty() || tone == Tone::Plain {
                    true => out.push_str(word),
                    false => out.push_str(&paint(tone, word)),
                }
                out.push_str(blanks);
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
        }
        out
    }

    /// Returns titles and cells, for CSV.
    pub fn records(&self) -> impl Iterator<Item = Vec<&str>> {
        let titles = self.titles.iter().map(|(title, _)| *title).collect();
        std::iter::once(titles)
            .chain(self.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()))
    }
}

/// Returns what a column takes without any row.
pub fn measure<R>(column: &Column<R>) -> Measure {
    Measure { drop: column.drop, least: column.least, most: column.most, natural: column.title.width() }
}

/// Widens columns for the cells of a row.
pub fn widen(measures: &mut [Measure], cells: &[Cell]) {
    for (measure, cell) in measures.iter_mut().zip(cells) {
        measure.natural = measure.natural.max(cell.text.width());
    }
}

/// Returns the pieces of a line.
pub fn pieces(places: &[Place], right: &[bool], cells: &[Cell]) -> Vec<(String, Tone)> {
    let mut line = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let none = Cell::default();
        let cell = cells.get(place.column).unwrap_or(&none);
        let right = right.get(place.column).copied().unwrap_or(false);
        let mut piece = padded(&cell.text, place.width, right);
        if at + 1 < places.len() {
            piece.push_str(&" ".repeat(GAP));
        }
        line.push((piece, cell.tone));
    }
    line
}

/// A node, and which of its GPUs have a cause; none if it is the node as a whole.
type Affected<'a> = (&'a str, Vec<u32>);

/// Nodes that are named in one line of [`notes`].
const NAMED: usize = 6;

/// Returns a line for each thing that a person should know beside the table, the worst first.
pub fn notes<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<String> {
    let mut causes: BTreeMap<(State, &str), Vec<Affected<'_>>> = BTreeMap::new();
    for row in rows.into_iter().filter(|row| row.state <= State::Drain && !row.why.is_empty()) {
        let nodes = causes.entry((row.state, row.why.as_str())).or_default();
        let gpu = row.now.as_ref().map(|now| now.index);
        match nodes.last_mut() {
            Some((node, gpus)) if **node == *row.node => gpus.extend(gpu),
            _ => nodes.push((&row.node, gpu.into_iter().collect())),
        }
    }
    let who = |nodes: &[Affected<'_>]| {
        let (whole, parts): (Vec<_>, Vec<_>) = nodes.iter().partition(|(_, gpus)| gpus.is_empty());
        let mut words: Vec<String> = parts
            .iter()
            .take(NAMED)
            .map(|(node, gpus)| format!("{node} GPU {}", fold_numbers(gpus.iter().copied())))
            .collect();
        if parts.len() > NAMED {
            words.push(format!("GPUs of {} more nodes", parts.len() - NAMED));
        }
        if !whole.is_empty() {
            words.push(fold_names(whole.iter().map(|(node, _)| node)));
        }
        words.join(", ")
    };
    causes.iter().map(|((state, why), nodes)| format!("{}: {}: {why}", state.word(), who(nodes))).collect()
}
