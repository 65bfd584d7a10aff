//! Versions, compared as Ansible's default (Python's LooseVersion) does.

use std::cmp::Ordering;

use super::{Call, Test};
use crate::template::value::Value;

pub(super) const TESTS: &[(&str, Test)] = &[("version", compare), ("version_compare", compare)];

fn compare(call: &Call) -> Result<bool, String> {
    let operator = call.get(1, "operator").map_or_else(|| "==".to_owned(), Value::to_text);
    let order = order(&call.text()?, &call.text_arg(0, "version")?);
    Ok(match operator.as_str() {
        "==" | "=" | "eq" => order.is_eq(),
        "!=" | "<>" | "ne" => order.is_ne(),
        "<" | "lt" => order.is_lt(),
        "<=" | "le" => order.is_le(),
        ">" | "gt" => order.is_gt(),
        ">=" | "ge" => order.is_ge(),
        other => return Err(format!("`{other}` is not a comparison of versions")),
    })
}

fn order(left: &str, right: &str) -> Ordering {
    let (left, right) = (parts(left), parts(right));
    for index in 0..left.len().max(right.len()) {
        let order = match (left.get(index), right.get(index)) {
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Greater,
                (Err(_), Ok(_)) => Ordering::Less,
                (Err(_), Err(_)) => a.cmp(b),
            },
            (Some(_), None) => Ordering::Greater,
            (None, Some(_)) => Ordering::Less,
            (None, None) => Ordering::Equal,
        };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// Runs of digits and runs of letters.
fn parts(version: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut last = None;
    for c in version.trim().trim_start_matches('v').chars() {
        let class = if c.is_ascii_digit() {
            Some(true)
        } else if c.is_alphabetic() {
            Some(false)
        } else {
            None
        };
        match (class, parts.last_mut()) {
            (None, _) => {}
            (class, Some(part)) if class == last => part.push(c),
            _ => parts.push(c.to_string()),
        }
        last = class;
    }
    parts
}
