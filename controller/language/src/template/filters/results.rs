//! Tests for registered results: failed, changed, skipped.

use super::{Call, Test};
use crate::template::value::Value;

pub(super) const TESTS: &[(&str, Test)] = &[
    ("failed", |call| flag(call, "failed")),
    ("failure", |call| flag(call, "failed")),
    ("succeeded", |call| flag(call, "failed").map(|failed| !failed)),
    ("success", |call| flag(call, "failed").map(|failed| !failed)),
    ("successful", |call| flag(call, "failed").map(|failed| !failed)),
    ("changed", changed),
    ("change", changed),
    ("skipped", |call| flag(call, "skipped")),
    ("skip", |call| flag(call, "skipped")),
    ("unreachable", |call| flag(call, "unreachable")),
    ("reachable", |call| flag(call, "unreachable").map(|gone| !gone)),
    ("started", |call| flag_or(call, "started", true)),
    ("finished", |call| flag_or(call, "finished", true)),
    ("timedout", |call| match call.value() {
        Value::Map(result) => {
            let period = result.get("timedout").and_then(Value::as_map).and_then(|gone| gone.get("period"));
            Ok(period.is_some_and(Value::truthy))
        }
        _ => flag(call, "timedout"),
    }),
];

fn flag(call: &Call, name: &str) -> Result<bool, String> {
    flag_or(call, name, false)
}

/// Returns a flag of a result, or `or` if the result does not have it.
fn flag_or(call: &Call, name: &str, or: bool) -> Result<bool, String> {
    match call.value() {
        Value::Map(result) => Ok(result.get(name).map_or(or, Value::truthy)),
        Value::Unknown => Ok(false),
        other => Err(format!("the result of a task is needed, this is {}", other.kind())),
    }
}

/// Whether a result has changed; a loop without the flag has changed if one of its items has.
fn changed(call: &Call) -> Result<bool, String> {
    if let Value::Map(result) = call.value()
        && !result.contains("changed")
        && let Some(items) = result.get("results").and_then(Value::as_list)
    {
        let one = |item: &Value| {
            item.as_map().and_then(|item| item.get("changed").cloned()).is_some_and(|found| found.truthy())
        };
        return Ok(items.iter().any(one));
    }
    flag(call, "changed")
}
