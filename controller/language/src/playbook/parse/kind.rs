//! Finds the kind of a task, and reports unknown keys.

use gpufleet_protocol::tasks::{KINDS, KindInfo, find};

use super::task::Inherited;
use super::{Parser, join, keys};
use crate::diagnostic::{Diagnostic, suggest};
use crate::yaml::Node;

impl Parser<'_> {
    /// Describes a module that Ansible would load: from a collection, or from a file beside the playbook or in a
    /// role.
    fn module_in_python(&self, name: &str, outer: &Inherited) -> Option<String> {
        if let Some((collection, _)) = name.rsplit_once('.')
            && collection.contains('.')
            && !matches!(collection, "ansible.builtin" | "ansible.legacy")
        {
            return Some(format!(
                "a module of the collection {collection}, in Python, which gpufleet does not load"
            ));
        }
        let role = outer.role.as_ref().map(|role| role.path.clone());
        let folders = role.into_iter().chain([self.directory.clone()]);
        folders
            .map(|folder| join(&folder, &format!("library/{name}.py")))
            .find(|path| self.is_there(path))
            .map(|path| format!("{path} is a module in Python, which gpufleet does not load"))
    }

    /// Returns the kind of a task, and reports each key that no task has.
    pub(super) fn kind_of<'n>(
        &mut self,
        node: &'n Node,
        outer: &Inherited,
    ) -> Option<(&'static KindInfo, &'n Node, &'n Node)> {
        let entries = node.as_map().unwrap_or_default();
        let mut kinds = Vec::new();
        let mut unknown = Vec::new();
        for (key, value) in entries {
            let text = key.key_text();
            if keys::SHARED.contains(&text.as_str()) || keys::TASK.contains(&text.as_str()) {
                continue;
            }
            if text.starts_with(super::looping::PREFIX) {
                continue;
            }
            match find(&text) {
                Some(kind) => kinds.push((kind, key, value)),
                None => unknown.push((text, key, value)),
            }
        }
        for (text, key, value) in &unknown {
            // Of a task's keys only these take a mapping, so any other is probably a module with its parameters.
            let mapping = ["vars", "environment", "args", "loop_control", "module_defaults"];
            let near_key = suggest(text, keys::SHARED.iter().chain(keys::TASK).copied())
                .filter(|near| value.as_map().is_none() || mapping.contains(near));
            let python = self.module_in_python(text, outer);
            let near_kind = suggest_kind(text).filter(|_| python.is_none());
            let absent = value.get("state").and_then(Node::as_str) == Some("absent");
            let advice = crate::playbook::module_advice_for(text, absent);
            let error = if let Some(hint) = keys::not_yet(text) {
                Diagnostic::error(format!("`{text}` is not available yet")).at(&key.span).help(hint)
            } else if kinds.is_empty() && (near_key.is_none() || near_kind.is_some() || advice.is_some()) {
                let error = Diagnostic::error(format!("unknown task `{text}`"))
                    .at(&key.span)
                    .label("no task kind of this name");
                match (advice, near_kind) {
                    (Some(advice), _) => error.help(advice.text()),
                    (None, _) if python.is_some() => error.note(python.unwrap_or_default()).help(
                        "`command` and `script` run a program of the node; `gpufleet doc` lists all kinds",
                    ),
                    (None, Some(name)) => {
                        error.help(format!("did you mean `{name}`? `gpufleet doc` lists all kinds"))
                    }
                    (None, None) => error.help("`gpufleet doc` lists all kinds"),
                }
            } else {
                let error = Diagnostic::error(format!("unknown key `{text}`"))
                    .at(&key.span)
                    .label("not a key of a task");
                match (near_key.or(near_kind), kinds.first()) {
                    (Some(near), _) => error.help(format!("did you mean `{near}`?")),
                    (None, Some((kind, ..))) if !kind.open_keys && kind.has(text) => {
                        error.help(format!("it is a parameter: indent it below `{}`", kind.name))
                    }
                    _ => error,
                }
            };
            self.error(error);
        }
        match kinds.as_slice() {
            [one] => Some(*one),
            [] => {
                if unknown.is_empty() {
                    let place = entries.first().map_or(&node.span, |(key, _)| &key.span);
                    self.error(
                        Diagnostic::error("a task without a kind")
                            .at(place)
                            .label("nothing here says what to do")
                            .help("add one, such as `command: uname -r`; `gpufleet doc` lists all kinds"),
                    );
                }
                None
            }
            [(first, ..), (second, key, _), ..] => {
                self.error(
                    Diagnostic::error(format!(
                        "one task has two kinds: `{}` and `{}`",
                        first.name, second.name
                    ))
                    .at(&key.span)
                    .label("the second")
                    .help("begin another task with `- `"),
                );
                None
            }
        }
    }
}

/// Returns what is probably wrong with a task that is only text.
pub(super) fn mistyped_task(text: &str) -> Option<String> {
    let word = text.split(|c: char| c.is_whitespace() || c == ':').next().unwrap_or_default();
    let rest = text.get(word.len()..).unwrap_or_default();
    let known = find(word).is_some() || keys::SHARED.contains(&word) || keys::TASK.contains(&word);
    match rest.strip_prefix(':') {
        Some(value) if known => Some(format!("a space is missing behind the `:`: `{word}: {value}`")),
        None if known && !rest.is_empty() => Some(format!("a `:` is missing: `{word}: {}`", rest.trim())),
        _ => text.contains('=').then(|| "write the kind as a key: `kind: …`".to_owned()),
    }
}

/// Returns the kind with a similar name. Namespaces are ignored, or all names of one would look alike.
fn suggest_kind(text: &str) -> Option<&'static str> {
    let last = text.rsplit('.').next().unwrap_or(text);
    let names = KINDS.iter().flat_map(|kind| kind.aliases.iter().copied().chain([kind.name]));
    suggest(last, names.filter(|name| !name.contains('.')))
}
