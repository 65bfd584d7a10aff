//! Checks variables against what is known before the run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_protocol::tasks::{SetFact, Setup, ValidateArgumentSpec};

use super::drain::Login;
use super::names::{FACTS, MAGIC, Reference, is_fact};
use super::program::{Play, Program, Task};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity, Span, suggest};
use crate::template::{Value, is_template};

/// Variables from outside of the playbook.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Names of the inventory variables of any selected host, and of those given with `-e`.
    pub variables: BTreeSet<String>,
}

impl Program {
    /// Reports each use of an undefined variable in all plays: an error, or a warning if a condition may prevent the
    /// use.
    pub fn check_variables(&self, known: &Known) -> Diagnostics {
        let mut errors = Diagnostics::new();
        let values = Values::of(self, known);
        let mut names: BTreeSet<&str> = known.variables.iter().map(String::as_str).collect();
        names.extend(MAGIC);
        let (mut facts, mut open) = (false, false);
        for play in &self.plays {
            let tasks = play.tasks();
            facts |= play.gather_facts || tasks.iter().any(|task| task.kind.is::<Setup>());
            // What a task sets stays set in later plays, and a handler may run before a task that is written after
            // it.
            for task in &tasks {
                names.extend(set_by(task));
                if let Some(role) = &task.role {
                    for layer in [&role.defaults, &role.vars, &role.params, &role.magic] {
                        names.extend(layer.keys());
                    }
                }
                open |= task.kind.is::<SetFact>()
                    && task.params.entries.iter().any(|entry| is_template(&entry.name));
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
            // Files that are named by a host's variables may define any variable.
            if !open {
                check_play(play, &tasks, &values, &here, facts, &mut errors);
            }
            check_domain(play, known, &mut errors);
        }
        errors
    }

    /// Reports the login hosts of drainers that are not in the inventory.
    pub fn check_logins(&self, is_host: impl Fn(&str) -> bool) -> Diagnostics {
        let mut errors = Diagnostics::new();
        for play in &self.plays {
            let Some(Login { host, span }) = play.policy.drain.login() else { continue };
            if is_host(host) {
                continue;
            }
            let error = Diagnostic::error(format!("the inventory has no host `{host}`")).at(span);
            errors.push(match play.policy.drain.info().program {
                Some(program) => error.label(format!("`{program}` is to run there")).help(format!(
                    "add it to the inventory, or leave `login` out to run `{program}` on this machine"
                )),
                None => error.help("add it to the inventory"),
            });
        }
        errors
    }
}

/// Returns the names that a task sets when it runs.
fn set_by(task: &Task) -> impl Iterator<Item = &str> {
    let set = task
        .kind
        .is::<SetFact>()
        .then(|| task.params.entries.iter().map(|entry| &*entry.name))
        .into_iter()
        .flatten();
    let spec = task.params.get("argument_spec").filter(|_| task.kind.is::<ValidateArgumentSpec>());
    let options = match spec.map(|spec| &spec.value) {
        // The task itself reports which of them are missing.
        Some(Value::Map(options)) => Some(options.keys()),
        _ => None,
    };
    let register = task.register.as_deref().into_iter().chain(task.kind.fact());
    register.chain(set).chain(options.into_iter().flatten())
}

/// All definitions of variables in the program, with the variables that their values use.
struct Values<'a> {
    /// Variables that also have, or may have, a value that uses no other variable.
    settled: BTreeSet<&'a str>,
    /// For each variable and each of its definitions, the uses of other variables in the value.
    asks: BTreeMap<&'a str, Vec<Vec<&'a Reference>>>,
}

impl<'a> Values<'a> {
    fn of(program: &'a Program, known: &'a Known) -> Self {
        let mut settled: BTreeSet<&str> = known.variables.iter().map(String::as_str).collect();
        let mut asks: BTreeMap<&str, Vec<Vec<&Reference>>> = BTreeMap::new();
        for play in &program.plays {
            let tasks = play.tasks();
            settled.extend(play.settled_names.iter().chain(&play.file_names).map(String::as_str));
            for task in &tasks {
                settled.extend(set_by(task));
                settled.extend(task.role.iter().flat_map(|role| role.magic.keys()));
            }
            let of_tasks = tasks.iter().flat_map(|task| &task.references);
            for reference in play.var_references.iter().chain(&play.block_references).chain(of_tasks) {
                let Some(definition) = &reference.within else { continue };
                let all = asks.entry(&definition.name).or_default();
                let same = |other: &&Reference| {
                    other.within.as_ref().is_some_and(|other| Arc::ptr_eq(other, definition))
                };
                match all.iter_mut().find(|asked| asked.first().is_some_and(same)) {
                    Some(asked) => asked.push(reference),
                    None => all.push(vec![reference]),
                }
            }
        }
        Self { settled, asks }
    }

    /// Returns an undefined variable that each value of `name` needs.
    fn missing(
        &self,
        name: &'a str,
        is_set: &dyn Fn(&Reference) -> bool,
        on_the_way: &mut Vec<&'a str>,
    ) -> Option<&'a Reference> {
        if self.settled.contains(name) || on_the_way.contains(&name) {
            return None;
        }
        on_the_way.push(name);
        let mut first = None;
        for asked in self.asks.get(name)? {
            let missing = asked.iter().filter(|reference| !reference.guarded).find_map(|reference| {
                match is_set(reference) {
                    false => Some(*reference),
                    true => self.missing(&reference.name, is_set, on_the_way),
                }
            })?;
            first.get_or_insert(missing);
        }
        first
    }
}

fn check_play<'a>(
    play: &'a Play,
    tasks: &[&'a Arc<Task>],
    values: &Values<'a>,
    known: &BTreeSet<&str>,
    facts: bool,
    errors: &mut Diagnostics,
) {
    // Variables are rendered where they are used, so a loop's item or a task's own variable may be visible.
    let mut wide = known.clone();
    for task in tasks {
        local_names(task, &mut wide);
    }
    let is_in = |reference: &Reference, names: &BTreeSet<&str>| {
        reference.local || names.contains(reference.name.as_str()) || facts && is_fact(&reference.name)
    };
    let mut reported: BTreeSet<(String, u32, u32)> = BTreeSet::new();
    let mut check = |references: &'a [Reference], names: &BTreeSet<&str>, wide_values: bool| {
        for reference in
            references.iter().filter(|reference| reference.within.is_none() && !reference.guarded)
        {
            let place = (reference.span.file().to_owned(), reference.span.line, reference.span.column);
            let error = if !is_in(reference, names) {
                Some(undefined(reference, reference, names, facts))
            } else if wide_values {
                let missing = values.missing(&reference.name, &|inner| is_in(inner, &wide), &mut Vec::new());
                // A condition may test exactly the missing variable.
                let tested = |missing: &&Reference| {
                    reference.doubtful
                        && references.iter().any(|other| other.guarded && other.name == missing.name)
                };
                missing
                    .filter(|missing| !tested(missing))
                    .map(|missing| undefined(reference, missing, &wide, facts))
            } else {
                None
            };
            if let Some(error) = error
                && reported.insert(place)
            {
                errors.push(if reference.doubtful { doubt(error) } else { error });
            }
        }
    };
    check(&play.var_references, &wide, true);
    check(&play.block_references, &wide, false);
    for task in tasks {
        check(&task.references, known, true);
    }
}

/// Turns an error into a warning, because it occurs only if a condition holds.
fn doubt(error: Diagnostic) -> Diagnostic {
    let doubt = Diagnostic { severity: Severity::Warning, ..error };
    doubt.note("a condition may keep this from being done; where it holds, the task fails")
}

/// Checks that hosts have the variable of `failure_domain`. A play's variable does not count: it is the same for
/// every host, and one domain of all hosts limits nothing.
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

/// Returns the error for a variable that is undefined, or whose value uses an undefined one.
fn undefined(used: &Reference, missing: &Reference, known: &BTreeSet<&str>, facts: bool) -> Diagnostic {
    let name = missing.name.as_str();
    let error = Diagnostic::error(format!("the variable `{name}` is not defined")).at(&used.span);
    let error = match &missing.within {
        None => error.label("no inventory, play or earlier task sets it"),
        Some(definition) => {
            let Span { line, column, .. } = &definition.span;
            let place = format!("{}:{line}:{column}", definition.span.file());
            error
                .label(format!("`{}` needs it", used.name))
                .note(format!("{place} gives `{}` a value with `{name}` in it", definition.name))
        }
    };
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
