//! Renders diagnostics for a terminal.

use std::fmt::Write as _;

use owo_colors::{OwoColorize as _, Style};
use unicode_width::UnicodeWidthChar as _;

use crate::visible::{is_hidden, visible, visible_lines};

use super::secret::{inside_secret, mask_line};
use super::{Diagnostic, Diagnostics, Severity, Span};

/// Columns of source text that an excerpt shows.
const EXCERPT_WIDTH: usize = 88;
const TAB_WIDTH: usize = 4;

/// Renders all diagnostics, each ended by a line break.
pub fn render(diagnostics: &Diagnostics, colour: bool) -> String {
    let mut out = String::new();
    for diagnostic in diagnostics.iter() {
        render_one(&mut out, diagnostic, colour);
    }
    out
}

fn render_one(out: &mut String, diagnostic: &Diagnostic, colour: bool) {
    let paint = Painter { colour };
    let (word, style) = match diagnostic.severity {
        Severity::Error => ("error", Style::new().red().bold()),
        Severity::Warning => ("warning", Style::new().yellow().bold()),
        Severity::Note => ("note", Style::new().cyan().bold()),
    };
    let message = printable(&diagnostic.message);
    line(
        out,
        &format!("{}{}", paint.with(word, style), paint.with(&format!(": {message}"), Style::new().bold())),
    );
    if let Some(span) = &diagnostic.span {
        let gutter = Style::new().blue().bold();
        line(out, &format!("  {} {}", paint.with("-->", gutter), printable(&span.to_string())));
        if let Some(excerpt) = diagnostic.excerpt.then(|| Excerpt::of(span)).flatten() {
            let number = span.line.to_string();
            let pad = " ".repeat(number.len() + 2);
            line(out, &format!("{pad}{}", paint.with("|", gutter)));
            line(out, format!(" {} {}", paint.with(&format!("{number} |"), gutter), excerpt.text).trim_end());
            let mut carets = "^".repeat(excerpt.carets);
            if let Some(label) = &diagnostic.label {
                let _ = write!(carets, " {}", printable(label));
            }
            let indent = " ".repeat(excerpt.offset);
            line(out, &format!("{pad}{} {indent}{}", paint.with("|", gutter), paint.with(&carets, style)));
        } else if let Some(label) = &diagnostic.label {
            line(out, &format!("{}: {}", paint.with("note", Style::new().bold()), printable(label)));
        }
    } else if let Some(label) = &diagnostic.label {
        line(out, &format!("{}: {}", paint.with("note", Style::new().bold()), printable(label)));
    }
    for note in &diagnostic.notes {
        line(out, &format!("{}: {}", paint.with("note", Style::new().bold()), printable(note)));
    }
    for help in &diagnostic.help {
        line(out, &format!("{}: {}", paint.with("help", Style::new().cyan().bold()), printable(help)));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

struct Painter {
    colour: bool,
}

impl Painter {
    fn with(&self, text: &str, style: Style) -> String {
        if self.colour { text.style(style).to_string() } else { text.to_owned() }
    }
}

/// Escapes what a terminal would interpret: a message may quote foreign text with escape sequences, or with lines
/// that look like gpufleet's own.
fn printable(text: &str) -> String {
    visible_lines(text).replace('\n', "\n  ")
}

/// One source line cut to fit the screen, with the columns of the carets.
struct Excerpt {
    text: String,
    offset: usize,
    carets: usize,
}

impl Excerpt {
    fn of(span: &Span) -> Option<Self> {
        if span.source.is_secret() || inside_secret(&span.source, span.line) {
            return None;
        }
        let source = span.source.line(span.line)?;
        let (source, masked_from) = match mask_line(source, |name| span.source.hides(name)) {
            Some((masked, from)) => (masked, Some(from)),
            None => (source.to_owned(), None),
        };
        let mut cells: Vec<(String, usize)> = source.chars().map(cell).collect();
        let mut first = (span.column.saturating_sub(1) as usize).min(cells.len());
        let mut count = span.length.max(1) as usize;
        if let Some(from) = masked_from
            && first >= from
        {
            first = from;
            count = cells.len() - from;
        }
        let visible_end = cells.iter().rposition(|(text, _)| text.trim() != "").map_or(0, |last| last + 1);
        let end = first.saturating_add(count).min(visible_end.max(first + 1)).max(first);
        // `columns[i]` is where cell `i` begins, so that a line of any length is cut in one pass.
        let columns: Vec<usize> = std::iter::once(0)
            .chain(cells.iter().scan(0, |sum, (_, width)| {
                *sum += width;
                Some(*sum)
            }))
            .collect();
        let column = |cell: usize| columns.get(cell).or(columns.last()).copied().unwrap_or_default();

        let mut text = String::new();
        let mut start = 0;
        // A third of the window stays in front of the carets, so that the text before the mistake is seen.
        if column(end) > EXCERPT_WIDTH {
            let wanted = column(first).saturating_sub(EXCERPT_WIDTH / 3);
            start = columns.partition_point(|column| *column < wanted).min(first);
            if start > 0 {
                text.push('…');
            }
        }
        let lead = text.chars().count();
        let last_column = column(start) + EXCERPT_WIDTH - lead;
        let shown_end = columns
            .partition_point(|column| *column <= last_column)
            .saturating_sub(1)
            .clamp(start, cells.len());
        let clipped = shown_end < cells.len();
        cells.truncate(shown_end);
        let offset = lead + column(first.min(shown_end)) - column(start);
        let carets = (column(end.min(shown_end)) - column(first.min(shown_end))).max(1);
        for (cell, _) in cells.get(start..).unwrap_or_default() {
            text.push_str(cell);
        }
        if clipped {
            text.push('…');
        }
        Some(Self { text, offset, carets })
    }
}

/// Returns what is shown for one character, and how many columns it takes.
fn cell(c: char) -> (String, usize) {
    match c {
        '\t' => (" ".repeat(TAB_WIDTH), TAB_WIDTH),
        c if is_hidden(c) => {
            let shown = visible(c.encode_utf8(&mut [0; 4])).into_owned();
            let width = shown.len();
            (shown, width)
        }
        c => (c.to_string(), c.width().unwrap_or(0)),
    }
}
