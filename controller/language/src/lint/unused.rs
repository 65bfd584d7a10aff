//! Finds variables that nothing uses.

use std::collections::BTreeMap;

use gpufleet_protocol::tasks::{KindInfo, Template};

use super::run::Finding;
use crate::diagnostic::Diagnostic;
use crate::migration::{Recorder, TaskView};
use crate::playbook::{Reader as _, count_word};
use crate::template::is_template;
use crate::yaml::Node;

/// A place where a variable gets its value.
struct Definition<'n> {
    name: String,
    key: &'n Node,
    what: &'static str,
}

/// Finds variables of plays, and `register`s, whose names occur nowhere else.
pub(super) fn check(
    trees: &BTreeMap<String, Node>,
    views: &[TaskView<'_>],
    reader: &Recorder<'_>,
    findings: &mut Vec<Finding>,
) {
    let mut texts: Vec<String> = trees.values().map(|tree| tree.span.source.text().to_owned()).collect();
    for view in views {
        let Some(found) = view.found() else { continue };
        let is_template_task = found.kind.is_some_and(KindInfo::is::<Template>);
        let file = match found.name.rsplit('.').next().unwrap_or_default() {
            _ if is_template_task => found.value.get("src"),
            name if name.starts_with("include_") || name.starts_with("import_") => {
                Some(found.value.get("file").unwrap_or(found.value))
            }
            _ => None,
        };
        let Some(file) = file else { continue };
        let Some(name) = file.as_str().filter(|name| !is_template(name)) else {
            // The name of the file is a template, so the file is unknown and may use any variable.
            return;
        };
        if !is_template_task {
            continue;
        }
        let directory = view.node.span.file().rsplit_once('/').map_or("", |(directory, _)| directory);
        let places = [
            format!("{directory}/templates/{name}"),
            format!("{directory}/{name}"),
            format!("{directory}/../templates/{name}"),
        ];
        let read = places.iter().find_map(|place| {
            let place = place.strip_prefix('/').filter(|_| directory.is_empty()).unwrap_or(place);
            reader.read(place).ok()
        });
        match read {
            Some(bytes) => texts.push(String::from_utf8_lossy(&bytes).into_owned()),
            None => return,
        }
    }
    let mut definitions = Vec::new();
    for tree in trees.values() {
        for play in tree.as_seq().unwrap_or_default() {
            // A role may use any variable, and its files are not all known here.
            if play.get("roles").is_some() {
                return;
            }
            if play.get("hosts").is_none() {
                continue;
            }
            for (key, _) in play.get("vars").and_then(Node::as_map).unwrap_or_default() {
                definitions.push(Definition { name: key.key_text(), key, what: "this variable" });
            }
        }
    }
    for view in views {
        if let Some(name) = view.node.get("register")
            && let Some(text) = name.as_str()
        {
            definitions.push(Definition { name: text.to_owned(), key: name, what: "this result" });
        }
    }
    for definition in definitions {
        let name = definition.name.as_str();
        let reserved = name.starts_with("ansible_") || name.starts_with('_') || name.starts_with("gpufleet");
        if reserved || name.is_empty() {
            continue;
        }
        let uses: usize = texts.iter().map(|text| count_word(text, name)).sum();
        if uses <= 1 {
            findings.push(Finding::new(
                "unused-variable",
                Diagnostic::warning(format!("nothing uses `{name}`"))
                    .at(&definition.key.span)
                    .label(format!("{} is read nowhere", definition.what))
                    .help("remove it, or correct the name that was meant"),
            ));
        }
    }
}
