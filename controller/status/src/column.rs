//! What a column is: its name, how it looks, how it sorts.

use std::cmp::Ordering;

/// What the text of a cell means, for its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Muted,
    Good,
    Busy,
    Warning,
    Bad,
}

/// One cell: visible text of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

impl Cell {
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }

    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    /// There is nothing.
    pub fn none() -> Self {
        Self::toned("-", Tone::Muted)
    }

    /// It could not be read.
    pub fn unknown() -> Self {
        Self::toned("?", Tone::Warning)
    }
}

/// What a column sorts by.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// Largest first.
    Number(f64),
    /// In the order of its words and numbers: `gpu2` before `gpu10`.
    Text(String),
    /// Last.
    Nothing,
}

impl Key {
    /// Compares two keys; what has none comes last, also in reverse.
    pub fn order(&self, other: &Self, reverse: bool) -> Ordering {
        let known = match (self, other) {
            (Self::Nothing, Self::Nothing) => return Ordering::Equal,
            (Self::Nothing, _) => return Ordering::Greater,
            (_, Self::Nothing) => return Ordering::Less,
            (Self::Number(a), Self::Number(b)) => b.total_cmp(a),
            (Self::Text(a), Self::Text(b)) => natural(a, b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        };
        if reverse { known.reverse() } else { known }
    }
}

/// Compares texts with numbers in them as a person would.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (left, right) = (piece(a), piece(b));
        let order = match (left.0, right.0) {
            ("", "") => return Ordering::Equal,
            (one, other) if is_number(one) && is_number(other) => {
                let (x, y) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
                x.len().cmp(&y.len()).then_with(|| x.cmp(y)).then_with(|| one.len().cmp(&other.len()))
            }
            (one, other) => one.cmp(other),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (left.1, right.1);
    }
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Splits a text after its first run of digits or of anything else.
fn piece(text: &str) -> (&str, &str) {
    let digits = is_number(text);
    let end = text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len());
    text.split_at(end)
}

/// When a column is shown without being asked for.
pub enum Shown<R> {
    Always,
    /// If it says something about these rows.
    If(fn(&[&R]) -> bool),
    /// With `wide`.
    Wide,
}

/// A column of a table of `R`.
pub struct Column<R: 'static> {
    /// The word that chooses it.
    pub name: &'static str,
    pub title: &'static str,
    pub help: &'static str,
    pub right: bool,
    pub shown: Shown<R>,
    /// Which columns go first where there is no room for all: the highest; 0 stays.
    pub drop: u8,
    /// Least and most columns of the screen that it takes, where its content is wider.
    pub least: usize,
    pub most: usize,
    pub cell: fn(&R) -> Cell,
    pub key: fn(&R) -> Key,
}

/// A word that is no column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoColumn(pub String);

impl std::fmt::Display for NoColumn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no column `{}`", self.0)
    }
}

impl std::error::Error for NoColumn {}

/// Columns that are shown, in their order.
pub type Chosen<R> = Vec<&'static Column<R>>;

impl<R> Column<R> {
    /// # Errors
    /// If there is none of this name.
    pub fn find(all: &'static [Self], name: &str) -> Result<&'static Self, NoColumn> {
        let name = name.trim().to_lowercase();
        all.iter().find(|column| column.name == name).ok_or(NoColumn(name))
    }

    /// Returns the columns of a list such as `node,gpu,use`.
    ///
    /// # Errors
    /// A word that is no column.
    pub fn listed(all: &'static [Self], list: &str) -> Result<Chosen<R>, NoColumn> {
        list.split(',').map(|name| Self::find(all, name)).collect()
    }

    /// Returns the columns that are shown of these rows unless some are chosen.
    pub fn usual(all: &'static [Self], rows: &[&R], wide: bool) -> Chosen<R> {
        let is_shown = |column: &&Self| match column.shown {
            Shown::Always => true,
            Shown::If(says) => wide || says(rows),
            Shown::Wide => wide,
        };
        all.iter().filter(is_shown).collect()
    }

    /// Describes all columns, one in each line.
    pub fn help(all: &'static [Self]) -> String {
        let widest = all.iter().map(|column| column.name.len()).max().unwrap_or(0);
        all.iter().map(|column| format!("  {:widest$}  {}\n", column.name, column.help)).collect()
    }
}
