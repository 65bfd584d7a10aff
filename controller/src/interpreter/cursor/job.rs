//! `async` and `poll` of a task on one host.

use std::sync::Arc;

use gpufleet_protocol::lenient::LONGEST_S;

use crate::interpreter::action::{Job, Mode};
use crate::playbook::Task;
use crate::template::{self, Scope, Value};

/// Seconds between two looks where the task does not say.
const POLL_S: u64 = 15;

/// How an item goes on by itself on the node, if it does. A prediction treats it as any other item.
///
/// # Errors
/// Why `async` or `poll` has no value.
pub(super) fn job(task: &Task, scope: &Arc<Scope>, mode: Mode) -> Result<Option<Job>, String> {
    let Some(asked) = task.job.as_ref().filter(|_| mode == Mode::Apply) else { return Ok(None) };
    let limit_s = seconds("async", &asked.seconds, scope)?;
    if limit_s == 0 {
        return Ok(None);
    }
    let poll_s = match &asked.poll {
        Some(poll) => seconds("poll", poll, scope)?,
        None => POLL_S,
    };
    // Why only then: as in Ansible, `timeout` bounds how long the task is waited for.
    let bound = task.timeout_s.filter(|timeout| poll_s > 0 && *timeout > 0);
    Ok(Some(Job { limit_s: bound.map_or(limit_s, |bound| bound.min(limit_s)), poll_s }))
}

fn seconds(key: &str, value: &Value, scope: &Arc<Scope>) -> Result<u64, String> {
    let value = template::resolve(value, scope).map_err(|error| format!("`{key}`: {error}"))?;
    if matches!(value, Value::Null | Value::Omit) {
        return Ok(if key == "poll" { POLL_S } else { 0 });
    }
    let text = value.to_text();
    let seconds: Result<u64, _> = text.trim().parse();
    seconds
        .map(|seconds| seconds.min(LONGEST_S))
        .map_err(|_| format!("`{key}` wants a whole number of seconds from 0, got \"{text}\""))
}
