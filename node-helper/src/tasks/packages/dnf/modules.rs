//! Modules of dnf: streams, of which one can be enabled, and installed profiles.
//!
//! The present state is in `/etc/dnf/modules.d`, one file for each module; dnf itself simulates changes.

use gpufleet_protocol::tasks::ModuleStream;

use super::Action;
use crate::{
    declare::{Node, Trouble},
    world::Effect,
};

/// Titles above rows that are not about packages.
const TITLES: [&str; 6] = [
    "Installing module profiles",
    "Removing module profiles",
    "Disabling module profiles",
    "Enabling module streams",
    "Switching module streams",
    "Resetting modules",
];

/// What the node's file says about a module.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    /// The enabled stream.
    stream: Option<String>,
    profiles: Vec<String>,
}

fn known(node: &Node<'_>, module: &str) -> Result<Known, Trouble> {
    let path = node.roots.path(format!("/etc/dnf/modules.d/{module}.module"));
    let Some(bytes) = node.world.read(&path)? else { return Ok(Known::default()) };
    let text = String::from_utf8_lossy(&bytes);
    let value = |wanted: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == wanted).then(|| value.trim().to_owned()).filter(|value| !value.is_empty())
        })
    };
    let is_enabled = value("state").as_deref() == Some("enabled");
    let profiles = value("profiles").unwrap_or_default();
    let profiles = profiles.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(match is_enabled {
        true => Known { stream: value("stream"), profiles: profiles.collect() },
        false => Known::default(),
    })
}

/// Returns the enabled stream of a module.
///
/// # Errors
/// If its file cannot be read.
pub(in crate::tasks) fn stream(node: &Node<'_>, module: &str) -> Result<Option<String>, Trouble> {
    Ok(known(node, module)?.stream)
}

/// Returns whether an earlier task of a prediction installs or removes a stream; `None` if there is no such task.
fn assumed(node: &Node<'_>, spec: &str) -> Option<bool> {
    node.world.packages().get(spec).map(Option::is_some)
}

fn stream_of(spec: &str) -> &str {
    spec.split_once('/').map_or(spec, |(stream, _)| stream)
}

/// Whether the stream is enabled.
pub(super) fn is_enabled(node: &Node<'_>, spec: &str, module: &ModuleStream<'_>) -> Result<bool, Trouble> {
    match assumed(node, stream_of(spec)) {
        Some(assumed) => Ok(assumed),
        None => Ok(known(node, module.name)?.stream.as_deref() == Some(module.stream)),
    }
}

/// Whether the stream is enabled and its profile installed; without a profile's name, any profile.
pub(super) fn is_installed(node: &Node<'_>, spec: &str, module: &ModuleStream<'_>) -> Result<bool, Trouble> {
    let assumed = assumed(node, spec).or_else(|| assumed(node, stream_of(spec)).filter(|assumed| !assumed));
    if let Some(assumed) = assumed {
        return Ok(assumed);
    }
    let known = known(node, module.name)?;
    let has_profile = match module.profile {
        Some(profile) => known.profiles.iter().any(|name| name == profile),
        None => !known.profiles.is_empty(),
    };
    Ok(known.stream.as_deref() == Some(module.stream) && has_profile)
}

/// Whether any profile of the module is installed.
pub(super) fn has_profiles(node: &Node<'_>, module: &ModuleStream<'_>) -> Result<bool, Trouble> {
    Ok(!known(node, module.name)?.profiles.is_empty())
}

pub(super) fn is_title(title: &str) -> bool {
    TITLES.contains(&title.trim())
}

/// Parses the changes of modules in a transaction table of dnf.
pub(super) fn changed(node: &Node<'_>, text: &str) -> Result<Vec<Action>, Trouble> {
    let mut found = Vec::new();
    let mut section = None;
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Transaction Summary")) {
        if let Some(title) = line.strip_suffix(':') {
            section = is_title(title).then(|| title.split_whitespace().next()).flatten();
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(section), Some((name, rest))) = (section, words.split_first()) else { continue };
        let before = known(node, name.split('/').next().unwrap_or(name))?.stream;
        let (from, to) = match section {
            "Installing" => (None, Some("installed".to_owned())),
            // The last word: when streams are switched, the old one and an arrow come before.
            "Enabling" | "Switching" => (before, rest.last().map(|stream| (*stream).to_owned())),
            "Resetting" => (before, None),
            // Left out: profiles change with their packages or their module, which are listed.
            _ => continue,
        };
        found.push(Action { name: (*name).to_owned(), from, to });
    }
    Ok(found)
}

/// Returns the effects of installing or removing a module's stream.
pub(super) fn effects(spec: &str, absent: bool) -> Vec<Effect> {
    let Some(module) = ModuleStream::of(spec) else { return Vec::new() };
    let version = (!absent).then(|| module.stream.to_owned());
    let mut names = vec![spec, stream_of(spec)];
    names.dedup();
    names
        .into_iter()
        .map(|name| Effect::Package { name: name.to_owned(), version: version.clone() })
        .collect()
}
