//! Variables against what is known before the run.

use std::collections::BTreeSet;

use super::names::{FACTS, MAGIC, Reference, is_fact};
use super::policy::Drain;
use super::program::{Play, Program, Task};
use crate::diagnostic::{Diagnostic, Diagnostics, suggest};
use crate::template::{Value, is_template};

/// Variables that come from outside of the playbook.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Names that any selected host has from the inventory, and those given with `-e`.
    pub variables: BTreeSet<String>,
}

impl Program {
    /// Every use of a variable that cannot exist, in all plays.
    pub fn check_variables(&self, known: &Known) -> Diagnostics {
        let mut errors = Diagnostics::new();
        let mut names: BTreeSet<&str> = known.variables.iter().map(String::as_str).collect();
        names.extend(MAGIC);
        let (mut facts, mut open) = (false, false);
        for play in &self.plays {
            facts |= play.gather_facts;
            // Why: what a task sets lives on in later plays, and a handler may run before a task that is written later.
            for task in play.tasks() {
                names.extend(task.register.as_deref());
                if let Some(role) = &task.role {
                    for layer in [&role.defaults, &role.vars, &role.params, &role.magic] {
                        names.extend(layer.keys());
                    }
                }
                if let Some(spec) =
                    task.params.get("argument_spec").filter(|_| task.kind.name == "validate_argument_spec")
                    && let Value::Map(options) = &spec.value
                {
                    // Why: its own task says which of them are missing.
                    names.extend(options.keys());
                }
                if task.kind.name == "set_fact" {
                    names.extend(task.params.entries.iter().map(|entry| &*entry.name));
                    open |= task.params.entries.iter().any(|entry| is_template(&entry.name));
                }
            }
            for role in &play.roles {
                names.extend(role.exported_defaults.keys());
                names.extend(role.exported_vars.keys());
            }
            names.extend(play.file_names.iter().map(String::as_str));
            let mut here = names.clone();
            here.extend(play.vars.keys());
            here.extend(play.file_vars.keys());
            if facts {
                here.extend(FACTS);
            }
            open |= play.open_names;
            // Why: files that only a host's variables name may give any variable.
            if !open {
                check_play(play, &here, facts, &mut errors);
            }
            check_domain(play, known, &mut errors);
        }
        errors
    }

    /// Every host of a drainer that the inventory does not have.
    pub fn check_logins(&self, is_host: impl Fn(&str) -> bool) -> Diagnostics {
        let mut errors = Diagnostics::new();
        for play in &self.plays {
            let Some((login, span)) = play.policy.drain.login() else { continue };
            if !is_host(login) {
                let program =
                    if matches!(play.policy.drain, Drain::Slurm(_)) { "scontrol" } else { "kubectl" };
                errors.push(
                    Diagnostic::error(format!("the inventory has no host `{login}`"))
                        .at(span.unwrap_or(&play.span))
                        .label(format!("`{program}` is to run there"))
                        .help(format!(
                            "add it to the inventory, or leave `login` out to run `{program}` on this machine"
                        )),
                );
            }
        }
        errors
    }
}

fn check_play(play: &Play, known: &BTreeSet<&str>, facts: bool, errors: &mut Diagnostics) {
    let mut reported: BTreeSet<(String, u32, u32)> = BTreeSet::new();
    let mut check = |references: &[Reference], known: &BTreeSet<&str>| {
        for reference in references {
            let name = reference.name.as_str();
            if reference.guarded || known.contains(name) || facts && is_fact(name) {
                continue;
            }
            let place = (reference.span.file().to_owned(), reference.span.line, reference.span.column);
            if reported.insert(place) {
                errors.push(undefined(reference, known, facts));
            }
        }
    };
    // Why: variables are rendered where they are used, so that a loop's item or a task's own variable may be in sight.
    let mut wide = known.clone();
    for task in play.tasks() {
        local_names(task, &mut wide);
    }
    check(&play.var_references, &wide);
    check(&play.block_references, &wide);
    for task in play.tasks() {
        check(&task.references, known);
    }
}

/// Why not the play's variables: they are the same for every host, and one domain of all hosts bounds nothing.
fn check_domain(play: &Play, known: &Known, errors: &mut Diagnostics) {
    let Some(name) = play.policy.failure_domain.as_deref() else { return };
    if play.policy.failure_domain_is_label || known.variables.contains(name) {
        return;
    }
    let error = Diagnostic::error(format!("no host of the play has the variable `{name}`"))
        .at(play.policy.failure_domain_span.as_ref().unwrap_or(&play.span))
        .label("hosts without it have no failure domain");
    errors.push(match suggest(name, known.variables.iter().map(String::as_str)) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!("set `{name}` for hosts or groups in the inventory")),
    });
}

fn local_names<'a>(task: &'a Task, names: &mut BTreeSet<&'a str>) {
    for vars in &task.vars {
        names.extend(vars.keys());
    }
    if let Some(looped) = &task.looped {
        names.insert(&looped.variable);
        names.extend(looped.index_variable.as_deref());
    }
}

fn undefined(reference: &Reference, known: &BTreeSet<&str>, facts: bool) -> Diagnostic {
    let name = reference.name.as_str();
    let error = Diagnostic::error(format!("the variable `{name}` is not defined"))
        .at(&reference.span)
        .label("no inventory, play or earlier task sets it");
    if !facts && is_fact(name) {
        return error.help("set `gather_facts: true` in the play");
    }
    if name == "item" {
        return error.help("`item` exists in a task with `loop`");
    }
    if matches!(name, "True" | "False" | "None") {
        return error.help(format!("write `{}`", name.to_lowercase()));
    }
    match suggest(name, known.iter().copied()) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!(
            "set it in the inventory or the play, give it with `-e {name}=…`, or use `{name} | default(…)`"
        )),
    }
}
