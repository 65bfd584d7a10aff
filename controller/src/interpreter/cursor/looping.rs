//! Loops over what a lookup gives: `with_dict`, `with_nested` and the like.

use std::sync::Arc;

use super::task::Items;
use crate::playbook::{Condition, Loop, Task};
use crate::template::{self, Scope, TemplateError, Truth, Value, inert};

/// The items of the loop `with_name` of a task.
pub(super) fn items(name: &str, looped: &Loop, task: &Task, scope: &Arc<Scope>) -> Items {
    match checked_terms(name, &looped.items, scope).and_then(|terms| {
        terms.map_or(Ok(None), |terms| template::loop_over(name, terms, task.kind.name, scope))
    }) {
        Ok(None) => Items::Possible,
        Ok(Some(items)) if items.is_empty() => Items::Skip("the loop has no items".to_owned()),
        Ok(Some(items)) => Items::These(Value::kept(&items)),
        // Why: as in Ansible, a condition may guard a loop over something that is not there.
        Err(error) => match Condition::all(&task.when, scope) {
            Ok(Truth::False) => Items::Skip("the condition does not hold".to_owned()),
            _ => Items::Fail(format!("`with_{name}`: {error}")),
        },
    }
}

/// The same as [`terms`], where a shell reads nothing in them that a node said.
fn checked_terms(
    name: &str,
    written: &Value,
    scope: &Arc<Scope>,
) -> Result<Option<Vec<Value>>, TemplateError> {
    let masked = template::runs_a_shell(name).then(|| scope.masked()).flatten();
    let Some(masked) = masked else { return terms(name, written, scope) };
    let Some(asked) = inert::line(|| terms(name, written, scope))? else { return Ok(None) };
    let shown = inert::masked_line(|| terms(name, written, &masked)).ok().flatten().unwrap_or_default();
    template::check_lines(&asked, &shown)?;
    Ok(Some(asked))
}

/// What the lookup is asked, rendered; none when it is not known yet.
fn terms(name: &str, written: &Value, scope: &Arc<Scope>) -> Result<Option<Vec<Value>>, TemplateError> {
    let whole = match written {
        // Why: as in Ansible, `with_first_found` leaves out what hangs on a variable that is not there.
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
