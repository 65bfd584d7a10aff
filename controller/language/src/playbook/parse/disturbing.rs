//! What a task does to running work beside its kind's class, as far as the playbook's text and that of its scripts tell.

use gpufleet_protocol::{
    disturbing::{self, Disturbance, kinds},
    tasks::{Class, KindInfo, Params, Script, Shell},
};
use serde_json::Value as Json;

use super::{Inherited, Parser, join};
use crate::{
    diagnostic::Diagnostic,
    playbook::program::{Loop, Parameters},
    template::{Value, is_template},
    yaml::Node,
};

impl Parser<'_> {
    /// Returns what a command does that needs a permit. One that no permit makes safe is an error: the playbook would
    /// otherwise stop in its middle.
    pub(super) fn disturbance(
        &mut self,
        kind: &KindInfo,
        key: &Node,
        params: &Parameters,
        looped: Option<&Loop>,
        own: &Inherited,
    ) -> Option<Disturbance> {
        let found = match kind.class {
            Class::Command if kind.is::<Script>() => self.of_script(params, own),
            Class::Command => of_line(kind, params),
            Class::Node => of_kind(kind, params, looped),
            Class::Control | Class::Session => None,
        }?;
        let Some(instead) = found.act.instead() else { return Some(found) };
        let named = ["cmd", "argv", "name"].iter().find_map(|name| params.get(name));
        let place = named.map_or(&key.span, |entry| &entry.span);
        self.error(
            Diagnostic::error(format!("{found}, and is not run as a command"))
                .at(place)
                .note("neither budget nor drain nor a check of the node would be around it")
                .help(instead),
        );
        None
    }

    fn of_script(&self, params: &Parameters, own: &Inherited) -> Option<Disturbance> {
        let line = params.get("cmd").and_then(|entry| entry.value.as_str())?;
        let name = line.split_whitespace().next().filter(|name| !is_template(name))?;
        let folders = own.search.iter();
        let mut paths = folders.flat_map(|folder| [join(&join(folder, "files"), name), join(folder, name)]);
        let bytes = paths.find_map(|path| self.reader.read(&path).ok())?;
        let interpreter = params.get("executable").and_then(|entry| entry.value.as_str());
        disturbing::of_script(&String::from_utf8_lossy(&bytes), interpreter)
    }
}

fn of_line(kind: &KindInfo, params: &Parameters) -> Option<Disturbance> {
    if let Some(entry) = params.get("cmd") {
        let is_shell = kind.is::<Shell>() || kind.name == "raw";
        return disturbing::of_template(entry.value.as_str()?, is_shell);
    }
    let Value::List(words) = &params.get("argv")?.value else { return None };
    let words: Option<Vec<&str>> = words.items().iter().map(Value::as_str).collect();
    disturbing::of_template(&shell_words::join(words?), false)
}

/// As far as literal parameters and items of a loop tell; other templates stand for any word.
fn of_kind(kind: &KindInfo, params: &Parameters, looped: Option<&Loop>) -> Option<Disturbance> {
    let of = |read: &Params| if let Params::Node(op) = read { kinds::of_op(op) } else { None };
    if let Some(fixed) = &params.fixed {
        return of(fixed);
    }
    let read = |item: Option<&Value>| {
        let known = |value: &Value| {
            let text = value.as_str().filter(|text| is_template(text));
            match (text, item) {
                (Some(text), Some(item)) if Some(text) == item_of(looped).as_deref() => item.to_json(),
                (Some(text), _) => Json::String(disturbing::without_templates(text)),
                (None, _) => value.to_json(),
            }
        };
        let value = |value: &Value| match value {
            Value::List(values) => Json::Array(values.items().iter().map(known).collect()),
            value => known(value),
        };
        let given =
            params.entries.iter().map(|entry| (entry.name.to_string(), value(&entry.value))).collect();
        kind.parse(Json::Object(given)).ok()
    };
    let items = match looped.map(|looped| &looped.items) {
        Some(Value::List(items)) => items.items().iter().map(Some).collect(),
        _ => vec![None],
    };
    items.into_iter().filter_map(read).filter_map(|read| of(&read)).max_by_key(|found| found.act)
}

/// How a task writes the whole item of its loop: `{{ item }}`.
fn item_of(looped: Option<&Loop>) -> Option<String> {
    looped.map(|looped| format!("{{{{ {} }}}}", looped.variable))
}
