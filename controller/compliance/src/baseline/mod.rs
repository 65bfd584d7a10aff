//! Baselines: which checks are asked of which nodes, with which limits, and what is declared of them.
//!
//! Built-in ones are data files; users' files extend them. Several are put on top of each other, a later one winning.
//! Owns the format of the files and the messages about mistakes in them; knows no files, as callers read them.

mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_language::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

use gpufleet_protocol::tasks::HealthInfo;
use serde_json::Value;

use crate::catalogue::Catalogue;
use crate::declared;
use crate::policy::{GroupPolicy, Policy, PolicyData};
use read::Layer;

/// The built-in baselines: name, what for, file.
const BUILT_IN: &[(&str, &str, &str)] = &[
    ("core", "every node with GPUs", include_str!("data/core.yaml")),
    ("training", "whole GPUs that work together over NVLink", include_str!("data/training.yaml")),
    ("inference", "GPUs that hold models and wait for work", include_str!("data/inference.yaml")),
    ("mig-shared", "GPUs cut into MIG instances", include_str!("data/mig-shared.yaml")),
    (
        "benchmark",
        "nodes that are measured: a warning spoils the result",
        include_str!("data/benchmark.yaml"),
    ),
    ("kubernetes", "nodes of Kubernetes, beside another baseline", include_str!("data/kubernetes.yaml")),
    ("slurm", "nodes of Slurm, beside another baseline", include_str!("data/slurm.yaml")),
];

/// A baseline to be loaded.
#[derive(Clone, Debug)]
pub enum Choice {
    /// The name of a built-in one.
    BuiltIn(String),
    /// The text of a user's file.
    File(Arc<SourceFile>),
}

/// What an inventory says about a name below `groups`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupHint {
    /// It is a group or a host.
    Known,
    /// It is neither, and this is what may have been meant.
    Unknown(Option<String>),
}

/// A policy, and what a person should know about how it was made.
#[derive(Debug)]
pub struct Loaded {
    pub policy: Policy,
    /// Names below `groups` that the inventory does not have.
    pub warnings: Diagnostics,
}

/// Returns the names of the built-in baselines, and what each is for.
pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILT_IN.iter().map(|(name, purpose, _)| (*name, *purpose))
}

/// Returns the file of a built-in baseline.
pub fn text(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, ..)| *known == name).map(|(_, _, text)| *text)
}

/// Resolves baselines, a later one on top of an earlier one. `hint` says what the inventory knows of a group; without
/// an inventory it answers [`GroupHint::Known`].
///
/// # Errors
/// If a baseline does not exist or a file is wrong, with places.
pub fn load(choices: &[Choice], hint: &dyn Fn(&str) -> GroupHint) -> Result<Loaded, Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut layers = Layers::default();
    let mut named: Vec<(String, Span)> = Vec::new();
    for choice in choices {
        match choice {
            Choice::BuiltIn(name) if built_in().any(|(known, _)| known == name) => {
                layers.built_in(name, &mut errors)
            }
            Choice::BuiltIn(name) => errors.push(unknown(name)),
            Choice::File(source) => {
                if let Some(mut layer) = errors.absorb(read::layer(source, hint)) {
                    named.append(&mut layer.named);
                    for name in &layer.extends {
                        layers.built_in(name, &mut errors);
                    }
                    let name = layer.name.clone().unwrap_or_else(|| stem(source.name()).to_owned());
                    layers.names.push(name);
                    layers.list.push(layer);
                }
            }
        }
    }
    if errors.has_errors() {
        return Err(errors.once());
    }
    let mut data = PolicyData { name: layers.names.join("+"), min_coverage: 0.9, ..PolicyData::default() };
    let mut warnings = Diagnostics::new();
    for mut layer in layers.list {
        warnings.append(std::mem::take(&mut layer.warnings));
        merge(&mut data, layer);
    }
    for (id, place) in named {
        errors.append(without_value(&id, &place, &data));
    }
    if errors.has_errors() {
        return Err(errors.once());
    }
    let asks = !data.checks.is_empty() || data.groups.iter().any(|entry| !entry.checks.is_empty());
    if !asks {
        let error = Diagnostic::error(format!("the baseline `{}` asks for no check", data.name));
        return Err(error.help("add `extends: core`, or list `checks`").into());
    }
    if let Err(why) = HealthInfo::within_limits(data.own_checks.iter().filter_map(|own| own.read.as_ref())) {
        return Err(Diagnostic::error(format!("own checks: {why}")).help("set a smaller `timeout_s`").into());
    }
    let policy = Policy::try_from(data).map_err(Diagnostic::error)?;
    Ok(Loaded { policy, warnings })
}

/// The mistake of a file that names a check which has nothing to compare with on any node, because nothing is declared of
/// what it judges. A pattern names no check, and built-in baselines ask for what files may declare.
fn without_value(id: &str, place: &Span, data: &PolicyData) -> Diagnostics {
    let Some(check) = Catalogue::get().check(id) else { return Diagnostics::new() };
    let values = data.groups.iter().map(|group| &group.declared).chain([&data.declared]);
    let declared: BTreeMap<String, Value> = values
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if check.is_comparable(&declared) {
        return Diagnostics::new();
    }
    let missing =
        check.na_when.iter().flat_map(|na| &na.declared).find(|name| !declared.contains_key(&***name));
    let Some(name) = missing else { return Diagnostics::new() };
    let meaning = declared::lookup(name).map_or("", |known| known.meaning);
    Diagnostic::error(format!("the check `{id}` compares with `{name}`, and no value of it is declared"))
        .at(place)
        .note(meaning)
        .help(format!("add `declared: {{{name}: …}}`, or leave the check out"))
        .into()
}

pub(crate) fn unknown(name: &str) -> Diagnostic {
    let names: Vec<&str> = built_in().map(|(name, _)| name).collect();
    Diagnostic::error(format!("there is no baseline `{name}`"))
        .help(format!("built-in baselines are {}", names.join(", ")))
        .suggest(name, names)
}

fn stem(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.strip_suffix(".yaml").or_else(|| file.strip_suffix(".yml")).unwrap_or(file)
}

#[derive(Default)]
struct Layers {
    names: Vec<String>,
    list: Vec<Layer>,
    /// Built-in baselines that are in already: `training` and `slurm` both extend `core`, whose values must not come
    /// back over those of `training`.
    taken: BTreeSet<&'static str>,
}

impl Layers {
    fn built_in(&mut self, name: &str, errors: &mut Diagnostics) {
        let Some((name, _, text)) = BUILT_IN.iter().find(|(known, _, _)| *known == name) else { return };
        if !self.taken.insert(name) {
            return;
        }
        let source = SourceFile::new(format!("{name}.yaml"), *text);
        let Some(layer) = errors.absorb(read::layer(&source, &|_| GroupHint::Known)) else { return };
        for parent in &layer.extends {
            self.built_in(parent, errors);
        }
        self.names.push((*name).to_owned());
        self.list.push(layer);
    }
}

/// Puts a layer on top.
fn merge(data: &mut PolicyData, layer: Layer) {
    data.checks.extend(layer.checks);
    for own in layer.own_checks {
        data.own_checks.retain(|known| known.id != own.id);
        data.checks.insert(own.id.clone());
        data.own_checks.push(own);
    }
    // What must be judged is asked.
    data.checks.extend(layer.require.iter().cloned());
    data.checks.retain(|id| !layer.without.contains(id));
    data.require.extend(layer.require);
    data.require.retain(|id| !layer.without.contains(id));
    for (check, values) in layer.params {
        data.params.entry(check).or_default().extend(values);
    }
    for (name, value) in layer.declared {
        if value.is_null() {
            data.declared.remove(&name);
        } else {
            data.declared.insert(name, value);
        }
    }
    if let Some(share) = layer.min_coverage {
        data.min_coverage = share;
    }
    if let Some(red) = layer.warn_is_red {
        data.warn_is_red = red;
    }
    for group in layer.groups {
        match data.groups.iter_mut().find(|known| known.group == group.group) {
            Some(known) => join(known, group),
            None => data.groups.push(group),
        }
    }
}

/// Puts what a later file says of a group on top of what an earlier one said.
fn join(known: &mut GroupPolicy, later: GroupPolicy) {
    known.checks.retain(|id| !later.without.contains(id));
    known.without.retain(|id| !later.checks.contains(id));
    known.checks.extend(later.checks);
    known.without.extend(later.without);
    for (check, values) in later.params {
        known.params.entry(check).or_default().extend(values);
    }
    known.declared.extend(later.declared);
}
