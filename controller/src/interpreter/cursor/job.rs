//! `async` and `poll` of a task on one host.

use std::sync::Arc;

use gpufleet_protocol::lenient::LONGEST_S;

use super::Cursor;
use crate::interpreter::action::{Job, Mode};
use crate::playbook::Task;
use crate::template::{self, Scope, Value};

/// Seconds between two looks where the task does not say.
const POLL_S: u64 = 15;

impl Cursor {
    /// How the item that is on goes on by itself, where it does. A prediction waits for it as for any other.
    pub(super) fn job(&self, task: &Task, scope: &Arc<Scope>, mode: Mode) -> Result<Option<Job>, String> {
        let Some(wanted) = task.job.as_ref().filter(|_| mode == Mode::Apply) else { return Ok(None) };
        let limit_s = seconds("async", &wanted.seconds, scope)?;
        if limit_s == 0 {
            return Ok(None);
        }
        let poll_s = match &wanted.poll {
            Some(poll) => seconds("poll", poll, scope)?,
            None => POLL_S,
        };
        // Why only then: as in Ansible, a timeout is for as long as the task is waited for.
        let bound = task.timeout_s.filter(|timeout| poll_s > 0 && *timeout > 0);
        Ok(Some(Job { limit_s: bound.map_or(limit_s, |bound| bound.min(limit_s)), poll_s }))
    }
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
