//! Drawing: a header, the lines that are on the screen, what is free, and the keys.

use std::time::Duration;

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
};

use super::{Mode, Node, Only, Screen};
use crate::{
    column::{Cell, Column, Tone},
    line::Line,
    table::{Place, fit, padded, pieces},
};

/// Width of the age of a reading, with the blanks before it.
const AGE: usize = 6;

const KEYS: &str =
    "q leave  / filter  s sort  S other way  f free  b busy  Esc all  arrows, PgUp, PgDn scroll  ? help";

const HELP: &[&str] = &[
    "arrows, j, k      one line up or down",
    "PgUp, PgDn, Home, End",
    "s                 sort by the next column, at last by the inventory",
    "S                 sort the other way round",
    "/                 show lines with these words: a node, group, user, job, state",
    "f                 show only where something is free",
    "b                 show only what something holds",
    "Esc               show all lines again",
    "q, Ctrl-C         leave",
    "",
    "A dimmed line is of a node that did not answer lately; AGE is how old its numbers are.",
    "USE% is averaged over the window, within the life of what holds the GPU. idle-held: held and at most",
    "5 % busy. starved: busy below 50 % with peaks of 80 % and more, as of work that waits for its data.",
];

impl<R: Line> Screen<R> {
    /// Draws the screen at this time since it began.
    pub fn draw(&mut self, frame: &mut Frame<'_>, now: Duration) {
        let area = frame.area();
        self.paint(frame.buffer_mut(), area, now);
    }

    pub(crate) fn paint(&mut self, buffer: &mut Buffer, area: Rect, now: Duration) {
        self.tick(now);
        self.arrange();
        let height = usize::from(area.height);
        // Two lines above, two below, and the titles; the table comes first where there is no room.
        let (above, below) = if height >= 8 { (2, 2) } else { (0, 0) };
        self.page = height.saturating_sub(above + below + 1).max(1);
        self.top = self.top.min(self.view.order.len().saturating_sub(self.page));
        let mut put = |line: usize, text: &str, style: Style| {
            let y = area.y.saturating_add(u16::try_from(line).unwrap_or(u16::MAX));
            if line < height {
                let text = padded(text, usize::from(area.width), false);
                buffer.set_stringn(area.x, y, text, usize::from(area.width), style);
            }
        };
        if above > 0 {
            put(0, &self.header(), self.style(Tone::Plain).add_modifier(Modifier::BOLD));
            put(1, &self.standing(), self.style(Tone::Muted));
        }
        if below > 0 {
            put(height - 2, &format!("free: {}", self.view.totals.free.text()), self.style(Tone::Good));
            let last = match self.mode {
                Mode::Filter => format!("/{}_   Enter keeps it, Esc drops it", self.filter),
                Mode::Help => "any key goes back".to_owned(),
                Mode::Table => KEYS.to_owned(),
            };
            put(height - 1, &last, self.style(Tone::Muted));
        }
        if self.mode == Mode::Help {
            for (at, text) in HELP.iter().take(self.page + 1).enumerate() {
                put(above + at, text, self.style(Tone::Plain));
            }
            return;
        }
        self.table(buffer, area, above, now);
    }

    /// What all lines come to.
    fn header(&self) -> String {
        self.view.totals.text()
    }

    /// What is shown of them, and who is silent.
    fn standing(&self) -> String {
        let mut words = vec![format!("every {} s", self.wanted.interval.as_secs())];
        let old = self.nodes.iter().filter(|node| node.old).count();
        let waiting = self.nodes.iter().filter(|node| node.heard.is_none() && node.trouble.is_none()).count();
        if old > 0 {
            words.push(format!("{old} of {} nodes silent", self.nodes.len()));
        }
        if waiting > 0 {
            words.push(format!("{waiting} not heard of yet"));
        }
        if let Some(column) = self.sort {
            words.push(format!("sorted by {}{}", column.name, if self.reverse { ", reversed" } else { "" }));
        }
        match self.only {
            Only::All => {}
            Only::Free => words.push("only free".to_owned()),
            Only::Held => words.push("only busy".to_owned()),
        }
        if !self.filter.is_empty() {
            words.push(format!("only /{}", self.filter));
        }
        let (shown, all) = (self.view.order.len(), self.view.lines);
        if shown > self.page || shown < all {
            let last = (self.top + self.page).min(shown);
            let first = if shown == 0 { 0 } else { self.top + 1 };
            words.push(format!(
                "lines {first}-{last} of {shown}{}",
                if shown < all { format!(" ({all})") } else { String::new() }
            ));
        }
        words.join(", ")
    }

    fn table(&self, buffer: &mut Buffer, area: Rect, above: usize, now: Duration) {
        let width = usize::from(area.width);
        let columns: Vec<&Column<R>> =
            self.view.columns.iter().filter_map(|at| R::COLUMNS.get(*at)).collect();
        let places = fit(&self.view.measures, width.saturating_sub(AGE));
        let right: Vec<bool> = columns.iter().map(|column| column.right).collect();
        let titles: Vec<Cell> = columns.iter().map(|column| self.title(column)).collect();
        let y = |line: usize| area.y.saturating_add(u16::try_from(above + line).unwrap_or(u16::MAX));
        let mut lines = Pen { buffer, area, places: &places, right: &right };
        let bold = self.style(Tone::Plain).add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        let titled = |tone| if tone == Tone::Busy { bold.add_modifier(Modifier::REVERSED) } else { bold };
        lines.write(y(0), &titles, "AGE", titled);
        let visible = self.view.order.iter().skip(self.top).take(self.page);
        for (line, place) in visible.enumerate() {
            let (Some(node), Some(entry)) = (self.nodes.get(place.0), self.entry(*place)) else { continue };
            let cells: Vec<Cell> =
                self.view.columns.iter().filter_map(|at| entry.cells.get(*at)).cloned().collect();
            let style = |tone| if node.old { self.style(Tone::Muted) } else { self.style(tone) };
            lines.write(y(line + 1), &cells, &age(node, now), style);
        }
    }

    /// The title of a column, toned if the table is sorted by it.
    fn title(&self, column: &Column<R>) -> Cell {
        let sorted = self.sort.is_some_and(|sort| sort.name == column.name);
        Cell::toned(column.title, if sorted { Tone::Busy } else { Tone::Plain })
    }

    fn style(&self, tone: Tone) -> Style {
        let style = Style::default();
        match (tone, self.wanted.color) {
            (Tone::Plain, _) => style,
            (Tone::Muted, _) => style.add_modifier(Modifier::DIM),
            (Tone::Bad, false) => style.add_modifier(Modifier::BOLD),
            (_, false) => style,
            (Tone::Good, true) => style.fg(Color::Green),
            (Tone::Busy, true) => style.fg(Color::Cyan),
            (Tone::Warning, true) => style.fg(Color::Yellow),
            (Tone::Bad, true) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Writes lines of the table.
struct Pen<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    places: &'a [Place],
    right: &'a [bool],
}

impl Pen<'_> {
    fn write(&mut self, y: u16, cells: &[Cell], age: &str, style: impl Fn(Tone) -> Style) {
        if y >= self.area.bottom() {
            return;
        }
        let end = self.area.right();
        let mut x = self.area.x;
        let mut put = |text: &str, style: Style| {
            if x < end {
                (x, _) = self.buffer.set_stringn(x, y, text, usize::from(end - x), style);
            }
        };
        for (piece, tone) in pieces(self.places, self.right, cells) {
            put(&piece, style(tone));
        }
        put(&padded(age, AGE, true), style(Tone::Muted));
        if x < end {
            let rest = " ".repeat(usize::from(end - x));
            self.buffer.set_stringn(x, y, rest, usize::from(end - x), Style::default());
        }
    }
}

/// How old the reading of a node is.
fn age<R>(node: &Node<R>, now: Duration) -> String {
    let Some(heard) = node.heard else { return "-".to_owned() };
    match now.saturating_sub(heard).as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}
