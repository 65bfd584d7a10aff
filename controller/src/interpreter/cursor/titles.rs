//! How tasks, and the items of their loops, are named.

use std::sync::Arc;

use crate::playbook::Task;
use crate::template::{self, Scope, Value};

/// The name of a task with its templates rendered, as far as that goes.
pub(super) fn title(task: &Task, scope: &Arc<Scope>) -> String {
    let title = plain_title(task, scope);
    match &task.role {
        Some(role) => format!("{} : {title}", role.name),
        None => title,
    }
}

fn plain_title(task: &Task, scope: &Arc<Scope>) -> String {
    match &task.name {
        None => task.word.to_string(),
        // Why not with a secret: names stand on every screen.
        Some(name) => match template::watch(|| template::resolve(name, scope)) {
            (Ok(Value::Unknown) | Err(_), _) | (_, true) => match name {
                Value::Secret(_) => task.word.to_string(),
                name => name.to_text(),
            },
            (Ok(name), false) => name.to_text(),
        },
    }
}

/// The name of an item of a task's loop.
pub(super) fn item_label(task: &Task, value: &Value, scope: &Arc<Scope>) -> String {
    if task.no_log {
        return "(hidden)".to_owned();
    }
    let label = task.looped.as_ref().and_then(|looped| looped.label.as_ref());
    label.and_then(|label| template::resolve(label, scope).ok()).unwrap_or_else(|| value.clone()).to_text()
}
