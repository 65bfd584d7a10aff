//! The end of a task: its conditions judge the result, `register` keeps it, `notify` names handlers.

use std::sync::Arc;

use gpufleet_protocol::tasks::Class;
use serde_json::{Map, Value as Json};

use super::state::{Failure, Frame, ItemEnd, Reach};
use super::task::Raw;
use super::titles::title;
use super::variables::with_result;
use super::{Copied, Cursor};
use crate::event::{TaskReport, TaskStatus as Status, UNMET};
use crate::interpreter::action::{Mode, Phase, position};
use crate::playbook::{Condition, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

impl Cursor {
    /// Applies `changed_when`, `failed_when` and `ignore_errors`.
    pub(super) fn judge(
        &mut self,
        task: &Arc<Task>,
        scope: &Arc<Scope>,
        round: u32,
        item: Option<(u32, String)>,
        mut raw: Raw,
    ) -> ItemEnd {
        // Why without the item: as in Ansible, a loop has one name, and items are named beside it.
        let title = match item {
            Some(_) => title(task, &self.scope(task, None)),
            None => title(task, scope),
        };
        let mut status = raw.status.unwrap_or(Status::Failed);
        let mut message = raw.message;
        let judged = !matches!(status, Status::Skipped | Status::Unreachable | Status::Held);
        if judged {
            let (mut failed, mut changed) = (Ok(None), Ok(None));
            if task.failed_when.is_some() || task.changed_when.is_some() {
                let result = result_of(status, message.as_deref(), &raw.data);
                let scope = with_result(task, scope, &result);
                failed = verdict(task.failed_when.as_deref(), &scope, "failed_when");
                changed = verdict(task.changed_when.as_deref(), &scope, "changed_when");
            }
            // Why: as in Ansible, what failed may have changed something too.
            let did_change = match &changed {
                Ok(Some(Truth::True)) => true,
                Ok(Some(Truth::False)) => false,
                _ => did_change(status, &raw.data),
            };
            match (failed, changed) {
                (Err(error), _) | (_, Err(error)) => {
                    status = Status::Failed;
                    message = Some(error);
                }
                // Why: what a prediction does not run stays possible, whatever its conditions say.
                _ if status == Status::Possible => {}
                (Ok(Some(Truth::Unknown)), _) | (_, Ok(Some(Truth::Unknown))) => status = Status::Possible,
                (Ok(failed), Ok(changed)) => {
                    status = match (failed, changed, status) {
                        (Some(Truth::True), ..) => {
                            let why = "failed_when holds".to_owned();
                            message =
                                Some(message.map_or(why.clone(), |message| format!("{message} ({why})")));
                            Status::Failed
                        }
                        (None, _, Status::Failed) => Status::Failed,
                        (_, _, Status::Unknown) => Status::Unknown,
                        (_, Some(Truth::True), _) => Status::Changed,
                        (_, Some(Truth::False), _) => Status::Ok,
                        (Some(_), None, Status::Failed) if raw.changes.is_empty() => {
                            // Why: a command that ran counts as changed, even if its exit code is accepted.
                            if task.kind.class == Class::Command { Status::Changed } else { Status::Ok }
                        }
                        (Some(_), None, Status::Failed) => Status::Changed,
                        (_, None | Some(Truth::Unknown), status) => status,
                    };
                }
            }
            if task.failed_when.is_some() && status != Status::Possible {
                raw.data.insert("failed_when_result".to_owned(), Json::Bool(status == Status::Failed));
            }
            raw.data.remove("changed");
            if did_change && status == Status::Failed {
                raw.data.insert("changed".to_owned(), Json::Bool(true));
            }
        }
        let result = result_of(status, message.as_deref(), &raw.data);
        if status == Status::Failed && task.kind.class == Class::Command {
            message = message.map(|message| with_output(message, &raw.data));
        }
        let failed = status == Status::Failed;
        let ignored =
            failed && ignores_errors(task, scope) || status == Status::Unreachable && task.ignore_unreachable;
        let text = message.clone().unwrap_or_else(|| "failed".to_owned());
        let failure = (failed && !ignored).then(|| Failure {
            task: title.clone(),
            message: if task.no_log { "failed; `no_log` hides why".to_owned() } else { text },
            reach: Reach::of(task),
            by: Some(Arc::clone(task)),
            result: (!task.no_log).then(|| result.clone()),
        });
        let index = item.as_ref().map(|(index, _)| *index);
        let mut report = TaskReport {
            ignored,
            rescued: failure.is_some() && self.frames.will_rescue(),
            message,
            changes: raw.changes,
            awaiting: raw.awaiting,
            blockers: raw.blockers,
            item: item.map(|(_, label)| label),
            warnings: raw.warnings.into_iter().chain(self.reports.take_warnings()).collect(),
            data: raw.data,
            ..self.report(task, title, index, round, status)
        };
        if task.no_log {
            hide(&mut report);
        }
        if status == Status::Unknown {
            let reason = report.message.as_deref().unwrap_or("not readable");
            self.ending.note_unknown(&report.task, reason);
        }
        let notify = match status {
            Status::Changed | Status::Ok | Status::Possible => handlers_of(task, scope),
            _ => Ok(Vec::new()),
        };
        ItemEnd { report, result, failure, notify }
    }

    /// A report that says which task it is of, and how that ended.
    fn report(
        &self,
        task: &Task,
        title: String,
        index: Option<u32>,
        round: u32,
        status: Status,
    ) -> TaskReport {
        let id = self.setup.op_id(&task.path, index, Phase::Declared, round);
        TaskReport::new(id, title, task.kind.name, position(&task.span), status)
    }

    /// Ends a task: registers, notifies, reports. Gives the failure that nothing has taken care of yet.
    pub(super) fn settle(
        &mut self,
        task: &Arc<Task>,
        round: u32,
        looped: bool,
        mut ends: Vec<ItemEnd>,
    ) -> Option<Failure> {
        let named: Vec<_> = ends
            .iter_mut()
            .map(|end| {
                let possible = end.report.status == Status::Possible;
                (std::mem::replace(&mut end.notify, Ok(Vec::new())), possible)
            })
            .collect();
        let mut end = match (looped, ends.len()) {
            (false, _) => ends.pop()?,
            (true, _) => self.sum_up(task, round, ends),
        };
        let scope = self.scope(task, None);
        // Why also a job: whoever asks for it by the id that it registers gets the output that the task hides.
        if self.variables.is_sealed(task) || task.no_log && task.job.is_some() {
            end.result = end.result.sealed();
        }
        if let Some(name) = &task.register {
            self.latch.note(task, name, &end.result);
            // Why also jobs: in the run the result has an id, which a prediction does not know.
            // Why not commands that a check ran: all of their result is known.
            let ran = matches!(self.setup.mode_of(task, &scope), Ok(Mode::Apply));
            if !ran
                && self.setup.mode == Mode::Predict
                && (end.report.status == Status::Changed || task.job.is_some())
            {
                self.gaps.leave_open(name);
            }
            self.variables.set(Arc::clone(name), end.result.clone());
        }
        let possible = end.report.status == Status::Possible;
        if end.report.status == Status::Changed || possible {
            let flushing = self.frames.is_flushing();
            // Why all of them: as in Ansible, one item that changed something notifies what any item names.
            let notified = named.into_iter().try_for_each(|(names, perhaps)| match names {
                Ok(names) => self.handlers.notify(&names, possible || perhaps, &scope, flushing),
                Err(message) => Err(message),
            });
            if let Err(message) = notified {
                end.report.status = Status::Failed;
                end.report.message = Some(message.clone());
                let failure = Failure::of(end.report.task.clone(), message);
                end.failure = Some(Failure { reach: Reach::of(task), by: Some(Arc::clone(task)), ..failure });
                end.report.rescued = self.frames.will_rescue();
            }
        }
        self.latch.settle(task, end.failure.is_some());
        // Why: each include was reported by itself.
        if !(looped && task.site.is_some() && end.report.status == Status::Ok) {
            self.reports.push(end.report);
        }
        end.failure
    }

    /// The report of a whole loop.
    pub(super) fn sum_up(&mut self, task: &Arc<Task>, round: u32, ends: Vec<ItemEnd>) -> ItemEnd {
        let has = |status: Status| ends.iter().any(|end| end.report.status == status);
        let mut failure = ends.iter().find_map(|end| end.failure.clone());
        // Why a failure before a loss: a lost item gets here only if the task ignores it.
        let status = [
            Status::Failed,
            Status::Unreachable,
            Status::Held,
            Status::Unknown,
            Status::Changed,
            Status::Possible,
            Status::Ok,
            Status::Skipped,
        ]
        .into_iter()
        .find(|status| has(*status))
        .unwrap_or(Status::Skipped);
        let count = ends.iter().filter(|end| end.report.status == status).count();
        let first = ends.iter().find(|end| end.report.status == status);
        let message = match status {
            Status::Failed | Status::Unreachable | Status::Unknown => first.and_then(|end| {
                let why = end.report.message.clone()?;
                let item = end.report.item.clone().unwrap_or_default();
                Some(format!("{count} of {} items: {item}: {why}", ends.len()))
            }),
            _ => None,
        };
        let ignored = ends.iter().filter(|end| end.report.status == status).all(|end| end.report.ignored);
        let result = if ends.iter().any(|end| matches!(end.result, Value::Unknown)) {
            Value::Unknown
        } else {
            let mut result: Dict = [
                (Arc::from("results"), Value::list(ends.iter().map(|end| end.result.clone()).collect())),
                (Arc::from("changed"), Value::Bool(ends.iter().any(|end| is_true(&end.result, "changed")))),
                (Arc::from("skipped"), Value::Bool(status == Status::Skipped)),
                (
                    Arc::from("msg"),
                    Value::str(match status {
                        _ if has(Status::Failed) => "One or more items failed",
                        Status::Skipped => "All items skipped",
                        _ => "All items completed",
                    }),
                ),
            ]
            .into_iter()
            .collect();
            if has(Status::Failed) {
                result.insert("failed", Value::Bool(true));
            }
            Value::Map(Arc::new(result))
        };
        if let Some(failure) = &mut failure {
            failure.result = (!task.no_log).then(|| result.clone());
        }
        let scope = self.scope(task, None);
        let mut data = Map::new();
        if status == Status::Failed && is_true(&result, "changed") {
            data.insert("changed".to_owned(), Json::Bool(true));
        }
        let mut report = TaskReport {
            ignored,
            rescued: failure.is_some() && self.frames.will_rescue(),
            message,
            data,
            ..self.report(task, title(task, &scope), None, round, status)
        };
        if task.no_log {
            hide(&mut report);
        }
        ItemEnd { report, result, failure, notify: Ok(Vec::new()) }
    }

    /// Another host ran the task: its variables come here too.
    pub(super) fn take_copy(&mut self, copied: Copied) {
        let Some(Frame::Task(active)) = self.frames.pop() else { return };
        self.variables.take_copied(&copied);
        if copied.failed {
            let scope = self.scope(&active.task, None);
            let task = title(&active.task, &scope);
            let failure = Failure::of(task, "it failed on the host that ran it for all".to_owned());
            self.fail(Failure { reach: Reach::Copied, ..failure });
        }
    }
}

/// What `failed_when` or `changed_when` says; none without one.
fn verdict(conditions: Option<&[Condition]>, scope: &Arc<Scope>, key: &str) -> Result<Option<Truth>, String> {
    let Some(conditions) = conditions else { return Ok(None) };
    Condition::all(conditions, scope)
        .map(Some)
        .map_err(|(condition, error)| format!("`{key}: {}`: {error}", condition.text))
}

pub(super) fn ignores_errors(task: &Task, scope: &Arc<Scope>) -> bool {
    matches!(task.ignore_errors.holds(scope), Ok(Truth::True))
}

/// The handlers that a task names, for the item whose variables are in `scope`.
///
/// # Errors
/// Why a template of them has no value.
pub(super) fn handlers_of(task: &Task, scope: &Arc<Scope>) -> Result<Vec<String>, String> {
    let names = task.notify.iter().map(|name| match template::resolve(name, scope) {
        Ok(Value::List(names)) => Ok(names.items().iter().map(Value::to_text).collect()),
        Ok(name) => Ok(vec![name.to_text()]),
        Err(error) => Err(format!("`notify`: {error}")),
    });
    Ok(names.collect::<Result<Vec<Vec<String>>, String>>()?.concat())
}

fn is_true(result: &Value, name: &str) -> bool {
    matches!(result, Value::Map(map) if matches!(map.get(name), Some(Value::Bool(true))))
}

fn did_change(status: Status, data: &Map<String, Json>) -> bool {
    status == Status::Changed || status == Status::Failed && data.get("changed") == Some(&Json::Bool(true))
}

/// What `register` gets.
fn result_of(status: Status, message: Option<&str>, data: &Map<String, Json>) -> Value {
    if status == Status::Possible {
        return Value::Unknown;
    }
    let mut result = Dict::literal(data);
    result.insert("changed", Value::Bool(did_change(status, data)));
    // Why: as in Ansible, what was skipped has no more fields than these.
    let skipped = status == Status::Skipped;
    if skipped {
        result.insert("skipped", Value::Bool(true));
        let reason = match message {
            Some(UNMET) => "Conditional result was False",
            other => other.unwrap_or_default(),
        };
        if !result.contains("skip_reason") && !result.contains("skipped_reason") {
            result.insert("skip_reason", Value::str(reason));
        }
    } else {
        result.insert("failed", Value::Bool(status == Status::Failed));
    }
    if status == Status::Unreachable {
        result.insert("unreachable", Value::Bool(true));
    }
    // Why: what `debug` shows of a variable is found under the variable's name only.
    let told = data.is_empty() || matches!(status, Status::Failed | Status::Unreachable);
    if let Some(message) = message
        && told
        && !skipped
        && !result.contains("msg")
    {
        result.insert("msg", Value::str(message));
    }
    Value::Map(Arc::new(result))
}

/// The message of a command that failed, with the last line that it printed: it mostly gives the reason.
fn with_output(message: String, data: &Map<String, Json>) -> String {
    const LONGEST: usize = 200;
    let last = |name: &str| {
        let text = data.get(name).and_then(Json::as_str)?;
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().take(LONGEST).collect::<String>())
    };
    match last("stderr").or_else(|| last("stdout")) {
        Some(line) if !message.contains(&line) => format!("{message}: {line}"),
        _ => message,
    }
}

/// Takes everything out of a report that `no_log` forbids.
pub(super) fn hide(report: &mut TaskReport) {
    report.data.retain(|name, _| name == "changed");
    report.warnings.clear();
    if report.message.is_some() {
        report.message = Some("hidden by `no_log`".to_owned());
    }
    for change in &mut report.changes {
        change.hide();
    }
    for awaiting in &mut report.awaiting {
        awaiting.hide();
    }
}
