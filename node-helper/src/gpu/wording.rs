//! Combines equal sentences about several GPUs into one.

/// Joins sentences that begin with `GPU N`; those that are otherwise equal become one, such as `GPU 0-7: …`.
pub(super) fn joined<S: AsRef<str>>(sentences: &[S]) -> String {
    let mut groups: Vec<(&str, Vec<u32>)> = Vec::new();
    for sentence in sentences {
        let (index, rest) = split(sentence.as_ref());
        match groups
            .iter_mut()
            .find(|(known, indexes)| *known == rest && !indexes.is_empty() && index.is_some())
        {
            Some((_, indexes)) => indexes.extend(index),
            None => groups.push((rest, index.into_iter().collect())),
        }
    }
    let sentence = |(rest, indexes): (&str, Vec<u32>)| match indexes.is_empty() {
        true => rest.to_owned(),
        false => format!("GPU {}{rest}", ranges(&indexes)),
    };
    groups.into_iter().map(sentence).collect::<Vec<_>>().join("; ")
}

fn split(sentence: &str) -> (Option<u32>, &str) {
    let Some(rest) = sentence.strip_prefix("GPU ") else { return (None, sentence) };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    match rest.split_at_checked(digits).and_then(|(number, rest)| Some((number.parse().ok()?, rest))) {
        Some((index, rest)) => (Some(index), rest),
        None => (None, sentence),
    }
}

/// Formats ascending indexes as `0-3,5`.
fn ranges(indexes: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let run = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn equal_sentences_are_said_once() {
        let all = |list: &[&str]| joined(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(all(&["GPU 0: too hot", "GPU 1: too hot", "GPU 3: too hot"]), "GPU 0-1,3: too hot");
        assert_eq!(all(&["GPU 0 takes 1 W", "GPU 1 takes 2 W"]), "GPU 0 takes 1 W; GPU 1 takes 2 W");
        assert_eq!(all(&["no driver", "GPU x"]), "no driver; GPU x");
        assert_eq!(all(&[]), "");
    }
}
