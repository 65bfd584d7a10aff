//! Compares versions as Ansible does: loose (the default), strict, semantic, and those of Python packages.

use std::cmp::Ordering;
use std::sync::LazyLock;

use regex::Regex;

use super::{Call, Test};
use crate::template::value::Value;

pub(super) const TESTS: &[(&str, Test)] = &[("version", compare), ("version_compare", compare)];

fn compare(call: &Call) -> Result<bool, String> {
    let operator = call.get(1, "operator").map_or_else(|| "==".to_owned(), Value::to_text);
    let wanted: fn(Ordering) -> bool = match operator.as_str() {
        "==" | "=" | "eq" => Ordering::is_eq,
        "!=" | "<>" | "ne" => Ordering::is_ne,
        "<" | "lt" => Ordering::is_lt,
        "<=" | "le" => Ordering::is_le,
        ">" | "gt" => Ordering::is_gt,
        ">=" | "ge" => Ordering::is_ge,
        other => {
            return Err(format!("`{other}` is not a comparison of versions; there are ==, !=, <, <=, >, >="));
        }
    };
    let (left, right) = (call.text()?, call.text_arg(0, "version")?);
    if left.is_empty() || right.is_empty() {
        return Err("a version is empty".to_owned());
    }
    let strict = call.get(2, "strict").filter(|strict| !matches!(strict, Value::Null));
    let kind = call.get(3, "version_type").filter(|kind| !matches!(kind, Value::Null)).map(Value::to_text);
    if strict.is_some() && kind.is_some() {
        return Err("give `strict` or `version_type`, not both".to_owned());
    }
    let kind = match strict {
        Some(strict) if strict.truthy() => "strict",
        _ => kind.as_deref().unwrap_or("loose"),
    };
    let order = match kind {
        "loose" => loose_order(&left, &right)?,
        "strict" => strict_key(&left)?.cmp(&strict_key(&right)?),
        "semver" | "semantic" => semantic_key(&left)?.cmp(&semantic_key(&right)?),
        "pep440" => python_key(&left)?.cmp(&python_key(&right)?),
        other => return Err(format!("there is no `{other}`; there are loose, strict, semver, pep440")),
    };
    Ok(wanted(order))
}

#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Number(u64),
    Letters(&'a str),
}

/// Splits into runs of digits, runs of small letters, and what is between; points separate.
fn loose_parts(version: &str) -> Vec<Part<'_>> {
    let class = |c: char| match c {
        '.' => 0,
        c if c.is_ascii_digit() => 1,
        c if c.is_ascii_lowercase() => 2,
        _ => 3,
    };
    let mut parts = Vec::new();
    let mut rest = version;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| class(c) != class(first)).unwrap_or(rest.len());
        let (part, left) = rest.split_at(end);
        rest = left;
        match part.parse() {
            Ok(number) if class(first) == 1 => parts.push(Part::Number(number)),
            _ if class(first) == 0 => {}
            _ => parts.push(Part::Letters(part)),
        }
    }
    parts
}

fn loose_order(left: &str, right: &str) -> Result<Ordering, String> {
    let (first, second) = (loose_parts(left), loose_parts(right));
    for (a, b) in first.iter().zip(&second) {
        let order = match (a, b) {
            (Part::Number(a), Part::Number(b)) => a.cmp(b),
            (Part::Letters(a), Part::Letters(b)) => a.cmp(b),
            (Part::Number(number), Part::Letters(letters))
            | (Part::Letters(letters), Part::Number(number)) => {
                return Err(format!(
                    "the versions cannot be compared: `{number}` of one meets `{letters}` of the other"
                ));
            }
        };
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(first.len().cmp(&second.len()))
}

#[expect(clippy::expect_used, reason = "the patterns are constants, and tests use them")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression")
}

static STRICT: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(\d+)\.(\d+)(?:\.(\d+))?(?:([ab])(\d+))?$"));
static SEMANTIC: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")
});
static PYTHON: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?ix)^\s* v? (?:(\d+)!)? (\d+(?:\.\d+)*)
        (?: [-_.]? (alpha|beta|preview|pre|a|b|c|rc) [-_.]? (\d*) )?
        (?: -(\d+) | [-_.]? (?:post|rev|r) [-_.]? (\d*) )?
        (?: [-_.]? dev [-_.]? (?P<dev>\d*) )?
        (?: \+ (?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*) )? \s*$",
    )
});

type Captures<'t> = regex::Captures<'t>;

fn digits(found: &Captures<'_>, index: usize) -> u64 {
    found.get(index).and_then(|group| group.as_str().parse().ok()).unwrap_or(0)
}

/// Returns the sort key of a strict version: its numbers, whether it is final, then letter and number of a
/// pre-release.
fn strict_key(version: &str) -> Result<([u64; 3], bool, String, u64), String> {
    let found =
        STRICT.captures(version).ok_or("a strict version is two or three numbers, as `1.2.3` or `1.2b1`")?;
    let letter = found.get(4).map_or("", |letter| letter.as_str());
    let numbers = [digits(&found, 1), digits(&found, 2), digits(&found, 3)];
    Ok((numbers, letter.is_empty(), letter.to_owned(), digits(&found, 5)))
}

/// Numbers sort before words.
type Identifier = (bool, u64, String);

fn semantic_key(version: &str) -> Result<([u64; 3], bool, Vec<Identifier>), String> {
    let found = SEMANTIC
        .captures(version)
        .ok_or("a semantic version is three numbers, as `1.2.3` or `1.2.3-rc.1`")?;
    let before = found.get(4).map_or("", |before| before.as_str());
    let identifiers = before.split('.').filter(|part| !part.is_empty()).map(|part| match part.parse() {
        Ok(number) => (false, number, String::new()),
        Err(_) => (true, 0, part.to_owned()),
    });
    Ok(([digits(&found, 1), digits(&found, 2), digits(&found, 3)], before.is_empty(), identifiers.collect()))
}

/// Epoch, release without trailing zeros, pre-release, post-release, dev-release, local version.
type PythonKey = (u64, Vec<u64>, (u8, u64), Option<u64>, (bool, u64), Vec<(bool, u64, String)>);

fn python_key(version: &str) -> Result<PythonKey, String> {
    let found = PYTHON.captures(version).ok_or("it is not a version of a Python package (PEP 440)")?;
    let group = |index: usize| found.get(index).map(|group| group.as_str().to_ascii_lowercase());
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let mut release: Vec<u64> = group(2).unwrap_or_default().split('.').map(number).collect();
    while release.len() > 1 && release.last() == Some(&0) {
        release.pop();
    }
    let post = group(5).or_else(|| group(6)).map(|text| number(&text));
    let dev = found.name("dev").map(|dev| number(dev.as_str()));
    let stage = match group(3).as_deref() {
        Some("a" | "alpha") => 1,
        Some("b" | "beta") => 2,
        Some(_) => 3,
        // A dev-release of the release itself comes before its alphas.
        None if post.is_none() && dev.is_some() => 0,
        None => 4,
    };
    let stage = (stage, group(4).map_or(0, |text| number(&text)));
    let local = found.name("local").map_or_else(Vec::new, |local| {
        let part = |part: &str| match part.parse() {
            Ok(number) => (true, number, String::new()),
            Err(_) => (false, 0, part.to_ascii_lowercase()),
        };
        local.as_str().split(['-', '_', '.']).map(part).collect()
    });
    Ok((digits(&found, 1), release, stage, post, (dev.is_none(), dev.unwrap_or(0)), local))
}
