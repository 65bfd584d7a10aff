//! Trying an item again: `until`, `retries`, `delay`, and loops that end early.

use std::sync::Arc;

use serde_json::Value as Json;

use super::Cursor;
use super::judge::{hide, ignores_errors};
use super::state::{Failure, ItemEnd, Reach};
use super::task::Raw;
use super::variables::with_result;
use crate::event::TaskStatus as Status;
use crate::interpreter::action::Mode;
use crate::playbook::{Condition, Task};
use crate::template::{self, Scope, Truth, Value};

impl Cursor {
    /// The item was tried often enough: it failed.
    pub(super) fn give_up(&mut self, task: &Arc<Task>, scope: &Arc<Scope>, attempts: u32, end: &mut ItemEnd) {
        if let Value::Map(result) = &mut end.result {
            let result = Arc::make_mut(result);
            result.insert("failed", Value::Bool(true));
            result.insert("attempts", Value::Int(attempts.into()));
        }
        let verdict = |name| match &end.result {
            Value::Map(result) => result.get(name).cloned(),
            _ => None,
        };
        if matches!(verdict("failed_when_result"), Some(Value::Bool(false))) {
            // Why: as in Ansible, `failed_when` of the task has the last word.
            end.report.data.insert("attempts".to_owned(), Json::from(attempts));
            return;
        }
        if task.no_log {
            // Why again: the error of `until` may show the values that it looked at.
            hide(&mut end.report);
        }
        end.report.data.insert("attempts".to_owned(), Json::from(attempts));
        if matches!(&end.result, Value::Map(result) if matches!(result.get("changed"), Some(Value::Bool(true))))
        {
            end.report.data.insert("changed".to_owned(), Json::Bool(true));
        }
        end.report.status = Status::Failed;
        end.report.ignored = ignores_errors(task, scope);
        let why = end.report.message.get_or_insert_with(|| "`until` does not hold".to_owned()).clone();
        end.failure = (!end.report.ignored).then(|| Failure {
            task: end.report.task.clone(),
            message: why,
            reach: Reach::of(task),
            by: Some(Arc::clone(task)),
            result: (!task.no_log).then(|| end.result.clone()),
        });
        end.report.rescued = end.failure.is_some() && self.frames.will_rescue();
    }
}

/// How often an item may be tried, if it may be tried again at all.
pub(super) fn tries(task: &Task, scope: &Arc<Scope>, raw: &Raw, mode: Mode) -> Result<Option<Tries>, String> {
    let Some(retry) = &task.retry else { return Ok(None) };
    let status = raw.status.unwrap_or(Status::Failed);
    let judged = matches!(status, Status::Ok | Status::Changed | Status::Failed | Status::Unknown);
    if mode == Mode::Predict || !judged {
        return Ok(None);
    }
    let number = |value: &Option<Value>, key: &str, default: f64| match value {
        None => Ok(default),
        Some(value) => {
            let value = template::resolve(value, scope).map_err(|error| format!("`{key}`: {error}"))?;
            let number = value.to_text().trim().parse::<f64>();
            number.map_err(|_| format!("`{key}` wants a number, got {}", value.kind()))
        }
    };
    let retries = number(&retry.retries, "retries", 3.0)?;
    if whole(retries) == 0 {
        // Why: as in Ansible, `until` is not evaluated for a task that is tried once.
        return Ok(None);
    }
    let delay = number(&retry.delay, "delay", 5.0)?;
    Ok(Some(Tries { most: whole(retries).saturating_add(1), delay_s: whole(delay).into() }))
}

/// Whether `until` holds.
pub(super) fn succeeded(task: &Task, scope: &Arc<Scope>, end: &ItemEnd) -> Result<bool, String> {
    let until = task.retry.as_ref().map(|retry| retry.until.as_slice()).unwrap_or_default();
    if until.is_empty() {
        return Ok(end.report.status != Status::Failed);
    }
    let scope = with_result(task, scope, &end.result);
    let holds = Condition::all(until, &scope);
    holds
        .map(|truth| truth == Truth::True)
        .map_err(|(condition, error)| format!("`until: {}`: {error}", condition.text))
}

/// Whether `break_when` ends the loop after this item.
pub(super) fn breaks(task: &Task, scope: &Arc<Scope>, end: &ItemEnd, mode: Mode) -> Result<bool, String> {
    let conditions = task.looped.as_ref().map(|looped| looped.break_when.as_slice()).unwrap_or_default();
    if conditions.is_empty() || mode == Mode::Predict {
        return Ok(false);
    }
    let scope = with_result(task, scope, &end.result);
    Condition::all(conditions, &scope)
        .map(|truth| truth == Truth::True)
        .map_err(|(condition, error)| format!("`break_when: {}`: {error}", condition.text))
}

/// How often an item may be tried, and how long to wait in between.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    pub most: u32,
    pub delay_s: u64,
}

/// A number of a playbook as a count.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded right here")]
pub(super) fn whole(number: f64) -> u32 {
    number.clamp(0.0, 1e9).round() as u32
}
