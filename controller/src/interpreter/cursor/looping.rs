//! A task's loop: its items, also those that a lookup gives (`with_dict`, `with_nested` and the like), and its variables.

use std::sync::Arc;

use crate::event::UNMET;
use crate::playbook::{Condition, Loop, Task};
use crate::template::inert::{self, Guard};
use crate::template::{self, Dict, Scope, Teller, TemplateError, Truth, Value};

pub(super) const NO_ITEMS: &str = "the loop has no items";
pub(super) const LOOP_UNKNOWN: &str = "has a loop that hangs on the result of another task";

/// The items of a task's loop.
pub(super) enum LoopItems {
    None,
    These(Vec<Value>),
    Skip(String),
    Possible,
    Fail(String),
}

/// The items of a task; `scope` is what it sees before its loop.
pub(super) fn loop_items(task: &Task, scope: &Arc<Scope>) -> LoopItems {
    let Some(looped) = &task.looped else { return LoopItems::None };
    if let Some(name) = &looped.lookup {
        return looked_up(name, looped, task, scope);
    }
    let items = match template::resolve(&looped.items, scope) {
        Ok(Value::List(list)) => list.items().to_vec(),
        Ok(Value::Unknown) => return LoopItems::Possible,
        Ok(other) if looped.flatten => vec![other],
        Ok(other) => return LoopItems::Fail(format!("`loop` wants a list, got {}", other.kind())),
        // Why: as in Ansible, a condition may guard a loop over something that is not there.
        Err(error) => {
            return match Condition::all(&task.when, scope) {
                Ok(Truth::False) => LoopItems::Skip(UNMET.to_owned()),
                _ => LoopItems::Fail(format!("`loop`: {error}")),
            };
        }
    };
    let items: Vec<Value> = if looped.flatten {
        items
            .into_iter()
            .flat_map(|item| match item {
                Value::List(list) => list.items().to_vec(),
                other => vec![other],
            })
            .collect()
    } else {
        items
    };
    let items = Value::kept(&items);
    if items.is_empty() { LoopItems::Skip(NO_ITEMS.to_owned()) } else { LoopItems::These(items) }
}

/// The loop's variables for one item.
pub(super) fn item_layer(looped: &Loop, index: usize, value: &Value, items: Option<&[Value]>) -> Arc<Dict> {
    let mut layer = Dict::default();
    layer.insert(Arc::clone(&looped.variable), value.clone());
    layer.insert("ansible_loop_var", Value::str(&looped.variable));
    if let Some(name) = &looped.index_variable {
        layer.insert(Arc::clone(name), Value::Int(i64::try_from(index).unwrap_or(i64::MAX)));
    }
    if let Some(items) = items.filter(|_| looped.extended) {
        layer.insert("ansible_loop", whole_loop(items, index));
    }
    Arc::new(layer)
}

/// The items of the loop `with_name` of a task.
fn looked_up(name: &str, looped: &Loop, task: &Task, scope: &Arc<Scope>) -> LoopItems {
    match checked_terms(name, &looped.items, scope).and_then(|terms| {
        terms.map_or(Ok(None), |terms| template::loop_over(name, terms, task.kind.name, scope))
    }) {
        Ok(None) => LoopItems::Possible,
        Ok(Some(items)) if items.is_empty() => LoopItems::Skip(NO_ITEMS.to_owned()),
        Ok(Some(items)) => LoopItems::These(Value::kept(&items)),
        // Why: as in Ansible, a condition may guard a loop over something that is not there.
        Err(error) => match Condition::all(&task.when, scope) {
            Ok(Truth::False) => LoopItems::Skip(UNMET.to_owned()),
            _ => LoopItems::Fail(format!("`with_{name}`: {error}")),
        },
    }
}

/// The same as [`terms`], but an error if something that a node said would act on the controller.
fn checked_terms(
    name: &str,
    written: &Value,
    scope: &Arc<Scope>,
) -> Result<Option<Vec<Value>>, TemplateError> {
    let Some(guard) = template::guard_of(name) else { return terms(name, written, scope) };
    let tellers: &[Teller] = if guard == Guard::Shell { &Teller::ALL } else { &Teller::OF_NODES };
    let Some(masked) = scope.masked(guard, tellers) else { return terms(name, written, scope) };
    let asked = match guard {
        Guard::Shell => inert::line(|| terms(name, written, scope)),
        _ => terms(name, written, scope),
    };
    let Some(asked) = asked? else { return Ok(None) };
    let shown =
        inert::masked_text(guard, || terms(name, written, &masked)).ok().flatten().unwrap_or_default();
    template::check_terms(guard, &asked, &shown)?;
    Ok(Some(asked))
}

/// The lookup's terms, rendered; none if they are not known yet.
fn terms(name: &str, written: &Value, scope: &Arc<Scope>) -> Result<Option<Vec<Value>>, TemplateError> {
    let whole = match written {
        // Why: as in Ansible, `with_first_found` leaves out names that use an undefined variable.
        Value::List(list) if name == "first_found" => {
            let there = |item: &Value| match template::resolve(item, scope) {
                Err(error) if error.undefined_name().is_some() => None,
                other => Some(other),
            };
            Value::list(list.items().iter().filter_map(there).collect::<Result<_, _>>()?)
        }
        written => template::resolve(written, scope)?,
    };
    if whole.has_unknown() {
        return Ok(None);
    }
    Ok(Some(match &whole {
        Value::List(list) => list.items().to_vec(),
        _ => vec![whole],
    }))
}

/// `ansible_loop`: where an item stands among all.
fn whole_loop(items: &[Value], index: usize) -> Value {
    let int = |number: usize| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let left = items.len().saturating_sub(index);
    let mut told: Vec<(&str, Value)> = vec![
        ("allitems", Value::list(items.to_vec())),
        ("index", int(index + 1)),
        ("index0", int(index)),
        ("first", Value::Bool(index == 0)),
        ("last", Value::Bool(left == 1)),
        ("length", int(items.len())),
        ("revindex", int(left)),
        ("revindex0", int(left.saturating_sub(1))),
    ];
    if let Some(before) = index.checked_sub(1).and_then(|before| items.get(before)) {
        told.push(("previtem", before.clone()));
    }
    if let Some(behind) = items.get(index + 1) {
        told.push(("nextitem", behind.clone()));
    }
    Value::map(told)
}
