//! Whether variables of the command line are slips of others.

use std::{collections::BTreeSet, sync::Arc};

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics},
    interpreter::{Files, template_texts},
    inventory::Inventory,
    playbook::Program,
};
use serde_json::{Map, Value};

/// Returns a warning for each variable of `given`, the words after `-e`, that nothing uses though one of nearly the same name is used.
///
/// Not of files (`@…`), which may be for several playbooks. Nothing is said where not all uses are known before the run.
pub fn misspelt(
    given: &[String],
    program: &Program,
    inventory: &Inventory,
    hosts: &[String],
    extra: &Map<String, Value>,
    files: &dyn Files,
) -> Diagnostics {
    let mut warnings = Diagnostics::new();
    let typed = |name: &&String| given.iter().any(|text| !text.starts_with('@') && text.contains(*name));
    let names: Vec<&str> = extra.keys().filter(typed).map(String::as_str).collect();
    if names.is_empty() {
        return warnings;
    }
    let Some(mut others) = template_texts(program, files) else { return warnings };
    others.extend(extra.values().map(Value::to_string));
    let mut seen = BTreeSet::new();
    for vars in hosts.iter().filter_map(|host| inventory.host_vars(host)) {
        let shared = seen.insert(Arc::as_ptr(vars.shared())).then(|| vars.shared().values());
        others.extend(shared.into_iter().flatten().chain(vars.own().values()).filter_map(used_in));
    }
    for (name, near) in program.misspelt(names.into_iter(), &others) {
        warnings.push(
            Diagnostic::warning(format!("`-e {name}=…`: nothing uses a variable of this name"))
                .help(format!("did you mean `{near}`?")),
        );
    }
    warnings
}

/// Returns the text of a value that may use variables.
fn used_in(value: &Value) -> Option<String> {
    let text = value.to_string();
    (text.contains("{{") || text.contains("{%")).then_some(text)
}
