//! Variables against what is known before the run.

use std::collections::BTreeSet;

use super::names::{FACTS, MAGIC, Reference};
use super::program::{Play, Program, Task};
use crate::diagnostic::{Diagnostic, Diagnostics, suggest};

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
        let mut facts = false;
        for play in &self.plays {
            facts |= play.gather_facts;
            // Why: what a task sets lives on in later plays, and a handler may run before a task that is written later.
            for task in play.tasks() {
                names.extend(task.register.as_deref());
                if task.kind.name == "set_fact" {
                    names.extend(task.params.entries.iter().map(|entry| &*entry.name));
                }
            }
            let mut here = names.clone();
            here.extend(play.vars.keys());
            here.extend(play.file_vars.keys());
            if facts {
                here.extend(FACTS);
            }
            check_play(play, &here, facts, &mut errors);
        }
        errors
    }
}

fn check_play(play: &Play, known: &BTreeSet<&str>, facts: bool, errors: &mut Diagnostics) {
    let mut reported: BTreeSet<(String, u32, u32)> = BTreeSet::new();
    let mut check = |references: &[Reference], known: &BTreeSet<&str>| {
        for reference in references {
            if reference.guarded || known.contains(reference.name.as_str()) {
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
    if !facts && FACTS.contains(&name) {
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
