//! Versions and what is asked of them.

use std::cmp::Ordering;

/// Whether a version is one that `spec` asks for.
///
/// `580` and `580.159` are beginnings, whole parts only; `>=570.86` and `<600` are bounds; a comma joins what must all
/// hold. Parts are compared as numbers where both are, so that 580.9 comes before 580.10.
pub fn version_matches(version: &str, spec: &str) -> bool {
    let version = version.trim();
    spec.split(',').map(str::trim).all(|one| {
        let bound = |sign: &str| one.strip_prefix(sign).map(|bound| compare(version, bound.trim()));
        if let Some(order) = bound(">=") {
            order != Ordering::Less
        } else if let Some(order) = bound("<=") {
            order != Ordering::Greater
        } else if let Some(order) = bound(">") {
            order == Ordering::Greater
        } else if let Some(order) = bound("<") {
            order == Ordering::Less
        } else {
            begins(version, one.trim_start_matches('=').trim())
        }
    })
}

fn parts(version: &str) -> impl Iterator<Item = &str> {
    version.split(['.', '-', '_', '+', '~']).filter(|part| !part.is_empty())
}

fn begins(version: &str, spec: &str) -> bool {
    let mut own = parts(version);
    parts(spec).next().is_some()
        && parts(spec).all(|wanted| own.next().is_some_and(|part| order(part, wanted) == Ordering::Equal))
}

fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (parts(a), parts(b));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => match order(a, b) {
                Ordering::Equal => {}
                other => return other,
            },
        }
    }
}

fn order(a: &str, b: &str) -> Ordering {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        _ => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_match_beginnings_and_bounds() {
        for (version, spec, wanted) in [
            ("580.159.04", "580", true),
            ("580.159.04", "580.159.4", true),
            ("580.159.04", "58", false),
            ("580.159.04", "580.15", false),
            ("580.159.04", ">=570.86.15", true),
            ("580.9", ">=580.10", false),
            ("580.159.04", ">=570, <580", false),
            ("580.159.04", ">=570, <600", true),
            ("580.159.04", "<=580.159.04", true),
            ("580.159.04", ">580.159.04", false),
            ("580", "580.159", false),
            ("6.8.0-45-generic", "6.8.0-45", true),
            ("6.8.0-45-generic", "6.8.0-4", false),
            ("580.1", "", false),
            ("", "580", false),
            ("580.1", "= 580.1", true),
        ] {
            assert_eq!(version_matches(version, spec), wanted, "{version} {spec}");
        }
    }
}
