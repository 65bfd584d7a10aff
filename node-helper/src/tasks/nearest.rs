//! Suggests the name that is nearest to a mistyped one.

/// Returns the candidate with the fewest edits, if they are few enough for a typing error.
pub fn nearest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (wrong.chars().count() / 3).max(1);
    candidates
        .map(|candidate| (distance(wrong, candidate), candidate))
        .filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, have) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (want, above) in b.iter().zip(row.iter().skip(1)) {
            let cost = diagonal + usize::from(have != *want);
            left = cost.min(left + 1).min(above + 1);
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let names = ["swappiness", "dirty_ratio"];
        assert_eq!(nearest("swapiness", names.into_iter()), Some("swappiness"));
        assert_eq!(nearest("nr_hugepages", names.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
