//! `apt_repository`: a source of apt in the one-line format.
//!
//! A source counts as present wherever apt reads it, in the format deb822 too. Lines of others stay as they are.

use std::{collections::HashMap, fs};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    repository::{
        deb822::{self, Stanza},
        openpgp,
        sources::{self, Parts, Ppa, Source},
    },
    tasks::{AptKey, AptRepository, RepositoryState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::Ownership,
        lines::{self, Edit},
        mode,
    },
    tasks::{
        download::Request,
        edits::{self, Present},
        keys,
        packages::apt::{self, Update},
    },
    world::Effect,
};

const LIST: &str = "/etc/apt/sources.list";
const FOLDER: &str = "/etc/apt/sources.list.d";
/// What Launchpad says about an archive, and where its keys are.
const LAUNCHPAD: &str = "https://api.launchpad.net/1.0";
const KEYSERVER: &str = "keyserver.ubuntu.com";
/// Largest answer of Launchpad, in bytes.
const ANSWER_LIMIT: u64 = 1 << 20;
/// How long another user of apt is waited for, in seconds.
const LOCK_TIMEOUT_S: u32 = 60;

#[derive(Debug)]
pub struct State {
    /// The source, as files have it.
    source: String,
    /// All `.list` files.
    lists: Vec<Present>,
    /// `.sources` files that declare the same.
    elsewhere: Vec<String>,
    /// The file for a new line.
    new: Present,
    /// The key of an archive of Launchpad that is not there yet, with its fingerprint.
    key: Option<(Present, Vec<u8>, String)>,
}

#[derive(Debug)]
pub enum Step {
    File(edits::Step),
    Update,
}

fn codename(node: &Node<'_>) -> Option<String> {
    let text = ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| fs::read_to_string(node.roots.path(path)).ok())?;
    let fields: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let name = fields.get("VERSION_CODENAME").map(|name| name.trim_matches(['"', '\'']))?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Looks the key of an archive up at Launchpad; `None` if the node has it.
fn key(
    task: &AptRepository,
    ppa: &Ppa<'_>,
    node: &Node<'_>,
) -> Result<Option<(Present, Vec<u8>, String)>, Trouble> {
    let url = format!("{LAUNCHPAD}/~{}/+archive/{}", ppa.owner, ppa.name);
    let ask = |url: &str| -> Result<Vec<u8>, Trouble> {
        let found = node.downloads.get(&Request::plain(url, task.validate_certs, ANSWER_LIMIT), node);
        found.and_then(|held| held.bytes()).map_err(|trouble| match trouble {
            Trouble::Failed { kind, message } => {
                let what = format!("the key of {} cannot be looked up: {message}", task.repo);
                Trouble::failed(
                    kind,
                    format!("{what}; `deb822_repository` with `signed_by` needs no look-up"),
                )
            }
            other => other,
        })
    };
    let answer: Value = serde_json::from_slice(&ask(&url)?).map_err(|_| {
        Trouble::failed(FailureKind::Exit, format!("{url} does not answer as Launchpad does"))
    })?;
    let fingerprint = answer.get("signing_key_fingerprint").and_then(Value::as_str).and_then(openpgp::key_id);
    let Some(fingerprint) = fingerprint.filter(|id| id.len() >= 32) else {
        let message = format!("Launchpad names no key for {}", task.repo);
        return Err(Trouble::failed(FailureKind::Exit, message));
    };
    let folders = ["/etc/apt/keyrings", keys::TRUSTED_FOLDER, "/usr/share/keyrings"];
    for folder in folders {
        for file in Present::all(node, folder, &[".gpg", ".asc"])? {
            if keys::Keyring::of(&file).is_ok_and(|ring| ring.has(&fingerprint)) {
                return Ok(None);
            }
        }
    }
    let material = keys::material(&ask(&AptKey::at_server(KEYSERVER, &fingerprint))?)
        .map_err(|why| Trouble::failed(FailureKind::Exit, format!("{KEYSERVER}: {why}")))?;
    let material = keys::only(&material, std::slice::from_ref(&fingerprint))
        .map_err(|id| Trouble::failed(FailureKind::Exit, format!("{KEYSERVER} has no primary key {id}")))?;
    let path = format!("{}/{}-ubuntu-{}.gpg", keys::TRUSTED_FOLDER, ppa.owner, ppa.name);
    Ok(Some((Present::read(node, &path)?, material, fingerprint)))
}

/// Whether a text holds a password in an address.
fn has_password(text: &str) -> bool {
    sources::shown(text) != text
}

fn line_change(file: &str, from: Option<&str>, to: Option<&str>) -> Change {
    let typed = |line: Option<&str>| line.map_or(Typed::Absent, |line| sources::shown(line).into());
    Change::new(Subject::line(file), Property::CONTENT, typed(from), typed(to), Disruption::Live)
}

impl State {
    fn matching<'a>(&'a self, file: &'a Present) -> Result<Vec<(usize, Source)>, Trouble> {
        let lines = file.text()?.lines().enumerate();
        let found = lines.filter_map(|(at, line)| Some((at, Source::parse(line)?)));
        Ok(found.filter(|(_, source)| source.text == self.source).collect())
    }
}

impl NodeKind for AptRepository {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if !node.roots.path("/etc/apt").is_dir() {
            return Err(Trouble::missing(
                "there is no /etc/apt on this node; is it a node of Debian or Ubuntu?",
            ));
        }
        let ppa = Ppa::parse(&self.repo);
        let codename = match ppa {
            Some(_) if self.codename.is_none() => codename(node).ok_or_else(|| {
                Trouble::invalid("/etc/os-release names no release; `codename` would say which one is meant")
            })?,
            _ => String::new(),
        };
        let source = self.source(&codename);
        let mut lists = vec![Present::read(node, LIST)?];
        lists.retain(|file| file.bytes.is_some());
        lists.extend(Present::all(node, FOLDER, &[".list"])?);
        let mut elsewhere = Vec::new();
        if let Ok(parts) = Parts::of(&source) {
            for file in Present::all(node, FOLDER, &[".sources"])? {
                let text = String::from_utf8_lossy(file.bytes.as_deref().unwrap_or_default()).into_owned();
                if deb822::stanzas(&text).iter().any(|stanza: &Stanza| stanza.covers(&parts)) {
                    elsewhere.push(file.shown);
                }
            }
        }
        let path = self.file(&codename);
        let new = match lists.iter().find(|file| file.shown == path) {
            Some(file) => file.clone(),
            None => Present::read(node, &path)?,
        };
        let mut state = State { source, lists, elsewhere, new, key: None };
        if let Some(ppa) = ppa.filter(|_| self.state == RepositoryState::Present) {
            let mut there = !state.elsewhere.is_empty();
            for file in &state.lists {
                there |= state.matching(file)?.iter().any(|(_, source)| source.enabled);
            }
            if !there {
                state.key = key(self, &ppa, node)?;
            }
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let (mut added, mut removed): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        let mut found = Vec::new();
        for file in &state.lists {
            let lines = state.matching(file)?;
            if !lines.is_empty() {
                found.push((file, lines));
            }
        }
        let is_there = !state.elsewhere.is_empty()
            || found.iter().any(|(_, lines)| lines.iter().any(|(_, source)| source.enabled));
        match self.state {
            RepositoryState::Present if is_there => {}
            RepositoryState::Present if !found.is_empty() => {
                for (file, lines) in &found {
                    let text = file.text()?;
                    let now = |at: usize| lines.iter().find(|(place, _)| *place == at);
                    let new = lines::edited(text, |at, _| match now(at) {
                        Some((_, source)) => Edit::Set(source.line()),
                        None => Edit::Keep,
                    });
                    let from = format!("# {}", state.source);
                    let mut change = line_change(&file.shown, Some(&from), Some(&state.source));
                    change.diff = file.diff(&new, has_password(&new));
                    plan.steps.extend(file.written(new, Ownership::default()).map(Step::File));
                    plan.changes.push(change);
                }
            }
            RepositoryState::Present => {
                if let Some((file, material, fingerprint)) = &state.key {
                    let subject = Subject::SigningKey { id: fingerprint.clone() };
                    let change = Change::new(
                        subject,
                        Property::STATE,
                        Typed::Absent,
                        format!("in {}", file.shown),
                        Disruption::Live,
                    );
                    let own = Ownership { mode: Some(0o644), ..Ownership::default() };
                    plan.steps.extend(file.written(material.as_slice(), own).map(Step::File));
                    plan.changes.push(change);
                }
                let file = &state.new;
                let text = file.text()?;
                let mut new = text.to_owned();
                lines::append(&mut new, &state.source);
                let bits = |mode: &str| {
                    let now = file.owned.map_or(0o644, |owned| owned.mode);
                    mode::resolve(mode, now, false)
                        .ok_or_else(|| Trouble::invalid(format!("`{mode}` is not a file mode")))
                };
                let mode = self.mode.as_ref().map(|mode| bits(&mode.0)).transpose()?;
                let mut change = line_change(&file.shown, None, Some(&state.source));
                change.diff = file.diff(&new, has_password(&new));
                if text.is_empty() {
                    added.push(&file.shown);
                }
                let own = Ownership { mode, ..Ownership::default() };
                plan.steps.extend(file.written(new, own).map(Step::File));
                plan.changes.push(change);
            }
            RepositoryState::Absent => {
                for (file, lines) in &found {
                    let gone: Vec<usize> =
                        lines.iter().filter(|(_, source)| source.enabled).map(|(at, _)| *at).collect();
                    if gone.is_empty() {
                        continue;
                    }
                    let new = lines::edited(file.text()?, |at, _| Edit::remove_if(gone.contains(&at)));
                    let mut change = line_change(&file.shown, Some(&state.source), None);
                    change.diff = file.diff(&new, has_password(file.text()?));
                    if new.is_empty() {
                        removed.push(&file.shown);
                        plan.push(Step::File(file.removed()), change);
                    } else {
                        plan.steps.extend(file.written(new, Ownership::default()).map(Step::File));
                        plan.changes.push(change);
                    }
                }
                for file in &state.elsewhere {
                    plan.warnings.push(format!(
                        "{file} declares this source too, in another format; `deb822_repository` or `file` would remove it"
                    ));
                }
            }
        }
        if self.update_cache && !plan.steps.is_empty() {
            plan.steps.push(Step::Update);
        }
        plan.data.insert("sources_added".to_owned(), json!(added));
        plan.data.insert("sources_removed".to_owned(), json!(removed));
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => Some(step.effect()),
            Step::Update => None,
        };
        plan.steps.iter().filter_map(effect).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        let mut done: Vec<&edits::Step> = Vec::new();
        for step in &plan.steps {
            let did = match step {
                Step::File(step) => step.apply().inspect(|()| done.push(step)),
                Step::Update => apt::update(
                    node,
                    &Update {
                        retries: self.update_cache_retries,
                        max_delay_s: self.update_cache_retry_max_delay,
                        lock_timeout_s: LOCK_TIMEOUT_S,
                    },
                ),
            };
            if let Err(trouble) = did {
                for step in done.iter().rev() {
                    step.undo()?;
                }
                return Err(match trouble {
                    Trouble::Failed { kind, message } => Trouble::failed(
                        kind,
                        format!("Failed to update apt cache, so the sources are as they were: {message}"),
                    ),
                    other => other,
                });
            }
        }
        Ok(Map::new())
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        let data = [("repo", json!(self.repo)), ("state", json!(self.state))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests;
