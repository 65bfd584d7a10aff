//! Names in the order that people expect: `gpu2` before `gpu10`.

use std::cmp::Ordering;

/// Compares two names; numbers in them count as numbers.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (text_a, rest_a) = split(left, |c| !c.is_ascii_digit());
        let (text_b, rest_b) = split(right, |c| !c.is_ascii_digit());
        let (digits_a, next_a) = split(rest_a, |c| c.is_ascii_digit());
        let (digits_b, next_b) = split(rest_b, |c| c.is_ascii_digit());
        let (number_a, number_b) = (digits_a.trim_start_matches('0'), digits_b.trim_start_matches('0'));
        let order = text_a
            .cmp(text_b)
            .then_with(|| number_a.len().cmp(&number_b.len()))
            .then_with(|| number_a.cmp(number_b));
        if order != Ordering::Equal {
            return order;
        }
        if next_a.is_empty() || next_b.is_empty() {
            // Why at last by the whole text: `n1` and `n01` are two names.
            return next_a.len().cmp(&next_b.len()).then_with(|| a.cmp(b));
        }
        (left, right) = (next_a, next_b);
    }
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers() {
        let mut names = ["gpu10", "gpu2", "gpu02", "gpu", "a100-3", "a100-20", "gpu2-b", "é1", ""];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["", "a100-3", "a100-20", "gpu", "gpu02", "gpu2", "gpu2-b", "gpu10", "é1"]);
    }
}
