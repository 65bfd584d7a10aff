//! Keeps what nodes said from acting, through the parameters of a task, where the node itself is not.
//!
//! Owns which parameters are lines for a shell and which are paths of the controller. [`inert`] owns what acts in them.

use std::sync::Arc;

use gpufleet_protocol::tasks::{
    Class, Copy, Fetch, IncludeRole, IncludeTasks, IncludeVars, Script, Template, Unarchive,
};

use super::files::{FileContent, FileKind, Files};
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
    if is_path(task, name, scope) { path(value, scope) } else { template::resolve(value, scope) }
}

/// A path of the controller.
///
/// # Errors
/// Those of the template, and a path that the text of a node leads elsewhere.
pub(super) fn path(value: &Value, scope: &Arc<Scope>) -> Result<Value, TemplateError> {
    let resolved = template::resolve(value, scope)?;
    // Why first: a copy of all variables for each host would cost more than the rest of the task.
    if !inert::leads_out(&resolved.to_text()) {
        return Ok(resolved);
    }
    match scope.masked(Guard::Path, &Teller::OF_NODES) {
        Some(masked) => guarded(Guard::Path, resolved, value, &masked),
        None => Ok(resolved),
    }
}

/// Reads a file of the controller that may hold templates.
///
/// # Errors
/// It is not there, or a node sent it.
pub(super) fn read(
    files: &dyn Files,
    kind: FileKind,
    search: &[String],
    name: &str,
) -> Result<FileContent, String> {
    let file = files.read(kind, search, name)?;
    match kind != FileKind::File && files.is_fetched(&file.path) {
        true => Err(format!("{}: {}", file.path, inert::REFUSED_FILE)),
        false => Ok(file),
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
fn is_path(task: &Task, name: &str, scope: &Arc<Scope>) -> bool {
    let kind = &task.kind;
    // What cannot be told counts as the controller's; whether it is a flag at all is told later.
    let of_controller = || {
        let flag = task.params.get("remote_src").map(|flag| template::resolve(&flag.value, scope));
        let text = flag.and_then(Result::ok).map(|flag| flag.to_text().to_ascii_lowercase());
        !text.is_some_and(|text| matches!(&*text, "true" | "yes" | "on" | "1" | "y" | "t"))
    };
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
