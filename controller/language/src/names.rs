//! Short forms of node names and numbers: `gpu[033,037-041]`.
//!
//! Owns how this form, which schedulers use too, is written and read. Invariants: what is written reads back as the
//! same set of names, and never looks like the positions in a group that Ansible's patterns have (`gpu[1-4]`),
//! whatever groups exist.

use std::collections::{HashMap, HashSet};

/// Returns `7 nodes`, `1 node`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Folds names that differ in one number into ranges, joined by commas in the order in which they first appear.
/// The result is one word that a host pattern reads as exactly these names.
///
/// Leading zeros are kept: `n01` and `n1` are two names. A repeated name counts once.
pub fn fold_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut seen = HashSet::new();
    let owned: Vec<S> = names.into_iter().collect();
    let unique: Vec<&str> = owned.iter().map(AsRef::as_ref).filter(|name| seen.insert(*name)).collect();
    let by_last = groups(&unique, |name| number_spans(name).pop());
    let by_first = groups(&unique, |name| number_spans(name).into_iter().next());
    let best = if by_first.len() < by_last.len() { by_first } else { by_last };
    best.join(",")
}

/// Characters that keep a name from being folded.
const SIGNS: [char; 10] = ['[', ']', ',', ' ', ':', '*', '?', '~', '!', '&'];

/// Rewrites ranges that could be read as positions in a group `gpu`, or as a set of characters (`gpu[1-4]`). With a
/// comma or with leading zeros they cannot.
fn no_positions(ranges: String) -> String {
    match ranges.split_once('-') {
        Some((from, to)) if !ranges.contains(',') && !padded(from) => {
            let before = to.parse::<u64>().unwrap_or_default().saturating_sub(1);
            let separator = if from.parse() == Ok(before.saturating_sub(1)) { ',' } else { '-' };
            format!("{from}{separator}{before},{to}")
        }
        _ => ranges,
    }
}

/// Whether a number has leading zeros.
fn padded(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

/// Returns the runs of digits in a name, as byte ranges.
fn number_spans(name: &str) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (at, byte) in name.bytes().enumerate() {
        if !byte.is_ascii_digit() {
            continue;
        }
        match spans.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => spans.push((at, at + 1)),
        }
    }
    spans
}

/// The text before and after a number, and the width to which leading zeros pad it.
type Frame<'a> = (&'a str, &'a str, Option<usize>);

fn groups(names: &[&str], choose: impl Fn(&str) -> Option<(usize, usize)>) -> Vec<String> {
    enum Part<'a> {
        Literal(&'a str),
        Numbered(&'a str, &'a str, &'a str, u64),
    }
    let parts: Vec<Part<'_>> = names
        .iter()
        .map(|name| {
            let Some((start, end)) = choose(name) else { return Part::Literal(name) };
            let digits = &name[start..end];
            match digits.parse() {
                // A name with one of these signs could not be told from a pattern or from a folded list.
                Ok(number) if !name.contains(SIGNS) => {
                    Part::Numbered(&name[..start], &name[end..], digits, number)
                }
                _ => Part::Literal(name),
            }
        })
        .collect();
    // 10 belongs to 09 only if 09 is among the names; alone it is a number without padding.
    let mut padded: HashSet<(&str, &str, usize)> = HashSet::new();
    for part in &parts {
        if let Part::Numbered(before, after, digits, _) = part
            && digits.len() > 1
            && digits.starts_with('0')
        {
            padded.insert((before, after, digits.len()));
        }
    }
    let mut order: Vec<Result<Frame<'_>, &str>> = Vec::new();
    let mut numbers: HashMap<Frame<'_>, Vec<u64>> = HashMap::new();
    for part in &parts {
        match part {
            Part::Literal(name) => order.push(Err(name)),
            Part::Numbered(before, after, digits, number) => {
                let width = padded.contains(&(*before, *after, digits.len())).then_some(digits.len());
                let frame = (*before, *after, width);
                let list = numbers.entry(frame).or_insert_with(|| {
                    order.push(Ok(frame));
                    Vec::new()
                });
                list.push(*number);
            }
        }
    }
    order
        .into_iter()
        .map(|entry| match entry {
            Err(name) => name.to_owned(),
            Ok(frame) => {
                let (before, after, width) = frame;
                let mut list = numbers.remove(&frame).unwrap_or_default();
                list.sort_unstable();
                let width = width.unwrap_or(0);
                match list.as_slice() {
                    [only] => format!("{before}{only:0width$}{after}"),
                    _ => format!("{before}[{}]{after}", no_positions(ranges(&list, width))),
                }
            }
        })
        .collect()
}

/// Folds sorted numbers into ranges, each end padded to `width`.
fn ranges(sorted: &[u64], width: usize) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in sorted {
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(number) => *end = number,
            Some((_, end)) if *end == number => {}
            _ => runs.push((number, number)),
        }
    }
    let text: Vec<String> = runs
        .into_iter()
        .map(|(from, to)| match to - from {
            0 => format!("{from:0width$}"),
            1 => format!("{from:0width$},{to:0width$}"),
            _ => format!("{from:0width$}-{to:0width$}"),
        })
        .collect();
    text.join(",")
}

/// Folds numbers such as GPU indexes into ranges: `0-3,7`.
pub fn fold_numbers(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut list: Vec<u64> = numbers.into_iter().map(u64::from).collect();
    list.sort_unstable();
    ranges(&list, 0)
}

/// A word with a list of numbers in brackets, as [`fold_names`], schedulers and inventories write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameList<'a> {
    before: &'a str,
    after: &'a str,
    parts: Vec<Numbers>,
    /// Whether it may also be read as positions in a group or as a set of characters.
    pub doubtful: bool,
    /// Whether it is written with `:`, as ranges in an inventory and Ansible's slices of a group are.
    pub colon: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    from: u64,
    to: u64,
    width: usize,
}

impl<'a> NameList<'a> {
    /// The largest number of names; more are taken for a mistake.
    pub const MOST: u64 = 1_000_000;

    /// Parses a word. `None` if it has no brackets, a single number in them, or signs of a pattern.
    pub fn parse(word: &'a str) -> Option<Self> {
        let (before, rest) = word.split_once('[')?;
        let (inside, after) = rest.split_once(']')?;
        if [before, after].iter().any(|text| text.contains(SIGNS)) {
            return None;
        }
        let colon = inside.contains(':');
        if colon && inside.contains([',', '-']) {
            return None;
        }
        let mut doubtful = !inside.contains(',');
        let mut parts = Vec::new();
        for part in inside.split(',') {
            let bounds = part.split_once(if colon { ':' } else { '-' });
            let (from, to) = bounds.unwrap_or((part, part));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(from) || !digits(to) || (padded(from) && from.len() != to.len()) {
                return None;
            }
            doubtful &= bounds.is_some() && !padded(from);
            let width = if padded(from) { from.len() } else { 0 };
            let numbers = Numbers { from: from.parse().ok()?, to: to.parse().ok()?, width };
            if numbers.to < numbers.from {
                return None;
            }
            parts.push(numbers);
        }
        // A single number in brackets is a position, or a set of characters.
        let list = inside.contains([',', '-', ':']);
        (list && Self::size(&parts) <= Self::MOST).then_some(Self { before, after, parts, doubtful, colon })
    }

    /// Whether a name has one of the numbers, with any number of leading zeros.
    pub fn has_number_of(&self, name: &str) -> bool {
        let number = name.strip_prefix(self.before).and_then(|rest| rest.strip_suffix(self.after));
        let digits = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|text| text.parse::<u64>().ok());
        number.is_some_and(|number| self.parts.iter().any(|part| (part.from..=part.to).contains(&number)))
    }

    /// Returns the number of names.
    pub fn count(&self) -> u64 {
        Self::size(&self.parts)
    }

    fn size(parts: &[Numbers]) -> u64 {
        parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.to - part.from).saturating_add(1))
    }

    /// Returns the names, in the order in which they are written.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let Self { before, after, .. } = self;
        self.parts.iter().flat_map(move |&Numbers { from, to, width }| {
            (from..=to).map(move |number| format!("{before}{number:0width$}{after}"))
        })
    }
}

/// Whether the text inside a pair of brackets is a list of numbers, so that its commas separate no patterns.
pub fn is_number_list(inside: &str) -> bool {
    inside.contains(',') && NameList::parse(&format!("[{inside}]")).is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_fold_as_people_write_them() {
        let fold = |names: &[&str]| fold_names(names);
        assert_eq!(fold(&["gpu033", "gpu037", "gpu041"]), "gpu[033,037,041]");
        assert_eq!(fold(&["gpu038", "gpu039", "gpu040", "gpu034"]), "gpu[034,038-040]");
        assert_eq!(fold(&["gpu9", "gpu10", "gpu11"]), "gpu[9,10,11]");
        assert_eq!(fold(&["gpu09", "gpu10", "gpu1"]), "gpu[09,10],gpu1");
        assert_eq!(fold(&["node", "gpu1"]), "node,gpu1");
        assert_eq!(
            fold(&["gpu001.dc1.example.com", "gpu002.dc1.example.com"]),
            "gpu[001,002].dc1.example.com"
        );
        assert_eq!(fold(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), "10.0.0.[1,2,3]");
        assert_eq!(fold(&["a1", "a2", "a3", "a4", "a10"]), "a[1-4,10]");
        assert_eq!(fold(&["a1", "a2", "a3", "a4"]), "a[1-3,4]");
        assert_eq!(fold(&["fe80::1", "fe80::2"]), "fe80::1,fe80::2");
        assert_eq!(fold(&[]), "");
        assert_eq!(fold_numbers([7, 0, 1, 2]), "0-2,7");
    }

    fn unfolded(folded: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut inside = false;
        for c in folded.chars() {
            inside = if c == '[' { true } else { inside && c != ']' };
            match words.last_mut() {
                Some(word) if inside || c != ',' => word.push(c),
                _ => words.push(String::new()),
            }
        }
        let read = |word: &String| match NameList::parse(word) {
            Some(list) => list.names().collect(),
            None => vec![word.clone()],
        };
        words.iter().filter(|word| !word.is_empty()).flat_map(read).collect()
    }

    #[test]
    fn what_may_be_something_else_is_doubtful() {
        for (word, doubtful) in [
            ("gpu[1-4]", Some(true)),
            ("gpu[1:4]", Some(true)),
            ("gpu[1-3,4]", Some(false)),
            ("gpu[001-004]", Some(false)),
            ("gpu[001:004].dc1", Some(false)),
            ("gpu[7]", None),
            ("gpu[-1]", None),
            ("gpu[1:]", None),
            ("gpu[1,2", None),
            ("gpu*[1,2]", None),
            ("~gpu[1-4]", None),
            ("gpu[4-1]", None),
            ("gpu[1-9999999]", None),
            ("gpu[01-100]", None),
            ("gpu[1-2][3-4]", None),
        ] {
            assert_eq!(NameList::parse(word).map(|list| list.doubtful), doubtful, "{word}");
        }
    }

    proptest! {
        #[test]
        fn unfolding_gives_the_same_names(
            names in prop::collection::btree_set("[a-c]{0,2}[0-9]{0,3}[.-]?[a-b]?[0-9]{1,3}[a-b]{0,2}", 0..40)
        ) {
            let folded = fold_names(&names);
            let back: BTreeSet<String> = unfolded(&folded).into_iter().collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn a_padded_fleet_is_one_word(from in 0_u32..800, count in 2_u32..200) {
            let names: Vec<String> = (from..from + count).map(|n| format!("gpu{n:04}")).collect();
            let folded = fold_names(&names);
            prop_assert_eq!(folded.matches('[').count(), 1, "{}", folded);
            prop_assert_eq!(unfolded(&folded), names);
        }

        #[test]
        fn any_word_is_read_or_is_not(word in "[a-b0-9\\[\\],:.-]{0,20}") {
            let _ = NameList::parse(&word).map(|list| list.names().take(3).count());
        }
    }
}
