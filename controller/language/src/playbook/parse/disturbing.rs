//! What a task's command does to running work, as far as the playbook's text and that of its scripts tell.

use gpufleet_protocol::{
    disturbing::{self, Disturbance},
    tasks::{Class, KindInfo, Script, Shell},
};

use super::{Inherited, Parser, join};
use crate::{
    diagnostic::Diagnostic,
    playbook::program::Parameters,
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
        own: &Inherited,
    ) -> Option<Disturbance> {
        if kind.class != Class::Command {
            return None;
        }
        let found = match kind.is::<Script>() {
            true => self.of_script(params, own),
            false => of_line(kind, params),
        }?;
        let Some(instead) = found.act.instead() else { return Some(found) };
        let place = params.get("cmd").or_else(|| params.get("argv")).map_or(&key.span, |entry| &entry.span);
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
