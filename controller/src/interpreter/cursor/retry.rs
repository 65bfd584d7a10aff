//! Trying an item again: `until`, `retries`, `delay`, and loops that end early.

use std::sync::Arc;

use serde_json::Value as Json;

use super::Cursor;
use super::judge::hide;
use super::state::{Failure, ItemEnd, Reach};
use super::task::Raw;
use crate::event::TaskStatus as Status;
use crate::interpreter::action::Mode;
use crate::playbook::{Condition, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

impl Cursor {
    /// How often the item may be tried, where it may be tried again at all.
    pub(super) fn tries(&self, task: &Task, scope: &Arc<Scope>, raw: &Raw) -> Result<Option<Tries>, String> {
        let Some(retry) = &task.retry else { return Ok(None) };
        let status = raw.status.unwrap_or(Status::Failed);
        let judged = matches!(status, Status::Ok | Status::Changed | Status::Failed | Status::Unknown);
        if self.mode == Mode::Predict || !judged {
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
            // Why: as in Ansible, what is tried once is not asked whether it is to be tried again.
            return Ok(None);
        }
        let delay = number(&retry.delay, "delay", 5.0)?;
        Ok(Some(Tries { most: whole(retries).saturating_add(1), delay_s: whole(delay).into() }))
    }

    /// Whether `until` holds.
    pub(super) fn succeeded(&self, task: &Task, scope: &Arc<Scope>, end: &ItemEnd) -> Result<bool, String> {
        let until = task.retry.as_ref().map(|retry| retry.until.as_slice()).unwrap_or_default();
        if until.is_empty() {
            return Ok(end.report.status != Status::Failed);
        }
        let scope = self.with_result(task, scope, &end.result);
        let holds = Condition::all(until, &scope);
        holds
            .map(|truth| truth == Truth::True)
            .map_err(|(condition, error)| format!("`until: {}`: {error}", condition.text))
    }

    /// Whether `break_when` ends the loop behind this item.
    pub(super) fn breaks(&self, task: &Task, scope: &Arc<Scope>, end: &ItemEnd) -> Result<bool, String> {
        let conditions = task.looped.as_ref().map(|looped| looped.break_when.as_slice()).unwrap_or_default();
        if conditions.is_empty() || self.mode == Mode::Predict {
            return Ok(false);
        }
        let scope = self.with_result(task, scope, &end.result);
        Condition::all(conditions, &scope)
            .map(|truth| truth == Truth::True)
            .map_err(|(condition, error)| format!("`break_when: {}`: {error}", condition.text))
    }

    /// Makes a failure of an item that was tried often enough.
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
            // Why: as in Ansible, the task's own word on what is a failure is the last one.
            end.report.data.insert("attempts".to_owned(), Json::from(attempts));
            return;
        }
        if task.no_log {
            // Why again: what `until` says of itself may name what it looked at.
            hide(&mut end.report);
        }
        end.report.data.insert("attempts".to_owned(), Json::from(attempts));
        if matches!(&end.result, Value::Map(result) if matches!(result.get("changed"), Some(Value::Bool(true))))
        {
            end.report.data.insert("changed".to_owned(), Json::Bool(true));
        }
        end.report.status = Status::Failed;
        end.report.ignored = Self::ignores_errors(task, scope);
        let why = end.report.message.get_or_insert_with(|| "`until` does not hold".to_owned()).clone();
        end.failure = (!end.report.ignored).then(|| Failure {
            task: end.report.task.clone(),
            message: why,
            reach: Reach::of(task),
            by: Some(Arc::clone(task)),
            result: (!task.no_log).then(|| end.result.clone()),
        });
        end.report.rescued = end.failure.is_some() && self.will_rescue();
    }

    /// The variables of a task with its own result among them.
    pub(super) fn with_result(&self, task: &Task, scope: &Arc<Scope>, result: &Value) -> Arc<Scope> {
        match &task.register {
            Some(name) => {
                let layer: Dict = [(Arc::clone(name), result.clone())].into_iter().collect();
                scope.with(Arc::new(layer))
            }
            None => Arc::clone(scope),
        }
    }
}

/// How often an item may be tried, and how long to wait in between.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    pub most: u32,
    pub delay_s: u64,
}

/// A number that a person wrote as a count.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded right here")]
pub(super) fn whole(number: f64) -> u32 {
    number.clamp(0.0, 1e9).round() as u32
}
