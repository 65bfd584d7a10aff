//! "Did you mean …" suggestions.

/// Returns the candidate that `word` was most likely meant to be, if any is close enough.
///
/// Close means at most one edit (insertion, deletion, replacement, swap) for every three characters, and one more
/// where one word begins with the other. Case and the choice between `-` and `_` cost nothing.
pub fn suggest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = normalise(word);
    let length = wanted.chars().count();
    if length == 0 || length > 200 {
        return None;
    }
    let limit = |candidate: &str| {
        let begins = candidate.starts_with(&wanted) || wanted.starts_with(candidate);
        let edits = if begins { length.div_ceil(3) } else { length / 3 };
        edits.clamp(1, 5)
    };
    let candidates: Vec<&str> = candidates.into_iter().collect();
    // Before distances: `src` is short for `source`, though `force` is fewer edits away.
    let short = |candidate: &&str| {
        let (candidate, consonants) =
            (normalise(candidate), |text: &str| text.replace(['a', 'e', 'i', 'o', 'u'], ""));
        let shortened = consonants(&wanted) == candidate || consonants(&candidate) == wanted;
        let begun = candidate.len() >= 4 && wanted.starts_with(&candidate) && length >= candidate.len() + 3;
        wanted != candidate && candidate.len() >= 3 && length >= 3 && (shortened || begun)
    };
    if let Some(found) = candidates.iter().find(|candidate| short(candidate)) {
        return Some(found);
    }
    candidates
        .into_iter()
        .filter(|candidate| *candidate != word)
        .map(|candidate| (limit(&normalise(candidate)), candidate))
        .filter(|(limit, candidate)| candidate.chars().count().abs_diff(length) <= *limit)
        .map(|(limit, candidate)| {
            (limit, strsim::damerau_levenshtein(&wanted, &normalise(candidate)), candidate)
        })
        .filter(|(limit, distance, candidate)| {
            distance <= limit && *distance < candidate.chars().count().min(length)
        })
        .map(|(_, distance, candidate)| (distance, candidate))
        // Of two equally near candidates, one with all letters of the word wins: `taks` means `tasks` rather than
        // `tags`.
        .min_by_key(|(distance, candidate)| {
            let there = normalise(candidate);
            (*distance, wanted.chars().filter(|c| !there.contains(*c)).count(), *candidate)
        })
        .map(|(_, candidate)| candidate)
}

/// Returns the help line for [`suggest`].
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    suggest(word, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

fn normalise(word: &str) -> String {
    word.chars().map(|c| if c == '-' { '_' } else { c }).flat_map(char::to_lowercase).collect()
}
