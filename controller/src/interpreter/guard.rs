//! Keeps what nodes said from acting, through the parameters of a task, where the node itself is not.
//!
//! Owns which parameters are lines for a shell and which are paths of the controller. [`inert`] owns what acts in them.

use std::sync::Arc;

use gpufleet_protocol::tasks::{
    Class, Copy, Fetch, IncludeRole, IncludeTasks, IncludeVars, Script, Template, Unarchive,
};

use crate::playbook::Task;
use crate::template::inert::{self, Guard};
use crate::template::{self, Scope, Teller, TemplateError, Value};

/// Where a task is done, as seen from the host that it is a task of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doer {
    /// That host.
    Host,
    /// That host, which is the controller.
    Controller,
    /// The host that it is delegated to.
    Delegate,
}

impl Doer {
    /// Whose text a shell of the doer must not interpret. Why none on the host itself: what one node printed may be meant for
    /// another, such as the line with which it joins a cluster, and it is the play that says so.
    const fn strangers(self) -> &'static [Teller] {
        match self {
            Self::Host => &[],
            Self::Controller => &[Teller::Others],
            Self::Delegate => &Teller::ALL,
        }
    }
}

/// The value of a parameter.
///
/// # Errors
/// Those of the template, and a value in which the text of a node would act.
pub(super) fn resolve(
    task: &Task,
    name: &str,
    value: &Value,
    scope: &Arc<Scope>,
    doer: Doer,
) -> Result<Value, TemplateError> {
    if task.kind.class == Class::Command
        && name == "cmd"
        && let Some(masked) = scope.masked(Guard::Shell, doer.strangers())
    {
        let line = inert::line(|| template::resolve(value, scope))?;
        return guarded(Guard::Shell, line, value, &masked);
    }
    if is_path(task, name) { path(value, scope) } else { template::resolve(value, scope) }
}

/// A path of the controller.
///
/// # Errors
/// Those of the template, and a path that the text of a node leads elsewhere.
pub(super) fn path(value: &Value, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    let resolved = template::resolve(value, scope)?;
    match scope.masked(Guard::Path, &Teller::OF_NODES) {
        Some(masked) => guarded(Guard::Path, resolved, value, &masked),
        None => Ok(resolved),
    }
}

fn guarded(
    guard: Guard,
    resolved: Value,
    written: &Value,
    masked: &Arc<Scope>,
) -> Result<Value, TemplateError> {
    if resolved.has_unknown() {
        return Ok(resolved);
    }
    // Why no error of its own: a template that fails with marks in it cannot be compared.
    let shown = inert::masked_text(guard, || template::resolve(written, masked));
    let shown = shown.map_or_else(|_| Vec::new(), |shown| vec![shown]);
    template::check_terms(guard, std::slice::from_ref(&resolved), &shown)?;
    Ok(resolved)
}

/// Checks that no node chose the controller to do a task.
///
/// # Errors
/// If the text of a node is in the name of the host.
pub(super) fn not_said(host: &Value, scope: &Arc<Scope>) -> Result<(), &'static str> {
    let Some(masked) = scope.masked(Guard::All, &Teller::OF_NODES) else { return Ok(()) };
    match inert::masked_text(Guard::All, || template::resolve(host, &masked)) {
        Ok(shown) if !inert::is_said(&shown.to_text()) => Ok(()),
        _ => Err(
            "a node chose the controller with what it said; name the controller in the playbook or inventory",
        ),
    }
}

/// Whether a parameter is a path of the controller.
fn is_path(task: &Task, name: &str) -> bool {
    let kind = &task.kind;
    let of_controller = || !task.params.get("remote_src").is_some_and(|flag| flag.value.truthy());
    match name {
        "src" => kind.is::<Template>() || (kind.is::<Copy>() || kind.is::<Unarchive>()) && of_controller(),
        "cmd" => kind.is::<Script>(),
        "dest" => kind.is::<Fetch>(),
        "file" => kind.is::<IncludeVars>() || kind.is::<IncludeTasks>(),
        "dir" => kind.is::<IncludeVars>(),
        "name" | "tasks_from" | "vars_from" | "defaults_from" | "handlers_from" => kind.is::<IncludeRole>(),
        _ => false,
    }
}
