//! Failures: where they lead to, and what a rescue is told of them.

use std::sync::Arc;

use super::Cursor;
use super::state::{Active, BlockPart, Failure, Frame, PlayStage, Reach};
use crate::playbook::Task;
use crate::template::{self, Dict, Value};

impl Cursor {
    /// Unwinds to what takes care of the failure. If nothing does, the host failed.
    pub(super) fn fail(&mut self, mut failure: Failure) {
        self.passes.drop_due();
        if failure.reach == Reach::Raised {
            let at = self.setup.is_linear().then(|| self.frames.position());
            self.others.raise(self.frames.end_of_caught(), at);
        }
        while let Some(frame) = self.frames.pop() {
            let (block, part) = match frame {
                Frame::Block { block, part, failure: before } => {
                    // Why: an `always` that fails too takes nothing back.
                    if failure.reach == Reach::Here && before.is_some_and(|before| before.reach.ends_all()) {
                        failure.reach = Reach::Copied;
                    }
                    (block, part)
                }
                Frame::Task(active) => {
                    // Why: the items that were done are told, although their loop does not end.
                    let Active { task, round, items, reports, .. } = *active;
                    self.settle(&task, round, items.is_some(), reports);
                    continue;
                }
                _ => continue,
            };
            match part {
                BlockPart::Body if !block.rescue.is_empty() => {
                    // Why: as in Ansible, what failed on another host is not named here.
                    if failure.reach != Reach::Elsewhere {
                        self.tell_rescue(&failure);
                    }
                    self.frames.push_block(block, BlockPart::Rescue, None);
                    return;
                }
                BlockPart::Body | BlockPart::Rescue => {
                    self.frames.push_block(block, BlockPart::Always, Some(failure));
                    return;
                }
                BlockPart::Always => {}
            }
        }
        // Why: a host at its end comes to no barrier; the others are told of its end.
        self.others.take_owed_barrier();
        self.passes.drop_verification();
        let first = self.ending.fail(failure);
        self.frames.set_stage(PlayStage::Finish);
        if first && self.setup.play.force_handlers {
            self.flush_handlers();
        }
    }

    /// A part of the block on top is over.
    pub(super) fn end_part(&mut self) {
        let Some(Frame::Block { block, part, failure }) = self.frames.pop() else { return };
        match part {
            BlockPart::Body | BlockPart::Rescue => self.frames.push_block(block, BlockPart::Always, failure),
            BlockPart::Always => {
                if let Some(failure) = failure {
                    // Why: the others heard of it when it happened.
                    let heard = self.others.take_news();
                    self.fail(failure);
                    self.others.restore_news(heard);
                }
            }
        }
    }

    /// `ansible_failed_task` and `ansible_failed_result` for the rescue.
    fn tell_rescue(&mut self, failure: &Failure) {
        let name = failure.task.rsplit(" : ").next().unwrap_or(&failure.task);
        let task = match &failure.by {
            Some(task) => self.failed_task(task, name),
            None => Value::map([("name", Value::str(name))]),
        };
        self.variables.set_failure(failure, task);
    }

    /// What a rescue sees of a task, as in Ansible. Keys that the playbook does not set are left out, but for the common ones.
    fn failed_task(&self, task: &Task, name: &str) -> Value {
        let scope = self.scope(task, None);
        let rendered = |value: &Value| template::resolve(value, &scope).unwrap_or_else(|_| value.clone());
        let words = |words: &[String]| Value::list(words.iter().map(Value::str).collect());
        let args: Dict = match task.no_log {
            true => Dict::default(),
            false => {
                let entries = task.params.entries.iter();
                entries.map(|entry| (Arc::clone(&entry.name), rendered(&entry.value))).collect()
            }
        };
        let vars: Dict = task
            .vars
            .iter()
            .flat_map(|vars| vars.iter())
            .map(|(k, v)| (Arc::clone(k), rendered(v)))
            .collect();
        let when = task.when.iter().map(|condition| match &*condition.text {
            "true" | "True" => Value::Bool(true),
            text => Value::str(text),
        });
        let optional = |value: Option<Value>| value.unwrap_or(Value::Null);
        Value::map([
            ("name", Value::str(name)),
            ("action", Value::str(task.kind.name)),
            ("args", Value::Map(Arc::new(args))),
            ("tags", words(&task.tags)),
            ("vars", Value::Map(Arc::new(vars))),
            ("when", Value::list(when.collect())),
            ("register", optional(task.register.as_deref().map(Value::str))),
            ("loop", optional(task.looped.as_ref().map(|looped| rendered(&looped.items)))),
            ("notify", optional((!task.notify.is_empty()).then(|| Value::list(task.notify.clone())))),
            ("delegate_to", optional(task.delegate_to.as_ref().map(rendered))),
            ("no_log", Value::Bool(task.no_log)),
            ("run_once", if task.run_once { Value::Bool(true) } else { Value::Null }),
            ("any_errors_fatal", Value::Bool(task.any_errors_fatal)),
            (
                "timeout",
                Value::Int(task.timeout_s.and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0)),
            ),
        ])
    }
}
