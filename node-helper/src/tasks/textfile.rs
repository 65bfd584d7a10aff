//! The common part of `lineinfile`, `blockinfile` and `replace`: a text file of which a part is declared.

use std::{path::PathBuf, time::SystemTime};

use gpufleet_protocol::{Change, Disruption, Property, Subject, pattern::Captures, tasks::FileMode};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, Plan, Trouble},
    os::{
        civil, diff,
        files::{self, Fresh, Ownership},
        tree,
    },
    tasks::{
        ownership::{self, Wanted},
        putfile::validate,
    },
    world::{Content, Effect, Entry, Owned},
};

/// Largest text for a diff, in bytes.
const DIFF_LIMIT: usize = 64 * 1024;

/// A part of the text that is changed, added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub from: Option<String>,
    pub to: Option<String>,
}

/// The new text, and what was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    pub text: Vec<u8>,
    pub edits: Vec<Edit>,
    /// The mark before the block that was edited; none where the edits are of lines.
    pub block: Option<String>,
    /// What was done, in Ansible's words; empty if nothing.
    pub message: String,
    /// Further data for `register`.
    pub data: Map<String, Value>,
}

/// The parameters that the three kinds share.
pub struct Frame<'a> {
    pub path: &'a str,
    pub owner: Option<&'a str>,
    pub group: Option<&'a str>,
    pub mode: Option<&'a FileMode>,
    pub backup: bool,
    pub validate: Option<&'a str>,
}

#[derive(Debug)]
pub struct State {
    /// The path with links at its end resolved.
    pub path: PathBuf,
    /// `None` if there is no file.
    pub text: Option<Vec<u8>>,
    owned: Option<Owned>,
    wanted: Wanted,
}

#[derive(Debug)]
pub enum Step {
    Text(Vec<u8>),
    Own(Ownership),
}

pub fn observe(frame: &Frame<'_>, node: &Node<'_>) -> Result<State, Trouble> {
    let (path, entry) = node.world.follow(&node.roots.path(frame.path))?;
    let text = match &entry {
        Entry::Directory { .. } => {
            return Err(Trouble::invalid(format!("{} is a directory, not a file", frame.path)));
        }
        _ => node.world.read(&path)?,
    };
    let wanted = Wanted::resolve(node.users, frame.owner, frame.group, frame.mode)?;
    Ok(State { path, text, owned: entry.owned(), wanted })
}

/// Plans an edit; `edit` makes it of any text.
pub fn plan(
    frame: &Frame<'_>,
    state: &State,
    edit: impl Fn(Option<&[u8]>) -> Result<Edited, Trouble>,
) -> Result<Plan<Step>, Trouble> {
    let edited = edit(state.text.as_deref())?;
    // Of some patterns the result matches again, and each edit adds to the one before it.
    let act = !edited.edits.is_empty() && !edit(Some(&edited.text))?.edits.is_empty();
    planned(frame, state, edited).map(|plan| Plan { act, ..plan })
}

/// Returns what differs after the steps of `done`: of a text that is as it was written, only the ownership may.
pub fn left(
    frame: &Frame<'_>,
    state: &State,
    done: &Plan<Step>,
    edit: impl Fn(Option<&[u8]>) -> Result<Edited, Trouble>,
) -> Result<Plan<Step>, Trouble> {
    let written = done.steps.iter().find_map(|step| match step {
        Step::Text(text) => Some(text),
        Step::Own(_) => None,
    });
    match written {
        Some(text) if state.text.as_ref() == Some(text) => planned(frame, state, Edited::default()),
        _ => plan(frame, state, edit),
    }
}

fn planned(frame: &Frame<'_>, state: &State, edited: Edited) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan { data: edited.data, ..Plan::default() };
    let mut message = edited.message;
    if !edited.edits.is_empty() {
        let old = state.text.as_deref().unwrap_or_default();
        let mut diff = (old.len().max(edited.text.len()) <= DIFF_LIMIT)
            .then(|| Some((std::str::from_utf8(old).ok()?, std::str::from_utf8(&edited.text).ok()?)))
            .flatten()
            .map(|(old, new)| diff::unified(frame.path, old, new));
        for edit in edited.edits {
            let path = frame.path.to_owned();
            let subject = match &edited.block {
                Some(marker) => Subject::Block { path, marker: marker.clone() },
                None => Subject::line(path),
            };
            let mut change = Change::new(subject, Property::CONTENT, edit.from, edit.to, Disruption::Live);
            change.diff = diff.take();
            plan.changes.push(change);
        }
        plan.steps.push(Step::Text(edited.text));
    }
    if let Some(owned) = state.owned {
        let (set, changes) = ownership::differences(frame.path, owned, &state.wanted, false)?;
        if !changes.is_empty() {
            plan.steps.push(Step::Own(set));
            plan.changes.extend(changes);
            let and = if message.is_empty() { "" } else { " and " };
            message.push_str(and);
            message.push_str("ownership, perms or SE linux context changed");
        }
    }
    plan.data.insert("msg".to_owned(), json!(message));
    Ok(plan)
}

pub fn after(state: &State, plan: &Plan<Step>) -> Vec<Effect> {
    if plan.steps.is_empty() {
        return Vec::new();
    }
    let mut owned = state.owned.unwrap_or_else(|| new_file(&state.wanted));
    let mut content = state.text.as_deref().unwrap_or_default().into();
    for step in &plan.steps {
        match step {
            Step::Text(text) => content = text.as_slice().into(),
            Step::Own(set) => {
                owned.uid = set.uid.unwrap_or(owned.uid);
                owned.gid = set.gid.unwrap_or(owned.gid);
                owned.mode = set.mode.unwrap_or(owned.mode);
            }
        }
    }
    vec![Effect::Path {
        path: state.path.clone(),
        entry: Entry::File { owned, content: Content::Known(content) },
    }]
}

pub fn apply(
    frame: &Frame<'_>,
    node: &Node<'_>,
    state: &State,
    plan: &Plan<Step>,
) -> Result<Map<String, Value>, Trouble> {
    let mut data = Map::new();
    for step in &plan.steps {
        match step {
            Step::Text(text) => write(frame, node, state, text, &mut data)?,
            Step::Own(set) => tree::own(&state.path, *set)?,
        }
    }
    Ok(data)
}

fn write(
    frame: &Frame<'_>,
    node: &Node<'_>,
    state: &State,
    text: &[u8],
    data: &mut Map<String, Value>,
) -> Result<(), Trouble> {
    if state.text.is_none()
        && let Some(folder) = state.path.parent()
    {
        tree::make_dirs(folder)?;
    }
    let mut fresh = Fresh::beside(&state.path)?;
    fresh.write_all(text)?;
    if let Some(command) = frame.validate {
        validate(node, command, &fresh, frame.path)?;
    }
    if state.text.is_some() {
        if frame.backup {
            let copy = files::back_up(&state.path, &civil::stamp(SystemTime::now()), node.deadline)?;
            data.insert("backup".to_owned(), json!(copy));
            data.insert("backup_file".to_owned(), json!(copy));
        }
        fresh.adopt()?;
    } else {
        let new = new_file(&state.wanted);
        fresh.own(Ownership { uid: state.wanted.uid, gid: state.wanted.gid, mode: Some(new.mode) })?;
    }
    fresh.place()?;
    Ok(())
}

fn new_file(wanted: &Wanted) -> Owned {
    Owned {
        uid: wanted.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: wanted.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        mode: wanted.bits(0o644, false).ok().flatten().unwrap_or(0o644),
    }
}

/// Creates the error for a missing file that the task does not create.
pub fn missing(path: &str, can_create: bool) -> Trouble {
    let hint = if can_create { "; `create: true` would make it" } else { "" };
    Trouble::missing(format!("there is no file {path}{hint}"))
}

/// Expands a template with `\1`, `\g<1>` and `\g<name>`, like Python's `re`.
pub fn expand(template: &str, captures: &Captures<'_, '_>) -> Vec<u8> {
    let group = |name: &str| {
        let found = match name.parse::<usize>() {
            Ok(number) => captures.get(number),
            Err(_) => captures.name(name),
        };
        found.unwrap_or_default().to_vec()
    };
    let mut out = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        let digits = after.bytes().take(2).take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let (number, tail) = after.split_at_checked(digits).unwrap_or((after, ""));
            out.extend(group(number));
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix("g<").and_then(|after| after.split_once('>')) {
            out.extend(group(name));
            rest = tail;
        } else {
            let mut tail = after.chars();
            match tail.next() {
                Some('n') => out.push(b'\n'),
                Some('t') => out.push(b'\t'),
                Some('\\') => out.push(b'\\'),
                Some(other) => {
                    out.push(b'\\');
                    out.extend(other.to_string().into_bytes());
                }
                None => out.push(b'\\'),
            }
            rest = tail.as_str();
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// Implements [`crate::declare::NodeKind`] for a kind that edits a text file.
macro_rules! text_file {
    ($type:ty, $edit:path) => {
        impl $crate::declare::NodeKind for $type {
            type State = $crate::tasks::textfile::State;
            type Step = $crate::tasks::textfile::Step;

            fn observe(
                &self,
                node: &$crate::declare::Node<'_>,
            ) -> Result<Self::State, $crate::declare::Trouble> {
                $crate::tasks::textfile::observe(&frame(self), node)
            }

            fn plan(
                &self,
                state: &Self::State,
            ) -> Result<$crate::declare::Plan<Self::Step>, $crate::declare::Trouble> {
                $crate::tasks::textfile::plan(&frame(self), state, |text| $edit(self, text))
            }

            fn left(
                &self,
                state: &Self::State,
                done: &$crate::declare::Plan<Self::Step>,
            ) -> Result<$crate::declare::Plan<Self::Step>, $crate::declare::Trouble> {
                $crate::tasks::textfile::left(&frame(self), state, done, |text| $edit(self, text))
            }

            fn after(
                &self,
                state: &Self::State,
                plan: &$crate::declare::Plan<Self::Step>,
            ) -> Vec<$crate::world::Effect> {
                $crate::tasks::textfile::after(state, plan)
            }

            fn apply(
                &self,
                node: &$crate::declare::Node<'_>,
                state: &Self::State,
                plan: &$crate::declare::Plan<Self::Step>,
            ) -> Result<serde_json::Map<String, serde_json::Value>, $crate::declare::Trouble> {
                $crate::tasks::textfile::apply(&frame(self), node, state, plan)
            }
        }

        fn frame(task: &$type) -> $crate::tasks::textfile::Frame<'_> {
            $crate::tasks::textfile::Frame {
                path: &task.path,
                owner: task.owner.as_deref(),
                group: task.group.as_deref(),
                mode: task.mode.as_ref(),
                backup: task.backup,
                validate: task.validate.as_deref(),
            }
        }
    };
}
pub(super) use text_file;
