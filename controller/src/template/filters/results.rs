//! What `register` keeps: did it fail, change, get skipped.

use super::{Call, Test};
use crate::template::value::Value;

pub(super) const TESTS: &[(&str, Test)] = &[
    ("failed", |call| flag(call, "failed")),
    ("failure", |call| flag(call, "failed")),
    ("succeeded", |call| flag(call, "failed").map(|failed| !failed)),
    ("success", |call| flag(call, "failed").map(|failed| !failed)),
    ("successful", |call| flag(call, "failed").map(|failed| !failed)),
    ("changed", |call| flag(call, "changed")),
    ("change", |call| flag(call, "changed")),
    ("skipped", |call| flag(call, "skipped")),
    ("skip", |call| flag(call, "skipped")),
    ("unreachable", |call| flag(call, "unreachable")),
    ("reachable", |call| flag(call, "unreachable").map(|gone| !gone)),
    ("started", |call| flag(call, "started")),
    ("finished", |call| flag(call, "finished")),
];

fn flag(call: &Call, name: &str) -> Result<bool, String> {
    match call.value() {
        Value::Map(result) => Ok(result.get(name).is_some_and(Value::truthy)),
        Value::Unknown => Ok(false),
        other => Err(format!("the result of a task is needed, this is {}", other.kind())),
    }
}
