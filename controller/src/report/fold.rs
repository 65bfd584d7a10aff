//! Node names and numbers in short: `gpu[033,037-041]`.
//!
//! Folding loses nothing: unfolding gives the same set of names.

use std::collections::{BTreeMap, HashMap, HashSet};

/// Folds names that differ in one number into ranges, groups in the order in which they first appear.
///
/// Leading zeros are kept: `n01` and `n1` are two names. Twice the same name counts once.
pub fn fold_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut seen = HashSet::new();
    let owned: Vec<S> = names.into_iter().collect();
    let unique: Vec<&str> = owned.iter().map(AsRef::as_ref).filter(|name| seen.insert(*name)).collect();
    let by_last = groups(&unique, |name| number_spans(name).pop());
    let by_first = groups(&unique, |name| number_spans(name).into_iter().next());
    let best = if by_first.len() < by_last.len() { by_first } else { by_last };
    best.join(" ")
}

/// Digit runs of a name as byte ranges.
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

/// Names around a number: text before it and after it, and the width that its zeros pad it to.
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
                // Why: a name with the signs of a folded list could not be told from one.
                Ok(number) if !name.contains(['[', ']', ',', ' ']) => {
                    Part::Numbered(&name[..start], &name[end..], digits, number)
                }
                _ => Part::Literal(name),
            }
        })
        .collect();
    // Why: 10 belongs to 09 only where 09 is there too; alone it is a number without padding.
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
                    _ => format!("{before}[{}]{after}", ranges(&list, width)),
                }
            }
        })
        .collect()
}

/// Sorted numbers as ranges, each end padded to `width`.
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

/// Numbers such as GPU indexes as ranges: `0-3,7`.
pub fn fold_numbers(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut list: Vec<u64> = numbers.into_iter().map(u64::from).collect();
    list.sort_unstable();
    ranges(&list, 0)
}

/// The names that a folded list stands for, in its order.
///
/// Text that is no folded list comes back as it is; so does a range of more than a million names.
pub fn unfold_names(folded: &str) -> Vec<String> {
    folded.split_whitespace().flat_map(unfold_one).collect()
}

fn unfold_one(word: &str) -> Vec<String> {
    const MOST: u64 = 1_000_000;
    let literal = || vec![word.to_owned()];
    let Some((before, rest)) = word.split_once('[') else { return literal() };
    let Some((inside, after)) = rest.split_once(']') else { return literal() };
    let mut names = BTreeMap::new();
    for (at, range) in inside.split(',').enumerate() {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (Ok(low), Ok(high)) = (from.parse::<u64>(), to.parse::<u64>()) else { return literal() };
        if high < low || high - low >= MOST {
            return literal();
        }
        let width = if from.starts_with('0') { from.len() } else { 0 };
        for number in low..=high {
            names.insert((at, number), format!("{before}{number:0width$}{after}"));
        }
    }
    names.into_values().collect()
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
        assert_eq!(fold(&["gpu9", "gpu10", "gpu11"]), "gpu[9-11]");
        assert_eq!(fold(&["gpu09", "gpu10", "gpu1"]), "gpu[09,10] gpu1");
        assert_eq!(fold(&["node", "gpu1"]), "node gpu1");
        assert_eq!(
            fold(&["gpu001.dc1.example.com", "gpu002.dc1.example.com"]),
            "gpu[001,002].dc1.example.com"
        );
        assert_eq!(fold(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), "10.0.0.[1-3]");
        assert_eq!(fold(&[]), "");
        assert_eq!(fold_numbers([7, 0, 1, 2]), "0-2,7");
    }

    proptest! {
        #[test]
        fn unfolding_gives_the_same_names(
            names in prop::collection::btree_set("[a-c]{0,2}[0-9]{0,3}[.-]?[a-b]?[0-9]{1,3}[a-b]{0,2}", 0..40)
        ) {
            let folded = fold_names(&names);
            let back: BTreeSet<String> = unfold_names(&folded).into_iter().collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn a_padded_fleet_is_one_word(from in 0_u32..800, count in 2_u32..200) {
            let names: Vec<String> = (from..from + count).map(|n| format!("gpu{n:04}")).collect();
            let folded = fold_names(&names);
            prop_assert!(!folded.contains(' '), "{}", folded);
            prop_assert_eq!(unfold_names(&folded), names);
        }
    }
}
